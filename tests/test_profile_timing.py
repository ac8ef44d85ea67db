"""`rf.profile.timing` on a clock that only moves when a timed function says so."""

from __future__ import annotations

import gc
from collections.abc import Callable

import pytest

from rf.profile.timing import compare, gc_off


class Clock:
    """ns that functions add up themselves; reading it takes none."""

    def __init__(self) -> None:
        self.now = 0
        self.log: list[str] = []

    def __call__(self) -> int:
        return self.now

    def function(self, name: str, ns: int) -> Callable[[], None]:
        def call() -> None:
            self.now += ns
            if not self.log or self.log[-1] != name:
                self.log.append(name)

        return call


def test_values_are_ns_per_call() -> None:
    clock = Clock()
    functions = {"fast": clock.function("fast", 10), "slow": clock.function("slow", 1000)}
    result = compare(functions, rounds=3, round_ns=5000, clock=clock)
    assert result.ns == {"fast": 10, "slow": 1000}
    assert result.empty_ns == 0
    assert result.rounds == 3
    # enough calls to fill a round
    assert result.calls["fast"] >= 500
    assert 5 <= result.calls["slow"] < 100


def test_functions_take_turns_and_the_order_alternates() -> None:
    clock = Clock()
    functions = {name: clock.function(name, 10) for name in "abc"}
    compare(functions, rounds=4, round_ns=100, clock=clock)
    # calibration, then rounds abc, cba, abc, cba; equal neighbors are logged once
    assert "".join(clock.log) == "abc" + "abc" + "ba" + "bc" + "ba"


def test_median_ignores_an_outlier() -> None:
    clock = Clock()
    calls = 0

    def sometimes() -> None:
        nonlocal calls
        calls += 1
        clock.now += 1_000_000 if calls == 7 else 100

    result = compare({"f": sometimes}, rounds=5, round_ns=1, clock=clock)
    assert result.calls == {"f": 1}
    assert result.ns == {"f": 100}


def test_slow_first_calls_do_not_count_in_the_length_of_a_round() -> None:
    clock = Clock()
    ns = iter([1_000_000, 1_000_000])

    def function() -> None:
        clock.now += next(ns, 10)

    result = compare({"f": function}, rounds=1, round_ns=5000, clock=clock)
    assert result.calls["f"] >= 500
    assert result.ns == {"f": 10}


def test_a_clock_that_stands_still_ends() -> None:
    assert compare({"f": lambda: None}, rounds=1, round_ns=1, clock=lambda: 0).ns == {"f": 0}


def test_rounds_must_be_positive() -> None:
    with pytest.raises(ValueError, match="rounds=0"):
        compare({}, rounds=0)


def test_on_the_real_clock() -> None:
    result = compare({"f": lambda: None}, rounds=2, round_ns=1000)
    assert result.ns["f"] > 0
    assert result.empty_ns > 0


@pytest.mark.parametrize("enabled", [True, False])
def test_gc_is_off_and_as_before_afterwards(enabled: bool) -> None:
    before = gc.isenabled()
    (gc.enable if enabled else gc.disable)()
    try:
        states = []
        compare({"f": lambda: states.append(gc.isenabled())}, rounds=1, round_ns=1)
        assert set(states) == {False}
        assert gc.isenabled() == enabled
        with pytest.raises(ZeroDivisionError), gc_off():
            raise ZeroDivisionError
        assert gc.isenabled() == enabled
    finally:
        (gc.enable if before else gc.disable)()
