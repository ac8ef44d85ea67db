"""The optimizer against torch's own, on gradients that are known; its state; the schedule."""

from __future__ import annotations

import math

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

import rf
from rf.optim import Optimizer, adamw, warmup_learning_rate

pytestmark = pytest.mark.needs("torch")


class Model(rf.Module):
    def __init__(self, dtype: str = "float32") -> None:
        super().__init__()
        a, b = rf.Dim(3, name="a"), rf.Dim(2, name="b")
        self.weight = rf.Parameter([a, b], dtype)
        self.weight.initial = np.arange(6.0).reshape(3, 2) / 7
        self.bias = rf.Parameter([b], dtype)
        self.bias.initial = np.array([1.0, -1.0])
        self.unused = rf.Parameter([b], dtype)
        self.running = rf.Parameter([b], dtype, auxiliary=True)

    def loss(self, step: int) -> rf.Tensor:
        x = self.weight * self.weight * float(step + 1) + self.bias
        return rf.reduce_sum(x * x, axis=x.dims)


@pytest.fixture(autouse=True)
def _torch_backend():
    with rf.use_backend("torch"):
        yield


def train(model: Model, optimizer: Optimizer, steps: range) -> list[float]:
    return [optimizer.step(model.loss(i), learning_rate=0.1 / (i + 1)) for i in steps]


@pytest.mark.parametrize("max_norm", [None, 1.0])
def test_matches_torch(max_norm: float | None) -> None:
    model = Model()
    optimizer = adamw(
        model.named_parameters(), betas=(0.8, 0.9), eps=1e-6, weight_decay=0.1, max_gradient_norm=max_norm
    )
    norms = train(model, optimizer, range(4))

    weight = torch.tensor(np.arange(6.0).reshape(3, 2) / 7, dtype=torch.float32, requires_grad=True)
    bias = torch.tensor([1.0, -1.0], requires_grad=True)
    groups = [{"params": [weight], "weight_decay": 0.1}, {"params": [bias], "weight_decay": 0.0}]
    reference = torch.optim.AdamW(groups, betas=(0.8, 0.9), eps=1e-6, foreach=False)
    for i in range(4):
        reference.zero_grad()
        loss = ((weight * weight * (i + 1) + bias) ** 2).sum()
        loss.backward()
        norm = math.sqrt(sum(float((p.grad**2).sum()) for p in (weight, bias) if p.grad is not None))
        assert norms[i] == pytest.approx(norm, rel=1e-4)
        if max_norm is not None:
            assert norm > max_norm  # else nothing is tested
            for p in weight, bias:
                assert p.grad is not None
                p.grad *= max_norm / norm
        for group in reference.param_groups:
            group["lr"] = 0.1 / (i + 1)
        reference.step()
    np.testing.assert_allclose(model.weight.numpy(), weight.detach().numpy(), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(model.bias.numpy(), bias.detach().numpy(), rtol=1e-5, atol=1e-6)
    assert not model.unused.numpy().any() and not model.running.numpy().any()


def test_weight_decay_of_a_parameter() -> None:
    model = Model()
    model.bias.weight_decay = 0.5
    optimizer = adamw(model.named_parameters(), weight_decay=0.1)
    # Adam's own part is at most the learning rate per element in the first step; take it out by a gradient of zero.
    before = model.weight.numpy().copy(), model.bias.numpy().copy()
    optimizer.step(model.loss(0) * 0.0, learning_rate=0.1)
    np.testing.assert_allclose(model.weight.numpy(), before[0] * (1 - 0.1 * 0.1), rtol=1e-6)
    np.testing.assert_allclose(model.bias.numpy(), before[1] * (1 - 0.1 * 0.5), rtol=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_state_continues_exactly(dtype: str) -> None:
    straight = Model(dtype)
    train(straight, adamw(straight.named_parameters()), range(5))
    first = Model(dtype)
    optimizer = adamw(first.named_parameters())
    train(first, optimizer, range(3))
    state = optimizer.state()
    assert set(state) == {
        f"{p}/{w}" for p in ("weight", "bias") for w in ("first_moment", "second_moment", "num_updates")
    }
    train(first, optimizer, range(3, 4))  # the state is a copy
    second = Model(dtype)
    train(second, adamw(second.named_parameters()), range(3))
    optimizer = adamw(second.named_parameters())
    optimizer.load_state(state)
    train(second, optimizer, range(3, 5))
    for name, p in straight.named_parameters():
        assert p.numpy().tobytes() == dict(second.named_parameters())[name].numpy().tobytes(), name


def test_state_that_does_not_fit() -> None:
    model = Model()
    optimizer = adamw(model.named_parameters())
    train(model, optimizer, range(2))
    state = optimizer.state()
    for changes, message in (
        ({"other/first_moment": np.ones(2)}, r"other/first_moment \(2,\) fits no parameter"),
        ({"bias/first_moment": np.ones(3)}, r"bias/first_moment \(3,\) fits no parameter"),
        ({"bias/velocity": np.ones(2)}, "bias/velocity"),
    ):
        with pytest.raises(rf.UserError, match=message):
            optimizer.load_state(state | changes)
    with pytest.raises(rf.UserError, match="incomplete"):
        optimizer.load_state({name: a for name, a in state.items() if name != "bias/num_updates"})
    after = optimizer.state()  # untouched
    assert after.keys() == state.keys() and all(np.array_equal(after[name], state[name]) for name in state)


def test_not_finite_gradient_is_left_out() -> None:
    model = Model()
    optimizer = adamw(model.named_parameters(), max_gradient_norm=1.0)
    train(model, optimizer, range(2))
    before, state = {name: p.numpy().copy() for name, p in model.named_parameters()}, optimizer.state()
    assert not math.isfinite(optimizer.step(model.loss(0) * math.inf, learning_rate=0.1))
    for name, p in model.named_parameters():
        np.testing.assert_array_equal(p.numpy(), before[name])
    assert all(np.array_equal(a, state[name]) for name, a in optimizer.state().items())


def test_backends_without_gradients() -> None:
    for name in "numpy", "meta":
        with rf.use_backend(name):
            model = Model()
        with pytest.raises(rf.BackendError, match=f"the parameters are on backend {name}; .*needs the backend torch"):
            adamw(model.named_parameters())


def test_no_parameters() -> None:
    with pytest.raises(rf.UserError, match="no trainable parameters"):
        adamw(rf.Module().named_parameters())


def test_warmup() -> None:
    def rates(n: int, **options: float) -> list[float]:
        return [warmup_learning_rate(i, peak=2.0, **options) for i in range(n)]  # type: ignore[arg-type]

    assert rates(5, warmup_steps=4, decay=False) == [0.5, 1.0, 1.5, 2.0, 2.0]
    assert rates(16, warmup_steps=4)[3:16:12] == [2.0, 1.0]
    assert rates(3, warmup_steps=0) == [2.0, 2.0, 2.0]
    assert rates(4, warmup_steps=1)[::3] == [2.0, 1.0]
