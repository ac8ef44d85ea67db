"""Cross entropy, label smoothing and the edit distance."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy

from rf import dtypes
from rf._core import Op, Tensor
from rf._dim import Dim
from rf._errors import DimError, RfError
from rf._plan import Plan, PlanBuilder, axis_of
from rf.ops import elementwise
from rf.ops.contract import matmul
from rf.ops.create import range_over_dim
from rf.ops.dims import host_sizes, tensor_beside
from rf.ops.gradient import scaled_gradient_ext
from rf.ops.index import sparse_to_dense
from rf.ops.normalize import log_softmax
from rf.ops.reduce import fill_padding

__all__ = [
    "cross_entropy",
    "edit_distance",
    "label_smoothed_log_prob_gradient",
    "label_smoothing",
    "smooth_one_hot",
]

ESTIMATED_TYPES = ("logits", "log-probs", "probs")

_SMALLEST = {"float16": 6.1e-05, "float64": 2.3e-308}


# -- cross entropy


def _plan_sparse_cross_entropy(p: PlanBuilder, x: Tensor, target: Tensor, axis: Dim, kind: str) -> Plan:
    dtype = dtypes.floating(x.dtype)
    slot: Any = p.cast(0, x.dtype, dtype)
    order = list(x.dims)
    at = x.dims[x.get_axis_from_description(axis)]
    # Any value may be in the padding of the targets, also one that is no class.
    padded = [d for d in target.dims if d.base.size_dims and all(s in target.dims for s in d.base.size_dims)]
    labels, _ = fill_padding(p, 1, target.dims, padded, 0)
    size_dims = axis.base.size_dims
    rest = [d for d in order if d is not at]
    if kind == "logits":
        if not size_dims and len(rest) == len(target.dims) and all(d in rest for d in target.dims):
            slot = p.permute(slot, order, [*rest, at])
            slot = p.emit("cross_entropy", slot, p.permute(labels, target.dims, rest))
            return p.finish(p.out(slot, rest, dtype))
        if size_dims:
            slot, order = fill_padding(p, slot, order, [axis.base], 0)
            mask = p.mask(axis.base, order)
            slot = p.emit("masked_log_softmax", slot, mask, static=(axis_of(at, order),))
            rest = [d for d in order if d is not at]
        else:
            slot = p.emit("log_softmax", slot, static=(axis_of(at, order),))
    common = [d for d in rest if d in target.dims]
    others = [d for d in rest if d not in target.dims]
    new = [d for d in target.dims if d not in rest]
    slot = p.permute(slot, order, [*common, at, *others])
    slot = p.emit("gather", slot, p.permute(labels, target.dims, [*common, *new]), static=(len(common),))
    if kind == "probs":
        slot = p.emit("log", p.emit("at_least", slot, static=(_SMALLEST.get(dtype, 1.2e-38),)))
    return p.finish(p.out(p.emit("neg", slot), [*common, *new, *others], dtype))


_sparse_cross_entropy = Op("cross_entropy", num_tensors=2, planner=_plan_sparse_cross_entropy, masked=True)


def cross_entropy(*, estimated: Tensor, target: Tensor, axis: Dim, estimated_type: str) -> Tensor:
    """-sum over `axis` of target * log(estimated): {..., axis} -> {...}.

    :param estimated: {..., axis}, float.
    :param target: classes, integers {...}, or a distribution {..., axis}.
    :param axis: the dim of the classes.
    :param estimated_type: "logits" (one fused kernel for class targets; numerics of torch.nn.functional.cross_entropy),
        "log-probs", or "probs" (probabilities below the smallest normal number count as that).
    :returns: frame by frame; frames in the padding hold anything, and are left out by reductions and `mark_as_loss`.
        The padding of a dynamic `axis` has probability 0.

    Raises DimError when `axis` is not a dim of `estimated`, or the classes of the targets are another dim.
    """
    if estimated_type not in ESTIMATED_TYPES:
        raise RfError(
            f"cross_entropy: unknown estimated_type {estimated_type!r}; choose one of {', '.join(ESTIMATED_TYPES)}"
        )
    if axis not in estimated.dims:
        raise DimError(f"cross_entropy: axis {axis!r} is not a dim of estimated={estimated!r}")
    if axis in target.dims:
        if estimated_type == "logits":
            estimated = log_softmax(estimated, axis=axis)
        elif estimated_type == "probs":
            estimated = elementwise.safe_log(estimated)
        return -matmul(estimated, target, reduce=axis)
    if dtypes.kind(target.dtype) != 1 or (target.sparse_dim is not None and target.sparse_dim != axis):
        raise DimError(
            f"cross_entropy over {axis!r}: the target must hold class indices into it, or have it as a dim:\n"
            f"  estimated: {estimated!r}\n  target: {target!r}"
        )
    return _sparse_cross_entropy(estimated, target, axis, estimated_type)


# -- label smoothing


def _class_dim(what: str, x: Tensor, axis: Dim | None) -> tuple[Dim, int]:
    axis = axis or x.feature_dim or x.sparse_dim
    if axis is None:
        raise DimError(f"{what}: give axis=, as {x!r} has neither a feature dim nor a sparse dim")
    if axis.dimension is None:
        raise DimError(f"{what}: the dim of the classes must be static, got {axis!r}")
    return axis, axis.dimension


def label_smoothing(prob: Tensor, smoothing: float | Tensor, *, axis: Dim | None = None) -> Tensor:
    """Targets with the probability `smoothing` spread over the other classes: {...} or {..., axis} -> {..., axis}.

    A probability of 1 becomes 1 - smoothing, one of 0 becomes smoothing / (n - 1), for n classes.

    :param prob: classes (with a sparse dim), or a distribution over `axis`.
    :param axis: default: the feature dim, else the sparse dim.

    Szegedy et al. 2016, arXiv:1512.00567.
    """
    axis, n = _class_dim("label_smoothing", prob, axis)
    if prob.sparse_dim is not None:
        if prob.sparse_dim != axis:
            raise DimError(f"label_smoothing: axis {axis!r} is not the sparse dim of {prob!r}")
        return smooth_one_hot(prob, label_prob=1.0 - smoothing)
    if axis not in prob.dims:
        raise DimError(f"label_smoothing: axis {axis!r} is not a dim of {prob!r}")
    floor = smoothing / max(n - 1, 1)
    return prob * (1.0 - floor * n) + floor


def smooth_one_hot(source: Tensor, *, label_prob: float | Tensor) -> Tensor:
    """`label_prob` at the class, (1 - label_prob) / (n - 1) at each of the other n - 1 classes: {...} -> {..., sparse
    dim}, float.

    :param source: classes, with a static sparse dim, which is the feature dim of the result.
    """
    if source.sparse_dim is None:
        raise DimError(f"smooth_one_hot: {source!r} has no sparse dim")
    _, n = _class_dim("smooth_one_hot", source, source.sparse_dim)
    return sparse_to_dense(source, label_value=label_prob, other_value=(1.0 - label_prob) / max(n - 1, 1))


def label_smoothed_log_prob_gradient(
    log_prob: Tensor, smoothing: float | Tensor, *, axis: Dim | None = None, exclude_labels: Sequence[int] | None = None
) -> Tensor:
    """Log probabilities as they are, whose gradient is as if the targets had been smoothed: {..., axis} -> {..., axis}.

    For a loss whose gradient is minus a distribution over the classes, frame by frame, as of cross entropy or CTC:
    `label_smoothing` is applied to that distribution.

    :param axis: the dim of the classes; default: the feature dim.
    :param exclude_labels: these keep their gradient, and the others share theirs, such as [blank_index].
    """
    axis, n = _class_dim("label_smoothed_log_prob_gradient", log_prob, axis)
    if axis not in log_prob.dims:
        raise DimError(f"label_smoothed_log_prob_gradient: axis {axis!r} is not a dim of {log_prob!r}")
    included = n - len(set(exclude_labels or ()))
    floor = smoothing / max(included - 1, 1)

    def smooth(x: Tensor) -> Tensor:
        return scaled_gradient_ext(x, scale=1.0 - floor * included, shift=-floor, scale_shift_by_sum_over_axis=axis)

    if not exclude_labels:
        return smooth(log_prob)
    classes = range_over_dim(axis, device=log_prob.device)
    excluded = elementwise.equal(classes, exclude_labels[0])
    for label in exclude_labels[1:]:
        excluded = excluded | elementwise.equal(classes, label)
    # The selects cut the gradient, not the values: what is smoothed neither sees nor reaches the excluded classes.
    return elementwise.where(excluded, log_prob, smooth(elementwise.where(excluded, 0.0, log_prob)))


# -- edit distance


def edit_distance(a: Tensor, a_spatial_dim: Dim, b: Tensor, b_spatial_dim: Dim, *, dtype: str = "int32") -> Tensor:
    """Levenshtein distance of label sequences: {..., a_spatial_dim}, {..., b_spatial_dim} -> {...}.

    The smallest number of insertions, deletions and substitutions that turn one into the other; computed on the host,
    which waits for the device. Frames in the padding do not count.

    :param a: integers.
    :param b: integers; dims that only one of them has are broadcast.
    :param dtype: of the result.

    Raises DimError when a spatial dim is missing, BackendError on a backend without values.
    """
    for t, d in ((a, a_spatial_dim), (b, b_spatial_dim)):
        if d not in t.dims:
            raise DimError(f"edit_distance: {d!r} is not a dim of {t!r}")
    batch = [d for d in a.dims if d != a_spatial_dim]
    batch += [d for d in b.dims if d != b_spatial_dim and d not in batch]
    left, left_sizes = _labels_on_host(a, a_spatial_dim, batch)
    right, right_sizes = _labels_on_host(b, b_spatial_dim, batch)
    columns = numpy.arange(right.shape[1] + 1)
    row = numpy.broadcast_to(columns, (len(left), len(columns)))
    for i in range(left.shape[1]):
        cost = row.copy()
        cost[:, 1:] = numpy.minimum(row[:, 1:] + 1, row[:, :-1] + (left[:, i, None] != right))
        cost[:, 0] = i + 1
        # insertions: the best of all entries to the left, each further by one
        cost = numpy.minimum.accumulate(cost - columns, axis=1) + columns
        row = numpy.where((i < left_sizes)[:, None], cost, row)
    out = row[numpy.arange(len(left)), right_sizes]
    return tensor_beside(a, out.reshape([d.get_dim_value() for d in batch]), batch, dtype)


def _labels_on_host(x: Tensor, spatial: Dim, batch: Sequence[Dim]) -> tuple[numpy.ndarray, numpy.ndarray]:
    """Labels (num, frames) and sizes (num), with the axes of `batch` flattened and broadcast."""
    shape = [d.get_dim_value() for d in batch]
    own = [d for d in batch if d in x.dims]
    values = x.copy_transpose([*own, spatial]).numpy()
    frames = values.shape[-1]
    values = values.reshape([*(n if d in own else 1 for d, n in zip(batch, shape)), frames])
    sizes = numpy.broadcast_to(host_sizes(spatial, batch), shape)
    return numpy.broadcast_to(values, (*shape, frames)).reshape(sizes.size, frames), sizes.reshape(-1)
