"""The LSTM over a sequence and over one step: functions of their weights, which `rf.LSTM` owns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rf import dtypes
from rf._core import Op, Tensor
from rf._dim import Dim
from rf._errors import DimError
from rf._plan import Plan, PlanBuilder, axis_of, mask_pattern, own_dim

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


def _operands(
    p: PlanBuilder, dtype: str, x_order: Sequence[Dim], batch: Sequence[Dim], in_dim: Dim, out_dim: Dim
) -> list[Any]:
    """Slots of the operands (x, h, c, ff_weight, rec_weight, bias) of a kernel."""
    x, h, c, ff_weight, rec_weight, bias = p.tensors
    assert x is not None and h is not None and c is not None and ff_weight is not None and rec_weight is not None
    slots: list[Any] = [p.align(p.cast(0, x.dtype, dtype), x.dims, x_order)]
    slots += [p.align(p.cast(i, s.dtype, dtype), s.dims, [*batch, out_dim]) for i, s in ((1, h), (2, c))]
    for i, weight, side in ((3, ff_weight, in_dim), (4, rec_weight, out_dim)):
        dims = _weight_dims("ff_weight" if i == 3 else "rec_weight", weight, side)
        slots.append(p.permute(p.cast(i, weight.dtype, dtype), weight.dims, dims))
    return [*slots, -1 if bias is None else p.cast(5, bias.dtype, dtype)]


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
    new_h, new_c = p.emit("lstm_step", *_operands(p, dtype, [*batch, in_dim], batch, in_dim, out_dim), num_out=2)
    dims = [*batch, out_dim.base]
    return p.finish(p.out(new_h, dims, dtype, out_dim.base), p.out(new_c, dims, dtype, out_dim.base))


lstm_step = Op("lstm_step", num_tensors=6, planner=_plan_step)
"""`lstm_step(x, h, c, ff_weight, rec_weight, bias | None, in_dim, out_dim) -> (h, c)`: one frame; dims as in `lstm`."""


def _plan_lstm(
    p: PlanBuilder,
    x: Tensor,
    h: Tensor,
    c: Tensor,
    ff_weight: Tensor,
    rec_weight: Tensor,
    bias: Tensor | None,
    spatial_dim: Dim,
    in_dim: Dim,
    out_dim: Dim,
) -> Plan:
    _check(x, h, c, in_dim, out_dim)
    own = own_dim("lstm", x, spatial_dim, "spatial_dim")
    if spatial_dim in h.dims or spatial_dim in c.dims:
        raise DimError(f"lstm: the state h {h!r}, c {c!r} must not have the spatial dim {spatial_dim!r}")
    dtype = dtypes.result_type(x.dtype, ff_weight.dtype)
    # The axes of x stay as they are, but for its features. What it lacks comes first.
    size_dims = own.base.size_dims or ()
    missing = [d for d in size_dims if d not in x.dims]
    missing += [d for d in _batch_dims(x, h, c, (), out_dim) if d not in x.dims and d not in missing]
    dims = [*missing, *(d for d in x.dims if d != in_dim)]
    axis = axis_of(own, dims)
    batch = [*dims[:axis], *dims[axis + 1 :]]
    slots = _operands(p, dtype, [*dims, in_dim], batch, in_dim, out_dim)
    slots.append(p.auxiliary("host_sizes", own.base, mask_pattern(size_dims, batch), "int32") if size_dims else -1)
    y, new_h, new_c = p.emit("lstm", *slots, static=(axis - len(dims) - 1,), num_out=3)
    outs = ((y, [*dims, out_dim.base]), (new_h, [*batch, out_dim.base]), (new_c, [*batch, out_dim.base]))
    return p.finish(*(p.out(slot, of, dtype, out_dim.base) for slot, of in outs))


_lstm = Op("lstm", num_tensors=6, planner=_plan_lstm, masked=True)


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
    return _lstm(source, h, c, ff_weight, rec_weight, bias, spatial_dim, in_dim, out_dim)
