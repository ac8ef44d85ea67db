"""TensorFlow kernels for random numbers, recurrence, losses and signals."""

# pyright: reportMissingModuleSource=false

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import tensorflow as tf

from rf import _random
from rf.backend import Raw, Shape, stft_window
from rf.backends._tensorflow_conv import ConvKernels
from rf.backends._tensorflow_fast import array, fast, ints, on

_UINT64 = tf.uint64.as_datatype_enum
_INT32, _INT64 = tf.int32.as_datatype_enum, tf.int64.as_datatype_enum

_uniform = fast("StatelessRandomUniformV2", "dtype")
_normal = fast("StatelessRandomNormalV2", "dtype")
_uniform_int = fast("StatelessRandomUniformIntV2")
_erfinv, _cast = fast("Erfinv"), fast("Cast", "DstT", Truncate=False)
_transpose, _reshape, _concat = fast("Transpose"), fast("Reshape"), fast("ConcatV2")
_pack, _unpack, _gather = fast("Pack", "axis"), fast("Unpack", "num", "axis"), fast("GatherV2", "batch_dims")
_matmul, _add, _sub, _mul, _neg = fast("MatMul"), fast("AddV2"), fast("Sub"), fast("Mul"), fast("Neg")
_sigmoid, _tanh, _select = fast("Sigmoid"), fast("Tanh"), fast("SelectV2")
_maximum, _minimum = fast("Maximum"), fast("Minimum")
_greater, _greater_equal = fast("Greater"), fast("GreaterEqual")
_split = fast("Split", "num_split")
_sum = fast("Sum", keep_dims=False)
_sparse_cross_entropy = fast("SparseSoftmaxCrossEntropyWithLogits")
_ctc_loss = fast(
    "CTCLoss", preprocess_collapse_repeated=False, ctc_merge_repeated=True, ignore_longer_outputs_than_inputs=True
)
_log_softmax, _rfft = fast("LogSoftmax"), fast("RFFT", "Tcomplex")
_pad, _expand = fast("PadV2"), fast("BroadcastTo")

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
        keep = self.cast(_greater_equal(draws, self._like(draws, p)), self.dtype_of(x))
        # (not recorded up to here: nothing of it depends on x)
        return _mul(x, _mul(keep, self._like(x, 1 / (1 - p) if p < 1 else 0)))

    # -- recurrence

    def lstm(
        self,
        x: Raw,
        h: Raw,
        c: Raw,
        ff_weight: Raw,
        rec_weight: Raw,
        bias: Raw | None,
        lengths: Shape | None,
    ) -> tuple[Raw, Raw, Raw]:
        num_frames, *batch, num_in = self.shape_of(x)
        num_out = self.shape_of(rec_weight)[1]
        rows, state_shape = math.prod(batch), (*batch, num_out)
        h, c = (_expand(s, ints(state_shape)) for s in (h, c))
        if num_frames == 0 or rows == 0:
            return self.full((num_frames, *state_shape), 0, self.dtype_of(x), None), h, c
        x = _reshape(x, ints((num_frames, rows, num_in)))
        h, c = (_reshape(s, ints((rows, num_out))) for s in (h, c))
        first_end = num_frames if lengths is None else min(lengths)
        valid: list[Raw] = []
        if first_end < num_frames:
            mask = np.arange(num_frames)[:, None, None] < np.array(lengths)[:, None]
            valid = [self.from_numpy(m, "bool") for m in mask]
            x = _select(self.from_numpy(mask, "bool"), x, self._like(x, 0))
        frames = _unpack(self.linear(x, _transpose(ff_weight, ints((1, 0))), bias), num_frames, 0)
        rec = _transpose(rec_weight, ints((1, 0)))
        zero = self._like(x, 0)
        out = []
        for t, frame in enumerate(frames):
            i, f, g, o = _split(ints(1), _add(frame, _matmul(h, rec)), 4)
            new_c = _add(_mul(_sigmoid(f), c), _mul(_sigmoid(i), _tanh(g)))
            new_h = _mul(_sigmoid(o), _tanh(new_c))
            if t < first_end:
                h, c = new_h, new_c
                out.append(h)
            else:
                out.append(_select(valid[t], new_h, zero))
                h, c = _select(valid[t], new_h, h), _select(valid[t], new_c, c)
        y = _reshape(_pack(out, 0), ints((num_frames, *state_shape)))
        return y, _reshape(h, ints(state_shape)), _reshape(c, ints(state_shape))

    # -- losses

    def cross_entropy(self, logits: Raw, targets: Raw) -> Raw:
        shape = self.shape_of(logits)
        flat = _reshape(logits, ints((math.prod(shape[:-1]), shape[-1])))
        labels = _reshape(_cast(targets, _INT32), ints((math.prod(shape[:-1]),)))
        return _reshape(_sparse_cross_entropy(flat, labels)[0], ints(shape[:-1]))

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
        scores = _reshape(logits, ints((num, num_frames, num_classes)))
        if dtype in ("float16", "bfloat16"):
            scores = self.cast(scores, "float32")
        if max_approx or not label_loop or num_classes == 1:
            scores = scores if normalized else _log_softmax(scores)
            loss = self._ctc_by_recursion(scores, labels, input_lengths, target_lengths, blank, max_approx, label_loop)
        else:
            loss = self._ctc_by_kernel(scores, labels, input_lengths, target_lengths, blank, normalized)
        if min(input_lengths) == 0:
            fixed = np.array([math.inf if m else 0.0 for m in target_lengths])
            empty = self.from_numpy(np.array(input_lengths) == 0, "bool")
            loss = _select(empty, self.from_numpy(fixed, self.dtype_of(loss)), loss)
        return _reshape(self.cast(loss, dtype), ints(tuple(batch)))

    def _ctc_by_kernel(
        self, scores: Raw, labels: np.ndarray, frames: Shape, lengths: Shape, blank: int, normalized: bool
    ) -> Raw:
        num, num_frames, num_classes = self.shape_of(scores)
        # TensorFlow's blank is the last class.
        order = (*(i for i in range(num_classes) if i != blank), blank)
        logits = _gather(_transpose(scores, ints((1, 0, 2))), ints(order), ints(2), 0)
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
            blanks = _reshape(_gather(_log_softmax(scores), ints((blank,)), ints(2), 0), ints((num, num_frames)))
            blanks = _sum(_select(time, blanks, self._like(blanks, 0)), ints((1,)))
            loss = _select(self.from_numpy(empty, "bool"), _neg(blanks), loss)
        if normalized:
            # What the softmax of the kernel has divided by is put back, in value and gradient.
            total = self.logsumexp(scores, (2,))
            total = _select(time, total, self._like(total, 0))
            loss = _sub(loss, _sum(total, ints((1,))))
        if not possible.all():
            loss = _select(self.from_numpy(possible, "bool"), loss, self._like(loss, math.inf))
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
            stay = _unpack(_gather(scores, ints((blank,)), ints(2), 0), num_frames, 1)
            start = np.where(np.arange(labels.shape[1] + 1) < 1, 0.0, _LOW)
            alpha = constant(np.broadcast_to(start, (num, labels.shape[1] + 1)), dtype)
        index = np.broadcast_to(states[:, None], (num, num_frames, states.shape[1]))
        emit = _unpack(self.gather(scores, constant(index, "int32"), 2), num_frames, 1)
        for t in range(num_frames):
            if label_loop:
                one = self._behind(alpha, wall)
                new = combine(alpha, one)
                if t:
                    new = combine(new, _select(may_skip, self._behind(one, wall), low))
                new = _add(new, emit[t])
            else:
                moved = _concat([wall, _add(self._without_last(alpha), emit[t])], ints(1))
                new = combine(_add(alpha, stay[t]), moved)
            alpha = _select(active[t], _maximum(new, low), alpha)
        ends = np.array(target_lengths, dtype=np.int32)[:, None]
        if label_loop:
            alpha = _concat([wall, alpha], ints(1))
            ends = np.concatenate([2 * ends, 2 * ends + 1], 1)
        last = _unpack(self.gather(alpha, constant(ends, "int32"), 1), ends.shape[1], 1)
        best = combine(*last) if label_loop else last[0]
        return _select(_greater(best, self._like(best, _LOW / 2)), _neg(best), self._like(best, math.inf))

    def _without_last(self, x: Raw) -> Raw:
        return self.slice(x, 1, 0, self.shape_of(x)[1] - 1, 1)

    def _behind(self, x: Raw, first: Raw) -> Raw:
        """The columns one further right, after `first`."""
        return _concat([first, self._without_last(x)], ints(1))

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
            x = _pad(x, ints((*((0, 0) for _ in batch), (0, missing))), self._like(x, 0))
        index = np.arange(num_frames)[:, None] * frame_step + np.arange(fft_length)
        frames = _gather(x, array(index.astype(np.int32), _INT32), ints(len(batch)), 0)
        window = self.from_numpy(stft_window(window_length, window_offset, fft_length), self.dtype_of(x))
        return _rfft(_mul(frames, window), ints((fft_length,)), tf.as_dtype(kind).as_datatype_enum)
