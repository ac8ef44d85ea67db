"""From padded arrays to Tensors with dims."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import rf
from rf.data import Batch

__all__ = ["DataDescription", "FedBatch", "Feed"]


class DataDescription(Protocol):
    """What a feed needs to know of the data; see :class:`rf.data.Dataset`."""

    @property
    def feature_dim(self) -> int | None: ...
    @property
    def vocab(self) -> list[str]: ...


class FedBatch(NamedTuple):
    """A batch as Tensors.

    Attributes:
        inputs: {batch, input_time} audio samples, or {batch, input_time, feature}; float32.
        targets: {batch, target_time} int32 labels, with the sparse dim of the feed.
        input_dim, target_dim: their time dims, with a length for each sequence.
    """

    inputs: rf.Tensor
    input_dim: rf.Dim
    targets: rf.Tensor
    target_dim: rf.Dim


class Feed:
    """Makes Tensors of batches. The dims are the same objects for all batches, filled anew by each.

    Args:
        feature_dim: of the inputs; None for audio.
        label_dim: of the labels.
    """

    def __init__(self, feature_dim: rf.Dim | None, label_dim: rf.Dim) -> None:
        self.batch_dim = rf.batch_dim
        self.input_dim = rf.Dim(None, name="input_time")
        self.target_dim = rf.Dim(None, name="target_time")
        self.feature_dim = feature_dim
        self.label_dim = label_dim

    @classmethod
    def of(cls, data: DataDescription) -> Feed:
        """A feed for the data, with new dims for features and labels."""
        feature_dim = None if data.feature_dim is None else rf.Dim(data.feature_dim, name="feature")
        return cls(feature_dim, rf.Dim(len(data.vocab), name="label", vocab=data.vocab))

    def __call__(self, batch: Batch) -> FedBatch:
        """Fills the dims with the lengths of the batch and wraps its arrays. Earlier batches are then stale."""
        self.batch_dim.fill(len(batch))
        self.input_dim.fill(batch.input_lengths, [self.batch_dim])
        self.target_dim.fill(batch.target_lengths, [self.batch_dim])
        dims = [self.batch_dim, self.input_dim]
        if self.feature_dim is not None:
            dims.append(self.feature_dim)
        inputs = rf.convert_to_tensor(batch.inputs, dims=dims, feature_dim=self.feature_dim, name="inputs")
        targets = rf.convert_to_tensor(
            batch.targets, dims=[self.batch_dim, self.target_dim], sparse_dim=self.label_dim, name="targets"
        )
        return FedBatch(inputs, self.input_dim, targets, self.target_dim)
