"""What a measurement was made with: versions, core, native path, threads, machine. No number means much without."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import rf
from rf import _core
from rf._errors import UserError
from rf.backend import Backend

__all__ = ["environment", "native_path_note", "threads"]

_PACKAGES = ("numpy", "torch", "tensorflow", "keras")
_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


def environment(backend: Backend) -> dict[str, Any]:
    """Everything about this process that results depend on, as JSON has it."""
    active, note = native_path_note(backend)
    return {
        "rf": rf.__version__,
        "python": platform.python_version(),
        "packages": {name: version for name in _PACKAGES if (version := _version(name)) is not None},
        "platform": platform.platform(),
        "processor": _processor(),
        "processors": _num_processors(),
        "backend": backend.name,
        "core": "native" if _core.NATIVE else "python",
        "core_note": _core.NOTE,
        "native_path": "native" if active else "python",
        "native_path_note": note,
        "threads": {backend.name: backend.num_threads(), **{v: os.environ.get(v) for v in _VARIABLES}},
    }


def environment_lines(env: dict[str, Any]) -> list[str]:
    """The same for people, in a few lines."""
    packages = ", ".join(f"{name} {version}" for name, version in env["packages"].items())
    variables = ", ".join(f"{v}={env['threads'][v] or 'unset'}" for v in _VARIABLES)
    return [
        f"rf {env['rf']}, Python {env['python']}, {packages}",
        f"core {env['core']}, {env['backend']} path {env['native_path']}",
        f"threads {env['threads'][env['backend']]} of {env['processors']} processors ({variables}); {env['processor']}",
    ]


def native_path_note(backend: Backend) -> tuple[bool, str]:
    """Whether the compiled path of a backend is active, and why not."""
    status = getattr(sys.modules[type(backend).__module__], "native_path_status", None)
    return (False, "this backend has none") if status is None else status()


@contextlib.contextmanager
def threads(backend: Backend, number: int | None) -> Iterator[None]:
    """Have the kernels of `backend` use that many threads in the `with` block; None: one, if it can be told so.

    Raises UserError when it cannot be told, and has another number.
    """
    before = backend.num_threads()
    if before is None or not backend.set_num_threads(number or 1):
        if number not in (None, before):
            raise UserError(
                f"--threads {number}: backend {backend.name} keeps the number of threads that it has started with "
                f"({before or 'unknown'})"
            )
        yield
        return
    try:
        yield
    finally:
        backend.set_num_threads(before)


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _num_processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _processor() -> str:
    path = Path("/proc/cpuinfo")
    if path.is_file():
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                return value.strip()
    return platform.processor() or platform.machine()
