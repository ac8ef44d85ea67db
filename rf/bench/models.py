"""The cases of `rf bench models`: for each, the model in rf and in torch (one also in Keras), at two sizes.

The tiny sizes show what a call costs, the realistic ones what the kernels cost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy

import rf
from rf import Dim, Tensor
from rf._errors import UserError
from rf.backend import Backend
from rf.bench import models_rf
from rf.bench.case import Case, Data, Reference, RfModel
from rf.decoder.transformer import TransformerDecoder
from rf.encoder.conformer import ConformerEncoder

__all__ = ["CASES", "select_cases"]


def select_cases(pattern: str | None, backend: str = "torch") -> list[Case]:
    """The cases with code to compare rf on that backend with whose name or description contains `pattern`; UserError if
    there is none."""
    cases = [case for case in CASES if case.keras is not None] if backend == "tensorflow" else list(CASES)
    if not pattern:
        return cases
    found = [case for case in cases if pattern.lower() in f"{case.name} {case.what}".lower()]
    if not found:
        raise UserError(f"no model matches {pattern!r}; there are: {', '.join(case.name for case in cases)}")
    return found


def _as_step(loss: Tensor) -> Tensor:
    """The mean over valid frames of a loss of the step that has been begun."""
    loss.mark_as_loss("loss", use_normalized_loss=True)
    total = rf.get_run_ctx().total_loss()
    assert isinstance(total, Tensor)
    return total


def _draw_independently(model: rf.Module) -> None:
    """Have dropout draw every entry by itself, as torch.nn.Dropout does. By default, batch and time share the draws."""
    for module in model.modules():
        if hasattr(module, "dropout_broadcast"):
            module.dropout_broadcast = False  # type: ignore[attr-defined]


def _floats(backend: Backend, array: numpy.ndarray) -> Any:
    """A raw array of the default float dtype."""
    return backend.from_numpy(array, rf.get_default_float_dtype())


def _to_torch(*arrays: numpy.ndarray) -> list[Any]:
    """Tensors of torch's own, integers as int64, others of the default dtype."""
    import torch

    return [torch.tensor(a, dtype=torch.int64 if a.dtype.kind == "i" else torch.get_default_dtype()) for a in arrays]


def _ignore_padding(targets: numpy.ndarray, lengths: numpy.ndarray) -> numpy.ndarray:
    """What F.cross_entropy leaves out, in the padding."""
    return numpy.where(numpy.arange(targets.shape[1]) < lengths[:, None], targets, -100)


# -- Conformer encoder


@dataclass(frozen=True)
class ConformerSize:
    num_layers: int
    model_dim: int
    ff_dim: int
    num_heads: int
    kernel_size: int
    batch: int
    time: int
    padding: bool = True

    def data(self) -> tuple[numpy.ndarray, ...]:
        """Input, lengths, target of the output."""
        data, lengths = Data(), Data.lengths(self.batch, self.time)
        if not self.padding:
            lengths = numpy.full_like(lengths, self.time)
        shape = self.batch, self.time, self.model_dim
        return data.floats(*shape, lengths=lengths), lengths, data.floats(*shape, lengths=lengths)


def _conformer_rf(backend: Backend, size: ConformerSize, dropout: float) -> RfModel:
    features, lengths, wanted = size.data()
    raw_x, raw_target = _floats(backend, features), _floats(backend, wanted)
    batch, time, feature = Dim(None, name="batch"), Dim(None, name="time"), Dim(size.model_dim, name="model")
    model = ConformerEncoder(
        feature,
        feature,
        num_layers=size.num_layers,
        input_layer=None,
        input_dropout=dropout,
        ff_dim=Dim(size.ff_dim, name="ff"),
        dropout=dropout,
        conv_kernel_size=size.kernel_size,
        num_heads=size.num_heads,
        att_dropout=dropout,
    )
    _draw_independently(model)
    dims = batch, time, feature

    def run() -> Tensor:
        batch.fill(size.batch)
        time.fill(lengths, [batch])
        x = rf.convert_to_tensor(raw_x, dims=dims, feature_dim=feature)
        return model(x, in_spatial_dim=time)[0]

    def forward() -> Tensor:
        rf.init_forward_step_run_ctx()
        return run()

    def loss() -> Tensor:
        rf.init_train_step_run_ctx(train_flag=True)
        out = run()
        target = rf.convert_to_tensor(raw_target, dims=dims, feature_dim=feature)
        return _as_step(rf.squared_difference(out, target))

    return RfModel(model, dims, forward, loss)


def _conformer_torch(size: ConformerSize, dropout: float) -> Reference:
    from rf.bench import _torch_conformer

    x, lengths, target = _to_torch(*size.data())
    model = _torch_conformer.ConformerEncoder(
        num_layers=size.num_layers,
        model_dim=size.model_dim,
        ff_dim=size.ff_dim,
        num_heads=size.num_heads,
        kernel_size=size.kernel_size,
        dropout=dropout,
    )
    return Reference(model, _torch_conformer.from_rf, lambda: model(x, lengths), lambda: model.loss(x, lengths, target))


def _conformer_keras(size: ConformerSize, dropout: float) -> Reference:
    import tensorflow as tf

    from rf.bench import _keras_conformer

    features, lengths, wanted = size.data()
    dtype = rf.get_default_float_dtype()
    x, target = (tf.constant(a, dtype) for a in (features, wanted))
    raw_lengths = tf.constant(lengths)
    model = _keras_conformer.ConformerEncoder(
        num_layers=size.num_layers,
        model_dim=size.model_dim,
        ff_dim=size.ff_dim,
        num_heads=size.num_heads,
        kernel_size=size.kernel_size,
        dropout=dropout,
    )
    model(x, raw_lengths)  # Keras makes the variables when it sees the input.
    return Reference(
        model,
        _keras_conformer.from_rf,
        lambda: model(x, raw_lengths),
        lambda: model.masked_loss(x, raw_lengths, target),
    )


# -- Transformer decoder


@dataclass(frozen=True)
class DecoderSize:
    num_layers: int
    model_dim: int
    ff_dim: int
    num_heads: int
    vocab_dim: int
    batch: int
    time: int
    encoder_time: int
    num_steps: int = 64

    def data(self) -> tuple[numpy.ndarray, ...]:
        """Labels, their lengths, targets, encoder, its lengths."""
        data, encoder_lengths = Data(), Data.lengths(self.batch, self.encoder_time)
        encoder = data.floats(self.batch, self.encoder_time, self.model_dim, lengths=encoder_lengths)
        labels = data.labels(self.vocab_dim, self.batch, self.time + 1)
        return labels[:, :-1], Data.lengths(self.batch, self.time), labels[:, 1:], encoder, encoder_lengths


class _DecoderRf:
    """The decoder, and the batch as Tensors."""

    def __init__(self, backend: Backend, size: DecoderSize, dropout: float) -> None:
        self.size = size
        labels, self.lengths, targets, encoder, self.encoder_lengths = size.data()
        self.raw_labels, self.raw_targets = backend.from_numpy(labels, "int32"), backend.from_numpy(targets, "int32")
        self.raw_encoder = _floats(backend, encoder)
        self.batch, self.time = Dim(None, name="batch"), Dim(None, name="time")
        self.encoder_time = Dim(None, name="encoder_time")
        self.encoder_dim, self.vocab = Dim(size.model_dim, name="encoder"), Dim(size.vocab_dim, name="vocab")
        self.model = TransformerDecoder(
            self.encoder_dim,
            self.vocab,
            Dim(size.model_dim, name="model"),
            num_layers=size.num_layers,
            ff_dim=Dim(size.ff_dim, name="ff"),
            dropout=dropout,
            num_heads=size.num_heads,
            att_dropout=dropout,
            # With a shared one, greedy decoding would repeat its first label.
            share_embedding=False,
        )
        _draw_independently(self.model)

    def encoder(self) -> Tensor:
        """Fills the dims of the encoder."""
        self.batch.fill(self.size.batch)
        self.encoder_time.fill(self.encoder_lengths, [self.batch])
        dims = self.batch, self.encoder_time, self.encoder_dim
        return rf.convert_to_tensor(self.raw_encoder, dims=dims, feature_dim=self.encoder_dim)

    def labels(self, raw: Any) -> Tensor:
        """Labels or targets."""
        return rf.convert_to_tensor(raw, dims=(self.batch, self.time), dtype="int32", sparse_dim=self.vocab)

    def logits(self) -> Tensor:
        """Of all labels at once."""
        encoder = self.encoder()
        self.time.fill(self.lengths, [self.batch])
        logits, _ = self.model(
            self.labels(self.raw_labels),
            spatial_dim=self.time,
            state=self.model.default_initial_state(batch_dims=[self.batch]),
            encoder=self.model.transform_encoder(encoder, axis=self.encoder_time),
        )
        return logits


def _decoder_rf(backend: Backend, size: DecoderSize, dropout: float) -> RfModel:
    decoder = _DecoderRf(backend, size, dropout)

    def forward() -> Tensor:
        rf.init_forward_step_run_ctx()
        return decoder.logits()

    def loss() -> Tensor:
        rf.init_train_step_run_ctx(train_flag=True)
        logits = decoder.logits()
        targets = decoder.labels(decoder.raw_targets)
        return _as_step(rf.cross_entropy(estimated=logits, target=targets, axis=decoder.vocab, estimated_type="logits"))

    return RfModel(decoder.model, (decoder.batch, decoder.time, decoder.vocab), forward, loss)


def _greedy_rf(backend: Backend, size: DecoderSize, dropout: float) -> RfModel:
    decoder = _DecoderRf(backend, size, dropout)
    # Greater than at the start of a training, so that a label depends on those before it and does not just repeat them.
    embedding = decoder.model.input_embedding
    assert isinstance(embedding, rf.Embedding)
    embedding.weight.assign(embedding.weight * 3.0)
    batch, model, steps = decoder.batch, decoder.model, Dim(size.num_steps, name="steps")

    def forward() -> Tensor:
        rf.init_forward_step_run_ctx()
        encoder = model.transform_encoder(decoder.encoder(), axis=decoder.encoder_time)
        state = model.default_initial_state(batch_dims=[batch])
        labels = rf.zeros([batch], dtype="int32", sparse_dim=decoder.vocab)
        out = []
        for _ in range(size.num_steps):
            logits, state = model(labels, spatial_dim=rf.single_step_dim, state=state, encoder=encoder)
            labels = rf.reduce_argmax(logits, axis=decoder.vocab)
            out.append(labels)
        return rf.stack(out, out_dim=steps)[0]

    return RfModel(model, (batch, steps), forward)


def _decoder_of_torch(size: DecoderSize, dropout: float) -> Any:
    from rf.bench import _torch_decoder

    return _torch_decoder.TransformerDecoder(
        encoder_dim=size.model_dim,
        vocab_dim=size.vocab_dim,
        num_layers=size.num_layers,
        model_dim=size.model_dim,
        ff_dim=size.ff_dim,
        num_heads=size.num_heads,
        dropout=dropout,
    )


def _decoder_torch(size: DecoderSize, dropout: float) -> Reference:
    from rf.bench import _torch_decoder

    labels, lengths, targets, encoder, encoder_lengths = size.data()
    inputs = _to_torch(labels, encoder, encoder_lengths)
    (target,) = _to_torch(_ignore_padding(targets, lengths))
    model = _decoder_of_torch(size, dropout)
    return Reference(model, _torch_decoder.from_rf, lambda: model(*inputs), lambda: model.loss(*inputs, target))


def _greedy_torch(size: DecoderSize, dropout: float) -> Reference:
    from rf.bench import _torch_decoder

    first, encoder, lengths = _to_torch(numpy.zeros(size.batch, dtype="int32"), *size.data()[3:])
    model = _decoder_of_torch(size, dropout)
    return Reference(model, _torch_decoder.from_rf, lambda: model.greedy(first, encoder, lengths, size.num_steps))


# -- LSTM language model


@dataclass(frozen=True)
class LstmSize:
    num_layers: int
    embed_dim: int
    hidden_dim: int
    vocab_dim: int
    batch: int
    time: int

    def data(self) -> tuple[numpy.ndarray, ...]:
        """Labels, their lengths, targets."""
        labels = Data().labels(self.vocab_dim, self.batch, self.time + 1)
        return labels[:, :-1], Data.lengths(self.batch, self.time), labels[:, 1:]


def _lstm_rf(backend: Backend, size: LstmSize, dropout: float) -> RfModel:
    labels, lengths, targets = size.data()
    raw_labels, raw_targets = backend.from_numpy(labels, "int32"), backend.from_numpy(targets, "int32")
    batch, time, vocab = Dim(None, name="batch"), Dim(None, name="time"), Dim(size.vocab_dim, name="vocab")
    hidden = [Dim(size.hidden_dim, name=f"hidden{i}") for i in range(size.num_layers)]
    model = models_rf.LstmLanguageModel(vocab, Dim(size.embed_dim, name="embed"), hidden, dropout=dropout)

    def tensor(raw: Any) -> Tensor:
        return rf.convert_to_tensor(raw, dims=(batch, time), dtype="int32", sparse_dim=vocab)

    def run() -> Tensor:
        batch.fill(size.batch)
        time.fill(lengths, [batch])
        return model(tensor(raw_labels), spatial_dim=time)

    def forward() -> Tensor:
        rf.init_forward_step_run_ctx()
        return run()

    def loss() -> Tensor:
        rf.init_train_step_run_ctx(train_flag=True)
        logits = run()
        return _as_step(
            rf.cross_entropy(estimated=logits, target=tensor(raw_targets), axis=vocab, estimated_type="logits")
        )

    return RfModel(model, (batch, time, vocab), forward, loss)


def _lstm_torch(size: LstmSize, dropout: float) -> Reference:
    from rf.bench import _torch_lstm

    labels, lengths, targets = size.data()
    (x,), (target,) = _to_torch(labels), _to_torch(_ignore_padding(targets, lengths))
    model = _torch_lstm.LstmLanguageModel(
        vocab_dim=size.vocab_dim,
        embed_dim=size.embed_dim,
        hidden_dim=size.hidden_dim,
        num_layers=size.num_layers,
        dropout=dropout,
    )
    return Reference(model, _torch_lstm.language_model_from_rf, lambda: model(x), lambda: model.loss(x, target))


# -- loop over an LSTM cell, and a feed-forward block: of static dims, {batch, time, in} -> {batch, time, out}


@dataclass(frozen=True)
class FramesSize:
    in_dim: int
    inner_dim: int
    out_dim: int
    batch: int
    time: int

    def data(self) -> tuple[numpy.ndarray, ...]:
        """Input, target of the output."""
        data = Data()
        return data.floats(self.batch, self.time, self.in_dim), data.floats(self.batch, self.time, self.out_dim)


def _frames_rf(
    backend: Backend, size: FramesSize, dims: Sequence[Dim], out_dim: Dim, model: Any, **options: Any
) -> Any:
    batch, time, in_dim = dims
    raw_x, raw_target = (_floats(backend, a) for a in size.data())

    def run() -> Tensor:
        return model(rf.convert_to_tensor(raw_x, dims=dims, feature_dim=in_dim), **options)

    def forward() -> Tensor:
        rf.init_forward_step_run_ctx()
        return run()

    def loss() -> Tensor:
        rf.init_train_step_run_ctx(train_flag=True)
        target = rf.convert_to_tensor(raw_target, dims=(batch, time, out_dim), feature_dim=out_dim)
        return _as_step(rf.squared_difference(run(), target))

    return RfModel(model, (batch, time, out_dim), forward, loss)


def _cell_loop_rf(backend: Backend, size: FramesSize, dropout: float) -> RfModel:
    dims = Dim(size.batch, name="batch"), Dim(size.time, name="time"), Dim(size.in_dim, name="in")
    hidden = Dim(size.out_dim, name="hidden")
    model = models_rf.LstmCellLoop(dims[-1], hidden)
    return _frames_rf(backend, size, dims, hidden, model, spatial_dim=dims[1])


def _cell_loop_torch(size: FramesSize, dropout: float) -> Reference:
    from rf.bench import _torch_lstm

    x, target = _to_torch(*size.data())
    dims: dict[str, Any] = {"in_dim": size.in_dim, "hidden_dim": size.out_dim}
    loop, layer = _torch_lstm.LstmCellLoop(**dims), _torch_lstm.LstmLayer(**dims)
    traced = _torch_lstm.LstmCellLoop(**dims, make_cell=_torch_lstm.traced_cell)

    def side(model: Any, from_rf: Any, **others: Reference) -> Reference:
        return Reference(model, from_rf, lambda: model(x), lambda: model.loss(x, target), others)

    others = {
        "torch.nn.LSTM": side(layer, _torch_lstm.layer_from_rf),
        "TorchScript": side(traced, _torch_lstm.cell_loop_from_rf),
    }
    return side(loop, _torch_lstm.cell_loop_from_rf, **others)


def _feed_forward_rf(backend: Backend, size: FramesSize, dropout: float) -> RfModel:
    dims = Dim(size.batch, name="batch"), Dim(size.time, name="time"), Dim(size.in_dim, name="model")
    model = models_rf.FeedForwardBlock(dims[-1], Dim(size.inner_dim, name="ff"), dropout=dropout)
    return _frames_rf(backend, size, dims, dims[-1], model)


def _feed_forward_torch(size: FramesSize, dropout: float) -> Reference:
    from rf.bench import _torch_feed_forward

    x, target = _to_torch(*size.data())
    model = _torch_feed_forward.FeedForwardBlock(model_dim=size.in_dim, ff_dim=size.inner_dim, dropout=dropout)
    return Reference(model, _torch_feed_forward.from_rf, lambda: model(x), lambda: model.loss(x, target))


# -- ResNet-18


@dataclass(frozen=True)
class ResNetSize:
    width: int
    num_classes: int
    batch: int
    image: int = 32

    def data(self) -> tuple[numpy.ndarray, ...]:
        """Images, targets."""
        data = Data()
        images = data.floats(self.batch, 3, self.image, self.image)
        return images, data.labels(self.num_classes, self.batch)


def _resnet_rf(backend: Backend, size: ResNetSize, dropout: float) -> RfModel:
    images, targets = size.data()
    raw_x, raw_targets = _floats(backend, images), backend.from_numpy(targets, "int32")
    batch, channels, classes = Dim(None, name="batch"), Dim(3, name="channels"), Dim(size.num_classes, name="classes")
    height, width = Dim(size.image, name="height"), Dim(size.image, name="width")
    model = models_rf.ResNet18(channels, classes, width=size.width)

    def run() -> Tensor:
        batch.fill(size.batch)
        x = rf.convert_to_tensor(raw_x, dims=(batch, channels, height, width), feature_dim=channels)
        return model(x, spatial_dims=[height, width])

    def forward() -> Tensor:
        rf.init_forward_step_run_ctx()
        return run()

    def loss() -> Tensor:
        rf.init_train_step_run_ctx(train_flag=True)
        logits = run()
        target = rf.convert_to_tensor(raw_targets, dims=[batch], dtype="int32", sparse_dim=classes)
        return _as_step(rf.cross_entropy(estimated=logits, target=target, axis=classes, estimated_type="logits"))

    return RfModel(model, (batch, classes), forward, loss)


def _resnet_torch(size: ResNetSize, dropout: float) -> Reference:
    from rf.bench import _torch_resnet

    x, target = _to_torch(*size.data())
    model = _torch_resnet.ResNet18(width=size.width, num_classes=size.num_classes)
    return Reference(model, _torch_resnet.from_rf, lambda: model(x), lambda: model.loss(x, target))


# -- the table


def _targets(realistic: float = 1.0, **tiny: float) -> dict[tuple[str, str], float]:
    """The ratios aimed at: for each step at the tiny size, and for all at the realistic one."""
    at_tiny = {(step, "tiny"): value for step, value in tiny.items()}
    return at_tiny | {(step, "realistic"): realistic for step in ("forward", "train")}


_DECODER_SIZES = {
    "tiny": DecoderSize(4, 16, 32, 2, vocab_dim=50, batch=2, time=10, encoder_time=20),
    "realistic": DecoderSize(6, 512, 2048, 8, vocab_dim=10_000, batch=8, time=40, encoder_time=100),
}

CASES = [
    Case(
        "Conformer encoder",
        "layers with relative positions, lengths respected by attention, convolution and batch norm",
        {
            "tiny": ConformerSize(4, 16, 32, 2, kernel_size=7, batch=2, time=20),
            "realistic": ConformerSize(12, 512, 2048, 8, kernel_size=31, batch=4, time=128),
        },
        _conformer_rf,
        _conformer_torch,
        _targets(forward=0.6, train=0.75),
        keras=_conformer_keras,
        keras_targets={("forward", "tiny"): 0.3},
    ),
    Case(
        "Conformer encoder, no padding",
        "the same, all sequences of the same length",
        {
            "tiny": ConformerSize(4, 16, 32, 2, kernel_size=7, batch=2, time=20, padding=False),
            "realistic": ConformerSize(12, 512, 2048, 8, kernel_size=31, batch=4, time=128, padding=False),
        },
        _conformer_rf,
        _conformer_torch,
        _targets(forward=0.6, train=0.75),
    ),
    Case(
        "Transformer decoder",
        "causal self-attention, cross-attention, cross entropy",
        _DECODER_SIZES,
        _decoder_rf,
        _decoder_torch,
        _targets(train=0.75),
    ),
    Case(
        "Transformer decoder, no dropout",
        "the same with dropout 0",
        _DECODER_SIZES,
        _decoder_rf,
        _decoder_torch,
        _targets(train=0.75),
        steps=("train",),
        dropout=0.0,
    ),
    Case(
        "greedy decoding",
        "64 labels of the Transformer decoder, keys and values kept",
        _DECODER_SIZES,
        _greedy_rf,
        _greedy_torch,
        _targets(forward=0.5, realistic=0.8),
        steps=("forward",),
        dropout=0.0,
    ),
    Case(
        "LSTM language model",
        "two layers, cross entropy",
        {
            "tiny": LstmSize(2, 16, 16, vocab_dim=50, batch=2, time=20),
            "realistic": LstmSize(2, 512, 1024, vocab_dim=10_000, batch=16, time=50),
        },
        _lstm_rf,
        _lstm_torch,
        _targets(forward=1.0, train=1.0),
    ),
    Case(
        "LSTM cell loop",
        "one layer, a call for each frame, against torch.nn.LSTMCell",
        {"tiny": FramesSize(16, 0, 16, batch=2, time=20), "realistic": FramesSize(512, 0, 512, batch=16, time=100)},
        _cell_loop_rf,
        _cell_loop_torch,
        _targets(forward=0.6, train=0.75),
        dropout=0.0,
    ),
    Case(
        "ResNet-18",
        "images of 32x32, cross entropy",
        {"tiny": ResNetSize(8, 10, batch=2), "realistic": ResNetSize(64, 10, batch=16)},
        _resnet_rf,
        _resnet_torch,
        _targets(forward=0.8, train=0.9),
        dropout=0.0,
    ),
    Case(
        "feed-forward block",
        "norm, linear, gelu, linear, dropout, residual",
        {"tiny": FramesSize(16, 32, 16, batch=2, time=20), "realistic": FramesSize(512, 2048, 512, batch=8, time=200)},
        _feed_forward_rf,
        _feed_forward_torch,
        _targets(forward=0.6, train=0.75),
    ),
]
