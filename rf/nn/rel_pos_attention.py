"""Self-attention with relative positions (Transformer-XL, or with learned positions as by Shaw et al.)."""

from __future__ import annotations

from rf import init
from rf._core import Tensor
from rf._dim import Dim, single_step_dim
from rf.nn.attention import (
    CausalSelfAttention,
    CausalSelfAttentionState,
    SelfAttentionBase,
    append_to_state,
    starts_sequence,
)
from rf.nn.linear import Linear
from rf.nn.parameter import Parameter
from rf.nn.pos_enc import LearnedRelativePositionalEncoding, relative_positional_encoding
from rf.nn.rotary import size_of
from rf.ops import attention as ops
from rf.ops.contract import matmul
from rf.ops.dropout import dropout
from rf.ops.normalize import softmax

__all__ = ["RelPosCausalSelfAttention", "RelPosSelfAttention"]


class _RelPos(SelfAttentionBase):
    """The parameters of relative positions, and the scores that follow from them."""

    def __init__(
        self,
        in_dim: Dim,
        proj_dim: Dim | None,
        *,
        key_dim_total: Dim,
        value_dim_total: Dim,
        num_heads: int | Dim,
        with_bias: bool = True,
        with_linear_pos: bool = True,
        with_pos_bias: bool = True,
        learnable_pos_emb: bool = False,
        learnable_pos_emb_clipping: int = 16,
        separate_pos_emb_per_head: bool = True,
        pos_emb_dropout: float = 0.0,
        att_dropout: float = 0.1,
    ) -> None:
        """
        :param with_linear_pos: project the position encoding by `linear_pos`; otherwise it is used as it is.
        :param with_pos_bias: add `pos_bias_u` and `pos_bias_v` to the queries of content and position.
        :param learnable_pos_emb: learned encodings instead of sinusoidal ones.
        :param learnable_pos_emb_clipping: their greatest distance.
        :param separate_pos_emb_per_head: each head has its part of the position encoding; otherwise they share one.
        :param pos_emb_dropout: probability of dropping an entry of the position encoding, in training.

        The others are those of `SelfAttentionBase`.
        """
        super().__init__(
            in_dim,
            proj_dim,
            key_dim_total=key_dim_total,
            value_dim_total=value_dim_total,
            num_heads=num_heads,
            with_bias=with_bias,
            att_dropout=att_dropout,
        )
        self.separate_pos_emb_per_head = separate_pos_emb_per_head
        self.pos_emb_feat_dim = self.key_dim_total if separate_pos_emb_per_head else self.key_dim_per_head
        self.linear_pos = Linear(in_dim, self.pos_emb_feat_dim, with_bias=False) if with_linear_pos else None
        self.pos_emb_dropout = pos_emb_dropout
        enc_dim = in_dim if with_linear_pos else self.pos_emb_feat_dim
        self._enc_dim = enc_dim
        self.learned_pos_emb = None
        if learnable_pos_emb:
            self.learned_pos_emb = LearnedRelativePositionalEncoding(enc_dim, clipping=learnable_pos_emb_clipping)
        self.pos_bias_u = self.pos_bias_v = None
        if with_pos_bias:
            dims = (self.num_heads, self.key_dim_per_head)
            self.pos_bias_u = Parameter(dims, initial=init.Glorot())
            self.pos_bias_v = Parameter(dims, initial=init.Glorot())

    def _positions(self, query: Dim, key: Dim, source: Tensor, offset: int | Tensor = 0) -> tuple[Tensor, Dim]:
        """Projected encodings of the relative positions, {..., positions, (heads,) key}, and the dim of the
        positions.
        """
        if self.learned_pos_emb is not None:
            enc, dim = self.learned_pos_emb(query_spatial_dim=query, key_value_spatial_dim=key, query_offset=offset)
        else:
            enc, dim = relative_positional_encoding(
                query_spatial_dim=query,
                key_value_spatial_dim=key,
                feat_dim=self._enc_dim,
                query_offset=offset,
                dtype=source.dtype,
                device=source.device,
                _backend=source.backend,
            )
        if self.pos_emb_dropout:
            enc = dropout(enc, self.pos_emb_dropout)
        if self.linear_pos is not None:
            enc = self.linear_pos(enc)
        if self.separate_pos_emb_per_head:
            (enc,) = self._split(enc, self.pos_emb_feat_dim, self.key_dim_per_head)
        return enc, dim

    def _weights(
        self, q: Tensor, k: Tensor, axis: Dim, query: Dim, *, causal: bool = False, offset: int | Tensor = 0
    ) -> Tensor:
        """Attention weights {..., query, axis}."""
        pos, pos_dim = self._positions(query, axis, q, offset)
        return ops.rel_attention_weights(
            q,
            k,
            pos,
            self.pos_bias_u,
            self.pos_bias_v,
            self.key_dim_per_head,
            axis,
            query,
            pos_dim,
            causal,
            self._scale,
        )


class RelPosSelfAttention(_RelPos):
    """Self-attention whose scores depend on content and on the distance between query and key: {..., axis, in} -> {...,
    axis, proj}.

    score of query i and key j = ((q_i + u) . k_j + (q_i + v) . p_{j-i}) / sqrt(size of a head's key), where p is the
    projected encoding of the relative position. What lies in the padding does not matter.

    Parameters: those of `qkv`, `proj` and `linear_pos` (no bias); `pos_bias_u`, `pos_bias_v` {heads, key};
    `learned_pos_emb.pos_emb`. Source: Dai et al. 2019, arXiv:1901.02860; with `learnable_pos_emb`, without
    `with_linear_pos` and `with_pos_bias`, and with `separate_pos_emb_per_head=False`: Shaw et al. 2018,
    arXiv:1803.02155.
    """

    def __call__(self, source: Tensor, *, axis: Dim, **_kwargs: object) -> Tensor:
        """
        :param source: {..., axis, in}.
        :param axis: over which to attend.
        :param _kwargs: ignored.

        Raises DimError when the source lacks one of the dims.
        """
        q, k, v = self.forward_qkv(ops.clean(source, (axis,)))
        return self._sum_of_values(self._weights(q, k, axis, axis), v, axis)


class RelPosCausalSelfAttention(_RelPos, CausalSelfAttention):
    """`CausalSelfAttention` with the scores of `RelPosSelfAttention`."""

    def __call__(
        self, source: Tensor, axis: Dim, *, state: CausalSelfAttentionState | None = None
    ) -> tuple[Tensor, CausalSelfAttentionState]:
        """Arguments and result as for `CausalSelfAttention`."""
        q, k, v = self.forward_qkv(ops.clean(source, (axis,)))
        if starts_sequence(axis, state):
            weights = self._weights(q, k, axis, axis, causal=True)
            out = self._sum_of_values(weights, v, axis)
            return out, CausalSelfAttentionState(k_accum=k, v_accum=v, accum_axis=axis)
        assert state is not None
        before = size_of(state.accum_axis)
        k, v, history, new_state = append_to_state(k, v, axis, state)
        if axis == single_step_dim:
            weights = self._weights_of_step(q, k, history, before)
        else:
            weights = self._weights(q, k, history, axis, offset=before)
        return self._sum_of_values(weights, v, history), new_state

    def _weights_of_step(self, q: Tensor, k: Tensor, history: Dim, before: int | Tensor) -> Tensor:
        pos, _ = self._positions(single_step_dim, history, q, before)
        feat = self.key_dim_per_head
        content = matmul(q if self.pos_bias_u is None else q + self.pos_bias_u, k, reduce=feat)
        position = matmul(q if self.pos_bias_v is None else q + self.pos_bias_v, pos, reduce=feat)
        return softmax((content + position) * self._scale, axis=history)
