"""Lists of modules and of parameters. The entries are attributes "0", "1", ..., so paths read "layers.0.weight"."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Generic, TypeVar, overload

from rf._core import Tensor
from rf.nn.module import Functional, Module
from rf.nn.parameter import Parameter

__all__ = ["ModuleList", "ParameterList", "Sequential", "sequential"]

M = TypeVar("M", bound=Module)


class _List(Module):
    """Entries under string keys, in order. Keys that are numbers are always 0, 1, ... in that order."""

    def _entries(self) -> dict[str, Any]:
        return {k: v for k, v in vars(self).items() if isinstance(v, (Module, Parameter))}

    def _set_entries(self, entries: Iterable[tuple[str, Any]]) -> None:
        for key in self._entries():
            delattr(self, key)
        number = 0
        for key, value in entries:
            if key.isdigit():
                key, number = str(number), number + 1
            setattr(self, key, self._check(value))

    def _check(self, value: Any) -> Any:
        raise NotImplementedError

    def _init(self, args: tuple[Any, ...]) -> None:
        entries: Any = args
        if len(args) == 1 and not isinstance(args[0], Parameter):
            if isinstance(args[0], _List):
                entries = args[0]._entries()
            elif isinstance(args[0], (Mapping, Iterable)) and not isinstance(args[0], Module):
                entries = args[0]
        if isinstance(entries, Mapping):
            self._set_entries([(str(k), v) for k, v in entries.items()])
        else:
            self._set_entries([(str(i), v) for i, v in enumerate(entries)])

    def _extend(self, values: Iterable[Any]) -> None:
        self._set_entries([*self._entries().items(), *(("0", v) for v in values)])

    def __len__(self) -> int:
        return len(self._entries())

    def _key(self, key: int | str) -> str:
        if isinstance(key, str):
            return key
        keys = list(self._entries())
        if not -len(keys) <= key < len(keys):
            raise IndexError(f"{type(self).__name__} has {len(keys)} entries, there is no entry {key}")
        return keys[key]

    def _get(self, key: int | slice | str) -> Any:
        if isinstance(key, slice):
            out = type(self)()
            out._set_entries(list(self._entries().items())[key])
            return out
        return getattr(self, self._key(key))

    def __setitem__(self, key: int | slice | str, value: Any) -> None:
        if isinstance(key, slice):
            entries: list[tuple[str, Any]] = list(self._entries().items())
            entries[key] = [("0", v) for v in value]
            self._set_entries(entries)
        else:
            setattr(self, self._key(key), self._check(value))

    def __delitem__(self, key: int | slice | str) -> None:
        entries = list(self._entries().items())
        if isinstance(key, slice):
            del entries[key]
        else:
            name = self._key(key)
            entries = [(k, v) for k, v in entries if k != name]
        self._set_entries(entries)


class ModuleList(_List, Generic[M]):
    """A list of modules. `len`, iteration, and access by int, slice or name work as for a list."""

    def __init__(self, *modules: M | Callable[..., Any] | Iterable[M] | Mapping[str, M]) -> None:
        """
        :param modules: modules; or one iterable, dict or other list of them. A function becomes a `Functional`.
        """
        super().__init__()
        self._init(modules)

    def _check(self, value: Any) -> Any:
        if isinstance(value, Module):
            return value
        if callable(value):
            return Functional(value)
        raise TypeError(f"{type(self).__name__}: expected a module or a function, got {value!r}")

    def append(self, module: M | Callable[..., Any]) -> ModuleList[M]:
        """Add one at the end; returns self."""
        self._extend([module])
        return self

    def extend(self, modules: Iterable[M]) -> ModuleList[M]:
        """Add several at the end; returns self."""
        self._extend(modules)
        return self

    def items(self) -> Iterable[tuple[str, M]]:
        """(name, module) pairs."""
        return self._entries().items()

    def __iter__(self) -> Iterator[M]:
        return iter(self._entries().values())

    @overload
    def __getitem__(self, key: int | str) -> M: ...
    @overload
    def __getitem__(self, key: slice) -> ModuleList[M]: ...
    def __getitem__(self, key: int | slice | str) -> Any:
        return self._get(key)


class Sequential(ModuleList[M]):
    """Modules that are called one after the other."""

    def __call__(self, inp: Any, *, collected_outputs: dict[str, Tensor] | None = None, **kwargs: Any) -> Any:
        """The last of `x = module(x, **kwargs)`.

        :param inp: input of the first module.
        :param collected_outputs: gets every output, by the name of its module.
        :param kwargs: for every module.
        """
        for name, module in self.items():
            inp = module(inp, **kwargs)
            if collected_outputs is not None:
                collected_outputs[name] = inp
        return inp


def sequential(source: Any, *modules: Any) -> Any:
    """`Sequential(*modules)(source)`."""
    return Sequential(*modules)(source)


class ParameterList(_List):
    """A list of parameters; see `ModuleList`."""

    def __init__(self, *parameters: Parameter | Iterable[Parameter] | Mapping[str, Parameter]) -> None:
        """
        :param parameters: parameters; or one iterable, dict or other list of them.
        """
        super().__init__()
        self._init(parameters)

    def _check(self, value: Any) -> Any:
        if not isinstance(value, Parameter):
            raise TypeError(f"ParameterList: expected a Parameter, got {value!r}")
        return value

    def append(self, parameter: Parameter) -> ParameterList:
        """Add one at the end; returns self."""
        self._extend([parameter])
        return self

    def extend(self, parameters: Iterable[Parameter]) -> ParameterList:
        """Add several at the end; returns self."""
        self._extend(parameters)
        return self

    def __iter__(self) -> Iterator[Parameter]:
        return iter(self._entries().values())

    @overload
    def __getitem__(self, key: int | str) -> Parameter: ...
    @overload
    def __getitem__(self, key: slice) -> ParameterList: ...
    def __getitem__(self, key: int | slice | str) -> Any:
        return self._get(key)
