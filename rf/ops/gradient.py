"""Control over gradients. On a backend without gradients these are identities, except `gradient` itself, which is an
error."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any, overload

from rf import dtypes
from rf._core import Op, Tensor, make_tensor
from rf._dim import Dim
from rf._errors import DimError, RfError
from rf._plan import Plan, PlanBuilder
from rf.backend import selected_backend

__all__ = [
    "gradient",
    "scaled_gradient",
    "scaled_gradient_ext",
    "set_requires_gradient",
    "stop_gradient",
    "stop_gradient_scope",
]


def set_requires_gradient(source: Tensor) -> None:
    """Have gradients with respect to `source` computed, in place: operations on it are recorded from now on."""
    backend = source.backend
    if backend is None:
        raise RfError(f"set_requires_gradient: {source!r} is a template without data")
    if not dtypes.kind(source.dtype) >= 2:
        raise RfError(f"set_requires_gradient: only float and complex tensors have gradients, got {source!r}")
    if backend.computes:
        backend.set_requires_gradient(source.raw_tensor)


@overload
def gradient(y: Tensor, x: Tensor) -> Tensor: ...
@overload
def gradient(y: Tensor, x: Sequence[Tensor]) -> list[Tensor]: ...
def gradient(y: Tensor, x: Tensor | Sequence[Tensor]) -> Tensor | list[Tensor]:
    """d y / d x: {...} like `x`.

    :param y: a scalar; it can be differentiated again afterwards.
    :param x: a Tensor or several, of which `y` was computed, and which require gradients (`set_requires_gradient`,
        parameters). What `y` does not depend on has gradient 0.

    Raises DimError when `y` has dims, BackendError on a backend without gradients.
    """
    if y.dims:
        raise DimError(f"gradient: y must be a scalar, got {y!r}; reduce it first (rf.reduce_sum)")
    xs = [x] if isinstance(x, Tensor) else list(x)
    backend = y.backend
    if backend is None or any(t.backend is not backend for t in xs):
        raise RfError(f"gradient: needs tensors with data of one backend, got {y!r} and {xs}")
    out = []
    for t, raw in zip(xs, backend.gradient(y.raw_tensor, [t.raw_tensor for t in xs])):
        if raw is None:
            raw = backend.full(backend.shape_of(t.raw_tensor), 0, t.dtype, t.device)
        out.append(make_tensor(backend, raw, t.dims, t.dtype, t.feature_dim))
    return out[0] if isinstance(x, Tensor) else out


def _plan_stop_gradient(p: PlanBuilder, x: Tensor) -> Plan:
    return p.finish(p.out(p.emit("stop_gradient", 0), x.dims, x.dtype, x.feature_dim, x.sparse_dim))


_stop_gradient = Op("stop_gradient", num_tensors=1, planner=_plan_stop_gradient)


def stop_gradient(source: Tensor) -> Tensor:
    """The same values, constant for differentiation."""
    return _stop_gradient(source)


def stop_gradient_scope() -> contextlib.AbstractContextManager[Any]:
    """In this `with` block, nothing is recorded for gradients (of the selected backend)."""
    return selected_backend().no_grad()


def _plan_scaled_gradient(p: PlanBuilder, x: Tensor, scale: Tensor, shift: Tensor | None, axis: Dim | None) -> Plan:
    for what, t in (("scale", scale), ("shift", shift)):
        if t is not None and not all(d in x.dims for d in t.dims):
            raise DimError(f"scaled_gradient: {what}={t!r} has a dim that is not in {x!r}")
    if axis is not None and axis not in x.dims:
        raise DimError(f"scaled_gradient: axis {axis!r} is not a dim of {x!r}")
    where = None if axis is None else x.get_axis_from_description(axis)
    factors = [
        -1 if t is None else p.cast(p.align(i, t.dims, x.dims), t.dtype, x.dtype) for i, t in ((1, scale), (2, shift))
    ]
    slot = p.emit("scaled_gradient", 0, *factors, static=(where,))
    return p.finish(p.out(slot, x.dims, x.dtype, x.feature_dim, x.sparse_dim))


_scaled_gradient = Op("scaled_gradient", num_tensors=3, planner=_plan_scaled_gradient)


def scaled_gradient(source: Tensor, scale: float | Tensor) -> Tensor:
    """The same values, with the gradient times `scale`: 0 stops it, a negative scale reverses it (Ganin et al. 2016).

    :param scale: a number, or a Tensor with dims of `source`; gets no gradient itself.
    """
    if not isinstance(scale, Tensor) and scale == 0:
        return stop_gradient(source)
    return _scaled_gradient(source, scale, None, None)


def scaled_gradient_ext(
    source: Tensor,
    *,
    scale: float | Tensor,
    shift: float | Tensor | None = None,
    scale_shift_by_sum_over_axis: Dim | None = None,
) -> Tensor:
    """The same values, with the gradient g replaced by scale * g + shift, or scale * g + shift * (sum of |g| over an
    axis).

    :param scale: a number, or a Tensor with dims of `source`.
    :param shift: likewise.
    :param scale_shift_by_sum_over_axis: the axis of the sum; the shift is then 0 where there is no gradient, as in the
        padding.

    Raises DimError when these have dims that `source` lacks.
    """
    return _scaled_gradient(source, scale, shift, scale_shift_by_sum_over_axis)
