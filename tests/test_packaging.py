"""The package as users install it: what the wheel holds, with and without a compiler, and that pins fit the ranges."""

from __future__ import annotations

import importlib
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
PYTHONS = ("3.10", "3.11", "3.12", "3.13")

BUILD_FILES = ("pyproject.toml", "setup.py", "MANIFEST.in", "LICENSE", "README.md")
NATIVE_MODULE = re.compile(r"rf/_native/_core\.[^/]*(so|pyd)")


def load_pyproject() -> dict:
    toml = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    return toml.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of the sources, as clean as a fresh clone."""
    target = tmp_path / "tree"
    built = shutil.ignore_patterns("*.so", "*.pyd", "__pycache__", "_build_note.txt")
    shutil.copytree(ROOT / "rf", target / "rf", ignore=built)
    for name in BUILD_FILES:
        shutil.copy(ROOT / name, target)
    return target


def build_wheel(tree: Path, **env: str) -> zipfile.ZipFile:
    out = tree.parent / f"wheel-{len(list(tree.parent.iterdir()))}"
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(out), "."]
    result = subprocess.run(command, cwd=tree, env=os.environ | env, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    (wheel,) = out.glob("rf_eager-*.whl")
    return zipfile.ZipFile(wheel)


def run_from(wheel: zipfile.ZipFile, target: Path, code: str, **env: str) -> str:
    """Run `code` on the unpacked wheel and return what it prints."""
    wheel.extractall(target)
    clean = {name: value for name, value in os.environ.items() if not name.startswith("RF_")}
    env = clean | {"PYTHONPATH": str(target)} | env
    command = [sys.executable, "-W", "error", "-c", code]
    result = subprocess.run(command, cwd=target, env=env, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return result.stdout


SHOW_CORE = "import rf, rf._core\nprint(rf.__file__, rf.__version__, rf._core.NATIVE)"


@pytest.mark.needs("compiler")
def test_wheel_with_and_then_without_compiler(tree: Path, tmp_path: Path) -> None:
    with build_wheel(tree) as wheel:
        names = wheel.namelist()
        assert len([name for name in names if NATIVE_MODULE.fullmatch(name)]) == 1
        assert wheel.read("rf/_native/_build_note.txt").decode().startswith("native\n")
        target = tmp_path / "native"
        version = load_pyproject()["project"]["version"]
        assert run_from(wheel, target, SHOW_CORE).split() == [str(target / "rf" / "__init__.py"), version, "True"]
        assert run_from(wheel, target, SHOW_CORE, RF_CORE="python").split()[-1] == "False"
    # From the same tree, where the first build left its files.
    with build_wheel(tree, CXX="/bin/false") as wheel:
        check_wheel_without_native_core(wheel, tmp_path / "python")


def test_wheel_without_compiler(tree: Path, tmp_path: Path) -> None:
    with build_wheel(tree, CXX="/bin/false") as wheel:
        check_wheel_without_native_core(wheel, tmp_path / "python")
        names = set(wheel.namelist())
        sources = {
            str(path.relative_to(ROOT)) for pattern in ("*.py", "*.cpp", "*.h") for path in (ROOT / "rf").rglob(pattern)
        }
        assert names >= sources | {"rf/py.typed"}
        (info,) = {name.split("/")[0] for name in names if not name.startswith("rf/")}
        assert not [name for name in names if name.endswith((".so", ".pyc"))]
        assert wheel.read(f"{info}/entry_points.txt").decode().split() == [
            "[console_scripts]",
            "rf",
            "=",
            "rf.cli:main",
        ]
        metadata = wheel.read(f"{info}/METADATA").decode()
        assert f"{info}/licenses/LICENSE" in names
    requirements = [Requirement(text) for text in re.findall(r"^Requires-Dist: (.*)$", metadata, re.MULTILINE)]
    assert {r.name for r in requirements if r.marker is None} == {"numpy", "rich", "safetensors"}
    extras = set(re.findall(r"^Provides-Extra: (.*)$", metadata, re.MULTILINE))
    assert extras == {"torch", "tensorflow", "profile", "audio", "peers", "test", "dev"}


def check_wheel_without_native_core(wheel: zipfile.ZipFile, target: Path) -> None:
    assert not [name for name in wheel.namelist() if NATIVE_MODULE.fullmatch(name)]
    core, reason, *_ = wheel.read("rf/_native/_build_note.txt").decode().splitlines()
    assert core == "python"
    assert "/bin/false" in reason
    assert run_from(wheel, target, SHOW_CORE).split()[-1] == "False"
    note = run_from(wheel, target, "from rf._native import build_note; print(*build_note(), sep='|')")
    assert note.strip() == f"{core}|{reason}"


def test_in_place_build_that_fails_removes_the_old_core(tree: Path) -> None:
    suffix = importlib.import_module("sysconfig").get_config_var("EXT_SUFFIX")
    old = tree / "rf" / "_native" / f"_core{suffix}"
    old.write_bytes(b"of an earlier build")
    command = [sys.executable, "setup.py", "build_ext", "--inplace"]
    subprocess.run(command, cwd=tree, env=os.environ | {"CXX": "/bin/false"}, check=True, capture_output=True)
    assert not old.exists()
    assert (tree / "rf" / "_native" / "_build_note.txt").read_text(encoding="utf-8").startswith("python\n")


@pytest.mark.needs("compiler")
def test_native_core_is_built_where_a_compiler_is() -> None:
    """A mistake in the C++ sources must not pass as a machine without a compiler."""
    from rf._native import build_note

    core, detail = build_note()
    assert core == "native", f"{detail} (to build it: make setup, after `touch setup.py` if that does nothing)"
    importlib.import_module("rf._native._core")


def test_pins_are_exact_and_fit_the_ranges() -> None:
    project = load_pyproject()["project"]
    ranges = [Requirement(text) for text in project["dependencies"]]
    for extra in project["optional-dependencies"].values():
        ranges += [Requirement(text) for text in extra]
    assert all(r.specifier for r in ranges), "a requirement without a range"
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [Requirement(line) for line in lines if line and not line.startswith("#")]
    for pin in pins:
        assert [s.operator for s in pin.specifier] == ["=="], pin
    for python in PYTHONS:
        environment = {**default_environment(), "python_version": python, "python_full_version": f"{python}.0"}
        pinned: dict[str, str] = {}
        for pin in pins:
            if pin.marker is None or pin.marker.evaluate(environment):
                name = canonicalize_name(pin.name)
                assert name not in pinned, f"{name} is pinned twice for Python {python}"
                (specifier,) = pin.specifier
                pinned[name] = specifier.version
        for requirement in ranges:
            name = canonicalize_name(requirement.name)
            assert name in pinned, f"{name} has no pin in constraints.txt for Python {python}"
            assert requirement.specifier.contains(pinned[name]), f"{requirement}: pinned {pinned[name]}"


def test_python_versions_agree() -> None:
    project = load_pyproject()["project"]
    prefix = "Programming Language :: Python :: 3."
    assert tuple(c.rpartition(" ")[2] for c in project["classifiers"] if c.startswith(prefix)) == PYTHONS
    assert project["requires-python"] == f">={PYTHONS[0]}"
