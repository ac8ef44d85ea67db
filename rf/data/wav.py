"""Wav files: the header is read here, with all its promises checked, the samples by soundfile.

libsndfile quietly returns fewer samples when a file was cut short, which is why the header is not left to it.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rf._errors import UserError

__all__ = ["WavInfo", "read_wav", "read_wav_info"]


# PCM, float, A-law, mu-law, and the extensible header that holds one of them: a fixed number of bytes per sample.
_ENCODINGS = (0x1, 0x3, 0x6, 0x7, 0xFFFE)


@dataclass(frozen=True)
class WavInfo:
    """``sampling_rate`` in Hz, ``num_samples`` of the only channel."""

    sampling_rate: int
    num_samples: int


def read_wav_info(path: Path) -> WavInfo:
    """Reads and checks the header of a mono wav file, without reading its samples.

    Raises:
        UserError: if the file cannot be read, is empty, is not a wav file, is shorter than its header says, is not
            mono, or has no usable sampling rate.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            return _parse_header(path, file, size)
    except OSError as exc:
        raise UserError(f"{path}: cannot be read ({exc.strerror}); check the file and its permissions") from exc


def _parse_header(path: Path, file: Any, size: int) -> WavInfo:
    head = file.read(12)
    if size == 0:
        raise UserError(f"{path}: empty file (0 bytes); copy it again or remove it")
    if head[:4] != b"RIFF"[: len(head)] or head[8:12] != b"WAVE"[: max(0, len(head) - 8)]:
        raise UserError(f"{path}: not a wav file (starts with {head[:4]!r}, not RIFF....WAVE); convert it or remove it")
    fmt: bytes | None = None
    while True:
        chunk = file.read(8)
        if len(chunk) < 8:
            raise UserError(f"{path}: truncated: ends before its audio data; copy it again or remove it")
        chunk_id, chunk_size = chunk[:4], struct.unpack("<I", chunk[4:])[0]
        if chunk_id == b"data":
            break
        if chunk_id == b"fmt ":
            fmt = file.read(chunk_size)
            file.seek(chunk_size % 2, os.SEEK_CUR)
        else:
            file.seek(chunk_size + chunk_size % 2, os.SEEK_CUR)
    if fmt is None or len(fmt) < 16:
        raise UserError(f"{path}: not a usable wav file: its header has no valid 'fmt ' chunk; convert it or remove it")
    encoding, num_channels, sampling_rate, _, block_bytes, _ = struct.unpack("<HHIIHH", fmt[:16])
    if encoding not in _ENCODINGS:
        raise UserError(f"{path}: compressed (wav encoding 0x{encoding:x}); convert it to 16 bit PCM")
    if num_channels != 1:
        raise UserError(
            f"{path}: has {num_channels} channels, mono is needed; convert it, for instance with: sox IN OUT remix -"
        )
    if not 1_000 <= sampling_rate <= 1_000_000:
        raise UserError(
            f"{path}: its header says {sampling_rate} Hz, which is no sampling rate of audio; write it again"
        )
    if block_bytes == 0:
        raise UserError(f"{path}: its header says 0 bytes per sample; write it again")
    there = size - file.tell()
    if chunk_size > there:
        raise UserError(
            f"{path}: truncated: its header promises {chunk_size} bytes of audio, {there} are there; "
            "copy it again or remove it"
        )
    if chunk_size < block_bytes:
        raise UserError(f"{path}: no audio (0 samples); record it again or remove it")
    return WavInfo(sampling_rate, chunk_size // block_bytes)


def import_soundfile() -> Any:
    """The module soundfile.

    Raises:
        UserError: if it, or the library libsndfile that it needs, is not installed.
    """
    try:
        import soundfile
    except (ImportError, OSError) as exc:
        raise UserError(f"reading wav files needs soundfile ({exc}): pip install rf-eager[audio]") from exc
    return soundfile


def read_wav(path: Path, info: WavInfo) -> np.ndarray:
    """The samples of a mono wav file: float32 ``(T,)``, in [-1, 1] for integer formats.

    Args:
        path: the file.
        info: its header, read before.

    Raises:
        UserError: if the samples cannot be decoded, are not finite, or are not as many as ``info`` says.
    """
    soundfile = import_soundfile()
    try:
        samples, _ = soundfile.read(str(path), dtype="float32")
    except (soundfile.LibsndfileError, OSError) as exc:
        raise UserError(f"{path}: cannot be decoded ({exc}); convert it to 16 bit PCM or remove it") from exc
    if samples.shape != (info.num_samples,):
        raise UserError(
            f"{path}: {len(samples)} samples decoded, {info.num_samples} expected from its header; "
            "it is damaged or has changed since it was opened"
        )
    if not np.isfinite(samples).all():
        raise UserError(f"{path}: has samples that are NaN or infinite; write it again")
    return samples
