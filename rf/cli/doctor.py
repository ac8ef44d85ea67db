"""``rf doctor``: what is installed, what works and what does not, and what to do about it."""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import rf
from rf import _config, _core, _native
from rf._errors import BackendMissingError, UserError
from rf.backend import OWN_BACKENDS, backend_names, get_backend

__all__ = ["Finding", "add_arguments", "examine", "run"]

PACKAGES = ("numpy", "rich", "safetensors", "torch", "tensorflow", "soundfile", "py-spy")
"""Distributions whose versions matter."""

THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        name: what ``--need`` calls it.
        ok: whether it is there and works.
        text: how, or why not, in one line.
        advice: what to do to get it; empty when ok.
    """

    name: str
    ok: bool
    text: str
    advice: str = ""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``rf doctor``."""
    parser.add_argument(
        "--need",
        metavar="WHAT,...",
        default="",
        help=f"exit with status 1 if one of these is missing: {', '.join(_needs())}; "
        "what the settings ask for (RF_CORE, RF_BACKEND, RF_TORCH_NATIVE) counts too",
    )


def run(args: argparse.Namespace) -> int:
    """Prints the report. 0, or 1 if something asked for is missing."""
    asked = [name.strip() for name in args.need.split(",") if name.strip()]
    for name in asked:
        if name not in _needs():
            raise UserError(f"--need {name}: unknown; choose from {', '.join(_needs())}")
    asked += [name for name in _asked_by_settings() if name not in asked]
    _core.SETTING_ERROR = None  # among what is examined now; backends shall be tried nevertheless
    findings = {finding.name: finding for finding in examine()}
    _print_report(findings)
    missing = [findings[name] for name in asked if not findings[name].ok]
    for finding in missing:
        print(f"rf doctor: missing: {finding.name}: {finding.text}; {finding.advice}", file=sys.stderr)
    return 1 if missing else 0


def examine() -> list[Finding]:
    """Looks at everything that ``--need`` can name."""
    return [check() for check in _CHECKS.values()]


# -- the checks


def _native_core() -> Finding:
    core, detail = _native.build_note()
    if _core.NATIVE:
        # A note of another build can lie there, when the core was compiled by hand since.
        return Finding(
            "core=native", True, detail if core == "native" else str(sys.modules["rf._native._core"].__file__)
        )
    reason = _core.NOTE
    if core == "python":
        reason += f"; at installation: {detail}"
    advice = "unset RF_CORE" if _config.CORE.get() == "python" else "install a C++17 compiler, then install rf again"
    return Finding("core=native", False, " ".join(reason.split()), advice)


def _python_core() -> Finding:
    if _core.NATIVE:
        return Finding("core=python", False, "the native core is active", "set RF_CORE=python")
    return Finding("core=python", True, "active")


def _torch_native() -> Finding:
    torch = _backend("torch")()
    if not torch.ok:
        return Finding("torch-native", False, f"needs torch: {torch.text}", torch.advice)
    module = sys.modules[type(get_backend("torch")).__module__]
    status: Callable[[], tuple[bool, str]] | None = getattr(module, "native_path_status", None)
    if status is None:
        return Finding("torch-native", False, "this version of rf has none", "install a version that has it")
    active, note = status()
    advice = "install a C++17 compiler, then start again: it is built at first use"
    if not _config.TORCH_NATIVE.get():
        advice = "unset RF_TORCH_NATIVE"
    elif not _core.NATIVE:
        advice = "it needs the native core: see there"
    return Finding("torch-native", active, " ".join(note.split()), "" if active else advice)


def _backend(name: str) -> Callable[[], Finding]:
    def check() -> Finding:
        try:
            backend = get_backend(name)
        except BackendMissingError as exc:
            text, _, advice = str(exc).partition("; ")
            return Finding(name, False, text, advice)
        except Exception as exc:  # whatever a broken installation of a framework raises
            text = " ".join(str(exc).split()) or type(exc).__name__
            return Finding(name, False, text, f"install it again: pip install --force-reinstall {name}")
        module = sys.modules.get(name)
        version = getattr(module, "__version__", "")
        what = "computes nothing: dims and dtypes only" if not backend.computes else f"{name} {version}"
        return Finding(name, True, what + (", with gradients" if backend.has_gradients else ""))

    return check


def _cuda() -> Finding:
    backend = _backend("torch")()
    if not backend.ok:
        return Finding("cuda", False, f"needs torch: {backend.text}", backend.advice)
    import torch

    if torch.cuda.is_available():
        return Finding("cuda", True, ", ".join(torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())))
    return Finding(
        "cuda",
        False,
        f"torch {torch.__version__} finds no GPU",
        "use the CPU, or a torch with CUDA on a machine with a GPU",
    )


def _package(module: str, extra: str) -> Callable[[], Finding]:
    def check() -> Finding:
        try:
            imported = importlib.import_module(module)
        except Exception as exc:  # soundfile raises OSError where its library is missing
            return Finding(module, False, " ".join(str(exc).split()), f"pip install 'rf-eager[{extra}]'")
        return Finding(module, True, f"{module} {getattr(imported, '__version__', '')}")

    return check


def _py_spy() -> Finding:
    path = shutil.which("py-spy", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
    if path is None:
        return Finding("py-spy", False, "not found", "pip install 'rf-eager[profile]'")
    return Finding("py-spy", True, path)


def _cache_dir() -> Finding:
    path = _config.CACHE_DIR.get()
    existing = next(p for p in (path, *path.parents) if p.exists())
    try:
        with tempfile.TemporaryFile(dir=existing):
            pass
    except OSError as exc:
        advice = "set RF_CACHE_DIR to a directory that can be written"
        return Finding("cache", False, f"{path}: cannot be written ({exc.strerror})", advice)
    return Finding("cache", True, f"{path}" + ("" if path.exists() else " (will be made)"))


_CHECKS: dict[str, Callable[[], Finding]] = {
    "core=native": _native_core,
    "core=python": _python_core,
    **{name: _backend(name) for name in OWN_BACKENDS},
    "torch-native": _torch_native,
    "cuda": _cuda,
    "soundfile": _package("soundfile", "audio"),
    "py-spy": _py_spy,
    "cache": _cache_dir,
}


def _needs() -> tuple[str, ...]:
    return tuple(_CHECKS)


def _asked_by_settings() -> Iterator[str]:
    """What settings outside the code ask for, as ``--need`` would."""
    core, source = _config.CORE.get_with_source()
    if source != "default" and core != "auto":
        yield f"core={core}"
    backend = _config.BACKEND.get()
    if backend is not None:
        if backend not in backend_names():
            raise UserError(f"RF_BACKEND: unknown backend {backend!r}; choose one of: {', '.join(backend_names())}")
        yield backend
    native, source = _config.TORCH_NATIVE.get_with_source()
    if source != "default" and native:
        yield "torch-native"


# -- the report


def _print_report(findings: dict[str, Finding]) -> None:
    def line(label: str, name: str, ok: bool | None, text: str) -> None:
        mark = "" if ok is None else "ok" if ok else "no"
        print(f"{label:<10} {name:<20} {mark:<3} {text}".rstrip())

    print(f"rf {rf.__version__}, Python {platform.python_version()}, {platform.system()} {platform.machine()}")
    core = "native" if _core.NATIVE else "python"
    line("core", core, None, findings["core=native"].text)
    native = findings["torch-native"]
    line("torch path", "native" if native.ok else "python", None, native.text)
    for name in OWN_BACKENDS:
        line("backend", name, findings[name].ok, findings[name].text)
    for name in ("cuda", "soundfile", "py-spy", "cache"):
        line("also", name, findings[name].ok, findings[name].text)
    for setting in _config.SETTINGS.values():
        value, source = setting.get_with_source()
        line("setting", setting.name, None, f"{value} ({source}; {setting.env_name})")
    for name in PACKAGES:
        line("package", name, None, _version(name))
    line("threads", "processors", None, str(_num_processors()))
    for name in THREAD_VARIABLES:
        line("threads", name, None, os.environ.get(name, "unset"))
    torch = sys.modules.get("torch")
    if torch is not None:
        line("threads", "torch", None, f"{torch.get_num_threads()}, {torch.get_num_interop_threads()} between ops")


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _num_processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
