"""Whether rf and torch compute the same numbers: nothing else is worth timing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy

import rf
from rf._errors import RfError
from rf.backend import Backend
from rf.bench.case import Case, Reference, RfModel

__all__ = ["build", "check_forward", "check_gradients"]

TOLERANCE = 1e-4
"""Greatest difference of results, relative to the greatest value: in float32, sums of thousands of products in another
order.
"""
GRADIENT_TOLERANCE = 1e-2
"""Greatest norm of the difference of gradients, relative to the norm of the gradient.

Where the input of a relu is 0 but for rounding, one side may pass the gradient on and the other may not, so this cannot
be as strict. The tests are, in float64.
"""
SMALL = 1e-3
"""A gradient whose norm is below that of the greatest one, times this, counts as if it were that large: some are 0 but
for rounding, such as that of a bias before batch normalization.
"""


def build(case: Case, size: str, backend: Backend, dropout: float) -> tuple[RfModel, Reference]:
    """Both sides, with the same weights. No weight has a value that hides errors, such as a bias of 0.

    :param size: one of `SIZES`.
    :param backend: torch; it must be the selected one.
    """
    rf.set_random_seed(1)
    ours = case.rf(backend, case.sizes[size], dropout)
    random = numpy.random.default_rng(2)
    for parameter in ours.model.parameters():
        if len(parameter.dims) == 1:
            parameter.assign(parameter.numpy() + 0.2 * random.random(parameter.raw_tensor.shape))
    theirs = case.torch(case.sizes[size], dropout)
    weights = {name: p.raw_tensor.detach() for name, p in ours.model.named_parameters()}
    for reference in (theirs, *theirs.others.values()):
        _copy_weights(case, reference, reference.from_rf(weights))
    return ours, theirs


def _copy_weights(case: Case, reference: Reference, weights: Mapping[str, Any]) -> None:
    result = reference.model.load_state_dict(weights, strict=False)
    trained = {name for name, p in reference.model.named_parameters() if p.requires_grad}
    missing = sorted(trained.intersection(result.missing_keys))
    if missing or result.unexpected_keys:
        raise RfError(
            f"{case.name}: the models have different parameters: torch alone has {missing}, "
            f"rf alone {sorted(result.unexpected_keys)}"
        )


def check_forward(case: Case, backend: Backend, ours: RfModel, theirs: Reference) -> float:
    """Compare results outside training, on valid frames.

    :returns: the greatest difference, relative to the greatest value.

    Raises RfError when it is beyond rounding.
    """
    with backend.no_grad():
        want = _valid(ours, ours.forward())
        worst = 0.0
        for name, reference in (("", theirs), *theirs.others.items()):
            reference.model.eval()
            have = _valid(ours, rf.convert_to_tensor(reference.forward(), dims=ours.dims))
            if want.dtype.kind == "i":
                difference = float((want != have).mean())
            else:
                difference = float(abs(want - have).max() / abs(want).max())
            _check(difference, f"{case.name}: the result of {name or 'the torch code'}")
            worst = max(worst, difference)
    return worst


def _valid(ours: RfModel, x: rf.Tensor) -> numpy.ndarray:
    return x.copy_masked(0).copy_transpose(ours.dims).numpy()


def check_gradients(case: Case, ours: RfModel, theirs: Reference) -> float:
    """Compare loss and gradients of a training step. There must be no dropout.

    :returns: the greatest norm of a difference, relative to the norm of the gradient of that parameter.

    Raises RfError when one is beyond rounding.
    """
    assert ours.loss is not None
    loss = ours.loss()
    loss.raw_tensor.backward()
    want_loss = loss.item()
    gradients = {name: p.raw_tensor.grad for name, p in ours.model.named_parameters() if p.trainable}
    without = sorted(name for name, gradient in gradients.items() if gradient is None)
    if without:
        raise RfError(f"{case.name}: no gradient in rf for {', '.join(without)}")
    largest = max(float(g.norm()) for g in gradients.values())
    worst = 0.0
    for other, reference in (("torch", theirs), *theirs.others.items()):
        assert reference.loss is not None
        reference.model.train()
        have_loss = reference.loss()
        have_loss.backward()
        _check(abs(want_loss - have_loss.item()) / abs(want_loss), f"{case.name}: the loss of {other}")
        want = reference.from_rf(gradients)
        have = {name: p.grad for name, p in reference.model.named_parameters() if p.requires_grad}
        if want.keys() != have.keys():
            raise RfError(f"{case.name}: other parameters are trained: {sorted(want.keys() ^ have.keys())}")
        for name, gradient in want.items():
            if have[name] is None:
                raise RfError(f"{case.name}: no gradient in {other} for {name}")
            norm = max(float(gradient.norm()), largest * SMALL)
            difference = float((gradient - have[name]).norm()) / norm
            _check(difference, f"{case.name}: the gradient of {name} of {other}", GRADIENT_TOLERANCE)
            worst = max(worst, difference)
    return worst


def _check(difference: float, what: str, tolerance: float = TOLERANCE) -> None:
    if not difference <= tolerance:  # NaN too
        raise RfError(f"{what} differs from that of rf by {difference:.1e} of its size")
