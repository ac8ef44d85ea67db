"""The Conformer encoder in two parts: what makes frames of the input, and the layers."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import rf
from rf import Dim, Tensor
from rf.encoder.base import ISeqDownsamplingEncoder, ISeqFramewiseEncoder
from rf.encoder.conformer import ConformerEncoderLayer
from rf.nn.build import NotSpecified

__all__ = ["ConformerEncoderV2", "ConformerFrontend"]

_DEFAULT_OUT_DIM = Dim(512, name="conformer-enc-default-out-dim")


class ConformerFrontend(ISeqDownsamplingEncoder):
    """Input layer (subsampling), projection, dropout: {..., time, in} -> {..., time', out}.

    Children: `input_layer`, `input_projection` (no bias, only if dims differ).
    """

    def __init__(
        self,
        in_dim: Dim,
        out_dim: Dim = _DEFAULT_OUT_DIM,
        *,
        input_layer: Any,
        input_embedding_scale: float = 1.0,
        input_dropout: float = 0.1,
    ) -> None:
        """
        :param in_dim: features of the source.
        :param out_dim: features of the result.
        :param input_layer: module {..., time, in} -> ({..., time', x}, time'); a type or dict is given `in_dim`. None
            for none.
        :param input_embedding_scale: factor after the projection.
        :param input_dropout: probability, in training.
        """
        super().__init__()
        self.in_dim = in_dim
        self.out_dim = out_dim
        self.dropout_broadcast = rf.dropout_broadcast_default()
        self.input_layer: Any = None
        if input_layer is not None:
            is_module = isinstance(input_layer, rf.Module)
            self.input_layer = input_layer if is_module else rf.make_module(input_layer, None, in_dim)
        layer_in = in_dim if self.input_layer is None else self.input_layer.out_dim
        self.input_projection = rf.Linear(layer_in, out_dim, with_bias=False) if layer_in != out_dim else None
        self.input_embedding_scale = input_embedding_scale
        self.input_dropout = input_dropout
        self.downsample_factor = getattr(self.input_layer, "downsample_factor", 1)

    def __call__(self, source: Tensor, *, in_spatial_dim: Dim) -> tuple[Tensor, Dim]:
        """
        :param source: {..., time, in}. What lies in its padding does not matter.
        :param in_spatial_dim: time.
        :returns: ({..., time', out}, time').
        """
        x, spatial_dim = source.copy_masked(0.0), in_spatial_dim
        if self.input_layer is not None:
            x, spatial_dim = self.input_layer(source, in_spatial_dim=in_spatial_dim)
        if self.input_projection is not None:
            x = self.input_projection(x)
        if self.input_embedding_scale != 1:
            x = x * self.input_embedding_scale
        x = rf.dropout(x, self.input_dropout, axis=self.dropout_broadcast and self.out_dim)
        return x, spatial_dim


class ConformerEncoderV2(ISeqFramewiseEncoder):
    """Conformer layers: {..., spatial, out} -> {..., spatial, out}. Children: `layers`."""

    def __init__(
        self,
        out_dim: Dim = _DEFAULT_OUT_DIM,
        *,
        num_layers: int,
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
        """Arguments as for `ConformerEncoder`."""
        super().__init__()
        self.out_dim = out_dim
        given = {
            "ff_dim": ff_dim,
            "ff_activation": ff_activation,
            "conv_kernel_size": conv_kernel_size,
            "conv_norm": conv_norm,
        }
        prototype = rf.make_module(
            encoder_layer,
            ConformerEncoderLayer,
            out_dim,
            dropout=dropout,
            num_heads=num_heads,
            att_dropout=att_dropout,
            **{k: v for k, v in given.items() if v is not NotSpecified},
            overrides=encoder_layer_opts,
        )
        self.layers = sequential(copy.deepcopy(prototype) for _ in range(num_layers))

    def __call__(self, x: Tensor, *, spatial_dim: Dim, collected_outputs: dict[str, Tensor] | None = None) -> Tensor:
        """
        :param x: {..., spatial, out}.
        :param spatial_dim: over which to attend and convolve.
        :param collected_outputs: gets the outputs of the layers, by name.
        """
        return self.layers(x, spatial_dim=spatial_dim, collected_outputs=collected_outputs)
