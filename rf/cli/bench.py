"""``rf bench ops``: time each op against the backend's own call."""

from __future__ import annotations

import argparse
import sys

from rf._errors import UserError
from rf._files import write_json
from rf.backend import get_backend
from rf.cli._arguments import check_output
from rf.profile.environment import environment, threads
from rf.profile.ops import Case, bench_ops, select_cases
from rf.profile.report import bench_json, print_bench

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``rf bench``."""
    parser.add_argument("what", choices=["ops"], help="ops: single ops on arrays of a few elements")
    parser.add_argument("--backend", default="torch", metavar="NAME", help="backend to compare with (default: torch)")
    parser.add_argument("--filter", metavar="TEXT", help="only ops whose name or description contains this")
    parser.add_argument("--repeat", type=int, default=15, metavar="N", help="rounds; results are medians (default: 15)")
    parser.add_argument("--threads", type=int, default=1, metavar="N", help="threads of the backend (default: 1)")
    parser.add_argument("--json", metavar="FILE", help="also write the results to FILE")


def run(args: argparse.Namespace) -> int:
    """Prints the table. Always 0: targets that are not reached are only marked, as times depend on the machine."""
    check_positive("--repeat", args.repeat)
    check_positive("--threads", args.threads)
    check_output("--json", args.json)
    cases = select_cases(args.filter)
    backend = get_backend(args.backend)
    with threads(backend, args.threads):
        env = environment(backend)
        progress = _Progress(len(cases))
        rows = bench_ops(backend, cases, rounds=args.repeat, progress=progress)
        progress.clear()
    print_bench(rows, env)
    if args.json:
        write_json(args.json, bench_json(rows, env))
    return 0


def check_positive(option: str, value: int) -> None:
    """Raises UserError unless the value of the option is at least 1."""
    if value < 1:
        raise UserError(f"{option} {value}: must be at least 1")


class _Progress:
    """Which op is being timed, on a terminal. Nothing runs in the background: that would be timed too."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._done = 0

    def __call__(self, case: Case) -> None:
        self._done += 1
        self._write(f"{self._done}/{self._number} {case.op}")

    def clear(self) -> None:
        """Removes the line."""
        self._write("")

    def _write(self, text: str) -> None:
        if sys.stderr.isatty():
            sys.stderr.write(f"\r\033[K{text}")
            sys.stderr.flush()
