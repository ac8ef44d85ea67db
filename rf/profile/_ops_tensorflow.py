"""The cases of `rf bench ops` on TensorFlow, without `tf.function`. `x, y` are raw arrays of `a, b`."""

# pyright: reportMissingModuleSource=false

from __future__ import annotations

from typing import Any

import rf
from rf.backend import use_backend
from rf.profile.ops import Calls, Case, World, add_to

CASES: list[Case] = []


@add_to(CASES, "a + b", "{B,T,F} + {B,T,F}", "a + b", target=0.60, meta_target_ns=120, grad=False)
def _(w: World) -> Calls:
    a, b = w.btf(), w.btf()
    yield lambda: a + b
    x, y = a.raw_tensor, b.raw_tensor
    yield lambda: x + y


@add_to(CASES, "a + b, grad", "{B,T,F} + {B,T,F}, both with gradient", "a + b")
def _(w: World) -> Calls:
    a, b = w.btf(grad=True), w.btf(grad=True)
    yield lambda: a + b
    x, y = a.raw_tensor, b.raw_tensor
    yield lambda: x + y


@add_to(CASES, "a + 1.0", "{B,T,F} + a Python number", "a + 1.0", target=0.40, grad=False)
def _(w: World) -> Calls:
    a = w.btf()
    yield lambda: a + 1.0
    x = a.raw_tensor
    yield lambda: x + 1.0


@add_to(CASES, "a + {F}", "{B,T,F} + {F}", "a + b", grad=False)
def _(w: World) -> Calls:
    a, b = w.btf(), w.tensor(w.feature)
    yield lambda: a + b
    x, y = a.raw_tensor, b.raw_tensor
    yield lambda: x + y


@add_to(CASES, "a + {B}", "{B,T,F} + {B}", "a + b[:, None, None]", grad=False)
def _(w: World) -> Calls:
    a, b = w.btf(), w.tensor(w.batch)
    yield lambda: a + b
    x, y = a.raw_tensor, b.raw_tensor
    yield lambda: x + y[:, None, None]


@add_to(CASES, "relu", "{B,T,F}", "tf.nn.relu(a)", grad=False)
def _(w: World) -> Calls:
    a = w.btf()
    yield lambda: rf.relu(a)
    import tensorflow as tf

    x = a.raw_tensor
    yield lambda: tf.nn.relu(x)


@add_to(CASES, "exp", "{B,T,F}", "tf.exp(a)", grad=False)
def _(w: World) -> Calls:
    a = w.btf()
    yield lambda: rf.exp(a)
    import tensorflow as tf

    x = a.raw_tensor
    yield lambda: tf.exp(x)


@add_to(CASES, "a > b", "{B,T,F} > {B,T,F}", "a > b", grad=False)
def _(w: World) -> Calls:
    a, b = w.btf(), w.btf()
    yield lambda: a > b
    x, y = a.raw_tensor, b.raw_tensor
    yield lambda: x > y


@add_to(CASES, "where", "{B,T,F}, all three operands", "tf.where(c, a, b)", grad=False)
def _(w: World) -> Calls:
    a, b = w.btf(), w.btf()
    condition = a > b
    yield lambda: rf.where(condition, a, b)
    import tensorflow as tf

    c, x, y = condition.raw_tensor, a.raw_tensor, b.raw_tensor
    yield lambda: tf.where(c, x, y)


@add_to(CASES, "cast", "{B,T,F} int32 to float32", "tf.cast(a, tf.float32)", grad=False)
def _(w: World) -> Calls:
    a = w.btf(dtype="int32")
    yield lambda: rf.cast(a, "float32")
    import tensorflow as tf

    x = a.raw_tensor
    yield lambda: tf.cast(x, tf.float32)


@add_to(CASES, "matmul, tensordot", "{B,T,F} x {F,G} over F", "tf.tensordot(a, b, 1)", target=0.25, grad=False)
def _(w: World) -> Calls:
    a, b, dim = w.btf(), w.tensor(w.feature, w.out), w.feature
    yield lambda: rf.matmul(a, b, reduce=dim)
    import tensorflow as tf

    x, y = a.raw_tensor, b.raw_tensor
    yield lambda: tf.tensordot(x, y, 1)


@add_to(CASES, "matmul, einsum", "{B,T,F} x {F,G} over F", 'tf.einsum("btf,fg->btg", a, b)', target=0.70, grad=False)
def _(w: World) -> Calls:
    a, b, dim = w.btf(), w.tensor(w.feature, w.out), w.feature
    yield lambda: rf.matmul(a, b, reduce=dim)
    import tensorflow as tf

    x, y = a.raw_tensor, b.raw_tensor
    yield lambda: tf.einsum("btf,fg->btg", x, y)


@add_to(CASES, "matmul, batches", "{B,T,F} x {B,F,G} over F", "tf.matmul(a, b)", grad=False)
def _(w: World) -> Calls:
    a, b, dim = w.btf(), w.tensor(w.batch, w.feature, w.out), w.feature
    yield lambda: rf.matmul(a, b, reduce=dim)
    import tensorflow as tf

    x, y = a.raw_tensor, b.raw_tensor
    yield lambda: tf.matmul(x, y)


def _linear(w: World) -> tuple[Any, rf.Tensor]:
    with use_backend(w.backend.name):
        return rf.Linear(w.feature, w.out), w.btf()


def _dense(w: World, module: Any) -> Any:
    import tensorflow as tf

    layer: Any = tf.keras.layers.Dense(w.out.get_dim_value())
    layer.build((None, None, w.feature.get_dim_value()))
    layer.set_weights([module.weight.numpy(), module.bias.numpy()])
    return layer


@add_to(CASES, "Linear", "rf.Linear on {B,T,F}, parameters with gradient", "keras.layers.Dense")
def _(w: World) -> Calls:
    module, a = _linear(w)
    yield lambda: module(a)
    layer, x = _dense(w, module), a.raw_tensor
    yield lambda: layer(x)


@add_to(CASES, "Linear, no grad", "rf.Linear on {B,T,F} in no_grad", "keras.layers.Dense", grad=False)
def _(w: World) -> Calls:
    module, a = _linear(w)
    yield lambda: module(a)
    layer, x = _dense(w, module), a.raw_tensor
    yield lambda: layer(x)


@add_to(CASES, "Linear, ops", "rf.Linear on {B,T,F} in no_grad", "tf.tensordot(a, weight, 1) + bias", grad=False)
def _(w: World) -> Calls:
    module, a = _linear(w)
    yield lambda: module(a)
    import tensorflow as tf

    x, weight, bias = a.raw_tensor, module.weight.raw_tensor, module.bias.raw_tensor
    yield lambda: tf.tensordot(x, weight, 1) + bias


@add_to(CASES, "LayerNorm", "rf.LayerNorm on {B,T,F}, parameters with gradient", "keras.layers.LayerNormalization")
def _(w: World) -> Calls:
    with use_backend(w.backend.name):
        module = rf.LayerNorm(w.feature)
    a = w.btf()
    yield lambda: module(a)
    import tensorflow as tf

    layer: Any = tf.keras.layers.LayerNormalization(epsilon=module.eps)
    layer.build((None, None, w.feature.get_dim_value()))
    x = a.raw_tensor
    yield lambda: layer(x)


@add_to(CASES, "softmax, static", "{B,T,F} over F", "tf.nn.softmax(a)", target=0.80, grad=False)
def _(w: World) -> Calls:
    a, dim = w.btf(), w.feature
    yield lambda: rf.softmax(a, axis=dim)
    import tensorflow as tf

    x = a.raw_tensor
    yield lambda: tf.nn.softmax(x)


@add_to(CASES, "softmax, dynamic", "{B,F,T} over T, masked", "tf.nn.softmax(a), not masked", grad=False)
def _(w: World) -> Calls:
    a, dim = w.tensor(w.batch, w.feature, w.time), w.time
    yield lambda: rf.softmax(a, axis=dim)
    import tensorflow as tf

    x = a.raw_tensor
    yield lambda: tf.nn.softmax(x)


@add_to(CASES, "softmax, masked", "{B,F,T} over T, masked", "tf.nn.softmax(tf.where(mask, a, -inf))", grad=False)
def _(w: World) -> Calls:
    a, dim = w.tensor(w.batch, w.feature, w.time), w.time
    yield lambda: rf.softmax(a, axis=dim)
    import tensorflow as tf

    x = a.raw_tensor
    mask = tf.constant([[[True, True, True]], [[True, True, False]]])
    low = tf.constant(float("-inf"))
    yield lambda: tf.nn.softmax(tf.where(mask, x, low))


@add_to(CASES, "reduce_mean, static", "{B,T,F} over F", "tf.reduce_mean(a, -1)", grad=False)
def _(w: World) -> Calls:
    a, dim = w.btf(), w.feature
    yield lambda: rf.reduce_mean(a, axis=dim)
    import tensorflow as tf

    x = a.raw_tensor
    yield lambda: tf.reduce_mean(x, -1)


@add_to(CASES, "reduce_mean, dynamic", "{B,T,F} over T, masked", "tf.reduce_sum(a * mask, 1) / lengths", grad=False)
def _(w: World) -> Calls:
    a, dim = w.btf(), w.time
    yield lambda: rf.reduce_mean(a, axis=dim)
    import tensorflow as tf

    x = a.raw_tensor
    mask = tf.constant([[[1.0], [1.0], [1.0]], [[1.0], [1.0], [0.0]]])
    lengths = tf.constant([[3.0], [2.0]])
    yield lambda: tf.reduce_sum(x * mask, 1) / lengths


@add_to(CASES, "gather", "{V,F} at {B,T} int32, the table with gradient", "tf.gather(table, indices)")
def _(w: World) -> Calls:
    table, dim = w.tensor(w.vocab, w.feature, grad=True), w.vocab
    indices = w.tensor(w.batch, w.time, dtype="int32")
    yield lambda: rf.gather(table, indices=indices, axis=dim)
    import tensorflow as tf

    x, i = table.raw_tensor, indices.raw_tensor
    yield lambda: tf.gather(x, i)


@add_to(CASES, "dropout", "{B,T,F}, probability 0.1", "tf.nn.dropout(a, 0.1)", grad=False, same_values=False)
def _(w: World) -> Calls:
    a = w.btf()
    yield lambda: rf.dropout(a, 0.1, on_forward=True)
    import tensorflow as tf

    x = a.raw_tensor
    yield lambda: tf.nn.dropout(x, 0.1)


@add_to(CASES, "transpose", "{B,T,F} to (F,B,T)", "tf.transpose(a, [2, 0, 1])", grad=False)
def _(w: World) -> Calls:
    a, order = w.btf(), (w.feature, w.batch, w.time)
    yield lambda: a.copy_transpose(order)
    import tensorflow as tf

    x = a.raw_tensor
    yield lambda: tf.transpose(x, [2, 0, 1])


@add_to(
    CASES,
    "new Tensor",
    "rf.convert_to_tensor of an array of the backend, dims checked",
    None,
    on_meta=False,
    grad=False,
)
def _(w: World) -> Calls:
    dims = (w.batch, w.time, w.feature)
    raw = w.tensor(*dims).raw_tensor
    yield lambda: rf.convert_to_tensor(raw, dims=dims)
