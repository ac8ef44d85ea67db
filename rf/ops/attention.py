"""Attention as fused ops: scores, softmax and the weighted sum, for dot-product and relative-position scores.

The operands must hold no NaN or infinity in their padding (`clean` takes care of it); then the results, and all
gradients, do not depend on what it holds. Keys in the padding get the weight 0, exactly; where there are no keys, all
weights are 0, and so is the result.

Keys and queries may have the same spatial dim (self-attention): in the attention weights, the key axis is then the
entry of match priority 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rf import dtypes
from rf._core import Op, Tensor
from rf._dim import Dim
from rf._errors import DimError
from rf._plan import Plan, PlanBuilder, mask_pattern, same

Piece = tuple[Any, list[Dim]]
"""A slot of a plan and the dims of its axes."""


# -- masking and heads


def _plan_clean(p: PlanBuilder, x: Tensor, dims: tuple[Dim, ...]) -> Plan:
    slot: Any = 0
    for d in dims:
        if d in x.dims and d.dynamic and d.base.size_dims and all(s in x.dims for s in d.base.size_dims):
            slot = p.emit("fill_outside", slot, p.mask(d.base, x.dims), static=(0,))
    slot = p.emit("identity", 0) if slot == 0 else slot
    return p.finish(p.out(slot, x.dims, x.dtype, x.feature_dim, x.sparse_dim))


clean = Op("clean", num_tensors=1, planner=_plan_clean, masked=True)
"""`clean(x, dims)`: zeros in the padding of those of `dims` (a tuple) that need masking; others are skipped."""


def _plan_split_heads(
    p: PlanBuilder, x: Tensor, axis: Dim, num_heads: Dim, parts: tuple[Dim, ...], sizes: tuple[int, ...]
) -> Plan:
    if axis not in x.dims:
        raise DimError(f"split_heads: {axis!r} is not a dim of {x!r}")
    rest = [d for d in x.dims if d != axis]
    slot = p.permute(0, x.dims, [*rest, axis])
    slot = p.emit("unflatten", slot, static=(len(rest), (sizes[0], sum(sizes[1:]))))
    if len(parts) == 1:
        slots: Sequence[Any] = (slot,)
    else:
        slots = p.emit("split", slot, static=(len(rest) + 1, sizes[1:]), num_out=len(parts))
    return p.finish(*[p.out(s, [*rest, num_heads, part], x.dtype) for s, part in zip(slots, parts)], single=False)


split_heads = Op("split_heads", num_tensors=1, planner=_plan_split_heads)
"""`split_heads(x {..., axis}, axis, num_heads, parts, sizes)` -> a tuple of {..., heads, part}, one for each of the
dims `parts`.

`axis` holds, for each head in turn, the parts one after the other. `sizes`: the ints of (num_heads, *parts).
"""


# -- pieces of plans


def _scores(p: PlanBuilder, q: Piece, k: Piece, key_dim: Dim, key: Dim, query: Dim | None, what: str) -> Piece:
    """q . k over `key_dim`: (common of both..., rest of q..., rest of k..., key), where `key` stands for the spatial
    axis of k.

    With `query`, that axis comes last among the rest of q, and there is no rest of k.
    """
    (q_slot, q_dims), (k_slot, k_dims) = q, k
    rest_q = [d for d in q_dims if d != key_dim]
    rest_k = [d for d in k_dims if d not in (key_dim, key)]
    common = [d for d in rest_q if any(same(d, o) for o in rest_k)]
    rest_q = [d for d in rest_q if d not in common]
    rest_k = [d for d in rest_k if d not in common]
    if query is not None:
        if rest_k or query not in rest_q:
            raise DimError(
                f"{what}: the keys {k_dims} may have no other dims than the queries {q_dims}, besides {key!r}; "
                f"the queries need the dim {query!r}"
            )
        rest_q = [*[d for d in rest_q if d != query], query]
    k_key = next(d for d in k_dims if d == key)
    a = p.permute(q_slot, q_dims, [*common, *rest_q, key_dim])
    b = p.permute(k_slot, k_dims, [*common, key_dim, *rest_k, k_key])
    slot = p.emit("contract", a, b, static=(len(common), len(rest_q), 1, len(rest_k) + 1))
    return slot, [*common, *rest_q, *rest_k, key]


def _key_mask(p: PlanBuilder, dims: list[Dim], axis: Dim, causal: bool) -> tuple[Any, list[Dim]]:
    """The mask of the key axis, or -1, for scores (dims..., axis), and the dims in front that these lack.

    In causal self-attention no valid query sees any padding.
    """
    size_dims = tuple(axis.base.size_dims or ()) if axis.dynamic and not causal else ()
    missing: list[Dim] = [s for s in size_dims if s not in dims]
    if not size_dims:
        return -1, missing
    # An axis of the same dim among `dims` is that of the queries.
    before = mask_pattern(size_dims, [*missing, *dims])
    return p.auxiliary("mask", axis.base, (*before, len(size_dims)), "bool"), missing


def _softmax(
    p: PlanBuilder, scores: Piece, axis: Dim, causal: bool, position: Any = None, scale: float | None = None
) -> Piece:
    """Softmax over the last axis, which is `axis`; its padding gets 0.

    With `position`, scores of relative positions are added, shifted, and the sum is scaled.
    """
    slot, dims = scores
    mask, missing = _key_mask(p, dims[:-1], axis, causal)
    if position is None:
        slot = p.emit("attention_softmax", slot, mask, static=(causal,))
    else:
        slot = p.emit("rel_attention_softmax", slot, position, mask, static=(scale, causal))
    key = axis.base.copy(match_priority=1) if axis in dims[:-1] else axis.base
    return slot, [*missing, *dims[:-1], key]


def _merged(
    p: PlanBuilder,
    values: Piece,
    num_heads: Dim | None,
    value_dim: Dim | None,
    out_dim: Dim | None,
) -> Piece:
    """With `out_dim`, (num_heads, value_dim) merged into it."""
    slot, dims = values
    if out_dim is None or num_heads is None or value_dim is None:
        return values
    rest = [d for d in dims if d not in (num_heads, value_dim)]
    slot = p.permute(slot, dims, [*rest, num_heads, value_dim])
    return p.emit("flatten", slot, static=(len(rest), 2)), [*rest, out_dim]


def _weighted_sum(
    p: PlanBuilder,
    weights: Piece,
    v: Piece,
    axis: Dim,
    num_heads: Dim | None,
    value_dim: Dim | None,
    out_dim: Dim | None,
) -> Piece:
    """weights . v over `axis`; with `out_dim`, (num_heads, value_dim) are merged into it."""
    (w_slot, w_dims), (v_slot, v_dims) = weights, v
    w_key = max((d for d in w_dims if d == axis), key=lambda d: d.match_priority)
    v_key = next(d for d in v_dims if d == axis)
    rest_w = [d for d in w_dims if d is not w_key]
    rest_v = [d for d in v_dims if d is not v_key]
    common = [d for d in rest_w if any(same(d, o) for o in rest_v)]
    rest_w = [d for d in rest_w if d not in common]
    rest_v = [d for d in rest_v if d not in common]
    a = p.permute(w_slot, w_dims, [*common, *rest_w, w_key])
    b = p.permute(v_slot, v_dims, [*common, v_key, *rest_v])
    slot = p.emit("contract", a, b, static=(len(common), len(rest_w), 1, len(rest_v)))
    return _merged(p, (slot, [*common, *rest_w, *rest_v]), num_heads, value_dim, out_dim)


def _check(what: str, key_dim: Dim, axis: Dim, **operands: Tensor) -> str:
    """The dtype to compute in."""
    for dim, names in ((key_dim, ("queries", "keys")), (axis, ("keys", "values"))):
        for name in names:
            if name in operands and dim not in operands[name].dims:
                lines = "".join(f"\n  {n}: {t!r}" for n, t in operands.items())
                raise DimError(f"{what}: {dim!r} is not a dim of the {name}:{lines}")
    dtype = "bool"
    for t in operands.values():
        dtype = dtypes.result_type(dtype, t.dtype)
    return dtypes.floating(dtype)


# -- dot-product attention


def _dot_weights(
    p: PlanBuilder, q: Tensor, k: Tensor, key_dim: Dim, axis: Dim, causal: Dim | None, scale: float, dtype: str
) -> Piece:
    slot = p.cast(0, q.dtype, dtype)
    if scale != 1:
        slot = p.emit("scale", slot, static=(scale,))
    scores = _scores(
        p, (slot, list(q.dims)), (p.cast(1, k.dtype, dtype), list(k.dims)), key_dim, axis, causal, "attention"
    )
    return _softmax(p, scores, axis, causal is not None)


def _plan_dot_weights(
    p: PlanBuilder, q: Tensor, k: Tensor, key_dim: Dim, axis: Dim, causal: Dim | None, scale: float
) -> Plan:
    dtype = _check("attention", key_dim, axis, queries=q, keys=k)
    slot, dims = _dot_weights(p, q, k, key_dim, axis, causal, scale, dtype)
    return p.finish(p.out(slot, dims, dtype))


dot_attention_weights = Op("dot_attention_weights", num_tensors=2, planner=_plan_dot_weights, masked=True)
"""`(q {..., key}, k {..., axis, key}, key_dim, axis, causal_query_dim | None, scale) -> {..., axis}`: softmax(scale * q
. k).
"""


def _fused_dot_attention(
    p: PlanBuilder,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    key_dim: Dim,
    axis: Dim,
    causal: Dim | None,
    scale: float,
    dtype: str,
) -> Piece | None:
    """All in one kernel, where keys and values have the same dims besides their last one, and the queries these too."""

    def without(t: Tensor, *dims: Dim) -> list[Dim]:
        return [d for d in t.dims if d not in dims]

    common = without(k, key_dim, axis)
    rest = [d for d in without(q, key_dim) if d not in common]
    values = [d for d in without(v, axis) if d not in common]
    if len(values) != 1 or len(common) + 2 != len(k.dims) or len(common) + 2 != len(v.dims):
        return None
    if len(common) + len(rest) + 1 != len(q.dims) or any(d not in q.dims for d in common):
        return None
    if causal is not None:
        if causal not in rest:
            return None
        rest = [*[d for d in rest if d != causal], causal]
    common = [d for d in q.dims if d in common]
    mask, missing = _key_mask(p, [*common, *rest], axis, causal is not None)
    if missing:
        return None
    slots = [
        p.permute(p.cast(i, t.dtype, dtype), t.dims, [*common, *last])
        for i, (t, last) in enumerate(((q, [*rest, key_dim]), (k, [axis, key_dim]), (v, [axis, *values])))
    ]
    slot = p.emit("dot_attention", *slots, mask, static=(len(common), causal is not None, scale))
    return slot, [*common, *rest, *values]


def _plan_dot_attention(
    p: PlanBuilder,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    key_dim: Dim,
    axis: Dim,
    causal: Dim | None,
    scale: float,
    num_heads: Dim | None,
    value_dim: Dim | None,
    out_dim: Dim | None,
) -> Plan:
    dtype = _check("attention", key_dim, axis, queries=q, keys=k, values=v)
    fused = _fused_dot_attention(p, q, k, v, key_dim, axis, causal, scale, dtype)
    if fused is not None:
        slot, dims = _merged(p, fused, num_heads, value_dim, out_dim)
        return p.finish(p.out(slot, dims, dtype, out_dim or v.feature_dim))
    weights = _dot_weights(p, q, k, key_dim, axis, causal, scale, dtype)
    v_piece = p.cast(2, v.dtype, dtype), list(v.dims)
    slot, dims = _weighted_sum(p, weights, v_piece, axis, num_heads, value_dim, out_dim)
    return p.finish(p.out(slot, dims, dtype, out_dim or v.feature_dim))


dot_attention = Op("dot_attention", num_tensors=3, planner=_plan_dot_attention, masked=True)
"""`(q, k, v, key_dim, axis, causal_query_dim | None, scale, heads | None, value_dim | None, out_dim | None)`: weights
and sum in one.
"""


def _plan_attend(
    p: PlanBuilder,
    weights: Tensor,
    v: Tensor,
    axis: Dim,
    num_heads: Dim | None,
    value_dim: Dim | None,
    out_dim: Dim | None,
) -> Plan:
    for t in (weights, v):
        if axis not in t.dims:
            raise DimError(f"attention: {axis!r} is not a dim of both:\n  weights: {weights!r}\n  values: {v!r}")
    dtype = dtypes.result_type(weights.dtype, v.dtype)
    pieces = [(p.cast(i, t.dtype, dtype), list(t.dims)) for i, t in enumerate((weights, v))]
    slot, dims = _weighted_sum(p, pieces[0], pieces[1], axis, num_heads, value_dim, out_dim)
    return p.finish(p.out(slot, dims, dtype, out_dim or v.feature_dim))


attend = Op("attend", num_tensors=2, planner=_plan_attend)
"""`(weights {..., axis}, v {..., axis, value}, axis, heads | None, value_dim | None, out_dim | None)`: the sum over
`axis`.

With `out_dim`, the dims (heads, value_dim) of the result are merged into it.
"""


# -- relative positions


def _rel_weights(
    p: PlanBuilder,
    operands: Sequence[Tensor | None],
    key_dim: Dim,
    axis: Dim,
    query: Dim,
    pos_dim: Dim,
    causal: bool,
    scale: float,
    dtype: str,
) -> Piece:
    q, k, pos, bias_u, bias_v = operands
    assert q is not None and k is not None and pos is not None
    slots = [-1 if t is None else p.cast(i, t.dtype, dtype) for i, t in enumerate(operands)]
    what = "relative-position attention"
    if query not in q.dims or pos_dim not in pos.dims or key_dim not in pos.dims:
        raise DimError(
            f"{what}: {query!r}, {pos_dim!r} or {key_dim!r} is missing in\n  queries: {q!r}\n  positions: {pos!r}"
        )
    q_dims = list(q.dims)
    with_bias = []
    for i, bias in ((3, bias_u), (4, bias_v)):
        with_bias.append(slots[0] if bias is None else p.emit("add", slots[0], p.align(slots[i], bias.dims, q_dims)))
    content, dims = _scores(p, (with_bias[0], q_dims), (slots[1], list(k.dims)), key_dim, axis, query, what)
    position, pos_dims = _scores(p, (with_bias[1], q_dims), (slots[2], list(pos.dims)), key_dim, pos_dim, query, what)
    position = p.permute(position, pos_dims, [*dims[:-1], pos_dim])
    return _softmax(p, (content, dims), axis, causal, position, scale)


def _plan_rel_weights(
    p: PlanBuilder,
    q: Tensor,
    k: Tensor,
    pos: Tensor,
    bias_u: Tensor | None,
    bias_v: Tensor | None,
    key_dim: Dim,
    axis: Dim,
    query: Dim,
    pos_dim: Dim,
    causal: bool,
    scale: float,
) -> Plan:
    dtype = _check("relative-position attention", key_dim, axis, queries=q, keys=k)
    slot, dims = _rel_weights(p, (q, k, pos, bias_u, bias_v), key_dim, axis, query, pos_dim, causal, scale, dtype)
    return p.finish(p.out(slot, dims, dtype))


rel_attention_weights = Op("rel_attention_weights", num_tensors=5, planner=_plan_rel_weights, masked=True)
"""Attention weights from content and relative position.

`(q {..., query, key}, k {..., axis, key}, pos {..., pos, key}, bias_u | None, bias_v | None, key_dim, axis, query_dim,
pos_dim, causal, scale)` -> {..., query, axis}: softmax over axis of scale * ((q + u) . k[j] + (q + v) . pos[j - i +
n_query - 1]).
"""


# -- rotary positions


def _plan_rope(p: PlanBuilder, x: Tensor, encoding: Tensor, feat_dim: Dim) -> Plan:
    for t in (x, encoding):
        if feat_dim not in t.dims:
            raise DimError(f"rope: {feat_dim!r} is not a dim of both:\n  x: {x!r}\n  encoding: {encoding!r}")
    dims = [*[d for d in x.dims if d != feat_dim], feat_dim]
    missing = [d for d in encoding.dims if d not in dims]
    if missing:
        raise DimError(f"rope: x lacks the dims {missing} of the encoding:\n  x: {x!r}\n  encoding: {encoding!r}")
    slot = p.permute(0, x.dims, dims)
    encoded = p.align(p.cast(1, encoding.dtype, x.dtype), encoding.dims, dims)
    return p.finish(p.out(p.emit("rope", slot, encoded), dims, x.dtype, x.feature_dim))


rope = Op("rope", num_tensors=2, planner=_plan_rope)
"""`(x {..., feat}, encoding {..., feat} of sines, then cosines, feat_dim)`: neighbors (2i, 2i+1) rotated by the i-th
angle.

Source: Su et al. 2021, arXiv:2104.09864.
"""
