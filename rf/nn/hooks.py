"""Hooks on methods, for those who cannot change the code of a module. Objects without hooks pay nothing for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rf._errors import RfError

__all__ = ["RemovableHandle", "setup_post_hook_on_method"]

_HOOKS = "_rf_post_hooks"
_hooked_classes: dict[tuple[type, str], type] = {}


class RemovableHandle:
    """What takes a hook off again."""

    def __init__(self, method: tuple[Any, str], hooks_dict: dict[int, Callable[..., Any]]) -> None:
        """
        :param method: (object, name of the method).
        :param hooks_dict: the hooks of that method, by number; the handle stands for the entry `id`, which is added
            next.
        """
        self._obj, self._attr = method
        self._hooks = hooks_dict
        self.id = max(hooks_dict, default=-1) + 1

    def remove(self) -> None:
        """Take the hook off; no error when it is off already. With the last hook the object gets its class back."""
        if self._hooks.pop(self.id, None) is None or self._hooks:
            return
        hooks = vars(self._obj)[_HOOKS]
        hooks.pop(self._attr, None)
        if not hooks:
            cls = type(self._obj)
            while "_rf_hooked" in vars(cls):
                cls = cls.__bases__[0]
            del vars(self._obj)[_HOOKS]
            self._obj.__class__ = cls


def setup_post_hook_on_method(
    obj: Any, attr: str, hook: Callable[..., Any], *, prepend: bool = False
) -> RemovableHandle:
    """Have every call of the method return `hook(obj, args, kwargs, result)`.

    The object becomes one of a subclass in which this method calls the hooks; other objects of its class stay as they
    are.

    :param obj: any object with a `__dict__`, usually a module.
    :param attr: name of the method; "__call__" for calls of the object.
    :param hook: what it returns is the result for the caller, None included.
    :param prepend: call it before the other hooks.

    Raises RfError when there is no such method.
    """
    if not callable(getattr(type(obj), attr, None)):
        raise RfError(f"hook on {type(obj).__name__}.{attr}: the class has no such method")
    hooks: dict[int, Callable[..., Any]] = vars(obj).setdefault(_HOOKS, {}).setdefault(attr, {})
    handle = RemovableHandle((obj, attr), hooks)
    before = dict(hooks)
    if prepend:
        hooks.clear()
    hooks[handle.id] = hook
    hooks.update(before)
    if not before:
        obj.__class__ = _hooked_class(type(obj), attr)
    return handle


def _hooked_class(cls: type, attr: str) -> type:
    for base in cls.__mro__:
        if vars(base).get("_rf_hooked") == attr:
            return cls
    hooked = _hooked_classes.get((cls, attr))
    if hooked is None:
        method = getattr(cls, attr)

        def with_hooks(self: Any, *args: Any, **kwargs: Any) -> Any:
            result = method(self, *args, **kwargs)
            for hook in list(vars(self)[_HOOKS].get(attr, {}).values()):
                result = hook(self, args, kwargs, result)
            return result

        hooked = type(cls.__name__, (cls,), {attr: with_hooks, "_rf_hooked": attr, "__module__": cls.__module__})
        _hooked_classes[cls, attr] = hooked
    return hooked
