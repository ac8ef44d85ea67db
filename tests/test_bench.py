"""`rf bench ops`: like is compared with like, and the results are reported as measured."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rf
from rf.backend import Backend, get_backend, use_backend
from rf.cli import main
from rf.profile.environment import environment
from rf.profile.ops import BACKENDS, Case, OpTime, World, bench_ops, cases_of, select_cases
from rf.profile.report import bench_json, print_bench

torch = pytest.importorskip("torch")

TARGETS = {
    "torch": {
        "a + b": 0.72,
        "a + b, grad": 0.78,
        "a + 1.0": 0.32,
        "a + {F}": 0.75,
        "a + {B}": 0.80,
        "relu": 0.75,
        "exp": 0.75,
        "matmul": 0.90,
        "Linear, module": 0.35,
        "LayerNorm": 0.35,
        "softmax, masked": 0.60,
        "reduce_mean, dynamic": 0.50,
        "dropout": 0.40,
    },
    "tensorflow": {
        "a + b": 0.60,
        "a + 1.0": 0.40,
        "matmul, tensordot": 0.25,
        "matmul, einsum": 0.70,
        "softmax, static": 0.80,
    },
}
"""Ratios that the project promises."""

HERE = [name for name in BACKENDS if importlib.util.find_spec(name) is not None]
CASES = [(name, case) for name in HERE for case in cases_of(name)]


def ids(value: Any) -> str:
    return value if isinstance(value, str) else value.op


def calls(name: str, case: Case) -> list[Any]:
    with use_backend(name):
        return list(case.build(World(get_backend(name))))


def records(backend: Backend, result: Any) -> bool:
    """Whether gradients go through `result`, a call of this moment."""
    if backend.name == "torch":
        return result.requires_grad
    from rf.backends._tensorflow_fast import is_recorded

    return is_recorded(result)


def valid(x: Any, tensor: rf.Tensor) -> np.ndarray:
    """The values of a raw array laid out like `tensor`, with zeros in the padding."""
    assert tensor.backend is not None
    values = tensor.backend.to_numpy(x).copy()
    for axis, dim in enumerate(tensor.dims):
        if dim.need_masking():
            mask = dim.get_mask().numpy()  # {B, T}
            shape = [1] * values.ndim
            for size_dim in (*dim.base.size_dims, dim):
                shape[tensor.dims.index(size_dim)] = size_dim.get_dim_value()
            assert tensor.dims.index(dim) == axis
            values = np.where(mask.reshape(shape), values, 0)
    return values


@pytest.mark.parametrize(("name", "case"), CASES, ids=ids)
def test_like_is_compared_with_like(name: str, case: Case) -> None:
    backend = get_backend(name)
    ours, *theirs = calls(name, case)
    with backend.recording() if case.grad else backend.no_grad():
        result = ours()
        assert isinstance(result, rf.Tensor)
        if case.reference is None:
            assert not theirs
            return
        (reference,) = theirs
        expected = reference()
        raw = result.raw_tensor
        assert records(backend, raw) == records(backend, expected) == ("with gradient" in case.compares)
        with backend.no_grad():
            assert not records(backend, reference())
    assert raw.shape == expected.shape
    assert raw.dtype is expected.dtype
    assert raw.device == expected.device
    if not case.same_values:
        return
    if "not masked" in case.reference:
        # the one case where the backend's call does less
        cells = [cell.cell_contents for cell in reference.__closure__]
        (x,) = [value for value in cells if isinstance(value, backend.raw_types)]
        assert x.shape == raw.shape
        return
    np.testing.assert_allclose(valid(raw, result), valid(expected, result), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("name", "case"), [(name, case) for name, case in CASES if case.on_meta], ids=ids)
def test_meta_answers_with_the_same_dims(name: str, case: Case) -> None:
    ours = calls(name, case)[0]()
    backend = get_backend(f"meta:{name}")
    with use_backend(backend.name):
        meta = next(case.build(World(backend)))()
    assert meta.backend is backend
    assert [d.name for d in meta.dims] == [d.name for d in ours.dims]
    assert meta.dtype == ours.dtype


@pytest.mark.parametrize("name", HERE)
def test_names_are_unique_and_targets_are_those_promised(name: str) -> None:
    cases = cases_of(name)
    assert len({case.op for case in cases}) == len(cases)
    assert {case.op: case.target for case in cases if case.op in TARGETS[name]} == TARGETS[name]
    assert {case.op: case.meta_target_ns for case in cases if case.meta_target_ns} == {"a + b": 120}


def test_rows_have_what_was_measured() -> None:
    class Clock:
        now = 0

        def __call__(self) -> int:
            return self.now

    clock = Clock()

    def slow(ns: int) -> Any:
        def call() -> None:
            clock.now += ns

        return call

    def build(world: World) -> Any:
        yield slow(40 if world.backend.computes else 5)
        yield slow(50)

    modes = []

    def without_grad(world: World) -> Any:
        yield lambda: modes.append(torch.is_grad_enabled())

    cases = [
        Case("both", "x", "y", build, target=0.8, meta_target_ns=4),
        Case("alone", "x", None, without_grad, grad=False, on_meta=False),
    ]
    seen = []
    both, alone = bench_ops(get_backend("torch"), cases, rounds=1, progress=seen.append, round_ns=1, clock=clock)
    assert seen == cases
    assert both == OpTime("both", "x", 40, "y", 50, 0.8, 5, 4, 0)
    assert (both.ratio, both.reached, both.meta_reached) == (0.8, True, False)
    assert set(modes) == {False}
    assert torch.is_grad_enabled()
    assert (alone.reference_ns, alone.ratio, alone.reached, alone.meta_ns, alone.meta_reached) == (None,) * 5


def test_select_cases() -> None:
    assert select_cases("torch", None) == cases_of("torch")
    assert [case.op for case in select_cases("torch", "LINEAR")] == ["Linear", "Linear, no grad", "Linear, module"]
    with pytest.raises(rf.UserError, match="no op matches 'frobnicate'; there are: a \\+ b, "):
        select_cases("torch", "frobnicate")


def test_other_backends_have_no_reference() -> None:
    with pytest.raises(rf.UserError, match="numpy"):
        select_cases("numpy", None)


ROWS = [
    OpTime("a + b", "{B} + {B}", 80, "a + b", 100, 0.75, 100, 150, 30),
    OpTime("new", "x", 80, None, None, None, None, None, 30),
]


def test_json() -> None:
    data = json.loads(json.dumps(bench_json(ROWS, environment(get_backend("torch"))), allow_nan=False))
    first, second = data["rows"]
    assert first["op"] == "a + b"
    assert (first["rf_ns"], first["reference"], first["reference_ns"]) == (80, "a + b", 100)
    assert (first["ratio"], first["target"], first["reached"]) == (0.8, 0.75, False)
    assert (first["meta_ns"], first["meta_reached"]) == (100, True)
    assert second["ratio"] is None
    assert data["environment"]["threads"]["torch"] == torch.get_num_threads()


def test_printed(capsys: pytest.CaptureFixture[str]) -> None:
    print_bench(ROWS, environment(get_backend("torch")))
    text = capsys.readouterr().out
    assert "\033" not in text
    (row,) = [line for line in text.splitlines() if "{B} + {B}" in line]
    assert [cell.strip() for cell in row.strip("|").split("|")] == [
        *("a + b", "80", "100", "0.80", "<= 0.75", "no", "100 (<= 150: yes)", "{B} + {B}")
    ]
    assert f"core {'native' if rf._core.NATIVE else 'python'}" in text
    assert "threads 1 of" in text


# -- the command


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "ops.json"
    assert main(["bench", "ops", "--filter", "relu", "--repeat", "1", "--json", str(path)]) == 0
    assert "torch.relu" not in capsys.readouterr().err
    (row,) = json.loads(path.read_text())["rows"]
    assert row["op"] == "relu"
    assert row["ratio"] == row["rf_ns"] / row["reference_ns"]
    assert row["meta_ns"] > 0


@pytest.mark.needs("tensorflow")
def test_command_on_tensorflow(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "ops.json"
    command = ["bench", "ops", "--backend", "tensorflow", "--filter", "matmul", "--repeat", "1", "--json", str(path)]
    assert main(command) == 0
    text = capsys.readouterr().out
    assert "| matmul, einsum " in text
    data = json.loads(path.read_text())
    assert {row["reference"] for row in data["rows"]} >= {"tf.tensordot(a, b, 1)", "tf.matmul(a, b)"}
    assert all(row["meta_ns"] > 0 and row["reference_ns"] > 0 for row in data["rows"])
    assert data["environment"]["backend"] == "tensorflow"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--filter", "frobnicate"], "no op matches 'frobnicate'"),
        (["--repeat", "0"], "--repeat 0: must be at least 1"),
        (["--threads", "0"], "--threads 0: must be at least 1"),
        (["--backend", "numpy"], "there are no calls of numpy to compare with"),
        (["--backend", "torhc"], "unknown backend 'torhc'"),
        (["--json", "no/such/place.json"], "--json no/such/place.json: there is no directory"),
        (["--json", "."], "--json .: is a directory"),
    ],
)
def test_bad_arguments(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "ops", *arguments]) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.err.count("\n") == 1
    assert captured.out == ""


def test_threads_are_restored(tmp_path: Path) -> None:
    before = torch.get_num_threads()
    path = tmp_path / "ops.json"
    assert main(["bench", "ops", "--filter", "exp", "--repeat", "1", "--threads", "2", "--json", str(path)]) == 0
    assert json.loads(path.read_text())["environment"]["threads"]["torch"] == 2
    assert torch.get_num_threads() == before
