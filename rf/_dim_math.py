"""Arithmetic on dims. The same expression on the same dims is the same object; sizes are computed when they are needed.

Sums and products are chains that grow on the left and on the right, and neither commutes: padding on the left makes
another axis than padding on the right, and `h * a` is stored in another order than `a * h`. Only neighbors in a chain
cancel: `(a - 1) + 1` is `a`, `(h * a).div_left(h)` is `a`, but `(1 + a) - 1` is not. A difference is never negative:
dynamic sizes stop at 0, static ones are an error. So `(a - 3) + 2` is not `a - 1`: of one frame nothing is left, and
then there are two.
"""

from __future__ import annotations

import math
import weakref
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy

from rf._core import DimBase
from rf._errors import DimError
from rf._registry import SERVICES

if TYPE_CHECKING:
    from rf._dim import Dim

Item = tuple[int, Any]  # (sign, Dim or int); the sign of a factor or a divisor is 1


_constants: weakref.WeakValueDictionary[int, Dim] = weakref.WeakValueDictionary()
"""What is left where all dims of an expression cancel, such as `a - a`."""


class Derivation(NamedTuple):
    """How a dim follows from others: kind "add", "mul", "floordiv", "truediv", "ceildiv-right", "ceildiv-left" or
    "same"."""

    kind: str
    items: tuple[Item, ...]


def _is_dim(x: Any) -> bool:
    return not isinstance(x, int)


def _check(x: Any) -> Any:
    if isinstance(x, DimBase):
        return x.base
    if isinstance(x, bool) or not isinstance(x, (int, numpy.integer)):
        raise TypeError(f"dim math needs a Dim or an int, got {x!r} of type {type(x).__name__}")
    return int(x)


def _chain(x: Any, kind: str) -> tuple[Item, ...]:
    x = _check(x)
    if isinstance(x, int):
        return ((1, x),) if kind != "add" or x > 0 else ((-1, -x),) if x < 0 else ()
    if x.derivation is not None and x.derivation.kind == kind:
        return x.derivation.items
    return ((1, x),)


def _same(a: Any, b: Any) -> bool:
    return a is b or (isinstance(a, int) and isinstance(b, int) and a == b)


def _join_sum(left: tuple[Item, ...], right: tuple[Item, ...]) -> tuple[Item, ...]:
    items = list(left)
    for sign, x in right:
        if items:
            last_sign, last = items[-1]
            if isinstance(x, int) and isinstance(last, int):
                total = sign * x + last_sign * last
                items.pop()
                if total:
                    items.append((1, total) if total > 0 else (-1, -total))
                continue
            if sign == -last_sign and _same(x, last):
                items.pop()
                continue
        if not isinstance(x, int) or x:
            items.append((sign, x))
    return tuple(items)


def _negated(items: tuple[Item, ...]) -> tuple[Item, ...]:
    return tuple((-sign, x) for sign, x in reversed(items))


def _is_cut(items: tuple[Item, ...]) -> bool:
    return -1 in [sign for sign, _ in items]


def _summand(x: Any) -> tuple[Item, ...]:
    """The chain of `x`, or where something has been cut off, `x` as a whole: its sizes stopped at 0 before more is
    added."""
    items = _chain(x, "add")
    return ((1, _check(x)),) if _is_cut(items) else items


def add_right(a: Dim, n: int) -> Dim:
    """a + n, remembered by the operands themselves too: a loop whose history grows asks for it in every layer."""
    base = a.base
    memo = base._memo
    if memo is not None:
        ref = memo.get(n)
        out = None if ref is None else ref()
        if out is not None:
            return out
    items = _chain(base, "add")
    if n > 0 and not _is_cut(items):
        out = _derive("add", _join_sum(items, ((1, n),)))
    else:
        out = add(base, n) if n else base
    _remember(base, n, out)
    return out


def add(a: Any, b: Any) -> Dim:
    """a + b: b lies right of a."""
    a, b = _check(a), _check(b)
    if isinstance(b, int) and b < 0:
        return sub_right(a, -b)
    if isinstance(a, int) and a < 0:
        return sub_left(b, -a)
    left, right = _chain(a, "add"), _chain(b, "add")
    if len(left) == len(right) == 1 and not isinstance(left[0][1], int) and left == right:
        return mul(2, a)
    if left and right and (_is_cut(left) or _is_cut(right)):
        (sign_left, last), (sign_right, first) = left[-1], right[0]
        if sign_left == -sign_right and _same(last, first):  # what was cut off is put back
            if len(left) == 1 or len(right) == 1:
                return _derive("add", left[:-1] or right[1:])
            return add(_derive("add", left[:-1]), _derive("add", right[1:]))
        left, right = _summand(a), _summand(b)
    return _derive("add", _join_sum(left, right))


def sub_right(a: Any, b: Any) -> Dim:
    """a without b on its right."""
    return _derive("add", _join_sum(_chain(a, "add"), _negated(_summand(b))))


def sub_left(a: Any, b: Any) -> Dim:
    """a without b on its left."""
    return _derive("add", _join_sum(_negated(_summand(b)), _chain(a, "add")))


def mul(a: Any, b: Any) -> Dim:
    """a * b: a is the major axis, b the minor one."""
    items = list(_chain(a, "mul"))
    for _, x in _chain(b, "mul"):
        if items and not _is_dim(x) and not _is_dim(items[-1][1]):
            x *= items.pop()[1]
        if _is_dim(x) or x != 1:
            items.append((1, x))
    if len(items) > 1 and items[0] == (1, 1):
        items = items[1:]
    return _derive("mul", tuple(items))


def div_left(a: Any, b: Any) -> Dim:
    """a / b, undoing b * x."""
    items, divisor = _chain(a, "mul"), _chain(b, "mul")
    n = len(divisor)
    if len(items) > n and all(_same(x, y) for (_, x), (_, y) in zip(items, divisor)):
        return _derive("mul", items[n:])
    return _exact_div(a, b)


def div_right(a: Any, b: Any) -> Dim:
    """a / b, undoing x * b."""
    items, divisor = _chain(a, "mul"), _chain(b, "mul")
    n = len(divisor)
    if len(items) > n and all(_same(x, y) for (_, x), (_, y) in zip(items[-n:], divisor)):
        return _derive("mul", items[:-n])
    return _exact_div(a, b)


def _exact_div(a: Any, b: Any) -> Dim:
    a, b = _check(a), _check(b)
    return a if not _is_dim(b) and b == 1 else _derive("truediv", ((1, a), (1, b)))


def floordiv(a: Any, b: Any) -> Dim:
    """a // b, rounded down."""
    items, divisor = _chain(a, "mul"), _chain(b, "mul")
    n = len(divisor)
    if len(items) > n and all(_same(x, y) for (_, x), (_, y) in zip(items[-n:], divisor)):
        return _derive("mul", items[:-n])
    a, b = _check(a), _check(b)
    return a if not _is_dim(b) and b == 1 else _derive("floordiv", ((1, a), (1, b)))


def ceildiv(a: Any, b: Any, side: str) -> Dim:
    """a / b rounded up; twice in a row by ints is once by their product."""
    a, b = _check(a), _check(b)
    if not _is_dim(b):
        if b == 1:
            return a
        if _is_dim(a) and a.derivation is not None and a.derivation.kind == f"ceildiv-{side}":
            (_, inner), (_, before) = a.derivation.items
            if not _is_dim(before):
                return ceildiv(inner, before * b, side)
    return _derive(f"ceildiv-{side}", ((1, a), (1, b)))


def _derive(kind: str, items: tuple[Item, ...]) -> Dim:
    anchor: Any = None
    dynamic = False
    key: Any = [kind]
    for sign, x in items:
        if isinstance(x, int):
            key += (2 * sign, x)
        else:
            key += (sign, id(x))
            dynamic = dynamic or x.dynamic
            anchor = x if anchor is None else anchor
    if anchor is None:
        values = [sign * x for sign, x in items]
        value = sum(values) if kind == "add" else math.prod(values)
        constant = _constants.get(value)
        if constant is None:
            constant = _constants[value] = SERVICES["Dim"](value, name="constant")
        return constant
    if len(items) == 1 and items[0][0] == 1:
        return anchor
    key = tuple(key)
    ref = None if anchor._memo is None else anchor._memo.get(key)
    out = None if ref is None else ref()
    if out is not None:
        return out
    derivation = Derivation(kind, items)
    out = SERVICES["Dim"](None if dynamic else _static(derivation))
    out.derivation = derivation
    if dynamic:
        register(out)
    # The derived dim holds its operands; the operands know it weakly. So an id in the key stays valid while the entry
    # is alive.
    _remember(anchor, key, out)
    return out


def _remember(dim: Dim, key: Any, out: Dim) -> None:
    """Have `dim` know, weakly, what an expression that begins with it is: `key` is the expression."""
    memo = dim._memo
    if memo is None:
        memo = dim._memo = {}
    elif len(memo) > 64 and key not in memo:
        memo = dim._memo = {k: r for k, r in memo.items() if r() is not None}
    memo[key] = weakref.ref(out)


def register(dim: Dim) -> None:
    """Have `dim` forget its sizes when an operand of its derivation is filled anew."""
    assert dim.derivation is not None
    for _, x in dim.derivation.items:
        if _is_dim(x) and x.dynamic:
            if x._dependents is None:
                x._dependents = []
            elif len(x._dependents) > 64:
                x._dependents = [r for r in x._dependents if r() is not None]
            x._dependents.append(weakref.ref(dim))


def _static(derivation: Derivation) -> int:
    values = [sign * (x if isinstance(x, int) else x.extent) for sign, x in derivation.items]
    value = sum(values) if derivation.kind == "add" else _compute(derivation.kind, values, derivation)
    if value < 0:
        raise DimError(f"dim {describe(derivation)}: the size would be {value}, which is negative")
    return int(value)


def evaluate(dim: Dim) -> tuple[numpy.ndarray, tuple[Dim, ...]]:
    """Sizes of a derived dim from those of its operands: (int32 values, size dims). Raises DimError when one is not
    filled."""
    assert dim.derivation is not None
    kind, items = dim.derivation
    fillings = [x.get_sizes() if _is_dim(x) else None for _, x in items]
    dims: list[Dim] = []
    for f in fillings:
        if f is not None:
            dims += [d for d in f.dims if d not in dims]
    values: list[Any] = []
    for f, (sign, x) in zip(fillings, items):
        if f is None:
            values.append(sign * x)
            continue
        where = [f.dims.index(d) if d in f.dims else -1 for d in dims]
        array = f.values.astype(numpy.int64).transpose([i for i in where if i >= 0])
        values.append(sign * array.reshape([f.values.shape[i] if i >= 0 else 1 for i in where]))
    result = numpy.maximum(_compute(kind, values, dim.derivation), 0)
    return numpy.asarray(result, dtype=numpy.int32), tuple(dims)


def _compute(kind: str, values: list[Any], derivation: Derivation) -> Any:
    if kind in ("add", "same"):
        return sum(values[1:], values[0])
    if kind == "mul":
        return math.prod(values[1:], start=values[0])
    a, b = values
    if numpy.any(numpy.equal(b, 0)):
        raise DimError(f"dim {describe(derivation)}: division by a size of 0")
    if kind == "truediv" and numpy.any(numpy.mod(a, b)):
        raise DimError(
            f"dim {describe(derivation)}: {_numbers(a)} is not divisible by {_numbers(b)}; "
            "use // to round down or ceildiv_right to round up"
        )
    return -(-a // b) if kind.startswith("ceildiv") else a // b


def _numbers(x: Any) -> str:
    return str(x if isinstance(x, int) else numpy.asarray(x).tolist())


def describe(derivation: Derivation) -> str:
    """The expression as text: the name of a derived dim."""
    kind, items = derivation
    names = [(x.name or "?") if _is_dim(x) else str(x) for _, x in items]
    if kind == "add":
        text = "".join(
            ("-" if sign < 0 else "+" if i else "") + n for i, ((sign, _), n) in enumerate(zip(items, names))
        )
        return f"({text})"
    if kind == "mul":
        return "*".join(names)
    return {"floordiv": "{}//{}", "truediv": "{}/{}"}.get(kind, "⌈{}/{}⌉").format(*names)
