"""Derived kernels of the contract that neural network modules need, written in primitives. See `rf.backend`."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy

from rf import dtypes

Raw = Any
Shape = tuple[int, ...]

if TYPE_CHECKING:

    class _Primitives:
        """`rf.backend.Backend`, which cannot be named here, as it derives from the class below."""

        def __getattr__(self, name: str) -> Any: ...

else:
    _Primitives = object


class NeuralNetKernels(_Primitives):
    """Mixed into `Backend`. A backend overrides those for which it has a fused kernel."""

    # -- attention

    def scale(self, x: Raw, factor: float) -> Raw:
        """x * factor."""
        return self.mul(x, self._like(x, factor))

    def attention_softmax(self, x: Raw, mask: Raw | None, causal: bool) -> Raw:
        """Softmax over the last axis of the scores (..., query, key), of what `mask` lets through.

        With `causal`, query i sees the keys 0..i only, besides the mask.
        """
        axis = len(self.shape_of(x)) - 1
        if causal:
            visible = self.causal_mask(x)
            mask = visible if mask is None else self.logical_and(mask, visible)
        return self.softmax(x, axis) if mask is None else self.masked_softmax(x, mask, axis)

    def dot_attention(
        self, q: Raw, k: Raw, v: Raw, mask: Raw | None, num_common: int, causal: bool, scale: float
    ) -> Raw:
        """Values, weighted by `attention_softmax` of scale * q . k: (common..., rest..., value).

        :param q: (common..., rest..., key); with `causal`, the query is the last axis of the rest.
        :param k: (common..., axis, key).
        :param v: (common..., axis, value).
        :param mask: bool, broadcasts against (common..., rest..., axis).
        """
        num_rest = len(self.shape_of(q)) - 1 - num_common
        columns = self.permute(k, (*range(num_common), num_common + 1, num_common))
        scores = self.contract(q if scale == 1 else self.scale(q, scale), columns, num_common, num_rest, 1, 1)
        return self.contract(self.attention_softmax(scores, mask, causal), v, num_common, num_rest, 1, 1)

    def causal_mask(self, x: Raw) -> Raw:
        """Bool (query, key) for the last two axes of x: whether key <= query."""
        *_, n_query, n_key = self.shape_of(x)
        device = self.device_of(x)
        mask = self.masks.get((n_query, n_key, device))
        if mask is None:
            if len(self.masks) >= 16:
                self.masks.clear()
            visible = numpy.tri(n_query, n_key, dtype=bool)
            mask = self.masks[n_query, n_key, device] = self.constant(visible, "bool", device)
        return mask

    def add_rel_shifted(self, content: Raw, position: Raw, factor: float) -> Raw:
        """(content[..., i, j] + position[..., i, j - i + (n_query - 1)]) * factor.

        :param content: (..., query, key).
        :param position: (..., query, relative position), for the relative positions -(n_query - 1) .. n_key - 1.

        By reshaping, without an index array, as in Dai et al. 2019, arXiv:1901.02860, appendix B: when the rows are one
        after the other, what is wanted of a row begins n_pos - 1 after what is wanted of the row before.
        """
        *lead, n_query, n_key = self.shape_of(content)
        if n_query == 0 or n_key == 0:
            return content
        *pos_lead, _, n_pos = self.shape_of(position)
        if n_query > 1:
            axis = len(pos_lead)
            x = self.reshape(position, (*pos_lead, n_query * n_pos))
            x = self.slice(x, axis, n_query - 1, n_query * n_pos - 1, 1)
            x = self.reshape(x, (*pos_lead, n_query, n_pos - 1))
            position = self.slice(x, axis + 1, 0, n_key, 1)
        return self.scale(self.add(content, position), factor)

    def rel_attention_softmax(self, content: Raw, position: Raw, mask: Raw | None, factor: float, causal: bool) -> Raw:
        """`attention_softmax` of `add_rel_shifted`."""
        return self.attention_softmax(self.add_rel_shifted(content, position, factor), mask, causal)

    def rope(self, x: Raw, encoding: Raw) -> Raw:
        """Rotate the pairs of neighbors (2i, 2i+1) along the last axis by angles of which `encoding` holds sines, then
        cosines.

        :param x: (..., d).
        :param encoding: (..., d), broadcasts against x.
        """
        shape = tuple(self.shape_of(x))
        axis, half = len(shape) - 1, shape[-1] // 2
        pairs = self.reshape(x, (*shape[:-1], half, 2))
        even, odd = (self.slice(pairs, axis + 1, i, i + 1, 1) for i in (0, 1))
        at = len(self.shape_of(encoding)) - 1
        sin, cos = (self.unsqueeze(e, (at + 1,)) for e in self.split(encoding, at, (half, half)))
        first = self.sub(self.mul(even, cos), self.mul(odd, sin))
        second = self.add(self.mul(odd, cos), self.mul(even, sin))
        return self.reshape(self.concat(first, second, axis + 1), shape)

    # -- normalizing. `mask` is a bool array that broadcasts against x; values of x where it is False must not matter.

    def masked_softmax(self, x: Raw, mask: Raw, axis: int) -> Raw:
        """Softmax over the unmasked entries, exactly 0 at the others; rows without any are all 0."""
        low = self._like(x, dtypes_lowest(self.dtype_of(x)))
        return self.where(mask, self.softmax(self.where(mask, x, low), axis), self._like(x, 0))

    def masked_log_softmax(self, x: Raw, mask: Raw, axis: int) -> Raw:
        """Log softmax over the unmasked entries, -inf at the others."""
        low = self._like(x, dtypes_lowest(self.dtype_of(x)))
        return self.where(mask, self.log_softmax(self.where(mask, x, low), axis), self._like(x, -math.inf))

    def layer_norm(self, x: Raw, scale: Raw | None, bias: Raw | None, num_axes: int, eps: float) -> Raw:
        """Zero mean and unit (biased) variance over the last `num_axes` axes, then * scale + bias (shaped like these
        axes)."""
        n = len(self.shape_of(x))
        axes = tuple(range(n - num_axes, n))
        centered = self.sub(x, self.unsqueeze(self.mean(x, axes), axes))
        variance = self.unsqueeze(self.mean(self.square(centered), axes), axes)
        y = self.mul(centered, self.rsqrt(self.add(variance, self._like(x, eps))))
        y = y if scale is None else self.mul(y, scale)
        return y if bias is None else self.add(y, bias)

    def rms_norm(self, x: Raw, scale: Raw | None, bias: Raw | None, num_axes: int, eps: float) -> Raw:
        """x / sqrt(mean(x^2) + eps) over the last `num_axes` axes, then * scale + bias."""
        n = len(self.shape_of(x))
        axes = tuple(range(n - num_axes, n))
        y = self.mul(x, self.rsqrt(self.add(self.unsqueeze(self.mean(self.square(x), axes), axes), self._like(x, eps))))
        y = y if scale is None else self.mul(y, scale)
        return y if bias is None else self.add(y, bias)

    # -- gating

    def glu(self, x: Raw, axis: int) -> Raw:
        """The first half of an axis times the sigmoid of the second."""
        half = self.shape_of(x)[axis] // 2
        a, b = self.split(x, axis, (half, half))
        return self.mul(a, self.sigmoid(b))

    # -- batch normalization

    def batch_norm_of_batch(
        self, x: Raw, mask: Raw | None, gamma: Raw | None, beta: Raw | None, axes: Shape, eps: float
    ) -> tuple[Raw, Raw, Raw]:
        """Normalize by mean and biased variance over `axes` of the unmasked entries; returns (y, mean, variance).

        :param x: any number of axes; the one that is not in `axes` is the feature axis.
        :param mask: bool, as many axes as x, broadcasts against it. 1 at the feature axis.
        :param gamma: broadcasts against x.
        :param beta: likewise.

        Neither y nor gradients depend on masked entries of x. Where there are no entries, mean and variance are 0.
        """
        shape = self.shape_of(x)
        if mask is None:
            count: Any = self._like(x, max(1, math.prod(shape[a] for a in axes)))
        else:
            x = self.fill_outside(x, mask, 0)
            mask_shape = self.shape_of(mask)
            repeats = math.prod(shape[a] for a in axes if mask_shape[a] == 1)
            count = self.sum(self.cast(mask, self.dtype_of(x)), tuple(range(len(mask_shape))))
            count = self.at_least(self.scale(count, repeats), 1)
        mean = self.truediv(self.sum(x, axes), count)
        x = self.sub(x, self.unsqueeze(mean, axes))
        if mask is not None:
            x = self.fill_outside(x, mask, 0)
        variance = self.truediv(self.sum(self.square(x), axes), count)
        factor = self.unsqueeze(self.rsqrt(self.add(variance, self._like(x, eps))), axes)
        y = self.mul(x, factor if gamma is None else self.mul(gamma, factor))
        return y if beta is None else self.add(y, beta), mean, variance

    def batch_norm_apply(
        self, x: Raw, mean: Raw, variance: Raw, gamma: Raw | None, beta: Raw | None, eps: float
    ) -> Raw:
        """(x - mean) / sqrt(variance + eps) * gamma + beta; all of them broadcast against x."""
        factor = self.rsqrt(self.add(variance, self._like(variance, eps)))
        y = self.mul(self.sub(x, mean), factor if gamma is None else self.mul(gamma, factor))
        return y if beta is None else self.add(y, beta)

    # -- parameters

    def move_toward(self, parameter: Raw, value: Raw, weight: float) -> Raw:
        """parameter + weight * (value - parameter), in place where the backend can; returns the array that holds it.
        Nothing of it is recorded for gradients.
        """
        with self.no_grad():
            step = self.mul(self._like(parameter, weight), self.sub(value, parameter))
            return self.assign(parameter, self.add(parameter, step))


def dtypes_lowest(dtype: str) -> float:
    """The lowest finite value of a float dtype: what stands for "smaller than anything" where -inf would make NaN."""
    if dtype == "bfloat16":
        return -3.3895313892515355e38
    return float(numpy.finfo(dtype).min) if dtypes.is_float_dtype(dtype) else int(numpy.iinfo(dtype).min)
