"""Label error rate: the edit distance to the reference, in per cent of the reference's length."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np

__all__ = ["ErrorRate", "edit_distance"]


def edit_distance(reference: Sequence[Hashable], hypothesis: Sequence[Hashable]) -> int:
    """The least number of substitutions, insertions and deletions that turn ``reference`` into ``hypothesis``.

    Args:
        reference: a string (compared by characters) or any sequence of labels.
        hypothesis: likewise.

    Source: Levenshtein distance, by Wagner and Fischer, 1974; the rows are computed as arrays.
    """
    ids: dict[Hashable, int] = {}
    ref, hyp = (np.array([ids.setdefault(x, len(ids)) for x in seq], dtype=np.int64) for seq in (reference, hypothesis))
    # row[j]: distance between the first i labels of the reference and the first j of the hypothesis.
    columns = np.arange(len(hyp) + 1)
    row = columns
    for i, label in enumerate(ref, start=1):
        without_insertion = np.empty_like(row)
        without_insertion[0] = i
        without_insertion[1:] = np.minimum(row[1:] + 1, row[:-1] + (hyp != label))
        # Reaching column j from column k <= j by insertions costs j - k.
        row = np.minimum.accumulate(without_insertion - columns) + columns
    return int(row[-1])


class ErrorRate:
    """Adds up edit distances over sequences: total errors / total reference length, so long sequences weigh more.

    Attributes:
        num_errors: edits so far.
        num_labels: reference labels so far.
        num_sequences: pairs so far.
    """

    def __init__(self) -> None:
        self.num_errors = 0
        self.num_labels = 0
        self.num_sequences = 0

    def add(self, reference: Sequence[Hashable], hypothesis: Sequence[Hashable]) -> int:
        """Counts one pair; returns its edit distance."""
        errors = edit_distance(reference, hypothesis)
        self.num_errors += errors
        self.num_labels += len(reference)
        self.num_sequences += 1
        return errors

    @property
    def percent(self) -> float:
        """Errors per 100 reference labels; insertions can make it more than 100.

        Without any reference label it is 0 if there is no error either, else infinite.
        """
        if self.num_labels == 0:
            return float("inf") if self.num_errors else 0.0
        return 100.0 * self.num_errors / self.num_labels
