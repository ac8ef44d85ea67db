"""Softmax and the fused normalizations over feature dims."""

from __future__ import annotations

from typing import Any

from rf import dtypes
from rf._core import Op, Tensor
from rf._dim import Dim
from rf._errors import DimError
from rf._plan import Plan, PlanBuilder, axis_of, own_dim
from rf.ops.reduce import fill_padding


def _softmax_planner(name: str) -> Any:
    def plan(p: PlanBuilder, x: Tensor, axis: Dim, use_mask: bool) -> Plan:
        own = own_dim(name, x, axis)
        dtype = dtypes.floating(x.dtype)
        slot: Any = p.cast(0, x.dtype, dtype)
        order = list(x.dims)
        size_dims = own.base.size_dims if use_mask else None
        if size_dims:
            if not all(s in order for s in size_dims):
                slot, order = fill_padding(p, slot, order, [own], 0)
            slot = p.emit(f"masked_{name}", slot, p.mask(own, order), static=(axis_of(own, order),))
        else:
            slot = p.emit(name, slot, static=(axis_of(own, order),))
        return p.finish(p.out(slot, order, dtype, x.feature_dim))

    return plan


_softmax = Op("softmax", num_tensors=1, planner=_softmax_planner("softmax"), masked=True)
_log_softmax = Op("log_softmax", num_tensors=1, planner=_softmax_planner("log_softmax"), masked=True)


def softmax(a: Tensor, *, axis: Dim, use_mask: bool = True) -> Tensor:
    """exp(a) / sum over `axis` of exp(a): {..., axis} -> {..., axis}, float.

    The padding of `axis` gets probability 0 whatever it holds; a sequence of length 0 gets zeros. `use_mask=False`
    treats it as frames.
    Raises DimError when `axis` is not a dim of `a`.
    """
    return _softmax(a, axis, use_mask)


def log_softmax(a: Tensor, *, axis: Dim, use_mask: bool = True) -> Tensor:
    """log(softmax(a)), stable; -inf in the padding of `axis`. See `softmax`."""
    return _log_softmax(a, axis, use_mask)


def _norm_planner(kernel: str) -> Any:
    def plan(
        p: PlanBuilder, x: Tensor, scale: Tensor | None, bias: Tensor | None, in_dims: tuple[Dim, ...], eps: float
    ) -> Plan:
        for d in in_dims:
            if d not in x.dims:
                raise DimError(f"{kernel}: the input {x!r} has no dim {d!r}")
            if d.is_dynamic():
                raise DimError(
                    f"{kernel}: {d!r} is dynamic; normalize over static dims, or use rf.normalize for sequences"
                )
        dtype = dtypes.floating(x.dtype)
        order = [*[d for d in x.dims if d not in in_dims], *in_dims]
        slot = p.permute(p.cast(0, x.dtype, dtype), x.dims, order)
        params = []
        for i, param in ((1, scale), (2, bias)):
            params.append(-1 if param is None else p.permute(p.cast(i, param.dtype, dtype), param.dims, in_dims))
        slot = p.emit(kernel, slot, *params, static=(len(in_dims), eps))
        return p.finish(p.out(slot, order, dtype, x.feature_dim))

    return plan


layer_norm = Op("layer_norm", num_tensors=3, planner=_norm_planner("layer_norm"))
"""`layer_norm(x, scale | None, bias | None, in_dims, eps)`: Ba et al. 2016, arXiv:1607.06450; numerics of torch's
layer_norm."""

rms_norm = Op("rms_norm", num_tensors=3, planner=_norm_planner("rms_norm"))
"""`rms_norm(x, scale | None, bias | None, in_dims, eps)`: Zhang and Sennrich 2019, arXiv:1910.07467."""
