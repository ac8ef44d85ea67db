"""What all tests share: fixed seeds, one thread, and what a test may need from the machine.

A test that needs something which not every machine has, says so:

    @pytest.mark.needs("asterisk")             # on a test, or as `pytestmark` of a file
    def test_x(require): require("compiler")   # in the middle of a test

Without it the test is skipped with the reason. In CI (CI=true), where set-up installs all that tests need, it fails.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import random
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NoReturn

import pytest

# Set before anything loads torch or a BLAS, so that neither is loaded just for this; inherited by what tests start.
for _variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_variable, "1")
for _variable in ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS"):
    os.environ.setdefault(_variable, "1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # its notes about the processor

ASTERISK_SOUNDS = Path("/usr/share/asterisk/sounds/en_US_f_Allison")
ASTERISK_TRANSCRIPTS = Path("/usr/share/doc/asterisk-core-sounds-en/core-sounds-en.txt.gz")

SEED = 42


@dataclass(frozen=True)
class Need:
    """Something that a test may need.

    :param present: whether this machine has it
    :param how: how to get it, for the reason of the skip
    :param in_ci: whether CI has it: then a test that misses it fails there
    """

    present: Callable[[], bool]
    how: str
    in_ci: bool = True


def _module(name: str) -> Callable[[], bool]:
    return lambda: importlib.util.find_spec(name) is not None


def _has_asterisk() -> bool:
    return ASTERISK_SOUNDS.is_dir() and ASTERISK_TRANSCRIPTS.is_file()


def compiler() -> list[str]:
    """The C++ compiler that builds of rf use: CXX of the environment, else the one Python was built with."""
    return shlex.split(os.environ.get("CXX") or sysconfig.get_config_var("CXX") or "c++")


def _has_compiler() -> bool:
    # Asked by compiling, as CXX=/bin/false is a way to say that there is none.
    if shutil.which(compiler()[0]) is None:
        return False
    with tempfile.TemporaryDirectory() as directory:
        source = Path(directory, "a.cpp")
        source.write_text("#include <Python.h>\n#include <optional>\nstd::optional<int> a;\n")
        include = sysconfig.get_path("include")
        command = [*compiler(), "-std=c++17", f"-I{include}", "-c", str(source), "-o", str(source.with_suffix(".o"))]
        return subprocess.run(command, capture_output=True).returncode == 0


def _has_native_core() -> bool:
    return importlib.util.find_spec("rf._native._core") is not None


def _has_cuda() -> bool:
    if importlib.util.find_spec("torch") is None:
        return False
    import torch

    return torch.cuda.is_available()


# CI has a compiler, but may also test what happens without: CXX=/bin/false make test.
COMPILER_IN_CI = not os.environ.get("CXX")

NEEDS: dict[str, Need] = {
    "asterisk": Need(_has_asterisk, "Debian packages asterisk-core-sounds-en-wav and asterisk-core-sounds-en"),
    "compiler": Need(
        _has_compiler, "a C++17 compiler and Python's headers, and CXX unset or naming it", COMPILER_IN_CI
    ),
    "cuda": Need(_has_cuda, "a GPU that torch can use", in_ci=False),
    "git": Need(lambda: shutil.which("git") is not None and Path(".git").exists(), "git, and a clone"),
    "i6_models": Need(lambda: _module("i6_models")() and _module("typeguard")(), "the extra `peers`", in_ci=False),
    "native core": Need(
        _has_native_core, "the native core; rf/_native/_build_note.txt says why it was not built", COMPILER_IN_CI
    ),
    "py-spy": Need(lambda: shutil.which("py-spy", path=_path_of_tools()) is not None, "the extra `profile`"),
    "returnn": Need(lambda: _module("returnn")() and _module("tree")(), "the extra `peers`", in_ci=False),
    "soundfile": Need(_module("soundfile"), "the extra `audio`"),
    "tensorflow": Need(_module("tensorflow"), "the extra `tensorflow`"),
    "torch": Need(_module("torch"), "the extra `torch`"),
    "valgrind": Need(lambda: shutil.which("valgrind") is not None, "Debian package valgrind"),
}


def _path_of_tools() -> str:
    return os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", "")))


@cache
def _is_present(what: str) -> bool:
    return NEEDS[what].present()


def _require(what: str) -> None:
    """Skip the running test unless `what` is here; fail it where CI should have it."""
    if what not in NEEDS:
        raise pytest.UsageError(f"unknown need {what!r}, use one of: {', '.join(NEEDS)}")
    if not _is_present(what):
        _skip_or_fail(f"needs {what}: {NEEDS[what].how}", fail=NEEDS[what].in_ci and os.environ.get("CI") == "true")


def _skip_or_fail(reason: str, *, fail: bool) -> NoReturn:
    if fail:
        pytest.fail(f"{reason} (a skip outside CI)", pytrace=False)
    pytest.skip(reason)


@pytest.fixture
def require() -> Callable[[str], None]:
    """``require("valgrind")`` skips the test where that is missing, and fails it in CI. See `NEEDS` for the names."""
    return _require


@pytest.fixture
def asterisk() -> tuple[Path, Path]:
    """Real speech: (folder of 8 kHz wav files, transcript file), of the Debian packages asterisk-core-sounds-en*."""
    _require("asterisk")
    return ASTERISK_SOUNDS, ASTERISK_TRANSCRIPTS


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    for marker in item.iter_markers("needs"):
        for what in marker.args:
            _require(what)


@pytest.fixture(autouse=True)
def _fixed_seeds_and_threads() -> Iterator[None]:
    import numpy as np

    random.seed(SEED)
    np.random.seed(SEED)
    # Not imported for this, as some tests are about rf without torch. Test files that use it have imported it by now.
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.manual_seed(SEED)
        if torch.get_num_threads() != 1:
            torch.set_num_threads(1)
    yield


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--backend-module",
        action="append",
        default=[],
        metavar="MODULE",
        help="module that registers a backend (rf.register_backend): tests/conformance has cases for it, too",
    )


def pytest_configure(config: pytest.Config) -> None:
    for module in config.getoption("--backend-module"):
        importlib.import_module(module)


def pytest_report_header(config: pytest.Config) -> str:
    """Which rf these tests are about: an installed copy, the sources, or a sanitizer build; and on which core."""
    spec = importlib.util.find_spec("rf")
    where = Path(spec.origin).parent if spec is not None and spec.origin else "nowhere"
    return f"rf: {where}, RF_CORE={os.environ.get('RF_CORE', 'unset')}, native core built: {_has_native_core()}"
