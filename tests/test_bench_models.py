"""`rf bench models`: both sides compute the same numbers, and the results are reported as measured."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rf
from rf.backend import get_backend, use_backend
from rf.bench import run
from rf.bench.case import SIZES, Case, Data, Reference, RfModel
from rf.bench.check import GRADIENT_TOLERANCE, build, check_forward, check_gradients
from rf.bench.models import CASES, select_cases
from rf.bench.peer import peer_of
from rf.bench.report import models_json, print_models
from rf.bench.run import ModelTime, bench_models, check_case
from rf.cli import main
from rf.profile.environment import environment

torch = pytest.importorskip("torch")

TRAINED = [case for case in CASES if "train" in case.steps]
FORWARD = [case for case in CASES if "forward" in case.steps]


def name(case: Case) -> str:
    return case.name


def find(name: str) -> Case:
    return next(case for case in CASES if case.name == name)


@pytest.fixture(autouse=True)
def _on_torch() -> Iterator[None]:
    with use_backend("torch"):
        yield
    rf.reset_run_ctx()


def sides(case: Case, dropout: float = 0.0) -> tuple[RfModel, Reference]:
    return build(case, "tiny", get_backend("torch"), dropout)


# -- the same numbers


@pytest.mark.parametrize("case", CASES, ids=name)
def test_same_numbers(case: Case) -> None:
    differences = check_case(get_backend("torch"), case, "tiny")
    assert set(differences) == set(case.steps)


@pytest.mark.parametrize("case", CASES, ids=name)
def test_same_numbers_in_double_precision(case: Case) -> None:
    """There, nothing but rounding in the last digits is left of a difference, or it is one of definition."""
    torch.set_default_dtype(torch.float64)
    try:
        with rf.set_default_float_dtype_ctx("float64"):
            differences = check_case(get_backend("torch"), case, "tiny")
    finally:
        torch.set_default_dtype(torch.float32)
    assert max(differences.values()) < 1e-10


@pytest.mark.parametrize("case", FORWARD, ids=name)
def test_another_weight_is_noticed(case: Case) -> None:
    ours, theirs = sides(case)
    parameters = dict(theirs.model.named_parameters())
    with torch.no_grad():
        next(
            p for name, p in parameters.items() if name.endswith("weight") and p.dim() == 1 or "weight_hh" in name
        ).mul_(-1)
    with pytest.raises(rf.RfError, match=f"^{case.name}: the result of the torch code differs"):
        check_forward(case, get_backend("torch"), ours, theirs)


@pytest.mark.parametrize(
    "case", [find("Conformer encoder"), find("Transformer decoder"), find("greedy decoding")], ids=name
)
def test_torch_code_that_ignores_lengths_is_noticed(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    def without_lengths(size: Any, dropout: float) -> Reference:
        with monkeypatch.context() as patch:
            patch.setattr(Data, "lengths", staticmethod(lambda batch, time: np.full(batch, time, dtype="int32")))
            return case.torch(size, dropout)

    with pytest.raises(rf.RfError, match="the result of the torch code differs"):
        check_case(get_backend("torch"), dataclasses.replace(case, torch=without_lengths), "tiny")


@pytest.mark.parametrize("case", TRAINED, ids=name)
def test_another_gradient_is_noticed(case: Case) -> None:
    ours, theirs = sides(case)
    *_, last = (p for p in theirs.model.parameters() if p.requires_grad)
    last.register_hook(lambda gradient: gradient * (1 + 2 * GRADIENT_TOLERANCE))
    with pytest.raises(rf.RfError, match=f"^{case.name}: the gradient of .* of torch differs"):
        check_gradients(case, get_backend("torch"), ours, theirs)


def test_another_loss_is_noticed() -> None:
    case = find("feed-forward block")
    ours, theirs = sides(case)
    assert theirs.loss is not None
    loss = theirs.loss
    with pytest.raises(rf.RfError, match="the loss of torch differs"):
        check_gradients(case, get_backend("torch"), ours, dataclasses.replace(theirs, loss=lambda: loss() * 1.01))


def test_another_parameter_is_noticed() -> None:
    case = find("feed-forward block")

    def with_more(size: Any, dropout: float) -> Reference:
        theirs = case.torch(size, dropout)
        theirs.model.more = torch.nn.Parameter(torch.zeros(1))
        return theirs

    with pytest.raises(rf.RfError, match=r"different parameters: torch alone has \['more'\], rf alone \[\]"):
        sides(dataclasses.replace(case, torch=with_more))


def test_other_ways_are_checked_too() -> None:
    case = find("LSTM cell loop")
    ours, theirs = sides(case)
    with torch.no_grad():
        theirs.others["torch.nn.LSTM"].model.lstm.weight_hh_l0.mul_(-1)
    with pytest.raises(rf.RfError, match="the result of torch.nn.LSTM differs"):
        check_forward(case, get_backend("torch"), ours, theirs)


def test_traced_cell_is_torchscript() -> None:
    _, theirs = sides(find("LSTM cell loop"))
    assert isinstance(theirs.others["TorchScript"].model.cell, torch.jit.ScriptModule)
    assert isinstance(theirs.model.cell, torch.nn.LSTMCell)


def test_greedy_decoding_that_forgets_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    from rf.bench._torch_decoder import SelfAttention, TransformerDecoder

    case = find("greedy decoding")
    ours, theirs = sides(case)
    with torch.no_grad():
        labels = ours.forward().copy_transpose(ours.dims).numpy()
    assert labels.shape == (2, 64)
    assert labels.dtype.kind == "i"
    assert (labels[0] != labels[1]).any()

    step = SelfAttention.step
    monkeypatch.setattr(
        SelfAttention, "step", lambda self, x, at, k, v: step(self, x, min(at, 20), k[:, :, :21], v[:, :, :21])
    )
    with pytest.raises(rf.RfError, match="the result of the torch code differs"):
        check_forward(case, get_backend("torch"), ours, theirs)
    monkeypatch.undo()
    monkeypatch.setattr(TransformerDecoder, "positions", property(lambda self: torch.zeros(64, 16)), raising=False)
    with pytest.raises(rf.RfError, match="the result of the torch code differs"):
        check_forward(case, get_backend("torch"), ours, theirs)


# -- the same work


@pytest.mark.parametrize("case", TRAINED, ids=name)
def test_dropout_is_active_in_training_only(case: Case) -> None:
    def differs(loss: Any) -> bool:
        return loss().item() != loss().item()

    ours, theirs = sides(case, case.dropout)
    assert ours.loss is not None and theirs.loss is not None
    check_forward(case, get_backend("torch"), ours, theirs)
    theirs.model.train()
    assert differs(ours.loss) == differs(theirs.loss) == (case.dropout > 0)


@pytest.mark.parametrize("case", TRAINED, ids=name)
def test_both_sides_drop_as_much(case: Case) -> None:
    """As many dropouts, of as many entries each."""
    ours, theirs = sides(case, case.dropout)
    assert ours.loss is not None and theirs.loss is not None
    theirs.model.train()
    assert dropouts(ours.loss) == dropouts(theirs.loss)


def dropouts(loss: Any) -> list[int]:
    """The number of entries of every draw, sorted."""
    from torch.utils._python_dispatch import TorchDispatchMode

    sizes: list[int] = []

    class Draws(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            out = func(*args, **(kwargs or {}))
            if func._schema.name in ("aten::bernoulli_", "aten::uniform_", "aten::dropout"):
                sizes.append(out.numel())
            return out

    with Draws():
        loss()
    return sorted(sizes)


@pytest.mark.parametrize("case", TRAINED, ids=name)
def test_training_steps_train_all_parameters(case: Case) -> None:
    ours, theirs = sides(case, case.dropout)
    backend = get_backend("torch")
    with use_backend("meta"):
        frontend = case.rf(get_backend("meta"), case.sizes["tiny"], case.dropout)
    calls = run._train_calls(peer_of(backend), ours, theirs, frontend)
    assert list(calls)[:2] == ["rf", "torch"]
    assert set(calls) == {"rf", "torch", "meta", *theirs.others}
    ours_by_name = {name: p.raw_tensor for name, p in ours.model.named_parameters() if p.trainable}
    theirs_by_name = {name: p for name, p in theirs.model.named_parameters() if p.requires_grad}
    assert len(ours_by_name) == len(theirs_by_name)
    assert sum(p.numel() for p in ours_by_name.values()) == sum(p.numel() for p in theirs_by_name.values())
    for parameters, call in ((ours_by_name, calls["rf"]), (theirs_by_name, calls["torch"])):
        before = {name: p.detach().clone() for name, p in parameters.items()}
        call()
        assert [name for name, p in parameters.items() if torch.equal(p, before[name])] == []


@pytest.mark.parametrize("case", CASES, ids=name)
def test_meta_answers_with_the_same_dims(case: Case) -> None:
    meta = get_backend("meta")
    ours, _ = sides(case)
    want = ours.forward()
    with use_backend("meta"):
        frontend = case.rf(meta, case.sizes["tiny"], case.dropout)
        have = frontend.forward()
        assert frontend.loss is None or frontend.loss().backend is meta
    assert have.backend is meta
    assert [d.name for d in have.dims] == [d.name for d in want.dims]
    assert have.dtype == want.dtype


def test_table_of_cases() -> None:
    assert len({case.name for case in CASES}) == len(CASES)
    for case in CASES:
        assert tuple(case.sizes) == SIZES
        assert {step for step, _ in case.targets} >= set(case.steps)
    assert {
        (case.name, step): target for case in CASES for (step, size), target in case.targets.items() if size == "tiny"
    } == {
        ("Conformer encoder", "forward"): 0.6,
        ("Conformer encoder", "train"): 0.75,
        ("Conformer encoder, no padding", "forward"): 0.6,
        ("Conformer encoder, no padding", "train"): 0.75,
        ("Transformer decoder", "train"): 0.75,
        ("Transformer decoder, no dropout", "train"): 0.75,
        ("greedy decoding", "forward"): 0.5,
        ("LSTM language model", "forward"): 1.0,
        ("LSTM language model", "train"): 1.0,
        ("LSTM cell loop", "forward"): 0.6,
        ("LSTM cell loop", "train"): 0.75,
        ("ResNet-18", "forward"): 0.8,
        ("ResNet-18", "train"): 0.9,
        ("feed-forward block", "forward"): 0.6,
        ("feed-forward block", "train"): 0.75,
    }


def test_select_cases() -> None:
    assert select_cases(None) == CASES
    assert [case.name for case in select_cases("RESNET")] == ["ResNet-18"]
    with pytest.raises(rf.UserError, match="no model matches 'frobnicate'; there are: Conformer encoder, "):
        select_cases("frobnicate")


# -- results


def test_rows_have_what_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    class Clock:
        now = 0

        def __call__(self) -> int:
            return self.now

    clock, modes = Clock(), set()

    def slow(ms: int, value: Any) -> Any:
        def call() -> Any:
            clock.now += ms * 1_000_000
            modes.add((value is forward, torch.is_grad_enabled()))
            return value

        return call

    forward = rf.convert_to_tensor(torch.ones(()), dims=())
    weight = torch.ones((), requires_grad=True)
    module = torch.nn.Module()
    module.weight = torch.nn.Parameter(torch.ones(()))

    def of_rf(backend: Any, size: int, dropout: float) -> RfModel:
        factor = 1 if backend.computes else 0.5
        model = rf.Module()
        model.weight = rf.Parameter([])  # type: ignore[attr-defined]
        return RfModel(model, (), slow(int(4 * size * factor), forward), slow(int(8 * size * factor), forward))

    def of_torch(size: int, dropout: float) -> Reference:
        other = Reference(module, dict, slow(7 * size, torch.ones(())), slow(9 * size, weight * 1))
        return Reference(module, dict, slow(5 * size, torch.ones(())), slow(8 * size, weight * 1), {"other": other})

    case = Case("x", "an x", {"tiny": 1, "realistic": 2}, of_rf, of_torch, {("forward", "tiny"): 0.7}, ("forward",))
    monkeypatch.setattr(
        run,
        "build",
        lambda case, size, backend, *_: (of_rf(backend, case.sizes[size], 0), of_torch(case.sizes[size], 0)),
    )
    seen: list[str] = []
    backend = get_backend("torch")
    tiny, realistic = bench_models(backend, [case], SIZES, rounds=1, progress=seen.append, round_ns=1, clock=clock)
    assert seen == ["x, tiny", "x, realistic"]
    assert tiny == ModelTime(
        "x", "an x", "tiny", "forward", 4, "torch", 5, 2, 0.7, 0.0, 0.1, 1, {"other": 7}, {"other": 4 / 7}
    )
    assert (tiny.ratio, tiny.reached, tiny.frontend_share) == (0.8, False, 0.5)
    assert realistic == ModelTime(
        "x", "an x", "realistic", "forward", 8, "torch", 10, 4, None, 0.0, 0.1, 1, {"other": 14}, {"other": 8 / 14}
    )
    assert realistic.reached is None
    assert modes == {(True, False), (False, False)}
    assert torch.is_grad_enabled()


ROWS = [
    ModelTime("A", "an a", "tiny", "forward", 1.5, "torch", 2.0, 0.375, 0.75, 1e-7, 0.1, 15),
    ModelTime(
        "B",
        "a b",
        "realistic",
        "train",
        30.0,
        "torch",
        20.0,
        0.3,
        None,
        1e-7,
        0.0,
        15,
        {"torch.nn.X": 25.0},
        {"torch.nn.X": 1.2},
        {"torch.nn.X": 1.1},
    ),
]

KEYS = {
    "model": str,
    "what": str,
    "size": str,
    "step": str,
    "rf_ms": float,
    "reference": str,
    "reference_ms": float,
    "ratio": float,
    "target": float,
    "reached": bool,
    "meta_ms": float,
    "frontend_share": float,
    "others_ms": dict,
    "others_ratio": dict,
    "others_target": dict,
    "difference": float,
    "dropout": float,
    "rounds": int,
}


def test_json() -> None:
    data = json.loads(json.dumps(models_json(ROWS, environment(get_backend("torch"))), allow_nan=False))
    first, second = data["rows"]
    assert {key: type(value) for key, value in first.items()} == KEYS
    assert (first["ratio"], first["target"], first["reached"], first["frontend_share"]) == (0.75, 0.75, True, 0.25)
    assert (second["ratio"], second["target"], second["reached"]) == (1.5, None, None)
    assert (second["others_ms"], second["others_ratio"]) == ({"torch.nn.X": 25.0}, {"torch.nn.X": 1.2})
    assert second["others_target"] == {"torch.nn.X": 1.1}
    assert data["peers"] == {}
    assert data["environment"]["threads"]["torch"] == torch.get_num_threads()


def test_printed(capsys: pytest.CaptureFixture[str]) -> None:
    print_models(ROWS, environment(get_backend("torch")), reference="torch", optimizer="fused AdamW")
    text = capsys.readouterr().out
    assert "\033" not in text
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in text.splitlines()
        if line.startswith("|") and not line.startswith("| model")
    ]
    assert rows == [
        ["A", "tiny", "forward", "1.500", "2.000", "0.75", "<= 0.75", "yes", "0.375", "25%", "an a"],
        ["B", "realistic", "train", "30.000", "20.000", "1.50", "", "", "0.300", "1%", "a b"],
        ["B", "realistic", "train", "torch.nn.X", "25.000", "1.20", "<= 1.10", "no"],
    ]
    assert "threads 1 of" in text


def test_other_backends_have_no_models() -> None:
    with pytest.raises(rf.UserError, match="no models of numpy"):
        bench_models(get_backend("numpy"), [], ["tiny"])


# -- the command


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "models.json"
    before = torch.get_num_threads()
    arguments = ["--filter", "cell loop", "--repeat", "1", "--threads", "2", "--peers", "none", "--json", str(path)]
    assert main(["bench", "models", *arguments]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    assert "threads 2 of" in captured.out
    data = json.loads(path.read_text())
    assert data["environment"]["threads"]["torch"] == 2
    assert torch.get_num_threads() == before
    forward, train = data["rows"]
    assert {key: type(value) for key, value in forward.items()} == KEYS
    assert [row["step"] for row in (forward, train)] == ["forward", "train"]
    for row in (forward, train):
        assert (row["model"], row["size"], row["rounds"]) == ("LSTM cell loop", "tiny", 1)
        assert row["ratio"] == row["rf_ms"] / row["reference_ms"]
        assert row["meta_ms"] > 0
        assert set(row["others_ms"]) == {"torch.nn.LSTM", "TorchScript"}
    # It leaves no step behind.
    assert rf.get_run_ctx().stage == "init"


def test_sizes_of_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    monkeypatch.setattr(run, "bench_models", lambda *args, **_: seen.append(args[2]) or [])
    for options in ([], ["--size", "realistic"], ["--size", "all"]):
        assert main(["bench", "models", *options]) == 0
    assert [tuple(sizes) for sizes in seen] == [("tiny",), ("realistic",), ("tiny", "realistic")]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["models", "--filter", "frobnicate"], "no model matches 'frobnicate'"),
        (["models", "--backend", "numpy"], "no models of numpy to compare with; use --backend torch"),
        (["models", "--size", "huge"], "invalid choice: 'huge'"),
        (["models", "--repeat", "0"], "--repeat 0: must be at least 1"),
        (["models", "--json", "no/such/place.json"], "--json no/such/place.json: there is no directory"),
        (["ops", "--size", "tiny"], "--size tiny: only models have sizes"),
    ],
)
def test_bad_arguments(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", *arguments]) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.err.count("\n") == 1
    assert captured.out == ""
