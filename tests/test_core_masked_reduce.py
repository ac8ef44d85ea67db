"""Reductions over every set of dims, against loops over the valid frames; padding holds NaN."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import rf
from rf import Dim

MODES: dict[str, tuple[Callable[..., Any], Any]] = {
    # what it is of a list of values, and of no values
    "sum": (np.sum, 0.0),
    "mean": (np.mean, 0.0),
    "max": (np.max, -np.inf),
    "min": (np.min, np.inf),
    "logsumexp": (lambda x: np.log(np.exp(x).sum()), -np.inf),
    "any": (np.any, False),
    "all": (np.all, True),
}

LAYOUTS = ["lengths", "ragged in two ways", "two lengths", "history"]


def made(layout: str) -> tuple[list[Dim], np.ndarray]:
    """Dims, and which entries of an array over them are valid."""
    b = Dim(None, name="B").fill(3)
    lengths = np.array([4, 0, 2])
    t = Dim(None, name="T").fill(lengths, [b])
    f = Dim(2, name="F")
    valid_t = np.arange(4) < lengths[:, None]
    if layout == "lengths":
        return [b, t, f], np.broadcast_to(valid_t[..., None], (3, 4, 2))
    if layout == "two lengths":
        u = Dim(None, name="U").fill([1, 3, 0], [b])
        valid_u = np.arange(3) < np.array([1, 3, 0])[:, None]
        return [b, t, u], valid_t[:, :, None] & valid_u[:, None]
    if layout == "history":
        history = Dim(None, name="C").fill([1, 2, 3, 4], [t])
        return [b, t, history], valid_t[..., None] & np.tri(4, dtype=bool)
    words = np.array([[1, 0, 2, 3], [1, 1, 1, 1], [2, 3, 0, 0]])
    w = Dim(None, name="W").fill(words, [b, t])
    return [b, t, w, f], np.broadcast_to(
        (valid_t[..., None] & (np.arange(3) < words[..., None]))[..., None], (3, 4, 3, 2)
    )


def subsets(n: int) -> list[tuple[int, ...]]:
    return [s for k in range(1, n + 1) for s in itertools.combinations(range(n), k)]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("backend", ["numpy", pytest.param("torch", marks=pytest.mark.needs("torch"))])
def test_against_loops(backend: str, layout: str, mode: str) -> None:
    function, of_nothing = MODES[mode]
    dims, valid = made(layout)
    rng = np.random.default_rng(0)
    logical = mode in ("any", "all")
    if logical:
        array = rng.random(valid.shape) < (0.2 if mode == "any" else 0.8)
        array = np.where(valid, array, mode == "any")
    else:
        array = np.where(valid, rng.standard_normal(valid.shape), np.nan).astype("float32")
    with rf.use_backend(backend):
        x = rf.convert_to_tensor(array, dims=dims)
        for axes in subsets(len(dims)):
            reduced = [dims[a] for a in axes]
            rest = [d for d in dims if d not in reduced]
            y = getattr(rf, f"reduce_{mode}")(x, axis=reduced)
            assert y.dims_set == set(rest), axes
            actual = y.copy_transpose(rest).numpy()
            kept = [a for a in range(len(dims)) if a not in axes]
            for index in np.ndindex(*[valid.shape[a] for a in kept]):
                where: list[Any] = [slice(None)] * len(dims)
                for a, i in zip(kept, index):
                    where[a] = i
                group = valid[tuple(where)]
                if not group.any() and kept not in ([], [0]):
                    continue  # such an entry of the result is padding itself, and may hold anything
                values = array[tuple(where)][group]
                expected = function(values) if values.size else of_nothing
                assert actual[index] == pytest.approx(expected, rel=1e-5, abs=1e-5), (axes, index)


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("backend", ["numpy", pytest.param("torch", marks=pytest.mark.needs("torch"))])
def test_arg_against_loops(backend: str, largest: bool) -> None:
    dims, valid = made("ragged in two ways")
    array = np.where(valid, np.random.default_rng(1).standard_normal(valid.shape), np.nan).astype("float32")
    function = np.argmax if largest else np.argmin
    with rf.use_backend(backend):
        x = rf.convert_to_tensor(array, dims=dims)
        for axis in range(4):
            rest = [d for i, d in enumerate(dims) if i != axis]
            y = (rf.reduce_argmax if largest else rf.reduce_argmin)(x, axis=dims[axis])
            assert y.dtype == "int32" and y.sparse_dim == dims[axis] and y.dims_set == set(rest)
            actual = y.copy_transpose(rest).numpy()
            for index in np.ndindex(*actual.shape):
                where = (*index[:axis], slice(None), *index[axis:])
                group = valid[where]
                if group.any():
                    filled = np.where(group, array[where], -np.inf if largest else np.inf)
                    assert actual[index] == function(filled), (axis, index)


def test_both_axes_of_one_dim() -> None:
    with rf.use_backend("numpy"):
        b = rf.Dim(None, name="B")
        t = rf.Dim(None, name="T").fill([2, 3], dims=[b])
        other = t.copy(match_priority=1)
        x = rf.convert_to_tensor(np.arange(18, dtype="float32").reshape(2, 3, 3), dims=[b, t, other])
        first = rf.reduce_sum(x, axis=other)  # over the second axis
        assert first.dims == (b, t) and first.numpy().tolist() == [[1, 7, 13], [30, 39, 48]]
        assert rf.reduce_sum(x, axis=t).numpy().tolist() == first.numpy().tolist()  # the higher priority is meant
        assert rf.reduce_sum(x, axis=[t, other]).numpy().tolist() == [0 + 1 + 3 + 4, sum(range(9, 18))]
        assert rf.reduce_mean(x, axis=[other, t]).numpy().tolist() == [2, 13]
