"""The optimizers of torch, where one kernel call updates all parameters."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from rf._errors import UserError
from rf.backend import Backend, Raw
from rf.nn.parameter import Parameter
from rf.optim.optimizer import Optimizer
from rf.optim.rule import NUM_UPDATES, Adam, Rule, Sgd

__all__ = ["TorchOptimizer"]

_TORCH_NAMES = {
    NUM_UPDATES: "step",
    "first_moment": "exp_avg",
    "second_moment": "exp_avg_sq",
    "velocity": "momentum_buffer",
}


class TorchOptimizer(Optimizer):
    """Runs a rule by the optimizer of torch that computes the same."""

    def __init__(
        self,
        backend: Backend,
        rule: Rule,
        parameters: Mapping[str, Parameter],
        decay: Mapping[str, float],
        max_gradient_norm: float,
    ) -> None:
        import torch

        super().__init__(backend, rule, parameters)
        self._clip = torch.nn.utils.clip_grad_norm_
        self._max_norm = max_gradient_norm
        self._raw: dict[str, Any] = {name: p.raw_tensor for name, p in parameters.items()}
        by_decay: dict[float, list[Any]] = {}
        for name, raw in self._raw.items():
            by_decay.setdefault(decay[name], []).append(raw)
        self._optimizer = _make(rule, [{"params": raws, "weight_decay": value} for value, raws in by_decay.items()])

    def _step(self, loss: Raw, learning_rate: float) -> float:
        for name, parameter in self._parameters.items():
            if parameter.raw_tensor is not self._raw[name]:
                raise UserError(
                    f"{self._rule.name}: the parameter {name} is no longer the array that it was (Parameter.to makes "
                    "another one); make the optimizer after that"
                )
        self._optimizer.zero_grad()
        loss.backward()
        norm = float(self._clip(self._raw.values(), self._max_norm))
        if math.isfinite(norm):
            for group in self._optimizer.param_groups:
                group["lr"] = learning_rate
            if self._rule.kept == ("velocity",):
                self._begin_velocities()
            self._optimizer.step()
        return norm

    def _begin_velocities(self) -> None:
        # The fused kernel takes those of all parameters or of none, but some may have their first gradient later.
        for raw in self._raw.values():
            if raw.grad is not None and not self._optimizer.state[raw]:
                self._optimizer.state[raw]["momentum_buffer"] = raw.new_zeros(raw.shape)

    def state(self) -> dict[str, np.ndarray]:
        arrays = {}
        for name, raw in self._raw.items():
            if values := self._optimizer.state.get(raw):
                for what in self._rule.state_names:
                    arrays[f"{name}/{what}"] = self._backend.to_numpy(values[_TORCH_NAMES[what]]).copy()
        return arrays

    def _load(self, state: Mapping[str, Mapping[str, np.ndarray]]) -> None:
        import torch

        self._optimizer.state.clear()
        for name, values in state.items():
            raw = self._raw[name]
            self._optimizer.state[raw] = {
                _TORCH_NAMES[what]: torch.tensor(
                    array, dtype=torch.float32 if what == NUM_UPDATES else raw.dtype, device=raw.device
                )
                for what, array in values.items()
            }


def _make(rule: Rule, groups: list[dict[str, Any]]) -> Any:
    import torch

    if isinstance(rule, Sgd):
        return torch.optim.SGD(groups, lr=0.0, momentum=rule.momentum, nesterov=rule.nesterov, fused=True)
    assert isinstance(rule, Adam)
    make = torch.optim.AdamW if rule.decoupled else torch.optim.Adam
    return make(groups, betas=rule.betas, eps=rule.eps, fused=True)
