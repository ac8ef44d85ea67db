"""The LSTM over a sequence and over one step: functions of their weights, which `rf.LSTM` owns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy

from rf import dtypes
from rf._core import Op, Tensor, apply
from rf._dim import Dim
from rf._errors import DimError
from rf._plan import Plan, PlanBuilder
from rf.ops.dims import host_sizes
from rf.ops.elementwise import cast
from rf.ops.shape import expand_dims

__all__: list[str] = []


def _weight_dims(name: str, weight: Tensor, side: Dim) -> tuple[Dim, Dim]:
    """(gates, side) of a weight {4 * out, side}."""
    at = [d for d in weight.dims if d == side]
    gates = [d for d in weight.dims if d != side]
    if len(at) != 1 or len(gates) != 1:
        raise DimError(f"lstm: {name} must have the dims of the four gates and {side!r}, got {weight!r}")
    return gates[0], at[0]


def _check(x: Tensor, h: Tensor, c: Tensor, in_dim: Dim, out_dim: Dim) -> None:
    if in_dim not in x.dims:
        raise DimError(f"lstm: the input {x!r} has no dim {in_dim!r} (in_dim)")
    for name, s in (("h", h), ("c", c)):
        if out_dim not in s.dims:
            raise DimError(f"lstm: the state {name} {s!r} has no dim {out_dim!r} (out_dim)")


def _batch_dims(x: Tensor, h: Tensor, c: Tensor, without: Sequence[Dim], out_dim: Dim) -> list[Dim]:
    batch = [d for d in x.dims if d not in without]
    for s in (h, c):
        batch += [d for d in s.dims if d != out_dim and d not in batch]
    return batch


def _plan_step(
    p: PlanBuilder,
    x: Tensor,
    h: Tensor,
    c: Tensor,
    ff_weight: Tensor,
    rec_weight: Tensor,
    bias: Tensor | None,
    in_dim: Dim,
    out_dim: Dim,
) -> Plan:
    _check(x, h, c, in_dim, out_dim)
    dtype = dtypes.result_type(x.dtype, ff_weight.dtype)
    batch = _batch_dims(x, h, c, (in_dim,), out_dim)
    slots: list[Any] = [p.align(p.cast(0, x.dtype, dtype), x.dims, [*batch, in_dim])]
    slots += [p.align(p.cast(i, s.dtype, dtype), s.dims, [*batch, out_dim]) for i, s in ((1, h), (2, c))]
    for i, weight, side in ((3, ff_weight, in_dim), (4, rec_weight, out_dim)):
        dims = _weight_dims("ff_weight" if i == 3 else "rec_weight", weight, side)
        slots.append(p.permute(p.cast(i, weight.dtype, dtype), weight.dims, dims))
    slots.append(-1 if bias is None else p.cast(5, bias.dtype, dtype))
    new_h, new_c = p.emit("lstm_step", *slots, num_out=2)
    dims = [*batch, out_dim.base]
    return p.finish(p.out(new_h, dims, dtype, out_dim.base), p.out(new_c, dims, dtype, out_dim.base))


lstm_step = Op("lstm_step", num_tensors=6, planner=_plan_step)
"""`lstm_step(x, h, c, ff_weight, rec_weight, bias | None, in_dim, out_dim) -> (h, c)`: one frame; dims as in `lstm`."""


def lstm(
    source: Tensor,
    h: Tensor,
    c: Tensor,
    ff_weight: Tensor,
    rec_weight: Tensor,
    bias: Tensor | None,
    *,
    spatial_dim: Dim,
    in_dim: Dim,
    out_dim: Dim,
) -> tuple[Tensor, Tensor, Tensor]:
    """One LSTM layer: {..., T, in} -> {..., T, out}, and the state {..., out} after the last valid frame of each
    sequence.

    i, f, g, o = W x_t + R h + b; c = sigmoid(f) c + sigmoid(i) tanh(g); h = sigmoid(o) tanh(c).

    :param source: {..., spatial_dim, in_dim}.
    :param h: {..., out_dim}, the state before; dims that only it or the source has are broadcast.
    :param c: likewise.
    :param ff_weight: W {4 * out, in_dim}, the gates in the order i, f, g, o.
    :param rec_weight: R {4 * out, out_dim}.
    :param bias: b {4 * out}.
    :returns: (result, h, c). The result is 0 in the padding, whatever the source holds there; a sequence of length 0
        keeps its state.

    Hochreiter and Schmidhuber 1997, with forget gates; numerics of torch.nn.LSTM with this bias as the sum of its two.
    """
    _check(source, h, c, in_dim, out_dim)
    if spatial_dim not in source.dims:
        raise DimError(f"lstm: spatial_dim {spatial_dim!r} is not a dim of {source!r}")
    if spatial_dim in h.dims or spatial_dim in c.dims:
        raise DimError(f"lstm: the state h {h!r}, c {c!r} must not have the spatial dim {spatial_dim!r}")
    dtype = dtypes.result_type(source.dtype, ff_weight.dtype)
    batch = _batch_dims(source, h, c, (spatial_dim, in_dim), out_dim)
    lengths = None
    if spatial_dim.need_masking():
        batch = [*[d for d in spatial_dim.get_sizes().dims if d not in batch], *batch]
        sizes = numpy.broadcast_to(host_sizes(spatial_dim, batch), [d.get_dim_value() for d in batch])
        lengths = tuple(sizes.reshape(-1).tolist())

    def arranged(t: Tensor, order: Sequence[Dim]) -> Tensor:
        t = t if t.dtype == dtype else cast(t, dtype)
        missing = [d for d in order if d not in t.dims]
        return (expand_dims(t, missing) if missing else t).copy_transpose(order)

    dims = [*batch, out_dim.base]
    inputs = (
        arranged(source, [spatial_dim, *batch, in_dim]),
        arranged(h, dims),
        arranged(c, dims),
        arranged(ff_weight, _weight_dims("ff_weight", ff_weight, in_dim)),
        arranged(rec_weight, _weight_dims("rec_weight", rec_weight, out_dim)),
        None if bias is None else arranged(bias, bias.dims),
    )
    state_spec = (tuple(dims), dtype, out_dim.base, None)
    out_spec = ((spatial_dim.base, *dims), dtype, out_dim.base, None)
    out, new_h, new_c = apply("lstm", inputs, (lengths,), [out_spec, state_spec, state_spec])
    return out, new_h, new_c
