"""Error rates of a trained model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import rf
from rf.data import Batch, Dataset, ErrorRate
from rf.models import Model
from rf.train.feed import Feed

__all__ = ["CTC", "AED", "Decoding", "decode", "evaluate"]

CTC = "ctc_greedy"
"""The best label or blank of every frame."""

AED = "aed_beam"
"""Beam search with the attention decoder."""


@dataclass(frozen=True)
class Decoding:
    """What was recognized in one sequence.

    Attributes:
        name: of the sequence.
        reference: what should have been recognized.
        hypotheses: texts by the way of decoding, `CTC` and `AED`.
    """

    name: str
    reference: str
    hypotheses: dict[str, str]


def decode(
    model: Model, feed: Feed, dataset: Dataset, batches: Iterable[Batch], *, beam_size: int | None
) -> Iterator[Decoding]:
    """Recognizes sequences, without influence on random states or the model.

    Args:
        model, feed: what decodes.
        dataset: translates labels to text.
        batches: of that data.
        beam_size: for `AED`; None leaves that out.
    """
    for batch in batches:
        rf.init_forward_step_run_ctx()
        try:
            inputs, input_dim, _, _ = feed(batch)
            found = {CTC: model.greedy_ctc(inputs, input_dim)}
            if beam_size is not None:
                found[AED] = model.beam_search(inputs, input_dim, beam_size=beam_size)
        finally:
            rf.reset_run_ctx()
        for i, (name, labels, length) in enumerate(zip(batch.names, batch.targets, batch.target_lengths)):
            yield Decoding(
                name,
                dataset.labels_to_text(labels[:length]),
                {how: dataset.labels_to_text(hypotheses[i]) for how, hypotheses in found.items()},
            )


def evaluate(decodings: Iterable[Decoding]) -> dict[str, ErrorRate]:
    """Character error rates by the way of decoding."""
    rates: dict[str, ErrorRate] = {}
    for decoding in decodings:
        for how, hypothesis in decoding.hypotheses.items():
            rates.setdefault(how, ErrorRate()).add(decoding.reference, hypothesis)
    return rates
