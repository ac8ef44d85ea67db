"""Padding never leaks: every op with dynamic dims, on every backend that computes. See conformance/checks.py."""

from __future__ import annotations

from conformance import checks
from conformance.cases import COMPUTING, WITH_GRADIENTS, cases
from conformance.sample import Sample


def batched(sample: Sample) -> bool:
    return sample.dynamic and any("B" in o.dims for o in sample.operands)


@cases("alone", where=lambda s: batched(s) and s.alone, backends=COMPUTING)
def test_alone_equals_batched(backend: str, sample: Sample) -> None:
    checks.check_alone(backend, sample)


@cases("wider", where=lambda s: batched(s) and s.wider, backends=COMPUTING)
def test_wider_padding(backend: str, sample: Sample) -> None:
    checks.check_wider(backend, sample)


@cases("poison", where=lambda s: batched(s) and s.poison, backends=COMPUTING)
def test_poisoned_padding(backend: str, sample: Sample) -> None:
    checks.check_poison(backend, sample)


@cases("poison-gradient", where=lambda s: batched(s) and s.poison and s.grad, backends=WITH_GRADIENTS)
def test_poisoned_padding_gradient(backend: str, sample: Sample) -> None:
    checks.check_poison_gradient(backend, sample)


@cases("zero", where=lambda s: batched(s) and s.zero, backends=COMPUTING)
def test_zero_length(backend: str, sample: Sample) -> None:
    checks.check_zero_length(backend, sample)


@cases("empty", where=lambda s: any("B" in o.dims for o in s.operands) and s.empty)
def test_empty_batch(backend: str, sample: Sample) -> None:
    if not (backend == "meta" and sample.needs_values):
        checks.check_empty_batch(backend, sample)
