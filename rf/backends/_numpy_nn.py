"""NumPy kernels for random numbers, convolution, pooling, recurrence, losses and signals: the formulas, forward
only."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from rf import _random
from rf._backend_nn import dtypes_lowest
from rf.backend import Raw, Shape, stft_window

Pairs = tuple[tuple[int, int], ...]


class NumpyNnKernels:
    """See the module docstring; `rf.backend` describes each kernel."""

    def __init__(self) -> None:
        super().__init__()
        self._rng = _random.generator(_random.DEFAULT_SEED)

    # -- random

    def set_random_seed(self, seed: int) -> None:
        self._rng = _random.generator(seed)

    def get_random_state(self) -> dict[str, bytes]:
        return {"numpy": json.dumps(self._rng.bit_generator.state).encode()}

    def set_random_state(self, state: dict[str, bytes]) -> None:
        self._rng.bit_generator.state = json.loads(state["numpy"])

    def random_uniform(self, shape: Shape, low: Any, high: Any, dtype: str, device: str | None) -> Raw:
        return _random.uniform(self._rng, shape, low, high, dtype).astype(dtype)

    def random_normal(self, shape: Shape, mean: float, stddev: float, dtype: str, device: str | None) -> Raw:
        return _random.normal(self._rng, shape, mean, stddev, dtype).astype(dtype)

    def random_truncated_normal(
        self, shape: Shape, mean: float, stddev: float, low: float, high: float, dtype: str, device: str | None
    ) -> Raw:
        return _random.truncated_normal(self._rng, shape, mean, stddev, low, high, dtype).astype(dtype)

    # -- convolution and pooling

    def conv(
        self, x: Raw, filter: Raw, bias: Raw | None, strides: Shape, paddings: Pairs, dilations: Shape, groups: int
    ) -> Raw:
        n = len(strides)
        batch, (channels, *space) = x.shape[: -n - 1], x.shape[-n - 1 :]
        num_out, per_group, *size = filter.shape
        num = math.prod(batch)
        x = np.pad(x.reshape(num, channels, *space), ((0, 0), (0, 0), *paddings))
        windows = _windows(x, tuple(size), strides, dilations)
        out_space = windows.shape[2 : 2 + n]
        windows = windows.reshape(num, groups, per_group, *out_space, *size)
        filter = filter.reshape(groups, num_out // groups, per_group, *size)
        s, k = "xyz"[:n], "uvw"[:n]
        y = np.einsum(f"bgi{s}{k},goi{k}->bgo{s}", windows, filter).reshape(*batch, num_out, *out_space)
        return y if bias is None else y + _per_channel(bias, n)

    def transposed_conv(self, x: Raw, filter: Raw, bias: Raw | None, strides: Shape, edges: Pairs) -> Raw:
        n = len(strides)
        batch, (channels, *space) = x.shape[: -n - 1], x.shape[-n - 1 :]
        _, num_out, *size = filter.shape
        x = x.reshape(math.prod(batch), channels, *space)
        # room for one output position at least; `edges` are relative to the true length
        full = [max((m - 1) * s + k, 0) for m, s, k in zip(space, strides, size)]
        y = np.zeros((x.shape[0], num_out, *full), dtype=x.dtype)
        if all(space):
            for at in np.ndindex(*size):
                where = tuple(slice(a, a + (m - 1) * s + 1, s) for a, m, s in zip(at, space, strides))
                y[(..., *where)] += np.einsum("bi...,io->bo...", x, filter[(slice(None), slice(None), *at)])
        for i, (left, right) in enumerate(edges):
            axis = 2 + i
            true = (space[i] - 1) * strides[i] + size[i]
            length = max(true + left + right, 0)
            y = np.pad(y, [(max(left, 0), max(right, 0) + length) if a == axis else (0, 0) for a in range(y.ndim)])
            start = max(-left, 0)
            y = y[(slice(None),) * axis + (slice(start, start + length),)]
        y = y.reshape(*batch, *y.shape[1:])
        return y if bias is None else y + _per_channel(bias, n)

    def max_pool(self, x: Raw, mask: Raw | None, size: Shape, strides: Shape, paddings: Pairs, dilations: Shape) -> Raw:
        low = -math.inf if x.dtype.kind == "f" else dtypes_lowest(x.dtype.name)
        values = x if mask is None else np.where(mask, x, x.dtype.type(low))
        values = np.pad(values, _leading(values, size, paddings), constant_values=low)
        axes = tuple(range(-len(size), 0))
        y = np.max(_windows(values, size, strides, dilations), axis=axes, initial=low)
        count = _valid_frames(x, mask, size, strides, paddings, dilations)
        return np.where(count > 0, y, x.dtype.type(0))

    def avg_pool(self, x: Raw, mask: Raw | None, size: Shape, strides: Shape, paddings: Pairs, dilations: Shape) -> Raw:
        values = x if mask is None else np.where(mask, x, x.dtype.type(0))
        values = np.pad(values, _leading(values, size, paddings))
        axes = tuple(range(-len(size), 0))
        total = np.sum(_windows(values, size, strides, dilations), axis=axes, dtype=x.dtype)
        count = _valid_frames(x, mask, size, strides, paddings, dilations)
        return (total / np.maximum(count, 1)).astype(x.dtype)

    # -- recurrence

    def lstm(
        self,
        x: Raw,
        h: Raw,
        c: Raw,
        ff_weight: Raw,
        rec_weight: Raw,
        bias: Raw | None,
        lengths: Raw | None,
        axis: int,
    ) -> tuple[Raw, Raw, Raw]:
        x = np.moveaxis(x, axis, 0)
        num_frames = x.shape[0]
        sizes = np.array(num_frames) if lengths is None else lengths
        batch = np.broadcast_shapes(x.shape[1:-1], h.shape[:-1], c.shape[:-1], sizes.shape)
        h, c = (np.broadcast_to(s, (*batch, s.shape[-1])) for s in (h, c))
        y = np.zeros((num_frames, *h.shape), dtype=x.dtype)
        for t in range(num_frames):
            active = (t < sizes)[..., None]
            new_h, new_c = self.lstm_step(x[t], h, c, ff_weight, rec_weight, bias)
            h, c = np.where(active, new_h, h), np.where(active, new_c, c)
            y[t] = np.where(active, new_h, np.zeros_like(new_h))
        return np.moveaxis(y, 0, axis), h, c

    def lstm_step(self, x: Raw, h: Raw, c: Raw, ff_weight: Raw, rec_weight: Raw, bias: Raw | None) -> tuple[Raw, Raw]:
        gates = x @ ff_weight.T + h @ rec_weight.T
        if bias is not None:
            gates = gates + bias
        i, f, g, o = np.split(gates, 4, axis=-1)
        c = _sigmoid(f) * c + _sigmoid(i) * np.tanh(g)
        return _sigmoid(o) * np.tanh(c), c

    # -- losses

    def ctc_loss(
        self,
        logits: Raw,
        targets: Raw,
        input_lengths: Shape,
        target_lengths: Shape,
        blank: int,
        normalized: bool,
        max_approx: bool,
        label_loop: bool,
    ) -> Raw:
        batch, (num_frames, num_labels) = logits.shape[:-2], logits.shape[-2:]
        num = math.prod(batch)
        scores = logits.reshape(num, num_frames, num_labels).astype(np.float64)
        if not normalized:
            top = np.max(scores, axis=-1, keepdims=True, initial=-np.inf)
            scores = scores - top
            scores = scores - np.log(np.sum(np.exp(scores), axis=-1, keepdims=True))
        targets = targets.reshape(num, -1) if num else targets.reshape(0, targets.shape[-1])
        combine = np.maximum if max_approx else np.logaddexp
        forward = _ctc_forward_loop if label_loop else _ctc_forward_no_loop
        out = [
            -forward(scores[b, :frames], targets[b, :labels], blank, combine)
            for b, (frames, labels) in enumerate(zip(input_lengths, target_lengths))
        ]
        return np.array(out, dtype=logits.dtype).reshape(batch)

    # -- signals

    def stft(
        self, x: Raw, frame_step: int, frame_length: int, fft_length: int, window_length: int, window_offset: int
    ) -> Raw:
        num_frames = max(0, (x.shape[-1] - frame_length) // frame_step + 1)
        missing = max(fft_length - frame_length, fft_length - x.shape[-1])
        x = np.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, missing)])
        frames = sliding_window_view(x, fft_length, axis=-1)[..., ::frame_step, :][..., :num_frames, :]
        out = np.fft.rfft(frames * stft_window(window_length, window_offset, fft_length), axis=-1)
        return out.astype(np.complex128 if x.dtype == np.float64 else np.complex64)


def _per_channel(bias: Raw, num_spatial: int) -> Raw:
    return bias.reshape(bias.shape[0], *(1,) * num_spatial)


def _leading(x: Raw, size: Shape, paddings: Pairs) -> list[tuple[int, int]]:
    return [(0, 0)] * (x.ndim - len(size)) + list(paddings)


def _windows(x: Raw, size: Shape, strides: Shape, dilations: Shape) -> Raw:
    """(..., space...) -> (..., out..., size...): all windows over the last axes."""
    extents = [(k - 1) * d + 1 for k, d in zip(size, dilations)]
    first = x.ndim - len(size)
    short = [max(e - n, 0) for e, n in zip(extents, x.shape[first:])]
    if any(short):
        x = np.pad(x, _leading(x, size, tuple((0, m) for m in short)))
    windows = sliding_window_view(x, extents, axis=tuple(range(first, x.ndim)))  # type: ignore[call-overload]
    out = [slice(0, 0 if m else None, s) for m, s in zip(short, strides)]
    return windows[(..., *out, *(slice(None, None, d) for d in dilations))]


def _valid_frames(x: Raw, mask: Raw | None, size: Shape, strides: Shape, paddings: Pairs, dilations: Shape) -> Raw:
    """How many positions of each window hold a valid frame; the axes before the spatial ones may have length 1."""
    n = len(size)
    space = x.shape[-n:]
    valid = np.ones((1,) * (x.ndim - n) + space, dtype=bool) if mask is None else mask
    valid = np.broadcast_to(valid, (*valid.shape[:-n], *space))
    valid = np.pad(valid, _leading(valid, size, paddings))
    return np.sum(_windows(valid, size, strides, dilations), axis=tuple(range(-n, 0)))


def _sigmoid(x: Raw) -> Raw:
    return np.tanh(x * x.dtype.type(0.5)) * x.dtype.type(0.5) + x.dtype.type(0.5)


def _ctc_forward_loop(scores: np.ndarray, labels: np.ndarray, blank: int, combine: Any) -> float:
    """Log of the summed (or best) probability of all ways to spell `labels` in the frames of `scores` (frames,
    labels)."""
    if not len(scores):
        return -np.inf if len(labels) else 0.0
    states = np.full(2 * len(labels) + 1, blank)
    states[1::2] = labels
    skip = np.zeros(len(states), dtype=bool)  # whether a state can follow the one two before it
    skip[2:] = (states[2:] != blank) & (states[2:] != states[:-2])
    alpha = np.full(len(states), -np.inf)
    alpha[:2] = scores[0, states[:2]]
    for frame in scores[1:]:
        before = np.concatenate([[-np.inf, -np.inf], alpha])
        alpha = combine(combine(alpha, before[1:-1]), np.where(skip, before[:-2], -np.inf)) + frame[states]
    return combine(alpha[-1], alpha[-2]) if len(labels) else alpha[-1]


def _ctc_forward_no_loop(scores: np.ndarray, labels: np.ndarray, blank: int, combine: Any) -> float:
    """The same where every label takes exactly one frame."""
    alpha = np.full(len(labels) + 1, -np.inf)
    alpha[0] = 0.0
    for frame in scores:
        before = np.concatenate([[-np.inf], alpha[:-1] + frame[labels]])
        alpha = combine(alpha + frame[blank], before)
    return alpha[-1]
