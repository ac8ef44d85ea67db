"""How many instructions a call takes, counted by valgrind's callgrind: the same number on every run.

Everything is counted in one run of `rf.bench._counted`, which calls each function N times and 2 N times. The difference
over N is the count of one call, without what is paid once. Whatever could make runs differ is fixed: hashes, addresses
(valgrind lays out memory itself), threads, environment, and the processor, as valgrind shows programs one of its own.
What the count of a call includes are one pass of a Python loop and the call of a Python function, as in the times.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy

import rf
from rf._errors import RfError
from rf._native import build_note

__all__ = ["CORES", "child_environment", "count", "environment", "why_not"]

CORES = ("native", "python")
CALLS = 128
"""Calls of the shorter loop. What is done every 64 calls is in it twice."""
TIMEOUT = 600
"""Seconds that a run may take."""


def why_not(core: str) -> str | None:
    """Why nothing can be counted here on that core; None if it can."""
    if shutil.which("valgrind") is None:
        return "valgrind is not installed (Debian package valgrind)"
    if core == "native" and build_note()[0] != "native":
        return f"the native core is not built: {build_note()[1]}"
    return None


def count(names: Sequence[str], core: str, *, calls: int = CALLS) -> dict[str, float]:
    """Instructions of one call of each of the cases (`rf.bench.core_cases`), by name.

    :param core: "native" or "python"
    :param calls: calls of the shorter loop

    Raises RfError when the run fails, also where `why_not` says why.
    """
    if reason := why_not(core):
        raise RfError(f"instructions cannot be counted on the {core} core: {reason}")
    with tempfile.TemporaryDirectory(prefix="rf-count-") as directory:
        output = Path(directory, "callgrind.out")
        command = [
            *("valgrind", "--tool=callgrind", "--quiet", "--dump-before=getsid", "--combine-dumps=yes"),
            *("--separate-threads=no", f"--callgrind-out-file={output}"),
            *(sys.executable, "-m", "rf.bench._counted", str(calls), *names),
        ]
        # There, as a settings file in the working directory counts.
        run = subprocess.run(
            command,
            cwd="/",
            env=_environment(core),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
        )
        totals = totals_of(output.read_text(encoding="utf-8", errors="replace")) if output.exists() else []
    if run.returncode or len(totals) < 3 * len(names):
        raise RfError(
            f"counting instructions on the {core} core failed: valgrind ended with status {run.returncode} and "
            f"{len(totals)} of {3 * len(names)} counts\n{run.stdout}{run.stderr}".rstrip()
        )
    # Three marks for each: a dump holds what was counted since the last mark.
    return {name: (totals[3 * i + 2] - totals[3 * i + 1]) / calls for i, name in enumerate(names)}


def totals_of(text: str) -> list[int]:
    """The total of each dump in a file of callgrind, in order."""
    return [int(n) for n in re.findall(r"^totals: (\d+)", text, re.MULTILINE)]


def child_environment(core: str, base: Mapping[str, str]) -> dict[str, str]:
    """The environment `base` for a process that runs this rf on that core."""
    root = str(Path(rf.__file__).parents[1])
    path = [root, *(os.path.abspath(p) for p in base.get("PYTHONPATH", "").split(os.pathsep) if p)]
    return {**base, "RF_CORE": core, "PYTHONPATH": os.pathsep.join(path)}


def _environment(core: str) -> dict[str, str]:
    kept = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH", "PYTHONPATH") if name in os.environ}
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    return {**child_environment(core, kept), **threads, "PYTHONHASHSEED": "0", "LC_ALL": "C"}


# -- what counts depend on


def environment() -> dict[str, str]:
    """All that counts depend on besides rf itself, as texts. Not the processor, but for what valgrind takes from it."""
    configured = sysconfig.get_config_var("CONFIG_ARGS") or ""
    # With their values, but without paths.
    options = sorted(word for word in re.findall(r"--(?:enable|with)-[\w=+-]+", configured))
    return {
        "machine": f"{platform.system()} {platform.machine()}",
        "libc": " ".join(platform.libc_ver()),
        "python": f"{platform.python_version()}, {platform.python_compiler()}, {' '.join(options) or 'no options'}",
        "numpy": numpy.__version__,
        "core": f"{build_note()[1]}, {_compiler_of_core()}",
        "valgrind": _valgrind(),
        "processor": f"as valgrind shows it, {'with' if _has_avx2() else 'without'} AVX2",
    }


def _compiler_of_core() -> str:
    """What compiled the native core, as compilers write it into what they make."""
    spec = importlib.util.find_spec("rf._native._core")
    if spec is None or spec.origin is None:
        return "not built"
    comments = re.findall(rb"(?:GCC: \([^)\0]*\)|clang version) [\d.]+", Path(spec.origin).read_bytes())
    return ", ".join(sorted({comment.decode(errors="replace") for comment in comments})) or "compiler unknown"


def _valgrind() -> str:
    if shutil.which("valgrind") is None:
        return "not installed"
    return subprocess.run(["valgrind", "--version"], check=True, capture_output=True, text=True).stdout.strip()


def _has_avx2() -> bool:
    path = Path("/proc/cpuinfo")
    return path.is_file() and re.search(r"^flags\s*:.*\bavx2\b", path.read_text(), re.MULTILINE) is not None
