"""Convolution and pooling on TensorFlow, whose kernels on the CPU want the channels last."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

from rf._backend_nn import dtypes_lowest
from rf.backend import Raw, Shape
from rf.backends import _tensorflow_ops as ops
from rf.backends._tensorflow_fast import Needed, OtherKernels, differentiable, fast, ints, like
from rf.backends._tensorflow_matmul import matmul

Pairs = tuple[tuple[int, int], ...]

_conv3d = fast("Conv3D", "strides", padding="VALID", data_format="NDHWC")
_conv2d_back = fast("Conv2DBackpropInput", "strides", padding="VALID", data_format="NHWC")
_conv3d_back = fast("Conv3DBackpropInputV2", "strides", padding="VALID", data_format="NDHWC")
_max_pool = fast("MaxPool", "ksize", "strides", padding="VALID", data_format="NHWC")
_avg_pool = fast("AvgPool", "ksize", "strides", padding="VALID", data_format="NHWC")
_maximum = fast("Maximum")


class ConvKernels(OtherKernels):
    """Mixed into `rf.backends.tensorflow.TensorFlowBackend`."""

    def conv(
        self, x: Raw, filter: Raw, bias: Raw | None, strides: Shape, paddings: Pairs, dilations: Shape, groups: int
    ) -> Raw:
        n = len(strides)
        shape = self.shape_of(x)
        batch, channels, space = shape[: -n - 1], shape[-n - 1], shape[-n:]
        num_out, per_group, *size = self.shape_of(filter)
        out = _out_space(space, tuple(size), strides, paddings, dilations)
        num = math.prod(batch)
        if 0 in (num, *out):
            return self.full((*batch, num_out, *out), 0, self.dtype_of(x), None)
        plain = all(d == 1 for d in dilations)
        depthwise = per_group == 1 and groups == channels and len(set(strides)) == 1
        if plain and n <= 2 and (groups == 1 or depthwise):
            kernel = _conv2d if groups == 1 else _depthwise
            y = self._conv_by_kernel(kernel, x, filter, bias, out, strides, paddings)
            return ops.reshape(y, (*batch, num_out, *out)) if n == 1 or len(batch) != 1 else y
        # (num, space..., channels), (size..., channels / groups, out)
        x = ops.transpose(ops.reshape(x, (num, channels, *space)), (0, *range(2, n + 2), 1))
        if any(map(any, paddings)):
            x = ops.pad(x, ((0, 0), *paddings, (0, 0)), like(x, 0))
        w = ops.transpose(filter, (*range(2, n + 2), 1, 0))
        if plain and groups == 1:
            y = _conv3d(x, w, [1, *strides, 1])
        else:
            y = self._conv_by_frames(x, w, out, strides, dilations, groups)
        if bias is not None:
            y = ops.bias_add(y, bias)
        y = ops.transpose(ops.reshape(y, (num, *out, num_out)), (0, n + 1, *range(1, n + 1)))
        return y if len(batch) == 1 else ops.reshape(y, (*batch, num_out, *out))

    def _conv_by_kernel(
        self, kernel: Any, x: Raw, filter: Raw, bias: Raw | None, out: Shape, strides: Shape, paddings: Pairs
    ) -> Raw:
        """Over one or two spatial dims, by a kernel for two: -> (num, out channels, two spatial sizes)."""
        n = len(strides)
        shape = self.shape_of(x)
        num_out, per_group, *size = self.shape_of(filter)
        channels, space = shape[-n - 1], shape[-n:]
        x = ops.reshape(x, (math.prod(shape[: -n - 1]), channels, *_two(space))) if n == 1 or len(shape) != 4 else x
        x = ops.transpose(x, (0, 2, 3, 1))
        w = ops.transpose(filter, (*range(2, n + 2), 1, 0))
        if n == 1 or kernel is _depthwise:
            sides = (channels, num_out // channels) if kernel is _depthwise else (per_group, num_out)
            w = ops.reshape(w, (*_two(tuple(size)), *sides))
        same = paddings == tuple(_same_padding(m, k, s) for m, k, s in zip(space, size, strides))
        if not same and any(map(any, paddings)):
            x = ops.pad(x, ((0, 0), *((0, 0) for _ in range(2 - n)), *paddings, (0, 0)), like(x, 0))
        # (Of two strides, one for an axis of length 1 may be any; the depthwise kernel wants equal ones.)
        steps = (strides[0],) * 2 if kernel is _depthwise else _two(strides)
        y = kernel(x, w, (1, *steps, 1), same)
        return ops.transpose(y if bias is None else ops.bias_add(y, bias), (0, 3, 1, 2))

    def _conv_by_frames(self, x: Raw, w: Raw, out: Shape, strides: Shape, dilations: Shape, groups: int) -> Raw:
        """As a product of matrices: for what TensorFlow has no kernel, or none with a gradient on the CPU."""
        num = self.shape_of(x)[0]
        *size, per_group, num_out = self.shape_of(w)
        taps, rows = math.prod(size), num * math.prod(out)
        windows = ops.concat(self._frames_of_windows(x, 1, tuple(size), strides, dilations, out), len(size) + 1)
        windows = ops.transpose(ops.reshape(windows, (rows, taps, groups, per_group)), (2, 0, 1, 3))
        w = ops.transpose(ops.reshape(w, (taps * per_group, groups, num_out // groups)), (1, 0, 2))
        y = matmul(ops.reshape(windows, (groups, rows, taps * per_group)), w)
        return ops.reshape(ops.transpose(y, (1, 0, 2)), (num, *out, num_out))

    def _frames_of_windows(
        self, x: Raw, first: int, size: Shape, strides: Shape, dilations: Shape, out: Shape
    ) -> list[Raw]:
        """For each position in a window, what all windows have there; the spatial axes begin at `first`."""
        lead = (0,) * first
        whole = (1 << first) - 1
        frames = []
        for at in itertools.product(*map(range, size)):
            begin = tuple(a * d for a, d in zip(at, dilations))
            end = tuple(b + (m - 1) * s + 1 for b, m, s in zip(begin, out, strides))
            bounds = (ints((*lead, *begin)), ints((*lead, *end)), ints((*(1 for _ in lead), *strides)))
            frames.append(_strided_slice(x, *bounds, whole, whole))
        return frames

    def transposed_conv(self, x: Raw, filter: Raw, bias: Raw | None, strides: Shape, edges: Pairs) -> Raw:
        n = len(strides)
        shape = self.shape_of(x)
        batch, channels, space = shape[: -n - 1], shape[-n - 1], shape[-n:]
        _, num_out, *size = self.shape_of(filter)
        num = math.prod(batch)
        lengths = tuple(
            max((m - 1) * s + k + left + right, 0) for m, s, k, (left, right) in zip(space, strides, size, edges)
        )
        if 0 in (num, *lengths):
            return self.full((*batch, num_out, *lengths), 0, self.dtype_of(x), None)
        x = ops.transpose(ops.reshape(x, (num, channels, *space)), (0, *range(2, n + 2), 1))
        missing = tuple((0, int(m == 0)) for m in space)  # TensorFlow wants one frame at least
        if any(map(any, missing)):
            x = ops.pad(x, ((0, 0), *missing, (0, 0)), like(x, 0))
        full = tuple((max(m, 1) - 1) * s + k for m, s, k in zip(space, strides, size))
        w = ops.transpose(filter, (*range(2, n + 2), 1, 0))
        if n <= 2:
            x, w = _two_spatial(x, w, n)
            y = _conv2d_back(ints((num, *_two(full), num_out)), w, x, [1, *_two(strides), 1])
        else:
            y = _conv3d_back(ints((num, *full, num_out)), w, x, [1, *strides, 1])
        y = ops.reshape(y, (num, *full, num_out))
        pads = [
            (max(left, 0), max(m + max(-left, 0) - f - max(left, 0), 0))
            for (left, _), m, f in zip(edges, lengths, full)
        ]
        if any(map(any, pads)):
            y = ops.pad(y, ((0, 0), *pads, (0, 0)), like(y, 0))
        for i, ((left, _), length) in enumerate(zip(edges, lengths)):
            start = max(-left, 0)
            if self.shape_of(y)[1 + i] != length:
                y = self.slice(y, 1 + i, start, start + length, 1)
        if bias is not None:
            y = ops.bias_add(y, bias)
        y = ops.transpose(y, (0, n + 1, *range(1, n + 1)))
        return y if len(batch) == 1 else ops.reshape(y, (*batch, num_out, *lengths))

    # -- pooling

    def max_pool(self, x: Raw, mask: Raw | None, size: Shape, strides: Shape, paddings: Pairs, dilations: Shape) -> Raw:
        dtype = self.dtype_of(x)
        low = -math.inf if "float" in dtype else dtypes_lowest(dtype)
        values = x if mask is None else ops.select(mask, x, like(x, low))
        y = self._pooled(values, "max", low, size, strides, paddings, dilations)
        if mask is None and not any(map(any, paddings)):
            return y
        count = self._valid_frames(x, mask, size, strides, paddings, dilations)
        return ops.select(self.greater(count, like(count, 0)), y, like(y, 0))

    def avg_pool(self, x: Raw, mask: Raw | None, size: Shape, strides: Shape, paddings: Pairs, dilations: Shape) -> Raw:
        values = x if mask is None else ops.select(mask, x, like(x, 0))
        y = self._pooled(values, "avg", 0, size, strides, paddings, dilations)
        if mask is None and not any(map(any, paddings)):
            return y
        count = self._valid_frames(x, mask, size, strides, paddings, dilations)
        factor = self.truediv(like(count, math.prod(size)), _maximum(count, like(count, 1)))
        return self.mul(y, self.cast(factor, self.dtype_of(y)))

    def _pooled(
        self, x: Raw, mode: str, outside: float, size: Shape, strides: Shape, paddings: Pairs, dilations: Shape
    ) -> Raw:
        """Maximum or average over windows of the last axes; positions of the padding hold `outside`."""
        n = len(size)
        shape = self.shape_of(x)
        batch, space = shape[:-n], shape[-n:]
        out = _out_space(space, size, strides, paddings, dilations)
        num = math.prod(batch)
        if 0 in (num, *out):
            return self.full((*batch, *out), 0, self.dtype_of(x), None)
        if any(map(any, paddings)):
            x = ops.pad(x, (*((0, 0),) * len(batch), *paddings), like(x, outside))
        if n <= 2 and all(d == 1 for d in dilations) and "float" in self.dtype_of(x):
            x = ops.reshape(x, (num, *_two(self.shape_of(x)[-n:]), 1))
            y = (_max_pool if mode == "max" else _avg_pool)(x, [1, *_two(size), 1], [1, *_two(strides), 1])
            return ops.reshape(y, (*batch, *out))
        frames = self._frames_of_windows(x, len(batch), size, strides, dilations, out)
        y = frames[0]
        for frame in frames[1:]:
            y = _maximum(y, frame) if mode == "max" else ops.add(y, frame)
        return y if mode == "max" else self.truediv(y, like(y, math.prod(size)))

    def _valid_frames(
        self, x: Raw, mask: Raw | None, size: Shape, strides: Shape, paddings: Pairs, dilations: Shape
    ) -> Raw:
        """How many positions of each window hold a valid frame, float32; the axes before the spatial ones may have
        length 1."""
        n = len(size)
        shape = self.shape_of(x)
        if mask is None:
            valid = self.full((*(1 for _ in shape[:-n]), *shape[-n:]), 1, "float32", None)
        else:
            valid = self.cast(self.expand(mask, (*self.shape_of(mask)[:-n], *shape[-n:])), "float32")
        mean = self._pooled(valid, "avg", 0, size, strides, paddings, dilations)
        return self.round(self.mul(mean, like(mean, math.prod(size))))


_strided_slice = fast("StridedSlice", "begin_mask", "end_mask", ellipsis_mask=0, new_axis_mask=0, shrink_axis_mask=0)


def _kernel_for_two(op: str) -> Any:
    """(x, w, strides, whether the padding is "same") -> y, channels last."""
    forward, back_x, back_w = (
        [fast(f"{op}{what}", "strides", padding=padding, data_format="NHWC") for padding in ("VALID", "SAME")]
        for what in ("", "BackpropInput", "BackpropFilter")
    )

    def backward(args: tuple[Any, ...], needed: Needed, _y: Raw, g: Raw) -> Sequence[Raw | None]:
        x, w, strides, same = args
        return (
            back_x[same](ints(x._shape_tuple()), w, g, list(strides)) if needed[0] else None,
            back_w[same](x, ints(w._shape_tuple()), g, list(strides)) if needed[1] else None,
        )

    return differentiable(lambda x, w, strides, same: forward[same](x, w, list(strides)), 2, backward)


_conv2d, _depthwise = _kernel_for_two("Conv2D"), _kernel_for_two("DepthwiseConv2dNative")


def _same_padding(length: int, size: int, stride: int) -> tuple[int, int]:
    """What TensorFlow means by "same"."""
    total = max((-(-length // stride) - 1) * stride + size - length, 0)
    return total // 2, total - total // 2


def _two(values: Shape) -> Shape:
    """One or two spatial sizes as two."""
    return tuple(values) if len(values) == 2 else (1, *values)


def _two_spatial(x: Raw, w: Raw, n: int) -> tuple[Raw, Raw]:
    return (x, w) if n == 2 else (ops.expand_dims(x, 1), ops.expand_dims(w, 0))


def _out_space(space: Shape, size: Shape, strides: Shape, paddings: Pairs, dilations: Shape) -> Shape:
    """How many windows there are."""
    return tuple(
        max((m + left + right - (k - 1) * d - 1) // s + 1, 0)
        for m, k, s, (left, right), d in zip(space, size, strides, paddings, dilations)
    )
