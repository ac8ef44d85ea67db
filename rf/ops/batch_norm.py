"""Batch normalization as two fused ops: with the statistics of the batch, and with given ones."""

from __future__ import annotations

from typing import Any

from rf import dtypes
from rf._core import Op, Tensor
from rf._dim import Dim
from rf._errors import DimError
from rf._plan import Plan, PlanBuilder


def _check(x: Tensor, in_dim: Dim) -> str:
    if in_dim not in x.dims:
        raise DimError(f"BatchNorm: the input {x!r} has no dim {in_dim!r}")
    return dtypes.floating(x.dtype)


def combined_mask(p: PlanBuilder, dims: list[Dim], *, keep_leading: bool = False) -> tuple[Any, list[Dim]]:
    """One mask for all masked dims of an array over `dims`, or -1. Returns it with the axes it is made for.

    Those may have more dims in front: size dims that the array lacks.
    """
    masked = [d for d in dims if d.dynamic and d.base.size_dims]
    order = list(dims)
    for d in masked:
        order = [*[s for s in d.base.size_dims or () if s not in order], *order]
    mask: Any = -1
    for d in masked:
        one = p.mask(d.base, order, keep_leading=keep_leading)
        mask = one if mask == -1 else p.emit("logical_and", mask, one)
    return mask, order


def _plan_of_batch(
    p: PlanBuilder, x: Tensor, gamma: Tensor | None, beta: Tensor | None, in_dim: Dim, use_mask: bool, eps: float
) -> Plan:
    dtype = _check(x, in_dim)
    order, mask = list(x.dims), -1
    slot: Any = p.cast(0, x.dtype, dtype)
    if use_mask:
        mask, order = combined_mask(p, order, keep_leading=True)
        if len(order) > len(x.dims):
            slot = p.align(slot, x.dims, order)
    params = [
        -1 if t is None else p.align(p.cast(i, t.dtype, dtype), t.dims, order) for i, t in ((1, gamma), (2, beta))
    ]
    axes = tuple(i for i, d in enumerate(order) if d != in_dim)
    out = p.emit("batch_norm_of_batch", slot, mask, *params, static=(axes, eps), num_out=3)
    return p.finish(
        p.out(out[0], order, dtype, x.feature_dim),
        p.out(out[1], [in_dim.base], dtype),
        p.out(out[2], [in_dim.base], dtype),
    )


batch_norm_of_batch = Op("batch_norm_of_batch", num_tensors=3, planner=_plan_of_batch, masked=True)
"""`(x {..., in}, gamma | None, beta | None, in_dim, use_mask, eps) -> (y {..., in}, mean {in}, biased variance {in})`.

Statistics over all valid frames, 0 over none. Padding has no influence on values or gradients.
"""


def _plan_apply(
    p: PlanBuilder,
    x: Tensor,
    mean: Tensor,
    variance: Tensor,
    gamma: Tensor | None,
    beta: Tensor | None,
    in_dim: Dim,
    eps: float,
) -> Plan:
    dtype = _check(x, in_dim)
    slots: list[Any] = [p.cast(0, x.dtype, dtype)]
    for i, t in enumerate((mean, variance, gamma, beta), 1):
        slots.append(-1 if t is None else p.align(p.cast(i, t.dtype, dtype), t.dims, x.dims))
    return p.finish(p.out(p.emit("batch_norm_apply", *slots, static=(eps,)), x.dims, dtype, x.feature_dim))


batch_norm_apply = Op("batch_norm_apply", num_tensors=5, planner=_plan_apply)
"""`(x {..., in}, mean {in}, variance {in}, gamma | None, beta | None, in_dim, eps) -> y {..., in}`, framewise."""
