"""Settings: which source wins, and that every source is validated with an error that says what is valid."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rf import _config
from rf._errors import BackendError, BackendMissingError, DimError, RfError, ShapeError, UserError

needs_toml = pytest.mark.skipif(sys.version_info < (3, 11), reason="rf.toml needs tomllib, of Python 3.11")


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """No settings from outside, and a working directory without rf.toml."""
    for s in _config.SETTINGS.values():
        monkeypatch.delenv(s.env_name, raising=False)
    monkeypatch.chdir(tmp_path)
    yield
    for name in _config.SETTINGS:
        _config.reset_setting(name)


def test_defaults(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    values = {name: _config.setting_with_source(name) for name in _config.SETTINGS}
    assert values == {
        "backend": (None, "default"),
        "core": ("auto", "default"),
        "torch_native": (True, "default"),
        "random": ("backend", "default"),
        "cache_dir": (tmp_path / ".cache" / "rf", "default"),
    }


def test_cache_dir_follows_xdg_if_absolute(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    assert _config.CACHE_DIR.get() == tmp_path / "caches" / "rf"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert _config.CACHE_DIR.get() == Path("~/.cache/rf").expanduser()


@needs_toml
def test_precedence(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("rf.toml").write_text('core = "python"\ntorch_native = false\n', encoding="utf-8")
    assert _config.setting_with_source("core") == ("python", "rf.toml")
    assert _config.TORCH_NATIVE.get() is False
    monkeypatch.setenv("RF_CORE", "native")
    assert _config.setting_with_source("core") == ("native", "environment")
    _config.set_setting("core", "auto")
    assert _config.setting_with_source("RF_CORE") == ("auto", "set")
    _config.reset_setting("core")
    monkeypatch.setenv("RF_CORE", "")  # an empty variable is an unset one
    assert _config.setting_with_source("core") == ("python", "rf.toml")


@pytest.mark.parametrize(("text", "value"), [("0", False), ("1", True)])
def test_switch(monkeypatch: pytest.MonkeyPatch, text: str, value: bool) -> None:
    monkeypatch.setenv("RF_TORCH_NATIVE", text)
    assert _config.setting("torch_native") is value
    monkeypatch.delenv("RF_TORCH_NATIVE")
    for given in (text, value, int(text)):
        _config.set_setting("torch_native", given)
        assert _config.setting("torch_native") is value


@pytest.mark.parametrize(
    ("variable", "text", "message"),
    [
        ("RF_CORE", "pyton", r"environment variable RF_CORE: 'pyton' is not valid, use one of: auto, native, python$"),
        ("RF_TORCH_NATIVE", "yes", r"environment variable RF_TORCH_NATIVE: 'yes' is not valid, use one of: 0, 1$"),
        ("RF_BACKEND", " ", r"environment variable RF_BACKEND: ' ' is not valid, use the name of a backend"),
    ],
)
def test_bad_environment(monkeypatch: pytest.MonkeyPatch, variable: str, text: str, message: str) -> None:
    monkeypatch.setenv(variable, text)
    with pytest.raises(UserError, match=message):
        _config.setting(variable)


def test_cache_dir_must_not_be_a_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    monkeypatch.setenv("RF_CACHE_DIR", str(tmp_path / "file"))
    with pytest.raises(UserError, match="file' is not valid, use a directory, which may be new"):
        _config.CACHE_DIR.get()
    _config.set_setting("cache_dir", tmp_path / "new")
    assert _config.CACHE_DIR.get() == tmp_path / "new"


@needs_toml
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('core = "pyton"', "^core in rf.toml: 'pyton' is not valid, use one of: auto, native, python$"),
        ("core = 3.5", "^core in rf.toml: 3.5 is not valid, use one of: auto, native, python$"),
        ('coer = "python"', "^rf.toml: unknown setting 'coer', use one of: backend, core, torch_native, random,"),
        ("core = ", "^rf.toml: cannot be read: "),
    ],
)
def test_bad_file(text: str, message: str) -> None:
    Path("rf.toml").write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=message) as caught:
        _config.setting("core")
    assert "\n" not in str(caught.value)


def test_bad_set_keeps_the_old_value() -> None:
    _config.set_setting("core", "python")
    with pytest.raises(UserError, match=r"^set_setting\('core'\): 'x' is not valid, use one of: auto, native, python$"):
        _config.set_setting("core", "x")
    assert _config.CORE.get() == "python"


@pytest.mark.parametrize("function", [_config.setting, _config.reset_setting, _config.setting_with_source])
def test_unknown_name(function) -> None:
    with pytest.raises(
        UserError, match="unknown setting 'RF_CROE', use one of: backend, core, torch_native, random, cache_dir"
    ):
        function("RF_CROE")


def test_override_nests_and_restores() -> None:
    with _config.override("core", "python"):
        with pytest.raises(ZeroDivisionError), _config.override("RF_CORE", "native"):
            assert _config.CORE.get() == "native"
            raise ZeroDivisionError
        assert _config.CORE.get() == "python"
    assert _config.setting_with_source("core") == ("auto", "default")


def test_every_setting_is_declared_under_its_name() -> None:
    for name, s in _config.SETTINGS.items():
        assert s.name == name
        assert s.help and s.valid


@pytest.mark.parametrize(
    ("error", "relatives"),
    [
        (UserError, (RfError,)),
        (DimError, (RfError, ValueError)),
        (ShapeError, (RfError, ValueError)),
        (BackendError, (RfError, RuntimeError)),
        (BackendMissingError, (BackendError,)),
    ],
)
def test_error_classes(error: type[Exception], relatives: tuple[type[Exception], ...]) -> None:
    assert all(issubclass(error, relative) for relative in relatives)
