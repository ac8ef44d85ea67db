"""The LSTM of the native torch path against the kernel in Python, which calls torch.lstm: values, gradients, and what
it must leave to others."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import rf
from rf import _core
from rf.backend import get_backend
from rf.ops.rec import lstm, lstm_step

pytestmark = [pytest.mark.needs("torch"), pytest.mark.needs("native core"), pytest.mark.needs("compiler")]
if not _core.NATIVE:
    pytestmark.append(pytest.mark.skip(reason="this run is on the Python core"))

LENGTHS = [None, (4, 0, 2), (1, 4, 3), (4, 4, 4)]
SIZES = {"tiny": (3, 2), "odd": (5, 37), "large": (70, 130)}
"""in, out. The tiny ones and the odd ones are multiplied in rows, the large ones by BLAS."""


def arrays(size: str, batch: int, frames: int, dtype: str = "float64", **change: tuple[int, ...]) -> list[Any]:
    """x {T, B, in}, h, c, ff_weight, rec_weight, bias; with gradients."""
    import torch

    num_in, num_out = SIZES[size]
    shapes: dict[str, tuple[int, ...]] = {"x": (frames, batch, num_in), "h": (batch, num_out), "c": (batch, num_out)}
    shapes |= {"ff": (4 * num_out, num_in), "rec": (4 * num_out, num_out), "bias": (4 * num_out,)} | change
    generator = torch.Generator().manual_seed(1)
    scale = 1 / max(num_out, 4) ** 0.5
    return [
        (
            torch.randn(shape, generator=generator, dtype=getattr(torch, dtype)) * (scale if n > 2 else 1)
        ).requires_grad_()
        for n, shape in enumerate(shapes.values())
    ]


class Run:
    """`lstm` of rf, or its step, on raw arrays."""

    def __init__(self, lengths: Sequence[int] | None, batch: int, frames: int, size: str, time_first: bool = False):
        self.b, self.time_first = rf.Dim(batch, name="B"), time_first
        self.f, self.g = (rf.Dim(n, name=name) for n, name in zip(SIZES[size], "FG"))
        if lengths is None:
            self.t = rf.Dim(frames, name="T")
        else:
            self.t = rf.Dim(None, name="T").fill(np.array(lengths, dtype=np.int32), [self.b])

    def __call__(self, x: Any, h: Any, c: Any, ff: Any, rec: Any, bias: Any = None) -> tuple[Any, ...]:
        """x {T, B, in} -> y {T, B, out}, h, c; the op sees {B, T, in} unless `time_first`."""
        dims = [self.t, self.b] if self.time_first else [self.b, self.t]
        with rf.use_backend("torch"):
            source = rf.convert_to_tensor(x if self.time_first else x.transpose(0, 1), dims=[*dims, self.f])
            options: dict[str, Any] = {"spatial_dim": self.t, "in_dim": self.f, "out_dim": self.g}
            y, h, c = lstm(source, *self._rest(h, c, ff, rec, bias), **options)
            assert y.dims == (*dims, self.g)
            return y.copy_transpose([self.t, self.b, self.g]).raw_tensor, h.raw_tensor, c.raw_tensor

    def step(self, x: Any, h: Any, c: Any, ff: Any, rec: Any, bias: Any = None) -> tuple[Any, ...]:
        with rf.use_backend("torch"):
            frame = rf.convert_to_tensor(x, dims=[self.b, self.f])
            h, c = lstm_step(frame, *self._rest(h, c, ff, rec, bias), self.f, self.g)
            return h.raw_tensor, c.raw_tensor

    def _rest(self, h: Any, c: Any, ff: Any, rec: Any, bias: Any) -> list[Any]:
        gates = 4 * self.g
        dims = [[self.b, self.g]] * 2 + [[gates, self.f], [gates, self.g], [gates]]
        raws = (h, c, ff, rec, bias)
        return [None if r is None else rf.convert_to_tensor(r, dims=d) for r, d in zip(raws, dims)]


def in_python(lengths: Sequence[int] | None) -> Any:
    """The kernel in Python on raw arrays."""
    import torch

    n = None if lengths is None else torch.tensor(lengths, dtype=torch.int32)
    return lambda *raws: get_backend("torch").lstm(*raws, *[None] * (6 - len(raws)), n, -3)


def gradients(outputs: Sequence[Any], inputs: Sequence[Any]) -> list[Any]:
    import torch

    generator = torch.Generator().manual_seed(2)
    loss = sum((y * torch.randn(y.shape, generator=generator, dtype=y.dtype)).sum() for y in outputs)
    return list(torch.autograd.grad(loss, inputs))  # type: ignore[arg-type]


def test_it_is_one_node_of_the_graph() -> None:
    x, *rest = arrays("odd", 3, 4)
    y, h, c = Run((4, 0, 2), 3, 4, "odd", time_first=True)(x, *rest)
    assert "LstmSequence" in y.grad_fn.name() and y.grad_fn is h.grad_fn is c.grad_fn
    h, c = Run(None, 3, 1, "odd").step(x[0], *rest)
    assert "LstmStep" in h.grad_fn.name() and h.grad_fn is c.grad_fn


@pytest.mark.parametrize("time_first", [False, True])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
@pytest.mark.parametrize("size", SIZES)
def test_sequence_is_the_kernel_in_python(
    size: str, lengths: Sequence[int] | None, bias: bool, time_first: bool
) -> None:
    import torch

    operands = arrays(size, 3, 4)[: None if bias else -1]
    ours = Run(lengths, 3, 4, size, time_first)(*operands)
    theirs = in_python(lengths)(*operands)
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(gradients(ours, operands), gradients(theirs, operands))
    with torch.no_grad():
        torch.testing.assert_close(Run(lengths, 3, 4, size, time_first)(*operands), theirs)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("batch", [1, 3, 80])
@pytest.mark.parametrize("size", SIZES)
def test_step_is_the_kernel_in_python(size: str, batch: int, bias: bool) -> None:
    import torch

    x, *rest = arrays(size, batch, 1)[: None if bias else -1]
    frame = x[0].detach().requires_grad_()
    ours = Run(None, batch, 1, size).step(frame, *rest)
    theirs = get_backend("torch").lstm_step(frame, *rest, *[None] * (not bias))
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(gradients(ours, [frame, *rest]), gradients(theirs, [frame, *rest]))


@pytest.mark.parametrize("size", SIZES)
def test_single_precision(size: str) -> None:
    import torch

    operands = arrays(size, 3, 4, "float32")
    ours, theirs = Run((4, 1, 3), 3, 4, size)(*operands), in_python((4, 1, 3))(*operands)
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(gradients(ours, operands), gradients(theirs, operands), rtol=1e-4, atol=1e-5)


def test_many_rows() -> None:
    """More rows than are turned for BLAS."""
    import torch

    operands = arrays("odd", 90, 2)
    ours, theirs = Run(None, 90, 2, "odd")(*operands), in_python(None)(*operands)
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(gradients(ours, operands), gradients(theirs, operands))


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_first_and_second_gradients_are_differences(lengths: Sequence[int] | None) -> None:
    import torch

    operands = arrays("tiny", 3, 4)
    run = Run(lengths, 3, 4, "tiny")
    assert torch.autograd.gradcheck(run, operands)
    assert torch.autograd.gradgradcheck(run, operands)


def test_first_and_second_gradients_of_the_step_are_differences() -> None:
    import torch

    x, *rest = arrays("tiny", 3, 1)
    operands = [x[0].detach().requires_grad_(), *rest]
    run = Run(None, 3, 1, "tiny")
    assert torch.autograd.gradcheck(run.step, operands)
    assert torch.autograd.gradgradcheck(run.step, operands)


def test_second_gradient_where_an_operand_depends_on_another() -> None:
    import torch

    x, h, c, *weights = arrays("tiny", 3, 4)
    run = Run((4, 0, 2), 3, 4, "tiny")

    def function(x: Any) -> Any:
        return run(torch.tanh(x), h + x.sum() * 0.1, (x[0, :, :2] * c), *weights)

    assert torch.autograd.gradgradcheck(function, [x])


def test_what_is_not_wanted_has_no_gradient() -> None:
    import torch

    operands = arrays("odd", 3, 4)
    full = gradients(Run((4, 0, 2), 3, 4, "odd")(*operands), operands)
    for i, operand in enumerate(operands):
        others = [operand if o is operand else o.detach() for o in operands]
        torch.testing.assert_close(gradients(Run((4, 0, 2), 3, 4, "odd")(*others), [operand]), [full[i]])


@pytest.mark.parametrize("which", [0, 1, 2])
def test_one_result_alone(which: int) -> None:
    import torch

    operands = arrays("odd", 3, 4)
    ours, theirs = Run((4, 0, 2), 3, 4, "odd")(*operands)[which], in_python((4, 0, 2))(*operands)[which]
    torch.testing.assert_close(gradients([ours], operands), gradients([theirs], operands))


@pytest.mark.parametrize("which", [0, 1])
def test_one_result_of_the_step_alone(which: int) -> None:
    import torch

    x, *rest = arrays("odd", 3, 1)
    operands = [x[0].detach().requires_grad_(), *rest]
    ours = Run(None, 3, 1, "odd").step(*operands)[which]
    theirs = get_backend("torch").lstm_step(*operands)[which]
    torch.testing.assert_close(gradients([ours], operands), gradients([theirs], operands))


def test_strided_operands() -> None:
    import torch

    operands = arrays("odd", 3, 4)

    def strided(x: Any) -> Any:
        out = torch.empty(*x.shape[:-1], 2 * x.shape[-1], dtype=x.dtype)[..., ::2]
        return out.copy_(x.detach()).requires_grad_()

    views = [strided(x) for x in operands]
    views[3] = operands[3].detach().t().contiguous().t().requires_grad_()
    assert not any(v.is_contiguous() for v in views)
    ours, theirs = (Run((4, 0, 2), 3, 4, "odd")(*o) for o in (views, operands))
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(gradients(ours, views), gradients(theirs, operands))
    frames = [views[0][1], operands[0][1]]
    ours, theirs = (Run(None, 3, 1, "odd").step(f, *o[1:]) for f, o in zip(frames, (views, operands)))
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(gradients(ours, views), gradients(theirs, operands))
    ours, theirs = Run((4, 0, 2), 3, 4, "odd")(*operands), in_python((4, 0, 2))(*operands)
    grads = [torch.autograd.grad(sum(y.sum() for y in o), operands) for o in (ours, theirs)]  # expanded ones
    torch.testing.assert_close(*grads)


def test_mixed_dtypes() -> None:
    import torch

    x, h, *rest = arrays("odd", 3, 4)
    single = Run((4, 0, 2), 3, 4, "odd")(x.float(), h.float(), *rest)
    assert all(y.dtype == torch.float64 for y in single)
    torch.testing.assert_close(single, Run((4, 0, 2), 3, 4, "odd")(x, h, *rest), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("grad", [True, False])
def test_nan_of_an_empty_sequence_reaches_nothing(grad: bool) -> None:
    import torch

    x, h, c, *weights = arrays("odd", 3, 4)
    with torch.no_grad():
        x[:, 0] = torch.nan
        x[2:, 2] = torch.nan
        h[0] = c[0] = torch.nan
    with torch.set_grad_enabled(grad):
        y, new_h, new_c = Run((0, 4, 2), 3, 4, "odd")(x, h, c, *weights)
    assert (y[:, 0] == 0).all() and (y[2:, 2] == 0).all() and not y.isnan().any()
    assert new_h[0].isnan().all() and not new_h[1:].isnan().any() and not new_c[1:].isnan().any()
    if grad:
        loss = y.sum() + new_h[1:].sum() + new_c[1:].sum()
        for g in torch.autograd.grad(loss, [x, h, c, *weights]):
            assert not g.isnan().any()


@pytest.mark.parametrize(("batch", "frames"), [(0, 4), (3, 0)])
def test_nothing_to_do(batch: int, frames: int) -> None:
    operands = arrays("odd", batch, frames)
    y, h, c = Run(None, batch, frames, "odd")(*operands)
    assert y.shape == (frames, batch, 37) and h.shape == c.shape == (batch, 37)
    assert (h == operands[1]).all() and (c == operands[2]).all()
    assert y.requires_grad
    if batch == 0:
        h, c = Run(None, 0, 1, "odd").step(operands[0][0], *operands[1:])
        assert h.shape == c.shape == (0, 37)


def test_errors_of_autograd_stay() -> None:
    """A weight that has been changed since; a graph that has been used up."""
    import torch

    operands = arrays("odd", 3, 4)
    y, *_ = Run((4, 0, 2), 3, 4, "odd")(*operands)
    first = torch.autograd.grad(y.sum(), operands, retain_graph=True)
    torch.testing.assert_close(torch.autograd.grad(y.sum(), operands), first)
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(y.sum(), operands)
    y, *_ = Run((4, 0, 2), 3, 4, "odd")(*operands)
    with torch.no_grad():
        operands[4] += 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.grad(y.sum(), operands)


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")  # torch's own, of jvp
def test_transformations_see_usual_ops() -> None:
    """Batched gradients, torch.func, gradients in forward direction."""
    import torch

    operands = arrays("tiny", 3, 1)
    frame, rest = operands[0][0].detach().requires_grad_(), operands[1:]
    run, whole = Run(None, 3, 1, "tiny"), Run((4, 0, 2), 3, 4, "tiny")
    long = arrays("tiny", 3, 4)
    for outputs, inputs in ((run.step(frame, *rest)[0], [frame, *rest]), (whole(*long)[0], long)):
        seeds = torch.randn(2, *outputs.shape, dtype=outputs.dtype)
        batched = torch.autograd.grad(outputs, inputs, seeds, is_grads_batched=True, retain_graph=True)
        for i, seed in enumerate(seeds):
            single = torch.autograd.grad(outputs, inputs, seed, retain_graph=True)
            torch.testing.assert_close([b[i] for b in batched], list(single))

    def loss(weight: Any) -> Any:
        return run.step(frame, *rest[:2], weight, *rest[3:])[0].sum()

    expected = torch.autograd.grad(loss(rest[2]), rest[2])[0]
    torch.testing.assert_close(torch.func.grad(loss)(rest[2]), expected)
    tangent = torch.randn_like(rest[2])
    _, slope = torch.func.jvp(loss, (rest[2].detach(),), (tangent,))
    torch.testing.assert_close(slope, (expected * tangent).sum())


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_other_dtypes_and_autocast_go_to_python(dtype: str) -> None:
    import torch

    operands = [o.detach() for o in arrays("odd", 3, 4, dtype)]
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype == "float32"), torch.no_grad():
        ours, theirs = Run((4, 0, 2), 3, 4, "odd")(*operands), in_python((4, 0, 2))(*operands)
        assert [y.dtype for y in ours] == [y.dtype for y in theirs]
        torch.testing.assert_close(ours, theirs)
        step = Run(None, 3, 1, "odd").step(operands[0][0], *operands[1:])
        torch.testing.assert_close(step, get_backend("torch").lstm_step(operands[0][0], *operands[1:]))


def test_threads() -> None:
    import torch

    operands = arrays("large", 3, 40)
    expected = gradients(Run(None, 3, 40, "large")(*operands), operands)
    found: dict[int, list[Any]] = {}

    def work(i: int) -> None:
        found[i] = gradients(Run(None, 3, 40, "large")(*operands), operands)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == [0, 1, 2, 3]
    for grads in found.values():
        torch.testing.assert_close(grads, expected)


def test_extreme_gates() -> None:
    """Saturation, infinity and NaN, as torch has them."""
    import torch

    values = [0.0, 1e-9, -1e-9, 0.3, -0.3, 8.0, -8.0, 30.0, -30.0, 90.0, -90.0, 1e4, -1e4, torch.inf, -torch.inf]
    for dtype in (torch.float32, torch.float64):
        gates = torch.tensor([[v] * 4 for v in values], dtype=dtype)
        zero = torch.zeros(len(values), 1, dtype=dtype)
        run = Run(None, len(values), 1, "tiny")
        run.f, run.g = rf.Dim(1, name="F"), rf.Dim(1, name="G")
        weights = torch.zeros(4, 1, dtype=dtype), torch.zeros(4, 1, dtype=dtype)
        h, c = (torch.cat(parts) for parts in zip(*(_one_row(g, zero[:1], weights) for g in gates)))
        i, f, g, o = gates.unbind(1)
        expected = torch.sigmoid(f) * zero[:, 0] + torch.sigmoid(i) * torch.tanh(g)
        tolerance = {"rtol": 4 * torch.finfo(dtype).eps, "atol": 1e-37}
        torch.testing.assert_close(c[:, 0], expected, **tolerance)
        torch.testing.assert_close(h[:, 0], torch.sigmoid(o) * torch.tanh(expected), **tolerance)
    nan = torch.tensor([torch.nan, 0.0, 0.0, 0.0])
    h, c = _one_row(nan, torch.zeros(1, 1), (torch.zeros(4, 1), torch.zeros(4, 1)))
    assert h.isnan().all() and c.isnan().all()


def _one_row(gates: Any, zero: Any, weights: tuple[Any, Any]) -> tuple[Any, ...]:
    """A step whose gates are the bias."""
    run = Run(None, 1, 1, "tiny")
    run.f, run.g = rf.Dim(1, name="F"), rf.Dim(1, name="G")
    return run.step(zero, zero, zero, *weights, gates)
