"""Convolutions as modules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rf import init
from rf._core import Tensor
from rf._dim import Dim
from rf._errors import DimError
from rf.nn.linear import in_side
from rf.nn.module import Module
from rf.nn.parameter import Parameter
from rf.ops.conv import Padding, conv, transposed_conv

__all__ = ["Conv1d", "Conv2d", "Conv3d", "TransposedConv1d", "TransposedConv2d", "TransposedConv3d"]

FilterSize = int | Dim | Sequence[int | Dim]


def _filter_dims(filter_size: FilterSize, n: int, what: str) -> tuple[Dim, ...]:
    sizes = [filter_size] * n if isinstance(filter_size, (int, Dim)) else list(filter_size)
    if len(sizes) != n:
        raise DimError(f"{what}: filter_size={filter_size!r} needs one size, or one for each of the {n} spatial dims")
    return tuple(s if isinstance(s, Dim) else Dim(s, name=f"filter-dim{i}") for i, s in enumerate(sizes))


class _Conv(Module):
    nd: int

    def __init__(
        self,
        in_dim: Dim,
        out_dim: Dim,
        filter_size: FilterSize,
        *,
        padding: Padding | Sequence[Padding],
        strides: int | Sequence[int] | None = None,
        dilation_rate: int | Sequence[int] | None = None,
        groups: int | None = None,
        with_bias: bool = True,
    ) -> None:
        """
        :param in_dim: static; channels of the source.
        :param out_dim: static; channels of the result, its feature dim.
        :param filter_size: one size, or one for each spatial dim.
        :param padding: "valid", "same", or an int for both sides; see `rf.conv`.
        :param strides: default 1.
        :param dilation_rate: default 1.
        :param groups: channels are convolved in so many separate groups.
        :param with_bias: whether there is a bias.
        """
        super().__init__()
        self.in_dim = in_dim
        self.out_dim = out_dim
        self.filter_size = _filter_dims(filter_size, self.nd, type(self).__name__)
        self.padding = padding
        self.strides = strides
        self.dilation_rate = dilation_rate
        self.groups = groups or 1
        if in_dim.get_dim_value() % self.groups or out_dim.get_dim_value() % self.groups:
            raise DimError(f"{type(self).__name__}: groups={groups} must divide {in_dim!r} and {out_dim!r}")
        group_dim = in_dim if self.groups == 1 else in_dim.div_left(self.groups)
        self.filter_in_dim = in_side(group_dim, out_dim)
        self.filter = Parameter((out_dim, self.filter_in_dim, *self.filter_size), initial=init.Glorot())
        self.with_bias = with_bias
        self.bias = Parameter((out_dim,), initial=0.0) if with_bias else None

    def _call(self, source: Tensor, in_dims: Sequence[Dim], out_dims: Sequence[Dim] | None) -> tuple[Tensor, list[Dim]]:
        if len(in_dims) != self.nd:
            raise DimError(f"{type(self).__name__}: needs {self.nd} spatial dims, got {list(in_dims)}")
        return conv(
            source,
            in_dim=self.in_dim,
            out_dim=self.out_dim,
            in_spatial_dims=in_dims,
            out_spatial_dims=out_dims,
            filter=self.filter,
            filter_size=self.filter_size,
            padding=self.padding,
            strides=self.strides,
            dilation_rate=self.dilation_rate,
            groups=self.groups,
            bias=self.bias,
        )


class _TransposedConv(Module):
    nd: int

    def __init__(
        self,
        in_dim: Dim,
        out_dim: Dim,
        filter_size: FilterSize,
        *,
        padding: Padding | Sequence[Padding],
        remove_padding: int | Sequence[int] = 0,
        output_padding: int | Sequence[int | None] | None = None,
        strides: int | Sequence[int] | None = None,
        with_bias: bool = True,
    ) -> None:
        """
        :param in_dim: static; channels of the source.
        :param out_dim: static; channels of the result, its feature dim.
        :param filter_size: one size, or one for each spatial dim.
        :param padding: see `rf.transposed_conv`.
        :param remove_padding: frames to cut on both sides.
        :param output_padding: see `rf.calc_transposed_conv_out_length`.
        :param strides: default: the filter size.
        :param with_bias: whether there is a bias.
        """
        super().__init__()
        self.in_dim = in_dim
        self.out_dim = out_dim
        self.filter_size = _filter_dims(filter_size, self.nd, type(self).__name__)
        self.padding = padding
        self.remove_padding = remove_padding
        self.output_padding = output_padding
        self.strides = strides
        self.filter_in_dim = in_side(in_dim, out_dim)
        self.filter = Parameter((self.filter_in_dim, out_dim, *self.filter_size), initial=init.Glorot())
        self.with_bias = with_bias
        self.bias = Parameter((out_dim,), initial=0.0) if with_bias else None

    def _call(self, source: Tensor, in_dims: Sequence[Dim], out_dims: Sequence[Dim] | None) -> tuple[Tensor, list[Dim]]:
        if len(in_dims) != self.nd:
            raise DimError(f"{type(self).__name__}: needs {self.nd} spatial dims, got {list(in_dims)}")
        return transposed_conv(
            source,
            in_dim=self.in_dim,
            out_dim=self.out_dim,
            in_spatial_dims=in_dims,
            out_spatial_dims=out_dims,
            filter=self.filter,
            filter_size=self.filter_size,
            padding=self.padding,
            remove_padding=self.remove_padding,
            output_padding=self.output_padding,
            strides=self.strides,
            bias=self.bias,
        )


class _Call1d(Module):
    _call: Any

    def __call__(
        self, source: Tensor, *, in_spatial_dim: Dim, out_spatial_dim: Dim | None = None
    ) -> tuple[Tensor, Dim]:
        """
        :param source: {..., in, in_spatial}. Its padding counts as zeros, whatever it holds.
        :param in_spatial_dim: to convolve over.
        :param out_spatial_dim: default: made by dim math; a dim without sizes takes these over.
        :returns: ({..., out, out_spatial}, out_spatial_dim).
        """
        out_dims = None if out_spatial_dim is None else (out_spatial_dim,)
        out, (dim,) = self._call(source, (in_spatial_dim,), out_dims)
        return out, dim


class _CallNd(Module):
    _call: Any

    def __call__(
        self, source: Tensor, *, in_spatial_dims: Sequence[Dim], out_spatial_dims: Sequence[Dim] | None = None
    ) -> tuple[Tensor, list[Dim]]:
        """
        :param source: {..., in, *in_spatial}. Its padding counts as zeros, whatever it holds.
        :param in_spatial_dims: to convolve over.
        :param out_spatial_dims: default: made by dim math; dims without sizes take these over.
        :returns: ({..., out, *out_spatial}, out_spatial_dims).
        """
        return self._call(source, in_spatial_dims, out_spatial_dims)


class Conv1d(_Call1d, _Conv):
    """Convolution over one dim; see `rf.conv`. Parameters: `filter` {out, in / groups, size}, Glorot; `bias` {out},
    zeros.
    """

    nd = 1


class Conv2d(_CallNd, _Conv):
    """Convolution over two dims; see `Conv1d`."""

    nd = 2


class Conv3d(_CallNd, _Conv):
    """Convolution over three dims; see `Conv1d`."""

    nd = 3


class TransposedConv1d(_Call1d, _TransposedConv):
    """Transposed convolution over one dim; see `rf.transposed_conv`. Parameters: `filter` {in, out, size}; `bias`
    {out}.
    """

    nd = 1


class TransposedConv2d(_CallNd, _TransposedConv):
    """Transposed convolution over two dims; see `TransposedConv1d`."""

    nd = 2


class TransposedConv3d(_CallNd, _TransposedConv):
    """Transposed convolution over three dims; see `TransposedConv1d`."""

    nd = 3
