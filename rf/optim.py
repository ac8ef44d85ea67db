"""Optimizers: what changes the parameters after the gradients are known.

:class:`Optimizer` is what a training loop sees of one. Its state is NumPy arrays by parameter name, so a checkpoint
does not depend on the backend.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from rf._core import Tensor
from rf._errors import BackendError, UserError
from rf.backend import get_backend

if TYPE_CHECKING:
    from rf.nn.parameter import Parameter

__all__ = ["Optimizer", "adamw", "warmup_learning_rate"]


class Optimizer(abc.ABC):
    """Changes trainable parameters in place, so that a loss becomes smaller."""

    @abc.abstractmethod
    def step(self, loss: Tensor, *, learning_rate: float) -> float:
        """Differentiates the loss and updates the parameters once.

        An update with a gradient that is not finite is left out: parameters and state stay as they are.

        Args:
            loss: no dims, float; what the parameters of this optimizer contribute to it is followed back.
            learning_rate: of this step.

        Returns:
            the norm of the gradient before clipping, over all parameters together; inf or NaN when nothing was updated.
        """

    @abc.abstractmethod
    def state(self) -> dict[str, np.ndarray]:
        """All that the next steps depend on, besides the parameters: arrays named ``PARAMETER/WHAT``. Real copies."""

    @abc.abstractmethod
    def load_state(self, state: Mapping[str, np.ndarray]) -> None:
        """Puts back what :meth:`state` gave, also in another process.

        Raises:
            UserError: if names or shapes are those of other parameters.
        """


def adamw(
    parameters: Iterable[tuple[str, Parameter]],
    *,
    betas: tuple[float, float] = (0.9, 0.98),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    max_gradient_norm: float | None = None,
) -> Optimizer:
    """AdamW: Adam with decoupled weight decay.

    With gradient g, first and second moment m, v and step t of a parameter p:
    m = b1 m + (1 - b1) g, v = b2 v + (1 - b2) g^2,
    p = p - rate * decay * p - rate * m / (1 - b1^t) / (sqrt(v / (1 - b2^t)) + eps).

    Args:
        parameters: as ``model.named_parameters()`` gives them; those that are not trainable are left out. All on the
            same backend, one that has gradients.
        betas, eps: b1, b2 and eps.
        weight_decay: decay of the parameters with at least two dims; biases and scales have none. The ``weight_decay``
            of a parameter, when not 0, takes its place.
        max_gradient_norm: where the norm of the gradient, over all parameters together, exceeds it, the gradient is
            scaled down to it.

    Raises:
        BackendError: if the backend has no gradients, or has no optimizer here yet.

    Source: Loshchilov and Hutter, 2019, arXiv:1711.05101; numerics of torch.optim.AdamW. Clipping: Pascanu et al.,
    2013, arXiv:1211.5063.
    """
    trainable = [(name, p) for name, p in parameters if p.trainable]
    if not trainable:
        raise UserError("the model has no trainable parameters")
    backends = {p.backend.name for _, p in trainable if p.backend is not None}
    if backends != {"torch"}:
        raise BackendError(
            f"AdamW: the parameters are on backend {', '.join(sorted(backends))}; "
            "training needs the backend torch (--backend torch)"
        )
    return _TorchAdamW(trainable, betas, eps, weight_decay, max_gradient_norm)


class _TorchAdamW(Optimizer):
    def __init__(
        self,
        parameters: list[tuple[str, Parameter]],
        betas: tuple[float, float],
        eps: float,
        weight_decay: float,
        max_gradient_norm: float | None,
    ) -> None:
        import torch

        self._clip = torch.nn.utils.clip_grad_norm_
        self._max_norm = math.inf if max_gradient_norm is None else max_gradient_norm
        self._raw: dict[str, Any] = {name: p.raw_tensor for name, p in parameters}
        by_decay: dict[float, list[Any]] = {}
        for name, p in parameters:
            decay = p.weight_decay or (weight_decay if len(p.dims) > 1 else 0.0)
            by_decay.setdefault(decay, []).append(self._raw[name])
        groups = [{"params": raw, "weight_decay": decay} for decay, raw in by_decay.items()]
        # One kernel call for all parameters instead of ten for each.
        self._optimizer = torch.optim.AdamW(groups, betas=betas, eps=eps, fused=True)

    def step(self, loss: Tensor, *, learning_rate: float) -> float:
        self._optimizer.zero_grad()
        loss.raw_tensor.backward()
        norm = float(self._clip(self._raw.values(), self._max_norm))
        if math.isfinite(norm):
            for group in self._optimizer.param_groups:
                group["lr"] = learning_rate
            self._optimizer.step()
        return norm

    def state(self) -> dict[str, np.ndarray]:
        to_numpy = get_backend("torch").to_numpy
        arrays = {}
        for name, raw in self._raw.items():
            # A parameter that has had no gradient so far has no state.
            for what, value in self._optimizer.state.get(raw, {}).items():
                arrays[f"{name}/{_NEUTRAL[what]}"] = to_numpy(value).copy()
        return arrays

    def load_state(self, state: Mapping[str, np.ndarray]) -> None:
        import torch

        new: dict[Any, dict[str, Any]] = {}
        for key, array in state.items():
            name, _, what = key.rpartition("/")
            raw = self._raw.get(name)
            if raw is None or what not in _TORCH or (what != "num_updates" and array.shape != tuple(raw.shape)):
                raise UserError(f"the optimizer state {key} {array.shape} fits no parameter of the model")
            value = torch.tensor(array, dtype=torch.float32 if what == "num_updates" else raw.dtype, device=raw.device)
            new.setdefault(raw, {})[_TORCH[what]] = value
        if any(len(values) != len(_TORCH) for values in new.values()):
            raise UserError("the optimizer state is incomplete")
        self._optimizer.state.clear()
        self._optimizer.state.update(new)


_TORCH = {"num_updates": "step", "first_moment": "exp_avg", "second_moment": "exp_avg_sq"}
_NEUTRAL = {torch_name: name for name, torch_name in _TORCH.items()}


def warmup_learning_rate(step: int, *, peak: float, warmup_steps: int, decay: bool = True) -> float:
    """Learning rate of step 0, 1, ...: rising in a line to `peak`, then falling as 1 / sqrt(step), or constant.

    rate = peak * min((step + 1) / warmup_steps, sqrt(warmup_steps / (step + 1))), which does not depend on how long the
    training will be, so a resumed one may be longer.

    Args:
        peak: rate at step ``warmup_steps - 1``.
        warmup_steps: 0 for none: then the rate is `peak` throughout.
        decay: whether it falls after the warmup.

    Source: Vaswani et al., 2017, arXiv:1706.03762, section 5.3, with the peak as a parameter.
    """
    if step + 1 < warmup_steps:
        return peak * (step + 1) / warmup_steps
    return peak * math.sqrt(warmup_steps / (step + 1)) if decay and warmup_steps else peak
