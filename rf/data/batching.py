"""Batches: which sequences go together, and how they are padded into arrays."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from rf._errors import UserError
from rf.data.dataset import Dataset, Example, check_at_least

__all__ = ["Batch", "BucketBatchSampler", "Example", "collate"]


@dataclass(frozen=True)
class Batch:
    """Padded sequences.

    Attributes:
        inputs: float32 ``(B, T)`` or ``(B, T, F)``.
        input_lengths: int32 ``(B,)``; T is their maximum.
        targets: int32 ``(B, S)``.
        target_lengths: int32 ``(B,)``; S is their maximum.
        names: the B names.
    """

    inputs: np.ndarray
    input_lengths: np.ndarray
    targets: np.ndarray
    target_lengths: np.ndarray
    names: list[str]

    def __len__(self) -> int:
        return len(self.names)


def collate(examples: Sequence[Example], *, padding_value: float = 0.0, target_padding: int = 0) -> Batch:
    """Pads examples into one batch.

    Args:
        examples: at least one; all ``(T,)`` or all ``(T, F)`` with one F.
        padding_value: put behind the end of the inputs; no result may depend on it, and tests use NaN.
        target_padding: put behind the end of the targets.
    """
    inputs, input_lengths = _pad([example.inputs for example in examples], padding_value, np.float32)
    targets, target_lengths = _pad([example.targets for example in examples], target_padding, np.int32)
    return Batch(inputs, input_lengths, targets, target_lengths, [example.name for example in examples])


def _pad(arrays: list[np.ndarray], value: float, dtype: type) -> tuple[np.ndarray, np.ndarray]:
    lengths = np.array([len(array) for array in arrays], dtype=np.int32)
    padded = np.full((len(arrays), lengths.max(), *arrays[0].shape[1:]), value, dtype=dtype)
    for row, array in zip(padded, arrays):
        if array.shape[1:] != row.shape[1:]:
            raise ValueError(f"one batch cannot hold arrays of shapes {arrays[0].shape} and {array.shape}")
        row[: len(array)] = array
    return padded, lengths


class BucketBatchSampler:
    """Puts sequences of similar length into batches, so that little is padding.

    All sequences are shuffled and cut into pools of ``pool_size``; every pool is sorted by length and cut into batches;
    the batches are shuffled. Which sequences meet depends on chance, then, and on nothing but ``seed`` and the epoch.
    Every sequence occurs exactly once an epoch.

    Args:
        dataset: gives the lengths and, for errors, the names.
        max_sequences: most sequences of a batch.
        max_frames_per_batch: most inputs of a batch, padding included: number of sequences times greatest length, in
            the unit of ``dataset.lengths`` (frames of features, samples of audio).
        seed: of the shuffling.
        shuffle: if False, the order is by length, the shortest first, in every epoch.
        pool_size: sequences sorted together; the larger, the less padding and the less chance.

    Raises:
        UserError: if neither maximum is given, or if one sequence alone exceeds ``max_frames_per_batch``.
    """

    def __init__(
        self,
        dataset: Dataset,
        *,
        max_sequences: int | None = None,
        max_frames_per_batch: int | None = None,
        seed: int = 0,
        shuffle: bool = True,
        pool_size: int = 1000,
    ) -> None:
        if max_sequences is None and max_frames_per_batch is None:
            raise UserError("batches have no limit: give the most sequences, or the most frames, of a batch")
        check_at_least("max_sequences", max_sequences, 1)
        check_at_least("max_frames_per_batch", max_frames_per_batch, 1)
        check_at_least("seed", seed, 0)
        check_at_least("pool_size", pool_size, 1)
        self._lengths = dataset.lengths
        if max_frames_per_batch is not None and self._lengths.max() > max_frames_per_batch:
            longest = int(self._lengths.argmax())
            raise UserError(
                f"sequence {dataset.names[longest]!r} alone has {self._lengths[longest]} frames, more than the "
                f"{max_frames_per_batch} allowed in a batch: allow more, or leave out long sequences"
            )
        self._max_sequences = max_sequences
        self._max_frames = max_frames_per_batch
        self._seed = seed
        self._shuffle = shuffle
        self._pool_size = pool_size

    def batches(self, epoch: int) -> list[list[int]]:
        """The batches of an epoch, in order: indices into the data set."""
        if not self._shuffle:
            return list(self._cut(np.argsort(self._lengths, kind="stable")))
        rng = np.random.default_rng((self._seed, epoch))
        order = rng.permutation(len(self._lengths))
        batches: list[list[int]] = []
        for start in range(0, len(order), self._pool_size):
            pool = order[start : start + self._pool_size]
            batches.extend(self._cut(pool[np.argsort(self._lengths[pool], kind="stable")]))
        return [batches[i] for i in rng.permutation(len(batches))]

    def _cut(self, by_length: np.ndarray) -> Iterator[list[int]]:
        batch: list[int] = []
        for index in by_length.tolist():
            # Sorted: this sequence would be the longest of the batch.
            too_many = self._max_sequences is not None and len(batch) == self._max_sequences
            too_large = self._max_frames is not None and (len(batch) + 1) * self._lengths[index] > self._max_frames
            if batch and (too_many or too_large):
                yield batch
                batch = []
            batch.append(index)
        if batch:
            yield batch
