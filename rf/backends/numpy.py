"""NumPy: the reference. Forward only, and as close to the formula as possible; speed is no aim here."""

# Framework functions that are kernels as they are, under their own parameter names.
# pyright: reportAssignmentType=false, reportIncompatibleMethodOverride=false

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from rf._errors import BackendError
from rf.backend import Backend, Raw, Shape
from rf.backends._numpy_nn import NumpyNnKernels

_PAD_MODES = {"constant": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap"}
_erf = np.vectorize(math.erf, otypes=[np.float64])


class NumpyBackend(NumpyNnKernels, Backend):
    """See the module docstring."""

    name = "numpy"
    host_only = True
    raw_types = (np.ndarray, np.generic)

    def bind_kernel(self, name: str) -> Callable[..., Any]:
        fn = getattr(self, name)

        def kernel(*args: Any) -> Any:
            # Undefined results (log of a negative number in padding, 0/0) are values here, as on every other backend.
            with np.errstate(all="ignore"):
                out = fn(*args)
            # ufuncs turn 0-dim arrays into NumPy scalars
            return np.asarray(out) if isinstance(out, np.generic) else out

        kernel.__name__ = name
        return kernel

    # -- inspection and transfer

    def shape_of(self, x: Raw) -> Shape:
        return x.shape

    def dtype_of(self, x: Raw) -> str:
        return "string" if x.dtype.kind in "UO" else x.dtype.name

    def from_numpy(self, x: np.ndarray, dtype: str, device: str | None = None) -> Raw:
        return np.asarray(x) if dtype == "string" else np.asarray(x, dtype=_np_dtype(dtype))

    def to_numpy(self, x: Raw) -> np.ndarray:
        return np.asarray(x)

    # -- creation

    def full(self, shape: Shape, value: Any, dtype: str, device: str | None) -> Raw:
        return np.full(shape, value, dtype=None if dtype == "string" else _np_dtype(dtype))

    def arange(self, n: int, dtype: str, device: str | None) -> Raw:
        return np.arange(n, dtype=_np_dtype(dtype))

    def copy(self, x: Raw) -> Raw:
        return np.array(x)

    # -- structure

    def cast(self, x: Raw, dtype: str) -> Raw:
        return x.astype(_np_dtype(dtype))

    permute = staticmethod(np.transpose)
    reshape = staticmethod(np.reshape)
    expand = staticmethod(np.broadcast_to)
    unsqueeze = staticmethod(np.expand_dims)
    squeeze = staticmethod(np.squeeze)
    flip = staticmethod(np.flip)

    def concat(self, *raws_then_axis: Any) -> Raw:
        *raws, axis = raws_then_axis
        return np.concatenate(raws, axis=axis)

    def slice(self, x: Raw, axis: int, start: int, stop: int, step: int) -> Raw:
        return x[(slice(None),) * axis + (slice(start, stop, step),)]

    def pad(self, x: Raw, paddings: tuple[tuple[int, int], ...], mode: str, value: Any) -> Raw:
        options = {"constant_values": value} if mode == "constant" else {}
        return np.pad(x, paddings, mode=_PAD_MODES[mode], **options)  # type: ignore[call-overload]

    def make_complex(self, real: Raw, imag: Raw) -> Raw:
        out = np.empty(np.broadcast_shapes(real.shape, imag.shape), dtype=np.result_type(real, np.complex64))
        out.real, out.imag = real, imag
        return out

    def real_as_complex(self, x: Raw) -> Raw:
        return self.make_complex(x[..., 0], x[..., 1])

    def complex_as_real(self, x: Raw) -> Raw:
        return np.stack([x.real, x.imag], axis=-1)

    # -- elementwise

    neg = staticmethod(np.negative)
    abs = staticmethod(np.abs)
    exp = staticmethod(np.exp)
    expm1 = staticmethod(np.expm1)
    log = staticmethod(np.log)
    log1p = staticmethod(np.log1p)
    sqrt = staticmethod(np.sqrt)
    square = staticmethod(np.square)
    sin = staticmethod(np.sin)
    cos = staticmethod(np.cos)
    tanh = staticmethod(np.tanh)
    ceil = staticmethod(np.ceil)
    floor = staticmethod(np.floor)
    round = staticmethod(np.round)
    sign = staticmethod(np.sign)
    logical_not = staticmethod(np.logical_not)
    is_finite = staticmethod(np.isfinite)
    is_infinite = staticmethod(np.isinf)
    is_neg_infinite = staticmethod(np.isneginf)

    def erf(self, x: Raw) -> Raw:
        return _erf(x).astype(x.dtype) if x.size else x

    add = staticmethod(np.add)
    sub = staticmethod(np.subtract)
    mul = staticmethod(np.multiply)
    truediv = staticmethod(np.true_divide)
    floordiv = staticmethod(np.floor_divide)
    mod = staticmethod(np.mod)
    pow = staticmethod(np.power)
    maximum = staticmethod(np.maximum)
    minimum = staticmethod(np.minimum)
    logical_and = staticmethod(np.logical_and)
    logical_or = staticmethod(np.logical_or)
    logaddexp = staticmethod(np.logaddexp)
    equal = staticmethod(np.equal)
    not_equal = staticmethod(np.not_equal)
    less = staticmethod(np.less)
    less_equal = staticmethod(np.less_equal)
    greater = staticmethod(np.greater)
    greater_equal = staticmethod(np.greater_equal)
    where = staticmethod(np.where)

    # -- reductions

    def sum(self, x: Raw, axes: Shape) -> Raw:
        return np.sum(x, axis=axes, dtype=x.dtype)

    def max(self, x: Raw, axes: Shape) -> Raw:
        return np.max(x, axis=axes, initial=_extremes(x.dtype)[0])

    def min(self, x: Raw, axes: Shape) -> Raw:
        return np.min(x, axis=axes, initial=_extremes(x.dtype)[1])

    any = staticmethod(np.any)
    all = staticmethod(np.all)

    def mean(self, x: Raw, axes: Shape) -> Raw:
        count = max(math.prod(x.shape[a] for a in axes), 1)  # the mean over nothing is 0
        return (np.sum(x, axis=axes, dtype=x.dtype) / x.dtype.type(count)).astype(x.dtype)

    def argmax(self, x: Raw, axis: int) -> Raw:
        return np.argmax(x, axis=axis).astype(np.int32) if x.shape[axis] else np.sum(x, axis=axis, dtype=np.int32)

    def argmin(self, x: Raw, axis: int) -> Raw:
        return np.argmin(x, axis=axis).astype(np.int32) if x.shape[axis] else np.sum(x, axis=axis, dtype=np.int32)

    def logsumexp(self, x: Raw, axes: Shape) -> Raw:
        if any(x.shape[a] == 0 for a in axes):
            return np.full([n for a, n in enumerate(x.shape) if a not in axes], -np.inf, dtype=x.dtype)
        top = np.max(x, axis=axes, keepdims=True)
        top = np.where(np.isfinite(top), top, np.zeros_like(top))
        return np.log(np.sum(np.exp(x - top), axis=axes)) + np.squeeze(top, axis=axes)

    def cumsum(self, x: Raw, axis: int) -> Raw:
        return np.cumsum(x, axis=axis, dtype=x.dtype)

    # -- contraction

    def contract(self, a: Raw, b: Raw, num_common: int, num_a: int, num_reduce: int, num_b: int) -> Raw:
        common, rest_a = a.shape[:num_common], a.shape[num_common : num_common + num_a]
        rest_b = b.shape[num_common + num_reduce :]
        reduced = a.shape[num_common + num_a :]
        flat_a = a.reshape(*common, math.prod(rest_a), math.prod(reduced))
        flat_b = b.reshape(*common, math.prod(reduced), math.prod(rest_b))
        return np.matmul(flat_a, flat_b).reshape((*common, *rest_a, *rest_b))

    # -- normalizing

    def softmax(self, x: Raw, axis: int) -> Raw:
        if x.shape[axis] == 0:
            return x
        e = np.exp(x - np.max(x, axis=axis, keepdims=True))
        return e / np.sum(e, axis=axis, keepdims=True)

    def log_softmax(self, x: Raw, axis: int) -> Raw:
        if x.shape[axis] == 0:
            return x
        shifted = x - np.max(x, axis=axis, keepdims=True)
        return shifted - np.log(np.sum(np.exp(shifted), axis=axis, keepdims=True))

    # -- indexing

    def gather(self, source: Raw, indices: Raw, num_batch: int) -> Raw:
        if num_batch == 0:
            return source[indices]
        batch = np.ogrid[tuple(slice(n) for n in source.shape[:num_batch])]
        extra = indices.ndim - num_batch
        return source[tuple(b.reshape(b.shape + (1,) * extra) for b in batch) + (indices,)]

    def scatter(
        self, x: Raw, indices: Raw, num_batch: int, num_index: int, size: int, mode: str, initial: float
    ) -> Raw:
        batch, rest = x.shape[:num_batch], x.shape[num_batch + num_index :]
        out = np.full((*batch, size, *rest), initial, dtype=x.dtype)
        index = indices.reshape(*batch, math.prod(x.shape[num_batch : num_batch + num_index]))
        where = (*(b[..., None] for b in np.ogrid[tuple(slice(n) for n in batch)]), index)
        combine = {"sum": np.add, "max": np.maximum, "min": np.minimum}[mode]
        combine.at(out, where, x.reshape(*index.shape, *rest))
        return out

    def sort(self, x: Raw, axis: int, descending: bool) -> tuple[Raw, Raw]:
        if descending:  # backwards twice, so that equal values stay in order
            n = x.shape[axis]
            indices = n - 1 - np.flip(np.argsort(np.flip(x, axis), axis=axis, kind="stable"), axis)
        else:
            indices = np.argsort(x, axis=axis, kind="stable")
        return np.take_along_axis(x, indices, axis), indices.astype(np.int32)


def _extremes(dtype: np.dtype[Any]) -> tuple[float, float]:
    """What max and min of no values are."""
    if dtype.kind == "f":
        return -np.inf, np.inf
    info = np.iinfo(dtype)
    return info.min, info.max


def _np_dtype(dtype: str) -> np.dtype[Any]:
    if dtype == "bfloat16":
        raise BackendError("NumPy has no bfloat16; use float32 on this backend")
    return np.dtype(dtype)


def create() -> Backend:
    """The NumPy backend."""
    return NumpyBackend()
