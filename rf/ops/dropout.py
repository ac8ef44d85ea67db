"""Dropout."""

from __future__ import annotations

from collections.abc import Sequence

from rf import _random, dtypes
from rf._core import Op, Tensor
from rf._dim import Dim, as_dims
from rf._errors import DimError, RfError
from rf._plan import Plan, PlanBuilder
from rf.ops.elementwise import cast, identity, where
from rf.ops.rand import random_uniform
from rf.run_ctx import get_run_ctx

__all__ = ["dropout", "dropout_broadcast_default"]


def _check_axes(x: Tensor, axis: Sequence[Dim]) -> None:
    for d in axis:
        if d not in x.dims:
            raise DimError(f"dropout: axis {d!r} is not a dim of {x!r}")


def _plan_dropout(p: PlanBuilder, x: Tensor, drop_prob: float, axis: tuple[Dim, ...] | None) -> Plan:
    keep = None
    if axis is not None:
        _check_axes(x, axis)
        keep = tuple(i for i, d in enumerate(x.dims) if d in axis)
        keep = None if len(keep) == len(x.dims) else keep
    dtype = dtypes.floating(x.dtype)
    slot = p.emit("dropout", p.cast(0, x.dtype, dtype), static=(drop_prob, keep))
    return p.finish(p.out(slot, x.dims, dtype, x.feature_dim))


_dropout = Op("dropout", num_tensors=1, planner=_plan_dropout)


def _portable_dropout(x: Tensor, drop_prob: float, axis: Sequence[Dim] | None) -> Tensor:
    """The same with draws on the host."""
    axis = x.dims if axis is None else axis
    _check_axes(x, axis)
    x = cast(x, dtypes.floating(x.dtype))
    keep = random_uniform([d for d in x.dims if d in axis], dtype="float32", device=x.device) >= drop_prob
    return where(keep, x * (1 / (1 - drop_prob) if drop_prob < 1 else 0.0), 0)


def dropout(
    source: Tensor, drop_prob: float, *, axis: Dim | Sequence[Dim] | bool | None = None, on_forward: bool = False
) -> Tensor:
    """Set entries to 0 with probability `drop_prob` and multiply the others by 1 / (1 - drop_prob): {...} -> {...}.

    Does so in training only (`rf.get_run_ctx().is_train_flag_enabled(func=rf.dropout)`); else returns the values as
    they are.

    :param source: float; integers are cast to the default float dtype.
    :param drop_prob: 0 <= p <= 1.
    :param axis: dims along which entries are dropped independently; all other dims share the draw. None or False: all
        dims are drawn independently, the padding too.
    :param on_forward: also outside training.

    Srivastava et al. 2014; numerics of torch.nn.functional.dropout. Raises DimError when an axis is not a dim of
    `source`.
    """
    if not 0 <= drop_prob <= 1:
        raise RfError(f"dropout: the probability must be within 0..1, got {drop_prob}")
    if not drop_prob or not (on_forward or get_run_ctx().is_train_flag_enabled(func=dropout)):
        return identity(source)
    if axis is True:
        raise TypeError("dropout: axis must be dims, or None or False for all dims; got True")
    dims = None if axis is None or axis is False else as_dims(axis)
    if _random.is_portable():
        return _portable_dropout(source, drop_prob, dims)
    return _dropout(source, drop_prob, dims)


def dropout_broadcast_default() -> bool:
    """Whether modules share the draws of dropout over batch and time by default (`axis=feature_dim`): True, as RF
    does."""
    return True
