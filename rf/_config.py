"""Settings of rf: each is declared once here, with its type, its allowed values and its meaning.

A setting is read as ``setting("core")``, or, with a static type, as ``CORE.get()``. The first source that has it wins:

1. an explicit :func:`set_setting` (or :func:`override`) in this process,
2. the environment variable ``RF_CORE``,
3. the file ``rf.toml`` in the working directory (``core = "python"``),
4. the default.

Values from every source are checked alike; a bad one raises :class:`rf.UserError`, which names the source and what is
valid. Nothing is cached: settings are read when something is loaded or set up, never per op.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from ._errors import UserError

__all__ = [
    "BACKEND",
    "CACHE_DIR",
    "CORE",
    "RANDOM",
    "SETTINGS",
    "TORCH_NATIVE",
    "Setting",
    "override",
    "reset_setting",
    "set_setting",
    "setting",
    "setting_with_source",
]

T = TypeVar("T")

CONFIG_FILE = "rf.toml"


@dataclass(frozen=True)
class Setting(Generic[T]):
    """Declaration of one setting.

    :param name: as in :func:`setting` and ``rf.toml``
    :param parse: text -> value, raises ValueError on bad text
    :param default: makes the value when no source has the setting
    :param valid: the allowed values in words, for the error text and for ``rf doctor``
    :param help: one line on what the setting does
    """

    name: str
    parse: Callable[[str], T]
    default: Callable[[], T]
    valid: str
    help: str

    @property
    def env_name(self) -> str:
        """The environment variable that sets it, ``RF_...``."""
        return f"RF_{self.name.upper()}"

    def get(self) -> T:
        """The value now in force. Raises :class:`rf.UserError` on a bad value."""
        return self.get_with_source()[0]

    def get_with_source(self) -> tuple[T, str]:
        """The value now in force and where it is from: ``set``, ``environment``, ``rf.toml`` or ``default``."""
        if self.name in _explicit:
            return _explicit[self.name], "set"
        # An empty variable counts as unset, as is usual in shells, where unsetting for one command is awkward.
        text = os.environ.get(self.env_name, "")
        if text:
            return self.check(text, f"environment variable {self.env_name}"), "environment"
        table = _read_config_file()
        if self.name in table:
            return self.check(table[self.name], f"{self.name} in {CONFIG_FILE}"), CONFIG_FILE
        return self.default(), "default"

    def check(self, value: object, source: str) -> T:
        """Parse and validate `value`, which `source` (used in the error text) gave."""
        text = value
        if isinstance(value, int):  # bool included: the text of a switch is 0 or 1
            text = str(int(value))
        elif isinstance(value, os.PathLike):
            text = os.fspath(value)
        if isinstance(text, str):
            with contextlib.suppress(ValueError):  # reported below, together with values of a wrong type
                return self.parse(text)
        raise UserError(f"{source}: {value!r} is not valid, use {self.valid}")


def _one_of(*choices: str) -> tuple[Callable[[str], str], str]:
    def parse(text: str) -> str:
        if text not in choices:
            raise ValueError(text)
        return text

    return parse, "one of: " + ", ".join(choices)


def _parse_bool(text: str) -> bool:
    if text in ("0", "1"):
        return text == "1"
    raise ValueError(text)


def _parse_name(text: str) -> str:
    if not text.strip():
        raise ValueError(text)
    return text.strip()


def _parse_dir(text: str) -> Path:
    if not text.strip():
        raise ValueError(text)
    path = Path(text).expanduser()
    if path.exists() and not path.is_dir():
        raise ValueError(text)
    return path.absolute()


def _default_cache_dir() -> Path:
    base = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG specification has relative paths ignored.
    return (Path(base) if os.path.isabs(base) else Path("~/.cache").expanduser()) / "rf"


_core_parse, _core_valid = _one_of("auto", "native", "python")
_random_parse, _random_valid = _one_of("backend", "portable")

BACKEND: Setting[str | None] = Setting(
    "backend",
    _parse_name,
    lambda: None,
    "the name of a backend, such as torch, numpy, meta or meta:torch",
    "backend that is selected at the start; which names exist, the backend registry knows",
)
CORE: Setting[str] = Setting(
    "core",
    _core_parse,
    lambda: "auto",
    _core_valid,
    "core to run on; auto takes the native core where it was built, else the Python core",
)
TORCH_NATIVE: Setting[bool] = Setting(
    "torch_native",
    _parse_bool,
    lambda: True,
    "one of: 0, 1",
    "whether torch tensors take the compiled path (built at first use) or the plain Python backend",
)
RANDOM: Setting[str] = Setting(
    "random",
    _random_parse,
    lambda: "backend",
    _random_valid,
    "source of random numbers; portable draws all on the host, which is slower, but the same on every backend",
)
CACHE_DIR: Setting[Path] = Setting(
    "cache_dir",
    _parse_dir,
    _default_cache_dir,
    "a directory, which may be new",
    "directory for what rf builds at run time",
)

SETTINGS: dict[str, Setting[Any]] = {s.name: s for s in (BACKEND, CORE, TORCH_NATIVE, RANDOM, CACHE_DIR)}

_explicit: dict[str, Any] = {}


def _lookup(name: str) -> Setting[Any]:
    try:
        return SETTINGS[name.removeprefix("RF_").lower()]
    except KeyError:
        raise UserError(f"unknown setting {name!r}, use one of: {', '.join(SETTINGS)}") from None


def setting(name: str) -> Any:
    """The value of a setting now in force.

    :param name: ``"core"``, or as the environment spells it, ``"RF_CORE"``
    :raises rf.UserError: on an unknown name, or a value that is not valid; the text lists what is
    """
    return _lookup(name).get()


def setting_with_source(name: str) -> tuple[Any, str]:
    """Like :func:`setting`, with where the value is from: ``set``, ``environment``, ``rf.toml`` or ``default``."""
    return _lookup(name).get_with_source()


def set_setting(name: str, value: object) -> None:
    """Set `name` for this process; beats the environment and ``rf.toml``. Takes effect where the setting is read next.

    :param value: the typed value, or its text as in the environment
    :raises rf.UserError: on an unknown name or a bad value
    """
    s = _lookup(name)
    _explicit[s.name] = s.check(value, f"set_setting({name!r})")


def reset_setting(name: str) -> None:
    """Undo :func:`set_setting`; no error if there was none."""
    _explicit.pop(_lookup(name).name, None)


@contextlib.contextmanager
def override(name: str, value: object) -> Iterator[None]:
    """Set `name` within a ``with`` block."""
    before = dict(_explicit)
    set_setting(name, value)
    try:
        yield
    finally:
        _explicit.clear()
        _explicit.update(before)


def _read_config_file() -> dict[str, Any]:
    path = Path(CONFIG_FILE)
    if not path.is_file():
        return {}
    if sys.version_info < (3, 11):
        raise UserError(f"{CONFIG_FILE} needs Python 3.11 or newer: remove it and set RF_... variables instead")
    import tomllib

    try:
        with path.open("rb") as file:
            table = tomllib.load(file)
    except (OSError, ValueError) as exc:  # TOMLDecodeError and UnicodeDecodeError are ValueErrors
        raise UserError(f"{CONFIG_FILE}: cannot be read: {exc}") from exc
    if unknown := [key for key in table if key not in SETTINGS]:
        raise UserError(f"{CONFIG_FILE}: unknown setting {unknown[0]!r}, use one of: {', '.join(SETTINGS)}")
    return table
