"""The Transformer decoder: with cross-attention to an encoder, or as a language model without."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection
from typing import Any

import rf
from rf import Dim, Tensor
from rf.decoder.feed_forward import FeedForward, FeedForwardGated, make_norm
from rf.nn.attention import share_history
from rf.nn.build import NotSpecified
from rf.nn.pos_enc import call_pos_enc, initial_position

__all__ = ["FeedForward", "FeedForwardGated", "TransformerDecoder", "TransformerDecoderLayer", "make_norm"]

_DEFAULT_MODEL_DIM = Dim(512, name="transformer-dec-default-model-dim")


class TransformerDecoder(rf.Module):
    """Labels so far -> scores of the next label: {..., spatial} of labels -> {..., spatial, vocab}.

    Embedding * scale + position encoding, dropout, layers, norm, linear. Runs over whole sequences, single steps and
    chunks alike, with a state. Children: `input_embedding`, `input_embedding_proj`, `layers`, `final_layer_norm`,
    `logits`.

    Source: Vaswani et al. 2017, arXiv:1706.03762, with the norm before each block.
    """

    def __init__(
        self,
        encoder_dim: Dim | None,
        vocab_dim: Dim,
        model_dim: Dim | int = _DEFAULT_MODEL_DIM,
        *,
        num_layers: int,
        ff: Any = NotSpecified,
        ff_dim: Dim | int | type[NotSpecified] = NotSpecified,
        ff_activation: Any = NotSpecified,
        pos_enc: Callable[..., Tensor] | dict[str, Any] | None = rf.sinusoidal_positional_encoding,
        dropout: float = 0.1,
        num_heads: int = 8,
        att_dropout: float = 0.1,
        norm: Any = rf.LayerNorm,
        layer: Any = None,
        layer_opts: dict[str, Any] | None = None,
        embed_dim: Dim | int | None = None,
        share_embedding: bool | None = None,
        input_embedding: Any = True,
        input_embedding_scale: float | None = None,
        input_dropout: float | None = None,
        logits_with_bias: bool = False,
        sequential: Callable[..., Any] = rf.Sequential,
        **compat_kwargs: Any,
    ) -> None:
        """
        :param encoder_dim: features of the encoder; None for no cross-attention.
        :param vocab_dim: labels.
        :param model_dim: features of the layers.
        :param num_layers: number of layers.
        :param ff: feed-forward block of a layer: type, dict or module; default `FeedForward`.
        :param ff_dim: its inner dim.
        :param ff_activation: its activation.
        :param pos_enc: function of (spatial_dim, feat_dim, offset), or a dict; None for none.
        :param dropout: probability, in training, after each block.
        :param num_heads: of the attentions.
        :param att_dropout: probability of dropping an attention weight, in training.
        :param norm: type, dict or module.
        :param layer: type, dict, or a prototype that is copied; default `TransformerDecoderLayer`.
        :param layer_opts: more options of the layer.
        :param embed_dim: of the embedding; it is then projected. Default: `model_dim`.
        :param share_embedding: `logits.weight` is that of the embedding. Default: whenever dims and types allow it.
        :param input_embedding: True for `rf.Embedding`; a type, dict or module; None or False: the source is {...,
            model} already.
        :param input_embedding_scale: factor of the embedding; default: sqrt of the size of `model_dim`.
        :param input_dropout: after the embedding; default: `dropout`.
        :param logits_with_bias: whether `logits` has a bias.
        :param sequential: type of `layers`.
        :param compat_kwargs: older names: `decoder_layer`, `decoder_layer_opts`.
        """
        super().__init__()
        layer = compat_kwargs.pop("decoder_layer", layer)
        layer_opts = compat_kwargs.pop("decoder_layer_opts", layer_opts)
        if compat_kwargs:
            raise TypeError(f"TransformerDecoder: unknown arguments {', '.join(compat_kwargs)}")
        self.encoder_dim = encoder_dim
        self.vocab_dim = vocab_dim
        self.model_dim = model_dim if isinstance(model_dim, Dim) else Dim(model_dim, name="transformer-dec-model")
        self.embed_dim = Dim(embed_dim, name="embed") if isinstance(embed_dim, int) else embed_dim or self.model_dim
        self.dropout_broadcast = rf.dropout_broadcast_default()
        self.input_embedding = None
        if input_embedding is not None and input_embedding is not False:
            what = None if input_embedding is True else input_embedding
            self.input_embedding = rf.make_module(what, rf.Embedding, vocab_dim, self.embed_dim)
        self.input_embedding_proj = None
        if self.embed_dim != self.model_dim:
            self.input_embedding_proj = rf.Linear(self.embed_dim, self.model_dim, with_bias=False)
        if input_embedding_scale is None:
            input_embedding_scale = self.model_dim.get_dim_value() ** 0.5 if self.input_embedding is not None else 1.0
        self.input_embedding_scale = input_embedding_scale
        self.input_dropout = dropout if input_dropout is None else input_dropout
        self.pos_enc = rf.build_from_dict(pos_enc) if isinstance(pos_enc, dict) else pos_enc
        given = {"ff": ff, "ff_dim": ff_dim, "ff_activation": ff_activation}
        prototype = rf.make_module(
            layer,
            TransformerDecoderLayer,
            encoder_dim,
            self.model_dim,
            dropout=dropout,
            num_heads=num_heads,
            att_dropout=att_dropout,
            norm=norm,
            **{k: v for k, v in given.items() if v is not NotSpecified},
            overrides=layer_opts,
        )
        self.layers = sequential(copy.deepcopy(prototype) for _ in range(num_layers))
        self.final_layer_norm = make_norm(norm, self.model_dim)
        self.logits = rf.Linear(self.model_dim, vocab_dim, with_bias=logits_with_bias)
        can_share = isinstance(self.input_embedding, rf.Embedding) and self.embed_dim == self.model_dim
        if share_embedding and not can_share:
            raise rf.RfError(
                "TransformerDecoder: share_embedding needs rf.Embedding of the dim model_dim as input_embedding"
            )
        if can_share and share_embedding is not False:
            assert self.input_embedding is not None
            self.logits.weight = self.input_embedding.weight

    def default_initial_state(self, *, batch_dims: Collection[Dim]) -> rf.State:
        """The states of the layers, by name, and `pos`, the position of the next label: 0."""
        state = rf.State({k: layer.default_initial_state(batch_dims=batch_dims) for k, layer in self.layers.items()})
        share_history(state)
        state.pos = initial_position()
        return state

    def transform_encoder(self, encoder: Tensor, *, axis: Dim) -> rf.State:
        """What all calls need of the encoder {..., axis, encoder}, by the names of the layers."""
        return rf.State({k: layer.transform_encoder(encoder, axis=axis) for k, layer in self.layers.items()})

    def __call__(
        self,
        source: Tensor,
        *,
        spatial_dim: Dim,
        state: rf.State,
        encoder: rf.State | None = None,
        collected_outputs: dict[str, Tensor] | None = None,
        output_only_last_frame: bool = False,
    ) -> tuple[Tensor, rf.State]:
        """
        :param source: labels {..., spatial}, sparse dim `vocab_dim`.
        :param spatial_dim: `rf.single_step_dim` for one step: the source is {...} then.
        :param state: what came before.
        :param encoder: of `transform_encoder`; None without encoder.
        :param collected_outputs: gets the outputs of the layers, by name.
        :param output_only_last_frame: of each sequence, only the scores after its last label: {..., vocab}.
        :returns: (logits {..., spatial, vocab}, new state).
        """
        single = spatial_dim == rf.single_step_dim
        new_state = rf.State()
        x = source if self.input_embedding is None else self.input_embedding(source)
        if self.input_embedding_scale != 1:
            x = x * self.input_embedding_scale
        if self.input_embedding_proj is not None:
            x = self.input_embedding_proj(x)
        if self.pos_enc is not None:
            x = x + call_pos_enc(self.pos_enc, x, spatial_dim, self.model_dim, state.pos)
        x = rf.dropout(x, self.input_dropout, axis=self.dropout_broadcast and self.model_dim)
        for name, layer in self.layers.items():
            layer_encoder = None if encoder is None else encoder[name]
            x, new_state[name] = layer(x, spatial_dim=spatial_dim, state=state[name], encoder=layer_encoder)
            if collected_outputs is not None:
                collected_outputs[name] = x
        new_state.pos = state.pos + (1 if single else spatial_dim.get_size_tensor())
        if output_only_last_frame and not single:
            x = rf.gather(x, indices=rf.last_frame_position_of_dim(spatial_dim, device=x.device), axis=spatial_dim)
        return self.logits(self.final_layer_norm(x)), new_state


class TransformerDecoderLayer(rf.Module):
    """Causal self-attention, cross-attention if there is an encoder, feed-forward; each x + dropout(block(norm(x))).

    Children: `self_att`, `self_att_layer_norm`, `cross_att`, `cross_att_layer_norm`, `ff`, `ff_layer_norm`.
    """

    def __init__(
        self,
        encoder_dim: Dim | None,
        out_dim: Dim = _DEFAULT_MODEL_DIM,
        *,
        ff: Any = NotSpecified,
        ff_dim: Dim | int | type[NotSpecified] = NotSpecified,
        ff_activation: Any = NotSpecified,
        dropout: float = 0.1,
        num_heads: int = 8,
        self_att: Any = None,
        self_att_opts: dict[str, Any] | None = None,
        att_dropout: float = 0.1,
        cross_att: Any = None,
        norm: Any = rf.LayerNorm,
    ) -> None:
        """
        :param encoder_dim: features of the encoder; None for no cross-attention.
        :param out_dim: features of input and output.
        :param self_att: type, dict, or a module that is copied; default `rf.CausalSelfAttention`.
        :param self_att_opts: more options of it.
        :param cross_att: likewise; default `rf.CrossAttention`.

        The others are those of `TransformerDecoder`.
        """
        super().__init__()
        self.encoder_dim = encoder_dim
        self.out_dim = out_dim
        self.dropout = dropout
        self.dropout_broadcast = rf.dropout_broadcast_default()
        given = {"ff_dim": ff_dim, "activation": ff_activation}
        given = {k: v for k, v in given.items() if v is not NotSpecified}
        self.ff = rf.make_module(ff, FeedForward, out_dim, dropout=dropout, **given)
        self.ff_layer_norm = make_norm(norm, out_dim)
        dims = {"proj_dim": out_dim, "key_dim_total": out_dim, "value_dim_total": out_dim}
        options = {**dims, "num_heads": num_heads, "att_dropout": att_dropout}
        self.self_att = rf.make_module(
            self_att, rf.CausalSelfAttention, in_dim=out_dim, **options, overrides=self_att_opts
        )
        self.self_att_layer_norm = make_norm(norm, out_dim)
        self.cross_att = self.cross_att_layer_norm = None
        if encoder_dim is not None:
            self.cross_att = rf.make_module(
                cross_att, rf.CrossAttention, encoder_dim=encoder_dim, query_in_dim=out_dim, **options
            )
            self.cross_att_layer_norm = make_norm(norm, out_dim)

    def default_initial_state(self, *, batch_dims: Collection[Dim]) -> rf.State:
        """The state of the self-attention."""
        return rf.State(self_att=self.self_att.default_initial_state(batch_dims=batch_dims))

    def transform_encoder(self, encoder: Tensor, *, axis: Dim) -> rf.State:
        """What the cross-attention needs of the encoder."""
        if self.cross_att is None:
            raise rf.RfError("TransformerDecoderLayer: transform_encoder needs an encoder_dim")
        return rf.State(cross_att=self.cross_att.transform_encoder(encoder, axis=axis))

    def __call__(
        self, x: Tensor, *, spatial_dim: Dim, state: rf.State, encoder: rf.State | None = None
    ) -> tuple[Tensor, rf.State]:
        """
        :param x: {..., spatial, out}.
        :param spatial_dim: or `rf.single_step_dim`.
        :param state: of `default_initial_state` or the last call.
        :param encoder: of `transform_encoder`.
        :returns: ({..., spatial, out}, new state).
        """
        axis = self.dropout_broadcast and self.out_dim
        y, att_state = self.self_att(self.self_att_layer_norm(x), axis=spatial_dim, state=state["self_att"])
        x = rf.dropout(y, self.dropout, axis=axis) + x
        if self.cross_att is not None:
            if encoder is None:
                raise rf.RfError("TransformerDecoderLayer: encoder= is missing; get it from transform_encoder")
            assert self.cross_att_layer_norm is not None
            y = self.cross_att(self.cross_att_layer_norm(x), encoder["cross_att"])
            x = rf.dropout(y, self.dropout, axis=axis) + x
        y = self.ff(self.ff_layer_norm(x))
        x = rf.dropout(y, self.dropout, axis=axis) + x
        return x, rf.State(self_att=att_state)
