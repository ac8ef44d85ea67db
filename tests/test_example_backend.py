"""Backends of other packages: the example in tests/lists_backend.py, what it lacks, and how they are registered."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lists_backend
import numpy as np
import pytest
from conformance.cases import lacking
from conformance.samples import SAMPLES

import rf
from rf import backend
from rf.backend import Backend, register_backend

TESTS = Path(__file__).parent
LACKS = (
    "arange concat pad make_complex real_as_complex complex_as_real log sin cos ceil floor round expm1 log1p erf sign "
    "is_finite is_infinite is_neg_infinite floordiv mod pow logaddexp min argmin logsumexp cumsum log_softmax "
    "scatter sort random_uniform random_normal random_truncated_normal conv transposed_conv max_pool avg_pool lstm "
    "ctc_loss stft"
)


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a test registers is forgotten after it."""
    for name in "_FACTORIES", "_BACKENDS":
        monkeypatch.setattr(backend, name, dict(getattr(backend, name)))
    yield
    backend._BY_RAW_TYPE.clear()


def lists(array: Any, *dims: rf.Dim) -> rf.Tensor:
    with rf.use_backend("lists"):
        return rf.convert_to_tensor(np.asarray(array, dtype=np.float32), dims=dims)


# -- the example


def test_example_is_short() -> None:
    lines = inspect.getsource(lists_backend).splitlines()
    assert sum(bool(line.strip()) for line in lines) < 100


def test_example_lacks_what_it_does_not_define() -> None:
    assert " ".join(rf.get_backend("lists").missing_kernels()) == LACKS
    for name in "numpy", "meta":
        assert rf.get_backend(name).missing_kernels() == ()


def test_samples_that_the_example_does_not_cover_need_what_it_lacks() -> None:
    """The others are cases of the suites."""
    reasons = set(lacking("lists").values()) - set(LACKS.split())
    assert reasons == {f"backend lists has no {dtype}" for dtype in ("bfloat16", "complex64", "complex128")}
    covered = {s.op for s in SAMPLES if s.id not in lacking("lists")}
    assert len(covered) > 120
    some = {"add", "reduce_mean", "reduce_argmax", "softmax", "matmul", "gather", "LayerNorm", "SelfAttention"}
    assert some <= covered


def test_error_of_a_missing_kernel() -> None:
    t = rf.Dim(3, name="time")
    with pytest.raises(rf.KernelMissingError) as caught:
        rf.cumsum(lists([1, 2, 3], t), spatial_dim=t)
    assert str(caught.value) == (
        "backend lists has no kernel 'cumsum', which this op needs there. Convert the operands to a backend that has "
        "it, rf.convert_backend(x, 'numpy'), or give the backend that kernel."
    )
    assert isinstance(caught.value, rf.BackendError) and caught.value.kernel == "cumsum"
    x, y = lists([1, 2, 3], t), lists([1, 0, 0], t)
    with pytest.raises(rf.KernelMissingError, match="lists has no kernel 'log_softmax'"):  # which another kernel uses
        rf.cross_entropy(target=y, estimated=x, axis=t, estimated_type="logits")
    with pytest.raises(rf.BackendError, match="backend lists computes no gradients"):
        rf.gradient(rf.reduce_sum(x, axis=t), x)


def test_example_beside_others() -> None:
    t = rf.Dim(3, name="time")
    x = lists([1, 2, 3], t)
    assert isinstance(x.raw_tensor, lists_backend.Array) and x.backend is rf.get_backend("lists")
    assert rf.convert_to_tensor(x.raw_tensor, dims=[t]).backend is x.backend
    y = rf.convert_backend(x, "numpy")
    with pytest.raises(rf.BackendError, match=r"(?s)operands of different backends \(lists, numpy\).*convert_backend"):
        x + y
    assert (x + rf.convert_backend(y, "lists")).numpy().tolist() == [2, 4, 6]
    assert (rf.convert_backend(x, "numpy") * y).numpy().tolist() == [1, 4, 9]


def python(*args: str, path: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """Run Python, which finds modules in `path` and those that are found here."""
    env["PYTHONPATH"] = os.pathsep.join([str(path), *sys.path])
    return subprocess.run(
        [sys.executable, *args], capture_output=True, text=True, env=os.environ | env, cwd=TESTS.parent
    )


def test_selected_by_the_environment() -> None:
    code = "import rf, lists_backend\nprint(rf.zeros([rf.Dim(2, name='f')]))"
    result = python("-c", code, path=TESTS, RF_BACKEND="lists")
    assert result.stdout == "{f=2} float32 lists\n", result.stderr
    result = python("-c", code.replace(", lists_backend", ""), path=TESTS, RF_BACKEND="lists")
    assert (
        "RF_BACKEND: unknown backend 'lists'; choose one of: numpy, torch, tensorflow, meta; or meta:NAME"
        in result.stderr
    )


def test_suites_have_cases_for_backends_of_other_packages(tmp_path: Path) -> None:
    """``pytest --backend-module MODULE`` imports the module before the cases are made."""
    source = inspect.getsource(lists_backend).replace('"lists"', '"copied"').replace(" lists ", " copied ")
    (tmp_path / "copied_backend.py").write_text(source)
    code = """
import copied_backend, conformance.test_ops
from conformance.cases import CHECKS
(mark,) = CHECKS["result"].test.pytestmark
ids = {param.id for param in mark.args[1]}
print("copied-reduce_sum-BTF-axis=T" in ids, "copied-sort-BTF-axis=T" in ids, "lists-reduce_sum-BTF-axis=T" in ids)
"""
    result = python("-c", code, path=tmp_path)
    assert result.stdout == "True False True\n", result.stderr
    options = ["--collect-only", "-q", "-p", "no:cacheprovider", "--backend-module", "no_such_backend"]
    result = python("-m", "pytest", "tests/test_needs.py", *options, path=tmp_path)
    assert result.returncode != 0 and "No module named 'no_such_backend'" in result.stderr


# -- registering


class Raw:
    """Arrays of the backends below."""


class Other(lists_backend.ListsBackend):
    name = "other"
    raw_types = (Raw,)


def test_register(registry: None) -> None:
    register_backend("other", Other)
    register_backend("other", Other)  # a module that is imported again
    assert "other" in backend.backend_names()
    made = rf.get_backend("other")
    assert type(made) is Other and rf.get_backend("other") is made
    assert made.index not in {b.index for b in backend.loaded_backends() if b is not made}
    assert backend.backend_of_raw(Raw()) is made


def test_register_is_careful(registry: None) -> None:
    for name in "torch", "lists":
        with pytest.raises(rf.UserError, match=f"there is a backend '{name}' already"):
            register_backend(name, Other)
    with pytest.raises(rf.UserError, match="'my backend' is no Python identifier"):
        register_backend("my backend", Other)
    with pytest.raises(TypeError, match="expected a function that makes the backend"):
        register_backend("other", Other())  # type: ignore[arg-type]
    with pytest.raises(rf.UserError, match="unknown backend 'other'; choose one of: numpy, torch, tensorflow, meta"):
        rf.select_backend("other")


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"name": "another"}, "its factory made <rf backend another>, which is no rf.backend.Backend of that name"),
        ({"raw_types": ()}, "names no type of raw arrays"),
        ({"raw_types": (type("Mine", (np.ndarray,), {}),)}, "arrays of type Mine are those of backend 'numpy'"),
        ({"raw_types": (object,)}, "arrays of type object are those of backend '"),
    ],
)
def test_what_a_factory_makes_is_checked(registry: None, attributes: dict[str, Any], message: str) -> None:
    rf.get_backend("numpy")
    register_backend("other", type("Wrong", (Other,), attributes))
    with pytest.raises(rf.BackendError, match=message):
        rf.get_backend("other")
    assert "other" not in [b.name for b in backend.loaded_backends()]


def test_factory_of_something_else(registry: None) -> None:
    register_backend("other", lambda: None)  # type: ignore[arg-type, return-value]
    with pytest.raises(rf.BackendError, match="its factory made None"):
        rf.get_backend("other")


def test_transfer_is_abstract() -> None:
    with pytest.raises(TypeError, match="abstract methods? '?dtype_of'?, '?from_numpy'?, '?shape_of'?, '?to_numpy'?"):
        type("Nothing", (Backend,), {"name": "nothing"})()


# -- docs/backends.md


def test_code_of_the_guide(registry: None, capsys: pytest.CaptureFixture[str]) -> None:
    """The smallest backend runs, and prints what its comments say."""
    text = (TESTS.parent / "docs" / "backends.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    exec(compile(code, "docs/backends.md", "exec"), {})
    assert capsys.readouterr().out.splitlines() == re.findall(r"print\(.*\)  # (.*)", code)
