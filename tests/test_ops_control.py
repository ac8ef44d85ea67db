"""Branches, loops, TensorArray and assertions."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest

import rf
from rf.ops.tree import flatten, map_structure
from rf.tensor_array import TensorArray

COMPUTING = [pytest.param("numpy"), pytest.param("torch", marks=pytest.mark.needs("torch"))]


class Pair(NamedTuple):
    first: Any
    second: Any


def test_map_structure() -> None:
    tree = {"a": [1, (2, None)], "b": Pair(3, {"c": 4})}
    out = map_structure(lambda x: x and x * 10, tree)
    assert out == {"a": [10, (20, None)], "b": Pair(30, {"c": 40})} and isinstance(out["b"], Pair)
    assert flatten(tree) == [1, 2, None, 3, 4]
    assert isinstance(map_structure(lambda x: x, rf.State(h=1)), rf.State)
    for other in ({"a": 1}, {"a": [1], "b": 1}, {"a": [1, (2, None)], "b": 1}, {"a": [1, [[2], None]], "b": tree["b"]}):
        with pytest.raises(rf.RfError, match="differ"):
            map_structure(lambda x, y: x, tree, other)


# -- cond


@pytest.mark.parametrize("backend", COMPUTING)
def test_cond_runs_one_branch(backend: str) -> None:
    with rf.use_backend(backend):
        x = rf.convert_to_tensor(3.0)

        def fail() -> Any:
            raise AssertionError("the other branch ran")

        assert rf.cond(x > 2.0, lambda: x * 2.0, fail).item() == 6
        assert rf.cond(x > 4.0, fail, lambda: {"y": x})["y"] is x
        assert rf.cond(False, fail, lambda: 1) == 1
        with pytest.raises(rf.RfError, match="scalar bool"):
            rf.cond(x, fail, fail)
        with pytest.raises(TypeError, match="int"):
            rf.cond(1, fail, fail)  # type: ignore[arg-type]


def test_a_decision_without_values_is_an_error() -> None:
    with rf.use_backend("meta"):
        x = rf.convert_to_tensor(3.0)
        with pytest.raises(rf.BackendError, match="meta"):
            rf.cond(x > 2.0, lambda: 1, lambda: 2)
        with pytest.raises(rf.BackendError, match="meta"):
            rf.while_loop(lambda y: y > 2.0, lambda y: y, x)


# -- while_loop


@pytest.mark.parametrize("backend", COMPUTING)
def test_while_loop(backend: str) -> None:
    with rf.use_backend(backend):
        b = rf.Dim(2, name="B")
        start = {"i": rf.convert_to_tensor(0), "x": rf.ones([b]), "nothing": None}
        end = rf.while_loop(
            lambda s: s["i"] < 5, lambda s: {"i": s["i"] + 1, "x": s["x"] * 2.0, "nothing": None}, start
        )
        assert end["i"].item() == 5 and end["x"].numpy().tolist() == [32, 32]
        assert rf.while_loop(lambda s: False, lambda s: s, start) is start


@pytest.mark.parametrize("backend", COMPUTING)
def test_a_dim_that_grows_is_a_loop_variable(backend: str) -> None:
    with rf.use_backend(backend):
        b, none = rf.Dim(2, name="B"), rf.Dim(0, name="none")

        def body(s: Any) -> Any:
            frame = rf.ones([b]) * float(s.t.get_dim_value())
            x, t = rf.cum_concat_step(frame, prev_accum=s.x, axis=s.t)
            return rf.State(x=x, t=t)

        end = rf.while_loop(lambda s: s.t.get_dim_value() < 3, body, rf.State(x=rf.zeros([none, b]), t=none))
        assert end.x.copy_transpose([b, end.t]).numpy().tolist() == [[0, 1, 2]] * 2
        with pytest.raises(rf.DimError, match="loop variable .x"):
            rf.while_loop(
                lambda s: True, lambda s: {"x": rf.cum_concat_step(rf.ones([b]), prev_accum=s["x"], axis=none)[0]},
                {"x": rf.zeros([none, b])},
            )  # fmt: skip


def test_loop_variables_keep_their_kind() -> None:
    with rf.use_backend("numpy"):
        b = rf.Dim(2, name="B")
        for new in (rf.zeros([b]), None, rf.zeros([], dtype="int32", sparse_dim=b)):
            with pytest.raises(rf.RfError, match="the only one"):
                rf.while_loop(lambda s: True, lambda s, new=new: new, rf.zeros([], dtype="int32"))
        with pytest.raises(rf.RfError, match="differ"):
            rf.while_loop(lambda s: True, lambda s: {"y": s["x"]}, {"x": rf.zeros([])})


# -- scan


@pytest.mark.parametrize("backend", COMPUTING)
def test_scan_over_a_dim(backend: str) -> None:
    with rf.use_backend(backend):
        b = rf.Dim(3, name="B")
        t = rf.Dim(None, name="T").fill([3, 0, 2], [b])
        x = rf.convert_to_tensor(np.arange(9, dtype=np.float32).reshape(3, 3), dims=[b, t])

        def body(x: Any, s: Any) -> Any:
            total = s["sum"] + x["x"]
            return {"sum": total, "none": None}, {"sum": total, "i": s["i"] + 1}

        start = {"sum": rf.zeros([b]), "i": rf.convert_to_tensor(0)}
        ys, end, dim = rf.scan(spatial_dim=t, xs={"x": x}, initial=start, body=body)
        assert dim is t and ys["none"] is None
        out = ys["sum"].copy_transpose([b, t]).numpy()
        assert out[0].tolist() == [0, 1, 3] and out[2, :2].tolist() == [6, 13]
        assert end["sum"].numpy().tolist() == [3, 0, 13]
        assert end["i"].item() == 3  # shared by all sequences: goes on to the longest
        arrays, _, _ = rf.scan(spatial_dim=t, xs={"x": x}, initial=start, body=body, return_tensor_arrays=True)
        assert isinstance(arrays["sum"], TensorArray) and len(arrays["sum"]) == 3


def test_scan_over_a_known_dim_runs_without_values() -> None:
    with rf.use_backend("meta"):
        b = rf.Dim(3, name="B")
        t = rf.Dim(None, name="T").fill([3, 0, 2], [b])
        ys, end, _ = rf.scan(spatial_dim=t, xs=rf.zeros([b, t]), initial=rf.zeros([b]), body=lambda x, s: (x, x + s))
        assert ys.dims_set == {b, t} and end.dims == (b,)


@pytest.mark.parametrize("backend", COMPUTING)
@pytest.mark.parametrize("max_seq_len", [None, 4, "tensor"])
@pytest.mark.parametrize("before", [True, False])
def test_scan_until_a_condition(before: bool, max_seq_len: Any, backend: str) -> None:
    """Each sequence counts down from its own number."""
    with rf.use_backend(backend):
        b = rf.Dim(3, name="B")
        if max_seq_len == "tensor":
            max_seq_len = rf.convert_to_tensor(np.array([1, 9, 3], dtype=np.int32), dims=[b])
        start = rf.convert_to_tensor(np.array([2, 0, 6], dtype=np.int32), dims=[b])
        ys, end, t = rf.scan(
            cond_dims=[b],
            cond_before_body=before,
            initial=start,
            cond=lambda _, s: s > 0,
            body=lambda _, s: (s, s - 1),
            max_seq_len=max_seq_len,
            ys=rf.Tensor("y", [b], "int32"),
        )
        steps = np.array([2, 0 if before else 1, 6])
        if isinstance(max_seq_len, rf.Tensor):
            steps = np.minimum(steps, [1, 9, 3])
        elif max_seq_len:
            steps = np.minimum(steps, max_seq_len)
        assert t.get_sizes().values.tolist() == steps.tolist()
        assert end.numpy().tolist() == (np.array([2, 0, 6]) - steps).tolist()
        out = ys.copy_transpose([b, t]).numpy()
        for i, n in enumerate(steps):
            assert out[i, :n].tolist() == [[2, 0, 6][i] - j for j in range(n)]


@pytest.mark.parametrize("backend", COMPUTING)
def test_scan_freezes_dims_that_grow_with_each_sequence(backend: str) -> None:
    """A state that is appended to: a sequence that has ended keeps its length and its values."""
    with rf.use_backend(backend):
        b = rf.Dim(2, name="B")
        hist = rf.Dim(None, name="hist").fill([1, 2], [b])
        values = rf.convert_to_tensor(np.array([[5, 0], [6, 7]], dtype=np.float32), dims=[b, hist])
        left = rf.convert_to_tensor(np.array([1, 3], dtype=np.int32), dims=[b])

        def body(_: Any, s: Any) -> Any:
            x, new = rf.cum_concat_step(rf.cast(s.left, "float32"), prev_accum=s.x, axis=s.hist)
            return s.left, rf.State(x=x, hist=new, left=s.left - 1)

        _, end, _ = rf.scan(
            cond_dims=[b], initial=rf.State(x=values, hist=hist, left=left), cond=lambda _, s: s.left > 0, body=body
        )
        assert end.hist.get_sizes().values.tolist() == [2, 5]
        out = end.x.copy_transpose([b, end.hist]).numpy()
        assert out[0, :2].tolist() == [5, 1] and out[1].tolist() == [6, 7, 3, 2, 1]
        assert end.left.numpy().tolist() == [0, 0]


@pytest.mark.parametrize("backend", COMPUTING)
def test_scan_without_a_step(backend: str) -> None:
    with rf.use_backend(backend):
        b = rf.Dim(2, name="B")
        t = rf.Dim(None, name="T").fill([0, 0], [b])
        ys, end, _ = rf.scan(
            spatial_dim=t, xs=rf.zeros([b, t]), initial=rf.ones([b]), body=lambda x, s: (rf.cast(x, "int32"), x + s)
        )
        assert ys.dtype == "int32" and ys.dims_set == {b, t} and end.numpy().tolist() == [1, 1]
        with pytest.raises(rf.RfError, match="ys="):
            rf.scan(cond_dims=[b], initial=rf.ones([b]), cond=lambda _, s: s < 0.0, body=lambda _, s: (s, s))


def test_scan_errors() -> None:
    with rf.use_backend("numpy"):
        b, t = rf.Dim(2, name="B"), rf.Dim(3, name="T")
        with pytest.raises(rf.RfError, match="cond_dims"):
            rf.scan(body=lambda x, s: (x, s))
        with pytest.raises(rf.RfError, match="no place"):
            rf.scan(spatial_dim=t, max_seq_len=3, body=lambda x, s: (x, s))
        with pytest.raises(rf.DimError, match="cond must give"):
            rf.scan(cond_dims=[b], cond=lambda _, s: s, initial=rf.zeros([b]), body=lambda x, s: (s, s))


@pytest.mark.needs("torch")
def test_gradient_through_scan_stops_at_the_end_of_each_sequence() -> None:
    import torch

    with rf.use_backend("torch"):
        b = rf.Dim(2, name="B")
        t = rf.Dim(None, name="T").fill([3, 1], [b])
        raw = torch.tensor([[1.0, 2.0, 3.0], [4.0, torch.nan, torch.nan]], requires_grad=True)
        _, end, _ = rf.scan(
            spatial_dim=t, xs=rf.Tensor("x", [b, t], raw_tensor=raw), initial=rf.ones([b]), body=lambda x, s: (x, s * x)
        )
        (grad,) = torch.autograd.grad(end.raw_tensor.sum(), raw)
        assert grad.tolist() == [[6, 3, 2], [1, 0, 0]]


# -- TensorArray


@pytest.mark.parametrize("backend", COMPUTING)
def test_tensor_array(backend: str) -> None:
    with rf.use_backend(backend):
        b, f, t = rf.Dim(2, name="B"), rf.Dim(3, name="F"), rf.Dim(4, name="T")
        x = rf.convert_to_tensor(np.arange(24, dtype=np.float32).reshape(2, 4, 3), dims=[b, t, f], feature_dim=f)
        array = TensorArray.unstack(x, axis=t)
        assert len(array) == 4 and array[1].dims == (b, f) and array[1].feature_dim == f
        assert np.array_equal(array[-1].numpy(), x.numpy()[:, 3])
        assert np.array_equal(array[rf.convert_to_tensor(2)].numpy(), x.numpy()[:, 2])
        assert np.array_equal(array.stack(axis=t).copy_transpose(x.dims).numpy(), x.numpy())
        # never changes: two that begin with the same entries
        one, two = array.push_back(array[0]), array.push_back(array[1])
        assert (len(array), len(one), len(two)) == (4, 5, 5)
        assert np.array_equal(one[4].numpy(), array[0].numpy()) and np.array_equal(two[4].numpy(), array[1].numpy())
        assert len(list(array)) == 4
        for index in (4, -5):
            with pytest.raises(IndexError):
                array[index]
        with pytest.raises(rf.DimError, match="template"):
            array.push_back(rf.zeros([b]))
        with pytest.raises(rf.DimError, match="4 entries"):
            array.stack(axis=b)
        single = rf.Dim(1, name="one")
        assert TensorArray.unstack(rf.zeros([b, single]), axis=single)[0].dims == (b,)
        empty = TensorArray(rf.Tensor("x", [b], "int32", sparse_dim=f)).stack(axis=rf.Dim(0))
        assert empty.dtype == "int32" and empty.sparse_dim == f


# -- assertions


@pytest.mark.parametrize("backend", COMPUTING)
def test_assertions(backend: str) -> None:
    with rf.use_backend(backend):
        b = rf.Dim(2, name="B")
        t = rf.Dim(None, name="T").fill([2, 1], [b])
        x = rf.convert_to_tensor(np.array([[1, 2], [3, -1]], dtype=np.float32), dims=[b, t])
        rf.assert_(x > 0.0, "not positive")  # the one in the padding does not count
        rf.assert_(True, "fine")
        with pytest.raises(AssertionError, match="too small"):
            rf.assert_(x > 1.0, "too small")
        with pytest.raises(AssertionError, match="no"):
            rf.assert_(False, "no")
        with pytest.warns(RuntimeWarning, match="too small"):
            rf.assert_(x > 1.0, "too small", stop=False)
        with pytest.raises(rf.RfError, match="bool"):
            rf.assert_(x, "x")
    with rf.use_backend("meta"):
        rf.assert_(rf.zeros([]) > 0.0, "nothing is checked")
