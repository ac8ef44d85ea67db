"""Elementwise ops: unary, binary, compare, select, cast. Broadcasting is decided here, by dims, never by position.

The result has the union of the operands' dims. One operand must have all of them, unless the caller allows otherwise:
two dims that merely have equal sizes must not make a square by accident.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rf import dtypes
from rf._core import Op, Tensor
from rf._dim import Dim
from rf._errors import DimError, RfError
from rf._plan import Plan, PlanBuilder, same

__all__ = [
    "abs",
    "add",
    "cast",
    "ceil",
    "ceil_divide",
    "clip_by_value",
    "combine",
    "combine_bc",
    "compare",
    "compare_bc",
    "cos",
    "elu",
    "equal",
    "erf",
    "exp",
    "expm1",
    "floor",
    "floor_divide",
    "gelu",
    "greater",
    "greater_equal",
    "identity",
    "is_finite",
    "is_infinite",
    "is_neg_infinite",
    "lerp",
    "less",
    "less_equal",
    "log",
    "log1p",
    "log_add_exp",
    "log_sigmoid",
    "logical_and",
    "logical_not",
    "logical_or",
    "maximum",
    "minimum",
    "mod",
    "mul",
    "neg",
    "not_equal",
    "opt_logical_and",
    "opt_logical_or",
    "pow",
    "reciprocal",
    "relu",
    "relu_square",
    "round",
    "rsqrt",
    "safe_log",
    "selu",
    "sigmoid",
    "sign",
    "silu",
    "sin",
    "sqrt",
    "square",
    "squared_difference",
    "sub",
    "swish",
    "tanh",
    "true_divide",
    "where",
]

Operand = Tensor | bool | int | float | complex


# -- the family rules


def result_dims(name: str, operands: Sequence[Tensor], allow_broadcast: bool, order: Sequence[Dim] = ()) -> list[Dim]:
    """Dims of an elementwise result, in the order of the operand that has all of them."""
    union: list[Dim] = []
    for t in operands:
        union += [d for d in t.dims if not any(same(d, u) for u in union)]
    full = next((t for t in operands if len(t.dims) == len(union)), None)
    if full is None:
        if not allow_broadcast:
            raise DimError(_broadcast_error(name, operands, union))
        dims = union
    else:
        dims = list(full.dims)
    if order:
        dims = [d for d in order if d in dims] + [d for d in dims if d not in order]
    return dims


def _broadcast_error(name: str, operands: Sequence[Tensor], union: Sequence[Dim]) -> str:
    lines = [f"{name}: no operand has all dims of the result {{{', '.join(map(repr, union))}}}:"]
    for letter, t in zip("abc", operands):
        lacks = [d for d in union if not any(same(d, o) for o in t.dims)]
        lines.append(f"  {letter}: {t!r}, lacks {lacks}")
    lines.append(
        "If two of these dims are meant to be the same, use one Dim object for both (rf.replace_dim). "
        f'If the outer product is meant, write rf.combine_bc(a, "{name}", b) '
        "(compare_bc, or allow_broadcast_all_sources=True)."
    )
    return "\n".join(lines)


def _merged(name: str, a: Dim | None, b: Dim | None) -> Dim | None:
    if a is None or b is None:
        return a or b
    return a if a == b else None


def _finish(
    p: PlanBuilder, slot: Any, dims: Sequence[Dim], dtype: str, operands: Sequence[Tensor], sparse: bool = True
) -> Plan:
    feature = sparse_dim = None
    for i, t in enumerate(operands):
        feature = t.feature_dim if i == 0 else _merged("feature_dim", feature, t.feature_dim)
        sparse_dim = t.sparse_dim if i == 0 else _merged("sparse_dim", sparse_dim, t.sparse_dim)
    if not sparse or dtypes.kind(dtype) > 1:
        sparse_dim = None
    return p.finish(p.out(slot, dims, dtype, feature, sparse_dim))


def _binary_dtypes(name: str, a: Tensor, b: Tensor) -> tuple[str, str]:
    """(dtype to compute in, dtype of the result)."""
    if name in ("logical_and", "logical_or"):
        if a.dtype != "bool" or b.dtype != "bool":
            raise RfError(f"{name}: needs bool operands, got\n  a: {a!r}\n  b: {b!r}\nCompare first (x != 0).")
        return "bool", "bool"
    common = dtypes.result_type(a.dtype, b.dtype)
    if name in COMPARE:
        return common, "bool"
    if name in ("truediv", "logaddexp"):
        common = dtypes.floating(common)
    elif common == "bool" and name not in ("maximum", "minimum"):
        common = dtypes.get_default_int_dtype()
    return common, common


def _binary_planner(name: str) -> Any:
    def plan(p: PlanBuilder, a: Tensor, b: Tensor, allow_broadcast: bool, order: tuple[Dim, ...] = ()) -> Plan:
        dims = result_dims(name, (a, b), allow_broadcast, order)
        compute, result = _binary_dtypes(name, a, b)
        slots = [p.cast(p.align(i, t.dims, dims), t.dtype, compute) for i, t in enumerate((a, b))]
        return _finish(p, p.emit(name, *slots), dims, result, (a, b), sparse=name not in COMPARE)

    return plan


def _unary_planner(name: str, floating: bool, result: str | None) -> Any:
    def plan(p: PlanBuilder, a: Tensor) -> Plan:
        if name == "logical_not" and a.dtype != "bool":
            raise RfError(f"logical_not: needs a bool operand, got {a!r}; compare first (x != 0)")
        if a.dtype == "bool" and name in ("neg", "abs", "square", "sign"):
            raise RfError(f"{name}: needs a number, got {a!r}; cast it first (rf.cast)")
        dtype = dtypes.floating(a.dtype) if floating else a.dtype
        if dtypes.kind(dtype) < 2 and name in ("ceil", "floor", "round", "is_infinite", "is_neg_infinite", "is_finite"):
            dtype = dtypes.get_default_float_dtype()
        slot = p.emit(name, p.cast(0, a.dtype, dtype))
        out = result or dtype
        if name in ("ceil", "floor", "round"):
            slot, out = p.cast(slot, dtype, a.dtype), a.dtype
        elif name == "abs" and dtypes.kind(dtype) == 3:
            out = "float64" if dtype == "complex128" else "float32"
        return _finish(p, slot, a.dims, out, (a,))

    return plan


def _unary(name: str, *, floating: bool = True, result: str | None = None) -> Op:
    return Op(name, num_tensors=1, planner=_unary_planner(name, floating, result))


def _binary(name: str) -> Op:
    return Op(name, num_tensors=2, planner=_binary_planner(name))


# -- the ops

COMPARE = ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal")
ARITHMETIC = (
    "add",
    "sub",
    "mul",
    "truediv",
    "floordiv",
    "mod",
    "pow",
    "maximum",
    "minimum",
    "squared_difference",
    "logaddexp",
)
LOGICAL = ("logical_and", "logical_or")
FLOAT_UNARY = [
    "exp",
    "expm1",
    "log",
    "log1p",
    "sqrt",
    "rsqrt",
    "reciprocal",
    "sin",
    "cos",
    "tanh",
    "sigmoid",
    "log_sigmoid",
    "elu",
    "selu",
    "silu",
    "gelu",
    "erf",
]  # an integer operand is cast to the default float dtype
ANY_UNARY = ["neg", "abs", "square", "sign", "relu", "ceil", "floor", "round", "identity", "logical_not"]
TEST_UNARY = ["is_finite", "is_infinite", "is_neg_infinite"]

_ops: dict[str, Op] = {name: _binary(name) for name in (*ARITHMETIC, *LOGICAL, *COMPARE)}
_ops |= {name: _unary(name) for name in FLOAT_UNARY}
_ops |= {name: _unary(name, floating=False) for name in ANY_UNARY}
_ops |= {name: _unary(name, floating=False, result="bool") for name in TEST_UNARY}


def _plan_where(p: PlanBuilder, cond: Tensor, x: Tensor, y: Tensor, allow_broadcast: bool) -> Plan:
    if cond.dtype != "bool":
        raise RfError(f"where: the condition must be bool, got {cond!r}; compare first (x != 0)")
    dims = result_dims("where", (cond, x, y), allow_broadcast)
    dtype = dtypes.result_type(x.dtype, y.dtype)
    slots = [p.align(0, cond.dims, dims)]
    slots += [p.cast(p.align(i, t.dims, dims), t.dtype, dtype) for i, t in ((1, x), (2, y))]
    return _finish(p, p.emit("where", *slots), dims, dtype, (x, y))


def _plan_cast(p: PlanBuilder, x: Tensor, dtype: str) -> Plan:
    keep_sparse = dtypes.kind(dtypes.check(dtype)) <= 1
    return _finish(p, p.emit("cast", 0, static=(dtype,)), x.dims, dtype, (x,), sparse=keep_sparse)


def _plan_copy_masked(p: PlanBuilder, x: Tensor, value: Tensor, dims: tuple[Dim, ...]) -> Plan:
    slot: Any = 0
    filler = p.cast(p.align(1, value.dims, x.dims), value.dtype, x.dtype)
    for dim in dims:
        slot = p.emit("where", p.mask(dim, x.dims), slot, filler)
    return p.finish(p.out(slot, x.dims, x.dtype, x.feature_dim, x.sparse_dim))


_where = Op("where", num_tensors=3, planner=_plan_where)
_cast = Op("cast", num_tensors=1, planner=_plan_cast)
Op("copy_masked", num_tensors=2, planner=_plan_copy_masked, masked=True)

_KIND_NAMES = {
    "+": "add", "-": "sub", "*": "mul", "/": "truediv", "//": "floordiv", "%": "mod", "**": "pow", "max": "maximum",
    "min": "minimum", "and": "logical_and", "or": "logical_or", "==": "equal", "!=": "not_equal", "<>": "not_equal",
    "<": "less", "<=": "less_equal", ">": "greater", ">=": "greater_equal", "eq": "equal", "ne": "not_equal",
    "lt": "less", "le": "less_equal", "gt": "greater", "ge": "greater_equal",
}  # fmt: skip


def _op_of_kind(kind: str, among: Sequence[str]) -> Op:
    name = _KIND_NAMES.get(kind, kind)
    if name not in among:
        raise RfError(f"unknown kind {kind!r}; choose one of {', '.join(among)} or a symbol such as '+', '=='")
    return _ops[name]


def combine(
    a: Operand,
    kind: str,
    b: Operand,
    *,
    allow_broadcast_all_sources: bool | None = None,
    dim_order: Sequence[Dim] | None = None,
) -> Tensor:
    """The arithmetic or logical op named `kind` (a name of this module or a symbol) of two operands.

    :param a: {...} any dtype, or a Python number.
    :param b: likewise.
    :param allow_broadcast_all_sources: allow a result with dims that no single operand has all of.
    :param dim_order: dims that come first in the storage order of the result; may name dims that do not occur.
    :returns: the union of both dims; dtype by promotion. Padding is combined like everything else.

    Raises DimError when neither operand has all dims of the result and this was not allowed.
    """
    op = _op_of_kind(kind, (*ARITHMETIC, *LOGICAL))
    allow = bool(allow_broadcast_all_sources)
    return op(a, b, allow, tuple(dim_order)) if dim_order else op(a, b, allow)


def combine_bc(a: Operand, kind: str, b: Operand, *, dim_order: Sequence[Dim] | None = None) -> Tensor:
    """`combine` that may broadcast both operands: {A} with {B} gives {A, B}."""
    return combine(a, kind, b, allow_broadcast_all_sources=True, dim_order=dim_order)


def compare(
    a: Operand,
    kind: str,
    b: Operand,
    *,
    allow_broadcast_all_sources: bool | None = None,
    dim_order: Sequence[Dim] | None = None,
) -> Tensor:
    """The comparison `kind` ("==", "less", ...); a bool Tensor. Dims as in `combine`. Operands of unlike dtypes are
    promoted first."""
    op = _op_of_kind(kind, COMPARE)
    allow = bool(allow_broadcast_all_sources)
    return op(a, b, allow, tuple(dim_order)) if dim_order else op(a, b, allow)


def compare_bc(a: Operand, kind: str, b: Operand, *, dim_order: Sequence[Dim] | None = None) -> Tensor:
    """`compare` that may broadcast both operands."""
    return compare(a, kind, b, allow_broadcast_all_sources=True, dim_order=dim_order)


def where(cond: Operand, true_: Operand, false_: Operand, *, allow_broadcast_all_sources: bool = False) -> Tensor:
    """`true_` where `cond` holds, else `false_`, elementwise.

    Any operand may be a number. The gradient reaches only the side that was taken. Dims as in `combine`, over all three
    operands.
    """
    return _where(cond, true_, false_, allow_broadcast_all_sources)


def cast(tensor: Tensor, dtype: str) -> Tensor:
    """The values as `dtype`: always a new Tensor object (the data is shared when the dtype is the same).

    Float to integer truncates toward zero. The sparse dim is kept for integer dtypes.
    """
    return _cast(tensor, dtype)


def maximum(a: Operand, b: Operand, *other_tensors: Operand) -> Any:
    """Elementwise maximum of two or more operands; of Python numbers alone, a Python number."""
    return _n_ary(_ops["maximum"], max, (a, b, *other_tensors))


def minimum(a: Operand, b: Operand, *other_tensors: Operand) -> Any:
    """Elementwise minimum of two or more operands; of Python numbers alone, a Python number."""
    return _n_ary(_ops["minimum"], min, (a, b, *other_tensors))


def _n_ary(op: Op, builtin: Any, operands: Sequence[Any]) -> Any:
    if not any(isinstance(x, Tensor) for x in operands):
        return builtin(operands)
    out = operands[0]
    for x in operands[1:]:
        out = op(out, x, False)
    return out


def clip_by_value(
    x: Tensor, clip_value_min: Any = None, clip_value_max: Any = None, *, allow_broadcast_all_sources: bool = False
) -> Tensor:
    """min(max(x, clip_value_min), clip_value_max); either bound may be None, a number or a Tensor."""
    if clip_value_min is not None:
        x = _ops["maximum"](x, clip_value_min, allow_broadcast_all_sources)
    if clip_value_max is not None:
        x = _ops["minimum"](x, clip_value_max, allow_broadcast_all_sources)
    return x if clip_value_min is not None or clip_value_max is not None else identity(x)


def ceil_divide(a: Operand, b: Operand) -> Tensor:
    """Division rounded up: -((-a) // b)."""
    return -floor_divide(-a, b)


def safe_log(a: Tensor, *, eps: float | None = None) -> Tensor:
    """log(max(a, eps)); default `eps`: the smallest positive normal number of the dtype."""
    if eps is None:
        eps = {"float16": 6.1e-05, "float64": 2.3e-308}.get(dtypes.floating(a.dtype), 1.2e-38)
    return log(maximum(a, eps))


def relu_square(x: Tensor) -> Tensor:
    """max(x, 0)^2 (So et al. 2021, Primer, arXiv:2109.08668)."""
    return square(relu(x))


def lerp(start: Tensor, end: Tensor, weight: Operand, *, allow_broadcast_all_sources: bool = False) -> Tensor:
    """start + weight * (end - start)."""
    allow = allow_broadcast_all_sources
    step = _ops["mul"](weight, _ops["sub"](end, start, allow), allow)
    return _ops["add"](start, step, allow)


def opt_logical_or(a: Tensor | bool, b: Tensor | bool) -> Tensor | bool:
    """logical_or that also takes Python bools and then needs no op."""
    if isinstance(a, bool):
        return True if a else b
    if isinstance(b, bool):
        return True if b else a
    return logical_or(a, b)


def opt_logical_and(a: Tensor | bool, b: Tensor | bool) -> Tensor | bool:
    """logical_and that also takes Python bools and then needs no op."""
    if isinstance(a, bool):
        return b if a else False
    if isinstance(b, bool):
        return a if b else False
    return logical_and(a, b)


def _function_of_unary(name: str, doc: str) -> Any:
    op = _ops[name]

    def function(a: Tensor) -> Tensor:
        return op(a)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"{doc} Elementwise; {{...}} -> {{...}}; padding is mapped like everything else."
    return function


def _function_of_binary(name: str, op_name: str, doc: str) -> Any:
    op = _ops[op_name]

    def function(a: Operand, b: Operand) -> Tensor:
        return op(a, b, False)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"{doc} Dims and errors as in `combine`."
    return function


add = _function_of_binary("add", "add", "a + b.")
sub = _function_of_binary("sub", "sub", "a - b.")
mul = _function_of_binary("mul", "mul", "a * b.")
true_divide = _function_of_binary("true_divide", "truediv", "a / b, as float.")
floor_divide = _function_of_binary("floor_divide", "floordiv", "a / b rounded down (toward -inf).")
mod = _function_of_binary("mod", "mod", "a - b * floor(a / b): the sign is that of b, as in Python.")
pow = _function_of_binary("pow", "pow", "a to the power of b.")
squared_difference = _function_of_binary("squared_difference", "squared_difference", "(a - b)^2.")
log_add_exp = _function_of_binary("log_add_exp", "logaddexp", "log(exp(a) + exp(b)), stable.")
logical_and = _function_of_binary("logical_and", "logical_and", "a and b, both bool.")
logical_or = _function_of_binary("logical_or", "logical_or", "a or b, both bool.")
equal = _function_of_binary("equal", "equal", "a == b as bool.")
not_equal = _function_of_binary("not_equal", "not_equal", "a != b as bool.")
less = _function_of_binary("less", "less", "a < b as bool.")
less_equal = _function_of_binary("less_equal", "less_equal", "a <= b as bool.")
greater = _function_of_binary("greater", "greater", "a > b as bool.")
greater_equal = _function_of_binary("greater_equal", "greater_equal", "a >= b as bool.")

neg = _function_of_unary("neg", "-a.")
abs = _function_of_unary("abs", "|a|; complex gives float.")
sign = _function_of_unary("sign", "-1, 0 or 1.")
exp = _function_of_unary("exp", "e to the power of a.")
expm1 = _function_of_unary("expm1", "exp(a) - 1, exact near 0.")
log = _function_of_unary("log", "Natural logarithm.")
log1p = _function_of_unary("log1p", "log(1 + a), exact near 0.")
sqrt = _function_of_unary("sqrt", "Square root.")
rsqrt = _function_of_unary("rsqrt", "1 / sqrt(a).")
square = _function_of_unary("square", "a * a.")
reciprocal = _function_of_unary("reciprocal", "1 / a.")
sin = _function_of_unary("sin", "Sine of an angle in radians.")
cos = _function_of_unary("cos", "Cosine of an angle in radians.")
tanh = _function_of_unary("tanh", "Hyperbolic tangent.")
erf = _function_of_unary("erf", "Gauss error function.")
sigmoid = _function_of_unary("sigmoid", "1 / (1 + exp(-a)).")
log_sigmoid = _function_of_unary("log_sigmoid", "log(sigmoid(a)), stable.")
relu = _function_of_unary("relu", "max(a, 0).")
elu = _function_of_unary("elu", "a for a > 0, else exp(a) - 1.")
selu = _function_of_unary("selu", "Self-normalizing exponential unit (Klambauer et al. 2017, arXiv:1706.02515).")
silu = _function_of_unary("silu", "a * sigmoid(a), also called swish.")
gelu = _function_of_unary("gelu", "a * Phi(a), exact (Hendrycks and Gimpel 2016, arXiv:1606.08415).")
ceil = _function_of_unary("ceil", "Rounded up; integers stay as they are.")
floor = _function_of_unary("floor", "Rounded down; integers stay as they are.")
round = _function_of_unary("round", "Rounded to the nearest integer, halves to even.")
logical_not = _function_of_unary("logical_not", "not a, bool.")
is_finite = _function_of_unary("is_finite", "Whether a is neither infinite nor NaN; bool.")
is_infinite = _function_of_unary("is_infinite", "Whether a is +inf or -inf; bool.")
is_neg_infinite = _function_of_unary("is_neg_infinite", "Whether a is -inf; bool.")


def identity(x: Tensor) -> Tensor:
    """x, as a new Tensor object with the same data."""
    return _ops["identity"](x)


swish = silu
