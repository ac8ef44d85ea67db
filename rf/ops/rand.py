"""Random tensors.

Two sources: `static=True` draws on the host, from a generator that `set_random_seed` seeds, and so gives the same
numbers on every backend; everything else is drawn by the backend's own generator, where the data lies, or, in portable
mode, by another generator on the host. The padded extent is drawn too.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from rf import _random, dtypes
from rf import backend as _backends
from rf._core import Tensor, make_tensor
from rf._dim import Dim
from rf._errors import DimError, RfError
from rf.backend import selected_backend
from rf.ops import device as _device
from rf.ops.elementwise import cast, combine, compare_bc, floor, minimum, safe_log
from rf.ops.reduce import reduce_max, reduce_sum
from rf.ops.sequence import cumsum
from rf.ops.top import top_k

__all__ = [
    "get_random_state",
    "get_static_step_based_seed",
    "random",
    "random_choice_with_replacement",
    "random_choice_without_replacement",
    "random_normal",
    "random_truncated_normal",
    "random_uniform",
    "reset_step_random_state",
    "set_random_portable",
    "set_random_seed",
    "set_random_state",
]

DISTRIBUTIONS = ("uniform", "normal", "truncated_normal")

Number = int | float
NumberOrTensor = int | float | Tensor

_STEP = "step"
_PORTABLE = "portable"


# -- state


def set_random_seed(seed: int) -> None:
    """Seed the generator of initial weights and those of all backends, also of backends that are loaded later.

    :param seed: a non-negative int. On torch this is `torch.manual_seed`.
    """
    if seed < 0:
        raise RfError(f"set_random_seed: the seed must be >= 0, got {seed}")
    _random.set_seed(seed)
    for backend in _backends.loaded_backends():
        backend.set_random_seed(seed)


def set_random_portable(enabled: bool = True) -> None:
    """Draw all random numbers (dropout, augmentation, ...) on the host, the same ones on every backend.

    For comparing backends: the same seed then gives the same training. Slower, as the draws have to be moved to where
    the data lies. Without a call, the setting RF_RANDOM says it (`portable`, or `backend`: each backend's own
    generator).
    """
    _random.set_portable(enabled)


def get_random_state() -> dict[str, bytes]:
    """The states of all generators: that of initial weights, that of portable draws (in portable mode), and those of
    the loaded backends."""
    state = {_STEP: json.dumps(_random.get_step_state()).encode()}
    if _random.is_portable():
        state[_PORTABLE] = json.dumps(_random.portable_generator().bit_generator.state).encode()
    for backend in _backends.loaded_backends():
        state |= backend.get_random_state()
    return state


def set_random_state(state: Mapping[str, bytes]) -> None:
    """Restore what `get_random_state` gave; draws go on as they did from there.

    Raises RfError when a generator of the state does not exist here (another backend, a missing GPU).
    """
    rest = dict(state)
    if _STEP in rest:
        _random.set_step_state(json.loads(rest.pop(_STEP)))
    if _PORTABLE in rest:
        _random.portable_generator().bit_generator.state = json.loads(rest.pop(_PORTABLE))
    for backend in _backends.loaded_backends():
        own = {name: rest.pop(name) for name in list(rest) if name.split(":")[0] == backend.name}
        if own:
            backend.set_random_state(own)
    if rest:
        raise RfError(f"set_random_state: there are no generators {sorted(rest)} here; select that backend first")


def reset_step_random_state() -> None:
    """Rewind the generator of initial weights: the next static draw is again the first one after `set_random_seed`."""
    _random.reset_step()


def get_static_step_based_seed(*, size: int | Sequence[int] | None = None) -> Any:
    """The next seed of the generator of initial weights: an int below 2^31, or with `size` an int64 NumPy array of
    such."""
    return _random.next_seed(size)


# -- drawing


def random(
    dims: Sequence[Dim],
    *,
    dtype: str | None = None,
    device: str | None = None,
    sparse_dim: Dim | None = None,
    feature_dim: Dim | None = None,
    distribution: str,
    mean: NumberOrTensor | None = None,
    stddev: NumberOrTensor | None = None,
    bound: NumberOrTensor | None = None,
    minval: NumberOrTensor | None = None,
    maxval: NumberOrTensor | None = None,
    seed: int | None = None,
    algorithm: str | None = None,
    explicit_state: Tensor | None = None,
    auto_update_state: bool | None = None,
    static: bool | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """Independent draws from one distribution: a Tensor over `dims`.

    :param dtype: default float dtype unless given; integers only for "uniform".
    :param device: default: the default device.
    :param distribution: "uniform" in [minval, maxval), "normal", or "truncated_normal": normal under the condition
        minval <= x <= maxval.
    :param mean: default 0. A Tensor must have dims of `dims`, and so for the other parameters.
    :param stddev: default 1.
    :param bound: for "uniform", short for minval=-bound, maxval=bound.
    :param minval: default 0 for "uniform", mean - 2 stddev for "truncated_normal" (a number there).
    :param maxval: default 1 for "uniform", mean + 2 stddev for "truncated_normal" (a number there). Not included for
        "uniform".
    :param seed: for static draws; default: the next one of `get_static_step_based_seed`.
    :param algorithm: not used; the backend's generator is taken.
    :param explicit_state: not supported.
    :param auto_update_state: not used.
    :param static: draw on the host, the same numbers on every backend, as for initial weights. Default: whether a seed
        is given.
    :param out: write into this Tensor, in place where the backend can; it is returned.

    Raises RfError for contradicting arguments, DimError when a parameter has other dims than `dims`.
    """
    if explicit_state is not None:
        raise RfError(
            "random: explicit_state is not supported; use seed=, or rf.get_random_state / rf.set_random_state"
        )
    if distribution not in DISTRIBUTIONS:
        raise RfError(f"random: unknown distribution {distribution!r}; choose one of {', '.join(DISTRIBUTIONS)}")
    if static is None:
        static = seed is not None
    if seed is not None and not static:
        raise RfError("random: seed is for static draws (static=True); other draws follow rf.set_random_seed")
    if out is not None and set(out.dims) != set(dims):
        raise DimError(f"random: dims {list(dims)} are not those of out {out!r}")
    dtype = dtypes.check(dtype or (out.dtype if out is not None else dtypes.get_default_float_dtype()))
    kind = dtypes.kind(dtype)
    if kind == 3 or kind == 0 or (kind == 1 and distribution != "uniform"):
        raise RfError(f"random: distribution {distribution!r} is not defined for dtype {dtype!r}")
    for name, value in (("mean", mean), ("stddev", stddev), ("bound", bound), ("minval", minval), ("maxval", maxval)):
        if isinstance(value, Tensor) and not all(d in dims for d in value.dims):
            raise DimError(f"random: {name}={value!r} has a dim that is not among dims {list(dims)}")
    source = _Source(tuple(dims), dtype, device or _device.get_default_device(), static, seed)
    if distribution == "uniform":
        if mean is not None or stddev is not None:
            raise RfError(
                "random: mean and stddev do not go with distribution 'uniform'; give minval and maxval, or bound"
            )
        if bound is not None:
            if minval is not None or maxval is not None:
                raise RfError("random: give bound, or minval and maxval, not both")
            minval, maxval = -bound, bound
        result = _uniform(source, 0 if minval is None else minval, 1 if maxval is None else maxval)
    elif bound is not None or (distribution == "normal" and (minval is not None or maxval is not None)):
        raise RfError(
            f"random: distribution {distribution!r} takes mean and stddev, not {'bounds' if bound is None else 'bound'}"
        )
    else:
        mean, stddev = 0.0 if mean is None else mean, 1.0 if stddev is None else stddev
        result = _normal(source, mean, stddev, distribution == "truncated_normal", minval, maxval)
    if out is not None:
        return _write(out, result)
    out = result.copy()
    out.feature_dim, out.sparse_dim = feature_dim, sparse_dim
    return out


class _Source:
    """Draws over fixed dims, from the host generator or the backend's."""

    def __init__(self, dims: tuple[Dim, ...], dtype: str, device: str | None, static: bool, seed: int | None):
        self.dims, self.dtype, self.device = dims, dtype, device
        self._static = static
        # The seed is taken also where nothing is computed, so that it does not matter what runs beside.
        self._seed = (_random.next_seed() if seed is None else seed) if static else None

    def draw(self, kernel: str, *args: Any, dtype: str | None = None) -> Tensor:
        """`kernel` is one of `rf._random` and, as `random_<kernel>`, of the backend."""
        backend, dtype = selected_backend(), dtype or self.dtype
        raw = backend.no_value
        if backend.computes:
            shape = tuple(d.get_dim_value() for d in self.dims)
            if self._static or _random.is_portable():
                generator = _random.portable_generator() if self._seed is None else _random.generator(self._seed)
                array = getattr(_random, kernel)(generator, shape, *args, dtype)
                raw = backend.from_numpy(array, dtype, self.device)
            else:
                raw = backend.kernels[f"random_{kernel}"](shape, *args, dtype, self.device)
        return make_tensor(backend, raw, self.dims, dtype)


def _uniform(source: _Source, low: NumberOrTensor, high: NumberOrTensor) -> Tensor:
    is_int = dtypes.kind(source.dtype) == 1
    if not isinstance(low, Tensor) and not isinstance(high, Tensor):
        if not (low < high or (low == high and not is_int)):
            raise RfError(f"random: uniform in [{low}, {high}) is empty")
        if is_int:
            low, high = int(low), int(high)
        return source.draw("uniform", low, high)
    work = "float64" if source.dtype in ("float64", "int64") else "float32"
    unit = source.draw("uniform", 0.0, 1.0, dtype=work)
    if not is_int:
        scale = combine(high, "-", low, allow_broadcast_all_sources=True)
        return cast(unit * scale + low, source.dtype)
    low = cast(low, source.dtype) if isinstance(low, Tensor) else low
    high = cast(high, source.dtype) if isinstance(high, Tensor) else high
    count = combine(high, "-", low, allow_broadcast_all_sources=True)
    index = minimum(cast(floor(unit * cast(count, work)), source.dtype), count - 1)  # the product may round up to count
    return index + low


def _normal(
    source: _Source,
    mean: NumberOrTensor,
    stddev: NumberOrTensor,
    truncated: bool,
    low: NumberOrTensor | None,
    high: NumberOrTensor | None,
) -> Tensor:
    if isinstance(low, Tensor) or isinstance(high, Tensor):
        raise RfError("random: truncated_normal takes numbers as minval and maxval, not Tensors")
    if not isinstance(mean, Tensor) and not isinstance(stddev, Tensor):
        if stddev < 0:
            raise RfError(f"random: stddev must be >= 0, got {stddev}")
        if not truncated:
            return source.draw("normal", float(mean), float(stddev))
        low = mean - 2 * stddev if low is None else low
        high = mean + 2 * stddev if high is None else high
        if not low <= high:
            raise RfError(f"random: truncated_normal in [{low}, {high}] is empty")
        return source.draw("truncated_normal", float(mean), float(stddev), float(low), float(high))
    if truncated and (low is not None or high is not None):
        raise RfError("random: truncated_normal with a Tensor as mean or stddev takes no minval and maxval")
    args = (0.0, 1.0, -2.0, 2.0) if truncated else (0.0, 1.0)
    unit = source.draw("truncated_normal" if truncated else "normal", *args)
    return cast(unit * stddev + mean, source.dtype)


def _write(out: Tensor, result: Tensor) -> Tensor:
    result = cast(result.copy_transpose(out.dims), out.dtype)
    backend = result.backend
    assert backend is not None
    if out.raw_tensor is None or not backend.computes:
        out.raw_tensor = result.raw_tensor
    else:
        out.raw_tensor = backend.assign(out.raw_tensor, result.raw_tensor)
    return out


def random_uniform(
    dims: Sequence[Dim],
    *,
    dtype: str | None = None,
    device: str | None = None,
    sparse_dim: Dim | None = None,
    feature_dim: Dim | None = None,
    minval: NumberOrTensor = 0,
    maxval: NumberOrTensor = 1,
    seed: int | None = None,
    algorithm: str | None = None,
    explicit_state: Tensor | None = None,
    auto_update_state: bool | None = None,
    static: bool | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """Uniform in [minval, maxval); integers for an integer dtype. See `random`."""
    return random(
        dims, dtype=dtype, device=device, sparse_dim=sparse_dim, feature_dim=feature_dim,
        distribution="uniform",
        minval=minval, maxval=maxval, seed=seed, algorithm=algorithm,
        explicit_state=explicit_state, auto_update_state=auto_update_state, static=static, out=out,
    )  # fmt: skip


def random_normal(
    dims: Sequence[Dim],
    *,
    dtype: str | None = None,
    device: str | None = None,
    sparse_dim: Dim | None = None,
    feature_dim: Dim | None = None,
    mean: NumberOrTensor = 0.0,
    stddev: NumberOrTensor = 1.0,
    seed: int | None = None,
    algorithm: str | None = None,
    explicit_state: Tensor | None = None,
    auto_update_state: bool | None = None,
    static: bool | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """Normal distribution. See `random`."""
    return random(
        dims, dtype=dtype, device=device, sparse_dim=sparse_dim, feature_dim=feature_dim,
        distribution="normal",
        mean=mean, stddev=stddev, seed=seed, algorithm=algorithm, explicit_state=explicit_state,
        auto_update_state=auto_update_state, static=static, out=out,
    )  # fmt: skip


def random_truncated_normal(
    dims: Sequence[Dim],
    *,
    dtype: str | None = None,
    device: str | None = None,
    sparse_dim: Dim | None = None,
    feature_dim: Dim | None = None,
    mean: NumberOrTensor = 0.0,
    stddev: NumberOrTensor = 1.0,
    minval: Number | None = None,
    maxval: Number | None = None,
    seed: int | None = None,
    algorithm: str | None = None,
    explicit_state: Tensor | None = None,
    auto_update_state: bool | None = None,
    static: bool | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """Normal distribution under the condition minval <= x <= maxval, by default within two standard deviations. See
    `random`."""
    return random(
        dims, dtype=dtype, device=device, sparse_dim=sparse_dim, feature_dim=feature_dim,
        distribution="truncated_normal",
        mean=mean, stddev=stddev, minval=minval, maxval=maxval, seed=seed, algorithm=algorithm,
        explicit_state=explicit_state, auto_update_state=auto_update_state, static=static, out=out,
    )  # fmt: skip


def random_choice_with_replacement(dims: Sequence[Dim], *, probs: Tensor, axis: Dim) -> Tensor:
    """Indices along `axis`, each drawn with its probability: {*dims}, int32 with sparse dim `axis`.

    :param dims: of the result; those dims of `probs` that are among them select the distribution.
    :param probs: {..., axis}, >= 0; need not be normalized. The padding of `axis` is never chosen.

    Raises DimError when `probs` has another dim than `axis` and `dims`. A distribution without mass gives index 0.
    """
    others = [d for d in probs.dims if d != axis]
    if axis not in probs.dims or not all(d in dims for d in others):
        raise DimError(f"random_choice_with_replacement: probs {probs!r} must have dims {axis!r} and of {list(dims)}")
    work = "float64" if probs.dtype == "float64" else "float32"
    summed = cumsum(cast(probs.copy_masked(0, dims=[axis]), work), spatial_dim=axis)
    total = reduce_max(summed, axis=axis)
    draws = random_uniform(dims, dtype=work)
    below = reduce_sum(cast(compare_bc(summed, "<=", draws * total), "int32"), axis=axis)
    # rounding may lift the product to the total: then the last entry with mass
    last = reduce_sum(cast(compare_bc(summed, "<", total), "int32"), axis=axis)
    out = cast(minimum(below, last), "int32").copy_transpose(dims)
    out.sparse_dim = axis
    return out


def random_choice_without_replacement(
    *, log_probs: Tensor, axis: Dim | Sequence[Dim], num_samples_dim: Dim, noise_scale: float = 1.0
) -> Any:
    """Distinct entries of one dim, or of several together, drawn with their probabilities: {..., axis} -> {...,
    num_samples_dim}.

    :param log_probs: {..., axis}; need not be normalized. The padding of `axis` comes last.
    :param axis: a dim or a list of dims.
    :param num_samples_dim: its size says how many; at most the number of entries.
    :param noise_scale: 1 draws from the distribution, 0 takes the most probable entries.
    :returns: int32 indices with sparse dim `axis`; for a list of dims, a list with the indices into each. In the order
        of the draw.

    Top k of the perturbed log probabilities: Kool et al. 2019, arXiv:1903.06059.
    """
    uniform = random_uniform(log_probs.dims, dtype="float32", device=log_probs.device)
    gumbel = -safe_log(-safe_log(uniform))
    scores = combine(log_probs, "+", cast(gumbel, log_probs.dtype) * noise_scale)
    _, indices, _ = top_k(scores, axis=axis, k_dim=num_samples_dim)
    return indices
