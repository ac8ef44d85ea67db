"""The Conformer encoder and the Transformer decoder."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
from nn_helpers import batch_dims, check_sequence_module, padded, set_parameters, tensor

import rf
from rf.decoder.transformer import FeedForward, FeedForwardGated, TransformerDecoder, TransformerDecoderLayer
from rf.encoder.conformer import (
    ConformerConvBlock,
    ConformerConvSubsample,
    ConformerEncoder,
    ConformerEncoderLayer,
    ConformerPositionwiseFeedForward,
)
from rf.encoder.conformer_v2 import ConformerEncoderV2, ConformerFrontend
from rf.encoder.e_branchformer import EBranchformerLayer
from rf.encoder.transformer import TransformerEncoder, TransformerEncoderLayer

pytestmark = pytest.mark.needs("torch")

BACKENDS = ["numpy", "torch", "meta"]


@pytest.fixture(autouse=True)
def _reset():
    rf.reset_run_ctx()
    yield
    rf.reset_run_ctx()


# -- feed-forward


def test_feed_forward() -> None:
    out = check_sequence_module(lambda d: FeedForward(d, ff_dim=7), lambda m, x, t: m(x), nan_gradients=False)
    with rf.use_backend("numpy"):
        in_dim = rf.Dim(6, name="in")
        ff = FeedForward(in_dim, ff_dim=7)
        set_parameters(ff)
        x = padded((5, 2, 0, 1), 6, padding=0)[0]
        hidden = np.maximum(x @ ff.linear_ff.weight.numpy() + ff.linear_ff.bias.numpy(), 0)
        want = hidden @ ff.linear_out.weight.numpy() + ff.linear_out.bias.numpy()
        np.testing.assert_allclose(out[0], want, rtol=1e-4, atol=1e-5)
        assert FeedForward(in_dim).ff_dim.dimension == 24
        assert ConformerPositionwiseFeedForward(in_dim).activation is rf.swish
        assert FeedForward(in_dim, activation=rf.build_dict(rf.tanh)).activation is rf.tanh


def test_feed_forward_gated() -> None:
    out = check_sequence_module(lambda d: FeedForwardGated(d, ff_dim=7), lambda m, x, t: m(x), nan_gradients=False)
    with rf.use_backend("numpy"):
        in_dim = rf.Dim(6, name="in")
        ff = FeedForwardGated(in_dim, ff_dim=7)
        set_parameters(ff)
        assert ff.linear_ff.bias is None
        x = padded((5, 2, 0, 1), 6, padding=0)[0]
        a, b = np.split(x @ ff.linear_ff.weight.numpy(), 2, axis=-1)
        np.testing.assert_allclose(
            out[0], (a / (1 + np.exp(-a)) * b) @ ff.linear_out.weight.numpy(), rtol=1e-4, atol=1e-5
        )
        assert FeedForwardGated(in_dim).ff_dim.dimension == 256
        assert FeedForwardGated(rf.Dim(384)).ff_dim.dimension == 1024
        assert FeedForwardGated(rf.Dim(385)).ff_dim.dimension == 1280


# -- Conformer


def test_conv_block() -> None:
    check_sequence_module(
        lambda d: ConformerConvBlock(d, kernel_size=4, norm=rf.BatchNorm(d)),
        lambda m, x, t: m(x, spatial_dim=t),
        nan_gradients=False,
    )

    class Norm(rf.Module):
        def __call__(self, x: rf.Tensor, *, spatial_dim: rf.Dim) -> rf.Tensor:
            return rf.normalize(x, axis=spatial_dim)

    check_sequence_module(
        lambda d: ConformerConvBlock(d, kernel_size=3, norm=Norm()),
        lambda m, x, t: m(x, spatial_dim=t),
        nan_gradients=False,
        tolerance=1e-3,
    )


LAYERS: list[dict[str, Any]] = [
    {"ff_dim": 5},
    {"conv_norm": rf.LayerNorm, "self_att": rf.RotaryPosSelfAttention, "norm": rf.RMSNorm},
    {"ff": FeedForwardGated, "conv_norm_opts": {"momentum": 0.2}, "self_att_opts": {"with_bias": False}},
    {"ff": rf.build_dict(FeedForward, ff_dim=3), "conv_norm": {"class": "rf.BatchNorm", "eps": 0.1}},
]


@pytest.mark.parametrize("options", LAYERS)
def test_conformer_layer(options: dict[str, Any]) -> None:
    def make(dim: rf.Dim) -> ConformerEncoderLayer:
        return ConformerEncoderLayer(dim, num_heads=1 if "self_att" in options else 2, conv_kernel_size=4, **options)

    check_sequence_module(make, lambda m, x, t: m(x, spatial_dim=t), nan_gradients=False, tolerance=1e-4)


def test_conformer_layer_takes_a_module_as_attention_and_names_children() -> None:
    with rf.use_backend("numpy"):
        dim = rf.Dim(6, name="d")
        att = rf.SelfAttention(dim, dim, key_dim_total=dim, value_dim_total=dim, num_heads=2)
        layer = ConformerEncoderLayer(dim, self_att=att)
        assert layer.self_att is att
        children = {name for name, _ in layer.named_children()}
        blocks = ("ffn1", "ffn2", "self_att")
        assert children == {
            *blocks,
            *(f"{b}_layer_norm" for b in blocks),
            "conv_block",
            "conv_layer_norm",
            "final_layer_norm",
        }


def subsample(dim: rf.Dim, padding: str = "same") -> ConformerConvSubsample:
    return ConformerConvSubsample(
        dim, out_dims=[3, 2], filter_sizes=[3, (3, 2)], strides=[(2, 1), 2], pool_sizes=[(1, 2), None], padding=padding
    )


@pytest.mark.parametrize("padding", ["same", "valid"])
def test_conv_subsample(padding: str) -> None:
    lengths = (17, 4, 0, 1, 2)
    out = check_sequence_module(
        lambda d: subsample(d, padding), lambda m, x, t: m(x, in_spatial_dim=t)[0], lengths=lengths, in_size=12
    )
    with rf.use_backend("numpy"):
        in_dim = rf.Dim(12, name="in")
        module = subsample(in_dim, padding)
        batch, time = batch_dims(lengths)
        result, dim = module(tensor(padded(lengths, 12, padding=0), [batch, time, in_dim]), in_spatial_dim=time)
        assert dim is module.get_out_spatial_dim(time) and module.downsample_factor == 4
        assert result.dims_set == {batch, dim, module.out_dim} and result.feature_dim is module.out_dim
        assert module.out_dim.dimension == (6 if padding == "same" else 4) == out.shape[-1]
        want = [-(-n // 4) for n in lengths] if padding == "same" else [3, 0, 0, 0, 0]
        assert dim.get_sizes().values.tolist() == want
        with pytest.raises(rf.RfError, match="for each of 2 layers"):
            ConformerConvSubsample(in_dim, out_dims=[1, 2], filter_sizes=[3])


@pytest.mark.parametrize("with_input_layer", [True, False])
def test_conformer_encoder(with_input_layer: bool) -> None:
    def make(dim: rf.Dim) -> ConformerEncoder:
        return ConformerEncoder(
            dim,
            rf.Dim(8, name="enc"),
            num_layers=2,
            input_layer=subsample(dim) if with_input_layer else None,
            num_heads=2,
            conv_kernel_size=5,
            ff_dim=6,
        )

    # With NaN in the padding also the gradients are right: the input layer, or the encoder, clears it.
    check_sequence_module(make, lambda m, x, t: m(x, in_spatial_dim=t)[0], lengths=(17, 4, 0, 1), tolerance=1e-4)


def test_conformer_encoder_in_training() -> None:
    rf.init_train_step_run_ctx(train_flag=True)
    with rf.use_backend("torch"):
        in_dim = rf.Dim(12, name="in")
        encoder = ConformerEncoder(in_dim, 8, num_layers=1, input_layer=subsample(in_dim), num_heads=2)
        outs = []
        for padding in (0.0, np.nan):
            rf.set_random_seed(3)
            batch, time = batch_dims((17, 4, 0, 1))
            out, dim = encoder(
                tensor(padded((17, 4, 0, 1), 12, padding=padding), [batch, time, in_dim]), in_spatial_dim=time
            )
            outs.append(out.copy_masked(0.0).numpy())
        np.testing.assert_allclose(*outs, rtol=1e-5, atol=1e-5)
        assert np.isfinite(outs[0]).all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_conformer_encoder_options(backend: str) -> None:
    with rf.use_backend(backend):
        in_dim = rf.Dim(12, name="in")
        layer = ConformerEncoderLayer(rf.Dim(8, name="enc"), num_heads=2)
        collected: dict[str, rf.Tensor] = {}
        encoder = ConformerEncoder(
            in_dim, layer.out_dim, num_layers=2, input_layer=subsample(in_dim), encoder_layer=layer,
            pos_enc=rf.build_dict(rf.sinusoidal_positional_encoding),
        )  # fmt: skip
        assert encoder.input_embedding_scale == 8**0.5 and encoder.input_projection is not None
        assert encoder.input_projection.bias is None
        names = [name for name, _ in encoder.named_parameters()]
        assert names[:2] == ["input_projection.weight", "input_layer.conv_layers.0.filter"]
        assert any(name.startswith("layers.1.conv_block.depthwise_conv.filter") for name in names)
        time = rf.Dim(9, name="T")
        out, dim = encoder(rf.zeros([time, in_dim]), in_spatial_dim=time, collected_outputs=collected)
        assert out.dims_set == {dim, layer.out_dim} and dim.dimension == 3 and list(collected) == ["0", "1"]
        # What has passed the input layer already may be given, too.
        assert encoder.input_layer is not None
        ready = rf.zeros([time, encoder.input_layer.out_dim])
        out, dim = encoder(ready, in_spatial_dim=time)
        assert dim is time
        same = ConformerEncoder(layer.out_dim, layer.out_dim, num_layers=0, input_layer=None)
        assert same.input_projection is None


# -- Transformer decoder

LENGTHS = (4, 1, 0, 3)
ENC_LENGTHS = (3, 2, 1, 0)


def labels(lengths: tuple[int, ...], padding: int = 0) -> np.ndarray:
    out = np.full((len(lengths), max(lengths)), padding, dtype=np.int32)
    for i, n in enumerate(lengths):
        out[i, :n] = np.random.RandomState(i).randint(0, 7, n)
    return out


def make_decoder(*, with_encoder: bool = True, **options: Any) -> tuple[TransformerDecoder, rf.Dim, rf.Dim]:
    vocab, enc = rf.Dim(7, name="vocab"), rf.Dim(6, name="enc")
    decoder = TransformerDecoder(
        enc if with_encoder else None, vocab, rf.Dim(8, name="model"), num_layers=2, num_heads=2, **options
    )
    set_parameters(decoder)
    return decoder, vocab, enc


def run_decoder(
    decoder: TransformerDecoder, vocab: rf.Dim, enc: rf.Dim, which: list[int], padding: float
) -> np.ndarray:
    """Logits of these sequences, 0 in the padding."""
    lengths = tuple(LENGTHS[i] for i in which)
    enc_lengths = tuple(ENC_LENGTHS[i] for i in which)
    batch, spatial = batch_dims(lengths)
    time = rf.Dim(None, name="T").fill(np.array(enc_lengths, dtype=np.int32), dims=[batch])
    frames = padded(ENC_LENGTHS, 6, padding=padding)[which, : max(enc_lengths, default=0)]
    encoder = None
    if decoder.encoder_dim is not None:
        encoder = decoder.transform_encoder(tensor(frames, [batch, time, enc]), axis=time)
    given = labels(LENGTHS, -5 if np.isnan(padding) else 0)[which, : max(lengths)]
    logits, state = decoder(
        tensor(given, [batch, spatial], sparse_dim=vocab),
        spatial_dim=spatial,
        state=decoder.default_initial_state(batch_dims=[batch]),
        encoder=encoder,
    )
    assert logits.dims_set == {batch, spatial, vocab}
    assert state.pos.dims == (batch,) and state.pos.numpy().tolist() == list(lengths)
    if logits.backend is rf.get_backend("meta"):
        return np.zeros(0)
    return logits.copy_masked(0.0).copy_transpose([batch, spatial, vocab]).numpy()


@pytest.mark.parametrize("with_encoder", [True, False])
def test_decoder_backends_padding_and_alone(with_encoder: bool) -> None:
    results = {}
    for backend in BACKENDS:
        with rf.use_backend(backend):
            args = make_decoder(with_encoder=with_encoder)
            for padding in (0.0, np.nan):
                results[backend, padding] = run_decoder(*args, [0, 1, 2, 3], padding)
            if backend == "torch":
                for i, n in enumerate(LENGTHS):
                    alone = run_decoder(*args, [i], 0.0)
                    np.testing.assert_allclose(alone[0], results["torch", 0.0][i, :n], rtol=1e-4, atol=1e-5)
    for backend in ("numpy", "torch"):
        np.testing.assert_allclose(results[backend, np.nan], results["torch", 0.0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("options", [{}, {"layer_opts": {"self_att": rf.RelPosCausalSelfAttention}, "pos_enc": None}])
def test_decoder_whole_equals_steps_equals_chunks(backend: str, options: dict[str, Any]) -> None:
    with rf.use_backend(backend):
        decoder, vocab, enc = make_decoder(**options)
        batch, spatial = batch_dims((5, 5))
        time = rf.Dim(None, name="T").fill([3, 1], dims=[batch])
        encoder = decoder.transform_encoder(tensor(padded((3, 1), 6, padding=0), [batch, time, enc]), axis=time)
        x = tensor(labels((5, 5)), [batch, spatial], sparse_dim=vocab)
        state = decoder.default_initial_state(batch_dims=[batch])
        whole, _ = decoder(x, spatial_dim=spatial, state=state, encoder=encoder)
        last, _ = decoder(x, spatial_dim=spatial, state=state, encoder=encoder, output_only_last_frame=True)
        outs = []
        for i in range(2):
            out, state = decoder(
                rf.gather(x, indices=i, axis=spatial), spatial_dim=rf.single_step_dim, state=state, encoder=encoder
            )
            outs.append(out)
        rest, chunk = rf.slice(x, axis=spatial, start=2)
        tail, state = decoder(rest, spatial_dim=chunk, state=state, encoder=encoder)
        assert last.dims_set == {batch, vocab} and tail.dims_set == {batch, chunk, vocab}
        if backend == "meta":
            return
        want = whole.copy_transpose([batch, spatial, vocab]).numpy()
        np.testing.assert_allclose(last.copy_transpose([batch, vocab]).numpy(), want[:, -1], rtol=1e-4, atol=1e-5)
        for i, out in enumerate(outs):
            np.testing.assert_allclose(out.copy_transpose([batch, vocab]).numpy(), want[:, i], rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(
            tail.copy_transpose([batch, chunk, vocab]).numpy(), want[:, 2:], rtol=1e-4, atol=1e-5
        )


@pytest.mark.parametrize("self_att", [rf.CausalSelfAttention, rf.RotaryPosCausalSelfAttention])
def test_decoder_layers_share_the_dim_of_their_history(self_att: Any) -> None:
    decoder, vocab, _ = make_decoder(with_encoder=False, layer_opts={"self_att": self_att})
    batch, spatial = batch_dims((4, 4))
    x = tensor(labels((4, 4)), [batch, spatial], sparse_dim=vocab)
    state = decoder.default_initial_state(batch_dims=[batch])
    for i in range(4):
        layers = [state["0"].self_att, state["1"].self_att]
        assert layers[0].accum_axis is layers[1].accum_axis and layers[0].accum_axis.dimension == i
        assert layers[0].k_accum is not layers[1].k_accum
        for s in layers:
            assert s.accum_axis in s.k_accum.dims and s.accum_axis in s.v_accum.dims
        _, state = decoder(rf.gather(x, indices=i, axis=spatial), spatial_dim=rf.single_step_dim, state=state)
    starts = [decoder.default_initial_state(batch_dims=[batch])["0"].self_att.accum_axis for _ in range(2)]
    assert starts[0] != starts[1]


def test_decoder_parameters_and_options() -> None:
    with rf.use_backend("numpy"):
        decoder, vocab, _ = make_decoder()
        assert decoder.input_embedding is not None and decoder.logits.weight is decoder.input_embedding.weight
        names = [name for name, _ in decoder.named_parameters()]
        assert "input_embedding.weight" in names and "logits.weight" not in names and "logits.bias" not in names
        assert "layers.1.cross_att.kv.weight" in names
        assert decoder.input_embedding_scale == 8**0.5
        other, _, _ = make_decoder(share_embedding=False, logits_with_bias=True, embed_dim=4, norm=rf.RMSNorm)
        assert other.input_embedding_proj is not None and other.logits.bias is not None
        assert other.logits.weight is not other.input_embedding.weight  # type: ignore[union-attr]
        with pytest.raises(rf.RfError, match="share_embedding needs"):
            make_decoder(share_embedding=True, embed_dim=4)
        with pytest.raises(TypeError, match="unknown arguments something"):
            make_decoder(something=1)
        dense, _, _ = make_decoder(input_embedding=None, with_encoder=False, pos_enc=None)
        assert dense.input_embedding is None and dense.input_embedding_scale == 1
        time = rf.Dim(2, name="T")
        out, state = dense(
            rf.zeros([time, dense.model_dim]), spatial_dim=time, state=dense.default_initial_state(batch_dims=[])
        )
        assert out.dims_set == {time, dense.vocab_dim} and int(state.pos) == 2
        prototype = TransformerDecoderLayer(None, rf.Dim(8, name="model"), num_heads=2, ff=FeedForwardGated, ff_dim=3)
        made = TransformerDecoder(None, vocab, prototype.out_dim, num_layers=2, decoder_layer=prototype)
        assert isinstance(made.layers[0].ff, FeedForwardGated) and made.layers[0] is not prototype
        with pytest.raises(rf.RfError, match="needs an encoder_dim"):
            made.transform_encoder(rf.zeros([time]), axis=time)
        with pytest.raises(rf.RfError, match="encoder= is missing"):
            decoder(
                rf.zeros([time], dtype="int32", sparse_dim=decoder.vocab_dim),
                spatial_dim=time,
                state=decoder.default_initial_state(batch_dims=[]),
            )
        copied = copy.deepcopy(decoder)
        assert copied.logits.weight is copied.input_embedding.weight is not decoder.logits.weight


# -- the other encoders


def test_transformer_encoder() -> None:
    results = {}
    for backend in BACKENDS:
        with rf.use_backend(backend):
            vocab = rf.Dim(7, name="vocab")
            encoder = TransformerEncoder(vocab, rf.Dim(8, name="model"), num_layers=2, num_heads=2, embed_dim=4)
            set_parameters(encoder)
            for which in ([0, 1, 2, 3], [0], [3]):
                lengths = tuple(LENGTHS[i] for i in which)
                batch, spatial = batch_dims(lengths)
                given = labels(LENGTHS, -7)[which, : max(lengths)]
                out = encoder(tensor(given, [batch, spatial], sparse_dim=vocab), spatial_dim=spatial)
                assert out.dims_set == {batch, spatial, encoder.out_dim}
                if backend != "meta":
                    out = out.copy_masked(0.0).copy_transpose([batch, spatial, encoder.out_dim])
                    results[backend, len(which), which[0]] = out.numpy()
    whole = results["torch", 4, 0]
    np.testing.assert_allclose(results["numpy", 4, 0], whole, rtol=1e-4, atol=1e-5)
    for i in (0, 3):
        np.testing.assert_allclose(results["torch", 1, i][0], whole[i, : LENGTHS[i]], rtol=1e-4, atol=1e-5)
    with rf.use_backend("numpy"):
        layer = TransformerEncoderLayer(rf.Dim(8), num_heads=2, self_att=rf.RelPosSelfAttention)
        assert layer.default_initial_state(batch_dims=[]) is None
        dense = TransformerEncoder(vocab, layer.out_dim, num_layers=1, layer=layer, input_embedding=None, pos_enc=None)
        time = rf.Dim(3, name="T")
        assert dense(rf.zeros([time, layer.out_dim]), spatial_dim=time).dims_set == {time, layer.out_dim}
        with pytest.raises(TypeError, match="unknown arguments"):
            TransformerEncoder(vocab, 8, num_layers=1, something=1)


def test_conformer_in_two_parts_is_the_conformer() -> None:
    def whole(dim: rf.Dim) -> Any:
        return ConformerEncoder(dim, OUT, num_layers=2, input_layer=subsample(dim), num_heads=2, ff_dim=5)

    class TwoParts(rf.Module):
        def __init__(self, dim: rf.Dim) -> None:
            super().__init__()
            self.frontend = ConformerFrontend(dim, OUT, input_layer=subsample(dim))
            self.encoder = ConformerEncoderV2(OUT, num_layers=2, num_heads=2, ff_dim=5)

        def __call__(self, x: rf.Tensor, *, in_spatial_dim: rf.Dim) -> tuple[rf.Tensor, rf.Dim]:
            x, dim = self.frontend(x, in_spatial_dim=in_spatial_dim)
            return self.encoder(x, spatial_dim=dim), dim

    options: dict[str, Any] = {"lengths": (17, 4, 0, 1), "tolerance": 1e-4}
    out = check_sequence_module(TwoParts, lambda m, x, t: m(x, in_spatial_dim=t)[0], **options)
    assert out.shape == (4, 5, 8)
    with rf.use_backend("numpy"):
        in_dim = rf.Dim(6, name="in")
        a, b = whole(in_dim), TwoParts(in_dim)
        values = {n: p.numpy() for n, p in a.named_parameters()}
        for name, p in b.named_parameters():
            p.assign(values[name.replace("frontend.", "").replace("encoder.", "")])
        batch, time = batch_dims((9, 4))
        x = tensor(padded((9, 4), 6, padding=0), [batch, time, in_dim])
        np.testing.assert_allclose(
            a(x, in_spatial_dim=time)[0].numpy(), b(x, in_spatial_dim=time)[0].numpy(), rtol=1e-5
        )
        assert b.frontend.downsample_factor == 4


OUT = rf.Dim(8, name="enc")


def test_e_branchformer_layer() -> None:
    check_sequence_module(
        lambda d: EBranchformerLayer(d, num_heads=2, cgmlp_ff_dim=5, cgmlp_conv_kernel=4),
        lambda m, x, t: m(x, spatial_dim=t),
        nan_gradients=False,
        tolerance=1e-4,
    )
    with rf.use_backend("numpy"):
        encoder = ConformerEncoder(OUT, OUT, num_layers=2, input_layer=None, encoder_layer=EBranchformerLayer)
        time = rf.Dim(3, name="T")
        out, _ = encoder(rf.zeros([time, OUT]), in_spatial_dim=time)
        assert out.dims_set == {time, OUT}


def test_running_mean() -> None:
    for backend in BACKENDS:
        with rf.use_backend(backend):
            rf.reset_run_ctx()
            dim = rf.Dim(4, name="d")
            batch, time = batch_dims((3, 1))
            module = rf.RunningMean(dim, alpha=0.25, is_prob_distribution=True)
            x = padded((3, 1), 4, padding=np.nan)
            out = module(tensor(x, [batch, time, dim]))
            rf.init_train_step_run_ctx(train_flag=True)
            updated = module(tensor(x, [batch, time, dim]))
            assert out.dims == updated.dims == (dim,) and not module.mean.trainable
            if backend != "meta":
                mean = np.concatenate([x[0], x[1, :1]]).mean(0)
                np.testing.assert_allclose(updated.numpy(), 0.75 * 0.25 + 0.25 * mean, rtol=1e-5)
