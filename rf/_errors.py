"""The exceptions that rf raises on purpose.

Every class here derives from :class:`RfError`, so that ``except rf.RfError`` catches what rf reports and lets bugs
through. Classes with a natural built-in relative derive from it as well: code that knows nothing of rf catches those.
"""

from __future__ import annotations

__all__ = [
    "BackendError",
    "BackendMissingError",
    "DimError",
    "KernelMissingError",
    "RfError",
    "ShapeError",
    "UserError",
]


class RfError(Exception):
    """Base class of all errors that rf raises on purpose."""


class UserError(RfError):
    """Bad input from outside: a file, an argument, a setting.

    The message is one line that names what is wrong and says what to do. The command line prints it on stderr, without
    a traceback, and exits with status 2.
    """


class DimError(RfError, ValueError):
    """Dims that do not fit the operation: missing, ambiguous, unexpected, or of contradicting sizes."""


class ShapeError(RfError, ValueError):
    """A raw array whose shape contradicts the dims it is said to have."""


class BackendError(RfError, RuntimeError):
    """A backend cannot do what was asked, or tensors of different backends meet in one operation."""


class BackendMissingError(BackendError):
    """A backend is known, but its framework cannot be loaded here."""


class KernelMissingError(BackendError):
    """A backend lacks a kernel that an op needs: it covers a part of the contract only."""

    def __init__(self, backend: str, kernel: str) -> None:
        super().__init__(
            f"backend {backend} has no kernel {kernel!r}, which this op needs there. Convert the operands to a backend "
            "that has it, rf.convert_backend(x, 'numpy'), or give the backend that kernel."
        )
        self.backend = backend
        self.kernel = kernel
