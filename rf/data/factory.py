"""From what the user names on the command line to a data set."""

from __future__ import annotations

import os
from collections.abc import Sequence

from rf._errors import UserError
from rf.data.dataset import Dataset
from rf.data.numbers import NumbersDataset
from rf.data.speech import SpeechDataset

__all__ = ["open_dataset"]

_NUM_NUMBERS = {"train": 10_000, "eval": 200}


def open_dataset(
    spec: str | os.PathLike[str],
    *,
    transcripts: str | os.PathLike[str] | None = None,
    split: str = "train",
    seed: int = 0,
    vocab: Sequence[str] | None = None,
    sampling_rate: int | None = None,
    max_seconds: float | None = None,
    max_sequences: int | None = None,
    skip_unmatched: bool = False,
) -> Dataset:
    """Opens a data set.

    Args:
        spec: ``"numbers"`` for the built-in task, else a directory of wav files (``./numbers`` for one of that name).
        transcripts: the transcript file of the directory.
        split: ``"train"`` or ``"eval"``. The built-in task then draws other numbers; a directory is its own split and
            always used whole.
        seed: of the built-in task.
        vocab: the labels of a trained model that the data is for. By default the data decides.
        sampling_rate, max_seconds, skip_unmatched: see :class:`SpeechDataset`; for a directory only.
        max_sequences: size of the data. By default 10000 numbers for training and 200 for evaluation, or the whole
            directory.

    Raises:
        UserError: if the data cannot be opened, or does not fit ``vocab``.
    """
    if split not in _NUM_NUMBERS:
        raise UserError(f"split={split!r}: must be one of {', '.join(_NUM_NUMBERS)}")
    if spec != "numbers":
        if transcripts is None:
            if not os.path.isdir(spec):
                raise UserError(f"{spec}: no such directory; data is 'numbers' or a directory of wav files")
            raise UserError(f"{spec}: the transcripts are missing; name their file with --transcripts FILE")
        return SpeechDataset(
            spec,
            transcripts,
            sampling_rate=sampling_rate,
            vocab=vocab,
            max_seconds=max_seconds,
            max_sequences=max_sequences,
            skip_unmatched=skip_unmatched,
        )
    if transcripts is not None:
        raise UserError(
            f"transcripts {transcripts}: the data 'numbers' has none; give a directory of wav files as data"
        )
    for name, value in ("sampling_rate", sampling_rate), ("max_seconds", max_seconds):
        if value is not None:
            raise UserError(f"{name}={value}: the data 'numbers' is not audio; leave it out")
    dataset = NumbersDataset(max_sequences if max_sequences is not None else _NUM_NUMBERS[split], seed, split=split)
    if vocab is not None and list(vocab) != dataset.vocab:
        raise UserError(
            f"the data 'numbers' has the labels {''.join(dataset.vocab)!r}, the model has {''.join(vocab)!r}; "
            "use the data that the model was trained on"
        )
    return dataset
