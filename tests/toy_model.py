"""A small model with all that a training has to keep: dropout, running statistics, tied and unused parameters."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import pytest

import rf
from rf import backend, models

NAME = "toy"


@dataclass(frozen=True)
class ToyConfig:
    """:param size: of the hidden layer."""

    sampling_rate: int | None = None
    size: int = 8
    dropout: float = 0.2
    augment: bool = True


class Toy(models.Model):
    """CTC on frames that each see the mean of the sequence, too."""

    config_class: ClassVar = ToyConfig
    presets: ClassVar = {"small": ToyConfig(), "large": ToyConfig(size=12)}
    overridable: ClassVar = ("dropout", "augment")

    def __init__(self, config: ToyConfig, *, feature_dim: rf.Dim | None, label_dim: rf.Dim) -> None:
        super().__init__(config, feature_dim=feature_dim, label_dim=label_dim)
        assert feature_dim is not None
        hidden_dim = rf.Dim(config.size, name="hidden")
        self.out_dim = rf.Dim(label_dim.get_dim_value() + 1, name="label-or-blank")
        self.hidden = rf.Linear(feature_dim, hidden_dim)
        self.norm = rf.BatchNorm(hidden_dim)
        self.out = rf.Linear(hidden_dim, self.out_dim)
        self.tied = self.out
        self.unused = rf.Parameter([hidden_dim])

    def logits(self, inputs: rf.Tensor, time_dim: rf.Dim) -> rf.Tensor:
        """Scores of labels and blank for each frame."""
        x = self.hidden(inputs + rf.reduce_mean(inputs, axis=time_dim))
        x = rf.dropout(rf.relu(self.norm(x)), self.config.dropout)
        return self.out(x)

    def train_step(
        self, inputs: rf.Tensor, in_spatial_dim: rf.Dim, targets: rf.Tensor, targets_spatial_dim: rf.Dim
    ) -> None:
        loss = rf.ctc_loss(
            logits=self.logits(inputs, in_spatial_dim),
            targets=targets,
            input_spatial_dim=in_spatial_dim,
            targets_spatial_dim=targets_spatial_dim,
            blank_index=self.label_dim.get_dim_value(),
        )
        loss.mark_as_loss("ctc", use_normalized_loss=True)

    def greedy_ctc(self, inputs: rf.Tensor, in_spatial_dim: rf.Dim) -> list[list[int]]:
        best = rf.reduce_argmax(self.logits(inputs, in_spatial_dim), axis=self.out_dim)
        rows = best.copy_transpose([rf.batch_dim, in_spatial_dim]).numpy()
        blank = self.label_dim.get_dim_value()
        return [
            [int(c) for i, c in enumerate(row[:n]) if c != blank and (i == 0 or row[i - 1] != c)]
            for row, n in zip(rows, in_spatial_dim.get_sizes().values)
        ]

    def beam_search(self, inputs: rf.Tensor, in_spatial_dim: rf.Dim, *, beam_size: int = 8) -> list[list[int]]:
        return [labels[:beam_size] for labels in self.greedy_ctc(inputs, in_spatial_dim)]


def installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Body of a fixture: gives the name of the model, which is in the registry during the test; torch is selected."""
    monkeypatch.setitem(models.MODELS, NAME, Toy)
    # What a command selects is undone, too.
    monkeypatch.setattr(backend, "_selected", "torch")
    backend.get_backend("torch")  # what loading it prints is not the command's
    yield NAME
    rf.set_default_device(None)
