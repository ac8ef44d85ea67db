"""Checks of arguments that several commands share."""

from __future__ import annotations

import argparse
import os

import rf
from rf._errors import UserError
from rf.backend import selected_backend
from rf.cli._device import check_device

__all__ = ["check_at_least", "check_output", "select"]


def check_at_least(args: argparse.Namespace, **minima: int) -> None:
    """Raises UserError unless each of these options, by its name in `args`, is at least so much."""
    for name, minimum in minima.items():
        if getattr(args, name) < minimum:
            raise UserError(f"--{name.replace('_', '-')} {getattr(args, name)}: must be at least {minimum}")


def check_output(option: str, path: str | None) -> None:
    """Raises UserError when a file could not be written, before minutes have gone into what shall be written."""
    if path is None:
        return
    directory = os.path.dirname(os.path.abspath(path))
    if os.path.isdir(path):
        raise UserError(f"{option} {path}: is a directory; name a file")
    if not os.path.isdir(directory):
        raise UserError(f"{option} {path}: there is no directory {directory}; make it first")
    if not os.access(directory, os.W_OK):
        raise UserError(f"{option} {path}: the directory {directory} cannot be written")


def select(backend: str | None, device: str | None) -> None:
    """Selects the backend and the device of this process, as ``--backend`` and ``--device`` say.

    Raises:
        UserError: for a name that does not exist, or a device that cannot be used.
        BackendMissingError: if the framework of the backend is not installed.
    """
    if backend is not None:
        rf.select_backend(backend)
    check_device(selected_backend(), device)
    rf.set_default_device(device)
