"""Ops of TensorFlow with gradients of their own: those that a training step consists of.

See `_tensorflow_fast.differentiable`. Shapes and axes are tuples of ints. For complex numbers the gradients are those
of TensorFlow.
"""

# pyright: reportMissingModuleSource=false

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from rf.backend import Raw, Shape
from rf.backends._tensorflow_fast import Kernel, Needed, differentiable, fast, followed, ints, like, record

Args = tuple[Any, ...]
Partial = Callable[[Raw, Raw, Raw, Raw], Raw]

_add, _sub, _mul, _div, _neg = fast("AddV2"), fast("Sub"), fast("Mul"), fast("RealDiv"), fast("Neg")
_reshape, _transpose, _broadcast = fast("Reshape"), fast("Transpose"), fast("BroadcastTo")
_expand_dims, _squeeze = fast("ExpandDims"), fast("Squeeze", "squeeze_dims")
_sum, _mean = fast("Sum", keep_dims=False), fast("Mean", keep_dims=False)
_sum_keeping = fast("Sum", keep_dims=True)
_select, _cast, _sign = fast("SelectV2"), fast("Cast", "DstT", Truncate=False), fast("Sign")
_pack, _unpack, _concat = fast("Pack", "axis"), fast("Unpack", "num", "axis"), fast("ConcatV2")
_split_sizes = fast("SplitV", "num_split")
_pad, _slice = fast("PadV2"), fast("Slice")
_strided = fast("StridedSlice", "begin_mask", "end_mask", "shrink_axis_mask", ellipsis_mask=0, new_axis_mask=0)
_strided_back = fast("StridedSliceGrad", "begin_mask", "end_mask", "shrink_axis_mask", ellipsis_mask=0, new_axis_mask=0)
_bias_add, _bias_add_back = fast("BiasAdd", data_format="NHWC"), fast("BiasAddGrad", data_format="NHWC")
_softmax, _log_softmax, _exp = fast("Softmax"), fast("LogSoftmax"), fast("Exp")
_sigmoid, _sigmoid_back = fast("Sigmoid"), fast("SigmoidGrad")


# -- elementwise


def sum_to(g: Raw, x: Raw) -> Raw:
    """The gradient of `x`, which has been broadcast to the shape of `g`."""
    have, want = g._shape_tuple(), x._shape_tuple()
    if have == want:
        return g
    lead = len(have) - len(want)
    inner = tuple(i for i in range(lead, len(have)) if have[i] != 1 and want[i - lead] == 1)
    if not lead:
        return _sum_keeping(g, ints(inner))
    out = _sum(g, ints((*range(lead), *inner)))
    return _reshape(out, ints(want)) if inner else out


def _unary(op: str, back: Callable[[Raw, Raw, Raw], Raw]) -> Kernel:
    """:param back: (x, y, g) -> gradient of x."""

    def backward(args: Args, _needed: Needed, y: Raw, g: Raw) -> Sequence[Raw]:
        return (back(args[0], y, g),)

    return differentiable(fast(op), 1, backward)


def _binary(op: str, left: Partial, right: Partial) -> Kernel:
    """:param left, right: (x, z, y, g) -> gradient of x (z), of the shape that has been broadcast to."""

    def backward(args: Args, needed: Needed, y: Raw, g: Raw) -> Sequence[Raw | None]:
        x, z = args
        return (
            sum_to(left(x, z, y, g), x) if needed[0] else None,
            sum_to(right(x, z, y, g), z) if needed[1] else None,
        )

    return differentiable(fast(op), 2, backward)


def _with(op: str, *, of_result: bool, gradient_first: bool = False) -> Callable[[Raw, Raw, Raw], Raw]:
    """The op that TensorFlow has for a gradient."""
    kernel = fast(op)
    if gradient_first:
        return (lambda _x, y, g: kernel(g, y)) if of_result else (lambda x, _y, g: kernel(g, x))
    return lambda _x, y, g: kernel(y, g)


neg = _unary("Neg", lambda _x, _y, g: _neg(g))
exp = _unary("Exp", lambda _x, y, g: _mul(g, y))
log = _unary("Log", lambda x, _y, g: _div(g, x))
square = _unary("Square", lambda x, _y, g: _mul(g, _add(x, x)))
absolute = _unary("Abs", lambda x, _y, g: _mul(g, _sign(x)))
sqrt = _unary("Sqrt", _with("SqrtGrad", of_result=True))
rsqrt = _unary("Rsqrt", _with("RsqrtGrad", of_result=True))
tanh = _unary("Tanh", _with("TanhGrad", of_result=True))
sigmoid = _unary("Sigmoid", _with("SigmoidGrad", of_result=True))
relu = _unary("Relu", _with("ReluGrad", of_result=True, gradient_first=True))
softplus = _unary("Softplus", _with("SoftplusGrad", of_result=False, gradient_first=True))
identity = _unary("Identity", lambda _x, _y, g: g)

add = _binary("AddV2", lambda _x, _z, _y, g: g, lambda _x, _z, _y, g: g)
sub = _binary("Sub", lambda _x, _z, _y, g: g, lambda _x, _z, _y, g: _neg(g))
mul = _binary("Mul", lambda _x, z, _y, g: _mul(g, z), lambda x, _z, _y, g: _mul(g, x))
div = _binary("RealDiv", lambda _x, z, _y, g: _div(g, z), lambda _x, z, y, g: _neg(_mul(g, _div(y, z))))


def _squared_difference_back(args: Args, needed: Needed, _y: Raw, g: Raw) -> Sequence[Raw | None]:
    x, z = args
    half = _mul(g, _sub(x, z))
    g = _add(half, half)
    return sum_to(g, x) if needed[0] else None, _neg(sum_to(g, z)) if needed[1] else None


squared_difference = differentiable(fast("SquaredDifference"), 2, _squared_difference_back)


def _select_back(args: Args, needed: Needed, _y: Raw, g: Raw) -> Sequence[Raw | None]:
    condition, x, z = args
    zero = like(g, 0)
    return (
        None,
        sum_to(_select(condition, g, zero), x) if needed[1] else None,
        sum_to(_select(condition, zero, g), z) if needed[2] else None,
    )


select = differentiable(_select, 3, _select_back)
"""(condition, x, z): broadcast against each other."""


def _silu(x: Raw) -> Raw:
    return _mul(x, _sigmoid(x))


def _silu_back(args: Args, _needed: Needed, _y: Raw, g: Raw) -> Sequence[Raw]:
    (x,) = args
    share = _sigmoid(x)
    return (_add(_mul(g, share), _mul(x, _sigmoid_back(share, g))),)


silu = differentiable(_silu, 1, _silu_back)
cast = differentiable(_cast, 1, lambda args, _needed, _y, g: (_cast(g, args[0]._datatype_enum()),))
"""(x, number of the dtype)."""

# -- structure


def _to_shape_of_operand(args: Args, _needed: Needed, _y: Raw, g: Raw) -> Sequence[Raw]:
    return (_reshape(g, ints(args[0]._shape_tuple())),)


def _permuted(x: Raw, perm: Shape) -> Raw:
    return _transpose(x, ints(perm))


def _permuted_back(args: Args, _needed: Needed, _y: Raw, g: Raw) -> Sequence[Raw]:
    perm = args[1]
    return (_transpose(g, ints(tuple(map(perm.index, range(len(perm)))))),)


def _sliced(x: Raw, axis: int, start: int, stop: int, step: int, remove: bool) -> Raw:
    bounds, masks = _bounds(axis, start, stop, step, remove)
    return _strided(x, *bounds, *masks)


def _sliced_back(args: Args, _needed: Needed, _y: Raw, g: Raw) -> Sequence[Raw]:
    x, *where = args
    bounds, masks = _bounds(*where)
    return (_strided_back(ints(x._shape_tuple()), *bounds, g, *masks),)


def _bounds(axis: int, start: int, stop: int, step: int, remove: bool) -> tuple[tuple[Raw, ...], tuple[int, ...]]:
    zeros = (0,) * axis
    whole = (1 << axis) - 1
    bounds = ints((*zeros, start)), ints((*zeros, stop)), ints((*(1 for _ in zeros), step))
    return bounds, (whole, whole, remove << axis)


def _padded(x: Raw, paddings: tuple[tuple[int, int], ...], value: Raw) -> Raw:
    return _pad(x, ints(paddings), value)


def _padded_back(args: Args, _needed: Needed, _y: Raw, g: Raw) -> Sequence[Raw]:
    x, paddings, _ = args
    return (_slice(g, ints(tuple(left for left, _ in paddings)), ints(x._shape_tuple())),)


reshape = differentiable(lambda x, shape: _reshape(x, ints(shape)), 1, _to_shape_of_operand)
expand_dims = differentiable(lambda x, axis: _expand_dims(x, ints(axis)), 1, _to_shape_of_operand)
squeeze = differentiable(lambda x, axes: _squeeze(x, list(axes)), 1, _to_shape_of_operand)
transpose = differentiable(_permuted, 1, _permuted_back)
broadcast = differentiable(
    lambda x, shape: _broadcast(x, ints(shape)), 1, lambda args, _needed, _y, g: (sum_to(g, args[0]),)
)
strided_slice = differentiable(_sliced, 1, _sliced_back)
"""(x, axis, start, stop, step, whether to remove the axis)."""
pad = differentiable(_padded, 1, _padded_back)
"""(x, paddings, value): the value is a constant."""


def concat(xs: list[Raw], axis: int) -> Raw:
    """Of two arrays or more."""
    if followed(xs) is None:
        return _concat(xs, ints(axis))
    sizes = ints(tuple([x._shape_tuple()[axis] for x in xs]))
    return record(lambda: _concat(xs, ints(axis)), xs, lambda g: _split_sizes(g, sizes, ints(axis), len(xs)))


def stack(xs: list[Raw], axis: int) -> Raw:
    """On a new axis."""
    if followed(xs) is None:
        return _pack(xs, axis)
    return record(lambda: _pack(xs, axis), xs, lambda g: _unpack(g, len(xs), axis))


def split(x: Raw, axis: int, sizes: Shape) -> Sequence[Raw]:
    """Into two parts or more."""

    def parts() -> Sequence[Raw]:
        return _split_sizes(x, ints(sizes), ints(axis), len(sizes))

    return parts() if followed([x]) is None else record(parts, [x], lambda *gs: [_concat(list(gs), ints(axis))])


def unstack(x: Raw, axis: int, size: int) -> Sequence[Raw]:
    """All indices of an axis that is not empty."""
    if followed([x]) is None:
        return _unpack(x, size, axis)
    return record(lambda: _unpack(x, size, axis), [x], lambda *gs: [_pack(list(gs), axis)])


# -- reductions: (x, axes), which are removed


def _spread(x: Raw, axes: Shape, g: Raw) -> Raw:
    shape = x._shape_tuple()
    if axes != tuple(range(len(axes))):
        g = _reshape(g, ints(tuple(1 if i in axes else n for i, n in enumerate(shape))))
    return _broadcast(g, ints(shape))


def _mean_back(args: Args, _needed: Needed, _y: Raw, g: Raw) -> Sequence[Raw]:
    x, axes = args
    shape = x._shape_tuple()
    count = max(math.prod(shape[i] for i in axes), 1)
    return (_spread(x, axes, _div(g, like(g, count))),)


def _sum_back(args: Args, _needed: Needed, _y: Raw, g: Raw) -> Sequence[Raw]:
    x, axes = args
    return (_spread(x, axes, g),)


sum_over = differentiable(lambda x, axes: _sum(x, ints(axes)), 1, _sum_back)
mean_over = differentiable(lambda x, axes: _mean(x, ints(axes)), 1, _mean_back)


# -- products


def _bias_add_backward(_args: Args, needed: Needed, _y: Raw, g: Raw) -> Sequence[Raw | None]:
    return g if needed[0] else None, _bias_add_back(g) if needed[1] else None


bias_add = differentiable(_bias_add, 2, _bias_add_backward)
"""(..., out) + (out)."""


# -- softmax over the last axis


def _softmax_back(args: Args, _needed: Needed, y: Raw, g: Raw) -> Sequence[Raw]:
    last = ints((len(args[0]._shape_tuple()) - 1,))
    return (_mul(_sub(g, _sum_keeping(_mul(g, y), last)), y),)


def _log_softmax_back(args: Args, _needed: Needed, y: Raw, g: Raw) -> Sequence[Raw]:
    last = ints((len(args[0]._shape_tuple()) - 1,))
    return (_sub(g, _mul(_exp(y), _sum_keeping(g, last))),)


softmax = differentiable(_softmax, 1, _softmax_back)
log_softmax = differentiable(_log_softmax, 1, _log_softmax_back)
