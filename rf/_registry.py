"""The table of ops by name: what operators, tests, the profiler and the native core look ops up in."""

from __future__ import annotations

from typing import Any

OPS: dict[str, Any] = {}
"""Every planned op (an `Op` object), by name. Filled when `rf.ops` is imported, read-only afterwards."""

SERVICES: dict[str, Any] = {}
"""Functions of upper layers that methods of Tensor and Dim forward to (`x.mark_as_loss` -> the run context)."""
