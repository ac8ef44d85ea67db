"""PyTorch: raw arrays are torch.Tensor, gradients are torch's own.

This is the reference for the native path (`_torch_native`), and what runs where that is not built.
"""

# Framework functions that are kernels as they are, under their own parameter names.
# pyright: reportAssignmentType=false, reportIncompatibleMethodOverride=false

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch.utils._mode_utils import no_dispatch

from rf import _config
from rf._core import NATIVE, NOTE, register_native
from rf._errors import BackendError
from rf.backend import Backend, Raw, Shape, get_backend
from rf.backends import _torch_native
from rf.backends._torch_index import IndexKernels
from rf.backends._torch_nn import TorchNnKernels
from rf.dtypes import ALL

_DTYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in ALL if name != "string"}
_NAMES = {v: k for k, v in _DTYPES.items()}


class TorchBackend(TorchNnKernels, IndexKernels, Backend):
    """See the module docstring."""

    name = "torch"
    has_gradients = True
    raw_types = (torch.Tensor,)

    # -- inspection and transfer

    def shape_of(self, x: Raw) -> Shape:
        return tuple(x.shape)

    def dtype_of(self, x: Raw) -> str:
        return _NAMES[x.dtype]

    def device_of(self, x: Raw) -> str | None:
        return str(x.device)

    def from_numpy(self, x: np.ndarray, dtype: str, device: str | None = None) -> Raw:
        if dtype == "string":
            raise BackendError("torch has no string tensors; keep strings on the NumPy backend")
        return torch.tensor(x, dtype=_DTYPES[dtype], device=device)

    def constant(self, x: np.ndarray, dtype: str, device: str | None = None) -> Raw:
        with no_dispatch(), torch.inference_mode(False):
            return torch.tensor(x, dtype=_DTYPES[dtype], device=device)

    def to_numpy(self, x: Raw) -> np.ndarray:
        x = x.detach().cpu()
        return (x.float() if x.dtype is torch.bfloat16 else x).numpy()

    def item(self, x: Raw) -> Any:
        return x.item()

    def to_device(self, x: Raw, device: str) -> Raw:
        return x.to(device)

    def synchronize(self) -> None:
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()

    num_threads = staticmethod(torch.get_num_threads)

    def set_num_threads(self, number: int) -> bool:
        torch.set_num_threads(number)
        return True

    # -- creation

    def scalar(self, value: Any, dtype: str) -> Raw:
        with no_dispatch(), torch.inference_mode(False):  # it is kept
            return torch.full((), value, dtype=_DTYPES[dtype])

    def full(self, shape: Shape, value: Any, dtype: str, device: str | None) -> Raw:
        return torch.full(shape, value, dtype=_DTYPES[dtype], device=device)

    def arange(self, n: int, dtype: str, device: str | None) -> Raw:
        return torch.arange(n, dtype=_DTYPES[dtype], device=device)

    copy = staticmethod(torch.clone)

    # -- structure

    def cast(self, x: Raw, dtype: str) -> Raw:
        return x.to(_DTYPES[dtype])

    permute = staticmethod(torch.permute)
    reshape = staticmethod(torch.reshape)

    def expand(self, x: Raw, shape: Shape) -> Raw:
        return x.expand(shape)

    def unsqueeze(self, x: Raw, axes: Shape) -> Raw:
        for axis in axes:
            x = x.unsqueeze(axis)
        return x

    squeeze = staticmethod(torch.squeeze)

    def concat(self, *raws_then_axis: Any) -> Raw:
        return torch.cat(raws_then_axis[:-1], raws_then_axis[-1])

    def flatten(self, x: Raw, start: int, num: int) -> Raw:
        return torch.flatten(x, start, start + num - 1)

    unflatten = staticmethod(torch.unflatten)
    select = staticmethod(torch.select)

    def expand_axis(self, x: Raw, axis: int, size: int) -> Raw:
        shape = x.shape
        return x.unsqueeze(axis).expand(*shape[:axis], size, *shape[axis:]) if axis else x.expand(size, *shape)

    def stack(self, *raws_then_axis: Any) -> Raw:
        return torch.stack(raws_then_axis[:-1], raws_then_axis[-1])

    def unstack(self, x: Raw, axis: int, size: int) -> tuple[Raw, ...]:
        return torch.unbind(x, axis)

    def unfold(self, x: Raw, axis: int, size: int, step: int) -> Raw:
        return x.unfold(axis, size, step)

    make_complex = staticmethod(torch.complex)

    def real_as_complex(self, x: Raw) -> Raw:
        # (a contiguous array without entries may still have other strides than the view needs)
        return torch.view_as_complex(x.contiguous()) if x.numel() else torch.complex(x[..., 0], x[..., 1])

    complex_as_real = staticmethod(torch.view_as_real)

    def slice(self, x: Raw, axis: int, start: int, stop: int, step: int) -> Raw:
        return x[(slice(None),) * axis + (slice(start, stop, step),)]

    def split(self, x: Raw, axis: int, sizes: Shape) -> tuple[Raw, ...]:
        return torch.split(x, list(sizes), axis)

    def flip(self, x: Raw, axis: int) -> Raw:
        return torch.flip(x, (axis,))

    def pad(self, x: Raw, paddings: tuple[tuple[int, int], ...], mode: str, value: Any) -> Raw:
        if mode == "constant" or not x.numel():
            return F.pad(x, [n for left_right in reversed(paddings) for n in left_right], value=value)
        # torch's other modes want one or two leading axes that are not padded
        for axis, (left, right) in enumerate(paddings):
            if left or right:
                moved = x.movedim(axis, -1)
                flat = F.pad(moved.reshape(1, -1, moved.shape[-1]), (left, right), mode=mode)
                x = flat.reshape(*moved.shape[:-1], flat.shape[-1]).movedim(-1, axis)
        return x

    # -- elementwise

    neg = staticmethod(torch.neg)
    abs = staticmethod(torch.abs)
    exp = staticmethod(torch.exp)
    expm1 = staticmethod(torch.expm1)
    log = staticmethod(torch.log)
    log1p = staticmethod(torch.log1p)
    sqrt = staticmethod(torch.sqrt)
    rsqrt = staticmethod(torch.rsqrt)
    square = staticmethod(torch.square)
    reciprocal = staticmethod(torch.reciprocal)
    sin = staticmethod(torch.sin)
    cos = staticmethod(torch.cos)
    tanh = staticmethod(torch.tanh)
    sigmoid = staticmethod(torch.sigmoid)
    log_sigmoid = staticmethod(F.logsigmoid)
    ceil = staticmethod(torch.ceil)
    floor = staticmethod(torch.floor)
    round = staticmethod(torch.round)
    erf = staticmethod(torch.erf)
    sign = staticmethod(torch.sign)
    relu = staticmethod(torch.relu)
    elu = staticmethod(F.elu)
    selu = staticmethod(torch.selu)
    silu = staticmethod(F.silu)
    gelu = staticmethod(F.gelu)
    logical_not = staticmethod(torch.logical_not)
    is_finite = staticmethod(torch.isfinite)
    is_infinite = staticmethod(torch.isinf)
    is_neg_infinite = staticmethod(torch.isneginf)

    add = staticmethod(torch.add)
    sub = staticmethod(torch.sub)
    mul = staticmethod(torch.mul)
    truediv = staticmethod(torch.true_divide)
    floordiv = staticmethod(torch.floor_divide)
    mod = staticmethod(torch.remainder)
    pow = staticmethod(torch.pow)
    maximum = staticmethod(torch.maximum)
    minimum = staticmethod(torch.minimum)
    logical_and = staticmethod(torch.logical_and)
    logical_or = staticmethod(torch.logical_or)
    logaddexp = staticmethod(torch.logaddexp)
    equal = staticmethod(torch.eq)
    not_equal = staticmethod(torch.ne)
    less = staticmethod(torch.lt)
    less_equal = staticmethod(torch.le)
    greater = staticmethod(torch.gt)
    greater_equal = staticmethod(torch.ge)
    where = staticmethod(torch.where)

    # -- reductions

    def sum(self, x: Raw, axes: Shape) -> Raw:
        return torch.sum(x, axes, dtype=x.dtype) if axes else x

    def mean(self, x: Raw, axes: Shape) -> Raw:
        if not x.numel():  # the mean over nothing is 0
            return torch.sum(x, axes) if axes else x
        return torch.mean(x, axes) if axes else x

    def max(self, x: Raw, axes: Shape) -> Raw:
        return _max_of_nothing(x, axes) if x.numel() == 0 else torch.amax(x, axes) if axes else x

    def min(self, x: Raw, axes: Shape) -> Raw:
        return -1 - _max_of_nothing(x, axes) if x.numel() == 0 else torch.amin(x, axes) if axes else x

    def any(self, x: Raw, axes: Shape) -> Raw:
        return torch.any(x, axes) if axes else x

    def all(self, x: Raw, axes: Shape) -> Raw:
        return torch.all(x, axes) if axes else x

    def logsumexp(self, x: Raw, axes: Shape) -> Raw:
        return torch.logsumexp(x, axes) if axes else x

    def argmax(self, x: Raw, axis: int) -> Raw:
        return torch.argmax(x, axis).to(torch.int32) if x.shape[axis] else torch.sum(x, axis).to(torch.int32)

    def argmin(self, x: Raw, axis: int) -> Raw:
        return torch.argmin(x, axis).to(torch.int32) if x.shape[axis] else torch.sum(x, axis).to(torch.int32)

    def cumsum(self, x: Raw, axis: int) -> Raw:
        return torch.cumsum(x, axis, dtype=x.dtype)

    # -- contraction

    def contract(self, a: Raw, b: Raw, num_common: int, num_a: int, num_reduce: int, num_b: int) -> Raw:
        if num_reduce == 1 and num_b == 1 and (num_a == 1 or num_common == 0 and num_a > 0):
            return torch.matmul(a, b)
        common, rest_a = a.shape[:num_common], a.shape[num_common : num_common + num_a]
        rest_b = b.shape[num_common + num_reduce :]
        reduced = a.shape[num_common + num_a :].numel()
        flat_a = a.reshape(*common, rest_a.numel(), reduced)
        flat_b = b.reshape(*common, reduced, rest_b.numel())
        return torch.matmul(flat_a, flat_b).reshape((*common, *rest_a, *rest_b))

    def linear(self, x: Raw, weight: Raw, bias: Raw | None) -> Raw:
        return F.linear(x, weight.t(), bias)

    # -- normalizing

    softmax = staticmethod(torch.softmax)
    log_softmax = staticmethod(torch.log_softmax)

    def layer_norm(self, x: Raw, scale: Raw | None, bias: Raw | None, num_axes: int, eps: float) -> Raw:
        return F.layer_norm(x, x.shape[x.dim() - num_axes :], scale, bias, eps)

    def rms_norm(self, x: Raw, scale: Raw | None, bias: Raw | None, num_axes: int, eps: float) -> Raw:
        y = F.rms_norm(x, x.shape[x.dim() - num_axes :], scale, eps)
        return y if bias is None else y + bias

    # -- indexing

    def gather(self, source: Raw, indices: Raw, num_batch: int) -> Raw:
        if num_batch == 0:
            if source.dim() == 2:
                return F.embedding(indices, source)
            return source[indices.long()]
        extra = indices.dim() - num_batch
        batch = []
        for axis, n in enumerate(source.shape[:num_batch]):
            shape = [1] * (num_batch + extra)
            shape[axis] = n
            batch.append(torch.arange(n, device=source.device).reshape(shape))
        return source[(*batch, indices.long())]

    # -- gradients

    def stop_gradient(self, x: Raw) -> Raw:
        return x.detach()

    def no_grad(self) -> contextlib.AbstractContextManager[Any]:
        return torch.no_grad()

    is_grad_enabled = staticmethod(torch.is_grad_enabled)

    def set_grad_enabled(self, enabled: bool) -> None:
        torch.set_grad_enabled(enabled)

    def gradient(self, y: Raw, xs: Sequence[Raw]) -> list[Raw | None]:
        return list(torch.autograd.grad(y, xs, retain_graph=True, allow_unused=True))

    # -- parameters

    def create_parameter(self, value: Raw, trainable: bool) -> Raw:
        return torch.nn.Parameter(value, requires_grad=trainable)

    def set_trainable(self, parameter: Raw, trainable: bool) -> Raw:
        return parameter.requires_grad_(trainable)

    def move_toward(self, parameter: Raw, value: Raw, weight: float) -> Raw:
        with torch.no_grad():
            return parameter.lerp_(value, weight)

    def assign(self, parameter: Raw, value: Raw) -> Raw:
        with torch.no_grad():
            parameter.copy_(value)
        return parameter


def _max_of_nothing(x: Raw, axes: Shape) -> Raw:
    # torch raises here; -1 - this is what the minimum is: +inf, or the largest integer
    low = -math.inf if x.is_floating_point() else torch.iinfo(x.dtype).min
    return torch.full([n for a, n in enumerate(x.shape) if a not in axes], low, dtype=x.dtype, device=x.device)


def create() -> Backend:
    """The torch backend; its tensors take the native path where that can be had."""
    global _native_note
    backend = TorchBackend()
    if not NATIVE:
        _native_note = f"needs the native core: {NOTE}"
    elif not _config.TORCH_NATIVE.get():
        _native_note = "RF_TORCH_NATIVE=0 asks for the backend in Python"
    else:
        try:
            native = _torch_native.load()
        except _torch_native.BuildError as exc:
            _native_note = str(exc)
            print(f"rf: torch runs without its native path: {exc}", file=sys.stderr)
        else:
            register_native(backend, native.capsule())
            _native_note = ""
    return backend


_native_note: str | None = None


def native_path_status() -> tuple[bool, str]:
    """Whether torch tensors take the native path, and if not, why. Loads the backend."""
    get_backend("torch")
    return _native_note == "", _native_note or ""
