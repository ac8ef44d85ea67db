"""What torch has beside the basic operations of dims and tensors: calls that compute nothing.

`x` is (2, 3, 4) float32.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

__all__ = ["CALLS"]


def _x() -> torch.Tensor:
    return torch.zeros(2, 3, 4)


def _of(function: Callable[[torch.Tensor], Callable[[], Any]]) -> Callable[[], Callable[[], Any]]:
    return lambda: function(_x())


CALLS: dict[str, Callable[[], Callable[[], Any]]] = {
    "torch.empty(())": lambda: lambda: torch.empty(()),
    "torch.tensor(1.5)": lambda: lambda: torch.tensor(1.5),
    "torch.zeros(2, 3, 4)": lambda: lambda: torch.zeros(2, 3, 4),
    "torch.as_tensor(x)": _of(lambda x: lambda: torch.as_tensor(x)),
    "torch.as_tensor(x, dtype=torch.float32)": _of(lambda x: lambda: torch.as_tensor(x, dtype=torch.float32)),
    "x.view(2, 3, 4)": _of(lambda x: lambda: x.view(2, 3, 4)),
    "x.as_strided((2, 3, 4), (12, 4, 1))": _of(lambda x: lambda: x.as_strided((2, 3, 4), (12, 4, 1))),
    "x.detach()": _of(lambda x: lambda: x.detach()),
    "x.permute(2, 0, 1)": _of(lambda x: lambda: x.permute(2, 0, 1)),
    "x.unsqueeze(1)": _of(lambda x: lambda: x.unsqueeze(1)),
    "x.resize_(2, 3, 4)": _of(lambda x: lambda: x.resize_(2, 3, 4)),
    "x.storage_offset()": _of(lambda x: lambda: x.storage_offset()),
    "x.dtype": _of(lambda x: lambda: x.dtype),
    "x.device": _of(lambda x: lambda: x.device),
    "x.shape": _of(lambda x: lambda: x.shape),
    "x.ndim": _of(lambda x: lambda: x.ndim),
    "x.size(1)": _of(lambda x: lambda: x.size(1)),
}
"""By the text that describes a call: makes the function that makes the call."""
