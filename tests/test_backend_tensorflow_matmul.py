"""Products of matrices on TensorFlow: each op that may compute one gives the same, in value and in gradient."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rf.backend import get_backend

pytestmark = pytest.mark.needs("tensorflow")

# shapes, as the operand of `contract`: (common..., a..., reduce...) x (common..., reduce..., b...)
SHAPES = {
    "one": ((3, 4), (4, 5), (0, 1, 1, 1)),
    "many by one": ((2, 3, 4), (4, 5), (0, 2, 1, 1)),
    "many": ((2, 3, 4), (2, 4, 5), (1, 1, 1, 1)),
    "two common": ((2, 2, 3, 4), (2, 2, 4, 5), (2, 1, 1, 1)),
    "merged": ((2, 3, 4, 2), (2, 4, 2, 5, 2), (1, 1, 2, 2)),
    "no rows of a": ((4,), (4, 5), (0, 0, 1, 1)),
    "no columns of b": ((2, 3, 4), (4,), (0, 2, 1, 0)),
    "no rows": ((2, 0, 4), (4, 5), (0, 2, 1, 1)),
    "nothing to sum": ((2, 3, 0), (0, 5), (0, 2, 1, 1)),
    "empty batch": ((0, 3, 4), (0, 4, 5), (1, 1, 1, 1)),
}


def product(a: np.ndarray, b: np.ndarray, counts: tuple[int, ...]) -> np.ndarray:
    common, num_a, reduce, num_b = counts
    letters = iter("abcdefghijklm")
    c, x, r, y = (["".join(next(letters) for _ in range(n))][0] for n in (common, num_a, reduce, num_b))
    return np.einsum(f"{c}{x}{r},{c}{r}{y}->{c}{x}{y}", a, b)


def run(a: np.ndarray, b: np.ndarray, counts: tuple[int, ...], dtype: str) -> tuple[Any, list[np.ndarray]]:
    """The product and the gradients of the sum of its squares."""
    backend: Any = get_backend("tensorflow")
    raws = [backend.create_parameter(backend.from_numpy(x, dtype), True) for x in (a, b)]
    with backend.recording():
        y = backend.contract(*raws, *counts)
        loss = backend.sum(backend.square(y), tuple(range(len(backend.shape_of(y)))))
        gradients = backend.gradient(loss, raws)
    return y, [backend.to_numpy(g) for g in gradients]


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])  # the half types by other ops
@pytest.mark.parametrize("name", list(SHAPES))
def test_values_and_gradients(name: str, dtype: str) -> None:
    shape_a, shape_b, counts = SHAPES[name]
    random = np.random.default_rng(1)
    a, b = (random.integers(-2, 3, shape).astype("float64") for shape in (shape_a, shape_b))
    y, gradients = run(a, b, counts, dtype)
    want = product(a, b, counts)
    np.testing.assert_array_equal(get_backend("tensorflow").to_numpy(y).astype("float64"), want)
    # The derivative along each operand, by the same product: d sum(y^2) = 2 y dy.
    for i, (x, g) in enumerate(zip((a, b), gradients)):
        assert g.shape == x.shape
        direction = random.integers(-2, 3, x.shape).astype("float64")
        moved = product(direction, b, counts) if i == 0 else product(a, direction, counts)
        assert float((g.astype("float64") * direction).sum()) == float((2 * want * moved).sum())


def test_large_products_and_their_gradients_are_those_of_numpy() -> None:
    random = np.random.default_rng(1)
    for shape_a, shape_b, counts in (
        ((8, 100, 64), (64, 96), (0, 2, 1, 1)),
        ((8, 100, 64), (8, 64, 96), (1, 1, 1, 1)),
        ((800, 64), (64, 96), (0, 1, 1, 1)),
    ):
        a, b = random.standard_normal(shape_a).astype("float32"), random.standard_normal(shape_b).astype("float32")
        y, (grad_a, grad_b) = run(a, b, counts, "float32")
        want = product(a, b, counts)
        np.testing.assert_allclose(y.numpy(), want, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(grad_a, 2 * want @ np.swapaxes(b, -1, -2), rtol=1e-3, atol=1e-2)
        wide = np.swapaxes(a, -1, -2) @ (2 * want)
        np.testing.assert_allclose(grad_b, wide.sum(0) if wide.ndim > b.ndim else wide, rtol=1e-3, atol=1e-2)


def test_complex_products_have_the_gradient_of_tensorflow() -> None:
    import tensorflow as tf

    backend = get_backend("tensorflow")
    random = np.random.default_rng(1)
    a, b = (tf.constant(random.standard_normal(s) + 1j * random.standard_normal(s)) for s in ((2, 3, 4), (4, 5)))
    with tf.GradientTape(persistent=True) as tape:
        tape.watch([a, b])
        have = tf.reduce_sum(tf.abs(backend.contract(a, b, 0, 2, 1, 1)) ** 2)
        want = tf.reduce_sum(tf.abs(tf.einsum("btf,fg->btg", a, b)) ** 2)
    for x in a, b:
        np.testing.assert_allclose(tape.gradient(have, x).numpy(), tape.gradient(want, x).numpy(), rtol=1e-10)


def test_second_derivatives() -> None:
    import tensorflow as tf

    backend = get_backend("tensorflow")
    a, b = tf.constant([[1.0, 2.0]]), tf.constant([[3.0], [4.0]])
    with tf.GradientTape() as outer:
        outer.watch(a)
        with tf.GradientTape() as inner:
            inner.watch(a)
            y = backend.contract(a, b, 0, 1, 1, 1)
            loss = tf.reduce_sum(y * y)
        first = inner.gradient(loss, a)
        total = tf.reduce_sum(first)
    # loss = (a b)^2: first = 2 (a b) b, its sum differentiated: 2 sum(b) b
    np.testing.assert_allclose(first.numpy(), [[66.0, 88.0]])
    np.testing.assert_allclose(outer.gradient(total, a).numpy(), [[42.0, 56.0]])
