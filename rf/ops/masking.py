"""Ops about which entries are valid: sequence masks, and selecting, packing and scattering by a mask."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy

from rf._core import Tensor, make_tensor
from rf._dim import Dim
from rf._errors import BackendError, DimError, RfError
from rf.ops import create, elementwise
from rf.ops.dims import host_mask, size_dims_of, tensor_beside
from rf.ops.index import _gather, gather_rows
from rf.ops.sequence import cumsum, expand_make_non_empty
from rf.ops.shape import expand_dims, merge_dims, split_dims

__all__ = ["masked_scatter", "masked_select", "pack_padded", "pad_packed", "sequence_mask"]


def sequence_mask(dims: Dim | Sequence[Dim], *, device: str | None = None) -> Tensor:
    """True on entries that are valid in every one of `dims`: bool, over those that need masking and their size dims.

    The storage order follows `dims`. A scalar True when none needs masking.
    """
    dims = (dims,) if isinstance(dims, Dim) else tuple(dims)
    out: Tensor | None = None
    for d in dims:
        if d.need_masking():
            own = (*(d.base.size_dims or ()), d)
            mask = d.get_mask([*[s for s in own if s not in dims], *dims], device)
            out = mask if out is None else elementwise.combine_bc(out, "logical_and", mask, dim_order=dims)
    return create.full(dims=(), fill_value=True, dtype="bool", device=device) if out is None else out


# -- selecting


def masked_select(
    tensor: Tensor, *, mask: Tensor, dims: Sequence[Dim], out_dim: Dim | None = None
) -> tuple[Tensor, Dim]:
    """Keep the entries where `mask` holds, side by side in one new dim: {..., *dims} -> {..., out_dim}.

    :param tensor: any dtype; repeated along those of `dims` that it lacks.
    :param mask: bool, over `dims` and maybe others; padding of its dims is not selected.
    :param dims: the dims to remove, the first being the major one. If the mask has others, each of their entries
        selects for itself.
    :param out_dim: default: a new dim. A dim without sizes takes over the number of entries: one, or one for each entry
        of the other mask dims.
    :returns: (tensor, out_dim).

    The numbers of entries are read on the host, so this waits for the device, and raises BackendError on a backend
    without values. Raises DimError when `dims` are not dims of the mask, or `out_dim` has another length.
    """
    dims = tuple(dims)
    if mask.dtype != "bool":
        raise RfError(f"masked_select: the mask must be bool, got {mask!r}; compare first (x != 0)")
    if not dims or any(d not in mask.dims for d in dims):
        raise DimError(
            f"masked_select: dims {list(dims)} must be dims of the mask\n  tensor: {tensor!r}\n  mask: {mask!r}"
        )
    lacking = _lacking_size_dims(mask, dims)
    rest = (*lacking, *[d for d in mask.dims if d not in dims])
    order = (*rest, *dims)
    if not mask.backend or not mask.backend.computes:
        if out_dim is None or not out_dim.is_dim_known():
            raise BackendError(
                f"masked_select: how many entries {mask!r} selects is not known there; give an out_dim with sizes"
            )
        kept = [d for d in tensor.dims if d not in dims and d not in rest]
        feature = tensor.feature_dim if tensor.feature_dim in kept else None
        assert mask.backend is not None
        out = make_tensor(
            mask.backend, mask.backend.no_value, (*rest, out_dim, *kept), tensor.dtype, feature, tensor.sparse_dim
        )
        return out, out_dim
    selected = mask.copy_transpose(order[len(lacking) :], allow_int=False).numpy()
    selected = numpy.array(numpy.broadcast_to(selected, [d.get_dim_value() for d in order]))
    for d in order:
        if d.need_masking() and all(s in order for s in d.base.size_dims or ()):
            selected &= host_mask(d, order)
    return _select(tensor, selected, rest, dims, out_dim)


def _lacking_size_dims(mask: Tensor, dims: tuple[Dim, ...]) -> list[Dim]:
    """Dims that say where `dims` have padding, and that the mask lacks: each of their entries selects for itself."""
    out: list[Dim] = []
    for d in dims:
        if d.need_masking():
            out += [s for s in d.base.size_dims or () if s not in mask.dims and s not in out]
    return out


def _select(
    tensor: Tensor, selected: numpy.ndarray, rest: tuple[Dim, ...], dims: tuple[Dim, ...], out_dim: Dim | None
) -> tuple[Tensor, Dim]:
    """Entries where the host mask `selected`, over `rest` + `dims`, holds."""
    flat = selected.reshape(*selected.shape[: len(rest)], math.prod(selected.shape[len(rest) :]))
    count = flat.sum(axis=-1)
    if out_dim is None:
        out_dim = Dim(None, name="selected")
    if not out_dim.is_dim_known():
        out_dim.fill(count, rest)
    n = int(count.max()) if count.size else 0
    if out_dim.get_dim_value() != n:
        raise DimError(f"masked_select: {n} entries are selected, but out_dim is {out_dim!r}")
    axis = dims[0]
    if len(dims) > 1:
        missing = [d for d in dims if d not in tensor.dims]
        tensor, axis = merge_dims(
            expand_dims(tensor, missing) if missing else tensor,
            dims=dims,
            out_dim=Dim(None, name="merged").fill(flat.shape[-1]),
        )
    elif axis not in tensor.dims:
        tensor = expand_dims(tensor, dims)
    rows = numpy.argsort(~flat, axis=-1, kind="stable")[..., :n] if rest else numpy.flatnonzero(flat)
    return gather_rows(tensor, axis, rows, (*rest, out_dim)), out_dim


def masked_scatter(
    source: Tensor, backup: Tensor | float | None = None, *, mask: Tensor, dims: Sequence[Dim], in_dim: Dim
) -> Tensor:
    """Undo `masked_select`: put the entries, in order, where `mask` holds: {..., in_dim} -> {..., *dims}.

    :param source: the entries.
    :param backup: what stands where the mask does not hold; default 0. Also in the padding of the dims of the mask.
    :param mask: bool, over `dims` and maybe others.
    :param dims: as in `masked_select`.
    :param in_dim: the dim of the entries.

    Raises DimError when a dim is missing.
    """
    dims = tuple(dims)
    if any(d not in mask.dims for d in dims) or in_dim not in source.dims:
        raise DimError(
            f"masked_scatter: dims {list(dims)} must be dims of the mask, {in_dim!r} of the source\n"
            f"  source: {source!r}\n  mask: {mask!r}"
        )
    lacking = _lacking_size_dims(mask, dims)
    mask = (expand_dims(mask, lacking) if lacking else mask).copy_masked(False)
    ones = elementwise.cast(mask, "int32")
    if len(dims) == 1:
        rank = cumsum(ones, spatial_dim=dims[0])
    else:
        flat = Dim(None, name="merged").fill(math.prod(d.get_dim_value() for d in dims))
        rank = cumsum(merge_dims(ones, dims=dims, out_dim=flat)[0], spatial_dim=flat)
        rank = split_dims(rank, axis=flat, dims=dims)
    source, in_dim = expand_make_non_empty(source, axis=in_dim)
    rows = elementwise.clip_by_value(rank - 1, 0, in_dim.get_dim_value() - 1)
    out = _gather(source, rows, in_dim)
    return elementwise.where(mask, out, 0 if backup is None else backup, allow_broadcast_all_sources=True)


# -- packing: the mask is that of the sequences, which the host knows


def _sequences(dims: tuple[Dim, ...]) -> tuple[numpy.ndarray, tuple[Dim, ...]]:
    """Valid entries over (size dims that are not in `dims`) + `dims`, and the former."""
    rest = tuple(s for s in size_dims_of(*dims) if s not in dims)
    order = (*rest, *dims)
    valid = numpy.ones([d.get_dim_value() for d in order], dtype=bool)
    for d in dims:
        if d.need_masking():
            valid &= host_mask(d, order)
    return valid, rest


def pack_padded(
    source: Tensor, *, dims: Sequence[Dim], enforce_sorted: bool = False, out_dim: Dim | None = None
) -> tuple[Tensor, Dim]:
    """Valid frames only, one sequence behind the other: {B, T, ...} -> {out_dim, ...}.

    :param dims: usually [batch, time]; the first is the major one. If a size dim is not among them, each of its entries
        is packed for itself.
    :param enforce_sorted: must be False.
    :param out_dim: default: a new dim. A dim without sizes takes over the number of valid frames.
    :returns: (tensor, out_dim). Lengths are host integers: nothing waits for the device.

    Raises RfError for `enforce_sorted`, DimError when a dim is missing.
    """
    if enforce_sorted:
        raise RfError("pack_padded: enforce_sorted=True is not available; sequences stay in their order")
    dims = tuple(dims)
    for d in dims:
        if d not in source.dims:
            raise DimError(f"pack_padded: {d!r} is not a dim of {source!r}")
    if not any(d.need_masking() for d in dims):
        return merge_dims(source, dims=dims, out_dim=out_dim)
    valid, rest = _sequences(dims)
    return _select(source, valid, rest, dims, out_dim)


def pad_packed(source: Tensor, *, in_dim: Dim, dims: Sequence[Dim]) -> Tensor:
    """Undo `pack_padded`: {in_dim, ...} -> {B, T, ...}, 0 in the padding.

    :param in_dim: the dim of the packed frames.
    :param dims: as in `pack_padded`.

    Raises DimError when `in_dim` is missing or has not as many frames as `dims`.
    """
    dims = tuple(dims)
    if in_dim not in source.dims:
        raise DimError(f"pad_packed: in_dim {in_dim!r} is not a dim of {source!r}")
    valid, rest = _sequences(dims)
    flat = valid.reshape(*valid.shape[: len(rest)], math.prod(valid.shape[len(rest) :]))
    count = flat.sum(axis=-1)
    n = int(count.max()) if count.size else 0
    if in_dim.get_dim_value() != n:
        raise DimError(
            f"pad_packed: {list(dims)} have {n} valid entries, but in_dim is {in_dim!r}\n  source: {source!r}"
        )
    if valid.all():
        return split_dims(source, axis=in_dim, dims=dims)
    rows = numpy.maximum(numpy.cumsum(flat, axis=-1) - 1, 0).reshape(valid.shape)
    was_feature = source.feature_dim is not None and source.feature_dim == in_dim
    out = gather_rows(source, in_dim, rows, (*rest, *dims), removes=was_feature)
    mask = tensor_beside(source, valid, (*rest, *dims), "bool")
    return elementwise.where(mask, out, 0, allow_broadcast_all_sources=True)
