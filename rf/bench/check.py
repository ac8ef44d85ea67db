"""Whether both sides compute the same numbers: nothing else is worth timing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy

import rf
from rf._errors import RfError
from rf.backend import Backend
from rf.bench.case import Case, Reference, RfModel
from rf.bench.packages import Package
from rf.bench.peer import Peer, peer_of

__all__ = ["build", "check_forward", "check_gradients"]

TOLERANCE = 1e-4
"""Greatest difference of results, relative to the greatest value: in float32, sums of thousands of products in another
order.
"""
GRADIENT_TOLERANCE = 5e-2
"""Greatest norm of the difference of gradients, relative to the norm of the gradient.

Where the input of a relu is 0 but for rounding, one side may pass the gradient on and the other may not, so this cannot
be as strict: torch's own gradients of the realistic ResNet-18 in float32 are up to 2.5e-2 from those in float64,
whatever the layout of the images. The tests are strict, in float64.
"""
SMALL = 1e-3
"""A gradient whose norm is below that of the greatest one, times this, counts as if it were that large: some are 0 but
for rounding, such as that of a bias before batch normalization.
"""


def build(
    case: Case, size: str, backend: Backend, dropout: float, packages: Sequence[Package] = ()
) -> tuple[RfModel, Reference]:
    """Both sides, with the same weights. No weight has a value that hides errors, such as a bias of 0.

    :param size: one of `SIZES`.
    :param backend: of rf; it must be the selected one.
    :param packages: those that have the model are among the further ways.
    """
    rf.set_random_seed(1)
    ours = case.rf(backend, case.sizes[size], dropout)
    random = numpy.random.default_rng(2)
    for parameter in ours.model.parameters():
        if len(parameter.dims) == 1:
            parameter.assign(parameter.numpy() + 0.2 * random.random(parameter.raw_tensor.shape))
    peer = peer_of(backend)
    factory = peer.factory(case)
    assert factory is not None
    theirs = factory(case.sizes[size], dropout)
    others = {p.name: p.models[case.name](case.sizes[size], dropout) for p in packages if case.name in p.models}
    theirs = replace(theirs, others={**theirs.others, **others})
    weights = {name: backend.stop_gradient(p.raw_tensor) for name, p in ours.model.named_parameters()}
    for reference in (theirs, *theirs.others.values()):
        _copy_weights(case, peer, reference, reference.from_rf(weights))
    return ours, theirs


def _copy_weights(case: Case, peer: Peer, reference: Reference, weights: Mapping[str, Any]) -> None:
    missing, unknown = peer.load(reference, weights)
    if missing or unknown:
        raise RfError(
            f"{case.name}: the models have different parameters: {peer.name} alone has {missing}, rf alone {unknown}"
        )


def check_forward(case: Case, backend: Backend, ours: RfModel, theirs: Reference) -> float:
    """Compare results outside training, on valid frames.

    :returns: the greatest difference, relative to the greatest value.

    Raises RfError when it is beyond rounding.
    """
    peer = peer_of(backend)
    with backend.no_grad():
        want = _valid(ours, ours.forward())
        worst = 0.0
        for name, reference in (("", theirs), *theirs.others.items()):
            peer.set_training(reference, False)
            have = _valid(ours, rf.convert_to_tensor(reference.forward(), dims=ours.dims))
            if want.dtype.kind == "i":
                difference = float((want != have).mean())
            else:
                difference = float(abs(want - have).max() / abs(want).max())
            _check(difference, f"{case.name}: the result of {name or f'the {peer.name} code'}")
            worst = max(worst, difference)
    return worst


def _valid(ours: RfModel, x: rf.Tensor) -> numpy.ndarray:
    return x.copy_masked(0).copy_transpose(ours.dims).numpy()


def check_gradients(case: Case, backend: Backend, ours: RfModel, theirs: Reference) -> float:
    """Compare loss and gradients of a training step. There must be no dropout.

    :returns: the greatest norm of a difference, relative to the norm of the gradient of that parameter.

    Raises RfError when one is beyond rounding.
    """
    assert ours.loss is not None
    peer, loss = peer_of(backend), ours.loss()
    trained = {name: p.raw_tensor for name, p in ours.model.named_parameters() if p.trainable}
    gradients = dict(zip(trained, backend.gradient(loss.raw_tensor, list(trained.values()))))
    without = sorted(name for name, gradient in gradients.items() if gradient is None)
    if without:
        raise RfError(f"{case.name}: no gradient in rf for {', '.join(without)}")
    want_loss = loss.item()
    largest = max(float(numpy.linalg.norm(backend.to_numpy(g))) for g in gradients.values())
    worst = 0.0
    for other, reference in ((peer.name, theirs), *theirs.others.items()):
        want = {name: backend.to_numpy(g) for name, g in reference.from_rf(gradients).items()}
        peer.set_training(reference, True)
        have_loss, have = peer.loss_and_gradients(reference, want)
        _check(abs(want_loss - have_loss) / abs(want_loss), f"{case.name}: the loss of {other}")
        if want.keys() != have.keys():
            raise RfError(f"{case.name}: other parameters are trained: {sorted(want.keys() ^ have.keys())}")
        for name, gradient in want.items():
            if have[name] is None:
                raise RfError(f"{case.name}: no gradient in {other} for {name}")
            norm = max(float(numpy.linalg.norm(gradient)), largest * SMALL)
            difference = float(numpy.linalg.norm(gradient - have[name])) / norm
            _check(difference, f"{case.name}: the gradient of {name} of {other}", GRADIENT_TOLERANCE)
            worst = max(worst, difference)
    return worst


def _check(difference: float, what: str, tolerance: float = TOLERANCE) -> None:
    if not difference <= tolerance:  # NaN too
        raise RfError(f"{what} differs from that of rf by {difference:.1e} of its size")
