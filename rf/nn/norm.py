"""Normalization: over features of one frame, over groups, over a whole batch, and over any dims."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rf._core import Tensor
from rf._dim import Dim, as_dims
from rf._errors import DimError, RfError
from rf.nn.module import Module
from rf.nn.parameter import Parameter
from rf.ops.batch_norm import batch_norm_apply, batch_norm_of_batch
from rf.ops.dims import num_elements_of_shape
from rf.ops.elementwise import clip_by_value, rsqrt, squared_difference
from rf.ops.normalize import layer_norm, rms_norm
from rf.ops.reduce import reduce_mean
from rf.ops.shape import merge_dims, split_dims
from rf.run_ctx import get_run_ctx

__all__ = [
    "BatchNorm",
    "GroupNorm",
    "GroupNormSpatial",
    "LayerNorm",
    "Normalize",
    "RMSNorm",
    "batch_norm_distributed_default",
    "moments",
    "normalize",
]


def moments(
    x: Tensor,
    axis: Dim | Sequence[Dim],
    *,
    use_mask: bool = True,
    correction: int | float | Tensor = 0,
    distributed: bool = False,
) -> tuple[Tensor, Tensor]:
    """Mean and variance over `axis`: {..., axis} -> {...}, {...}.

    :param x: float.
    :param axis: one dim or several.
    :param use_mask: count only valid frames. Over no frames both are 0.
    :param correction: the variance is the sum of squares divided by (number of values - correction), 0 if that is not
        positive.
    :param distributed: over processes too; not available, raises RfError.
    """
    _check_not_distributed("moments", distributed)
    if use_mask:
        x = _without_padding(x, axis)
    mean = reduce_mean(x, axis=axis, use_mask=use_mask)
    variance = reduce_mean(squared_difference(x, mean), axis=axis, use_mask=use_mask)
    if isinstance(correction, Tensor) or correction != 0:
        n = num_elements_of_shape(as_dims(axis), use_mask=use_mask, device=x.device)
        if isinstance(n, Tensor) or isinstance(correction, Tensor):
            variance = variance * (n / clip_by_value(n - correction, 1))  # type: ignore[operator]
        else:
            variance = variance * (n / (n - correction) if n > correction else 0.0)
    return mean, variance


def normalize(a: Tensor, *, axis: Dim | Sequence[Dim], epsilon: float = 1e-6) -> Tensor:
    """(a - mean) / sqrt(variance + epsilon) over the valid frames of `axis`: {..., axis} -> {..., axis}."""
    a = _without_padding(a, axis)
    mean, variance = moments(a, axis)
    return (a - mean) * rsqrt(variance + epsilon)


def _without_padding(x: Tensor, axis: Dim | Sequence[Dim]) -> Tensor:
    """0 in the padding that a mean over `axis` leaves out: NaN there would reach the gradient of that mean."""
    axes = as_dims(axis)
    masked = [d for d in x.dims if d.need_masking() and (d in axes or any(s in axes for s in d.base.size_dims))]
    return x.copy_masked(0.0, dims=masked) if masked else x


class LayerNorm(Module):
    """Zero mean and unit variance over the features of a frame: {..., in} -> {..., in}.

    y = (x - mean(x)) / sqrt(variance(x) + eps) * scale + bias. Parameters: `scale` {in} ones, `bias` {in} zeros.
    Source: Ba et al. 2016, arXiv:1607.06450; numerics of torch.nn.LayerNorm, whose eps is 1e-5.
    """

    def __init__(self, in_dim: Dim | Sequence[Dim], *, eps: float = 1e-6, with_bias: bool = True) -> None:
        """
        :param in_dim: one static dim or several, over which statistics are taken jointly.
        :param eps: added to the variance.
        :param with_bias: whether there is a bias.
        """
        super().__init__()
        self.in_dim = in_dim
        self.eps = eps
        self._in_dims = as_dims(in_dim)
        self.scale = Parameter(self._in_dims, initial=1.0)
        self.bias = Parameter(self._in_dims, initial=0.0) if with_bias else None

    def __call__(self, x: Tensor) -> Tensor:
        """
        :param x: {..., in}.

        Raises DimError when x lacks `in_dim`.
        """
        return layer_norm(x, self.scale, self.bias, self._in_dims, self.eps)


class RMSNorm(Module):
    """Unit root mean square over the features of a frame: {..., in} -> {..., in}.

    y = x / sqrt(mean(x^2) + eps) * scale (+ bias). Parameters: `scale` {in} ones, `bias` {in} zeros if wanted.
    Source: Zhang and Sennrich 2019, arXiv:1910.07467.
    """

    def __init__(self, in_dim: Dim | Sequence[Dim], *, eps: float = 1e-6, with_bias: bool = False) -> None:
        """See `LayerNorm`."""
        super().__init__()
        self.in_dim = in_dim
        self.eps = eps
        self._in_dims = as_dims(in_dim)
        self.scale = Parameter(self._in_dims, initial=1.0)
        self.bias = Parameter(self._in_dims, initial=0.0) if with_bias else None

    def __call__(self, x: Tensor) -> Tensor:
        """
        :param x: {..., in}.

        Raises DimError when x lacks `in_dim`.
        """
        return rms_norm(x, self.scale, self.bias, self._in_dims, self.eps)


class _GroupNorm(Module):
    def __init__(self, in_dim: Dim, *, num_groups: int | Dim, eps: float = 1e-6) -> None:
        """
        :param in_dim: static, divided into `num_groups` groups of consecutive channels.
        :param num_groups: must divide the size of `in_dim`.
        :param eps: added to the variance.
        """
        super().__init__()
        self.in_dim = in_dim
        self.num_groups = num_groups if isinstance(num_groups, Dim) else Dim(num_groups, name="groups")
        self.group_dim = in_dim.div_left(self.num_groups)
        self.eps = eps
        self.scale = Parameter((in_dim,), initial=1.0)
        self.bias = Parameter((in_dim,), initial=0.0)

    def _normalize(self, x: Tensor, spatial_dims: tuple[Dim, ...]) -> Tensor:
        if self.in_dim not in x.dims:
            raise DimError(f"{type(self).__name__}: the input {x!r} has no dim {self.in_dim!r}")
        y = split_dims(x, axis=self.in_dim, dims=(self.num_groups, self.group_dim))
        y = normalize(y, axis=(*spatial_dims, self.group_dim), epsilon=self.eps)
        y, _ = merge_dims(y, dims=(self.num_groups, self.group_dim), out_dim=self.in_dim)
        return y * self.scale + self.bias


class GroupNorm(_GroupNorm):
    """Zero mean and unit variance over each group of channels of a frame: {..., in} -> {..., in}.

    Statistics are of one frame, so no frame depends on another. For those of the paper, which include the spatial dims,
    use `GroupNormSpatial`. Parameters: `scale` {in} ones, `bias` {in} zeros.
    """

    def __call__(self, x: Tensor) -> Tensor:
        """
        :param x: {..., in}.

        Raises DimError when x lacks `in_dim`.
        """
        return self._normalize(x, ())


class GroupNormSpatial(_GroupNorm):
    """Zero mean and unit variance over each group of channels and all valid frames: {..., spatial, in} -> {...,
    spatial, in}.

    Parameters: `scale` {in} ones, `bias` {in} zeros. Source: Wu and He 2018, arXiv:1803.08494; numerics of
    torch.nn.GroupNorm.
    """

    def __call__(self, x: Tensor, *, spatial_dim: Dim | Sequence[Dim]) -> Tensor:
        """
        :param x: {..., spatial, in}.
        :param spatial_dim: one dim or several; their padding does not count.

        Raises DimError when x lacks one of the dims.
        """
        return self._normalize(x, as_dims(spatial_dim))


class BatchNorm(Module):
    """Zero mean and unit variance of each feature over all valid frames of the batch: {..., in} -> {..., in}.

    In training, mean and (biased) variance are those of the batch, and the running ones follow: running = running +
    momentum * (batch - running). Otherwise the running ones are used. y = (x - mean) / sqrt(variance + eps) * gamma +
    beta. What lies in the padding matters neither for values nor for gradients.

    Parameters: `running_mean`, `running_variance` {in}, auxiliary; `gamma` {in} ones and `beta` {in} zeros if `affine`.
    Source: Ioffe and Szegedy 2015, arXiv:1502.03167. torch.nn.BatchNorm1d keeps the unbiased variance as the running
    one.
    """

    def __init__(
        self,
        in_dim: Dim,
        *,
        affine: bool = True,
        momentum: float = 0.1,
        eps: float = 1e-3,
        track_running_stats: bool = True,
        use_mask: bool | None = None,
        distributed: bool | None = None,
    ) -> None:
        """
        :param in_dim: static.
        :param affine: whether there are gamma and beta.
        :param momentum: weight of the batch in the running statistics.
        :param eps: added to the variance.
        :param track_running_stats: without running statistics those of the batch are used always.
        :param use_mask: whether only valid frames count; default True.
        :param distributed: over processes too; not available, True raises RfError.
        """
        super().__init__()
        _check_not_distributed("BatchNorm", bool(distributed))
        self.in_dim = in_dim
        self.use_mask = use_mask is None or use_mask
        self.momentum = momentum
        self.eps = eps
        self.running_mean = self.running_variance = None
        if track_running_stats:
            self.running_mean = Parameter((in_dim,), auxiliary=True, initial=0.0)
            self.running_variance = Parameter((in_dim,), auxiliary=True, initial=1.0)
        self.gamma = Parameter((in_dim,), initial=1.0) if affine else None
        self.beta = Parameter((in_dim,), initial=0.0) if affine else None

    def __call__(self, source: Tensor) -> Tensor:
        """
        :param source: {..., in}, float.

        Raises DimError when the source lacks `in_dim`.
        """
        mean, variance = self.running_mean, self.running_variance
        if mean is not None and variance is not None:
            if not get_run_ctx().is_train_flag_enabled(func=BatchNorm.__call__):
                return batch_norm_apply(source, mean, variance, self.gamma, self.beta, self.in_dim, self.eps)
        out, batch_mean, batch_variance = batch_norm_of_batch(
            source, self.gamma, self.beta, self.in_dim, self.use_mask, self.eps
        )
        if mean is not None and variance is not None:
            mean.move_toward(batch_mean, self.momentum)
            variance.move_toward(batch_variance, self.momentum)
        return out


class Normalize(Module):
    """`normalize`, then * scale + bias. Parameters: `scale` ones, `bias` zeros, over `param_dims`."""

    def __init__(
        self, *, param_dims: Dim | Sequence[Dim], epsilon: float = 1e-6, scale: bool = True, bias: bool = True
    ) -> None:
        """
        :param param_dims: dims of scale and bias.
        :param epsilon: added to the variance.
        :param scale: whether there is a scale.
        :param bias: whether there is a bias.
        """
        super().__init__()
        self.epsilon = epsilon
        self.scale = Parameter(as_dims(param_dims), initial=1.0) if scale else None
        self.bias = Parameter(as_dims(param_dims), initial=0.0) if bias else None

    def __call__(self, a: Tensor, *, axis: Dim | Sequence[Dim]) -> Tensor:
        """
        :param a: {..., axis}.
        :param axis: one dim or several; their padding does not count.
        """
        a = normalize(a, axis=axis, epsilon=self.epsilon)
        a = a if self.scale is None else a * self.scale
        return a if self.bias is None else a + self.bias


def batch_norm_distributed_default() -> bool:
    """Whether BatchNorm takes statistics over all processes unless told otherwise: False."""
    return False


def _check_not_distributed(name: str, distributed: Any) -> None:
    if distributed:
        raise RfError(f"{name}: distributed=True is not available")
