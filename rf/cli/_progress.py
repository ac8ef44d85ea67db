"""Showing how a training goes: a progress bar on a terminal, plain lines anywhere else."""

from __future__ import annotations

import time
from collections.abc import Mapping
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

__all__ = ["Meter", "TrainProgress"]


class Meter:
    """Means over the steps since the last report, and how fast they were."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Starts anew, now."""
        self._num_steps = 0
        self._losses: dict[str, float] = {}
        self._errors: dict[str, float] = {}
        self._wait_seconds = 0.0
        self._start = time.perf_counter()

    def add(self, losses: Mapping[str, float], errors: Mapping[str, float], wait_seconds: float) -> None:
        """Counts one step: its losses and errors by name, and how long it waited for its data."""
        self._num_steps += 1
        self._wait_seconds += wait_seconds
        for sums, values in (self._losses, losses), (self._errors, errors):
            for name, value in values.items():
                sums[name] = sums.get(name, 0.0) + value

    @property
    def seconds(self) -> float:
        """Time since the start."""
        return time.perf_counter() - self._start

    def text(self) -> str:
        """``loss 3.200 (ctc 4.100, ce 2.300)  label error 34.5 %  8.10 steps/s  data wait 3.0 %``."""
        seconds = max(self.seconds, 1e-9)
        num_steps = max(self._num_steps, 1)
        losses = {name: f"{value / num_steps:.3f}" for name, value in self._losses.items()}
        total = losses.pop("total", "")
        parts = ", ".join(f"{name} {value}" for name, value in losses.items())
        errors = [f"{name.replace('_', ' ')} {100 * value / num_steps:.1f} %" for name, value in self._errors.items()]
        return "  ".join(
            [
                f"loss {total}" + (f" ({parts})" if parts else ""),
                *errors,
                f"{self._num_steps / seconds:.2f} steps/s",
                f"data wait {100 * self._wait_seconds / seconds:.1f} %",
            ]
        )


class TrainProgress:
    """Use as a context; call :meth:`update` after every step and :meth:`report` now and then.

    Args:
        num_steps: last step.
        step: steps done before.
        console: where to; by default stdout.
    """

    def __init__(self, num_steps: int, step: int, console: Console | None = None) -> None:
        self._console = console or Console(highlight=False)
        self._bar: Progress | None = None
        if self._console.is_terminal:
            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeRemainingColumn(),
                console=self._console,
            )
            self._task = self._bar.add_task("train", total=num_steps, completed=step)

    def __enter__(self) -> TrainProgress:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def update(self, step: int, epoch: int, loss: float) -> None:
        """After every step: moves the bar."""
        if self._bar is not None:
            self._bar.update(self._task, completed=step, description=f"epoch {epoch}  loss {loss:.3f}")

    def report(self, text: str) -> None:
        """Prints a line; above the bar, if there is one."""
        # Neither markup nor wrapping: names of files may look like markup, and lines are read by programs.
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)
