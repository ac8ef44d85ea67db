"""Results frozen as plain NumPy data, and the comparison of two of them.

All suites compare through this file. Its own test (test_compare.py) shows that each comparison can fail.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import rf

# (relative, absolute) tolerance by dtype of the result. It belongs to the dtype and is never loosened for one test.
TOLERANCES: dict[str, tuple[float, float]] = {
    "float64": (1e-9, 1e-9),
    "float32": (2e-5, 2e-5),
    "float16": (5e-3, 5e-3),
    "bfloat16": (4e-2, 4e-2),
    "complex64": (2e-5, 2e-5),
    "complex128": (1e-9, 1e-9),
}
GRADIENT_TOLERANCE = (1e-5, 1e-6)
"""For analytic against numeric gradients, both in float64: the error of central differences."""


@dataclass(frozen=True)
class DimState:
    """What a dim was at the time of the snapshot.

    :param name: unique within the snapshot
    :param size_dims: names of the dims that the sizes depend on
    :param sizes: int array over `size_dims`
    """

    name: str
    dynamic: bool
    size_dims: tuple[str, ...]
    sizes: np.ndarray

    @property
    def extent(self) -> int:
        """Length of a raw axis."""
        return int(self.sizes.max()) if self.sizes.size else 0

    def __str__(self) -> str:
        over = f" over {','.join(self.size_dims)}" if self.size_dims else ""
        return f"{self.name}={self.sizes.tolist()}{over}{'' if self.dynamic else ' static'}"


@dataclass(frozen=True)
class TensorState:
    """What a tensor was: the axes of `array` are `dims`; None on a backend without values."""

    dims: tuple[DimState, ...]
    dtype: str
    feature_dim: str | None
    sparse_dim: str | None
    array: np.ndarray | None

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the dims in storage order."""
        return tuple(d.name for d in self.dims)

    def valid(self) -> np.ndarray:
        """Bool array over the dims: whether an entry belongs to a sequence, or lies in padding.

        A dim whose size dims are not all there has no padding here.
        """
        shape = tuple(d.extent for d in self.dims)
        out = np.ones(shape, dtype=bool)
        names = self.names
        for axis, dim in enumerate(self.dims):
            if not dim.size_dims or not set(dim.size_dims) <= set(names):
                continue
            axes = [names.index(s) for s in dim.size_dims]
            sizes = align(dim.sizes, axes, len(shape))
            out &= np.arange(shape[axis]).reshape([-1 if a == axis else 1 for a in range(len(shape))]) < sizes
        return out

    def __str__(self) -> str:
        extra = "".join(
            f" {k}={v}" for k, v in (("feature", self.feature_dim), ("sparse", self.sparse_dim)) if v is not None
        )
        return "{" + ", ".join(map(str, self.dims)) + "} " + self.dtype + extra


State = TensorState | DimState | Any


def align(array: np.ndarray, axes: Iterable[int], ndim: int) -> np.ndarray:
    """Lay the axes of `array` at positions `axes` of an array with `ndim` axes, the others of length 1."""
    axes = list(axes)
    order = np.argsort(axes)
    shape = [1] * ndim
    for i, a in enumerate(axes):
        shape[a] = array.shape[i]
    return array.transpose(order).reshape(shape)


class Namer:
    """Gives every Dim object a name that is unique among those it has named."""

    def __init__(self, known: Mapping[str, rf.Dim]):
        self._names = {id(d.copy(match_priority=0)): name for name, d in known.items()}
        self._taken = set(known)
        self._keep: list[rf.Dim] = []  # so that ids stay valid

    def __call__(self, dim: rf.Dim) -> str:
        base = dim.copy(match_priority=0)
        name = self._names.get(id(base))
        if name is None:
            stem = base.name or "?"
            name = next(n for n in (stem, *(f"{stem}#{i}" for i in range(2, 100))) if n not in self._taken)
            self._names[id(base)] = name
            self._taken.add(name)
            self._keep.append(base)
        return name + "'" * dim.match_priority


def freeze(result: Any, known: Mapping[str, rf.Dim]) -> list[State]:
    """The leaves of a result (Tensor, Dim, value; tuples, lists and dicts of such) as plain data.

    :param known: dims by the name that they shall have; other dims keep their own name.

    Checks on the way what no result may break: the raw array has the dtype and the shape that the Tensor says.
    """
    namer = Namer(known)
    return [_freeze(leaf, namer) for leaf in leaves(result)]


def leaves(result: Any) -> Iterator[Any]:
    """Everything in a nested result that is not a container."""
    if isinstance(result, (tuple, list)):
        for r in result:
            yield from leaves(r)
    elif isinstance(result, dict):
        for r in result.values():
            yield from leaves(r)
    else:
        yield result


def _freeze(leaf: Any, namer: Namer) -> State:
    if isinstance(leaf, rf.Dim):
        return _freeze_dim(leaf, namer)
    if not isinstance(leaf, rf.Tensor):
        return leaf
    backend = leaf.backend
    assert backend is not None, f"the result {leaf!r} has no data"
    array = None
    if backend.computes:
        raw = leaf.raw_tensor
        shape, wanted = tuple(backend.shape_of(raw)), tuple(d.get_dim_value() for d in leaf.dims)
        assert shape == wanted, f"the raw shape is {shape}, but the Tensor says {leaf!r}"
        assert backend.dtype_of(raw) == leaf.dtype, f"the raw dtype is {backend.dtype_of(raw)}, but it says {leaf!r}"
        array = np.array(leaf.numpy())
    feature = None if leaf.feature_dim is None else namer(leaf.feature_dim)
    sparse = None if leaf.sparse_dim is None else namer(leaf.sparse_dim)
    return TensorState(tuple(_freeze_dim(d, namer) for d in leaf.dims), leaf.dtype, feature, sparse, array)


def _freeze_dim(dim: rf.Dim, namer: Namer) -> DimState:
    sizes = dim.get_sizes()
    return DimState(namer(dim), dim.is_dynamic(), tuple(namer(d) for d in sizes.dims), np.array(sizes.values))


# -- comparing


def check_structure(actual: list[State], expected: list[State]) -> None:
    """Same number and kinds of results; for tensors the same dims as a set, dtype, feature and sparse dim."""
    assert len(actual) == len(expected), f"{len(actual)} results, expected {len(expected)}"
    for i, (a, e) in enumerate(zip(actual, expected)):
        where = f"result {i}: "
        assert type(a) is type(e), f"{where}{type(a).__name__}, expected {type(e).__name__}"
        if isinstance(e, DimState):
            _check_dim(a, e, where)
        elif isinstance(e, TensorState):
            assert len(set(a.names)) == len(a.dims), f"{where}a dim occurs twice: {a}"
            assert set(a.names) == set(e.names), f"{where}dims {{{a}}}, expected {{{e}}}"
            for dim in a.dims:
                _check_dim(dim, next(d for d in e.dims if d.name == dim.name), where)
            assert a.dtype == e.dtype, f"{where}dtype {a.dtype}, expected {e.dtype}"
            assert a.feature_dim == e.feature_dim, f"{where}feature dim {a.feature_dim}, expected {e.feature_dim}"
            assert a.sparse_dim == e.sparse_dim, f"{where}sparse dim {a.sparse_dim}, expected {e.sparse_dim}"


def _check_dim(a: DimState, e: DimState, where: str) -> None:
    assert a.name == e.name, f"{where}dim {a}, expected {e}"
    assert a.dynamic == e.dynamic, f"{where}dim {a}, expected {e}: one is static"
    assert set(a.size_dims) == set(e.size_dims), f"{where}dim {a}, expected {e}: other size dims"
    sizes = a.sizes.transpose([a.size_dims.index(s) for s in e.size_dims])
    assert sizes.shape == e.sizes.shape and np.array_equal(sizes, e.sizes), f"{where}dim {a}, expected {e}"


def check_values(actual: list[State], expected: list[State], *, padding: bool = False) -> None:
    """Same values where frames are valid, up to the tolerance of the dtype, whatever the order of axes.

    :param padding: compare the padding too.
    """
    assert len(actual) == len(expected), f"{len(actual)} results, expected {len(expected)}"
    for i, (a, e) in enumerate(zip(actual, expected)):
        if isinstance(e, DimState):
            continue
        if not isinstance(e, TensorState):
            assert type(a) is type(e) and a == e, f"result {i}: {a!r}, expected {e!r}"
            continue
        assert set(a.names) == set(e.names), f"result {i}: dims {{{a}}}, expected {{{e}}}"
        assert a.array is not None and e.array is not None, f"result {i}: no values"
        array = a.array.transpose([a.names.index(n) for n in e.names])
        mask = None if padding else e.valid()
        check_close(array, e.array, a.dtype, mask=mask, what=f"result {i} {e}")


def check_close(
    actual: np.ndarray,
    expected: np.ndarray,
    dtype: str,
    *,
    mask: np.ndarray | None = None,
    what: str = "",
    tolerance: tuple[float, float] | None = None,
) -> None:
    """Same shape, and same values where `mask` holds. NaN equals only NaN, infinities and integers only themselves."""
    assert actual.shape == expected.shape, f"{what}: shape {actual.shape}, expected {expected.shape}"
    if mask is None:
        mask = np.ones(expected.shape, dtype=bool)
    assert mask.shape == expected.shape, f"{what}: mask of shape {mask.shape} for {expected.shape}"
    a, e = np.where(mask, actual, 0), np.where(mask, expected, 0)
    if dtype in TOLERANCES:
        relative, absolute = tolerance or TOLERANCES[dtype]
        if a.dtype.kind != "c":
            a, e = a.astype(np.float64), e.astype(np.float64)
        with np.errstate(invalid="ignore", over="ignore"):
            near = np.abs(a - e) <= absolute + relative * np.abs(e)
        good = (a == e) | (np.isnan(a) & np.isnan(e)) | (np.isfinite(a) & np.isfinite(e) & near)
    else:
        good = a == e
    if not good.all():
        bad = [tuple(int(n) for n in index) for index in np.argwhere(~good)[:3]]
        shown = "; ".join(f"at {index}: {actual[index]!r}, expected {expected[index]!r}" for index in bad)
        raise AssertionError(f"{what}: {int((~good).sum())} of {int(mask.sum())} values differ ({dtype}): {shown}")


def check_finite(states: list[State]) -> None:
    """No NaN in the valid part of any result."""
    for i, s in enumerate(states):
        if isinstance(s, TensorState) and s.array is not None and s.array.dtype.kind in "fc":
            bad = np.isnan(s.array) & s.valid()
            assert not bad.any(), f"result {i} {s}: NaN at {np.argwhere(bad)[:3].tolist()}"


# -- parts


def entry_of_batch(states: list[State], batch: str, index: int, lengths: Mapping[str, int]) -> list[State]:
    """What the results say of one entry of the batch: `batch` becomes a dim of length 1, and paddings are cut.

    :param lengths: sizes that dims have for this entry; needed for dims that occur only as what the sizes of others
        depend on
    """
    dims: dict[str, DimState] = {}
    for s in states:
        for d in s.dims if isinstance(s, TensorState) else (s,) if isinstance(s, DimState) else ():
            dims[d.name] = _dim_of_entry(d, batch, index)
    # sizes over a dim that is itself cut (words of a sentence): those beyond its new end lay in padding
    extents = {**lengths, **{name: d.extent for name, d in dims.items()}}
    dims = {name: _cut_sizes(d, extents) for name, d in dims.items()}
    return [_entry(s, dims, batch, index) for s in states]


def _dim_of_entry(dim: DimState, batch: str, index: int) -> DimState:
    if dim.name == batch:
        return replace(dim, sizes=np.ones_like(dim.sizes))
    if batch not in dim.size_dims:
        return dim
    return replace(dim, sizes=dim.sizes.take([index], axis=dim.size_dims.index(batch)))


def _cut_sizes(dim: DimState, extents: Mapping[str, int]) -> DimState:
    cut = tuple(slice(extents.get(n)) for n in dim.size_dims)
    return replace(dim, sizes=dim.sizes[cut])


def _entry(state: State, entry_dims: Mapping[str, DimState], batch: str, index: int) -> State:
    if isinstance(state, DimState):
        return entry_dims[state.name]
    if not isinstance(state, TensorState):
        return state
    dims = tuple(entry_dims[d.name] for d in state.dims)
    array = state.array
    if array is not None:
        if batch in state.names:
            array = array.take([index], axis=state.names.index(batch))
        array = array[tuple(slice(d.extent) for d in dims)]
    return replace(state, dims=dims, array=array)
