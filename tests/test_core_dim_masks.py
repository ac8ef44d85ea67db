"""Masks and the other arrays that follow from sizes: their values, layout, caching, and that nothing keeps them
alive."""

from __future__ import annotations

import gc
import itertools
import weakref
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rf
from rf import Dim, Tensor

COMPUTING = ["numpy", pytest.param("torch", marks=pytest.mark.needs("torch"))]


def dims_of(sizes: Any, name: str = "T") -> tuple[Dim, ...]:
    """Size dims and the dim for an array of sizes."""
    array = np.asarray(sizes)
    over = [Dim(None, name=f"B{i}").fill(n) for i, n in enumerate(array.shape)]
    return (*over, Dim(None, name=name).fill(array, over))


def expected_mask(sizes: Any, extent: int) -> np.ndarray:
    out = np.zeros((*np.shape(sizes), extent), dtype=bool)
    for index in np.ndindex(np.shape(sizes)):
        for i in range(extent):
            out[(*index, i)] = i < np.asarray(sizes)[index]
    return out


sizes_1d = st.lists(st.integers(0, 5), min_size=0, max_size=4)
sizes_2d = st.tuples(st.integers(0, 3), st.integers(0, 3)).flatmap(
    lambda shape: st.lists(
        st.lists(st.integers(0, 4), min_size=shape[1], max_size=shape[1]), min_size=shape[0], max_size=shape[0]
    ).map(lambda rows: np.array(rows, dtype="int32").reshape(shape))
)


@settings(max_examples=60, deadline=None)
@given(st.one_of(sizes_1d, sizes_2d, st.integers(0, 4)), st.integers(0, 5))
def test_mask_is_position_below_size(sizes: Any, which: int) -> None:
    with rf.use_backend("numpy"):
        *over, t = dims_of(np.array(sizes, dtype="int32"))
        expected = expected_mask(sizes, t.get_dim_value())
        assert t.get_mask().dims == (*over, t) and t.get_mask().dtype == "bool"
        np.testing.assert_array_equal(t.get_mask().numpy(), expected)
        orders = list(itertools.permutations(range(len(over) + 1)))
        order = orders[which % len(orders)]
        own = [*over, t]
        mask = t.get_mask(dim_order=[own[i] for i in order])
        assert mask.dims == tuple(own[i] for i in order)
        np.testing.assert_array_equal(mask.numpy(), expected.transpose(order))
        # what an op does with it
        ones = rf.ones([t, *over[::-1]])
        np.testing.assert_array_equal(rf.reduce_sum(ones, axis=t).copy_transpose(over).numpy(), expected.sum(-1))


@settings(max_examples=40, deadline=None)
@given(sizes_1d.filter(bool), sizes_1d.filter(bool))
def test_refilled_mask(first: list[int], second: list[int]) -> None:
    with rf.use_backend("numpy"):
        b, t = dims_of(np.array(first, dtype="int32"))
        derived, with_static = t + 2, Dim(3, name="F") + t
        for sizes in (first, second, first):
            b.fill(len(sizes))
            t.fill(sizes, [b])
            for dim, more in ((t, 0), (derived, 2), (with_static, 3)):
                array = np.array(sizes) + more
                np.testing.assert_array_equal(dim.get_mask().numpy(), expected_mask(array, array.max()))


def test_dim_order_may_name_other_dims() -> None:
    with rf.use_backend("numpy"):
        b, t = dims_of([2, 3])
        other = Dim(7, name="F")
        assert t.get_mask(dim_order=[t, other, b]).dims == (t, b)
        with pytest.raises(rf.DimError, match=r"get_mask of T=3\(2,3\): dim_order .* must contain all of"):
            t.get_mask(dim_order=[t, other])


def test_mask_of_what_needs_none() -> None:
    with rf.use_backend("numpy"):
        for dim in (Dim(3, name="F"), Dim(None, name="N").fill(3)):
            assert dim.get_mask().dims == (dim,) and dim.get_mask().numpy().tolist() == [True] * 3


@pytest.mark.parametrize("backend", COMPUTING)
def test_masks_are_cached_per_filling_and_layout(backend: str) -> None:
    with rf.use_backend(backend):
        b, t = dims_of([2, 3])
        mask = t.get_mask()
        assert t.get_mask().raw_tensor is mask.raw_tensor
        assert t.get_mask(dim_order=[b, t]).raw_tensor is mask.raw_tensor
        turned = t.get_mask(dim_order=[t, b])
        assert turned.raw_tensor is not mask.raw_tensor and t.get_mask(dim_order=[t, b]).raw_tensor is turned.raw_tensor
        t.fill([2, 3])
        assert t.get_mask().raw_tensor is not mask.raw_tensor


@pytest.mark.needs("torch")
def test_masks_of_several_backends_live_side_by_side() -> None:
    b, t = dims_of([2, 3])
    masks = {}
    for backend in ("numpy", "torch", "numpy", "meta"):
        with rf.use_backend(backend):
            mask = t.get_mask()
        assert mask.backend is rf.get_backend(backend) and mask.dims == (b, t)
        if backend in masks:
            assert masks[backend].raw_tensor is mask.raw_tensor
        masks[backend] = mask
    np.testing.assert_array_equal(masks["torch"].numpy(), masks["numpy"].numpy())


def test_sizes_that_depend_on_sizes() -> None:
    """A history: at position i of t, i+1 entries are there. Lengths of t itself do not matter for it."""
    with rf.use_backend("numpy"):
        b, t = dims_of([2, 3])
        history = Dim(None, name="history").fill(np.arange(1, 4), [t])
        assert history.get_mask().numpy().tolist() == np.tri(3, dtype=bool).tolist()
        x = rf.ones([b, t, history])
        assert rf.reduce_sum(x, axis=history).numpy().tolist() == [[1, 2, 3], [1, 2, 3]]
        assert rf.reduce_sum(x, axis=[t, history]).numpy().tolist() == [3, 6]


@pytest.mark.parametrize("kind", ["lengths", "sizes", "total", "mask"])
@pytest.mark.parametrize("backend", COMPUTING)
def test_auxiliary(backend: str, kind: str) -> None:
    implementation = rf.get_backend(backend)
    b, beam, t = dims_of([[2, 0, 1], [3, 1, 0]])
    pattern = {"lengths": (1, -1, 0), "sizes": (-1, 0, 1), "total": (), "mask": (2, 0, -1, 1)}[kind]
    raw = t.auxiliary(implementation, kind, pattern, "bool" if kind == "mask" else "float32", None)
    sizes = np.array([[2, 0, 1], [3, 1, 0]])
    expected = {
        "lengths": np.maximum(sizes, 1).T[:, None],
        "sizes": sizes[None],
        "total": np.array(7),
        "mask": expected_mask(sizes, 3).transpose(2, 0, 1)[:, :, None],
    }[kind]
    array = implementation.to_numpy(raw)
    assert array.shape == expected.shape and implementation.dtype_of(raw) == ("bool" if kind == "mask" else "float32")
    np.testing.assert_array_equal(array, expected)
    again = t.auxiliary(implementation, kind, pattern, "bool" if kind == "mask" else "float32", None)
    assert again is raw


# -- ops use them


@pytest.mark.parametrize("backend", COMPUTING)
def test_ops_follow_a_refill(backend: str) -> None:
    b, t = dims_of([2, 3])
    with rf.use_backend(backend):
        for sizes in ([2, 3], [1, 3], [4, 2, 1]):
            b.fill(len(sizes))
            t.fill(sizes, [b])
            x = rf.ones([b, t])
            assert rf.reduce_sum(x, axis=t).numpy().tolist() == sizes
            assert rf.reduce_mean(x, axis=t).numpy().tolist() == [1.0] * len(sizes)
            assert (rf.softmax(x, axis=t).numpy() > 0).sum(-1).tolist() == sizes
            assert rf.reduce_sum(rf.ones([b, t + 1]), axis=t + 1).numpy().tolist() == [n + 1 for n in sizes]


# -- nothing stays alive


def _step() -> list[weakref.ref[Any]]:
    b = Dim(None, name="B").fill(2)
    t = Dim(None, name="T").fill([3, 1], [b])
    f = Dim(2, name="F")
    x = rf.convert_to_tensor(np.ones((2, 3, 2), dtype="float32"), dims=[b, t, f], feature_dim=f)
    y = rf.softmax(x * 2 + 1, axis=t)
    z = rf.reduce_mean(y, axis=t)
    w = rf.matmul(y, x, reduce=t)
    turned = x.copy_transpose([t, b, f])
    kv = Dim(None, name="kv")
    kv.copy_from(t)
    kv.get_mask()
    (t + 1).get_mask()
    tensors: list[Tensor] = [x, y, z, w, turned, t.get_mask(), t.get_size_tensor(), z.copy(), x.copy_masked(0.0)]
    return [weakref.ref(d) for d in (b, t, f, kv)] + [weakref.ref(x.raw_tensor) for x in tensors]


@pytest.mark.parametrize("backend", COMPUTING)
def test_a_step_leaves_nothing_behind(backend: str) -> None:
    with rf.use_backend(backend):
        _step()
        gc.collect()
        gc.disable()
        try:
            refs = _step()
            alive = [r() for r in refs if r() is not None]
        finally:
            gc.enable()
    assert not alive, f"kept alive: {alive}"


@pytest.mark.parametrize("backend", COMPUTING)
def test_a_refilled_dim_lets_go_of_the_old_batch(backend: str) -> None:
    with rf.use_backend(backend):
        b, t = dims_of([2, 3])
        refs = [weakref.ref(t.get_mask().raw_tensor), weakref.ref((t + 1).get_mask().raw_tensor)]
        refs.append(weakref.ref(t.get_size_tensor().raw_tensor))
        gc.disable()
        try:
            t.fill([1, 1])
            assert not any(r() for r in refs[:2]), "masks of the old filling"
            assert refs[2]() is None
        finally:
            gc.enable()
