"""Training: runs that can be stopped and continued exactly, and the error rates of what they have trained."""

from __future__ import annotations

from rf.train.evaluate import AED, CTC, Decoding, decode, evaluate
from rf.train.feed import FedBatch, Feed
from rf.train.options import OPTIMIZERS, SCHEDULES, DataOptions, RunOptions
from rf.train.run import CHECKPOINT, Run, SavedRun, StepReport, checkpoint_path, load_run

__all__ = [
    "AED",
    "CHECKPOINT",
    "CTC",
    "OPTIMIZERS",
    "SCHEDULES",
    "DataOptions",
    "Decoding",
    "FedBatch",
    "Feed",
    "Run",
    "RunOptions",
    "SavedRun",
    "StepReport",
    "checkpoint_path",
    "decode",
    "evaluate",
    "load_run",
]
