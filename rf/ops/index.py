"""Indexing along a dim: gather and one-hot."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy

from rf import dtypes
from rf._core import Op, Tensor, apply
from rf._dim import Dim
from rf._errors import DimError, RfError
from rf._plan import Plan, PlanBuilder, axis_of, same
from rf.ops import elementwise
from rf.ops.dims import tensor_beside
from rf.ops.shape import _feature, check_new_dims, own_dim

__all__ = ["gather", "one_hot", "sparse_to_dense"]


# -- gather


def _plan_gather(p: PlanBuilder, source: Tensor, indices: Tensor, axis: Dim) -> Plan:
    if axis not in source.dims:
        raise DimError(
            f"gather: axis {axis!r} is not a dim of the source:\n  source: {source!r}\n  indices: {indices!r}"
        )
    if dtypes.kind(indices.dtype) != 1:
        raise RfError(f"gather: indices must be integers, got {indices!r}")
    at = source.dims[source.get_axis_from_description(axis)]
    rest = [d for d in source.dims if d is not at]
    common = [d for d in rest if any(same(d, i) for i in indices.dims)]
    rest = [d for d in rest if d not in common]
    index_dims = [d for d in indices.dims if d not in common]
    x = p.permute(0, source.dims, [*common, at, *rest])
    i = p.permute(1, indices.dims, [next(d for d in indices.dims if same(d, c)) for c in common] + index_dims)
    rest = [d.base if d.base not in index_dims else d for d in rest]
    dims = [*common, *index_dims, *rest]
    feature = source.feature_dim if source.feature_dim is not None and source.feature_dim in [*common, *rest] else None
    return p.finish(
        p.out(p.emit("gather", x, i, static=(len(common),)), dims, source.dtype, feature, source.sparse_dim)
    )


_gather = Op("gather", num_tensors=2, planner=_plan_gather)


def gather(source: Tensor, *, indices: Tensor | int, axis: Dim | None = None, clip_to_valid: bool = False) -> Tensor:
    """Take entries along `axis`: {..., axis} indexed by {...} -> {...}.

    :param source: any dtype.
    :param indices: integers in 0 .. size-1. Dims that the source has too are matched; the others take the place of the
        axis. An int removes the axis; a negative one counts from the end, of each sequence if the axis needs masking.
    :param axis: default: the sparse dim of `indices`.
    :param clip_to_valid: take indices outside 0 .. size-1 (the size of each sequence) for the nearest one inside. If
        the raw axis is empty, these are zeros.
    :returns: sparse dim, and the feature dim unless it was the axis, are those of the source. Indices in padding are
        followed like others.

    Raises DimError when the axis is missing, RfError when `indices` are no integers.
    """
    if isinstance(indices, Tensor):
        axis = indices.sparse_dim if axis is None else axis
        if axis is None:
            raise DimError(
                f"gather: give axis=, as the indices have no sparse dim:\n  source: {source!r}\n  indices: {indices!r}"
            )
        if clip_to_valid:
            indices = _clip(indices, source, axis)
            source, axis = _not_empty(source, axis)
        return _gather(source, indices, axis)
    if axis is None:
        raise DimError(f"gather: give axis= together with the index {indices} for {source!r}")
    own = own_dim("gather", source, axis)
    index, n = int(indices), axis.get_dim_value()
    if axis.need_masking() and (index < 0 or clip_to_valid):
        sizes = axis.get_sizes()
        last = sizes.values.astype(numpy.int64) - 1
        rows = last + 1 + index if index < 0 else numpy.minimum(last, index)
        return gather_rows(source, axis, numpy.maximum(rows, 0), sizes.dims, removes=True)
    index = index + n if index < 0 else min(index, n - 1) if clip_to_valid else index
    if not 0 <= index < n:
        raise DimError(f"gather: the index {indices} is outside {axis!r} of {source!r}")
    at = axis_of(own, source.dims)
    dims = (*source.dims[:at], *source.dims[at + 1 :])
    (out,) = apply(
        "select", (source,), (at, index), [(dims, source.dtype, _feature(source, [own], None), source.sparse_dim)]
    )
    return out


def _clip(indices: Tensor, source: Tensor, axis: Dim) -> Tensor:
    sizes = axis.get_sizes()
    if sizes.dims:
        last: Any = tensor_beside(source, numpy.maximum(sizes.values - 1, 0), sizes.dims, indices.dtype)
    else:
        last = max(axis.get_dim_value() - 1, 0)
    out = elementwise.clip_by_value(indices, 0, last, allow_broadcast_all_sources=True)
    out.sparse_dim = indices.sparse_dim
    return out


def _not_empty(source: Tensor, axis: Dim) -> tuple[Tensor, Dim]:
    """One frame of zeros where the axis has none: what an index that is in range of no frame finds."""
    if axis.get_dim_value() > 0:
        return source, axis
    at = source.get_axis_from_description(axis)
    zero = Dim(1, name="zero")
    paddings = tuple((0, int(i == at)) for i in range(len(source.dims)))
    dims = (*source.dims[:at], zero, *source.dims[at + 1 :])
    out = (dims, source.dtype, _feature(source, [source.dims[at]], None), source.sparse_dim)
    return apply("pad", (source,), (paddings, "constant", 0), [out])[0], zero


def gather_rows(source: Tensor, axis: Dim, rows: numpy.ndarray, dims: Sequence[Dim], removes: bool = False) -> Tensor:
    """`gather` along `axis` with indices that were computed on the host, an array over `dims`. If the axis is empty,
    zeros are taken.

    The last one of `dims` takes the place of the axis, also as feature dim, unless `removes`.
    """
    was_feature = source.feature_dim is not None and source.feature_dim == axis
    indices = tensor_beside(source, rows, dims)
    source, axis = _not_empty(source, axis)
    out = _gather(source, indices, axis)
    if was_feature and not removes:
        out.feature_dim = dims[-1]
    return out


# -- one-hot


def sparse_to_dense(labels: Tensor, *, label_value: Any, other_value: Any, axis: Dim | None = None) -> Tensor:
    """`label_value` at the class that a label names and `other_value` at the others: {...} -> {..., axis}.

    :param labels: integers in 0 .. size-1; a label outside matches no class.
    :param label_value: a number or a Tensor.
    :param other_value: likewise.
    :param axis: the classes; default: the sparse dim of the labels. It is the feature dim of the result.
    """
    axis = labels.sparse_dim if axis is None else axis
    if axis is None:
        raise DimError(f"sparse_to_dense: give axis=, as the labels have no sparse dim: {labels!r}")
    check_new_dims("sparse_to_dense", labels, labels.dims, [axis])
    classes = tensor_beside(labels, numpy.arange(axis.get_dim_value()), (axis,), labels.dtype)
    hit = elementwise.compare_bc(labels, "equal", classes, dim_order=[*labels.dims, axis])
    out = elementwise.where(hit, label_value, other_value, allow_broadcast_all_sources=True)
    out.feature_dim = axis
    return out


def one_hot(source: Tensor) -> Tensor:
    """1 at the class that a label names, else 0: {...} with sparse dim C -> {..., C}, in the default float dtype."""
    out = sparse_to_dense(source, label_value=1.0, other_value=0.0)
    dtype = dtypes.get_default_float_dtype()
    return out if out.dtype == dtype else elementwise.cast(out, dtype)
