"""Times of models for people, as a table, and for programs, as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

from rf.bench.run import ModelTime
from rf.profile.environment import environment_lines
from rf.profile.report import _console, _print, _table, _yes_no

__all__ = ["models_json", "print_models"]


def models_json(
    rows: Sequence[ModelTime], env: dict[str, Any], peers: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Times of models as JSON has them.

    :param env: as of `rf.profile.environment.environment`
    :param peers: what to know about other packages, or that they are missing, by name
    """
    return {
        "rows": [
            {
                "model": row.model,
                "what": row.what,
                "size": row.size,
                "step": row.step,
                "rf_ms": row.rf_ms,
                "reference": row.reference,
                "reference_ms": row.reference_ms,
                "ratio": row.ratio,
                "target": row.target,
                "reached": row.reached,
                "meta_ms": row.meta_ms,
                "frontend_share": row.frontend_share,
                "others_ms": row.others_ms,
                "others_ratio": row.others_ratio,
                "others_target": row.others_target,
                "difference": row.difference,
                "dropout": row.dropout,
                "rounds": row.rounds,
            }
            for row in rows
        ],
        "peers": dict(peers or {}),
        "environment": env,
    }


def print_models(
    rows: Sequence[ModelTime],
    env: dict[str, Any],
    peers: Mapping[str, str] | None = None,
    *,
    reference: str,
    optimizer: str,
) -> None:
    """Times of models as tables: against hand-written code, and against whatever else was timed.

    :param peers: as of `models_json`.
    :param reference: what the hand-written code is written in.
    :param optimizer: of the training steps, in words.
    """
    console = _console()
    for line in environment_lines(env):
        console.print(line, highlight=False, markup=False)
    table = _table(
        "model", "size", "step", ">rf", f">{reference}", ">ratio", ">target", "", ">meta", ">share", "what is compared"
    )
    for row in rows:
        table.add_row(
            row.model,
            row.size,
            row.step,
            f"{row.rf_ms:.3f}",
            f"{row.reference_ms:.3f}",
            f"{row.ratio:.2f}",
            "" if row.target is None else f"<= {row.target:.2f}",
            _yes_no(row.reached),
            f"{row.meta_ms:.3f}",
            f"{row.frontend_share:.0%}",
            row.what,
        )
    _print(console, "ms per call, medians", table)
    if any(row.others_ms for row in rows):
        _print(console, "further ways to compute the same, ms per call", _others(rows))
    for name, note in (peers or {}).items():
        console.print(f"{name}: {note}", highlight=False, markup=False)
    for line in (
        "Both sides have the same weights and compute the same numbers, which was checked.",
        f"forward: evaluation, no gradients. train: forward with dropout, loss, backward, {optimizer}.",
        "meta: rf without kernels (of train: forward and loss); share: of the time of rf.",
    ):
        console.print(line, highlight=False, markup=False)


def _others(rows: Sequence[ModelTime]) -> Table:
    table = _table("model", "size", "step", "other", ">ms", ">rf / other", ">target", "")
    for row in rows:
        for name, ms in row.others_ms.items():
            ratio, target = row.others_ratio[name], row.others_target.get(name)
            table.add_row(
                row.model,
                row.size,
                row.step,
                name,
                f"{ms:.3f}",
                f"{ratio:.2f}",
                "" if target is None else f"<= {target:.2f}",
                _yes_no(None if target is None else ratio <= target),
            )
    return table
