"""Time per module, on a clock that only the modules move."""

from __future__ import annotations

from typing import Any

import pytest

import rf
from rf.nn.module import Module
from rf.profile.modules import ROOT, ModuleTime, record_modules


class Clock:
    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> int:
        return self.now


class Leaf(Module):
    def __init__(self, clock: Clock, ns: int) -> None:
        self.clock, self.ns = clock, ns

    def __call__(self, x: int, *, add: int = 1) -> int:
        self.clock.now += self.ns
        return x + add


class Pair(Module):
    def __init__(self, clock: Clock, first: Module, second: Module) -> None:
        self.clock, self.first, self.second = clock, first, second

    def __call__(self, x: int) -> int:
        self.clock.now += 5
        assert isinstance(self.first, Leaf)
        return self.second(self.first(x, add=2))


class Model(Module):
    """7 ns of its own; the block twice; a leaf that nobody calls."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.block = Pair(clock, Leaf(clock, 10), Leaf(clock, 100))
        self.unused = Leaf(clock, 1)

    def __call__(self, x: int) -> int:
        self.clock.now += 7
        return self.block(self.block(x))


def classes(model: Module) -> list[tuple[str, type]]:
    return [(path, type(module)) for path, module in model.named_modules()]


def test_times_by_path() -> None:
    clock = Clock()
    model = Model(clock)
    results = []
    rows = record_modules(model, lambda: results.append(model(1)), clock=clock)
    assert results == [7]
    assert rows == [
        ModuleTime(ROOT, "Model", 1, 237, 7),
        ModuleTime("block", "Pair", 2, 230, 10),
        ModuleTime("block.first", "Leaf", 2, 20, 20),
        ModuleTime("block.second", "Leaf", 2, 200, 200),
    ]
    assert sum(row.own_ns for row in rows) == rows[0].total_ns


def test_time_outside_of_modules_is_that_of_the_whole() -> None:
    clock = Clock()
    model = Model(clock)

    def step() -> None:
        clock.now += 1000
        model.block.first(1)

    rows = record_modules(model, step, clock=clock)
    assert [(row.path, row.total_ns, row.own_ns) for row in rows] == [(ROOT, 1010, 1000), ("block.first", 10, 10)]


def test_module_under_two_paths_is_counted_under_the_first() -> None:
    clock = Clock()
    leaf = Leaf(clock, 10)
    model = Pair(clock, leaf, leaf)
    rows = record_modules(model, lambda: model(1), clock=clock)
    assert [(row.path, row.calls, row.total_ns) for row in rows] == [(ROOT, 1, 25), ("first", 2, 20)]


def test_recursive_call_is_not_counted_twice() -> None:
    clock = Clock()

    class Again(Module):
        def __call__(self, depth: int) -> int:
            clock.now += 10
            return self(depth - 1) if depth else 0

    class Top(Module):
        def __init__(self) -> None:
            self.inner = Again()

    model = Top()
    rows = record_modules(model, lambda: model.inner(2), clock=clock)
    assert rows[1] == ModuleTime("inner", "Again", 3, 30, 30)


def test_classes_are_restored() -> None:
    clock = Clock()
    model = Model(clock)
    before = classes(model)
    own_call = Leaf.__call__
    during: list[Any] = []

    def step() -> None:
        during.extend(classes(model))
        assert vars(Leaf)["__call__"] is own_call
        # an object of the class that is not in the model is not recorded
        Leaf(clock, 1)(1)

    record_modules(model, step, clock=clock)
    assert [path for path, _ in during] == [path for path, _ in before]
    assert all(issubclass(now, cls) for (_, now), (_, cls) in zip(during, before))
    assert during != before
    assert classes(model) == before


def test_classes_are_restored_after_an_exception() -> None:
    clock = Clock()
    model = Model(clock)
    before = classes(model)
    with pytest.raises(TypeError):
        record_modules(model, lambda: model("no number"), clock=clock)  # type: ignore[arg-type]
    assert classes(model) == before


def test_nested_recording_is_an_error_that_ends_nothing() -> None:
    clock = Clock()
    model = Model(clock)

    def step() -> None:
        with pytest.raises(rf.RfError, match="block is already being recorded"):
            record_modules(model, lambda: None, clock=clock)
        model(1)

    rows = record_modules(model, step, clock=clock)
    assert [row.calls for row in rows] == [1, 2, 2, 2]
    assert type(model.block) is Pair


def test_rows_follow_the_tree() -> None:
    clock = Clock()
    model = Pair(clock, Leaf(clock, 1), Pair(clock, Leaf(clock, 1), Leaf(clock, 1)))
    model.third = Leaf(clock, 1)  # type: ignore[attr-defined]

    def step() -> None:
        model.third(1)  # type: ignore[attr-defined]
        model(1)

    rows = record_modules(model, step, clock=clock)
    assert [row.path for row in rows] == [ROOT, "first", "second", "second.first", "second.second", "third"]
