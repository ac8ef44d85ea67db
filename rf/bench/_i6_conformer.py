"""The Conformer encoder of i6_models, for batches without padding: its convolution sees the padding."""

# Of the extra `peers`, which checks are made without.
# pyright: reportMissingImports=false

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from i6_models.assemblies.conformer.conformer_rel_pos_v1 import (
    ConformerRelPosBlockV1Config,
    ConformerRelPosEncoderV1,
    ConformerRelPosEncoderV1Config,
)
from i6_models.parts.conformer import (
    ConformerConvolutionV2Config,
    ConformerMHSARelPosV1Config,
    ConformerPositionwiseFeedForwardV2Config,
)
from torch import Tensor, nn

__all__ = ["ConformerEncoder"]

_MODULES = {
    "ffn1_layer_norm": "module_list.0.layer_norm",
    "ffn1": "module_list.0",
    "self_att_layer_norm": "module_list.1.layernorm",
    "self_att.qkv": "module_list.1.qkv_proj",
    "self_att.proj": "module_list.1.out_proj",
    "self_att": "module_list.1",
    "conv_layer_norm": "module_list.2.layer_norm",
    "conv_block.positionwise_conv1": "module_list.2.pointwise_conv1",
    "conv_block.positionwise_conv2": "module_list.2.pointwise_conv2",
    "conv_block": "module_list.2",
    "ffn2_layer_norm": "module_list.3.layer_norm",
    "ffn2": "module_list.3",
    "final_layer_norm": "final_layer_norm",
}
"""Prefixes of names in a layer of rf -> those in a block of i6_models; the first that fits counts."""
_PARAMETERS = {
    "scale": "weight",
    "filter": "weight",
    "gamma": "weight",
    "beta": "bias",
    "running_variance": "running_var",
}


class ConformerEncoder(nn.Module):
    """Layers only: (batch, time, model) -> (batch, time, model)."""

    def __init__(
        self,
        *,
        num_layers: int,
        model_dim: int,
        ff_dim: int,
        num_heads: int,
        kernel_size: int,
        dropout: float,
    ) -> None:
        super().__init__()
        feed_forward = ConformerPositionwiseFeedForwardV2Config(
            input_dim=model_dim, hidden_dim=ff_dim, dropout=dropout, activation=F.silu, dropout_broadcast_axes=None
        )
        attention = ConformerMHSARelPosV1Config(
            input_dim=model_dim,
            num_att_heads=num_heads,
            with_bias=True,
            att_weights_dropout=dropout,
            learnable_pos_emb=False,
            rel_pos_clip=None,
            with_linear_pos=True,
            with_pos_bias=True,
            separate_pos_emb_per_head=True,
            pos_emb_dropout=0.0,
            dropout=dropout,
            dropout_broadcast_axes=None,
        )
        convolution = ConformerConvolutionV2Config(
            channels=model_dim,
            kernel_size=kernel_size,
            dropout=dropout,
            activation=F.silu,
            norm=nn.BatchNorm1d(model_dim, eps=1e-3),
            dropout_broadcast_axes=None,
        )
        block = ConformerRelPosBlockV1Config(ff_cfg=feed_forward, mhsa_cfg=attention, conv_cfg=convolution)
        config = ConformerRelPosEncoderV1Config(num_layers=num_layers, frontend=None, block_cfg=block)
        self.num_heads = num_heads
        self.dropout = nn.Dropout(dropout)
        self.encoder = ConformerRelPosEncoderV1(config)
        for module in self.encoder.modules():
            if isinstance(module, nn.LayerNorm):
                module.eps = 1e-6

    def forward(self, x: Tensor) -> Tensor:
        mask = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device)
        return self.encoder(self.dropout(x), mask)[0][0]

    def loss(self, x: Tensor, target: Tensor) -> Tensor:
        """Mean squared error."""
        return F.mse_loss(self(x), target)

    def from_rf(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Weights (or their gradients) of `rf.encoder.conformer.ConformerEncoder` under the names here."""
        out = {}
        for name, value in weights.items():
            _, layer, rest = name.split(".", 2)
            module, _, parameter = rest.rpartition(".")
            prefix = next(p for p in _MODULES if module == p or module.startswith(f"{p}."))
            path = _MODULES[prefix] + module.removeprefix(prefix)
            if prefix == "self_att.qkv":
                value = self._by_part(value)
            elif module == "self_att.linear_pos":
                value = _interleaved(value)
            if parameter == "weight":
                value = value.t()
            out[f"encoder.module_list.{layer}.{path}.{_PARAMETERS.get(parameter, parameter)}"] = value
        return out

    def _by_part(self, value: Tensor) -> Tensor:
        """From query, key and value of each head in turn to all queries, all keys, all values."""
        split = value.unflatten(-1, (self.num_heads, 3, -1))
        return split.transpose(-3, -2).flatten(-3)


def _interleaved(weight: Tensor) -> Tensor:
    """From encodings that are sines, then cosines, to those that are both in turn.

    Positions are of the query relative to the key here, and the other way round in rf: the sines are negative.
    """
    sines, cosines = weight.chunk(2)
    return torch.stack([-sines, cosines], dim=1).flatten(0, 1)
