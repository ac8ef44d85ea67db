"""The backends: which there are, which owns an array, and which one makes new tensors.

What a backend has to do is the contract, `Backend` in rf/_backend.py.
"""

from __future__ import annotations

import contextlib
import contextvars
import importlib
import importlib.util
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy

from rf import _config, _random
from rf._backend import PRIMITIVES, Backend, KernelTable, Raw, Shape, stft_window
from rf._errors import BackendError, BackendMissingError, UserError

__all__ = [
    "OWN_BACKENDS",
    "PRIMITIVES",
    "Backend",
    "KernelTable",
    "Raw",
    "Shape",
    "backend_names",
    "backend_of_raw",
    "get_backend",
    "get_raw_tensor_type",
    "get_selected_backend",
    "is_backend_raw_tensor_dim_tag_independent",
    "is_executing_eagerly",
    "loaded_backends",
    "register_backend",
    "select_backend",
    "select_backend_numpy",
    "select_backend_torch",
    "selected_backend",
    "selected_backend_name",
    "stft_window",
    "use_backend",
]


class _Known(NamedTuple):
    """What is known of a backend before it is loaded."""

    module: str
    framework: str
    install: str = ""
    oldest: tuple[int, ...] = ()
    """The oldest version of the framework that will do."""
    has_gradients: bool = True


_KNOWN = {
    "numpy": _Known("rf.backends.numpy", "numpy", has_gradients=False),
    "torch": _Known("rf.backends.torch", "torch", "pip install 'rf-eager[torch]'"),
    "tensorflow": _Known("rf.backends.tensorflow", "tensorflow", "pip install 'rf-eager[tensorflow]'", (2, 16)),
    "meta": _Known("rf.backends.meta", "numpy"),
}
OWN_BACKENDS = tuple(_KNOWN)
"""Names of the backends that rf brings along."""
_FACTORIES: dict[str, Callable[[], Backend]] = {}
"""Backends of other packages."""
_BACKENDS: dict[str, Backend] = {}
_BY_RAW_TYPE: dict[type, Backend | None] = {}
_selected: str | None = None
_selected_here: contextvars.ContextVar[str | None] = contextvars.ContextVar("rf_backend", default=None)


def register_backend(name: str, create: Callable[[], Backend]) -> None:
    """Make a backend that rf does not bring along known under `name`, wherever rf takes the name of a backend.

    :param name: a Python identifier, also the `name` of the backend.
    :param create: makes the backend, without arguments (its class, say). Called at the first use, once.

    Raises UserError when `name` is no identifier or stands for another backend. See docs/backends.md on how to write
    one.
    """
    if not name.isidentifier():
        raise UserError(f"register_backend: {name!r} is no Python identifier")
    if not callable(create):
        raise TypeError(f"register_backend: expected a function that makes the backend, got {create!r}")
    if name in _KNOWN or _FACTORIES.get(name, create) is not create:
        raise UserError(f"register_backend: there is a backend {name!r} already; choose another name")
    _FACTORIES[name] = create


def backend_names() -> tuple[str, ...]:
    """Names that `get_backend` and `select_backend` know, loadable here or not."""
    return (*_KNOWN, *_FACTORIES)


def get_backend(name: str) -> Backend:
    """The backend called `name`, loaded at first use.

    "meta:tensorflow" is the backend `meta` that takes the place of tensorflow, which needs not be installed for that:
    what the frontend can ask of a backend beside kernels (`has_gradients`) is answered as that one does. It is a
    backend of its own: tensors of it do not mix with those of another meta backend, as a step that does so would be
    measured in place of neither.

    Raises UserError for an unknown name and BackendMissingError, which says what to install, when its framework cannot
    be imported.
    """
    backend = _BACKENDS.get(name)
    if backend is None:
        from rf import _core

        _check_name(name)
        if _core.SETTING_ERROR is not None:
            raise _core.SETTING_ERROR
        backend = _FACTORIES[name]() if name in _FACTORIES else _create(name)
        _check_new(name, backend)
        if name not in _BACKENDS:
            if _random.seed is not None:
                backend.set_random_seed(_random.seed)
            _BACKENDS[name] = backend
            _BY_RAW_TYPE.clear()
        backend = _BACKENDS[name]
    return backend


def _check_name(name: str, source: str = "") -> None:
    base, colon, other = name.partition(":")
    if name not in _FACTORIES and (
        base not in _KNOWN or (colon and (base != "meta" or other == "meta" or other not in _KNOWN))
    ):
        raise UserError(
            f"{source}unknown backend {name!r}; choose one of: {', '.join(backend_names())}; "
            "or meta:NAME, meta in place of NAME"
        )


def _create(name: str) -> Backend:
    """A backend of rf, if its framework is there and recent enough."""
    base, _, other = name.partition(":")
    module, framework, install, oldest, _ = _KNOWN[base]
    try:
        version = getattr(importlib.import_module(framework), "__version__", "")
    except ImportError as exc:
        raise BackendMissingError(
            f"backend {name!r} needs {framework}, which cannot be imported ({exc}); {install}"
        ) from exc
    if oldest and tuple(int(n) for n in re.findall(r"\d+", version)[: len(oldest)]) < oldest:
        wanted = ".".join(map(str, oldest))
        raise BackendMissingError(f"backend {name!r} needs {framework} {wanted} or newer, not {version}; {install}")
    create = importlib.import_module(module).create
    return create(other, _KNOWN[other].has_gradients) if other else create()


def _check_new(name: str, backend: Any) -> None:
    """What a factory made must be a backend of that name, whose arrays no other backend takes for its own."""
    if not isinstance(backend, Backend) or backend.name != name:
        raise BackendError(
            f"backend {name!r}: its factory made {backend!r}, which is no rf.backend.Backend of that name"
        )
    if not backend.raw_types:
        raise BackendError(f"backend {name!r} names no type of raw arrays (raw_types), by which rf knows its arrays")
    for other in _BACKENDS.values():
        for cls in backend.raw_types:
            if other.name != name and (
                issubclass(cls, other.raw_types) or any(issubclass(t, cls) for t in other.raw_types)
            ):
                raise BackendError(
                    f"backend {name!r}: arrays of type {cls.__name__} are those of backend {other.name!r}; "
                    "wrap them in a class of your own"
                )


def loaded_backends() -> tuple[Backend, ...]:
    """The backends that are in use so far."""
    return tuple(_BACKENDS.values())


def backend_of_raw(raw: Any) -> Backend | None:
    """The backend that owns an array, by its type; None when no backend does. Loads the backend when its framework is
    in use."""
    cls = type(raw)
    backend = _BY_RAW_TYPE.get(cls)
    if backend is None:
        root = cls.__module__.partition(".")[0]
        if isinstance(raw, numpy.ndarray) or root == "numpy":
            get_backend("numpy")
        for framework in "torch", "tensorflow":
            if any(c.__module__.partition(".")[0] == framework for c in cls.__mro__):
                get_backend(framework)
        backend = next((b for b in _BACKENDS.values() if issubclass(cls, b.raw_types)), None)
        if backend is not None:
            _BY_RAW_TYPE[cls] = backend
    return backend


def selected_backend() -> Backend:
    """The backend for new tensors: of the innermost `use_backend`, else of `select_backend`, else RF_BACKEND, else
    torch if it is installed, else numpy."""
    return get_backend(selected_backend_name())


def selected_backend_name() -> str:
    """Name of the backend that `selected_backend` gives."""
    global _selected
    name = _selected_here.get() or _selected
    if name is None:
        name = _config.BACKEND.get()
        if name is None:
            name = "torch" if importlib.util.find_spec("torch") is not None else "numpy"
        else:
            _check_name(name, "RF_BACKEND: ")
        _selected = name
    return name


def select_backend(name: str) -> None:
    """Make `name` the backend of new tensors for the whole process. Raises UserError or BackendMissingError."""
    global _selected
    get_backend(name)
    _selected = name


@contextlib.contextmanager
def use_backend(name: str) -> Iterator[Backend]:
    """Make `name` the backend of new tensors inside a `with` block, in this thread (or task) only."""
    backend = get_backend(name)
    token = _selected_here.set(name)
    try:
        yield backend
    finally:
        _selected_here.reset(token)


def get_selected_backend() -> str:
    """Name of the backend for new tensors."""
    return selected_backend_name()


def select_backend_torch() -> None:
    """`select_backend("torch")`."""
    select_backend("torch")


def select_backend_numpy() -> None:
    """`select_backend("numpy")`."""
    select_backend("numpy")


def is_executing_eagerly() -> bool:
    """Always True: rf runs every op at once."""
    return True


def is_backend_raw_tensor_dim_tag_independent() -> bool:
    """Always True: raw arrays know nothing of dims."""
    return True


def get_raw_tensor_type() -> type:
    """The type of raw arrays on the selected backend."""
    return selected_backend().raw_types[0]
