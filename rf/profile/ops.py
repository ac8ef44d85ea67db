"""Single ops against the backend's own Python calls: `rf bench ops`.

Arrays have a few elements, so that what is compared is what a call costs, not what the kernel computes. Both sides
get the same arrays (or equal ones, where layouts differ), compute the same values in the same dtype, and record
gradients for the same operands; tests check that. The cases of a backend are in a file of their own.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy

import rf
from rf._errors import UserError
from rf.backend import Backend, get_backend, use_backend
from rf.profile.timing import compare

__all__ = ["BACKENDS", "Calls", "Case", "OpTime", "World", "add_to", "bench_ops", "cases_of", "select_cases"]

BACKENDS = {"torch": "rf.profile._ops_torch", "tensorflow": "rf.profile._ops_tensorflow"}
"""Backends that there are cases for, and the modules that have them, as `CASES`."""


@dataclass(frozen=True)
class OpTime:
    """Times of one op, in ns per call.

    :param op: the case
    :param compares: what is computed
    :param rf_ns: the call in rf
    :param reference: the backend's own call; None if it has none
    :param reference_ns: its time
    :param target: the ratio that the project aims at, None without an aim
    :param meta_ns: the call in rf on the backend `meta` in place of this one; None where it says nothing
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
    :param grad: whether gradients are recorded for what wants them, as in a train step
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


def add_to(cases: list[Case], op: str, compares: str, reference: str | None, **options: Any) -> Callable[..., None]:
    """Decorator that adds a case to `cases`; see `Case`."""

    def add(build: Callable[[World], Calls]) -> None:
        cases.append(Case(op, compares, reference, build, **options))

    return add


def cases_of(backend_name: str) -> list[Case]:
    """All cases of a backend. Raises UserError for one that there are no reference calls for."""
    if backend_name not in BACKENDS:
        raise UserError(f"there are no calls of {backend_name} to compare with; use one of: {', '.join(BACKENDS)}")
    return list(importlib.import_module(BACKENDS[backend_name]).CASES)


def select_cases(backend_name: str, pattern: str | None) -> list[Case]:
    """The cases of a backend whose name or description contains `pattern`; UserError if none does."""
    cases = cases_of(backend_name)
    found = [case for case in cases if (pattern or "").lower() in f"{case.op} {case.compares}".lower()]
    if not found:
        raise UserError(f"no op matches {pattern!r}; there are: {', '.join(case.op for case in cases)}")
    return found


def bench_ops(
    backend: Backend,
    cases: Sequence[Case],
    *,
    rounds: int = 15,
    progress: Callable[[Case], object] = lambda _: None,
    **timing: Any,
) -> list[OpTime]:
    """Time the cases of `backend`: rf there, the backend itself, and rf on `meta` in place of it, in turns.

    :param progress: called before each case
    :param timing: further arguments of `rf.profile.timing.compare`
    """
    meta = get_backend(f"meta:{backend.name}")
    out = []
    for case in cases:
        progress(case)
        functions: dict[str, Callable[[], Any]] = {}
        # One recording, as a train step has it, for all calls: to begin one costs as much as many of them.
        with use_backend(backend.name), backend.recording() if case.grad else backend.no_grad():
            functions |= zip(("rf", "reference"), case.build(World(backend)))
            if case.on_meta:
                with use_backend(meta.name):
                    functions["meta"] = next(case.build(World(meta)))
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
