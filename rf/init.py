"""First values of parameters. Drawn from the random state of the host, so they are equal on every backend and
device.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy

from rf._core import Tensor
from rf._errors import RfError
from rf.ops.rand import random

if TYPE_CHECKING:
    from rf._dim import Dim

__all__ = ["Glorot", "He", "HeNormal", "HeUniform", "Normal", "ParamInit", "ParamInitType", "VarianceScaling"]


class ParamInit:
    """A rule for first values; assign one to `Parameter.initial`."""

    def __call__(
        self,
        dims: Sequence[Dim],
        dtype: str,
        *,
        sparse_dim: Dim | None = None,
        device: str | None = None,
        out: Tensor | None = None,
    ) -> Tensor | int | float:
        """Draw values.

        :param dims: static, in the order of the parameter.
        :param dtype: float.
        :param sparse_dim: of the result.
        :param device: where the result shall lie.
        :param out: a Tensor over `dims` that gets the values.
        :returns: a Tensor over `dims`, or a number that holds for all.
        """
        raise NotImplementedError


ParamInitType = Tensor | int | float | complex | bool | numpy.ndarray | numpy.number | ParamInit


class Normal(ParamInit):
    """Normal distribution of mean 0."""

    def __init__(self, stddev: float, *, truncated: bool = True, dtype: str | None = None) -> None:
        """
        :param stddev: of the distribution before it is truncated; positive.
        :param truncated: no values beyond two `stddev`.
        :param dtype: default: that of the parameter.
        """
        if not stddev > 0:
            raise RfError(f"init.Normal: stddev must be positive, got {stddev}")
        self.stddev = stddev
        self.truncated = truncated
        self.dtype = dtype

    def __call__(
        self,
        dims: Sequence[Dim],
        dtype: str,
        *,
        sparse_dim: Dim | None = None,
        device: str | None = None,
        out: Tensor | None = None,
    ) -> Tensor:
        """See `ParamInit`."""
        return random(
            dims,
            dtype=self.dtype or dtype,
            device=device,
            sparse_dim=sparse_dim,
            distribution="truncated_normal" if self.truncated else "normal",
            mean=0.0,
            stddev=self.stddev,
            static=True,
            out=out,
        )

    def __repr__(self) -> str:
        return f"Normal({self.stddev}, truncated={self.truncated})"


class VarianceScaling(ParamInit):
    """Variance `scale` / fan, so that the scale of activations or gradients stays the same from layer to layer.

    The fans follow from the order of the dims: {in, out} with two dims, {out, in, kernel...} with more, where a fan
    counts the positions of the kernel; with one dim both are its size.
    """

    scale = 1.0
    mode = "fan_in"
    distribution = "truncated_normal"

    def __init__(
        self,
        scale: float | None = None,
        mode: str | None = None,
        distribution: str | None = None,
        dtype: str | None = None,
    ) -> None:
        """
        :param scale: positive; for this and the others, None means the default of the class.
        :param mode: "fan_in", "fan_out" or "fan_avg".
        :param distribution: "truncated_normal" (also called "normal"; its variance is right after truncation),
            "untruncated_normal" or "uniform".
        :param dtype: default: that of the parameter.
        """
        self.scale = self.scale if scale is None else scale
        self.mode = self.mode if mode is None else mode
        self.distribution = self.distribution if distribution is None else distribution
        self.dtype = dtype
        if not self.scale > 0:
            raise RfError(f"init.{type(self).__name__}: scale must be positive, got {self.scale}")
        for value, valid in (
            (self.mode, ("fan_in", "fan_out", "fan_avg")),
            (self.distribution, ("normal", "truncated_normal", "untruncated_normal", "uniform")),
        ):
            if value not in valid:
                raise RfError(f"init.{type(self).__name__}: {value!r} is not one of {', '.join(valid)}")

    def __call__(
        self,
        dims: Sequence[Dim],
        dtype: str,
        *,
        sparse_dim: Dim | None = None,
        device: str | None = None,
        out: Tensor | None = None,
    ) -> Tensor:
        """See `ParamInit`."""
        fan_in, fan_out = _fans(dims)
        fan = {"fan_in": fan_in, "fan_out": fan_out, "fan_avg": (fan_in + fan_out) / 2}[self.mode]
        variance = self.scale / max(1.0, fan)
        options: dict[str, Any]
        if self.distribution == "uniform":
            options = {"distribution": "uniform", "bound": math.sqrt(3 * variance)}
        elif self.distribution == "untruncated_normal":
            options = {"distribution": "normal", "mean": 0.0, "stddev": math.sqrt(variance)}
        else:
            stddev = math.sqrt(variance) / _TRUNCATED_STDDEV
            options = {"distribution": "truncated_normal", "mean": 0.0, "stddev": stddev}
        return random(
            dims, dtype=self.dtype or dtype, device=device, sparse_dim=sparse_dim, static=True, out=out, **options
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}(scale={self.scale}, mode={self.mode!r}, distribution={self.distribution!r})"


_TRUNCATED_STDDEV = 0.87962566103423978
"""Standard deviation of the standard normal distribution truncated at -2 and 2."""


class Glorot(VarianceScaling):
    """Uniform with variance 2 / (fan in + fan out). Glorot and Bengio 2010, "Understanding the difficulty ..."."""

    scale = 1.0
    mode = "fan_avg"
    distribution = "uniform"


class He(VarianceScaling):
    """Truncated normal with variance 2 / fan in, for ReLU. He et al. 2015, arXiv:1502.01852."""

    scale = 2.0
    mode = "fan_in"
    distribution = "truncated_normal"


HeNormal = He


class HeUniform(He):
    """Uniform with variance 2 / fan in. See `He`."""

    distribution = "uniform"


def _fans(dims: Sequence[Dim]) -> tuple[int, int]:
    sizes = [d.get_dim_value() for d in dims]
    if len(sizes) < 2:
        return (sizes[0], sizes[0]) if sizes else (1, 1)
    if len(sizes) == 2:
        return sizes[0], sizes[1]
    kernel = math.prod(sizes[2:])
    return sizes[1] * kernel, sizes[0] * kernel
