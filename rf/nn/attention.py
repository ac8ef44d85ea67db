"""Attention: the function, self-attention with and without a causal state, and cross-attention."""

from __future__ import annotations

from typing import Any

import numpy

from rf import init
from rf._core import Tensor
from rf._dim import Dim, single_step_dim
from rf._errors import DimError, RfError
from rf.nn.linear import Linear
from rf.nn.module import Module
from rf.nn.state import State
from rf.ops import attention as ops
from rf.ops.concat import concat, cum_concat_step
from rf.ops.create import zeros
from rf.ops.dropout import dropout
from rf.ops.shape import replace_dim
from rf.run_ctx import get_run_ctx

__all__ = [
    "CausalSelfAttention",
    "CausalSelfAttentionState",
    "CrossAttention",
    "SelfAttention",
    "SelfAttentionBase",
    "dot_attention",
]


def dot_attention(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    *,
    key_dim: Dim,
    axis: Dim,
    att_dropout: float = 0.0,
    att_dropout_broadcast: bool | None = None,
    causal_query_spatial_dim: Dim | None = None,
    scale: float | None = None,
) -> Tensor:
    """softmax(scale * query . keys) . values: {..., Q, key}, {..., K, key}, {..., K, value} -> {..., Q, value}.

    The softmax is over `axis` (K), dims that all have are matched. What lies in any padding matters neither for values
    nor for gradients; over no keys the result is 0.

    :param query: any dims besides `key_dim`. If `axis` is among them, this is self-attention: each of its frames is a
        query.
    :param keys: with `axis`, `key_dim`.
    :param values: with `axis`.
    :param key_dim: of the dot product.
    :param axis: of keys and values.
    :param att_dropout: probability of dropping a weight, in training.
    :param att_dropout_broadcast: drop a key for all queries, heads and sequences at once; default False.
    :param causal_query_spatial_dim: a dim of the query with the lengths of `axis`, or `axis` itself: query i sees the
        keys 0..i only.
    :param scale: default: size of `key_dim` ** -0.5.

    Raises DimError when a dim is missing. Source: Vaswani et al. 2017, arXiv:1706.03762.
    """
    spatial = (axis,) if causal_query_spatial_dim is None else (axis, causal_query_spatial_dim)
    query, keys, values = ops.clean(query, tuple(query.dims)), ops.clean(keys, spatial), ops.clean(values, spatial)
    return _attention(
        query, keys, values, key_dim, axis, causal_query_spatial_dim, scale, att_dropout, bool(att_dropout_broadcast)
    )


def _attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    key_dim: Dim,
    axis: Dim,
    causal: Dim | None = None,
    scale: float | None = None,
    att_dropout: float = 0.0,
    att_dropout_broadcast: bool = False,
    num_heads: Dim | None = None,
    value_dim: Dim | None = None,
    out_dim: Dim | None = None,
) -> Tensor:
    """`dot_attention` of operands that are clean; with `out_dim`, (num_heads, value_dim) are merged into it."""
    if scale is None:
        scale = key_dim.get_dim_value() ** -0.5
    if not (att_dropout and get_run_ctx().is_train_flag_enabled(func=dropout)):
        return ops.dot_attention(q, k, v, key_dim, axis, causal, scale, num_heads, value_dim, out_dim)
    weights = ops.dot_attention_weights(q, k, key_dim, axis, causal, scale)
    weights = _drop_weights(weights, att_dropout, att_dropout_broadcast, axis)
    return ops.attend(weights, v, axis, num_heads, value_dim, out_dim)


def _drop_weights(weights: Tensor, att_dropout: float, broadcast: bool, axis: Dim) -> Tensor:
    if not broadcast:
        return dropout(weights, att_dropout)
    if sum(d == axis for d in weights.dims) == 1:
        return dropout(weights, att_dropout, axis=axis)
    # Self-attention: the key axis under a name of its own, as "axis" would mean both.
    key = weights.dims[-1]
    weights, kv_axis = replace_dim(weights, in_dim=key)
    return replace_dim(dropout(weights, att_dropout, axis=kv_axis), in_dim=kv_axis, out_dim=key)[0]


class _Heads(Module):
    """What all multi-head attentions share: the dims, and how the heads come together again."""

    proj: Linear | None

    def _init_heads(
        self,
        proj_dim: Dim | None,
        key_dim_total: Dim,
        value_dim_total: Dim,
        num_heads: int | Dim,
        with_bias: bool,
        att_dropout: float,
        att_dropout_broadcast: bool | None,
    ) -> None:
        self.key_dim_total = key_dim_total
        self.value_dim_total = value_dim_total
        self.num_heads = num_heads if isinstance(num_heads, Dim) else Dim(num_heads, name="heads")
        for what, dim in (("key_dim_total", key_dim_total), ("value_dim_total", value_dim_total)):
            if dim.get_dim_value() % self.num_heads.get_dim_value():
                raise DimError(f"{type(self).__name__}: {what} {dim!r} cannot be divided among {self.num_heads!r}")
        self.key_dim_per_head = key_dim_total.div_left(self.num_heads)
        self.value_dim_per_head = value_dim_total.div_left(self.num_heads)
        self.att_dropout = att_dropout
        self.att_dropout_broadcast = bool(att_dropout_broadcast)
        self._scale = self.key_dim_per_head.get_dim_value() ** -0.5
        self.proj = Linear(value_dim_total, proj_dim, with_bias=with_bias) if proj_dim else None

    def _split(self, x: Tensor, axis: Dim, *parts: Dim) -> tuple[Tensor, ...]:
        """{..., axis} -> {..., heads, part} for each part; `axis` holds the parts head by head."""
        sizes = tuple([d.get_dim_value() for d in (self.num_heads, *parts)])
        return ops.split_heads(x, axis, self.num_heads, parts, sizes)

    def attention(self, q: Tensor, k: Tensor, v: Tensor, *, kv_axis: Dim) -> Tensor:
        """Attend, put the heads side by side, and project.

        :param q: {..., heads, key}.
        :param k: {..., kv_axis, heads, key}.
        :param v: {..., kv_axis, heads, value}, finite also in its padding, and so q and k.
        :param kv_axis: may be a dim of q too: self-attention.
        :returns: {..., proj} or {..., value_total}.
        """
        return self._attention(q, k, v, kv_axis)

    def _attention(self, q: Tensor, k: Tensor, v: Tensor, kv_axis: Dim, causal: Dim | None = None) -> Tensor:
        out = _attention(
            q,
            k,
            v,
            self.key_dim_per_head,
            kv_axis,
            causal,
            self._scale,
            self.att_dropout,
            self.att_dropout_broadcast,
            self.num_heads,
            self.value_dim_per_head,
            self.value_dim_total,
        )
        return out if self.proj is None else self.proj(out)

    def _sum_of_values(self, weights: Tensor, v: Tensor, axis: Dim) -> Tensor:
        if self.att_dropout:
            weights = _drop_weights(weights, self.att_dropout, self.att_dropout_broadcast, axis)
        out = ops.attend(weights, v, axis, self.num_heads, self.value_dim_per_head, self.value_dim_total)
        return out if self.proj is None else self.proj(out)


class SelfAttentionBase(_Heads):
    """What self-attentions share. Parameters: those of `qkv`, and of `proj` if there is one.

    The output of `qkv` holds, for each head in turn, query, key and value.
    """

    def __init__(
        self,
        in_dim: Dim,
        proj_dim: Dim | None,
        *,
        key_dim_total: Dim,
        value_dim_total: Dim,
        num_heads: int | Dim,
        with_bias: bool = True,
        att_dropout: float = 0.1,
        att_dropout_broadcast: bool | None = None,
    ) -> None:
        """
        :param in_dim: of the source.
        :param proj_dim: of the result; None for no projection, the result then has `value_dim_total`.
        :param key_dim_total: keys of all heads together.
        :param value_dim_total: values of all heads together.
        :param num_heads: divides both.
        :param with_bias: of the projections.
        :param att_dropout: probability of dropping an attention weight, in training.
        :param att_dropout_broadcast: drop a key for all queries, heads and sequences at once; default False.
        """
        super().__init__()
        self.in_dim = in_dim
        self.out_dim = proj_dim or value_dim_total
        self.qkv_dim_total = 2 * key_dim_total + value_dim_total
        self.qkv = Linear(in_dim, self.qkv_dim_total, with_bias=with_bias)
        self._init_heads(
            proj_dim, key_dim_total, value_dim_total, num_heads, with_bias, att_dropout, att_dropout_broadcast
        )

    def forward_qkv(self, source: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys {..., heads, key} and values {..., heads, value} of the source {..., in}."""
        key, value = self.key_dim_per_head, self.value_dim_per_head
        q, k, v = self._split(self.qkv(source), self.qkv_dim_total, key, key, value)
        return q, k, v


class SelfAttention(SelfAttentionBase):
    """Each frame attends to all frames of its sequence: {..., axis, in} -> {..., axis, proj}.

    See `SelfAttentionBase` for parameters. What lies in the padding does not matter.
    """

    def __call__(self, source: Tensor, *, axis: Dim) -> Tensor:
        """
        :param source: {..., axis, in}.
        :param axis: over which to attend.

        Raises DimError when the source lacks one of the dims.
        """
        q, k, v = self.forward_qkv(ops.clean(source, (axis,)))
        return self.attention(q, k, v, kv_axis=axis)


class CausalSelfAttentionState(State):
    """Keys and values so far: `k_accum` {..., accum, heads, key}, `v_accum` {..., accum, heads, value}, and the Dim
    `accum_axis`.
    """

    def __init__(
        self, *_args: Any, k_accum: Tensor | None = None, v_accum: Tensor | None = None, accum_axis: Dim | None = None
    ):
        """
        :param _args: as for `State`; the others are then ignored.
        :param k_accum: keys.
        :param v_accum: values.
        :param accum_axis: their spatial dim.
        """
        if _args:
            super().__init__(*_args)
        else:
            self.update(k_accum=k_accum, v_accum=v_accum, accum_axis=accum_axis)


class CausalSelfAttention(SelfAttentionBase):
    """Each frame attends to itself and those before it. See `SelfAttentionBase` for parameters.

    Whole sequences, single steps and chunks of sequences, in any succession, give the same frames.
    """

    def __call__(
        self, source: Tensor, axis: Dim, *, state: CausalSelfAttentionState | None = None
    ) -> tuple[Tensor, CausalSelfAttentionState]:
        """
        :param source: {..., axis, in}, or {..., in} for a single step.
        :param axis: spatial dim; `rf.single_step_dim` for a single step.
        :param state: what came before; None for nothing (single steps need a state).
        :returns: ({..., axis, proj}, new state). The frames of `source` are appended to each sequence of the state.

        Raises RfError for a single step without state.
        """
        q, k, v = self.forward_qkv(ops.clean(source, (axis,)))
        if starts_sequence(axis, state):
            out = self._attention(q, k, v, axis, causal=axis)
            return out, CausalSelfAttentionState(k_accum=k, v_accum=v, accum_axis=axis)
        k, v, history, new_state = append_to_state(k, v, axis, state)
        return self.attention(q, k, v, kv_axis=history), new_state

    def default_initial_state(self, *, batch_dims: Any) -> CausalSelfAttentionState:
        """Keys and values of no frames."""
        accum = Dim(0, name="self_att_history")
        dims = [*batch_dims, accum, self.num_heads]
        device = self.qkv.weight.device
        k = zeros([*dims, self.key_dim_per_head], device=device)
        v = zeros([*dims, self.value_dim_per_head], device=device)
        return CausalSelfAttentionState(k_accum=k, v_accum=v, accum_axis=accum)


def share_history(states: State) -> None:
    """Let the causal self-attentions among nested states that have no frames yet count them by one Dim, in place.

    For layers that get the same frames: the Dim of a longer history is then made once a step, not once a layer.
    """
    common: Dim | None = None
    pending: list[Any] = [states]
    while pending:
        state = pending.pop()
        if not isinstance(state, State):
            continue
        if not isinstance(state, CausalSelfAttentionState):
            pending.extend(state.values())
        elif state.accum_axis is not None and state.accum_axis.dimension == 0:
            own, common = state.accum_axis, common or state.accum_axis
            state.k_accum, _ = replace_dim(state.k_accum, in_dim=own, out_dim=common)
            state.v_accum, _ = replace_dim(state.v_accum, in_dim=own, out_dim=common)
            state.accum_axis = common


def starts_sequence(axis: Dim, state: CausalSelfAttentionState | None) -> bool:
    """Whether `axis` is a whole sequence, with nothing before it. Raises RfError for a single step without state."""
    if axis == single_step_dim:
        if state is None:
            raise RfError("a single step of causal self-attention needs a state; see default_initial_state")
        return False
    return state is None or state.accum_axis.dimension == 0


def append_to_state(
    k: Tensor, v: Tensor, axis: Dim, state: CausalSelfAttentionState | None
) -> tuple[Tensor, Tensor, Dim, CausalSelfAttentionState]:
    """Append new keys and values to those of the state.

    :returns: (keys, values, the dim of what each query may see, new state). After a single step a query sees
        everything. In a chunk, query i sees what came before and the frames 0..i of the chunk: the sizes of that dim
        depend on the query.
    """
    assert state is not None
    accum_axis: Dim = state["accum_axis"]
    if axis == single_step_dim:
        k, new_axis = cum_concat_step(k, prev_accum=state["k_accum"], axis=accum_axis)
        v, _ = cum_concat_step(v, prev_accum=state["v_accum"], axis=accum_axis, out_spatial_dim=new_axis)
        return k, v, new_axis, CausalSelfAttentionState(k_accum=k, v_accum=v, accum_axis=new_axis)
    k, new_axis = concat((state.k_accum, accum_axis), (k, axis))
    v, _ = concat((state.v_accum, accum_axis), (v, axis), out_dim=new_axis)
    history = _history_of_chunk(accum_axis, new_axis, axis)
    new_state = CausalSelfAttentionState(k_accum=k, v_accum=v, accum_axis=new_axis)
    k, _ = replace_dim(k, in_dim=new_axis, out_dim=history)
    v, _ = replace_dim(v, in_dim=new_axis, out_dim=history)
    return k, v, history, new_state


def _history_of_chunk(before: Dim, after: Dim, chunk: Dim) -> Dim:
    """A dim of the length of `after` whose sizes are those of `before` + 1, + 2, ... along `chunk`."""
    sizes, longest = before.get_sizes(), after.get_sizes()
    dims = longest.dims
    where = [dims.index(d) for d in sizes.dims]
    shape = [1] * len(dims)
    for axis, n in zip(where, sizes.values.shape):
        shape[axis] = n
    order = sorted(range(len(where)), key=where.__getitem__)
    first = sizes.values.transpose(order).reshape(shape)
    visible = first[..., None] + numpy.arange(1, chunk.get_dim_value() + 1, dtype=numpy.int32)
    # Queries in the padding of the chunk see no more than there is.
    visible = numpy.minimum(visible, longest.values[..., None])
    return Dim(None, name="self_att_history").fill(visible, (*dims, chunk))


class CrossAttention(_Heads):
    """Each frame of one sequence attends to all frames of another (the encoder).

    Parameters: those of `kv`, `q`, and `proj` if there is one. The output of `kv` holds, for each head in turn, key and
    value.
    """

    def __init__(
        self,
        encoder_dim: Dim,
        query_in_dim: Dim,
        proj_dim: Dim | None,
        *,
        key_dim_total: Dim,
        value_dim_total: Dim,
        num_heads: int | Dim,
        with_bias: bool = True,
        att_dropout: float = 0.1,
        att_dropout_broadcast: bool | None = None,
    ) -> None:
        """
        :param encoder_dim: of the encoder.
        :param query_in_dim: of the queries' source.

        The others are those of `SelfAttentionBase`.
        """
        super().__init__()
        self.encoder_dim = encoder_dim
        self.query_in_dim = query_in_dim
        self.out_dim = proj_dim or value_dim_total
        self.kv_dim_total = key_dim_total + value_dim_total
        self.kv = Linear(encoder_dim, self.kv_dim_total, with_bias=with_bias)
        self.q = Linear(query_in_dim, key_dim_total, with_bias=with_bias)
        # As large as with one matrix for q, k and v together (of d x 3d, when all have the same dim d).
        self.kv.weight.initial = init.Glorot(scale=3 / 4)
        self.q.weight.initial = init.Glorot(scale=1 / 2)
        self._init_heads(
            proj_dim, key_dim_total, value_dim_total, num_heads, with_bias, att_dropout, att_dropout_broadcast
        )

    def transform_encoder(self, encoder: Tensor, *, axis: Dim) -> State:
        """Keys and values of the encoder {..., axis, encoder}, once for all calls: State(k, v, kv_axis)."""
        k, v = self.forward_kv(ops.clean(encoder, (axis,)))
        return State(k=k, v=v, kv_axis=axis)

    def forward_kv(self, source: Tensor) -> tuple[Tensor, Tensor]:
        """Keys {..., heads, key} and values {..., heads, value}."""
        k, v = self._split(self.kv(source), self.kv_dim_total, self.key_dim_per_head, self.value_dim_per_head)
        return k, v

    def forward_query(self, source: Tensor) -> Tensor:
        """Queries {..., heads, key}."""
        return self._split(self.q(source), self.key_dim_total, self.key_dim_per_head)[0]

    def __call__(self, q: Tensor, encoder: State) -> Tensor:
        """
        :param q: source of the queries, {..., query_in}.
        :param encoder: of `transform_encoder`.
        :returns: {..., proj}. Sequences whose encoder has no frames get the bias of `proj`.
        """
        query = self.forward_query(ops.clean(q, q.dims))
        return self.attention(query, encoder["k"], encoder["v"], kv_axis=encoder["kv_axis"])
