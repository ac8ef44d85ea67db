"""`rf bench ops`: like is compared with like, and the results are reported as measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rf
from rf.backend import get_backend, use_backend
from rf.cli import main
from rf.profile.environment import environment
from rf.profile.ops import CASES, Case, OpTime, World, bench_ops, select_cases
from rf.profile.report import bench_json, print_bench

torch = pytest.importorskip("torch")

TARGETS = {
    "a + b": 0.80,
    "a + 1.0": 0.45,
    "a + {F}": 0.90,
    "relu": 0.90,
    "exp": 0.90,
    "matmul": 0.95,
    "Linear": 0.95,
    "LayerNorm": 0.50,
    "softmax, dynamic": 1.30,
}
"""Ratios that the project promises."""


def calls(case: Case) -> list[Any]:
    with use_backend("torch"):
        return list(case.build(World(get_backend("torch"))))


def valid(x: Any, tensor: rf.Tensor) -> np.ndarray:
    """The values of a raw array laid out like `tensor`, with zeros in the padding."""
    values = x.detach().numpy().copy()
    for axis, dim in enumerate(tensor.dims):
        if dim.need_masking():
            mask = dim.get_mask().numpy()  # {B, T}
            shape = [1] * values.ndim
            for size_dim in (*dim.base.size_dims, dim):
                shape[tensor.dims.index(size_dim)] = size_dim.get_dim_value()
            assert tensor.dims.index(dim) == axis
            values = np.where(mask.reshape(shape), values, 0)
    return values


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.op)
def test_like_is_compared_with_like(case: Case) -> None:
    ours, *theirs = calls(case)
    result = ours()
    assert isinstance(result, rf.Tensor)
    if case.reference is None:
        assert not theirs
        return
    (reference,) = theirs
    expected = reference()
    raw = result.raw_tensor
    assert raw.shape == expected.shape
    assert raw.dtype is expected.dtype
    assert raw.device == expected.device
    assert raw.requires_grad == expected.requires_grad
    if not case.same_values:
        return
    if "not masked" in case.reference:
        # the one case where the backend's call does less
        (x,) = [cell.cell_contents for cell in reference.__closure__ if isinstance(cell.cell_contents, torch.Tensor)]
        assert x.shape == raw.shape
        return
    np.testing.assert_allclose(valid(raw, result), valid(expected, result), rtol=1e-5, atol=1e-6)
    with torch.no_grad():
        assert reference().requires_grad is False


@pytest.mark.parametrize("case", [case for case in CASES if case.on_meta], ids=lambda case: case.op)
def test_meta_answers_with_the_same_dims(case: Case) -> None:
    ours = calls(case)[0]()
    with use_backend("meta"):
        meta = next(case.build(World(get_backend("meta"))))()
    assert meta.backend is get_backend("meta")
    assert [d.name for d in meta.dims] == [d.name for d in ours.dims]
    assert meta.dtype == ours.dtype


def test_cases_with_gradient_record_it() -> None:
    for case in CASES:
        if "with gradient" in case.compares:
            ours, theirs = calls(case)
            assert ours().raw_tensor.requires_grad
            assert theirs().requires_grad


def test_names_are_unique_and_targets_are_those_promised() -> None:
    assert len({case.op for case in CASES}) == len(CASES)
    assert {case.op: case.target for case in CASES if case.op in TARGETS} == TARGETS
    assert {case.op: case.meta_target_ns for case in CASES if case.meta_target_ns} == {"a + b": 150}


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
    assert select_cases(None) == CASES
    assert [case.op for case in select_cases("LINEAR")] == ["Linear", "Linear, no grad", "Linear, module"]
    with pytest.raises(rf.UserError, match="no op matches 'frobnicate'; there are: a \\+ b, "):
        select_cases("frobnicate")


def test_other_backends_have_no_reference() -> None:
    with pytest.raises(rf.UserError, match="numpy"):
        bench_ops(get_backend("numpy"), [])


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
