"""Fused kernels of the native torch path: values against torch's own functions, gradients and gradients of gradients
against differences, and where they must step aside."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import rf
from rf import Dim, _core

pytestmark = [pytest.mark.needs("torch"), pytest.mark.needs("native core"), pytest.mark.needs("compiler")]
if not _core.NATIVE:
    pytestmark.append(pytest.mark.skip(reason="this run is on the Python core"))

B, T, F, G, H = (Dim(n, name=name) for n, name in ((2, "batch"), (5, "time"), (6, "feat"), (4, "out"), (3, "heads")))
LENGTHS = (5, 3)


@functools.cache
def masked_time() -> Dim:
    sizes = rf.convert_to_tensor(np.array(LENGTHS, "int32"), dims=[B])
    return Dim(sizes, name="masked")


@pytest.fixture(autouse=True)
def _torch_backend():
    with rf.use_backend("torch"):
        yield


@dataclass(frozen=True)
class Case:
    """One fused kernel.

    :param shapes: of the operands
    :param ours: in rf, of raw operands
    :param theirs: the same in torch
    :param node: what its autograd node is called
    """

    name: str
    shapes: tuple[tuple[int, ...], ...]
    ours: Callable[..., Any]
    theirs: Callable[..., Any]
    node: str


def of(raw: Any, *dims: Dim) -> rf.Tensor:
    return rf.convert_to_tensor(raw, dims=dims, feature_dim=dims[-1])


def _depthwise(x: Any, weight: Any, bias: Any) -> Any:
    size = Dim(3, name="size")
    out, dims = rf.conv(
        of(x, B, T, F),
        in_dim=F,
        out_dim=F,
        in_spatial_dims=[T],
        out_spatial_dims=[T],
        filter=rf.convert_to_tensor(weight, dims=[F, Dim(1, name="one"), size]),
        filter_size=[size],
        padding="same",
        groups=6,
        bias=of(bias, F),
    )
    return out.copy_transpose([B, *dims, F]).raw_tensor


def _torch_depthwise(x: Any, weight: Any, bias: Any) -> Any:
    import torch

    return torch.nn.functional.conv1d(x.transpose(1, 2), weight, bias, padding=1, groups=6).transpose(1, 2)


def _batch_norm(x: Any, gamma: Any, beta: Any) -> Any:
    from rf.ops.batch_norm import batch_norm_of_batch

    return batch_norm_of_batch(of(x, B, masked_time(), F), of(gamma, F), of(beta, F), F, True, 1e-3)[0].raw_tensor


def _torch_batch_norm(x: Any, gamma: Any, beta: Any) -> Any:
    import torch

    valid = torch.arange(5)[None] < torch.tensor(LENGTHS)[:, None]
    frames = x[valid]
    mean, variance = frames.mean(0), frames.var(0, unbiased=False)
    return torch.where(valid[..., None], (x - mean) * (variance + 1e-3).rsqrt(), 0) * gamma + beta


def _image_norm(x: Any, gamma: Any, beta: Any) -> Any:
    from rf.ops.batch_norm import batch_norm_of_batch

    return batch_norm_of_batch(of(x, B, F, T, G), of(gamma, F), of(beta, F), F, True, 1e-3)[0].raw_tensor


def _torch_image_norm(x: Any, gamma: Any, beta: Any) -> Any:
    import torch

    return torch.nn.functional.batch_norm(x, None, None, gamma, beta, True, 0.1, 1e-3)


def _softmax(x: Any) -> Any:
    time = masked_time()
    return rf.softmax(of(x, B, T, time), axis=time).raw_tensor


def _torch_softmax(x: Any) -> Any:
    import torch

    valid = torch.arange(5)[None] < torch.tensor(LENGTHS)[:, None]
    return x.masked_fill(~valid[:, None], -torch.inf).softmax(-1)


def _rel_weights(q: Any, k: Any, pos: Any) -> Any:
    from rf.ops.attention import rel_attention_weights

    keys, positions = Dim(5, name="keys"), Dim(9, name="positions")
    out = rel_attention_weights(
        of(q, B, T, H, F), of(k, B, keys, H, F), of(pos, positions, H, F), None, None, F, keys, T, positions, False, 0.5
    )
    return out.copy_transpose([B, H, T, keys]).raw_tensor


def _torch_rel_weights(q: Any, k: Any, pos: Any) -> Any:
    import torch

    content = torch.einsum("bihf,bjhf->bhij", q, k)
    position = torch.einsum("bihf,phf->bhip", q, pos)
    at = torch.arange(5)[None] - torch.arange(5)[:, None] + 4
    return ((content + position.gather(-1, at.expand(2, 3, 5, 5))) * 0.5).softmax(-1)


def _causal_weights(q: Any, k: Any) -> Any:
    from rf.ops.attention import dot_attention_weights

    return dot_attention_weights(of(q, B, T, F), of(k, B, T, F), F, T, T, 0.7).raw_tensor


def _torch_causal_weights(q: Any, k: Any) -> Any:
    import torch

    scores = q @ k.transpose(1, 2) * 0.7
    return scores.masked_fill(torch.ones(5, 5, dtype=torch.bool).triu(1), -torch.inf).softmax(-1)


def _cases() -> list[Case]:
    def torch_layer_norm(x: Any, scale: Any, bias: Any) -> Any:
        import torch

        return torch.nn.functional.layer_norm(x, [6], scale, bias, 1e-6)

    def layer_norm(x: Any, scale: Any, bias: Any) -> Any:
        from rf.ops.normalize import layer_norm

        return layer_norm(of(x, B, T, F), of(scale, F), of(bias, F), (F,), 1e-6).raw_tensor

    def linear(x: Any, weight: Any, bias: Any) -> Any:
        from rf.ops.contract import linear

        return linear(of(x, B, T, F), of(weight, F, G), of(bias, G), F, G).raw_tensor

    def matmul(x: Any, y: Any) -> Any:
        out = rf.matmul(of(x, B, T, H, F), of(y, B, F, H, G), reduce=F)
        return out.copy_transpose([B, H, T, G]).raw_tensor

    def fill(x: Any) -> Any:
        from rf.ops.attention import clean

        time = masked_time()
        return clean(of(x, B, time, F), (time,)).raw_tensor

    def torch_fill(x: Any) -> Any:
        import torch

        valid = torch.arange(5)[None] < torch.tensor(LENGTHS)[:, None]
        return torch.where(valid[..., None], x, 0)

    def unary(name: str) -> Callable[..., Any]:
        return lambda x: getattr(rf, name)(of(x, B, T, F)).raw_tensor

    def torch_unary(name: str) -> Callable[..., Any]:
        def call(x: Any) -> Any:
            import torch

            return getattr(torch.nn.functional, name, None or getattr(torch, name, None))(x)

        return call

    def glu(x: Any) -> Any:
        return rf.gating(of(x, B, T, F))[0].raw_tensor

    def torch_glu(x: Any) -> Any:
        import torch

        return torch.nn.functional.glu(x, -1)

    btf, f = (2, 5, 6), (6,)
    return [
        Case("linear", (btf, (6, 4), (4,)), linear, lambda x, w, b: x @ w + b, "Linear"),
        Case("layer norm", (btf, f, f), layer_norm, torch_layer_norm, "LayerNorm"),
        Case("depthwise", (btf, (6, 1, 3), f), _depthwise, _torch_depthwise, "DepthwiseConv"),
        Case("batch norm", (btf, f, f), _batch_norm, _torch_batch_norm, "BatchNorm"),
        Case("image norm", ((2, 6, 5, 4), f, f), _image_norm, _torch_image_norm, "BatchNorm"),
        Case(
            "matmul",
            ((2, 5, 3, 6), (2, 6, 3, 4)),
            matmul,
            lambda x, y: x.transpose(1, 2) @ y.permute(0, 2, 1, 3),
            "Contract",
        ),
        Case("masked softmax", ((2, 5, 5),), _softmax, _torch_softmax, "AttentionWeights"),
        Case(
            "relative attention", ((2, 5, 3, 6), (2, 5, 3, 6), (9, 3, 6)), _rel_weights, _torch_rel_weights,
            "AttentionWeights",
        ),
        Case("causal attention", ((2, 5, 6), (2, 5, 6)), _causal_weights, _torch_causal_weights, "AttentionWeights"),
        Case("fill", (btf,), fill, torch_fill, "Fill"),
        Case("glu", (btf,), glu, torch_glu, "Glu"),
        *(Case(name, (btf,), unary(name), torch_unary(name), node)
          for name, node in (("relu", "Relu"), ("silu", "Silu"), ("gelu", "Gelu"), ("sigmoid", "Sigmoid"),
                             ("square", "Square"))),
        Case("sum", (btf,), lambda x: rf.reduce_sum(of(x, B, T, F), axis=T).raw_tensor, lambda x: x.sum(1), "Sum"),
        Case("sum all", (btf,), lambda x: rf.reduce_sum(of(x, B, T, F), axis=[F, T, B]).raw_tensor,
             lambda x: x.sum(), "Sum"),
        Case("mean", (btf,), lambda x: rf.reduce_mean(of(x, B, T, F), axis=[T, F]).raw_tensor,
             lambda x: x.mean((1, 2)), "Mean"),
        Case("div", (btf, f), lambda x, y: (of(x, B, T, F) / of(y, F)).raw_tensor, lambda x, y: x / y, "Div"),
        Case("squared difference", (btf, btf),
             lambda x, y: rf.squared_difference(of(x, B, T, F), of(y, B, T, F)).raw_tensor,
             lambda x, y: (x - y).square(), "SquaredDifference"),
        Case("neg", (btf,), lambda x: (-of(x, B, T, F)).raw_tensor, lambda x: -x, "Neg"),
        Case("add", (btf, btf), lambda x, y: (of(x, B, T, F) + of(y, B, T, F)).raw_tensor, lambda x, y: x + y, "Add"),
        Case("add bias", (btf, f), lambda x, y: (of(y, F) + of(x, B, T, F)).raw_tensor, lambda x, y: x + y, "Add"),
        Case("sub", (btf, f), lambda x, y: (of(y, F) - of(x, B, T, F)).raw_tensor, lambda x, y: y - x, "Sub"),
        Case("mul", (btf, btf), lambda x, y: (of(x, B, T, F) * of(y, B, T, F)).raw_tensor, lambda x, y: x * y, "Mul"),
        Case("mul scale", (f, btf), lambda x, y: (of(x, F) * of(y, B, T, F)).raw_tensor, lambda x, y: x * y, "Mul"),
        Case("mul scalar", (btf, ()), lambda x, y: (of(x, B, T, F) * rf.convert_to_tensor(y, dims=[])).raw_tensor,
             lambda x, y: x * y, "Mul"),
    ]  # fmt: skip


CASES = _cases()
case = pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)


def operands(case: Case, dtype: str = "float64", grad: bool = True, strided: bool = False) -> list[Any]:
    import torch

    masked_time()  # lengths are read on the host: not under a transformation
    torch.manual_seed(1)
    made = []
    for shape in case.shapes:
        x = torch.randn(shape, dtype=getattr(torch, dtype))
        if strided and len(shape) > 1:
            x = x.permute(*reversed(range(len(shape)))).contiguous().permute(*reversed(range(len(shape))))
        made.append(x.requires_grad_(grad))
    return made


def nodes(result: Any) -> set[str]:
    names, pending = set(), [result.grad_fn]
    while pending:
        node = pending.pop()
        if node is not None:
            names.add(node.name())
            pending += [n for n, _ in node.next_functions]
    return names


@case
@pytest.mark.parametrize("strided", [False, True], ids=["contiguous", "strided"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_values(case: Case, dtype: str, strided: bool):
    import torch

    x = operands(case, dtype, grad=False, strided=strided)
    torch.testing.assert_close(case.ours(*x), case.theirs(*x))


@case
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("strided", [False, True], ids=["contiguous", "strided"])
def test_gradients(case: Case, dtype: str, strided: bool):
    import torch

    x = operands(case, dtype, strided=strided)
    ours, theirs = case.ours(*x), case.theirs(*x)
    if not strided:
        assert f"rf::{case.node}Backward" in nodes(ours)
    weights = [torch.randn_like(theirs)]
    if theirs.dim() > 1:
        weights.append(torch.randn_like(theirs.transpose(0, 1)).transpose(0, 1))
    for weight in weights:
        got = torch.autograd.grad(ours, x, weight, retain_graph=True)
        torch.testing.assert_close(got, torch.autograd.grad(theirs, x, weight, retain_graph=True))


@case
def test_one_gradient_at_a_time(case: Case):
    import torch

    x = operands(case)
    for i in range(len(x)):
        some = [t.detach().requires_grad_(j == i) for j, t in enumerate(x)]
        (got,) = torch.autograd.grad(case.ours(*some).sum().square(), [some[i]])
        torch.testing.assert_close(got, torch.autograd.grad(case.theirs(*some).sum().square(), [some[i]])[0])


@case
def test_gradients_of_gradients(case: Case):
    import torch

    x = operands(case)
    assert torch.autograd.gradcheck(case.ours, x)
    assert torch.autograd.gradgradcheck(case.ours, x)


@case
def test_a_graph_serves_once(case: Case):
    import torch

    x = operands(case)
    out = case.ours(*x).square().sum()
    torch.autograd.grad(out, x)
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(out, x)


@case
def test_an_operand_changed_in_place_is_found(case: Case):
    import torch

    if case.node in ("Add", "Sub", "Neg", "Fill", "Sum", "Mean") or case.name == "causal attention":
        pytest.skip("their gradients need no operand, or a copy of it")
    x = operands(case)
    out = case.ours(*x).square().sum()
    with torch.no_grad():
        x[0].add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.grad(out, x)


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")  # torch's own, in jvp
@case
def test_transformations_see_ordinary_ops(case: Case):
    import torch

    x = operands(case, "float32", grad=False)

    def loss(*args: Any) -> Any:
        return case.ours(*args).square().sum()

    got = torch.func.grad(loss, argnums=tuple(range(len(x))))(*x)
    expected = torch.func.grad(lambda *args: case.theirs(*args).square().sum(), argnums=tuple(range(len(x))))(*x)
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)
    tangents = [torch.randn_like(t) for t in x]
    _, got = torch.func.jvp(case.ours, tuple(x), tuple(tangents))
    _, expected = torch.func.jvp(case.theirs, tuple(x), tuple(tangents))
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)


@case
def test_in_inference_mode(case: Case):
    import torch

    x = operands(case, grad=False)
    with torch.inference_mode():
        torch.testing.assert_close(case.ours(*x), case.theirs(*x))


@case
def test_in_many_threads(case: Case):
    import torch

    x = operands(case)
    expected = torch.autograd.grad(case.theirs(*x).square().sum(), x)
    failures: list[BaseException] = []

    def work() -> None:
        try:
            with rf.use_backend("torch"):
                for _ in range(20):
                    got = torch.autograd.grad(case.ours(*x).square().sum(), x)
                    torch.testing.assert_close(got, expected)
        except BaseException as exc:  # handed over to the main thread
            failures.append(exc)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failures, failures[0]


def test_bfloat16_autocast():
    import torch

    x = operands(CASES[0], "float32")
    with torch.autocast("cpu", torch.bfloat16):
        out = CASES[0].ours(*x)
    assert out.dtype == torch.bfloat16
    assert "rf::LinearBackward" not in nodes(out)


def test_saved_tensor_hooks():
    import torch

    packed = []

    def pack(t: Any) -> Any:
        packed.append(t.shape)
        return t.clone()

    case = CASES[0]
    x = operands(case)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        out = case.ours(*x)
    got = torch.autograd.grad(out.square().sum(), x)
    torch.testing.assert_close(got, torch.autograd.grad(case.theirs(*x).square().sum(), x))
    assert packed


# -- dropout


def test_dropout_draws_by_torchs_generator():
    import torch

    x = of(torch.ones(2, 5, 6), B, T, F)

    def draw() -> Any:
        return rf.dropout(x, 0.5, on_forward=True).raw_tensor

    torch.manual_seed(3)
    state = torch.get_rng_state()
    first, second = draw(), draw()
    assert not torch.equal(first, second)
    torch.set_rng_state(state)
    assert torch.equal(draw(), first) and torch.equal(draw(), second)


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_dropout_drops_as_often_as_asked(p: float):
    import torch

    n = Dim(100_001, name="n")
    x = torch.ones(n.get_dim_value(), dtype=torch.float64, requires_grad=True)
    y = rf.dropout(of(x, n), p, on_forward=True).raw_tensor
    kept = y != 0
    torch.testing.assert_close(y[kept], torch.full_like(y[kept], 1 / (1 - p)))
    assert abs(1 - kept.double().mean().item() - p) < 4 * (p * (1 - p) / len(x)) ** 0.5
    # Neighbours are independent: those of even and of odd position come from two halves of one number.
    both = (kept[:-1] & kept[1:]).double().mean().item()
    assert abs(both - (1 - p) ** 2) < 6 * ((1 - p) ** 2 / len(x)) ** 0.5
    (grad,) = torch.autograd.grad(y.sum(), x)
    torch.testing.assert_close(grad, y.detach())


def test_dropout_shares_draws_over_other_dims():
    import torch

    x = torch.randn(2, 5, 6, dtype=torch.float64, requires_grad=True)
    y = rf.dropout(of(x, B, T, F), 0.5, axis=[B, F], on_forward=True).raw_tensor
    factor = y / x
    assert torch.equal(factor, factor[:, :1].expand_as(factor))
    assert set(factor[:, 0].flatten().tolist()) <= {0.0, 2.0}
    (grad,) = torch.autograd.grad(y.sum(), x)
    torch.testing.assert_close(grad, factor.detach())


@pytest.mark.parametrize("p", [0.0, 1.0])
def test_dropout_of_nothing_and_of_all(p: float):
    import torch

    x = torch.randn(2, 5, 6)
    assert torch.equal(rf.dropout(of(x, B, T, F), p, on_forward=True).raw_tensor, x * (1 - p))


# -- batch normalization


@pytest.mark.parametrize("dims", ["BFTG", "BTGF", "FBTG", "BFT", "F"])
@pytest.mark.parametrize("affine", [True, False])
def test_norm_by_given_statistics(dims: str, affine: bool):
    import torch

    from rf.ops.batch_norm import batch_norm_apply

    by_name = {"B": B, "T": T, "F": F, "G": G}
    x_dims = [by_name[d] for d in dims]
    x = torch.randn([d.get_dim_value() for d in x_dims], dtype=torch.float64)
    mean, gamma, beta = torch.randn(3, 6, dtype=torch.float64)
    variance = torch.rand(6, dtype=torch.float64)
    at = [6 if d == "F" else 1 for d in dims]
    expected = (x - mean.view(at)) / (variance.view(at) + 1e-3).sqrt()
    if affine:
        expected = expected * gamma.view(at) + beta.view(at)
    parameters = [of(t, F) for t in (gamma, beta)] if affine else [None, None]
    for strided in (x, x.transpose(0, -1).contiguous().transpose(0, -1)):
        out = batch_norm_apply(of(strided, *x_dims), of(mean, F), of(variance, F), *parameters, F, 1e-3)
        torch.testing.assert_close(out.copy_transpose(x_dims).raw_tensor, expected)


def test_statistics_have_gradients_too():
    import torch

    from rf.ops.batch_norm import batch_norm_of_batch

    x = torch.randn(2, 5, 6, dtype=torch.float64, requires_grad=True)

    def statistics(x: Any) -> tuple[Any, ...]:
        return tuple(t.raw_tensor for t in batch_norm_of_batch(of(x, B, T, F), None, None, F, True, 1e-3))

    assert torch.autograd.gradcheck(statistics, [x])
    assert torch.autograd.gradgradcheck(statistics, [x])


# -- attention


def _attend(q: Any, k: Any, v: Any, *, lengths: list[int] | None = None, causal: bool = False, query: bool = True):
    """In rf on (batch, query, heads, features), and the same in torch."""
    import torch

    from rf.ops.attention import dot_attention

    batch, num_keys, heads, features = k.shape
    b, h, d = Dim(batch, name="b"), Dim(heads, name="h"), Dim(features, name="d")
    sizes = None if lengths is None else rf.convert_to_tensor(np.array(lengths, "int32"), dims=[b])
    keys = Dim(num_keys if sizes is None else sizes, name="keys")
    queries = keys if causal else Dim(q.shape[1], name="queries")
    merged = h * d
    q_dims = (b, queries, h, d) if query else (b, h, d)
    out = dot_attention(
        of(q, *q_dims),
        of(k, b, keys, h, d),
        of(v, b, keys, h, d),
        d,
        keys,
        queries if causal else None,
        0.3,
        h,
        d,
        merged,
    )
    ours = out.copy_transpose([b, queries, merged] if query else [b, merged]).raw_tensor
    scores = torch.einsum("bqhd,bkhd->bhqk" if query else "bhd,bkhd->bhk", q, k) * 0.3
    visible = torch.ones(batch, 1, 1, num_keys, dtype=torch.bool)
    if lengths is not None:
        visible = visible & (torch.arange(num_keys) < torch.tensor(lengths)[:, None, None, None])
    if causal:
        visible = visible & torch.ones(num_keys, num_keys, dtype=torch.bool).tril()
    visible = visible if query else visible[:, :, 0]
    weights = torch.where(visible, scores.masked_fill(~visible, -1e30).softmax(-1), 0)
    theirs = torch.einsum("bhqk,bkhd->bqhd" if query else "bhk,bkhd->bhd", weights, v)
    return ours, theirs.flatten(-2)


@pytest.mark.parametrize("size", [(2, 5, 3, 4), (3, 70, 2, 16)], ids=["small", "large"])
@pytest.mark.parametrize("how", ["plain", "lengths", "causal", "causal lengths", "one query"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_attention(size: tuple[int, ...], how: str, dtype: str):
    import torch

    torch.manual_seed(1)
    query = how != "one query"
    lengths = [size[1], 0, size[1] // 2][: size[0]] if how in ("lengths", "causal lengths", "one query") else None
    k, v = (torch.randn(size, dtype=getattr(torch, dtype), requires_grad=True) for _ in range(2))
    q_size = size if query else (size[0], size[2], size[3])
    q = torch.randn(q_size, dtype=getattr(torch, dtype), requires_grad=True)
    if not query and size[1] > 10:
        lengths = [700, 0, 350]
        k, v = (torch.randn(3, 700, 2, 16, dtype=getattr(torch, dtype), requires_grad=True) for _ in range(2))
    ours, theirs = _attend(q, k, v, lengths=lengths, causal="causal" in how, query=query)
    names = nodes(ours)
    assert "rf::AttentionBackward" in names if size[1] < 10 else "rf::FlashAttentionBackward" in names
    valid = torch.ones_like(theirs, dtype=torch.bool)
    if how == "causal lengths":  # what comes out in the padding is of no interest
        valid = (torch.arange(size[1]) < torch.tensor(lengths)[:, None])[..., None].expand_as(theirs)
    torch.testing.assert_close(ours[valid], theirs[valid], rtol=1e-4, atol=1e-5)
    weight = torch.where(valid, torch.randn_like(theirs), 0)
    got = torch.autograd.grad(ours, (q, k, v), weight)
    torch.testing.assert_close(got, torch.autograd.grad(theirs, (q, k, v), weight), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("keys", [5, 2100], ids=["small", "large"])
def test_attention_gradients_of_gradients(keys: int):
    import torch

    q, k, v = (torch.randn(2, n, 2, 4, dtype=torch.float64, requires_grad=True) for n in (3, keys, keys))
    ours, theirs = _attend(q, k, v, lengths=[keys, 1])
    weight = torch.randn_like(theirs, requires_grad=True)
    results = []
    for out in (ours, theirs):
        first = torch.autograd.grad(out, (q, k, v), weight, create_graph=True)
        results.append(torch.autograd.grad(sum(g.square().sum() for g in first), (q, k, v, weight)))
    torch.testing.assert_close(*results)


@pytest.mark.parametrize("name", ["gelu", "silu", "sigmoid"])
def test_far_from_zero(name: str):
    """Small results are as exact as large ones, and nothing overflows."""
    import torch

    n = Dim(2001, name="n")
    x = torch.linspace(-12, 12, 2001)

    def reference(x: Any) -> Any:
        if name == "gelu":  # torch's own takes 1 + erf, which loses what is small
            return (x.double() * torch.erfc(-x.double() / 2**0.5) / 2).to(x.dtype)
        return (getattr(torch.nn.functional, name, None) or getattr(torch, name))(x)

    got = getattr(rf, name)(of(x, n)).raw_tensor.double()
    torch.testing.assert_close(got, reference(x.double()), rtol=1e-5, atol=1e-30)
    huge = torch.tensor([-torch.inf, -1e30, -200.0, 200.0, 1e30, torch.inf, torch.nan])
    m = Dim(7, name="m")
    got = getattr(rf, name)(of(huge, m)).raw_tensor
    torch.testing.assert_close(got, reference(huge), rtol=1e-6, atol=1e-30, equal_nan=True)
