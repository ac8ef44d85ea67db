"""The backend that computes nothing: tensors have dims, a dtype and no data, so a step costs what the frontend itself
costs.

Sequence lengths stay real: they belong to dims, live on the host, and size tensors are NumPy tensors, which may be
mixed with meta tensors in any op. What would need a value (a Python number, a branch, a length computed from data)
raises BackendError.
"""

from __future__ import annotations

from typing import Any, NoReturn

import numpy

from rf._errors import BackendError
from rf.backend import Backend, Raw, Shape


class MetaArray:
    """Stands for the data of every meta tensor; there is one object of it."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "<no data: backend meta>"


NO_VALUE = MetaArray()


class MetaBackend(Backend):
    """See the module docstring."""

    name = "meta"
    computes = False
    no_value = NO_VALUE
    has_gradients = True
    host_only = True
    raw_types = (MetaArray,)

    def shape_of(self, x: Raw) -> Shape:
        _no_data("the raw shape")

    def dtype_of(self, x: Raw) -> str:
        _no_data("the raw dtype (give dtype= explicitly)")

    def device_of(self, x: Raw) -> str | None:
        return None

    def to_numpy(self, x: Raw) -> numpy.ndarray:
        _no_data("a value")

    def from_numpy(self, x: numpy.ndarray, dtype: str, device: str | None = None) -> Raw:
        return NO_VALUE

    def full(self, shape: Shape, value: Any, dtype: str, device: str | None) -> Raw:
        return NO_VALUE

    def gradient(self, y: Raw, xs: Any) -> list[Raw | None]:
        return [NO_VALUE for _ in xs]

    def bind_kernel(self, name: str) -> Any:
        return _nothing


def _nothing(*_args: Any) -> Raw:
    return NO_VALUE


def _no_data(what: str) -> NoReturn:
    raise BackendError(
        f"the meta backend computes nothing, so {what} does not exist. Control flow and lengths must not depend on "
        "tensor values there; "
        "run this part on a real backend (rf.use_backend('torch'))."
    )


# Raw kernels exist in name only: nothing on this backend calls them.
MetaBackend.__abstractmethods__ = frozenset()


def create() -> Backend:
    """The meta backend."""
    return MetaBackend()  # type: ignore[abstract]
