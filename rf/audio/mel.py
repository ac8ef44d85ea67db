"""Mel filter bank features."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy

from rf._core import Tensor, make_tensor
from rf._dim import Dim
from rf._errors import DimError, RfError
from rf.ops.contract import matmul
from rf.ops.elementwise import abs, cast, safe_log, square
from rf.ops.shape import squeeze
from rf.ops.signal import stft

__all__ = ["log_mel_filterbank_from_raw", "mel_filterbank"]

_matrices: dict[Any, Any] = {}
"""Raw filter matrices by what they depend on."""


def mel_filterbank(
    x: Tensor,
    *,
    in_dim: Dim,
    out_dim: Dim,
    sampling_rate: int | float,
    fft_length: int | None = None,
    f_min: int | float | None = None,
    f_max: int | float | None = None,
) -> Tensor:
    """Sums over triangular filters, evenly spaced on the mel scale 1125 ln(1 + f / 700 Hz): {..., in_dim} -> {...,
    out_dim}.

    The triangles are linear in the frequency, have height 1, and reach to the centers of their neighbors.

    :param x: a (power) spectrum, float.
    :param in_dim: the frequencies 0 .. sampling_rate / 2, of size fft_length / 2 + 1; see `rf.stft`.
    :param out_dim: the filters; its size says how many. The feature dim of the result.
    :param sampling_rate: in Hz.
    :param fft_length: in samples; default: from `in_dim`.
    :param f_min: lower end of the first filter, in Hz; default 0.
    :param f_max: upper end of the last filter, in Hz; default: sampling_rate / 2.

    Huang, Acero and Hon 2001, "Spoken Language Processing", section 6.5.2. Raises DimError when `in_dim` does not fit
    `fft_length`.
    """
    if in_dim.dimension is None or out_dim.dimension is None:
        raise DimError(f"mel_filterbank: in_dim {in_dim!r} and out_dim {out_dim!r} must be static")
    fft_length = fft_length or (in_dim.dimension - 1) * 2
    if in_dim.dimension != fft_length // 2 + 1:
        raise DimError(
            f"mel_filterbank: in_dim {in_dim!r} does not have the size {fft_length // 2 + 1} of fft_length={fft_length}"
        )
    low, high = float(f_min or 0.0), float(f_max or sampling_rate / 2)
    if not 0 <= low < high <= sampling_rate / 2:
        raise RfError(
            f"mel_filterbank: needs 0 <= f_min < f_max <= {sampling_rate / 2} Hz, got f_min={low}, f_max={high}"
        )
    backend = x.backend
    assert backend is not None
    key = (low, high, sampling_rate, fft_length, out_dim.dimension, backend.index, x.dtype, x.device)
    raw = _matrices.get(key)
    if raw is None:
        if len(_matrices) >= 32:
            _matrices.clear()
        matrix = mel_matrix(low, high, float(sampling_rate), fft_length, out_dim.dimension)
        raw = _matrices[key] = backend.from_numpy(matrix, x.dtype, x.device)
    out = matmul(x, make_tensor(backend, raw, (in_dim, out_dim), x.dtype), reduce=in_dim)
    out.feature_dim = out_dim
    return out


@functools.lru_cache(maxsize=32)
def mel_matrix(f_min: float, f_max: float, sampling_rate: float, fft_length: int, num_filters: int) -> numpy.ndarray:
    """The filters as a matrix (fft_length / 2 + 1, num_filters), float64."""
    mel_min, mel_max = (1125.0 * math.log1p(f / 700.0) for f in (f_min, f_max))
    mels = mel_min + numpy.arange(num_filters + 2) * (mel_max - mel_min) / (num_filters + 1)
    corners = 700.0 * numpy.expm1(mels / 1125.0) * fft_length / sampling_rate  # in FFT bins
    bins = numpy.arange(fft_length // 2 + 1)[:, None]
    left, center, right = corners[:-2], corners[1:-1], corners[2:]
    rising, falling = (bins - left) / (center - left), (right - bins) / (right - center)
    return numpy.maximum(numpy.minimum(rising, falling), 0.0)


def log_mel_filterbank_from_raw(
    raw_audio: Tensor,
    *,
    in_spatial_dim: Dim,
    out_dim: Dim,
    sampling_rate: int = 16_000,
    window_len: float = 0.025,
    step_len: float = 0.010,
    n_fft: int | None = None,
    log_base: int | float = 10,
) -> tuple[Tensor, Dim]:
    """Log mel features of audio samples: {..., samples} -> {..., frames, out_dim}.

    log(max(mel filter bank of |STFT|^2, 1e-10)) / log(log_base).

    :param raw_audio: float, usually within -1 .. 1; a feature dim of size 1 is removed.
    :param in_spatial_dim: the samples.
    :param out_dim: the filters; its size says how many.
    :param sampling_rate: in Hz.
    :param window_len: in seconds.
    :param step_len: from one frame to the next, in seconds.
    :param n_fft: in samples; default: the next power of two from the window on.
    :param log_base: e.g. 10, or math.e.
    :returns: (features, frames dim). A sequence shorter than a window has no frames. Padding does not matter.
    """
    feature = raw_audio.feature_dim
    if feature is not None and feature.dimension == 1 and feature != in_spatial_dim:
        raw_audio = squeeze(raw_audio, axis=feature)
    # lengths in seconds are rarely exact binary fractions
    window, step = (int(seconds * sampling_rate + 1e-6) for seconds in (window_len, step_len))
    spectrum, out_spatial_dim, frequencies = stft(
        raw_audio,
        in_spatial_dim=in_spatial_dim,
        frame_step=step,
        frame_length=window,
        fft_length=n_fft or 1 << max(window - 1, 0).bit_length(),
    )
    power = square(abs(spectrum))
    mel = mel_filterbank(power, in_dim=frequencies, out_dim=out_dim, sampling_rate=sampling_rate)
    out = safe_log(mel, eps=1e-10)
    if log_base != math.e:
        out = out * (1.0 / math.log(log_base))
    if out.dtype != raw_audio.dtype:
        out = cast(out, raw_audio.dtype)  # half precision: computed in float32
    return out, out_spatial_dim
