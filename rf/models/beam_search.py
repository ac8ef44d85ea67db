"""Beam search over labels, for all sequences of a batch at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy

import rf
from rf import Dim, Tensor

__all__ = ["beam_search"]

Step = Callable[[Tensor, rf.State], tuple[Tensor, rf.State]]


def beam_search(
    step: Step,
    initial_state: Callable[[list[Dim]], rf.State],
    *,
    batch_dim: Dim,
    label_dim: Dim,
    bos_index: int,
    eos_index: int,
    max_lengths: Any,
    beam_size: int,
    device: str | None = None,
) -> list[list[int]]:
    """The best label sequence of each entry of the batch.

    Hypotheses of one entry never compete with those of another, a finished one keeps its score, and an entry ends by
    its own `max_lengths`: so the result does not depend on what else is in the batch.

    :param step: (labels {batch, beam}, state) -> (log probabilities {batch, beam, label_dim} of the next label, new
        state).
    :param initial_state: from [batch dim, beam dim] to the first state. Its Tensors are gathered along the beam, if
        they have it.
    :param label_dim: labels, with the end of sequence.
    :param bos_index: the first label.
    :param eos_index: the label that ends a hypothesis.
    :param max_lengths: int (batch,): most labels of a result, without the end.
    :param beam_size: hypotheses per entry.
    :param device: where `step` wants its labels; default: the default device.
    :returns: for each entry the labels, without the end, of the hypothesis with the greatest log probability per label
        (end included).

    Waits for the device once a step, to know when all have ended.
    """
    if beam_size < 1:
        raise rf.RfError(f"beam_search: beam_size must be at least 1, got {beam_size}")
    max_lengths = numpy.asarray(max_lengths)
    num_labels = label_dim.get_dim_value()
    longest = int(max_lengths.max(initial=0))
    limits = rf.convert_to_tensor(max_lengths.astype(numpy.int32), dims=[batch_dim], device=device)
    only_end = numpy.full(num_labels, -numpy.inf, dtype=numpy.float32)
    only_end[eos_index] = 0.0
    only_end = rf.convert_to_tensor(only_end, dims=[label_dim], device=device)

    beam = Dim(1, name="beam")
    state = initial_state([batch_dim, beam])
    labels = rf.full(dims=[batch_dim, beam], fill_value=bos_index, dtype="int32", sparse_dim=label_dim, device=device)
    scores = rf.zeros([batch_dim, beam], device=device)
    ended = rf.full(dims=[batch_dim, beam], fill_value=False, device=device)
    lengths = rf.zeros([batch_dim, beam], dtype="int32", device=device)
    history: list[tuple[numpy.ndarray, numpy.ndarray]] = []
    for i in range(longest + 1):
        log_prob, state = step(labels, state)
        # A finished hypothesis goes on with the end for free; one that is as long as it may be must end.
        log_prob = rf.where(rf.equal(limits, i), log_prob + only_end, log_prob)
        log_prob = rf.where(ended, only_end, log_prob, allow_broadcast_all_sources=True)
        size = min(beam_size, beam.get_dim_value() * num_labels)
        scores, (origins, labels), new_beam = rf.top_k(
            scores + log_prob, axis=[beam, label_dim], k_dim=Dim(size, name="beam")
        )
        state = _gather(state, origins, beam)
        ended, lengths = (rf.gather(x, indices=origins, axis=beam) for x in (ended, lengths))
        lengths = rf.where(ended, lengths, lengths + 1)
        # One of probability 0, which only fills the beam, counts as ended too.
        ended = rf.logical_or(rf.logical_or(ended, rf.equal(labels, eos_index)), rf.is_neg_infinite(scores))
        beam = new_beam
        order = [batch_dim, beam]
        history.append((labels.copy_transpose(order).numpy(), origins.copy_transpose(order).numpy()))
        if rf.reduce_all(ended, axis=[batch_dim, beam]).item():
            break
    per_label = scores / rf.cast(rf.maximum(lengths, 1), scores.dtype)
    best = rf.reduce_argmax(rf.where(ended, per_label, float("-inf")), axis=beam).numpy()
    return [_trace_back(history, entry, int(b), eos_index) for entry, b in enumerate(best)]


def _gather(state: Any, origins: Tensor, beam: Dim) -> Any:
    """Every Tensor of the state that has the beam dim, at the hypotheses that have survived."""
    if isinstance(state, Tensor):
        return rf.gather(state, indices=origins, axis=beam) if beam in state.dims else state
    if isinstance(state, dict):
        return type(state)([(k, _gather(v, origins, beam)) for k, v in state.items()])
    return state


def _trace_back(
    history: Sequence[tuple[numpy.ndarray, numpy.ndarray]], entry: int, beam: int, eos_index: int
) -> list[int]:
    labels = []
    for step_labels, origins in reversed(history):
        labels.append(int(step_labels[entry, beam]))
        beam = int(origins[entry, beam])
    labels.reverse()
    return labels[: labels.index(eos_index)] if eos_index in labels else labels
