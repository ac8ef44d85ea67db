"""What `rf.bench.instructions` runs under valgrind: ``python -m rf.bench._counted CALLS NAME...``."""

from __future__ import annotations

import gc
import itertools
import os
import sys
from collections.abc import Callable, Sequence
from types import FunctionType

from rf.backend import get_backend, use_backend
from rf.bench.core_cases import CASES
from rf.profile.ops import World

WARM_UP_LOOPS, WARM_UP = 10, 10
"""Loops, and calls in each, before anything is counted: Python's interpreter specializes code, caches fill, and what is
cleared up every 64 entries (see `rf._dim_math`) has its usual length.
"""


def mark() -> None:
    """Calls the C function `getsid`, which nothing else calls: valgrind writes down the count so far, and starts anew.

    `rf.bench.instructions` tells it to.
    """
    os.getsid(0)


def main(arguments: Sequence[str]) -> int:
    """Call each function CALLS times and 2 * CALLS times, each loop between two marks."""
    calls, names = int(arguments[0]), arguments[1:]
    twice = 2 * calls
    by_name = {case.name: case for case in CASES}
    gc.disable()
    for name in names:
        case = by_name[name]
        backend = get_backend(case.counted_on)
        with use_backend(backend.name):
            function = case.build(World(backend))
            # A copy for each, as the interpreter specializes code for the function that it calls first.
            loop = FunctionType(_loop.__code__.replace(), globals())
            for _ in range(WARM_UP_LOOPS):
                loop(function, WARM_UP)
            mark()
            loop(function, calls)
            mark()
            loop(function, twice)
            mark()
    return 0


def _loop(function: Callable[[], object], calls: int) -> None:
    for _ in itertools.repeat(None, calls):
        function()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
