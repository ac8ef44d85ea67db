"""Nested structures of Tensors, Dims and None: dicts (also states), lists and tuples (also named ones)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rf._errors import RfError

__all__: list[str] = []


def map_structure(fn: Callable[..., Any], *structures: Any) -> Any:
    """The structure of `fn` of the leaves. All must have the same structure (RfError); a leaf is whatever is no
    container."""
    return map_structure_with_path(lambda _path, *leaves: fn(*leaves), *structures)


def map_structure_with_path(fn: Callable[..., Any], *structures: Any, path: str = "") -> Any:
    """`map_structure`, with where the leaf is (such as ".state.h[0]") as the first argument of `fn`."""
    first = structures[0]
    if isinstance(first, Mapping):
        for other in structures[1:]:
            if not isinstance(other, Mapping) or set(other) != set(first):
                raise RfError(f"structures differ at {path or 'the top'}: keys {list(first)}, and {_describe(other)}")
        pairs = [(k, map_structure_with_path(fn, *(s[k] for s in structures), path=f"{path}.{k}")) for k in first]
        return type(first)(pairs)  # type: ignore[call-arg]
    if isinstance(first, (list, tuple)):
        for other in structures[1:]:
            if not isinstance(other, (list, tuple)) or len(other) != len(first):
                raise RfError(f"structures differ at {path or 'the top'}: {len(first)} entries, and {_describe(other)}")
        items = [map_structure_with_path(fn, *s, path=f"{path}[{i}]") for i, s in enumerate(zip(*structures))]
        return type(first)(*items) if hasattr(first, "_fields") else type(first)(items)
    for other in structures[1:]:
        if isinstance(other, (Mapping, list, tuple)):
            raise RfError(f"structures differ at {path or 'the top'}: a {type(first).__name__}, and {_describe(other)}")
    return fn(path, *structures)


def flatten(structure: Any) -> list[Any]:
    """All leaves, in order."""
    out: list[Any] = []
    map_structure(out.append, structure)
    return out


def _describe(x: Any) -> str:
    if isinstance(x, Mapping):
        return f"keys {list(x)}"
    return f"{len(x)} entries" if isinstance(x, (list, tuple)) else f"a {type(x).__name__}"
