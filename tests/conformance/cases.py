"""Which test cases there are: samples times backends; known gaps (tests/xfail) are strict expected failures."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lists_backend
import pytest

import rf
from conformance.sample import ALL_ZERO, BATCHED, EMPTY, WITH_ZERO, Batch, Sample, run
from conformance.samples import SAMPLES
from rf.backend import backend_names, get_backend

BACKENDS = ("numpy", "torch", "tensorflow", "meta")
"""Those of rf. Where TensorFlow is not installed, its cases do not exist, instead of being skipped one by one."""
COMPUTING = ("numpy", "torch", "tensorflow")
WITH_GRADIENTS = ("torch", "tensorflow")
OTHERS = (lists_backend.ListsBackend.name, *(b for b in backend_names() if b not in (*BACKENDS, "lists")))
"""The example, and what ``pytest --backend-module`` registered: tested on the samples that they cover."""
XFAIL = Path(__file__).resolve().parents[1] / "xfail"

used_gaps: set[tuple[str, str]] = set()
"""(backend, case) of the gaps that a case was made for; what is missing here is a line without a test."""


@dataclass(frozen=True)
class Check:
    """A test that is run for samples times backends."""

    name: str
    test: Callable[..., None]
    where: Callable[[Sample], bool]
    backends: tuple[str, ...]

    def includes(self, backend: str, sample: Sample) -> bool:
        """Whether there is a case for this backend of rf, if its framework is installed."""
        return backend in self.backends and self.where(sample) and backend not in sample.no_backend

    def test_id(self, backend: str, sample: Sample) -> str:
        """How pytest calls the case."""
        file = f"tests/{self.test.__module__.replace('.', '/')}.py"
        return f"{file}::{self.test.__name__}[{backend}-{sample.id}]"


CHECKS: dict[str, Check] = {}
"""The checks of the test modules that have been imported, by name."""


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


@functools.cache
def lacking(backend: str) -> dict[str, str]:
    """The samples that a backend of `OTHERS` does not cover: id -> which kernel it lacks, or what else it says."""
    out: dict[str, str] = {}
    for sample in SAMPLES:
        try:
            run(sample, backend, BATCHED)
            for batch in (Batch((1,)),) * sample.alone + (WITH_ZERO, ALL_ZERO) * sample.zero + (EMPTY,) * sample.empty:
                run(sample, backend, batch)  # what lengths ask for: padding, say
        except rf.KernelMissingError as exc:
            out[sample.id] = exc.kernel
        except rf.BackendError as exc:
            out[sample.id] = str(exc)
        except Exception:  # not the way to lack something: its cases exist, and fail
            continue
    return out


def cases(
    check: str,
    *,
    where: Callable[[Sample], bool] = lambda _: True,
    backends: Sequence[str] = BACKENDS,
) -> Callable[[Callable[..., None]], Any]:
    """Parametrizes a test over `backend` and `sample`: the samples `where` the check makes sense."""
    installed = [b for b in backends if b != "tensorflow" or importlib.util.find_spec(b) is not None]
    others = [b for b in OTHERS if backends is not WITH_GRADIENTS or get_backend(b).has_gradients]

    def parametrize(test: Callable[..., None]) -> Any:
        spec = CHECKS[check] = Check(check, test, where, tuple(backends))
        params: list[Any] = []
        for sample in SAMPLES:
            for backend in installed:
                if not spec.includes(backend, sample):
                    continue
                # what NumPy lacks is compared with torch
                with_torch = backend == "torch" or "numpy" in sample.no_backend
                marks: list[Any] = [pytest.mark.needs("torch")] if with_torch else []
                case = f"{check} {sample.id}"
                if case in gaps(backend):
                    used_gaps.add((backend, case))
                    marks.append(pytest.mark.xfail(strict=True, reason=gaps(backend)[case]))
                params.append(pytest.param(backend, sample, id=f"{backend}-{sample.id}", marks=marks))
            params += [
                pytest.param(backend, sample, id=f"{backend}-{sample.id}")
                for backend in others
                if where(sample) and sample.id not in lacking(backend)
            ]
        return pytest.mark.parametrize(("backend", "sample"), params)(test)

    return parametrize
