"""Builds and loads the native torch path: `torch_native.cpp`, compiled against the torch that is installed, once per
version.

The result is kept in the cache directory (RF_CACHE_DIR) under a name made of everything that it depends on. Several
processes may come here at once: one compiles, the others wait. Without a compiler, or where the cache cannot be
written, the torch backend in Python is used, and a notice says why.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import platform
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from rf import _config

SOURCE = Path(__file__).with_name("torch_native.cpp")
HEADERS = (*sorted(SOURCE.parent.glob("*.h")), SOURCE.parents[2] / "_native" / "api.h")
MODULE = "rf_torch_native"


class BuildError(Exception):
    """Why the native path cannot be used, in one line."""


def load() -> ModuleType:
    """The extension module, compiled if need be. Raises BuildError."""
    import torch

    command = _command(torch)
    key = hashlib.sha256()
    files = [path.read_bytes() for path in (SOURCE, *HEADERS)]
    for part in (*files, " ".join(command).encode(), torch.__version__.encode()):
        key.update(len(part).to_bytes(8, "little") + part)
    key.update(f"{sys.implementation.cache_tag} {platform.machine()} {platform.libc_ver()} {_processor()}".encode())
    folder = _config.CACHE_DIR.get()
    path = folder / f"{MODULE}-{key.hexdigest()[:16]}{sysconfig.get_config_var('EXT_SUFFIX')}"
    if not path.is_file():
        _build(command, path)
    spec = importlib.util.spec_from_file_location(MODULE, path)
    assert spec is not None and spec.loader is not None
    try:
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    except ImportError as exc:
        raise BuildError(f"{path} cannot be loaded ({exc}); delete it to have it built anew") from exc
    return module


def _processor() -> str:
    """What this processor can do, where that is known: machines that differ in it may share a cache directory."""
    if platform.machine() != "x86_64":
        return ""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    return next((line for line in lines if line.startswith("flags")), "")


def _command(torch: ModuleType) -> list[str]:
    root = Path(torch.__path__[0])
    lib = root / "lib"
    abi = int(torch.compiled_with_cxx11_abi())
    return [
        *shlex.split(os.environ.get("CXX") or shutil.which("g++") or shutil.which("c++") or "g++"),
        "-std=c++20", "-O3", "-fopenmp-simd", *(["-march=native"] if _processor() else []),
        "-DNDEBUG", "-fPIC", "-shared", "-fvisibility=hidden", "-w",
        f"-D_GLIBCXX_USE_CXX11_ABI={abi}",
        f"-I{root / 'include'}", f"-I{root / 'include' / 'torch' / 'csrc' / 'api' / 'include'}",
        f"-I{sysconfig.get_paths()['include']}", str(SOURCE),
        f"-L{lib}", "-ltorch_python", "-ltorch_cpu", "-lc10", f"-Wl,-rpath,{lib}",
    ]  # fmt: skip


def _build(command: list[str], path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _lock(path.with_suffix(".lock")):
            if path.is_file():  # another process has built it meanwhile
                return
            with tempfile.TemporaryDirectory(dir=path.parent, prefix="building-") as tmp:
                out = Path(tmp) / path.name
                if not _can_start(command[0]):
                    raise BuildError(f"no C++ compiler: {command[0]} cannot be started; install g++, or set CXX")
                print(
                    "rf: compiling the native torch path, once for this version of torch (about a minute) ...",
                    file=sys.stderr,
                )
                done = subprocess.run([*command, "-o", str(out)], capture_output=True, text=True, check=False)
                if done.returncode != 0:
                    lines = [line for line in done.stderr.splitlines() if "error" in line] or done.stderr.splitlines()
                    reason = lines[0] if lines else f"exit status {done.returncode}"
                    raise BuildError(f"{command[0]} failed: {reason}")
                os.replace(out, path)
    except OSError as exc:
        raise BuildError(
            f"the cache directory {path.parent} cannot be used ({exc.strerror}); set RF_CACHE_DIR"
        ) from exc


def _can_start(program: str) -> bool:
    return shutil.which(program) is not None


@contextlib.contextmanager
def _lock(path: Path) -> Iterator[None]:
    try:
        import fcntl
    except (
        ImportError
    ):  # no such locks on this platform: then two processes may both compile, and the last one's file stays
        yield
        return
    with open(path, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
