"""The models of the benchmark in RETURNN's frontend, on its torch backend, with the batch that they get.

Every model here has `module`, the parameters as a torch.nn.Module, named and laid out as in rf; `forward`, the result
outside training as a torch.Tensor; and most have `loss`, that of a training step. Each call starts from tensors of
torch and sets the sizes of the dims anew, as a training of RETURNN does for each batch.

RETURNN has one state for the whole process (backend, behavior version, default dtype), which `set_up` and the models
set. It changes nothing of torch.
"""

# Of the extra `peers`, which checks are made without.
# pyright: reportMissingImports=false

from __future__ import annotations

import contextlib
import inspect
import io
import sys
import warnings
from functools import cache
from typing import Any

import returnn.frontend as rf
import torch
from returnn import __version__
from returnn.frontend import _native
from returnn.frontend.decoder.transformer import TransformerDecoder
from returnn.frontend.encoder.conformer import ConformerEncoder
from returnn.tensor import Dim, Tensor, single_step_dim
from returnn.torch.frontend import TorchBackend
from returnn.torch.frontend.bridge import rf_module_to_pt_module
from returnn.util.basic import BehaviorVersion

from rf.bench._returnn_modules import FeedForwardBlock, LstmCellLoop, LstmLanguageModel

__all__ = ["CellLoop", "Conformer", "Decoder", "FeedForward", "Greedy", "LanguageModel", "set_up"]

BEHAVIOR_VERSION = 38
"""Latest when this was written. From 29 on, lengths are respected wherever rf respects them."""


@cache
def set_up() -> str:
    """Select RETURNN's torch backend, with its native code, which a C++ compiler builds at first use (about 15 s).

    :returns: version, and whether the native code is on.
    """
    said = io.StringIO()
    with warnings.catch_warnings(), contextlib.redirect_stdout(said):
        warnings.simplefilter("ignore", ResourceWarning)  # it leaves the closing of its sources to Python
        _native.set_enabled(True)  # else, the part for torch stays off
        rf.select_backend_torch()
    BehaviorVersion.set(BEHAVIOR_VERSION)
    # Each is replaced by a function in C++.
    native = inspect.isbuiltin(rf.add) and inspect.isbuiltin(TorchBackend.expand_raw)
    if not native:
        sys.stderr.write(said.getvalue())
    return f"{__version__}, native code {'on' if native else 'off, which makes it slower than it can be'}"


class _Model:
    """What all models share."""

    def __init__(self) -> None:
        set_up()
        rf.set_default_float_dtype(str(torch.get_default_dtype()).removeprefix("torch."))
        self.batch = Dim(None, name="batch")

    def _adopt(self, model: Any) -> Any:
        """Have dropout draw every entry by itself, and give the parameters to torch."""
        for module in model.modules():
            for name in ("dropout_broadcast", "att_dropout_broadcast"):
                if hasattr(module, name):
                    setattr(module, name, False)
        self.module = rf_module_to_pt_module(model)
        return model

    def _set_batch(self, size: int) -> None:
        self.batch.reset_eager()
        self.batch.dyn_size_ext = Tensor(
            "batch", dims=[], dtype="int32", raw_tensor=torch.tensor(size, dtype=torch.int32)
        )

    def _set_lengths(self, dim: Dim, lengths: torch.Tensor) -> None:
        dim.reset_eager()
        dim.dyn_size_ext = Tensor(dim.name, dims=[self.batch], dtype="int32", raw_tensor=lengths)


def _tensor(raw: torch.Tensor, *dims: Dim) -> Tensor:
    """Features."""
    return rf.convert_to_tensor(raw, dims=dims, feature_dim=dims[-1])


def _labels(raw: torch.Tensor, vocab: Dim, *dims: Dim) -> Tensor:
    return rf.convert_to_tensor(raw, dims=dims, sparse_dim=vocab)


def _raw(x: Tensor, *dims: Dim) -> torch.Tensor:
    """The array with its axes in that order."""
    return x.copy_transpose(dims).raw_tensor


def _step_loss(loss: Tensor) -> torch.Tensor:
    """The mean over valid frames of a loss of the step that has been begun."""
    loss.mark_as_loss("loss", use_normalized_loss=True)
    return rf.get_run_ctx().total_loss().raw_tensor


def _cross_entropy(logits: Tensor, targets: Tensor, vocab: Dim) -> torch.Tensor:
    return _step_loss(rf.cross_entropy(estimated=logits, target=targets, axis=vocab, estimated_type="logits"))


class Conformer(_Model):
    """(batch, time, model) -> (batch, time, model)."""

    def __init__(
        self,
        x: torch.Tensor,
        lengths: torch.Tensor,
        target: torch.Tensor,
        *,
        num_layers: int,
        ff_dim: int,
        num_heads: int,
        kernel_size: int,
        dropout: float,
    ) -> None:
        super().__init__()
        self.x, self.lengths, self.target = x, lengths, target
        self.time, self.feature = Dim(None, name="time"), Dim(x.shape[2], name="model")
        self.dims = self.batch, self.time, self.feature
        self.model = self._adopt(
            ConformerEncoder(
                self.feature,
                self.feature,
                num_layers=num_layers,
                input_layer=None,
                input_dropout=dropout,
                ff_dim=Dim(ff_dim, name="ff"),
                dropout=dropout,
                conv_kernel_size=kernel_size,
                num_heads=num_heads,
                att_dropout=dropout,
            )
        )

    def _run(self) -> Tensor:
        self._set_batch(self.x.shape[0])
        self._set_lengths(self.time, self.lengths)
        return self.model(_tensor(self.x, *self.dims), in_spatial_dim=self.time)[0]

    def forward(self) -> torch.Tensor:
        rf.init_forward_step_run_ctx()
        return _raw(self._run(), *self.dims)

    def loss(self) -> torch.Tensor:
        """Mean squared error."""
        rf.init_train_step_run_ctx(train_flag=True)
        out = self._run()
        return _step_loss(rf.squared_difference(out, _tensor(self.target, *self.dims)))


class _Decoder(_Model):
    """The decoder, and its encoder."""

    def __init__(
        self,
        encoder: torch.Tensor,
        encoder_lengths: torch.Tensor,
        *,
        vocab_dim: int,
        num_layers: int,
        ff_dim: int,
        num_heads: int,
        dropout: float,
    ) -> None:
        super().__init__()
        self.raw_encoder, self.encoder_lengths = encoder, encoder_lengths
        self.encoder_time = Dim(None, name="encoder_time")
        self.encoder_dim, self.vocab = Dim(encoder.shape[2], name="encoder"), Dim(vocab_dim, name="vocab")
        self.model = self._adopt(
            TransformerDecoder(
                self.encoder_dim,
                self.vocab,
                Dim(encoder.shape[2], name="model"),
                num_layers=num_layers,
                ff_dim=Dim(ff_dim, name="ff"),
                dropout=dropout,
                num_heads=num_heads,
                att_dropout=dropout,
                share_embedding=False,
            )
        )

    def _encoder(self) -> Any:
        self._set_batch(self.raw_encoder.shape[0])
        self._set_lengths(self.encoder_time, self.encoder_lengths)
        encoder = _tensor(self.raw_encoder, self.batch, self.encoder_time, self.encoder_dim)
        return self.model.transform_encoder(encoder, axis=self.encoder_time)


class Decoder(_Decoder):
    """Labels so far -> scores of the next label: (batch, time) -> (batch, time, vocab)."""

    def __init__(
        self,
        labels: torch.Tensor,
        lengths: torch.Tensor,
        targets: torch.Tensor,
        encoder: torch.Tensor,
        encoder_lengths: torch.Tensor,
        **options: Any,
    ) -> None:
        super().__init__(encoder, encoder_lengths, **options)
        self.labels, self.lengths, self.targets = labels, lengths, targets
        self.time = Dim(None, name="time")

    def _run(self) -> Tensor:
        encoder = self._encoder()
        self._set_lengths(self.time, self.lengths)
        logits, _ = self.model(
            _labels(self.labels, self.vocab, self.batch, self.time),
            spatial_dim=self.time,
            state=self.model.default_initial_state(batch_dims=[self.batch]),
            encoder=encoder,
        )
        return logits

    def forward(self) -> torch.Tensor:
        rf.init_forward_step_run_ctx()
        return _raw(self._run(), self.batch, self.time, self.vocab)

    def loss(self) -> torch.Tensor:
        """Cross entropy."""
        rf.init_train_step_run_ctx(train_flag=True)
        logits = self._run()
        return _cross_entropy(logits, _labels(self.targets, self.vocab, self.batch, self.time), self.vocab)


class Greedy(_Decoder):
    """The best next label, `num_steps` times: (batch, num_steps)."""

    def __init__(self, encoder: torch.Tensor, encoder_lengths: torch.Tensor, num_steps: int, **options: Any) -> None:
        super().__init__(encoder, encoder_lengths, **options)
        self.steps = Dim(num_steps, name="steps")

    def forward(self) -> torch.Tensor:
        rf.init_forward_step_run_ctx()
        encoder = self._encoder()
        state = self.model.default_initial_state(batch_dims=[self.batch])
        labels = rf.zeros([self.batch], dtype="int32", sparse_dim=self.vocab)
        out = []
        for _ in range(self.steps.dimension):
            logits, state = self.model(labels, spatial_dim=single_step_dim, state=state, encoder=encoder)
            labels = rf.reduce_argmax(logits, axis=self.vocab)
            out.append(labels)
        return _raw(rf.stack(out, out_dim=self.steps)[0], self.batch, self.steps)


class LanguageModel(_Model):
    """An LSTM language model: (batch, time) -> (batch, time, vocab)."""

    def __init__(
        self,
        labels: torch.Tensor,
        lengths: torch.Tensor,
        targets: torch.Tensor,
        *,
        vocab_dim: int,
        embed_dim: int,
        hidden_dim: int,
        num_layers: int,
        dropout: float,
    ) -> None:
        super().__init__()
        self.labels, self.lengths, self.targets = labels, lengths, targets
        self.time, self.vocab = Dim(None, name="time"), Dim(vocab_dim, name="vocab")
        hidden = [Dim(hidden_dim, name=f"hidden{i}") for i in range(num_layers)]
        self.model = self._adopt(LstmLanguageModel(self.vocab, Dim(embed_dim, name="embed"), hidden, dropout=dropout))

    def _run(self) -> Tensor:
        self._set_batch(self.labels.shape[0])
        self._set_lengths(self.time, self.lengths)
        return self.model(_labels(self.labels, self.vocab, self.batch, self.time), spatial_dim=self.time)

    def forward(self) -> torch.Tensor:
        rf.init_forward_step_run_ctx()
        return _raw(self._run(), self.batch, self.time, self.vocab)

    def loss(self) -> torch.Tensor:
        """Cross entropy."""
        rf.init_train_step_run_ctx(train_flag=True)
        logits = self._run()
        return _cross_entropy(logits, _labels(self.targets, self.vocab, self.batch, self.time), self.vocab)


class _Frames(_Model):
    """A model of static dims: (batch, time, in) -> (batch, time, out)."""

    model: Any
    dims: tuple[Dim, ...]
    out_dim: Dim

    def __init__(self, x: torch.Tensor, target: torch.Tensor) -> None:
        super().__init__()
        self.x, self.target = x, target
        self.dims = tuple(Dim(n, name=name) for n, name in zip(x.shape, ("batch", "time", "in")))

    def _run(self) -> Tensor:
        return self.model(_tensor(self.x, *self.dims))

    def forward(self) -> torch.Tensor:
        rf.init_forward_step_run_ctx()
        return _raw(self._run(), *self.dims[:2], self.out_dim)

    def loss(self) -> torch.Tensor:
        """Mean squared error."""
        rf.init_train_step_run_ctx(train_flag=True)
        target = _tensor(self.target, *self.dims[:2], self.out_dim)
        return _step_loss(rf.squared_difference(self._run(), target))


class FeedForward(_Frames):
    """A feed-forward block."""

    def __init__(self, x: torch.Tensor, target: torch.Tensor, *, ff_dim: int, dropout: float) -> None:
        super().__init__(x, target)
        self.out_dim = self.dims[2]
        self.model = self._adopt(FeedForwardBlock(self.out_dim, Dim(ff_dim, name="ff"), dropout=dropout))


class CellLoop(_Frames):
    """An LSTM layer, frame by frame."""

    def __init__(self, x: torch.Tensor, target: torch.Tensor, *, hidden_dim: int) -> None:
        super().__init__(x, target)
        self.out_dim = Dim(hidden_dim, name="hidden")
        self.model = self._adopt(LstmCellLoop(self.dims[2], self.out_dim))

    def _run(self) -> Tensor:
        return self.model(_tensor(self.x, *self.dims), spatial_dim=self.dims[1])
