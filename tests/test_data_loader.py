"""Batches: which, padded how, resumed, and loaded by workers."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
import wave
from pathlib import Path

import numpy as np
import pytest

from rf._errors import UserError
from rf.data import Batch, BucketBatchSampler, Dataset, Example, NumbersDataset, collate, make_loader, open_dataset


class Toy(Dataset):
    """Example i is ``lengths[i]`` times the number i; loading can fail or take time. Its process is in its name."""

    kind = "audio"
    sampling_rate = 8000

    def __init__(self, lengths: list[int], fail_at: int | None = None, seconds: float = 0.0, bug: bool = False) -> None:
        self.lengths = np.array(lengths, dtype=np.int64)
        self.names = [f"toy-{i}" for i in range(len(lengths))]
        self.vocab = ["a"]
        self.notices = []
        self.loaded: list[int] = []
        self._fail_at = fail_at
        self._seconds = seconds
        self._bug = bug

    def __getitem__(self, index: int) -> Example:
        self.loaded.append(index)
        time.sleep(self._seconds)
        if index == self._fail_at:
            if self._bug:
                raise ZeroDivisionError("a bug")
            raise UserError(f"toy-{index}.wav: cannot be read; remove it")
        inputs = np.full(self.lengths[index], index, dtype=np.float32)
        return Example(f"{self.names[index]} {os.getpid()}", inputs, np.zeros(index % 3, dtype=np.int32))


def toy_lengths(count: int = 97) -> list[int]:
    return np.random.default_rng(0).integers(1, 200, count).tolist()


def assert_same(a: list[Batch], b: list[Batch]) -> None:
    assert len(a) == len(b)
    for x, y in zip(a, b, strict=True):
        assert x.names == y.names
        for field in ("inputs", "input_lengths", "targets", "target_lengths"):
            left, right = getattr(x, field), getattr(y, field)
            assert left.dtype == right.dtype
            np.testing.assert_array_equal(left, right)


def test_collate_pads_with_the_given_value() -> None:
    examples = [
        Example("x", np.ones((2, 3), np.float32), np.array([1, 2, 3], np.int32)),
        Example("y", np.full((4, 3), 2, np.float32), np.array([], np.int32)),
    ]
    batch = collate(examples, padding_value=np.nan, target_padding=-1)
    assert batch.inputs.shape == (2, 4, 3) and batch.inputs.dtype == np.float32
    assert np.isnan(batch.inputs[0, 2:]).all() and (batch.inputs[0, :2] == 1).all() and (batch.inputs[1] == 2).all()
    assert batch.input_lengths.tolist() == [2, 4] and batch.input_lengths.dtype == np.int32
    assert batch.targets.tolist() == [[1, 2, 3], [-1, -1, -1]] and batch.targets.dtype == np.int32
    assert batch.target_lengths.tolist() == [3, 0] and batch.target_lengths.dtype == np.int32
    assert batch.names == ["x", "y"] and len(batch) == 2
    assert (collate(examples).inputs[0, 2:] == 0).all()


def test_collate_of_audio_and_of_different_shapes() -> None:
    audio = [Example("x", np.ones(n, np.float32), np.zeros(1, np.int32)) for n in (3, 5)]
    assert collate(audio).inputs.tolist() == [[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]]
    features = Example("y", np.ones((2, 3), np.float32), np.zeros(1, np.int32))
    with pytest.raises(ValueError, match=r"\(3,\) and \(2, 3\)"):
        collate([audio[0], features])


@pytest.mark.parametrize(
    "limits", [{"max_sequences": 8}, {"max_frames_per_batch": 500}, {"max_sequences": 5, "max_frames_per_batch": 600}]
)
@pytest.mark.parametrize("pool_size", [20, 1000])
@pytest.mark.parametrize("shuffle", [True, False])
def test_batches_hold_everything_once_within_the_limits(limits: dict[str, int], pool_size: int, shuffle: bool) -> None:
    dataset = Toy(toy_lengths())
    sampler = BucketBatchSampler(dataset, seed=1, pool_size=pool_size, shuffle=shuffle, **limits)
    for epoch in range(3):
        batches = sampler.batches(epoch)
        assert sorted(i for batch in batches for i in batch) == list(range(len(dataset)))
        for batch in batches:
            assert 1 <= len(batch) <= limits.get("max_sequences", 97)
            assert len(batch) * dataset.lengths[batch].max() <= limits.get("max_frames_per_batch", 10**9)


def test_bucketing_saves_padding() -> None:
    dataset = Toy(toy_lengths(1000))

    def padded(batches: list[list[int]]) -> int:
        return sum(len(batch) * int(dataset.lengths[batch].max()) for batch in batches)

    order = np.random.default_rng(0).permutation(1000)
    at_random = padded([order[i : i + 10].tolist() for i in range(0, 1000, 10)])
    bucketed = padded(BucketBatchSampler(dataset, max_sequences=10, pool_size=250).batches(0))
    used = int(dataset.lengths.sum())
    assert bucketed - used < 0.2 * (at_random - used)


def test_order_depends_on_seed_and_epoch_only() -> None:
    dataset = Toy(toy_lengths())

    def batches(seed: int, epoch: int, shuffle: bool = True) -> list[list[int]]:
        return BucketBatchSampler(dataset, max_sequences=8, seed=seed, shuffle=shuffle).batches(epoch)

    assert batches(1, 0) == batches(1, 0)
    assert batches(1, 0) != batches(1, 1)
    assert batches(1, 0) != batches(2, 0)
    by_length = [i for batch in batches(1, 0, shuffle=False) for i in batch]
    assert by_length == sorted(range(len(dataset)), key=lambda i: (dataset.lengths[i], i))
    assert batches(1, 0, shuffle=False) == batches(2, 5, shuffle=False)


def test_limits_are_needed_and_must_be_possible() -> None:
    dataset = Toy([5, 30, 7])
    with pytest.raises(UserError, match="no limit"):
        BucketBatchSampler(dataset)
    with pytest.raises(UserError, match="'toy-1' alone has 30 frames, more than the 29"):
        make_loader(dataset, max_frames=29)
    assert len(make_loader(dataset, max_frames=30)) == 2
    with pytest.raises(UserError, match="max_sequences=0"):
        make_loader(dataset, batch_size=0)


@pytest.mark.needs("torch")
@pytest.mark.parametrize("num_workers", [0, 2])
def test_resumed_run_sees_the_same_batches(num_workers: int) -> None:
    dataset = NumbersDataset(60, seed=4)
    whole = []
    loader = make_loader(dataset, batch_size=8, seed=3, num_workers=num_workers, padding_value=np.nan)
    for epoch in range(2):
        loader.set_epoch(epoch)
        whole.append(list(loader))
        assert len(whole[-1]) == len(loader)
    in_process = [list(make_loader(dataset, batch_size=8, seed=3, epoch=e, padding_value=np.nan)) for e in range(2)]
    assert_same(whole[0] + whole[1], in_process[0] + in_process[1])

    resumed = make_loader(
        dataset, batch_size=8, seed=3, epoch=0, start_batch=5, num_workers=num_workers, padding_value=np.nan
    )
    assert len(resumed) == len(whole[0])
    assert_same(list(resumed), whole[0][5:])
    resumed.set_epoch(1)
    assert_same(list(resumed), whole[1])
    resumed.set_epoch(1, len(resumed))
    assert list(resumed) == []


def test_skipped_batches_are_not_loaded() -> None:
    dataset = Toy(toy_lengths(40))
    loader = make_loader(dataset, batch_size=4, start_batch=7)
    assert len(list(loader)) == 3
    assert sorted(dataset.loaded) == sorted(
        i for batch in BucketBatchSampler(dataset, max_sequences=4).batches(0)[7:] for i in batch
    )


def test_start_outside_the_epoch() -> None:
    loader = make_loader(Toy([3] * 10), batch_size=2)
    for start in (-1, 6):
        with pytest.raises(UserError, match=f"start_batch={start}: epoch 0 has only 5 batches"):
            loader.set_epoch(0, start)
    with pytest.raises(UserError, match="epoch=-1"):
        loader.set_epoch(-1)


@pytest.mark.needs("torch")
@pytest.mark.parametrize("start_method", ["fork", "spawn"])
def test_workers_do_the_loading(start_method: str) -> None:
    dataset = Toy(toy_lengths(24))
    loader = make_loader(dataset, batch_size=3, num_workers=2, start_method=start_method)
    processes = {name.split()[1] for _ in range(2) for batch in loader for name in batch.names}
    assert len(processes) == 2 and str(os.getpid()) not in processes
    assert dataset.loaded == []


@pytest.mark.needs("torch")
def test_iteration_that_was_abandoned_does_not_disturb_the_next() -> None:
    dataset = NumbersDataset(40, seed=4)
    loader = make_loader(dataset, batch_size=4, num_workers=2)
    iterator = iter(loader)
    next(iterator)
    loader.set_epoch(1, 2)
    del iterator
    assert_same(list(loader), list(make_loader(dataset, batch_size=4, epoch=1, start_batch=2)))


@pytest.mark.needs("torch")
@pytest.mark.parametrize("num_workers", [0, 2])
def test_error_of_a_file_is_one_line(num_workers: int) -> None:
    loader = make_loader(Toy([5] * 20, fail_at=13), batch_size=2, num_workers=num_workers, shuffle=False)
    loaded = 0
    before = set(multiprocessing.active_children())
    with pytest.raises(UserError) as info:
        for _ in loader:
            loaded += 1
    assert str(info.value) == "toy-13.wav: cannot be read; remove it"
    assert loaded == 6
    assert set(multiprocessing.active_children()) == before
    with pytest.raises(UserError, match=r"toy-13\.wav"):
        list(loader)


@pytest.mark.needs("torch")
def test_close_ends_the_workers_until_the_next_iteration() -> None:
    dataset = NumbersDataset(12, seed=1)
    loader = make_loader(dataset, batch_size=4, num_workers=2)
    loader.close()
    before = set(multiprocessing.active_children())
    first = list(loader)
    workers = set(multiprocessing.active_children()) - before
    assert len(workers) == 2
    assert_same(list(loader), first)
    assert set(multiprocessing.active_children()) == before | workers
    loader.close()
    assert set(multiprocessing.active_children()) == before
    assert_same(list(loader), first)
    loader.close()


@pytest.mark.needs("torch")
def test_workers_survive_ctrl_c() -> None:
    """The terminal sends it to all processes; the main one may want to finish its step."""
    dataset = NumbersDataset(12, seed=1)
    loader = make_loader(dataset, batch_size=2, num_workers=2)
    before = set(multiprocessing.active_children())
    first = list(loader)
    for worker in set(multiprocessing.active_children()) - before:
        assert worker.pid is not None
        os.kill(worker.pid, signal.SIGINT)
    assert_same(list(loader), first)
    loader.close()


@pytest.mark.needs("torch", "soundfile")
def test_error_of_a_real_file_in_a_worker(tmp_path: Path) -> None:
    for name in "ab":
        with wave.open(str(tmp_path / f"{name}.wav"), "wb") as file:
            file.setparams((1, 2, 8000, 0, "NONE", ""))
            file.writeframes(bytes(200))
    (tmp_path / "t.txt").write_text("a: x\nb: y\n")
    dataset = open_dataset(tmp_path, transcripts=tmp_path / "t.txt")
    (tmp_path / "b.wav").write_bytes(b"")
    with pytest.raises(UserError) as info:
        list(make_loader(dataset, batch_size=1, num_workers=1))
    assert str(info.value).startswith(f"{tmp_path / 'b.wav'}: cannot be decoded") and "\n" not in str(info.value)


@pytest.mark.needs("torch")
def test_bug_in_a_worker_keeps_its_traceback() -> None:
    loader = make_loader(Toy([5] * 4, fail_at=1, bug=True), batch_size=2, num_workers=1)
    with pytest.raises(ZeroDivisionError, match=r"(?s)Original Traceback.*a bug"):
        list(loader)


@pytest.mark.needs("torch")
def test_global_random_state_is_left_alone() -> None:
    import torch

    before, numpy_before = torch.get_rng_state(), np.random.get_state(legacy=False)
    list(make_loader(NumbersDataset(8, seed=0), batch_size=2, num_workers=1))
    assert torch.equal(torch.get_rng_state(), before)
    np.testing.assert_equal(np.random.get_state(legacy=False), numpy_before)


def test_without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    dataset = NumbersDataset(8, seed=0)
    assert sum(len(batch) for batch in make_loader(dataset, batch_size=3)) == 8
    with pytest.raises(UserError, match=r"workers needs torch .*pip install rf-eager\[torch\], or use num_workers=0"):
        make_loader(dataset, batch_size=3, num_workers=1)


def test_waiting_is_measured_and_using_is_not() -> None:
    loader = make_loader(Toy([5] * 4, seconds=0.02), batch_size=1)
    assert loader.wait_seconds == 0.0
    start = time.perf_counter()
    for _ in loader:
        time.sleep(0.05)
    passed = time.perf_counter() - start
    assert 4 * 0.02 <= loader.wait_seconds <= passed - 4 * 0.05


@pytest.mark.needs("torch", "soundfile")
def test_real_speech_with_workers(asterisk: tuple[Path, Path]) -> None:
    dataset = open_dataset(asterisk[0], transcripts=asterisk[1], max_seconds=3.0)
    max_frames = 16 * 2 * 8000
    batches = list(make_loader(dataset, batch_size=16, max_frames=max_frames, num_workers=2))
    assert sum(len(batch) for batch in batches) == len(dataset)
    assert all(batch.inputs.size <= max_frames for batch in batches)
    assert_same(batches, list(make_loader(dataset, batch_size=16, max_frames=max_frames)))
