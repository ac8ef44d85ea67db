"""``rf train`` and ``rf eval`` on a toy model and, once, on the real one: what they print, keep, refuse and survive."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("torch")

import cli_helpers
import toy_model
from rich.console import Console

import rf
from rf import checkpoint
from rf.cli import main
from rf.cli._interrupt import StopRequest
from rf.cli._progress import Meter, TrainProgress
from rf.train import CHECKPOINT, load_run

pytestmark = pytest.mark.needs("torch")


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    yield from toy_model.installed(monkeypatch)


SMALL = ["--max-sequences", "20", "--batch-size", "6", "--lr", "0.01", "--warmup", "5"]


def train(out: Path, *args: str) -> int:
    return main(["train", "--model", "toy", "--data", "numbers", "--out", str(out), *SMALL, *args])


def test_train_prints_and_saves(tmp_path: Path, toy: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert train(tmp_path / "new" / "run", "--steps", "6", "--eval-every", "3") == 0
    out, err = capsys.readouterr()
    assert err == "" and "\x1b" not in out
    lines = out.splitlines()
    assert lines[0] == "toy (small): 205 parameters; 20 sequences, 4 labels; step 0 of 6"
    step = (
        r"step 6/6  epoch 2  loss \d+\.\d{3} \(ctc \d+\.\d{3}\)  \d+\.\d\d steps/s  data wait \d+\.\d %  "
        r"CER of the batch \d+\.\d %  lr 0\.0091"
    )
    assert any(re.fullmatch(step, line) for line in lines), out
    evaluations = [line for line in lines if "evaluation" in line]
    assert [line.split("  ")[0] for line in evaluations] == ["step 3", "step 6"]
    assert re.fullmatch(r"step 3  evaluation: CER greedy CTC \d+\.\d\d % of 20 sequences", evaluations[0])
    assert lines[-1] == f"saved {tmp_path / 'new' / 'run' / CHECKPOINT}"
    assert os.listdir(tmp_path / "new" / "run") == [CHECKPOINT]


def test_resume_is_exact(tmp_path: Path, toy: str) -> None:
    assert train(tmp_path / "a", "--steps", "6") == 0
    assert train(tmp_path / "b", "--steps", "3") == 0
    rf.set_random_seed(77)
    assert train(tmp_path / "b", "--steps", "6", "--resume") == 0
    assert (tmp_path / "a" / CHECKPOINT).read_bytes() == (tmp_path / "b" / CHECKPOINT).read_bytes()


def test_resume_takes_options_from_the_checkpoint(tmp_path: Path, toy: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert train(tmp_path, "--steps", "2") == 0
    assert main(["train", "--out", str(tmp_path), "--steps", "3", "--resume"]) == 0
    assert load_run(tmp_path).step == 3
    assert main(["train", "--out", str(tmp_path), "--steps", "3", "--resume"]) == 0
    assert "the run has 3 steps already: nothing to do" in capsys.readouterr().out


def test_optimizer_and_schedule(tmp_path: Path, toy: str, capsys: pytest.CaptureFixture[str]) -> None:
    chosen = ["--optimizer", "sgd", "--momentum", "0.5", "--schedule", "linear", "--decay-steps", "9"]
    assert train(tmp_path / "a", "--steps", "6", *chosen) == 0
    assert "  lr 0.008\n" in capsys.readouterr().out  # 0.01 * (9 - 5) / (9 - 4)
    assert train(tmp_path / "b", "--steps", "3", *chosen) == 0
    assert main(["train", "--out", str(tmp_path / "b"), "--steps", "6", "--resume"]) == 0
    assert (tmp_path / "a" / CHECKPOINT).read_bytes() == (tmp_path / "b" / CHECKPOINT).read_bytes()
    options = load_run(tmp_path / "b").options
    assert (options.optimizer, options.momentum, options.schedule, options.decay_steps) == ("sgd", 0.5, "linear", 9)
    capsys.readouterr()
    assert train(tmp_path / "b", "--steps", "7", "--resume", "--optimizer", "adam") == 2
    assert "--optimizer adam: the run was started with sgd" in cli_helpers.error_line(capsys)
    assert train(tmp_path / "c", "--steps", "6", "--no-lr-decay") == 0
    assert load_run(tmp_path / "c").options.schedule == "constant"


def test_existing_checkpoint_is_not_overwritten(tmp_path: Path, toy: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert train(tmp_path, "--steps", "1") == 0
    capsys.readouterr()
    before = (tmp_path / CHECKPOINT).read_bytes()
    assert train(tmp_path, "--steps", "2") == 2
    assert (
        "there is a checkpoint already; continue it with --resume, or choose another --out"
        in cli_helpers.error_line(capsys)
    )
    assert train(tmp_path, "--steps", "2", "--resume", "--seed", "5") == 2
    assert "--seed 5: the run was started with 1" in cli_helpers.error_line(capsys)
    assert (tmp_path / CHECKPOINT).read_bytes() == before


def test_bad_checkpoint_is_not_overwritten(tmp_path: Path, toy: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert train(tmp_path, "--steps", "1") == 0
    path = tmp_path / CHECKPOINT
    good = path.read_bytes()
    for content in good[: len(good) // 2], b"not a checkpoint":
        path.write_bytes(content)
        capsys.readouterr()
        for argv in (
            ["train", "--out", str(tmp_path), "--steps", "2", "--resume"],
            ["eval", "--checkpoint", str(path)],
        ):
            assert main(argv) == 2
            assert f"{path}: cut short, damaged or not safetensors" in cli_helpers.error_line(capsys)
        assert path.read_bytes() == content


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--steps", "0"], "rf train: --steps 0: must be at least 1"),
        (["--save-every", "0"], "rf train: --save-every 0: must be at least 1"),
        (["--workers", "-1"], "rf train: --workers -1: must be at least 0"),
        (["--resume"], "no such file, there is nothing to resume"),
        (["--backend", "torhc"], "rf train: unknown backend 'torhc'; choose one of"),
        (
            ["--backend", "numpy"],
            "rf train: AdamW: the parameters are on backend numpy; training needs the backend torch",
        ),
        (["--backend", "meta"], "training needs the backend torch"),
        (["--model", "toyy"], "rf train: unknown model 'toyy'; choose one of: conformer-ctc-aed, toy"),
        (["--preset", "huge"], "rf train: unknown preset 'huge' of model toy; choose one of: small, large"),
        (["--optimizer", "sdg"], "rf train: unknown optimizer 'sdg'; choose one of: adamw, adam, sgd"),
        (["--schedule", "cosin"], "rf train: unknown schedule 'cosin'; choose one of: inverse-sqrt, constant, cosine"),
        (["--schedule", "cosine"], "rf train: --schedule cosine: give --decay-steps N"),
        (["--decay-steps", "9"], "rf train: --decay-steps 9: --schedule inverse-sqrt has no end; leave it out"),
        (["--momentum", "-1"], "rf train: --momentum -1.0: must be at least 0 and less than 1"),
        (["--dropout", "1.5"], "rf train: --dropout 1.5: must be at least 0 and less than 1"),
        (["--batch-size", "0"], "must be at least 1"),
        (["--data", "no-such-dir"], "no-such-dir: no such directory"),
        (["--transcripts", "x.txt"], "the data 'numbers' has none"),
        (["--max-frames", "3"], "alone has"),
        (["--device", "gpu"], "rf train: --device gpu: "),
    ],
)
def test_bad_arguments(
    args: list[str], message: str, tmp_path: Path, toy: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(tmp_path / "run", *args) == 2
    assert message in cli_helpers.error_line(capsys)
    assert not (tmp_path / "run").exists()


def test_out_that_cannot_be_made(tmp_path: Path, toy: str, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("mine")
    for out in "file", "file/run":
        assert train(tmp_path / out) == 2
        assert f"--out {tmp_path / out}: cannot be made" in cli_helpers.error_line(capsys)
    assert (tmp_path / "file").read_text() == "mine"


def test_bad_wav_on_the_way(tmp_path: Path, toy: str, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "wavs").mkdir()
    (tmp_path / "wavs" / "a.wav").write_bytes(b"RIFF")
    (tmp_path / "t.txt").write_text("a: hello\n")
    argv = ["--data", str(tmp_path / "wavs"), "--transcripts", str(tmp_path / "t.txt")]
    assert train(tmp_path / "run", *argv) == 2
    assert "a.wav" in cli_helpers.error_line(capsys)


# -- evaluation


def test_eval(tmp_path: Path, toy: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert train(tmp_path / "run", "--steps", "2") == 0
    capsys.readouterr()
    argv = ["eval", "--checkpoint", str(tmp_path / "run"), "--data", "numbers", "--max-sequences", "9"]
    argv += ["--beam", "3", "--batch-size", "4", "--show", "1", "--json", str(tmp_path / "r.json")]
    assert main(argv) == 0
    out, err = capsys.readouterr()
    assert err == ""
    result = json.loads((tmp_path / "r.json").read_text())
    lines = out.splitlines()
    assert lines[0].startswith("eval-1-")
    assert [line.split()[0] for line in lines[1:3]] == ["reference", "greedy"]
    n = result["num_characters"]
    assert lines[-3] == f"{tmp_path / 'run' / CHECKPOINT}, step 2: 9 sequences, {n} characters"
    for line, name, how in (
        (lines[-2], "greedy CTC", "ctc_greedy"),
        (lines[-1], "beam search AED", "aed_beam"),
    ):
        match = re.fullmatch(rf"CER {name} +(\d+\.\d\d) %  \((\d+) errors(?:, beam 3)?\)", line)
        assert match, line
        assert int(match[2]) == result["num_errors"][how]
        assert float(match[1]) == pytest.approx(result["cer_percent"][how], abs=0.006)
        assert result["cer_percent"][how] == pytest.approx(100 * result["num_errors"][how] / n)
    assert (result["num_sequences"], result["beam_size"], result["step"]) == (9, 3, 2)


def test_eval_takes_the_data_of_the_run(tmp_path: Path, toy: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert train(tmp_path, "--steps", "1") == 0
    assert main(["eval", "--checkpoint", str(tmp_path)]) == 0
    assert "step 1: 20 sequences" in capsys.readouterr().out


def test_eval_does_not_depend_on_batches(tmp_path: Path, toy: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert train(tmp_path, "--steps", "3") == 0
    results = []
    for size in "1", "20":
        assert main(["eval", "--checkpoint", str(tmp_path), "--batch-size", size, "--json", str(tmp_path / "r")]) == 0
        results.append(json.loads((tmp_path / "r").read_text()))
    assert results[0] == results[1]


def test_eval_on_another_backend(tmp_path: Path, toy: str) -> None:
    """The real model, trained a little on torch, recognizes the same on NumPy."""
    run = ["--data", "numbers", "--preset", "tiny", "--batch-size", "8", "--lr", "0.003", "--warmup", "10"]
    assert main(["train", *run, "--steps", "30", "--out", str(tmp_path)]) == 0
    results = []
    for backend in "torch", "numpy":
        argv = ["--backend", backend, "--max-sequences", "3", "--beam", "2", "--json", str(tmp_path / "r")]
        assert main(["eval", "--checkpoint", str(tmp_path), *argv]) == 0
        results.append(json.loads((tmp_path / "r").read_text()))
    assert results[0] == results[1]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--beam", "0"], "rf eval: --beam 0: must be at least 1"),
        (["--data", "nowhere"], "rf eval: nowhere: no such directory"),
        (["--json", "nowhere/r.json"], "rf eval: --json nowhere/r.json: there is no directory"),
        (["--backend", "jax"], "rf eval: unknown backend 'jax'"),
        (["--checkpoint", "nowhere"], "rf eval: nowhere: cannot be read (no such file)"),
    ],
)
def test_eval_bad_arguments(
    args: list[str],
    message: str,
    tmp_path: Path,
    toy: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert train(tmp_path / "run", "--steps", "1") == 0
    capsys.readouterr()
    assert main(["eval", "--checkpoint", str(tmp_path / "run"), *args]) == 2
    assert message in cli_helpers.error_line(capsys)


def test_eval_of_other_parameters(tmp_path: Path, toy: str, capsys: pytest.CaptureFixture[str]) -> None:
    checkpoint.save_params({"w": rf.zeros([])}, tmp_path / "x.safetensors")
    assert main(["eval", "--checkpoint", str(tmp_path / "x.safetensors")]) == 2
    assert "x.safetensors: not a checkpoint of rf train; give the --out directory" in cli_helpers.error_line(capsys)


def test_eval_of_another_kind_of_data(
    tmp_path: Path, toy: str, asterisk: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(tmp_path, "--steps", "1") == 0
    capsys.readouterr()
    folder, transcripts = asterisk
    argv = ["--data", str(folder), "--transcripts", str(transcripts), "--max-sequences", "2"]
    assert main(["eval", "--checkpoint", str(tmp_path), *argv]) == 2
    assert "labels of the model" in cli_helpers.error_line(capsys)


# -- interruption


@pytest.mark.parametrize(("number", "status", "workers"), [(signal.SIGINT, 130, "1"), (signal.SIGTERM, 143, "0")])
def test_stopped_by_a_signal(tmp_path: Path, toy: str, number: int, status: int, workers: str) -> None:
    """The real model: a stopped run, continued, equals one that was not stopped."""
    real = ["train", "--preset", "tiny", "--batch-size", "4", "--out"]
    running = cli_helpers.start(*real, str(tmp_path / "a"), "--steps", "100000", "--workers", workers)
    assert running.stdout is not None
    for line in running.stdout:
        if line.startswith("step 1/"):
            break
    os.killpg(running.pid, number)  # as a terminal does it: the workers get it, too
    out, err = running.communicate(timeout=60)
    assert (running.returncode, cli_helpers.without_notices(err)) == (status, "")
    saved = load_run(tmp_path / "a")
    assert f"stopped after step {saved.step}, saved {saved.path}; continue with --resume" in out
    steps = str(saved.step + 2)
    for argv in ("a", "--resume"), ("b",):
        status, _, err = cli_helpers.run(*real, str(tmp_path / argv[0]), "--steps", steps, *argv[1:])
        assert (status, err) == (0, "")
    assert (tmp_path / "a" / CHECKPOINT).read_bytes() == (tmp_path / "b" / CHECKPOINT).read_bytes()


def test_second_signal_stops_at_once() -> None:
    with StopRequest() as stop:
        assert stop.signal is None
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.01)
        assert (stop.signal, stop.exit_status) == (signal.SIGINT, 130)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(1)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


# -- display


def test_meter() -> None:
    meter = Meter()
    meter.add({"ctc": 1.0, "total": 2.0}, {"label_error": 0.5}, 0.0)
    meter.add({"ctc": 3.0, "total": 4.0}, {"label_error": 0.25}, 0.0)
    text = meter.text()
    assert text.startswith("loss 3.000 (ctc 2.000)  label error 37.5 %  ")
    assert re.search(r"  \d+\.\d\d steps/s  data wait 0\.0 %$", text)
    meter.reset()
    meter.add({"total": 1.0}, {}, 1e9)
    assert meter.text().startswith("loss 1.000  ")


def test_progress_on_a_terminal() -> None:
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=100)
    with TrainProgress(10, 4, console) as progress:
        progress.update(5, 2, 1.25)
        progress.report("a line with [brackets]")
    text = file.getvalue()
    assert "epoch 2  loss 1.250" in text and "5/10" in text
    assert "a line with [brackets]" in text


def test_progress_elsewhere() -> None:
    file = io.StringIO()
    with TrainProgress(10, 4, Console(file=file, width=20)) as progress:
        progress.update(5, 2, 1.25)
        progress.report("a line with [brackets] that is longer than that")
    assert file.getvalue() == "a line with [brackets] that is longer than that\n"
