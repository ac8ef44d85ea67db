"""`rf bench core`: what the basic operations cost, in ns and in instructions, on both cores."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from rf._errors import RfError, UserError
from rf._native import build_note
from rf.backend import Backend
from rf.bench.core_cases import CoreCase
from rf.bench.instructions import CORES, child_environment, count, why_not
from rf.profile.environment import environment_lines
from rf.profile.report import _console, _print, _table

__all__ = ["CoreTime", "CoreTimes", "bench_core", "core_json", "print_core"]


@dataclass(frozen=True)
class CoreTime:
    """What one call of one operation costs, loop and function call included.

    :param ns: times by core
    :param instructions: counts by core; empty where nothing was counted
    :param backend: that it was timed on
    :param counted_on: backend that instructions were counted on
    :param reference: torch's call in words; None if there is none
    :param reference_ns: its time, in turns with that of the first core in `ns`; None where it was not timed
    :param empty_ns: how much of every time is loop and function call
    """

    name: str
    what: str
    ns: dict[str, float]
    instructions: dict[str, float]
    backend: str
    counted_on: str
    reference: str | None
    reference_ns: float | None
    empty_ns: float

    @property
    def ratio(self) -> float | None:
        """rf / reference, on the core that both were timed on in turns."""
        return None if self.reference_ns is None else next(iter(self.ns.values())) / self.reference_ns


@dataclass(frozen=True)
class CoreTimes:
    """All rows, and what they were measured with.

    :param environments: by core, see `rf.profile.environment.environment`
    :param missing: why something is not there, by what it is
    """

    rows: list[CoreTime]
    environments: dict[str, dict[str, Any]]
    missing: dict[str, str]


def bench_core(
    backend: Backend,
    cases: Sequence[CoreCase],
    *,
    rounds: int = 15,
    number_of_threads: int | None = None,
    instructions: bool = True,
    progress: Callable[[str], object] = lambda _: None,
) -> CoreTimes:
    """Time the cases on both cores, in turns, and count their instructions.

    :param backend: of the rows that are about arrays; on torch there are reference calls
    :param rounds: of `rf.profile.timing.compare`
    :param number_of_threads: None: one
    :param instructions: whether to count them, for which valgrind takes a minute
    :param progress: called with a line of text before each step

    Raises UserError when a process cannot use the backend or that many threads.
    """
    missing = {}
    if build_note()[0] != "native":
        missing["native core"] = f"it is not built: {build_note()[1]}"
    cores = [core for core in CORES if f"{core} core" not in missing]
    counts: dict[str, dict[str, float]] = {}
    for core in cores if instructions else ():
        reason = why_not(core)
        if reason is None:
            progress(f"instructions, {core} core")
            counts[core] = count([case.name for case in cases], core)
        else:
            missing["instructions"] = reason
    rows = []
    with ExitStack() as stack:
        workers = {}
        for core in cores:
            progress(f"start, {core} core")
            workers[core] = stack.enter_context(_Worker(core, backend.name, number_of_threads))
        for case in cases:
            progress(case.name)
            times = {}
            for core, worker in workers.items():
                reference = backend.name == "torch" and core == cores[0]
                times[core] = worker.ask({"case": case.name, "reference": reference, "rounds": rounds})
            rows.append(
                CoreTime(
                    case.name,
                    case.what,
                    {core: answer["rf"] for core, answer in times.items()},
                    {core: numbers[case.name] for core, numbers in counts.items()},
                    backend.name if case.data else "meta",
                    case.counted_on,
                    case.reference,
                    times[cores[0]]["reference"],
                    times[cores[0]]["empty"],
                )
            )
        return CoreTimes(rows, {core: worker.environment for core, worker in workers.items()}, missing)


class _Worker:
    """A process of `rf.bench._core_worker`, which ends with the `with` block."""

    def __init__(self, core: str, backend: str, number_of_threads: int | None) -> None:
        self._core = core
        command = [sys.executable, "-m", "rf.bench._core_worker", backend, str(number_of_threads or 0)]
        self._process = subprocess.Popen(
            command,
            env=child_environment(core, os.environ),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            encoding="utf-8",
        )
        self.environment: dict[str, Any] = {}

    def __enter__(self) -> _Worker:
        try:
            self.environment = self._answer()["environment"]
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop()

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """The answer to one request."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RfError(f"the process on the {self._core} core ended with status {self._process.wait()}, see above")
        answer = json.loads(line)
        if "error" in answer:
            raise UserError(f"{self._core} core: {answer['error']}")
        return answer

    def _stop(self) -> None:
        self._process.kill()
        self._process.communicate()


def core_json(result: CoreTimes) -> dict[str, Any]:
    """Results as JSON has them. `environment` is that of the first core; the others' differ in the core alone."""
    return {
        "rows": [
            {
                "name": row.name,
                "what": row.what,
                "ns": row.ns,
                "instructions": row.instructions,
                "backend": row.backend,
                "counted_on": row.counted_on,
                "reference": row.reference,
                "reference_ns": row.reference_ns,
                "ratio": row.ratio,
                "empty_call_ns": row.empty_ns,
            }
            for row in result.rows
        ],
        "missing": result.missing,
        "environment": next(iter(result.environments.values())),
        "environments": result.environments,
    }


def print_core(result: CoreTimes) -> None:
    """Results as a table."""
    console = _console()
    for line in environment_lines(next(iter(result.environments.values()))):
        console.print(line, highlight=False, markup=False)
    cores = list(result.environments)
    counted = [core for core in cores if any(core in row.instructions for row in result.rows)]
    table = _table(
        "operation",
        *(f">{core}" for core in cores),
        ">torch",
        ">ratio",
        *(f">{core} instr." for core in counted),
        "what",
        "torch's call",
    )
    for row in result.rows:
        table.add_row(
            row.name,
            *(f"{row.ns[core]:.0f}" for core in cores),
            "" if row.reference_ns is None else f"{row.reference_ns:.0f}",
            "" if row.ratio is None else f"{row.ratio:.2f}",
            *(f"{row.instructions[core]:.0f}" for core in counted),
            row.what,
            "" if row.reference_ns is None else row.reference,
        )
    _print(console, "ns and instructions per call, by core", table)
    if result.rows:
        empty = sum(row.empty_ns for row in result.rows) / len(result.rows)
        console.print(f"Every time includes {empty:.0f} ns for the loop and the call of a function.", highlight=False)
    for what, reason in result.missing.items():
        console.print(f"no {what}: {reason}", highlight=False, markup=False)
