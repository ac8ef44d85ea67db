"""Iterating over the batches of a data set: in this process or in workers, resumable, and timed."""

from __future__ import annotations

import multiprocessing
import signal
import time
import warnings
from collections.abc import Iterator
from typing import Any

from rf._errors import UserError
from rf.data.batching import Batch, BucketBatchSampler, collate
from rf.data.dataset import Dataset, check_at_least

__all__ = ["Loader", "make_loader"]


class _BatchLoader:
    """Loads the batch of given indices; what a worker holds.

    A UserError is handed back as a value: raised in a worker, it would reach the caller with the worker's traceback
    for a message.
    """

    def __init__(self, dataset: Dataset, padding_value: float) -> None:
        self._dataset = dataset
        self._padding_value = padding_value

    def __getitem__(self, indices: list[int]) -> Batch | UserError:
        try:
            return collate([self._dataset[index] for index in indices], padding_value=self._padding_value)
        except UserError as exc:
            return exc


class _Position:
    """Where iteration stands; also the sampler that torch's DataLoader draws its batches from."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.start = 0

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self.batches[self.start :])

    def __len__(self) -> int:
        return len(self.batches) - self.start


class Loader:
    """The batches of one epoch at a time; they depend on data, seed and epoch only, not on the number of workers.

    ``for batch in loader`` gives the batches of the current epoch from the current start on; :meth:`set_epoch` chooses
    both. An uninterrupted run and one that starts in the middle see equal batches, and those before the start are not
    loaded. No global random state is read or changed. Only one iteration can be under way at a time. See
    :func:`make_loader` for the arguments.

    Raises, while iterating:
        UserError: if a file cannot be read; the same line with and without workers.

    Attributes:
        epoch: the current epoch.
        start_batch: the batch that iteration starts at.
        wait_seconds: time so far that the caller spent waiting for batches, the start of the workers included. Reset it
            at will.
    """

    def __init__(
        self,
        dataset: Dataset,
        sampler: BucketBatchSampler,
        *,
        num_workers: int = 0,
        padding_value: float = 0.0,
        start_method: str | None = None,
    ) -> None:
        check_at_least("num_workers", num_workers, 0)
        self.dataset = dataset
        self.wait_seconds = 0.0
        self._sampler = sampler
        self._batch_loader = _BatchLoader(dataset, padding_value)
        self._position = _Position()
        self._torch_loader: Any = None
        if num_workers:
            self._torch_loader = _torch_loader(self._batch_loader, self._position, num_workers, start_method)
        self.set_epoch(0)

    def set_epoch(self, epoch: int, start_batch: int = 0) -> None:
        """Chooses the epoch and the first batch of the next iteration.

        Args:
            epoch: 0, 1, ...
            start_batch: batches to skip, 0 .. number of batches of the epoch.
        """
        check_at_least("epoch", epoch, 0)
        batches = self._sampler.batches(epoch)
        if not 0 <= start_batch <= len(batches):
            raise UserError(
                f"start_batch={start_batch}: epoch {epoch} has only {len(batches)} batches; "
                "resume with the data and the batch size that the run was started with"
            )
        self.epoch = epoch
        self.start_batch = start_batch
        self._position.batches = batches
        self._position.start = start_batch

    def __len__(self) -> int:
        """Number of batches of the epoch, those before the start included."""
        return len(self._position.batches)

    def __iter__(self) -> Iterator[Batch]:
        iterator: Iterator[Batch | UserError] | None = None
        while True:
            start = time.perf_counter()
            try:
                if iterator is None:
                    iterator = self._start()
                batch = next(iterator, None)
                if isinstance(batch, UserError):
                    raise batch
            except BaseException:
                self.close()
                raise
            finally:
                self.wait_seconds += time.perf_counter() - start
            if batch is None:
                return
            yield batch

    def close(self) -> None:
        """Ends the workers, which otherwise wait for the next epoch; a later iteration starts new ones.

        An error while loading ends them too, and so does the end of the process.
        """
        # Left to the garbage collector, which may destroy their queues first, torch waits for each worker in vain.
        if self._torch_loader is not None and self._torch_loader._iterator is not None:
            self._torch_loader._iterator._shutdown_workers()
            self._torch_loader._iterator = None

    def _start(self) -> Iterator[Batch | UserError]:
        if self._torch_loader is None:
            return (self._batch_loader[indices] for indices in self._position)
        with warnings.catch_warnings():
            # Python 3.12+ warns about fork in a process with threads. The workers touch nothing that threads of the
            # parent may hold: they run NumPy and libsndfile, and torch sets itself to one thread there.
            warnings.filterwarnings(
                "ignore", message=".*use of fork\\(\\) may lead to deadlocks", category=DeprecationWarning
            )
            return iter(self._torch_loader)


def _identity(value: Any) -> Any:
    return value


def _ignore_interrupt(worker: int) -> None:
    # Ctrl-C goes to the whole process group. The main process decides what it means; it may want more batches.
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _torch_loader(batch_loader: _BatchLoader, position: _Position, num_workers: int, start_method: str | None) -> Any:
    try:
        import torch
        import torch.utils.data
    except ImportError as exc:
        raise UserError(
            f"loading data with workers needs torch ({exc}): pip install rf-eager[torch], or use num_workers=0"
        ) from exc
    if start_method is None:
        # fork starts at once and needs no importable main module.
        start_method = "fork" if "fork" in multiprocessing.get_all_start_methods() else "spawn"
    dataset: Any = batch_loader
    return torch.utils.data.DataLoader(
        dataset,
        sampler=position,
        # One item of the "data set" is a whole batch.
        batch_size=None,
        collate_fn=_identity,
        num_workers=num_workers,
        persistent_workers=True,
        worker_init_fn=_ignore_interrupt,
        multiprocessing_context=start_method,
        # Without a generator of its own, the DataLoader draws from torch's global one, and resuming would not be exact.
        generator=torch.Generator(),
    )


def make_loader(
    dataset: Dataset,
    *,
    batch_size: int | None = None,
    max_frames: int | None = None,
    seed: int = 0,
    num_workers: int = 0,
    epoch: int = 0,
    start_batch: int = 0,
    shuffle: bool = True,
    padding_value: float = 0.0,
    start_method: str | None = None,
) -> Loader:
    """A loader of batches bucketed by length; see :class:`Loader` and :class:`BucketBatchSampler`.

    Args:
        dataset: what to load.
        batch_size: most sequences of a batch.
        max_frames: most inputs of a batch, padding included, in the unit of ``dataset.lengths``. At least one of the
            two is needed.
        seed: of the order.
        num_workers: processes that load ahead, by torch's DataLoader. With 0, batches are loaded when asked for,
            without torch.
        epoch, start_batch: where iteration starts.
        shuffle: if False, all epochs go from the shortest sequence to the longest.
        padding_value: what is put behind the end of the inputs.
        start_method: of the workers: ``"fork"`` (default where there is one), ``"spawn"`` or ``"forkserver"``.
    """
    sampler = BucketBatchSampler(
        dataset, max_sequences=batch_size, max_frames_per_batch=max_frames, seed=seed, shuffle=shuffle
    )
    loader = Loader(dataset, sampler, num_workers=num_workers, padding_value=padding_value, start_method=start_method)
    loader.set_epoch(epoch, start_batch)
    return loader
