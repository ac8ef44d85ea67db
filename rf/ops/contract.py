"""Contractions: matmul over named dims, and the linear map."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rf import dtypes
from rf._core import Op, Tensor
from rf._dim import Dim, as_dims
from rf._errors import DimError
from rf._plan import Plan, PlanBuilder, same
from rf.ops.reduce import fill_padding


def _plan_matmul(p: PlanBuilder, a: Tensor, b: Tensor, reduce: Dim | Sequence[Dim], use_mask: bool) -> Plan:
    reduce = as_dims(reduce)
    for letter, t in (("a", a), ("b", b)):
        for d in reduce:
            if d not in t.dims:
                raise DimError(
                    f"matmul over {list(reduce)}: {d!r} is not a dim of operand {letter}:\n  a: {a!r}\n  b: {b!r}\n"
                    "If it has that dim under another Dim object, use one object for both (rf.replace_dim)."
                )
    dtype = dtypes.result_type(a.dtype, b.dtype)
    if dtype == "bool":
        dtype = dtypes.get_default_int_dtype()
    dims = [list(a.dims), list(b.dims)]
    slots: list[Any] = [p.cast(i, t.dtype, dtype) for i, t in enumerate((a, b))]
    if use_mask:
        masked = [d for d in reduce if d.dynamic and d.base.size_dims]
        for d in masked:
            # The padding of both operands is cleared: 0 * NaN is NaN. One that lacks the size dims has no own padding.
            full = [i for i in (0, 1) if all(s in dims[i] for s in d.base.size_dims or ())]
            for i in full or (0,):
                slots[i], dims[i] = fill_padding(p, slots[i], dims[i], [d.base], 0)
    reduced = [[t.dims[t.get_axis_from_description(d)] for d in reduce] for t in (a, b)]
    rest = [[d for d in own if not any(d is r for r in red)] for own, red in zip(dims, reduced)]
    common = [d for d in rest[0] if any(same(d, o) for o in rest[1])]
    only = [[d for d in own if not any(same(d, c) for c in common)] for own in rest]
    # The result begins with the dims of the larger operand: (weight, activations) does not put the features first.
    first, second = (1, 0) if not common and len(only[1]) > len(only[0]) else (0, 1)
    in_second = [next(o for o in dims[second] if same(o, c)) for c in common]
    x = p.permute(slots[first], dims[first], [*common, *only[first], *reduced[first]])
    y = p.permute(slots[second], dims[second], [*in_second, *reduced[second], *only[second]])
    out = p.emit("contract", x, y, static=(len(common), len(only[first]), len(reduce), len(only[second])))
    out_dims = [*common, *only[first], *only[second]]
    out_dims = [d.base if sum(d.base is o.base for o in out_dims) == 1 else d for d in out_dims]
    features = [
        t.feature_dim for t in (a, b) if t.feature_dim is not None and any(t.feature_dim == d for d in out_dims)
    ]
    feature = features[0] if features and all(f == features[0] for f in features) else None
    return p.finish(p.out(out, out_dims, dtype, feature))


_matmul = Op("matmul", num_tensors=2, planner=_plan_matmul, masked=True)


def matmul(a: Tensor, b: Tensor, *, reduce: Dim | Sequence[Dim], use_mask: bool = True) -> Tensor:
    """Contract the dims `reduce`; other dims that both have are matched, the rest appears side by side.

    {B, T, F} x {F, G} over F -> {B, T, G}; {B, H, Q, D} x {B, H, K, D} over D -> {B, H, Q, K}.

    :param a: any dtype; unlike dtypes are promoted.
    :param b: likewise.
    :param reduce: dims that both have. Where one occurs twice (square weight), the entry of highest match priority is
        meant.
    :param use_mask: padding of a dynamic reduced dim does not count, whatever it holds.

    Raises DimError when an operand lacks a reduced dim.
    """
    return _matmul(a, b, reduce, use_mask)


dot = matmul


def _plan_linear(p: PlanBuilder, x: Tensor, weight: Tensor, bias: Tensor | None, in_dim: Dim, out_dim: Dim) -> Plan:
    if in_dim not in x.dims:
        raise DimError(f"Linear: the input {x!r} has no dim {in_dim!r} (in_dim); the weight is {weight!r}")
    rest = [d for d in x.dims if d != in_dim]
    if out_dim in rest:
        raise DimError(
            f"Linear: the input {x!r} already has the output dim {out_dim!r}; replace one of them (rf.replace_dim)"
        )
    dtype = dtypes.result_type(x.dtype, weight.dtype)
    slot = p.permute(p.cast(0, x.dtype, dtype), x.dims, [*rest, x.dims[x.get_axis_from_description(in_dim)]])
    w_in = weight.dims[weight.get_axis_from_description(in_dim)]
    (w_out,) = [d for d in weight.dims if d is not w_in]
    w = p.permute(p.cast(1, weight.dtype, dtype), weight.dims, [w_in, w_out])
    b = -1 if bias is None else p.cast(2, bias.dtype, dtype)
    return p.finish(p.out(p.emit("linear", slot, w, b), [*rest, out_dim.base], dtype, out_dim.base))


linear = Op("linear", num_tensors=3, planner=_plan_linear)
"""`linear(x, weight, bias | None, in_dim, out_dim)`: x {..., in} * weight {in, out} + bias {out} -> {..., out}, one
fused kernel."""
