"""The mark of kernels that every backend has to bring along. See `rf.backend`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast, overload

from rf._errors import KernelMissingError

F = TypeVar("F", bound=Callable[..., Any])


class Primitive:
    """Stands in the contract for a kernel without a default. A backend lacks it until it overrides the name: looking
    the kernel up there raises KernelMissingError."""

    def __init__(self, declaration: Callable[..., Any] | None) -> None:
        self.__doc__ = declaration.__doc__ if declaration is not None else None
        self.name = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, backend: Any, owner: type | None = None) -> Any:
        if backend is None:
            return self
        raise KernelMissingError(backend.name, self.name)


@overload
def primitive(declaration: F) -> F: ...
@overload
def primitive() -> Any: ...
def primitive(declaration: Any = None) -> Any:
    """Decorator of a method that declares a kernel without a default; or, called, such a declaration by itself."""
    return cast(Any, Primitive(declaration))
