"""What a training loop sees of an optimizer."""

from __future__ import annotations

import abc
import math
from collections.abc import Mapping

import numpy as np

from rf._core import Tensor
from rf._errors import UserError
from rf.backend import Backend, Raw
from rf.nn.parameter import Parameter
from rf.optim.rule import NUM_UPDATES, Rule

__all__ = ["Optimizer"]


class Optimizer(abc.ABC):
    """Changes trainable parameters in place, so that a loss becomes smaller. Made by :func:`rf.optim.adamw` and others.

    The parameters may get other values between the steps, but must stay of their dtype and on their device.
    """

    def __init__(self, backend: Backend, rule: Rule, parameters: Mapping[str, Parameter]) -> None:
        self._backend = backend
        self._rule = rule
        self._parameters = dict(parameters)

    def step(self, loss: Tensor, *, learning_rate: float) -> float:
        """Differentiates the loss and updates the parameters once.

        An update with a gradient that is not finite is left out: parameters and state stay as they are. Parameters that
        the loss does not depend on stay as they are, too, without any decay.

        Args:
            loss: no dims, float; what the parameters of this optimizer contribute to it is followed back. It must have
                been computed in a train step (:func:`rf.init_train_step_run_ctx`) that has not been left yet.
            learning_rate: of this step; at least 0.

        Returns:
            the norm of the gradient before clipping, over all parameters together; inf or NaN when nothing was updated.

        Raises:
            UserError: if the loss has dims or is on another backend, or the learning rate is negative or not finite.
            BackendError: if nothing was recorded to differentiate.
        """
        if loss.dims or loss.backend is not self._backend:
            raise UserError(
                f"{self._rule.name}: the loss must be a scalar on backend {self._backend.name}, not {loss!r}"
            )
        if not 0 <= learning_rate < math.inf:
            raise UserError(f"{self._rule.name}: learning rate {learning_rate}: must be finite and at least 0")
        return self._step(loss.raw_tensor, float(learning_rate))

    @abc.abstractmethod
    def _step(self, loss: Raw, learning_rate: float) -> float: ...

    @abc.abstractmethod
    def state(self) -> dict[str, np.ndarray]:
        """All that the next steps depend on, besides the parameters. Real copies.

        Arrays ``PARAMETER/WHAT``, shaped like the parameter: ``first_moment`` and ``second_moment`` of Adam and AdamW,
        ``velocity`` of SGD with momentum; and ``num_updates``, a scalar, of Adam and AdamW. A parameter that has had no
        gradient so far has none of these.
        """

    def load_state(self, state: Mapping[str, np.ndarray]) -> None:
        """Puts back what :meth:`state` gave, also in another process or on another backend.

        Without any arrays, everything begins anew. Adam and AdamW keep the same, so one continues from the other.

        Raises:
            UserError: if it is the state of another optimizer, or names or shapes are those of other parameters.
                Nothing has been changed then.
        """
        names = self._rule.state_names
        new: dict[str, dict[str, np.ndarray]] = {}
        for key, array in state.items():
            name, _, what = key.rpartition("/")
            if what not in names:
                keeps = ", ".join(names) if names else "nothing"
                raise UserError(
                    f"the optimizer state {key} is that of another optimizer: {self._rule.name} keeps {keeps}"
                )
            parameter = self._parameters.get(name)
            if parameter is None or array.shape != (() if what == NUM_UPDATES else parameter_shape(parameter)):
                raise UserError(f"the optimizer state {key} {array.shape} fits no parameter of the model")
            new.setdefault(name, {})[what] = array
        if any(len(values) != len(names) for values in new.values()):
            raise UserError("the optimizer state is incomplete")
        self._load(new)

    @abc.abstractmethod
    def _load(self, state: Mapping[str, Mapping[str, np.ndarray]]) -> None: ...


def parameter_shape(parameter: Parameter) -> tuple[int, ...]:
    """The sizes of its dims."""
    return tuple(dim.get_dim_value() for dim in parameter.dims)
