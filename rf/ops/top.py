"""The largest entries: as indices (top_k) or as masks (top_k_mask, top_p_mask), for search and sampling."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy

from rf._core import Op, Tensor
from rf._dim import Dim
from rf._errors import DimError, RfError
from rf._plan import Plan, PlanBuilder
from rf.ops import elementwise
from rf.ops.concat import pad
from rf.ops.dims import tensor_beside
from rf.ops.reduce import _neutral, fill_padding, masked_dims
from rf.ops.scatter import scatter
from rf.ops.sequence import cumsum, sort
from rf.ops.shape import _feature, own_dim, replace_dim

__all__ = ["top_k", "top_k_mask", "top_p_mask"]


def _plan_top_k(p: PlanBuilder, x: Tensor, axes: tuple[Dim, ...], k_dim: Dim, k: int, in_order: bool) -> Plan:
    own = [own_dim("top_k", x, d) for d in axes]
    dtype = "int32" if x.dtype == "bool" else x.dtype
    slot: Any = p.cast(0, x.dtype, dtype)
    order = list(x.dims)
    masked = masked_dims(x.dims, own)
    if masked:
        slot, order = fill_padding(p, slot, order, masked, _neutral("max", dtype))
    rest = [d for d in order if not any(d is o for o in own)]
    slot = p.permute(slot, order, [*rest, *own])
    if len(own) > 1:
        slot = p.emit("flatten", slot, static=(len(rest), len(own)))
    values, indices = p.emit("top_k", slot, static=(len(rest), k, in_order), num_out=2)
    if any(d.base is k_dim.base for d in rest):
        raise DimError(f"top_k: {x!r} already has k_dim {k_dim!r}")
    dims = [*rest, k_dim.base]
    feature = _feature(x, own, k_dim)
    return p.finish(
        p.out(p.cast(values, dtype, x.dtype), dims, x.dtype, feature, x.sparse_dim),
        p.out(indices, dims, "int32", None, own[0].base if len(own) == 1 else None),
    )


_top_k = Op("top_k", num_tensors=1, planner=_plan_top_k, masked=True)


def top_k(
    source: Tensor,
    *,
    axis: Dim | Sequence[Dim],
    k: int | Tensor | None = None,
    k_dim: Dim | None = None,
    sorted: bool = True,
) -> tuple[Tensor, Any, Dim]:
    """The k largest entries along a dim, or over several dims together: {..., axis} -> {..., k_dim}.

    :param source: any real dtype.
    :param axis: a dim, or a list of dims such as [beam, vocabulary].
    :param k: how many; an int or an int Tensor. At most the number of entries, unless an axis needs masking.
    :param k_dim: a dim with the size k; default: a new one. Without sizes it takes over k.
    :param sorted: largest first. Of equal values, the first ones are taken, and come first.
    :returns: (values, indices, k_dim): indices int32 with sparse dim `axis`; for a list of dims, a list with the
        indices into each. Where a sequence has fewer than k entries, -inf (or the lowest integer) follows, with any
        index.

    Raises DimError when an axis is missing, or has fewer than k entries and needs no masking.
    """
    axes = (axis,) if isinstance(axis, Dim) else tuple(axis)
    if k_dim is None or not k_dim.is_dim_known():
        if k is None:
            raise RfError(f"top_k over {list(axes)}: give k, or a k_dim with a size")
        size = Dim(k, name="top-k")
        if k_dim is None:
            k_dim = size
        else:
            k_dim.copy_from(size)
    num = k_dim.get_dim_value()
    if isinstance(k, int) and k != num:
        raise DimError(f"top_k: k is {k}, but k_dim is {k_dim!r}")
    extents = [d.get_dim_value() for d in axes]
    total = math.prod(extents)
    if num <= total:
        values, indices = _top_k(source, axes, k_dim, num, sorted)
    else:
        own = [own_dim("top_k", source, d) for d in axes]
        if not any(d.need_masking() for d in own):
            raise DimError(f"top_k: {num} entries asked for, but {list(axes)} of {source!r} have {total}")
        some = Dim(total, name="top-k")
        values, indices = _top_k(source, axes, some, total, sorted)
        values = _fill_up(values, some, k_dim, _neutral("max", source.dtype))
        indices = _fill_up(indices, some, k_dim, 0)
    if isinstance(axis, Dim):
        return values, indices, k_dim
    each = []
    for d, n in reversed([*zip(axes, extents)][1:]):
        each.append(indices % max(n, 1))
        each[-1].sparse_dim = d
        indices = indices // max(n, 1)
    first = indices.copy()
    first.sparse_dim = axes[0]
    return values, [first, *reversed(each)], k_dim


def _fill_up(x: Tensor, axis: Dim, out_dim: Dim, value: float) -> Tensor:
    out, (longer,) = pad(x, axes=[axis], padding=[(0, out_dim.get_dim_value() - axis.get_dim_value())], value=value)
    return replace_dim(out, in_dim=longer, out_dim=out_dim)[0]


def _mark(hit: Tensor, indices: Tensor, indices_dim: Dim, axis: Dim) -> Tensor:
    """True at those `indices` into `axis` for which `hit` holds; never in the padding of `axis`."""
    count = scatter(elementwise.cast(hit, "int32"), indices=indices, indices_dim=indices_dim, out_dim=axis)
    mask = elementwise.greater(count, 0)
    return mask.copy_masked(False, dims=[axis])


def top_k_mask(values: Tensor, *, axis: Dim, k: int | Tensor) -> Tensor:
    """True at the `k` largest entries along `axis`: {..., axis} -> bool {..., axis}.

    :param values: any real dtype.
    :param k: an int or an int Tensor; where a sequence has fewer entries, all of them. Of equal values, the first ones
        are taken.
    :returns: False in the padding of `axis`.
    """
    n = axis.get_dim_value()
    k = min(k, n) if isinstance(k, int) else elementwise.minimum(k, n)
    _, indices, k_dim = top_k(values, axis=axis, k=k)
    return _mark(elementwise.greater_equal(indices, 0), indices, k_dim, axis)


def top_p_mask(
    probs: Tensor, *, axis: Dim, p: float | Tensor, one_more: bool = True, min_tokens_to_keep: int = 1
) -> Tensor:
    """True at the most probable entries, which together have probability `p`: {..., axis} -> bool {..., axis}.

    Nucleus sampling: Holtzman et al. 2020, arXiv:1904.09751.

    :param probs: probabilities, which sum to 1 over `axis`.
    :param p: a number, or a Tensor without `axis`.
    :param one_more: take the entry that reaches `p` too; else the largest set with at most `p`.
    :param min_tokens_to_keep: take at least so many.
    :returns: False in the padding of `axis`.
    """
    ordered, indices, out_dim = sort(probs, axis=axis, descending=True)
    ordered = ordered.copy_masked(0, dims=[out_dim])
    total = cumsum(ordered, spatial_dim=out_dim)
    hit = elementwise.less(total - ordered, p) if one_more else elementwise.less_equal(total, p)
    first = tensor_beside(probs, numpy.arange(out_dim.get_dim_value()) < min_tokens_to_keep, (out_dim,), "bool")
    hit = elementwise.logical_or(hit, first)
    return _mark(hit, indices, out_dim, axis)
