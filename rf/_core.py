"""Which core is active: the native one when it is built and wanted, else the specification in `rf._core_py`.

`RF_CORE=python` forces the specification; `RF_CORE=native` makes a missing native core an error instead of a notice.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

from rf import _config
from rf._errors import UserError

__all__ = [
    "NATIVE",
    "NOTE",
    "SETTING_ERROR",
    "DimBase",
    "Op",
    "Tensor",
    "apply",
    "make_tensor",
    "register_native",
    "start_recording",
    "stop_recording",
]

NOTE = ""
"""Why the native core is not active; empty when it is."""

SETTING_ERROR: UserError | None = None
"""A bad RF_CORE. Kept, since an import is no place to end a command line program with one clear line; `rf.cli` does
that."""

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from rf._core_py import NATIVE, DimBase, Op, Tensor, apply, make_tensor

    register_native: Callable[..., Any]  # None on the Python core, like the next two
    start_recording: Callable[..., Any]
    stop_recording: Callable[..., Any]
else:
    try:
        wanted = _config.CORE.get()
    except UserError as exc:
        SETTING_ERROR = exc
        warnings.warn(f"{exc}; taken as auto", RuntimeWarning, stacklevel=2)
        wanted = "auto"
    if wanted == "python":
        NOTE = "RF_CORE=python asks for the Python core"
    else:
        try:
            from rf._native._core import (
                NATIVE,
                DimBase,
                Op,
                Tensor,
                apply,
                make_tensor,
                register_native,
                start_recording,
                stop_recording,
            )
        except ImportError as exc:
            if wanted == "native":
                raise
            NOTE = f"the native core is not built ({exc})"
    if NOTE:
        from rf._core_py import NATIVE, DimBase, Op, Tensor, apply, make_tensor

        register_native = start_recording = stop_recording = None
