"""Ops that make an axis longer: concat and pad. What is added to a sequence directly follows its last frame."""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from typing import Any

import numpy

from rf import dtypes
from rf._core import Op, Tensor, apply
from rf._dim import Dim
from rf._errors import DimError, RfError
from rf._plan import Plan, PlanBuilder, axis_of
from rf.ops import elementwise
from rf.ops.dims import host_sizes, size_dims_of, tensor_beside
from rf.ops.index import gather_rows
from rf.ops.shape import check_new_dims, expand_dims, own_dim, replace_dim, with_sizes

__all__ = ["concat", "concat_features", "cum_concat_step", "pad", "replace_dim_v2"]

PAD_MODES = ("constant", "reflect", "replicate", "circular")


# -- concat


def _plan_concat(p: PlanBuilder, *args: Any) -> Plan:
    *tensors, axes, out_dim = args
    first: Tensor = tensors[0]
    own = own_dim("concat", first, axes[0])
    dtype = first.dtype
    for x in tensors[1:]:
        dtype = dtypes.result_type(dtype, x.dtype)
    slots = []
    for i, (x, axis) in enumerate(zip(tensors, axes)):
        order = [own_dim("concat", x, axis) if d is own else d for d in first.dims]
        slots.append(p.cast(p.permute(i, x.dims, order), x.dtype, dtype))
    at = axis_of(own, first.dims)
    check_new_dims("concat", first, [d for d in first.dims if d is not own], [out_dim])
    dims = (*first.dims[:at], out_dim.base, *first.dims[at + 1 :])
    feature = out_dim if first.feature_dim is not None and first.feature_dim == axes[0] else first.feature_dim
    sparse = first.sparse_dim if all(x.sparse_dim == first.sparse_dim for x in tensors) else None
    return p.finish(p.out(p.emit("concat", *slots, static=(at,)), dims, dtype, feature, sparse))


_MAX_PLANNED = 6
_concat = {n: Op(f"concat{n}", num_tensors=n, planner=_plan_concat) for n in range(2, _MAX_PLANNED + 1)}


def _concat_raw(tensors: Sequence[Tensor], axes: Sequence[Dim], out_dim: Dim) -> Tensor:
    """Put the raw axes one behind the other; `out_dim` has their total length."""
    if len(tensors) == 1:
        return replace_dim(tensors[0], in_dim=axes[0], out_dim=out_dim)[0]
    while len(tensors) > _MAX_PLANNED:
        part = Dim(None, name="part").fill(sum(d.get_dim_value() for d in axes[:_MAX_PLANNED]))
        tensors = (
            _concat[_MAX_PLANNED](*tensors[:_MAX_PLANNED], tuple(axes[:_MAX_PLANNED]), part),
            *tensors[_MAX_PLANNED:],
        )
        axes = (part, *axes[_MAX_PLANNED:])
    if len(tensors) == 1:
        return replace_dim(tensors[0], in_dim=axes[0], out_dim=out_dim)[0]
    return _concat[len(tensors)](*tensors, tuple(axes), out_dim)


def concat(
    *sources: tuple[Tensor, Dim],
    allow_broadcast: bool = False,
    out_dim: Dim | None = None,
    handle_dynamic_dims: bool | None = None,
) -> tuple[Tensor, Dim]:
    """Join tensors along one dim of each: {..., a}, {..., b} -> {..., a + b}.

    :param sources: (tensor, dim) pairs, whose other dims are the same; dtypes are promoted.
    :param allow_broadcast: a tensor may lack other dims and is then repeated along them.
    :param out_dim: default: the sum of the dims, by dim math. A dim without sizes takes these over.
    :param handle_dynamic_dims: in each sequence, the parts follow each other without padding between them (default).
        False joins the raw axes, padding included, and the new dim has one length for everybody.
    :returns: (tensor, out_dim). If the dim is the feature dim of the first tensor, `out_dim` is that of the result.

    Raises DimError when dims differ or are missing.
    """
    if not sources:
        raise RfError("concat: no (tensor, dim) pairs given")
    tensors = [x for x, _ in sources]
    axes = [d for _, d in sources]
    masked = any(d.need_masking() for d in axes[:-1])
    compact = masked and handle_dynamic_dims is not False
    tensors = _same_other_dims(tensors, axes, allow_broadcast)
    total_length = sum([d.get_dim_value() for d in axes])
    if handle_dynamic_dims is False and (masked or axes[-1].need_masking()):
        out_dim = with_sizes("concat", out_dim, Dim(None, name="concat").fill(total_length))
    elif compact or out_dim is None or out_dim.base.extent != total_length:
        out_dim = with_sizes("concat", out_dim, functools.reduce(operator.add, axes))
    if not compact and total_length == out_dim.get_dim_value():
        return _concat_raw(tensors, axes, out_dim), out_dim
    buffer = Dim(None, name="concat").fill(total_length)
    out = _concat_raw(tensors, axes, buffer)
    return gather_rows(out, buffer, _compact_rows(axes, out_dim), (*size_dims_of(*axes), out_dim)), out_dim


def _same_other_dims(tensors: list[Tensor], axes: list[Dim], allow_broadcast: bool) -> list[Tensor]:
    """Repeat tensors along dims that only others have, if that is allowed."""
    others = [[d for d in x.dims if d is not own_dim("concat", x, axis)] for x, axis in zip(tensors, axes)]
    if all(len(o) == len(others[0]) and all(d in others[0] for d in o) for o in others[1:]):
        return tensors
    if not allow_broadcast:
        what = "\n".join(f"  {i}: {x!r}, along {d!r}" for i, (x, d) in enumerate(zip(tensors, axes)))
        raise DimError(
            f"concat: the dims differ, besides those to be joined:\n{what}\nUse allow_broadcast=True to repeat."
        )
    union: list[Dim] = []
    for o in others:
        union += [d for d in o if d not in union]
    return [expand_dims(x, [d for d in union if d not in o]) for x, o in zip(tensors, others)]


def _compact_rows(axes: Sequence[Dim], out_dim: Dim) -> numpy.ndarray:
    """For each frame of the sequences without gaps, where it lies in the joined raw axes: an array over the size dims
    and `out_dim`."""
    order = size_dims_of(*axes)
    position = numpy.arange(out_dim.get_dim_value())
    row = numpy.zeros([*(d.get_dim_value() for d in order), len(position)], dtype=numpy.int64)
    begin: Any = 0  # of the current part in the sequence
    offset = 0  # of the current part in the raw axis
    for d in axes:
        end = begin + host_sizes(d, order)[..., None]
        row = numpy.where((begin <= position) & (position < end), position - begin + offset, row)
        begin, offset = end, offset + d.get_dim_value()
    return row


def concat_features(*sources: Tensor, allow_broadcast: bool = False) -> Tensor:
    """`concat` along the feature dim of each tensor; the sum is the feature dim of the result. Raises DimError if one
    has none."""
    for i, x in enumerate(sources):
        if x.feature_dim is None:
            raise DimError(f"concat_features: tensor {i} has no feature dim: {x!r}")
    pairs = [(x, x.feature_dim) for x in sources if x.feature_dim is not None]
    out, out_dim = concat(*pairs, allow_broadcast=allow_broadcast)
    out.feature_dim = out_dim
    return out


# -- pad

Amount = int | Dim | Tensor


def _amount(x: Amount) -> int | Dim:
    if isinstance(x, Tensor):
        return Dim(x, name="pad")
    if isinstance(x, Dim):
        return x
    if x < 0:
        raise DimError(f"pad: amounts must be >= 0, got {x}; use rf.slice to shorten")
    return int(x)


def _length(x: int | Dim) -> int:
    return x if isinstance(x, int) else x.get_dim_value()


def _masked(x: int | Dim) -> bool:
    return isinstance(x, Dim) and x.need_masking()


def _padded(left: int | Dim, axis: Dim, right: int | Dim) -> Dim:
    """left + axis + right"""
    out = axis if left == 0 else left + axis
    return out if right == 0 else out + right


def pad(
    source: Tensor,
    *,
    axes: Dim | Sequence[Dim],
    padding: Sequence[tuple[Amount, Amount] | Amount] | Amount,
    out_dims: Dim | Sequence[Dim] | None = None,
    mode: str = "constant",
    value: Any = None,
    handle_dynamic_dims: bool | None = None,
) -> tuple[Tensor, list[Dim]]:
    """Lengthen axes on both sides: {..., axis} -> {..., left + axis + right}.

    :param axes: dims of `source`.
    :param padding: (left, right) for each axis, or one amount for both sides; an amount is an int >= 0, a Dim, or an
        int Tensor with one amount for each sequence.
    :param out_dims: one for each axis; default: by dim math. Dims without sizes take these over.
    :param mode: "constant"; "reflect" (the edge frame is not repeated), "replicate" (the edge frame), "circular": what
        stands there is taken from the same sequence.
    :param value: for "constant": a number or a Tensor without the axes; default 0.
    :param handle_dynamic_dims: on the right, pad directly after the end of each sequence (default). False pads the raw
        axis, and the new dim has one length for everybody if the axis needs masking.
    :returns: (tensor, out_dims). What lies after the padded sequences is undefined. The feature dim follows.

    Raises DimError when an axis is missing, an amount is negative or there is not one pair per axis.
    """
    axes = (axes,) if isinstance(axes, Dim) else tuple(axes)
    if isinstance(padding, (int, Dim, Tensor)):
        padding = [padding] * len(axes)
    if len(padding) != len(axes) or mode not in PAD_MODES:
        raise DimError(
            f"pad: got padding {list(padding)} for axes {list(axes)}, mode {mode!r}; "
            f"a mode is one of {', '.join(PAD_MODES)}"
        )
    pairs = [x if isinstance(x, tuple) else tuple(x) if isinstance(x, list) else (x, x) for x in padding]
    amounts = [(_amount(left), _amount(right)) for left, right in pairs]
    given: list[Dim | None] = (
        [None] * len(axes) if out_dims is None else [out_dims] if isinstance(out_dims, Dim) else list(out_dims)
    )
    if len(given) != len(axes):
        raise DimError(f"pad: got out_dims {given} for axes {list(axes)}")
    outs: list[Dim] = []
    at_once: list[int] = []  # axes whose raw axis is simply padded, all in one call
    one_by_one: list[int] = []
    for i, (axis, (left, right), out_dim) in enumerate(zip(axes, amounts, given)):
        own_dim("pad", source, axis)
        per_sequence = axis.need_masking() or _masked(left) or _masked(right)
        if per_sequence and handle_dynamic_dims is False:
            plain = Dim(None, name="padded").fill(_length(left) + axis.get_dim_value() + _length(right))
            outs.append(with_sizes("pad", out_dim, plain))
            at_once.append(i)
            continue
        outs.append(with_sizes("pad", out_dim, _padded(left, axis, right)))
        simple = not isinstance(value, Tensor) and not _masked(left) and (right == 0 or not per_sequence)
        simple = simple and mode == "constant"
        if _length(left) + axis.get_dim_value() + _length(right) != outs[-1].get_dim_value():
            simple = False  # no sequences at all, so no frames, whatever the amounts
        if mode in ("reflect", "circular") and not per_sequence:
            simple = max(_length(left), _length(right)) < axis.get_dim_value()
        elif mode == "replicate" and not per_sequence:
            simple = axis.get_dim_value() > 0
        (at_once if simple else one_by_one).append(i)
    if not axes:
        return source.copy(), outs
    if at_once:
        if isinstance(value, Tensor):
            raise RfError("pad: a Tensor as value needs handle_dynamic_dims=True")
        source = _pad_raw(
            source, [axes[i] for i in at_once], [amounts[i] for i in at_once], [outs[i] for i in at_once], mode, value
        )
    for i in one_by_one:
        source = _pad_sequences(source, axes[i], *amounts[i], outs[i], mode, value)
    return source, outs


def _pad_raw(
    source: Tensor,
    axes: Sequence[Dim],
    amounts: Sequence[tuple[int | Dim, int | Dim]],
    outs: Sequence[Dim],
    mode: str,
    value: Any,
) -> Tensor:
    dims = list(source.dims)
    paddings = [(0, 0)] * len(dims)
    feature = source.feature_dim
    for axis, (left, right), out_dim in zip(axes, amounts, outs):
        at = source.get_axis_from_description(axis)
        dims[at] = out_dim
        paddings[at] = (_length(left), _length(right))
        feature = out_dim if feature is not None and feature == axis else feature
    check_new_dims("pad", source, (), dims)
    if value is None:
        value = source.dtype == "bool" and False
    static = (tuple(paddings), mode, value)
    (out,) = apply("pad", (source,), static, [(tuple(dims), source.dtype, feature, source.sparse_dim)])
    return out


def _pad_sequences(
    source: Tensor, axis: Dim, left: int | Dim, right: int | Dim, out_dim: Dim, mode: str, value: Any
) -> Tensor:
    """Pad one axis, each sequence by itself."""
    value = 0 if value is None else value
    before, extent, length = _length(left), axis.get_dim_value(), out_dim.get_dim_value()
    position = numpy.arange(length)
    if mode == "constant" and not _masked(left) and length >= before + extent:
        # The frames keep their distance: pad the raw axis, then write the value behind the end of each sequence.
        number = 0 if isinstance(value, Tensor) else value
        out = _pad_raw(source, [axis], [(before, length - before - extent)], [out_dim], mode, number)
        bare = _padded(left, axis, 0)
        order = size_dims_of(bare)
        inside = position < host_sizes(bare, order)[..., None]
        if isinstance(value, Tensor):
            inside = inside & (position >= before)
    else:
        order = size_dims_of(axis, *[d for d in (left, right) if isinstance(d, Dim)])
        count = host_sizes(axis, order)[..., None]
        row = position - (left if isinstance(left, int) else host_sizes(left, order)[..., None])
        inside = (row >= 0) & (row < count) if mode == "constant" else count > 0
        out = gather_rows(source, axis, _source_row(row, count, mode), (*order, out_dim))
    mask = tensor_beside(source, inside, (*order, out_dim), "bool")
    filled = elementwise.where(mask, out, value, allow_broadcast_all_sources=True)
    return filled if filled.dtype == source.dtype else elementwise.cast(filled, source.dtype)


def _source_row(row: numpy.ndarray, count: numpy.ndarray, mode: str) -> numpy.ndarray:
    """Which frame of a sequence of `count` frames stands at `row`, which may lie outside."""
    last = numpy.maximum(count - 1, 0)
    if mode == "circular":
        return numpy.mod(row, numpy.maximum(count, 1))
    if mode == "reflect":
        period = numpy.maximum(2 * last, 1)
        row = numpy.mod(row, period)
        row = numpy.minimum(row, period - row)
    return numpy.clip(row, 0, last)


def _plan_append(p: PlanBuilder, x: Tensor, frame: Tensor, axis: Dim, out_dim: Dim) -> Plan:
    own = own_dim("cum_concat_step", x, axis)
    rest = [d for d in x.dims if d is not own]
    if set(rest) != set(frame.dims) or len(rest) != len(frame.dims):
        raise DimError(
            f"cum_concat_step: the new frame must have the dims of the sequences without {axis!r}\n"
            f"  sequences: {x!r}\n  frame: {frame!r}"
        )
    check_new_dims("cum_concat_step", x, rest, [out_dim])
    dtype = dtypes.result_type(x.dtype, frame.dtype)
    slots = (p.cast(0, x.dtype, dtype), p.permute(p.cast(1, frame.dtype, dtype), frame.dims, rest))
    dims = [out_dim.base if d is own else d for d in x.dims]
    feature = out_dim if x.feature_dim is not None and x.feature_dim == own else x.feature_dim
    return p.finish(p.out(p.emit("append", *slots, static=(axis_of(own, x.dims),)), dims, dtype, feature, x.sparse_dim))


_append = Op("cum_concat_step", num_tensors=2, planner=_plan_append)


def cum_concat_step(
    source: Tensor, *, prev_accum: Tensor, axis: Dim, out_spatial_dim: Dim | None = None
) -> tuple[Tensor, Dim]:
    """Append one frame to each sequence: {...} to {..., axis} -> {..., axis + 1}.

    :param source: the new frame, without `axis`.
    :param prev_accum: the sequences so far.
    :param axis: dim of `prev_accum`.
    :param out_spatial_dim: default: `axis + 1`.
    :returns: (tensor, out_spatial_dim).
    """
    if axis.need_masking():
        own_dim("cum_concat_step", prev_accum, axis)
        outs = None if out_spatial_dim is None else [out_spatial_dim]
        out, (out_spatial_dim,) = pad(prev_accum, axes=[axis], padding=[(0, 1)], out_dims=outs, value=source)
        return out, out_spatial_dim
    if out_spatial_dim is None:
        out_spatial_dim = axis + 1
    elif not out_spatial_dim.is_dim_known():
        own_dim("cum_concat_step", prev_accum, axis)  # before a dim is filled
        out_spatial_dim.copy_from(axis + 1)
    elif out_spatial_dim.get_dim_value() != axis.get_dim_value() + 1:
        raise DimError(f"cum_concat_step: {out_spatial_dim!r} must be one longer than {axis!r}")
    return _append(prev_accum, source, axis, out_spatial_dim), out_spatial_dim


def replace_dim_v2(
    source: Tensor, *, in_dim: Dim, out_dim: Dim, allow_expand: bool = True, allow_shrink: bool = True
) -> Tensor:
    """Relabel an axis, and cut or fill it up to the length of `out_dim`: {..., in_dim} -> {..., out_dim}.

    :param out_dim: with sizes, or it takes over those of `in_dim`. Frames that a sequence has in `out_dim` only are 0.
    :param allow_expand: whether it may get longer.
    :param allow_shrink: whether it may get shorter.

    Raises DimError when `in_dim` is missing or a change of length is not allowed.
    """
    from rf.ops.sequence import slice as _slice

    own_dim("replace_dim_v2", source, in_dim, "in_dim")
    if not out_dim.is_dim_known():
        return replace_dim(source, in_dim=in_dim, out_dim=out_dim)[0]
    have, want = in_dim.get_dim_value(), out_dim.get_dim_value()
    if (want > have and not allow_expand) or (want < have and not allow_shrink):
        raise DimError(
            f"replace_dim_v2: from {in_dim!r} to {out_dim!r} is a change of length that was not allowed\n  {source!r}"
        )
    return _slice(source, axis=in_dim, size=out_dim)[0]
