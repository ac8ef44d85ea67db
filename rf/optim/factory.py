"""How optimizers are made."""

from __future__ import annotations

import math
from collections.abc import Iterable

from rf._errors import BackendError, UserError
from rf.nn.parameter import Parameter
from rf.optim.kernels import KernelOptimizer
from rf.optim.optimizer import Optimizer
from rf.optim.rule import Adam, Rule, Sgd
from rf.optim.torch import TorchOptimizer

__all__ = ["adam", "adamw", "sgd"]


def sgd(
    parameters: Iterable[tuple[str, Parameter]],
    *,
    momentum: float = 0.0,
    nesterov: bool = False,
    weight_decay: float = 0.0,
    max_gradient_norm: float | None = None,
) -> Optimizer:
    """Stochastic gradient descent, with momentum where wanted.

    With gradient g and velocity u of a parameter p: g = g + decay * p, u = momentum * u + g, p = p - rate * u, or with
    Nesterov's momentum p = p - rate * (g + momentum * u).

    Args:
        parameters, weight_decay, max_gradient_norm: see :func:`adamw`; clipping comes before the decay.
        momentum: at least 0, less than 1; 0 keeps no state.
        nesterov: needs momentum.

    Raises:
        UserError, BackendError: see :func:`adamw`.

    Source: Sutskever et al., 2013, "On the importance of initialization and momentum in deep learning"; numerics of
    torch.optim.SGD without dampening, where the rate is not part of the velocity.
    """
    _check_fraction("SGD", "momentum", momentum)
    if nesterov and not momentum:
        raise UserError("SGD: nesterov needs momentum, which is 0")
    return _make(Sgd(momentum, nesterov), parameters, weight_decay, max_gradient_norm)


def adam(
    parameters: Iterable[tuple[str, Parameter]],
    *,
    betas: tuple[float, float] = (0.9, 0.98),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    max_gradient_norm: float | None = None,
) -> Optimizer:
    """Adam. Weight decay is part of the gradient: g = g + decay * p, then as :func:`adamw` without decay.

    Args:
        parameters, betas, eps, weight_decay, max_gradient_norm: see :func:`adamw`; clipping comes before the decay.

    Raises:
        UserError, BackendError: see :func:`adamw`.

    Source: Kingma and Ba, 2015, arXiv:1412.6980; numerics of torch.optim.Adam.
    """
    return _adam(False, parameters, betas, eps, weight_decay, max_gradient_norm)


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

    All of this is computed in the dtype of the parameter, the norm for clipping at least in float32.

    Args:
        parameters: as ``model.named_parameters()`` gives them; those that are not trainable are left out. All on the
            same backend, one that has gradients.
        betas, eps: b1, b2 and eps; the betas at least 0 and less than 1.
        weight_decay: decay of the parameters with at least two dims; biases and scales have none. The ``weight_decay``
            of a parameter, when not 0, takes its place.
        max_gradient_norm: where the norm of the gradient, over all parameters together, exceeds it, the gradient is
            scaled down to it; more than 0.

    Raises:
        UserError: if there is no trainable parameter, or a number is out of its range.
        BackendError: if the backend computes no gradients.

    Source: Loshchilov and Hutter, 2019, arXiv:1711.05101; numerics of torch.optim.AdamW. Clipping: Pascanu et al.,
    2013, arXiv:1211.5063.
    """
    return _adam(True, parameters, betas, eps, weight_decay, max_gradient_norm)


def _adam(
    decoupled: bool,
    parameters: Iterable[tuple[str, Parameter]],
    betas: tuple[float, float],
    eps: float,
    weight_decay: float,
    max_gradient_norm: float | None,
) -> Optimizer:
    rule = Adam((float(betas[0]), float(betas[1])), eps, decoupled)
    for beta in betas:
        _check_fraction(rule.name, "betas", beta)
    _check_not_negative(rule.name, "eps", eps)
    return _make(rule, parameters, weight_decay, max_gradient_norm)


def _make(
    rule: Rule, parameters: Iterable[tuple[str, Parameter]], weight_decay: float, max_gradient_norm: float | None
) -> Optimizer:
    _check_not_negative(rule.name, "weight_decay", weight_decay)
    if max_gradient_norm is not None and not max_gradient_norm > 0:
        raise UserError(f"{rule.name}: max_gradient_norm {max_gradient_norm}: must be more than 0; None is no limit")
    trainable = {name: p for name, p in parameters if p.trainable}
    if not trainable:
        raise UserError("the model has no trainable parameters")
    backends = {p.backend for p in trainable.values()}
    backend = next(iter(backends))
    if len(backends) > 1 or backend is None or not backend.has_gradients or not backend.computes:
        names = sorted(b.name if b is not None else "none" for b in backends)
        raise BackendError(
            f"{rule.name}: the parameters are on backend {', '.join(names)}; "
            "training needs the backend torch or tensorflow (--backend torch)"
        )
    decay = {name: p.weight_decay or (weight_decay if len(p.dims) > 1 else 0.0) for name, p in trainable.items()}
    make = TorchOptimizer if backend.name == "torch" else KernelOptimizer
    return make(backend, rule, trainable, decay, math.inf if max_gradient_norm is None else max_gradient_norm)


def _check_fraction(optimizer: str, name: str, value: float) -> None:
    if not 0 <= value < 1:
        raise UserError(f"{optimizer}: {name} {value}: must be at least 0 and less than 1")


def _check_not_negative(optimizer: str, name: str, value: float) -> None:
    if not 0 <= value < math.inf:
        raise UserError(f"{optimizer}: {name} {value}: must be finite and at least 0")
