"""Modules from descriptions: dicts that can be written to a file, types, or prototypes."""

from __future__ import annotations

import copy
import functools
import importlib
import types
from collections.abc import Callable
from typing import Any

from rf._errors import RfError
from rf.nn.module import Module

__all__ = ["NotSpecified", "build_dict", "build_from_dict", "make_module"]


class NotSpecified:
    """Stands for "this argument was not given" where None means something else."""


def build_from_dict(d: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
    """Make what a dict of `build_dict` describes.

    :param d: `{"class": name, **options}`; the name is "rf.Name" or the full name of a class or function anywhere.
    :param args: for the class, before the options.
    :param kwargs: more options; none may be in `d` too.
    :returns: an object of the class; for a function the function itself, with `functools.partial` if there are options.

    Raises RfError when the dict has no class, the name cannot be found, or options are given twice.
    """
    options = dict(d)
    name = options.pop("class", None)
    if not isinstance(name, str):
        raise RfError(f'build_from_dict: {d!r} has no "class"; give {{"class": "rf.Linear", ...}}')
    twice = sorted(options.keys() & kwargs.keys())
    if twice:
        raise RfError(
            f"build_from_dict: {', '.join(twice)} of {name} is given in the dict and as an argument; give it once"
        )
    cls = _find(name)
    options.update(kwargs)
    if isinstance(cls, type):
        return cls(*args, **options)
    return functools.partial(cls, *args, **options) if args or options else cls


def build_dict(cls: type | Callable[..., Any], **kwargs: Any) -> dict[str, Any]:
    """The dict from which `build_from_dict` makes `cls(**kwargs)`.

    :param cls: a class or function that can be found by its name. Raises RfError when it cannot.
    """
    if not isinstance(cls, (type, types.FunctionType, types.BuiltinFunctionType)):
        raise RfError(f"build_dict: expected a class or a function, got {cls!r}")
    root = importlib.import_module("rf")
    name = f"{cls.__module__}.{cls.__qualname__}"
    if getattr(root, cls.__name__, None) is cls:
        name = f"rf.{cls.__name__}"
    elif "<" in cls.__qualname__ or _find(name) is not cls:
        raise RfError(f"build_dict: {name} cannot be found by this name; define it at the top level of a module")
    return {"class": name, **kwargs}


def _find(name: str) -> Any:
    parts = name.split(".")
    for n in range(len(parts) - 1, 0, -1):
        module_name = ".".join(parts[:n])
        try:
            obj: Any = importlib.import_module(module_name)
        except ModuleNotFoundError as exc:
            if exc.name is None or not f"{module_name}.".startswith(f"{exc.name}."):
                raise  # the module is there, and misses another one
            continue
        for part in parts[n:]:
            obj = getattr(obj, part, None)
        if obj is not None:
            return obj
    raise RfError(f"build_from_dict: there is no {name!r}; give 'rf.Name' or the full name of a class or function")


def make_module(what: Any, default: Any, *args: Any, overrides: dict[str, Any] | None = None, **options: Any) -> Any:
    """A part of a module from what the user gave for it.

    :param what: None or `NotSpecified` for `default`; a type or function, which is called; a dict, see
        `build_from_dict`; or a module, which is copied (`copy.deepcopy`).
    :param default: likewise.
    :param args: for the type or the dict.
    :param overrides: options for the type or the dict, before all others.
    :param options: for the type or the dict; entries of the dict take precedence.
    """
    if what is None or what is NotSpecified:
        what = default
    if isinstance(what, Module):
        return copy.deepcopy(what)
    options.update(overrides or {})
    if isinstance(what, dict):
        return build_from_dict(what, *args, **{k: v for k, v in options.items() if k not in what})
    if callable(what):
        return what(*args, **options)
    raise TypeError(f"expected a module, a type, a dict or None, got {what!r}")
