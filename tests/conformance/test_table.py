"""docs/backends.md says what the cases of the suites show, no more and no less."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest

from conformance import table
from conformance.cases import BACKENDS, CHECKS, Check
from conformance.samples import SAMPLES
from conformance.test_coverage import EXEMPT_FUNCTIONS, public_functions

INSTALLED = [b for b in BACKENDS if b != "tensorflow" or importlib.util.find_spec(b) is not None]


def test_page_is_up_to_date() -> None:
    text = table.PAGE.read_text(encoding="utf-8")
    assert table.page(text) == text, "run python tools/backends_table.py"


def ids_of(check: Check) -> set[str]:
    """The cases that pytest makes of a check, on the backends of rf."""
    (mark,) = (m for m in check.test.pytestmark if m.name == "parametrize")  # type: ignore[attr-defined]
    prefix = check.test_id("", SAMPLES[0]).partition("[")[0]
    return {f"{prefix}[{param.id}]" for param in mark.args[1] if param.values[0] in BACKENDS}


def test_behind_each_letter_there_is_a_test() -> None:
    assert set(CHECKS) == {name for names in table.LETTERS.values() for name in names} | {"empty"}
    tests = set().union(*(ids_of(check) for check in CHECKS.values()))
    shown: set[str] = set()
    for op in {s.op for s in SAMPLES}:
        for backend in INSTALLED:
            found = table.proofs(op, backend)
            assert all(found.values())
            assert table.cell(op, backend).split(",")[0].split() == list(found) or not found
            shown.update(*found.values())
    assert len(shown) > 10_000
    assert not shown - tests


def test_cases_are_those_of_the_specification() -> None:
    for check in CHECKS.values():
        expected = {check.test_id(b, s) for b in INSTALLED for s in SAMPLES if check.includes(b, s)}
        assert ids_of(check) == expected, check.name


def test_gaps_are_no_support(monkeypatch: pytest.MonkeyPatch) -> None:
    assert table.cell("no such op", "numpy") == "–"
    assert table.cell("lerp", "torch") == "V G M" and table.cell("bitwise", "torch") == "–"
    samples = [s.id for s in SAMPLES if s.op == "lerp"]
    known: dict[str, Any] = {f"{check} {s}": "why" for check in ("result", "order", "gradient") for s in samples}
    monkeypatch.setattr(table, "gaps", lambda backend: known if backend == "torch" else {})
    assert table.cell("lerp", "torch") == "M *" and table.cell("lerp", "numpy") == "V M"
    assert f"- torch: result {samples[0]}: why" in table.op_table()


def test_numpy_has_the_forward_of_every_op() -> None:
    """On NumPy, the reference, a case that passes shows the result of every public function."""
    covered = public_functions().keys() - EXEMPT_FUNCTIONS.keys()
    assert len(covered) > 100
    assert not [op for op in sorted(covered) if not proven_on_numpy(op)]


def proven_on_numpy(op: str) -> bool:
    return any(test.startswith("tests/conformance/test_ops.py::test_result[numpy-") for test in numpy_tests(op))


def numpy_tests(op: str) -> list[str]:
    found = table.proofs(op, "numpy")
    return found.get("V", []) + found.get("D", [])
