"""Time per module of a model: recording by substitution of the modules' classes.

While recording, the class of every module object is a subclass made for it, whose `__call__` keeps the time. The
module classes themselves, attributes and identities stay as they are, `isinstance` included, and afterwards every
object has its own class back. A model that is not recorded pays nothing.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from rf._errors import RfError

__all__ = ["ModuleTime", "ModuleTree", "record_modules"]

ROOT = "(model)"
"""Path of the whole call, which also stands for a root module that is not called itself."""


class ModuleTree(Protocol):
    """What is needed of `rf.Module`."""

    def named_modules(self) -> Iterator[tuple[str, Any]]:
        """Every module once, with its attribute path; the root has the path ""."""
        ...

    def named_parameters(self) -> Iterator[tuple[str, Any]]:
        """Every `rf.Parameter` once, with its attribute path."""
        ...


@dataclass(frozen=True)
class ModuleTime:
    """The time of one module in one recorded call.

    :param path: attribute path, such as "encoder.layers.0.ffn1"
    :param kind: name of its class
    :param calls: how often it was called
    :param total_ns: time inside of it, its sub-modules included
    :param own_ns: time inside of it but of no recorded sub-module; over all rows these sum to the time of the whole
        call
    """

    path: str
    kind: str
    calls: int
    total_ns: int
    own_ns: int


class _Times:
    """Calls under way and sums per path."""

    def __init__(self, clock: Callable[[], int]) -> None:
        self.clock = clock
        self.stack: list[int] = []  # per call under way: ns in recorded calls below it
        self.depth: dict[str, int] = {}
        self.sums: dict[str, list[int]] = {}

    def run(self, path: str, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        sums = self.sums.setdefault(path, [0, 0, 0])
        self.depth[path] = self.depth.get(path, 0) + 1
        self.stack.append(0)
        start = self.clock()
        try:
            return function(*args, **kwargs)
        finally:
            ns = self.clock() - start
            below = self.stack.pop()
            self.depth[path] -= 1
            if self.stack:
                self.stack[-1] += ns
            sums[0] += 1
            if self.depth[path] == 0:  # else a call of itself, whose time the outer call has
                sums[1] += ns
            sums[2] += ns - below


def record_modules(
    root: ModuleTree, call: Callable[[], Any], *, clock: Callable[[], int] = time.perf_counter_ns
) -> list[ModuleTime]:
    """Run `call` and keep the time of every module of `root` that it calls.

    :param root: the model. A module object that occurs under several paths is counted under the first.
    :param call: takes a training step's forward part, or whatever is of interest. What runs outside of all modules is
        listed under "(model)".
    :param clock: ns since some fixed moment.
    :returns: a row for the whole call, then one per module that was called, each followed by those inside of it.

    Raises RfError when the model is already being recorded.
    """
    times = _Times(clock)
    with _substituted(root, times) as kinds:
        times.run(ROOT, call, (), {})
    number = {path: i for i, path in enumerate(kinds)}
    called = sorted(
        (path for path in times.sums if path != ROOT), key=lambda path: [number[p] for p in _prefixes(path)]
    )
    return [ModuleTime(path, kinds.get(path, ""), *times.sums[path]) for path in (ROOT, *called)]


def _prefixes(path: str) -> list[str]:
    parts = path.split(".")
    return [".".join(parts[: i + 1]) for i in range(len(parts))]


@contextlib.contextmanager
def _substituted(root: ModuleTree, times: _Times) -> Iterator[dict[str, str]]:
    classes: list[tuple[Any, type]] = []
    kinds: dict[str, str] = {}
    try:
        for path, module in list(root.named_modules()):
            cls = type(module)
            if getattr(cls, "_rf_recorded", False):
                raise RfError(f"module {path or ROOT} is already being recorded; recordings cannot be nested")
            kinds[path or ROOT] = cls.__name__
            # A root that is called is the whole call, but for a few lines around it.
            if path and callable(module):
                module.__class__ = _recording_class(cls, path, times)
                classes.append((module, cls))
        yield kinds
    finally:
        for module, cls in classes:
            module.__class__ = cls


def _recording_class(cls: type, path: str, times: _Times) -> type:
    own_call = cls.__call__

    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
        return times.run(path, own_call, (self, *args), kwargs)

    # No slots and no dict of its own: only a class of the same memory layout may be given to an object.
    return type(cls)(
        cls.__name__,
        (cls,),
        {"__slots__": (), "__call__": __call__, "_rf_recorded": True, "__module__": cls.__module__},
    )
