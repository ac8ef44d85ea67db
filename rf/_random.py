"""Random numbers on the host: initial weights, which must not depend on the backend, the draws of the NumPy backend,
and in portable mode those of all backends."""

from __future__ import annotations

import math
from typing import Any

import numpy

from rf import _config, dtypes
from rf._errors import RfError

DEFAULT_SEED = 42

seed: int | None = None
"""What `rf.set_random_seed` was last given; backends that are loaded later are seeded with it. None: never called."""

_step = numpy.random.Generator(numpy.random.PCG64(DEFAULT_SEED))
_portable = numpy.random.Generator(numpy.random.PCG64(DEFAULT_SEED))
_is_portable: bool | None = None


def set_seed(value: int) -> None:
    """Seed the generators of static and portable draws, and remember the seed for backends that are loaded later."""
    global seed, _portable
    seed = value
    _portable = generator(value)
    reset_step()


def reset_step() -> None:
    """Rewind the generator of static draws to its seed."""
    global _step
    _step = generator(DEFAULT_SEED if seed is None else seed)


def generator(value: int) -> numpy.random.Generator:
    """A generator with that seed."""
    return numpy.random.Generator(numpy.random.PCG64(value))


def next_seed(size: Any = None) -> Any:
    """The next seed, 0 .. 2^31-1; with `size`, an int64 array of them."""
    out = _step.integers(0, 2**31, size=size)
    return int(out) if size is None else out


def get_step_state() -> dict[str, Any]:
    """State of the generator of static draws."""
    return dict(_step.bit_generator.state)


def set_step_state(state: dict[str, Any]) -> None:
    """Restore what `get_step_state` gave."""
    _step.bit_generator.state = state


# -- portable mode


def is_portable() -> bool:
    """Whether all random numbers are drawn on the host."""
    global _is_portable
    if _is_portable is None:
        _is_portable = _config.RANDOM.get() == "portable"
    return _is_portable


def set_portable(enabled: bool | None) -> None:
    """Turn portable mode on or off; None: as the setting RF_RANDOM says."""
    global _is_portable
    _is_portable = enabled


def portable_generator() -> numpy.random.Generator:
    """The generator of portable draws."""
    return _portable


# -- distributions. Single precision is drawn for the half types too, so a dtype change does not change the numbers.


def _work_dtype(dtype: str) -> Any:
    return numpy.float64 if dtype == "float64" else numpy.float32


def uniform(rng: numpy.random.Generator, shape: tuple[int, ...], low: Any, high: Any, dtype: str) -> numpy.ndarray:
    """Uniform in [low, high); integers for integer dtypes."""
    if dtypes.kind(dtype) == 1:
        return rng.integers(low, high, size=shape, dtype=numpy.dtype(dtype))  # type: ignore[arg-type]
    work = _work_dtype(dtype)
    out = rng.random(shape, dtype=work)
    out *= work(high - low)
    out += work(low)
    return out


def normal(
    rng: numpy.random.Generator, shape: tuple[int, ...], mean: float, stddev: float, dtype: str
) -> numpy.ndarray:
    """Normal distribution."""
    work = _work_dtype(dtype)
    out = rng.standard_normal(shape, dtype=work)
    out *= work(stddev)
    out += work(mean)
    return out


def truncated_normal(
    rng: numpy.random.Generator, shape: tuple[int, ...], mean: float, stddev: float, low: float, high: float, dtype: str
) -> numpy.ndarray:
    """Normal distribution under the condition low <= x <= high, by rejection."""
    work = _work_dtype(dtype)
    if stddev == 0:
        return numpy.full(shape, min(max(mean, low), high), dtype=work)
    a, b = (low - mean) / stddev, (high - mean) / stddev
    inside = (math.erf(b / math.sqrt(2)) - math.erf(a / math.sqrt(2))) / 2
    out = numpy.empty(math.prod(shape), dtype=work)
    open_positions = numpy.arange(out.size)
    if inside < 0.1:
        # Normal proposals would hardly ever be inside: uniform ones, accepted by density. Beyond 38 the density is 0.
        a, b = max(a, -38.0), min(b, 38.0)
        if not a < b:
            raise RfError(f"truncated normal: no mass in [{low}, {high}] for mean {mean}, stddev {stddev}")
        best = min(max(0.0, a), b)
    else:
        best = None
    while open_positions.size:
        if best is None:
            x = rng.standard_normal(open_positions.size)
            accepted = (x >= a) & (x <= b)
        else:
            x = rng.uniform(a, b, open_positions.size)
            accepted = rng.random(open_positions.size) < numpy.exp((best * best - x * x) / 2)
        out[open_positions[accepted]] = x[accepted] * stddev + mean
        open_positions = open_positions[~accepted]
    return numpy.clip(out, work(low), work(high)).reshape(shape)
