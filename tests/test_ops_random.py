"""Random numbers, dropout, and the generators behind them. What the conformance samples cannot say: distributions and
states."""

from __future__ import annotations

import math
import statistics
import threading
from collections.abc import Iterator

import numpy as np
import pytest

import rf
from rf import _random

COMPUTING = [pytest.param("numpy"), pytest.param("torch", marks=pytest.mark.needs("torch"))]
N = rf.Dim(20_000, name="N")


@pytest.fixture(autouse=True)
def _fresh_state() -> Iterator[None]:
    rf.reset_run_ctx()
    rf.set_random_seed(7)
    yield
    rf.reset_run_ctx()
    rf.set_random_seed(42)


def check_moments(x: np.ndarray, mean: float, stddev: float) -> None:
    """Mean and standard deviation, within 5 standard errors."""
    assert abs(x.mean() - mean) < 5 * stddev / math.sqrt(x.size)
    assert abs(x.std() - stddev) < 5 * stddev / math.sqrt(x.size)


@pytest.mark.parametrize("static", [True, False])
@pytest.mark.parametrize("backend", COMPUTING)
def test_distributions(backend: str, static: bool) -> None:
    with rf.use_backend(backend):
        x = rf.random_uniform([N], minval=-1, maxval=3, static=static).numpy()
        assert x.min() >= -1 and x.max() <= 3 and x.dtype == np.float32
        check_moments(x, 1, 4 / math.sqrt(12))
        check_moments(rf.random([N], distribution="uniform", bound=2.0, static=static).numpy(), 0, 4 / math.sqrt(12))
        check_moments(rf.random_normal([N], mean=3, stddev=0.5, static=static).numpy(), 3, 0.5)
        x = rf.random_truncated_normal([N], mean=1, stddev=2, static=static).numpy()
        assert x.min() >= -3 and x.max() <= 5
        # the variance of a normal distribution cut at two standard deviations
        phi, mass = statistics.NormalDist().pdf(2), statistics.NormalDist().cdf(2) * 2 - 1
        check_moments(x, 1, 2 * math.sqrt(1 - 4 * phi / mass))
        x = rf.random_uniform([N], minval=2, maxval=5, dtype="int32", static=static).numpy()
        assert set(x) == {2, 3, 4} and x.dtype == np.int32


@pytest.mark.parametrize("static", [True, False])
@pytest.mark.parametrize("backend", COMPUTING)
def test_truncated_normal_in_the_tail(backend: str, static: bool) -> None:
    with rf.use_backend(backend):
        x = rf.random_truncated_normal([N], minval=3.0, maxval=4.0, static=static).numpy()
        normal = statistics.NormalDist()
        assert x.min() >= 3 and x.max() <= 4
        below = (normal.cdf(3.2) - normal.cdf(3)) / (normal.cdf(4) - normal.cdf(3))
        assert abs((x < 3.2).mean() - below) < 5 / math.sqrt(N.get_dim_value())
        assert (rf.random_truncated_normal([N], stddev=0.0, mean=1.0, static=static).numpy() == 1).all()


def test_truncated_normal_without_mass() -> None:
    with pytest.raises(rf.RfError, match="no mass"):
        _random.truncated_normal(_random.generator(1), (2,), 0.0, 1.0, 50.0, 60.0, "float32")


@pytest.mark.needs("torch")
def test_static_draws_are_the_same_on_every_backend() -> None:
    drawn = {}
    for backend in ("numpy", "torch"):
        rf.set_random_seed(11)
        with rf.use_backend(backend):
            drawn[backend] = [
                rf.random_uniform([N], static=True).numpy(),
                rf.random_normal([N], static=True, dtype="float64").numpy(),
                rf.random_truncated_normal([N], static=True).numpy(),
                rf.random_normal([N], seed=5).numpy(),
            ]
    for a, b in zip(drawn["numpy"], drawn["torch"]):
        np.testing.assert_array_equal(a, b)
    assert not np.array_equal(drawn["numpy"][0], drawn["numpy"][2])


def test_meta_takes_seeds_as_well() -> None:
    after = []
    for backend in ("numpy", "meta"):
        rf.set_random_seed(11)
        with rf.use_backend(backend):
            rf.random_normal([N], static=True)
        after.append(rf.get_static_step_based_seed())
    assert after[0] == after[1]


def test_step_seeds() -> None:
    first = [rf.get_static_step_based_seed() for _ in range(3)]
    assert len(set(first)) == 3 and all(0 <= s < 2**31 for s in first)
    rf.reset_step_random_state()
    assert [rf.get_static_step_based_seed() for _ in range(3)] == first
    rf.set_random_seed(8)
    assert rf.get_static_step_based_seed() != first[0]
    assert rf.get_static_step_based_seed(size=(2, 3)).shape == (2, 3)


@pytest.mark.parametrize("backend", COMPUTING)
def test_seed_and_state(backend: str) -> None:
    with rf.use_backend(backend):

        def draw() -> np.ndarray:
            return np.concatenate([rf.random_normal([N]).numpy(), rf.random_normal([N], static=True).numpy()])

        rf.set_random_seed(1)
        first = draw()
        state = rf.get_random_state()
        second = draw()
        assert not np.array_equal(first, second)
        rf.set_random_state(state)
        np.testing.assert_array_equal(draw(), second)
        rf.set_random_seed(1)
        np.testing.assert_array_equal(draw(), first)
        assert all(isinstance(k, str) and isinstance(v, bytes) for k, v in state.items())


def test_state_of_a_generator_that_is_not_there() -> None:
    with pytest.raises(rf.RfError, match="jax:0"):
        rf.set_random_state({"jax:0": b""})


@pytest.mark.needs("torch")
def test_torch_draws_follow_its_default_generator() -> None:
    import torch

    with rf.use_backend("torch"):
        rf.set_random_seed(3)
        x = rf.random_uniform([N]).raw_tensor
        torch.manual_seed(3)
        assert torch.equal(x, torch.empty(N.get_dim_value()).uniform_(0, 1))


@pytest.mark.parametrize("backend", COMPUTING)
def test_bounds_and_moments_as_tensors(backend: str) -> None:
    with rf.use_backend(backend):
        b = rf.Dim(3, name="B")
        low = rf.convert_to_tensor(np.array([0, 5, -3], dtype=np.int32), dims=[b])
        high = rf.convert_to_tensor(np.array([1, 9, 0], dtype=np.int32), dims=[b])
        x = rf.random_uniform([b, N], minval=low, maxval=high, dtype="int32").numpy()
        assert [sorted(set(row)) for row in x] == [[0], [5, 6, 7, 8], [-3, -2, -1]]
        x = rf.random_uniform([N, b], minval=rf.cast(low, "float32"), maxval=9).copy_transpose([b, N]).numpy()
        for row, n in zip(x, [0, 5, -3]):
            check_moments(row, (n + 9) / 2, (9 - n) / math.sqrt(12))
        stddev = rf.convert_to_tensor(np.array([1, 2, 3], dtype=np.float32), dims=[b])
        x = rf.random_normal([b, N], mean=1.0, stddev=stddev).numpy()
        for row, s in zip(x, [1, 2, 3]):
            check_moments(row, 1, s)
        x = rf.random_truncated_normal([b, N], stddev=stddev).numpy()
        assert (np.abs(x).max(1) <= [2, 4, 6]).all()


@pytest.mark.parametrize("backend", COMPUTING)
def test_out(backend: str) -> None:
    with rf.use_backend(backend):
        b = rf.Dim(3, name="B")
        out = rf.zeros([N, b])
        raw = out.raw_tensor
        assert rf.random_uniform([b, N], minval=1, maxval=2, out=out) is out
        assert out.numpy().min() >= 1 and out.dims == (N, b)
        if backend == "torch":
            assert out.raw_tensor.data_ptr() == raw.data_ptr()


def test_bad_arguments() -> None:
    with rf.use_backend("numpy"):
        b, f = rf.Dim(3, name="B"), rf.Dim(2, name="F")
        for kwargs, text in [
            ({"distribution": "cauchy"}, "cauchy"),
            ({"distribution": "normal", "minval": 0}, "takes mean and stddev"),
            ({"distribution": "uniform", "mean": 1.0}, "do not go with"),
            ({"distribution": "uniform", "bound": 1.0, "minval": 0.0}, "not both"),
            ({"distribution": "normal", "dtype": "int32"}, "int32"),
            ({"distribution": "normal", "stddev": -1.0}, ">= 0"),
            ({"distribution": "uniform", "minval": 2, "maxval": 1}, "empty"),
            ({"distribution": "uniform", "seed": 3, "static": False}, "static"),
            ({"distribution": "uniform", "explicit_state": rf.zeros([])}, "explicit_state"),
        ]:
            with pytest.raises(rf.RfError, match=text):
                rf.random([b], **kwargs)
        with pytest.raises(rf.DimError, match="F=2"):
            rf.random_normal([b], mean=rf.zeros([f]))
        with pytest.raises(rf.DimError, match="not those of out"):
            rf.random_normal([b], out=rf.zeros([f]))
        with pytest.raises(rf.RfError, match="seed"):
            rf.set_random_seed(-1)


# -- choices


@pytest.mark.parametrize("backend", COMPUTING)
def test_choice_with_replacement(backend: str) -> None:
    with rf.use_backend(backend):
        b, v = rf.Dim(2, name="B"), rf.Dim(4, name="V")
        probs = np.array([[1, 2, 0, 1], [0, 0, 3, 0]], dtype=np.float32)
        x = rf.random_choice_with_replacement([N, b], probs=rf.convert_to_tensor(probs, dims=[b, v]), axis=v)
        assert x.dims == (N, b) and x.sparse_dim == v
        for i in range(2):
            share = np.bincount(x.numpy()[:, i], minlength=4) / N.get_dim_value()
            assert np.abs(share - probs[i] / probs[i].sum()).max() < 0.02
            assert (share[probs[i] == 0] == 0).all()


@pytest.mark.parametrize("backend", COMPUTING)
def test_choices_never_take_padding(backend: str) -> None:
    with rf.use_backend(backend):
        b = rf.Dim(2, name="B")
        t = rf.Dim(None, name="T").fill([3, 1], [b])
        weights = np.array([[1, 1, 1], [1, np.nan, np.inf]], dtype=np.float32)
        x = rf.convert_to_tensor(weights, dims=[b, t])
        assert set(rf.random_choice_with_replacement([b, N], probs=x, axis=t).numpy()[1]) == {0}
        k = rf.Dim(2, name="K")
        log_probs = rf.where(rf.is_finite(x), 0.0, x)
        drawn = np.stack(
            [
                rf.random_choice_without_replacement(log_probs=log_probs, axis=t, num_samples_dim=k).numpy()
                for _ in range(20)
            ]
        )
        assert (drawn[:, 0, 0] != drawn[:, 0, 1]).all() and (drawn[:, 1, 0] == 0).all()


def test_choice_without_replacement_draws_by_probability() -> None:
    with rf.use_backend("numpy"):
        v, k = rf.Dim(3, name="V"), rf.Dim(2, name="K")
        log_probs = rf.convert_to_tensor(np.log(np.array([[0.6, 0.3, 0.1]] * 20_000, dtype=np.float32)), dims=[N, v])
        x = rf.random_choice_without_replacement(log_probs=log_probs, axis=v, num_samples_dim=k).numpy()
        share = np.bincount(x[:, 0], minlength=3) / len(x)
        assert np.abs(share - [0.6, 0.3, 0.1]).max() < 0.02
        # the second one: given the first, by the remaining probabilities
        assert abs((x[x[:, 0] == 0][:, 1] == 1).mean() - 0.75) < 0.02
        best = rf.random_choice_without_replacement(log_probs=log_probs, axis=v, num_samples_dim=k, noise_scale=0.0)
        assert (best.numpy() == [0, 1]).all()


# -- dropout


@pytest.mark.parametrize("backend", COMPUTING)
def test_dropout(backend: str) -> None:
    with rf.use_backend(backend):
        f = rf.Dim(10, name="F")
        x = rf.convert_to_tensor(np.full((N.get_dim_value(), 10), 3, dtype=np.float32), dims=[N, f], feature_dim=f)
        same = rf.dropout(x, 0.25)
        assert same is not x and (same.numpy() == 3).all()
        rf.init_train_step_run_ctx()
        y = rf.dropout(x, 0.25).numpy()
        assert set(np.unique(y)) == {0.0, 4.0} and abs((y == 0).mean() - 0.25) < 0.01
        y = rf.dropout(x, 0.25, axis=N).numpy()
        assert (y == y[:, :1]).all() and abs((y == 0).mean() - 0.25) < 0.02
        y = rf.dropout(x, 0.25, axis=[f]).numpy()
        assert (y == y[:1]).all()
        assert (rf.dropout(x, 1.0).numpy() == 0).all() and (rf.dropout(x, 0.0).numpy() == 3).all()
        with rf.get_run_ctx().train_flag_ctx(False, func=rf.dropout):
            assert (rf.dropout(x, 0.25).numpy() == 3).all()
            assert (rf.dropout(x, 0.25, on_forward=True).numpy() == 0).any()
        rf.init_train_step_run_ctx(train_flag=False)
        assert (rf.dropout(x, 0.25).numpy() == 3).all()
        out = rf.dropout(x, 0.25, on_forward=True)
        assert out.feature_dim == f and out.dims == x.dims


def test_dropout_errors() -> None:
    with rf.use_backend("numpy"):
        x = rf.zeros([N])
        with pytest.raises(rf.RfError, match="1.5"):
            rf.dropout(x, 1.5)
        with pytest.raises(rf.DimError, match="F=2"):
            rf.dropout(x, 0.5, axis=rf.Dim(2, name="F"), on_forward=True)
        with pytest.raises(TypeError, match="True"):
            rf.dropout(x, 0.5, axis=True, on_forward=True)


@pytest.mark.needs("torch")
def test_dropout_gradient_is_the_mask() -> None:
    import torch

    with rf.use_backend("torch"):
        f = rf.Dim(10, name="F")
        raw = torch.full((100, 10), 2.0, requires_grad=True)
        for axis in (None, f):
            y = rf.dropout(rf.Tensor("x", [rf.Dim(100), f], raw_tensor=raw), 0.5, axis=axis, on_forward=True).raw_tensor
            (grad,) = torch.autograd.grad(y.sum(), raw)
            assert torch.equal(grad, y.detach() / 2)


@pytest.mark.parametrize("backend", COMPUTING)
def test_draws_in_threads_are_independent(backend: str) -> None:
    drawn: list[np.ndarray] = []

    def draw() -> None:
        with rf.use_backend(backend):
            drawn.append(rf.random_uniform([N]).numpy())

    threads = [threading.Thread(target=draw) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({x.tobytes() for x in drawn}) == 4
