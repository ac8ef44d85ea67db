"""The command ``rf``: a module here for each subcommand, with ``add_arguments(parser)`` and ``run(args) -> status``."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import traceback
from collections.abc import Sequence
from types import ModuleType
from typing import NoReturn

import rf
from rf import _core
from rf._errors import RfError

__all__ = ["main"]

COMMANDS = {
    "train": "train a model, or continue a training",
    "eval": "decode data with a trained model and print its error rates",
    "profile": "show where the time of a training step goes",
    "bench": "time ops and models against the backend's own calls",
    "doctor": "show what is installed, what works and what does not",
}

BAD_INPUT = 2
INTERRUPTED = 130


class _Parser(argparse.ArgumentParser):
    """Errors take one line, as all others of the command line do."""

    def error(self, message: str) -> NoReturn:
        self.exit(BAD_INPUT, f"{self.prog}: {message}; see {self.prog} --help\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line.

    Args:
        argv: arguments after the program name; default: those of the process.

    Returns:
        the exit status: 0 if all went well, 1 if a command found something amiss, 2 for bad input, which one line on
        stderr explains, 130 after ctrl-C.
    """
    argv = list(sys.argv[1:] if argv is None else argv)
    prog = "rf"
    show_traceback = False
    try:
        # The options before the command take no values, so this is the command. Only its module is imported.
        command = next((arg for arg in argv if not arg.startswith("-")), None)
        args = _parser(command).parse_args(argv)
        prog = f"rf {args.command}"
        show_traceback = args.traceback
        if _core.SETTING_ERROR is not None and args.command != "doctor":  # which looks at it itself
            raise _core.SETTING_ERROR
        status = _module(args.command).run(args)
        sys.stdout.flush()  # here, where a closed pipe is handled, and not at exit
        return status
    except SystemExit as exc:  # of argparse: --help, --version, errors
        return exc.code if isinstance(exc.code, int) else BAD_INPUT
    except RfError as exc:
        if show_traceback:
            traceback.print_exc()
        print(f"{prog}: {one_line(str(exc))}", file=sys.stderr)
        return BAD_INPUT
    except KeyboardInterrupt:
        print(f"{prog}: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # The reader, `head` for instance, has what it wanted. Python would complain again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def one_line(message: str) -> str:
    """A message of several lines, such as that of a DimError, in one."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    return "".join(
        line + ("" if i == len(lines) else " " if line[-1] in ".:;," else "; ") for i, line in enumerate(lines, 1)
    )


def _parser(command: str | None) -> argparse.ArgumentParser:
    parser = _Parser(
        prog="rf", description="Sequence models with named dims, eager on several backends.", allow_abbrev=False
    )
    parser.add_argument("--version", action="version", version=f"rf {rf.__version__}")
    parser.add_argument(
        "--traceback", action="store_true", help="on an error, also show where in the code it was raised"
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, text in COMMANDS.items():
        sub = commands.add_parser(
            name,
            help=text,
            description=text[0].upper() + text[1:] + ".",
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        if name == command:
            _module(name).add_arguments(sub)
    return parser


def _module(command: str) -> ModuleType:
    return importlib.import_module(f"rf.cli.{command}")
