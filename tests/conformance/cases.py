"""Which test cases there are: samples times backends; known gaps (tests/xfail) are strict expected failures."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from conformance.sample import Sample

TENSORFLOW = ("tensorflow",) if importlib.util.find_spec("tensorflow") is not None else ()
"""Where it is not installed, its cases do not exist, instead of being skipped one by one."""
BACKENDS = ("numpy", "torch", *TENSORFLOW, "meta")
COMPUTING = ("numpy", "torch", *TENSORFLOW)
WITH_GRADIENTS = ("torch", *TENSORFLOW)
XFAIL = Path(__file__).resolve().parents[1] / "xfail"

used_gaps: set[tuple[str, str]] = set()
"""(backend, case) of the gaps that a case was made for; what is missing here is a line without a test."""


@functools.cache
def gaps(backend: str) -> dict[str, str]:
    """Known gaps of one backend: case -> reason. A line is ``check sample-id | reason``; `#` begins a comment."""
    path = XFAIL / f"{backend}.txt"
    return parse_gaps(path.read_text(encoding="utf-8"), path.name) if path.exists() else {}


def parse_gaps(text: str, name: str) -> dict[str, str]:
    """The lines of a file of gaps. A line without a reason, or one that is there twice, is an error."""
    out: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        case, bar, reason = (part.strip() for part in line.partition("|"))
        if not bar or not case or not reason:
            raise ValueError(f"{name}:{number}: expected `case | reason`, got {line!r}")
        if case in out:
            raise ValueError(f"{name}:{number}: {case!r} is there twice")
        out[case] = reason
    return out


def cases(
    check: str,
    samples: Iterable[Sample],
    *,
    where: Callable[[Sample], bool] = lambda _: True,
    backends: Sequence[str] = BACKENDS,
) -> pytest.MarkDecorator:
    """Parametrizes a test over `backend` and `sample`."""
    params: list[Any] = []
    for sample in samples:
        for backend in backends:
            if not where(sample) or backend in sample.no_backend:
                continue
            # what NumPy lacks is compared with torch
            with_torch = backend == "torch" or "numpy" in sample.no_backend
            marks: list[Any] = [pytest.mark.needs("torch")] if with_torch else []
            case = f"{check} {sample.id}"
            if case in gaps(backend):
                used_gaps.add((backend, case))
                marks.append(pytest.mark.xfail(strict=True, reason=gaps(backend)[case]))
            params.append(pytest.param(backend, sample, id=f"{backend}-{sample.id}", marks=marks))
    return pytest.mark.parametrize(("backend", "sample"), params)
