"""What encoders have in common, by what they do to the length of a sequence."""

from __future__ import annotations

import rf
from rf import Dim, Tensor

__all__ = ["IEncoder", "ISeqDownsamplingEncoder", "ISeqFramewiseEncoder"]


class IEncoder(rf.Module):
    """{..., in} -> {..., out}. Attribute: `out_dim`."""

    out_dim: Dim

    def __call__(self, source: Tensor) -> Tensor:
        """Encode."""
        raise NotImplementedError


class ISeqFramewiseEncoder(rf.Module):
    """{..., spatial, in} -> {..., spatial, out}: one frame out for each frame in. Attribute: `out_dim`."""

    out_dim: Dim

    def __call__(self, source: Tensor, *, spatial_dim: Dim) -> Tensor:
        """Encode."""
        raise NotImplementedError


class ISeqDownsamplingEncoder(rf.Module):
    """{..., in_spatial, in} -> ({..., out_spatial, out}, out_spatial). Attributes: `out_dim`; `downsample_factor`,
    about how many frames become one.
    """

    out_dim: Dim
    downsample_factor: int | float

    def __call__(self, source: Tensor, *, in_spatial_dim: Dim) -> tuple[Tensor, Dim]:
        """Encode."""
        raise NotImplementedError
