"""The checks of the conformance and masking suites: each takes a sample and a backend, and raises AssertionError.

They are functions, not tests, so that tests/conformance/test_checks.py can show of each that it fails on a wrong op.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

import rf
from conformance.compare import (
    GRADIENT_TOLERANCE,
    TOLERANCES,
    State,
    TensorState,
    check_close,
    check_finite,
    check_structure,
    check_values,
    entry_of_batch,
)
from conformance.sample import (
    ALL_ZERO,
    BATCHED,
    DYNAMIC,
    EMPTY,
    FULL_TIME,
    STATIC_TIME,
    T_SIZES,
    U_SIZES,
    WIDER,
    WITH_ZERO,
    Batch,
    Run,
    Sample,
    operand_array,
    run,
    to_raw,
    valid_part,
)
from rf._core import make_tensor

_runs: dict[Any, tuple[Sample, Run]] = {}


def base_run(sample: Sample, backend: str, batch: Batch) -> Run:
    """`run`, remembered: most checks compare with the same few runs."""
    key = (id(sample), backend, batch)  # the entry holds the sample, so that its id stays taken
    if key not in _runs:
        if len(_runs) > 64:
            _runs.clear()
        _runs[key] = sample, run(sample, backend, batch)
    return _runs[key][1]


def reference(sample: Sample) -> Sample:
    """What NumPy computes for comparison: the sample itself, in float32 where NumPy lacks the dtype."""
    if not any(o.dtype == "bfloat16" for o in sample.operands):
        return sample
    operands = tuple(replace(o, dtype="float32") if o.dtype == "bfloat16" else o for o in sample.operands)
    return replace(sample, operands=operands)


def check_result(backend: str, sample: Sample) -> None:
    """Dims, dtype and values are those of NumPy, and those that the sample says."""
    if backend == "meta" and sample.needs_values:
        try:
            run(sample, backend, BATCHED)
        except rf.BackendError:
            return
        raise AssertionError("it needs values, so on meta it must raise BackendError")
    here = base_run(sample, backend, BATCHED)
    _check_out(sample, here.result)
    if backend == "meta":
        other = "torch" if "numpy" in sample.no_backend else "numpy"
        check_structure(here.result, base_run(sample, other, BATCHED).result)
    elif backend == "numpy":
        _check_ref(sample)
    else:
        expected = base_run(reference(sample), "numpy", BATCHED).result
        if reference(sample) is sample:
            check_structure(here.result, expected)
        if sample.values:
            check_values(here.result, expected)
    if backend != "meta" and sample.static and sample.dynamic and sample.values:
        check_values(base_run(sample, backend, STATIC_TIME).result, base_run(sample, backend, FULL_TIME).result)


def _check_out(sample: Sample, result: list[State]) -> None:
    out = sample.out
    if out is None:
        return
    first = next(s for s in result if isinstance(s, TensorState))
    assert set(first.names) == set(out.dims), f"dims of {first}, the sample says {out.dims}"
    assert not out.dtype or first.dtype == out.dtype, f"dtype of {first}, the sample says {out.dtype}"
    assert out.sparse is None or first.sparse_dim == out.sparse, f"sparse dim of {first}, the sample says {out.sparse}"
    assert out.feature is None or first.feature_dim == out.feature, f"feature dim of {first}: {out.feature} is expected"


def _check_ref(sample: Sample) -> None:
    if sample.ref is None:
        return
    assert sample.out is not None, "a sample with ref= needs out=, the order of its axes"
    batch = STATIC_TIME if sample.static else FULL_TIME
    first = next(s for s in run(sample, "numpy", batch).result if isinstance(s, TensorState))
    assert first.array is not None
    arrays = [operand_array(sample, i, batch) for i in range(len(sample.operands))]
    with np.errstate(all="ignore"):
        expected = np.asarray(sample.ref(*arrays))
    actual = first.array.transpose([first.names.index(n) for n in sample.out.dims])
    check_close(actual, expected, first.dtype, what="against ref")


def check_order(backend: str, sample: Sample) -> None:
    """The order of dims of the operands changes nothing but the order of dims of the results."""
    expected = base_run(sample, backend, BATCHED).result
    for order in (1, 2):
        actual = run(sample, backend, BATCHED, order=order).result
        check_structure(actual, expected)
        if backend != "meta" and sample.values:
            check_values(actual, expected)


# -- gradients


def check_gradient(backend: str, sample: Sample) -> None:
    """The gradients of all float operands are those that central differences of NumPy's forward give, in float64.

    Compared are derivatives along random directions of all operands at once: a wrong entry shows in each of them.
    """
    sample = sample.as_float64()
    rng = np.random.default_rng(0)
    arrays = [operand_array(sample, i, BATCHED) for i in range(len(sample.operands))]
    here = run(sample, backend, BATCHED, arrays=arrays, requires_grad=True)
    grads = _gradients(sample, here)
    step = 1e-6
    for operand_or_all in ["all", *[i for i, o in enumerate(sample.operands) if o.is_float]]:
        directions = [
            rng.standard_normal(a.shape) if o.is_float and operand_or_all in ("all", i) else np.zeros_like(a)
            for i, (o, a) in enumerate(zip(sample.operands, arrays))
        ]
        analytic = sum(float((g * d).sum()) for g, d in zip(grads, directions) if g is not None)
        ends = []
        for sign in (1, -1):
            moved = [a + sign * step * d if d.any() else a for a, d in zip(arrays, directions)]
            ends.append(_weighted_sum(run(sample, "numpy", BATCHED, arrays=moved).result))
        numeric = (ends[0] - ends[1]) / (2 * step)
        relative, absolute = GRADIENT_TOLERANCE
        assert abs(analytic - numeric) <= absolute + relative * max(abs(numeric), 1), (
            f"derivative along a random direction of operand {operand_or_all}: {analytic}, numerically {numeric}"
        )


def _weights(state: TensorState) -> np.ndarray:
    """Fixed weights for summing a result, whatever the order of its axes; 0 in padding, and where it is infinite."""
    names = sorted(state.names)
    shape = [next(d.extent for d in state.dims if d.name == n) for n in names]
    weights = np.random.default_rng(1).uniform(0.5, 1.5, shape).transpose([names.index(n) for n in state.names])
    assert state.array is not None
    return np.where(state.valid() & ~np.isinf(state.array), weights, 0)


def _weighted_sum(states: list[State]) -> float:
    total = 0.0
    for s in states:
        if isinstance(s, TensorState) and "float" in s.dtype:
            weights = _weights(s)
            assert s.array is not None
            total += float(np.where(weights > 0, s.array, 0).astype(np.float64).ravel() @ weights.ravel())
    return total


def _gradients(sample: Sample, here: Run) -> list[np.ndarray | None]:
    """Gradients of the weighted sum of the valid part of all float results, for each float operand."""
    total: Any = 0
    states = [s for s in here.result if isinstance(s, TensorState)]
    for state, tensor in zip(states, here.tensors):
        if "float" in state.dtype and getattr(tensor.raw_tensor, "requires_grad", True):
            weights = make_tensor(
                tensor.backend, to_raw(tensor.backend.name, _weights(state), state.dtype), tensor.dims, state.dtype
            )
            total = total + rf.reduce_sum(rf.where(weights > 0, tensor, 0) * weights, axis=tensor.dims, use_mask=False)
    assert isinstance(total, rf.Tensor) and total.backend is not None, "no result has a gradient"
    leaves = [raw for raw, o in zip(here.raws, sample.operands) if o.is_float]
    found = iter(total.backend.gradient(total.raw_tensor, leaves))
    out: list[np.ndarray | None] = []
    for raw, operand in zip(here.raws, sample.operands):
        if not operand.is_float:
            out.append(None)
            continue
        grad = next(found)
        out.append(np.zeros(raw.shape) if grad is None else total.backend.to_numpy(grad).astype(np.float64))
    return out


# -- masking


def check_alone(backend: str, sample: Sample) -> None:
    """Each sequence of the batch, alone, gives the same, in values and in the sizes of all dims."""
    batched = base_run(sample, backend, BATCHED).result
    assert _mention_batch(batched), "no result depends on B: mark the sample with alone=False"
    for i, row in enumerate(BATCHED.rows):
        _check_entry(run(sample, backend, Batch((row,))).result, batched, i, row, sample)


def _mention_batch(states: list[State]) -> bool:
    return any("B" in s.names if isinstance(s, TensorState) else "B" in getattr(s, "size_dims", ()) for s in states)


def _check_entry(alone: list[State], batched: list[State], index: int, row: int, sample: Sample) -> None:
    lengths = {"T": T_SIZES[row], "U": U_SIZES[row]}
    entry = entry_of_batch(batched, "B", index, lengths)
    alone = entry_of_batch(alone, "B", 0, lengths)
    check_structure(alone, entry)
    if sample.values:
        check_values(alone, entry)


def check_wider(backend: str, sample: Sample) -> None:
    """A longer sequence in the batch, which means more padding for the others, changes nothing for these."""
    narrow, wide = base_run(sample, backend, BATCHED).result, run(sample, backend, WIDER).result
    for i, row in enumerate(BATCHED.rows):
        lengths = {"T": T_SIZES[row], "U": U_SIZES[row]}
        entry_narrow, entry_wide = (entry_of_batch(states, "B", i, lengths) for states in (narrow, wide))
        check_structure(entry_wide, entry_narrow)
        if sample.values:
            check_values(entry_wide, entry_narrow)


def check_poison(backend: str, sample: Sample) -> None:
    """NaN and infinities in the padding of the operands reach no valid frame of a result."""
    clean = base_run(sample, backend, BATCHED).result
    poisoned = run(sample, backend, BATCHED, poison=True).result
    check_structure(poisoned, clean)
    if sample.values:
        check_values(poisoned, clean)
    check_finite(poisoned)


def check_poison_gradient(backend: str, sample: Sample) -> None:
    """With poisoned padding, gradients at valid frames are the same.

    Along the dims that an op is length-aware of (`masked`), gradients in the padding are exactly 0. Along other dims
    it is frame-wise: there it computes with what the padding holds, so operands that lack these dims (weights) get
    gradients from it and are not compared.
    """
    clean = run(sample, backend, BATCHED, requires_grad=True)
    of_clean = _gradients(sample, clean)
    of_poisoned = _gradients(sample, run(sample, backend, BATCHED, requires_grad=True, poison=True))
    pairs = zip(of_clean, of_poisoned)
    framewise = {
        d for o in sample.operands for n in o.dims if n in DYNAMIC and n not in sample.masked for d in (n, *DYNAMIC[n])
    }
    for i, (operand, (expected, actual)) in enumerate(zip(sample.operands, pairs)):
        if expected is None or actual is None or not framewise <= set(operand.dims):
            continue
        valid = valid_part(operand, clean.dims)
        tolerance = TOLERANCES[operand.dtype]
        check_close(actual, expected, operand.dtype, mask=valid, what=f"gradient of operand {i}", tolerance=tolerance)
        padding = ~valid_part(operand, clean.dims, sample.masked)
        for which, grad in (("clean", expected), ("poisoned", actual)):
            assert not (grad[padding] != 0).any(), f"gradient of operand {i} in its {which} padding: {grad[padding]}"


def check_zero_length(backend: str, sample: Sample) -> None:
    """A sequence of length 0 gives no NaN and changes nothing for the others; a batch of only such ones works, too."""
    for batch in (WITH_ZERO, ALL_ZERO):
        here = run(sample, backend, batch)
        if backend != "numpy" and reference(sample) is sample:
            expected = run(sample, "numpy", batch).result
            check_structure(here.result, expected)
            if sample.values:
                check_values(here.result, expected)
        check_finite(here.result)
        if rf.get_backend(backend).has_gradients and sample.masked and sample.grad and batch is WITH_ZERO:
            there = run(sample, backend, batch, requires_grad=True)
            for i, grad in enumerate(_gradients(sample, there)):
                assert grad is None or np.isfinite(grad).all(), f"gradient of operand {i}: {grad}"
        if batch is WITH_ZERO and sample.alone:
            for i, row in enumerate(batch.rows):
                if row not in batch.zero:
                    _check_entry(run(sample, backend, Batch((row,))).result, here.result, i, row, sample)


def check_empty_batch(backend: str, sample: Sample) -> None:
    """A batch of no sequences works, with the dims and dtypes that every backend agrees on."""
    here = run(sample, backend, EMPTY).result
    other = "torch" if "numpy" in sample.no_backend else "numpy"
    if backend != other:
        check_structure(here, run(sample, other, EMPTY).result)
