"""Module: an object whose attributes are parameters and other modules.

Nothing is registered. What belongs to a module is found by walking its attributes, and the name of a parameter is its
attribute path ("layers.0.ff.weight"). Calling a module is an ordinary method call.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator
from typing import TYPE_CHECKING, Any

from rf._errors import RfError
from rf.nn.parameter import Parameter
from rf.nn.state import State

if TYPE_CHECKING:
    from rf._dim import Dim
    from rf.nn.hooks import RemovableHandle

__all__ = ["Functional", "Module"]


class Module:
    """Base class of everything that has parameters.

    Assign parameters and modules to attributes; define `__call__`. Lists, tuples and dicts in attributes are not
    searched: use `ModuleList` and `ParameterList`. `copy.deepcopy` gives an independent module of the same dims whose
    parameters are drawn anew.
    """

    def __init__(self) -> None:
        """Does nothing; subclasses need not call it."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What the module computes. Raises NotImplementedError unless a subclass defines it."""
        raise NotImplementedError(f"{type(self).__name__} cannot be called")

    def default_initial_state(self, *, batch_dims: Collection[Dim]) -> State | None:
        """The state before the first step: the states of the recurrent modules in here, by attribute name; None when
        there are none.

        :param batch_dims: dims of the state besides its own.
        """
        state = State()
        for name, module in self.named_children():
            child = module.default_initial_state(batch_dims=batch_dims)
            if child:
                state[name] = child
        return state or None

    def get_default_name(self) -> str:
        """The class name in snake case."""
        name = type(self).__name__.lstrip("_")
        return "".join(
            "_" + c.lower() if c.isupper() and i and not name[i - 1].isupper() else c.lower()
            for i, c in enumerate(name)
        )

    # -- what belongs to it

    def get_deep(self, target: str) -> Any:
        """The attribute at a dotted path; "" is the module itself. Raises RfError when a part of the path is not
        there.
        """
        obj: Any = self
        for i, name in enumerate(target.split(".") if target else ()):
            if not isinstance(obj, Module) or not hasattr(obj, name):
                where = ".".join(target.split(".")[:i]) or "the module"
                raise RfError(f"get_deep({target!r}): {where} is a {type(obj).__name__} without an attribute {name!r}")
            obj = getattr(obj, name)
        return obj

    def set_deep(self, target: str, value: Any) -> None:
        """Set the attribute at a dotted path. Raises RfError when what should hold it is not there."""
        path, _, name = target.rpartition(".")
        setattr(self.get_deep(path), name, value)

    def children(self) -> Iterator[Module]:
        """The modules in attributes, each once."""
        return self.modules(recurse=False, include_self=False)

    def named_children(self) -> Iterator[tuple[str, Module]]:
        """(attribute, module) for each of `children`."""
        return self.named_modules(recurse=False, include_self=False)

    def modules(self, *, recurse: bool = True, include_self: bool = True) -> Iterator[Module]:
        """The modules of `named_modules`."""
        for _, module in self.named_modules(recurse=recurse, include_self=include_self):
            yield module

    def named_modules(
        self, *, recurse: bool = True, include_self: bool = True, memo: set[int] | None = None, prefix: str = ""
    ) -> Iterator[tuple[str, Module]]:
        """(attribute path, module), breadth first in the order of assignment. A module under several names is listed
        under the first.

        :param recurse: go into children.
        :param include_self: begin with self, under the name `prefix`.
        :param memo: ids of modules to leave out; those listed are added.
        :param prefix: of all names.
        """
        memo = set() if memo is None else memo
        memo.add(id(self))
        queue: deque[tuple[str, Module]] = deque([(prefix, self)])
        while queue:
            path, module = queue.popleft()
            if module is not self or include_self:
                yield path, module
            if module is not self and not recurse:
                continue
            for name, value in vars(module).items():
                if isinstance(value, Module) and id(value) not in memo:
                    memo.add(id(value))
                    queue.append((f"{path}.{name}" if path else name, value))

    def named_parameters(self, *, recurse: bool = True) -> Iterator[tuple[str, Parameter]]:
        """(attribute path, parameter) in the order of `named_modules`. A tied parameter is listed once, under its first
        name.
        """
        seen: set[int] = set()
        for path, module in self.named_modules() if recurse else [("", self)]:
            for name, value in vars(module).items():
                if isinstance(value, Parameter) and id(value) not in seen:
                    seen.add(id(value))
                    yield f"{path}.{name}" if path else name, value

    def parameters(self, *, recurse: bool = True) -> Iterator[Parameter]:
        """The parameters of `named_parameters`."""
        for _, parameter in self.named_parameters(recurse=recurse):
            yield parameter

    @property
    def has_parameters(self) -> bool:
        """Whether there is any parameter in here."""
        return next(self.parameters(), None) is not None

    def apply(self, fn: Callable[[Module], Any]) -> Module:
        """Call `fn` on all children (their `apply`), then on self; returns self."""
        for child in self.children():
            child.apply(fn)
        fn(self)
        return self

    def to(self, *, device: str | None = None, dtype: str | None = None) -> None:
        """Move all parameters to a device, and convert those of a float dtype to `dtype`, in place."""
        for parameter in self.parameters():
            parameter.to(device=device, dtype=dtype)

    def register_forward_hook(self, hook: Callable[..., Any], *, prepend: bool = False) -> RemovableHandle:
        """Have every call of this module return `hook(module, args, kwargs, result)`.

        See `rf.hooks.setup_post_hook_on_method`. Modules without hooks are not affected.
        """
        from rf.nn.hooks import setup_post_hook_on_method

        return setup_post_hook_on_method(self, "__call__", hook, prepend=prepend)


class Functional(Module):
    """A function as a module, for lists of modules."""

    def __init__(self, func: Callable[..., Any], *, attribs: dict[str, Any] | None = None) -> None:
        """
        :param func: what a call does.
        :param attribs: attributes to set, such as `out_dim`.
        """
        super().__init__()
        self.func = func
        for name, value in (attribs or {}).items():
            setattr(self, name, value)

    def __repr__(self) -> str:
        return f"Functional({getattr(self.func, '__qualname__', self.func)})"

    def get_default_name(self) -> str:
        """The name of the function."""
        return getattr(self.func, "__qualname__", type(self.func).__name__).rpartition(".")[2]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """`func(*args, **kwargs)`."""
        return self.func(*args, **kwargs)
