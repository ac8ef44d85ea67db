"""Ops that rearrange axes: permute, merge, split, expand, squeeze, stack, and relabel. See `rf.ops.concat` for those
that change lengths."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

from rf import dtypes
from rf._core import Op, Tensor, apply
from rf._dim import Dim
from rf._errors import DimError, RfError
from rf._plan import Plan, PlanBuilder, axis_of, own_dim, same
from rf._registry import SERVICES
from rf.ops import elementwise

__all__ = [
    "complex_as_real",
    "copy",
    "expand_dim",
    "expand_dims",
    "gating",
    "make_complex",
    "merge_dims",
    "real_as_complex",
    "replace_dim",
    "reshape",
    "set_sparse_dim",
    "split",
    "split_dims",
    "squeeze",
    "stack",
    "unstack",
]


# -- what several ops need


def check_new_dims(name: str, x: Tensor, kept: Sequence[Dim], new: Sequence[Dim]) -> None:
    """A result over `kept` and `new` must not have a dim twice."""
    for i, d in enumerate(new):
        if any(same(d, o) for o in (*kept, *new[:i])):
            raise DimError(
                f"{name}: the result would have {d!r} twice:\n  source: {x!r}\n  new dims: {list(new)}\n"
                "Use another Dim for one of them (rf.replace_dim)."
            )


def with_sizes(name: str, out_dim: Dim | None, like: Dim) -> Dim:
    """`out_dim`, which takes over the sizes of `like` when it has none yet; `like` itself when None.

    Raises DimError when it has another length.
    """
    if out_dim is None or out_dim.base is like.base:
        return like
    if out_dim.base.extent < 0 and not out_dim.is_dim_known():
        out_dim.copy_from(like)
    elif out_dim.get_dim_value() != like.get_dim_value():
        raise DimError(f"{name}: the new axis has the sizes of {like!r}, but the dim given for it is {out_dim!r}")
    return out_dim


def _static_size(dim: Dim) -> int:
    """The size of a static dim, -1 for a dynamic one."""
    base = dim.base
    return -1 if base.dynamic else base.extent


def _feature(x: Tensor, replaced: Sequence[Dim], new: Dim | None) -> Dim | None:
    """The feature dim of a result in which `new` took the place of `replaced`."""
    return new if x.feature_dim is not None and x.feature_dim in replaced else x.feature_dim


# -- permute


def _plan_permute(p: PlanBuilder, x: Tensor, perm: Sequence[Dim | int], allow_int: bool) -> Plan:
    dims = [x.dims[axis] for axis in x.axes_of_entries(perm, allow_int)]
    return p.finish(p.out(p.permute(0, x.dims, dims), dims, x.dtype, x.feature_dim, x.sparse_dim))


Op("permute", num_tensors=1, planner=_plan_permute)


def _plan_copy(p: PlanBuilder, x: Tensor) -> Plan:
    return p.finish(p.out(p.emit("copy", 0), x.dims, x.dtype, x.feature_dim, x.sparse_dim))


_copy = Op("copy", num_tensors=1, planner=_plan_copy)


def copy(tensor: Tensor) -> Tensor:
    """A copy of the data, for a snapshot of what is changed in place later. Gradients pass through."""
    return _copy(tensor)


# -- merge and split


def _plan_merge_dims(p: PlanBuilder, x: Tensor, dims: tuple[Dim, ...], out_dim: Dim) -> Plan:
    own = [own_dim("merge_dims", x, d, "dim") for d in dims]
    check_new_dims("merge_dims", x, (), own)
    before: list[Dim] = []
    after: list[Dim] = []
    for d in x.dims:
        # The group takes the place of its last dim: merging heads {B, H, T, D} gives {B, T, H*D}, ready for a linear
        # map.
        if d is own[-1]:
            before, after = after, before
        elif not any(d is o for o in own):
            after.append(d)
    check_new_dims("merge_dims", x, [*before, *after], [out_dim])
    slot = p.permute(0, x.dims, [*before, *own, *after])
    slot = p.emit("flatten", slot, static=(len(before), len(own)))
    feature = _feature(x, own, out_dim)
    return p.finish(p.out(slot, [*before, out_dim.base, *after], x.dtype, feature, x.sparse_dim))


_merge_dims = Op("merge_dims", num_tensors=1, planner=_plan_merge_dims)


def merge_dims(source: Tensor, *, dims: Sequence[Dim], out_dim: Dim | None = None) -> tuple[Tensor, Dim]:
    """Flatten several dims into one, the first being the major one: {..., a, b} -> {..., a * b}.

    :param source: any dtype.
    :param dims: at least one; of one dim, it is relabeled; of none, a dim of size 1 is inserted.
    :param out_dim: default: the product by dim math; when a dim after the first needs masking (or is a size dim of the
        first), a new dim with one length for everybody: valid frames are then not in one piece per sequence, and the
        padding counts as frames. A dim without sizes takes these over.
    :returns: (tensor, out_dim). If the feature dim was merged, `out_dim` is the feature dim.

    Raises DimError when one of `dims` is not a dim of `source`, or when `out_dim` has another length.
    """
    dims = tuple(dims)
    if len(dims) < 2:
        if not dims:
            out_dim = with_sizes("merge_dims", out_dim, Dim(1, name="merged"))
            return expand_dim(source, out_dim), out_dim
        own_dim("merge_dims", source, dims[0], "dim")
        return (source.copy(), dims[0]) if out_dim is None else replace_dim(source, in_dim=dims[0], out_dim=out_dim)
    if out_dim is None:
        out_dim = merged_dim(dims)
    elif out_dim.base.extent < 0 and not out_dim.is_dim_known():
        out_dim = with_sizes("merge_dims", out_dim, merged_dim(dims))
    else:
        n = 1
        for d in dims:
            n *= d.get_dim_value()
        if n != out_dim.get_dim_value():
            raise DimError(
                f"merge_dims: {list(dims)} make {n} entries, but out_dim is {out_dim!r}\n  source: {source!r}"
            )
    return _merge_dims(source, dims, out_dim), out_dim


def merged_dim(dims: Sequence[Dim]) -> Dim:
    """The dim of the flattened `dims`: see `merge_dims`."""
    sizes_of_first = dims[0].base.size_dims if dims[0].need_masking() else ()
    if any(d.need_masking() for d in dims[1:]) or any(s in dims for s in sizes_of_first or ()):
        return Dim(None, name="merged").fill(math.prod(d.get_dim_value() for d in dims))
    return functools.reduce(operator.mul, dims)


def _plan_split_dims(
    p: PlanBuilder, x: Tensor, axis: Dim, dims: tuple[Dim, ...], sizes: tuple[int, ...], axis_size: int
) -> Plan:
    own = own_dim("split_dims", x, axis)
    if axis_size >= 0 and -1 not in sizes and math.prod(sizes) != axis_size:
        raise DimError(
            f"split_dims: {axis!r} has {axis_size} entries, {list(dims)} have {math.prod(sizes)}\n  source: {x!r}"
        )
    out_dims: list[Dim] = []
    for d in x.dims:
        out_dims += [o.base for o in dims] if d is own else [d]
    check_new_dims("split_dims", x, [d for d in x.dims if d is not own], dims)
    slot = p.emit("unflatten", 0, static=(axis_of(own, x.dims), sizes))
    return p.finish(p.out(slot, out_dims, x.dtype, _feature(x, [own], None), x.sparse_dim))


_split_dims = Op("split_dims", num_tensors=1, planner=_plan_split_dims)


def split_dims(
    source: Tensor,
    *,
    axis: Dim,
    dims: Sequence[Dim],
    pad_to_multiples: bool | None = None,
    pad_value: Any = None,
) -> Tensor:
    """Undo `merge_dims`: {..., axis} -> {..., *dims}, the first of `dims` being the major one.

    :param source: any dtype.
    :param axis: the dim to split.
    :param dims: their sizes multiply to that of `axis`. One of them may have no sizes yet and is inferred. If the axis
        needs masking, the first one takes per-sequence sizes, each of which must divide without remainder; another one
        gets one length for everybody.
    :param pad_to_multiples: fill up the axis on the right, so that it divides; the inferred dim is then rounded up.
    :param pad_value: what to fill up with, default 0; also stands after the end of each sequence.
    :returns: the feature dim is dropped if it is the axis.

    Raises DimError when sizes do not fit.
    """
    dims = tuple(dims)
    sizes = tuple([_static_size(d) for d in dims])
    axis_size = _static_size(axis)
    if sizes and axis_size >= 0 and -1 not in sizes and not pad_to_multiples:
        return _split_dims(source, axis, dims, sizes, axis_size)
    own = own_dim("split_dims", source, axis)
    if pad_to_multiples:
        source, axis = _pad_to_multiple(source, axis, dims, pad_value)
        own = own_dim("split_dims", source, axis)
    _infer_one(axis, dims)
    extents = tuple(d.get_dim_value() for d in dims)
    if math.prod(extents) != axis.get_dim_value():
        raise DimError(
            f"split_dims: {axis!r} has {axis.get_dim_value()} entries, {list(dims)} have {math.prod(extents)}\n"
            f"  source: {source!r}"
        )
    if not dims:
        return OP_SQUEEZE(source, own)
    sizes = tuple([_static_size(d) for d in dims])
    if sizes.count(-1) <= 1 and 0 not in sizes:
        return _split_dims(source, axis, dims, sizes, _static_size(axis))
    at = axis_of(own, source.dims)
    check_new_dims("split_dims", source, [d for d in source.dims if d is not own], dims)
    out_dims = (*source.dims[:at], *[d.base for d in dims], *source.dims[at + 1 :])
    (out,) = apply(
        "unflatten",
        (source,),
        (at, extents),
        [(out_dims, source.dtype, _feature(source, [own], None), source.sparse_dim)],
    )
    return out


def _infer_one(axis: Dim, dims: Sequence[Dim]) -> None:
    """Give sizes to the one of `dims` that has none."""
    unknown = [d for d in dims if not d.is_dim_known()]
    if not unknown:
        return
    if len(unknown) > 1:
        raise DimError(f"split_dims: of {list(dims)}, at most one may be without sizes; {unknown} have none")
    (dim,) = unknown
    at = [d is dim for d in dims].index(True)
    others = math.prod(d.get_dim_value() for d in dims if d is not dim)
    if others == 0 or axis.get_dim_value() % others:
        raise DimError(
            f"split_dims: {axis!r} does not divide by the {others} entries of {[d for d in dims if d is not dim]}; "
            "pad it first (rf.pad, or pad_to_multiples=True)"
        )
    if axis.need_masking() and at > 0:
        dim.fill(axis.get_dim_value() // others)
        return
    like = axis
    for d in reversed(dims[at + 1 :]):
        like = like.div_right(d)
    for d in dims[:at]:
        like = like.div_left(d)
    dim.copy_from(like)


def _pad_to_multiple(source: Tensor, axis: Dim, dims: Sequence[Dim], pad_value: Any) -> tuple[Tensor, Dim]:
    from rf.ops.concat import pad

    known = math.prod(d.get_dim_value() for d in dims if d.is_dim_known())
    if known < 1:
        raise DimError(f"split_dims: cannot pad {axis!r} to a multiple of the {known} entries of {list(dims)}")
    multiple = axis.ceildiv_right(known) * known
    if all(d.is_dim_known() for d in dims):
        multiple = Dim(known, name="multiple")
    source, (padded,) = pad(source, axes=[axis], padding=[(0, multiple - axis)], value=pad_value)
    out, _ = replace_dim(source, in_dim=padded, out_dim=multiple)
    return out, multiple


def reshape(source: Tensor, in_dims: Sequence[Dim], out_dims: Sequence[Dim]) -> Tensor:
    """Read the entries of `in_dims` as entries of `out_dims`: {..., *in_dims} -> {..., *out_dims}.

    :param in_dims: dims of `source`; they are laid out in this order first, the first being the major one.
    :param out_dims: as many entries; one of them may be without sizes and is inferred.
    :returns: padding is read like frames.

    Raises DimError when a dim is missing or the numbers of entries differ.
    """
    in_dims, out_dims = tuple(in_dims), tuple(out_dims)
    own = [own_dim("reshape", source, d, "dim") for d in in_dims]
    rest = [d for d in source.dims if not any(d is o for o in own)]
    _infer_one(Dim(None, name="reshaped").fill(math.prod(d.get_dim_value() for d in own)), out_dims)
    sizes = [d.get_dim_value() for d in out_dims]
    if math.prod(sizes) != math.prod(d.get_dim_value() for d in own):
        raise DimError(
            f"reshape: {list(in_dims)} and {list(out_dims)} differ in their number of entries\n  source: {source!r}"
        )
    check_new_dims("reshape", source, rest, out_dims)
    at = axis_of(own[0], source.dims) if own else 0
    at = len([d for d in source.dims[:at] if not any(d is o for o in own)])
    x = source.copy_transpose([*rest[:at], *own, *rest[at:]])
    dims = (*rest[:at], *[d.base for d in out_dims], *rest[at:])
    shape = tuple(d.get_dim_value() for d in dims)
    (out,) = apply("reshape", (x,), (shape,), [(dims, source.dtype, _feature(source, own, None), source.sparse_dim)])
    return out


MAX_PLANNED_PIECES = 8
"""With more results, a plan would have too many dims or slots; then the kernel is called directly."""


def _pieces(
    x: Tensor, axis: Dim, out_dims: tuple[Dim, ...], sizes: tuple[int, ...], size: int
) -> tuple[int, list[tuple[tuple[Dim, ...], Dim | None]]]:
    """The axis that `split` cuts, and (dims, feature dim) of each piece."""
    own = own_dim("split", x, axis)
    if size >= 0 and -1 not in sizes and sum(sizes) != size:
        raise DimError(
            f"split: {axis!r} has {size} entries, {list(out_dims)} have {sum(sizes)} together\n  source: {x!r}"
        )
    at = axis_of(own, x.dims)
    for d in out_dims:
        check_new_dims("split", x, [o for o in x.dims if o is not own], [d])
    return at, [((*x.dims[:at], d.base, *x.dims[at + 1 :]), _feature(x, [own], d)) for d in out_dims]


def _plan_split(
    p: PlanBuilder, x: Tensor, axis: Dim, out_dims: tuple[Dim, ...], sizes: tuple[int, ...], size: int
) -> Plan:
    at, pieces = _pieces(x, axis, out_dims, sizes, size)
    slots = p.emit("split", 0, static=(at, sizes), num_out=len(sizes))
    outs = [p.out(slot, dims, x.dtype, feature, x.sparse_dim) for slot, (dims, feature) in zip(slots, pieces)]
    return p.finish(*outs, single=False)


_split = Op("split", num_tensors=1, planner=_plan_split)


def split(source: Tensor, *, axis: Dim, out_dims: Sequence[Dim]) -> tuple[Tensor, ...]:
    """Cut an axis into consecutive pieces: {..., axis} -> {..., out_dims[0]}, {..., out_dims[1]}, ...

    :param axis: must not need masking: where a sequence would be cut depends on its length; use rf.slice for that.
    :param out_dims: one per piece, in order; the same Dim may occur several times. Their sizes add up to that of
        `axis`.
    :returns: one Tensor per piece; its feature dim is its piece of the axis, if the axis was the feature dim.

    Raises DimError when the axis is missing or sizes do not add up.
    """
    out_dims = tuple(out_dims)
    if len(out_dims) == 1:
        return (replace_dim(source, in_dim=axis, out_dim=out_dims[0])[0],)
    sizes = tuple([_static_size(d) for d in out_dims])
    size = _static_size(axis)
    if size < 0 or -1 in sizes:
        own_dim("split", source, axis)
        if axis.need_masking():
            raise DimError(f"split: {axis!r} of {source!r} needs masking; cut sequences with rf.slice")
        sizes, size = tuple(d.get_dim_value() for d in out_dims), axis.get_dim_value()
    if not out_dims:
        raise DimError(f"split: no out_dims given for {axis!r} of {source!r}")
    if len(out_dims) <= MAX_PLANNED_PIECES:
        return _split(source, axis, out_dims, sizes, size)
    at, pieces = _pieces(source, axis, out_dims, sizes, size)
    outs = [(dims, source.dtype, feature, source.sparse_dim) for dims, feature in pieces]
    return apply("split", (source,), (at, sizes), outs)


def _plan_glu(p: PlanBuilder, x: Tensor, axis: Dim, out_dim: Dim, size: int) -> Plan:
    at, pieces = _pieces(x, axis, (out_dim, out_dim), (size // 2,) * 2, size)
    dims, feature = pieces[0]
    return p.finish(p.out(p.emit("glu", 0, static=(at,)), dims, x.dtype, feature, x.sparse_dim))


_glu = Op("gating", num_tensors=1, planner=_plan_glu)


def gating(
    x: Tensor,
    *,
    axis: Dim | None = None,
    gate_func: Callable[[Tensor], Tensor] = elementwise.sigmoid,
    act_func: Callable[[Tensor], Tensor] = elementwise.identity,
    out_dim: Dim | None = None,
) -> tuple[Tensor, Dim]:
    """act_func(a) * gate_func(b), where a and b are the halves of `axis`: {..., axis} -> {..., axis / 2}.

    The gated linear unit of Dauphin et al. 2017, arXiv:1612.08083; numerics of torch's `glu`.

    :param axis: static, of even size; default: the feature dim.
    :param out_dim: default: `axis.div_left(2)`.
    :returns: (tensor, out_dim).

    Raises DimError when there is no axis or its size is odd.
    """
    if axis is None:
        axis = x.feature_dim
        if axis is None:
            raise DimError(f"gating: {x!r} has no feature dim; give axis=")
    out_dim = axis.div_left(2) if out_dim is None else out_dim
    size = _static_size(axis)
    usual = gate_func is elementwise.sigmoid and act_func is elementwise.identity
    if usual and size >= 0 and dtypes.is_float_dtype(x.dtype):
        return _glu(x, axis, out_dim, size), out_dim
    a, b = split(x, axis=axis, out_dims=(out_dim, out_dim))
    if act_func is not elementwise.identity:
        a = act_func(a)
    return a * gate_func(b), out_dim


# -- one axis more or less


def _plan_expand_dim(p: PlanBuilder, x: Tensor, dim: Dim, size: int) -> Plan:
    check_new_dims("expand_dim", x, x.dims, [dim])
    slot = p.emit("expand_axis", 0, static=(0, size))
    return p.finish(p.out(slot, (dim, *x.dims), x.dtype, x.feature_dim, x.sparse_dim))


_expand_dim = Op("expand_dim", num_tensors=1, planner=_plan_expand_dim)


def expand_dim(source: Tensor, dim: Dim) -> Tensor:
    """Repeat along a new dim: {...} -> {dim, ...}; a view where the backend can. Arithmetic never needs this.

    Raises DimError when `source` has the dim already.
    """
    size = _static_size(dim)
    if size >= 0:
        return _expand_dim(source, dim, size)
    check_new_dims("expand_dim", source, source.dims, [dim])
    (out,) = apply(
        "expand_axis",
        (source,),
        (0, dim.get_dim_value()),
        [((dim, *source.dims), source.dtype, source.feature_dim, source.sparse_dim)],
    )
    return out


def expand_dims(source: Tensor, dims: Sequence[Dim]) -> Tensor:
    """`expand_dim` for each of `dims`; the first ends up as the outermost. Without dims, a new Tensor object of the
    same data."""
    if not dims:
        return source.copy()
    for dim in reversed(tuple(dims)):
        source = expand_dim(source, dim)
    return source


SERVICES["expand_dims"] = expand_dims


def _plan_squeeze(p: PlanBuilder, x: Tensor, axis: Dim) -> Plan:
    own = own_dim("squeeze", x, axis)
    rest = [d for d in x.dims if d is not own]
    slot = p.emit("squeeze", 0, static=((axis_of(own, x.dims),),))
    return p.finish(p.out(slot, rest, x.dtype, _feature(x, [own], None), x.sparse_dim))


OP_SQUEEZE = Op("squeeze", num_tensors=1, planner=_plan_squeeze)


def squeeze(source: Tensor, axis: Dim) -> Tensor:
    """Remove a static dim of size 1: {..., axis} -> {...}. Raises DimError when it is missing or has another size."""
    if _static_size(axis) != 1:
        own_dim("squeeze", source, axis)
        raise DimError(f"squeeze: {axis!r} of {source!r} is not a static dim of size 1")
    return OP_SQUEEZE(source, axis)


def stack(sources: Sequence[Tensor], *, out_dim: Dim | None = None) -> tuple[Tensor, Dim]:
    """Put tensors of the same dims side by side along a new dim: n times {...} -> {out_dim, ...}.

    :param sources: at least one; the order of their dims may differ; dtypes are promoted.
    :param out_dim: of size n; default: a new static one.
    :returns: (tensor, out_dim).

    Raises DimError when the dims differ.
    """
    if not sources:
        raise RfError("stack: no tensors given")
    first = sources[0]
    for i, x in enumerate(sources[1:], 1):
        if len(x.dims) != len(first.dims) or x.dims_set != first.dims_set:
            raise DimError(
                f"stack: the dims differ:\n  0: {first!r}\n  {i}: {x!r}\nExpand one of them first (rf.expand_dims)."
            )
    out_dim = with_sizes("stack", out_dim, Dim(len(sources), name="stack"))
    check_new_dims("stack", first, first.dims, [out_dim])
    dtype = functools.reduce(dtypes.result_type, [x.dtype for x in sources])
    raws = [
        elementwise.cast(x, dtype) if x.dtype != dtype else x
        for x in [x if x.dims == first.dims else x.copy_transpose(first.dims) for x in sources]
    ]
    sparse = first.sparse_dim if all(x.sparse_dim == first.sparse_dim for x in sources) else None
    (out,) = apply("stack", raws, (0,), [((out_dim, *first.dims), dtype, first.feature_dim, sparse)])
    return out, out_dim


def _plan_unstack(p: PlanBuilder, x: Tensor, axis: Dim, n: int) -> Plan:
    own = own_dim("unstack", x, axis)
    rest = [d for d in x.dims if d is not own]
    slots = p.emit("unstack", 0, static=(axis_of(own, x.dims), n), num_out=n)
    outs = [p.out(slot, rest, x.dtype, _feature(x, [own], None), x.sparse_dim) for slot in slots]
    return p.finish(*outs, single=False)


_unstack = Op("unstack", num_tensors=1, planner=_plan_unstack)


def unstack(source: Tensor, *, axis: Dim) -> tuple[Tensor, ...]:
    """The entries along a static dim, one Tensor {...} each. Raises DimError when the axis is missing or dynamic."""
    n = _static_size(axis)
    if n < 2:
        own_dim("unstack", source, axis)
        if n < 0:
            raise DimError(f"unstack: {axis!r} of {source!r} is dynamic; loop over it with rf.scan")
        return (squeeze(source, axis),) if n else ()
    if n <= MAX_PLANNED_PIECES:
        return _unstack(source, axis, n)
    own = own_dim("unstack", source, axis)
    rest = tuple(d for d in source.dims if d is not own)
    out = (rest, source.dtype, _feature(source, [own], None), source.sparse_dim)
    return apply("unstack", (source,), (axis_of(own, source.dims), n), [out] * n)


# -- relabel


def _plan_replace_dim(p: PlanBuilder, x: Tensor, in_dim: Dim, out_dim: Dim) -> Plan:
    own = own_dim("replace_dim", x, in_dim, "in_dim")
    check_new_dims("replace_dim", x, [d for d in x.dims if d is not own], [out_dim])
    dims = [out_dim if d is own else d for d in x.dims]
    return p.finish(p.out(0, dims, x.dtype, _feature(x, [own], out_dim), x.sparse_dim))  # type: ignore[arg-type]


_replace_dim = Op("replace_dim", num_tensors=1, planner=_plan_replace_dim)


def replace_dim(source: Tensor, *, in_dim: Dim, out_dim: Dim | None = None) -> tuple[Tensor, Dim]:
    """The same data with another dim in the place of one: {..., in_dim} -> {..., out_dim}.

    :param out_dim: default: a new dim that shares the sizes (and masks) of `in_dim`; so does a dim without sizes. A dim
        with sizes must have the same length; sizes per sequence may differ.
    :returns: (tensor, out_dim). The feature dim follows.

    Raises DimError when `in_dim` is missing, `out_dim` is already there, or lengths differ.
    """
    if out_dim is None:
        out_dim = in_dim.copy(same_as_self=False)
    elif out_dim.base is not in_dim.base:
        if out_dim.base.extent < 0 and not out_dim.is_dim_known():
            out_dim.copy_from(in_dim)
        elif out_dim.get_dim_value() != in_dim.get_dim_value():
            own_dim("replace_dim", source, in_dim, "in_dim")
            raise DimError(
                f"replace_dim: {in_dim!r} and {out_dim!r} differ in length\n  source: {source!r}\n"
                "To cut or fill up, use rf.replace_dim_v2 or rf.slice(x, axis=in_dim, size=out_dim)."
            )
    return _replace_dim(source, in_dim, out_dim), out_dim


def set_sparse_dim(source: Tensor, sparse_dim: Dim | None) -> Tensor:
    """A new Tensor object of the same data, whose values are indices into `sparse_dim`. Raises DimError unless it holds
    integers."""
    out = source.copy()
    out.sparse_dim = sparse_dim
    return out


# -- complex numbers

_COMPLEX = {"float32": "complex64", "float64": "complex128"}
_REAL = {v: k for k, v in _COMPLEX.items()}


def _plan_real_as_complex(p: PlanBuilder, x: Tensor, pair_dim: Dim) -> Plan:
    own = own_dim("real_as_complex", x, pair_dim, "pair_dim")
    if x.dtype not in _COMPLEX:
        raise RfError(f"real_as_complex: needs float32 or float64, got {x!r}")
    rest = [d for d in x.dims if d is not own]
    slot = p.emit("real_as_complex", p.permute(0, x.dims, [*rest, own]))
    return p.finish(p.out(slot, rest, _COMPLEX[x.dtype], _feature(x, [own], None)))


def _plan_complex_as_real(p: PlanBuilder, x: Tensor, out_dim: Dim) -> Plan:
    if x.dtype not in _REAL:
        raise RfError(f"complex_as_real: needs complex numbers, got {x!r}")
    check_new_dims("complex_as_real", x, x.dims, [out_dim])
    return p.finish(p.out(p.emit("complex_as_real", 0), [*x.dims, out_dim.base], _REAL[x.dtype], x.feature_dim))


def _plan_make_complex(p: PlanBuilder, real: Tensor, imag: Tensor) -> Plan:
    dims = elementwise.result_dims("make_complex", (real, imag), True)
    dtype = dtypes.floating(dtypes.result_type(real.dtype, imag.dtype))
    if dtype not in _COMPLEX:
        raise RfError(f"make_complex: needs float32 or float64, got\n  real: {real!r}\n  imag: {imag!r}")
    slots = [p.cast(p.align(i, t.dims, dims), t.dtype, dtype) for i, t in enumerate((real, imag))]
    return p.finish(p.out(p.emit("make_complex", *slots), dims, _COMPLEX[dtype], real.feature_dim or imag.feature_dim))


_real_as_complex = Op("real_as_complex", num_tensors=1, planner=_plan_real_as_complex)
_complex_as_real = Op("complex_as_real", num_tensors=1, planner=_plan_complex_as_real)
_make_complex = Op("make_complex", num_tensors=2, planner=_plan_make_complex)


def real_as_complex(x: Tensor, *, pair_dim: Dim) -> Tensor:
    """Pairs (real part, imaginary part) as complex numbers: {..., pair_dim} -> {...}, float32 to complex64."""
    if _static_size(pair_dim) != 2:
        raise DimError(f"real_as_complex: pair_dim {pair_dim!r} of {x!r} must be a static dim of size 2")
    return _real_as_complex(x, pair_dim)


def complex_as_real(x: Tensor, *, out_dim: Dim | None = None) -> tuple[Tensor, Dim]:
    """Real and imaginary part along a new dim of size 2: {...} -> {..., out_dim}, complex64 to float32.

    :returns: (tensor, out_dim).
    """
    out_dim = with_sizes("complex_as_real", out_dim, Dim(2, name="complex"))
    return _complex_as_real(x, out_dim), out_dim


def make_complex(real: Tensor | float, imag: Tensor | float) -> Tensor:
    """real + i * imag over the union of their dims: float32 to complex64, float64 to complex128."""
    return _make_complex(real, imag)
