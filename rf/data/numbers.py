"""The built-in task: read a number in one base, write it in another.

It needs no download, has inputs and targets of varying length in the proportions of speech, and a small model learns
it: with the default bases (16 -> 4) every source digit gives two target digits, independently of all others, except
that the leading zero of the number is not written. That holds for every ``source_base = target_base ** k``. Other pairs
of bases work too and are harder: 4 -> 16 requires to know whether an even or odd number of digits follows, 10 -> 2
requires long-range carrying.
"""

from __future__ import annotations

import numpy as np

from rf._errors import UserError
from rf.data.dataset import Dataset, Example, check_at_least

__all__ = ["NumbersDataset", "digits_of", "min_ctc_frames"]

_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"
_PAUSE_FRAMES = 2
_STREAMS = {"train": 0, "eval": 1}


def digits_of(number: int, base: int) -> list[int]:
    """The digits of ``number`` >= 0, most significant first, without leading zeros; ``[0]`` for 0."""
    digits = [number % base]
    while number >= base:
        number //= base
        digits.append(number % base)
    return digits[::-1]


def min_ctc_frames(targets: list[int]) -> int:
    """Encoder frames that CTC needs to emit ``targets``: one per label, and a blank between equal neighbors."""
    return len(targets) + sum(a == b for a, b in zip(targets, targets[1:]))


class NumbersDataset(Dataset):
    """Random numbers: ``inputs`` renders the number in ``source_base``, ``targets`` are its digits in ``target_base``.

    Each source digit becomes ``d`` feature frames: the digit's prototype (a fixed random vector, the same for every
    seed and split) followed by two frames of silence, all with Gaussian noise; ``d`` is drawn uniformly per digit. The
    silence tells "33" from a long "3". Where needed digits are made longer so that ``T // subsampling`` frames are
    enough for CTC to emit the targets.

    Args:
        num_sequences: size of the data set.
        seed: of digits, durations and noise.
        split: ``"train"`` or ``"eval"``: two independent streams of numbers from the same seed.
        source_base, target_base: 2 .. 36, different.
        num_digits: least and most source digits; the first is never 0.
        frames_per_digit: least and most frames of a digit, its silence included.
        feature_dim: size of a frame.
        noise: standard deviation of the noise; the prototypes have 1.
        subsampling: factor by which the encoder shortens time.
    """

    kind = "features"

    def __init__(
        self,
        num_sequences: int,
        seed: int,
        *,
        split: str = "train",
        source_base: int = 16,
        target_base: int = 4,
        num_digits: tuple[int, int] = (2, 12),
        frames_per_digit: tuple[int, int] = (10, 14),
        feature_dim: int = 16,
        noise: float = 0.1,
        subsampling: int = 4,
    ) -> None:
        check_at_least("num_sequences", num_sequences, 1)
        check_at_least("seed", seed, 0)
        check_at_least("feature_dim", feature_dim, 1)
        check_at_least("subsampling", subsampling, 1)
        check_at_least("noise", noise, 0.0)
        if split not in _STREAMS:
            raise UserError(f"split={split!r}: must be one of {', '.join(_STREAMS)}")
        for name, base in ("source_base", source_base), ("target_base", target_base):
            if not 2 <= base <= len(_DIGITS):
                raise UserError(f"{name}={base}: must be 2 .. {len(_DIGITS)}")
        if source_base == target_base:
            raise UserError(f"source_base and target_base are both {source_base}: choose two different bases")
        for name, (low, high), minimum in (
            ("num_digits", num_digits, 1),
            ("frames_per_digit", frames_per_digit, _PAUSE_FRAMES + 1),
        ):
            if not minimum <= low <= high:
                raise UserError(f"{name}=({low}, {high}): must be (least, most) with {minimum} <= least <= most")

        self.feature_dim = feature_dim
        self.vocab = list(_DIGITS[:target_base])
        self.names = [f"{split}-{seed}-{i}" for i in range(num_sequences)]
        self.notices = []
        self.source_base = source_base
        self.target_base = target_base
        self._noise = noise
        self._noise_seed = (seed, _STREAMS[split], 1)
        self._prototypes = np.random.default_rng(source_base).standard_normal(
            (source_base, feature_dim), dtype=np.float32
        )

        rng = np.random.default_rng((seed, _STREAMS[split], 0))
        self._source: list[np.ndarray] = []
        self._targets: list[np.ndarray] = []
        self._durations: list[np.ndarray] = []
        for count in rng.integers(num_digits[0], num_digits[1] + 1, num_sequences):
            source = rng.integers(0, source_base, count)
            source[0] = rng.integers(1, source_base)
            number = 0
            for digit in source.tolist():
                number = number * source_base + digit
            targets = digits_of(number, target_base)
            durations = rng.integers(frames_per_digit[0], frames_per_digit[1] + 1, count)
            missing = subsampling * min_ctc_frames(targets) - int(durations.sum())
            if missing > 0:
                durations += -(-missing // int(count))
            self._source.append(source)
            self._targets.append(np.array(targets, dtype=np.int32))
            self._durations.append(durations)
        self.lengths = np.array([durations.sum() for durations in self._durations], dtype=np.int64)

    def __getitem__(self, index: int) -> Example:
        index = range(len(self))[index]
        rng = np.random.default_rng((*self._noise_seed, index))
        inputs = rng.standard_normal((int(self.lengths[index]), len(self._prototypes[0])), dtype=np.float32)
        inputs *= self._noise
        start = 0
        for digit, duration in zip(self._source[index], self._durations[index]):
            inputs[start : start + duration - _PAUSE_FRAMES] += self._prototypes[digit]
            start += duration
        return Example(self.names[index], inputs, self._targets[index])

    def source_digits(self, index: int) -> list[int]:
        """The digits in ``source_base`` that example ``index`` renders."""
        return self._source[index].tolist()
