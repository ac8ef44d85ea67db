"""Changing the sampling rate of audio."""

from __future__ import annotations

import functools
import math

import numpy as np

__all__ = ["resample", "resampled_length"]

_ZERO_CROSSINGS = 16
_KAISER_BETA = 8.0
# Fraction of the new Nyquist frequency that is kept flat.
_ROLL_OFF = 0.93


def resampled_length(num_samples: int, rate: int, new_rate: int) -> int:
    """Samples after :func:`resample`: ``ceil(num_samples * new_rate / rate)``."""
    return -(-num_samples * new_rate // rate)


@functools.lru_cache(maxsize=16)
def _filters(up: int, down: int) -> np.ndarray:
    """One filter per phase, float32 ``(up, taps)``: a low-pass sinc under a Kaiser window."""
    cutoff = _ROLL_OFF * min(1.0, up / down)
    half = math.ceil(_ZERO_CROSSINGS / cutoff)
    # Phase p asks for the signal p / up samples to the right of the middle tap.
    distance = np.arange(-half, half + 1)[None, :] - np.arange(up)[:, None] / up
    window = np.i0(_KAISER_BETA * np.sqrt(np.maximum(0.0, 1.0 - (distance / (half + 1)) ** 2))) / np.i0(_KAISER_BETA)
    filters = np.sinc(cutoff * distance) * window
    return (filters / filters.sum(axis=1, keepdims=True)).astype(np.float32)


def resample(samples: np.ndarray, rate: int, new_rate: int) -> np.ndarray:
    """Resamples audio with a windowed sinc, band-limited to the lower of the two rates.

    Args:
        samples: float32 ``(T,)``; silence is assumed before and after.
        rate: its sampling rate, Hz.
        new_rate: the wanted sampling rate, Hz.

    Returns:
        float32 ``(ceil(T * new_rate / rate),)``; its sample n lies at the time of sample ``n * rate / new_rate`` of the
        input.
    """
    if rate == new_rate:
        return samples
    divisor = math.gcd(rate, new_rate)
    up, down = new_rate // divisor, rate // divisor
    filters = _filters(up, down)
    taps = filters.shape[1]
    length = resampled_length(len(samples), rate, new_rate)
    padded = np.pad(samples.astype(np.float32, copy=False), (taps // 2, taps))
    windows = np.lib.stride_tricks.sliding_window_view(padded, taps)
    out = np.empty(length, dtype=np.float32)
    # Outputs up apart have the same phase and lie down input samples apart.
    for first in range(min(up, length)):
        position, phase = divmod(first * down, up)
        count = len(range(first, length, up))
        out[first::up] = windows[position : position + (count - 1) * down + 1 : down] @ filters[phase]
    return out
