"""No op keeps the dims of a batch alive: not in plans, not in memos of dims that stay, not in caches."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest

from conformance.sample import BATCHED, Sample, run
from conformance.samples import SAMPLES


def dims_of_a_run(sample: Sample, backend: str) -> list[weakref.ref[Any]]:
    return [weakref.ref(d) for d in run(sample, backend, BATCHED).dims.known.values()]


@pytest.mark.parametrize("backend", ["numpy", pytest.param("torch", marks=pytest.mark.needs("torch"))])
def test_dims_die_with_the_batch(backend: str) -> None:
    alive = {s.id: dims_of_a_run(s, backend) for s in SAMPLES if backend not in s.no_backend and not s.light}
    gc.collect()
    kept = {name: dims for name, refs in alive.items() if (dims := [r() for r in refs if r() is not None])}
    assert not kept, f"kept alive: {kept}"


@pytest.mark.parametrize("backend", ["numpy", pytest.param("torch", marks=pytest.mark.needs("torch"))])
def test_ops_make_no_reference_cycles(backend: str) -> None:
    """What a step made is gone when its last user lets go, without waiting for the garbage collector."""
    samples = [s for s in SAMPLES if backend not in s.no_backend and not s.light]
    for s in samples:
        run(s, backend, BATCHED)  # plans and caches that stay
    gc.collect()
    gc.disable()
    try:
        kept = {s.id: dims for s in samples if (dims := [r() for r in dims_of_a_run(s, backend) if r() is not None])}
    finally:
        gc.enable()
    assert not kept, f"kept alive until the garbage collector runs: {kept}"
