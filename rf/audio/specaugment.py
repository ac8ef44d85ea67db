"""SpecAugment: masking of time spans and of frequency bands in training (Park et al. 2019, arXiv:1904.08779)."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy

from rf._core import Tensor
from rf._dim import Dim
from rf._errors import DimError
from rf.ops.create import range_over_dim
from rf.ops.dims import tensor_beside
from rf.ops.elementwise import combine_bc, compare_bc, where
from rf.ops.rand import random_uniform
from rf.ops.reduce import reduce_any
from rf.ops.top import top_k
from rf.run_ctx import get_run_ctx

__all__ = ["mask", "random_mask", "specaugment"]


def specaugment(
    x: Tensor,
    *,
    spatial_dim: Dim,
    feature_dim: Dim | None = None,
    global_train_step_dependent: bool = True,
    only_on_train: bool = True,
    max_consecutive_spatial_dims: int = 20,
    max_consecutive_feature_dims: int | None = None,
    num_spatial_mask_factor: int = 100,
    num_masks_per_seq: bool | None = None,
    steps: tuple[int, int, int] = (0, 1000, 2000),
) -> Tensor:
    """Set random time spans and random feature bands to 0, in training only: {..., T, F} -> {..., T, F}.

    Let s be the number of `steps` reached, e.g. (1, 0, 0) after the first. Time: s1 + s2 up to max(T // factor, 2) *
    (s0 + s1 + 2 s2) spans. Features: s1 + s2 up to 2 s0 + s1 + 2 s2 bands. Numbers, places and widths are drawn for
    each sequence.

    :param x: {..., spatial_dim, feature_dim}.
    :param spatial_dim: T.
    :param feature_dim: F, static; default: that of `x`.
    :param global_train_step_dependent: count the steps of the run context; False: all steps are reached.
    :param only_on_train: False: also outside of training. The train flag is that for `rf.audio.specaugment`.
    :param max_consecutive_spatial_dims: the largest width of a span, in frames.
    :param max_consecutive_feature_dims: the largest width of a band; default: F // 5, at least 1.
    :param num_spatial_mask_factor: in frames; see above.
    :param num_masks_per_seq: the number of spans depends on the length of each sequence (default True), so that it is
        the same alone and in a batch; False: on the longest sequence.
    :param steps: thresholds of the global step from which on more is masked.
    """
    if only_on_train and not get_run_ctx().is_train_flag_enabled(func=specaugment):
        return x.copy()
    feature_dim = feature_dim or x.feature_dim
    if feature_dim is None:
        raise DimError(f"specaugment: give feature_dim=, as {x!r} has no feature dim")
    step = int(get_run_ctx().step) if global_train_step_dependent else max(steps)
    s0, s1, s2 = (int(step >= threshold) for threshold in steps)
    if spatial_dim.need_masking() and num_masks_per_seq is not False:
        sizes = spatial_dim.get_sizes()
        lengths, dims = sizes.values, sizes.dims
    else:
        lengths, dims = numpy.array(spatial_dim.get_dim_value()), ()
    at_most = numpy.minimum(numpy.maximum(lengths // num_spatial_mask_factor, 2) * (s0 + s1 + s2 * 2), lengths)
    at_least = numpy.minimum(s1 + s2, at_most)
    out = random_mask(
        x,
        mask_axis=spatial_dim,
        broadcast_axis=feature_dim,
        min_num=tensor_beside(x, at_least, dims),
        max_num=tensor_beside(x, at_most, dims),
        max_dims=max_consecutive_spatial_dims,
        max_num_bound=int(at_most.max(initial=0)),
    )
    num_features = feature_dim.get_dim_value()
    return random_mask(
        out,
        mask_axis=feature_dim,
        broadcast_axis=spatial_dim,
        min_num=min(s1 + s2, num_features),
        max_num=min(s0 * 2 + s1 + s2 * 2, num_features),
        max_dims=max_consecutive_feature_dims or max(num_features // 5, 1),
    )


def random_mask(
    x: Tensor,
    *,
    mask_axis: Dim,
    broadcast_axis: Dim | Collection[Dim],
    min_num: int | Tensor,
    max_num: int | Tensor,
    max_dims: int | Tensor,
    mask_value: int | float | Tensor = 0.0,
    max_num_bound: int | None = None,
) -> Tensor:
    """`mask_value` on random spans of an axis: {...} -> {...}.

    :param x: its dims other than `mask_axis` and `broadcast_axis` get spans of their own.
    :param mask_axis: the axis.
    :param broadcast_axis: one or several dims that share the spans; where lengths differ along them, up to the spans
        that would begin in the padding.
    :param min_num: at least so many spans; a Tensor may have one number for each sequence.
    :param max_num: at most so many, inclusive.
    :param max_dims: widths are uniform in 1 .. max_dims. Spans may overlap, and are cut at the end of the sequence.
    :param mask_value: what to write.
    :param max_num_bound: an upper bound of `max_num`; else its values are read, which waits for the device.

    No two spans begin at the same place, and none in the padding.
    """
    shared = (broadcast_axis,) if isinstance(broadcast_axis, Dim) else tuple(broadcast_axis)
    batch = [d for d in x.dims if d != mask_axis and d not in shared]
    if max_num_bound is None:
        max_num_bound = int(max_num.numpy().max(initial=0)) if isinstance(max_num, Tensor) else max_num
    bound = min(max_num_bound, mask_axis.get_dim_value())
    if bound == 0:
        return x.copy()
    noise = random_uniform([*batch, mask_axis], device=x.device)
    _, pos, span = top_k(noise, axis=mask_axis, k=bound)
    upper = max_num + 1
    num = random_uniform(batch, minval=min_num, maxval=upper, dtype="int32", device=x.device)
    number = range_over_dim(span, device=x.device)
    hit = combine_bc(_spans(mask_axis, pos, max_dims), "logical_and", compare_bc(number, "<", num))
    return where(reduce_any(hit, axis=span), mask_value, x)


def mask(
    x: Tensor,
    *,
    mask_axis: Dim,
    pos: Tensor,
    max_amount: int | Tensor,
    mask_value: int | float | Tensor = 0.0,
) -> Tensor:
    """`mask_value` on one span of `mask_axis` that begins at `pos`, with a random width: {...} -> {...}.

    :param pos: int, over dims of `x`, such as {batch}.
    :param max_amount: the width is uniform in 1 .. max_amount.
    """
    return where(_spans(mask_axis, pos, max_amount), mask_value, x)


def _spans(axis: Dim, pos: Tensor, max_width: int | Tensor) -> Tensor:
    """True on the frames of spans that begin at `pos`: {*pos.dims, axis}."""
    width: Any = random_uniform(pos.dims, minval=1, maxval=max_width + 1, dtype="int32", device=pos.device)
    index = range_over_dim(axis, device=pos.device)
    return combine_bc(compare_bc(index, ">=", pos), "logical_and", compare_bc(index, "<", pos + width))
