"""The cases of `rf bench ops` on torch. `x, y` are raw arrays of `a, b`."""

from __future__ import annotations

from typing import Any

import rf
from rf.backend import use_backend
from rf.profile.ops import Calls, Case, World, add_to

CASES: list[Case] = []


@add_to(CASES, "a + b", "{B,T,F} + {B,T,F}", "a + b", target=0.72, meta_target_ns=120)
def _(w: World) -> Calls:
    a, b = w.btf(), w.btf()
    yield lambda: a + b
    x, y = a.raw_tensor, b.raw_tensor
    yield lambda: x + y


@add_to(CASES, "a + b, grad", "{B,T,F} + {B,T,F}, both with gradient", "a + b", target=0.78)
def _(w: World) -> Calls:
    a, b = w.btf(grad=True), w.btf(grad=True)
    yield lambda: a + b
    x, y = a.raw_tensor, b.raw_tensor
    yield lambda: x + y


@add_to(CASES, "a + 1.0", "{B,T,F} + a Python number", "a + 1.0", target=0.32)
def _(w: World) -> Calls:
    a = w.btf()
    yield lambda: a + 1.0
    x = a.raw_tensor
    yield lambda: x + 1.0


@add_to(CASES, "a + {F}", "{B,T,F} + {F}", "a + b", target=0.75)
def _(w: World) -> Calls:
    a, b = w.btf(), w.tensor(w.feature)
    yield lambda: a + b
    x, y = a.raw_tensor, b.raw_tensor
    yield lambda: x + y


@add_to(CASES, "a + {B}", "{B,T,F} + {B}", "a + b[:, None, None]", target=0.80)
def _(w: World) -> Calls:
    a, b = w.btf(), w.tensor(w.batch)
    yield lambda: a + b
    x, y = a.raw_tensor, b.raw_tensor
    yield lambda: x + y[:, None, None]


@add_to(CASES, "relu", "{B,T,F}", "torch.relu(a)", target=0.75)
def _(w: World) -> Calls:
    a = w.btf()
    yield lambda: rf.relu(a)
    import torch

    x = a.raw_tensor
    yield lambda: torch.relu(x)


@add_to(CASES, "exp", "{B,T,F}", "torch.exp(a)", target=0.75)
def _(w: World) -> Calls:
    a = w.btf()
    yield lambda: rf.exp(a)
    import torch

    x = a.raw_tensor
    yield lambda: torch.exp(x)


@add_to(CASES, "a > b", "{B,T,F} > {B,T,F}", "a > b")
def _(w: World) -> Calls:
    a, b = w.btf(), w.btf()
    yield lambda: a > b
    x, y = a.raw_tensor, b.raw_tensor
    yield lambda: x > y


@add_to(CASES, "where", "{B,T,F}, all three operands", "torch.where(c, a, b)")
def _(w: World) -> Calls:
    a, b = w.btf(), w.btf()
    condition = a > b
    yield lambda: rf.where(condition, a, b)
    import torch

    c, x, y = condition.raw_tensor, a.raw_tensor, b.raw_tensor
    yield lambda: torch.where(c, x, y)


@add_to(CASES, "cast", "{B,T,F} int32 to float32", "a.to(torch.float32)")
def _(w: World) -> Calls:
    a = w.btf(dtype="int32")
    yield lambda: rf.cast(a, "float32")
    import torch

    x = a.raw_tensor
    yield lambda: x.to(torch.float32)


@add_to(CASES, "matmul", "{B,T,F} x {F,G} over F", "torch.matmul(a, b)", target=0.90)
def _(w: World) -> Calls:
    a, b, dim = w.btf(), w.tensor(w.feature, w.out), w.feature
    yield lambda: rf.matmul(a, b, reduce=dim)
    import torch

    x, y = a.raw_tensor, b.raw_tensor
    yield lambda: torch.matmul(x, y)


def _linear(w: World) -> tuple[Any, rf.Tensor]:
    with use_backend(w.backend.name):
        return rf.Linear(w.feature, w.out), w.btf()


def _weights_for_torch(module: Any, grad: bool) -> tuple[Any, Any]:
    weight, bias = module.weight.raw_tensor.detach(), module.bias.raw_tensor.detach()
    return weight.t().contiguous().requires_grad_(grad), bias.clone().requires_grad_(grad)


@add_to(CASES, "Linear", "rf.Linear on {B,T,F}, parameters with gradient", "F.linear(a, weight, bias)", target=0.95)
def _(w: World) -> Calls:
    module, a = _linear(w)
    yield lambda: module(a)
    import torch.nn.functional as F

    (weight, bias), x = _weights_for_torch(module, True), a.raw_tensor
    yield lambda: F.linear(x, weight, bias)


@add_to(
    CASES, "Linear, no grad", "rf.Linear on {B,T,F} in no_grad", "F.linear(a, weight, bias)", target=0.95, grad=False
)
def _(w: World) -> Calls:
    module, a = _linear(w)
    yield lambda: module(a)
    import torch.nn.functional as F

    (weight, bias), x = _weights_for_torch(module, True), a.raw_tensor
    yield lambda: F.linear(x, weight, bias)


@add_to(CASES, "Linear, module", "rf.Linear on {B,T,F}, parameters with gradient", "torch.nn.Linear", target=0.35)
def _(w: World) -> Calls:
    module, a = _linear(w)
    yield lambda: module(a)
    import torch

    theirs = torch.nn.Linear(w.feature.get_dim_value(), w.out.get_dim_value())
    weight, bias = _weights_for_torch(module, False)
    theirs.load_state_dict({"weight": weight, "bias": bias})
    x = a.raw_tensor
    yield lambda: theirs(x)


@add_to(CASES, "LayerNorm", "rf.LayerNorm on {B,T,F}, parameters with gradient", "torch.nn.LayerNorm", target=0.35)
def _(w: World) -> Calls:
    with use_backend(w.backend.name):
        module = rf.LayerNorm(w.feature)
    a = w.btf()
    yield lambda: module(a)
    import torch

    theirs = torch.nn.LayerNorm(w.feature.get_dim_value(), eps=module.eps)
    x = a.raw_tensor
    yield lambda: theirs(x)


@add_to(CASES, "softmax, static", "{B,T,F} over F", "torch.softmax(a, -1)")
def _(w: World) -> Calls:
    a, dim = w.btf(), w.feature
    yield lambda: rf.softmax(a, axis=dim)
    import torch

    x = a.raw_tensor
    yield lambda: torch.softmax(x, -1)


@add_to(CASES, "softmax, dynamic", "{B,F,T} over T, masked", "torch.softmax(a, -1), not masked", target=1.30)
def _(w: World) -> Calls:
    a, dim = w.tensor(w.batch, w.feature, w.time), w.time
    yield lambda: rf.softmax(a, axis=dim)
    import torch

    x = a.raw_tensor
    yield lambda: torch.softmax(x, -1)


@add_to(
    CASES, "softmax, masked", "{B,F,T} over T, masked", "torch.softmax(a.masked_fill(padding, -inf), -1)", target=0.60
)
def _(w: World) -> Calls:
    a, dim = w.tensor(w.batch, w.feature, w.time), w.time
    yield lambda: rf.softmax(a, axis=dim)
    import torch

    x = a.raw_tensor
    padding = torch.tensor([[[False, False, False]], [[False, False, True]]])
    yield lambda: torch.softmax(x.masked_fill(padding, float("-inf")), -1)


@add_to(CASES, "reduce_mean, static", "{B,T,F} over F", "torch.mean(a, -1)")
def _(w: World) -> Calls:
    a, dim = w.btf(), w.feature
    yield lambda: rf.reduce_mean(a, axis=dim)
    import torch

    x = a.raw_tensor
    yield lambda: torch.mean(x, -1)


@add_to(CASES, "reduce_mean, dynamic", "{B,T,F} over T, masked", "(a * mask).sum(1) / lengths", target=0.50)
def _(w: World) -> Calls:
    a, dim = w.btf(), w.time
    yield lambda: rf.reduce_mean(a, axis=dim)
    import torch

    x = a.raw_tensor
    mask = torch.tensor([[[1.0], [1.0], [1.0]], [[1.0], [1.0], [0.0]]])
    lengths = torch.tensor([[3.0], [2.0]])
    yield lambda: (x * mask).sum(1) / lengths


@add_to(CASES, "gather", "{V,F} at {B,T} int32, the table with gradient", "F.embedding(indices, table)")
def _(w: World) -> Calls:
    table, dim = w.tensor(w.vocab, w.feature, grad=True), w.vocab
    indices = w.tensor(w.batch, w.time, dtype="int32")
    yield lambda: rf.gather(table, indices=indices, axis=dim)
    import torch.nn.functional as F

    x, i = table.raw_tensor, indices.raw_tensor
    yield lambda: F.embedding(i, x)


@add_to(
    CASES, "dropout", "{B,T,F}, probability 0.1", "F.dropout(a, 0.1, training=True)", target=0.40, same_values=False
)
def _(w: World) -> Calls:
    a = w.btf()
    yield lambda: rf.dropout(a, 0.1, on_forward=True)
    import torch.nn.functional as F

    x = a.raw_tensor
    yield lambda: F.dropout(x, 0.1, training=True)


@add_to(CASES, "transpose", "{B,T,F} to (F,B,T)", "a.permute(2, 0, 1)")
def _(w: World) -> Calls:
    a, order = w.btf(), (w.feature, w.batch, w.time)
    yield lambda: a.copy_transpose(order)
    x = a.raw_tensor
    yield lambda: x.permute(2, 0, 1)


@add_to(CASES, "new Tensor", "rf.convert_to_tensor of an array of the backend, dims checked", None, on_meta=False)
def _(w: World) -> Calls:
    dims = (w.batch, w.time, w.feature)
    raw = w.tensor(*dims).raw_tensor
    yield lambda: rf.convert_to_tensor(raw, dims=dims)
