"""Indexing along a dim: gather."""

from __future__ import annotations

from rf import dtypes
from rf._core import Op, Tensor
from rf._dim import Dim
from rf._errors import DimError, RfError
from rf._plan import Plan, PlanBuilder, same


def _plan_gather(p: PlanBuilder, source: Tensor, indices: Tensor, axis: Dim) -> Plan:
    if axis not in source.dims:
        raise DimError(f"gather: axis {axis!r} is not a dim of the source:\n  source: {source!r}\n  indices: {indices!r}")
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
    return p.finish(p.out(p.emit("gather", x, i, static=(len(common),)), dims, source.dtype, feature, source.sparse_dim))


_gather = Op("gather", num_tensors=2, planner=_plan_gather)
