"""The Conformer encoder (Gulati et al. 2020, arXiv:2005.08100)."""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any

import rf
from rf import Dim, Tensor
from rf.decoder.feed_forward import FeedForward, make_activation, make_norm
from rf.encoder.base import ISeqDownsamplingEncoder
from rf.nn.build import NotSpecified
from rf.nn.pos_enc import call_pos_enc

__all__ = [
    "ConformerConvBlock",
    "ConformerConvSubsample",
    "ConformerEncoder",
    "ConformerEncoderLayer",
    "ConformerPositionwiseFeedForward",
    "conv_norm_use_mask_default",
    "make_ff",
]

Activation = Callable[[Tensor], Tensor]

_DEFAULT_OUT_DIM = Dim(512, name="conformer-enc-default-out-dim")


class ConformerPositionwiseFeedForward(FeedForward):
    """`FeedForward` with swish as activation."""

    def __init__(
        self,
        out_dim: Dim,
        *,
        ff_dim: Dim | int | type[NotSpecified] | None = NotSpecified,
        dropout: float = 0.1,
        activation: Activation | dict[str, Any] = rf.swish,
        **kwargs: Any,
    ) -> None:
        """See `FeedForward`."""
        super().__init__(out_dim, ff_dim=ff_dim, dropout=dropout, activation=activation, **kwargs)


def make_ff(*, out_dim: Dim, ff: Any, ff_dim: Any, ff_activation: Any, dropout: float) -> Any:
    """The feed-forward block of a layer.

    :param ff: type, dict, or module that is copied; `NotSpecified` for `ConformerPositionwiseFeedForward`.
    :param ff_dim: its inner dim; `NotSpecified` leaves it to the block.
    :param ff_activation: likewise.
    """
    given = {"ff_dim": ff_dim, "activation": ff_activation}
    given = {k: v for k, v in given.items() if v is not NotSpecified}
    return rf.make_module(ff, ConformerPositionwiseFeedForward, out_dim, dropout=dropout, **given)


def conv_norm_use_mask_default() -> bool:
    """Whether the batch normalization of the convolution block counts valid frames only, unless told otherwise:
    True.
    """
    return True


class ConformerConvBlock(rf.Module):
    """Linear, gated linear unit, depthwise convolution, norm, swish, linear: {..., spatial, out} -> {..., spatial,
    out}.

    Children: `positionwise_conv1`, `depthwise_conv`, `norm`, `positionwise_conv2`.
    """

    def __init__(self, out_dim: Dim, *, kernel_size: int, norm: Callable[..., Tensor]) -> None:
        """
        :param out_dim: of input and output.
        :param kernel_size: of the convolution, in frames.
        :param norm: module or function {..., out} -> {..., out}; called with `spatial_dim=` if it takes that.
        """
        super().__init__()
        self.out_dim = out_dim
        self.positionwise_conv1 = rf.Linear(out_dim, 2 * out_dim)
        self.depthwise_conv = rf.Conv1d(
            out_dim, out_dim, filter_size=kernel_size, groups=out_dim.get_dim_value(), padding="same"
        )
        self.positionwise_conv2 = rf.Linear(out_dim, out_dim)
        self.norm = norm
        self._norm_takes_spatial_dim = "spatial_dim" in inspect.signature(norm).parameters

    def __call__(self, inp: Tensor, *, spatial_dim: Dim) -> Tensor:
        """
        :param inp: {..., spatial, out}.
        :param spatial_dim: to convolve over.
        """
        x, _ = rf.gating(self.positionwise_conv1(inp), out_dim=self.out_dim)
        x, _ = self.depthwise_conv(x, in_spatial_dim=spatial_dim)
        x = self.norm(x, spatial_dim=spatial_dim) if self._norm_takes_spatial_dim else self.norm(x)
        return self.positionwise_conv2(rf.swish(x))


class ConformerConvSubsample(ISeqDownsamplingEncoder):
    """Convolutions over time and feature, which make both shorter: {..., time, in} -> {..., time / factor, out}.

    The feature dim is the second spatial dim. The output features are (what is left of the feature dim) * (channels of
    the last layer). Children: `conv_layers`.
    """

    def __init__(
        self,
        in_dim: Dim,
        *,
        out_dims: Sequence[Dim | int],
        filter_sizes: Sequence[int | tuple[int, int]],
        strides: Sequence[int | tuple[int, int]] | None = None,
        pool_sizes: Sequence[tuple[int, int] | None] | None = None,
        activation: Activation | dict[str, Any] = rf.relu,
        padding: str = "same",
    ) -> None:
        """
        :param in_dim: static.
        :param out_dims: channels of each layer.
        :param filter_sizes: of each layer, for both or (time, feature).
        :param strides: likewise; default 1.
        :param pool_sizes: of the max pooling after each layer, (time, feature); default: none.
        :param activation: after each convolution.
        :param padding: of convolutions and pooling: "same" or "valid".
        """
        super().__init__()
        n = len(out_dims)
        self.in_dim = in_dim
        self.activation = make_activation(activation)
        self.padding = padding
        self._channel_dim = Dim(1, name="dummy-input-feature")
        strides = [1] * n if strides is None else strides
        if not len(filter_sizes) == len(strides) == n or (pool_sizes is not None and len(pool_sizes) != n):
            raise rf.RfError(
                f"ConformerConvSubsample: needs one of filter_sizes, strides, pool_sizes for each of {n} layers"
            )
        self.strides = [_pair(s) for s in strides]
        self.pool_sizes = [None] * n if pool_sizes is None else [None if p is None else _pair(p) for p in pool_sizes]
        channel_dims = [
            d if isinstance(d, Dim) else Dim(d, name=f"subsample-channels{i}") for i, d in enumerate(out_dims)
        ]
        self.conv_layers: rf.ModuleList[rf.Conv2d] = rf.ModuleList(
            rf.Conv2d(before, dim, filter_size=_pair(size), strides=stride, padding=padding)
            for before, dim, size, stride in zip(
                [self._channel_dim, *channel_dims], channel_dims, filter_sizes, self.strides
            )
        )
        self._final_second_spatial_dim = in_dim
        for layer, pool in zip(self.conv_layers, self.pool_sizes):
            self._final_second_spatial_dim = self._out_dim(self._final_second_spatial_dim, layer, pool, 1)
        self.out_dim = self._final_second_spatial_dim * channel_dims[-1] if n else in_dim
        pooled = [1 if pool is None else pool[0] for pool in self.pool_sizes]
        self.downsample_factor = math.prod(s[0] for s in self.strides) * math.prod(pooled)

    def _out_dim(self, dim: Dim, layer: rf.Conv2d, pool: tuple[int, int] | None, i: int) -> Dim:
        stride = layer.strides if isinstance(layer.strides, int) or layer.strides is None else layer.strides[i]
        (dim,) = rf.make_conv_out_spatial_dims(
            [dim], filter_size=layer.filter_size[i], strides=stride or 1, padding=self.padding
        )
        if pool is not None:
            (dim,) = rf.make_conv_out_spatial_dims([dim], filter_size=pool[i], strides=pool[i], padding=self.padding)
        return dim

    def get_out_spatial_dim(self, in_spatial_dim: Dim) -> Dim:
        """The time dim of the result, by dim math."""
        for layer, pool in zip(self.conv_layers, self.pool_sizes):
            in_spatial_dim = self._out_dim(in_spatial_dim, layer, pool, 0)
        return in_spatial_dim

    def __call__(self, source: Tensor, *, in_spatial_dim: Dim) -> tuple[Tensor, Dim]:
        """
        :param source: {..., time, in}. Its padding counts as zeros, whatever it holds.
        :param in_spatial_dim: time.
        :returns: ({..., time', out}, time'). With padding "same", n frames give ceil(n / factor), so short sequences
            are no problem.
        """
        dims = [in_spatial_dim, self.in_dim]
        x = rf.expand_dim(source, self._channel_dim)
        for layer, pool in zip(self.conv_layers, self.pool_sizes):
            x, dims = layer(x, in_spatial_dims=dims)
            x = self.activation(x)
            if pool is not None:
                x, dims = rf.pool2d(x, mode="max", pool_size=pool, padding=self.padding, in_spatial_dims=dims)
        if not len(self.conv_layers):
            return rf.squeeze(x, self._channel_dim), in_spatial_dim
        channel_dim = self.conv_layers[-1].out_dim
        x, _ = rf.merge_dims(x, dims=[dims[1], channel_dim], out_dim=self.out_dim)
        x.feature_dim = self.out_dim
        return x, dims[0]


def _pair(x: int | tuple[int, int]) -> tuple[int, int]:
    return (x, x) if isinstance(x, int) else (x[0], x[1])


class ConformerEncoderLayer(rf.Module):
    """Half a feed-forward, self-attention, convolution, half a feed-forward, norm: {..., spatial, out} -> {...,
    spatial, out}.

    Each of the four blocks is x + dropout(block(norm(x))), the first and last with factor 1/2. Children: `ffn1`,
    `ffn1_layer_norm`, `self_att`, `self_att_layer_norm`, `conv_block`, `conv_layer_norm`, `ffn2`, `ffn2_layer_norm`,
    `final_layer_norm`.
    """

    def __init__(
        self,
        out_dim: Dim = _DEFAULT_OUT_DIM,
        *,
        ff: Any = NotSpecified,
        ff_dim: Any = NotSpecified,
        ff_activation: Any = NotSpecified,
        dropout: float = 0.1,
        conv_kernel_size: int = 32,
        conv_norm: Any = NotSpecified,
        conv_norm_opts: dict[str, Any] | None = None,
        num_heads: int = 4,
        self_att: Any = None,
        self_att_opts: dict[str, Any] | None = None,
        att_dropout: float = 0.1,
        norm: Any = rf.LayerNorm,
    ) -> None:
        """
        :param out_dim: of input and output.
        :param ff: feed-forward block: type, dict, or module that is copied; default `ConformerPositionwiseFeedForward`.
        :param ff_dim: its inner dim.
        :param ff_activation: its activation.
        :param dropout: probability, in training, after each block.
        :param conv_kernel_size: of the convolution, in frames.
        :param conv_norm: norm of the convolution block: type, dict or module; default `rf.BatchNorm`.
        :param conv_norm_opts: more options of it.
        :param num_heads: of the attention.
        :param self_att: type, dict, or a module, which is used as it is; default `rf.RelPosSelfAttention`.
        :param self_att_opts: more options of it.
        :param att_dropout: probability of dropping an attention weight, in training.
        :param norm: of the blocks: type, dict or module.
        """
        super().__init__()
        self.dropout = dropout
        self.dropout_broadcast = rf.dropout_broadcast_default()
        self.out_dim = out_dim
        options = {"out_dim": out_dim, "ff": ff, "ff_dim": ff_dim, "ff_activation": ff_activation, "dropout": dropout}
        self.ffn1 = make_ff(**options)
        self.ffn1_layer_norm = make_norm(norm, out_dim)
        self.ffn2 = make_ff(**options)
        self.ffn2_layer_norm = make_norm(norm, out_dim)
        if conv_norm is NotSpecified or conv_norm is None or conv_norm is rf.BatchNorm:
            conv_norm_opts = {"use_mask": conv_norm_use_mask_default(), **(conv_norm_opts or {})}
            conv_norm = rf.BatchNorm
        made_norm = rf.make_module(conv_norm, None, out_dim, overrides=conv_norm_opts)
        self.conv_block = ConformerConvBlock(out_dim, kernel_size=conv_kernel_size, norm=made_norm)
        self.conv_layer_norm = make_norm(norm, out_dim)
        dims = {"in_dim": out_dim, "proj_dim": out_dim, "key_dim_total": out_dim, "value_dim_total": out_dim}
        if isinstance(self_att, rf.Module):
            self.self_att: Any = self_att
        else:
            self.self_att = rf.make_module(
                self_att,
                rf.RelPosSelfAttention,
                **dims,
                num_heads=num_heads,
                att_dropout=att_dropout,
                overrides=self_att_opts,
            )
        self.self_att_layer_norm = make_norm(norm, out_dim)
        self.final_layer_norm = make_norm(norm, out_dim)

    def __call__(self, inp: Tensor, *, spatial_dim: Dim) -> Tensor:
        """
        :param inp: {..., spatial, out}.
        :param spatial_dim: over which to attend and convolve.
        """
        axis = self.dropout_broadcast and self.out_dim
        x = inp
        y = self.ffn1(self.ffn1_layer_norm(x))
        x = rf.dropout(y, self.dropout, axis=axis) * 0.5 + x
        y = self.self_att(self.self_att_layer_norm(x), axis=spatial_dim)
        x = rf.dropout(y, self.dropout, axis=axis) + x
        y = self.conv_block(self.conv_layer_norm(x), spatial_dim=spatial_dim)
        x = rf.dropout(y, self.dropout, axis=axis) + x
        y = self.ffn2(self.ffn2_layer_norm(x))
        x = rf.dropout(y, self.dropout, axis=axis) * 0.5 + x
        return self.final_layer_norm(x)


class ConformerEncoder(ISeqDownsamplingEncoder):
    """Input layer (subsampling), projection, dropout, Conformer layers: {..., time, in} -> {..., time', out}.

    Children: `input_layer`, `input_projection` (no bias, only if dims differ), `layers`.
    """

    def __init__(
        self,
        in_dim: Dim,
        out_dim: Dim | int = _DEFAULT_OUT_DIM,
        *,
        num_layers: int,
        input_layer: Any,
        input_embedding_scale: float | None = None,
        pos_enc: Callable[..., Tensor] | dict[str, Any] | None = None,
        input_dropout: float = 0.1,
        ff_dim: Any = NotSpecified,
        ff_activation: Any = NotSpecified,
        dropout: float = 0.1,
        conv_kernel_size: Any = NotSpecified,
        conv_norm: Any = NotSpecified,
        num_heads: int = 4,
        att_dropout: float = 0.1,
        encoder_layer: Any = None,
        encoder_layer_opts: dict[str, Any] | None = None,
        sequential: Callable[..., Any] = rf.Sequential,
    ) -> None:
        """
        :param in_dim: features of the source.
        :param out_dim: features of the layers and of the result.
        :param num_layers: number of layers.
        :param input_layer: module {..., time, in} -> ({..., time', x}, time'), such as `ConformerConvSubsample`; a type
            or dict is given `in_dim`. None for none.
        :param input_embedding_scale: factor after the projection; default 1, or sqrt of the size of `out_dim` when
            there is `pos_enc`.
        :param pos_enc: function of (spatial_dim, feat_dim, offset) whose result is added, or a dict; the attention of
            the layers knows relative positions anyway.
        :param input_dropout: probability, in training, before the layers.
        :param encoder_layer: type, dict, or a prototype that is copied; default `ConformerEncoderLayer`.
        :param encoder_layer_opts: more options of the layer.
        :param sequential: type of `layers`.

        The others are those of `ConformerEncoderLayer`.
        """
        super().__init__()
        self.in_dim = in_dim
        self.out_dim = out_dim if isinstance(out_dim, Dim) else Dim(out_dim, name="conformer-enc-out")
        self.dropout = dropout
        self.dropout_broadcast = rf.dropout_broadcast_default()
        self.input_layer = None
        if isinstance(input_layer, rf.Module):
            self.input_layer: Any = input_layer
        elif input_layer is not None:
            self.input_layer = rf.make_module(input_layer, None, in_dim)
        layer_in = in_dim if self.input_layer is None else self.input_layer.out_dim
        self.input_projection = None
        if layer_in != self.out_dim:
            self.input_projection = rf.Linear(layer_in, self.out_dim, with_bias=False)
        self.pos_enc = rf.build_from_dict(pos_enc) if isinstance(pos_enc, dict) else pos_enc
        if input_embedding_scale is None:
            input_embedding_scale = 1.0 if self.pos_enc is None else self.out_dim.get_dim_value() ** 0.5
        self.input_embedding_scale = input_embedding_scale
        self.input_dropout = input_dropout
        given = {
            "ff_dim": ff_dim,
            "ff_activation": ff_activation,
            "conv_kernel_size": conv_kernel_size,
            "conv_norm": conv_norm,
        }
        prototype = rf.make_module(
            encoder_layer,
            ConformerEncoderLayer,
            self.out_dim,
            dropout=dropout,
            num_heads=num_heads,
            att_dropout=att_dropout,
            **{k: v for k, v in given.items() if v is not NotSpecified},
            overrides=encoder_layer_opts,
        )
        self.layers = sequential(copy.deepcopy(prototype) for _ in range(num_layers))
        self.downsample_factor = getattr(self.input_layer, "downsample_factor", 1)

    def __call__(
        self, source: Tensor, *, in_spatial_dim: Dim, collected_outputs: dict[str, Tensor] | None = None
    ) -> tuple[Tensor, Dim]:
        """
        :param source: {..., time, in}. A source without `in_dim` is taken as output of the input layer.
        :param in_spatial_dim: time.
        :param collected_outputs: gets the outputs of the layers, by name.
        :returns: ({..., time', out}, time').
        """
        x, spatial_dim = source, in_spatial_dim
        if self.input_layer is not None and self.in_dim in source.dims:
            x, spatial_dim = self.input_layer(source, in_spatial_dim=in_spatial_dim)
        else:
            # Layers start with framewise parts: NaN in the padding would reach the gradients of their parameters, as 0
            # * NaN.
            x = x.copy_masked(0.0)
        if self.input_projection is not None:
            x = self.input_projection(x)
        if self.input_embedding_scale != 1:
            x = x * self.input_embedding_scale
        if self.pos_enc is not None:
            x = x + call_pos_enc(self.pos_enc, x, spatial_dim, self.out_dim, 0)
        x = rf.dropout(x, self.input_dropout, axis=self.dropout_broadcast and self.out_dim)
        return self.layers(x, spatial_dim=spatial_dim, collected_outputs=collected_outputs), spatial_dim
