"""A Conformer encoder as torch code: Gulati et al. 2020, arXiv:2005.08100, with the lengths respected."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["ConformerEncoder", "from_rf"]

_RENAMED = {
    "scale": "weight",
    "filter": "weight",
    "gamma": "weight",
    "beta": "bias",
    "running_variance": "running_var",
}


def from_rf(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights (or their gradients) of `rf.encoder.conformer.ConformerEncoder` under the names here.

    The modules are named alike. A `weight` is always that of a linear map, which rf keeps as {in, out}.
    """
    out = {}
    for name, value in weights.items():
        module, _, parameter = name.rpartition(".")
        out[f"{module}.{_RENAMED.get(parameter, parameter)}"] = value.t() if parameter == "weight" else value
    return out


class ConformerEncoder(nn.Module):
    """Layers only: (batch, time, model) -> (batch, time, model)."""

    positions: Tensor

    def __init__(
        self,
        *,
        num_layers: int,
        model_dim: int,
        ff_dim: int,
        num_heads: int,
        kernel_size: int,
        dropout: float,
        max_time: int = 1024,
    ) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.layers = nn.ModuleList(
            ConformerLayer(model_dim, ff_dim, num_heads, kernel_size, dropout) for _ in range(num_layers)
        )
        self.max_time = max_time
        self.register_buffer("positions", relative_positions(max_time, model_dim), persistent=False)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        """
        :param x: (batch, time, model).
        :param lengths: (batch,).
        """
        batch, time, _ = x.shape
        padding = torch.arange(time, device=x.device) >= lengths[:, None]
        # The frames that batch normalization counts; all of them where nothing is padded.
        valid = padding.logical_not().flatten().nonzero().squeeze(1) if self.training else None
        positions = self.positions[self.max_time - time : self.max_time + time - 1]
        x = self.dropout(x)
        for layer in self.layers:
            x = layer(x, padding, valid, positions)
        return x

    def loss(self, x: Tensor, lengths: Tensor, target: Tensor) -> Tensor:
        """Mean squared error over the valid frames. The target is 0 in the padding."""
        out = self(x, lengths)
        padding = torch.arange(x.shape[1], device=x.device) >= lengths[:, None]
        out = out.masked_fill(padding[:, :, None], 0.0)
        return F.mse_loss(out, target, reduction="sum") / (lengths.sum() * out.shape[2])


class ConformerLayer(nn.Module):
    """Half a feed-forward, self-attention, convolution, half a feed-forward, norm."""

    def __init__(self, model_dim: int, ff_dim: int, num_heads: int, kernel_size: int, dropout: float) -> None:
        super().__init__()
        self.ffn1_layer_norm = nn.LayerNorm(model_dim, eps=1e-6)
        self.ffn1 = FeedForward(model_dim, ff_dim, dropout)
        self.self_att_layer_norm = nn.LayerNorm(model_dim, eps=1e-6)
        self.self_att = RelativeSelfAttention(model_dim, num_heads, dropout)
        self.conv_layer_norm = nn.LayerNorm(model_dim, eps=1e-6)
        self.conv_block = ConvBlock(model_dim, kernel_size)
        self.ffn2_layer_norm = nn.LayerNorm(model_dim, eps=1e-6)
        self.ffn2 = FeedForward(model_dim, ff_dim, dropout)
        self.final_layer_norm = nn.LayerNorm(model_dim, eps=1e-6)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, padding: Tensor, valid: Tensor | None, positions: Tensor) -> Tensor:
        x = torch.add(x, self.dropout(self.ffn1(self.ffn1_layer_norm(x))), alpha=0.5)
        x = x + self.dropout(self.self_att(self.self_att_layer_norm(x), padding, positions))
        x = x + self.dropout(self.conv_block(self.conv_layer_norm(x), padding, valid))
        x = torch.add(x, self.dropout(self.ffn2(self.ffn2_layer_norm(x))), alpha=0.5)
        return self.final_layer_norm(x)


class FeedForward(nn.Module):
    """Linear, swish, dropout, linear."""

    def __init__(self, model_dim: int, ff_dim: int, dropout: float) -> None:
        super().__init__()
        self.linear_ff = nn.Linear(model_dim, ff_dim)
        self.dropout = nn.Dropout(dropout)
        self.linear_out = nn.Linear(ff_dim, model_dim)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear_out(self.dropout(F.silu(self.linear_ff(x))))


class RelativeSelfAttention(nn.Module):
    """Self-attention with relative positions: Dai et al. 2019, arXiv:1901.02860."""

    def __init__(self, model_dim: int, num_heads: int, dropout: float) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.dropout = dropout
        self.qkv = nn.Linear(model_dim, 3 * model_dim)
        self.linear_pos = nn.Linear(model_dim, model_dim, bias=False)
        self.pos_bias_u = nn.Parameter(torch.empty(num_heads, model_dim // num_heads))
        self.pos_bias_v = nn.Parameter(torch.empty(num_heads, model_dim // num_heads))
        self.proj = nn.Linear(model_dim, model_dim)

    def forward(self, x: Tensor, padding: Tensor, positions: Tensor) -> Tensor:
        batch, time, model_dim = x.shape
        head_dim = model_dim // self.num_heads
        # Of each head in turn: query, key and value. (batch, heads, time, head)
        q, k, v = self.qkv(x).view(batch, time, self.num_heads, 3 * head_dim).transpose(1, 2).chunk(3, dim=-1)
        p = self.linear_pos(positions).view(-1, self.num_heads, head_dim).permute(1, 2, 0)
        scores = relative_shift(torch.matmul(q + self.pos_bias_v[:, None], p)) * head_dim**-0.5
        # What is added to the scores of the content: the scores of the positions, and -inf for keys in the padding.
        scores = scores.masked_fill(padding[:, None, None, :], -math.inf)
        dropout = self.dropout if self.training else 0.0
        out = F.scaled_dot_product_attention(q + self.pos_bias_u[:, None], k, v, attn_mask=scores, dropout_p=dropout)
        return self.proj(out.transpose(1, 2).reshape(batch, time, model_dim))


class ConvBlock(nn.Module):
    """Linear, gated linear unit, depthwise convolution, batch normalization, swish, linear."""

    def __init__(self, model_dim: int, kernel_size: int) -> None:
        super().__init__()
        self.positionwise_conv1 = nn.Linear(model_dim, 2 * model_dim)
        self.depthwise_conv = nn.Conv1d(
            model_dim, model_dim, kernel_size, padding=(kernel_size - 1) // 2, groups=model_dim
        )
        self.norm = nn.BatchNorm1d(model_dim, eps=1e-3)
        self.positionwise_conv2 = nn.Linear(model_dim, model_dim)

    def forward(self, x: Tensor, padding: Tensor, valid: Tensor | None) -> Tensor:
        x = F.glu(self.positionwise_conv1(x), dim=-1)
        x = x.masked_fill(padding[:, :, None], 0.0)
        x = self.depthwise_conv(x.transpose(1, 2))
        if valid is None:
            x = self.norm(x).transpose(1, 2)
        else:
            # The statistics are of the valid frames, which therefore are normalized alone, side by side.
            x = x.transpose(1, 2)
            flat = x.reshape(-1, x.shape[2])
            normalized = self.norm(flat.index_select(0, valid))
            x = torch.zeros_like(flat).index_copy(0, valid, normalized).view(x.shape)
        return self.positionwise_conv2(F.silu(x))


def relative_shift(scores: Tensor) -> Tensor:
    """(..., time, 2 * time - 1) by relative position -> (..., time, time) by key."""
    *lead, time, num_positions = scores.shape
    scores = F.pad(scores, (1, 0)).view(*lead, num_positions + 1, time)
    return scores[..., 1:, :].view(*lead, time, num_positions)[..., :time]


def relative_positions(max_time: int, dim: int) -> Tensor:
    """Encodings of the relative positions 1 - max_time .. max_time - 1: sines, then cosines."""
    frequencies = torch.exp(torch.arange(dim // 2, dtype=torch.float64) * (-math.log(1e4) / (dim // 2)))
    angles = torch.arange(1 - max_time, max_time, dtype=torch.float64)[:, None] * frequencies
    return torch.cat([angles.sin(), angles.cos()], dim=1).to(torch.get_default_dtype())
