"""What a training run is made from: kept in its checkpoints, so that it can be continued and its model be used."""

from __future__ import annotations

import functools
import hashlib
import json
import math
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

import rf
from rf import optim
from rf._errors import UserError
from rf.data import Dataset, open_dataset

__all__ = ["OPTIMIZERS", "SCHEDULES", "DataOptions", "RunOptions", "data_fingerprint"]

OPTIMIZERS = ("adamw", "adam", "sgd")
SCHEDULES = ("inverse-sqrt", "constant", "cosine", "linear")
_WITH_END = ("cosine", "linear")


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
        optimizer: one of `OPTIMIZERS`, see :func:`rf.optim.adamw` and beside it.
        momentum: of SGD, 0 to do without.
        weight_decay, max_gradient_norm: see :func:`rf.optim.adamw`; a norm of 0 is no limit.
        lr, warmup: highest learning rate, and the number of steps in which it is reached; see :class:`rf.optim.Warmup`.
        schedule: what follows, one of `SCHEDULES`: 1/sqrt(step) as in :func:`rf.optim.warmup_learning_rate`, the same
            rate, or a half cosine or a line to 0 at step `decay_steps`.
        decay_steps: for the latter two, counted from the start of the training.
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
    schedule: str = "inverse-sqrt"
    decay_steps: int | None = None
    optimizer: str = "adamw"
    momentum: float = 0.9
    weight_decay: float = 0.0
    max_gradient_norm: float = 5.0

    def __post_init__(self) -> None:
        for name, minimum in ("lr", 0.0), ("warmup", 0), ("weight_decay", 0.0), ("max_gradient_norm", 0.0), ("seed", 0):
            value = getattr(self, name)
            if not minimum <= value < math.inf:
                raise UserError(f"{_flag(name)} {value}: must be at least {minimum:g} and finite")
        if self.dropout is not None and not 0.0 <= self.dropout < 1.0:
            raise UserError(f"--dropout {self.dropout}: must be at least 0 and less than 1")
        if not 0.0 <= self.momentum < 1.0:
            raise UserError(f"--momentum {self.momentum}: must be at least 0 and less than 1")
        for name, choices in ("optimizer", OPTIMIZERS), ("schedule", SCHEDULES):
            if getattr(self, name) not in choices:
                raise UserError(f"unknown {name} {getattr(self, name)!r}; choose one of: {', '.join(choices)}")
        if self.schedule in _WITH_END:
            if self.decay_steps is None:
                raise UserError(f"--schedule {self.schedule}: give --decay-steps N, the step at which the rate is 0")
            if not self.decay_steps > self.warmup:
                raise UserError(f"--decay-steps {self.decay_steps}: must be more than --warmup {self.warmup}")
        elif self.decay_steps is not None:
            raise UserError(f"--decay-steps {self.decay_steps}: --schedule {self.schedule} has no end; leave it out")

    def make_optimizer(self, parameters: Iterable[tuple[str, rf.Parameter]]) -> optim.Optimizer:
        """The optimizer of a run.

        Args:
            parameters: as ``model.named_parameters()`` gives them.

        Raises:
            UserError, BackendError: see :func:`rf.optim.adamw`.
        """
        make = {
            "adamw": optim.adamw,
            "adam": optim.adam,
            "sgd": functools.partial(optim.sgd, momentum=self.momentum),
        }[self.optimizer]
        return make(parameters, weight_decay=self.weight_decay, max_gradient_norm=self.max_gradient_norm or None)

    def make_schedule(self) -> Callable[[int], float]:
        """The learning rate of step 0, 1, ... of a run."""
        if self.schedule == "inverse-sqrt":
            return functools.partial(optim.warmup_learning_rate, peak=self.lr, warmup_steps=self.warmup)
        then = optim.Constant(self.lr)
        if self.decay_steps is not None:
            steps = self.decay_steps + 1 - max(self.warmup, 1)  # from the last step of the warmup on
            line = ((0, self.lr), (steps, 0.0))
            then = optim.Cosine(self.lr, steps) if self.schedule == "cosine" else optim.PiecewiseLinear(line)
        return optim.Warmup(self.warmup, then)

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
        given = {name: value for name, value in given.items() if value is not None}
        may_move = ("data", "transcripts")
        for name in (f.name for f in fields(self) if f.name in given and f.name not in may_move):
            self._must_be(name, given[name])
        wanted = RunOptions.make(self.to_json() | given)
        if "numbers" in (self.data, wanted.data):
            for name in may_move:
                self._must_be(name, getattr(wanted, name))
        return wanted

    def _must_be(self, name: str, new: Any) -> None:
        old = getattr(self, name)
        if old != new:
            started = f" {new}: the run was started with {old}"
            if isinstance(new, bool):
                started = ": the run was started without this option"
            raise UserError(f"{_flag(name)}{started}; leave it out to continue, or start a new run with another --out")

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
    return {"augment": "--no-augment"}.get(name, "--" + name.replace("_", "-"))
