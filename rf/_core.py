"""Which core is active: the native one when it is built and wanted, else the specification in `rf._core_py`.

`RF_CORE=python` forces the specification; `RF_CORE=native` makes a missing native core an error instead of a notice.
The error is raised by the first use of a backend, not by the import: so the command line can report it, and `rf doctor`
works.
"""

from __future__ import annotations

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
"""What is wrong with RF_CORE: no valid value, or native where that is not built. `get_backend` raises it."""

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
            NOTE = f"the native core is not built ({exc})"
            if wanted == "native":
                SETTING_ERROR = UserError(
                    f"RF_CORE=native: {NOTE}; install rf again with a C++17 compiler, or unset RF_CORE"
                )
    if NOTE:
        from rf._core_py import NATIVE, DimBase, Op, Tensor, apply, make_tensor

        register_native = start_recording = stop_recording = None
