"""Checking the device that the user names."""

from __future__ import annotations

from rf._errors import UserError
from rf.backend import Backend

__all__ = ["check_device"]


def check_device(backend: Backend, device: str | None) -> None:
    """Raises UserError when `backend` cannot put an array on `device`; None is no choice, and always fine."""
    if device is None:
        return
    try:
        backend.full((), 0, "float32", device)
    except (RuntimeError, AssertionError, ValueError) as exc:  # all of them of torch: no such device, not compiled in
        reason = (str(exc).splitlines() or [type(exc).__name__])[0].strip().rstrip(".")
        raise UserError(
            f"--device {device}: backend {backend.name} cannot use it ({reason}); leave it out to compute on the CPU"
        ) from exc
