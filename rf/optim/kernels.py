"""Optimizers in kernels that every backend has, for those whose framework has no optimizer that computes the same.

That is so on TensorFlow. Adam of Keras, and TensorFlow's op ``ResourceApplyAdam``, add eps to a root that is not yet
corrected for its bias, so theirs means another eps in every step; and both want values and moments in a
``tf.Variable``.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rf._errors import UserError
from rf.backend import Backend, Raw
from rf.nn.parameter import Parameter
from rf.optim.optimizer import Optimizer, parameter_shape
from rf.optim.rule import NUM_UPDATES, Rule

__all__ = ["KernelOptimizer"]


@dataclass
class _Group:
    """Parameters that one rule can update together, one behind the other in flat arrays.

    Attributes:
        parameters: by name; of the same dtype, device, decay and number of updates.
        decay, num_updates: of each.
        kept: see :class:`Rule`.
        values: flat values of the parameters, as long as they are the arrays `stored`, which nobody can write into.
    """

    parameters: dict[str, Parameter]
    decay: float
    num_updates: int
    kept: tuple[Raw, ...]
    values: Raw = None
    stored: Sequence[Raw] = ()


_Kept = tuple[int, tuple[Raw, ...]]
"""Number of updates and what is kept of one parameter."""


class KernelOptimizer(Optimizer):
    """Runs a rule over flat arrays, so that an update is a few calls whatever the number of parameters."""

    def __init__(
        self,
        backend: Backend,
        rule: Rule,
        parameters: Mapping[str, Parameter],
        decay: Mapping[str, float],
        max_gradient_norm: float,
    ) -> None:
        super().__init__(backend, rule, parameters)
        self._decay = decay
        self._dtypes = {name: p.dtype for name, p in parameters.items()}
        self._max_norm = max_gradient_norm
        self._groups: list[_Group] = []
        self._present: list[str] | None = None

    def _step(self, loss: Raw, learning_rate: float) -> float:
        b = self._backend
        trainable = {name: p.raw_tensor for name, p in self._parameters.items() if p.trainable}
        grads = b.gradient(loss, list(trainable.values()))
        present = {name: g for name, g in zip(trainable, grads) if g is not None}
        with b.no_grad():
            if list(present) != self._present:
                self._groups = self._grouped(dict(self._by_name()), present)
                self._present = list(present)
            active = [group for group in self._groups if next(iter(group.parameters)) in present]
            flat = [_flat(b, [present[name] for name in group.parameters]) for group in active]
            norm = math.sqrt(sum(self._squares(g) for g in flat))
            if math.isfinite(norm):
                factor = self._max_norm / (norm + 1e-6)
                for group, g in zip(active, flat):
                    self._update(group, g if factor >= 1 else b.scale(g, factor), learning_rate)
        return norm

    def _squares(self, g: Raw) -> float:
        b = self._backend
        g = g if b.dtype_of(g) in ("float32", "float64") else b.cast(g, "float32")
        return b.item(b.sum(b.square(g), (0,)))

    def _update(self, group: _Group, g: Raw, learning_rate: float) -> None:
        b = self._backend
        parameters, before = group.parameters.values(), [p.raw_tensor for p in group.parameters.values()]
        if group.values is None or any(a is not x for a, x in zip(group.stored, before)):
            for name, p in group.parameters.items():
                if p.dtype != self._dtypes[name]:
                    raise UserError(
                        f"{self._rule.name}: the parameter {name} was of dtype {self._dtypes[name]}, and is {p.dtype} "
                        "now; make the optimizer after that"
                    )
            group.values = _flat(b, before)
        if self._rule.counts_updates:
            group.num_updates += 1
        values, group.kept = self._rule.update(
            b,
            group.values,
            g,
            group.kept,
            rate=learning_rate,
            decay=group.decay,
            num_updates=group.num_updates,
        )
        group.stored = b.assign_all(before, _pieces(b, values, [b.shape_of(x) for x in before]))
        for p, a, x in zip(parameters, before, group.stored):
            if x is not a:
                p.raw_tensor = x
        group.values = values if all(x is not a for a, x in zip(before, group.stored)) else None

    def _grouped(self, known: Mapping[str, _Kept], present: Mapping[str, Raw]) -> list[_Group]:
        """Groups of the parameters of which something is known, or that have a gradient now."""
        b = self._backend
        groups: dict[Any, list[str]] = {}
        for name, parameter in sorted(self._parameters.items(), key=lambda item: parameter_shape(item[1])):
            if name in present or name in known:
                num_updates = known[name][0] if name in known else 0
                key = name in present, parameter.dtype, parameter.device, self._decay[name], num_updates
                groups.setdefault(key, []).append(name)
        return [
            _Group(
                {name: self._parameters[name] for name in names},
                decay,
                num_updates,
                tuple(
                    _flat(b, [known[name][1][i] if name in known else self._zeros(name) for name in names])
                    for i in range(len(self._rule.kept))
                ),
            )
            for (_, _, _, decay, num_updates), names in groups.items()
        ]

    def _zeros(self, name: str) -> Raw:
        parameter = self._parameters[name]
        return self._backend.full(parameter_shape(parameter), 0, parameter.dtype, parameter.device)

    def _by_name(self) -> Iterator[tuple[str, _Kept]]:
        b = self._backend
        for group in self._groups:
            shapes = [parameter_shape(p) for p in group.parameters.values()]
            pieces = [_pieces(b, x, shapes) for x in group.kept]
            for i, name in enumerate(group.parameters):
                yield name, (group.num_updates, tuple(piece[i] for piece in pieces))

    def state(self) -> dict[str, np.ndarray]:
        arrays = {}
        with self._backend.no_grad():
            for name, (num_updates, kept) in self._by_name():
                for what, raw in zip(self._rule.kept, kept):
                    arrays[f"{name}/{what}"] = np.array(self._backend.to_numpy(raw))
                if self._rule.counts_updates:
                    arrays[f"{name}/{NUM_UPDATES}"] = np.array(num_updates, dtype=np.float32)
        return arrays

    def _load(self, state: Mapping[str, Mapping[str, np.ndarray]]) -> None:
        known: dict[str, _Kept] = {}
        for name, values in state.items():
            p = self._parameters[name]
            kept = tuple(self._backend.from_numpy(values[what], p.dtype, p.device) for what in self._rule.kept)
            known[name] = int(values[NUM_UPDATES]) if self._rule.counts_updates else 0, kept
        with self._backend.no_grad():
            self._groups = self._grouped(known, {})
        self._present = None


# Stacked first where neighbours have one shape, as a call for each parameter takes longer than the update itself.


def _flat(b: Backend, raws: Sequence[Raw]) -> Raw:
    """The elements of all arrays, one behind the other."""
    stacks = [b.stack(*run, 0) for _, run in itertools.groupby(raws, b.shape_of)]
    return b.concat(*(b.reshape(x, (math.prod(b.shape_of(x)),)) for x in stacks), 0)


def _pieces(b: Backend, flat: Raw, shapes: Sequence[tuple[int, ...]]) -> list[Raw]:
    """Arrays of these shapes of which `_flat` made it."""
    runs = [(shape, len(list(run))) for shape, run in itertools.groupby(shapes)]
    stacks = b.split(flat, 0, tuple(num * math.prod(shape) for shape, num in runs))
    pieces = []
    for (shape, num), stack in zip(runs, stacks):
        pieces += b.unstack(b.reshape(stack, (num, *shape)), 0, num)
    return pieces
