"""Every op on every backend: dims, dtypes, values, gradients, any order of dims. See conformance/checks.py."""

from __future__ import annotations

from conformance import checks
from conformance.cases import WITH_GRADIENTS, cases
from conformance.sample import Sample


@cases("result")
def test_result(backend: str, sample: Sample) -> None:
    checks.check_result(backend, sample)


@cases("order", where=lambda s: s.order)
def test_order(backend: str, sample: Sample) -> None:
    if not (backend == "meta" and sample.needs_values):
        checks.check_order(backend, sample)


@cases("gradient", where=lambda s: s.grad, backends=WITH_GRADIENTS)
def test_gradient(backend: str, sample: Sample) -> None:
    checks.check_gradient(backend, sample)
