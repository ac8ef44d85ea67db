"""Reductions over dims. Frames in the padding never count, whatever they hold: in value and in gradient."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rf import dtypes
from rf._backend_nn import dtypes_lowest
from rf._core import Op, Tensor
from rf._dim import Dim, as_dims
from rf._errors import DimError, RfError
from rf._plan import Plan, PlanBuilder
from rf.ops.create import ones_like
from rf.ops.elementwise import cast, log, maximum
from rf.ops.shape import split_dims

__all__ = [
    "reduce",
    "reduce_all",
    "reduce_any",
    "reduce_argmax",
    "reduce_argmin",
    "reduce_logmeanexp",
    "reduce_logsumexp",
    "reduce_max",
    "reduce_mean",
    "reduce_min",
    "reduce_out",
    "reduce_sum",
]

MODES = ("sum", "mean", "max", "min", "logsumexp", "any", "all", "argmax", "argmin")


def masked_dims(dims: Sequence[Dim], axes: Sequence[Dim]) -> list[Dim]:
    """Those of `dims` whose padding takes part when `axes` are reduced: masked axes, and dims whose sizes depend on an
    axis."""
    return [
        d for d in dims if d.base.size_dims and (any(d is a for a in axes) or any(s in axes for s in d.base.size_dims))
    ]


def fill_padding(
    p: PlanBuilder, slot: Any, dims: Sequence[Dim], masked: Sequence[Dim], value: float
) -> tuple[Any, list[Dim]]:
    """Emit `value` in the padding of the `masked` dims; size dims that the array lacks are put in front. Returns (slot,
    dims)."""
    missing: list[Dim] = []
    for d in masked:
        missing += [s for s in d.base.size_dims or () if s not in dims and s not in missing]
    order = [*missing, *dims]
    for d in masked:
        slot = p.emit("fill_outside", slot, p.mask(d, order), static=(value,))
    return slot, order


def _neutral(mode: str, dtype: str) -> float:
    if mode in ("any", "all"):
        return mode == "all"
    if mode in ("sum", "mean"):
        return 0
    low = mode in ("max", "argmax", "logsumexp")
    if dtypes.is_float_dtype(dtype):
        return float("-inf") if low else float("inf")
    if dtype == "bool":
        return not low
    lowest = int(dtypes_lowest(dtype))
    return lowest if low else -1 - lowest if lowest else 255


def _entries(name: str, x: Tensor, axes: Sequence[Dim]) -> tuple[Dim, ...]:
    """The entry of `x.dims` for each axis; of a dim that occurs twice, the one of highest priority that is left."""
    found: list[Dim] = []
    for axis in sorted(axes, key=lambda d: -d.match_priority):
        left = [d for d in x.dims if d == axis and not any(d is f for f in found)]
        exact = [d for d in left if axis.match_priority and d.match_priority == axis.match_priority]
        if not left:
            raise DimError(f"{name}: axis {axis!r} is not a dim of {x!r}")
        found.append(exact[0] if exact else max(left, key=lambda d: d.match_priority))
    return tuple(found)


def _plan_reduce(p: PlanBuilder, x: Tensor, mode: str, axis: Dim | Sequence[Dim], use_mask: bool) -> Plan:
    name = f"reduce_{mode}"
    axes = as_dims(axis)
    if mode.startswith("arg") and len(axes) != 1:
        raise DimError(f"{name}: takes exactly one axis, got {list(axes)}; merge the dims first (rf.merge_dims)")
    if mode in ("any", "all") and x.dtype != "bool":
        raise RfError(f"{name}: needs a bool tensor, got {x!r}")
    axes = _entries(name, x, axes)
    dtype = x.dtype
    if mode in ("mean", "logsumexp"):
        dtype = dtypes.floating(dtype)
    elif mode == "sum" and dtype == "bool":
        dtype = dtypes.get_default_int_dtype()
    elif mode in ("max", "min", "argmax", "argmin") and dtype == "bool":
        dtype = "int32"
    slot: Any = p.cast(0, x.dtype, dtype)
    masked = masked_dims(x.dims, axes) if use_mask else []
    order = list(x.dims)
    if masked:
        slot, order = fill_padding(p, slot, order, masked, _neutral(mode, dtype))
    rest = [d for d in order if not any(d is a for a in axes)]
    numbers = tuple(i for i, d in enumerate(order) if any(d is a for a in axes))
    sparse = x.sparse_dim
    if mode.startswith("arg"):
        slot = p.emit(mode, slot, static=(numbers[0],))
        dtype, sparse = "int32", axes[0].base
    elif mode == "mean":
        slot = _emit_mean(p, slot, order, axes, masked, dtype)
        sparse = None
    else:
        slot = p.emit(mode, slot, static=(numbers,))
        if mode in ("max", "min") and x.dtype == "bool":
            slot, dtype = p.cast(slot, dtype, "bool"), "bool"
    if dtypes.kind(dtype) > 1 or (mode == "sum" and x.dtype == "bool"):
        sparse = None
    return p.finish(p.out(slot, rest, dtype, x.feature_dim, sparse))


def _emit_mean(p: PlanBuilder, slot: Any, order: list[Dim], axes: Sequence[Dim], masked: list[Dim], dtype: str) -> Any:
    """Masked sum / number of valid frames (at least 1: the mean over no frames is 0), and a plain mean over the other
    axes."""

    def numbers(dims: Sequence[Dim]) -> tuple[int, ...]:
        return tuple(i for i, d in enumerate(order) if any(d is a for a in dims))

    if not masked:
        return p.emit("mean", slot, static=(numbers(axes),))
    if len(masked) == 1 and masked[0] in axes:
        dim = masked[0]
        size_dims = dim.base.size_dims or ()
        summed = None
        if not any(s in axes for s in size_dims):
            summed = [dim]
            count = None
        elif all(s in axes for s in size_dims):
            summed = [dim, *size_dims]
            count = p.auxiliary("total", dim, (), dtype)
        if summed is not None:
            plain = [a for a in axes if a not in summed]
            if plain:
                slot = p.emit("mean", slot, static=(numbers(plain),))
                order = [d for d in order if not any(d is a for a in plain)]
            slot = p.emit("sum", slot, static=(numbers([d for d in order if d in summed]),))
            rest = [d for d in order if d not in summed]
            return p.emit("truediv", slot, count if count is not None else p.lengths(dim, rest, dtype))
    # Several masked dims: count the frames by summing the mask, which has length 1 at the axes that it does not cover.
    mask: Any = None
    covered: list[Dim] = []
    for d in masked:
        one = p.mask(d, order, keep_leading=True)
        mask = one if mask is None else p.emit("logical_and", mask, one)
        covered += [c for c in (*(d.base.size_dims or ()), d) if c not in covered]
    plain = [a for a in axes if a not in covered]
    summed = [a for a in axes if a in covered]
    if plain:
        slot = p.emit("mean", slot, static=(numbers(plain),))
        mask = p.emit("squeeze", mask, static=(numbers(plain),))
        order = [d for d in order if not any(d is a for a in plain)]
    count = p.emit("at_least", p.emit("sum", p.cast(mask, "bool", dtype), static=(numbers(summed),)), static=(1,))
    return p.emit("truediv", p.emit("sum", slot, static=(numbers(summed),)), count)


_reduce = Op("reduce", num_tensors=1, planner=_plan_reduce, masked=True)


def reduce(
    source: Tensor, *, mode: str, axis: Dim | Sequence[Dim], use_mask: bool = True, distributed: bool = False
) -> Tensor:
    """Reduce over one or several dims: {..., axis} -> {...}.

    :param source: bool for "any" and "all"; "mean" and "logsumexp" of integers are computed in the default float dtype.
    :param mode: "sum", "mean", "max", "min", "logsumexp", "any", "all", "argmax" or "argmin" (one axis; the first of
        equal values; int32 indices with sparse dim `axis`).
    :param axis: the dims to remove.
    :param use_mask: count only valid frames. Also frames of a remaining dim are left out where they are padding for an
        index of a reduced dim. Over no frames, sum and mean are 0, max is -inf, any is False.
    :param distributed: sum over processes too; not available, raises RfError.
    :returns: if the source lacks dims that the sizes of an axis depend on, these appear in the result.

    Raises DimError when an axis is not a dim of `source`.
    """
    if distributed:
        raise RfError("reduce: distributed=True is not available; reduce the gradients with torch.distributed")
    if mode not in MODES:
        raise RfError(f"reduce: unknown mode {mode!r}; choose one of {', '.join(MODES)}")
    return _reduce(source, mode, axis, use_mask)


def reduce_sum(
    source: Tensor, *, axis: Dim | Sequence[Dim], use_mask: bool = True, distributed: bool = False
) -> Tensor:
    """Sum over the valid frames. See `reduce`."""
    return (
        _reduce(source, "sum", axis, use_mask)
        if not distributed
        else reduce(source, mode="sum", axis=axis, distributed=True)
    )


def reduce_mean(source: Tensor, *, axis: Dim | Sequence[Dim], use_mask: bool = True) -> Tensor:
    """Mean over the valid frames, 0 if there are none. See `reduce`."""
    return _reduce(source, "mean", axis, use_mask)


def reduce_max(source: Tensor, *, axis: Dim | Sequence[Dim], use_mask: bool = True) -> Tensor:
    """Maximum over the valid frames. See `reduce`."""
    return _reduce(source, "max", axis, use_mask)


def reduce_min(source: Tensor, *, axis: Dim | Sequence[Dim], use_mask: bool = True) -> Tensor:
    """Minimum over the valid frames. See `reduce`."""
    return _reduce(source, "min", axis, use_mask)


def reduce_logsumexp(source: Tensor, *, axis: Dim | Sequence[Dim], use_mask: bool = True) -> Tensor:
    """log(sum(exp(x))) over the valid frames, stable; -inf if there are none. See `reduce`."""
    return _reduce(source, "logsumexp", axis, use_mask)


def reduce_any(source: Tensor, *, axis: Dim | Sequence[Dim], use_mask: bool = True) -> Tensor:
    """Whether any valid frame is True. See `reduce`."""
    return _reduce(source, "any", axis, use_mask)


def reduce_all(source: Tensor, *, axis: Dim | Sequence[Dim], use_mask: bool = True) -> Tensor:
    """Whether all valid frames are True. See `reduce`."""
    return _reduce(source, "all", axis, use_mask)


def reduce_argmax(source: Tensor, *, axis: Dim, use_mask: bool = True) -> Tensor:
    """Index of the first largest valid value, int32 with sparse dim `axis`. See `reduce`."""
    return _reduce(source, "argmax", axis, use_mask)


def reduce_argmin(source: Tensor, *, axis: Dim, use_mask: bool = True) -> Tensor:
    """Index of the first smallest valid value, int32 with sparse dim `axis`. See `reduce`."""
    return _reduce(source, "argmin", axis, use_mask)


def reduce_logmeanexp(source: Tensor, *, axis: Dim | Sequence[Dim], use_mask: bool = True) -> Tensor:
    """log(mean(exp(x))) over the valid frames, stable; -inf if there are none. See `reduce`."""
    count = reduce_sum(ones_like(cast(source, dtypes.floating(source.dtype))), axis=axis, use_mask=use_mask)
    return reduce_logsumexp(source, axis=axis, use_mask=use_mask) - log(maximum(count, 1.0))


def reduce_out(source: Tensor, *, mode: str, num_pieces: int, out_dim: Dim | None = None) -> Tensor:
    """Reduce every `num_pieces` consecutive features to one (maxout: Goodfellow et al. 2013, arXiv:1302.4389).

    {..., F} -> {..., out}, F being the feature dim, whose size must be a multiple of `num_pieces`.

    :param mode: as in `reduce`.
    :param out_dim: default: the feature dim divided by `num_pieces`.
    """
    dim = source.feature_dim
    if dim is None:
        raise DimError(f"reduce_out: {source!r} has no feature dim; set x.feature_dim")
    pieces = Dim(num_pieces, name="pieces")
    out_dim = out_dim or dim / num_pieces
    out = reduce(split_dims(source, axis=dim, dims=(out_dim, pieces)), mode=mode, axis=pieces)
    out.feature_dim = out_dim
    return out
