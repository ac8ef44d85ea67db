"""A Conformer encoder with CTC, and an attention decoder on top: the standard end-to-end model of speech recognition.

CTC: Graves et al. 2006. Encoder: Gulati et al. 2020, arXiv:2005.08100. Decoder and joint training: Watanabe et al.
2017, with a Transformer as decoder.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy

import rf
from rf import Dim, Tensor
from rf.decoder.transformer import TransformerDecoder
from rf.encoder.conformer import ConformerConvSubsample, ConformerEncoder
from rf.models.base import Model
from rf.models.beam_search import beam_search

__all__ = ["ConformerCtcAed", "ConformerCtcAedConfig"]


@dataclass(frozen=True)
class ConformerCtcAedConfig:
    """Size and training of a `ConformerCtcAed`.

    :param sampling_rate: samples per second of the audio, in Hz; None: the inputs are features.
    :param num_mel: features per frame that are made of audio.
    :param encoder_dim: features of the encoder.
    :param num_encoder_layers: Conformer layers.
    :param decoder_dim: features of the decoder.
    :param num_decoder_layers: Transformer layers.
    :param num_heads: of all attentions.
    :param ff_factor: inner dim of the feed-forward blocks, as multiple of the dim of the layer.
    :param conv_kernel_size: of the convolution blocks, in encoder frames.
    :param subsampling: how many frames become one: a power of two.
    :param subsampling_channels: channels of the convolutions that do that.
    :param dropout: probability, in training, everywhere.
    :param label_smoothing: part of the probability that goes to the other labels, in the gradient of the decoder's
        loss.
    :param ctc_scale: factor of the CTC loss.
    :param aed_scale: factor of the decoder's loss.
    :param augment: SpecAugment in training.
    """

    sampling_rate: int | None = None
    num_mel: int = 40
    encoder_dim: int = 128
    num_encoder_layers: int = 4
    decoder_dim: int = 128
    num_decoder_layers: int = 2
    num_heads: int = 4
    ff_factor: int = 4
    conv_kernel_size: int = 15
    subsampling: int = 4
    subsampling_channels: int = 32
    dropout: float = 0.1
    label_smoothing: float = 0.1
    ctc_scale: float = 1.0
    aed_scale: float = 1.0
    augment: bool = True


class ConformerCtcAed(Model):
    """See the module docstring. Children: `encoder`, `ctc` (labels, then blank), `decoder` (labels, then begin/end of
    sequence).
    """

    config_class: ClassVar = ConformerCtcAedConfig
    presets: ClassVar = {
        "tiny": ConformerCtcAedConfig(
            encoder_dim=32,
            num_encoder_layers=2,
            decoder_dim=32,
            num_decoder_layers=1,
            num_heads=2,
            conv_kernel_size=7,
            subsampling_channels=8,
        ),
        "small": ConformerCtcAedConfig(),
        "medium": ConformerCtcAedConfig(
            num_mel=80,
            encoder_dim=256,
            num_encoder_layers=12,
            decoder_dim=256,
            num_decoder_layers=6,
            conv_kernel_size=31,
            subsampling_channels=64,
        ),
    }
    overridable: ClassVar = ("dropout", "augment")

    def __init__(self, config: ConformerCtcAedConfig, *, feature_dim: Dim | None, label_dim: Dim) -> None:
        """
        :param config: size; `sampling_rate` must be given exactly if there is no `feature_dim`.
        :param feature_dim: of the inputs; None for audio.
        :param label_dim: labels of the targets.
        """
        super().__init__(config, feature_dim=feature_dim, label_dim=label_dim)
        if (feature_dim is None) != (config.sampling_rate is not None):
            raise rf.RfError(
                f"ConformerCtcAed: feature_dim={feature_dim!r}, sampling_rate={config.sampling_rate}: give one of them"
            )
        if config.subsampling < 1 or config.subsampling & (config.subsampling - 1):
            raise rf.RfError(f"ConformerCtcAed: subsampling must be a power of two, got {config.subsampling}")
        num_labels = label_dim.get_dim_value()
        self.in_dim = Dim(config.num_mel, name="mel") if feature_dim is None else feature_dim
        self.blank_index = self.eos_index = num_labels
        self.label_and_blank_dim = Dim(num_labels + 1, name="label-or-blank")
        self.label_and_eos_dim = Dim(num_labels + 1, name="label-or-eos")
        num_convs = config.subsampling.bit_length() - 1
        self.encoder = ConformerEncoder(
            self.in_dim,
            Dim(config.encoder_dim, name="encoder"),
            num_layers=config.num_encoder_layers,
            input_layer=ConformerConvSubsample(
                self.in_dim,
                out_dims=[config.subsampling_channels] * max(1, num_convs),
                filter_sizes=[3] * max(1, num_convs),
                strides=[2] * num_convs or [1],
            ),
            input_dropout=config.dropout,
            ff_dim=Dim(config.ff_factor * config.encoder_dim, name="encoder-ff"),
            dropout=config.dropout,
            conv_kernel_size=config.conv_kernel_size,
            num_heads=config.num_heads,
            att_dropout=config.dropout,
        )
        self.ctc = rf.Linear(self.encoder.out_dim, self.label_and_blank_dim)
        self.decoder = TransformerDecoder(
            self.encoder.out_dim,
            self.label_and_eos_dim,
            Dim(config.decoder_dim, name="decoder"),
            num_layers=config.num_decoder_layers,
            ff_dim=Dim(config.ff_factor * config.decoder_dim, name="decoder-ff"),
            dropout=config.dropout,
            num_heads=config.num_heads,
            att_dropout=config.dropout,
        )

    def encode(self, inputs: Tensor, in_spatial_dim: Dim) -> tuple[Tensor, Dim]:
        """Encoder frames: {batch, in_spatial(, feature)} -> ({batch, time, encoder}, time).

        Audio becomes log-mel features, normalized over each sequence. n feature frames give ceil(n / subsampling)
        encoder frames.
        """
        if self.config.sampling_rate is not None:
            features, time_dim = rf.audio.log_mel_filterbank_from_raw(
                inputs, in_spatial_dim=in_spatial_dim, out_dim=self.in_dim, sampling_rate=self.config.sampling_rate
            )
            features = rf.normalize(features, axis=time_dim)
        else:
            features, time_dim = inputs, in_spatial_dim
        if self.config.augment:
            features = rf.audio.specaugment(features, spatial_dim=time_dim, feature_dim=self.in_dim)
        return self.encoder(features, in_spatial_dim=time_dim)

    def ctc_logits(self, encoded: Tensor) -> Tensor:
        """Scores of labels and blank for each encoder frame: {..., encoder} -> {..., label-or-blank}."""
        return self.ctc(encoded)

    def train_step(self, inputs: Tensor, in_spatial_dim: Dim, targets: Tensor, targets_spatial_dim: Dim) -> None:
        """Marks the losses `ctc` (per label) and `ce` (of the decoder, per label and end of sequence), and the error
        `label_error`: how many of the decoder's best labels are wrong, given the true labels before them.

        A sequence that has too few frames for its labels counts as CTC loss 0. See `Model.train_step` for the
        arguments.
        """
        encoded, time_dim = self.encode(inputs, in_spatial_dim)
        ctx = rf.get_run_ctx()
        ctc = rf.ctc_loss(
            logits=self.ctc_logits(encoded),
            targets=targets,
            input_spatial_dim=time_dim,
            targets_spatial_dim=targets_spatial_dim,
            blank_index=self.blank_index,
        )
        ctc = rf.where(rf.is_finite(ctc), ctc, 0.0)
        num_labels = rf.maximum(targets_spatial_dim.get_size_tensor(device=ctc.device), 1)
        ctx.mark_as_loss(
            ctc, "ctc", scale=self.config.ctc_scale, custom_inv_norm_factor=num_labels, use_normalized_loss=True
        )
        logits, wanted, _ = self.decoder_logits(encoded, time_dim, targets, targets_spatial_dim)
        log_prob = rf.log_softmax(logits, axis=self.label_and_eos_dim)
        if self.config.label_smoothing:
            log_prob = rf.label_smoothed_log_prob_gradient(
                log_prob, self.config.label_smoothing, axis=self.label_and_eos_dim
            )
        ce = rf.cross_entropy(
            estimated=log_prob, target=wanted, axis=self.label_and_eos_dim, estimated_type="log-probs"
        )
        ctx.mark_as_loss(ce, "ce", scale=self.config.aed_scale, use_normalized_loss=True)
        best = rf.reduce_argmax(logits, axis=self.label_and_eos_dim)
        ctx.mark_as_loss(rf.cast(best != wanted, "float32"), "label_error", as_error=True)

    def decoder_logits(
        self, encoded: Tensor, time_dim: Dim, targets: Tensor, targets_spatial_dim: Dim
    ) -> tuple[Tensor, Tensor, Dim]:
        """Scores of the decoder, given the true labels.

        :returns: (logits {batch, labels + 1, label-or-eos}, what is wanted {batch, labels + 1}: the targets and the end
            of sequence, the dim of labels + 1).
        """
        targets = rf.set_sparse_dim(targets, self.label_and_eos_dim)
        wanted, (dim,) = rf.pad(targets, axes=[targets_spatial_dim], padding=[(0, 1)], value=self.eos_index)
        given, _ = rf.pad(targets, axes=[targets_spatial_dim], padding=[(1, 0)], value=self.eos_index, out_dims=[dim])
        logits, _ = self.decoder(
            given,
            spatial_dim=dim,
            state=self.decoder.default_initial_state(
                batch_dims=encoded.remaining_dims((time_dim, self.encoder.out_dim))
            ),
            encoder=self.decoder.transform_encoder(encoded, axis=time_dim),
        )
        return logits, wanted, dim

    def greedy_ctc(self, inputs: Tensor, in_spatial_dim: Dim) -> list[list[int]]:
        """The best class of each encoder frame, without repetitions and blanks; a list of label indices for each
        sequence.
        """
        with rf.stop_gradient_scope():
            encoded, time_dim = self.encode(inputs, in_spatial_dim)
            best = rf.reduce_argmax(self.ctc_logits(encoded), axis=self.label_and_blank_dim)
        batch_dim = _batch_dim(best, time_dim)
        frames = best.copy_transpose([batch_dim, time_dim]).numpy()
        lengths = numpy.broadcast_to(time_dim.get_sizes().values, len(frames))
        return [_without_repetitions(row[:n], self.blank_index) for row, n in zip(frames, lengths)]

    def beam_search(self, inputs: Tensor, in_spatial_dim: Dim, *, beam_size: int = 8) -> list[list[int]]:
        """The labels of each sequence, by beam search with the decoder; at most as many as there are encoder frames.

        Of finished hypotheses, the one with the greatest log probability per label (the end included) is chosen. A
        sequence gets the same result alone and in any batch.
        """
        with rf.stop_gradient_scope():
            encoded, time_dim = self.encode(inputs, in_spatial_dim)
            batch_dim = _batch_dim(encoded, time_dim, self.encoder.out_dim)
            encoder = self.decoder.transform_encoder(encoded, axis=time_dim)

            def step(labels: Tensor, state: rf.State) -> tuple[Tensor, rf.State]:
                logits, state = self.decoder(labels, spatial_dim=rf.single_step_dim, state=state, encoder=encoder)
                return rf.log_softmax(logits, axis=self.label_and_eos_dim), state

            return beam_search(
                step,
                lambda dims: self.decoder.default_initial_state(batch_dims=dims),
                batch_dim=batch_dim,
                label_dim=self.label_and_eos_dim,
                bos_index=self.eos_index,
                eos_index=self.eos_index,
                max_lengths=numpy.broadcast_to(time_dim.get_sizes().values, batch_dim.get_dim_value()),
                beam_size=beam_size,
                device=encoded.device,
            )


def _batch_dim(x: Tensor, *others: Dim) -> Dim:
    rest = x.remaining_dims(others)
    if len(rest) != 1:
        raise rf.DimError(f"decoding needs exactly one batch dim, got {rest} of {x!r}")
    return rest[0]


def _without_repetitions(frames: Any, blank: int) -> list[int]:
    new = numpy.ones(len(frames), dtype=bool)
    new[1:] = frames[1:] != frames[:-1]
    return [int(c) for c in frames[new & (frames != blank)]]
