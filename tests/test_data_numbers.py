from __future__ import annotations

from itertools import groupby

import numpy as np
import pytest

from rf._errors import UserError
from rf.data import NumbersDataset, open_dataset
from rf.data.numbers import digits_of, min_ctc_frames

BASES = [(16, 4), (4, 2), (2, 16), (10, 2), (3, 36), (36, 2)]


@pytest.mark.parametrize(("source_base", "target_base"), BASES)
def test_targets_are_the_same_number_in_the_other_base(source_base: int, target_base: int) -> None:
    dataset = NumbersDataset(50, seed=1, source_base=source_base, target_base=target_base)
    for i in range(len(dataset)):
        number = 0
        for digit in dataset.source_digits(i):
            number = number * source_base + digit
        assert int(dataset.labels_to_text(dataset[i].targets), target_base) == number
        assert dataset[i].targets[0] != 0


@pytest.mark.parametrize(("source_base", "target_base"), BASES)
def test_there_are_enough_frames_for_ctc(source_base: int, target_base: int) -> None:
    dataset = NumbersDataset(200, seed=2, source_base=source_base, target_base=target_base, frames_per_digit=(3, 6))
    for i in range(len(dataset)):
        assert dataset.lengths[i] // 4 >= min_ctc_frames(dataset[i].targets.tolist())


def test_min_ctc_frames() -> None:
    assert [min_ctc_frames(x) for x in ([], [1], [1, 1], [1, 2, 1], [2, 2, 2])] == [0, 1, 3, 3, 5]


def test_digits_of() -> None:
    assert [digits_of(n, 4) for n in (0, 3, 4, 27)] == [[0], [3], [1, 0], [1, 2, 3]]


def test_frames_tell_the_source_digits() -> None:
    """The nearest prototype of every frame, silence being zero, runs merged, gives back the digits."""
    dataset = NumbersDataset(20, seed=3)
    centers = np.concatenate([dataset._prototypes, np.zeros((1, 16), np.float32)])
    for i in range(len(dataset)):
        distances = ((dataset[i].inputs[:, None] - centers) ** 2).sum(-1)
        runs = [int(label) for label, _ in groupby(distances.argmin(1)) if label != 16]
        assert runs == dataset.source_digits(i)


def test_examples_depend_on_arguments_only() -> None:
    a, b = NumbersDataset(30, seed=5), NumbersDataset(30, seed=5)
    for i in (29, 0, 7, 7):
        assert np.array_equal(a[i].inputs, b[i].inputs)
        assert np.array_equal(a[i].targets, b[i].targets)
        assert a[i].name == b[i].name
    assert a[-1].name == a[29].name
    with pytest.raises(IndexError):
        a[30]


def test_seeds_and_splits_differ_but_share_the_task() -> None:
    train = NumbersDataset(30, seed=5)
    for other in (NumbersDataset(30, seed=6), NumbersDataset(30, seed=5, split="eval")):
        assert [train.source_digits(i) for i in range(30)] != [other.source_digits(i) for i in range(30)]
        assert np.array_equal(train._prototypes, other._prototypes)


def test_shapes_dtypes_and_lengths() -> None:
    dataset = NumbersDataset(100, seed=0, feature_dim=5)
    assert (dataset.kind, dataset.feature_dim, dataset.sampling_rate) == ("features", 5, None)
    assert len(set(dataset.lengths.tolist())) > 20
    for i in range(len(dataset)):
        example = dataset[i]
        assert example.inputs.shape == (dataset.lengths[i], 5)
        assert (example.inputs.dtype, example.targets.dtype) == (np.float32, np.int32)
        assert example.targets.min() >= 0 and example.targets.max() < len(dataset.vocab)


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"source_base": 1}, "source_base=1"),
        ({"target_base": 37}, "target_base=37"),
        ({"source_base": 4}, "both 4"),
        ({"num_digits": (3, 2)}, r"num_digits=\(3, 2\)"),
        ({"frames_per_digit": (2, 6)}, "frames_per_digit"),
        ({"split": "test"}, "split='test'"),
        ({"num_sequences": 0}, "num_sequences=0"),
        ({"seed": -1}, "seed=-1"),
    ],
)
def test_bad_arguments(arguments: dict[str, object], match: str) -> None:
    with pytest.raises(UserError, match=match):
        NumbersDataset(**{"num_sequences": 3, "seed": 0, **arguments})  # type: ignore[arg-type]


def test_labels_to_text_rejects_labels_outside_the_vocabulary() -> None:
    dataset = open_dataset("numbers", max_sequences=1)
    assert dataset.labels_to_text(np.array([3, 0, 1])) == "301"
    for label in (4, -1):
        with pytest.raises(ValueError, match=f"label {label}"):
            dataset.labels_to_text([0, label])


def test_open_numbers() -> None:
    assert len(open_dataset("numbers")) == 10_000
    assert len(open_dataset("numbers", split="eval")) == 200
    dataset = open_dataset("numbers", seed=3, max_sequences=7)
    assert len(open_dataset("numbers", seed=3, max_sequences=7, vocab=dataset.vocab)) == 7
    with pytest.raises(UserError, match="'abc'.*trained on"):
        open_dataset("numbers", vocab=["a", "b", "c"])
    with pytest.raises(UserError, match=r"t\.txt.*'numbers' has none"):
        open_dataset("numbers", transcripts="t.txt")
    with pytest.raises(UserError, match="max_seconds=3"):
        open_dataset("numbers", max_seconds=3.0)
    with pytest.raises(UserError, match="split='dev'"):
        open_dataset("numbers", split="dev")
