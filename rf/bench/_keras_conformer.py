"""A Conformer encoder as Keras code on TensorFlow: Gulati et al. 2020, arXiv:2005.08100, with the lengths respected."""

# pyright: reportMissingModuleSource=false

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

__all__ = ["ConformerEncoder", "from_rf"]

Tensor = Any

_RENAMED = {
    "weight": "kernel",
    "filter": "kernel",
    "scale": "gamma",
    "running_mean": "moving_mean",
    "running_variance": "moving_variance",
}


def from_rf(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights (or their gradients) of `rf.encoder.conformer.ConformerEncoder` under the names here.

    The layers are named alike, except for `blocks`. Linear maps are as rf keeps them, {in, out}.
    """
    out = {}
    for name, value in weights.items():
        layer, _, parameter = name.rpartition(".")
        if parameter == "filter":
            value = tf.transpose(value, (2, 0, 1))  # (out, 1, size) -> (size, in, 1)
        parameter = "beta" if layer.endswith("layer_norm") and parameter == "bias" else parameter
        out[f"{layer}.{_RENAMED.get(parameter, parameter)}".replace("layers.", "blocks.", 1)] = value
    return out


class ConformerEncoder(keras.Model):
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
        max_time: int = 1024,
    ) -> None:
        super().__init__()
        self.dropout = keras.layers.Dropout(dropout)
        self.blocks = [ConformerLayer(model_dim, ff_dim, num_heads, kernel_size, dropout) for _ in range(num_layers)]
        self.max_time = max_time
        self.positions = tf.constant(relative_positions(max_time, model_dim), self.compute_dtype)

    def call(self, x: Tensor, lengths: Tensor, training: bool = False) -> Tensor:
        """
        :param x: (batch, time, model).
        :param lengths: (batch,).
        """
        time = x.shape[1]
        valid = tf.sequence_mask(lengths, time)
        positions = self.positions[self.max_time - time : self.max_time + time - 1]
        x = self.dropout(x, training=training)
        for layer in self.blocks:
            x = layer(x, valid, positions, training=training)
        return x

    def masked_loss(self, x: Tensor, lengths: Tensor, target: Tensor) -> Tensor:
        """Mean squared error over the valid frames."""
        difference = tf.math.squared_difference(self(x, lengths, training=True), target)
        valid = tf.sequence_mask(lengths, x.shape[1])
        total = tf.reduce_sum(tf.where(valid[:, :, None], difference, 0.0))
        return total / tf.cast(tf.reduce_sum(lengths) * x.shape[2], total.dtype)


class ConformerLayer(keras.layers.Layer):
    """Half a feed-forward, self-attention, convolution, half a feed-forward, norm."""

    def __init__(self, model_dim: int, ff_dim: int, num_heads: int, kernel_size: int, dropout: float) -> None:
        super().__init__()
        self.ffn1_layer_norm = keras.layers.LayerNormalization(epsilon=1e-6)
        self.ffn1 = FeedForward(model_dim, ff_dim, dropout)
        self.self_att_layer_norm = keras.layers.LayerNormalization(epsilon=1e-6)
        self.self_att = RelativeSelfAttention(model_dim, num_heads, dropout)
        self.conv_layer_norm = keras.layers.LayerNormalization(epsilon=1e-6)
        self.conv_block = ConvBlock(model_dim, kernel_size)
        self.ffn2_layer_norm = keras.layers.LayerNormalization(epsilon=1e-6)
        self.ffn2 = FeedForward(model_dim, ff_dim, dropout)
        self.final_layer_norm = keras.layers.LayerNormalization(epsilon=1e-6)
        self.dropout = keras.layers.Dropout(dropout)

    def call(self, x: Tensor, valid: Tensor, positions: Tensor, training: bool = False) -> Tensor:
        x = x + 0.5 * self.dropout(self.ffn1(self.ffn1_layer_norm(x), training=training), training=training)
        y = self.self_att(self.self_att_layer_norm(x), valid, positions, training=training)
        x = x + self.dropout(y, training=training)
        y = self.conv_block(self.conv_layer_norm(x), valid, training=training)
        x = x + self.dropout(y, training=training)
        x = x + 0.5 * self.dropout(self.ffn2(self.ffn2_layer_norm(x), training=training), training=training)
        return self.final_layer_norm(x)


class FeedForward(keras.layers.Layer):
    """Linear, swish, dropout, linear."""

    def __init__(self, model_dim: int, ff_dim: int, dropout: float) -> None:
        super().__init__()
        self.linear_ff = keras.layers.Dense(ff_dim, activation="silu")
        self.dropout = keras.layers.Dropout(dropout)
        self.linear_out = keras.layers.Dense(model_dim)

    def call(self, x: Tensor, training: bool = False) -> Tensor:
        return self.linear_out(self.dropout(self.linear_ff(x), training=training))


class RelativeSelfAttention(keras.layers.Layer):
    """Self-attention with relative positions: Dai et al. 2019, arXiv:1901.02860."""

    def __init__(self, model_dim: int, num_heads: int, dropout: float) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = model_dim // num_heads
        self.qkv = keras.layers.Dense(3 * model_dim)
        self.linear_pos = keras.layers.Dense(model_dim, use_bias=False)
        self.pos_bias_u = self.add_weight(shape=(num_heads, self.head_dim), name="pos_bias_u")
        self.pos_bias_v = self.add_weight(shape=(num_heads, self.head_dim), name="pos_bias_v")
        self.dropout = keras.layers.Dropout(dropout)
        self.proj = keras.layers.Dense(model_dim)

    def call(self, x: Tensor, valid: Tensor, positions: Tensor, training: bool = False) -> Tensor:
        batch, time, model_dim = x.shape
        # Of each head in turn: query, key and value. (batch, heads, time, head)
        qkv = tf.reshape(self.qkv(x), (batch, time, self.num_heads, 3 * self.head_dim))
        q, k, v = tf.split(tf.transpose(qkv, (0, 2, 1, 3)), 3, axis=-1)
        p = tf.reshape(self.linear_pos(positions), (-1, self.num_heads, self.head_dim))
        content = tf.matmul(q + self.pos_bias_u[:, None], k, transpose_b=True)
        position = tf.matmul(q + self.pos_bias_v[:, None], tf.transpose(p, (1, 2, 0)))
        scores = (content + relative_shift(position)) * self.head_dim**-0.5
        scores = tf.where(valid[:, None, None, :], scores, -math.inf)
        weights = self.dropout(tf.nn.softmax(scores), training=training)
        out = tf.transpose(tf.matmul(weights, v), (0, 2, 1, 3))
        return self.proj(tf.reshape(out, (batch, time, model_dim)))


class ConvBlock(keras.layers.Layer):
    """Linear, gated linear unit, depthwise convolution, batch normalization, swish, linear."""

    def __init__(self, model_dim: int, kernel_size: int) -> None:
        super().__init__()
        self.positionwise_conv1 = keras.layers.Dense(2 * model_dim)
        self.depthwise_conv = keras.layers.DepthwiseConv1D(kernel_size, padding="same")
        self.norm = keras.layers.BatchNormalization(epsilon=1e-3, momentum=0.9)
        self.positionwise_conv2 = keras.layers.Dense(model_dim)

    def call(self, x: Tensor, valid: Tensor, training: bool = False) -> Tensor:
        a, b = tf.split(self.positionwise_conv1(x), 2, axis=-1)
        x = tf.where(valid[:, :, None], a * tf.sigmoid(b), 0.0)
        x = self.norm(self.depthwise_conv(x), training=training, mask=valid)
        return self.positionwise_conv2(tf.nn.silu(x))


def relative_shift(scores: Tensor) -> Tensor:
    """(..., time, 2 * time - 1) by relative position -> (..., time, time) by key."""
    batch, heads, time, num_positions = scores.shape
    scores = tf.reshape(tf.pad(scores, ((0, 0), (0, 0), (0, 0), (1, 0))), (batch, heads, num_positions + 1, time))
    return tf.reshape(scores[:, :, 1:], (batch, heads, time, num_positions))[:, :, :, :time]


def relative_positions(max_time: int, dim: int) -> np.ndarray:
    """Encodings of the relative positions 1 - max_time .. max_time - 1: sines, then cosines."""
    frequencies = np.exp(np.arange(dim // 2) * (-math.log(1e4) / (dim // 2)))
    angles = np.arange(1 - max_time, max_time)[:, None] * frequencies
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1)
