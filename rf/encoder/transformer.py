"""The Transformer encoder over labels."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection
from typing import Any

import rf
from rf import Dim, Tensor
from rf.decoder.feed_forward import FeedForward, make_norm
from rf.nn.build import NotSpecified
from rf.nn.pos_enc import call_pos_enc

__all__ = ["FeedForward", "TransformerEncoder", "TransformerEncoderLayer", "make_norm"]

_DEFAULT_MODEL_DIM = Dim(512, name="transformer-enc-default-model-dim")


class TransformerEncoder(rf.Module):
    """{..., spatial} of labels -> {..., spatial, model}.

    Embedding * scale + position encoding, dropout, layers, norm. Children: `input_embedding`, `input_embedding_proj`,
    `layers`, `final_layer_norm`. Source: Vaswani et al. 2017, arXiv:1706.03762, with the norm before each block.
    """

    def __init__(
        self,
        vocab_dim: Dim,
        model_dim: Dim | int = _DEFAULT_MODEL_DIM,
        *,
        num_layers: int,
        ff: Any = NotSpecified,
        pos_enc: Callable[..., Tensor] | dict[str, Any] | None = rf.sinusoidal_positional_encoding,
        dropout: float = 0.1,
        num_heads: int = 8,
        att_dropout: float = 0.1,
        norm: Any = rf.LayerNorm,
        layer: Any = None,
        layer_opts: dict[str, Any] | None = None,
        embed_dim: Dim | int | None = None,
        input_embedding: Any = rf.Embedding,
        input_embedding_scale: float | None = None,
        input_dropout: float | None = None,
        sequential: Callable[..., Any] = rf.Sequential,
        **compat_kwargs: Any,
    ) -> None:
        """
        :param vocab_dim: labels.
        :param model_dim: features of the layers.
        :param num_layers: number of layers.
        :param ff: feed-forward block of a layer: type, dict or module; default `FeedForward`.
        :param pos_enc: function of (spatial_dim, feat_dim, offset), or a dict; None for none.
        :param dropout: probability, in training, after each block.
        :param num_heads: of the attention.
        :param att_dropout: probability of dropping an attention weight, in training.
        :param norm: type, dict or module.
        :param layer: type, dict, or a prototype that is copied; default `TransformerEncoderLayer`.
        :param layer_opts: more options of the layer.
        :param embed_dim: of the embedding; it is then projected. Default: `model_dim`.
        :param input_embedding: type, dict or module; None: the source is {..., model} already.
        :param input_embedding_scale: factor of the embedding; default: sqrt of the size of `model_dim`.
        :param input_dropout: after the embedding; default: `dropout`.
        :param sequential: type of `layers`.
        :param compat_kwargs: older names: `encoder_layer`, `encoder_layer_opts`.
        """
        super().__init__()
        layer = compat_kwargs.pop("encoder_layer", layer)
        layer_opts = compat_kwargs.pop("encoder_layer_opts", layer_opts)
        if compat_kwargs:
            raise TypeError(f"TransformerEncoder: unknown arguments {', '.join(compat_kwargs)}")
        self.vocab_dim = vocab_dim
        self.model_dim = model_dim if isinstance(model_dim, Dim) else Dim(model_dim, name="transformer-enc-model")
        self.out_dim = self.model_dim
        self.embed_dim = Dim(embed_dim, name="embed") if isinstance(embed_dim, int) else embed_dim or self.model_dim
        self.dropout_broadcast = rf.dropout_broadcast_default()
        self.input_embedding = None
        if input_embedding is not None:
            self.input_embedding = rf.make_module(input_embedding, None, vocab_dim, self.embed_dim)
        self.input_embedding_proj = None
        if self.embed_dim != self.model_dim:
            self.input_embedding_proj = rf.Linear(self.embed_dim, self.model_dim, with_bias=False)
        if input_embedding_scale is None:
            input_embedding_scale = self.model_dim.get_dim_value() ** 0.5 if self.input_embedding is not None else 1.0
        self.input_embedding_scale = input_embedding_scale
        self.input_dropout = dropout if input_dropout is None else input_dropout
        self.pos_enc = rf.build_from_dict(pos_enc) if isinstance(pos_enc, dict) else pos_enc
        prototype = rf.make_module(
            layer,
            TransformerEncoderLayer,
            self.model_dim,
            dropout=dropout,
            num_heads=num_heads,
            att_dropout=att_dropout,
            norm=norm,
            **({} if ff is NotSpecified else {"ff": ff}),
            overrides=layer_opts,
        )
        self.layers = sequential(copy.deepcopy(prototype) for _ in range(num_layers))
        self.final_layer_norm = make_norm(norm, self.model_dim)

    def __call__(
        self, source: Tensor, *, spatial_dim: Dim, collected_outputs: dict[str, Tensor] | None = None
    ) -> Tensor:
        """
        :param source: labels {..., spatial}, sparse dim `vocab_dim`.
        :param spatial_dim: over which to attend.
        :param collected_outputs: gets the outputs of the layers, by name.
        """
        x = source.copy_masked(0) if self.input_embedding is None else self.input_embedding(source)
        if self.input_embedding_scale != 1:
            x = x * self.input_embedding_scale
        if self.input_embedding_proj is not None:
            x = self.input_embedding_proj(x)
        if self.pos_enc is not None:
            x = x + call_pos_enc(self.pos_enc, x, spatial_dim, self.model_dim, 0)
        x = rf.dropout(x, self.input_dropout, axis=self.dropout_broadcast and self.model_dim)
        x = self.layers(x, spatial_dim=spatial_dim, collected_outputs=collected_outputs)
        return self.final_layer_norm(x)


class TransformerEncoderLayer(rf.Module):
    """Self-attention, feed-forward; each x + dropout(block(norm(x))): {..., spatial, out} -> {..., spatial, out}.

    Children: `self_att`, `self_att_layer_norm`, `ff`, `ff_layer_norm`.
    """

    def __init__(
        self,
        out_dim: Dim = _DEFAULT_MODEL_DIM,
        *,
        ff: Any = NotSpecified,
        dropout: float = 0.1,
        num_heads: int = 8,
        self_att: Any = None,
        att_dropout: float = 0.1,
        norm: Any = rf.LayerNorm,
    ) -> None:
        """
        :param out_dim: features of input and output.
        :param self_att: type, dict, or a module that is copied; default `rf.SelfAttention`.

        The others are those of `TransformerEncoder`.
        """
        super().__init__()
        self.out_dim = out_dim
        self.dropout = dropout
        self.dropout_broadcast = rf.dropout_broadcast_default()
        self.ff = rf.make_module(ff, FeedForward, out_dim, dropout=dropout)
        self.ff_layer_norm = make_norm(norm, out_dim)
        dims: dict[str, Any] = {
            "in_dim": out_dim,
            "proj_dim": out_dim,
            "key_dim_total": out_dim,
            "value_dim_total": out_dim,
        }
        self.self_att = rf.make_module(self_att, rf.SelfAttention, **dims, num_heads=num_heads, att_dropout=att_dropout)
        self.self_att_layer_norm = make_norm(norm, out_dim)

    def default_initial_state(self, *, batch_dims: Collection[Dim]) -> rf.State | None:
        """The state of the self-attention: None unless another one is used, which has one."""
        state = self.self_att.default_initial_state(batch_dims=batch_dims)
        return rf.State(self_att=state) if state else None

    def __call__(self, x: Tensor, *, spatial_dim: Dim) -> Tensor:
        """
        :param x: {..., spatial, out}.
        :param spatial_dim: over which to attend.
        """
        axis = self.dropout_broadcast and self.out_dim
        y = self.self_att(self.self_att_layer_norm(x), axis=spatial_dim)
        x = rf.dropout(y, self.dropout, axis=axis) + x
        y = self.ff(self.ff_layer_norm(x))
        return rf.dropout(y, self.dropout, axis=axis) + x
