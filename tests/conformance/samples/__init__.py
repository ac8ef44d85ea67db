"""The samples, one file per family of ops. A new op needs a line here; see conformance/sample.py for the notation."""

from __future__ import annotations

from conformance.sample import Sample
from conformance.samples import conv, elementwise, index, modules, neural, reduce, sequence, shape, structure

SAMPLES: list[Sample] = [
    *elementwise.SAMPLES,
    *reduce.SAMPLES,
    *structure.SAMPLES,
    *shape.SAMPLES,
    *sequence.SAMPLES,
    *index.SAMPLES,
    *conv.SAMPLES,
    *neural.SAMPLES,
    *modules.SAMPLES,
]

_ids = [s.id for s in SAMPLES]
assert len(set(_ids)) == len(_ids), (
    f"samples of the same id (tell them apart with id=): {sorted({i for i in _ids if _ids.count(i) > 1})}"
)
