"""TensorDict: templates declared once, filled for every batch."""

from __future__ import annotations

import numpy as np
import pytest

import rf


@pytest.fixture(params=["numpy", pytest.param("torch", marks=pytest.mark.needs("torch"))])
def backend(request: pytest.FixtureRequest):
    with rf.use_backend(request.param) as b:
        yield b


def declare():
    B = rf.Dim(None, name="B")
    T = rf.Dim(rf.Tensor("T", [B], "int32"), name="T")
    F, V = rf.Dim(2, name="F"), rf.Dim(9, name="V")
    td = rf.TensorDict(
        {
            "x": rf.Tensor("x", [B, T, F], "float32", feature_dim=F),
            "y": {"dims": [B, T], "dtype": "int32", "sparse_dim": V},
        }
    )
    return td, B, T, F, V


def batch(sizes: list[int]):
    n, longest = len(sizes), max(sizes, default=0)
    return {
        "x": np.arange(n * longest * 2, dtype="float32").reshape(n, longest, 2),
        "x:size1": np.array(sizes, dtype="int32"),
        "y": np.ones((n, longest), dtype="int32"),
    }


def test_fill_again_and_again(backend):
    td, B, T, F, _ = declare()
    assert td.all_dims()[:3] == [B, T, F]
    double = T * 2
    for sizes in ([3, 1], [2, 4, 1], []):
        td.assign_from_raw_tensor_dict_(batch(sizes))
        assert B.get_dim_value() == len(sizes)
        assert T.get_dim_value() == max(sizes, default=0)
        assert double.get_dim_value() == 2 * max(sizes, default=0)
        assert td["x"].backend is backend
        total = rf.reduce_sum(rf.cast(td["y"], "float32"), axis=[B, T])
        assert float(total) == sum(sizes)
    td.reset_content()
    assert td["x"].raw_tensor is None and not T.is_dim_known()


def test_round_trip(backend):
    td, B, T, F, _ = declare()
    td.assign_from_raw_tensor_dict_(batch([3, 1]))
    raw = td.as_raw_tensor_dict()
    assert set(raw) == {"x", "x:size0", "x:size1", "y", "y:size0", "y:size1"}
    once = td.as_raw_tensor_dict(exclude_duplicate_dims=True, include_scalar_dyn_sizes=False, include_const_sizes=True)
    assert set(once) == {"x", "x:size1", "x:size2", "y"} and once["x:size2"] == 2
    other, *_ = declare()
    other.assign_from_raw_tensor_dict_(once, duplicate_dims_are_excluded=True)
    np.testing.assert_array_equal(other["x"].numpy(), td["x"].numpy())
    assert td.copy_template()["y"].raw_tensor is None
    with pytest.raises(TypeError, match="x:size2"):
        td.as_raw_tensor_dict(include_const_sizes=True, expected_value_type=backend.raw_types)


def test_what_is_missing_is_named(backend):
    td, *_ = declare()
    full = batch([3, 1])
    for key in ("x", "x:size1"):
        with pytest.raises(rf.RfError, match=key):
            td.assign_from_raw_tensor_dict_({k: v for k, v in full.items() if k != key})
    with pytest.raises(rf.ShapeError, match="'y'"):
        td.assign_from_raw_tensor_dict_({**full, "y": np.ones((2, 5), dtype="int32")})
    with pytest.raises(KeyError, match="no tensor 'z'; there are x, y"):
        td["z"]
