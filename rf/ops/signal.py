"""Signals: the short-time Fourier transform."""

from __future__ import annotations

from typing import Any

from rf import dtypes
from rf._core import Op, Tensor
from rf._dim import Dim
from rf._errors import DimError, RfError
from rf._plan import Plan, PlanBuilder
from rf.ops.conv import make_conv_out_spatial_dims
from rf.ops.reduce import fill_padding
from rf.ops.shape import with_sizes

__all__ = ["stft"]


def _plan_stft(
    p: PlanBuilder, x: Tensor, spatial: Dim, out_spatial: Dim, out_dim: Dim, options: tuple[int, ...], use_mask: bool
) -> Plan:
    if spatial not in x.dims:
        raise DimError(f"stft: {spatial!r} is not a dim of {x!r}")
    if dtypes.kind(x.dtype) == 3:
        raise RfError(f"stft: needs a real signal, got {x!r}")
    work = "float64" if x.dtype == "float64" else "float32"
    slot: Any = p.cast(0, x.dtype, work)
    order = list(x.dims)
    if use_mask and spatial.base.size_dims:
        slot, order = fill_padding(p, slot, order, [spatial.base], 0)
    at = next(d for d in order if d == spatial)
    batch = [d for d in order if d is not at]
    slot = p.emit("stft", p.permute(slot, order, [*batch, at]), static=options)
    dims = [*batch, out_spatial.base, out_dim.base]
    if out_spatial in batch or out_dim in batch or out_spatial == out_dim:
        raise DimError(
            f"stft: the new dims {out_spatial!r} and {out_dim!r} must differ from each other and those of {x!r}"
        )
    return p.finish(p.out(slot, dims, "complex128" if work == "float64" else "complex64", out_dim.base))


_stft = Op("stft", num_tensors=1, planner=_plan_stft, masked=True)


def stft(
    x: Tensor,
    *,
    in_spatial_dim: Dim,
    frame_step: int,
    frame_length: int,
    fft_length: int | None = None,
    window_use_frame_length: bool = True,
    align_window_left: bool = True,
    window_enforce_even: bool = True,
    out_spatial_dim: Dim | None = None,
    out_dim: Dim | None = None,
    use_mask: bool | None = None,
) -> tuple[Tensor, Dim, Dim]:
    """Short-time Fourier transform with a periodic Hann window w: {..., samples} -> {..., frames, frequencies},
    complex.

    Frame i, frequency k: sum over n < fft_length of w[n] x[i * frame_step + n] exp(-2 pi j k n / fft_length).

    :param x: real, {..., in_spatial_dim}; half precision is computed in float32.
    :param in_spatial_dim: the samples.
    :param frame_step: in samples.
    :param frame_length: in samples.
    :param fft_length: in samples, >= frame_length; default: frame_length.
    :param window_use_frame_length: the window has `frame_length` samples, and there are as many frames as fit into the
        signal; False: likewise with `fft_length`.
    :param align_window_left: a window shorter than the FFT begins with the frame; False: lies in its middle, as in
        torch.stft.
    :param window_enforce_even: a window of odd length is shortened by one sample.
    :param out_spatial_dim: the frames; default: by dim math, as of a "valid" convolution. A sequence shorter than a
        frame has none.
    :param out_dim: the frequencies 0 .. fft_length / 2, the feature dim of the result; default: a new dim.
    :param use_mask: treat the padding as zeros, whatever it holds (default True).
    :returns: (result, out_spatial_dim, out_dim). With the defaults, numerics of tf.signal.stft.

    Raises DimError when a dim is missing or does not have the size that follows.
    """
    fft_length = fft_length or frame_length
    if not 0 < frame_length <= fft_length or frame_step < 1:
        raise RfError(
            f"stft: needs 0 < frame_length <= fft_length and frame_step >= 1, got frame_length={frame_length}, "
            f"fft_length={fft_length}, frame_step={frame_step}"
        )
    length = frame_length if window_use_frame_length else fft_length
    window = length - length % 2 if window_enforce_even else length
    if window == 0:
        raise RfError(f"stft: a window of {length} sample has no even length; use window_enforce_even=False")
    offset = 0 if align_window_left else (fft_length - window) // 2
    (frames,) = make_conv_out_spatial_dims([in_spatial_dim], filter_size=length, strides=frame_step, padding="valid")
    out_spatial_dim = with_sizes("stft", out_spatial_dim, frames)
    if out_dim is None:
        out_dim = Dim(fft_length // 2 + 1, name="stft-freq")
    elif out_dim.dimension != fft_length // 2 + 1:
        raise DimError(f"stft: out_dim {out_dim!r} must have size {fft_length // 2 + 1}")
    options = (frame_step, length, fft_length, window, offset)
    out = _stft(x, in_spatial_dim, out_spatial_dim, out_dim, options, use_mask is None or use_mask)
    return out, out_spatial_dim, out_dim
