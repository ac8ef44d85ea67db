"""Normalization on TensorFlow: each kernel is followed back as a whole, by the formula for it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from rf.backend import Raw, Shape
from rf.backends._tensorflow_fast import OtherKernels, fast, followed, ints, like, record
from rf.backends._tensorflow_ops import sum_to

_add, _sub, _mul, _div, _rsqrt = fast("AddV2"), fast("Sub"), fast("Mul"), fast("RealDiv"), fast("Rsqrt")
_mean, _sum = fast("Mean", keep_dims=True), fast("Sum", keep_dims=True)
_select, _reshape, _broadcast = fast("SelectV2"), fast("Reshape"), fast("BroadcastTo")

Backward = Callable[[Raw], Sequence[Raw | None]]


class NormKernels(OtherKernels):
    """Mixed into `rf.backends.tensorflow.TensorFlowBackend`."""

    def layer_norm(self, x: Raw, scale: Raw | None, bias: Raw | None, num_axes: int, eps: float) -> Raw:
        return _Normalized(x, scale, bias, self._last_axes(x, num_axes), eps, centered=True).result()

    def rms_norm(self, x: Raw, scale: Raw | None, bias: Raw | None, num_axes: int, eps: float) -> Raw:
        return _Normalized(x, scale, bias, self._last_axes(x, num_axes), eps, centered=False).result()

    def _last_axes(self, x: Raw, num: int) -> Raw:
        rank = len(self.shape_of(x))
        return ints(tuple(range(rank - num, rank)))

    def batch_norm_of_batch(
        self, x: Raw, mask: Raw | None, gamma: Raw | None, beta: Raw | None, axes: Shape, eps: float
    ) -> tuple[Raw, Raw, Raw]:
        shape = self.shape_of(x)
        if mask is None:
            count = like(x, max(1, math.prod(shape[a] for a in axes)))
        else:
            mask_shape = self.shape_of(mask)
            count = _sum(self.cast(mask, self.dtype_of(x)), ints(tuple(range(len(mask_shape)))))
            repeats = math.prod(shape[a] for a in axes if mask_shape[a] == 1)
            count = self.maximum(count if repeats == 1 else _mul(count, like(x, repeats)), like(x, 1))
        return _BatchNormalized(x, mask, gamma, beta, count, axes, eps).results()


class _Normalized:
    """(x - mean) / sqrt(mean of the squares of that + eps) * scale + bias, without the mean unless `centered`."""

    def __init__(self, x: Raw, scale: Raw | None, bias: Raw | None, axes: Raw, eps: float, *, centered: bool) -> None:
        self.x, self.scale, self.bias, self.axes, self.eps, self.centered = x, scale, bias, axes, eps, centered

    def result(self) -> Raw:
        inputs = [raw for raw in (self.x, self.scale, self.bias) if raw is not None]
        return self._forward() if followed(inputs) is None else record(self._forward, inputs, self._backward)

    def _forward(self) -> Raw:
        x = _sub(self.x, _mean(self.x, self.axes)) if self.centered else self.x
        self.factor = _rsqrt(_add(_mean(_mul(x, x), self.axes), like(x, self.eps)))
        y = self.normalized = _mul(x, self.factor)
        y = y if self.scale is None else _mul(y, self.scale)
        return y if self.bias is None else _add(y, self.bias)

    def _backward(self, g: Raw) -> list[Raw]:
        """With n = x * factor: factor * (g - mean(g) - n * mean(g * n))."""
        direct = g if self.scale is None else _mul(g, self.scale)
        out = _mul(self.normalized, _mean(_mul(direct, self.normalized), self.axes))
        out = _sub(_sub(direct, _mean(direct, self.axes)) if self.centered else direct, out)
        gradients = [_mul(out, self.factor)]
        if self.scale is not None:
            gradients.append(sum_to(_mul(g, self.normalized), self.scale))
        if self.bias is not None:
            gradients.append(sum_to(g, self.bias))
        return gradients


class _BatchNormalized:
    """See `rf._backend_nn.NeuralNetKernels.batch_norm_of_batch`. `count`: of the unmasked entries, 1 at least."""

    def __init__(
        self, x: Raw, mask: Raw | None, gamma: Raw | None, beta: Raw | None, count: Raw, axes: Shape, eps: float
    ) -> None:
        self.x, self.mask, self.gamma, self.beta, self.count, self.eps = x, mask, gamma, beta, count, eps
        self.axes = ints(tuple(axes))

    def results(self) -> tuple[Raw, Raw, Raw]:
        self.inputs = [raw for raw in (self.x, self.gamma, self.beta) if raw is not None]
        if followed(self.inputs) is None:
            return self._forward()
        return record(self._forward, self.inputs, self._backward, self._backward_of_mean, self._backward_of_variance)

    def _masked(self, x: Raw) -> Raw:
        return x if self.mask is None else _select(self.mask, x, like(x, 0))

    def _forward(self) -> tuple[Raw, Raw, Raw]:
        x = self._masked(self.x)
        mean = _div(_sum(x, self.axes), self.count)
        x = self.centered = self._masked(_sub(x, mean))
        variance = _div(_sum(_mul(x, x), self.axes), self.count)
        self.factor = _rsqrt(_add(variance, like(x, self.eps)))
        y = self.normalized = _mul(x, self.factor)
        y = y if self.gamma is None else _mul(y, self.gamma)
        y = y if self.beta is None else _add(y, self.beta)
        features = ints((math.prod(mean.shape),))
        return y, _reshape(mean, features), _reshape(variance, features)

    def _backward(self, g: Raw) -> list[Raw]:
        """With n = (x - mean) * factor, over the unmasked entries: factor * (g - mean(g) - n * mean(g * n))."""
        n = self.normalized
        direct = self._masked(g if self.gamma is None else _mul(g, self.gamma))
        shared = _add(_sum(direct, self.axes), _mul(n, _sum(_mul(direct, n), self.axes)))
        gradients = [self._masked(_mul(_sub(direct, _div(shared, self.count)), self.factor))]
        if self.gamma is not None:
            gradients.append(sum_to(_mul(g, n), self.gamma))
        if self.beta is not None:
            gradients.append(sum_to(g, self.beta))
        return gradients

    def _backward_of_mean(self, g: Raw) -> list[Raw | None]:
        each = _div(_reshape(g, ints(self.factor._shape_tuple())), self.count)
        return [self._masked(_broadcast(each, ints(self.x._shape_tuple()))), *self._no_more()]

    def _backward_of_variance(self, g: Raw) -> list[Raw | None]:
        each = _div(_reshape(g, ints(self.factor._shape_tuple())), self.count)
        return [_mul(self.centered, _add(each, each)), *self._no_more()]

    def _no_more(self) -> list[None]:
        return [None] * (len(self.inputs) - 1)
