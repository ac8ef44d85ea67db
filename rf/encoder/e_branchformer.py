"""The E-Branchformer layer (Kim et al. 2022, arXiv:2210.00077), to be used as `encoder_layer` of `ConformerEncoder`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import rf
from rf import Dim, Tensor
from rf.decoder.feed_forward import ff_dim_or, make_activation, make_norm
from rf.encoder.conformer import make_ff
from rf.nn.build import NotSpecified

__all__ = ["EBranchformerLayer", "FeedForwardConvGated", "Merge"]

_DEFAULT_OUT_DIM = Dim(512, name="conformer-enc-default-out-dim")


class EBranchformerLayer(rf.Module):
    """Half a feed-forward, self-attention beside a convolutional gate, merged, half a feed-forward, norm.

    {..., spatial, out} -> {..., spatial, out}. Children: `ffn1`, `ffn1_layer_norm`, `self_att`, `self_att_layer_norm`,
    `cgmlp`, `cgmlp_layer_norm`, `merge`, `ffn2`, `ffn2_layer_norm`, `final_layer_norm`.
    """

    def __init__(
        self,
        out_dim: Dim = _DEFAULT_OUT_DIM,
        *,
        ff: Any = NotSpecified,
        ff_dim: Any = NotSpecified,
        ff_activation: Any = NotSpecified,
        dropout: float = 0.1,
        num_heads: int = 4,
        self_att: Any = NotSpecified,
        att_dropout: float = 0.1,
        cgmlp: Any = NotSpecified,
        cgmlp_ff_dim: Any = NotSpecified,
        cgmlp_conv_kernel: int = 31,
        merge_conv_kernel: int = 3,
        norm: Any = rf.LayerNorm,
    ) -> None:
        """
        :param out_dim: of input and output.
        :param ff: feed-forward block: type, dict, or module that is copied; default `ConformerPositionwiseFeedForward`.
        :param ff_dim: its inner dim.
        :param ff_activation: its activation.
        :param dropout: probability, in training, after each block.
        :param num_heads: of the attention.
        :param self_att: type, dict, or module that is copied; default `rf.RelPosSelfAttention`.
        :param att_dropout: probability of dropping an attention weight, in training.
        :param cgmlp: type, dict, or module that is copied; default `FeedForwardConvGated`.
        :param cgmlp_ff_dim: its inner dim.
        :param cgmlp_conv_kernel: its kernel, in frames.
        :param merge_conv_kernel: kernel of the merging convolution, in frames.
        :param norm: type, dict or module.
        """
        super().__init__()
        self.out_dim = out_dim
        self.dropout = dropout
        self.dropout_broadcast = rf.dropout_broadcast_default()
        options = {"out_dim": out_dim, "ff": ff, "ff_dim": ff_dim, "ff_activation": ff_activation, "dropout": dropout}
        self.ffn1 = make_ff(**options)
        self.ffn1_layer_norm = make_norm(norm, out_dim)
        self.ffn2 = make_ff(**options)
        self.ffn2_layer_norm = make_norm(norm, out_dim)
        dims: dict[str, Any] = {
            "in_dim": out_dim,
            "proj_dim": out_dim,
            "key_dim_total": out_dim,
            "value_dim_total": out_dim,
        }
        self.self_att = rf.make_module(
            self_att, rf.RelPosSelfAttention, **dims, num_heads=num_heads, att_dropout=att_dropout
        )
        self.self_att_layer_norm = make_norm(norm, out_dim)
        given = {} if cgmlp_ff_dim is NotSpecified else {"ff_dim": cgmlp_ff_dim}
        self.cgmlp = rf.make_module(
            cgmlp, FeedForwardConvGated, out_dim, kernel_size=cgmlp_conv_kernel, dropout=dropout, **given
        )
        self.cgmlp_layer_norm = make_norm(norm, out_dim)
        self.merge = Merge(in_dim1=out_dim, in_dim2=out_dim, out_dim=out_dim, merge_conv_kernel=merge_conv_kernel)
        self.final_layer_norm = make_norm(norm, out_dim)

    def __call__(self, inp: Tensor, *, spatial_dim: Dim) -> Tensor:
        """
        :param inp: {..., spatial, out}.
        :param spatial_dim: over which to attend and convolve.
        """
        axis = self.dropout_broadcast and self.out_dim
        y = self.ffn1(self.ffn1_layer_norm(inp))
        x = rf.dropout(y, self.dropout, axis=axis) * 0.5 + inp
        att = self.self_att(self.self_att_layer_norm(x), axis=spatial_dim)
        att = rf.dropout(att, self.dropout, axis=axis)
        gated = self.cgmlp(self.cgmlp_layer_norm(x), spatial_dim=spatial_dim)
        gated = rf.dropout(gated, self.dropout, axis=axis)
        y = self.merge(att, gated, spatial_dim=spatial_dim)
        x = rf.dropout(y, self.dropout, axis=axis) + x
        y = self.ffn2(self.ffn2_layer_norm(x))
        x = rf.dropout(y, self.dropout, axis=axis) * 0.5 + x
        return self.final_layer_norm(x)


class FeedForwardConvGated(rf.Module):
    """Linear (2x), activation; one half times a convolution of the other; linear: {..., spatial, out} -> the same dims.

    Children: `linear_ff`, `gate_norm`, `gate_conv`, `linear_out`. Source: cgMLP, Sakuma et al. 2021; Peng et al. 2022,
    arXiv:2207.02971.
    """

    def __init__(
        self,
        out_dim: Dim,
        *,
        ff_dim: Any = NotSpecified,
        kernel_size: int = 31,
        dropout: float = 0.1,
        activation: Callable[[Tensor], Tensor] | dict[str, Any] = rf.gelu,
        gate_activation: Callable[[Tensor], Tensor] | dict[str, Any] = rf.identity,
        with_bias: bool = True,
        norm: Any = rf.LayerNorm,
    ) -> None:
        """
        :param out_dim: of input and output.
        :param ff_dim: of each half; default: 3 times `out_dim`.
        :param kernel_size: of the convolution, in frames.
        :param dropout: probability, in training, before the last linear map.
        :param activation: after the first linear map.
        :param gate_activation: of the convolved half.
        :param with_bias: of linear maps and convolution.
        :param norm: before the convolution.
        """
        super().__init__()
        self.out_dim = out_dim
        self.dropout = dropout
        self.dropout_broadcast = rf.dropout_broadcast_default()
        self.ff_dim = ff_dim_or(ff_dim, 3 * out_dim)
        self.activation = make_activation(activation)
        self.gate_activation = make_activation(gate_activation)
        self.linear_ff = rf.Linear(out_dim, 2 * self.ff_dim, with_bias=with_bias)
        self.gate_norm = make_norm(norm, self.ff_dim)
        self.gate_conv = rf.Conv1d(
            self.ff_dim,
            self.ff_dim,
            filter_size=kernel_size,
            groups=self.ff_dim.get_dim_value(),
            padding="same",
            with_bias=with_bias,
        )
        self.linear_out = rf.Linear(self.ff_dim, out_dim, with_bias=with_bias)

    def __call__(self, x: Tensor, *, spatial_dim: Dim) -> Tensor:
        """
        :param x: {..., spatial, out}.
        :param spatial_dim: to convolve over.
        """
        x = self.activation(self.linear_ff(x))
        x, gate = rf.split(x, axis=2 * self.ff_dim, out_dims=[self.ff_dim, self.ff_dim])
        gate, _ = self.gate_conv(self.gate_norm(gate), in_spatial_dim=spatial_dim)
        x = x * self.gate_activation(gate)
        x = rf.dropout(x, self.dropout, axis=self.dropout_broadcast and self.ff_dim)
        return self.linear_out(x)


class Merge(rf.Module):
    """Two branches side by side, plus a depthwise convolution of them, then linear. Children: `merge_conv`, `proj`."""

    def __init__(self, *, in_dim1: Dim, in_dim2: Dim, out_dim: Dim, merge_conv_kernel: int = 3) -> None:
        """
        :param in_dim1: features of the first branch.
        :param in_dim2: of the second one; may be the same dim.
        :param out_dim: of the result.
        :param merge_conv_kernel: of the convolution, in frames.
        """
        super().__init__()
        self.in_dim1, self.in_dim2, self.out_dim = in_dim1, in_dim2, out_dim
        self.in_dim = in_dim1 + in_dim2
        self.merge_conv = rf.Conv1d(
            self.in_dim,
            self.in_dim,
            filter_size=merge_conv_kernel,
            groups=self.in_dim.get_dim_value(),
            padding="same",
        )
        self.proj = rf.Linear(self.in_dim, out_dim)

    def __call__(self, x1: Tensor, x2: Tensor, *, spatial_dim: Dim) -> Tensor:
        """
        :param x1: {..., spatial, in1}.
        :param x2: {..., spatial, in2}.
        :param spatial_dim: to convolve over.
        :returns: {..., spatial, out}.
        """
        x, _ = rf.concat((x1, self.in_dim1), (x2, self.in_dim2), out_dim=self.in_dim)
        y, _ = self.merge_conv(x, in_spatial_dim=spatial_dim)
        return self.proj(x + y)
