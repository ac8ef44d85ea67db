"""The mathematics of the optimizers: how one update changes a parameter, in kernels that every backend has.

:mod:`rf.optim.kernels` runs these rules. Where a framework has the same rule as one kernel (:mod:`rf.optim.torch`),
that is taken; these are then the definition.
"""

from __future__ import annotations

import abc
import math
from dataclasses import dataclass
from typing import ClassVar

from rf.backend import Backend, Raw

__all__ = ["NUM_UPDATES", "Adam", "Rule", "Sgd"]

NUM_UPDATES = "num_updates"
"""Name in the state of the number of updates that a parameter has had."""


class Rule(abc.ABC):
    """How to update a parameter.

    Attributes:
        counts_updates: whether an update depends on how many there have been.
    """

    counts_updates: bool

    @property
    @abc.abstractmethod
    def name(self) -> str:
        """Of the optimizer, for error messages."""

    @property
    @abc.abstractmethod
    def kept(self) -> tuple[str, ...]:
        """Names of the arrays, shaped like the parameter and 0 at first, that go from one update to the next."""

    @property
    def state_names(self) -> tuple[str, ...]:
        """All that the state has of each parameter."""
        return (*self.kept, NUM_UPDATES) if self.counts_updates else self.kept

    @abc.abstractmethod
    def update(
        self, b: Backend, p: Raw, g: Raw, kept: tuple[Raw, ...], *, rate: float, decay: float, num_updates: int
    ) -> tuple[Raw, tuple[Raw, ...]]:
        """One update, elementwise.

        Args:
            b: what computes.
            p, g: values and gradient, of any shape.
            kept: what is `kept`, of that shape.
            rate: learning rate.
            decay: weight decay.
            num_updates: this one included.

        Returns:
            the new `p` and `kept`.
        """


@dataclass(frozen=True)
class Sgd(Rule):
    """See :func:`rf.optim.sgd`."""

    momentum: float
    nesterov: bool

    counts_updates: ClassVar = False

    @property
    def name(self) -> str:
        return "SGD"

    @property
    def kept(self) -> tuple[str, ...]:
        return ("velocity",) if self.momentum else ()

    def update(
        self, b: Backend, p: Raw, g: Raw, kept: tuple[Raw, ...], *, rate: float, decay: float, num_updates: int
    ) -> tuple[Raw, tuple[Raw, ...]]:
        step = g = b.add(g, b.scale(p, decay)) if decay else g
        if self.momentum:
            (velocity,) = kept
            velocity = b.add(b.scale(velocity, self.momentum), g)
            step = b.add(g, b.scale(velocity, self.momentum)) if self.nesterov else velocity
            kept = (velocity,)
        return b.sub(p, b.scale(step, rate)), kept


@dataclass(frozen=True)
class Adam(Rule):
    """See :func:`rf.optim.adam`, and :func:`rf.optim.adamw` where the decay is decoupled."""

    betas: tuple[float, float]
    eps: float
    decoupled: bool

    counts_updates: ClassVar = True

    @property
    def name(self) -> str:
        return "AdamW" if self.decoupled else "Adam"

    @property
    def kept(self) -> tuple[str, ...]:
        return "first_moment", "second_moment"

    def update(
        self, b: Backend, p: Raw, g: Raw, kept: tuple[Raw, ...], *, rate: float, decay: float, num_updates: int
    ) -> tuple[Raw, tuple[Raw, ...]]:
        (m, v), (b1, b2) = kept, self.betas
        if decay and self.decoupled:
            p = b.scale(p, 1 - rate * decay)
        elif decay:
            g = b.add(g, b.scale(p, decay))
        m = b.add(b.scale(m, b1), b.scale(g, 1 - b1))
        v = b.add(b.scale(v, b2), b.scale(b.square(g), 1 - b2))
        # Both sides of the fraction are multiplied with the square root of the correction, to scale one array less.
        root2 = math.sqrt(1 - b2**num_updates)
        root = b.add(b.sqrt(v), b.scalar(self.eps * root2, b.dtype_of(v)))
        step = b.truediv(b.scale(m, rate * root2 / (1 - b1**num_updates)), root)
        return b.sub(p, step), (m, v)
