"""Single ops against the backend's own Python calls: `rf bench ops`.

Arrays have a few elements, so that what is compared is what a call costs, not what the kernel computes. Both sides
get the same arrays (or equal ones, where layouts differ), compute the same values in the same dtype, and record
gradients for the same operands; tests check that.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy

import rf
from rf._errors import UserError
from rf.backend import Backend, get_backend, use_backend
from rf.profile.timing import compare

__all__ = ["CASES", "Case", "OpTime", "World", "bench_ops", "select_cases"]

BACKENDS = ("torch",)
"""Backends that there are reference calls for."""


@dataclass(frozen=True)
class OpTime:
    """Times of one op, in ns per call.

    :param op: the case
    :param compares: what is computed
    :param rf_ns: the call in rf
    :param reference: the backend's own call; None if it has none
    :param reference_ns: its time
    :param target: the ratio that the project aims at, None without an aim
    :param meta_ns: the call in rf on the backend `meta`; None where it says nothing
    :param meta_target_ns: aim for it
    :param empty_ns: how much of every value is loop and function call
    """

    op: str
    compares: str
    rf_ns: float
    reference: str | None
    reference_ns: float | None
    target: float | None
    meta_ns: float | None
    meta_target_ns: float | None
    empty_ns: float

    @property
    def ratio(self) -> float | None:
        """rf / reference."""
        return None if self.reference_ns is None else self.rf_ns / self.reference_ns

    @property
    def reached(self) -> bool | None:
        """Whether the target is reached."""
        return None if self.target is None or self.ratio is None else self.ratio <= self.target

    @property
    def meta_reached(self) -> bool | None:
        """Whether the target on `meta` is reached."""
        return None if self.meta_target_ns is None or self.meta_ns is None else self.meta_ns <= self.meta_target_ns


class World:
    """Dims and operands of the cases on one backend: B=2, T=3 with lengths 3 and 2, F=4, G=5, V=7."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.batch = rf.Dim(2, name="B")
        with use_backend(backend.name):
            self.time = rf.Dim(None, name="T").fill([3, 2], [self.batch])
        self.feature = rf.Dim(4, name="F")
        self.out = rf.Dim(5, name="G")
        self.vocab = rf.Dim(7, name="V")
        self._random = numpy.random.default_rng(1)

    def tensor(self, *dims: rf.Dim, dtype: str = "float32", grad: bool = False) -> rf.Tensor:
        """Random values; integers are below 4. `grad`: gradients with regard to it are wanted."""
        shape = [d.get_dim_value() for d in dims]
        if dtype.startswith("int"):
            values = self._random.integers(0, 4, shape)
        else:
            values = self._random.standard_normal(shape)
        out = rf.convert_to_tensor(values.astype(dtype), dims=dims, dtype=dtype, _backend=self.backend.name)
        if grad and self.backend.computes:
            out = rf.convert_to_tensor(self.backend.create_parameter(out.raw_tensor, True), dims=dims)
        return out

    def btf(self, **options: Any) -> rf.Tensor:
        """{B, T, F}."""
        return self.tensor(self.batch, self.time, self.feature, **options)


Calls = Iterator[Callable[[], Any]]
"""First the call in rf, then, if there is one, the backend's. Up to the first, only what every backend can do may
happen.
"""


@dataclass(frozen=True)
class Case:
    """One row.

    :param build: makes the calls, see `Calls`
    :param reference: the backend's call in words
    :param grad: whether gradients are recorded for what wants them
    :param same_values: whether both calls give equal values (not where they draw random numbers)
    :param on_meta: whether it says something on `meta`
    """

    op: str
    compares: str
    reference: str | None
    build: Callable[[World], Calls]
    target: float | None = None
    meta_target_ns: float | None = None
    grad: bool = True
    same_values: bool = True
    on_meta: bool = True


CASES: list[Case] = []


def _case(op: str, compares: str, reference: str | None, **options: Any) -> Callable[[Callable[[World], Calls]], None]:
    def add(build: Callable[[World], Calls]) -> None:
        CASES.append(Case(op, compares, reference, build, **options))

    return add


def select_cases(pattern: str | None) -> list[Case]:
    """The cases whose name or description contains `pattern`; UserError if none does."""
    if not pattern:
        return list(CASES)
    found = [case for case in CASES if pattern.lower() in f"{case.op} {case.compares}".lower()]
    if not found:
        raise UserError(f"no op matches {pattern!r}; there are: {', '.join(case.op for case in CASES)}")
    return found


def bench_ops(
    backend: Backend,
    cases: Sequence[Case],
    *,
    rounds: int = 15,
    progress: Callable[[Case], object] = lambda _: None,
    **timing: Any,
) -> list[OpTime]:
    """Time the cases: rf on `backend`, the backend itself, and rf on `meta`, in turns.

    :param progress: called before each case
    :param timing: further arguments of `rf.profile.timing.compare`

    Raises UserError for a backend that there are no reference calls for.
    """
    if backend.name not in BACKENDS:
        raise UserError(f"there are no calls of {backend.name} to compare with; use one of: {', '.join(BACKENDS)}")
    out = []
    for case in cases:
        progress(case)
        functions: dict[str, Callable[[], Any]] = {}
        with use_backend(backend.name), contextlib.nullcontext() if case.grad else backend.no_grad():
            functions |= zip(("rf", "reference"), case.build(World(backend)))
            if case.on_meta:
                with use_backend("meta"):
                    functions["meta"] = next(case.build(World(get_backend("meta"))))
            result = compare(functions, rounds=rounds, **timing)
        ns = result.ns
        out.append(
            OpTime(
                case.op,
                case.compares,
                ns["rf"],
                case.reference,
                ns.get("reference"),
                case.target,
                ns.get("meta"),
                case.meta_target_ns,
                result.empty_ns,
            )
        )
    return out


# -- the cases. `x, y` are raw arrays of `a, b`.


@_case("a + b", "{B,T,F} + {B,T,F}", "a + b", target=0.80, meta_target_ns=150)
def _(w: World) -> Calls:
    a, b = w.btf(), w.btf()
    yield lambda: a + b
    x, y = a.raw_tensor, b.raw_tensor
    yield lambda: x + y


@_case("a + b, grad", "{B,T,F} + {B,T,F}, both with gradient", "a + b")
def _(w: World) -> Calls:
    a, b = w.btf(grad=True), w.btf(grad=True)
    yield lambda: a + b
    x, y = a.raw_tensor, b.raw_tensor
    yield lambda: x + y


@_case("a + 1.0", "{B,T,F} + a Python number", "a + 1.0", target=0.45)
def _(w: World) -> Calls:
    a = w.btf()
    yield lambda: a + 1.0
    x = a.raw_tensor
    yield lambda: x + 1.0


@_case("a + {F}", "{B,T,F} + {F}", "a + b", target=0.90)
def _(w: World) -> Calls:
    a, b = w.btf(), w.tensor(w.feature)
    yield lambda: a + b
    x, y = a.raw_tensor, b.raw_tensor
    yield lambda: x + y


@_case("a + {B}", "{B,T,F} + {B}", "a + b[:, None, None]")
def _(w: World) -> Calls:
    a, b = w.btf(), w.tensor(w.batch)
    yield lambda: a + b
    x, y = a.raw_tensor, b.raw_tensor
    yield lambda: x + y[:, None, None]


@_case("relu", "{B,T,F}", "torch.relu(a)", target=0.90)
def _(w: World) -> Calls:
    a = w.btf()
    yield lambda: rf.relu(a)
    import torch

    x = a.raw_tensor
    yield lambda: torch.relu(x)


@_case("exp", "{B,T,F}", "torch.exp(a)", target=0.90)
def _(w: World) -> Calls:
    a = w.btf()
    yield lambda: rf.exp(a)
    import torch

    x = a.raw_tensor
    yield lambda: torch.exp(x)


@_case("a > b", "{B,T,F} > {B,T,F}", "a > b")
def _(w: World) -> Calls:
    a, b = w.btf(), w.btf()
    yield lambda: a > b
    x, y = a.raw_tensor, b.raw_tensor
    yield lambda: x > y


@_case("where", "{B,T,F}, all three operands", "torch.where(c, a, b)")
def _(w: World) -> Calls:
    a, b = w.btf(), w.btf()
    condition = a > b
    yield lambda: rf.where(condition, a, b)
    import torch

    c, x, y = condition.raw_tensor, a.raw_tensor, b.raw_tensor
    yield lambda: torch.where(c, x, y)


@_case("cast", "{B,T,F} int32 to float32", "a.to(torch.float32)")
def _(w: World) -> Calls:
    a = w.btf(dtype="int32")
    yield lambda: rf.cast(a, "float32")
    import torch

    x = a.raw_tensor
    yield lambda: x.to(torch.float32)


@_case("matmul", "{B,T,F} x {F,G} over F", "torch.matmul(a, b)", target=0.95)
def _(w: World) -> Calls:
    a, b, dim = w.btf(), w.tensor(w.feature, w.out), w.feature
    yield lambda: rf.matmul(a, b, reduce=dim)
    import torch

    x, y = a.raw_tensor, b.raw_tensor
    yield lambda: torch.matmul(x, y)


def _linear(w: World) -> tuple[Any, rf.Tensor]:
    with use_backend(w.backend.name):
        return rf.Linear(w.feature, w.out), w.btf()


def _weights_for_torch(module: Any, grad: bool) -> tuple[Any, Any]:
    weight, bias = module.weight.raw_tensor.detach(), module.bias.raw_tensor.detach()
    return weight.t().contiguous().requires_grad_(grad), bias.clone().requires_grad_(grad)


@_case("Linear", "rf.Linear on {B,T,F}, parameters with gradient", "F.linear(a, weight, bias)", target=0.95)
def _(w: World) -> Calls:
    module, a = _linear(w)
    yield lambda: module(a)
    import torch.nn.functional as F

    (weight, bias), x = _weights_for_torch(module, True), a.raw_tensor
    yield lambda: F.linear(x, weight, bias)


@_case("Linear, no grad", "rf.Linear on {B,T,F} in no_grad", "F.linear(a, weight, bias)", target=0.95, grad=False)
def _(w: World) -> Calls:
    module, a = _linear(w)
    yield lambda: module(a)
    import torch.nn.functional as F

    (weight, bias), x = _weights_for_torch(module, True), a.raw_tensor
    yield lambda: F.linear(x, weight, bias)


@_case("Linear, module", "rf.Linear on {B,T,F}, parameters with gradient", "torch.nn.Linear")
def _(w: World) -> Calls:
    module, a = _linear(w)
    yield lambda: module(a)
    import torch

    theirs = torch.nn.Linear(w.feature.get_dim_value(), w.out.get_dim_value())
    weight, bias = _weights_for_torch(module, False)
    theirs.load_state_dict({"weight": weight, "bias": bias})
    x = a.raw_tensor
    yield lambda: theirs(x)


@_case("LayerNorm", "rf.LayerNorm on {B,T,F}, parameters with gradient", "torch.nn.LayerNorm", target=0.50)
def _(w: World) -> Calls:
    with use_backend(w.backend.name):
        module = rf.LayerNorm(w.feature)
    a = w.btf()
    yield lambda: module(a)
    import torch

    theirs = torch.nn.LayerNorm(w.feature.get_dim_value(), eps=module.eps)
    x = a.raw_tensor
    yield lambda: theirs(x)


@_case("softmax, static", "{B,T,F} over F", "torch.softmax(a, -1)")
def _(w: World) -> Calls:
    a, dim = w.btf(), w.feature
    yield lambda: rf.softmax(a, axis=dim)
    import torch

    x = a.raw_tensor
    yield lambda: torch.softmax(x, -1)


@_case("softmax, dynamic", "{B,F,T} over T, masked", "torch.softmax(a, -1), not masked", target=1.30)
def _(w: World) -> Calls:
    a, dim = w.tensor(w.batch, w.feature, w.time), w.time
    yield lambda: rf.softmax(a, axis=dim)
    import torch

    x = a.raw_tensor
    yield lambda: torch.softmax(x, -1)


@_case("softmax, masked", "{B,F,T} over T, masked", "torch.softmax(a.masked_fill(padding, -inf), -1)")
def _(w: World) -> Calls:
    a, dim = w.tensor(w.batch, w.feature, w.time), w.time
    yield lambda: rf.softmax(a, axis=dim)
    import torch

    x = a.raw_tensor
    padding = torch.tensor([[[False, False, False]], [[False, False, True]]])
    yield lambda: torch.softmax(x.masked_fill(padding, float("-inf")), -1)


@_case("reduce_mean, static", "{B,T,F} over F", "torch.mean(a, -1)")
def _(w: World) -> Calls:
    a, dim = w.btf(), w.feature
    yield lambda: rf.reduce_mean(a, axis=dim)
    import torch

    x = a.raw_tensor
    yield lambda: torch.mean(x, -1)


@_case("reduce_mean, dynamic", "{B,T,F} over T, masked", "(a * mask).sum(1) / lengths")
def _(w: World) -> Calls:
    a, dim = w.btf(), w.time
    yield lambda: rf.reduce_mean(a, axis=dim)
    import torch

    x = a.raw_tensor
    mask = torch.tensor([[[1.0], [1.0], [1.0]], [[1.0], [1.0], [0.0]]])
    lengths = torch.tensor([[3.0], [2.0]])
    yield lambda: (x * mask).sum(1) / lengths


@_case("gather", "{V,F} at {B,T} int32, the table with gradient", "F.embedding(indices, table)")
def _(w: World) -> Calls:
    table, dim = w.tensor(w.vocab, w.feature, grad=True), w.vocab
    indices = w.tensor(w.batch, w.time, dtype="int32")
    yield lambda: rf.gather(table, indices=indices, axis=dim)
    import torch.nn.functional as F

    x, i = table.raw_tensor, indices.raw_tensor
    yield lambda: F.embedding(i, x)


@_case("dropout", "{B,T,F}, probability 0.1", "F.dropout(a, 0.1, training=True)", same_values=False)
def _(w: World) -> Calls:
    a = w.btf()
    yield lambda: rf.dropout(a, 0.1, on_forward=True)
    import torch.nn.functional as F

    x = a.raw_tensor
    yield lambda: F.dropout(x, 0.1, training=True)


@_case("transpose", "{B,T,F} to (F,B,T)", "a.permute(2, 0, 1)")
def _(w: World) -> Calls:
    a, order = w.btf(), (w.feature, w.batch, w.time)
    yield lambda: a.copy_transpose(order)
    x = a.raw_tensor
    yield lambda: x.permute(2, 0, 1)


@_case("new Tensor", "rf.convert_to_tensor of an array of the backend, dims checked", None, on_meta=False)
def _(w: World) -> Calls:
    dims = (w.batch, w.time, w.feature)
    raw = w.tensor(*dims).raw_tensor
    yield lambda: rf.convert_to_tensor(raw, dims=dims)
