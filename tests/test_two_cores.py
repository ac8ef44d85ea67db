"""The model gives the same on the native core, on the Python core, and with and without the native torch path."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytestmark = [pytest.mark.needs("torch"), pytest.mark.needs("native core")]

CODE = """
import sys
import numpy as np
sys.path.insert(0, {tests!r})
import rf
import rf._core
import test_models_aed as t
from nn_helpers import gradients
from rf.backends.torch import native_path_status

assert (rf._core.NATIVE, native_path_status()[0]) == {expected!r}, (rf._core.NOTE, native_path_status())
out = {{}}
with rf.use_backend("torch"):
    for name, data in (("features", t.FEATURES), ("audio", t.AUDIO)):
        model = t.make_model(data)
        batch = t.Batch(model, t.ALL, np.nan, data is t.AUDIO)
        out |= {{f"{{name}} {{k}}": v for k, v in batch.values(model).items()}}
        batch.losses(model, train=False)
        loss = rf.get_run_ctx().total_loss()
        out |= {{f"{{name}} gradient {{k}}": v for k, v in gradients(model, loss).items()}}
np.savez({file!r}, **out)
"""

RUNS = {
    "native core, native torch path": ({"RF_CORE": "native", "RF_TORCH_NATIVE": "1"}, (True, True)),
    "native core": ({"RF_CORE": "native", "RF_TORCH_NATIVE": "0"}, (True, False)),
    "Python core": ({"RF_CORE": "python"}, (False, False)),
}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, np.ndarray]]:
    out = {}
    for i, (run, (settings, expected)) in enumerate(RUNS.items()):
        file = tmp_path_factory.mktemp("cores") / f"{i}.npz"
        code = CODE.format(tests=str(Path(__file__).parent), expected=expected, file=str(file))
        env = {**os.environ, "PYTHONWARNINGS": "", **settings}
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, check=False)
        assert done.returncode == 0, f"{run}: {done.stderr}"
        with np.load(file) as arrays:
            out[run] = dict(arrays)
    return out


@pytest.mark.needs("compiler")
@pytest.mark.parametrize("run", list(RUNS)[1:])
def test_same_outputs_and_gradients(run: str, results: dict[str, dict[str, np.ndarray]]) -> None:
    want, got = results["native core, native torch path"], results[run]
    assert want.keys() == got.keys()
    assert sum("gradient" in name for name in want) > 100
    for name, value in want.items():
        assert np.isfinite(value).all(), name
        np.testing.assert_allclose(got[name], value, rtol=1e-4, atol=1e-5, err_msg=f"{name} on {run}")
