"""Learning rates by the number of the step.

Steps count from 0, so a schedule called with 0 gives the rate of the first update. Schedules have no state and do not
know how long the training is, beyond what they are given: a continued training calls them with the next step. Any
function from int to float is a schedule, too.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Callable
from dataclasses import dataclass

from rf._errors import UserError

__all__ = [
    "Constant",
    "Cosine",
    "Exponential",
    "InverseSquareRoot",
    "MultiStep",
    "PiecewiseLinear",
    "Schedule",
    "Warmup",
    "warmup_learning_rate",
]


class Schedule(abc.ABC):
    """A learning rate for every step."""

    def __call__(self, step: int) -> float:
        """The learning rate of a step.

        Args:
            step: updates done before it: 0, 1, ...

        Raises:
            UserError: if it is negative.
        """
        if not step >= 0:
            raise UserError(f"{type(self).__name__}: step {step}, but steps count from 0")
        return self._rate(step)

    @abc.abstractmethod
    def _rate(self, step: int) -> float: ...

    def _check_rate(self, **rates: float) -> None:
        for name, value in rates.items():
            if not 0 <= value < math.inf:
                raise UserError(f"{type(self).__name__}: {name} {value}: must be finite and at least 0")

    def _check_steps(self, minimum: int, steps: int) -> None:
        if not minimum <= steps < math.inf:
            raise UserError(f"{type(self).__name__}: steps {steps}: must be at least {minimum}")


@dataclass(frozen=True)
class Constant(Schedule):
    """`rate` in every step."""

    rate: float

    def __post_init__(self) -> None:
        self._check_rate(rate=self.rate)

    def _rate(self, step: int) -> float:
        return self.rate


@dataclass(frozen=True)
class Warmup(Schedule):
    """Rises in a line to the first rate of another schedule, which then takes over.

    ``then(0) * (step + 1) / steps`` for step < steps, and ``then(step - steps + 1)`` from there on: the last step of
    the warmup, which has the full rate, is the first of `then`. So 0 and 1 steps are no warmup.

    Attributes:
        steps: of the warmup.
        then: any function from step to rate.

    Source: Goyal et al., 2017, arXiv:1706.02677, section 2.2.
    """

    steps: int
    then: Callable[[int], float]

    def __post_init__(self) -> None:
        self._check_steps(0, self.steps)

    def _rate(self, step: int) -> float:
        if step + 1 < self.steps:
            return self.then(0) * (step + 1) / self.steps
        return self.then(step + 1 - max(self.steps, 1))


@dataclass(frozen=True)
class InverseSquareRoot(Schedule):
    """``rate * sqrt(steps / (steps + step))``: `rate` in the first step, half of it after ``3 * steps``.

    ``Warmup(n, InverseSquareRoot(rate, n))`` is the schedule of the Transformer, ``rate * min((step + 1) / n,
    sqrt(n / (step + 1)))``, with the peak as a parameter; there it is ``1 / sqrt(n * model_size)``.

    Source: Vaswani et al., 2017, arXiv:1706.03762, section 5.3.
    """

    rate: float
    steps: int

    def __post_init__(self) -> None:
        self._check_rate(rate=self.rate)
        self._check_steps(1, self.steps)

    def _rate(self, step: int) -> float:
        return self.rate * math.sqrt(self.steps / (self.steps + step))


@dataclass(frozen=True)
class Cosine(Schedule):
    """``end + (rate - end) * (1 + cos(pi * step / steps)) / 2`` up to step `steps`, and `end` from there on.

    Source: Loshchilov and Hutter, 2017, arXiv:1608.03983, equation 5, without restarts.
    """

    rate: float
    steps: int
    end: float = 0.0

    def __post_init__(self) -> None:
        self._check_rate(rate=self.rate, end=self.end)
        self._check_steps(1, self.steps)

    def _rate(self, step: int) -> float:
        if step >= self.steps:
            return self.end
        return self.end + (self.rate - self.end) * (1 + math.cos(math.pi * step / self.steps)) / 2


@dataclass(frozen=True)
class PiecewiseLinear(Schedule):
    """Straight lines between points (step, rate); before the first and after the last, the rate of that point.

    A linear decay is ``((0, r), (n, 0.0))``. A cycle up and down, to end far below where it began, is
    ``((0, r / 10), (0.45 * n, r), (0.9 * n, r / 10), (n, r / 1000))``.

    Attributes:
        points: at least one, by ascending steps.

    Source of the cycle: Smith and Topin, 2017, arXiv:1708.07120.
    """

    points: tuple[tuple[float, float], ...]

    def __post_init__(self) -> None:
        steps = [step for step, _ in self.points]
        if not steps or not all(a < b for a, b in zip(steps, steps[1:])):
            raise UserError(f"PiecewiseLinear: points {self.points}: needs at least one, by ascending steps")
        for _, rate in self.points:
            self._check_rate(rate=rate)

    def _rate(self, step: int) -> float:
        before = [point for point in self.points if point[0] <= step]
        after = self.points[len(before) :]
        if not before or not after:
            return (before[-1] if before else after[0])[1]
        (start, first), (end, last) = before[-1], after[0]
        return first + (last - first) * (step - start) / (end - start)


@dataclass(frozen=True)
class Exponential(Schedule):
    """``rate * factor ** (step / steps)``.

    Attributes:
        rate: of the first step.
        factor: what it is multiplied with in the course of `steps` steps; more than 0.
        steps: see `factor`.
        stepwise: all at once every `steps` steps: ``rate * factor ** (step // steps)``.
    """

    rate: float
    factor: float
    steps: int = 1
    stepwise: bool = False

    def __post_init__(self) -> None:
        self._check_rate(rate=self.rate)
        self._check_steps(1, self.steps)
        if not 0 < self.factor < math.inf:
            raise UserError(f"Exponential: factor {self.factor}: must be finite and more than 0")

    def _rate(self, step: int) -> float:
        return self.rate * self.factor ** (step // self.steps if self.stepwise else step / self.steps)


@dataclass(frozen=True)
class MultiStep(Schedule):
    """``rate * factor ** n``, where n of the `milestones` are at most `step`: a milestone is the first step of its
    rate."""

    rate: float
    factor: float
    milestones: tuple[int, ...]

    def __post_init__(self) -> None:
        self._check_rate(rate=self.rate, factor=self.factor)
        if not all(a < b for a, b in zip(self.milestones, self.milestones[1:])):
            raise UserError(f"MultiStep: milestones {self.milestones}: must ascend")

    def _rate(self, step: int) -> float:
        return self.rate * self.factor ** sum(milestone <= step for milestone in self.milestones)


def warmup_learning_rate(step: int, *, peak: float, warmup_steps: int, decay: bool = True) -> float:
    """Learning rate of step 0, 1, ...: rising in a line to `peak`, then falling as 1 / sqrt(step), or constant.

    This does not depend on how long the training will be, so a resumed one may be longer.

    Args:
        peak: rate at step ``warmup_steps - 1``.
        warmup_steps: 0 for none: then the rate is `peak` throughout.
        decay: whether it falls after the warmup. See :class:`InverseSquareRoot`.
    """
    then = InverseSquareRoot(peak, warmup_steps) if decay and warmup_steps else Constant(peak)
    return Warmup(warmup_steps, then)(step)
