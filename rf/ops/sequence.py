"""Ops along one dim of frames: slice, shift, reverse, windows, cumulative sums, sorting. Each treats a sequence as if
it were alone."""

from __future__ import annotations

from typing import Any

import numpy

from rf import dtypes
from rf._core import Op, Tensor, apply
from rf._dim import Dim
from rf._errors import DimError, RfError
from rf._plan import Plan, PlanBuilder, axis_of, mask_pattern, same
from rf.ops import elementwise
from rf.ops.dims import host_mask, host_sizes, size_dims_of, tensor_beside
from rf.ops.index import _gather, gather_rows
from rf.ops.reduce import _neutral, fill_padding
from rf.ops.shape import _feature, check_new_dims, expand_dims, own_dim, replace_dim, with_sizes

__all__ = [
    "cumsum",
    "expand_make_non_empty",
    "repeat",
    "reverse_sequence",
    "search_sorted",
    "shift_left",
    "shift_right",
    "slice",
    "sort",
    "window",
]


# -- slice


def slice(
    source: Tensor,
    *,
    axis: Dim,
    start: int | Dim | Tensor | None = None,
    end: int | Dim | Tensor | None = None,
    step: int | None = None,
    size: int | Dim | Tensor | None = None,
    out_dim: Dim | None = None,
) -> tuple[Tensor, Dim]:
    """A part of an axis, of each sequence by itself: {..., axis} -> {..., out_dim}.

    :param start: first frame: an int, a Dim (its size), or an int Tensor, for example one start for each sequence. A
        negative int counts from the end of each sequence. Default 0.
    :param end: one past the last frame, likewise; a negative int counts from the end of each sequence. Default: the
        end.
    :param step: take every `step`-th frame, >= 1. To go backwards, use rf.reverse_sequence first.
    :param size: the number of frames, instead of `end`. A Dim is also the new dim.
    :param out_dim: default: from `size`, or by dim math: `axis.sub_left(start)`, `.sub_right(-end)`,
        `.ceildiv_right(step)`; for an `end` >= 0 the static dim of that many frames. A dim without sizes takes these
        over.
    :returns: (tensor, out_dim). Frames that are asked for by `size` or `end`, but lie after the end of a sequence, are
        0; only a static axis stops at its end, as in Python.

    Raises DimError when the axis is missing, RfError for `size` with `end` or `step`, or a step < 1.
    """
    own_dim("slice", source, axis)
    if step is not None and (not isinstance(step, int) or step < 1):
        raise RfError(f"slice: step must be an int >= 1, got {step!r}; to go backwards, use rf.reverse_sequence first")
    if size is not None and (end is not None or step not in (None, 1)):
        raise RfError("slice: give size alone, or end and step")
    if isinstance(start, Tensor) and start.dims and size is not None:
        return _slice_at(source, axis, start, _size_dim(size, out_dim))
    begin, stop = _bound(start), _bound(end)
    begin = 0 if begin is None else begin
    if isinstance(begin, int) and begin < 0:
        begin = _from_end(axis, begin)
    if size is not None:
        return _slice_size(source, axis, begin, _size_dim(size, out_dim))
    new = axis if begin == 0 else None
    if isinstance(stop, int) and stop >= 0 or isinstance(stop, Dim):
        if not axis.is_dynamic() and isinstance(stop, int):
            stop = min(stop, axis.get_dim_value())
        if isinstance(stop, int) and isinstance(begin, int):
            new = Dim(max(stop - begin, 0), name="slice")
        else:
            new = (stop if isinstance(stop, Dim) else Dim(stop, name="end")).sub_left(begin)
        if step in (None, 1):
            return _slice_size(source, axis, begin, with_sizes("slice", out_dim, new))
        source, axis = _slice_size(source, axis, begin, new)
        begin = 0
    elif axis.is_static() and isinstance(begin, int) and begin - (stop or 0) > axis.get_dim_value():
        new, begin, stop = Dim(0, name="slice"), 0, 0  # nothing is left, as in Python
    else:
        if new is None:
            new = axis.sub_left(begin)
        if stop is not None:
            new = new.sub_right(-stop)
    if step not in (None, 1):
        new = new.ceildiv_right(step)
    new = with_sizes("slice", out_dim, new)
    if begin == 0 and stop is None and step in (None, 1):
        return replace_dim(source, in_dim=axis, out_dim=new)
    if isinstance(begin, Dim) and begin.need_masking():
        return _slice_size(source, axis, begin, new, step or 1)
    return _slice_raw(source, axis, _length(begin), new, step or 1), new


def _bound(x: int | Dim | Tensor | None) -> int | Dim | None:
    """An int, or a Dim if it is given as one or differs between sequences."""
    if isinstance(x, Tensor):
        return Dim(x, name="bound") if x.dims else int(x)
    return x if x is None or isinstance(x, Dim) else int(x)


def _length(x: int | Dim) -> int:
    return x if isinstance(x, int) else x.get_dim_value()


def _size_dim(size: int | Dim | Tensor, out_dim: Dim | None) -> Dim:
    return with_sizes("slice", out_dim, size if isinstance(size, Dim) else Dim(size, name="slice"))


def _from_end(axis: Dim, start: int) -> int | Dim:
    """Where the last `-start` frames begin."""
    if axis.is_static():
        return max(axis.get_dim_value() + start, 0)
    sizes = axis.get_sizes()
    return Dim(None, name=f"{axis.name}{start}").fill(numpy.maximum(sizes.values + start, 0), sizes.dims)


def _slice_raw(source: Tensor, axis: Dim, start: int, out_dim: Dim, step: int) -> Tensor:
    """A slice of the raw axis that has the length of `out_dim`."""
    at = source.get_axis_from_description(axis)
    n = out_dim.get_dim_value()
    start = min(start, axis.get_dim_value())
    stop = start + (n - 1) * step + 1 if n else start
    dims = (*source.dims[:at], out_dim, *source.dims[at + 1 :])
    check_new_dims("slice", source, (), dims)
    feature = _feature(source, [source.dims[at]], out_dim)
    (out,) = apply("slice", (source,), (at, start, stop, step), [(dims, source.dtype, feature, source.sparse_dim)])
    return out


def _pad_raw(source: Tensor, axis: Dim, left: int, right: int, value: Any) -> tuple[Tensor, Dim]:
    """The raw axis with so many more frames; the new dim has one length for everybody."""
    at = source.get_axis_from_description(axis)
    longer = Dim(left + axis.get_dim_value() + right, name="padded")
    dims = (*source.dims[:at], longer, *source.dims[at + 1 :])
    paddings = tuple((left, right) if i == at else (0, 0) for i in range(len(dims)))
    feature = _feature(source, [source.dims[at]], longer)
    (out,) = apply("pad", (source,), (paddings, "constant", value), [(dims, source.dtype, feature, source.sparse_dim)])
    return out, longer


def _slice_size(source: Tensor, axis: Dim, start: int | Dim, out_dim: Dim, step: int = 1) -> tuple[Tensor, Dim]:
    """Frames start, start + step, ...; `out_dim` says how many. Those after the end of a sequence are 0."""
    length, extent = out_dim.get_dim_value(), axis.get_dim_value()
    per_sequence = isinstance(start, Dim) and start.need_masking()
    masked = per_sequence or axis.need_masking() or out_dim.need_masking()
    order = size_dims_of(axis, out_dim, *([start] if isinstance(start, Dim) else [])) if masked else ()
    count = host_sizes(axis, order)
    first = host_sizes(start, order) if isinstance(start, Dim) else numpy.asarray(start)
    row = first[..., None] + numpy.arange(length) * step
    if per_sequence:
        out = gather_rows(source, axis, numpy.clip(row, 0, max(extent - 1, 0)), (*order, out_dim))
    else:
        lacking = max(_length(start) + (length - 1) * step + 1 - extent, 0) if length else 0
        if lacking:
            source, axis = _pad_raw(source, axis, 0, lacking, 0)
        out = _slice_raw(source, axis, _length(start), out_dim, step)
    too_long = masked and numpy.any(first + (host_sizes(out_dim, order) - 1) * step >= numpy.maximum(count, first))
    if not too_long:  # else the padding of the axis is asked for
        return out, out_dim
    mask = tensor_beside(source, row < count[..., None], (*order, out_dim), "bool")
    return elementwise.where(mask, out, 0, allow_broadcast_all_sources=True), out_dim


def _slice_at(source: Tensor, axis: Dim, start: Tensor, out_dim: Dim) -> tuple[Tensor, Dim]:
    """`out_dim` frames from `start` on, which differs between sequences; without reading its values."""
    offset = tensor_beside(start, numpy.arange(out_dim.get_dim_value()), (out_dim,), start.dtype)
    rows = elementwise.combine_bc(start, "add", offset)
    sizes = axis.get_sizes()
    count = tensor_beside(start, sizes.values, sizes.dims, start.dtype)
    inside = elementwise.compare_bc(rows, "less", count)
    inside = elementwise.combine_bc(inside, "logical_and", elementwise.compare(rows, "greater_equal", 0))
    clipped = elementwise.clip_by_value(rows, 0, max(axis.get_dim_value() - 1, 0))
    if axis.get_dim_value() == 0:
        source, axis = _slice_size(source, axis, 0, Dim(1, name="zero"))
    out = elementwise.where(inside, _gather(source, clipped, axis), 0, allow_broadcast_all_sources=True)
    if source.feature_dim is not None and source.feature_dim == axis:
        out.feature_dim = out_dim
    return out, out_dim


# -- along the axis


def _plan_cumsum(p: PlanBuilder, x: Tensor, axis: Dim) -> Plan:
    own = own_dim("cumsum", x, axis, "spatial_dim")
    dtype = dtypes.get_default_int_dtype() if x.dtype == "bool" else x.dtype
    slot = p.emit("cumsum", p.cast(0, x.dtype, dtype), static=(axis_of(own, x.dims),))
    return p.finish(p.out(slot, x.dims, dtype, x.feature_dim))


_cumsum = Op("cumsum", num_tensors=1, planner=_plan_cumsum)


def cumsum(source: Tensor, *, spatial_dim: Dim) -> Tensor:
    """y[t] = x[0] + ... + x[t] along `spatial_dim`: {..., spatial_dim} -> {..., spatial_dim}.

    Integers keep their dtype, bool counts in int32. Padding lies after the frames of its sequence and so does not reach
    them.
    Raises DimError when the dim is missing.
    """
    return _cumsum(source, spatial_dim)


def _plan_sort(p: PlanBuilder, x: Tensor, axis: Dim, out_dim: Dim, descending: bool) -> Plan:
    own = own_dim("sort", x, axis)
    slot: Any = 0
    order = list(x.dims)
    if own.base.size_dims:
        slot, order = fill_padding(p, slot, order, [own.base], _neutral("max" if descending else "min", x.dtype))
    values, indices = p.emit("sort", slot, static=(axis_of(own, order), descending), num_out=2)
    dims = [out_dim.base if d is own else d for d in order]
    return p.finish(
        p.out(values, dims, x.dtype, _feature(x, [own], out_dim), x.sparse_dim),
        p.out(indices, dims, "int32", None, own.base),
    )


_sort = Op("sort", num_tensors=1, planner=_plan_sort, masked=True)


def sort(source: Tensor, *, axis: Dim, descending: bool = False, stable: bool = True) -> tuple[Tensor, Tensor, Dim]:
    """Order the values along `axis`: {..., axis} -> {..., out_dim}.

    :param source: any real dtype. NaN counts as larger than anything.
    :param descending: largest first.
    :param stable: equal values stay in order. This is so in any case.
    :returns: (values, indices, out_dim): indices int32 with sparse dim `axis`; `out_dim` is a new dim with the sizes of
        `axis`. Valid frames come first; the padding holds +inf (or the highest integer), -inf (the lowest) if
        `descending`.

    Raises DimError when the axis is missing.
    """
    out_dim = axis.copy(same_as_self=False)
    values, indices = _sort(source, axis, out_dim, descending)
    return values, indices, out_dim


def _plan_search_sorted(p: PlanBuilder, table: Tensor, values: Tensor, axis: Dim, right: bool) -> Plan:
    own = own_dim("search_sorted", table, axis)
    if own in values.dims:
        raise DimError(
            f"search_sorted: the values have the axis {axis!r} too:\n  sorted_seq: {table!r}\n  values: {values!r}"
        )
    dtype = dtypes.result_type(table.dtype, values.dtype)
    slot: Any = p.cast(0, table.dtype, dtype)
    order = list(table.dims)
    size_dims = own.base.size_dims or ()
    if size_dims:
        slot, order = fill_padding(p, slot, order, [own.base], _neutral("min", dtype))
    batch = [d for d in order if d is not own]
    slot = p.permute(slot, order, [*batch, own])
    rest = [d for d in values.dims if not any(same(d, b) for b in batch)]
    dims = [*batch, *rest]
    each = p.cast(p.align(1, values.dims, dims), values.dtype, dtype)
    leading = next((i for i, d in enumerate(dims) if any(same(d, v) for v in values.dims)), len(dims))
    if leading:  # the kernel wants all batch axes
        each = p.emit("unsqueeze", each, static=(tuple(range(leading)),))
    out = p.emit("search_sorted", slot, each, static=(len(batch), right))
    if size_dims:  # what equals the filler in the padding does not count
        out = p.emit("minimum", out, p.auxiliary("sizes", own.base, mask_pattern(size_dims, dims), "int32"))
    return p.finish(p.out(out, dims, "int32", values.feature_dim, own.base))


_search_sorted = Op("search_sorted", num_tensors=2, planner=_plan_search_sorted, masked=True)


def search_sorted(
    sorted_seq: Tensor, values: Tensor, *, axis: Dim, side: str = "left", out_dtype: str = "int32"
) -> Tensor:
    """Where to insert `values` so that `sorted_seq` stays sorted: {B, axis}, {B, ...} -> {B, ...}.

    :param sorted_seq: ascending along `axis` in its valid frames.
    :param values: dims that both have are matched.
    :param side: "left": before equal entries, "right": after them.
    :param out_dtype: an integer dtype.
    :returns: 0 .. size of the sequence, with sparse dim `axis`.

    Raises DimError when the axis is missing, or `values` have it.
    """
    if side not in ("left", "right"):
        raise RfError(f"search_sorted: side must be 'left' or 'right', got {side!r}")
    out = _search_sorted(sorted_seq, values, axis, side == "right")
    return out if out_dtype == "int32" else elementwise.cast(out, out_dtype)


# -- the same axis, frames moved


def reverse_sequence(tensor: Tensor, *, axis: Dim, handle_dynamic_dims: bool = True) -> Tensor:
    """y[t] = x[n - 1 - t] with n the length of each sequence: {..., axis} -> {..., axis}.

    :param handle_dynamic_dims: padding stays at the end (default). False reverses the raw axis.

    Raises DimError when the axis is missing.
    """
    own = own_dim("reverse_sequence", tensor, axis)
    if not handle_dynamic_dims or not axis.need_masking():
        out = (tensor.dims, tensor.dtype, tensor.feature_dim, tensor.sparse_dim)
        return apply("flip", (tensor,), (axis_of(own, tensor.dims),), [out])[0]
    sizes = axis.get_sizes()
    position = numpy.arange(sizes.extent)
    row = sizes.values[..., None] - 1 - position
    return gather_rows(tensor, axis, numpy.where(row >= 0, row, position), (*sizes.dims, axis))


def shift_right(source: Tensor, *, axis: Dim, pad_value: Any, amount: int = 1) -> Tensor:
    """y[t] = x[t - amount], `pad_value` for t < amount: {..., axis} -> {..., axis}.

    :param pad_value: a number or a Tensor without the axis.
    :param amount: >= 0.

    Raises DimError when the axis is missing or `amount` is negative.
    """
    n = _shift_amount("shift_right", source, axis, amount)
    number = 0 if isinstance(pad_value, Tensor) else pad_value
    longer, longer_dim = _pad_raw(source, axis, n, 0, number)
    out = _slice_raw(longer, longer_dim, 0, axis, 1)
    if isinstance(pad_value, Tensor):
        moved = tensor_beside(source, numpy.arange(axis.get_dim_value()) >= n, (axis,), "bool")
        out = elementwise.where(moved, out, pad_value, allow_broadcast_all_sources=True)
    return out


def shift_left(source: Tensor, *, axis: Dim, pad_value: Any, amount: int = 1) -> Tensor:
    """y[t] = x[t + amount], `pad_value` from there on where the sequence has ended: {..., axis} -> {..., axis}.

    :param pad_value: a number or a Tensor without the axis.
    :param amount: >= 0.

    Raises DimError when the axis is missing or `amount` is negative.
    """
    n = _shift_amount("shift_left", source, axis, amount)
    number = 0 if isinstance(pad_value, Tensor) else pad_value
    longer, longer_dim = _pad_raw(source, axis, 0, n, number)
    out = _slice_raw(longer, longer_dim, n, axis, 1)
    if axis.need_masking() or isinstance(pad_value, Tensor):
        sizes = axis.get_sizes()
        inside = numpy.arange(sizes.extent) + amount < sizes.values[..., None]
        mask = tensor_beside(source, inside, (*sizes.dims, axis), "bool")
        out = elementwise.where(mask, out, pad_value, allow_broadcast_all_sources=True)
    return out


def _shift_amount(name: str, source: Tensor, axis: Dim, amount: int) -> int:
    """The number of frames to move the raw axis by."""
    own_dim(name, source, axis)
    if amount < 0:
        raise DimError(f"{name}: amount must be >= 0, got {amount}")
    return min(amount, axis.get_dim_value())


# -- other lengths


def window(
    source: Tensor,
    *,
    spatial_dim: Dim,
    window_dim: Dim,
    window_right: int | Dim | None = None,
    window_left: int | Dim | None = None,
    padding: str = "same",
    pad_value: Any = None,
    stride: int = 1,
    use_mask: bool | None = None,
) -> tuple[Tensor, Dim]:
    """The surroundings of each frame: {..., T} -> {..., T', window_dim}, y[t, w] = x[t * stride + w - left].

    :param spatial_dim: T.
    :param window_dim: static; the number of frames in a window.
    :param window_right: frames after the center; default: half of them, rounded down (`padding` "same" only).
    :param window_left: frames before the center; default: the others.
    :param padding: "same": one window for each frame; "valid": only windows that lie inside the sequence.
    :param pad_value: what "same" finds outside of the sequence; a number, default 0.
    :param stride: >= 1; take every `stride`-th window.
    :param use_mask: the padding of T is outside (default); False takes it for frames.
    :returns: (tensor, T'): T itself for "same" with stride 1, else by dim math.

    Raises DimError when `spatial_dim` is missing, `window_dim` is dynamic, or left + 1 + right is not its size.
    """
    own_dim("window", source, spatial_dim, "spatial_dim")
    size = window_dim.dimension
    if size is None or size < 1 or stride < 1 or padding not in ("same", "valid"):
        raise DimError(
            f"window: needs a static window_dim, stride >= 1 and padding 'same' or 'valid'; "
            f"got {window_dim!r}, {stride}, {padding!r}"
        )
    left = right = 0
    out_dim = spatial_dim
    if padding == "same":
        right = (
            (size // 2 if window_left is None else size - 1 - _length(window_left))
            if window_right is None
            else _length(window_right)
        )
        left = size - 1 - right
        if left < 0 or right < 0 or (window_left is not None and _length(window_left) != left):
            raise DimError(f"window: left {window_left} + 1 + right {window_right} is not the size of {window_dim!r}")
        pad_value = 0 if pad_value is None else pad_value
        if use_mask is not False and spatial_dim.need_masking():
            missing = [s for s in spatial_dim.base.size_dims or () if s not in source.dims]
            source = (expand_dims(source, missing) if missing else source).copy_masked(pad_value, dims=[spatial_dim])
    else:
        out_dim = spatial_dim - (window_dim.get_dim_value() - 1)
    out_dim = out_dim if stride == 1 else out_dim.ceildiv_right(stride)
    check_new_dims("window", source, [d for d in source.dims if d != spatial_dim], [out_dim, window_dim])
    lacking = max(size - (left + spatial_dim.get_dim_value() + right), 0)  # then there are no windows, as T' is empty
    axis = spatial_dim
    if left or right or lacking:
        source, axis = _pad_raw(source, axis, left, right + lacking, 0 if pad_value is None else pad_value)
    at = source.get_axis_from_description(axis)
    windows = out_dim if out_dim.get_dim_value() else Dim((axis.get_dim_value() - size) // stride + 1, name="windows")
    dims = (*source.dims[:at], windows, *source.dims[at + 1 :], window_dim)
    feature = _feature(source, [source.dims[at]], windows)
    (out,) = apply("unfold", (source,), (at, size, stride), [(dims, source.dtype, feature, source.sparse_dim)])
    return (out if windows is out_dim else _slice_raw(out, windows, 0, out_dim, 1)), out_dim


def repeat(
    values: Tensor, *, in_spatial_dim: Dim, repeats: Tensor | int, out_spatial_dim: Dim | None = None
) -> tuple[Tensor, Dim]:
    """Repeat each frame: {..., T} -> {..., T'}, frame t stands `repeats[t]` times.

    :param values: any dtype.
    :param in_spatial_dim: T.
    :param repeats: integers >= 0, {T} or {..., T}; 0 drops a frame. Padding does not count. An int is the same for all
        frames.
    :param out_spatial_dim: default: a new dim (for an int: `T * repeats`). A dim without sizes takes over the sums of
        `repeats`.
    :returns: (tensor, out_spatial_dim).

    The sums are read on the host, so this waits for the device, and raises BackendError on a backend without values.
    Raises DimError when T is missing, or `out_spatial_dim` has another length.
    """
    own_dim("repeat", values, in_spatial_dim, "in_spatial_dim")
    if isinstance(repeats, int):
        rest, counts = (), numpy.full([in_spatial_dim.get_dim_value()], repeats)
    else:
        own_dim("repeat", repeats, in_spatial_dim, "in_spatial_dim")
        if dtypes.kind(repeats.dtype) != 1:
            raise RfError(f"repeat: repeats must be integers, got {repeats!r}")
        rest = tuple(repeats.remaining_dims(in_spatial_dim))
        counts = repeats.copy_transpose([*rest, in_spatial_dim]).numpy()
    extra = tuple(s for s in size_dims_of(in_spatial_dim) if s not in rest)
    order = (*extra, *rest)
    valid = host_mask(in_spatial_dim, (*order, in_spatial_dim))
    counts = numpy.where(valid, counts, 0)
    if counts.size and counts.min() < 0:
        raise RfError(f"repeat: repeats must be >= 0, got {int(counts.min())}")
    counts = numpy.broadcast_to(counts, [d.get_dim_value() for d in (*order, in_spatial_dim)])
    sizes = counts.sum(axis=-1)
    if out_spatial_dim is None and isinstance(repeats, int) and repeats:
        out_spatial_dim = in_spatial_dim * repeats
    elif out_spatial_dim is None or not out_spatial_dim.is_dim_known():
        out_spatial_dim = (out_spatial_dim or Dim(None, name="repeated")).fill(sizes, order)
    n = int(sizes.max()) if sizes.size else 0
    if out_spatial_dim.get_dim_value() != n:
        raise DimError(
            f"repeat: the repeated sequences have up to {n} frames, but out_spatial_dim is {out_spatial_dim!r}"
        )
    ends = numpy.cumsum(counts, axis=-1)
    rows = numpy.zeros([*sizes.shape, n], dtype=numpy.int64)
    for index in numpy.ndindex(*sizes.shape):
        rows[index] = numpy.searchsorted(ends[index], numpy.arange(n), side="right")
    last = max(in_spatial_dim.get_dim_value() - 1, 0)
    return gather_rows(values, in_spatial_dim, numpy.minimum(rows, last), (*order, out_spatial_dim)), out_spatial_dim


def expand_make_non_empty(source: Tensor, *, axis: Dim, out_dim: Dim | None = None) -> tuple[Tensor, Dim]:
    """One frame of zeros if the raw axis is empty, so that frames can be taken from it; else the same data.

    :param out_dim: the dim of the lengthened axis, of size 1.
    :returns: (tensor, dim), the dim being `axis` when there was nothing to do.
    """
    own_dim("expand_make_non_empty", source, axis)
    if axis.get_dim_value() > 0:
        return source.copy(), axis
    out, longer = _pad_raw(source, axis, 0, 1, 0)
    return (out, longer) if out_dim is None else replace_dim(out, in_dim=longer, out_dim=out_dim)
