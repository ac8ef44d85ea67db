"""Convolution and pooling on TensorFlow, whose kernels on the CPU want the channels last."""

from __future__ import annotations

import itertools
import math

from rf._backend_nn import dtypes_lowest
from rf.backend import Raw, Shape
from rf.backends._tensorflow_fast import OtherKernels, fast, ints

Pairs = tuple[tuple[int, int], ...]

_conv2d = fast("Conv2D", "strides", padding="VALID", data_format="NHWC")
_conv3d = fast("Conv3D", "strides", padding="VALID", data_format="NDHWC")
_depthwise = fast("DepthwiseConv2dNative", "strides", padding="VALID", data_format="NHWC")
_conv2d_back = fast("Conv2DBackpropInput", "strides", padding="VALID", data_format="NHWC")
_conv3d_back = fast("Conv3DBackpropInputV2", "strides", padding="VALID", data_format="NDHWC")
_max_pool = fast("MaxPool", "ksize", "strides", padding="VALID", data_format="NHWC")
_avg_pool = fast("AvgPool", "ksize", "strides", padding="VALID", data_format="NHWC")
_matmul, _batch_matmul = fast("MatMul"), fast("BatchMatMulV2")
_transpose, _reshape, _expand_dims = fast("Transpose"), fast("Reshape"), fast("ExpandDims")
_pad, _concat, _strided = fast("PadV2"), fast("ConcatV2"), fast("StridedSlice")
_add, _maximum, _select = fast("AddV2"), fast("Maximum"), fast("SelectV2")


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
        # (num, space..., channels), (size..., channels / groups, out)
        x = _transpose(_reshape(x, ints((num, channels, *space))), ints((0, *range(2, n + 2), 1)))
        if any(map(any, paddings)):
            x = _pad(x, ints(((0, 0), *paddings, (0, 0))), self._like(x, 0))
        w = _transpose(filter, ints((*range(2, n + 2), 1, 0)))
        plain = all(d == 1 for d in dilations)
        if plain and groups == 1 and n <= 2:
            y = _conv2d(*_two_spatial(x, w, n), [1, *_two(strides), 1])
        elif plain and groups == 1:
            y = _conv3d(x, w, [1, *strides, 1])
        elif plain and per_group == 1 and groups == channels and n <= 2 and len(set(strides)) == 1:
            w = _reshape(w, ints((*size, channels, num_out // channels)))
            y = _depthwise(*_two_spatial(x, w, n), [1, strides[0], strides[0], 1])
        else:
            y = self._conv_by_frames(x, w, out, strides, dilations, groups)
        if bias is not None:
            y = _add(y, bias)
        y = _reshape(y, ints((num, *out, num_out)))
        y = _transpose(y, ints((0, n + 1, *range(1, n + 1))))
        return y if len(batch) == 1 else _reshape(y, ints((*batch, num_out, *out)))

    def _conv_by_frames(self, x: Raw, w: Raw, out: Shape, strides: Shape, dilations: Shape, groups: int) -> Raw:
        """As a product of matrices: for what TensorFlow has no kernel, or none with a gradient on the CPU."""
        num = self.shape_of(x)[0]
        *size, per_group, num_out = self.shape_of(w)
        taps, rows = math.prod(size), num * math.prod(out)
        windows = _concat(self._frames_of_windows(x, 1, tuple(size), strides, dilations, out), ints(len(size) + 1))
        windows = _transpose(_reshape(windows, ints((rows, taps, groups, per_group))), ints((2, 0, 1, 3)))
        w = _transpose(_reshape(w, ints((taps * per_group, groups, num_out // groups))), ints((1, 0, 2)))
        y = _batch_matmul(_reshape(windows, ints((groups, rows, taps * per_group))), w)
        return _reshape(_transpose(y, ints((1, 0, 2))), ints((num, *out, num_out)))

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
        x = _transpose(_reshape(x, ints((num, channels, *space))), ints((0, *range(2, n + 2), 1)))
        missing = tuple((0, int(m == 0)) for m in space)  # TensorFlow wants one frame at least
        if any(map(any, missing)):
            x = _pad(x, ints(((0, 0), *missing, (0, 0))), self._like(x, 0))
        full = tuple((max(m, 1) - 1) * s + k for m, s, k in zip(space, strides, size))
        w = _transpose(filter, ints((*range(2, n + 2), 1, 0)))
        if n <= 2:
            x, w = _two_spatial(x, w, n)
            y = _conv2d_back(ints((num, *_two(full), num_out)), w, x, [1, *_two(strides), 1])
        else:
            y = _conv3d_back(ints((num, *full, num_out)), w, x, [1, *strides, 1])
        y = _reshape(y, ints((num, *full, num_out)))
        pads = [
            (max(left, 0), max(m + max(-left, 0) - f - max(left, 0), 0))
            for (left, _), m, f in zip(edges, lengths, full)
        ]
        if any(map(any, pads)):
            y = _pad(y, ints(((0, 0), *pads, (0, 0))), self._like(y, 0))
        for i, ((left, _), length) in enumerate(zip(edges, lengths)):
            start = max(-left, 0)
            if self.shape_of(y)[1 + i] != length:
                y = self.slice(y, 1 + i, start, start + length, 1)
        if bias is not None:
            y = _add(y, bias)
        y = _transpose(y, ints((0, n + 1, *range(1, n + 1))))
        return y if len(batch) == 1 else _reshape(y, ints((*batch, num_out, *lengths)))

    # -- pooling

    def max_pool(self, x: Raw, mask: Raw | None, size: Shape, strides: Shape, paddings: Pairs, dilations: Shape) -> Raw:
        dtype = self.dtype_of(x)
        low = -math.inf if "float" in dtype else dtypes_lowest(dtype)
        values = x if mask is None else _select(mask, x, self._like(x, low))
        y = self._pooled(values, "max", low, size, strides, paddings, dilations)
        if mask is None and not any(map(any, paddings)):
            return y
        count = self._valid_frames(x, mask, size, strides, paddings, dilations)
        return _select(self.greater(count, self._like(count, 0)), y, self._like(y, 0))

    def avg_pool(self, x: Raw, mask: Raw | None, size: Shape, strides: Shape, paddings: Pairs, dilations: Shape) -> Raw:
        values = x if mask is None else _select(mask, x, self._like(x, 0))
        y = self._pooled(values, "avg", 0, size, strides, paddings, dilations)
        if mask is None and not any(map(any, paddings)):
            return y
        count = self._valid_frames(x, mask, size, strides, paddings, dilations)
        factor = self.truediv(self._like(count, math.prod(size)), _maximum(count, self._like(count, 1)))
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
            x = _pad(x, ints((*((0, 0),) * len(batch), *paddings)), self._like(x, outside))
        if n <= 2 and all(d == 1 for d in dilations) and "float" in self.dtype_of(x):
            x = _reshape(x, ints((num, *_two(self.shape_of(x)[-n:]), 1)))
            y = (_max_pool if mode == "max" else _avg_pool)(x, [1, *_two(size), 1], [1, *_two(strides), 1])
            return _reshape(y, ints((*batch, *out)))
        frames = self._frames_of_windows(x, len(batch), size, strides, dilations, out)
        y = frames[0]
        for frame in frames[1:]:
            y = _maximum(y, frame) if mode == "max" else _add(y, frame)
        return y if mode == "max" else self.truediv(y, self._like(y, math.prod(size)))

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
        return self.round(self.mul(mean, self._like(mean, math.prod(size))))


_strided_slice = fast("StridedSlice", "begin_mask", "end_mask", ellipsis_mask=0, new_axis_mask=0, shrink_axis_mask=0)


def _two(values: Shape) -> Shape:
    """One or two spatial sizes as two."""
    return tuple(values) if len(values) == 2 else (1, *values)


def _two_spatial(x: Raw, w: Raw, n: int) -> tuple[Raw, Raw]:
    return (x, w) if n == 2 else (_expand_dims(x, ints(1)), _expand_dims(w, ints(0)))


def _out_space(space: Shape, size: Shape, strides: Shape, paddings: Pairs, dilations: Shape) -> Shape:
    """How many windows there are."""
    return tuple(
        max((m + left + right - (k - 1) * d - 1) // s + 1, 0)
        for m, k, s, (left, right), d in zip(space, size, strides, paddings, dilations)
    )
