"""What a training run is made from: kept in its checkpoints, so that it can be continued and its model be used."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from rf._errors import UserError
from rf.data import Dataset, open_dataset

__all__ = ["DataOptions", "RunOptions", "data_fingerprint"]


@dataclass(frozen=True)
class DataOptions:
    """Which sequences; see :func:`rf.data.open_dataset` for all of these.

    Attributes:
        data: ``"numbers"`` or a directory.
        transcripts: the transcript file of a directory.
    """

    data: str = "numbers"
    transcripts: str | None = None
    max_seconds: float | None = None
    max_sequences: int | None = None
    sampling_rate: int | None = None
    skip_unmatched: bool = False

    def open(
        self, *, split: str, seed: int, vocab: list[str] | None = None, sampling_rate: int | None = None
    ) -> Dataset:
        """Opens the data.

        Args:
            split, seed: of the built-in task.
            vocab, sampling_rate: those of a trained model, when the data is for it.

        Raises:
            UserError: if the data cannot be opened, or does not fit the vocabulary.
        """
        return open_dataset(
            self.data,
            transcripts=self.transcripts,
            split=split,
            seed=seed,
            vocab=vocab,
            sampling_rate=sampling_rate or self.sampling_rate,
            max_seconds=self.max_seconds,
            max_sequences=self.max_sequences,
            skip_unmatched=self.skip_unmatched,
        )


@dataclass(frozen=True)
class RunOptions(DataOptions):
    """Everything that decides how a run goes, step by step: the same options give the same run.

    Attributes:
        model: name in the registry of models.
        preset: a size of the model, by name.
        dropout: instead of that of the preset.
        augment: whether SpecAugment is applied.
        seed: of parameters, dropout and the order of the data.
        batch_size: most sequences of a batch.
        max_frames: most frames (or samples of audio) of a batch, padding included.
        lr, warmup, lr_decay: see :func:`rf.optim.warmup_learning_rate`.
        weight_decay, max_gradient_norm: see :func:`rf.optim.adamw`; a norm of 0 is no limit.
    """

    model: str = "conformer-ctc-aed"
    preset: str = "small"
    dropout: float | None = None
    augment: bool = True
    seed: int = 1
    batch_size: int | None = 16
    max_frames: int | None = None
    lr: float = 1e-3
    warmup: int = 100
    lr_decay: bool = True
    weight_decay: float = 0.0
    max_gradient_norm: float = 5.0

    def __post_init__(self) -> None:
        for name, minimum in ("lr", 0.0), ("warmup", 0), ("weight_decay", 0.0), ("max_gradient_norm", 0.0), ("seed", 0):
            value = getattr(self, name)
            if not value >= minimum:
                raise UserError(f"{_flag(name)} {value}: must be at least {minimum:g}")
        if self.dropout is not None and not 0.0 <= self.dropout < 1.0:
            raise UserError(f"--dropout {self.dropout}: must be at least 0 and less than 1")

    @classmethod
    def make(cls, given: Mapping[str, Any]) -> RunOptions:
        """Options for a new run: what is `given`, and not None, and defaults for the rest."""
        known = {name: value for name, value in given.items() if value is not None}
        if "max_frames" in known:
            known.setdefault("batch_size", None)
        for name in "data", "transcripts":
            if known.get(name) not in (None, "numbers"):
                known[name] = os.path.abspath(known[name])
        return cls(**known)

    def updated(self, given: Mapping[str, Any]) -> RunOptions:
        """Options to continue with: these, with the place of the data as `given`.

        Raises:
            UserError: if another option is given and differs.
        """
        wanted = RunOptions.make({**self.to_json(), **{k: v for k, v in given.items() if v is not None}})
        for field in fields(self):
            old, new = getattr(self, field.name), getattr(wanted, field.name)
            moved = field.name in ("data", "transcripts") and "numbers" not in (self.data, wanted.data)
            if given.get(field.name) is not None and old != new and not moved:
                started = f" {new}: the run was started with {old}"
                if isinstance(new, bool):
                    started = ": the run was started without this option"
                raise UserError(
                    f"{_flag(field.name)}{started}; leave it out to continue, or start a new run with another --out"
                )
        return wanted

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> RunOptions:
        """From :meth:`to_json`; raises TypeError for other names."""
        return cls(**value)


def data_fingerprint(dataset: Dataset) -> str:
    """A short text that differs, as good as always, between data sets of different names, lengths or labels."""
    content = json.dumps([dataset.names, dataset.lengths.tolist(), dataset.vocab, dataset.sampling_rate])
    return f"{len(dataset)} sequences, {hashlib.sha256(content.encode()).hexdigest()[:16]}"


def _flag(name: str) -> str:
    return {"augment": "--no-augment", "lr_decay": "--no-lr-decay"}.get(name, "--" + name.replace("_", "-"))
