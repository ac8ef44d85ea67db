"""Tensors from values: constants, ranges, conversion from arrays and between backends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy

from rf import dtypes
from rf._core import Tensor, make_tensor
from rf._dim import Dim
from rf._errors import RfError
from rf.backend import backend_of_raw, get_backend, selected_backend
from rf.ops import device as _device

__all__ = [
    "constant",
    "convert_backend",
    "convert_to_tensor",
    "fill",
    "full",
    "ones",
    "ones_like",
    "range_over_dim",
    "zeros",
    "zeros_like",
]


def convert_to_tensor(
    value: Any,
    *,
    dims: Sequence[Dim] | None = None,
    dtype: str | None = None,
    sparse_dim: Dim | None = None,
    feature_dim: Dim | None = None,
    shape: Sequence[Dim] | None = None,
    device: str | None = None,
    keep_scalar_on_cpu: bool = False,
    name: str | None = None,
    _backend: str | None = None,
) -> Tensor:
    """A Tensor of a number, a (nested) list, a NumPy array, or a raw array of any backend (not copied).

    A Tensor passes through.

    :param dims: one per axis; default for lists and arrays: new static dims of the axes' lengths.
    :param dtype: default: that of an array; "bool", "int32" or the default float dtype for Python numbers.
    :param sparse_dim: what integer values are indices into.
    :param feature_dim: one of `dims`.
    :param shape: another name for `dims`.
    :param device: where the data shall lie; default: as it is, or the default device for new data.
    :param keep_scalar_on_cpu: a Python number stays on the host.

    Raises ShapeError when an axis has another length than its dim.
    """
    dims = shape if dims is None else dims
    if isinstance(value, Tensor):
        if dtype is not None and value.dtype != dtype:
            from rf.ops.elementwise import cast

            value = cast(value, dtype)
        return value if device is None else _device.copy_to_device(value, device)
    own = None if isinstance(value, (numpy.ndarray, numpy.generic)) else backend_of_raw(value)
    if own is not None:
        raw = value
        raw_dtype = own.dtype_of(raw) if own.computes else dtype or dtypes.get_default_float_dtype()
        if dims is None:
            dims = [Dim(n) for n in own.shape_of(raw)] if own.computes else ()
        out = Tensor(name, dims, raw_dtype, raw_tensor=raw, feature_dim=feature_dim)
        if dtype is not None and raw_dtype != dtype:
            from rf.ops.elementwise import cast

            out = cast(out, dtype)
        if sparse_dim is not None:
            out.sparse_dim = sparse_dim
        return out if device is None else _device.copy_to_device(out, device)
    backend = selected_backend() if _backend is None else get_backend(_backend)
    array = numpy.asarray(value)
    if array.dtype.kind not in "biufcUO":
        raise RfError(f"convert_to_tensor: cannot make a tensor of {type(value).__name__} (NumPy dtype {array.dtype})")
    if dtype is None:
        if isinstance(value, (numpy.ndarray, numpy.generic)):
            dtype = dtypes.check("string" if array.dtype.kind in "UO" else array.dtype.name)
        else:
            first = array.reshape(-1)[0].item() if array.size else 0.0
            dtype = dtypes.number_type(first)
    if dims is None:
        dims = [Dim(n) for n in array.shape]
    if device is None and not (keep_scalar_on_cpu and array.ndim == 0):
        device = _device.get_default_device()
    if array.dtype.kind in "iu" and dtypes.kind(dtype) == 1 and array.size:
        info = numpy.iinfo(dtype)
        if array.min() < info.min or array.max() > info.max:
            raise RfError(f"convert_to_tensor: values {array.min()}..{array.max()} do not fit {dtype}")
    raw = backend.from_numpy(array, dtype, device)
    if not backend.computes:
        Tensor(name, dims, dtype, raw_tensor=None)
        return make_tensor(backend, raw, tuple(dims), dtype, feature_dim, sparse_dim)
    return Tensor(name, dims, dtype, raw_tensor=raw, feature_dim=feature_dim, sparse_dim=sparse_dim)


def convert_backend(x: Tensor, name: str) -> Tensor:
    """The same values and dims on backend `name`, without gradient. Copies through the host."""
    backend = get_backend(name)
    if x.backend is backend or x.backend is None:
        return x.copy()
    raw = backend.no_value if not backend.computes else backend.from_numpy(x.numpy(), x.dtype)
    return make_tensor(backend, raw, x.dims, x.dtype, x.feature_dim, x.sparse_dim)


def full(
    *,
    dims: Sequence[Dim],
    fill_value: Any,
    dtype: str | None = None,
    device: str | None = None,
    sparse_dim: Dim | None = None,
    feature_dim: Dim | None = None,
) -> Tensor:
    """A Tensor over `dims` that holds `fill_value` everywhere, padding included.

    :param fill_value: a number or a scalar Tensor. `dtype` defaults to its dtype.
    """
    backend = selected_backend()
    if isinstance(fill_value, Tensor):
        dtype = dtype or fill_value.dtype
        fill_value = fill_value.item()
    elif isinstance(fill_value, numpy.generic):
        fill_value = fill_value.item()
    dtype = dtypes.check(dtype or dtypes.number_type(fill_value))
    if not backend.computes:
        return make_tensor(backend, backend.no_value, tuple(dims), dtype, feature_dim, sparse_dim)
    shape = tuple(d.get_dim_value() for d in dims)
    raw = backend.kernels["full"](shape, fill_value, dtype, device or _device.get_default_device())
    return make_tensor(backend, raw, tuple(dims), dtype, feature_dim, sparse_dim)


fill = full


def constant(
    fill_value: Any,
    *,
    dims: Sequence[Dim],
    dtype: str | None = None,
    device: str | None = None,
    sparse_dim: Dim | None = None,
    feature_dim: Dim | None = None,
) -> Tensor:
    """`full` with the value first."""
    return full(
        dims=dims, fill_value=fill_value, dtype=dtype, device=device, sparse_dim=sparse_dim, feature_dim=feature_dim
    )


def zeros(
    dims: Sequence[Dim],
    *,
    dtype: str | None = None,
    device: str | None = None,
    sparse_dim: Dim | None = None,
    feature_dim: Dim | None = None,
) -> Tensor:
    """Zeros over `dims`, in the default float dtype unless said otherwise."""
    dtype = dtype or dtypes.get_default_float_dtype()
    return full(dims=dims, fill_value=0, dtype=dtype, device=device, sparse_dim=sparse_dim, feature_dim=feature_dim)


def ones(
    dims: Sequence[Dim],
    *,
    dtype: str | None = None,
    device: str | None = None,
    sparse_dim: Dim | None = None,
    feature_dim: Dim | None = None,
) -> Tensor:
    """Ones over `dims`, in the default float dtype unless said otherwise."""
    dtype = dtype or dtypes.get_default_float_dtype()
    return full(dims=dims, fill_value=1, dtype=dtype, device=device, sparse_dim=sparse_dim, feature_dim=feature_dim)


def zeros_like(other: Tensor) -> Tensor:
    """Zeros with the dims, dtype and device of `other`."""
    return zeros(
        other.dims, dtype=other.dtype, device=other.device, sparse_dim=other.sparse_dim, feature_dim=other.feature_dim
    )


def ones_like(other: Tensor) -> Tensor:
    """Ones with the dims, dtype and device of `other`."""
    return ones(
        other.dims, dtype=other.dtype, device=other.device, sparse_dim=other.sparse_dim, feature_dim=other.feature_dim
    )


def range_over_dim(dim: Dim, *, dtype: str | None = None, device: str | None = None) -> Tensor:
    """0, 1, ... along `dim`: {dim}, int32 by default and then with sparse dim `dim`; counts on in the padding."""
    backend = selected_backend()
    dtype = dtypes.check(dtype or dtypes.get_default_array_index_dtype())
    sparse = dim if dtypes.kind(dtype) == 1 else None
    raw = backend.no_value
    if backend.computes:
        raw = backend.kernels["arange"](dim.get_dim_value(), dtype, device or _device.get_default_device())
    return make_tensor(backend, raw, (dim,), dtype, None, sparse)
