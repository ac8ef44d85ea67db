"""The command line as such: exit statuses, and that whatever goes wrong takes one line."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import types
from collections.abc import Callable

import cli_helpers
import pytest

import rf
from rf import cli


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[argparse.Namespace], int]], None]:
    """``command(function)`` makes `function` the command ``rf doctor``."""

    def install(run: Callable[[argparse.Namespace], int]) -> None:
        module = types.SimpleNamespace(add_arguments=lambda parser: parser.add_argument("--x", type=int), run=run)
        monkeypatch.setattr(cli, "_module", lambda name: module)

    return install


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
    assert cli_helpers.error_line(capsys).startswith(message)


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
    assert cli_helpers.error_line(capsys) == line


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
    assert cli_helpers.error_line(capsys) == "rf doctor: interrupted"


NO_NATIVE = "import sys; sys.modules['rf._native._core'] = None; from rf.cli import main; sys.exit(main(sys.argv[1:]))"


@pytest.mark.parametrize("command", ["doctor", "eval"])
@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("pyton", "environment variable RF_CORE: 'pyton' is not valid, use one of: auto, native, python"),
        ("native", "the native core is not built "),
    ],
)
def test_bad_setting_of_the_core(command: str, value: str, message: str) -> None:
    argv = [command] if command == "doctor" else [command, "--checkpoint", "x"]
    result = subprocess.run(
        [sys.executable, "-W", "error", "-c", NO_NATIVE, *argv],
        capture_output=True,
        text=True,
        env=cli_helpers.environment(RF_CORE=value),
    )
    lines = cli_helpers.without_notices(result.stderr).splitlines()
    assert len(lines) == 1, lines
    assert lines[0].startswith(f"rf {command}: ") and message in lines[0]
    # That something asked for is missing is what `rf doctor` is there to find.
    assert result.returncode == (1 if command == "doctor" and value == "native" else 2)


@pytest.mark.parametrize("value", ["pyton", "native"])
def test_bad_setting_of_the_core_without_command_line(value: str) -> None:
    code = "import sys; sys.modules['rf._native._core'] = None; import rf; rf.zeros(())"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=cli_helpers.environment(RF_CORE=value)
    )
    assert result.returncode == 1
    assert "UserError: " in result.stderr and "RF_CORE" in result.stderr


def test_closed_pipe() -> None:
    process = cli_helpers.start("doctor")
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    assert cli_helpers.without_notices(process.stderr.read()) == ""
    process.stderr.close()
    assert process.wait() == 1


def test_as_a_process() -> None:
    assert cli_helpers.run("--version") == (0, f"rf {rf.__version__}\n", "")
    status, out, err = cli_helpers.run("doctor", "--need", "nothing")
    assert (status, out) == (2, "")
    assert err.startswith("rf doctor: --need nothing: unknown; choose from core=native")


def test_command_line_loads_no_framework() -> None:
    code = (
        "import sys; from rf.cli import main; main(['--version']); print('torch' in sys.modules, 'rich' in sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.stdout.endswith("False False\n")
