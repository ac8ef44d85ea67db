"""The part of the contract that frameworks have fused kernels for: random numbers, convolution, recurrence, losses,
signals.

See `rf.backend`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rf._backend_primitive import primitive

Raw = Any
Shape = tuple[int, ...]
Pairs = tuple[tuple[int, int], ...]

if TYPE_CHECKING:
    from typing import Any as _Primitives  # the class that they are mixed into has the rest
else:
    _Primitives = object


class FusedKernels(_Primitives):
    """Mixed into `Backend`."""

    # -- random numbers, from the backend's own generator. Integers for integer dtypes, `high` excluded.

    def set_random_seed(self, seed: int) -> None:
        """Seed the generator, on every device."""

    def get_random_state(self) -> dict[str, bytes]:
        """States of all generators; the keys begin with the name of the backend."""
        return {}

    def set_random_state(self, state: dict[str, bytes]) -> None:
        """Restore what `get_random_state` gave."""

    @primitive
    def random_uniform(self, shape: Shape, low: Any, high: Any, dtype: str, device: str | None) -> Raw: ...

    @primitive
    def random_normal(self, shape: Shape, mean: float, stddev: float, dtype: str, device: str | None) -> Raw: ...

    @primitive
    def random_truncated_normal(
        self, shape: Shape, mean: float, stddev: float, low: float, high: float, dtype: str, device: str | None
    ) -> Raw:
        """Normal under the condition low <= x <= high."""

    def dropout(self, x: Raw, p: float, keep_axes: Shape | None) -> Raw:
        """Entries set to 0 with probability p, the others times 1 / (1 - p). One draw per index of `keep_axes` (None:
        all axes)."""
        shape = tuple(n if keep_axes is None or i in keep_axes else 1 for i, n in enumerate(self.shape_of(x)))
        dtype = self.dtype_of(x)
        draws = self.random_uniform(shape, 0.0, 1.0, dtype, self.device_of(x))
        scaled = self.mul(x, self._like(x, 1 / (1 - p) if p < 1 else 0))
        return self.where(self.greater_equal(draws, self._like(x, p)), scaled, self._like(x, 0))

    # -- convolution and pooling: (batch..., channels, space...), any number of batch axes, 1 to 3 spatial ones. A
    # length that gives no window gives an empty axis. `paddings`: (left, right) for each spatial axis.

    @primitive
    def conv(
        self,
        x: Raw,
        filter: Raw,
        bias: Raw | None,
        strides: Shape,
        paddings: Pairs,
        dilations: Shape,
        groups: int,
    ) -> Raw:
        """Cross-correlation of x, padded with 0, with the filter (out, channels / groups, size...)."""

    @primitive
    def transposed_conv(self, x: Raw, filter: Raw, bias: Raw | None, strides: Shape, edges: Pairs) -> Raw:
        """The linear map that is transposed to an unpadded `conv`, filter (channels, out, size...): (length - 1) *
        stride + size positions.

        `edges`: so many positions are added (> 0, with value 0) or cut (< 0), left and right of each spatial axis; then
        + bias.
        """

    @primitive
    def max_pool(
        self,
        x: Raw,
        mask: Raw | None,
        size: Shape,
        strides: Shape,
        paddings: Pairs,
        dilations: Shape,
    ) -> Raw:
        """(..., space...): the largest value in each window, of those where `mask` holds (as many axes as x, or None),
        0 if there are none."""

    @primitive
    def avg_pool(
        self,
        x: Raw,
        mask: Raw | None,
        size: Shape,
        strides: Shape,
        paddings: Pairs,
        dilations: Shape,
    ) -> Raw:
        """Like `max_pool`: the mean of the values where `mask` holds; positions of the padding do not count."""

    # -- recurrence. Gates in the order input, forget, cell, output; weights (4 * out, in), (4 * out, out), bias (4 *
    # out).

    @primitive
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
        """x (batch..., in) with the time between, state (batch..., out) -> y like x, h, c.

        `axis`: of the time, counted from the end: below -1. `lengths`: int32 (batch...), on the host. The batch axes
        are broadcast. In the padding, whatever x holds there, y is 0 and the state stays.
        """
        raise NotImplementedError

    def lstm_step(self, x: Raw, h: Raw, c: Raw, ff_weight: Raw, rec_weight: Raw, bias: Raw | None) -> tuple[Raw, Raw]:
        """One frame (batch..., in) -> h, c."""
        n = len(self.shape_of(x)) - 1
        gates = self.linear(x, self.permute(ff_weight, (1, 0)), bias)
        gates = self.add(gates, self.linear(h, self.permute(rec_weight, (1, 0)), None))
        out = self.shape_of(rec_weight)[1]
        i, f, g, o = self.split(gates, n, (out,) * 4)
        c = self.add(self.mul(self.sigmoid(f), c), self.mul(self.sigmoid(i), self.tanh(g)))
        return self.mul(self.sigmoid(o), self.tanh(c)), c

    # -- losses

    def cross_entropy(self, logits: Raw, targets: Raw) -> Raw:
        """-log_softmax(logits) at the targets: (..., classes), integers (...) -> (...)."""
        n = len(self.shape_of(targets))
        labels = self.unsqueeze(targets, (n,))
        return self.neg(self.squeeze(self.gather(self.log_softmax(logits, n), labels, n), (n,)))

    @primitive
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
        """(batch..., time, classes), integers (batch..., labels) -> (batch...): -log p(targets).

        Lengths: batch axes flattened. inf where no path exists; the gradient is 0 there. Values in the padding must not
        matter (they are finite). `normalized`: the logits are log probabilities; `max_approx`: of the best path;
        `label_loop`: a label may last several frames.
        """

    # -- signals

    @primitive
    def stft(
        self, x: Raw, frame_step: int, frame_length: int, fft_length: int, window_length: int, window_offset: int
    ) -> Raw:
        """(..., samples) -> (..., frames, fft_length / 2 + 1), complex; as many frames as an unpadded window of
        `frame_length` has positions.

        Frame i is the FFT of `stft_window` times the `fft_length` samples from i * frame_step on, 0 after the end.
        """

    # -- gradients; on a backend without gradients these are plain forward functions

    def set_requires_gradient(self, x: Raw) -> Raw:
        """Have gradients with respect to x computed; returns x."""
        return x

    def scaled_gradient(self, x: Raw, scale: Raw, shift: Raw | None, axis: int | None) -> Raw:
        """x, whose gradient g becomes scale * g + shift; with `axis`, the shift is times the sum of |g| over it."""
        return x

    # -- checks

    def assert_later(self, x: Raw, message: str) -> bool:
        """Have a bool scalar checked on its device, without waiting for it; False where that cannot be done."""
        return False
