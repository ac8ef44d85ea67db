"""Training on real speech, by the commands alone: prompts of the Debian packages asterisk-core-sounds-en*."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from rf.backend import get_backend
from rf.cli import main

pytestmark = pytest.mark.needs("asterisk", "torch", "soundfile")

STEPS = 60


def test_loss_falls(asterisk: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A few dozen steps of a tiny model on a few short prompts, half learned by heart in the end."""
    get_backend("torch")  # what loading it prints is not the command's
    capsys.readouterr()
    folder, transcripts = asterisk
    data = ["--data", str(folder), "--transcripts", str(transcripts), "--max-seconds", "1.5", "--max-sequences", "16"]
    run = ["--preset", "tiny", "--dropout", "0", "--no-augment", "--lr", "5e-3", "--warmup", "20", "--batch-size", "8"]
    out = str(tmp_path / "run")
    assert main(["train", *data, *run, "--steps", "1", "--out", out]) == 0
    assert main(["train", "--steps", str(STEPS), "--out", out, "--resume", "--save-every", "20"]) == 0
    output, err = capsys.readouterr()
    assert err == ""
    losses = {
        int(match[1]): (float(match[2]), float(match[3]))
        for match in re.finditer(r"step (\d+)/\d+ .*\(ctc (\d+\.\d+), ce (\d+\.\d+)\)", output)
    }
    assert {1, STEPS} <= losses.keys()
    for first, last in zip(losses[1], losses[STEPS]):
        assert last < 0.6 * first, losses
    assert main(["eval", "--checkpoint", out, *data, "--beam", "2", "--json", str(tmp_path / "r.json")]) == 0
    result = json.loads((tmp_path / "r.json").read_text())
    assert result["num_sequences"] == 16
    assert result["cer_percent"]["ctc_greedy"] < 60
    assert result["cer_percent"]["aed_beam"] < 85
