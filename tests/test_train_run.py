"""Training runs: that one which is continued is the one which never ended, and what cannot be continued."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
import toy_model

import rf
from rf import checkpoint
from rf.data import NumbersDataset
from rf.train import CHECKPOINT, CTC, DataOptions, Feed, Run, RunOptions, decode, evaluate, load_run
from rf.train.options import data_fingerprint

pytestmark = pytest.mark.needs("torch")


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    yield from toy_model.installed(monkeypatch)


def options(**given: object) -> RunOptions:
    # 20 sequences in batches of 6: an epoch has 4 steps.
    return RunOptions.make({"model": "toy", "max_sequences": 20, "batch_size": 6, "lr": 0.01, "warmup": 5} | given)


def train(run: Run, steps: int, out: Path) -> dict[str, np.ndarray]:
    """All arrays of the checkpoint after the steps: parameters, optimizer, random states."""
    for _ in run.steps(steps):
        pass
    out.mkdir(exist_ok=True)
    run.save(out)
    run.close()
    return checkpoint.read_arrays(out / CHECKPOINT)[0]


def assert_equal_bits(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> None:
    assert a.keys() == b.keys()
    for name in a:
        assert a[name].dtype == b[name].dtype, name
        assert a[name].tobytes() == b[name].tobytes(), name


def disturb() -> None:
    """Random states as a new process might have them."""
    rf.set_random_seed(987)
    torch.rand(3)


@pytest.mark.parametrize("first", [1, 3, 4, 6])  # within an epoch, at its end, in the next one
def test_resume_is_exact(tmp_path: Path, toy: str, first: int) -> None:
    straight = train(Run.start(options()), 7, tmp_path / "a")
    disturb()
    train(Run.start(options()), first, tmp_path / "b")
    disturb()
    resumed = train(Run.resume(load_run(tmp_path / "b"), {}), 7, tmp_path / "b")
    assert_equal_bits(straight, resumed)
    assert any(name.startswith("/optimizer/out.weight/") for name in straight)
    assert any(name.startswith("/random/torch") for name in straight)
    assert "tied.weight" not in straight
    assert not np.array_equal(straight["norm.running_mean"], np.zeros(8))


@pytest.mark.parametrize(
    "given",
    [
        {"optimizer": "sgd"},
        {"optimizer": "sgd", "momentum": 0.0},
        {"optimizer": "adam", "schedule": "cosine", "decay_steps": 9},
    ],
)
def test_resume_is_exact_with_other_optimizers(tmp_path: Path, toy: str, given: dict[str, object]) -> None:
    straight = train(Run.start(options(**given)), 6, tmp_path / "a")
    default = train(Run.start(options()), 6, tmp_path / "b")
    train(Run.start(options(**given)), 3, tmp_path / "c")
    assert_equal_bits(straight, train(Run.resume(load_run(tmp_path / "c"), {}), 6, tmp_path / "c"))
    assert straight["out.weight"].tobytes() != default["out.weight"].tobytes()
    kept = {name.rpartition("/")[2] for name in straight if name.startswith("/optimizer/")}
    moments = {"first_moment", "second_moment", "num_updates"}
    assert kept == {("sgd", None): {"velocity"}, ("sgd", 0.0): set()}.get(
        (given["optimizer"], given.get("momentum")), moments
    )


def test_comparison_can_fail(tmp_path: Path, toy: str) -> None:
    """Each of what a checkpoint keeps makes a difference: without it, the continuation is another one."""
    straight = train(Run.start(options()), 5, tmp_path / "a")
    train(Run.start(options()), 3, tmp_path / "b")
    path = tmp_path / "b" / CHECKPOINT
    arrays, metadata = checkpoint.read_arrays(path)
    for prefix in "/random/torch", "/optimizer/":
        disturb()
        kept = {name: array for name, array in arrays.items() if not name.startswith(prefix)}
        (tmp_path / "c").mkdir(exist_ok=True)
        checkpoint.write_arrays(tmp_path / "c" / CHECKPOINT, kept, metadata)
        resumed = train(Run.resume(load_run(tmp_path / "c"), {}), 5, tmp_path / "c")
        assert resumed["out.weight"].tobytes() != straight["out.weight"].tobytes(), prefix
    checkpoint.write_arrays(tmp_path / "c" / CHECKPOINT, arrays, metadata | {"run": metadata["run"] | {"batch": 0}})
    resumed = train(Run.resume(load_run(tmp_path / "c"), {}), 5, tmp_path / "c")
    assert resumed["out.weight"].tobytes() != straight["out.weight"].tobytes()


def test_workers_and_decoding_make_no_difference(tmp_path: Path, toy: str) -> None:
    straight = train(Run.start(options()), 5, tmp_path / "a")
    run = Run.start(options(), num_workers=1)
    for step in run.steps(5):
        list(decode(run.model, run.feed, run.dataset, [step.batch], beam_size=2))
    assert_equal_bits(straight, train(run, 5, tmp_path / "b"))


def test_seed_makes_a_difference(tmp_path: Path, toy: str) -> None:
    a = train(Run.start(options()), 1, tmp_path / "a")
    b = train(Run.start(options(seed=2)), 1, tmp_path / "b")
    assert not np.array_equal(a["out.weight"], b["out.weight"])


def test_steps(toy: str) -> None:
    run = Run.start(options(lr=0.02, warmup=2))
    steps = list(run.steps(6))
    assert [s.step for s in steps] == [1, 2, 3, 4, 5, 6]
    assert [s.epoch for s in steps] == [1, 1, 1, 1, 2, 2]
    assert {name for s in steps[:4] for name in s.batch.names} == set(run.dataset.names)
    assert [s.learning_rate for s in steps[:2]] == [0.01, 0.02]
    assert steps[3].learning_rate == pytest.approx(0.02 * math.sqrt(2 / 4))
    assert all(s.losses["total"] == pytest.approx(s.losses["ctc"]) and s.gradient_norm > 0 for s in steps)
    assert (run.step, run.epoch) == (6, 1)
    assert list(run.steps(6)) == []
    assert rf.get_run_ctx().stage == "init"


def test_it_learns(toy: str) -> None:
    run = Run.start(options(lr=0.03, dropout=0.0))
    losses = [s.losses["ctc"] for s in run.steps(40)]
    assert np.mean(losses[-4:]) < 0.7 * np.mean(losses[:4])


def test_options_of_the_model(toy: str) -> None:
    run = Run.start(options(preset="large", dropout=0.0, augment=False))
    assert (run.model.config.size, run.model.config.dropout, run.model.config.augment) == (12, 0.0, False)


def test_not_finite_gradient_changes_nothing(toy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run.start(options())
    next(run.steps(1))
    weight = run.model.out.weight
    before = weight.numpy().copy()
    monkeypatch.setattr(type(run.model), "logits", infinite_logits)
    steps = run.steps(100)
    assert not math.isfinite(next(steps).gradient_norm)
    np.testing.assert_array_equal(weight.numpy(), before)
    with pytest.raises(rf.RfError, match=r"not finite in 20 steps in a row, up to step 21; .*smaller --lr"):
        list(steps)


def infinite_logits(self: rf.Module, inputs: rf.Tensor, time_dim: rf.Dim) -> rf.Tensor:
    return self.out(self.hidden(inputs)) * float("inf")


# -- checkpoints that do not fit


@pytest.fixture
def saved(tmp_path: Path, toy: str) -> Path:
    train(Run.start(options()), 2, tmp_path / "run")
    return tmp_path / "run"


def change_metadata(directory: Path, **changes: object) -> None:
    path = directory / CHECKPOINT
    arrays, metadata = checkpoint.read_arrays(path)
    run = {name: value for name, value in (metadata["run"] | changes).items() if value != "REMOVED"}
    checkpoint.write_arrays(path, arrays, metadata | {"run": run})


def refused(path: Path, message: str) -> None:
    before = (path / CHECKPOINT).read_bytes()
    with pytest.raises(rf.UserError, match=message) as info:
        Run.resume(load_run(path), {})
    assert "\n" not in str(info.value)
    assert (path / CHECKPOINT).read_bytes() == before


def test_load(saved: Path) -> None:
    run = load_run(saved)
    assert (run.step, run.epoch, run.batch, run.feature_dim, run.vocab) == (2, 0, 2, 16, list("0123"))
    assert load_run(saved / CHECKPOINT).options == run.options == options()


def test_cut_short(saved: Path) -> None:
    path = saved / CHECKPOINT
    path.write_bytes(path.read_bytes()[:-10])
    refused(saved, r"run/checkpoint\.safetensors: cut short")


def test_missing(tmp_path: Path) -> None:
    with pytest.raises(rf.UserError, match=r"checkpoint\.safetensors: cannot be read \(no such file\)"):
        load_run(tmp_path)


def test_parameters_only(saved: Path) -> None:
    checkpoint.save_params({"w": np.ones(1)}, saved / CHECKPOINT)
    refused(saved, r"checkpoint\.safetensors: not a checkpoint of rf train")


@pytest.mark.parametrize("changes", [{"batch": "REMOVED"}, {"new": 1}, {"options": {"no": 1}}, {"options": 3}])
def test_of_another_version(saved: Path, changes: dict[str, object]) -> None:
    change_metadata(saved, **changes)
    refused(saved, "cannot be understood .*version of rf that wrote it")


def test_of_another_model(saved: Path) -> None:
    change_metadata(saved, model_config={"size": 9})
    refused(saved, r"run/checkpoint\.safetensors: these are parameters of another model: parameter .* has shape")


def test_configuration_of_another_model(saved: Path) -> None:
    change_metadata(saved, model_config={"depth": 9})
    refused(saved, "model toy: the configuration .* is not one of this model")


def test_unknown_model(saved: Path) -> None:
    change_metadata(saved, options=options().to_json() | {"model": "toy2"})
    refused(saved, "unknown model 'toy2'; choose one of")


def test_optimizer_of_another_model(saved: Path) -> None:
    arrays, metadata = checkpoint.read_arrays(saved / CHECKPOINT)
    arrays["/optimizer/out.weight/first_moment"] = np.ones(3, dtype=np.float32)
    checkpoint.write_arrays(saved / CHECKPOINT, arrays, metadata)
    refused(saved, r"checkpoint\.safetensors: the optimizer state out\.weight/first_moment \(3,\) fits no parameter")


def test_other_options(saved: Path) -> None:
    with pytest.raises(rf.UserError, match=r"checkpoint\.safetensors: --preset large: the run was started with small"):
        Run.resume(load_run(saved), {"preset": "large"})


def test_other_data(saved: Path) -> None:
    change_metadata(saved, fingerprint="21 sequences, 0123")
    refused(saved, "numbers: not the data that the run was started with")


# -- options


def test_options_that_differ() -> None:
    run = options()
    assert run.updated({}) == run
    assert run.updated({"lr": 0.01, "batch_size": None, "model": "toy"}) == run
    for given, message in (
        ({"lr": 0.02}, r"--lr 0\.02: the run was started with 0\.01; leave it out"),
        ({"max_frames": 100}, "--max-frames 100: the run was started with None"),
        ({"augment": False}, "--no-augment: the run was started without this option"),
        ({"optimizer": "sgd"}, "--optimizer sgd: the run was started with adamw"),
        ({"schedule": "cosine"}, "--schedule cosine: the run was started with inverse-sqrt"),
        ({"data": "x", "transcripts": "y"}, "--data .*/x: the run was started with numbers"),
    ):
        with pytest.raises(rf.UserError, match=message):
            run.updated(given)


def test_data_may_move(tmp_path: Path) -> None:
    run = options(data="a", transcripts="a.txt")
    assert Path(run.data).is_absolute()
    moved = run.updated({"data": str(tmp_path), "transcripts": str(tmp_path / "b.txt")})
    assert (moved.data, moved.transcripts) == (str(tmp_path), str(tmp_path / "b.txt"))


def test_options_to_json_and_back() -> None:
    run = options(max_frames=1000, batch_size=None, data="d", max_seconds=2.5)
    assert run.batch_size is None
    assert RunOptions.from_json(json.loads(json.dumps(run.to_json()))) == run
    assert run.updated({}) == run


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"lr": -1.0}, "--lr -1.0: must be at least 0"),
        ({"lr": math.nan}, "--lr nan"),
        ({"lr": math.inf}, "--lr inf: must be at least 0 and finite"),
        ({"dropout": 1.0}, "--dropout 1.0: must be at least 0 and less than 1"),
        ({"warmup": -1}, "--warmup -1"),
        ({"max_gradient_norm": -2.0}, "--max-gradient-norm -2.0"),
        ({"optimizer": "lion"}, "unknown optimizer 'lion'; choose one of: adamw, adam, sgd"),
        ({"schedule": "step"}, "unknown schedule 'step'; choose one of: inverse-sqrt, constant, cosine, linear"),
        ({"schedule": "cosine"}, "--schedule cosine: give --decay-steps N"),
        ({"schedule": "linear", "decay_steps": 5, "warmup": 5}, "--decay-steps 5: must be more than --warmup 5"),
        ({"decay_steps": 5}, "--decay-steps 5: --schedule inverse-sqrt has no end; leave it out"),
        ({"momentum": 1.0}, "--momentum 1.0: must be at least 0 and less than 1"),
    ],
)
def test_bad_options(given: dict[str, object], message: str) -> None:
    with pytest.raises(rf.UserError, match=message):
        options(**given)


def test_schedules() -> None:
    def rates(*steps: int, **given: object) -> list[float]:
        schedule = options(lr=1.0, **{"warmup": 2} | given).make_schedule()
        return [schedule(step) for step in steps]

    assert rates(0, 1, 7) == [0.5, 1.0, 0.5]
    assert rates(0, 7, warmup=0) == [1.0, 1.0]
    assert rates(0, 1, 7, schedule="constant") == [0.5, 1.0, 1.0]
    assert rates(0, 1, 3, 5, 9, schedule="linear", decay_steps=5) == [0.5, 1.0, 0.5, 0.0, 0.0]
    assert rates(0, 2, 4, schedule="linear", decay_steps=4, warmup=0) == [1.0, 0.5, 0.0]
    cosine = rates(0, 1, 3, 4, 5, schedule="cosine", decay_steps=5)
    assert cosine == pytest.approx([0.5, 1.0, 0.5, (1 - math.sqrt(0.5)) / 2, 0.0])


def test_fingerprint() -> None:
    def of(*args: int) -> str:
        return data_fingerprint(NumbersDataset(*args))

    assert of(5, 1) == of(5, 1)
    assert of(5, 1).startswith("5 sequences, ")
    assert len({of(5, 1), of(6, 1), of(5, 2)}) == 3


# -- feed and evaluation


def test_feed_fills_the_same_dims(toy: str) -> None:
    data = DataOptions(max_sequences=4).open(split="train", seed=1)
    run = Run.start(options(max_sequences=4, batch_size=2))
    feed = Feed.of(data)
    for step in run.steps(2):
        inputs, input_dim, targets, target_dim = feed(step.batch)
        assert inputs.dims == (rf.batch_dim, input_dim, feed.feature_dim)
        assert targets.dims == (rf.batch_dim, target_dim) and targets.sparse_dim == feed.label_dim
        assert input_dim.get_sizes().values.tolist() == step.batch.input_lengths.tolist()
        assert target_dim.get_sizes().values.tolist() == step.batch.target_lengths.tolist()
        np.testing.assert_array_equal(inputs.numpy(), step.batch.inputs)
        np.testing.assert_array_equal(targets.numpy(), step.batch.targets)


def test_evaluate(toy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run.start(options(batch_size=3))
    batches = [step.batch for step in run.steps(2)]
    wanted = {
        name: labels[:n].tolist()
        for batch in batches
        for name, labels, n in zip(batch.names, batch.targets, batch.target_lengths)
    }
    current = iter(batches)

    def one_wrong(self: rf.Module, inputs: rf.Tensor, dim: rf.Dim) -> list[list[int]]:
        assert not rf.get_run_ctx().train_flag
        return [wanted[name][:-1] for name in next(current).names]

    monkeypatch.setattr(type(run.model), "greedy_ctc", one_wrong)
    decodings = list(decode(run.model, run.feed, run.dataset, batches, beam_size=None))
    assert [d.name for d in decodings] == list(wanted)
    assert all(d.hypotheses[CTC] == d.reference[:-1] for d in decodings)
    rates = evaluate(decodings)
    assert list(rates) == [CTC]
    assert rates[CTC].num_errors == 6
    assert rates[CTC].percent == pytest.approx(600 / sum(map(len, wanted.values())))
