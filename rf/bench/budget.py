"""The gate on instruction counts: ``python -m rf.bench.budget FILE``, or ``make bench-check``.

FILE says how many instructions each operation of `rf.bench.core_cases` may take, and in which environment that was
counted. Times would depend on what else a machine does, counts do not; but they differ between versions of Python,
compilers and libraries, so in another environment nothing is compared, and the command says so and succeeds. With
``--update`` it writes the counts of today and this environment into FILE.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rf._errors import RfError, UserError
from rf._files import replacing
from rf.bench.core_cases import CASES
from rf.bench.instructions import count, environment

__all__ = ["GATED", "TOLERANCE", "Budget", "Verdict", "compare", "main", "read", "write"]

TOLERANCE = 0.03
"""How far a count may lie above its budget. Between directories that rf lies in counts differ by up to 0.01."""

ON_PYTHON_CORE = (
    "Tensor, template",
    "copy",
    "copy_transpose",
    "Dim ==, other",
    "Dim, hash",
    "plan, found",
    "a + {F}",
    "relu",
    "matmul",
    "Linear",
    "softmax, dynamic",
)
BY_ADDRESS = frozenset({"dims_set"})
"""What depends on where objects lie, such as collisions in a set of dims, and so differs from run to run."""
GATED: dict[str, tuple[str, ...]] = {
    "native": tuple(case.name for case in CASES if case.name not in BY_ADDRESS),
    "python": ON_PYTHON_CORE,
}
"""What has a budget, by core. The Python core is the specification; some operations stand for all there."""

Counts = Mapping[str, Mapping[str, float]]
"""By core and name."""


@dataclass(frozen=True)
class Budget:
    """What a file says.

    :param environment: see `rf.bench.instructions.environment`
    :param counts: instructions per call, by core and name
    """

    environment: Mapping[str, str]
    counts: Counts


@dataclass(frozen=True)
class Verdict:
    """What a comparison found, as lines of text.

    :param failures: counts above their budgets, operations without a budget and budgets without an operation
    :param hints: counts so far below their budgets that these should be renewed
    :param number: how many operations were compared
    """

    failures: list[str]
    hints: list[str]
    number: int


def compare(counted: Counts, budget: Counts, renew: str) -> Verdict:
    """Compare counts with budgets.

    :param renew: the command that renews the budgets
    """
    failures, hints, number = [], [], 0
    for core in sorted({*counted, *budget}):
        now, allowed = counted.get(core, {}), budget.get(core, {})
        for name in [*now, *(n for n in allowed if n not in now)]:
            what = f"{name!r} on the {core} core"
            if name not in allowed:
                failures.append(
                    f"{what}: {now[name]:.0f} instructions per call, and no budget; to give it one: {renew}"
                )
            elif name not in now:
                failures.append(f"{what}: has a budget, but is not measured; to remove it: {renew}")
            else:
                number += 1
                change = now[name] / allowed[name] - 1
                text = (
                    f"{what}: {now[name]:.0f} instructions per call, the budget is {allowed[name]:.0f} ({change:+.1%})"
                )
                if now[name] > allowed[name] * (1 + TOLERANCE):
                    failures.append(f"{text}; if it has to cost that: {renew}")
                elif now[name] < allowed[name] * (1 - TOLERANCE):
                    hints.append(f"{text}; to keep it so: {renew}")
    return Verdict(failures, hints, number)


def differences(here: Mapping[str, str], there: Mapping[str, str]) -> list[str]:
    """In what two environments differ, in words."""
    return [
        f"{key} is {here.get(key, 'unknown')!r}, there {there.get(key, 'unknown')!r}"
        for key in [*here, *(k for k in there if k not in here)]
        if here.get(key) != there.get(key)
    ]


def read(path: str | os.PathLike[str]) -> Budget:
    """The budgets in a file. Raises UserError when it cannot be read or is no such file."""
    if sys.version_info < (3, 11):
        raise UserError(f"{path}: reading it needs Python 3.11 or newer")
    import tomllib

    try:
        table = tomllib.loads(Path(path).read_text(encoding="utf-8"))
        counts = {
            core: {name: float(number) for name, number in numbers.items()} for core, numbers in table["counts"].items()
        }
        made_in = {key: str(value) for key, value in table["environment"].items()}
    except OSError as exc:
        raise UserError(f"{path}: cannot be read ({exc.strerror or exc})") from exc
    except (ValueError, KeyError, AttributeError, TypeError) as exc:
        raise UserError(f"{path}: is no file of budgets ({type(exc).__name__}: {exc})") from exc
    if bad := [name for numbers in counts.values() for name, number in numbers.items() if number <= 0]:
        raise UserError(f"{path}: the budget of {bad[0]!r} must be above 0")
    return Budget(made_in, counts)


def write(path: str | os.PathLike[str], budget: Budget) -> None:
    """Write budgets, all or nothing. Raises UserError when the file cannot be written."""
    lines = [
        f"# Instructions per call, counted by valgrind; written by `{_renew(path)}`.",
        "# Each includes one pass of a Python loop and the call of a Python function. See rf/bench/budget.py.",
        "",
        "[environment]",
        *(f"{key} = {_quoted(value)}" for key, value in budget.environment.items()),
    ]
    for core, numbers in budget.counts.items():
        lines += ["", f"[counts.{core}]", *(f"{_quoted(name)} = {number:.0f}" for name, number in numbers.items())]
    with replacing(path) as temporary:
        temporary.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)  # a basic string of TOML is written like one of JSON


def _renew(path: str | os.PathLike[str]) -> str:
    # Relative to where the file is used from, so that no path of a machine gets into it.
    return f"python -m rf.bench.budget {os.path.relpath(path)} --update"


def count_all(cores: Mapping[str, Sequence[str]]) -> Counts:
    """Count what has a budget."""
    return {core: count(names, core) for core, names in cores.items()}


def main(
    arguments: Sequence[str] | None = None,
    *,
    counting: Callable[[Mapping[str, Sequence[str]]], Counts] = count_all,
    here: Callable[[], Mapping[str, str]] = environment,
) -> int:
    """The command; returns 1 when a count is above its budget, 2 when it cannot work.

    :param counting: counts the operations, by core
    :param here: the environment
    """
    parser = argparse.ArgumentParser(prog="python -m rf.bench.budget", description="Compare instruction counts.")
    parser.add_argument("file", help="file of budgets, TOML")
    parser.add_argument("--update", action="store_true", help="write the counts of today into the file")
    args = parser.parse_args(arguments)
    try:
        return _update(args.file, counting, here()) if args.update else _check(args.file, counting, here())
    except RfError as exc:
        print(f"rf.bench.budget: {exc}", file=sys.stderr)
        return 2


def _update(
    path: str, counting: Callable[[Mapping[str, Sequence[str]]], Counts], environment_here: Mapping[str, str]
) -> int:
    counts = counting(GATED)
    write(path, Budget(environment_here, counts))
    print(f"{path}: budgets of {sum(map(len, counts.values()))} operations written")
    return 0


def _check(
    path: str, counting: Callable[[Mapping[str, Sequence[str]]], Counts], environment_here: Mapping[str, str]
) -> int:
    if sys.version_info < (3, 11):
        print(f"instruction counts not checked: {path} is for another version of Python, and reading it needs 3.11")
        return 0
    budget = read(path)
    if found := differences(environment_here, budget.environment):
        print(f"instruction counts not checked: {path} was made in another environment: {'; '.join(found)}")
        return 0
    verdict = compare(counting(GATED), budget.counts, _renew(path))
    for hint in verdict.hints:
        print(f"note: {hint}")
    for failure in verdict.failures:
        print(f"FAILED: {failure}")
    if not verdict.failures:
        print(f"instruction counts: {verdict.number} operations, none more than {TOLERANCE:.0%} above its budget")
    return 1 if verdict.failures else 0


if __name__ == "__main__":
    sys.exit(main())
