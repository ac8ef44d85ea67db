"""Attention in all its forms against direct computation, whole sequences against steps and chunks, and position
encodings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from nn_helpers import batch_dims, check_sequence_module, gradients, padded, set_parameters, tensor

import rf

pytestmark = pytest.mark.needs("torch")

LENGTHS = (5, 2, 0, 1)
HEADS, KEY, VALUE = 2, 4, 3


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


@pytest.fixture(autouse=True)
def _reset():
    rf.reset_run_ctx()
    yield
    rf.reset_run_ctx()


# -- the function


def dims_of_attention(n_query: tuple[int, ...], n_key: tuple[int, ...]) -> list[rf.Dim]:
    batch, query = batch_dims(n_query)
    key = rf.Dim(None, name="K").fill(np.array(n_key, dtype=np.int32), dims=[batch])
    return [batch, rf.Dim(HEADS, name="heads"), query, key, rf.Dim(KEY, name="key"), rf.Dim(VALUE, name="value")]


@pytest.mark.parametrize("backend", ["numpy", "torch"])
@pytest.mark.parametrize("scale", [None, 0.3])
def test_dot_attention_against_direct_computation(backend: str, scale: float | None) -> None:
    n_query, n_key = (3, 1, 2), (2, 4, 0)
    with rf.use_backend(backend):
        batch, heads, query, key, key_dim, value_dim = dims_of_attention(n_query, n_key)
        q = padded(n_query, HEADS, KEY, padding=np.nan, seed=1)
        k = padded(n_key, HEADS, KEY, padding=np.nan, seed=2)
        v = padded(n_key, HEADS, VALUE, padding=np.nan, seed=3)
        out = rf.dot_attention(
            tensor(q, [batch, query, heads, key_dim]),
            tensor(k.transpose(3, 0, 2, 1), [key_dim, batch, heads, key]),
            tensor(v, [batch, key, heads, value_dim]),
            key_dim=key_dim,
            axis=key,
            scale=scale,
        )
        assert out.dims_set == {batch, query, heads, value_dim}
        got = out.copy_transpose([batch, query, heads, value_dim]).numpy()
    for b, (n, m) in enumerate(zip(n_query, n_key)):
        scores = np.einsum("qhd,khd->hqk", q[b, :n], k[b, :m]) * (KEY**-0.5 if scale is None else scale)
        want = np.einsum("hqk,khd->qhd", softmax(scores), v[b, :m]) if m else np.zeros((n, HEADS, VALUE))
        np.testing.assert_allclose(got[b, :n], want, rtol=1e-5, atol=1e-6)


def test_dot_attention_gradients_do_not_see_padding() -> None:
    n_query, n_key = (3, 1, 2), (2, 4, 0)
    grads = []
    for padding in (0.0, np.nan):
        with rf.use_backend("torch"):
            batch, heads, query, key, key_dim, value_dim = dims_of_attention(n_query, n_key)
            raws = [
                torch.tensor(padded(n, HEADS, size, padding=padding, seed=i), requires_grad=True)
                for i, (n, size) in enumerate(((n_query, KEY), (n_key, KEY), (n_key, VALUE)))
            ]
            dims = [[batch, query, heads, key_dim], [batch, key, heads, key_dim], [batch, key, heads, value_dim]]
            q, k, v = (tensor(raw, d) for raw, d in zip(raws, dims))
            out = rf.dot_attention(q, k, v, key_dim=key_dim, axis=key)
            rf.reduce_sum(rf.square(out), axis=out.dims).raw_tensor.backward()
            grads.append([raw.grad.numpy() for raw in raws])
    for a, b in zip(*grads):
        assert np.abs(a).max() > 0
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("backend", ["numpy", "torch", "meta"])
def test_dot_attention_of_a_dim_to_itself_with_any_number_of_query_dims(backend: str) -> None:
    with rf.use_backend(backend):
        batch, time = batch_dims((4, 2))
        key_dim, value_dim, beam = rf.Dim(KEY, name="key"), rf.Dim(VALUE, name="value"), rf.Dim(2, name="beam")
        x = padded((4, 2), KEY, padding=np.nan)
        v = tensor(padded((4, 2), VALUE, padding=np.nan), [batch, time, value_dim])
        k = tensor(x, [batch, time, key_dim])
        own = rf.dot_attention(k, k, v, key_dim=key_dim, axis=time)
        assert own.dims_set == {batch, time, value_dim}
        kv = rf.Dim(None, name="kv")
        other, _ = rf.replace_dim(k, in_dim=time, out_dim=kv)
        v_other, _ = rf.replace_dim(v, in_dim=time, out_dim=kv)
        same = rf.dot_attention(k, other, v_other, key_dim=key_dim, axis=kv)
        single = rf.dot_attention(rf.gather(k, indices=0, axis=time), k, v, key_dim=key_dim, axis=time)
        assert single.dims_set == {batch, value_dim}
        many = rf.dot_attention(rf.expand_dim(k, beam), other, v_other, key_dim=key_dim, axis=kv)
        assert many.dims_set == {batch, beam, time, value_dim}
        causal = rf.dot_attention(k, k, v, key_dim=key_dim, axis=time, causal_query_spatial_dim=time)
        causal2 = rf.dot_attention(k, other, v_other, key_dim=key_dim, axis=kv, causal_query_spatial_dim=time)
        if backend == "meta":
            return

        def values(y: rf.Tensor) -> np.ndarray:
            return y.copy_masked(0.0).copy_transpose([batch, time, value_dim]).numpy()

        np.testing.assert_allclose(values(own), values(same), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(values(own)[:, 0], single.numpy(), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(values(rf.gather(many, indices=1, axis=beam)), values(own), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(values(causal), values(causal2), rtol=1e-5, atol=1e-6)
        for i in range(4):
            w = softmax(x[0, : i + 1] @ x[0, i] * KEY**-0.5)
            np.testing.assert_allclose(values(causal)[0, i], w @ v.numpy()[0, : i + 1], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("broadcast", [False, True])
def test_attention_dropout_in_training_only(broadcast: bool) -> None:
    with rf.use_backend("torch"):
        batch, time = rf.Dim(3, name="B"), rf.Dim(40, name="T")
        key_dim, value_dim = rf.Dim(1, name="key"), rf.Dim(40, name="value")
        q = rf.zeros([batch, time, key_dim])
        # The values tell the weights: one for each key.
        v = tensor(np.eye(40, dtype="float32"), [time, value_dim])
        options: dict[str, Any] = {
            "key_dim": key_dim,
            "axis": time,
            "att_dropout": 0.5,
            "att_dropout_broadcast": broadcast,
        }
        out = rf.dot_attention(q, q, rf.expand_dim(v, batch), **options)
        np.testing.assert_allclose(out.numpy(), 1 / 40, rtol=1e-5)
        rf.init_train_step_run_ctx(train_flag=True)
        out = rf.dot_attention(q, q, rf.expand_dim(v, batch), **options)
        weights = out.copy_transpose([batch, time, value_dim]).numpy() * 40
        np.testing.assert_allclose(np.unique(weights.round(4)), [0, 2])
        assert 0.3 < weights.mean() / 2 < 0.7
        assert np.array_equal(weights[0, 0], weights[2, 7]) == broadcast


def test_dot_attention_names_missing_dims() -> None:
    with rf.use_backend("numpy"):
        batch, heads, query, key, key_dim, value_dim = dims_of_attention((2, 1), (2, 1))
        q, k = rf.zeros([batch, query, heads]), rf.zeros([batch, key, heads, key_dim])
        with pytest.raises(rf.DimError, match="key=4 is not a dim of the queries"):
            rf.dot_attention(q, k, k, key_dim=key_dim, axis=key)
        with pytest.raises(rf.DimError, match="is not a dim of the values"):
            rf.dot_attention(k, k, rf.zeros([batch, value_dim]), key_dim=key_dim, axis=key)


# -- self-attention


def make(cls: Any, **options: Any) -> Callable[[rf.Dim], Any]:
    def of(in_dim: rf.Dim) -> Any:
        dims = {
            "key_dim_total": rf.Dim(HEADS * KEY, name="keys"),
            "value_dim_total": rf.Dim(HEADS * VALUE, name="values"),
        }
        return cls(in_dim, rf.Dim(5, name="out"), num_heads=HEADS, **dims, **options)

    return of


def projected(module: Any, x: np.ndarray) -> list[np.ndarray]:
    """q, k, v (T, heads, size) of the frames (T, in)."""
    y = x @ module.qkv.weight.numpy() + module.qkv.bias.numpy()
    return np.split(y.reshape(len(x), HEADS, 2 * KEY + VALUE), [KEY, 2 * KEY], axis=-1)


def finished(module: Any, weights: np.ndarray, v: np.ndarray) -> np.ndarray:
    out = np.einsum("hqk,khd->qhd", weights, v).reshape(len(v), -1)
    return out @ module.proj.weight.numpy() + module.proj.bias.numpy()


def rel_enc(distance: np.ndarray, size: int) -> np.ndarray:
    angles = distance[..., None] * np.exp(-2 * np.arange(size // 2) * np.log(1e4) / size)
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=-1)


def rotated(x: np.ndarray) -> np.ndarray:
    """Pairs of neighbors as complex numbers, turned by position * 10000^(-2i/d)."""
    z = x[..., 0::2] + 1j * x[..., 1::2]
    angles = np.arange(len(x))[:, None] * 1e4 ** (-2 * np.arange(KEY // 2) / KEY)
    z = z * np.exp(1j * angles)[:, None]
    return np.stack([z.real, z.imag], axis=-1).reshape(x.shape)


def scores_of(kind: str, module: Any, q: np.ndarray, k: np.ndarray) -> np.ndarray:
    if kind == "rotary":
        q, k = rotated(q), rotated(k)
    if kind in ("plain", "rotary"):
        return np.einsum("qhd,khd->hqk", q, k) * KEY**-0.5
    n = len(q)
    distance = np.arange(n)[None] - np.arange(n)[:, None]  # key - query
    if kind == "learned":
        table = module.learned_pos_emb.pos_emb.numpy()
        pos = table[np.clip(distance, -2, 2) + 2] @ module.linear_pos.weight.numpy()
        pos = np.repeat(pos[:, :, None], HEADS, axis=2)
        u = v = np.zeros((HEADS, KEY))
    else:
        pos = (rel_enc(distance, 6) @ module.linear_pos.weight.numpy()).reshape(n, n, HEADS, KEY)
        u, v = module.pos_bias_u.numpy(), module.pos_bias_v.numpy()
    return (np.einsum("qhd,khd->hqk", q + u, k) + np.einsum("qhd,qkhd->hqk", q + v, pos)) * KEY**-0.5


LEARNED = {
    "learnable_pos_emb": True,
    "learnable_pos_emb_clipping": 2,
    "separate_pos_emb_per_head": False,
    "with_pos_bias": False,
}
KINDS: list[tuple[str, Any, dict[str, Any]]] = [
    ("plain", rf.SelfAttention, {}),
    ("rotary", rf.RotaryPosSelfAttention, {}),
    ("rel", rf.RelPosSelfAttention, {}),
    ("learned", rf.RelPosSelfAttention, LEARNED),
    ("plain", rf.CausalSelfAttention, {}),
    ("rotary", rf.RotaryPosCausalSelfAttention, {}),
    ("rel", rf.RelPosCausalSelfAttention, {}),
    ("learned", rf.RelPosCausalSelfAttention, LEARNED),
]
IDS = [f"{cls.__name__}-{kind}" for kind, cls, _ in KINDS]


def call(module: Any, x: rf.Tensor, time: rf.Dim) -> rf.Tensor:
    out = module(x, axis=time)
    return out[0] if isinstance(out, tuple) else out


@pytest.mark.parametrize(("kind", "cls", "options"), KINDS, ids=IDS)
def test_self_attention_against_direct_computation(kind: str, cls: Any, options: dict) -> None:
    out = check_sequence_module(make(cls, **options), call)
    with rf.use_backend("numpy"):
        module = make(cls, **options)(rf.Dim(6, name="in"))
        set_parameters(module)
    for b, n in enumerate(LENGTHS):
        if n:
            q, k, v = projected(module, padded(LENGTHS, 6, padding=0)[b, :n])
            scores = scores_of(kind, module, q, k)
            if "Causal" in cls.__name__:
                scores = np.where(np.tril(np.ones((n, n), dtype=bool)), scores, -np.inf)
            np.testing.assert_allclose(out[b, :n], finished(module, softmax(scores), v), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("kind", "cls", "options"), KINDS, ids=IDS)
def test_self_attention_in_training_with_dropout_runs_and_is_masked(kind: str, cls: Any, options: dict) -> None:
    rf.init_train_step_run_ctx(train_flag=True)
    with rf.use_backend("torch"):
        in_dim = rf.Dim(6, name="in")
        module = make(cls, att_dropout=0.5, **options)(in_dim)
        set_parameters(module)
        grads = []
        for padding in (0.0, np.nan):
            rf.set_random_seed(5)
            batch, time = batch_dims(LENGTHS)
            out = call(module, tensor(padded(LENGTHS, 6, padding=padding), [batch, time, in_dim]), time)
            grads.append(gradients(module, rf.reduce_sum(rf.square(out), axis=out.dims)))
        for name, value in grads[0].items():
            np.testing.assert_allclose(value, grads[1][name], rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("backend", ["numpy", "torch", "meta"])
@pytest.mark.parametrize(("kind", "cls", "options"), KINDS[4:], ids=IDS[4:])
def test_causal_whole_equals_steps_equals_chunks(kind: str, cls: Any, options: dict, backend: str) -> None:
    lengths = (6, 5)
    with rf.use_backend(backend):
        in_dim = rf.Dim(6, name="in")
        module = make(cls, **options)(in_dim)
        set_parameters(module)
        batch, time = batch_dims(lengths)
        x = tensor(padded(lengths, 6, padding=np.nan), [batch, time, in_dim])
        whole, whole_state = module(x, axis=time, state=module.default_initial_state(batch_dims=[batch]))
        assert isinstance(whole_state, rf.CausalSelfAttentionState) and whole_state.accum_axis is time

        state = module.default_initial_state(batch_dims=[batch])
        for i in range(3):
            out, state = module(rf.gather(x, indices=i, axis=time), axis=rf.single_step_dim, state=state)
            check(out, whole, batch, time, [i, i], module.out_dim)
        # A chunk after the steps: of 3 and 1 frames. Then a step that comes at another position in each sequence.
        chunk = rf.Dim(None, name="chunk").fill(np.array([3, 1], dtype=np.int32), dims=[batch])
        part = padded(lengths, 6, padding=np.nan)[:, 3:6].copy()
        part[1, 1:] = np.nan
        out, state = module(tensor(part, [batch, chunk, in_dim]), axis=chunk, state=state)
        for i in range(3):
            frame = rf.gather(out, indices=i, axis=chunk)
            check(frame, whole, batch, time, [3 + i, 3 if i == 0 else None], module.out_dim)
        assert [int(n) for n in state.accum_axis.get_sizes().values] == [6, 4]
        last = padded((7, 5), 6, padding=np.nan)[[0, 1], [6, 4]]
        out, state = module(tensor(last, [batch, in_dim]), axis=rf.single_step_dim, state=state)
        check(out, whole, batch, time, [None, 4], module.out_dim)
        batch7, time7 = batch_dims((7,))
        longer, _ = module(tensor(padded((7,), 6, padding=0), [batch7, time7, in_dim]), axis=time7)
        if backend != "meta":
            np.testing.assert_allclose(
                out.copy_transpose([batch, module.out_dim]).numpy()[0], longer.numpy()[0, 6], rtol=1e-4, atol=1e-5
            )
        # and a chunk after a whole sequence
        more = rf.Dim(2, name="more")
        both, state = module(
            tensor(padded((2, 2), 6, padding=0, seed=9), [batch, more, in_dim]), axis=more, state=whole_state
        )
        assert both.dims_set == {batch, more, module.out_dim}
        if backend != "meta":
            joined = np.concatenate([padded(lengths, 6, padding=0)[1, :5], padded((2, 2), 6, padding=0, seed=9)[1]])
            want, _ = module(tensor(joined, [TIME7, in_dim]), axis=TIME7)
            got = both.copy_transpose([batch, more, module.out_dim]).numpy()[1]
            np.testing.assert_allclose(got, want.numpy()[5:], rtol=1e-4, atol=1e-5)


TIME7 = rf.Dim(7, name="t7")


def check(
    frame: rf.Tensor, whole: rf.Tensor, batch: rf.Dim, time: rf.Dim, at: list[int | None], out_dim: rf.Dim
) -> None:
    assert frame.dims_set == {batch, out_dim}
    assert frame.backend is not None
    if not frame.backend.computes:
        return
    got = frame.copy_transpose([batch, out_dim]).numpy()
    want = whole.copy_transpose([batch, time, out_dim]).numpy()
    for b, i in enumerate(at):
        if i is not None:
            np.testing.assert_allclose(got[b], want[b, i], rtol=1e-4, atol=1e-5)


def test_step_without_state_and_bad_dims() -> None:
    with rf.use_backend("numpy"):
        in_dim = rf.Dim(6, name="in")
        for _, cls, options in KINDS[4:]:
            with pytest.raises(rf.RfError, match="needs a state"):
                make(cls, **options)(in_dim)(rf.zeros([in_dim]), axis=rf.single_step_dim)
        with pytest.raises(rf.DimError, match="cannot be divided among"):
            rf.SelfAttention(in_dim, None, key_dim_total=in_dim, value_dim_total=in_dim, num_heads=4)
        time, other = rf.Dim(3, name="T"), rf.Dim(2, name="other")
        for _, cls, options in KINDS:
            with pytest.raises(rf.DimError, match="other"):
                make(cls, **options)(in_dim)(rf.zeros([time, in_dim]), axis=other)


def test_without_projection_the_values_come_out() -> None:
    with rf.use_backend("numpy"):
        in_dim, time, value = rf.Dim(6, name="in"), rf.Dim(3, name="T"), rf.Dim(4, name="value")
        att = rf.SelfAttention(in_dim, None, key_dim_total=in_dim, value_dim_total=value, num_heads=rf.Dim(2, name="h"))
        out = att(rf.ones([time, in_dim]), axis=time)
        assert out.dims_set == {time, value} and out.feature_dim is value and att.out_dim is value
        assert "proj.weight" not in dict(att.named_parameters())


# -- cross-attention


def test_cross_attention() -> None:
    n_enc = (4, 0, 2, 3)
    results, values_of = {}, {}
    for backend in ("numpy", "torch", "meta"):
        with rf.use_backend(backend):
            enc_dim, in_dim, out_dim = rf.Dim(7, name="enc"), rf.Dim(6, name="in"), rf.Dim(5, name="out")
            keys, values = rf.Dim(HEADS * KEY, name="keys"), rf.Dim(HEADS * VALUE, name="values")
            att = rf.CrossAttention(
                enc_dim, in_dim, out_dim, key_dim_total=keys, value_dim_total=values, num_heads=HEADS
            )
            set_parameters(att)
            if backend == "numpy":
                values_of = {name: p.numpy() for name, p in att.named_parameters()}
            for padding in (0.0, np.nan):
                batch, time = batch_dims(LENGTHS)
                axis = rf.Dim(None, name="E").fill(np.array(n_enc, dtype=np.int32), dims=[batch])
                encoder = att.transform_encoder(
                    tensor(padded(n_enc, 7, padding=padding, seed=4), [batch, axis, enc_dim]), axis=axis
                )
                assert encoder.kv_axis is axis
                out = att(tensor(padded(LENGTHS, 6, padding=padding), [batch, time, in_dim]), encoder)
                assert out.dims_set == {batch, time, out_dim}
                step = att(tensor(padded((1,) * 4, 6, padding=0)[:, 0], [batch, in_dim]), encoder)
                assert step.dims_set == {batch, out_dim}
                if backend == "meta":
                    continue
                results[backend, padding] = out.copy_masked(0.0).copy_transpose([batch, time, out_dim]).numpy()
                if backend == "torch":
                    loss = rf.reduce_sum(rf.square(out), axis=out.dims)
                    results["grad", padding] = np.concatenate([g.ravel() for g in gradients(att, loss).values()])
    np.testing.assert_allclose(results["grad", 0.0], results["grad", np.nan], rtol=1e-4, atol=1e-5)
    want = results["torch", 0.0]
    for backend in ("numpy", "torch"):
        np.testing.assert_allclose(results[backend, np.nan], want, rtol=1e-4, atol=1e-5)

    def linear(name: str, x: np.ndarray) -> np.ndarray:
        return x @ values_of[f"{name}.weight"] + values_of[f"{name}.bias"]

    for b, (n, m) in enumerate(zip(LENGTHS, n_enc)):
        kv = linear("kv", padded(n_enc, 7, padding=0, seed=4)[b, :m]).reshape(m, HEADS, KEY + VALUE)
        q = linear("q", padded(LENGTHS, 6, padding=0)[b, :n]).reshape(n, HEADS, KEY)
        scores = np.einsum("qhd,khd->hqk", q, kv[..., :KEY]) * KEY**-0.5
        summed = np.einsum("hqk,khd->qhd", softmax(scores), kv[..., KEY:]) if m else np.zeros((n, HEADS, VALUE))
        np.testing.assert_allclose(want[b, :n], linear("proj", summed.reshape(n, HEADS * VALUE)), rtol=1e-4, atol=1e-5)


# -- position encodings


@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_relative_positional_encoding(backend: str) -> None:
    with rf.use_backend(backend):
        feat, query, key = rf.Dim(6, name="feat"), rf.Dim(3, name="Q"), rf.Dim(4, name="K")
        enc, dim = rf.relative_positional_encoding(query_spatial_dim=query, key_value_spatial_dim=key, feat_dim=feat)
        assert enc.dims == (dim, feat) and dim.dimension == 6 and enc.feature_dim is feat
        np.testing.assert_allclose(enc.numpy(), rel_enc(np.arange(-2, 4), 6), rtol=1e-5, atol=1e-6)
        again, same = rf.relative_positional_encoding(
            query_spatial_dim=rf.Dim(3), key_value_spatial_dim=rf.Dim(4), feat_dim=feat
        )
        assert same is dim and again is not enc
        enc, _ = rf.relative_positional_encoding(
            query_spatial_dim=query, key_value_spatial_dim=key, feat_dim=feat, query_offset=2
        )
        np.testing.assert_allclose(enc.numpy(), rel_enc(np.arange(-4, 2), 6), rtol=1e-5, atol=1e-6)
        enc, dim = rf.relative_positional_encoding(
            query_spatial_dim=rf.single_step_dim, key_value_spatial_dim=key, feat_dim=feat, query_offset=3
        )
        assert dim is key
        np.testing.assert_allclose(enc.numpy(), rel_enc(np.arange(-3, 1), 6), rtol=1e-5, atol=1e-6)
        batch = rf.Dim(2, name="B")
        offset = rf.convert_to_tensor([1, 200], dims=[batch])
        enc, dim = rf.relative_positional_encoding(
            query_spatial_dim=query, key_value_spatial_dim=key, feat_dim=feat, query_offset=offset
        )
        want = rel_enc(np.arange(-2, 4)[None] - np.array([[1], [200]]), 6)
        np.testing.assert_allclose(enc.copy_transpose([batch, dim, feat]).numpy(), want, rtol=1e-5, atol=1e-6)
        with pytest.raises(rf.DimError, match="must be even"):
            rf.relative_positional_encoding(query_spatial_dim=query, key_value_spatial_dim=key, feat_dim=rf.Dim(3))


def absolute(positions: np.ndarray, size: int, base: float = 1e4) -> np.ndarray:
    angles = positions[..., None] * np.exp(-np.arange(size // 2) * np.log(base) / (size // 2 - 1))
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=-1)


@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_sinusoidal_positional_encoding(backend: str) -> None:
    with rf.use_backend(backend):
        feat = rf.Dim(6, name="feat")
        for n in (3, 100, 5, 1000, 0):  # the table grows, and is cut
            time = rf.Dim(n, name="T")
            enc = rf.sinusoidal_positional_encoding(spatial_dim=time, feat_dim=feat)
            assert enc.dims == (time, feat)
            np.testing.assert_allclose(enc.numpy(), absolute(np.arange(n), 6), rtol=1e-5, atol=1e-6)
        enc = rf.sinusoidal_positional_encoding(spatial_dim=rf.Dim(4), feat_dim=feat, offset=7, base=100.0)
        np.testing.assert_allclose(enc.numpy(), absolute(np.arange(7, 11), 6, 100.0), rtol=1e-5, atol=1e-6)
        enc = rf.sinusoidal_positional_encoding(spatial_dim=rf.Dim(4), feat_dim=feat, offset=-2)
        np.testing.assert_allclose(enc.numpy(), absolute(np.arange(-2, 2), 6), rtol=1e-5, atol=1e-6)
        enc = rf.sinusoidal_positional_encoding(spatial_dim=rf.single_step_dim, feat_dim=feat, offset=7)
        assert enc.dims == (feat,)
        np.testing.assert_allclose(enc.numpy(), absolute(np.array(7), 6), rtol=1e-5, atol=1e-6)
        for n in (3, 5000, 3, -200):  # one row, with and without its axis
            at = rf.convert_to_tensor(n, keep_scalar_on_cpu=True)
            row = rf.sinusoidal_positional_encoding(spatial_dim=rf.single_step_dim, feat_dim=feat, offset=at)
            one = rf.sinusoidal_positional_encoding(spatial_dim=rf.Dim(1), feat_dim=feat, offset=n)
            assert row.dims == (feat,)
            np.testing.assert_array_equal(row.numpy(), one.numpy()[0])
            np.testing.assert_allclose(row.numpy(), absolute(np.array(n), 6), rtol=1e-4, atol=1e-6)
        batch, time = rf.Dim(2, name="B"), rf.Dim(3, name="T")
        offset = rf.convert_to_tensor([5, 0], dims=[batch])
        enc = rf.sinusoidal_positional_encoding(spatial_dim=time, feat_dim=feat, offset=offset)
        want = absolute(np.array([[5], [0]]) + np.arange(3), 6)
        np.testing.assert_allclose(enc.copy_transpose([batch, time, feat]).numpy(), want, rtol=1e-5, atol=1e-6)
        enc = rf.sinusoidal_positional_encoding(spatial_dim=rf.single_step_dim, feat_dim=feat, offset=offset)
        np.testing.assert_allclose(enc.numpy(), want[:, 0], rtol=1e-5, atol=1e-6)
        scalar = rf.sinusoidal_positional_encoding(
            spatial_dim=time, feat_dim=feat, offset=rf.convert_to_tensor(5, keep_scalar_on_cpu=True)
        )
        np.testing.assert_allclose(scalar.numpy(), want[0], rtol=1e-5, atol=1e-6)
        enc = rf.sinusoidal_encoding(rf.convert_to_tensor([1000.0, 0.5], dims=[batch]), feat_dim=feat)
        np.testing.assert_allclose(enc.numpy(), absolute(np.array([1000.0, 0.5]), 6), rtol=1e-5, atol=1e-6)
        with pytest.raises(rf.RfError, match="give offset"):
            rf.sinusoidal_positional_encoding(spatial_dim=rf.single_step_dim, feat_dim=feat)


def test_encodings_on_meta_need_no_values() -> None:
    with rf.use_backend("meta"):
        feat, batch, time = rf.Dim(6, name="feat"), rf.Dim(2, name="B"), rf.Dim(3, name="T")
        unknown = rf.cast(rf.zeros([batch]), "int32")
        for offset in (None, 3, unknown):
            enc = rf.sinusoidal_positional_encoding(spatial_dim=time, feat_dim=feat, offset=offset)
            assert {time, feat} <= enc.dims_set and enc.dtype == "float32"
            assert enc.backend is rf.get_backend("meta")
        enc, dim = rf.relative_positional_encoding(
            query_spatial_dim=time, key_value_spatial_dim=time, feat_dim=feat, query_offset=unknown
        )
        assert enc.dims_set == {batch, dim, feat}


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_learned_relative_positional_encoding(backend: str, causal: bool) -> None:
    with rf.use_backend(backend):
        feat, query, key, batch = rf.Dim(2, name="feat"), rf.Dim(3, name="Q"), rf.Dim(4, name="K"), rf.Dim(2, name="B")
        module = rf.LearnedRelativePositionalEncoding(feat, clipping=2, causal=causal)
        table = module.pos_emb.numpy()
        assert len(table) == (3 if causal else 5) and np.abs(table).max() > 0

        def rows(distance: np.ndarray) -> np.ndarray:
            return table[np.clip(distance, -2, 0 if causal else 2) + 2]

        dims = {"query_spatial_dim": query, "key_value_spatial_dim": key}
        enc, dim = module(**dims)
        np.testing.assert_array_equal(enc.copy_transpose([dim, feat]).numpy(), rows(np.arange(-2, 4)))
        enc, dim = module(**dims, query_offset=3)
        np.testing.assert_array_equal(enc.copy_transpose([dim, feat]).numpy(), rows(np.arange(-5, 1)))
        offset = rf.convert_to_tensor([1, 0], dims=[batch])
        enc, dim = module(**dims, query_offset=offset)
        want = rows(np.arange(-2, 4) - np.array([[1], [0]]))
        np.testing.assert_array_equal(enc.copy_transpose([batch, dim, feat]).numpy(), want)
        matrix = module.full_matrix(**dims, query_offset=1)
        want = rows(np.arange(4) - np.arange(1, 4)[:, None])
        np.testing.assert_array_equal(matrix.copy_transpose([query, key, feat]).numpy(), want)
        row = module.full_matrix(query_spatial_dim=rf.single_step_dim, key_value_spatial_dim=key, query_offset=3)
        np.testing.assert_array_equal(row.copy_transpose([key, feat]).numpy(), rows(np.arange(4) - 3))
