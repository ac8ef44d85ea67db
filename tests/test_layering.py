"""Import rules between the layers of rf, checked on the source text, and two rules about files.

Imports inside functions, under TYPE_CHECKING and by a constant name given to `import_module` count like any other.
"""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

FRAMEWORKS = frozenset({"torch", "tensorflow", "keras", "jax"})
OPTIONAL = FRAMEWORKS | {"soundfile", "py_spy", "returnn", "i6_models"}
"""Packages that the bare install lacks."""

MAX_LINES = 700


@dataclass(frozen=True)
class Layer:
    """What one group of modules may import.

    :param modules: patterns of full module names; a module belongs to the first layer that matches
    :param layers: names of the layers that it may import, besides itself
    :param packages: those of `OPTIONAL` that it may import
    """

    name: str
    modules: tuple[str, ...]
    layers: tuple[str, ...] = ()
    packages: frozenset[str] = frozenset()


USER_LEVEL = ("root", "core", "registry", "ops", "nn")
"""What code written on top of rf, as users write it, imports: mostly `import rf`."""

LAYERS = (
    Layer("backend numpy", ("rf.backends.numpy", "rf.backends._numpy*"), ("core",)),
    Layer("backend torch", ("rf.backends.torch", "rf.backends._torch*"), ("core",), frozenset({"torch"})),
    Layer(
        "backend tensorflow",
        ("rf.backends.tensorflow", "rf.backends._tensorflow*"),
        ("core",),
        frozenset({"tensorflow"}),
    ),
    Layer("backend meta", ("rf.backends.meta", "rf.backends._meta*"), ("core",)),
    Layer("registry", ("rf.backends",), ("core",)),
    Layer("core", ("rf._*", "rf.backend", "rf.dtypes")),
    Layer("ops", ("rf.ops", "rf.ops.*", "rf.run_ctx", "rf.tensor_dict", "rf.tensor_array"), ("core", "registry")),
    Layer(
        "nn",
        (
            "rf.nn",
            "rf.nn.*",
            "rf.encoder",
            "rf.encoder.*",
            "rf.decoder",
            "rf.decoder.*",
            "rf.audio",
            "rf.audio.*",
            "rf.init",
            "rf.types",
            "rf.nested",
            "rf.hooks",
            "rf.parametrize",
        ),
        USER_LEVEL,
    ),
    Layer("optim", ("rf.optim", "rf.optim.*"), USER_LEVEL, frozenset({"torch"})),
    Layer("checkpoint", ("rf.checkpoint",), USER_LEVEL, frozenset({"torch"})),
    Layer("models", ("rf.models", "rf.models.*"), USER_LEVEL),
    Layer("data", ("rf.data", "rf.data.*"), USER_LEVEL, frozenset({"torch", "soundfile"})),
    Layer("bench torch", ("rf.bench._torch*",), (), frozenset({"torch"})),  # knows nothing of rf
    Layer("bench keras", ("rf.bench._keras*",), (), frozenset({"tensorflow", "keras"})),
    Layer(
        "bench packages",
        ("rf.bench._returnn*", "rf.bench._i6*"),
        (),
        frozenset({"torch", "returnn", "i6_models"}),
    ),
    Layer(
        "bench",
        ("rf.bench", "rf.bench.*"),
        (*USER_LEVEL, "models", "optim", "profile", "bench torch", "bench keras", "bench packages"),
        frozenset({"torch", "tensorflow", "keras"}),
    ),
    Layer("profile", ("rf.profile", "rf.profile.*"), USER_LEVEL, frozenset({"torch", "tensorflow", "py_spy"})),
    Layer(
        "train",
        ("rf.train", "rf.train.*"),
        (*USER_LEVEL, "optim", "checkpoint", "models", "data"),
        frozenset({"torch"}),
    ),
    Layer(
        "cli",
        ("rf.cli", "rf.cli.*"),
        (*USER_LEVEL, "optim", "checkpoint", "models", "data", "profile", "bench", "train"),
        OPTIONAL,
    ),
    Layer("root", ("rf",), ("core", "registry", "ops", "nn")),
)
BY_NAME = {layer.name: layer for layer in LAYERS}


def layer_of(module: str) -> Layer | None:
    return next((layer for layer in LAYERS if any(fnmatchcase(module, pattern) for pattern in layer.modules)), None)


def imported_modules(tree: ast.AST, module: str, is_package: bool, known: frozenset[str]) -> Iterator[tuple[int, str]]:
    """(line, full module name) of every import in `tree`.

    ``from a import b`` gives ``a.b`` where that is in `known`, the modules that exist, else ``a``.
    """
    package = module if is_package else module.rpartition(".")[0]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = package.split(".")
                parents = parents[: len(parents) - (node.level - 1)]
                base = ".".join((*parents, base)) if base else ".".join(parents)
            for alias in node.names:
                full = f"{base}.{alias.name}"
                yield node.lineno, full if full in known else base
        elif isinstance(node, ast.Call) and node.args:
            function = node.func
            name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
            argument = node.args[0]
            if name in ("import_module", "__import__") and isinstance(argument, ast.Constant):
                yield node.lineno, str(argument.value)


def violations(source: str, module: str, *, is_package: bool = False, known: frozenset[str]) -> list[str]:
    """The imports of `source`, text of the module named `module`, that the rules forbid."""
    layer = layer_of(module)
    if layer is None:
        return [f"{module}: belongs to no layer, add it to a row of LAYERS in tests/test_layering.py"]
    found = []
    for line, target in imported_modules(ast.parse(source), module, is_package, known):
        top = target.partition(".")[0]
        if top == "rf":
            target_layer = layer_of(target)
            if target_layer is None:
                problem = "which belongs to no layer"
            elif target_layer is layer or target_layer.name in layer.layers:
                continue
            else:
                problem = f"of layer {target_layer.name}"
        elif top in OPTIONAL and top not in layer.packages:
            problem = "which that layer must not need"
        else:
            continue
        found.append(f"{module}:{line}: layer {layer.name} imports {target}, {problem}")
    return found


def module_files() -> dict[str, Path]:
    """Full module name -> file, of the whole package."""
    files = {}
    for path in sorted((ROOT / "rf").rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        files[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return files


def test_layers_of_rf() -> None:
    files = module_files()
    known = frozenset(files)
    assert "rf._core_py" in known
    found: list[str] = []
    for module, path in files.items():
        is_package = path.name == "__init__.py"
        found += violations(path.read_text(encoding="utf-8"), module, is_package=is_package, known=known)
    assert not found, "\n".join(found)


def test_nothing_in_rf_imports_tools_or_tests() -> None:
    files = module_files()
    for module, path in files.items():
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for line, target in imported_modules(tree, module, path.name == "__init__.py", frozenset(files)):
            assert target.partition(".")[0] not in ("tools", "tests", "pytest", "setuptools"), (
                f"{module}:{line}: {target}"
            )


KNOWN = frozenset({"rf", "rf._dim", "rf.backend", "rf.backends", "rf.ops", "rf.ops.reduce", "rf.nn", "rf.models"})


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("rf._dim", "import torch"),
        ("rf._dim", "import torch.nn.functional as F"),
        ("rf._dim", "def f():\n    from torch import nn"),
        ("rf._dim", "if TYPE_CHECKING:\n    import torch"),
        ("rf._dim", "import importlib\nimportlib.import_module('torch')"),
        ("rf._dim", "from rf import ops"),
        ("rf._dim", "from . import ops"),
        ("rf._dim", "from .ops.reduce import reduce_sum"),
        ("rf._dim", "class A:\n    def f(self):\n        import rf"),
        ("rf._dim", "import rf.ops.reduce"),
        ("rf._dim", "from .backends import torch"),
        ("rf.backend", "from .backends.torch import x"),
        ("rf.backends.torch", "import tensorflow"),
        ("rf.backends.torch", "from . import numpy"),
        ("rf.backends.torch", "from .numpy import NumpyBackend"),
        ("rf.backends.torch", "from ..ops import reduce"),
        ("rf.backends.meta", "import torch"),
        ("rf.ops.reduce", "import rf"),
        ("rf.ops.reduce", "from ..nn import linear"),
        ("rf.ops.reduce", "from ..backends import torch"),
        ("rf.nn.linear", "import torch"),
        ("rf.nn.linear", "from rf.models import aed"),
        ("rf.models.aed", "from ..profile import record"),
        ("rf.models.aed", "from rf.data import numbers"),
        ("rf.data.speech", "from rf.models import aed"),
        ("rf.profile.record", "import rf.models.aed"),
        ("rf.profile.record", "from rf.cli import main"),
        ("rf.profile.record", "import rf.bench.run"),
        ("rf.bench._torch_lstm", "import rf"),
        ("rf.bench._returnn_models", "import rf"),
        ("rf.bench.run", "def f():\n    import returnn.frontend"),
        ("rf.bench.run", "import rf.cli.bench"),
        ("rf.something_new", "x = 1"),
    ],
)
def test_checker_flags_violation(module: str, source: str) -> None:
    known = KNOWN | {"rf.backends.torch", "rf.backends.numpy"}
    assert len(violations(source, module, known=known)) == 1


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("rf._dim", "import numpy\nfrom . import _errors\nfrom ._plan import Plan\nfrom rf import dtypes\nimport os"),
        (
            "rf.backends.torch",
            "import torch\nfrom torch import nn\nfrom ..backend import Backend\nfrom rf import dtypes",
        ),
        ("rf.backends.tensorflow", "def f():\n    import tensorflow as tf"),
        (
            "rf.ops.reduce",
            "from .elementwise import exp\nfrom .._tensor import Tensor\nfrom ..backends import select_backend",
        ),
        (
            "rf.nn.linear",
            "import rf\nfrom rf import ops\nfrom ..ops.reduce import reduce_sum\nfrom .module import Module",
        ),
        ("rf.models.aed", "import rf\nfrom rf.encoder.conformer import ConformerEncoder"),
        ("rf.data.speech", "def f():\n    import soundfile, torch"),
        ("rf.bench._torch_lstm", "import torch"),
        ("rf.bench._returnn_models", "import returnn.frontend as rf\nimport rf.bench._returnn_modules"),
        ("rf.bench.run", "import rf\nimport rf.profile.timing\nfrom rf.bench import _torch_lstm"),
        (
            "rf.cli.train",
            "import torch, rf\nfrom ..models import aed\nfrom ..profile import record\nfrom ..data import speech",
        ),
    ],
)
def test_checker_passes_what_is_allowed(module: str, source: str) -> None:
    known = KNOWN | {"rf.dtypes", "rf._errors"}
    assert violations(source, module, known=known) == []


def test_relative_import_in_a_package_is_relative_to_it() -> None:
    source = "from .numpy import NumpyBackend"
    assert violations(source, "rf.backends", is_package=True, known=KNOWN) != []
    assert violations("from .reduce import reduce_sum", "rf.ops", is_package=True, known=KNOWN) == []


def project_files() -> list[Path]:
    """All files of the project: what git tracks, and what it would track after an add."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\0")
    return [path for name in names if name and (path := ROOT / name).is_file()]


@pytest.mark.needs("git")
def test_no_file_is_too_long() -> None:
    lengths = {
        str(path.relative_to(ROOT)): len(path.read_text(encoding="utf-8").splitlines())
        for path in project_files()
        if path.suffix in (".py", ".cpp", ".h")
    }
    too_long = {name: length for name, length in lengths.items() if length >= MAX_LINES}
    assert lengths
    assert not too_long, f"files of {MAX_LINES} lines or more want to be two: {too_long}"


# The start of an absolute path of a developer's machine, written so that this file has none.
MACHINE_PATH = re.compile(r"(?<![\w.~)}/-])/(?:work|root|home/\w+|Users/\w+)" + "/")


@pytest.mark.needs("git")
def test_no_file_has_paths_of_a_machine() -> None:
    found = []
    for path in project_files():
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue  # not text
        found += [f"{path.relative_to(ROOT)}: {match.group()}" for match in MACHINE_PATH.finditer(text)]
    assert not found, "\n".join(found)


def test_machine_path_pattern() -> None:
    for text in ("see /" + "work/main", '"/' + 'root/x"', "=/" + "home/someone/x", "(/" + "Users/me/x)"):
        assert MACHINE_PATH.search(text), text
    for text in ("at work/home", "a/" + "root/b", "https://x.org/" + "work/1", "/usr/share/x", "~/" + "work/x"):
        assert not MACHINE_PATH.search(text), text
