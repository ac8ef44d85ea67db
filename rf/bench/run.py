"""Both sides of each case, checked and then timed in turns in one process."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import rf
from rf._errors import UserError
from rf.backend import Backend, get_backend, use_backend
from rf.bench.case import Case, Reference, RfModel
from rf.bench.check import build, check_forward, check_gradients
from rf.profile.timing import compare

__all__ = ["ModelTime", "bench_models"]

LEARNING_RATE = 1e-5
"""Small: what is timed shall not change."""
WARM_UP = 1
"""Calls of everything before `compare`, which makes one more: plans get made, caches filled, the optimizer's state
allocated.
"""


@dataclass(frozen=True)
class ModelTime:
    """Times of one step of one model, in ms.

    :param model: name of the case
    :param what: the model in words
    :param size: "tiny" or "realistic"
    :param step: "forward" or "train"
    :param rf_ms: in rf
    :param torch_ms: in the torch code
    :param meta_ms: in rf on the backend `meta`: of "train", forward and loss
    :param target: the ratio that the project aims at, None without an aim
    :param difference: greatest relative difference between the numbers of both, see `rf.bench.check`; of "train",
        between gradients
    :param dropout: its probability while timed, in training
    :param rounds: how many calls each time is the median of, at least
    :param others_ms: further ways to compute the same, by name
    """

    model: str
    what: str
    size: str
    step: str
    rf_ms: float
    torch_ms: float
    meta_ms: float
    target: float | None
    difference: float
    dropout: float
    rounds: int
    others_ms: dict[str, float] = field(default_factory=dict)

    @property
    def ratio(self) -> float:
        """rf / torch."""
        return self.rf_ms / self.torch_ms

    @property
    def reached(self) -> bool | None:
        """Whether the target is reached."""
        return None if self.target is None else self.ratio <= self.target

    @property
    def frontend_share(self) -> float:
        """How much of the time of rf the frontend alone takes: meta / rf."""
        return self.meta_ms / self.rf_ms


def bench_models(
    backend: Backend,
    cases: Sequence[Case],
    sizes: Sequence[str],
    *,
    rounds: int = 15,
    progress: Callable[[str], object] = lambda _: None,
    **timing: Any,
) -> list[ModelTime]:
    """Check and time the cases.

    :param backend: torch. UserError for another one: there is no code to compare with.
    :param sizes: of `rf.bench.case.SIZES`.
    :param rounds: of `rf.profile.timing.compare`.
    :param progress: called with a line of text before each case.
    :param timing: further arguments of `compare`.

    Raises RfError when the two sides do not compute the same numbers.
    """
    if backend.name != "torch":
        raise UserError(f"there are no models of {backend.name} to compare with; use --backend torch")
    rows = []
    try:
        for size in sizes:
            for case in cases:
                progress(f"{case.name}, {size}")
                rows += _bench_case(backend, case, size, rounds, timing)
    finally:
        rf.reset_run_ctx()
    return rows


def _bench_case(backend: Backend, case: Case, size: str, rounds: int, timing: dict[str, Any]) -> list[ModelTime]:
    with use_backend(backend.name):
        differences = check_case(backend, case, size)
        ours, theirs = build(case, size, backend, case.dropout)
        with use_backend("meta"):
            frontend = case.rf(get_backend("meta"), case.sizes[size], case.dropout)
        rows = []
        for step in case.steps:
            make = _forward_calls if step == "forward" else _train_calls
            functions = make(backend, ours, theirs, frontend)
            with backend.no_grad() if step == "forward" else contextlib.nullcontext():
                for _ in range(WARM_UP):
                    for function in functions.values():
                        function()
                result = compare(functions, rounds=rounds, **timing)
            ms = {name: ns / 1e6 for name, ns in result.ns.items()}
            rows.append(
                ModelTime(
                    case.name,
                    case.what,
                    size,
                    step,
                    ms.pop("rf"),
                    ms.pop("torch"),
                    ms.pop("meta"),
                    case.targets.get((step, size)),
                    differences[step],
                    case.dropout,
                    rounds,
                    ms,
                )
            )
    return rows


def check_case(backend: Backend, case: Case, size: str) -> dict[str, float]:
    """Build both sides without dropout and compare their numbers; differences by step, see `ModelTime`."""
    ours, theirs = build(case, size, backend, 0.0)
    differences = {}
    if "forward" in case.steps:
        differences["forward"] = check_forward(case, backend, ours, theirs)
    if "train" in case.steps:
        differences["train"] = check_gradients(case, ours, theirs)
    return differences


Calls = dict[str, Callable[[], object]]


def _forward_calls(backend: Backend, ours: RfModel, theirs: Reference, frontend: RfModel) -> Calls:
    for reference in (theirs, *theirs.others.values()):
        reference.model.eval()
    calls: Calls = {"rf": ours.forward, "torch": theirs.forward, "meta": _on_meta(frontend.forward)}
    return calls | {name: other.forward for name, other in theirs.others.items()}


def _train_calls(backend: Backend, ours: RfModel, theirs: Reference, frontend: RfModel) -> Calls:
    assert ours.loss is not None and frontend.loss is not None
    our_loss = ours.loss
    parameters = [p.raw_tensor for p in ours.model.parameters() if p.trainable]
    calls: Calls = {"rf": _train_step(lambda: our_loss().raw_tensor, parameters)}
    for name, reference in (("torch", theirs), *theirs.others.items()):
        assert reference.loss is not None
        reference.model.train()
        trained = [p for p in reference.model.parameters() if p.requires_grad]
        calls[name] = _train_step(reference.loss, trained)
    return calls | {"meta": _on_meta(frontend.loss)}


def _train_step(loss: Callable[[], Any], parameters: Iterable[Any]) -> Callable[[], None]:
    """A training step, the same for both sides but for the loss, which is an array of torch."""
    import torch

    optimizer = torch.optim.AdamW(parameters, lr=LEARNING_RATE, fused=True)

    def step() -> None:
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()

    return step


def _on_meta(function: Callable[[], object]) -> Callable[[], None]:
    def call() -> None:
        with use_backend("meta"):
            function()

    return call
