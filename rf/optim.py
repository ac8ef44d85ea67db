"""Optimizers: what changes the parameters after the gradients are known.

:class:`Optimizer` is what a training loop sees of one. Its state is NumPy arrays by parameter name, so a checkpoint
does not depend on the backend.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from rf._core import Tensor
from rf._errors import BackendError, UserError
from rf.backend import Backend, Raw, get_backend

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
        BackendError: if the backend computes no gradients.

    Source: Loshchilov and Hutter, 2019, arXiv:1711.05101; numerics of torch.optim.AdamW. Clipping: Pascanu et al.,
    2013, arXiv:1211.5063.
    """
    trainable = [(name, p) for name, p in parameters if p.trainable]
    if not trainable:
        raise UserError("the model has no trainable parameters")
    backends = {p.backend.name for _, p in trainable if p.backend is not None}
    backend = get_backend(next(iter(backends)))
    if len(backends) > 1 or not backend.has_gradients or not backend.computes:
        raise BackendError(
            f"AdamW: the parameters are on backend {', '.join(sorted(backends))}; "
            "training needs the backend torch or tensorflow (--backend torch)"
        )
    if backend.name == "torch":
        return _TorchAdamW(trainable, betas, eps, weight_decay, max_gradient_norm)
    return _KernelAdamW(backend, trainable, betas, eps, weight_decay, max_gradient_norm)


def _decay_of(parameter: Parameter, default: float) -> float:
    return parameter.weight_decay or (default if len(parameter.dims) > 1 else 0.0)


def _by_parameter(
    state: Mapping[str, np.ndarray], shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, dict[str, np.ndarray]]:
    """The state by parameter, checked: see :meth:`Optimizer.load_state`."""
    new: dict[str, dict[str, np.ndarray]] = {}
    for key, array in state.items():
        name, _, what = key.rpartition("/")
        if name not in shapes or what not in _TORCH or (what != "num_updates" and array.shape != shapes[name]):
            raise UserError(f"the optimizer state {key} {array.shape} fits no parameter of the model")
        new.setdefault(name, {})[what] = array
    if any(len(values) != len(_TORCH) for values in new.values()):
        raise UserError("the optimizer state is incomplete")
    return new


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
            by_decay.setdefault(_decay_of(p, weight_decay), []).append(self._raw[name])
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
        shapes = {name: tuple(raw.shape) for name, raw in self._raw.items()}
        for name, values in _by_parameter(state, shapes).items():
            raw = self._raw[name]
            for what, array in values.items():
                dtype = torch.float32 if what == "num_updates" else raw.dtype
                new.setdefault(raw, {})[_TORCH[what]] = torch.tensor(array, dtype=dtype, device=raw.device)
        self._optimizer.state.clear()
        self._optimizer.state.update(new)


_TORCH = {"num_updates": "step", "first_moment": "exp_avg", "second_moment": "exp_avg_sq"}
_NEUTRAL = {torch_name: name for name, torch_name in _TORCH.items()}


@dataclass
class _Moments:
    """Of some parameters with the same number of updates, one behind the other in flat arrays."""

    parameters: dict[str, Parameter]
    num_updates: int
    first: Raw
    second: Raw
    decay: Raw | None


class _KernelAdamW(Optimizer):
    """In kernels of any backend. Over flat arrays, so that a step is a few calls whatever the number of parameters."""

    def __init__(
        self,
        backend: Backend,
        parameters: list[tuple[str, Parameter]],
        betas: tuple[float, float],
        eps: float,
        weight_decay: float,
        max_gradient_norm: float | None,
    ) -> None:
        self._backend = backend
        self._parameters = dict(parameters)
        self._betas, self._eps = betas, eps
        self._decay = {name: _decay_of(p, weight_decay) for name, p in parameters}
        self._max_norm = math.inf if max_gradient_norm is None else max_gradient_norm
        self._moments: list[_Moments] = []
        self._present: list[str] | None = None

    def step(self, loss: Tensor, *, learning_rate: float) -> float:
        backend = self._backend
        grads = backend.gradient(loss.raw_tensor, [p.raw_tensor for p in self._parameters.values()])
        present = {name: g for name, g in zip(self._parameters, grads) if g is not None}
        with backend.no_grad():
            if list(present) != self._present:
                self._regroup(present)
                self._present = list(present)
            active = [m for m in self._moments if next(iter(m.parameters)) in present]
            flat = [self._flat([present[name] for name in m.parameters]) for m in active]
            norm = math.sqrt(sum(backend.item(backend.sum(backend.square(g), (0,))) for g in flat))
            if math.isfinite(norm):
                factor = self._max_norm / (norm + 1e-6)
                for moments, g in zip(active, flat):
                    self._update(moments, g if factor >= 1 else backend.scale(g, factor), learning_rate)
        return norm

    def _update(self, moments: _Moments, g: Raw, learning_rate: float) -> None:
        b, (b1, b2) = self._backend, self._betas
        moments.num_updates += 1
        bias1, bias2 = (1 - beta**moments.num_updates for beta in self._betas)
        moments.first = b.add(b.scale(moments.first, b1), b.scale(g, 1 - b1))
        moments.second = b.add(b.scale(moments.second, b2), b.scale(b.square(g), 1 - b2))
        root = b.scale(b.sqrt(moments.second), 1 / math.sqrt(bias2))
        root = b.add(root, b.scalar(self._eps, b.dtype_of(root)))
        step = b.truediv(b.scale(moments.first, learning_rate / bias1), root)
        values = self._flat([p.raw_tensor for p in moments.parameters.values()])
        if moments.decay is not None:
            values = b.sub(values, b.mul(values, b.scale(moments.decay, learning_rate)))
        for parameter, raw in zip(moments.parameters.values(), self._parts(b.sub(values, step), moments)):
            stored = b.assign(parameter.raw_tensor, raw)
            if stored is not parameter.raw_tensor:
                parameter.raw_tensor = stored

    def _regroup(self, present: Iterable[str]) -> None:
        """Put the parameters that have gradients now together, and leave those that have none alone."""
        known = dict(self._by_name())
        groups: dict[Any, list[str]] = {}
        for name in self._parameters:
            if name in present or name in known:
                raw = self._parameters[name].raw_tensor
                updates = known[name][0] if name in known else 0
                key = name in present, self._backend.dtype_of(raw), self._backend.device_of(raw), updates
                groups.setdefault(key, []).append(name)
        self._moments = [self._together(names, known) for names in groups.values()]

    def _together(self, names: list[str], known: Mapping[str, tuple[int, Raw, Raw]]) -> _Moments:
        b = self._backend
        raws = {name: self._parameters[name].raw_tensor for name in names}
        dtype, device = b.dtype_of(raws[names[0]]), b.device_of(raws[names[0]])
        zeros = {n: b.full(b.shape_of(raw), 0, dtype, device) for n, raw in raws.items() if n not in known}
        first, second = (self._flat([zeros[n] if n in zeros else known[n][i] for n in names]) for i in (1, 2))
        decay = None
        if any(self._decay[name] for name in names):
            decay = self._flat([b.full(b.shape_of(raw), self._decay[n], dtype, device) for n, raw in raws.items()])
        num_updates = known[names[0]][0] if names[0] in known else 0
        return _Moments({name: self._parameters[name] for name in names}, num_updates, first, second, decay)

    def _flat(self, raws: list[Raw]) -> Raw:
        b = self._backend
        return b.concat(*(b.reshape(x, (math.prod(b.shape_of(x)),)) for x in raws), 0)

    def _parts(self, flat: Raw, moments: _Moments) -> list[Raw]:
        shapes = [self._backend.shape_of(p.raw_tensor) for p in moments.parameters.values()]
        parts = self._backend.split(flat, 0, tuple(map(math.prod, shapes)))
        return [self._backend.reshape(part, shape) for part, shape in zip(parts, shapes)]

    def _by_name(self) -> Iterator[tuple[str, tuple[int, Raw, Raw]]]:
        for m in self._moments:
            first, second = self._parts(m.first, m), self._parts(m.second, m)
            yield from ((name, (m.num_updates, first[i], second[i])) for i, name in enumerate(m.parameters))

    def state(self) -> dict[str, np.ndarray]:
        arrays = {}
        with self._backend.no_grad():
            for name, (num_updates, *moments) in self._by_name():
                arrays[f"{name}/num_updates"] = np.array(num_updates, dtype=np.float32)
                for what, raw in zip(("first_moment", "second_moment"), moments):
                    arrays[f"{name}/{what}"] = np.array(self._backend.to_numpy(raw))
        return arrays

    def load_state(self, state: Mapping[str, np.ndarray]) -> None:
        b = self._backend
        raws = {name: p.raw_tensor for name, p in self._parameters.items()}
        groups: dict[Any, list[str]] = {}
        known: dict[str, tuple[int, Raw, Raw]] = {}
        for name, values in _by_parameter(state, {n: tuple(b.shape_of(raw)) for n, raw in raws.items()}).items():
            dtype, device = b.dtype_of(raws[name]), b.device_of(raws[name])
            first, second = (b.from_numpy(values[what], dtype, device) for what in ("first_moment", "second_moment"))
            known[name] = int(values["num_updates"]), first, second
            groups.setdefault((dtype, device, known[name][0]), []).append(name)
        self._moments = [self._together(names, known) for names in groups.values()]
        self._present = None


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
