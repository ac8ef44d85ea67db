"""The gradients that the TensorFlow backend has of its own are those of TensorFlow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import rf

pytestmark = pytest.mark.needs("tensorflow")

Function = Callable[..., Any]


def ops() -> Any:
    rf.get_backend("tensorflow")  # which starts it
    from rf.backends import _tensorflow_ops

    return _tensorflow_ops


def products() -> Any:
    from rf.backends import _tensorflow_matmul

    return _tensorflow_matmul


def backend() -> Any:
    return rf.get_backend("tensorflow")


def tf() -> Any:
    import tensorflow

    return tensorflow


def arrays(*shapes: tuple[int, ...]) -> list[Any]:
    """float64, positive, away from 0."""
    random = np.random.default_rng(3)
    return [tf().constant(random.uniform(0.5, 2.0, shape)) for shape in shapes]


def gradients(function: Function, xs: list[Any], watched: tuple[int, ...]) -> list[np.ndarray | None]:
    """Of a sum of all results with unlike weights, by each of `xs`."""
    with tf().GradientTape() as tape:
        tape.watch([xs[i] for i in watched])
        ys = function(*xs)
        ys = ys if isinstance(ys, (list, tuple)) else [ys]
        weights = [np.random.default_rng(i).standard_normal(y.shape) for i, y in enumerate(ys)]
        total = sum(tf().reduce_sum(y * w) for y, w in zip(ys, weights))
    return [None if g is None else g.numpy() for g in tape.gradient(total, xs)]


def check(own: Function, reference: Function, xs: list[Any]) -> None:
    """Whatever of `xs` is followed."""
    for i in range(len(xs)):
        for watched in {(i,), tuple(range(len(xs)))}:
            for have, want in zip(gradients(own, xs, watched), gradients(reference, xs, watched), strict=True):
                if want is None:
                    assert have is None
                else:
                    assert have is not None and have.shape == want.shape
                    np.testing.assert_allclose(have, want, rtol=1e-10, atol=1e-12)
    for have, want in zip(np.atleast_1d(own(*xs)), np.atleast_1d(reference(*xs)), strict=True):
        np.testing.assert_allclose(have, want, rtol=1e-10, atol=1e-12)


UNARY: dict[str, Callable[[Any], Function]] = {
    "neg": lambda tf: tf.negative,
    "exp": lambda tf: tf.exp,
    "log": lambda tf: tf.math.log,
    "square": lambda tf: tf.square,
    "absolute": lambda tf: tf.abs,
    "sqrt": lambda tf: tf.sqrt,
    "rsqrt": lambda tf: tf.math.rsqrt,
    "tanh": lambda tf: tf.tanh,
    "sigmoid": lambda tf: tf.sigmoid,
    "relu": lambda tf: tf.nn.relu,
    "silu": lambda tf: lambda x: x * tf.sigmoid(x),
    "softplus": lambda tf: tf.math.softplus,
    "softmax": lambda tf: tf.nn.softmax,
    "log_softmax": lambda tf: tf.nn.log_softmax,
    "identity": lambda tf: tf.identity,
}


@pytest.mark.parametrize("name", UNARY)
def test_unary(name: str) -> None:
    (x,) = arrays((2, 3, 4))
    signed = x if name in ("log", "sqrt", "rsqrt") else x * np.where(np.arange(4) % 2, 1.0, -1.0)
    check(getattr(ops(), name), UNARY[name](tf()), [signed])


BINARY: dict[str, Callable[[Any], Function]] = {
    "add": lambda tf: tf.add,
    "sub": lambda tf: tf.subtract,
    "mul": lambda tf: tf.multiply,
    "div": lambda tf: tf.divide,
    "squared_difference": lambda tf: tf.math.squared_difference,
}
SHAPES = [
    ((2, 3, 4), (2, 3, 4)),
    ((2, 3, 4), (4,)),
    ((2, 3, 4), ()),
    ((2, 3, 4), (2, 1, 4)),
    ((2, 3, 4), (3, 1)),
    ((2, 1, 4), (3, 1)),
    ((1, 1), (1,)),
    ((0, 3), (1, 3)),
]


@pytest.mark.parametrize("shapes", SHAPES, ids=str)
@pytest.mark.parametrize("name", BINARY)
def test_binary(name: str, shapes: tuple[tuple[int, ...], ...]) -> None:
    function, reference = getattr(ops(), name), BINARY[name](tf())
    for order in (shapes, shapes[::-1]):
        check(function, reference, arrays(*order))


@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_select(shapes: tuple[tuple[int, ...], ...]) -> None:
    condition = tf().constant(np.random.default_rng(1).random((2, *np.broadcast_shapes(*shapes))) < 0.5)
    check(lambda x, y: ops().select(condition, x, y), lambda x, y: tf().where(condition, x, y), arrays(*shapes))


def test_select_keeps_nan_out() -> None:
    (x,) = arrays((3,))
    bad = x * np.array([1.0, np.nan, 1.0])
    keep = tf().constant([True, False, True])
    (gradient,) = gradients(lambda x: ops().select(keep, x * x, tf().zeros_like(x)), [bad], (0,))
    assert gradient is not None and gradient[1] != gradient[1]  # 0 * NaN, of x * x
    (gradient,) = gradients(lambda x: ops().select(keep, x, tf().zeros_like(x)), [bad], (0,))
    assert gradient is not None and np.isfinite(gradient).all()


STRUCTURE: dict[str, tuple[Function, Function]] = {
    "reshape": (lambda o, x: o.reshape(x, (6, 4)), lambda tf, x: tf.reshape(x, (6, 4))),
    "transpose": (lambda o, x: o.transpose(x, (2, 0, 1)), lambda tf, x: tf.transpose(x, (2, 0, 1))),
    "expand_dims": (lambda o, x: o.expand_dims(x, 1), lambda tf, x: tf.expand_dims(x, 1)),
    "squeeze": (lambda o, x: o.squeeze(x[:, :1], (1,)), lambda tf, x: tf.squeeze(x[:, :1], 1)),
    "broadcast": (
        lambda o, x: o.broadcast(x[:, :1], (2, 5, 4)),
        lambda tf, x: tf.broadcast_to(x[:, :1], (2, 5, 4)),
    ),
    "slice": (lambda o, x: o.strided_slice(x, 1, 0, 3, 2, False), lambda tf, x: x[:, 0:3:2]),
    "select one": (lambda o, x: o.strided_slice(x, 2, 1, 2, 1, True), lambda tf, x: x[:, :, 1]),
    "pad": (
        lambda o, x: o.pad(x, ((0, 0), (1, 2), (3, 0)), tf().constant(7.0, "float64")),
        lambda tf, x: tf.pad(x, ((0, 0), (1, 2), (3, 0)), constant_values=7.0),
    ),
    "sum": (lambda o, x: o.sum_over(x, (1,)), lambda tf, x: tf.reduce_sum(x, 1)),
    "sum of leading": (lambda o, x: o.sum_over(x, (0, 1)), lambda tf, x: tf.reduce_sum(x, (0, 1))),
    "sum of all": (lambda o, x: o.sum_over(x, (0, 1, 2)), lambda tf, x: tf.reduce_sum(x)),
    "mean": (lambda o, x: o.mean_over(x, (0, 2)), lambda tf, x: tf.reduce_mean(x, (0, 2))),
    "cast": (
        lambda o, x: o.cast(o.cast(x, tf().float32.as_datatype_enum), tf().float64.as_datatype_enum),
        lambda tf, x: tf.cast(tf.cast(x, "float32"), "float64"),
    ),
    "split": (lambda o, x: o.split(x, 2, (1, 3)), lambda tf, x: tf.split(x, (1, 3), 2)),
    "unstack": (lambda o, x: o.unstack(x, 1, 3), lambda tf, x: tf.unstack(x, axis=1)),
    "unstack, one used": (lambda o, x: o.unstack(x, 1, 3)[1], lambda tf, x: tf.unstack(x, axis=1)[1]),
}


@pytest.mark.parametrize("name", STRUCTURE)
def test_structure(name: str) -> None:
    own, reference = STRUCTURE[name]
    (x,) = arrays((2, 3, 4))
    with tf().GradientTape() as tape:
        tape.watch(x)
        pairs = [function(module, x) for function, module in ((own, ops()), (reference, tf()))]
    for a, b in zip(*(y if isinstance(y, (list, tuple)) else [y] for y in pairs), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12)
    have, want = (gradients(lambda x, f=f, m=m: f(m, x), [x], (0,))[0] for f, m in ((own, ops()), (reference, tf())))
    np.testing.assert_allclose(have, want, rtol=1e-6 if name == "cast" else 1e-12)  # type: ignore[arg-type]


def test_joining() -> None:
    xs = arrays((2, 3), (2, 1), (2, 4))
    check(lambda *xs: ops().concat(list(xs), 1), lambda *xs: tf().concat(xs, 1), xs)
    xs = arrays((2, 3), (2, 3))
    check(lambda *xs: ops().stack(list(xs), 1), lambda *xs: tf().stack(xs, 1), xs)


@pytest.mark.parametrize(
    ("name", "shapes"),
    [
        ("matmul", ((3, 4), (4, 5))),
        ("matmul", ((2, 3, 4), (2, 4, 5))),
        ("matmul", ((6, 2, 3, 4), (1, 2, 4, 5))),
        ("product", ((3, 4), (4, 5))),
        ("product", ((2, 3, 4), (4, 5))),
        ("product", ((0, 3, 4), (4, 5))),
    ],
)
def test_products(name: str, shapes: tuple[tuple[int, ...], ...]) -> None:
    check(getattr(products(), name), tf().matmul, arrays(*shapes))


@pytest.mark.parametrize("shape", [(3, 4), (2, 3, 4), (2, 0, 4)])
def test_affine(shape: tuple[int, ...]) -> None:
    check(products().affine, lambda x, w, b: tf().matmul(x, w) + b, arrays(shape, (4, 5), (5,)))
    check(ops().bias_add, tf().add, arrays(shape, (4,)))


# -- kernels


@pytest.mark.parametrize("num_axes", [1, 2])
@pytest.mark.parametrize("parameters", ["both", "scale", "bias", "none"])
@pytest.mark.parametrize("name", ["layer_norm", "rms_norm"])
def test_norms(name: str, parameters: str, num_axes: int) -> None:
    def own(x: Any, scale: Any, bias: Any) -> Any:
        return getattr(backend(), name)(x, *used(scale, bias), num_axes, 1e-3)

    def used(scale: Any, bias: Any) -> tuple[Any, Any]:
        return scale if parameters in ("both", "scale") else None, bias if parameters in ("both", "bias") else None

    def reference(x: Any, scale: Any, bias: Any) -> Any:
        axes = tuple(range(3 - num_axes, 3))
        x = x - tf().reduce_mean(x, axes, keepdims=True) if name == "layer_norm" else x
        y = x / tf().sqrt(tf().reduce_mean(x * x, axes, keepdims=True) + 1e-3)
        scale, bias = used(scale, bias)
        y = y if scale is None else y * scale
        return y if bias is None else y + bias

    shape = (2, 3, 4)
    check(own, reference, arrays(shape, shape[3 - num_axes :], shape[3 - num_axes :]))


@pytest.mark.parametrize("masked", [True, False])
def test_batch_norm(masked: bool) -> None:
    mask = np.arange(3) < np.array([3, 1])[:, None]
    raw_mask = tf().constant(mask[:, None, :]) if masked else None
    weights = mask[:, None, :] if masked else np.ones((1, 1, 3))

    def own(x: Any, gamma: Any, beta: Any) -> Any:
        return backend().batch_norm_of_batch(x, raw_mask, gamma, beta, (0, 2), 1e-3)

    def reference(x: Any, gamma: Any, beta: Any) -> Any:
        count = np.broadcast_to(weights, (2, 1, 3)).sum()
        mean = tf().reduce_sum(x * weights, (0, 2), keepdims=True) / count
        centered = (x - mean) * weights
        variance = tf().reduce_sum(centered * centered, (0, 2), keepdims=True) / count
        y = centered / tf().sqrt(variance + 1e-3) * gamma + beta
        return y, tf().reshape(mean, (-1,)), tf().reshape(variance, (-1,))

    check_each(own, reference, arrays((2, 4, 3), (4, 1), (4, 1)))


def check_each(own: Function, reference: Function, xs: list[Any]) -> None:
    """Each result alone, and all together."""
    everything = tuple(range(len(xs)))
    picks: list[Function] = [lambda ys, i=i: ys[i] for i in range(len(own(*xs)))]
    for pick in (*picks, lambda ys: ys):
        have = gradients(lambda *xs, pick=pick: pick(own(*xs)), xs, everything)
        want = gradients(lambda *xs, pick=pick: pick(reference(*xs)), xs, everything)
        for a, b in zip(have, want, strict=True):
            assert (a is None) == (b is None)
            if a is not None and b is not None:
                np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    ("x", "filter", "strides", "paddings", "groups"),
    [
        ((2, 4, 9), (4, 1, 3), (1,), ((1, 1),), 4),
        ((2, 4, 9), (8, 1, 4), (1,), ((1, 2),), 4),
        ((2, 4, 9), (4, 1, 4), (2,), ((2, 0),), 4),
        ((2, 4, 9), (5, 4, 3), (2,), ((1, 1),), 1),
        ((2, 4, 9, 6), (4, 1, 3, 2), (1, 1), ((1, 1), (0, 1)), 4),
        ((2, 4, 9, 6), (5, 4, 3, 2), (2, 1), ((1, 1), (0, 1)), 1),
        ((2, 3, 4, 9, 6), (5, 4, 3, 2), (2, 1), ((0, 0), (0, 0)), 1),
    ],
)
def test_conv(x: Any, filter: Any, strides: Any, paddings: Any, groups: int) -> None:
    """Against windows that are cut out and multiplied."""
    n = len(strides)
    num_out, per_group = filter[:2]

    def own(x: Any, w: Any, b: Any) -> Any:
        return backend().conv(x, w, b, strides, paddings, (1,) * n, groups)

    def reference(x: Any, w: Any, b: Any) -> Any:
        batch = x.shape[: -n - 1]
        x = tf().reshape(x, (-1, *x.shape[-n - 1 :]))
        x = tf().pad(x, ((0, 0), (0, 0), *paddings))
        if n == 1:
            x, w = x[:, :, None], w[:, :, None]
        steps = strides if n == 2 else (1, *strides)
        height, width = ((m - k) // s + 1 for m, k, s in zip(x.shape[2:], w.shape[2:], steps))
        x = tf().reshape(x, (x.shape[0], groups, per_group, *x.shape[2:]))
        w = tf().reshape(w, (groups, num_out // groups, *w.shape[1:]))
        y: Any = 0.0
        for i in range(w.shape[3]):
            for j in range(w.shape[4]):
                window = x[:, :, :, i : i + (height - 1) * steps[0] + 1, j : j + (width - 1) * steps[1] + 1]
                window = window[:, :, :, :: steps[0], :: steps[1]]
                y = y + tf().einsum("bgchw,goc->bgohw", window, w[:, :, :, i, j])
        y = tf().reshape(y, (-1, num_out, height, width)) + b[:, None, None]
        return tf().reshape(y, (*batch, num_out, *((height, width)[2 - n :])))

    check(own, reference, arrays(x, filter, (num_out,)))


def test_dropout() -> None:
    (x,) = arrays((50, 40))
    with tf().GradientTape() as tape:
        tape.watch(x)
        y = backend().dropout(x, 0.25, None)
    gradient = tape.gradient(y, x).numpy()
    dropped = y.numpy() == 0
    assert 0.15 < dropped.mean() < 0.35
    assert (gradient[dropped] == 0).all()
    np.testing.assert_allclose(gradient[~dropped], 1 / 0.75, rtol=1e-12)


def test_cross_entropy() -> None:
    labels = np.array([[0, 2, 1], [3, 3, 0]], dtype=np.int32)

    def reference(logits: Any) -> Any:
        return tf().nn.sparse_softmax_cross_entropy_with_logits(labels, logits)

    check(lambda x: backend().cross_entropy(x, tf().constant(labels)), reference, arrays((2, 3, 4)))


# -- what is left to TensorFlow


def test_complex_numbers_and_variables() -> None:
    z = tf().constant(np.array([1.0 + 2.0j, 3.0 - 1.0j]))
    with tf().GradientTape(persistent=True) as tape:
        tape.watch(z)
        own, reference = ops().mul(z, z), tf().multiply(z, z)
    np.testing.assert_allclose(tape.gradient(own, z), tape.gradient(reference, z))
    v, (x,) = tf().Variable([[1.0], [2.0]], dtype="float64"), arrays((3, 2))
    with tf().GradientTape() as tape:
        y = products().product(x, v)
    np.testing.assert_allclose(tape.gradient(y, v), x.numpy().sum(0)[:, None])


def test_nothing_is_recorded_of_what_nothing_follows() -> None:
    x, other = arrays((3,), (3,))
    with tf().GradientTape() as tape:
        tape.watch(other)
        y = ops().mul(x, x)
    assert tape.gradient(y, other) is None


def test_gradients_of_gradients() -> None:
    """With a tape around the tape."""
    (x,) = arrays((3,))
    with tf().GradientTape() as outer:
        outer.watch(x)
        with tf().GradientTape() as inner:
            inner.watch(x)
            y = ops().mul(ops().mul(x, x), x)
        gradient = inner.gradient(y, x)
    np.testing.assert_allclose(outer.gradient(gradient, x), 6 * x.numpy())
