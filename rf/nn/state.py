"""State: what a recurrent module hands from one step to the next."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from rf._core import DimBase, Tensor
from rf._errors import RfError

__all__ = ["State"]


class State(dict[str, Any]):
    """A dict whose entries are attributes too: Tensors, Dims, None, and nested states.

    `type(state)(pairs)` makes an equal state, which is how nested structures are mapped; a subclass with named fields
    takes `*args` first and passes them on.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """
        :param args: one mapping, one iterable of pairs, or one other object, which is stored as "state".
        :param kwargs: entries.
        """
        if len(args) > 1:
            raise TypeError(f"{type(self).__name__}: takes one mapping or iterable of pairs, got {len(args)} arguments")
        if args and (isinstance(args[0], Tensor) or not isinstance(args[0], Iterable)):
            args = ({"state": args[0]},)
        super().__init__(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            have = ", ".join(map(str, self)) or "none"
            raise AttributeError(f"{type(self).__name__} has no entry {name!r}; it has: {have}") from None

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value

    def __delattr__(self, name: str) -> None:
        if name not in self:
            raise AttributeError(name)
        del self[name]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in self.items())})"

    def flatten_tensors(self) -> list[Tensor]:
        """All Tensors in here, each once. Raises RfError when there is a Dim."""
        return self.cls_flatten_tensors(self)

    @classmethod
    def cls_flatten_tensors(cls, obj: Any) -> list[Tensor]:
        """All Tensors in nested dicts, lists and tuples, each once. Raises RfError when there is a Dim."""
        found: dict[int, Tensor] = {}
        stack = [obj]
        while stack:
            x = stack.pop()
            if isinstance(x, Tensor):
                found.setdefault(id(x), x)
            elif isinstance(x, DimBase):
                raise RfError(f"flatten_tensors: the state has a Dim in it, {x!r}, which is no Tensor")
            elif isinstance(x, Mapping):
                stack.extend(reversed(list(x.values())))
            elif isinstance(x, (list, tuple)):
                stack.extend(reversed(x))
            elif x is not None:
                raise RfError(
                    f"flatten_tensors: expected Tensors in nested dicts, lists or tuples, got {type(x).__name__}"
                )
        return list(found.values())
