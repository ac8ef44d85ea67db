"""Data: the built-in number task, speech from a folder, batches bucketed by length, error rates.

Nothing here needs a framework, except that workers are those of torch's DataLoader. Arrays are NumPy arrays.
"""

from __future__ import annotations

from rf.data.batching import Batch, BucketBatchSampler, Example, collate
from rf.data.dataset import Dataset
from rf.data.error_rate import ErrorRate, edit_distance
from rf.data.factory import open_dataset
from rf.data.loader import Loader, make_loader
from rf.data.numbers import NumbersDataset
from rf.data.speech import SpeechDataset

__all__ = [
    "Batch",
    "BucketBatchSampler",
    "Dataset",
    "ErrorRate",
    "Example",
    "Loader",
    "NumbersDataset",
    "SpeechDataset",
    "collate",
    "edit_distance",
    "make_loader",
    "open_dataset",
]
