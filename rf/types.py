"""Names for type hints in code that is written on top of rf."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy

from rf._core import Tensor

if TYPE_CHECKING:
    from rf.nn.module import Module

__all__ = ["GetModelFunc", "ItemKeyType", "RawTensorTypes", "StepFunc"]

RawTensorTypes = int | float | complex | numpy.number | numpy.ndarray | bool | str
"""Numbers and arrays of Python and NumPy that stand for a tensor."""

ItemKeyType = RawTensorTypes | Tensor | slice | Sequence[RawTensorTypes | Tensor | slice]
"""Keys of `rf.Parameter.assign_key`."""


class GetModelFunc(Protocol):
    """Makes the model of a training run."""

    def __call__(self, *, epoch: int, step: int) -> Module: ...


class StepFunc(Protocol):
    """One step of training or inference: runs the model and marks losses or outputs in the run context."""

    def __call__(self, *, model: Module, extern_data: Any) -> None: ...
