"""Tests that lack what they need skip outside CI and fail in CI (tests/conftest.py)."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import pytest


@pytest.fixture
def conftest(request: pytest.FixtureRequest) -> ModuleType:
    (module,) = (
        p for p in request.config.pluginmanager.get_plugins() if isinstance(p, ModuleType) and hasattr(p, "NEEDS")
    )
    return module


@pytest.mark.parametrize(
    ("ci", "in_ci", "outcome"), [("", True, "skip"), ("true", True, "fail"), ("true", False, "skip")]
)
def test_missing(
    conftest: ModuleType,
    require: Callable[[str], None],
    monkeypatch: pytest.MonkeyPatch,
    ci: str,
    in_ci: bool,
    outcome: str,
) -> None:
    monkeypatch.setenv("CI", ci)
    monkeypatch.setitem(conftest.NEEDS, "unicorn", conftest.Need(lambda: False, "a wood", in_ci=in_ci))
    expected = pytest.fail.Exception if outcome == "fail" else pytest.skip.Exception
    with pytest.raises(expected, match="needs unicorn: a wood"):
        require("unicorn")


def test_present(conftest: ModuleType, require: Callable[[str], None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(conftest.NEEDS, "horse", conftest.Need(lambda: True, "a stable"))
    require("horse")


def test_unknown_need_is_an_error(require: Callable[[str], None]) -> None:
    with pytest.raises(pytest.UsageError, match="unknown need 'valgrnd', use one of: asterisk, "):
        require("valgrnd")
