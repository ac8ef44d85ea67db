"""The decomposition of a step: its parts, its sums, its checks, and its reports."""

from __future__ import annotations

import importlib.util
import itertools
import json
import re
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import rf
from rf.backend import get_backend, use_backend
from rf.nn.module import Module
from rf.nn.parameter import Parameter
from rf.profile.environment import environment
from rf.profile.modules import ROOT, ModuleTime
from rf.profile.report import collapsed, print_profile, profile_json
from rf.profile.step import KernelTime, Profile, Step, _differences, kernel_times, profile_step
from rf.profile.tape import Call

torch = pytest.importorskip("torch")

BACKENDS = ["torch", pytest.param("tensorflow", marks=pytest.mark.needs("tensorflow"))]


@pytest.fixture(autouse=True)
def _leave_the_step() -> Iterator[None]:
    yield
    rf.reset_run_ctx()


class Affine(Module):
    def __init__(self, in_dim: rf.Dim, out_dim: rf.Dim) -> None:
        self.in_dim = in_dim
        self.weight = Parameter([in_dim, out_dim])
        self.bias = Parameter([out_dim])

    def __call__(self, x: rf.Tensor) -> rf.Tensor:
        return rf.matmul(x, self.weight, reduce=self.in_dim) + self.bias


class Model(Module):
    def __init__(self) -> None:
        self.feature, hidden = rf.Dim(4, name="F"), rf.Dim(8, name="H")
        self.layers = Stack(Affine(self.feature, hidden), Affine(hidden, self.feature))

    def __call__(self, x: rf.Tensor, time: rf.Dim) -> rf.Tensor:
        return rf.softmax(self.layers(x), axis=time)


class Stack(Module):
    def __init__(self, *layers: Module) -> None:
        for number, layer in enumerate(layers):
            setattr(self, str(number), layer)

    def __call__(self, x: rf.Tensor) -> rf.Tensor:
        for _, layer in self.named_children():
            x = rf.tanh(layer(x))
        return x


def make_step(name: str, *, learning_rate: float = 0.1) -> Step:
    """The step of a small model on one fixed batch."""
    backend = get_backend(name)
    batch = rf.Dim(2, name="B")
    time = rf.Dim(None, name="T", dyn_size_ext=rf.Tensor("lengths", [batch], "int32"))
    inputs = np.random.default_rng(1).standard_normal((2, 3, 4)).astype("float32")
    with use_backend(name):
        model = Model()
        for number, (_, parameter) in enumerate(model.named_parameters()):
            shape = [d.get_dim_value() for d in parameter.dims]
            parameter.assign(np.random.default_rng(number).standard_normal(shape).astype("float32"))

    def forward() -> rf.Tensor:
        rf.init_train_step_run_ctx()
        time.fill([3, 2], [batch])
        x = rf.convert_to_tensor(inputs, dims=[batch, time, model.feature])
        y = model(x, time) - x
        return rf.reduce_mean(y * y, axis=[batch, time, model.feature])

    parameters = list(model.parameters())

    def update(loss: rf.Tensor) -> None:
        gradients = backend.gradient(loss.raw_tensor, [p.raw_tensor for p in parameters])
        with backend.no_grad():
            for p, gradient in zip(parameters, gradients):
                assert gradient is not None
                new = backend.sub(p.raw_tensor, backend.scale(gradient, learning_rate))
                p.raw_tensor = backend.assign(p.raw_tensor, new)

    return Step(backend, forward, update if backend.has_gradients and backend.computes else None, model)


class Ticks:
    """A clock whose every interval has another length: sums come out right only if each part is in them once."""

    def __init__(self) -> None:
        self.now = 0
        self.tick = itertools.count(1)

    def __call__(self) -> int:
        self.now += next(self.tick)
        return self.now


def profile(steps: int = 3, backend: str = "torch", **options: Any) -> Profile:
    return profile_step(make_step(backend), make_step(f"meta:{backend}"), steps=steps, **options)


@pytest.mark.parametrize("backend", BACKENDS)
def test_split_sums_to_the_wall_time(backend: str) -> None:
    result = profile(backend=backend, clock=Ticks())
    assert result.frontend_backend == f"meta:{backend}"
    assert not result.warnings
    assert sum(result.split_ns.values()) == pytest.approx(result.wall_ns, rel=1e-12)
    assert list(result.split_ns) == ["frontend", "backend", "data", "unexplained"]
    assert result.wall_ns == result.forward_ns + result.update_ns + result.wait_ns
    assert result.split_ns["backend"] == result.replay_ns + result.replay_update_ns
    # The clock is slower with every reading, so each part of a round takes longer than the one before it.
    order = [result.wait_ns, result.forward_ns, result.update_ns, result.frontend_ns]
    assert order == sorted(order)
    # what is left over may be negative, and is not touched up
    assert result.split_ns["unexplained"] < 0


@pytest.mark.parametrize("backend", BACKENDS)
def test_real_clock(backend: str) -> None:
    result = profile(backend=backend)
    assert min(result.forward_ns, result.update_ns, result.frontend_ns, result.replay_ns, result.replay_update_ns) > 0
    assert result.split_ns["unexplained"] == pytest.approx(
        result.wall_ns - result.frontend_ns - result.replay_ns - result.replay_update_ns - result.wait_ns
    )


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("alternate", [True, False])
def test_every_part_runs_once_per_step(alternate: bool, backend: str) -> None:
    real, meta = make_step(backend), make_step("meta")
    counts = dict.fromkeys(("forward", "update", "frontend", "batch"), 0)

    def counted(name: str, function: Any) -> Any:
        def call(*args: Any) -> Any:
            counts[name] += 1
            return function(*args)

        return call

    def run(steps: int) -> dict[str, int]:
        counts.update(dict.fromkeys(counts, 0))
        profile_step(
            Step(real.backend, counted("forward", real.forward), counted("update", real.update), real.model),
            Step(meta.backend, counted("frontend", meta.forward), None, meta.model),
            steps=steps,
            next_batch=counted("batch", lambda: None),
            alternate=alternate,
        )
        return dict(counts)

    four, six = run(4), run(6)
    # an update after the step, and one after the replay
    assert {name: six[name] - four[name] for name in counts} == {"forward": 2, "update": 4, "frontend": 2, "batch": 2}
    assert six["batch"] == 6


def test_waiting_is_the_mean() -> None:
    class Clock:
        now = 0

        def __call__(self) -> int:
            self.now += 1
            return self.now

    clock = Clock()
    waits = iter([0, 0, 300])

    def next_batch() -> None:
        clock.now += next(waits)

    result = profile(3, next_batch=next_batch, clock=clock)
    assert result.wait_ns == 101
    assert result.split_ns["data"] == 101


@pytest.mark.parametrize("backend", BACKENDS)
def test_kernel_table(backend: str) -> None:
    first, second = profile(backend=backend), profile(backend=backend)
    calls = {row.kernel: row.calls for row in first.kernels}
    assert calls == {row.kernel: row.calls for row in second.kernels}
    assert calls["tanh"] == 2
    assert calls["contract"] == 2
    assert sum(calls.values()) > 10
    assert [row.total_ns for row in first.kernels] == sorted((row.total_ns for row in first.kernels), reverse=True)


def test_kernel_times_are_those_of_one_run() -> None:
    class Tape:
        runs = iter([[900, 900, 900], [1, 2, 3], [10, 20, 30], [100, 200, 300]])

        def __init__(self) -> None:
            call = make_call
            self.calls = [call("add"), call("exp"), call("add")]

        def time_kernels(self) -> list[int]:
            return next(self.runs)

        def replay(self) -> None: ...

    # the first is for warming up, the median of the others counts
    assert kernel_times(Tape(), 3) == [KernelTime("add", 2, 40), KernelTime("exp", 1, 20)]


def make_call(kernel: str) -> Any:
    return Call(kernel, (), (), 0, native=False, grad=True)


@pytest.mark.parametrize("backend", BACKENDS)
def test_module_table(backend: str) -> None:
    result = profile(backend=backend)
    paths = [ROOT, "layers", "layers.0", "layers.1"]
    assert [row.path for row in result.modules] == paths
    assert [row.path for row in result.frontend_modules] == paths
    for rows in result.modules, result.frontend_modules:
        assert sum(row.own_ns for row in rows) == rows[0].total_ns
        assert all(row.calls == 1 for row in rows)


def test_layers_are_collapsed() -> None:
    rows = [
        ModuleTime(ROOT, "Model", 1, 100, 10),
        ModuleTime("layers.0", "Affine", 1, 30, 30),
        ModuleTime("layers.1", "Affine", 2, 60, 60),
        ModuleTime("conv1", "Conv", 1, 1, 1),
    ]
    assert collapsed(rows) == [
        rows[0],
        ModuleTime("layers.*", "Affine", 3, 90, 90),
        rows[3],
    ]


@pytest.mark.parametrize("backend", BACKENDS)
def test_nothing_is_left_behind(backend: str) -> None:
    real, meta = make_step(backend), make_step("meta")
    kernels, attributes = dict(real.backend.kernels), dict(vars(real.backend))
    classes = [type(module) for module in real.model.modules()]  # type: ignore[attr-defined]
    state = real.backend.get_random_state()
    profile_step(real, meta, steps=1)
    assert {name: real.backend.kernels[name] for name in kernels} == kernels
    assert dict(vars(real.backend)) == attributes
    assert [type(module) for module in real.model.modules()] == classes  # type: ignore[attr-defined]
    assert real.backend.get_random_state() == state
    assert rf.get_backend(backend) is real.backend
    assert real.backend.is_grad_enabled()
    assert rf.get_run_ctx().stage == "init"


def test_replayed_steps_are_training_steps() -> None:
    """Steps and replays take turns in training the same parameters: on any backend the same losses."""
    losses: dict[str, list[float]] = {}
    for name in "torch", "tensorflow":
        if name == "tensorflow" and importlib.util.find_spec(name) is None:
            continue
        real = make_step(name)
        assert real.update is not None
        seen: list[float] = []

        def update(loss: rf.Tensor, update: Any = real.update, seen: list[float] = seen) -> None:
            seen.append(float(loss.item()))
            update(loss)

        profile_step(Step(real.backend, real.forward, update, real.model), make_step("meta"), steps=3)
        losses[name] = seen
    # warming up, the check of the replay, then a step and a replay in each round
    assert all(len(values) == 3 + 1 + 2 * 3 for values in losses.values())
    for values in losses.values():
        assert values == sorted(values, reverse=True)
        assert len(set(values)) == len(values)
        np.testing.assert_allclose(values, losses["torch"], rtol=1e-4)


@pytest.mark.needs("tensorflow")
def test_a_step_that_computes_beside_the_kernels_of_tensorflow_cannot_be_replayed() -> None:
    import tensorflow as tf

    real, meta = make_step("tensorflow"), make_step("meta:tensorflow")

    def forward() -> rf.Tensor:
        raw = tf.exp(real.forward().raw_tensor)
        return rf.convert_to_tensor(raw, dims=()) * 2.0

    with pytest.raises(rf.RfError, match="its loss has no gradient then. Something computes on raw tensors"):
        profile_step(Step(real.backend, forward, real.update, real.model), meta, steps=1)
    assert rf.get_run_ctx().stage == "init"


@pytest.mark.needs("tensorflow")
def test_gradients_that_a_replay_lacks_or_that_differ_are_found() -> None:
    import tensorflow as tf

    real, meta = make_step("tensorflow"), make_step("meta:tensorflow")
    model: Any = real.model
    with use_backend("tensorflow"):
        extra = rf.Parameter([])
        extra.assign(1.0)

    def with_beside(raw: Any) -> Step:
        def forward() -> rf.Tensor:
            loss = real.forward()
            return loss + rf.convert_to_tensor(tf.reduce_sum(tf.square(raw().raw_tensor)), dims=())

        return Step(real.backend, forward, real.update, model)

    # The update of the step changes only the parameters that the model had before.
    model.extra = extra
    with pytest.raises(rf.RfError, match="the gradient of extra and 0 more parameters comes from no recorded kernel"):
        profile_step(with_beside(lambda: extra), meta, steps=1)
    del model.extra
    weight = next(iter(model.layers.parameters()))
    (warning,) = profile_step(with_beside(lambda: weight), meta, steps=1).warnings
    assert re.match(r"the replay is not the step: its gradient differs by \d+\.\d% of the norm", warning)


def test_portable_random_numbers_are_in_the_rest() -> None:
    rf.set_random_portable()
    try:
        (warning,) = profile(1).warnings
    finally:
        rf.set_random_portable(None)
    assert warning.startswith("random numbers are drawn on the host (portable mode)")


def test_a_step_that_computes_beside_the_kernels_cannot_be_replayed() -> None:
    real, meta = make_step("torch"), make_step("meta")

    def forward() -> rf.Tensor:
        raw = torch.exp(real.forward().raw_tensor)
        return rf.convert_to_tensor(raw, dims=()) * 2.0

    with pytest.raises(rf.RfError, match="Exp.* come from no recorded kernel"):
        profile_step(Step(real.backend, forward, real.update, real.model), meta, steps=1)


def test_a_replay_that_is_not_the_step_is_reported() -> None:
    real, meta = make_step("torch"), make_step("meta")
    numbers = itertools.count()

    def forward() -> rf.Tensor:
        # another constant every time, from outside
        return real.forward() * rf.convert_to_tensor(torch.tensor(float(next(numbers))).exp(), dims=())

    recorded = profile_step(Step(real.backend, forward, lambda loss: None, real.model), meta, steps=1)
    assert not recorded.warnings  # the replay has the constant of the recording

    def with_constant(loss: rf.Tensor) -> rf.Tensor:
        return rf.convert_to_tensor(loss.raw_tensor.detach() * 3.0, dims=())

    with use_backend("torch"):
        loss = real.forward()
    first, second = _differences(loss, with_constant(loss))
    assert "its loss is" in first
    assert "its graph has 0 nodes" in second
    assert _differences(loss, real.forward()) == []


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_loss_that_is_not_finite_is_reported(backend: str) -> None:
    real, meta = make_step(backend), make_step("meta")
    step = Step(real.backend, lambda: real.forward() * float("nan"), real.update, real.model)
    (warning,) = profile_step(step, meta, steps=1).warnings
    assert "the loss is nan" in warning


def test_backends_that_will_not_do() -> None:
    torch_step, meta_step = make_step("torch"), make_step("meta")
    numpy_step = Step(get_backend("numpy"), torch_step.forward, None, torch_step.model)
    with pytest.raises(rf.BackendError, match="numpy"):
        profile_step(numpy_step, meta_step)
    with pytest.raises(rf.BackendError, match="meta"):
        profile_step(meta_step, meta_step)
    with pytest.raises(rf.BackendError, match="not on torch"):
        profile_step(torch_step, torch_step)
    with pytest.raises(rf.BackendError, match="meta:tensorflow does not stand for torch"):
        profile_step(torch_step, make_step("meta:tensorflow"))


# -- reports


def test_json() -> None:
    result = profile()
    env = environment(get_backend("torch"))
    text = json.dumps(profile_json(result, env, {"model": "m", "data": "d"}), allow_nan=False)
    data = json.loads(text)
    assert sum(data["split"].values()) == pytest.approx(data["wall_ms"], rel=1e-9)
    assert set(data["split"]) == {"frontend", "backend", "data", "unexplained"}
    assert data["wall_ms"] == pytest.approx(result.wall_ns / 1e6)
    assert (data["model"], data["data"], data["steps"]) == ("m", "d", 3)
    assert data["frontend_backend"] == "meta:torch"
    assert sum(row["share"] for row in data["kernels"]) == pytest.approx(1)
    assert sum(row["share"] for row in data["modules"]) == pytest.approx(1)
    for row in data["kernels"]:
        assert row["ns"] * row["calls"] == pytest.approx(row["total_ms"] * 1e6)
    for row in data["modules"]:
        assert row["frontend_ns"] > 0
    assert data["environment"]["core"] in ("native", "python")
    assert data["environment"]["native_path"] in ("native", "python")
    assert data["environment"]["threads"]["torch"] == torch.get_num_threads()
    assert data["environment"]["packages"]["torch"]


def table_cells(text: str, title: str) -> list[list[str]]:
    """The rows of the table below `title`, as cells."""
    after = text[text.index(title) :].splitlines()[1:]
    rows = []
    for line in after:
        if not line.startswith(("+", "|")):
            break
        if line.startswith("|"):
            rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows


def test_printed_tables_sum_to_their_totals(capsys: pytest.CaptureFixture[str]) -> None:
    result = profile(next_batch=lambda: None)
    print_profile(result, environment(get_backend("torch")), {"model": "m"})
    text = capsys.readouterr().out
    assert "\033" not in text  # plain when piped
    assert "the same step on the backend meta:torch " in text
    split = table_cells(text, "One training step")
    assert [row[0] for row in split] == ["part", "frontend", "backend", "data", "unexplained", "step"]
    assert float(split[-1][1]) == pytest.approx(result.wall_ns / 1e6, abs=1e-3)
    assert sum(float(row[1]) for row in split[1:-1]) == pytest.approx(float(split[-1][1]), abs=3e-3)
    kernels = table_cells(text, "Forward kernels")
    assert sum(int(row[1]) for row in kernels[1:-1]) == int(kernels[-1][1]) > 0
    assert sum(float(row[3]) for row in kernels[1:-1]) == pytest.approx(float(kernels[-1][3]), abs=1e-3 * len(kernels))
    modules = table_cells(text, "Forward by module")
    assert [row[0] for row in modules[1:]] == [ROOT, "layers", "layers.*", "all"]
    assert modules[3][2] == "2"
    assert sum(float(row[5]) for row in modules[1:-1]) == pytest.approx(float(modules[-1][5]), abs=1e-3 * len(modules))


def test_slow_data_is_seen(capsys: pytest.CaptureFixture[str]) -> None:
    result = profile(2, next_batch=lambda: time.sleep(0.02))
    assert result.split_ns["data"] >= 20e6
    print_profile(result, environment(get_backend("torch")), {"model": "m"})
    assert "of the step is waiting for data" in capsys.readouterr().out


def test_much_waiting_gets_a_hint(capsys: pytest.CaptureFixture[str]) -> None:
    parts = dict.fromkeys(("forward_ns", "update_ns", "frontend_ns", "replay_ns", "replay_update_ns"), 1e6)
    kernels, modules = [KernelTime("add", 1, 10)], [ModuleTime(ROOT, "M", 1, 10, 10)]
    for wait, hint in (1e4, False), (1e6, True):
        result = Profile(1, wait_ns=wait, kernels=kernels, modules=modules, frontend_modules=[], **parts)
        print_profile(result, environment(get_backend("torch")), {"model": "m"})
        assert ("--workers" in capsys.readouterr().out) == hint
