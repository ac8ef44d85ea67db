"""``rf doctor``: what it reports, and when its exit status is 1."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

import rf
from rf import _config, _core
from rf.backend import get_backend
from rf.cli import doctor, main

TORCH = importlib.util.find_spec("torch") is not None


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in "RF_CORE", "RF_BACKEND", "RF_TORCH_NATIVE":
        monkeypatch.delenv(name, raising=False)
    # No own RF_CACHE_DIR: the native path of torch, which is built at first use, would be built there once more.
    monkeypatch.chdir(tmp_path)
    if TORCH:
        get_backend("torch")  # what loading it prints is not the command's


def test_report(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    lines = out.splitlines()
    assert lines[0].startswith(f"rf {rf.__version__}, Python 3.")
    fields = [line.split() for line in lines]
    assert ["core", "native" if _core.NATIVE else "python"] in [f[:2] for f in fields]
    assert ["backend", "numpy", "ok"] in [f[:3] for f in fields]
    assert ["backend", "torch", "ok" if TORCH else "no"] in [f[:3] for f in fields]
    assert {f[1] for f in fields if f[0] == "backend"} == {"numpy", "torch", "tensorflow", "meta"}
    assert any(f[:3] in (["torch", "path", "native"], ["torch", "path", "python"]) for f in fields)
    assert any(f[:2] == ["threads", "OMP_NUM_THREADS"] for f in fields)
    assert str(_config.CACHE_DIR.get()) in out
    assert "\x1b" not in out


def test_needs_that_are_met(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--need", f"numpy, meta,cache,core={'native' if _core.NATIVE else 'python'}"]) == 0
    assert capsys.readouterr().err == ""


def test_missing_core(capsys: pytest.CaptureFixture[str]) -> None:
    other = "python" if _core.NATIVE else "native"
    assert main(["doctor", "--need", f"numpy,core={other}"]) == 1
    err = capsys.readouterr().err
    assert err.startswith(f"rf doctor: missing: core={other}: ") and err.count("\n") == 1
    assert "install a C++17 compiler" in err or "set RF_CORE=python" in err


def test_settings_count_as_needs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(doctor._CHECKS, "numpy", lambda: doctor.Finding("numpy", False, "broken", "mend it"))
    assert main(["doctor"]) == 0
    monkeypatch.setenv("RF_BACKEND", "numpy")
    assert main(["doctor"]) == 1
    assert capsys.readouterr().err == "rf doctor: missing: numpy: broken; mend it\n"
    monkeypatch.setenv("RF_BACKEND", "meta")
    assert main(["doctor"]) == 0
    monkeypatch.setitem(doctor._CHECKS, "torch-native", lambda: doctor.Finding("torch-native", False, "no", "do it"))
    monkeypatch.setenv("RF_TORCH_NATIVE", "0")
    assert main(["doctor"]) == 0
    monkeypatch.setenv("RF_TORCH_NATIVE", "1")
    assert main(["doctor"]) == 1
    monkeypatch.delenv("RF_TORCH_NATIVE")
    monkeypatch.setenv("RF_CORE", "python" if _core.NATIVE else "native")
    assert main(["doctor"]) == 1


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("RF_BACKEND", "jaxx", "rf doctor: RF_BACKEND: unknown backend 'jaxx'; choose one of: numpy"),
        (
            "RF_TORCH_NATIVE",
            "maybe",
            "rf doctor: environment variable RF_TORCH_NATIVE: 'maybe' is not valid, use one of: 0, 1",
        ),
    ],
)
def test_bad_settings(
    name: str, value: str, message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(name, value)
    assert main(["doctor"]) == 2
    err = capsys.readouterr().err
    assert err.startswith(message) and err.count("\n") == 1


def test_broken_framework(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A torch that is installed but cannot be loaded is reported, whatever it raises."""

    def broken(name: str) -> object:
        raise OSError(f"lib{name}.so: cannot open\nshared object file")

    monkeypatch.setattr(doctor, "get_backend", broken)
    assert main(["doctor", "--need", "meta"]) == 1
    assert "missing: meta: libmeta.so: cannot open shared object file; " in capsys.readouterr().err


def test_cache_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def refuse(**kwargs: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(doctor.tempfile, "TemporaryFile", refuse)
    assert main(["doctor", "--need", "cache"]) == 1
    assert "cannot be written (Permission denied); set RF_CACHE_DIR" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("active", "note"), [(True, "built for torch 2.13"), (False, "no compiler: c++ not found\nlooked in PATH")]
)
@pytest.mark.needs("torch")
def test_native_path_of_torch(
    active: bool, note: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = importlib.import_module("rf.backends.torch")
    monkeypatch.setattr(module, "native_path_status", lambda: (active, note), raising=False)
    assert main(["doctor", "--need", "torch-native"]) == (0 if active else 1)
    out, err = capsys.readouterr()
    assert f"torch path {'native' if active else 'python'}" in out
    if not active:
        assert "missing: torch-native: no compiler: c++ not found looked in PATH; " in err
        assert "install a C++17 compiler" in err or "it needs the native core" in err
