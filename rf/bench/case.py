"""What a case of the benchmark is: the same model twice, and the data that both get."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy

import rf
from rf.backend import Backend

__all__ = ["SIZES", "Case", "Data", "Reference", "RfModel"]

SIZES = ("tiny", "realistic")


@dataclass(frozen=True)
class RfModel:
    """The side of rf. Each call starts from raw arrays, and fills the dims of the batch anew.

    :param model: the modules
    :param dims: order of the axes of what the hand-written code returns
    :param forward: the result, outside training
    :param loss: of a training step (no dims); None for what is no training
    """

    model: rf.Module
    dims: tuple[rf.Dim, ...]
    forward: Callable[[], rf.Tensor]
    loss: Callable[[], rf.Tensor] | None = None


@dataclass(frozen=True)
class Reference:
    """The side that is written by hand, in torch.nn or Keras.

    :param model: a torch.nn.Module or a keras.Model
    :param from_rf: weights of rf, or their gradients, by name -> those of `model`, by name
    :param forward: the result, of the same shape
    :param loss: as of `RfModel`
    :param others: further ways to compute the same
    """

    model: Any
    from_rf: Callable[[Mapping[str, Any]], dict[str, Any]]
    forward: Callable[[], Any]
    loss: Callable[[], Any] | None = None
    others: Mapping[str, Reference] = field(default_factory=dict)


@dataclass(frozen=True)
class Case:
    """One model.

    :param name: unique
    :param what: the model in words
    :param sizes: the arguments of `rf`, `torch` and `keras`, by entries of `SIZES`
    :param rf: (backend, size, dropout) -> the side of rf
    :param torch: (size, dropout) -> the side of torch
    :param targets: the ratios to torch that the project aims at, by (step, size)
    :param steps: what is measured of it: "forward", outside training and without gradients; "train": forward in
        training, loss, backward, optimizer
    :param dropout: probability, in training; on both sides every entry is drawn by itself
    :param keras: (size, dropout) -> the side of Keras, for rf on TensorFlow; None for a case without
    :param keras_targets: the ratios to Keras that the project aims at
    """

    name: str
    what: str
    sizes: Mapping[str, Any]
    rf: Callable[[Backend, Any, float], RfModel]
    torch: Callable[[Any, float], Reference]
    targets: Mapping[tuple[str, str], float]
    steps: tuple[str, ...] = ("forward", "train")
    dropout: float = 0.1
    keras: Callable[[Any, float], Reference] | None = None
    keras_targets: Mapping[tuple[str, str], float] = field(default_factory=dict)


class Data:
    """Random arrays, the same whenever they are made in the same order."""

    def __init__(self) -> None:
        self._random = numpy.random.default_rng(1)

    def floats(self, *shape: int, lengths: numpy.ndarray | None = None) -> numpy.ndarray:
        """Normal float32; 0 from the lengths (batch,) on along the second axis."""
        out = self._random.standard_normal(shape).astype("float32")
        if lengths is not None:
            out[numpy.arange(shape[1]) >= lengths[:, None]] = 0.0
        return out

    def labels(self, num_labels: int, *shape: int) -> numpy.ndarray:
        """int32, each of 0 .. num_labels - 1 as often as any other."""
        return self._random.integers(0, num_labels, shape).astype("int32")

    @staticmethod
    def lengths(batch: int, time: int) -> numpy.ndarray:
        """From `time` down to two thirds of it: int32 (batch,)."""
        return numpy.linspace(time, max(1, time * 2 // 3), batch).astype("int32")
