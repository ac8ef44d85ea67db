"""torch kernels for random numbers, convolution, pooling, recurrence, losses, signals and gradient control."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence
from torch.utils._mode_utils import no_dispatch

from rf._backend_nn import dtypes_lowest
from rf._errors import RfError
from rf.backend import Raw, Shape, stft_window

Pairs = tuple[tuple[int, int], ...]

_CONV = (None, F.conv1d, F.conv2d, F.conv3d)
_TRANSPOSED_CONV = (None, F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)
_MAX_POOL = (None, F.max_pool1d, F.max_pool2d, F.max_pool3d)
_AVG_POOL = (None, F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)


class TorchNnKernels:
    """See the module docstring; `rf.backend` describes each kernel."""

    def glu(self, x: Raw, axis: int) -> Raw:
        return F.glu(x, axis)

    # -- random

    def set_random_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    def get_random_state(self) -> dict[str, bytes]:
        state = {"torch": torch.get_rng_state()}
        if torch.cuda.is_initialized():
            state |= {f"torch:cuda:{i}": torch.cuda.get_rng_state(i) for i in range(torch.cuda.device_count())}
        return {name: s.numpy().tobytes() for name, s in state.items()}

    def set_random_state(self, state: dict[str, bytes]) -> None:
        for name, data in state.items():
            raw = torch.from_numpy(np.frombuffer(data, dtype=np.uint8).copy())
            if name == "torch":
                torch.set_rng_state(raw)
                continue
            device = int(name.rpartition(":")[2])
            if device >= torch.cuda.device_count():
                raise RfError(f"set_random_state: the state has a generator {name!r}, but there is no such GPU here")
            torch.cuda.set_rng_state(raw, device)

    def random_uniform(self, shape: Shape, low: Any, high: Any, dtype: str, device: str | None) -> Raw:
        torch_dtype = getattr(torch, dtype)
        if torch_dtype.is_floating_point:
            return torch.empty(shape, dtype=torch_dtype, device=device).uniform_(low, high)
        return torch.randint(low, high, shape, dtype=torch_dtype, device=device)

    def random_normal(self, shape: Shape, mean: float, stddev: float, dtype: str, device: str | None) -> Raw:
        return torch.empty(shape, dtype=getattr(torch, dtype), device=device).normal_(mean, stddev)

    def random_truncated_normal(
        self, shape: Shape, mean: float, stddev: float, low: float, high: float, dtype: str, device: str | None
    ) -> Raw:
        if stddev == 0:
            return torch.full(shape, min(max(mean, low), high), dtype=getattr(torch, dtype), device=device)
        # the inverse distribution function of uniform numbers, in double precision for the tails
        a, b = (math.erf((bound - mean) / (stddev * math.sqrt(2))) for bound in (low, high))
        u = torch.empty(shape, dtype=torch.float64, device=device).uniform_(a, b)
        x = u.erfinv_().mul_(stddev * math.sqrt(2)).add_(mean).clamp_(low, high)
        return x.to(getattr(torch, dtype))

    def dropout(self, x: Raw, p: float, keep_axes: Shape | None) -> Raw:
        if keep_axes is None:
            return F.dropout(x, p, True)
        shape = [n if axis in keep_axes else 1 for axis, n in enumerate(x.shape)]
        return x * F.dropout(x.new_ones(shape), p, True)

    # -- convolution and pooling

    def conv(
        self, x: Raw, filter: Raw, bias: Raw | None, strides: Shape, paddings: Pairs, dilations: Shape, groups: int
    ) -> Raw:
        n = len(strides)
        batch, space = x.shape[: -n - 1], x.shape[-n - 1 :]
        if len(batch) != 1:
            x = x.reshape(batch.numel(), *space)
        # torch wants at least one window: where there is none, make room for one and drop it
        short = [
            max((k - 1) * d + 1 - length - left - right, 0)
            for k, d, length, (left, right) in zip(filter.shape[2:], dilations, space[1:], paddings)
        ]
        if any(short):
            paddings = tuple((left, right + m) for (left, right), m in zip(paddings, short))
        if all(left == right for left, right in paddings) and all(space[1:]):
            padding = tuple(left for left, _ in paddings)
        else:
            x = F.pad(x, [m for pair in reversed(paddings) for m in pair])
            padding = (0,) * n
        y = _CONV[n](x, filter, bias, strides, padding, dilations, groups)  # type: ignore[misc]
        if any(short):
            y = y[(..., *(slice(0, 0 if m else None) for m in short))]
        return y if len(batch) == 1 else y.reshape(*batch, *y.shape[1:])

    def transposed_conv(self, x: Raw, filter: Raw, bias: Raw | None, strides: Shape, edges: Pairs) -> Raw:
        n = len(strides)
        batch, space = x.shape[: -n - 1], x.shape[-n - 1 :]
        x = x.reshape(batch.numel(), *space)
        empty = [length == 0 for length in space[1:]]
        if any(empty):
            x = F.pad(x, [m for e in reversed(empty) for m in (0, int(e))])
            edges = tuple((left, right - s * e) for (left, right), s, e in zip(edges, strides, empty))
        y = _TRANSPOSED_CONV[n](x, filter, None, strides)  # type: ignore[misc]
        lengths = [max(length + left + right, 0) for length, (left, right) in zip(y.shape[2:], edges)]
        if any(left > 0 or right > 0 for left, right in edges):
            y = F.pad(y, [m for left, right in reversed(edges) for m in (max(left, 0), max(right, 0))])
        for i, ((left, _), length) in enumerate(zip(edges, lengths)):
            if y.shape[2 + i] != length:
                y = y.narrow(2 + i, max(-left, 0), length)
        if bias is not None:
            y = y + bias.reshape(-1, *(1,) * n)
        return y if len(batch) == 1 else y.reshape(*batch, *y.shape[1:])

    def max_pool(self, x: Raw, mask: Raw | None, size: Shape, strides: Shape, paddings: Pairs, dilations: Shape) -> Raw:
        low = -math.inf if x.is_floating_point() else dtypes_lowest(str(x.dtype).removeprefix("torch."))
        values = x if mask is None else torch.where(mask, x, low)
        y = _pooled(values, "max", low, size, strides, paddings, dilations)
        if mask is None and not _has_padding(paddings):
            return y
        count = _valid_frames(x, mask, size, strides, paddings, dilations)
        return torch.where(count > 0, y, 0)

    def avg_pool(self, x: Raw, mask: Raw | None, size: Shape, strides: Shape, paddings: Pairs, dilations: Shape) -> Raw:
        values = x if mask is None else torch.where(mask, x, 0.0)
        y = _pooled(values, "avg", 0.0, size, strides, paddings, dilations)
        if mask is None and not _has_padding(paddings):
            return y
        count = _valid_frames(x, mask, size, strides, paddings, dilations)
        return y * (math.prod(size) / count.clamp(min=1)).to(y.dtype)

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
        x = x.movedim(axis, 0)
        num_frames, num_in, num_out = x.shape[0], x.shape[-1], rec_weight.shape[1]
        shapes = [x.shape[1:-1], h.shape[:-1], c.shape[:-1]] + ([] if lengths is None else [lengths.shape])
        batch = torch.broadcast_shapes(*shapes)
        x = x.reshape(num_frames, *(1,) * (len(batch) + 2 - x.dim()), *x.shape[1:]).expand(num_frames, *batch, num_in)
        h, c = (s.expand(*batch, num_out) for s in (h, c))
        if num_frames == 0 or batch.numel() == 0:
            return F.linear(x, ff_weight)[..., :num_out].movedim(0, axis), h, c  # empty, but part of the graph
        with no_dispatch():
            each = None if lengths is None else lengths.expand(batch).reshape(-1).tolist()
        y, new_h, new_c = self._lstm(x.reshape(num_frames, -1, num_in), h, c, ff_weight, rec_weight, bias, each)
        y = y.reshape(num_frames, *batch, num_out).movedim(0, axis)
        return y, new_h.reshape(*batch, num_out), new_c.reshape(*batch, num_out)

    def _lstm(
        self,
        x: Raw,
        h: Raw,
        c: Raw,
        ff_weight: Raw,
        rec_weight: Raw,
        bias: Raw | None,
        lengths: list[int] | None,
    ) -> tuple[Raw, Raw, Raw]:
        """x (time, batch, in)."""
        num_frames, num_out = x.shape[0], rec_weight.shape[1]
        state = tuple(s.reshape(1, -1, num_out).contiguous() for s in (h, c))
        weights = [ff_weight, rec_weight] if bias is None else [ff_weight, rec_weight, bias, torch.zeros_like(bias)]
        options = (bias is not None, 1, 0.0, torch.is_grad_enabled(), False)  # layers, dropout, train, bidirectional
        if lengths is None or min(lengths) == num_frames:
            y, new_h, new_c = torch.lstm(x, state, weights, *options, False)
            return y, new_h, new_c
        sizes = torch.tensor(lengths)
        if x.device.type == "cpu":
            return _padded_lstm(x, sizes, state, weights, options)
        empty = None
        if min(lengths) == 0:
            # torch packs no empty sequences: they run over one frame of zeros, which is then taken back
            empty = (sizes == 0).to(x.device)[:, None]
            x = torch.where(empty, 0.0, x)
            sizes = sizes.clamp(min=1)
        packed = pack_padded_sequence(x, sizes, enforce_sorted=False)
        order, back = packed.sorted_indices, packed.unsorted_indices
        assert order is not None and back is not None
        state_in_order = tuple(s.index_select(1, order) for s in state)
        data, *new_state = torch.lstm(packed.data, packed.batch_sizes, state_in_order, weights, *options)
        packed = PackedSequence(data, packed.batch_sizes, order, back)
        y, _ = pad_packed_sequence(packed, total_length=num_frames)
        new_h, new_c = (s.index_select(1, back)[0] for s in new_state)
        if empty is not None:
            y = torch.where(empty, 0.0, y)
            new_h, new_c = (torch.where(empty, old[0], new) for old, new in zip(state, (new_h, new_c)))
        return y, new_h, new_c

    def lstm_step(self, x: Raw, h: Raw, c: Raw, ff_weight: Raw, rec_weight: Raw, bias: Raw | None) -> tuple[Raw, Raw]:
        gates = F.linear(x, ff_weight, bias) + F.linear(h, rec_weight)
        i, f, g, o = gates.chunk(4, -1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        return torch.sigmoid(o) * torch.tanh(c), c

    # -- losses

    def cross_entropy(self, logits: Raw, targets: Raw) -> Raw:
        flat = logits.reshape(-1, logits.shape[-1]) if logits.dim() != 2 else logits
        return F.cross_entropy(flat, targets.reshape(-1).long(), reduction="none").reshape(targets.shape)

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
        num = batch.numel()
        if num == 0:
            return logits.sum((-2, -1))
        scores = logits.reshape(num, num_frames, num_labels)
        if scores.dtype in (torch.float16, torch.bfloat16):
            scores = scores.float()
        if num_frames == 0:
            scores = scores.new_zeros(num, 1, num_labels) + scores.sum((1, 2), keepdim=True)
        targets = targets.reshape(num, -1).long()
        if max_approx or not label_loop:
            scores = scores if normalized else torch.log_softmax(scores, -1)
            loss = _ctc_by_recursion(scores, targets, input_lengths, target_lengths, blank, max_approx, label_loop)
        else:
            frames = [max(n, 1) for n in input_lengths]
            log_probs = torch.log_softmax(scores, -1).transpose(0, 1)
            # zero_infinity concerns the gradient here; F.ctc_loss would also replace the values
            loss, _ = torch.ops.aten._ctc_loss(log_probs, targets, frames, list(target_lengths), blank, True)
            if normalized:
                # torch's gradient is that of the softmax input. What the softmax has divided by is put back, in value
                # and gradient.
                valid = torch.arange(scores.shape[1]) < torch.tensor(input_lengths)[:, None]
                total = torch.where(valid.to(scores.device), torch.logsumexp(scores, -1), 0.0).sum(1)
                loss = torch.where(torch.isinf(loss), loss, loss - total)
        if min(input_lengths) == 0:
            fixed = [math.nan if n else math.inf if m else 0.0 for n, m in zip(input_lengths, target_lengths)]
            empty = torch.tensor([n == 0 for n in input_lengths], device=loss.device)
            loss = torch.where(empty, torch.tensor(fixed, dtype=loss.dtype, device=loss.device), loss)
        return loss.to(logits.dtype).reshape(batch)

    # -- signals

    def stft(
        self, x: Raw, frame_step: int, frame_length: int, fft_length: int, window_length: int, window_offset: int
    ) -> Raw:
        num_frames = max(0, (x.shape[-1] - frame_length) // frame_step + 1)
        missing = max(fft_length - frame_length, fft_length - x.shape[-1])
        if missing:
            x = F.pad(x, (0, missing))
        window = torch.tensor(stft_window(window_length, window_offset, fft_length), dtype=x.dtype, device=x.device)
        frames = x.unfold(-1, fft_length, frame_step)[..., :num_frames, :]
        if frames.numel() == 0:
            # the FFT takes no empty arrays
            kind = torch.complex128 if x.dtype == torch.float64 else torch.complex64
            return frames[..., : fft_length // 2 + 1].to(kind)
        return torch.fft.rfft(frames * window)

    # -- gradients

    def set_requires_gradient(self, x: Raw) -> Raw:
        return x.requires_grad_(True)

    def scaled_gradient(self, x: Raw, scale: Raw, shift: Raw | None, axis: int | None) -> Raw:
        return _ScaledGradient.apply(x, scale, shift, axis)

    # -- checks

    def assert_later(self, x: Raw, message: str) -> bool:
        if x.is_cuda:
            torch.ops.aten._assert_async.msg(x, message)
        return x.is_cuda


def _has_padding(paddings: Pairs) -> bool:
    return any(left or right for left, right in paddings)


def _pooled(x: Raw, mode: str, outside: float, size: Shape, strides: Shape, paddings: Pairs, dilations: Shape) -> Raw:
    """Maximum or average over windows of the last axes; positions of the padding hold `outside`."""
    n = len(size)
    extents = [(k - 1) * d + 1 for k, d in zip(size, dilations)]
    batch, space = x.shape[:-n], x.shape[-n:]
    short = [max(e - m - left - right, 0) for e, m, (left, right) in zip(extents, space, paddings)]
    pads = [(left, right + m) for (left, right), m in zip(paddings, short)]
    if any(left or right for left, right in pads):
        x = F.pad(x, [m for pair in reversed(pads) for m in pair], value=outside)
    fused = x.is_floating_point() and (mode == "max" or all(d == 1 for d in dilations)) and batch.numel() > 0
    if fused:
        flat = x.reshape(batch.numel(), 1, *x.shape[-n:])
        if mode == "max":
            y = _MAX_POOL[n](flat, size, strides, 0, dilations)  # type: ignore[misc]
        else:
            y = _AVG_POOL[n](flat, size, strides)  # type: ignore[misc]
        y = y.reshape(*batch, *y.shape[2:])
    else:
        y = x
        for i in range(n):
            y = y.unfold(len(batch) + i, extents[i], strides[i])[..., :: dilations[i]]
        axes = tuple(range(-n, 0))
        y = y.amax(axes) if mode == "max" else y.mean(axes)
    if any(short):
        y = y[(..., *(slice(0, 0 if m else None) for m in short))]
    return y


def _valid_frames(x: Raw, mask: Raw | None, size: Shape, strides: Shape, paddings: Pairs, dilations: Shape) -> Raw:
    """How many positions of each window hold a valid frame, float32; the axes before the spatial ones may have length
    1."""
    n = len(size)
    space = x.shape[-n:]
    if mask is None:
        valid = torch.ones((1,) * (x.dim() - n) + tuple(space), device=x.device)
    else:
        valid = mask.expand(*mask.shape[:-n], *space).float()
    return torch.round(_pooled(valid, "avg", 0.0, size, strides, paddings, dilations) * math.prod(size))


_LOW = -1e30  # stands for -inf where that would make NaN in the gradient


def _ctc_by_recursion(
    scores: Raw,
    targets: Raw,
    input_lengths: Shape,
    target_lengths: Shape,
    blank: int,
    max_approx: bool,
    label_loop: bool,
) -> Raw:
    """CTC in plain torch ops, for the variants that torch has no kernel of. (num, frames, labels), (num, labels) ->
    (num)."""
    combine = torch.maximum if max_approx else torch.logaddexp
    num = scores.shape[0]
    frames = torch.tensor(input_lengths, device=scores.device)[:, None]
    labels = torch.tensor(target_lengths, device=scores.device)[:, None]
    scores = scores.clamp(min=_LOW)
    low = scores.new_full((num, 2), _LOW)
    if label_loop:
        states = targets.new_full((num, 2 * targets.shape[1] + 1), blank)
        states[:, 1::2] = targets
        skip = torch.zeros_like(states, dtype=torch.bool)
        skip[:, 2:] = (states[:, 2:] != blank) & (states[:, 2:] != states[:, :-2])
        emit = scores.gather(2, states[:, None].expand(-1, scores.shape[1], -1))
        alpha = torch.cat([emit[:, 0, :2], low[:, :1].expand(-1, states.shape[1])], 1)
        alpha = alpha[:, : states.shape[1]]
        for t in range(1, scores.shape[1]):
            before = torch.cat([low, alpha], 1)
            skipped = torch.where(skip, before[:, :-2], _LOW)
            new = combine(combine(alpha, before[:, 1:-1]), skipped) + emit[:, t]
            alpha = torch.where(t < frames, new.clamp(min=_LOW), alpha)
        alpha = torch.cat([low[:, :1], alpha], 1)
        last = alpha.gather(1, torch.cat([2 * labels, 2 * labels + 1], 1))
        best = combine(last[:, 0], last[:, 1])
    else:
        emit = scores.gather(2, targets[:, None].expand(-1, scores.shape[1], -1))
        stay = scores[:, :, blank]
        alpha = torch.cat([torch.zeros_like(low[:, :1]), low[:, :1].expand(-1, targets.shape[1])], 1)
        for t in range(scores.shape[1]):
            moved = torch.cat([low[:, :1], alpha[:, :-1] + emit[:, t]], 1)
            new = combine(alpha + stay[:, t, None], moved)
            alpha = torch.where(t < frames, new.clamp(min=_LOW), alpha)
        best = alpha.gather(1, labels)[:, 0]
    return torch.where(best > _LOW / 2, -best, math.inf)


_SATURATED = 1e4  # sigmoid gives exactly 0 or 1 far before


def _padded_lstm(
    x: Raw, sizes: Raw, state: tuple[Raw, ...], weights: list[Raw], options: tuple[Any, ...]
) -> tuple[Raw, Raw, Raw]:
    """The LSTM over padded sequences (T, B, in), for the CPU, where torch runs packed sequences frame by frame.

    One more input, which is 1 in the padding, closes the input gate and opens the forget gate: so the cell stays what
    it was at the last valid frame.
    """
    num_frames, num_batch = x.shape[:2]
    valid = (torch.arange(num_frames)[:, None] < sizes)[..., None]
    x = torch.cat([torch.where(valid, x, 0.0), (~valid).to(x.dtype)], 2)
    num_out = weights[1].shape[1]
    gates = weights[0].new_zeros(4 * num_out, 1)
    gates[:num_out] = -_SATURATED
    gates[num_out : 2 * num_out] = _SATURATED
    y, _, cell = torch.lstm(x, state, [torch.cat([weights[0], gates], 1), *weights[1:]], *options, False)  # type: ignore[call-overload]
    last = y[(sizes - 1).clamp(min=0), torch.arange(num_batch)]
    return torch.where(valid, y, 0.0), torch.where((sizes > 0)[:, None], last, state[0][0]), cell


class _ScaledGradient(torch.autograd.Function):
    """Identity; the gradient g becomes scale * g, plus shift, or plus shift * sum(|g|) over `axis`."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Raw, scale: Raw, shift: Raw | None, axis: int | None) -> Raw:
        return x.view_as(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        _, scale, shift, ctx.axis = inputs
        ctx.save_for_backward(scale, shift)

    @staticmethod
    def backward(ctx: Any, grad: Raw) -> Any:  # type: ignore[override]
        scale, shift = ctx.saved_tensors
        out = grad * scale
        if shift is not None:
            out = out + (shift if ctx.axis is None else shift * grad.abs().sum(ctx.axis, keepdim=True))
        return out, None, None, None
