"""Scatter: combine the entries that carry the same index. Padding among the entries never counts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy

from rf import dtypes
from rf._core import Tensor, apply
from rf._dim import Dim, as_dims
from rf._errors import DimError, RfError
from rf.ops import elementwise
from rf.ops.dims import tensor_beside
from rf.ops.index import _gather
from rf.ops.reduce import _neutral
from rf.ops.sequence import slice as _slice
from rf.ops.shape import expand_dims, split_dims

__all__ = [
    "scatter",
    "scatter_argmax",
    "scatter_count",
    "scatter_logmeanexp",
    "scatter_logsumexp",
    "scatter_mean",
]

MODES = ("sum", "max", "min", "mean", "logsumexp", "logmeanexp", "argmax")


def scatter(
    source: Tensor,
    *,
    indices: Tensor,
    indices_dim: Dim | Sequence[Dim],
    mode: str = "sum",
    fill_value: Any = None,
    out_dim: Dim | Sequence[Dim] | None = None,
    use_mask: bool | None = None,
) -> Tensor:
    """Combine the entries of `source` that have the same index: {..., indices_dim} -> {..., out_dim}.

    y[i] = sum (or max, ...) of x[j] over all j with indices[j] = i; other dims of `indices` are matched, those of
    `source` alone kept.

    :param source: bool is summed as int32.
    :param indices: integers in 0 .. size-1 of `out_dim`; of several dims, into their merged axis.
    :param indices_dim: the dims to remove.
    :param mode: "sum", "max", "min", "mean", "logsumexp", "logmeanexp" or "argmax".
    :param fill_value: result where an index never occurs; default: 0 for "sum" and "mean", -inf (or the lowest integer)
        for "max" and the logarithms, +inf (or the highest) for "min", -1 for "argmax".
    :param out_dim: default: the sparse dim of `indices`.
    :param use_mask: leave out padding of `indices_dim` (default).

    Raises DimError when a dim is missing, RfError for an unknown mode or `indices` that are no integers.
    """
    if mode not in MODES:
        raise RfError(f"scatter: unknown mode {mode!r}; choose one of {', '.join(MODES)}")
    index_dims, out_dims = as_dims(indices_dim), _out_dims(indices, out_dim)
    if len(out_dims) == 1:
        flat = out_dims[0]
    else:
        flat = Dim(None, name="scatter").fill(math.prod(d.get_dim_value() for d in out_dims))
    mask = use_mask is not False
    if mode in ("sum", "max", "min"):
        out = _scatter(source, indices, index_dims, flat, mode, mask)
    elif mode == "mean":
        total = _scatter(source, indices, index_dims, flat, "sum", mask)
        out = total / elementwise.maximum(_count(indices, index_dims, flat, mask), 1)
    elif mode == "argmax":
        fill_value = -1 if fill_value is None else fill_value
        out = _argmax(source, indices, index_dims, flat, mask)
    else:
        out = _logsumexp(source, indices, index_dims, flat, mask)
        if mode == "logmeanexp":
            count = elementwise.maximum(_count(indices, index_dims, flat, mask), 1)
            out = out - elementwise.log(elementwise.cast(count, out.dtype))
    if fill_value is not None:
        hit = elementwise.greater(_count(indices, index_dims, flat, mask), 0)
        filled = elementwise.where(hit, out, fill_value)
        filled.sparse_dim = out.sparse_dim
        out = filled
    return out if len(out_dims) == 1 else split_dims(out, axis=flat, dims=out_dims)


def _out_dims(indices: Tensor, out_dim: Dim | Sequence[Dim] | None) -> tuple[Dim, ...]:
    out_dim = indices.sparse_dim if out_dim is None else out_dim
    if out_dim is None:
        raise DimError(f"scatter: give out_dim=, as the indices have no sparse dim: {indices!r}")
    return as_dims(out_dim)


def _scatter(
    source: Tensor, indices: Tensor, index_dims: tuple[Dim, ...], out_dim: Dim, mode: str, use_mask: bool
) -> Tensor:
    if dtypes.kind(indices.dtype) != 1:
        raise RfError(f"scatter: indices must be integers, got {indices!r}")
    for d in index_dims:
        if d not in indices.dims and d not in source.dims:
            raise DimError(
                f"scatter: indices_dim {d!r} is a dim of neither operand:\n  source: {source!r}\n  indices: {indices!r}"
            )
    dtype = dtypes.get_default_int_dtype() if source.dtype == "bool" and mode == "sum" else source.dtype
    work = "int32" if dtype == "bool" else dtype
    x = source if work == source.dtype else elementwise.cast(source, work)
    sparse = source.sparse_dim if mode != "sum" else None
    batch = [d for d in indices.dims if d not in index_dims]
    initial = _neutral(mode, work)
    x = _masked_source(x, indices, index_dims, initial, use_mask)
    rest = [d for d in x.dims if d not in batch and d not in index_dims]
    lacking = [d for d in index_dims if d not in indices.dims]
    i = expand_dims(indices, lacking) if lacking else indices
    if use_mask:
        i = i.copy_masked(0)  # an index in padding may be anything
    if out_dim in batch or out_dim in rest:
        raise DimError(
            f"scatter: an operand already has out_dim {out_dim!r}:\n  source: {source!r}\n  indices: {indices!r}"
        )
    x, i = x.copy_transpose([*batch, *index_dims, *rest]), i.copy_transpose([*batch, *index_dims])
    feature = x.feature_dim
    if feature is not None and feature in index_dims:
        feature = out_dim
    n = out_dim.get_dim_value()
    target = out_dim if n else Dim(1, name="scatter")
    static = (len(batch), len(index_dims), n or 1, mode, initial)
    (out,) = apply("scatter", (x, i), static, [((*batch, target, *rest), work, feature if n else None, sparse)])
    if not n:
        out, _ = _slice(out, axis=target, size=out_dim)
    return out if work == dtype else elementwise.cast(out, dtype)


def _masked_source(
    source: Tensor, indices: Tensor, index_dims: tuple[Dim, ...], value: float, use_mask: bool
) -> Tensor:
    """The source with all dims of the indices, and `value` in the padding of `index_dims`."""
    needed = [*[d for d in indices.dims if d not in index_dims], *index_dims]
    masked = [d for d in index_dims if use_mask and d.need_masking()]
    for d in masked:
        needed += [s for s in d.base.size_dims or () if s not in needed]
    missing = [d for d in needed if d not in source.dims]
    out = expand_dims(source, missing) if missing else source
    return out.copy_masked(value, dims=masked) if masked else out


def _count(indices: Tensor, index_dims: tuple[Dim, ...], out_dim: Dim, use_mask: bool) -> Tensor:
    ones = elementwise.cast(elementwise.equal(indices, indices), "int32")
    return _scatter(ones, indices, index_dims, out_dim, "sum", use_mask)


def _argmax(source: Tensor, indices: Tensor, index_dims: tuple[Dim, ...], out_dim: Dim, use_mask: bool) -> Tensor:
    if len(index_dims) != 1:
        raise DimError(
            f"scatter_argmax: takes exactly one indices_dim, got {list(index_dims)}; merge them first (rf.merge_dims)"
        )
    (dim,) = index_dims
    best = _gather(_scatter(source, indices, index_dims, out_dim, "max", use_mask), _safe(indices, use_mask), out_dim)
    is_best = elementwise.compare(source, "equal", best, allow_broadcast_all_sources=True)
    n = dim.get_dim_value()
    positions = tensor_beside(source, numpy.arange(n), (dim,))
    first = _scatter(elementwise.where(is_best, positions, n), indices, index_dims, out_dim, "min", use_mask)
    out = elementwise.minimum(first, max(n - 1, 0))
    out.sparse_dim = dim
    return out


def _safe(indices: Tensor, use_mask: bool) -> Tensor:
    return indices.copy_masked(0) if use_mask else indices


def _logsumexp(source: Tensor, indices: Tensor, index_dims: tuple[Dim, ...], out_dim: Dim, use_mask: bool) -> Tensor:
    if not dtypes.is_float_dtype(source.dtype):
        source = elementwise.cast(source, dtypes.get_default_float_dtype())
    # what padding holds must not reach exp, nor its gradient
    source = _masked_source(source, indices, index_dims, 0, use_mask)
    top = _scatter(source, indices, index_dims, out_dim, "max", use_mask)
    (top,) = apply("stop_gradient", (top,), (), [(top.dims, top.dtype, top.feature_dim, None)])
    top = elementwise.where(elementwise.is_finite(top), top, 0.0)
    at_entries = _gather(top, _safe(indices, use_mask), out_dim)
    shifted = elementwise.exp(elementwise.combine(source, "sub", at_entries, allow_broadcast_all_sources=True))
    total = _scatter(shifted, indices, index_dims, out_dim, "sum", use_mask)
    some = elementwise.greater(total, 0)
    # log(0) is avoided, as its gradient is inf * 0
    return elementwise.where(some, elementwise.log(elementwise.where(some, total, 1)) + top, float("-inf"))


def scatter_mean(
    source: Tensor,
    *,
    indices: Tensor,
    indices_dim: Dim | Sequence[Dim],
    fill_value: Any = None,
    out_dim: Dim | Sequence[Dim] | None = None,
) -> Tensor:
    """`scatter` with mode "mean"."""
    return scatter(
        source, indices=indices, indices_dim=indices_dim, mode="mean", fill_value=fill_value, out_dim=out_dim
    )


def scatter_argmax(
    source: Tensor,
    *,
    indices: Tensor,
    indices_dim: Dim,
    invalid_idx: int = -1,
    out_dim: Dim | Sequence[Dim] | None = None,
) -> Tensor:
    """For each index, where along `indices_dim` its largest entry is (the first of equal ones): int32 with sparse dim
    `indices_dim`.

    `invalid_idx` where an index never occurs. Other parameters as in `scatter`.
    """
    return scatter(
        source, indices=indices, indices_dim=indices_dim, mode="argmax", fill_value=invalid_idx, out_dim=out_dim
    )


def scatter_logsumexp(
    source: Tensor,
    *,
    indices: Tensor,
    indices_dim: Dim | Sequence[Dim],
    fill_value: Any = None,
    out_dim: Dim | Sequence[Dim] | None = None,
) -> Tensor:
    """`scatter` with mode "logsumexp": log(sum(exp(x))), stable; -inf where an index never occurs."""
    return scatter(
        source, indices=indices, indices_dim=indices_dim, mode="logsumexp", fill_value=fill_value, out_dim=out_dim
    )


def scatter_logmeanexp(
    source: Tensor,
    *,
    indices: Tensor,
    indices_dim: Dim | Sequence[Dim],
    fill_value: Any = None,
    out_dim: Dim | Sequence[Dim] | None = None,
) -> Tensor:
    """`scatter` with mode "logmeanexp": logsumexp minus the logarithm of the number of entries."""
    return scatter(
        source, indices=indices, indices_dim=indices_dim, mode="logmeanexp", fill_value=fill_value, out_dim=out_dim
    )


def scatter_count(
    *,
    indices: Tensor,
    indices_dim: Dim | Sequence[Dim],
    out_dim: Dim | Sequence[Dim] | None = None,
    fill_value: Any = None,
) -> Tensor:
    """How often each index occurs, int32; `fill_value` instead of 0 where given. Parameters as in `scatter`."""
    ones = elementwise.equal(indices, indices)
    return scatter(ones, indices=indices, indices_dim=indices_dim, fill_value=fill_value, out_dim=out_dim)
