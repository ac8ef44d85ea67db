"""TensorFlow kernels for random numbers, recurrence, losses and signals."""

# pyright: reportMissingModuleSource=false

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from rf import _random
from rf.backend import Raw, Shape, stft_window
from rf.backends import _tensorflow_ops as ops
from rf.backends._tensorflow_conv import ConvKernels
from rf.backends._tensorflow_fast import array, fast, ints, like, on, with_gradient
from rf.backends._tensorflow_matmul import matmul

_UINT64 = tf.uint64.as_datatype_enum
_INT32, _INT64 = tf.int32.as_datatype_enum, tf.int64.as_datatype_enum

_uniform = fast("StatelessRandomUniformV2", "dtype")
_normal = fast("StatelessRandomNormalV2", "dtype")
_uniform_int = fast("StatelessRandomUniformIntV2")
_erfinv, _cast = fast("Erfinv"), fast("Cast", "DstT", Truncate=False)
_gather = fast("GatherV2", "batch_dims")
_maximum, _minimum = fast("Maximum"), fast("Minimum")
_greater, _greater_equal = fast("Greater"), fast("GreaterEqual")
_add, _mul, _select = fast("AddV2"), fast("Mul"), fast("SelectV2")
_sparse_cross_entropy = fast("SparseSoftmaxCrossEntropyWithLogits")
_ctc_loss = fast(
    "CTCLoss", preprocess_collapse_repeated=False, ctc_merge_repeated=True, ignore_longer_outputs_than_inputs=True
)
_rfft = fast("RFFT", "Tcomplex")

_LOW = -1e30  # stands for -inf where that would make NaN in the gradient
_PHILOX = 1
_COUNTER_LIMIT = 1 << 128


class TensorFlowNnKernels(ConvKernels):
    """See the module docstring; `rf.backend` describes each kernel."""

    def __init__(self) -> None:
        super().__init__()
        self.set_random_seed(_random.DEFAULT_SEED)

    # -- random: TensorFlow's generator by counter, of which the state is a key and a number

    def set_random_seed(self, seed: int) -> None:
        self._counter = 0
        self._set_key(seed % (1 << 64))

    def _set_key(self, key: int) -> None:
        self._key = key
        self._raw_key = None

    def get_random_state(self) -> dict[str, bytes]:
        return {"tensorflow": json.dumps({"key": self._key, "counter": self._counter}).encode()}

    def set_random_state(self, state: dict[str, bytes]) -> None:
        values = json.loads(state["tensorflow"])
        self._counter = values["counter"]
        self._set_key(values["key"])

    def _draws(self, shape: Shape) -> tuple[Raw, Raw, Raw, Raw]:
        """The operands of a random op, for draws that have not been made yet."""
        if self._raw_key is None:
            self._raw_key = array(np.array([self._key], dtype=np.uint64), _UINT64)
        low, high = self._counter % (1 << 64), self._counter >> 64
        counter = array(np.array([low, high], dtype=np.uint64), _UINT64)
        # At least as many as the op takes, which are 128 bits a count.
        self._counter = (self._counter + math.prod(shape) // 2 + 1) % _COUNTER_LIMIT
        return ints(tuple(shape)), self._raw_key, counter, ints(_PHILOX)

    def random_uniform(self, shape: Shape, low: Any, high: Any, dtype: str, device: str | None) -> Raw:
        number = tf.as_dtype(dtype).as_datatype_enum
        if "int" in dtype:
            wide = "int64" if dtype == "int64" else "int32"
            bounds = (self.scalar(low, wide), self.scalar(high, wide))
            with on(device):
                out = _uniform_int(*self._draws(shape), *bounds)
            return out if dtype == wide else _cast(out, number)
        with on(device):
            out = _uniform(*self._draws(shape), number)
        if (low, high) == (0, 1):
            return out
        return _add(_mul(out, self._like(out, high - low)), self._like(out, low))

    def random_normal(self, shape: Shape, mean: float, stddev: float, dtype: str, device: str | None) -> Raw:
        with on(device):
            out = _normal(*self._draws(shape), tf.as_dtype(dtype).as_datatype_enum)
        return _add(_mul(out, self._like(out, stddev)), self._like(out, mean))

    def random_truncated_normal(
        self, shape: Shape, mean: float, stddev: float, low: float, high: float, dtype: str, device: str | None
    ) -> Raw:
        if stddev == 0:
            return self.full(shape, min(max(mean, low), high), dtype, device)
        # the inverse distribution function of uniform numbers, in double precision for the tails
        a, b = (math.erf((bound - mean) / (stddev * math.sqrt(2))) for bound in (low, high))
        x = _erfinv(self.random_uniform(shape, a, b, "float64", device))
        x = _add(_mul(x, self._like(x, stddev * math.sqrt(2))), self._like(x, mean))
        x = _minimum(_maximum(x, self._like(x, low)), self._like(x, high))
        return _cast(x, tf.as_dtype(dtype).as_datatype_enum)

    def dropout(self, x: Raw, p: float, keep_axes: Shape | None) -> Raw:
        shape = tuple(n if keep_axes is None or i in keep_axes else 1 for i, n in enumerate(self.shape_of(x)))
        draws = self.random_uniform(shape, 0.0, 1.0, "float32", None if self.host_only else self.device_of(x))
        keep = _greater_equal(draws, like(draws, p))

        def scaled(x: Raw) -> Raw:
            return _select(keep, _mul(x, like(x, 1 / (1 - p) if p < 1 else 0)), like(x, 0))

        return with_gradient((x,), scaled, lambda _x, _y, g: (scaled(g),))

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
        x = self._move_axis(x, axis, 0)
        num_frames, *batch, num_in = self.shape_of(x)
        num_out = self.shape_of(rec_weight)[1]
        sizes = np.array(num_frames) if lengths is None else self.to_numpy(lengths)
        shapes = (self.shape_of(h)[:-1], self.shape_of(c)[:-1], sizes.shape)
        batch_shape = np.broadcast_shapes(tuple(batch), *shapes)
        rows, state_shape = math.prod(batch_shape), (*batch_shape, num_out)
        h, c = (ops.broadcast(s, state_shape) for s in (h, c))
        if num_frames == 0 or rows == 0:
            y = self.full((num_frames, *state_shape), 0, self.dtype_of(x), None)
            return self._move_axis(y, 0, axis), h, c
        if tuple(batch) != batch_shape:
            x = ops.reshape(x, (num_frames, *(1,) * (len(batch_shape) - len(batch)), *batch, num_in))
            x = ops.broadcast(x, (num_frames, *batch_shape, num_in))
        x = ops.reshape(x, (num_frames, rows, num_in))
        h, c = (ops.reshape(s, (rows, num_out)) for s in (h, c))
        sizes = np.broadcast_to(sizes, batch_shape).reshape(-1)
        first_end = int(min(sizes.min(), num_frames))
        valid: list[Raw] = []
        if first_end < num_frames:
            mask = np.arange(num_frames)[:, None, None] < sizes[:, None]
            valid = [self.from_numpy(m, "bool") for m in mask]
            x = ops.select(self.from_numpy(mask, "bool"), x, like(x, 0))
        frames = ops.unstack(self.linear(x, ops.transpose(ff_weight, (1, 0)), bias), 0, num_frames)
        rec = ops.transpose(rec_weight, (1, 0))
        zero = self._like(x, 0)
        out = []
        for t, frame in enumerate(frames):
            i, f, g, o = ops.split(ops.add(frame, matmul(h, rec)), 1, (num_out,) * 4)
            new_c = ops.add(ops.mul(ops.sigmoid(f), c), ops.mul(ops.sigmoid(i), ops.tanh(g)))
            new_h = ops.mul(ops.sigmoid(o), ops.tanh(new_c))
            if t < first_end:
                h, c = new_h, new_c
                out.append(h)
            else:
                out.append(ops.select(valid[t], new_h, zero))
                h, c = ops.select(valid[t], new_h, h), ops.select(valid[t], new_c, c)
        y = self._move_axis(ops.reshape(ops.stack(out, 0), (num_frames, *state_shape)), 0, axis)
        return y, ops.reshape(h, state_shape), ops.reshape(c, state_shape)

    def _move_axis(self, x: Raw, source: int, to: int) -> Raw:
        order = list(range(len(self.shape_of(x))))
        order.insert(to % len(order), order.pop(source))
        return x if order == sorted(order) else ops.transpose(x, tuple(order))

    # -- losses

    def cross_entropy(self, logits: Raw, targets: Raw) -> Raw:
        *batch, num_classes = self.shape_of(logits)
        labels = _cast(ops.reshape(targets, (math.prod(batch),)), _INT32)
        derivatives: Raw = None

        def forward(logits: Raw) -> Raw:
            nonlocal derivatives
            loss, derivatives = _sparse_cross_entropy(logits, labels)
            return loss

        def backward(_logits: Raw, _loss: Raw, g: Raw) -> Sequence[Raw]:
            return (_mul(ops.expand_dims(g, 1), derivatives),)

        flat = ops.reshape(logits, (math.prod(batch), num_classes))
        return ops.reshape(with_gradient((flat,), forward, backward), tuple(batch))

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
        *batch, num_frames, num_classes = self.shape_of(logits)
        num, dtype = math.prod(batch), self.dtype_of(logits)
        labels = targets.numpy().reshape(num, -1 if num else 0).astype(np.int32)
        if num == 0 or num_frames == 0:
            fixed = np.array([math.inf if m else 0.0 for m in target_lengths])
            return self.from_numpy(fixed.reshape(batch), dtype)
        scores = ops.reshape(logits, (num, num_frames, num_classes))
        if dtype in ("float16", "bfloat16"):
            scores = self.cast(scores, "float32")
        if max_approx or not label_loop or num_classes == 1:
            scores = scores if normalized else ops.log_softmax(scores)
            loss = self._ctc_by_recursion(scores, labels, input_lengths, target_lengths, blank, max_approx, label_loop)
        else:
            loss = self._ctc_by_kernel(scores, labels, input_lengths, target_lengths, blank, normalized)
        if min(input_lengths) == 0:
            fixed = np.array([math.inf if m else 0.0 for m in target_lengths])
            empty = self.from_numpy(np.array(input_lengths) == 0, "bool")
            loss = ops.select(empty, self.from_numpy(fixed, self.dtype_of(loss)), loss)
        return ops.reshape(self.cast(loss, dtype), tuple(batch))

    def _ctc_by_kernel(
        self, scores: Raw, labels: np.ndarray, frames: Shape, lengths: Shape, blank: int, normalized: bool
    ) -> Raw:
        num, num_frames, num_classes = self.shape_of(scores)
        # TensorFlow's blank is the last class.
        order = (*(i for i in range(num_classes) if i != blank), blank)
        logits = _gather(ops.transpose(scores, (1, 0, 2)), ints(order), ints(2), 0)
        labels = np.where(labels > blank, labels - 1, labels)
        valid = np.arange(labels.shape[1]) < np.array(lengths)[:, None]
        # Where there are too few frames for any path, the kernel is asked for another one.
        repeats = ((labels[:, 1:] == labels[:, :-1]) & valid[:, 1:]).sum(1)
        possible = np.array(lengths) + repeats <= np.array(frames)
        empty = np.array(lengths) == 0
        if not possible.all() or empty.any():
            # The kernel wants a path, and one label at least.
            labels = np.concatenate([labels, np.zeros((num, 1), labels.dtype)], 1)
            valid = np.concatenate([valid & possible[:, None], np.zeros((num, 1), bool)], 1)
            labels[empty | ~possible, 0] = 0
            valid[empty | ~possible, 0] = True
        where = array(np.argwhere(valid).astype(np.int64).reshape(-1, 2), _INT64)
        values = array(labels[valid].astype(np.int32), _INT32)
        loss = _ctc_loss(logits, where, values, ints(tuple(max(n, 1) for n in frames)))[0]
        time = self.from_numpy(np.arange(num_frames) < np.array(frames)[:, None], "bool")
        if empty.any():
            blanks = ops.reshape(_gather(ops.log_softmax(scores), ints((blank,)), ints(2), 0), (num, num_frames))
            blanks = ops.sum_over(ops.select(time, blanks, self._like(blanks, 0)), (1,))
            loss = ops.select(self.from_numpy(empty, "bool"), ops.neg(blanks), loss)
        if normalized:
            # What the softmax of the kernel has divided by is put back, in value and gradient.
            total = self.logsumexp(scores, (2,))
            total = ops.select(time, total, self._like(total, 0))
            loss = ops.sub(loss, ops.sum_over(total, (1,)))
        if not possible.all():
            loss = ops.select(self.from_numpy(possible, "bool"), loss, self._like(loss, math.inf))
        return loss

    def _ctc_by_recursion(
        self,
        scores: Raw,
        labels: np.ndarray,
        input_lengths: Shape,
        target_lengths: Shape,
        blank: int,
        max_approx: bool,
        label_loop: bool,
    ) -> Raw:
        """CTC in plain ops, for the variants that TensorFlow has no kernel of. (num, frames, classes) -> (num)."""
        num, num_frames, _ = self.shape_of(scores)
        dtype = self.dtype_of(scores)
        constant: Any = self.from_numpy
        low = self._like(scores, _LOW)
        combine = _maximum if max_approx else self.logaddexp
        scores = _maximum(scores, low)
        active = [constant((t < np.array(input_lengths))[:, None], "bool") for t in range(num_frames)]
        wall = self.full((num, 1), _LOW, dtype, None)
        if label_loop:
            states = np.full((num, 2 * labels.shape[1] + 1), blank, dtype=np.int32)
            states[:, 1::2] = labels
            skip = np.zeros(states.shape, dtype=bool)
            skip[:, 2:] = (states[:, 2:] != blank) & (states[:, 2:] != states[:, :-2])
            may_skip = constant(skip, "bool")
            start = np.where(np.arange(states.shape[1]) < 1, 0.0, _LOW)
            alpha = constant(np.broadcast_to(start, states.shape), dtype)  # before the first frame: at the blank
        else:
            states = labels
            stay = ops.unstack(_gather(scores, ints((blank,)), ints(2), 0), 1, num_frames)
            start = np.where(np.arange(labels.shape[1] + 1) < 1, 0.0, _LOW)
            alpha = constant(np.broadcast_to(start, (num, labels.shape[1] + 1)), dtype)
        index = np.broadcast_to(states[:, None], (num, num_frames, states.shape[1]))
        emit = ops.unstack(self.gather(scores, constant(index, "int32"), 2), 1, num_frames)
        for t in range(num_frames):
            if label_loop:
                one = self._behind(alpha, wall)
                new = combine(alpha, one)
                if t:
                    new = combine(new, ops.select(may_skip, self._behind(one, wall), low))
                new = ops.add(new, emit[t])
            else:
                moved = ops.concat([wall, ops.add(self._without_last(alpha), emit[t])], 1)
                new = combine(ops.add(alpha, stay[t]), moved)
            alpha = ops.select(active[t], _maximum(new, low), alpha)
        ends = np.array(target_lengths, dtype=np.int32)[:, None]
        if label_loop:
            alpha = ops.concat([wall, alpha], 1)
            ends = np.concatenate([2 * ends, 2 * ends + 1], 1)
        last = ops.unstack(self.gather(alpha, constant(ends, "int32"), 1), 1, ends.shape[1])
        best = combine(*last) if label_loop else last[0]
        return ops.select(_greater(best, self._like(best, _LOW / 2)), ops.neg(best), self._like(best, math.inf))

    def _without_last(self, x: Raw) -> Raw:
        return self.slice(x, 1, 0, self.shape_of(x)[1] - 1, 1)

    def _behind(self, x: Raw, first: Raw) -> Raw:
        """The columns one further right, after `first`."""
        return ops.concat([first, self._without_last(x)], 1)

    # -- signals

    def stft(
        self, x: Raw, frame_step: int, frame_length: int, fft_length: int, window_length: int, window_offset: int
    ) -> Raw:
        *batch, length = self.shape_of(x)
        num_frames = max(0, (length - frame_length) // frame_step + 1)
        kind = "complex128" if self.dtype_of(x) == "float64" else "complex64"
        if 0 in (num_frames, *batch):
            return self.full((*batch, num_frames, fft_length // 2 + 1), 0, kind, None)
        missing = max((num_frames - 1) * frame_step + fft_length - length, 0)
        if missing:
            x = ops.pad(x, (*((0, 0) for _ in batch), (0, missing)), like(x, 0))
        index = np.arange(num_frames)[:, None] * frame_step + np.arange(fft_length)
        frames = _gather(x, array(index.astype(np.int32), _INT32), ints(len(batch)), 0)
        window = self.from_numpy(stft_window(window_length, window_offset, fft_length), self.dtype_of(x))
        return _rfft(ops.mul(frames, window), ints((fft_length,)), tf.as_dtype(kind).as_datatype_enum)
