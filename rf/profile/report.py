"""Results for people, as tables, and for programs, as JSON."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from rf.profile.environment import environment_lines
from rf.profile.modules import ModuleTime
from rf.profile.ops import OpTime
from rf.profile.step import Profile

__all__ = ["bench_json", "print_bench", "print_profile", "profile_json"]

WIDTH_WHEN_PIPED = 1000
"""A pipe has no width. What reads it can cut lines, but not put broken ones together again."""


def profile_json(profile: Profile, env: dict[str, Any], subject: dict[str, Any]) -> dict[str, Any]:
    """A profile as JSON has it.

    `wall_ms` is the step; `split` has its rows in ms, which sum to it. `kernels` and `modules` take the forward part
    apart.

    :param env: as of `environment`
    :param subject: what was profiled: model, data, sizes
    """
    forward_kernels = sum(row.total_ns for row in profile.kernels)
    forward_modules = profile.modules[0].total_ns
    frontend = {row.path: row for row in profile.frontend_modules}
    return {
        **subject,
        "steps": profile.steps,
        "frontend_backend": profile.frontend_backend,
        "wall_ms": _ms(profile.wall_ns),
        "split": {name: _ms(ns) for name, ns in profile.split_ns.items()},
        "parts": {
            "forward_ms": _ms(profile.forward_ns),
            "update_ms": _ms(profile.update_ns),
            "data_ms": _ms(profile.wait_ns),
            "replay_forward_ms": _ms(profile.replay_ns),
            "replay_update_ms": _ms(profile.replay_update_ns),
        },
        "kernels": [
            {
                "kernel": row.kernel,
                "calls": row.calls,
                "ns": row.total_ns / row.calls,
                "total_ms": _ms(row.total_ns),
                "share": row.total_ns / forward_kernels,
            }
            for row in profile.kernels
        ],
        "modules": [
            {
                "module": row.path,
                "kind": row.kind,
                "calls": row.calls,
                "ns": row.total_ns / row.calls,
                "own_ms": _ms(row.own_ns),
                "share": row.own_ns / forward_modules,
                "frontend_ns": frontend[row.path].total_ns / frontend[row.path].calls if row.path in frontend else None,
            }
            for row in profile.modules
        ],
        "warnings": profile.warnings,
        "environment": env,
    }


def print_profile(profile: Profile, env: dict[str, Any], subject: dict[str, Any]) -> None:
    """The split of the step, then the tables per kernel and per module."""
    console = _console()
    for line in [", ".join(f"{key} {value}" for key, value in subject.items()), *environment_lines(env)]:
        console.print(line, highlight=False, markup=False)
    wall = profile.wall_ns
    what = {"frontend": f"rf itself: the same step on the backend {profile.frontend_backend}"} | _WHAT
    table = _table("part", ">ms", ">share", "what it is")
    for name, ns in profile.split_ns.items():
        table.add_row(name, f"{_ms(ns):.3f}", _per_cent(ns, wall), what[name])
    table.add_section()
    table.add_row("step", f"{_ms(wall):.3f}", _per_cent(wall, wall), "wall time")
    _print(console, f"One training step: {_ms(wall):.3f} ms", table)
    for line in (*profile.warnings, *_hints(profile)):
        console.print(f"note: {line}", highlight=False, markup=False)

    total = sum(row.total_ns for row in profile.kernels)
    table = _table("kernel", ">calls", ">ns each", ">ms", ">share")
    for row in profile.kernels:
        cells = f"{row.total_ns / row.calls:.0f}", f"{_ms(row.total_ns):.3f}", _per_cent(row.total_ns, total)
        table.add_row(row.kernel, str(row.calls), *cells)
    table.add_section()
    calls = sum(row.calls for row in profile.kernels)
    table.add_row("all", str(calls), f"{total / calls:.0f}", f"{_ms(total):.3f}", _per_cent(total, total))
    _print(console, "Forward kernels, replayed and timed one by one", table)

    table = _table("module", "class", ">calls", ">ns each", ">frontend ns each", ">own ms", ">own share")
    rows = collapsed(profile.modules)
    frontend = {row.path: row for row in collapsed(profile.frontend_modules)}
    total = profile.modules[0].total_ns
    for row in rows:
        meta = frontend.get(row.path)
        table.add_row(
            row.path,
            row.kind,
            str(row.calls),
            f"{row.total_ns / row.calls:.0f}",
            "" if meta is None else f"{meta.total_ns / meta.calls:.0f}",
            f"{_ms(row.own_ns):.3f}",
            _per_cent(row.own_ns, total),
        )
    table.add_section()
    own = sum(row.own_ns for row in rows)
    table.add_row("all", "", "", "", "", f"{_ms(own):.3f}", _per_cent(own, total))
    _print(
        console,
        f"Forward by module; own: not in one of its sub-modules; frontend: on {profile.frontend_backend}",
        table,
    )


def collapsed(rows: Sequence[ModuleTime]) -> list[ModuleTime]:
    """One row for modules whose paths differ in numbers only, such as layers of a stack: `encoder.layers.*.ffn1`."""
    out: dict[str, ModuleTime] = {}
    for row in rows:
        path = re.sub(r"(?<=\.)\d+(?=\.|$)", "*", row.path)
        same = out.get(path)
        if same is None:
            out[path] = ModuleTime(path, row.kind, row.calls, row.total_ns, row.own_ns)
        else:
            kind = same.kind if same.kind == row.kind else "..."
            sums = same.calls + row.calls, same.total_ns + row.total_ns, same.own_ns + row.own_ns
            out[path] = ModuleTime(path, kind, *sums)
    return list(out.values())


def bench_json(rows: Sequence[OpTime], env: dict[str, Any]) -> dict[str, Any]:
    """Times of ops as JSON has them."""
    return {
        "rows": [
            {
                "op": row.op,
                "compares": row.compares,
                "rf_ns": row.rf_ns,
                "reference": row.reference,
                "reference_ns": row.reference_ns,
                "ratio": row.ratio,
                "target": row.target,
                "reached": row.reached,
                "meta_ns": row.meta_ns,
                "meta_target_ns": row.meta_target_ns,
                "meta_reached": row.meta_reached,
                "empty_call_ns": row.empty_ns,
            }
            for row in rows
        ],
        "environment": env,
    }


def print_bench(rows: Sequence[OpTime], env: dict[str, Any]) -> None:
    """Times of ops as a table."""
    console = _console()
    for line in environment_lines(env):
        console.print(line, highlight=False, markup=False)
    table = _table("op", ">rf", ">" + env["backend"], ">ratio", ">target", "", ">meta", "what is compared")
    for row in rows:
        meta = "" if row.meta_ns is None else f"{row.meta_ns:.0f}"
        if row.meta_target_ns is not None:
            meta += f" (<= {row.meta_target_ns:.0f}: {_yes_no(row.meta_reached)})"
        table.add_row(
            row.op,
            f"{row.rf_ns:.0f}",
            "" if row.reference_ns is None else f"{row.reference_ns:.0f}",
            "" if row.ratio is None else f"{row.ratio:.2f}",
            "" if row.target is None else f"<= {row.target:.2f}",
            _yes_no(row.reached),
            meta,
            row.compares,
        )
    _print(console, "ns per call", table)
    if rows:
        empty = sum(row.empty_ns for row in rows) / len(rows)
        console.print(f"Every value includes {empty:.0f} ns for the loop and the call of a function.", highlight=False)


_WHAT = {
    "backend": "dispatch and kernels: the recorded kernel calls without rf; backward pass and optimizer",
    "data": "waiting for the next batch",
    "unexplained": "the step minus all of the above",
}


def _hints(profile: Profile) -> list[str]:
    share = profile.wait_ns / profile.wall_ns
    if share > 0.1:
        return [
            f"{share:.0%} of the step is waiting for data; load it in the background with --workers 1, or with more"
        ]
    return []


def _console() -> Console:
    return Console(width=None if sys.stdout.isatty() else WIDTH_WHEN_PIPED)


def _table(*columns: str) -> Table:
    """Columns that begin with ">" are right-aligned."""
    piped = not sys.stdout.isatty()
    table = Table(box=box.ASCII2 if piped else box.SIMPLE_HEAD)
    for name in columns:
        justify = "right" if name.startswith(">") else "left"
        table.add_column(name.removeprefix(">"), justify=justify, overflow="fold")
    return table


def _print(console: Console, title: str, table: Table) -> None:
    console.print(f"\n{title}", style="bold", highlight=False, markup=False)
    console.print(table)


def _ms(ns: float) -> float:
    return ns / 1e6


def _per_cent(part: float, whole: float) -> str:
    return f"{100 * part / whole:.1f} %"


def _yes_no(value: bool | None) -> str:
    return "" if value is None else "yes" if value else "no"
