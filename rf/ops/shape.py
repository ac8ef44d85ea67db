"""Ops that rearrange axes."""

from __future__ import annotations

from rf._core import Op, Tensor
from rf._dim import Dim
from rf._plan import Plan, PlanBuilder


def _plan_permute(p: PlanBuilder, x: Tensor, dims: tuple[Dim, ...]) -> Plan:
    return p.finish(p.out(p.permute(0, x.dims, dims), dims, x.dtype, x.feature_dim, x.sparse_dim))


Op("permute", num_tensors=1, planner=_plan_permute)
