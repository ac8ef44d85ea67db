"""Running the command line in tests."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

NOTICES = ("rf: compiling the native torch path", "rf: torch runs without its native path")
"""What loading torch may print on stderr, once a process or once a machine."""

KEPT = ("RF_CORE", "RF_CACHE_DIR")
"""Settings that new processes inherit: the core that is tested, and where the native path of torch has been built."""


def environment(**env: str) -> dict[str, str]:
    """An environment without settings of rf but `KEPT` and those given."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("RF_") or name in KEPT}
    return clean | env


def start(*args: str, **env: str) -> subprocess.Popen[str]:
    """Starts ``rf ARGS``."""
    command = [sys.executable, "-u", "-m", "rf.cli", *args]
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(**env),
        start_new_session=True,
    )


def run(*args: str, **env: str) -> tuple[int, str, str]:
    """Runs ``rf ARGS``: exit status, stdout, and stderr without notices."""
    process = start(*args, **env)
    out, err = process.communicate(timeout=120)
    return process.returncode, out, without_notices(err)


TENSORFLOW_LOG = re.compile(
    r"WARNING: All log messages before absl|[IWE]\d{4} \d\d:\d\d:|To enable the following instructions"
)


def without_notices(err: str) -> str:
    """The text of stderr without `NOTICES`, and without what TensorFlow logs when it starts, which cannot be helped."""
    lines = err.splitlines(keepends=True)
    return "".join(line for line in lines if not line.startswith(NOTICES) and not TENSORFLOW_LOG.match(line))


def error_line(capsys: pytest.CaptureFixture[str]) -> str:
    """The one line that was printed on stderr so far."""
    err = without_notices(capsys.readouterr().err)
    assert err.count("\n") == 1 and err.endswith("\n"), err
    return err[:-1]
