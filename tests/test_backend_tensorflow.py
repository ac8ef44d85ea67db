"""The TensorFlow backend beyond the conformance suite: loading, parameters and gradients, and training as on torch."""

from __future__ import annotations

import importlib.util
import itertools
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rf
from rf import _random, checkpoint
from rf.train import CHECKPOINT, Run, RunOptions, load_run

needs_tensorflow = pytest.mark.needs("tensorflow")


@pytest.fixture
def tensorflow() -> Iterator[None]:
    with rf.use_backend("tensorflow"):
        yield
    rf.reset_run_ctx()


def python(code: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run `code` in a fresh Python, without settings of rf."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("RF_") or name == "RF_CORE"}
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "3"}
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=clean | quiet | env)


# -- loading


@pytest.mark.parametrize("name", ["tensorflow", "torch"])
def test_missing(name: str) -> None:
    result = python(
        f"import sys\nsys.modules[{name!r}] = None\nimport rf\nrf.select_backend('numpy')\n"
        f"try: rf.select_backend({name!r})\nexcept rf.BackendMissingError as exc: print(exc)"
    )
    assert f"'{name}' needs {name}, which cannot be imported" in result.stdout, result.stderr
    assert f"pip install 'rf-eager[{name}]'" in result.stdout


def test_too_old() -> None:
    result = python(
        "import sys, types\nold = types.ModuleType('tensorflow')\nold.__version__ = '2.9.1'\n"
        "sys.modules['tensorflow'] = old\nimport rf\n"
        "try: rf.select_backend('tensorflow')\nexcept rf.BackendMissingError as exc: print(exc)"
    )
    assert "needs tensorflow 2.16 or newer, not 2.9.1" in result.stdout, result.stderr


@needs_tensorflow
def test_works_without_torch() -> None:
    result = python(
        "import sys\nsys.modules['torch'] = None\nimport rf\n"
        "with rf.use_backend('tensorflow'): print((rf.convert_to_tensor([1., 2.]) * 2.0).numpy())"
    )
    assert result.stdout == "[2. 4.]\n", result.stderr


@needs_tensorflow
@pytest.mark.parametrize("order", list(itertools.permutations(("rf", "torch", "tensorflow"))), ids="-".join)
def test_imports_in_any_order(order: tuple[str, ...]) -> None:
    """Importing rf imports no framework, and nothing of TensorFlow is set up before its backend is used first."""
    names = [name for name in order if name != "torch" or importlib.util.find_spec("torch") is not None]
    code = "import sys\n"
    for i, name in enumerate(names):
        code += f"import {name}\n"
        if name == "rf":
            code += f"assert not {set(names[i + 1 :])} & sys.modules.keys()\n"
    code += "import rf.backends.tensorflow\n"
    # What TensorFlow forbids from then on.
    code += "set_threads = tensorflow.config.threading.set_intra_op_parallelism_threads\nset_threads(1)\n"
    for name in sorted(set(names) - {"rf"}):
        code += f"with rf.use_backend({name!r}): print((rf.convert_to_tensor([1.0, 2.0]) + 1.0).numpy())\n"
    code += "try: set_threads(2)\nexcept RuntimeError: print('set up')"
    result = python(code)
    assert result.stdout == "[2. 3.]\n" * (len(names) - 1) + "set up\n", result.stderr


class Config:
    """`tf.config` of a machine with two GPUs, on which the program has said `growth` and `limits` so far."""

    def __init__(
        self, growth: Sequence[bool | None] = (None, None), limits: Sequence[Any] = (None, None), started: bool = False
    ) -> None:
        self.experimental = self
        self.growth, self.limits, self.started, self.visible = list(growth), limits, started, [0, 1]

    def get_visible_devices(self, kind: str) -> list[int]:
        assert kind == "GPU"
        return self.visible

    def get_memory_growth(self, gpu: int) -> bool | None:
        return self.growth[gpu]

    def get_logical_device_configuration(self, gpu: int) -> Any:
        return self.limits[gpu]

    def set_memory_growth(self, gpu: int, enable: bool) -> None:
        if self.limits[gpu]:
            raise ValueError("virtual devices are configured")
        if self.started:
            raise RuntimeError("cannot be modified after being initialized")
        self.growth[gpu] = enable


@needs_tensorflow
def test_memory_of_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    from rf.backends.tensorflow import share_gpus

    monkeypatch.delenv("TF_FORCE_GPU_ALLOW_GROWTH", raising=False)
    for config, growth in (
        (Config(), [True, True]),
        (Config(growth=(False, False)), [False, False]),
        (Config(growth=(None, True)), [None, True]),
        (Config(limits=(None, ["at most 1 GB"])), [None, None]),
        (Config(started=True), [None, None]),
    ):
        assert share_gpus(config) and config.growth == growth
    hidden = Config()
    hidden.visible = []
    assert not share_gpus(hidden) and hidden.growth == [None, None]
    monkeypatch.setenv("TF_FORCE_GPU_ALLOW_GROWTH", "false")
    config = Config()
    assert share_gpus(config) and config.growth == [None, None]


@needs_tensorflow
def test_what_is_asked_of_its_settings_exists() -> None:
    import tensorflow as tf

    from rf.backends.tensorflow import share_gpus

    assert share_gpus(tf.config) == bool(tf.config.get_visible_devices("GPU"))


@needs_tensorflow
def test_raw_arrays_and_variables(tensorflow: None) -> None:
    import tensorflow as tf

    d = rf.Dim(2, name="d")
    x = rf.convert_to_tensor(tf.constant([1.0, 2.0]), dims=[d])
    v = rf.convert_to_tensor(tf.Variable([3.0, 4.0]), dims=[d])
    assert x.backend is v.backend is rf.get_backend("tensorflow")
    y = x * v
    assert isinstance(y.raw_tensor, tf.Tensor) and y.numpy().tolist() == [3.0, 8.0]
    assert y.dtype == "float32" and y.device == "cpu"


@needs_tensorflow
def test_mixing_backends_and_converting() -> None:
    d = rf.Dim(2, name="d")
    with rf.use_backend("numpy"):
        a = rf.convert_to_tensor(np.array([1.0, 2.0], np.float32), dims=[d])
    with rf.use_backend("tensorflow"):
        b = rf.convert_to_tensor(np.array([1.0, 2.0], np.float32), dims=[d])
        with pytest.raises(rf.BackendError, match=r"(?s)numpy.*tensorflow.*convert_backend"):
            a + b
        assert (rf.convert_backend(a, "tensorflow") + b).numpy().tolist() == [2.0, 4.0]
        assert (a + rf.convert_backend(b, "numpy")).numpy().tolist() == [2.0, 4.0]


@needs_tensorflow
def test_errors_are_those_of_tensorflow(tensorflow: None) -> None:
    import tensorflow as tf

    backend = rf.get_backend("tensorflow")
    with pytest.raises(tf.errors.InvalidArgumentError, match="AddV2"):
        backend.add(tf.constant([1.0, 2.0]), tf.constant([1.0, 2.0, 3.0]))


# -- gradients and parameters


@needs_tensorflow
def test_gradient_needs_recording(tensorflow: None) -> None:
    x = rf.Parameter([rf.Dim(2, name="d")])
    x.initial = np.array([1.0, 2.0])
    y = rf.reduce_sum(x * x, axis=x.dims)
    with pytest.raises(rf.BackendError, match="init_train_step_run_ctx"):
        rf.gradient(y, x)
    rf.init_train_step_run_ctx()
    y = rf.reduce_sum(x * x, axis=x.dims)
    assert rf.gradient(y, x).numpy().tolist() == [2.0, 4.0]
    assert rf.gradient(y, x).numpy().tolist() == [2.0, 4.0]
    with rf.stop_gradient_scope():
        z = rf.reduce_sum(x * x, axis=x.dims)
    with pytest.raises(rf.BackendError):
        rf.gradient(z, x)
    rf.reset_run_ctx()
    with pytest.raises(rf.BackendError):
        rf.gradient(y, x)


@needs_tensorflow
def test_parameter_keeps_gradients_when_assigned(tensorflow: None) -> None:
    d = rf.Dim(2, name="d")
    x, fixed = rf.Parameter([d]), rf.Parameter([d], auxiliary=True)
    x.initial, fixed.initial = 1.0, 1.0
    rf.init_train_step_run_ctx()
    value = rf.convert_to_tensor(np.array([1.0, 2.0], np.float32), dims=[d])
    x.assign(value)
    fixed.assign(value)
    assert x.raw_tensor is not value.raw_tensor
    both = rf.gradient(rf.reduce_sum(x * x * fixed, axis=d), [x, fixed])
    assert both[0].numpy().tolist() == [2.0, 8.0] and both[1].numpy().tolist() == [0.0, 0.0]
    x.trainable = False
    rf.init_train_step_run_ctx()
    with pytest.raises(rf.BackendError):
        rf.gradient(rf.reduce_sum(x * x, axis=d), x)


@needs_tensorflow
def test_slow_path_gives_the_same(tensorflow: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where private parts of TensorFlow are missing."""
    import tensorflow as tf

    from rf.backends import _tensorflow_fast

    x = tf.constant([[1.0, 2.0], [3.0, 4.0]])
    calls = [
        (("Sum",), {"keep_dims": False}, (x, tf.constant([1]))),
        (("GatherV2", "batch_dims"), {}, (x, tf.constant([1]), tf.constant(0), 0)),
        (("Squeeze", "squeeze_dims"), {}, (x[None], [0])),
        (("ConcatV2",), {}, ([x, x], tf.constant(0))),
        (("Cast", "DstT"), {"Truncate": False}, (x, tf.int32.as_datatype_enum)),
    ]
    fast = [_tensorflow_fast.fast(*names, **attrs)(*args) for names, attrs, args in calls]
    monkeypatch.setattr(_tensorflow_fast, "FAST", False)
    slow = [_tensorflow_fast.fast(*names, **attrs)(*args) for names, attrs, args in calls]
    for a, b in zip(fast, slow):
        assert a.dtype == b.dtype and np.array_equal(a.numpy(), b.numpy())
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = _tensorflow_fast.with_gradient((x,), tf.square, lambda x, y, g: (g * 10.0,))
    assert np.array_equal(tape.gradient(y, x).numpy(), np.full((2, 2), 10.0))


# -- random numbers


@needs_tensorflow
def test_random_state(tensorflow: None) -> None:
    dims = [rf.Dim(5, name="a"), rf.Dim(3, name="b")]
    rf.set_random_seed(3)
    first = rf.random_normal(dims).numpy()
    state = rf.get_random_state()
    second = rf.random_uniform(dims).numpy()
    assert not np.array_equal(first, second)
    rf.set_random_state(state)
    assert np.array_equal(rf.random_uniform(dims).numpy(), second)
    rf.set_random_seed(3)
    assert np.array_equal(rf.random_normal(dims).numpy(), first)


@pytest.fixture
def portable() -> Iterator[None]:
    rf.set_random_portable(True)
    yield
    _random.set_portable(None)


@pytest.mark.parametrize(
    "name",
    [
        "numpy",
        pytest.param("torch", marks=pytest.mark.needs("torch")),
        pytest.param("tensorflow", marks=needs_tensorflow),
    ],
)
def test_portable_draws_do_not_depend_on_the_backend(portable: None, name: str) -> None:
    def draw(backend: str) -> list[np.ndarray]:
        with rf.use_backend(backend):
            a, b = rf.Dim(50, name="a"), rf.Dim(3, name="b")
            rf.set_random_seed(7)
            x = rf.random_uniform([a, b], minval=-2.0, maxval=2.0)
            y = rf.dropout(x, 0.4, axis=a, on_forward=True)
            z = rf.dropout(x, 0.4, on_forward=True)
            n = rf.random_uniform([a], minval=0, maxval=9, dtype="int32")
            return [t.numpy() for t in (x, y, z, n)]

    mine, reference = draw(name), draw("numpy")
    for a, b in zip(mine, reference):
        np.testing.assert_allclose(a, b, rtol=1e-6)
    x, y, z, _ = mine
    dropped = (y == 0).all(1)
    assert 5 < dropped.sum() < 35 and np.allclose(y[~dropped], x[~dropped] / 0.6)
    assert 20 < (z == 0).sum() < 100 and (z == 0).any(1).sum() > (z == 0).all(1).sum()


def test_portable_state(portable: None) -> None:
    with rf.use_backend("numpy"):
        d = rf.Dim(4, name="d")
        rf.set_random_seed(1)
        state = rf.get_random_state()
        first = rf.random_uniform([d]).numpy()
        rf.set_random_state(state)
        assert np.array_equal(rf.random_uniform([d]).numpy(), first)


# -- training


def options() -> RunOptions:
    return RunOptions.make({"preset": "tiny", "batch_size": 4, "max_sequences": 40, "warmup": 10, "seed": 3})


def losses(run: Run, until: int) -> list[float]:
    out = [report.losses["total"] for report in run.steps(until)]
    run.close()
    return out


@pytest.fixture(scope="module")
def trained_on_torch(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[float], Path]:
    """Losses of 50 steps, and the checkpoint after 5 of them."""
    rf.set_random_portable(True)
    try:
        with rf.use_backend("torch"):
            out = tmp_path_factory.mktemp("torch")
            run = Run.start(options())
            before = losses(run, 5)
            run.save(out)
            return before + losses(run, 50), out
    finally:
        _random.set_portable(None)


@needs_tensorflow
@pytest.mark.needs("torch")
def test_trains_as_on_torch(portable: None, trained_on_torch: tuple[list[float], Path], tmp_path: Path) -> None:
    expected, _ = trained_on_torch
    with rf.use_backend("tensorflow"):
        run = Run.start(options())
        actual = losses(run, 50)
    np.testing.assert_allclose(actual[:10], expected[:10], rtol=1e-4)
    np.testing.assert_allclose(actual[49], expected[49], rtol=0.02)
    assert actual[49] < 0.9 * actual[0]


@needs_tensorflow
@pytest.mark.needs("torch")
def test_continues_a_checkpoint_of_torch_and_back(
    portable: None, trained_on_torch: tuple[list[float], Path], tmp_path: Path
) -> None:
    expected, saved = trained_on_torch
    with rf.use_backend("tensorflow"):
        run = Run.resume(load_run(saved), {})
        np.testing.assert_allclose(losses(run, 8), expected[5:8], rtol=1e-4)
        run.save(tmp_path)
        arrays = checkpoint.read_arrays(tmp_path / CHECKPOINT)[0]
        assert "/random/tensorflow" in arrays and "/random/torch" not in arrays
    with rf.use_backend("torch"):
        run = Run.resume(load_run(tmp_path), {})
        np.testing.assert_allclose(losses(run, 10), expected[8:10], rtol=1e-4)
