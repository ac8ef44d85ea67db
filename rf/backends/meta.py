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
    """Stands for the data of every meta tensor; each meta backend has a subclass, and one object of it."""

    __slots__ = ()

    backend: str
    """Name of the backend."""

    def __repr__(self) -> str:
        return f"<no data: backend {self.backend}>"


class MetaBackend(Backend):
    """See the module docstring.

    :param stands_for: the backend whose place it takes, without loading it; "" for any
    :param has_gradients: as that one
    """

    computes = False
    host_only = True

    def __init__(self, stands_for: str, has_gradients: bool) -> None:
        super().__init__()
        self.name = f"meta:{stands_for}" if stands_for else "meta"
        self.stands_for = stands_for or None
        self.has_gradients = has_gradients
        # A type of its own, as backends are known by the types of their arrays.
        cls = type("MetaArray", (MetaArray,), {"__slots__": (), "backend": self.name})
        self.raw_types = (cls,)
        self.no_value = cls()

    def shape_of(self, x: Raw) -> Shape:
        _no_data("the raw shape")

    def dtype_of(self, x: Raw) -> str:
        _no_data("the raw dtype (give dtype= explicitly)")

    def device_of(self, x: Raw) -> str | None:
        return None

    def to_numpy(self, x: Raw) -> numpy.ndarray:
        _no_data("a value")

    def from_numpy(self, x: numpy.ndarray, dtype: str, device: str | None = None) -> Raw:
        return self.no_value

    def full(self, shape: Shape, value: Any, dtype: str, device: str | None) -> Raw:
        return self.no_value

    def gradient(self, y: Raw, xs: Any) -> list[Raw | None]:
        return [self.no_value for _ in xs] if self.has_gradients else super().gradient(y, xs)

    def bind_kernel(self, name: str) -> Any:
        return self._nothing

    def _nothing(self, *_args: Any) -> Raw:
        return self.no_value


def _no_data(what: str) -> NoReturn:
    raise BackendError(
        f"the meta backend computes nothing, so {what} does not exist. Control flow and lengths must not depend on "
        "tensor values there; "
        "run this part on a real backend (rf.use_backend('torch'))."
    )


def create(stands_for: str = "", has_gradients: bool = True) -> Backend:
    """A meta backend; see `MetaBackend`."""
    return MetaBackend(stands_for, has_gradients)
