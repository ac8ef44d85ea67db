"""The Python code of the README runs, and the commands that it shows exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import rf

README = (Path(__file__).resolve().parents[1] / "README.md").read_text(encoding="utf-8")
ERROR = re.search(r"^>>> (.+)\n(rf\.\w+): (.+)$", README, re.MULTILINE)


@pytest.mark.needs("torch")
def test_python_code_runs():
    blocks = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert len(blocks) == 2
    names: dict[str, object] = {}
    with rf.use_backend("torch"):
        for block in blocks:
            exec(compile(block, "README.md", "exec"), names)
        out, heads, feat, time, batch = (names[n] for n in ("out", "heads", "feat", "time", "batch"))
        assert out.dims_set == {batch, time, heads, feat}
        assert names["weights"].numpy()[1, ..., 3:].max() == 0
        assert names["y"].dims == (heads, feat)
        assert ERROR is not None
        with pytest.raises(getattr(rf, ERROR[2].removeprefix("rf."))) as info:
            eval(ERROR[1], names)
        assert str(info.value) == ERROR[3]


def test_commands_exist(capsys: pytest.CaptureFixture[str]):
    from rf.cli import main

    commands = set(re.findall(r"^rf (\w+)", README, re.MULTILINE))
    assert {"train", "eval", "profile", "bench", "doctor"} <= commands
    for command in commands:
        assert main([command, "--help"]) == 0
        assert command in capsys.readouterr().out
