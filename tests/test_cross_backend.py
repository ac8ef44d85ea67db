"""The same on torch and on TensorFlow: training, checkpoints through the command line, one script on every backend."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cli_helpers
import numpy as np
import pytest

import rf
from rf import _random, backend
from rf.cli import main
from rf.train import Run, RunOptions, load_run

pytestmark = pytest.mark.needs("torch", "tensorflow")


@pytest.fixture(autouse=True)
def portable(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Random numbers that do not depend on the backend; what a command selects is undone."""
    monkeypatch.setattr(backend, "_selected", "torch")
    rf.set_random_portable(True)
    yield
    _random.set_portable(None)
    rf.set_default_device(None)
    rf.reset_run_ctx()


# -- training


def losses(run: Run, until: int) -> list[dict[str, float]]:
    out = [dict(report.losses) for report in run.steps(until)]
    run.close()
    return out


def assert_close(ours: list[dict[str, float]], theirs: list[dict[str, float]]) -> None:
    for step, (mine, other) in enumerate(zip(ours, theirs, strict=True)):
        assert mine.keys() == other.keys()
        for what, loss in other.items():
            np.testing.assert_allclose(mine[what], loss, rtol=1e-4, err_msg=f"{what}, step {step}")


@pytest.mark.needs("soundfile")
def test_speech_is_learned_alike(asterisk: tuple[Path, Path]) -> None:
    """Ten steps of the Conformer with CTC and attention decoder, on real speech, with dropout and SpecAugment."""
    folder, transcripts = asterisk
    options = {"data": str(folder), "transcripts": str(transcripts), "max_seconds": 1.0, "max_sequences": 12}
    options |= {"preset": "tiny", "batch_size": 4, "lr": 3e-3, "warmup": 5, "seed": 3}
    reports: dict[str, list[dict[str, float]]] = {}
    for name in "torch", "tensorflow":
        with rf.use_backend(name):
            reports[name] = losses(Run.start(RunOptions.make(options)), 10)
    theirs = reports["torch"]
    assert len(theirs) == 10 and {"total", "ctc", "ce"} <= theirs[0].keys()
    assert_close(reports["tensorflow"], theirs)
    assert theirs[9]["total"] < theirs[0]["total"]


TRAIN = [
    "train",
    "--data",
    "numbers",
    "--preset",
    "tiny",
    "--max-sequences",
    "24",
    "--batch-size",
    "4",
    "--warmup",
    "4",
]


def test_checkpoints_through_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Trained on torch, then on TensorFlow, then on torch again, which equals training on torch only; and evaluated on
    each of them."""

    def command(*args: str) -> None:
        assert main(list(args)) == 0, capsys.readouterr()

    whole, mixed = tmp_path / "torch", tmp_path / "mixed"
    command(*TRAIN, "--backend", "torch", "--steps", "6", "--out", str(whole))
    command(*TRAIN, "--backend", "torch", "--steps", "2", "--out", str(mixed))
    for name, steps in ("tensorflow", "4"), ("torch", "6"):
        command("train", "--backend", name, "--steps", steps, "--out", str(mixed), "--resume")
        assert load_run(mixed).step == int(steps)
        assert backend.selected_backend_name() == name
    theirs, ours = (losses(Run.resume(load_run(out), {}), 8) for out in (whole, mixed))
    assert len(ours) == 2
    assert_close(ours, theirs)

    results: list[Any] = []
    for name in "torch", "tensorflow":
        path = tmp_path / f"{name}.json"
        options = ["--max-sequences", "3", "--beam", "2", "--json", str(path)]
        command("eval", "--checkpoint", str(mixed), "--backend", name, *options)
        results.append(json.loads(path.read_text()))
    assert results[0] == results[1]
    assert results[0]["step"] == 6


# -- one script

SCRIPT = """
import sys
import rf

def step():
    rf.set_random_seed(3)
    b, f, g = rf.Dim(2, name="batch"), rf.Dim(3, name="in"), rf.Dim(2, name="out")
    t = rf.Dim(None, name="time").fill([4, 2], [b])
    net = rf.Linear(f, g)
    rf.init_train_step_run_ctx()
    x = rf.random_normal([b, t, f])
    y = rf.reduce_mean(rf.log_softmax(net(rf.dropout(x, 0.5)), axis=g), axis=t)
    loss = rf.reduce_sum(rf.square(y), axis=[b, g])
    out = [loss]
    if rf.get_selected_backend() != "numpy":  # forward only
        out += rf.gradient(loss, [net.weight, net.bias])
    rf.reset_run_ctx()
    for z in out:
        values = [] if rf.get_selected_backend() == "meta" else [f"{v:.3f}" for v in z.numpy().ravel()]
        print(sorted(map(str, z.dims)), z.dtype, *values)

if not sys.argv[1:]:
    print(rf.get_selected_backend())
    step()
for name in sys.argv[1:]:
    print(name)
    with rf.use_backend(name):
        step()
    rf.select_backend(name)
    step()
"""


def run_script(*args: str, cwd: Path, **env: str) -> dict[str, list[str]]:
    """What the script printed on each backend that it ran on."""
    (cwd / "script.py").write_text(SCRIPT)
    result = subprocess.run(
        [sys.executable, "script.py", *args],
        capture_output=True,
        text=True,
        cwd=cwd,
        env=cli_helpers.environment(
            TF_CPP_MIN_LOG_LEVEL="3", PYTHONPATH=os.pathsep.join(sys.path), RF_RANDOM="portable", **env
        ),
    )
    assert result.returncode == 0, result.stderr
    out: dict[str, list[str]] = {}
    for line in result.stdout.splitlines():
        if line in backend.backend_names():
            lines = out[line] = []
        else:
            lines.append(line)
    return out


def test_one_script_on_every_backend(tmp_path: Path) -> None:
    """Switched by the environment, by rf.toml, and in the code, for a block and for the process."""
    names = ["torch", "tensorflow", "numpy", "meta"]
    by_code = run_script(*names, cwd=tmp_path)
    assert list(by_code) == names
    expected: dict[str, list[str]] = {}
    for name, lines in by_code.items():
        half = len(lines) // 2
        assert lines[:half] == lines[half:]
        expected[name] = lines[:half]
    assert len(expected["torch"]) == 3 and expected["torch"][0].startswith("[] float32 ")
    assert expected["tensorflow"] == expected["torch"]
    assert expected["numpy"] == expected["torch"][:1]
    assert expected["meta"] == [line[: line.index("float32") + len("float32")] for line in expected["torch"]]
    for name in names:
        assert run_script(cwd=tmp_path, RF_BACKEND=name) == {name: expected[name]}
    if sys.version_info >= (3, 11):  # which can read TOML
        for name in "tensorflow", "numpy":
            (tmp_path / "rf.toml").write_text(f'backend = "{name}"\n')
            assert run_script(cwd=tmp_path) == {name: expected[name]}


# -- in one process


def test_tensors_of_both_in_one_op() -> None:
    d = rf.Dim(2, name="d")
    x, y = (rf.convert_backend(rf.convert_to_tensor([1.0, 2.0], dims=[d]), name) for name in ("torch", "tensorflow"))
    x.name, y.name = "x", "y"
    calls = {
        "add": lambda: x + y,
        "matmul": lambda: rf.matmul(y, x, reduce=d),
        "concat": lambda: rf.concat((x, d), (y, d)),
    }
    for what, call in calls.items():
        with pytest.raises(rf.BackendError, match="operands of different backends") as caught:
            call()
        text = str(caught.value)
        assert all(
            part in text
            for part in (
                "torch, tensorflow" if what != "matmul" else "tensorflow, torch",
                "x: {d=2} float32 torch on torch",
                "y: {d=2} float32 tensorflow on tensorflow",
                "rf.convert_backend(x, name)",
            )
        ), text
    assert (x + rf.convert_backend(y, "torch")).raw_tensor.tolist() == [2.0, 4.0]
    there = rf.convert_backend(x, "tensorflow") + y
    assert there.backend is rf.get_backend("tensorflow") and there.numpy().tolist() == [2.0, 4.0]
