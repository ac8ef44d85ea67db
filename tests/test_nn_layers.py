"""Linear, Embedding, normalization, convolution and recurrence, against torch and against their formulas."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from nn_helpers import batch_dims, check_sequence_module, gradients, padded, set_parameters, tensor

import rf

pytestmark = pytest.mark.needs("torch")

LENGTHS = (5, 2, 0, 1)
OUT = rf.Dim(3, name="out")


def to_torch(p: rf.Tensor | None) -> torch.Tensor:
    assert p is not None
    return p.raw_tensor.detach()


# -- linear


def test_linear_against_torch() -> None:
    out = check_sequence_module(lambda d: rf.Linear(d, OUT), lambda m, x, t: m(x), nan_gradients=False)
    with rf.use_backend("torch"):
        in_dim = rf.Dim(6)
        linear = rf.Linear(in_dim, OUT)
        set_parameters(linear)
        want = torch.nn.functional.linear(
            torch.tensor(padded(LENGTHS, 6, padding=0)), to_torch(linear.weight).T, to_torch(linear.bias)
        )
        np.testing.assert_allclose(out[0], want[0].numpy(), rtol=1e-5, atol=1e-6)
        assert linear(rf.zeros([in_dim])).feature_dim is OUT
        with pytest.raises(rf.DimError, match="has no dim"):
            linear(rf.zeros([OUT]))


@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_square_linear(backend: str) -> None:
    with rf.use_backend(backend):
        dim, batch = rf.Dim(4, name="d"), rf.Dim(2, name="B")
        linear = rf.Linear(dim, dim)
        set_parameters(linear)
        x = np.random.randn(2, 4).astype("float32")
        out = linear(tensor(x, [batch, dim]))
        assert out.dims == (batch, dim)
        np.testing.assert_allclose(out.numpy(), x @ linear.weight.numpy() + linear.bias.numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("backend", ["numpy", "torch", "meta"])
def test_embedding(backend: str) -> None:
    with rf.use_backend(backend):
        vocab = rf.Dim(7, name="vocab")
        batch, time = batch_dims([3, 1])
        embedding = rf.Embedding(vocab, OUT)
        labels = np.array([[6, 0, 2], [1, -1, 99]], dtype="int32")  # anything may lie in the padding
        out = embedding(tensor(labels, [batch, time], sparse_dim=vocab))
        assert out.dims_set == {batch, time, OUT} and out.feature_dim is OUT and out.sparse_dim is None
        with pytest.raises(rf.DimError, match="other sparse dim|another sparse dim"):
            embedding(tensor(labels, [batch, time], sparse_dim=OUT))
        if backend == "meta":
            return
        out = out.copy_transpose([batch, time, OUT]).numpy()
        np.testing.assert_array_equal(out[0], embedding.weight.numpy()[labels[0]])
        np.testing.assert_array_equal(out[1, 0], embedding.weight.numpy()[1])
        norms = np.linalg.norm(rf.Embedding(vocab, rf.Dim(400)).weight.numpy(), axis=1)
        assert np.all((norms > 0.7) & (norms < 1.1))


# -- normalization


def test_layer_norm_against_torch() -> None:
    out = check_sequence_module(lambda d: rf.LayerNorm(d, eps=1e-5), lambda m, x, t: m(x), nan_gradients=False)
    with rf.use_backend("torch"):
        norm = rf.LayerNorm(rf.Dim(6))
        set_parameters(norm)
        want = torch.nn.functional.layer_norm(
            torch.tensor(padded(LENGTHS, 6, padding=0)), (6,), to_torch(norm.scale), to_torch(norm.bias), 1e-5
        )
        np.testing.assert_allclose(out[0], want[0].numpy(), rtol=1e-5, atol=1e-5)


def test_norms_over_several_dims_and_without_bias() -> None:
    with rf.use_backend("torch"):
        a, b, c = (rf.Dim(n, name=f"d{n}") for n in (2, 3, 4))
        x = np.random.randn(3, 2, 4).astype("float32")
        norm = rf.LayerNorm([a, c], with_bias=False)
        set_parameters(norm)
        out = norm(tensor(x, [b, a, c])).copy_transpose([b, a, c]).numpy()
        want = torch.nn.functional.layer_norm(torch.tensor(x), (2, 4), to_torch(norm.scale), None, 1e-6)
        np.testing.assert_allclose(out, want.numpy(), rtol=1e-5, atol=1e-5)
        rms = rf.RMSNorm(c, with_bias=True)
        set_parameters(rms)
        out = rms(tensor(x, [b, a, c])).numpy()
        want = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * rms.scale.numpy() + rms.bias.numpy()
        np.testing.assert_allclose(out, want, rtol=1e-5, atol=1e-5)
        assert rf.RMSNorm(c).bias is None
        with pytest.raises(rf.DimError, match="has no dim"):
            rms(rf.zeros([a]))


def train_ctx() -> None:
    rf.init_train_step_run_ctx(train_flag=True)


@pytest.fixture(autouse=True)
def _reset():
    rf.reset_run_ctx()
    yield
    rf.reset_run_ctx()


def test_batch_norm_outside_training() -> None:
    out = check_sequence_module(lambda d: rf.BatchNorm(d), lambda m, x, t: m(x), nan_gradients=False)
    with rf.use_backend("torch"):
        norm = rf.BatchNorm(rf.Dim(6))
        set_parameters(norm)
        want = torch.nn.functional.batch_norm(
            torch.tensor(padded(LENGTHS, 6, padding=0)[0]),
            to_torch(norm.running_mean),
            to_torch(norm.running_variance),
            to_torch(norm.gamma),
            to_torch(norm.beta),
            eps=1e-3,
        )
        np.testing.assert_allclose(out[0], want.numpy(), rtol=1e-5, atol=1e-5)


def test_batch_norm_in_training_is_that_of_the_valid_frames() -> None:
    train_ctx()
    out = check_sequence_module(lambda d: rf.BatchNorm(d), lambda m, x, t: m(x), check_alone=False)
    frames = np.concatenate([padded(LENGTHS, 6, padding=0)[i, :n] for i, n in enumerate(LENGTHS)])
    for backend in ("numpy", "torch"):
        with rf.use_backend(backend):
            in_dim = rf.Dim(6, name="in")
            norm = rf.BatchNorm(in_dim)
            set_parameters(norm)
            mean, variance = norm.running_mean.numpy().copy(), norm.running_variance.numpy().copy()
            gamma, beta = (torch.tensor(p.numpy()) for p in (norm.gamma, norm.beta))
            want = torch.nn.functional.batch_norm(
                torch.tensor(frames), None, None, gamma, beta, training=True, eps=1e-3
            )
            got = np.concatenate([out[i, :n] for i, n in enumerate(LENGTHS)])
            np.testing.assert_allclose(got, want.numpy(), rtol=1e-4, atol=1e-5)
            batch, time = batch_dims(LENGTHS)
            norm(tensor(padded(LENGTHS, 6, padding=np.nan), [batch, time, in_dim]))
            np.testing.assert_allclose(
                norm.running_mean.numpy(), 0.9 * mean + 0.1 * frames.mean(0), rtol=1e-5, atol=1e-6
            )
            np.testing.assert_allclose(
                norm.running_variance.numpy(), 0.9 * variance + 0.1 * frames.var(0), rtol=1e-5, atol=1e-6
            )
            # running statistics take no part in differentiation, and masking can be switched off
            unmasked = rf.BatchNorm(in_dim, use_mask=False, affine=False, track_running_stats=False)
            x = padded(LENGTHS, 6, padding=0)
            y = unmasked(tensor(x, [batch, time, in_dim])).numpy()
            np.testing.assert_allclose(y, (x - x.mean((0, 1))) / np.sqrt(x.var((0, 1)) + 1e-3), rtol=1e-4, atol=1e-5)


def test_batch_norm_gradients_against_torch() -> None:
    train_ctx()
    with rf.use_backend("torch"):
        batch, time = batch_dims(LENGTHS)
        in_dim = rf.Dim(6, name="in")
        norm = rf.BatchNorm(in_dim)
        set_parameters(norm)
        raw = torch.tensor(padded(LENGTHS, 6, padding=np.nan), requires_grad=True)
        out = norm(tensor(raw, [batch, time, in_dim]))
        weights = np.random.RandomState(5).randn(*raw.shape).astype("float32")
        rf.reduce_sum(out * tensor(weights, [batch, time, in_dim]), axis=out.dims).raw_tensor.backward()
        mask = np.arange(5) < np.array(LENGTHS)[:, None]
        frames = raw.detach()[torch.tensor(mask)].requires_grad_()
        gamma, beta = (to_torch(p).clone().requires_grad_() for p in (norm.gamma, norm.beta))
        want = torch.nn.functional.batch_norm(frames, None, None, gamma, beta, training=True, eps=1e-3)
        (want * torch.tensor(weights[mask])).sum().backward()
        np.testing.assert_allclose(raw.grad.numpy()[mask], frames.grad.numpy(), rtol=1e-4, atol=1e-5)
        np.testing.assert_array_equal(raw.grad.numpy()[~mask], 0)
        for p, reference in ((norm.gamma, gamma), (norm.beta, beta)):
            np.testing.assert_allclose(p.raw_tensor.grad.numpy(), reference.grad.numpy(), rtol=1e-4, atol=1e-5)


def test_batch_norm_of_several_masked_dims_and_of_nothing() -> None:
    train_ctx()
    for backend in ("numpy", "torch"):
        with rf.use_backend(backend):
            batch, time = batch_dims([3, 1])
            other = rf.Dim(None, name="other").fill([2, 4], dims=[batch])
            feature = rf.Dim(3, name="f")
            norm = rf.BatchNorm(feature)
            x = np.random.RandomState(0).randn(2, 3, 4, 3).astype("float32")
            mask = (np.arange(3) < np.array([3, 1])[:, None])[:, :, None] & (np.arange(4) < np.array([2, 4])[:, None])[
                :, None
            ]
            out = norm(tensor(x, [batch, time, other, feature])).numpy()
            frames = x[mask]
            np.testing.assert_allclose(
                out[mask], (frames - frames.mean(0)) / np.sqrt(frames.var(0) + 1e-3), rtol=1e-4, atol=1e-5
            )
            lonely = norm(
                tensor(x[0, :, :2, :], [time, rf.Dim(2), feature])
            )  # has no batch dim, but padding for one of them
            assert batch in lonely.dims
            none = rf.Dim(None, name="none").fill([0, 0], dims=[batch])
            assert norm(tensor(x[:, :0, 0], [batch, none, feature])).numpy().size == 0
            assert np.isfinite(norm.running_mean.numpy()).all()
    with pytest.raises(rf.RfError, match="distributed"):
        rf.BatchNorm(feature, distributed=True)


def test_group_norms() -> None:
    make = lambda d: rf.GroupNorm(d, num_groups=2)  # noqa: E731
    out = check_sequence_module(make, lambda m, x, t: m(x), nan_gradients=False)
    x = padded(LENGTHS, 6, padding=0)
    with rf.use_backend("torch"):
        norm = rf.GroupNorm(rf.Dim(6), num_groups=2)
        set_parameters(norm)
        scale, bias = to_torch(norm.scale), to_torch(norm.bias)
        want = torch.nn.functional.group_norm(torch.tensor(x[0]), 2, scale, bias, 1e-6)
        np.testing.assert_allclose(out[0], want.numpy(), rtol=1e-4, atol=1e-5)
    spatial = check_sequence_module(
        lambda d: rf.GroupNormSpatial(d, num_groups=2),
        lambda m, x, t: m(x, spatial_dim=t),
        nan_gradients=False,
        tolerance=1e-4,
    )
    for i, n in enumerate(LENGTHS):
        if n:
            want = torch.nn.functional.group_norm(torch.tensor(x[i : i + 1, :n]).mT, 2, scale, bias, 1e-6).mT
            np.testing.assert_allclose(spatial[i, :n], want[0].numpy(), rtol=1e-4, atol=1e-4)


def test_moments_and_normalize() -> None:
    for backend in ("numpy", "torch"):
        with rf.use_backend(backend):
            batch, time = batch_dims([4, 1])
            feature = rf.Dim(2, name="f")
            x = padded([4, 1], 2, padding=np.nan)
            t = tensor(x, [batch, time, feature])
            mean, variance = rf.moments(t, time)
            np.testing.assert_allclose(mean.numpy(), [x[0].mean(0), x[1, 0]], rtol=1e-5)
            np.testing.assert_allclose(variance.numpy(), [x[0].var(0), [0, 0]], rtol=1e-5, atol=1e-7)
            _, variance = rf.moments(t, time, correction=1)
            np.testing.assert_allclose(variance.numpy(), [x[0].var(0, ddof=1), [0, 0]], rtol=1e-5, atol=1e-7)
            _, variance = rf.moments(t, [feature], correction=1)
            np.testing.assert_allclose(variance.numpy()[0], x[0].var(-1, ddof=1), rtol=1e-4)
            out = rf.normalize(t, axis=[time, feature]).numpy()
            np.testing.assert_allclose(out[0], (x[0] - x[0].mean()) / np.sqrt(x[0].var() + 1e-6), rtol=1e-4, atol=1e-6)
            module = rf.Normalize(param_dims=feature)
            np.testing.assert_allclose(module(t, axis=[time, feature]).numpy()[0], out[0], rtol=1e-5)
            assert len(list(rf.Normalize(param_dims=feature, scale=False, bias=False).parameters())) == 0
            clean = rf.convert_to_tensor(np.nan_to_num(x), dims=[batch, time, feature])
            mean, variance = rf.moments(clean, time, use_mask=False)
            np.testing.assert_allclose(mean.numpy()[1], x[1, 0] / 4, rtol=1e-5)
            np.testing.assert_allclose(variance.numpy()[1], np.nan_to_num(x)[1].var(0), rtol=1e-5)


# -- convolution


@pytest.mark.parametrize(
    ("options", "torch_options"),
    [
        ({"padding": "same"}, {"padding": 1}),
        ({"padding": "valid", "strides": 2}, {"stride": 2}),
        ({"padding": "same", "dilation_rate": 2, "groups": 3}, {"padding": 2, "dilation": 2, "groups": 3}),
        ({"padding": 1, "with_bias": False}, {"padding": 1}),
    ],
)
def test_conv1d_against_torch(options: dict, torch_options: dict) -> None:
    out = check_sequence_module(
        lambda d: rf.Conv1d(d, OUT, 3, **options), lambda m, x, t: m(x, in_spatial_dim=t)[0], lengths=(9, 4, 3, 0)
    )
    with rf.use_backend("torch"):
        conv = rf.Conv1d(rf.Dim(6), OUT, 3, **options)
        set_parameters(conv)
        bias = None if conv.bias is None else to_torch(conv.bias)
        x = padded((9, 4, 3, 0), 6, padding=0)
        for i, n in enumerate((9, 4, 3)):
            want = torch.nn.functional.conv1d(
                torch.tensor(x[i : i + 1, :n]).mT, to_torch(conv.filter), bias, **torch_options
            )
            got = out[i].T[:, : want.shape[-1]]
            np.testing.assert_allclose(got, want[0].numpy(), rtol=1e-4, atol=1e-5)
            np.testing.assert_array_equal(out[i][want.shape[-1] :], 0)


def test_square_conv_and_higher_dims() -> None:
    with rf.use_backend("torch"):
        dim, batch = rf.Dim(3, name="d"), rf.Dim(2, name="B")
        spatial = [rf.Dim(n, name=f"s{n}") for n in (5, 6, 7)]
        x = np.random.randn(2, 3, 5, 6, 7).astype("float32")
        for n, cls in ((2, rf.Conv2d), (3, rf.Conv3d)):
            conv = cls(dim, dim, 3, padding="same")
            set_parameters(conv)
            values = x if n == 3 else x[..., 0]
            out, dims = conv(tensor(values, [batch, dim, *spatial[:n]]), in_spatial_dims=spatial[:n])
            assert dims == spatial[:n]
            fn = torch.nn.functional.conv3d if n == 3 else torch.nn.functional.conv2d
            want = fn(torch.tensor(values), to_torch(conv.filter), to_torch(conv.bias), padding=1)
            got = out.copy_transpose([batch, dim, *spatial[:n]]).numpy()
            np.testing.assert_allclose(got, want.numpy(), rtol=1e-4, atol=1e-5)
        with pytest.raises(rf.DimError, match="needs 3 spatial dims"):
            conv(rf.zeros([dim, *spatial]), in_spatial_dims=spatial[:1])
        with pytest.raises(rf.DimError, match="must divide"):
            rf.Conv1d(dim, dim, 3, padding="same", groups=2)
        with pytest.raises(rf.DimError, match="one for each of the 2 spatial dims"):
            rf.Conv2d(dim, dim, (3, 3, 3), padding="same")


def test_transposed_conv1d() -> None:
    out = check_sequence_module(
        lambda d: rf.TransposedConv1d(d, OUT, 3, padding="valid", strides=2),
        lambda m, x, t: m(x, in_spatial_dim=t)[0],
        lengths=(4, 2),
    )
    with rf.use_backend("torch"):
        conv = rf.TransposedConv1d(rf.Dim(6), OUT, 3, padding="valid", strides=2)
        set_parameters(conv)
        x = torch.tensor(padded((4, 2), 6, padding=0))
        want = torch.nn.functional.conv_transpose1d(x[:1].mT, to_torch(conv.filter), to_torch(conv.bias), stride=2)
        np.testing.assert_allclose(out[0].T, want[0].numpy(), rtol=1e-4, atol=1e-5)
        for n, cls in ((2, rf.TransposedConv2d), (3, rf.TransposedConv3d)):
            spatial = [rf.Dim(2) for _ in range(n)]
            _, dims = cls(OUT, OUT, 2, padding="valid")(rf.zeros([OUT, *spatial]), in_spatial_dims=spatial)
            assert [d.dimension for d in dims] == [4] * n


# -- recurrence


def run_lstm(m: rf.LSTM, x: rf.Tensor, t: rf.Dim) -> rf.Tensor:
    return m(x, spatial_dim=t, state=m.default_initial_state(batch_dims=[d for d in x.dims if d not in (t, m.in_dim)]))[
        0
    ]


@pytest.mark.parametrize("cls", [rf.LSTM, lambda a, b: rf.ZoneoutLSTM(a, b, parts_order="ifco")])
def test_lstm_against_torch(cls) -> None:
    out = check_sequence_module(lambda d: cls(d, OUT), run_lstm)
    with rf.use_backend("torch"):
        in_dim = rf.Dim(6, name="in")
        lstm = cls(in_dim, OUT)
        set_parameters(lstm)
        reference = torch.nn.LSTM(6, 3, batch_first=True)
        values = (lstm.ff_weight, lstm.rec_weight, lstm.bias)
        for p, value in zip(reference.parameters(), [*map(to_torch, values), torch.zeros(12)]):
            p.data = value
        x = padded(LENGTHS, 6, padding=0)
        batch, time = batch_dims(LENGTHS)
        _, state = lstm(
            tensor(padded(LENGTHS, 6, padding=np.nan), [batch, time, in_dim]),
            spatial_dim=time,
            state=lstm.default_initial_state(batch_dims=[batch]),
        )
        for i, n in enumerate(LENGTHS):
            if n == 0:
                np.testing.assert_array_equal(state.h.copy_transpose([batch, OUT]).numpy()[i], 0)
                continue
            want, (h, c) = reference(torch.tensor(x[i : i + 1, :n]))
            np.testing.assert_allclose(out[i, :n], want[0].detach().numpy(), rtol=1e-4, atol=1e-5)
            for got, last in ((state.h, h), (state.c, c)):
                got = got.copy_transpose([batch, OUT]).numpy()[i]
                np.testing.assert_allclose(got, last[0, 0].detach().numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("cls", [rf.LSTM, rf.ZoneoutLSTM])
@pytest.mark.parametrize("backend", ["numpy", "torch", "meta"])
def test_lstm_step_by_step_is_the_whole(cls, backend: str) -> None:
    with rf.use_backend(backend):
        in_dim, batch, time = rf.Dim(6, name="in"), rf.Dim(2, name="B"), rf.Dim(4, name="T")
        lstm = cls(in_dim, OUT)
        set_parameters(lstm)
        x = tensor(np.random.randn(2, 4, 6).astype("float32"), [batch, time, in_dim])
        state = lstm.default_initial_state(batch_dims=[batch])
        whole, last = lstm(x, spatial_dim=time, state=state)
        assert isinstance(last, rf.LstmState) and whole.feature_dim is OUT
        for i in range(4):
            out, state = lstm(rf.gather(x, indices=i, axis=time), spatial_dim=rf.single_step_dim, state=state)
            assert out.dims_set == {batch, OUT}
            if backend != "meta":
                want = rf.gather(whole, indices=i, axis=time).copy_transpose([batch, OUT]).numpy()
                np.testing.assert_allclose(out.copy_transpose([batch, OUT]).numpy(), want, rtol=1e-5, atol=1e-6)


def test_zoneout() -> None:
    with rf.use_backend("torch"):
        in_dim, batch, time = rf.Dim(6, name="in"), rf.Dim(200, name="B"), rf.Dim(3, name="T")
        out_dim = rf.Dim(20, name="out")
        options = {"zoneout_factor_cell": 0.3, "zoneout_factor_output": 0.2, "forget_bias": 1.0}
        lstm = rf.ZoneoutLSTM(in_dim, out_dim, **options)
        x = tensor(np.random.randn(200, 3, 6).astype("float32"), [batch, time, in_dim])
        state = rf.LstmState(h=rf.ones([batch, out_dim]) * 9.0, c=rf.ones([batch, out_dim]) * 9.0)
        step = rf.gather(x, indices=0, axis=time)
        _, mean = lstm(step, spatial_dim=rf.single_step_dim, state=state)
        train_ctx()
        _, drawn = lstm(step, spatial_dim=rf.single_step_dim, state=state)
        for name, factor in (("h", 0.2), ("c", 0.3)):
            values = drawn[name].numpy()
            assert abs((np.abs(values - 9) < 1e-5).mean() - factor) < 0.03
            assert not np.allclose(mean[name].numpy(), values)
        legacy = rf.ZoneoutLSTM(in_dim, out_dim, zoneout_factor_output=0.5, use_zoneout_output=False)
        out, state2 = legacy(step, spatial_dim=rf.single_step_dim, state=state)
        assert not np.allclose(out.numpy(), state2.h.numpy())
        whole, _ = lstm(x, spatial_dim=time, state=state)
        assert whole.dims_set == {batch, time, out_dim}
    for bad in ({"parts_order": "ifo"}, {"zoneout_factor_cell": 1.0}):
        with pytest.raises(rf.RfError):
            rf.ZoneoutLSTM(in_dim, out_dim, **bad)


def test_gradient_helper_sees_differences() -> None:
    with rf.use_backend("torch"):
        dim = rf.Dim(3, name="d")
        linear = rf.Linear(dim, OUT)
        out = linear(rf.ones([dim]))
        first = gradients(linear, rf.reduce_sum(out, axis=OUT))
        out = linear(rf.ones([dim]) * 2.0)
        second = gradients(linear, rf.reduce_sum(out, axis=OUT))
        assert not np.allclose(first["weight"], second["weight"])
