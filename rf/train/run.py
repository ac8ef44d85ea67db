"""A training run: its steps, and its checkpoints, from which it continues as if it had never ended."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import rf
from rf import checkpoint, models
from rf.backend import backend_names, selected_backend
from rf.data import Batch, Dataset, Loader, make_loader
from rf.train.feed import Feed
from rf.train.options import RunOptions, data_fingerprint

__all__ = ["CHECKPOINT", "Run", "SavedRun", "StepReport", "checkpoint_path", "load_run"]

CHECKPOINT = "checkpoint.safetensors"
"""Name of the file in the directory of a run."""

_OPTIMIZER = "/optimizer/"
_RANDOM = "/random/"

_MAX_SKIPPED = 20


@dataclass(frozen=True)
class StepReport:
    """What happened in one step.

    Attributes:
        step: steps done, this one included.
        epoch: 1, 2, ...
        losses: means by name, and ``total``, what was minimized.
        errors: means by name of what was marked as an error, a share of 1.
        learning_rate: of the step.
        gradient_norm: before clipping; not finite when the step was skipped.
        wait_seconds: time that the step waited for its batch.
        batch: the batch.
    """

    step: int
    epoch: int
    losses: dict[str, float]
    errors: dict[str, float]
    learning_rate: float
    gradient_norm: float
    wait_seconds: float
    batch: Batch


@dataclass(frozen=True)
class SavedRun:
    """The content of a checkpoint.

    Attributes:
        path: the file.
        options: what the run was started with.
        model_config: configuration of the model, as JSON.
        vocab, sampling_rate, feature_dim: of the data that the model is for; see :class:`rf.data.Dataset`.
        fingerprint: of the data, see :func:`data_fingerprint`.
        step, epoch, batch: position: steps done, finished epochs, and batches done of the current one.
        arrays: everything else; names with a slash at the start are not parameters.
    """

    path: Path
    options: RunOptions
    model_config: dict[str, Any]
    vocab: list[str]
    sampling_rate: int | None
    feature_dim: int | None
    fingerprint: str
    step: int
    epoch: int
    batch: int
    arrays: dict[str, np.ndarray]

    def part(self, prefix: str) -> dict[str, np.ndarray]:
        """The arrays whose names start with `prefix`, without it."""
        return {name.removeprefix(prefix): a for name, a in self.arrays.items() if name.startswith(prefix)}

    def make_model(self) -> tuple[models.Model, Feed]:
        """The trained model, and a feed for it.

        Raises:
            UserError: if the parameters in the file are not those of the model that its configuration describes.
        """
        feed = Feed.of(self)
        model = models.create(self.options.model, self.model_config, feed.feature_dim, feed.label_dim)
        params = {name: array for name, array in self.arrays.items() if not name.startswith("/")}
        try:
            checkpoint.restore_params(model, params)
        except rf.UserError as exc:
            raise rf.UserError(f"{self.path}: {exc}; use the checkpoint with the version of rf that wrote it") from exc
        return model, feed


class Run:
    """A model in training. Make one with :meth:`start` or :meth:`resume`.

    Attributes:
        options: see :class:`RunOptions`.
        dataset, model, feed: what is trained on what.
        step: steps done.
        epoch: finished epochs.
    """

    def __init__(
        self, options: RunOptions, dataset: Dataset, model: models.Model, feed: Feed, num_workers: int
    ) -> None:
        self.options = options
        self.dataset = dataset
        self.model = model
        self.feed = feed
        self.step = 0
        self.epoch = 0
        self._batch = 0
        self._num_skipped = 0
        self._backend = selected_backend().name
        self._loader: Loader = make_loader(
            dataset,
            batch_size=options.batch_size,
            max_frames=options.max_frames,
            seed=options.seed,
            num_workers=num_workers,
        )
        self._optimizer = options.make_optimizer(model.named_parameters())
        self._schedule = options.make_schedule()

    @classmethod
    def start(cls, options: RunOptions, *, num_workers: int = 0) -> Run:
        """A new run, on the selected backend.

        Args:
            options: all that decides how it goes.
            num_workers: processes that load data; has no influence on how it goes.

        Raises:
            UserError: if the data cannot be opened, or an option is not valid.
        """
        dataset = options.open(split="train", seed=options.seed)
        rf.set_random_seed(options.seed)
        feed = Feed.of(dataset)
        config = models.make_config(options.model, options.preset, dataset, options)
        model = models.create(options.model, config, feed.feature_dim, feed.label_dim)
        return cls(options, dataset, model, feed, num_workers)

    @classmethod
    def resume(cls, saved: SavedRun, given: Mapping[str, Any], *, num_workers: int = 0) -> Run:
        """The run of a checkpoint, continued: the steps that follow are, bit by bit, those that would have followed.

        On another backend they are so up to rounding, and where random numbers are drawn, only in portable mode
        (:func:`rf.set_random_portable`).

        Args:
            saved: the checkpoint.
            given: options by name that the user gives again; None for those left out. Only the place of the data may
                differ.
            num_workers: see :meth:`start`.

        Raises:
            UserError: if an option differs, or the data is another one, or the checkpoint is of another model.
        """
        try:
            options = saved.options.updated(given)
        except rf.UserError as exc:
            raise rf.UserError(f"{saved.path}: {exc}") from exc
        dataset = options.open(split="train", seed=options.seed)
        fingerprint = data_fingerprint(dataset)
        if fingerprint != saved.fingerprint:
            raise rf.UserError(
                f"{options.data}: not the data that the run was started with ({fingerprint} instead of "
                f"{saved.fingerprint}); give that data, or start a new run with another --out"
            )
        model, feed = saved.make_model()
        run = cls(options, dataset, model, feed, num_workers)
        try:
            run._optimizer.load_state(saved.part(_OPTIMIZER))
        except rf.UserError as exc:
            raise rf.UserError(f"{saved.path}: {exc}; start a new run with another --out") from exc
        foreign = set(backend_names()) - {run._backend}
        random = {n: a.tobytes() for n, a in saved.part(_RANDOM).items() if n.split(":")[0] not in foreign}
        if not any(name.split(":")[0] == run._backend for name in random):
            rf.set_random_seed(options.seed)  # continued on another backend, whose generator begins anew
        rf.set_random_state(random)
        run.step, run.epoch, run._batch = saved.step, saved.epoch, saved.batch
        return run

    def steps(self, until: int) -> Iterator[StepReport]:
        """Trains up to step number `until`; yields after every step. Whenever it has yielded, the run can be saved.

        Raises:
            UserError: if a file of the data cannot be read.
            RfError: if the gradients have not been finite for many steps in a row.
        """
        while self.step < until:
            self._loader.set_epoch(self.epoch, self._batch)
            self._loader.wait_seconds = 0.0
            for batch in self._loader:
                report = self._train(batch)
                yield report
                if self.step >= until:
                    return
                self._loader.wait_seconds = 0.0
            self.epoch += 1
            self._batch = 0

    def _train(self, batch: Batch) -> StepReport:
        wait_seconds = self._loader.wait_seconds
        learning_rate = self._schedule(self.step)
        rf.init_train_step_run_ctx(train_flag=True, step=self.step, epoch=self.epoch + 1)
        try:
            self.model.train_step(*self.feed(batch))
            ctx = rf.get_run_ctx()
            total = ctx.total_loss()
            assert isinstance(total, rf.Tensor)
            norm = self._optimizer.step(total, learning_rate=learning_rate)
            means = {name: float(loss.get_mean_loss()) for name, loss in ctx.losses.items()}
            losses = {name: mean for name, mean in means.items() if not ctx.losses[name].as_error}
            errors = {name: mean for name, mean in means.items() if ctx.losses[name].as_error}
            losses["total"] = float(total)
        finally:
            rf.reset_run_ctx()
        self.step += 1
        self._batch += 1
        self._num_skipped = 0 if math.isfinite(norm) else self._num_skipped + 1
        if self._num_skipped >= _MAX_SKIPPED:
            raise rf.RfError(
                f"the gradient was not finite in {_MAX_SKIPPED} steps in a row, up to step {self.step}; "
                "start a new run with a smaller --lr or a longer --warmup"
            )
        return StepReport(self.step, self.epoch + 1, losses, errors, learning_rate, norm, wait_seconds, batch)

    def save(self, directory: str | os.PathLike[str]) -> Path:
        """Writes the checkpoint of the run, which atomically replaces an older one.

        Returns:
            its path.

        Raises:
            UserError: if it cannot be written; an older one is then untouched.
        """
        arrays, metadata = checkpoint.param_arrays(self.model)
        arrays |= {_OPTIMIZER + name: array for name, array in self._optimizer.state().items()}
        for name, state in rf.get_random_state().items():
            # Other backends may be loaded here, but the run draws nothing from them.
            if name.split(":")[0] not in set(backend_names()) - {self._backend}:
                arrays[_RANDOM + name] = np.frombuffer(state, dtype=np.uint8)
        run = {
            "options": self.options.to_json(),
            "model_config": models.config_to_json(self.model),
            "vocab": self.dataset.vocab,
            "sampling_rate": self.dataset.sampling_rate,
            "feature_dim": self.dataset.feature_dim,
            "fingerprint": data_fingerprint(self.dataset),
            "batch": self._batch,
            "rf_version": rf.__version__,
        }
        path = Path(directory, CHECKPOINT)
        checkpoint.write_arrays(path, arrays, metadata | {"step": self.step, "epoch": self.epoch, "run": run})
        return path

    def close(self) -> None:
        """Ends the workers that load data."""
        self._loader.close()


def checkpoint_path(path: str | os.PathLike[str]) -> Path:
    """The checkpoint file that a user means: the file itself, or the one in a directory of a run."""
    return Path(path, CHECKPOINT) if os.path.isdir(path) else Path(path)


def load_run(path: str | os.PathLike[str]) -> SavedRun:
    """Reads a checkpoint.

    Args:
        path: the directory of a run, or the file.

    Raises:
        UserError: if there is none, or it is cut short, not safetensors, or not one of a training run.
    """
    file = checkpoint_path(path)
    arrays, metadata = checkpoint.read_arrays(file)
    if "run" not in metadata:
        raise rf.UserError(f"{file}: not a checkpoint of rf train; give the --out directory of a training")
    try:
        run = dict(metadata["run"], step=metadata["step"], epoch=metadata["epoch"])
        run.pop("rf_version")
        return SavedRun(file, RunOptions.from_json(run.pop("options")), arrays=arrays, **run)
    except (TypeError, ValueError, KeyError) as exc:
        raise rf.UserError(
            f"{file}: the description of the run in it cannot be understood ({exc}); use it with the version of rf "
            "that wrote it"
        ) from exc
