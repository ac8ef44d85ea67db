"""Timing of short calls against each other, so that their ratios mean something also on a machine that is not quiet."""

from __future__ import annotations

import gc
import itertools
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

__all__ = ["Comparison", "compare", "gc_off"]

ROUND_NS = 2_000_000
"""How long one round of one function shall take, at least."""
MAX_CALLS = 1_000_000
"""Most calls in a round, whatever the clock says."""


@dataclass(frozen=True)
class Comparison:
    """What `compare` measured.

    ns: median time of one call of each function, in ns, loop and call included.
    empty_ns: the same for a function that does nothing: what of each value above is loop and call.
    calls: calls per round of each function.
    rounds: the number of rounds.
    """

    ns: dict[str, float]
    empty_ns: float
    calls: dict[str, int]
    rounds: int


def compare(
    functions: Mapping[str, Callable[[], object]],
    *,
    rounds: int = 15,
    round_ns: int = ROUND_NS,
    clock: Callable[[], int] = time.perf_counter_ns,
) -> Comparison:
    """The time of one call of each function.

    Every function runs in a loop long enough for the clock. The loops take turns, every other round in reverse order,
    so that what else the machine does hits all functions alike; the result is the median over the rounds. The garbage
    collector is off meanwhile. Nothing is subtracted.

    :param functions: what to time, by name; they must not have side effects that make later calls cheaper or dearer.
    :param rounds: at least 1; 15 or more for results that are to be believed.
    :param round_ns: least duration of one loop, in ns.
    :param clock: ns since some fixed moment.
    """
    if rounds < 1:
        raise ValueError(f"rounds={rounds}: must be at least 1")
    everything = [*functions.values(), _nothing]
    with gc_off():
        calls = [_calibrate(function, round_ns, clock) for function in everything]
        times: list[list[float]] = [[] for _ in everything]
        order = range(len(everything))
        for number in range(rounds):
            for i in order if number % 2 == 0 else reversed(order):
                times[i].append(_loop_ns(everything[i], calls[i], clock) / calls[i])
    medians = [statistics.median(t) for t in times]
    return Comparison(dict(zip(functions, medians)), medians[-1], dict(zip(functions, calls)), rounds)


@contextmanager
def gc_off() -> Iterator[None]:
    """No garbage collection in the `with` block, after one at its start; the state from before is restored."""
    enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _nothing() -> None:
    return None


def _calibrate(function: Callable[[], object], round_ns: int, clock: Callable[[], int]) -> int:
    """Calls that a loop needs to last `round_ns`; finding out also warms up caches and plans."""
    calls = 1
    # The quickest of some loops: a single one may be slower by orders of magnitude, the first above all.
    while (elapsed := min(_loop_ns(function, calls, clock) for _ in range(3))) < round_ns and calls < MAX_CALLS:
        # At most tenfold, for the same reason.
        wanted = calls * round_ns // elapsed + 1 if elapsed > 0 else MAX_CALLS
        calls = min(max(wanted, calls + 1), 10 * calls, MAX_CALLS)
    return calls


def _loop_ns(function: Callable[[], object], calls: int, clock: Callable[[], int]) -> int:
    repeat = itertools.repeat(None, calls)
    start = clock()
    for _ in repeat:
        function()
    return clock() - start
