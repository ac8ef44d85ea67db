"""Each check of the suites fails on an op that is wrong in the way that the check is for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import rf
from conformance import checks
from conformance.cases import gaps, parse_gaps, used_gaps
from conformance.sample import BATCHED, Batch, Dims, Operand, Result, S, operand_array, run, valid_part
from rf._core import make_tensor

pytestmark = pytest.mark.needs("torch")


def on_torch(x: rf.Tensor) -> bool:
    return x.backend is rf.get_backend("torch")


def with_raw(x: rf.Tensor, raw: Any) -> rf.Tensor:
    assert x.backend is not None
    return make_tensor(x.backend, raw, x.dims, x.dtype)


WRONG_RESULTS = {
    "values": S("wrong", "B T F", call=lambda d, x: x + 0.001 if on_torch(x) else x),
    "NaN": S("wrong", "B T F", call=lambda d, x: x / 0.0 - x / 0.0 if on_torch(x) else x),
    "dtype": S("wrong", "B T F", call=lambda d, x: rf.cast(x, "float64") if on_torch(x) else x),
    "dims": S("wrong", "B T F", call=lambda d, x: rf.reduce_sum(x, axis=d.F) if on_torch(x) else x),
    "another dim of the same size": S("wrong", "B T F", call=lambda d, x: with_other_dim(x) if on_torch(x) else x),
    "number of results": S("wrong", "B T F", call=lambda d, x: (x, x) if on_torch(x) else x),
    "out dims": S("wrong", "B T F", out="B T", call=lambda d, x: x),
    "out dtype": S("wrong", "B T F", out="B T F:int32", call=lambda d, x: x),
    "out feature": S("wrong", "B T F", out="B T *F", call=lambda d, x: x),
    "out sparse": S("wrong", "B T>V", out="B T:int32>F", call=lambda d, x: x),
    "static time": S("wrong", "B T F", call=lambda d, x: x if d.T.is_dynamic() else x + 1),
}


def with_other_dim(x: rf.Tensor) -> rf.Tensor:
    assert x.backend is not None
    return make_tensor(x.backend, x.raw_tensor, (*x.dims[:-1], rf.Dim(2, name="other")), x.dtype)


@pytest.mark.parametrize("what", WRONG_RESULTS)
def test_result(what: str) -> None:
    with pytest.raises(AssertionError):
        checks.check_result("torch", WRONG_RESULTS[what])


def test_result_against_ref() -> None:
    checks.check_result(
        "numpy", S("right", "B T F", out="F T B", ref=lambda x: 2 * x.transpose(2, 1, 0), call=lambda d, x: x + x)
    )
    with pytest.raises(AssertionError, match="against ref"):
        checks.check_result("numpy", S("wrong", "B T F", out="B T F", ref=lambda x: x, call=lambda d, x: x + 0.01))


@pytest.mark.parametrize("what", ["dtype", "dims"])
def test_result_on_meta(what: str) -> None:
    def call(d: Dims, x: rf.Tensor) -> rf.Tensor:
        if x.backend is not rf.get_backend("meta"):
            return x
        return rf.cast(x, "float64") if what == "dtype" else rf.reduce_sum(x, axis=d.F)

    with pytest.raises(AssertionError, match=what):
        checks.check_result("meta", S("wrong", "B T F", call=call))


def test_result_that_needs_values() -> None:
    checks.check_result("meta", S("right", "", call=lambda d, x: x.item(), needs_values=True))
    with pytest.raises(AssertionError, match="must raise BackendError"):
        checks.check_result("meta", S("wrong", "F", call=lambda d, x: x, needs_values=True))


@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_order(backend: str) -> None:
    checks.check_order(backend, S("right", "B T F", call=lambda d, x: x.copy_transpose(x.dims[::-1])))
    with pytest.raises(AssertionError):
        checks.check_order(backend, S("wrong", "B T F", call=lambda d, x: x * float(x.dims.index(d.F))))
    with pytest.raises(AssertionError):
        checks.check_order(backend, S("wrong", "B T F", call=lambda d, x: rf.reduce_sum(x, axis=x.dims[0])))


def test_order_on_meta() -> None:
    with pytest.raises(AssertionError):
        checks.check_order("meta", S("wrong", "B T F", call=lambda d, x: rf.reduce_sum(x, axis=x.dims[0])))


def half_gradient(x: rf.Tensor) -> rf.Tensor:
    raw = x.raw_tensor
    return with_raw(x, raw * (raw.detach() if on_torch(x) else raw))


def no_gradient_at_one_place(x: rf.Tensor) -> rf.Tensor:
    if not on_torch(x):
        return x * x
    raw = x.raw_tensor.clone()
    raw[0, 0] = raw[0, 0].detach()
    return with_raw(x, raw * raw)


def test_gradient() -> None:
    checks.check_gradient("torch", S("right", "B T", "B T", call=lambda d, x, y: x * x * rf.sin(y)))
    for call in (half_gradient, no_gradient_at_one_place):
        with pytest.raises(AssertionError, match="derivative along a random direction"):
            checks.check_gradient("torch", S("wrong", "B T", call=lambda d, x, call=call: call(x)))
    with pytest.raises(AssertionError, match="direction of operand"):
        checks.check_gradient("torch", S("wrong", "B T", "B T", call=lambda d, x, y: x * x + half_gradient(y)))
    with pytest.raises(AssertionError, match="no result has a gradient"):
        checks.check_gradient("torch", S("wrong", "B T", call=lambda d, x: x > 0))


def mask_by_multiplying(d: Dims, x: rf.Tensor) -> rf.Tensor:
    return rf.reduce_sum(x * rf.cast(d.T.get_mask(), x.dtype), axis=d.T, use_mask=False)


def with_longer_lengths(d: Dims, x: rf.Tensor) -> tuple[rf.Tensor, rf.Dim]:
    lengths = d.lengths("T")
    return x, rf.Dim(None, name="longer").fill([n + len(lengths) for n in lengths], [d.B])


MASKING: list[tuple[Any, str, Any]] = [
    (checks.check_alone, "looks at other sequences", lambda d, x: x - rf.reduce_max(x, axis=d.B)),
    (checks.check_alone, "length of the batch", lambda d, x: x * float(d.T.get_dim_value())),
    (checks.check_alone, "not a result per sequence", lambda d, x: rf.reduce_sum(x, axis=[d.B, d.T])),
    (checks.check_alone, "lengths", with_longer_lengths),
    (checks.check_wider, "length of the batch", lambda d, x: x * float(d.T.get_dim_value())),
    (checks.check_wider, "mean over padding", lambda d, x: rf.reduce_mean(x, axis=d.T, use_mask=False)),
    (checks.check_poison, "unmasked sum", lambda d, x: rf.reduce_sum(x, axis=d.T, use_mask=False)),
    (checks.check_poison, "mask by multiplying", mask_by_multiplying),
    (checks.check_zero_length, "0/0", lambda d, x: rf.reduce_sum(x, axis=d.T) / d.T.get_size_tensor()),
    (checks.check_zero_length, "reads the first frame", lambda d, x: with_first_frame(x, d)),
]


def with_first_frame(x: rf.Tensor, d: Dims) -> rf.Tensor:
    assert x.backend is not None
    return make_tensor(x.backend, x.raw_tensor[:, 0], (d.B,), x.dtype)


@pytest.mark.parametrize(("check", "what", "call"), MASKING, ids=[f"{c.__name__}-{w}" for c, w, _ in MASKING])
@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_masking(check: Any, what: str, call: Any, backend: str) -> None:
    with pytest.raises((AssertionError, IndexError)):
        check(backend, S("wrong", "B T", call=call))


def test_poison_gradient() -> None:
    right = S("right", "B T", masked=True, call=lambda d, x: rf.reduce_sum(rf.exp(x.copy_masked(0)), axis=d.T))
    checks.check_poison_gradient("torch", right)

    def masked_too_late(d: Dims, x: rf.Tensor) -> rf.Tensor:
        return rf.reduce_sum(rf.exp(x).copy_masked(0), axis=d.T)

    wrong = S("wrong", "B T", masked=True, call=masked_too_late)
    checks.check_poison("torch", wrong)  # nothing is wrong with its values
    with pytest.raises(AssertionError, match="in its poisoned padding: .*nan"):
        checks.check_poison_gradient("torch", wrong)
    # Frame-wise use is not an error, but weights that are multiplied with the padding are, in an op that claims to be
    # length-aware.
    checks.check_poison_gradient("torch", S("framewise", "B T F", "F", call=lambda d, x, w: x * w))
    with pytest.raises(AssertionError, match="gradient of operand 1"):
        checks.check_poison_gradient(
            "torch", S("wrong", "B T F", "F", masked=True, call=lambda d, x, w: (x * w).copy_masked(0))
        )


@pytest.mark.parametrize("backend", ["torch", "meta"])
def test_empty_batch(backend: str) -> None:
    def other_dtype(d: Dims, x: rf.Tensor) -> rf.Tensor:
        return x if x.backend is rf.get_backend("numpy") else rf.cast(x, "float64")

    with pytest.raises(AssertionError, match="dtype"):
        checks.check_empty_batch(backend, S("wrong", "B T", call=other_dtype))
    with pytest.raises(ZeroDivisionError):
        checks.check_empty_batch(backend, S("wrong", "B T", call=lambda d, x: x * (1 / d.B.get_dim_value())))


# -- the notation of samples, and the data


def test_operand_notation() -> None:
    assert Operand.parse("B T F", "float32") == Operand(("B", "T", "F"), "float32")
    assert Operand.parse("w=*F G:float16~pos", "float32") == Operand(("F", "G"), "float16", "w", "F", "", "pos")
    assert Operand.parse("B>V", "float32") == Operand(("B",), "int32", sparse="V")
    assert Operand.parse("", "float64") == Operand((), "float64")
    assert Result.parse("B (T+1) *F:int32>V") == Result(("B", "(T+1)", "F"), "int32", "V", "F")
    for bad in ("B t", "B T:", "B T>", "b=c=B"):
        with pytest.raises(AssertionError, match="not of the form"):
            Operand.parse(bad, "float32")


def test_an_entry_of_the_batch_holds_the_same_in_every_batch() -> None:
    sample = S("x", "T B F")
    batched, alone = operand_array(sample, 0, BATCHED), operand_array(sample, 0, Batch((2,)))
    assert batched.shape == (4, 3, 2) and alone.shape == (3, 1, 2)
    np.testing.assert_array_equal(batched[:3, 2:], alone)


def test_poison_is_in_the_padding_only() -> None:
    for text in ("B T F", "B U", "B T W", "B C T", "W T B"):
        sample = S("x", text)
        clean, poisoned = operand_array(sample, 0, BATCHED), operand_array(sample, 0, BATCHED, poison=True)
        mask = valid_part(sample.operands[0], Dims(BATCHED))
        np.testing.assert_array_equal(clean[mask], poisoned[mask])
        assert not mask.all() and not np.isfinite(poisoned[~mask]).any()
        assert np.isfinite(clean).all()


def test_indices_are_in_range() -> None:
    array = operand_array(S("x", "B F>T"), 0, BATCHED)
    assert (array >= 0).all() and (array < np.array([4, 2, 3])[:, None]).all()


def test_dims_of_a_batch() -> None:
    d = Dims(BATCHED)
    assert [d.B.get_dim_value(), d.T.get_dim_value(), d.N.get_dim_value(), d.F.get_dim_value()] == [3, 4, 3, 2]
    assert d.T.need_masking() and d.W.need_masking() and not d.N.need_masking()
    assert d.C.get_sizes().values.tolist() == [1, 2, 3, 4]
    assert d.W.get_sizes().dims == (d.B, d.T)
    assert Dims(Batch((0, 1), full=True, static=True)).T.dimension == 4


def test_ids_are_readable() -> None:
    assert str(S("gather", "V F", "B T>V", axis="V", id="x")) == "gather-VF-BT:int32-axis=V-x"


# -- known gaps


def test_gaps_need_a_reason() -> None:
    assert parse_gaps("# comment\n\nresult a-B | why\n", "x.txt") == {"result a-B": "why"}
    for bad in ("result a-B", "result a-B |", "| why", "a | b\na | c"):
        with pytest.raises(ValueError, match=r"x\.txt:\d"):
            parse_gaps(bad, "x.txt")


def test_every_gap_belongs_to_a_case() -> None:
    import conformance.test_masking
    import conformance.test_ops  # noqa: F401  # making their cases marks the gaps as used

    stale = [
        (backend, case)
        for backend in ("numpy", "torch", "meta")
        for case in gaps(backend)
        if (backend, case) not in used_gaps
    ]
    assert not stale, f"lines of tests/xfail that match no case: {stale}"


def test_run_uses_the_backend_it_is_told() -> None:
    for backend in ("numpy", "torch", "meta"):
        (tensor,) = run(S("neg", "B"), backend, BATCHED).tensors
        assert tensor.backend is rf.get_backend(backend)
