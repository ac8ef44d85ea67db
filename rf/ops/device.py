"""Where data lies."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from rf._core import Tensor, make_tensor

__all__ = [
    "copy_to_device",
    "get_default_device",
    "get_default_dim_size_device",
    "set_default_device",
    "set_default_device_ctx",
]

_default_device: str | None = None


def copy_to_device(x: Tensor, device: str | None = None) -> Tensor:
    """The Tensor on `device` (default: the default device); `x` itself when it is there, or has no device."""
    device = device or _default_device
    if device is None or x.backend is None or not x.backend.computes or x.device in (None, device):
        return x
    return make_tensor(
        x.backend, x.backend.to_device(x.raw_tensor, device), x.dims, x.dtype, x.feature_dim, x.sparse_dim
    )


def get_default_device() -> str | None:
    """Device for new tensors; None leaves it to the backend."""
    return _default_device


def set_default_device(device: str | None) -> None:
    """Set the device for new tensors ("cuda") for the whole process."""
    global _default_device
    _default_device = device


@contextlib.contextmanager
def set_default_device_ctx(device: str | None) -> Iterator[None]:
    """`set_default_device` for the duration of a `with` block."""
    before = _default_device
    set_default_device(device)
    try:
        yield
    finally:
        set_default_device(before)


def get_default_dim_size_device() -> str:
    """Sizes of dims live on the host: "cpu"."""
    return "cpu"
