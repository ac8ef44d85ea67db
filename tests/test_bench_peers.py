"""`rf bench models` against other packages: they compute the same numbers, and none of them is needed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import rf
from rf.backend import get_backend, use_backend
from rf.bench import packages, run
from rf.bench.case import Case, Reference
from rf.bench.check import build
from rf.bench.models import CASES
from rf.bench.packages import PACKAGES, Package, select_packages
from rf.bench.peer import peer_of
from rf.bench.run import check_case
from rf.cli import main

torch = pytest.importorskip("torch")
from test_bench_models import dropouts, find  # noqa: E402  (it needs torch)

from rf.bench import _torch_lstm  # noqa: E402  (it needs torch)

RETURNN, I6_MODELS, COMPILE = PACKAGES
PAIRS = [
    pytest.param(package, case, id=f"{package.name}-{case.name}", marks=pytest.mark.needs(package.name.lower()))
    for package in (RETURNN, I6_MODELS)
    for case in CASES
    if case.name in package.models
]
LSTM = ["LSTM cell loop"]


@pytest.fixture(autouse=True)
def _on_torch() -> Iterator[None]:
    with use_backend("torch"):
        yield
    rf.reset_run_ctx()


def absent(name: str = "Absent") -> Package:
    def fail(*_: Any) -> Any:
        raise AssertionError("used although it is not installed")

    return Package(name, ("rf", "no_such_module"), "pip install absent", {case.name: fail for case in CASES}, fail)


# -- the same numbers and the same work


def test_packages_and_cases_fit() -> None:
    assert [package.name for package in PACKAGES] == ["RETURNN", "i6_models", "torch.compile"]
    names = {case.name for case in CASES}
    for package in PACKAGES:
        assert set(package.models) <= names
        assert {case for case, _, _ in package.targets} <= set(package.models)
    assert RETURNN.targets == {
        ("Conformer encoder", "forward", "tiny"): 0.2,
        ("Conformer encoder", "train", "tiny"): 0.33,
    }


@pytest.mark.parametrize(("package", "case"), PAIRS)
def test_same_numbers_in_double_precision(package: Package, case: Case) -> None:
    torch.set_default_dtype(torch.float64)
    try:
        with rf.set_default_float_dtype_ctx("float64"):
            differences = check_case(get_backend("torch"), case, "tiny", [package])
    finally:
        torch.set_default_dtype(torch.float32)
    assert max(differences.values()) < 1e-10


@pytest.mark.parametrize(("package", "case"), PAIRS)
def test_same_work(package: Package, case: Case) -> None:
    """Each side draws as many numbers for dropout, and a training step changes all of its parameters."""
    if "train" not in case.steps:
        return
    backend = get_backend("torch")
    ours, theirs = build(case, "tiny", backend, case.dropout, [package])
    other = theirs.others[package.name]
    assert ours.loss is not None and other.loss is not None
    other.model.train()
    assert dropouts(other.loss) == dropouts(ours.loss)
    with use_backend("meta"):
        frontend = case.rf(get_backend("meta"), case.sizes["tiny"], case.dropout)
    step = run._train_calls(peer_of(backend), ours, theirs, frontend)[package.name]
    before = {name: p.detach().clone() for name, p in other.model.named_parameters() if p.requires_grad}
    step()
    after = dict(other.model.named_parameters())
    assert [name for name, value in before.items() if torch.equal(value, after[name])] == []
    trained = {name: p for name, p in ours.model.named_parameters() if p.trainable}
    assert sum(p.raw_tensor.numel() for p in trained.values()) == sum(value.numel() for value in before.values())


@pytest.mark.needs("returnn")
def test_lengths_that_returnn_ignores_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    from rf.bench._returnn_models import Conformer

    set_lengths = Conformer._set_lengths
    monkeypatch.setattr(
        Conformer, "_set_lengths", lambda self, dim, lengths: set_lengths(self, dim, lengths * 0 + lengths.max())
    )
    with pytest.raises(rf.RfError, match="the result of RETURNN differs"):
        check_case(get_backend("torch"), find("Conformer encoder"), "tiny", [RETURNN])


@pytest.mark.needs("returnn", "compiler")
def test_returnn_runs_its_native_code() -> None:
    assert RETURNN.about().endswith("native code on")


@pytest.mark.needs("returnn")
def test_returnn_leaves_torch_and_rf_as_they_are() -> None:
    def state() -> dict[str, Any]:
        return {
            **{f"torch.{name}": value for name, value in vars(torch).items() if callable(value)},
            **{f"torch.Tensor.{name}": value for name, value in vars(torch.Tensor).items()},
            **{f"rf.{name}": value for name, value in vars(rf).items()},
            "threads": torch.get_num_threads(),
            "dtype": torch.get_default_dtype(),
            "gradients": torch.is_grad_enabled(),
        }

    before = state()
    RETURNN.about()
    check_case(get_backend("torch"), find("feed-forward block"), "tiny", [RETURNN])
    after = state()
    assert {name for name in before if before[name] is not after[name] and before[name] != after[name]} == set()
    assert rf.get_run_ctx().stage == "train_step"


# torch.compile asks every tensor for its gradient, and imports what torch deprecates.
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:The .grad attribute of a Tensor:UserWarning")
def test_compiled_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    """It computes the same numbers, compiled: a cell that cannot be compiled as a whole raises an error.

    Without code in C++, which takes half a minute to build.
    """
    monkeypatch.setattr(_torch_lstm, "CompiledCell", partial(_torch_lstm.CompiledCell, backend="aot_eager"))
    graphs = torch._dynamo.utils.counters["stats"]
    before = graphs["unique_graphs"]
    check_case(get_backend("torch"), find("LSTM cell loop"), "tiny", [COMPILE])
    assert graphs["unique_graphs"] > before


# -- what is selected


def test_selection(monkeypatch: pytest.MonkeyPatch) -> None:
    def package(name: str, case: str, by_default: bool = True) -> Package:
        return Package(name, ("rf",), "", {case: Reference}, lambda: f"about {name}", by_default=by_default)

    a, b, c = package("A", "x"), package("B.b", "x", by_default=False), package("C", "y")
    monkeypatch.setattr(packages, "PACKAGES", (a, b, c, absent("D")))

    def selected(text: str | None, *cases: str) -> tuple[list[str], dict[str, str]]:
        peers = select_packages(text, cases)
        return [p.name for p in peers.packages], dict(peers.notes)

    missing = {"D": "not installed; pip install absent"}
    assert selected(None, "x", "y") == (["A", "C"], {"A": "about A", "C": "about C"})
    assert selected(None, *LSTM, "x") == (["A"], {"A": "about A"} | missing)
    assert selected("all", "x", *LSTM) == (["A", "B.b"], {"A": "about A", "B.b": "about B.b"} | missing)
    assert selected("none", "x", "y") == ([], {})
    assert selected("b.B, a,A", "x", "y") == (["B.b", "A"], {"B.b": "about B.b", "A": "about A"})
    assert selected("d", *LSTM) == ([], missing)
    with pytest.raises(rf.UserError, match="--peers a,frob: there is no 'frob'; there are: A, B.b, C, D, or all"):
        selected("a,frob", "x")


def test_absent_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(packages, "PACKAGES", (absent(),))
    path = tmp_path / "models.json"
    assert main(["bench", "models", "--filter", "feed-forward", "--repeat", "1", "--json", str(path)]) == 0
    assert "Absent: not installed; pip install absent" in capsys.readouterr().out.splitlines()
    data = json.loads(path.read_text())
    assert data["peers"] == {"Absent": "not installed; pip install absent"}
    assert [row["others_ms"] for row in data["rows"]] == [{}, {}]


def test_present_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The side of a package is what its `models` make: here, the torch code once more."""
    case = find("feed-forward block")
    key = case.name, "train", "tiny"
    monkeypatch.setattr(
        packages, "PACKAGES", (Package("Twin", ("torch",), "", {case.name: case.torch}, lambda: "1.0", {key: 100.0}),)
    )
    path = tmp_path / "models.json"
    assert main(["bench", "models", "--filter", "feed-forward", "--repeat", "1", "--json", str(path)]) == 0
    out = capsys.readouterr().out
    assert "Twin: 1.0" in out.splitlines()
    data = json.loads(path.read_text())
    assert data["peers"] == {"Twin": "1.0"}
    forward, train = data["rows"]
    for row in (forward, train):
        assert row["others_ms"]["Twin"] > 0
        assert row["others_ratio"]["Twin"] > 0
    assert (forward["others_target"], train["others_target"]) == ({}, {"Twin": 100.0})
    lines = [line for line in out.splitlines() if "Twin" in line and line.startswith("|")]
    assert ["<= 100.00" in line and "yes" in line for line in lines] == [False, True]


def test_packages_are_timed_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is timed along with a package changes nothing of the times of rf and torch."""
    case = find("LSTM cell loop")
    package = Package("Twin", ("torch",), "", {case.name: case.torch}, str, {(case.name, "train", "tiny"): 0.5})
    groups = []

    def times(functions: dict[str, Any], rounds: int, timing: Any) -> dict[str, float]:
        groups.append(list(functions))
        ms = {"rf": 2.0, "torch": 4.0, "meta": 1.0, "torch.nn.LSTM": 5.0, "TorchScript": 8.0}
        return {name: {"rf": 3.0, "Twin": 5.0}[name] if "Twin" in functions else ms[name] for name in functions}

    monkeypatch.setattr(run, "_times", times)
    forward, train = run.bench_models(get_backend("torch"), [case], ["tiny"], packages=[package])
    assert [sorted(group) for group in groups] == 2 * [
        ["TorchScript", "meta", "rf", "torch", "torch.nn.LSTM"],
        ["Twin", "rf"],
    ]
    for row in (forward, train):
        assert (row.rf_ms, row.reference_ms, row.meta_ms) == (2.0, 4.0, 1.0)
        assert row.others_ms == {"torch.nn.LSTM": 5.0, "TorchScript": 8.0, "Twin": 5.0}
        assert row.others_ratio == {"torch.nn.LSTM": 0.4, "TorchScript": 0.25, "Twin": 0.6}
    assert (forward.others_target, train.others_target) == ({}, {"Twin": 0.5})


def test_package_with_other_numbers_is_noticed() -> None:
    case = find("feed-forward block")

    def other(size: Any, dropout: float) -> Reference:
        theirs = case.torch(size, dropout)
        return Reference(theirs.model, theirs.from_rf, lambda: theirs.forward() * 1.01, theirs.loss)

    package = Package("Other", ("torch",), "", {case.name: other}, str)
    with pytest.raises(rf.RfError, match="^feed-forward block: the result of Other differs"):
        check_case(get_backend("torch"), case, "tiny", [package])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["models", "--peers", "frob"], "--peers frob: there is no 'frob'; there are: RETURNN, i6_models, torch.com"),
        (["ops", "--peers", "all"], "--peers all: other packages are compared with models on torch"),
        (["models", "--backend", "numpy", "--peers", "none"], "--peers none: other packages are compared with models"),
    ],
)
def test_bad_arguments(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", *arguments]) == 2
    assert message in capsys.readouterr().err
