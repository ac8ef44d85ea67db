"""The run context: stages, train flags, losses, outputs, threads."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import rf


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    rf.reset_run_ctx()
    with rf.use_backend("numpy"):
        yield
    rf.reset_run_ctx()


def dims() -> tuple[rf.Dim, rf.Dim]:
    b = rf.Dim(2, name="B")
    return b, rf.Dim(None, name="T").fill([3, 1], [b])


def loss_with_padding() -> rf.Tensor:
    """Valid: 1, 2, 3 and 4."""
    return rf.convert_to_tensor(np.array([[1, 2, 3], [4, np.nan, np.inf]], dtype=np.float32), dims=dims())


def test_stages() -> None:
    assert rf.get_run_ctx().stage == "init" and rf.get_run_ctx() is rf.get_run_ctx()
    assert rf.get_run_ctx().train_flag is False
    rf.init_train_step_run_ctx(step=3, epoch=2)
    ctx = rf.get_run_ctx()
    assert (ctx.stage, ctx.train_flag, ctx.step, ctx.epoch) == ("train_step", True, 3, 2)
    assert rf.get_run_ctx_step().item() == 3 and ctx.get_epoch_tensor().item() == 2
    rf.init_forward_step_run_ctx(step=4)
    assert rf.get_run_ctx().stage == "forward_step" and rf.get_run_ctx().train_flag is False
    with pytest.raises(rf.RfError, match="nonsense"):
        rf.RunCtx(stage="nonsense")


def test_train_flags() -> None:
    rf.init_train_step_run_ctx()
    ctx = rf.get_run_ctx()

    def other() -> None: ...

    def flags() -> tuple[bool, bool, Any]:
        return ctx.is_train_flag_enabled(func=rf.dropout), ctx.is_train_flag_enabled(func=other), ctx.train_flag

    assert flags() == (True, True, True)
    with ctx.train_flag_ctx(False, func=rf.dropout):
        assert flags() == (False, True, True)
        with ctx.train_flag_ctx(False):
            assert flags() == (False, False, False)
            with ctx.train_flag_ctx(True, func=[rf.dropout, other]):
                assert flags() == (True, True, False)
        assert flags() == (False, True, True)
    assert flags() == (True, True, True)
    rf.init_train_step_run_ctx(train_flag=rf.convert_to_tensor(False))
    assert rf.get_run_ctx().is_train_flag_enabled(func=rf.dropout) is False


def test_losses() -> None:
    rf.init_train_step_run_ctx()
    ctx = rf.get_run_ctx()
    x = loss_with_padding()
    x.mark_as_loss("sum", scale=0.5)
    x.mark_as_loss("mean", use_normalized_loss=True)
    x.mark_as_loss("error", as_error=True)
    x.mark_as_loss("off", scale=0.0)
    factor = rf.convert_to_tensor(np.array([3, 2], dtype=np.int32), dims=x.dims[:1])
    x.mark_as_loss("custom", use_normalized_loss=True, custom_inv_norm_factor=factor)
    loss = ctx.losses["sum"]
    assert loss.get_summed_loss().item() == 10 and loss.get_mean_loss().item() == 2.5
    assert int(loss.get_inv_norm_factor()) == 4 and loss.get_scaled_reduced_loss().item() == 5
    custom = ctx.losses["custom"]
    assert custom.get_mean_loss().item() == 2 and int(custom.get_inv_norm_factor()) == 5
    total = ctx.total_loss()
    assert isinstance(total, rf.Tensor) and total.item() == 0.5 * 10 + 2.5 + 2
    errors = rf.convert_to_tensor(np.array([True, False]), dims=[rf.Dim(2)])
    errors.mark_as_loss("wrong", as_error=True)
    assert ctx.losses["wrong"].get_summed_loss().item() == 1 and ctx.losses["wrong"].loss.dtype == "float32"


def test_total_loss_of_nothing() -> None:
    rf.init_train_step_run_ctx()
    with pytest.raises(rf.RfError, match="no loss"):
        rf.get_run_ctx().total_loss()
    rf.get_run_ctx().mark_as_loss(np.float32(3), "scalar", scale=0.0)
    assert rf.get_run_ctx().total_loss() == 0.0


def test_raw_arrays_as_losses() -> None:
    rf.init_train_step_run_ctx()
    ctx = rf.get_run_ctx()
    rf.batch_dim.reset_eager()
    ctx.mark_as_loss(np.array([1.0, 2.0], dtype=np.float32), "batch")
    assert ctx.losses["batch"].loss.dims == (rf.batch_dim,)
    with pytest.raises(rf.DimError, match="needs dims"):
        ctx.mark_as_loss(np.zeros((2, 2), dtype=np.float32), "two")
    rf.batch_dim.reset_eager()


def test_loss_errors() -> None:
    x = loss_with_padding()
    with pytest.raises(rf.RfError, match="'init'"):
        x.mark_as_loss("a")
    rf.init_train_step_run_ctx()
    x.mark_as_loss("a")
    with pytest.raises(rf.RfError, match="already"):
        x.mark_as_loss("a")
    with pytest.raises(rf.RfError, match="forward step"):
        x.mark_as_output("a")


@pytest.mark.needs("torch")
def test_gradient_of_the_total_loss() -> None:
    import torch

    rf.init_train_step_run_ctx()
    with rf.use_backend("torch"):
        raw = torch.tensor([[1.0, 2.0, 3.0], [4.0, np.nan, np.nan]], requires_grad=True)
        rf.Tensor("x", dims(), raw_tensor=raw).mark_as_loss("x", use_normalized_loss=True, scale=2.0)
        total = rf.get_run_ctx().total_loss()
        assert isinstance(total, rf.Tensor)
        total.raw_tensor.backward()
    assert raw.grad is not None
    np.testing.assert_allclose(raw.grad, [[0.5, 0.5, 0.5], [0.5, 0, 0]])


def test_order_of_outputs() -> None:
    rf.init_forward_step_run_ctx()
    b, t = dims()
    b2 = rf.Dim(None, name="B2").fill(2)
    t2 = rf.Dim(None, name="T2").fill([1, 2], [b2])
    f, g = rf.Dim(2, name="F"), rf.Dim(2, name="G")
    rf.zeros([f, t]).mark_as_output("tf")
    rf.zeros([f, t2, b2]).mark_as_output("btf")
    rf.zeros([f, g, t]).mark_as_output("given", shape=[t, g, f])
    rf.zeros([f, b, t]).mark_as_default_output(shape=[b, t, f])
    outputs = rf.get_run_ctx().outputs
    assert [outputs[n].dims for n in ("tf", "btf", "given")] == [(t, f), (b2, t2, f), (t, g, f)]
    assert outputs["output"].dims == (b, t, f) and outputs["output"].name == "output"
    with pytest.raises(rf.DimError, match="ambiguous"):
        rf.zeros([f, g, t]).mark_as_output("unclear")
    with pytest.raises(rf.DimError, match="does not have the dims"):
        rf.zeros([f, g]).mark_as_output("other", shape=[f, t])
    with pytest.raises(rf.RfError, match="already"):
        rf.zeros([f]).mark_as_output("tf")


def test_batch_dim_comes_first() -> None:
    rf.init_forward_step_run_ctx()
    rf.batch_dim.reset_eager()
    rf.batch_dim.fill(2)
    t = rf.Dim(None, name="T").fill([1, 2], [rf.batch_dim])
    f = rf.Dim(3, name="F")
    rf.zeros([f, t, rf.batch_dim]).mark_as_output("x")
    assert rf.get_run_ctx().outputs["x"].dims == (rf.batch_dim, t, f)
    rf.batch_dim.reset_eager()


def test_expected_outputs() -> None:
    b, t = dims()
    expected = {"x": rf.Tensor("x", [b, t], "float32"), "y": rf.Tensor("y", [b], "int32")}
    rf.init_forward_step_run_ctx(expected_outputs=rf.TensorDict(expected))
    ctx = rf.get_run_ctx()
    ctx.mark_as_output(rf.zeros([t, b]), "x")
    assert ctx.outputs["x"].dims == (b, t)
    with pytest.raises(rf.RfError, match="'y'"):
        ctx.check_outputs_complete()
    with pytest.raises(rf.RfError, match="not expected"):
        ctx.mark_as_output(rf.zeros([b]), "z")
    with pytest.raises(rf.RfError, match="does not match"):
        ctx.mark_as_output(rf.zeros([b]), "y")
    ctx.mark_as_output(np.zeros(2, dtype=np.int32), "y")
    ctx.check_outputs_complete()


def test_threads_see_the_context_of_the_main_thread_and_may_have_their_own() -> None:
    rf.init_train_step_run_ctx(step=1)
    seen: list[Any] = []

    def work() -> None:
        seen.append(rf.get_run_ctx().step)
        rf.init_train_step_run_ctx(step=2)
        seen.append(rf.get_run_ctx().step)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [1, 2] and rf.get_run_ctx().step == 1


def test_train_flag_ctx_stays_in_its_thread() -> None:
    rf.init_train_step_run_ctx()
    ctx = rf.get_run_ctx()
    seen: list[Any] = []
    with ctx.train_flag_ctx(False):
        thread = threading.Thread(target=lambda: seen.append(rf.get_run_ctx().train_flag))
        thread.start()
        thread.join()
        assert ctx.train_flag is False
    assert seen == [True]


def test_contextvars_context_has_its_own() -> None:
    rf.init_train_step_run_ctx(step=1)
    context = contextvars.copy_context()
    context.run(lambda: rf.init_train_step_run_ctx(step=5))
    assert context.run(lambda: rf.get_run_ctx().step) == 5
