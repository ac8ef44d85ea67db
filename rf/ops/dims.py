"""Helpers about dims: ranges, counts and positions. All sizes are host integers, so nothing here waits for a device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy

from rf import dtypes
from rf._core import Tensor, make_tensor
from rf._dim import Dim, as_dims
from rf._errors import DimError
from rf._registry import SERVICES
from rf.backend import get_backend, selected_backend
from rf.ops import device as _device
from rf.ops import shape
from rf.ops.create import range_over_dim

__all__ = [
    "dim_match_priority_when_needed",
    "last_frame_position_of_dim",
    "linspace_over_dim",
    "masked_fraction_of_shape",
    "num_elements_of_shape",
    "range_over_dim_strided",
    "range_over_merged_dims",
    "use_mask_default",
]


# -- host arrays and Tensors of them


def host_sizes(dim: Dim, order: Sequence[Dim]) -> numpy.ndarray:
    """The sizes of `dim` as an int64 array that broadcasts against axes `order`, which must contain the size dims."""
    sizes = dim.get_sizes()
    where = [next((i for i, s in enumerate(sizes.dims) if s.base is d.base), -1) for d in order]
    values = sizes.values.astype(numpy.int64).transpose([i for i in where if i >= 0])
    return values.reshape([sizes.values.shape[i] if i >= 0 else 1 for i in where])


def host_mask(dim: Dim, order: Sequence[Dim]) -> numpy.ndarray:
    """Where `dim` is valid, as a bool array that broadcasts against axes `order`, which must contain `dim` and its size
    dims."""
    positions = numpy.arange(dim.get_dim_value()).reshape([-1 if d.base is dim.base else 1 for d in order])
    return positions < host_sizes(dim, order)


def size_dims_of(*dims: Dim) -> tuple[Dim, ...]:
    """All dims that the sizes of `dims` depend on, each once."""
    out: list[Dim] = []
    for d in dims:
        out += [s for s in d.get_sizes().dims if s not in out]
    return tuple(out)


def tensor_beside(
    like: Tensor, values: numpy.ndarray, dims: Sequence[Dim], dtype: str = "int32", sparse_dim: Dim | None = None
) -> Tensor:
    """Host values as a Tensor on the backend and device of `like`."""
    assert like.backend is not None
    values = numpy.broadcast_to(values, [d.get_dim_value() for d in dims])
    raw = like.backend.from_numpy(numpy.ascontiguousarray(values).reshape(values.shape), dtype, like.device)
    return make_tensor(like.backend, raw, tuple(dims), dtype, None, sparse_dim)


def _host_tensor(
    values: Any, dims: Sequence[Dim], dtype: str, device: str | None, sparse_dim: Dim | None = None
) -> Tensor:
    """Host values as a Tensor of the selected backend; NumPy's when that one has no values. On the host unless `device`
    is given."""
    backend = selected_backend()
    if not backend.computes:
        backend, device = get_backend("numpy"), None
    values = numpy.asarray(values)
    return make_tensor(
        backend, backend.from_numpy(values, dtype, device or "cpu"), tuple(dims), dtype, None, sparse_dim
    )


# -- ranges


def range_over_dim_strided(
    dim: Dim,
    *,
    stride: int | Dim,
    out_dim: Dim | None = None,
    dtype: str | None = None,
    device: str | None = None,
) -> tuple[Tensor, Dim]:
    """0, stride, 2 * stride, ...: {out_dim}, positions in `dim`.

    :param out_dim: default: `dim.ceildiv_right(stride)`.
    :returns: (tensor, out_dim); sparse dim `dim` for integers. Counts on in the padding.
    """
    out_dim = shape.with_sizes("range_over_dim_strided", out_dim, dim.ceildiv_right(stride))
    step = stride if isinstance(stride, int) else stride.get_dim_value()
    out = range_over_dim(out_dim, dtype=dtype, device=device) * step
    out.sparse_dim = dim if dtypes.kind(out.dtype) == 1 else None
    return out, out_dim


def range_over_merged_dims(dims: Sequence[Dim], *, dtype: str | None = None, device: str | None = None) -> Tensor:
    """The index of each entry after `rf.merge_dims`: {*dims}, 0, 1, ... with the last dim running fastest; padding
    counts as entries.

    For integers, the sparse dim is the dim of the merged axis.
    """
    dims = tuple(dims)
    if len(dims) == 1:
        return range_over_dim(dims[0], dtype=dtype, device=device)
    if not dims:
        raise DimError("range_over_merged_dims: no dims given")
    merged = shape.merged_dim(dims)
    flat = range_over_dim(merged, dtype=dtype, device=device)
    if merged.need_masking():
        flat, _ = shape.replace_dim(flat, in_dim=merged, out_dim=Dim(None, name="merged").fill(merged.get_dim_value()))
    out = shape.split_dims(flat, axis=flat.dims[0], dims=dims)
    out.sparse_dim = flat.sparse_dim
    return out


def linspace_over_dim(
    dim: Dim,
    start: float | Tensor = 0.0,
    end: float | Tensor = 1.0,
    *,
    dtype: str | None = None,
    device: str | None = None,
) -> Tensor:
    """start + (end - start) * i / n for i = 0 .. n-1, without the end: {*size dims, dim}.

    :param dim: n is the size of each sequence, so that a sequence gets the same values alone and in a batch.
    :param start: a number or a Tensor.
    :param end: likewise.
    :param dtype: a float dtype; default: the default float dtype.
    """
    dtype = dtype or dtypes.get_default_float_dtype()
    from rf.ops.elementwise import combine_bc

    positions = range_over_dim(dim, dtype=dtype, device=device)
    assert positions.backend is not None
    sizes = dim.get_sizes()
    counts = tensor_beside(positions, numpy.maximum(sizes.values, 1), sizes.dims, dtype)
    fraction = combine_bc(positions, "truediv", counts, dim_order=[*sizes.dims, dim])
    return combine_bc(combine_bc(fraction, "mul", end - start), "add", start)


# -- counts


def _count(dims: Sequence[Dim], use_mask: bool) -> tuple[numpy.ndarray, tuple[Dim, ...]]:
    """Number of valid entries over `dims`; what remains are size dims that are not in `dims`."""
    masked = [d for d in dims if use_mask and d.need_masking()]
    axes: list[Dim] = []
    todo = list(masked)
    while todo:
        for s in todo.pop(0).get_sizes().dims:
            if s not in axes:
                axes.append(s)
                if s in dims and s.need_masking():
                    todo.append(s)
    count = numpy.ones([d.get_dim_value() for d in axes], dtype=numpy.int64)
    for d in dims:
        if d in axes:
            if d in masked:
                count = count * host_mask(d, axes)
        elif d in masked:
            count = count * host_sizes(d, axes)
        else:
            count = count * d.get_dim_value()
    rest = tuple(a for a in axes if a not in dims)
    return count.sum(axis=tuple(i for i, a in enumerate(axes) if a in dims)), rest


def num_elements_of_shape(
    dims: Dim | Sequence[Dim], *, use_mask: bool = True, device: str | None = None
) -> int | Tensor:
    """Number of valid entries of a tensor over `dims`.

    :param dims: each at most once.
    :param use_mask: do not count padding.
    :param device: where the result lies; default: the host.
    :returns: an int when nothing is masked, else an int32 Tensor over those size dims that are not in `dims`: of {B, T}
        the sum of all lengths, of {T} alone the lengths {B}. int64 where int32 is too narrow.
    """
    dims = as_dims(dims)
    count, rest = _count(dims, use_mask)
    if not rest and not (use_mask and any(d.need_masking() for d in dims)):
        return int(count)
    dtype = "int64" if count.size and count.max() > 2**31 - 1 else "int32"
    return _host_tensor(count, rest, dtype, device)


SERVICES["num_elements_of_shape"] = num_elements_of_shape


def masked_fraction_of_shape(
    dims: Dim | Sequence[Dim], *, inverse: bool = False, device: str | None = None
) -> int | Tensor:
    """Valid entries / entries with padding (`inverse`: the reciprocal, 1 entry at least), in the default float dtype; 1
    without masking.

    Dims of the result as in `num_elements_of_shape`.
    """
    dims = as_dims(dims)
    if not any(d.need_masking() for d in dims):
        return 1
    count, rest = _count(dims, True)
    total = numpy.prod([d.get_dim_value() for d in dims], dtype=numpy.int64)
    value = total / numpy.maximum(count, 1) if inverse else count / max(int(total), 1)
    return _host_tensor(value, rest, dtypes.get_default_float_dtype(), device)


def last_frame_position_of_dim(
    dim: Dim, *, device: str | None = None, allow_scalar_on_cpu: bool = True
) -> int | Tensor:
    """Index of the last frame: size - 1, and 0 for an empty sequence.

    :param device: default: the default device.
    :param allow_scalar_on_cpu: a Tensor without dims may stay on the host, which every op accepts.
    :returns: an int for a static dim, else an int32 Tensor over the size dims with sparse dim `dim`.
    """
    if dim.is_static():
        return max(dim.get_dim_value() - 1, 0)
    sizes = dim.get_sizes()
    if sizes.dims or not allow_scalar_on_cpu:
        device = device or _device.get_default_device()
    return _host_tensor(numpy.maximum(sizes.values - 1, 0), sizes.dims, "int32", device, dim)


# -- choices


def dim_match_priority_when_needed(dim: Dim, *other_dims: Dim) -> Dim:
    """`dim` with match priority 1 if it occurs among `other_dims`: the input side of a square weight."""
    return dim.copy(match_priority=1) if dim in other_dims else dim


def use_mask_default(
    *,
    default: bool | None = None,
    default_false_for_behavior_version_up_to: int | None = None,
    func_name: str | None = None,
) -> bool:
    """What a function does about masking when its caller leaves it open: `default`, and to mask without one.

    The other parameters are accepted for the sake of existing code; rf has one behavior.
    """
    return True if default is None else default
