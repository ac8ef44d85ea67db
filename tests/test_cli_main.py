"""The command line as such: exit statuses, and that whatever goes wrong takes one line."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import types
from collections.abc import Callable

import pytest

import rf
from rf import cli


def run_process(*args: str, **env: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("RF_") or name == "RF_CORE"}
    return subprocess.run([sys.executable, "-m", "rf.cli", *args], capture_output=True, text=True, env=clean | env)


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[argparse.Namespace], int]], None]:
    """``command(function)`` makes `function` the command ``rf doctor``."""

    def install(run: Callable[[argparse.Namespace], int]) -> None:
        module = types.SimpleNamespace(add_arguments=lambda parser: parser.add_argument("--x", type=int), run=run)
        monkeypatch.setattr(cli, "_module", lambda name: module)

    return install


def one_error_line(capsys: pytest.CaptureFixture[str]) -> str:
    out, err = capsys.readouterr()
    assert out == ""
    assert err.endswith("\n") and err.count("\n") == 1
    return err[:-1]


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"rf {rf.__version__}\n"


def test_help_names_all_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--help"]) == 0
    out = capsys.readouterr().out
    for name in cli.COMMANDS:
        assert f"\n    {name} " in out


@pytest.mark.parametrize("name", list(cli.COMMANDS))
def test_help_of_command(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([name, "--help"]) == 0
    assert capsys.readouterr().out.startswith(f"usage: rf {name} [-h]")


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "rf: the following arguments are required: COMMAND; see rf --help"),
        (["trian"], "rf: argument COMMAND: invalid choice: 'trian'"),
        (["doctor", "--x", "y"], "rf doctor: argument --x: invalid int value: 'y'; see rf doctor --help"),
        (["doctor", "--nonsense"], "rf: unrecognized arguments: --nonsense; see rf --help"),
        (["doctor", "more"], "rf: unrecognized arguments: more"),
    ],
)
def test_bad_arguments(argv: list[str], message: str, command: Callable, capsys: pytest.CaptureFixture[str]) -> None:
    command(lambda args: 0)
    assert cli.main(argv) == 2
    assert one_error_line(capsys).startswith(message)


@pytest.mark.parametrize("status", [0, 1])
def test_exit_status_of_the_command(status: int, command: Callable) -> None:
    command(lambda args: status + args.x)
    assert cli.main(["doctor", "--x", "0"]) == status


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (rf.UserError("a.wav: is empty; record it"), "rf doctor: a.wav: is empty; record it"),
        (
            rf.DimError("add: dims differ:\n  a: {T=3}\n  b: {S=3}\nName them."),
            "rf doctor: add: dims differ: a: {T=3}; b: {S=3}; Name them.",
        ),
        (rf.ShapeError("the shape"), "rf doctor: the shape"),
        (rf.BackendMissingError("no torch"), "rf doctor: no torch"),
    ],
)
def test_errors_take_one_line(
    error: Exception, line: str, command: Callable, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(args: argparse.Namespace) -> int:
        raise error

    command(fail)
    assert cli.main(["doctor"]) == 2
    assert one_error_line(capsys) == line


def test_traceback_on_request(command: Callable, capsys: pytest.CaptureFixture[str]) -> None:
    def fail(args: argparse.Namespace) -> int:
        raise rf.UserError("bad")

    command(fail)
    assert cli.main(["--traceback", "doctor"]) == 2
    err = capsys.readouterr().err
    assert "Traceback" in err and "in fail" in err and err.endswith("rf doctor: bad\n")


def test_bugs_are_not_hidden(command: Callable) -> None:
    def fail(args: argparse.Namespace) -> int:
        raise AssertionError("a bug")

    command(fail)
    with pytest.raises(AssertionError, match="a bug"):
        cli.main(["doctor"])


def test_interrupt(command: Callable, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupt(args: argparse.Namespace) -> int:
        os.kill(os.getpid(), signal.SIGINT)
        signal.pause()
        return 0

    command(interrupt)
    assert cli.main(["doctor"]) == 130
    assert one_error_line(capsys) == "rf doctor: interrupted"


def test_bad_setting_of_the_core(
    command: Callable, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cli._core, "SETTING_ERROR", rf.UserError("RF_CORE: 'x' is not valid"))
    command(lambda args: 0)
    assert cli.main(["doctor"]) == 2
    assert one_error_line(capsys) == "rf doctor: RF_CORE: 'x' is not valid"


def test_closed_pipe() -> None:
    command = [sys.executable, "-m", "rf.cli", "doctor"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    assert process.stderr.read() == ""
    process.stderr.close()
    assert process.wait() == 1


def test_as_a_process() -> None:
    result = run_process("--version")
    assert (result.returncode, result.stdout, result.stderr) == (0, f"rf {rf.__version__}\n", "")
    result = run_process("doctor", "--need", "nothing")
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith("rf doctor: --need nothing: unknown; choose from core=native")


def test_command_line_loads_no_framework() -> None:
    code = (
        "import sys; from rf.cli import main; main(['--version']); print('torch' in sys.modules, 'rich' in sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.stdout.endswith("False False\n")
