"""What the hand-written code of a case is made of, by the backend that rf runs on: torch.nn on torch, Keras on
TensorFlow.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from rf import optim
from rf._errors import BackendMissingError, UserError
from rf.backend import Backend
from rf.bench.case import Case, Reference, RfModel

__all__ = ["LEARNING_RATE", "Peer", "peer_of"]

LEARNING_RATE = 1e-5
"""Small: what is timed shall not change."""


class Peer(abc.ABC):
    """A framework that a case is written in by hand."""

    name: str
    optimizer: str
    """That of a training step, in words."""

    @abc.abstractmethod
    def factory(self, case: Case) -> Callable[[Any, float], Reference] | None:
        """(size, dropout) -> the side of this framework; None for a case that it has no code for."""

    def targets(self, case: Case) -> Mapping[tuple[str, str], float]:
        """The ratios that the project aims at, by (step, size)."""
        return {}

    @abc.abstractmethod
    def load(self, reference: Reference, weights: Mapping[str, Any]) -> tuple[list[str], list[str]]:
        """Copy weights into the model, by name.

        :returns: names of parameters of the model that got none; names that the model does not know.
        """

    def set_training(self, reference: Reference, training: bool) -> None:
        """What the next calls are; nothing to do where each call says it."""
        return

    @abc.abstractmethod
    def loss_and_gradients(self, reference: Reference, names: Iterable[str]) -> tuple[float, dict[str, Any]]:
        """Of one training step, without an update.

        :param names: of parameters.
        :returns: loss; a NumPy array, or None, for each parameter that is trained.
        """

    @abc.abstractmethod
    def train_step(self, reference: Reference) -> Callable[[], object]:
        """Forward, backward and an update."""

    @abc.abstractmethod
    def train_step_of_rf(self, ours: RfModel) -> Callable[[], object]:
        """The same in rf."""


def peer_of(backend: Backend) -> Peer:
    """Raises UserError for a backend without one, and when Keras is missing or runs on something else."""
    if backend.name == "torch":
        return _Torch()
    if backend.name == "tensorflow":
        return _Keras()
    raise UserError(
        f"there are no models of {backend.name} to compare with; use --backend torch (or tensorflow, with Keras)"
    )


class _Torch(Peer):
    name = "torch"
    optimizer = "fused AdamW"

    def factory(self, case: Case) -> Callable[[Any, float], Reference]:
        return case.torch

    def targets(self, case: Case) -> Mapping[tuple[str, str], float]:
        return case.targets

    def load(self, reference: Reference, weights: Mapping[str, Any]) -> tuple[list[str], list[str]]:
        result = reference.model.load_state_dict(weights, strict=False)
        trained = {name for name, p in reference.model.named_parameters() if p.requires_grad}
        return sorted(trained.intersection(result.missing_keys)), sorted(result.unexpected_keys)

    def set_training(self, reference: Reference, training: bool) -> None:
        reference.model.train(training)

    def loss_and_gradients(self, reference: Reference, names: Iterable[str]) -> tuple[float, dict[str, Any]]:
        assert reference.loss is not None
        loss = reference.loss()
        loss.backward()
        trained = {name: p.grad for name, p in reference.model.named_parameters() if p.requires_grad}
        return loss.item(), {name: None if grad is None else grad.numpy() for name, grad in trained.items()}

    def train_step(self, reference: Reference) -> Callable[[], object]:
        assert reference.loss is not None
        return self._step(reference.loss, [p for p in reference.model.parameters() if p.requires_grad])

    def train_step_of_rf(self, ours: RfModel) -> Callable[[], object]:
        assert ours.loss is not None
        loss = ours.loss
        return self._step(lambda: loss().raw_tensor, [p.raw_tensor for p in ours.model.parameters() if p.trainable])

    @staticmethod
    def _step(loss: Callable[[], Any], parameters: Iterable[Any]) -> Callable[[], None]:
        """The same for both sides but for the loss, which is an array of torch."""
        import torch

        optimizer = torch.optim.AdamW(parameters, lr=LEARNING_RATE, fused=True)

        def step() -> None:
            optimizer.zero_grad()
            loss().backward()
            optimizer.step()

        return step


class _Keras(Peer):
    name = "Keras"
    optimizer = "AdamW of each side"

    def __init__(self) -> None:
        try:
            import keras
        except ImportError as exc:
            raise BackendMissingError(
                f"models on tensorflow are compared with Keras, which cannot be imported ({exc}); pip install keras"
            ) from exc
        if keras.backend.backend() != "tensorflow":
            raise UserError(f"Keras runs on {keras.backend.backend()} here; set KERAS_BACKEND=tensorflow")

    def factory(self, case: Case) -> Callable[[Any, float], Reference] | None:
        return case.keras

    def targets(self, case: Case) -> Mapping[tuple[str, str], float]:
        return case.keras_targets

    def load(self, reference: Reference, weights: Mapping[str, Any]) -> tuple[list[str], list[str]]:
        given, unknown = set(), []
        for name, value in weights.items():
            variable = _variable(reference.model, name)
            if variable is None:
                unknown.append(name)
            else:
                variable.assign(value)
                given.add(id(variable))
        return sorted(v.path for v in reference.model.trainable_variables if id(v) not in given), sorted(unknown)

    def loss_and_gradients(self, reference: Reference, names: Iterable[str]) -> tuple[float, dict[str, Any]]:
        loss, gradients = _recorded(reference)
        known: dict[int, str] = {id(_variable(reference.model, name)): name for name in names}
        by_name: dict[str, Any] = {
            known.get(id(v)) or str(v.path): None if g is None else g.numpy()
            for v, g in zip(reference.model.trainable_variables, gradients)
        }
        return float(loss), by_name

    def train_step(self, reference: Reference) -> Callable[[], object]:
        import keras

        optimizer = keras.optimizers.AdamW(LEARNING_RATE)
        variables = reference.model.trainable_variables
        optimizer.build(variables)
        return lambda: optimizer.apply(_recorded(reference)[1], variables)

    def train_step_of_rf(self, ours: RfModel) -> Callable[[], object]:
        assert ours.loss is not None
        loss, optimizer = ours.loss, optim.adamw(ours.model.named_parameters())
        return lambda: optimizer.step(loss(), learning_rate=LEARNING_RATE)


def _variable(model: Any, name: str) -> Any:
    """The variable at an attribute path, in which numbers are indices; None when there is none."""
    import keras

    found: Any = model
    for key in name.split("."):
        found = found[int(key)] if key.isdigit() else getattr(found, key, None)
    return found if isinstance(found, keras.Variable) else None


def _recorded(reference: Reference) -> tuple[Any, list[Any]]:
    """Loss and gradients."""
    import tensorflow as tf

    assert reference.loss is not None
    with tf.GradientTape() as tape:
        loss = reference.loss()
    return loss, tape.gradient(loss, reference.model.trainable_variables)
