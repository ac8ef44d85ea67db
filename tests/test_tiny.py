"""The essentials in a few seconds: `make tiny`. On NumPy and meta, and on torch where it is installed."""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np
import pytest
from conformance.compare import check_structure, check_values, freeze
from conformance.sample import BATCHED, WITH_ZERO, Sample, run
from conformance.samples import SAMPLES

import rf

HAS_TORCH = importlib.util.find_spec("torch") is not None
BACKENDS = ["numpy", "meta", *(["torch"] if HAS_TORCH else [])]


def one_sample_per_op() -> list[Sample]:
    found: dict[str, Sample] = {}
    for sample in SAMPLES:
        if not sample.no_backend:
            found.setdefault(sample.op, sample)
    return list(found.values())


@pytest.mark.parametrize("backend", BACKENDS)
def test_every_op_once(backend: str) -> None:
    """Each op gives on every backend what it gives on NumPy, also where a sequence has length 0."""
    for sample in one_sample_per_op():
        if backend == "meta" and sample.needs_values:
            continue
        for batch in (BATCHED, WITH_ZERO) if sample.zero else (BATCHED,):
            actual, expected = run(sample, backend, batch).result, run(sample, "numpy", batch).result
            check_structure(actual, expected)
            if backend != "meta" and sample.values:
                check_values(actual, expected)


def model(x: rf.Tensor, time: rf.Dim, features: rf.Dim) -> tuple[rf.Tensor, rf.Dim]:
    """Convolution that halves the length, self-attention, norm, and a loss per sequence."""
    rf.set_random_seed(1)
    hidden = rf.Dim(8, name="hidden")
    y, short = rf.Conv1d(features, hidden, 3, strides=2, padding="same")(x, in_spatial_dim=time)
    attention = rf.SelfAttention(hidden, hidden, key_dim_total=hidden, value_dim_total=hidden, num_heads=2)
    y = rf.LayerNorm(hidden)(y + attention(rf.relu(y), axis=short))
    logits = rf.Linear(hidden, rf.Dim(5, name="classes"))(y)
    assert logits.feature_dim is not None
    return rf.reduce_mean(-rf.log_softmax(logits, axis=logits.feature_dim), axis=[short, logits.feature_dim]), short


def batch(*lengths: int, padding: float = 0.0) -> tuple[np.ndarray, list[rf.Dim]]:
    dims = [rf.Dim(None, name="B").fill(len(lengths)), rf.Dim(None, name="T"), rf.Dim(4, name="F")]
    dims[1].fill(list(lengths), [dims[0]])
    array = np.full((len(lengths), max(lengths), 4), padding, dtype="float32")
    for i, n in enumerate(lengths):
        array[i, :n] = np.random.RandomState(n).randn(n, 4)
    return array, dims


@pytest.mark.parametrize("backend", BACKENDS)
def test_model(backend: str) -> None:
    """The same on all backends, whatever the padding holds, and for each sequence alone."""

    def loss(backend: str, *lengths: int, padding: float = 0.0) -> Any:
        array, dims = batch(*lengths, padding=padding)
        with rf.use_backend(backend):
            y, short = model(rf.convert_to_tensor(array, dims=dims), dims[1], dims[2])
            assert short.get_sizes().values.tolist() == [-(-n // 2) for n in lengths]
        return freeze(y, {})

    result, reference = loss(backend, 5, 2, 0, 7), loss("numpy", 5, 2, 0, 7)
    check_structure(result, reference)
    if backend != "meta":
        check_values(result, reference)
        check_values(loss(backend, 5, 2, 0, 7, padding=np.nan), reference)
        assert reference[0].array is not None
        for i, n in enumerate((5, 2, 0, 7)):
            assert loss(backend, n)[0].array == pytest.approx(reference[0].array[i : i + 1], rel=1e-4)


@pytest.mark.needs("torch")
def test_training() -> None:
    """A few steps of gradient descent on torch make the loss smaller."""
    with rf.use_backend("torch"):
        rf.set_random_seed(3)
        array, dims = batch(5, 2, 7, padding=np.nan)
        x = rf.convert_to_tensor(array, dims=dims).copy_masked(0.0)
        weight = rf.Parameter([dims[2], rf.Dim(1, name="out")])
        weight.initial = rf.init.Glorot()
        losses = []
        for _ in range(5):
            y = rf.matmul(x, weight, reduce=dims[2])
            loss = rf.reduce_mean(rf.square(y - 1.0), axis=y.dims)
            losses.append(loss.item())
            weight.assign(weight - 0.1 * rf.gradient(loss, weight))
        assert losses[-1] < 0.8 * losses[0], losses


def test_errors_name_the_dims() -> None:
    with rf.use_backend("numpy"):
        _, (b, t, f) = batch(5, 2)
        with pytest.raises(rf.DimError, match=r"add: no operand has all dims of the result \{B=2, T=5\(5,2\), F=4\}"):
            rf.zeros([b, t]) + rf.zeros([f])
        with pytest.raises(rf.ShapeError, match="axis 0 .* has length 3, but dim F=4 has 4"):
            rf.Tensor("x", [f], "float32", raw_tensor=np.zeros(3, dtype="float32"))
