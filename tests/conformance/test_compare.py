"""The comparison of results can fail, in each of its parts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import rf
from conformance.compare import (
    TOLERANCES,
    DimState,
    TensorState,
    check_close,
    check_finite,
    check_structure,
    check_values,
    entry_of_batch,
    freeze,
)

B = DimState("B", True, (), np.array(2))
T = DimState("T", True, ("B",), np.array([3, 1]))
F = DimState("F", False, (), np.array(2))
BTF = TensorState((B, T, F), "float32", None, None, np.arange(12, dtype="float32").reshape(2, 3, 2))
BT = TensorState((B, T), "int32", None, None, np.arange(6, dtype="int32").reshape(2, 3))


def changed(state: TensorState, index: tuple[int, ...], value: Any) -> TensorState:
    assert state.array is not None
    array = state.array.copy()
    array[index] = value
    return replace(state, array=array)


# -- structure


def test_same_structure_passes() -> None:
    check_structure([BTF, T, 3], [BTF, T, 3])
    check_structure([replace(BTF, dims=(F, B, T))], [BTF])
    check_structure([replace(BTF, array=None)], [BTF])


OTHER_STRUCTURE = {
    "fewer results": [],
    "more results": [BTF, BTF],
    "another kind": [T],
    "a dim is missing": [replace(BTF, dims=(B, T))],
    "a dim more": [replace(BTF, dims=(B, T, F, DimState("G", False, (), np.array(1))))],
    "another dim": [replace(BTF, dims=(B, T, replace(F, name="G")))],
    "a dim twice": [replace(BTF, dims=(B, T, F, F))],
    "another static size": [replace(BTF, dims=(B, T, replace(F, sizes=np.array(3))))],
    "other lengths": [replace(BTF, dims=(B, replace(T, sizes=np.array([3, 2])), F))],
    "lengths of another shape": [replace(BTF, dims=(B, replace(T, sizes=np.array([3, 1, 1])), F))],
    "one length for everybody": [replace(BTF, dims=(B, replace(T, size_dims=(), sizes=np.array(3)), F))],
    "static, not dynamic": [replace(BTF, dims=(replace(B, dynamic=False), T, F))],
    "dtype": [replace(BTF, dtype="float64")],
    "feature dim": [replace(BTF, feature_dim="F")],
    "sparse dim": [replace(BTF, sparse_dim="V")],
}


@pytest.mark.parametrize("what", OTHER_STRUCTURE)
def test_other_structure_fails(what: str) -> None:
    with pytest.raises(AssertionError):
        check_structure(OTHER_STRUCTURE[what], [BTF])


def test_other_dim_among_results_fails() -> None:
    with pytest.raises(AssertionError, match=r"dim T=\[3, 2\] over B, expected T=\[3, 1\] over B"):
        check_structure([replace(T, sizes=np.array([3, 2]))], [T])


# -- values


def test_same_values_pass() -> None:
    check_values([BTF, BT, T, 3], [BTF, BT, T, 3])
    assert BTF.array is not None
    check_values([replace(BTF, dims=(F, B, T), array=BTF.array.transpose(2, 0, 1))], [BTF])
    check_values([changed(BTF, (0, 0, 1), 1 + 1e-6)], [BTF])


def test_padding_is_compared_only_on_request() -> None:
    other = changed(BTF, (1, 1, 0), np.nan)
    check_values([other], [BTF])
    with pytest.raises(AssertionError):
        check_values([other], [BTF], padding=True)


@pytest.mark.parametrize("value", [1.001, -1, np.nan, np.inf, -np.inf])
def test_another_value_fails(value: float) -> None:
    with pytest.raises(AssertionError, match=r"1 of 8 values differ \(float32\): at \(0, 0, 1\)"):
        check_values([changed(BTF, (0, 0, 1), value)], [BTF])


def test_another_integer_fails_by_one() -> None:
    with pytest.raises(AssertionError, match="1 of 4 values differ"):
        check_values([changed(BT, (0, 2), 3)], [BT])


def test_axes_in_wrong_order_fail() -> None:
    square = TensorState((replace(F, name="G"), F), "float32", None, None, np.array([[1.0, 2.0], [3.0, 4.0]]))
    assert square.array is not None
    with pytest.raises(AssertionError):
        check_values([replace(square, dims=square.dims[::-1])], [square])
    check_values([replace(square, dims=square.dims[::-1], array=square.array.T)], [square])


def test_values_of_other_dims_fail() -> None:
    with pytest.raises(AssertionError, match="dims"):
        check_values([replace(BTF, dims=(B, T, replace(F, name="G")))], [BTF])


def test_no_values_fail() -> None:
    with pytest.raises(AssertionError, match="no values"):
        check_values([replace(BTF, array=None)], [BTF])


@pytest.mark.parametrize("actual", [4, 3.0, True, "3", None])
def test_another_plain_value_fails(actual: Any) -> None:
    with pytest.raises(AssertionError):
        check_values([actual], [3])


def test_number_of_results_matters() -> None:
    with pytest.raises(AssertionError, match="1 results, expected 2"):
        check_values([BTF], [BTF, BTF])


# -- arrays


@pytest.mark.parametrize(("dtype", "tolerance"), TOLERANCES.items())
def test_tolerance_is_that_of_the_dtype(dtype: str, tolerance: tuple[float, float]) -> None:
    relative, absolute = tolerance
    expected = np.array([8.0])
    check_close(expected * (1 + relative / 2), expected, dtype)
    with pytest.raises(AssertionError):
        check_close(expected + 2 * (8 * relative + absolute), expected, dtype)


def test_integers_and_bools_have_no_tolerance() -> None:
    for dtype, array in (("int32", np.array([10**6])), ("bool", np.array([False]))):
        check_close(array, array, dtype)
        with pytest.raises(AssertionError):
            check_close(array + 1, array, dtype)


def test_infinities_and_nan_equal_only_themselves() -> None:
    special = np.array([np.nan, np.inf, -np.inf, 0.0])
    check_close(special, special, "float32")
    for i in range(4):
        for value in special[np.arange(4) != i]:
            other = special.copy()
            other[i] = value
            with pytest.raises(AssertionError, match=f"1 of 4 values differ .*at \\({i},\\)"):
                check_close(other, special, "float32")


def test_shapes_matter_also_of_empty_arrays() -> None:
    check_close(np.zeros((0, 3)), np.zeros((0, 3)), "float32")
    for shape in ((0,), (0, 2), (3, 0), (1, 3), ()):
        with pytest.raises(AssertionError, match="shape"):
            check_close(np.zeros(shape), np.zeros((0, 3)), "float32")


def test_shapes_are_not_broadcast() -> None:
    with pytest.raises(AssertionError, match="shape"):
        check_close(np.zeros((1, 3)), np.zeros((2, 3)), "float32")
    with pytest.raises(AssertionError, match="mask of shape"):
        check_close(np.zeros((2, 3)), np.zeros((2, 3)), "float32", mask=np.ones((1, 3), dtype=bool))


def test_complex_values_differ_by_either_part() -> None:
    expected = np.array([1 + 2j])
    check_close(expected, expected, "complex64")
    for other in (1.1 + 2j, 1 + 2.1j, 2 + 1j):
        with pytest.raises(AssertionError):
            check_close(np.array([other]), expected, "complex64")


def test_finite() -> None:
    check_finite([BTF, changed(BTF, (1, 1, 0), np.nan), changed(BTF, (0, 0, 0), -np.inf), T, 3])
    with pytest.raises(AssertionError, match=r"NaN at \[\[0, 2, 1\]\]"):
        check_finite([changed(BTF, (0, 2, 1), np.nan)])


# -- snapshots


def test_valid_part() -> None:
    assert BT.valid().tolist() == [[True, True, True], [True, False, False]]
    without_batch = replace(BT, dims=(T,), array=np.zeros(3))
    assert without_batch.valid().all(), "no padding is known where the size dims are not there"


def test_entry_of_batch() -> None:
    (entry, dim) = entry_of_batch([BTF, T], "B", 1, {})
    assert isinstance(entry, TensorState) and isinstance(dim, DimState)
    assert entry.array is not None and entry.array.tolist() == [[[6, 7]]]
    assert str(dim) == "T=[1] over B"
    words = DimState("W", True, ("B", "T"), np.array([[1, 2, 3], [4, 5, 6]]))
    assert entry_of_batch([T, words], "B", 1, {})[1].sizes.tolist() == [[4]]  # type: ignore[union-attr]
    assert entry_of_batch([words], "B", 1, {"T": 2})[0].sizes.tolist() == [[4, 5]]  # type: ignore[union-attr]


def numpy_tensor(raw: np.ndarray, *dims: rf.Dim, dtype: str = "float32") -> rf.Tensor:
    from rf._core import make_tensor

    return make_tensor(rf.get_backend("numpy"), raw, dims, dtype)


def test_freeze_notices_raw_arrays_that_contradict_the_tensor() -> None:
    f = rf.Dim(2, name="F")
    freeze(numpy_tensor(np.zeros(2, dtype="float32"), f), {})
    with pytest.raises(AssertionError, match="raw dtype is float64"):
        freeze(numpy_tensor(np.zeros(2), f), {})
    with pytest.raises(AssertionError, match=r"raw shape is \(3,\)"):
        freeze(numpy_tensor(np.zeros(3, dtype="float32"), f), {})
    with pytest.raises(AssertionError, match="no data"):
        freeze(rf.Tensor("x", [f], "float32"), {})


def test_names_of_dims_are_unique() -> None:
    f, g = rf.Dim(2, name="F"), rf.Dim(2, name="F")
    square = [f, f.copy(match_priority=1)]
    (x, y) = freeze([numpy_tensor(np.zeros((2, 2), dtype="float32"), *dims) for dims in ([f, g], square)], {"F": f})
    assert isinstance(x, TensorState) and isinstance(y, TensorState)
    assert x.names == ("F", "F#2")
    assert y.names == ("F", "F'")
