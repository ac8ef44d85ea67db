"""Connectionist temporal classification: loss, decoding, alignment (Graves et al. 2006)."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy

from rf import dtypes
from rf._core import Tensor, apply
from rf._dim import Dim
from rf._errors import DimError, RfError
from rf.ops.dims import host_sizes, tensor_beside
from rf.ops.elementwise import cast
from rf.ops.normalize import log_softmax
from rf.ops.reduce import reduce_argmax
from rf.ops.shape import expand_dims

__all__ = [
    "ctc_best_path",
    "ctc_durations_from_path",
    "ctc_greedy_decode",
    "ctc_loss",
    "ctc_no_label_loop_blank_durations_from_path",
]


def _class_dim(name: str, logits: Tensor, targets: Tensor | None, frames: Dim, blank_index: int) -> tuple[Dim, int]:
    """The dim of the classes of `logits`, and the index of the blank in it, >= 0."""
    if frames not in logits.dims:
        raise DimError(f"{name}: {frames!r} is not a dim of the logits {logits!r}")
    classes = logits.feature_dim
    if classes is None and targets is not None and targets.sparse_dim in logits.dims:
        classes = targets.sparse_dim
    if classes is None or classes == frames:
        raise DimError(
            f"{name}: the logits {logits!r} need a feature dim: the classes with blank (logits.feature_dim = ...)"
        )
    n = classes.get_dim_value()
    if not -n <= blank_index < n:
        raise RfError(f"{name}: blank_index {blank_index} is outside {classes!r}")
    return classes, blank_index % n


def _flat_lengths(dim: Dim, batch: Sequence[Dim]) -> tuple[int, ...]:
    missing = [d for d in dim.get_sizes().dims if d not in batch]
    if missing:
        raise DimError(f"the sizes of {dim!r} depend on {missing}, which is not among the batch dims {list(batch)}")
    sizes = numpy.broadcast_to(host_sizes(dim, batch), [d.get_dim_value() for d in batch])
    return tuple(sizes.reshape(-1).tolist())


def _prepare(
    name: str, logits: Tensor, targets: Tensor, frames: Dim, labels: Dim, blank_index: int
) -> tuple[Tensor, Tensor, list[Dim], int]:
    """(logits {*batch, frames, classes}, targets {*batch, labels}, batch, blank), padding cleared."""
    classes, blank = _class_dim(name, logits, targets, frames, blank_index)
    if labels not in targets.dims:
        raise DimError(f"{name}: {labels!r} is not a dim of the targets {targets!r}")
    if dtypes.kind(targets.dtype) != 1:
        raise RfError(f"{name}: the targets must be integers, got {targets!r}")
    batch = [d for d in logits.dims if d not in (frames, classes)]
    batch += [d for d in targets.dims if d != labels and d not in batch]
    logits = expand_dims(logits, [d for d in batch if d not in logits.dims]).copy_masked(0, dims=[frames])
    targets = expand_dims(targets, [d for d in batch if d not in targets.dims]).copy_masked(0, dims=[labels])
    return logits.copy_transpose([*batch, frames, classes]), targets.copy_transpose([*batch, labels]), batch, blank


def ctc_loss(
    *,
    logits: Tensor,
    logits_normalized: bool = False,
    targets: Tensor,
    input_spatial_dim: Dim,
    targets_spatial_dim: Dim,
    blank_index: int,
    max_approx: bool = False,
    use_native_op: bool | None = None,
    label_loop: bool = True,
) -> Tensor:
    """-log p(targets | logits), summed over all alignments: {..., T, classes}, {..., S} -> {...}.

    :param logits: {..., input_spatial_dim, classes}; the classes, with the blank, are its feature dim.
    :param logits_normalized: the logits are log probabilities already.
    :param targets: {..., targets_spatial_dim}, integers, none of them the blank.
    :param input_spatial_dim: T; the lengths of both dims count, and padding does not matter, whatever it holds.
    :param targets_spatial_dim: S.
    :param blank_index: negative counts from the end.
    :param max_approx: of the best alignment instead of the sum.
    :param use_native_op: without effect.
    :param label_loop: a label may last several frames; False: exactly one (equal neighbors then need no blank between
        them).
    :returns: inf where there is no alignment, as for a target that is longer than its input; its gradient is 0, so that
        one such sequence does not spoil a batch. 0 for an empty target of an empty input.

    Numerics of torch.nn.functional.ctc_loss without reduction. Raises DimError when a dim is missing.
    """
    logits, targets, batch, blank = _prepare(
        "ctc_loss", logits, targets, input_spatial_dim, targets_spatial_dim, blank_index
    )
    dtype = dtypes.floating(logits.dtype)
    if dtype != logits.dtype:
        logits = cast(logits, dtype)
    lengths = _flat_lengths(input_spatial_dim, batch), _flat_lengths(targets_spatial_dim, batch)
    static = (*lengths, blank, logits_normalized, max_approx, label_loop)
    (out,) = apply("ctc_loss", (logits, targets), static, [(tuple(batch), dtype, None, None)])
    return out


def ctc_best_path(
    *,
    logits: Tensor,
    logits_normalized: bool = False,
    targets: Tensor,
    input_spatial_dim: Dim,
    targets_spatial_dim: Dim,
    blank_index: int,
    label_loop: bool = True,
) -> Tensor:
    """The most probable alignment of the targets: {..., T, classes}, {..., S} -> {..., T}, int32 with the classes as
    sparse dim.

    Computed on the host, which waits for the device. In the padding, and for a sequence without an alignment, all
    frames are blank. The parameters are those of `ctc_loss`.
    """
    logits, targets, batch, blank = _prepare(
        "ctc_best_path", logits, targets, input_spatial_dim, targets_spatial_dim, blank_index
    )
    classes = logits.dims[-1]
    if not logits_normalized:
        logits = log_softmax(logits, axis=classes)
    frames = _flat_lengths(input_spatial_dim, batch)
    labels = _flat_lengths(targets_spatial_dim, batch)
    scores = logits.numpy().astype(numpy.float64)
    shape = scores.shape[:-1]
    scores = scores.reshape(len(frames), *scores.shape[-2:])
    symbols = targets.numpy().reshape(len(frames), -1) if len(frames) else numpy.zeros((0, 0), dtype=numpy.int64)
    path = numpy.full(scores.shape[:2], blank)
    for i, (n, m) in enumerate(zip(frames, labels)):
        best = _viterbi(scores[i, :n], symbols[i, :m], blank, label_loop)
        if best is not None:
            path[i, :n] = best
    dims = [*batch, input_spatial_dim]
    return tensor_beside(logits, path.reshape(shape), dims, "int32", classes)


def _viterbi(scores: numpy.ndarray, labels: numpy.ndarray, blank: int, label_loop: bool) -> numpy.ndarray | None:
    """The classes of the best path through (frames, classes) that spells `labels`; None if there is none."""
    # States blank, l1, blank, l2, ..., blank; a frame emits the class of its state.
    states = numpy.full(2 * len(labels) + 1, blank)
    states[1::2] = labels
    index = numpy.arange(len(states))
    is_label = index % 2 == 1
    stay = ~is_label | label_loop
    skip = is_label & (index >= 2)
    if label_loop:
        skip[2:] &= states[2:] != states[:-2]
    best = numpy.full(len(states) + 2, -numpy.inf)  # two states before the first one, which are never reached
    back = []
    for t, frame in enumerate(scores):
        if t == 0:
            now = numpy.where(index < 2, 0.0, -numpy.inf)
            steps = numpy.zeros(len(states), dtype=numpy.int64)
        else:
            options = numpy.stack(
                [numpy.where(stay, best[2:], -numpy.inf), best[1:-1], numpy.where(skip, best[:-2], -numpy.inf)]
            )
            steps = options.argmax(0)
            now = options.max(0)
        best[2:] = now + frame[states]
        back.append(steps)
    if not len(scores):
        return numpy.zeros(0, dtype=numpy.int64) if not len(labels) else None
    last = len(states) - 1
    if len(states) > 1 and best[2 + last - 1] > best[2 + last]:
        last -= 1
    if best[2 + last] == -numpy.inf:
        return None
    path = []
    for steps in reversed(back):
        path.append(states[last])
        last -= steps[last]
    return numpy.array(path[::-1])


def ctc_greedy_decode(
    logits: Tensor,
    *,
    in_spatial_dim: Dim,
    blank_index: int,
    out_spatial_dim: Dim | None = None,
    target_dim: Dim | None = None,
    wb_target_dim: Dim | None = None,
) -> tuple[Tensor, Dim]:
    """Labels of the best class of each frame, repetitions merged and blanks dropped: {..., T, classes} -> {..., S}.

    :param logits: {..., in_spatial_dim, wb_target_dim}; any monotone function of the probabilities.
    :param blank_index: negative counts from the end.
    :param out_spatial_dim: receives the lengths; default: a new dim.
    :param target_dim: the classes without blank, the sparse dim of the result; the blank must be the last class then.
        Default: the classes with blank.
    :param wb_target_dim: the classes with blank; default: the feature dim.
    :returns: (labels int32, out_spatial_dim). Padding does not matter. The lengths depend on values: this waits for the
        device, and raises BackendError on a backend without values.
    """
    if wb_target_dim is not None:
        logits = logits.copy()
        logits.feature_dim = wb_target_dim
    classes, blank = _class_dim("ctc_greedy_decode", logits, None, in_spatial_dim, blank_index)
    if target_dim is not None and not (blank == target_dim.dimension == classes.get_dim_value() - 1):
        raise DimError(
            f"ctc_greedy_decode: with target_dim {target_dim!r}, blank must be the one class more at the end of "
            f"{classes!r}, but it is {blank}"
        )
    batch = [d for d in logits.dims if d not in (in_spatial_dim, classes)]
    best = reduce_argmax(logits, axis=classes).copy_transpose([*batch, in_spatial_dim]).numpy()
    keep = best != blank
    keep[..., 1:] &= best[..., 1:] != best[..., :-1]
    keep &= numpy.arange(best.shape[-1]) < host_sizes(in_spatial_dim, batch)[..., None]
    sizes = keep.sum(-1)
    out_dim = _filled("ctc_greedy_decode", out_spatial_dim, sizes, batch)
    labels = numpy.zeros((*sizes.shape, out_dim.get_dim_value()), dtype=numpy.int32)
    labels[numpy.arange(labels.shape[-1]) < sizes[..., None]] = best[keep]
    return tensor_beside(logits, labels, [*batch, out_dim], "int32", target_dim or classes), out_dim


def _filled(name: str, dim: Dim | None, sizes: numpy.ndarray, batch: Sequence[Dim]) -> Dim:
    """A dim with these sizes over `batch`."""
    if dim is None:
        dim = Dim(None, name="labels")
    if not dim.is_dim_known():
        return dim.fill(sizes, batch)
    if not numpy.array_equal(numpy.broadcast_to(host_sizes(dim, batch), sizes.shape), sizes):
        raise DimError(f"{name}: the sizes are {sizes.tolist()}, but the dim given for them is {dim!r}")
    return dim


# -- durations of an alignment


def ctc_durations_from_path(
    *,
    path: Tensor,
    path_spatial_dim: Dim,
    blank_index: int,
    targets_spatial_dim: Dim | None = None,
    out_spatial_dim: Dim | None = None,
    check_dims: bool = True,
    stop_on_failed_check: bool = True,
) -> tuple[Tensor, Dim]:
    """Durations of the segments blank, label, blank, ..., label, blank of an alignment: {..., T} -> {..., 2 N + 1}.

    :param path: {..., path_spatial_dim}, classes, as of `ctc_best_path`. Neighbors of one class are one segment.
    :param blank_index: >= 0.
    :param targets_spatial_dim: N, to be checked.
    :param out_spatial_dim: receives the sizes; default: 2 * targets_spatial_dim + 1, or a new dim.
    :param check_dims: check that the path has as many labels as `targets_spatial_dim` says.
    :param stop_on_failed_check: raise DimError then; False only warns.
    :returns: (durations int32, in frames; out_spatial_dim). Computed on the host.
    """
    return _durations(
        "ctc_durations_from_path", True, path, path_spatial_dim, blank_index, targets_spatial_dim, out_spatial_dim,
        check_dims, stop_on_failed_check,
    )  # fmt: skip


def ctc_no_label_loop_blank_durations_from_path(
    *,
    path: Tensor,
    path_spatial_dim: Dim,
    blank_index: int,
    targets_spatial_dim: Dim | None = None,
    out_spatial_dim: Dim | None = None,
    check_dims: bool = True,
    stop_on_failed_check: bool = True,
) -> tuple[Tensor, Dim]:
    """Numbers of blank frames before, between and after the labels of an alignment in which each label takes one frame.

    {..., T} -> {..., N + 1}. Parameters as in `ctc_durations_from_path`; default of `out_spatial_dim`:
    targets_spatial_dim + 1.
    """
    return _durations(
        "ctc_no_label_loop_blank_durations_from_path", False, path, path_spatial_dim, blank_index, targets_spatial_dim,
        out_spatial_dim, check_dims, stop_on_failed_check,
    )  # fmt: skip


def _durations(
    name: str,
    label_loop: bool,
    path: Tensor,
    frames: Dim,
    blank: int,
    labels: Dim | None,
    out_dim: Dim | None,
    check_dims: bool,
    stop: bool,
) -> tuple[Tensor, Dim]:
    if frames not in path.dims:
        raise DimError(f"{name}: {frames!r} is not a dim of {path!r}")
    batch = [d for d in path.dims if d != frames]
    values = path.copy_transpose([*batch, frames]).numpy()
    shape = values.shape[:-1]
    lengths = _flat_lengths(frames, batch)
    rows = values.reshape(len(lengths), values.shape[-1])
    found = [_segments(row[:n], blank, label_loop) for row, n in zip(rows, lengths)]
    sizes = numpy.array([len(d) for d in found], dtype=numpy.int64).reshape(shape)
    if labels is not None:
        expected: Any = numpy.broadcast_to(host_sizes(labels, batch), shape)
        expected = 2 * expected + 1 if label_loop else expected + 1
        fits = numpy.array_equal(expected, sizes)
        if check_dims and not fits:
            text = f"{name}: the path has segments {sizes.tolist()}, for {labels!r} {expected.tolist()} are expected"
            if stop:
                raise DimError(text)
            warnings.warn(text, RuntimeWarning, stacklevel=3)
        if out_dim is None and fits:
            out_dim = 2 * labels + 1 if label_loop else labels + 1
    out_dim = _filled(name, out_dim, sizes, batch)
    out = numpy.zeros((len(found), out_dim.get_dim_value()), dtype=numpy.int32)
    for row, durations in zip(out, found):
        row[: len(durations)] = durations
    return tensor_beside(path, out.reshape(*shape, out.shape[1]), [*batch, out_dim], "int32"), out_dim


def _segments(path: numpy.ndarray, blank: int, label_loop: bool) -> list[int]:
    out = [0]
    before = blank
    for label in path.tolist():
        if label == blank:
            out[-1] += 1
        elif not label_loop:
            out.append(0)
        elif label == before:
            out[-2] += 1
        else:
            out += [1, 0]
        before = label
    return out
