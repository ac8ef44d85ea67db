"""The optimizers against those of torch, on gradients that are known, on every backend; their state; schedules."""

from __future__ import annotations

import doctest
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

import rf
from rf import checkpoint, optim
from rf.backend import get_backend
from rf.optim import (
    Constant,
    Cosine,
    Exponential,
    InverseSquareRoot,
    MultiStep,
    Optimizer,
    PiecewiseLinear,
    Warmup,
    adam,
    adamw,
    sgd,
    warmup_learning_rate,
)
from rf.optim.kernels import KernelOptimizer
from rf.optim.rule import Adam, Rule, Sgd

pytestmark = pytest.mark.needs("torch")

KERNELS = "torch kernels"
"""The optimizers that TensorFlow has, on torch."""

BACKENDS = ["torch", KERNELS, pytest.param("tensorflow", marks=pytest.mark.needs("tensorflow"))]

BETAS, EPS, DECAY = (0.8, 0.9), 1e-6, 0.1

CASES: dict[str, tuple[Callable[..., Optimizer], dict[str, Any], Rule, type[torch.optim.Optimizer]]] = {
    "sgd": (sgd, {}, Sgd(0.0, False), torch.optim.SGD),
    "momentum": (sgd, {"momentum": 0.9}, Sgd(0.9, False), torch.optim.SGD),
    "nesterov": (sgd, {"momentum": 0.9, "nesterov": True}, Sgd(0.9, True), torch.optim.SGD),
    "adam": (adam, {"betas": BETAS, "eps": EPS}, Adam(BETAS, EPS, False), torch.optim.Adam),
    "adamw": (adamw, {"betas": BETAS, "eps": EPS}, Adam(BETAS, EPS, True), torch.optim.AdamW),
}
"""How to make an optimizer; its options, also those of torch; its rule; what torch calls it."""

VALUES = {"weight": np.arange(6.0).reshape(3, 2) / 7, "bias": np.array([1.0, -1.0]), "late": np.array([0.5, 0.25])}


class Model(rf.Module):
    """`late` has a gradient in some steps only, `unused` and `running` never."""

    def __init__(self, dtype: str = "float32") -> None:
        super().__init__()
        a, b = rf.Dim(3, name="a"), rf.Dim(2, name="b")
        self.weight = rf.Parameter([a, b], dtype, initial=VALUES["weight"])
        self.bias = rf.Parameter([b], dtype, initial=VALUES["bias"], weight_decay=0.5)
        self.late = rf.Parameter([b], dtype, initial=VALUES["late"])
        self.unused = rf.Parameter([b], dtype)
        self.running = rf.Parameter([b], dtype, auxiliary=True)

    def loss(self, step: int) -> rf.Tensor:
        x = self.weight * self.weight * float(step + 1) + self.bias
        if step % 3 == 1:
            x = x + self.late
        return rf.reduce_sum(x * x, axis=x.dims) * 0.05


def make(where: str, case: str, model: Model, *, max_norm: float | None = None) -> Optimizer:
    """The optimizer of a case for a model on the selected backend."""
    factory, options, rule, _ = CASES[case]
    if where != KERNELS:
        return factory(model.named_parameters(), **options, weight_decay=DECAY, max_gradient_norm=max_norm)
    parameters = {name: p for name, p in model.named_parameters() if p.trainable}
    decay = {name: p.weight_decay or DECAY * (len(p.dims) > 1) for name, p in parameters.items()}
    return KernelOptimizer(get_backend("torch"), rule, parameters, decay, math.inf if max_norm is None else max_norm)


def learning_rate(step: int) -> float:
    return 0.1 / (step + 1)


def train(model: Model, optimizer: Optimizer, steps: range) -> list[float]:
    """Norms of the gradients in these steps."""
    norms = []
    for i in steps:
        rf.init_train_step_run_ctx(step=i)
        norms.append(optimizer.step(model.loss(i), learning_rate=learning_rate(i)))
        rf.reset_run_ctx()
    return norms


def values_of(model: rf.Module) -> dict[str, np.ndarray]:
    return {name: p.numpy().copy() for name, p in model.named_parameters()}


@pytest.fixture(params=BACKENDS)
def where(request: pytest.FixtureRequest) -> Iterator[str]:
    with rf.use_backend("tensorflow" if request.param == "tensorflow" else "torch"):
        yield request.param
    rf.reset_run_ctx()


@pytest.fixture
def on_torch() -> Iterator[None]:
    with rf.use_backend("torch"):
        yield


def reference(case: str, steps: int, max_norm: float | None) -> tuple[dict[str, np.ndarray], list[float]]:
    """Values and norms by torch's own optimizer, in float64, and its plain implementation."""
    p = {name: torch.tensor(value, dtype=torch.float64, requires_grad=True) for name, value in VALUES.items()}
    groups = [{"params": [p[n]], "weight_decay": d} for n, d in (("weight", DECAY), ("bias", 0.5), ("late", 0.0))]
    _, options, _, cls = CASES[case]
    optimizer = cls(groups, **{"lr": 0.0, "foreach": False} | options)  # type: ignore[call-arg]
    norms = []
    for i in range(steps):
        optimizer.zero_grad()
        x = p["weight"] ** 2 * (i + 1) + p["bias"]
        if i % 3 == 1:
            x = x + p["late"]
        ((x**2).sum() * 0.05).backward()
        grads = [q.grad for q in p.values() if q.grad is not None]
        norms.append(math.sqrt(sum(float((g**2).sum()) for g in grads)))
        if max_norm is not None and norms[-1] > max_norm:
            for g in grads:
                g *= max_norm / norms[-1]
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(i)
        optimizer.step()
    return {name: q.detach().numpy() for name, q in p.items()}, norms


# -- against torch


@pytest.mark.parametrize("max_norm", [None, 0.5])
@pytest.mark.parametrize("case", CASES)
def test_matches_torch(where: str, case: str, max_norm: float | None) -> None:
    model = Model()
    norms = train(model, make(where, case, model, max_norm=max_norm), range(8))
    expected, expected_norms = reference(case, 8, max_norm)
    np.testing.assert_allclose(norms, expected_norms, rtol=2e-5)
    for name, value in expected.items():
        np.testing.assert_allclose(getattr(model, name).numpy(), value, rtol=1e-5, atol=1e-6, err_msg=name)
        assert not np.allclose(value, VALUES[name], atol=1e-3)
    assert not model.unused.numpy().any() and not model.running.numpy().any()
    if max_norm is not None:
        assert min(expected_norms) < max_norm < max(expected_norms)  # else something is not tested
        assert not np.allclose(expected["weight"], reference(case, 8, None)[0]["weight"], atol=1e-4)


def test_cases_differ() -> None:
    """The comparison above would notice the wrong rule."""
    weights = [reference(case, 8, None)[0]["weight"] for case in CASES]
    for i, a in enumerate(weights):
        assert all(not np.allclose(a, b, rtol=1e-3) for b in weights[:i])


@pytest.mark.parametrize("case", CASES)
def test_decay_only(where: str, case: str) -> None:
    """With a gradient of zero; a parameter's own decay takes the place of the optimizer's."""
    model = Model()
    model.weight.weight_decay = 0.2
    optimizer = make(where, case, model)
    rf.init_train_step_run_ctx()
    assert optimizer.step(model.loss(0) * 0.0, learning_rate=0.1) == 0.0
    for name, decay in ("weight", 0.2), ("bias", 0.5):
        before = VALUES[name]
        g = decay * before
        expected = {
            "momentum": before - 0.1 * g,
            "nesterov": before - 0.1 * 1.9 * g,
            "adam": before - 0.1 * g / (abs(g) + EPS),
        }.get(case, before * (1 - 0.1 * decay))
        np.testing.assert_allclose(getattr(model, name).numpy(), expected, rtol=1e-5)


# -- state


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("case", CASES)
def test_state_continues_exactly(where: str, case: str, dtype: str) -> None:
    straight = Model(dtype)
    train(straight, make(where, case, straight), range(7))
    first = Model(dtype)
    optimizer = make(where, case, first)
    train(first, optimizer, range(3))
    state, values = optimizer.state(), values_of(first)
    moments = ("first_moment", "second_moment", "num_updates")
    kept = {"sgd": (), "adam": moments, "adamw": moments}.get(case, ("velocity",))
    assert set(state) == {f"{name}/{what}" for name in VALUES for what in kept}
    train(first, optimizer, range(3, 4))  # the state is a copy
    second = Model(dtype)
    checkpoint.restore_params(second, values)
    optimizer = make(where, case, second)
    optimizer.load_state(state)
    after = optimizer.state()
    assert after.keys() == state.keys() and all(np.array_equal(after[n], state[n]) for n in state)
    train(second, optimizer, range(3, 7))
    for name, value in values_of(straight).items():
        assert value.tobytes() == values_of(second)[name].tobytes(), name


def whole(
    backend: str, case: str, saved: tuple[dict[str, np.ndarray], dict[str, np.ndarray]] | None, steps: range
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Values and state after the steps, from such."""
    with rf.use_backend(backend):
        model = Model()
        optimizer = make(backend, case, model, max_norm=0.5)
        if saved is not None:
            checkpoint.restore_params(model, saved[0])
            optimizer.load_state(saved[1])
        train(model, optimizer, steps)
        return values_of(model), optimizer.state()


@pytest.mark.needs("tensorflow")
@pytest.mark.parametrize("case", CASES)
def test_continues_on_the_other_backend(case: str) -> None:
    expected = whole("torch", case, None, range(8))
    for first, second in ("torch", "tensorflow"), ("tensorflow", "torch"), ("tensorflow", "tensorflow"):
        actual = whole(second, case, whole(first, case, None, range(5)), range(5, 8))
        for now, then in zip(actual, expected):
            assert now.keys() == then.keys()
            for name, value in then.items():
                assert now[name].shape == value.shape and now[name].dtype == value.dtype, name
                np.testing.assert_allclose(now[name], value, rtol=1e-5, atol=1e-6, err_msg=name)


def test_state_that_does_not_fit(where: str) -> None:
    model = Model()
    optimizer = make(where, "adamw", model)
    train(model, optimizer, range(2))
    state = optimizer.state()
    for changes, message in (
        ({"other/first_moment": np.ones(2)}, r"other/first_moment \(2,\) fits no parameter"),
        ({"bias/first_moment": np.ones(3)}, r"bias/first_moment \(3,\) fits no parameter"),
        ({"bias/num_updates": np.ones(2)}, r"bias/num_updates \(2,\) fits no parameter"),
        (
            {"bias/speed": np.ones(2)},
            "bias/speed is that of another optimizer: AdamW keeps first_moment, second_moment",
        ),
    ):
        with pytest.raises(rf.UserError, match=message):
            optimizer.load_state(state | changes)
    with pytest.raises(rf.UserError, match="incomplete"):
        optimizer.load_state({name: a for name, a in state.items() if name != "bias/num_updates"})
    after = optimizer.state()  # untouched
    assert after.keys() == state.keys() and all(np.array_equal(after[name], state[name]) for name in state)


def test_state_of_another_optimizer(where: str) -> None:
    states = {}
    for case in CASES:
        model = Model()
        optimizer = make(where, case, model)
        train(model, optimizer, range(2))
        states[case] = optimizer.state()
    for case, state, message in (
        ("adamw", "momentum", "velocity is that of another optimizer: AdamW keeps first_moment, second_moment, num_up"),
        ("momentum", "adam", "first_moment is that of another optimizer: SGD keeps velocity"),
        ("sgd", "adamw", "first_moment is that of another optimizer: SGD keeps nothing"),
        ("sgd", "nesterov", "velocity is that of another optimizer: SGD keeps nothing"),
    ):
        with pytest.raises(rf.UserError, match=message):
            make(where, case, Model()).load_state(states[state])
    make(where, "adamw", Model()).load_state(states["adam"])  # these mean the same
    fresh = make(where, "adamw", Model())
    fresh.load_state({})
    assert fresh.state() == {}


# -- what may happen in between


@pytest.mark.parametrize("case", ["momentum", "adamw"])
def test_not_finite_gradient_is_left_out(where: str, case: str) -> None:
    model = Model()
    optimizer = make(where, case, model, max_norm=1.0)
    train(model, optimizer, range(2))
    before, state = values_of(model), optimizer.state()
    rf.init_train_step_run_ctx()
    assert not math.isfinite(optimizer.step(model.loss(0) * math.inf, learning_rate=0.1))
    assert all(np.array_equal(a, before[name]) for name, a in values_of(model).items())
    assert all(np.array_equal(a, state[name]) for name, a in optimizer.state().items())


def test_values_from_elsewhere(where: str) -> None:
    """Parameters that were given other values between two steps, or frozen."""
    model = Model()
    optimizer = make(where, "sgd", model)
    train(model, optimizer, range(2))
    model.weight.assign(VALUES["weight"] + 1)
    model.bias.trainable = False
    bias = model.bias.numpy().copy()
    rf.init_train_step_run_ctx()
    (gradient,) = rf.gradient(model.loss(0), [model.weight])
    expected = model.weight.numpy() * (1 - 0.1 * DECAY) - 0.1 * gradient.numpy()
    optimizer.step(model.loss(0), learning_rate=0.1)
    np.testing.assert_allclose(model.weight.numpy(), expected, rtol=1e-5)
    np.testing.assert_array_equal(model.bias.numpy(), bias)
    # What the update has made is followed by gradients, in the same train step and in the next one.
    assert np.abs(rf.gradient(model.loss(0), model.weight).numpy()).max() > 0
    rf.init_train_step_run_ctx()
    assert np.abs(rf.gradient(model.loss(0), model.weight).numpy()).max() > 0


def test_parameters_of_several_dtypes(where: str) -> None:
    model = Model()
    model.bias.to(dtype="float64")
    train(model, make(where, "adamw", model), range(4))
    single = Model()
    train(single, make(where, "adamw", single), range(4))
    assert model.bias.numpy().dtype == np.float64
    for name, value in values_of(single).items():
        np.testing.assert_allclose(values_of(model)[name], value, rtol=1e-5, atol=1e-6)


def test_scalar_and_empty_parameters(where: str) -> None:
    class Small(Model):
        def __init__(self) -> None:
            super().__init__()
            self.factor = rf.Parameter([], initial=2.0)
            self.empty = rf.Parameter([rf.Dim(0, name="empty")])

        def loss(self, step: int) -> rf.Tensor:
            return self.factor * self.factor + rf.reduce_sum(self.empty, axis=self.empty.dims)

    model = Small()
    optimizer = make(where, "momentum", model)
    assert train(model, optimizer, range(2)) == pytest.approx([4.0, 3.2])
    # 2 - 0.1 * 4, then the velocity is 0.9 * 4 + 3.2 at half the rate
    assert model.factor.numpy() == pytest.approx(1.6 - 0.05 * 6.8)
    state = optimizer.state()
    assert state["factor/velocity"].shape == () and state["empty/velocity"].shape == (0,)
    optimizer.load_state(state)


def test_parameter_that_was_converted(where: str) -> None:
    model = Model()
    optimizer = make(where, "adamw", model)
    train(model, optimizer, range(2))
    model.bias.to(dtype="float64")
    rf.init_train_step_run_ctx()
    with pytest.raises(rf.UserError, match=r"the parameter bias .*; make the optimizer after that"):
        optimizer.step(model.loss(0), learning_rate=0.1)


@pytest.mark.needs("tensorflow")
def test_parameters_that_are_variables() -> None:
    import tensorflow as tf

    with rf.use_backend("tensorflow"):
        model = Model()
        variable = tf.Variable(model.weight.raw_tensor)
        model.weight.raw_tensor = variable
        train(model, make("tensorflow", "adamw", model), range(4))
        assert model.weight.raw_tensor is variable
        plain = Model()
        train(plain, make("tensorflow", "adamw", plain), range(4))
        np.testing.assert_allclose(variable.numpy(), plain.weight.numpy(), rtol=1e-6)


# -- errors


def test_bad_steps(where: str) -> None:
    model = Model()
    optimizer = make(where, "adamw", model)
    before = values_of(model)
    rf.init_train_step_run_ctx()
    for rate in -0.1, math.nan, math.inf:
        with pytest.raises(rf.UserError, match=r"AdamW: learning rate .*: must be finite and at least 0"):
            optimizer.step(model.loss(0), learning_rate=rate)
    with pytest.raises(rf.UserError, match="AdamW: the loss must be a scalar on backend"):
        optimizer.step(model.bias * 1.0, learning_rate=0.1)
    with rf.use_backend("numpy"):
        other = rf.ones([])
    with pytest.raises(rf.UserError, match="AdamW: the loss must be a scalar on backend"):
        optimizer.step(other, learning_rate=0.1)
    assert all(np.array_equal(a, before[name]) for name, a in values_of(model).items())


@pytest.mark.needs("tensorflow")
def test_nothing_recorded() -> None:
    with rf.use_backend("tensorflow"):
        model = Model()
        optimizer = adamw(model.named_parameters())
        rf.reset_run_ctx()
        with pytest.raises(rf.BackendError, match="init_train_step_run_ctx"):
            optimizer.step(model.loss(0), learning_rate=0.1)


@pytest.mark.parametrize(
    ("factory", "options", "message"),
    [
        (sgd, {"momentum": 1.0}, r"SGD: momentum 1\.0: must be at least 0 and less than 1"),
        (sgd, {"momentum": -0.1}, "SGD: momentum"),
        (sgd, {"nesterov": True}, "SGD: nesterov needs momentum"),
        (sgd, {"weight_decay": -1.0}, "SGD: weight_decay -1.0: must be finite and at least 0"),
        (adam, {"betas": (1.0, 0.9)}, r"Adam: betas 1\.0"),
        (adam, {"betas": (0.9, -0.5)}, r"Adam: betas -0\.5"),
        (adamw, {"eps": math.nan}, "AdamW: eps nan"),
        (adamw, {"max_gradient_norm": 0.0}, r"AdamW: max_gradient_norm 0\.0: must be more than 0; None is no limit"),
    ],
)
def test_bad_options(on_torch: None, factory: Callable[..., Optimizer], options: dict[str, Any], message: str) -> None:
    with pytest.raises(rf.UserError, match=message):
        factory(Model().named_parameters(), **options)


def test_backends_without_gradients() -> None:
    for name in "numpy", "meta":
        with rf.use_backend(name):
            model = Model()
        with pytest.raises(rf.BackendError, match=f"the parameters are on backend {name}; .*needs the backend torch"):
            adamw(model.named_parameters())


def test_no_parameters() -> None:
    with pytest.raises(rf.UserError, match="no trainable parameters"):
        adamw(rf.Module().named_parameters())


# -- schedules


def rates(schedule: Callable[[int], float], *steps: int) -> list[float]:
    return [schedule(step) for step in steps]


def test_warmup_learning_rate() -> None:
    def first(n: int, **options: float) -> list[float]:
        return [warmup_learning_rate(i, peak=2.0, **options) for i in range(n)]  # type: ignore[arg-type]

    assert first(5, warmup_steps=4, decay=False) == [0.5, 1.0, 1.5, 2.0, 2.0]
    assert first(16, warmup_steps=4)[3:16:12] == [2.0, 1.0]
    assert first(3, warmup_steps=0) == [2.0, 2.0, 2.0]
    assert first(4, warmup_steps=1)[::3] == [2.0, 1.0]


def test_schedules() -> None:
    assert rates(Constant(0.5), 0, 7) == [0.5, 0.5]
    assert rates(Warmup(4, Constant(2.0)), 0, 1, 3, 4) == [0.5, 1.0, 2.0, 2.0]
    assert rates(Warmup(0, Exponential(8.0, 0.5)), 0, 1) == rates(Warmup(1, Exponential(8.0, 0.5)), 0, 1) == [8.0, 4.0]
    assert rates(Warmup(2, lambda step: 6.0 - step), 0, 1, 2, 3) == [3.0, 6.0, 5.0, 4.0]
    assert rates(InverseSquareRoot(4.0, 5), 0, 15) == [4.0, 2.0]
    assert rates(Cosine(3.0, 10, end=1.0), 0, 5, 10, 99) == pytest.approx([3.0, 2.0, 1.0, 1.0])
    assert rates(Cosine(1.0, 3), 1, 2) == pytest.approx([0.75, 0.25])
    line = PiecewiseLinear(((2, 1.0), (4, 3.0), (8, 0.0)))
    assert rates(line, 0, 2, 3, 4, 6, 8, 9) == [1.0, 1.0, 2.0, 3.0, 1.5, 0.0, 0.0]
    assert rates(PiecewiseLinear(((3, 0.5),)), 0, 3, 4) == [0.5, 0.5, 0.5]
    assert rates(Exponential(8.0, 0.25, 4), 0, 2, 4, 8) == [8.0, 4.0, 2.0, 0.5]
    assert rates(Exponential(8.0, 0.25, 4, stepwise=True), 0, 3, 4, 7, 8) == [8.0, 8.0, 2.0, 2.0, 0.5]
    assert rates(MultiStep(8.0, 0.5, (2, 5)), 0, 1, 2, 4, 5, 9) == [8.0, 8.0, 4.0, 4.0, 2.0, 2.0]


def test_schedule_of_the_transformer() -> None:
    n, size = 400, 64
    schedule = Warmup(n, InverseSquareRoot(1 / math.sqrt(n * size), n))
    for i in 0, 10, 398, 399, 400, 5000:
        assert schedule(i) == pytest.approx(size**-0.5 * min((i + 1) ** -0.5, (i + 1) * n**-1.5))


def test_schedules_of_torch(on_torch: None) -> None:
    """Those that torch has, over 12 steps."""
    scheduler = torch.optim.lr_scheduler
    for schedule, make_torch in (
        (Cosine(0.3, 10, end=0.1), lambda o: scheduler.CosineAnnealingLR(o, 10, eta_min=0.1)),
        (Exponential(0.3, 0.9), lambda o: scheduler.ExponentialLR(o, 0.9)),
        (Exponential(0.3, 0.5, 3, stepwise=True), lambda o: scheduler.StepLR(o, 3, 0.5)),
        (MultiStep(0.3, 0.5, (2, 7)), lambda o: scheduler.MultiStepLR(o, [2, 7], 0.5)),
        (PiecewiseLinear(((0, 0.3), (8, 0.0))), lambda o: scheduler.LinearLR(o, 1.0, 0.0, 8)),
    ):
        optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.3)
        theirs = make_torch(optimizer)
        # torch lets the cosine rise again
        for step in range(11 if isinstance(schedule, Cosine) else 13):
            assert schedule(step) == pytest.approx(optimizer.param_groups[0]["lr"], abs=1e-9), (schedule, step)
            optimizer.step()
            theirs.step()


@pytest.mark.parametrize(
    ("make_schedule", "message"),
    [
        (lambda: Constant(-1.0), r"Constant: rate -1\.0: must be finite and at least 0"),
        (lambda: Constant(math.nan), "Constant: rate nan"),
        (lambda: Warmup(-1, Constant(1.0)), "Warmup: steps -1: must be at least 0"),
        (lambda: InverseSquareRoot(1.0, 0), "InverseSquareRoot: steps 0: must be at least 1"),
        (lambda: Cosine(1.0, 0), "Cosine: steps 0: must be at least 1"),
        (lambda: Cosine(1.0, 5, end=math.inf), "Cosine: end inf"),
        (lambda: PiecewiseLinear(()), "PiecewiseLinear: .*at least one"),
        (lambda: PiecewiseLinear(((3, 1.0), (3, 2.0))), "PiecewiseLinear: .*by ascending steps"),
        (lambda: PiecewiseLinear(((3, -1.0),)), "PiecewiseLinear: rate -1.0"),
        (lambda: Exponential(1.0, 0.0), r"Exponential: factor 0\.0: must be finite and more than 0"),
        (lambda: Exponential(1.0, 0.5, 0), "Exponential: steps 0"),
        (lambda: MultiStep(1.0, 0.5, (5, 5)), r"MultiStep: milestones \(5, 5\): must ascend"),
        (lambda: MultiStep(1.0, -0.5, (5,)), "MultiStep: factor -0.5"),
        (lambda: Constant(1.0)(-1), "Constant: step -1, but steps count from 0"),
    ],
)
def test_bad_schedules(make_schedule: Callable[[], object], message: str) -> None:
    with pytest.raises(rf.UserError, match=message):
        make_schedule()


# -- documentation


def test_example(where: str) -> None:
    (example,) = (x for x in doctest.DocTestFinder(recurse=False).find(optim) if x.examples)
    assert len(example.examples) > 10
    report: list[str] = []
    result = doctest.DocTestRunner().run(example, out=report.append)
    assert result.failed == 0, "".join(report)
    assert rf.get_run_ctx().stage == "init"
