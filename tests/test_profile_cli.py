"""`rf profile`, and the profiler on the model that it takes apart by default."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import rf
from rf.backend import get_backend, use_backend
from rf.cli import main
from rf.cli.profile import make_step, typical_batch
from rf.data import make_loader
from rf.profile.step import Step, _differences, _random_state
from rf.profile.tape import Tape, record
from rf.train import RunOptions

torch = pytest.importorskip("torch")

OPTIONS = RunOptions(preset="tiny", max_sequences=20, batch_size=2)


@pytest.fixture(autouse=True)
def _leave_the_step() -> Iterator[None]:
    yield
    rf.reset_run_ctx()


@pytest.fixture(scope="module")
def step() -> Step:
    return aed_step("torch")


def aed_step(backend: str) -> Step:
    dataset = OPTIONS.open(split="train", seed=OPTIONS.seed)
    batch = typical_batch(make_loader(dataset, batch_size=OPTIONS.batch_size, seed=OPTIONS.seed))
    return make_step(backend, OPTIONS, dataset, batch)


def record_step(step: Step) -> tuple[rf.Tensor, Tape]:
    """With the random numbers of every other recording."""
    with use_backend(step.backend.name):
        step.forward_only()
        with _random_state(step.backend), record(step.backend) as recording:
            loss = step.forward()
    return loss, recording.tape(loss)


def parameters(step: Step) -> list[Any]:
    return [p.raw_tensor for p in step.model.parameters() if p.trainable]  # type: ignore[attr-defined]


def test_replay_of_the_model_gives_its_loss_and_gradients(step: Step) -> None:
    loss, tape = record_step(step)
    with _random_state(step.backend):
        raw = tape.replay()
    replayed = rf.convert_to_tensor(raw, dims=())
    assert _differences(loss, replayed) == []
    assert torch.equal(raw, loss.raw_tensor)
    raws = parameters(step)
    assert len(raws) > 50
    want = torch.autograd.grad(loss.raw_tensor, raws, allow_unused=True)
    have = torch.autograd.grad(raw, raws, allow_unused=True)
    assert any(g is not None and g.abs().max() > 0 for g in want)
    for w, h in zip(want, have):
        assert (w is None) == (h is None)
        if w is not None:
            torch.testing.assert_close(h, w, rtol=0, atol=0)


def test_kernels_of_the_model_are_the_same_every_time(step: Step) -> None:
    first, second = record_step(step)[1], record_step(step)[1]
    counts = Counter(call.kernel for call in first.calls)
    assert counts == Counter(call.kernel for call in second.calls)
    assert counts["linear"] > 10
    assert sum(counts.values()) > 100
    assert len(first.time_kernels()) == len(first.calls)


def test_meta_step_has_the_dims_of_the_loss_and_nothing_else(step: Step) -> None:
    meta = aed_step("meta")
    assert meta.update is None
    with use_backend("meta"):
        loss = meta.forward()
    assert loss.backend is get_backend("meta")
    assert loss.dims == ()
    assert rf.get_run_ctx().stage == "train_step"
    with use_backend("meta"):
        meta.forward_only()
    assert rf.get_run_ctx().stage == "init"


def test_update_changes_the_parameters(step: Step) -> None:
    before = [p.detach().clone() for p in parameters(step)]
    with use_backend("torch"):
        loss = step.forward()
    assert step.update is not None
    step.update(loss)
    assert any(not torch.equal(a, b) for a, b in zip(before, parameters(step)))


# -- the command


COMMAND = ["profile", "--preset", "tiny", "--max-sequences", "20", "--batch-size", "2"]


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "profile.json"
    assert main([*COMMAND, "--steps", "2", "--json", str(path)]) == 0
    text = capsys.readouterr().out
    assert "note: the replay is not the step" not in text
    for part in "frontend", "backend", "data", "unexplained", "encoder.layers.*.self_att", "decoder.layers.*.cross_att":
        assert f"| {part} " in text
    data = json.loads(path.read_text())
    assert sum(data["split"].values()) == pytest.approx(data["wall_ms"], rel=1e-9)
    assert set(data["split"]) == {"frontend", "backend", "data", "unexplained"}
    assert min(data["split"][part] for part in ("frontend", "backend", "data")) > 0
    assert data["warnings"] == []
    assert data["frontend_backend"] == "meta:torch"
    assert (data["model"], data["preset"], data["data"]) == ("conformer-ctc-aed", "tiny", "numbers")
    assert (data["batch"], data["inputs"][0], data["steps"]) == (2, 2, 2)
    assert data["environment"]["threads"]["torch"] == 1
    assert sum(row["calls"] for row in data["kernels"]) > 100
    modules = {row["module"]: row for row in data["modules"]}
    assert modules["encoder.layers.1.ffn1"]["calls"] == 1
    assert modules["encoder.layers.1.ffn1"]["frontend_ns"] > 0
    assert sum(row["own_ms"] for row in data["modules"]) == pytest.approx(modules["(model)"]["ns"] / 1e6)


@pytest.mark.needs("tensorflow")
def test_command_on_tensorflow(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "profile.json"
    assert main([*COMMAND, "--backend", "tensorflow", "--steps", "2", "--json", str(path)]) == 0
    text = capsys.readouterr().out
    assert "the same step on the backend meta:tensorflow" in text
    data = json.loads(path.read_text())
    assert data["warnings"] == []
    assert (data["backend"], data["frontend_backend"]) == ("tensorflow", "meta:tensorflow")
    assert sum(data["split"].values()) == pytest.approx(data["wall_ms"], rel=1e-9)
    assert min(data["split"][part] for part in ("frontend", "backend", "data")) > 0
    assert data["environment"]["threads"]["tensorflow"] >= 1
    modules = {row["module"]: row for row in data["modules"]}
    assert modules["encoder.layers.1.ffn1"]["calls"] == 1
    assert modules["encoder.layers.1.ffn1"]["frontend_ns"] > 0


@pytest.mark.needs("tensorflow")
def test_frontend_asks_the_same_of_torch_and_tensorflow(step: Step) -> None:
    """So the meta step that stands for one is that of the other: their kernel calls differ only in how masks become
    arrays.
    """
    other = aed_step("tensorflow")
    counts = [Counter(c.kernel for c in record_step(s)[1].calls if c.kernel != "from_numpy") for s in (step, other)]
    assert counts[0] == counts[1]


@pytest.mark.needs("tensorflow")
def test_threads_that_cannot_be_had(capsys: pytest.CaptureFixture[str]) -> None:
    number = get_backend("tensorflow").num_threads()
    assert number is not None
    assert main([*COMMAND, "--backend", "tensorflow", "--threads", str(number + 1)]) == 2
    assert f"backend tensorflow keeps the number of threads that it has started with ({number})" in (
        capsys.readouterr().err
    )


def test_command_with_workers(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*COMMAND, "--steps", "2", "--workers", "1"]) == 0
    assert "workers 1" in capsys.readouterr().out


def test_command_on_speech(asterisk: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    folder, transcripts = asterisk
    data = ["--data", str(folder), "--transcripts", str(transcripts), "--skip-unmatched", "--max-seconds", "1"]
    assert main([*COMMAND, *data, "--steps", "1"]) == 0
    text = capsys.readouterr().out
    assert "unexplained" in text
    assert "replay is not the step" not in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--steps", "0"], "--steps 0: must be at least 1"),
        (["--threads", "0"], "--threads 0: must be at least 1"),
        (["--workers", "-1"], "--workers -1: must be at least 0"),
        (["--backend", "numpy"], "--backend numpy: computes no gradients"),
        (["--backend", "meta"], "--backend meta: computes no gradients"),
        (["--backend", "torhc"], "unknown backend 'torhc'"),
        (["--device", "abacus"], "--device abacus: backend torch cannot use it ("),
        (["--model", "confromer"], "unknown model 'confromer'"),
        (["--preset", "huge"], "unknown preset 'huge'"),
        (["--data", "no/such/place"], "no/such/place: no such directory"),
        (["--json", "no/such/place.json"], "--json no/such/place.json: there is no directory"),
    ],
)
def test_bad_arguments(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", *arguments]) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.err.count("\n") == 1
    assert captured.out == ""
