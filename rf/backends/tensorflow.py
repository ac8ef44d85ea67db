"""TensorFlow, eager: raw arrays are eager tensors (`tf.Variable` is taken too), gradients are those of its tapes.

Nothing here makes a `tf.function`. Kernels are called as `_tensorflow_fast` describes.
"""

# Framework functions that are kernels as they are, under their own parameter names.
# pyright: reportAssignmentType=false, reportIncompatibleMethodOverride=false, reportMissingModuleSource=false

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from rf._errors import BackendError
from rf.backend import Backend, Raw, Shape
from rf.backends import _tensorflow_fast
from rf.backends import _tensorflow_ops as ops
from rf.backends._tensorflow_fast import fast, ints, like, on, with_gradient
from rf.backends._tensorflow_gradient import GradientKernels
from rf.backends._tensorflow_index import IndexKernels
from rf.backends._tensorflow_matmul import ProductKernels
from rf.backends._tensorflow_nn import TensorFlowNnKernels
from rf.backends._tensorflow_norm import NormKernels
from rf.dtypes import ALL

_DTYPES: dict[str, tf.DType] = {name: tf.as_dtype(name) for name in ALL if name != "string"}
_NUMBERS: dict[str, int] = {name: dtype.as_datatype_enum for name, dtype in _DTYPES.items()}
_NAMES = {number: name for name, number in _NUMBERS.items()}

_cast = fast("Cast", "DstT", Truncate=False)
_reverse, _gather = fast("ReverseV2"), fast("GatherV2", "batch_dims")
_fill, _range = fast("Fill"), fast("Range")
_complex, _real, _imag = fast("Complex", "Tout"), fast("Real", "Tout"), fast("Imag", "Tout")
_max, _min = fast("Max", keep_dims=False), fast("Min", keep_dims=False)
_any, _all = fast("Any", keep_dims=False), fast("All", keep_dims=False)
_arg_max, _arg_min = (
    fast("ArgMax", output_type=tf.int32.as_datatype_enum),
    fast("ArgMin", output_type=tf.int32.as_datatype_enum),
)
_cumsum = fast("Cumsum", exclusive=False, reverse=False)
_erfc, _equal = fast("Erfc"), fast("Equal", incompatible_shape_error=True)
_is_finite, _complex_abs = fast("IsFinite"), fast("ComplexAbs", "Tout")


class TensorFlowBackend(TensorFlowNnKernels, NormKernels, IndexKernels, ProductKernels, GradientKernels, Backend):
    """See the module docstring."""

    name = "tensorflow"
    has_gradients = True

    def __init__(self, array_type: type, host_only: bool) -> None:
        super().__init__()
        self.raw_types = (array_type, tf.Variable)
        self.host_only = host_only
        self._array_type = array_type

    # -- inspection and transfer

    def shape_of(self, x: Raw) -> Shape:
        return x._shape_tuple() if type(x) is self._array_type else tuple(x.shape)

    def _number_of(self, x: Raw) -> int:
        return x._datatype_enum() if type(x) is self._array_type else x.dtype.as_datatype_enum

    def dtype_of(self, x: Raw) -> str:
        return _NAMES[self._number_of(x)]

    def device_of(self, x: Raw) -> str | None:
        if self.host_only:
            return "cpu"
        kind, _, number = x.device.rpartition("/device:")[2].partition(":")
        return "cpu" if kind == "CPU" else f"cuda:{number}" if kind == "GPU" else f"{kind.lower()}:{number}"

    def from_numpy(self, x: np.ndarray, dtype: str, device: str | None = None) -> Raw:
        if dtype == "string":
            raise BackendError("strings stay on the host; keep them on the NumPy backend")
        copy = np.array(x, dtype=_DTYPES[dtype].as_numpy_dtype, order="C")
        return _tensorflow_fast.array(copy, _NUMBERS[dtype], device)

    def to_numpy(self, x: Raw) -> np.ndarray:
        out = x.numpy()
        return np.asarray(out, dtype=np.float32) if self.dtype_of(x) == "bfloat16" else np.asarray(out)

    def to_device(self, x: Raw, device: str) -> Raw:
        with on(device):
            return tf.identity(x)

    def synchronize(self) -> None:
        if not self.host_only:
            tf.test.experimental.sync_devices()

    def num_threads(self) -> int:
        # Fixed by the start of TensorFlow: by its configuration, else by this variable, else by the machine.
        number = tf.config.threading.get_intra_op_parallelism_threads()
        return number or int(os.environ.get("TF_NUM_INTRAOP_THREADS", 0)) or len(os.sched_getaffinity(0))

    # -- creation

    def _like(self, x: Raw, value: Any) -> Raw:
        return like(x, value)

    def scalar(self, value: Any, dtype: str) -> Raw:
        return self.from_numpy(np.asarray(value), dtype)

    def full(self, shape: Shape, value: Any, dtype: str, device: str | None) -> Raw:
        with on(device):
            return _fill(ints(tuple(shape)), self.scalar(value, dtype))

    def arange(self, n: int, dtype: str, device: str | None) -> Raw:
        with on(device):
            out = _range(ints(0), ints(n), ints(1))
        return out if dtype == "int32" else _cast(out, _NUMBERS[dtype])

    copy = staticmethod(ops.identity)

    # -- structure

    def cast(self, x: Raw, dtype: str) -> Raw:
        return ops.cast(x, _NUMBERS[dtype])

    def permute(self, x: Raw, perm: Shape) -> Raw:
        return ops.transpose(x, tuple(perm))

    def reshape(self, x: Raw, shape: Shape) -> Raw:
        return ops.reshape(x, tuple(shape))

    def expand(self, x: Raw, shape: Shape) -> Raw:
        return ops.broadcast(x, tuple(shape))

    def unsqueeze(self, x: Raw, axes: Shape) -> Raw:
        if len(axes) == 1:
            return ops.expand_dims(x, axes[0])
        shape = list(self.shape_of(x))
        for axis in axes:
            shape.insert(axis, 1)
        return ops.reshape(x, tuple(shape))

    def squeeze(self, x: Raw, axes: Shape) -> Raw:
        return ops.squeeze(x, axes) if axes else x

    def concat(self, *raws_then_axis: Any) -> Raw:
        if len(raws_then_axis) == 2:
            return raws_then_axis[0]
        return ops.concat(list(raws_then_axis[:-1]), raws_then_axis[-1])

    def select(self, x: Raw, axis: int, index: int) -> Raw:
        return ops.strided_slice(x, axis, index, index + 1, 1, True)

    def stack(self, *raws_then_axis: Any) -> Raw:
        return ops.stack(list(raws_then_axis[:-1]), raws_then_axis[-1])

    def unstack(self, x: Raw, axis: int, size: int) -> tuple[Raw, ...]:
        return tuple(ops.unstack(x, axis, size)) if size else ()

    def unfold(self, x: Raw, axis: int, size: int, step: int) -> Raw:
        num = (self.shape_of(x)[axis] - size) // step + 1
        index = tuple(i * step + j for i in range(num) for j in range(size))
        windows = _gather(x, ints(index), ints(axis), 0)
        shape = self.shape_of(x)
        windows = ops.reshape(windows, (*shape[:axis], num, size, *shape[axis + 1 :]))
        rank = len(shape) + 1
        return self.permute(windows, (*(i for i in range(rank) if i != axis + 1), axis + 1))

    def make_complex(self, real: Raw, imag: Raw) -> Raw:
        return _complex(real, imag, _NUMBERS["complex128" if self.dtype_of(real) == "float64" else "complex64"])

    def real_as_complex(self, x: Raw) -> Raw:
        axis = len(self.shape_of(x)) - 1
        return self.make_complex(self.select(x, axis, 0), self.select(x, axis, 1))

    def complex_as_real(self, x: Raw) -> Raw:
        part = _NUMBERS["float64" if self.dtype_of(x) == "complex128" else "float32"]
        return ops.stack([_real(x, part), _imag(x, part)], len(self.shape_of(x)))

    def slice(self, x: Raw, axis: int, start: int, stop: int, step: int) -> Raw:
        return ops.strided_slice(x, axis, start, stop, step, False)

    def split(self, x: Raw, axis: int, sizes: Shape) -> tuple[Raw, ...]:
        return tuple(ops.split(x, axis, tuple(sizes))) if len(sizes) > 1 else (self.copy(x),)

    def flip(self, x: Raw, axis: int) -> Raw:
        return _reverse(x, ints((axis,)))

    def pad(self, x: Raw, paddings: tuple[tuple[int, int], ...], mode: str, value: Any) -> Raw:
        if mode == "constant":
            return ops.pad(x, tuple(paddings), like(x, value)) if paddings else x
        how: Any = {"reflect": "reflect", "replicate": "edge", "circular": "wrap"}[mode]
        for axis, pair in enumerate(paddings):
            if any(pair):
                index = np.pad(np.arange(self.shape_of(x)[axis]), pair, mode=how)
                x = _gather(x, ints(tuple(index.tolist())), ints(axis), 0)
        return x

    # -- elementwise

    neg = staticmethod(ops.neg)
    exp = staticmethod(ops.exp)
    expm1 = staticmethod(fast("Expm1"))
    log = staticmethod(ops.log)
    log1p = staticmethod(fast("Log1p"))
    sqrt = staticmethod(ops.sqrt)
    rsqrt = staticmethod(ops.rsqrt)
    square = staticmethod(ops.square)
    reciprocal = staticmethod(fast("Reciprocal"))
    sin = staticmethod(fast("Sin"))
    cos = staticmethod(fast("Cos"))
    tanh = staticmethod(ops.tanh)
    sigmoid = staticmethod(ops.sigmoid)
    ceil = staticmethod(fast("Ceil"))
    floor = staticmethod(fast("Floor"))
    round = staticmethod(fast("Rint"))
    erf = staticmethod(fast("Erf"))
    sign = staticmethod(fast("Sign"))
    relu = staticmethod(ops.relu)
    silu = staticmethod(ops.silu)
    elu = staticmethod(fast("Elu"))
    selu = staticmethod(fast("Selu"))
    logical_not = staticmethod(fast("LogicalNot"))
    is_finite = staticmethod(_is_finite)
    is_infinite = staticmethod(fast("IsInf"))

    def abs(self, x: Raw) -> Raw:
        if self.dtype_of(x).startswith("complex"):
            return _complex_abs(x, _NUMBERS["float64" if self.dtype_of(x) == "complex128" else "float32"])
        return ops.absolute(x)

    def log_sigmoid(self, x: Raw) -> Raw:
        return ops.neg(ops.softplus(ops.neg(x)))

    def gelu(self, x: Raw) -> Raw:
        return ops.mul(ops.mul(x, like(x, 0.5)), _erfc(ops.mul(x, like(x, -math.sqrt(0.5)))))

    def is_neg_infinite(self, x: Raw) -> Raw:
        return _equal(x, self._like(x, -math.inf))

    add = staticmethod(ops.add)
    sub = staticmethod(ops.sub)
    mul = staticmethod(ops.mul)
    truediv = staticmethod(ops.div)
    floordiv = staticmethod(fast("FloorDiv"))
    mod = staticmethod(fast("FloorMod"))
    pow = staticmethod(fast("Pow"))
    maximum = staticmethod(fast("Maximum"))
    minimum = staticmethod(fast("Minimum"))
    squared_difference = staticmethod(ops.squared_difference)
    logical_and = staticmethod(fast("LogicalAnd"))
    logical_or = staticmethod(fast("LogicalOr"))
    equal = staticmethod(_equal)
    not_equal = staticmethod(fast("NotEqual", incompatible_shape_error=True))
    less = staticmethod(fast("Less"))
    less_equal = staticmethod(fast("LessEqual"))
    greater = staticmethod(fast("Greater"))
    greater_equal = staticmethod(fast("GreaterEqual"))
    where = staticmethod(ops.select)

    def logaddexp(self, x: Raw, y: Raw) -> Raw:
        def difference(x: Raw, y: Raw) -> Raw:
            return ops.select(_equal(x, y), like(x, 0), ops.sub(x, y))  # two equal infinities have none

        def forward(x: Raw, y: Raw) -> Raw:
            return ops.add(self.maximum(x, y), ops.softplus(ops.neg(ops.absolute(difference(x, y)))))

        def backward(x: Raw, y: Raw, _out: Raw, g: Raw) -> Sequence[Raw]:
            share = ops.sigmoid(difference(x, y))
            return ops.sum_to(ops.mul(g, share), x), ops.sum_to(ops.mul(g, ops.sub(like(x, 1), share)), y)

        return with_gradient((x, y), forward, backward)

    # -- reductions

    def sum(self, x: Raw, axes: Shape) -> Raw:
        return ops.sum_over(x, tuple(axes))

    def mean(self, x: Raw, axes: Shape) -> Raw:
        return ops.mean_over(x, tuple(axes))

    def max(self, x: Raw, axes: Shape) -> Raw:
        return _max(x, ints(tuple(axes)))

    def min(self, x: Raw, axes: Shape) -> Raw:
        return _min(x, ints(tuple(axes)))

    def any(self, x: Raw, axes: Shape) -> Raw:
        return _any(x, ints(tuple(axes)))

    def all(self, x: Raw, axes: Shape) -> Raw:
        return _all(x, ints(tuple(axes)))

    def argmax(self, x: Raw, axis: int) -> Raw:
        return _arg_max(x, ints(axis)) if self.shape_of(x)[axis] else self.cast(ops.sum_over(x, (axis,)), "int32")

    def argmin(self, x: Raw, axis: int) -> Raw:
        return _arg_min(x, ints(axis)) if self.shape_of(x)[axis] else self.cast(ops.sum_over(x, (axis,)), "int32")

    def logsumexp(self, x: Raw, axes: Shape) -> Raw:
        if not axes:
            return self.copy(x)

        def finite(x: Raw) -> Raw:
            return ops.select(_is_finite(x), x, like(x, 0))

        def forward(x: Raw) -> Raw:
            top = finite(_max(x, ints(axes)))
            return ops.add(ops.log(ops.sum_over(ops.exp(ops.sub(x, self.unsqueeze(top, axes))), axes)), top)

        def backward(x: Raw, y: Raw, g: Raw) -> Sequence[Raw]:
            g, y = self.unsqueeze(g, axes), self.unsqueeze(finite(y), axes)
            return (ops.mul(g, ops.exp(ops.sub(x, y))),)

        return with_gradient((x,), forward, backward)

    def cumsum(self, x: Raw, axis: int) -> Raw:
        return _cumsum(x, ints(axis))

    # -- normalizing

    def softmax(self, x: Raw, axis: int) -> Raw:
        if type(x) is self._array_type and axis == len(x._shape_tuple()) - 1:
            return ops.softmax(x)
        return self._on_last_axis(ops.softmax, x, axis)

    def log_softmax(self, x: Raw, axis: int) -> Raw:
        return self._on_last_axis(ops.log_softmax, x, axis)

    def _on_last_axis(self, kernel: Any, x: Raw, axis: int) -> Raw:
        rank = len(self.shape_of(x))
        if axis == rank - 1:
            return kernel(x)
        perm = (*(i for i in range(rank) if i != axis), axis)
        y = kernel(ops.transpose(x, perm))
        return ops.transpose(y, tuple(perm.index(i) for i in range(rank)))


def share_gpus(config: Any) -> bool:
    """Have TensorFlow take GPU memory as it needs it, instead of nearly all at once; whether there are visible GPUs.

    Nothing is changed where the program, or the environment, has said anything about the memory of one of them: growth
    or not, or a limit; TensorFlow wants all of them to be alike.

    :param config: `tf.config`.
    """
    gpus = config.get_visible_devices("GPU")
    get_growth, set_growth = config.experimental.get_memory_growth, config.experimental.set_memory_growth
    said = any(get_growth(gpu) is not None or config.get_logical_device_configuration(gpu) for gpu in gpus)
    if not said and "TF_FORCE_GPU_ALLOW_GROWTH" not in os.environ:
        with contextlib.suppress(RuntimeError):  # too late: the program has begun to use the GPUs, in its own way
            for gpu in gpus:
                set_growth(gpu, True)
    return bool(gpus)


def create() -> Backend:
    """The TensorFlow backend. Its runtime is set up here, not at the import."""
    gpus = share_gpus(tf.config)
    return TensorFlowBackend(_tensorflow_fast.start(), host_only=not gpus)
