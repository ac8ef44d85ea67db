"""A Transformer decoder with cross-attention as torch code: training on whole sequences, and steps with a cache."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["TransformerDecoder", "from_rf"]

IGNORE = -100
"""The target in the padding."""


def from_rf(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights (or their gradients) of `rf.decoder.transformer.TransformerDecoder` under the names here.

    The modules are named alike. rf keeps linear maps as {in, out}; embeddings are as here.
    """
    out = {}
    for name, value in weights.items():
        module, _, parameter = name.rpartition(".")
        if parameter == "scale":
            parameter = "weight"
        elif parameter == "weight" and module != "input_embedding":
            value = value.t()
        out[f"{module}.{parameter}"] = value
    return out


class TransformerDecoder(nn.Module):
    """Labels so far -> scores of the next label: (batch, time) -> (batch, time, vocab)."""

    positions: Tensor

    def __init__(
        self,
        *,
        encoder_dim: int,
        vocab_dim: int,
        num_layers: int,
        model_dim: int,
        ff_dim: int,
        num_heads: int,
        dropout: float,
        max_time: int = 1024,
    ) -> None:
        super().__init__()
        self.input_embedding = nn.Embedding(vocab_dim, model_dim)
        self.scale = model_dim**0.5
        self.dropout = nn.Dropout(dropout)
        self.layers = nn.ModuleList(
            DecoderLayer(encoder_dim, model_dim, ff_dim, num_heads, dropout) for _ in range(num_layers)
        )
        self.final_layer_norm = nn.LayerNorm(model_dim, eps=1e-6)
        self.logits = nn.Linear(model_dim, vocab_dim, bias=False)
        self.register_buffer("positions", absolute_positions(max_time, model_dim), persistent=False)

    def forward(self, labels: Tensor, encoder: Tensor, encoder_lengths: Tensor) -> Tensor:
        """
        :param labels: (batch, time). Padding at the end needs no mask: no valid label sees it.
        :param encoder: (batch, encoder_time, encoder).
        :param encoder_lengths: (batch,).
        """
        mask = attention_mask(encoder, encoder_lengths)
        x = self.input_embedding(labels) * self.scale + self.positions[: labels.shape[1]]
        x = self.dropout(x)
        for layer in self.layers:
            x = layer(x, encoder, mask)
        return self.logits(self.final_layer_norm(x))

    def loss(self, labels: Tensor, encoder: Tensor, encoder_lengths: Tensor, targets: Tensor) -> Tensor:
        """Cross entropy, mean over the valid labels. Targets in the padding are `IGNORE`."""
        logits = self(labels, encoder, encoder_lengths)
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORE)

    def greedy(self, first: Tensor, encoder: Tensor, encoder_lengths: Tensor, num_steps: int) -> Tensor:
        """The best next label, `num_steps` times, with keys and values kept: (batch,) -> (batch, num_steps)."""
        mask = attention_mask(encoder, encoder_lengths)
        layers = cast("list[DecoderLayer]", list(self.layers))
        caches = [layer.make_cache(encoder, num_steps) for layer in layers]
        labels, out = first, []
        for step in range(num_steps):
            x = self.input_embedding(labels[:, None]) * self.scale + self.positions[step]
            for layer, cache in zip(layers, caches):
                x = layer.step(x, step, cache, mask)
            labels = self.logits(self.final_layer_norm(x[:, 0])).argmax(dim=-1)
            out.append(labels)
        return torch.stack(out, dim=1)


Cache = tuple[Tensor, Tensor, Tensor, Tensor]
"""Keys and values of the labels so far, with room for all of them, and those of the encoder."""


class DecoderLayer(nn.Module):
    """Causal self-attention, cross-attention, feed-forward; each x + dropout(block(norm(x)))."""

    def __init__(self, encoder_dim: int, model_dim: int, ff_dim: int, num_heads: int, dropout: float) -> None:
        super().__init__()
        self.self_att_layer_norm = nn.LayerNorm(model_dim, eps=1e-6)
        self.self_att = SelfAttention(model_dim, num_heads, dropout)
        self.cross_att_layer_norm = nn.LayerNorm(model_dim, eps=1e-6)
        self.cross_att = CrossAttention(encoder_dim, model_dim, num_heads, dropout)
        self.ff_layer_norm = nn.LayerNorm(model_dim, eps=1e-6)
        self.ff = FeedForward(model_dim, ff_dim, dropout)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, encoder: Tensor, mask: Tensor) -> Tensor:
        x = x + self.dropout(self.self_att(self.self_att_layer_norm(x)))
        x = x + self.dropout(self.cross_att(self.cross_att_layer_norm(x), *self.cross_att.keys_values(encoder), mask))
        return x + self.dropout(self.ff(self.ff_layer_norm(x)))

    def make_cache(self, encoder: Tensor, num_steps: int) -> Cache:
        encoder_k, encoder_v = self.cross_att.keys_values(encoder)
        batch, num_heads, _, head_dim = encoder_k.shape
        k = encoder_k.new_empty(batch, num_heads, num_steps, head_dim)
        return k, torch.empty_like(k), encoder_k, encoder_v

    def step(self, x: Tensor, step: int, cache: Cache, mask: Tensor) -> Tensor:
        """One label: (batch, 1, model). Only for evaluation."""
        k, v, encoder_k, encoder_v = cache
        x = x + self.self_att.step(self.self_att_layer_norm(x), step, k, v)
        x = x + self.cross_att(self.cross_att_layer_norm(x), encoder_k, encoder_v, mask)
        return x + self.ff(self.ff_layer_norm(x))


class SelfAttention(nn.Module):
    """Causal self-attention."""

    def __init__(self, model_dim: int, num_heads: int, dropout: float) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.dropout = dropout
        self.qkv = nn.Linear(model_dim, 3 * model_dim)
        self.proj = nn.Linear(model_dim, model_dim)

    def queries_keys_values(self, x: Tensor) -> tuple[Tensor, ...]:
        """(batch, heads, time, head) each; `qkv` gives, for each head in turn, query, key and value."""
        return split_heads(self.qkv(x), self.num_heads).chunk(3, dim=-1)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.queries_keys_values(x)
        dropout = self.dropout if self.training else 0.0
        out = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True)
        return self.proj(out.transpose(1, 2).flatten(2))

    def step(self, x: Tensor, step: int, k: Tensor, v: Tensor) -> Tensor:
        q, k[:, :, step : step + 1], v[:, :, step : step + 1] = self.queries_keys_values(x)
        out = F.scaled_dot_product_attention(q, k[:, :, : step + 1], v[:, :, : step + 1])
        return self.proj(out.transpose(1, 2).flatten(2))


class CrossAttention(nn.Module):
    """Attention to the encoder."""

    def __init__(self, encoder_dim: int, model_dim: int, num_heads: int, dropout: float) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.dropout = dropout
        self.q = nn.Linear(model_dim, model_dim)
        self.kv = nn.Linear(encoder_dim, 2 * model_dim)
        self.proj = nn.Linear(model_dim, model_dim)

    def keys_values(self, encoder: Tensor) -> tuple[Tensor, ...]:
        """(batch, heads, encoder_time, head) each; `kv` gives, for each head in turn, key and value."""
        return split_heads(self.kv(encoder), self.num_heads).chunk(2, dim=-1)

    def forward(self, x: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        q = split_heads(self.q(x), self.num_heads)
        dropout = self.dropout if self.training else 0.0
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout)
        return self.proj(out.transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    """Linear, relu, dropout, linear."""

    def __init__(self, model_dim: int, ff_dim: int, dropout: float) -> None:
        super().__init__()
        self.linear_ff = nn.Linear(model_dim, ff_dim)
        self.dropout = nn.Dropout(dropout)
        self.linear_out = nn.Linear(ff_dim, model_dim)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear_out(self.dropout(F.relu(self.linear_ff(x))))


def split_heads(x: Tensor, num_heads: int) -> Tensor:
    """(batch, time, heads * n) -> (batch, heads, time, n)."""
    return x.view(x.shape[0], x.shape[1], num_heads, -1).transpose(1, 2)


def attention_mask(encoder: Tensor, lengths: Tensor) -> Tensor:
    """What is added to scores (batch, heads, time, encoder_time): -inf in the padding of the encoder, else 0."""
    padding = torch.arange(encoder.shape[1], device=encoder.device) >= lengths[:, None]
    return encoder.new_zeros(padding.shape).masked_fill_(padding, -math.inf)[:, None, None, :]


def absolute_positions(max_time: int, dim: int) -> Tensor:
    """Sines, then cosines, of position * 10000^(-i / (dim / 2 - 1))."""
    steps = max(1, dim // 2 - 1)
    frequencies = torch.exp(torch.arange(dim // 2, dtype=torch.float64) * (-math.log(1e4) / steps))
    angles = torch.arange(max_time, dtype=torch.float64)[:, None] * frequencies
    return torch.cat([angles.sin(), angles.cos()], dim=1).to(torch.get_default_dtype())
