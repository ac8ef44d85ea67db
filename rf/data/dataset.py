"""What a data set is: numbered sequences, each an input of known length and a list of target labels."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from rf._errors import UserError

__all__ = ["Dataset", "Example"]


@dataclass(frozen=True)
class Example:
    """One sequence.

    ``inputs`` is float32: ``(T, F)`` feature frames or ``(T,)`` audio samples in [-1, 1]. ``targets`` is int32
    ``(S,)``: labels 0 .. len(vocab) - 1, without blank or end of sequence, which belong to the model.
    """

    name: str
    inputs: np.ndarray
    targets: np.ndarray


class Dataset(ABC):
    """A finite, ordered collection of :class:`Example`; equal arguments always give equal examples in the same order.

    Attributes:
        kind: ``"features"`` if the inputs are feature frames, ``"audio"`` if they are samples.
        feature_dim: size of a feature frame, None for audio.
        sampling_rate: samples per second of the audio, None for features.
        vocab: the label names; label i is ``vocab[i]``.
        lengths: input length of every example, in frames or samples, int64 ``(len(self),)``. Known without loading
            anything.
        names: name of every example.
        notices: one-line remarks on what was left out or changed when the data was opened, to be shown to the user.
    """

    kind: Literal["features", "audio"]
    feature_dim: int | None = None
    sampling_rate: int | None = None
    vocab: list[str]
    lengths: np.ndarray
    names: list[str]
    notices: list[str]

    def __len__(self) -> int:
        return len(self.names)

    @abstractmethod
    def __getitem__(self, index: int) -> Example:
        """Loads one example.

        Raises:
            UserError: if the file behind it cannot be read.
            IndexError: if there is no such example.
        """

    def labels_to_text(self, labels: Iterable[int]) -> str:
        """The label names of ``labels``, joined.

        Args:
            labels: each in 0 .. len(vocab) - 1; take blank and end of sequence out first.

        Raises:
            ValueError: for any other label.
        """
        labels = [int(label) for label in labels]
        for label in labels:
            if not 0 <= label < len(self.vocab):
                raise ValueError(f"label {label} is none of the {len(self.vocab)} labels of the vocabulary")
        return "".join(self.vocab[label] for label in labels)


def check_at_least(name: str, value: float | None, minimum: float) -> None:
    """Raises UserError unless ``value`` is None or at least ``minimum``."""
    if value is not None and not value >= minimum:
        raise UserError(f"{name}={value}: must be at least {minimum}")
