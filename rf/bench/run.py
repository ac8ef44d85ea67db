"""Both sides of each case, checked and then timed in turns in one process."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import rf
from rf.backend import Backend, get_backend, use_backend
from rf.bench.case import Case, Reference, RfModel
from rf.bench.check import build, check_forward, check_gradients
from rf.bench.packages import Package
from rf.bench.peer import Peer, peer_of
from rf.profile.timing import compare

__all__ = ["ModelTime", "bench_models"]

WARM_UP = 1
"""Calls of everything before `compare`, which makes one more: plans get made, caches filled, the optimizer's state
allocated.
"""


Calls = dict[str, Callable[[], object]]


@dataclass(frozen=True)
class ModelTime:
    """Times of one step of one model, in ms.

    :param model: name of the case
    :param what: the model in words
    :param size: "tiny" or "realistic"
    :param step: "forward" or "train"
    :param rf_ms: in rf
    :param reference: what the hand-written code is written in: "torch" or "Keras"
    :param reference_ms: in that code
    :param meta_ms: in rf on the backend `meta`: of "train", forward and loss
    :param target: the ratio that the project aims at, None without an aim
    :param difference: greatest relative difference between the numbers of both, see `rf.bench.check`; of "train",
        between gradients
    :param dropout: its probability while timed, in training
    :param rounds: how many calls each time is the median of, at least
    :param others_ms: further ways to compute the same, by name
    :param others_ratio: rf / other; rf is timed once more in turns with the packages, so not always `rf_ms` / other
    :param others_target: the ratios to them that the project aims at, where it has an aim
    """

    model: str
    what: str
    size: str
    step: str
    rf_ms: float
    reference: str
    reference_ms: float
    meta_ms: float
    target: float | None
    difference: float
    dropout: float
    rounds: int
    others_ms: dict[str, float] = field(default_factory=dict)
    others_ratio: dict[str, float] = field(default_factory=dict)
    others_target: dict[str, float] = field(default_factory=dict)

    @property
    def ratio(self) -> float:
        """rf / reference."""
        return self.rf_ms / self.reference_ms

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
    packages: Sequence[Package] = (),
    progress: Callable[[str], object] = lambda _: None,
    **timing: Any,
) -> list[ModelTime]:
    """Check and time the cases.

    :param backend: torch or tensorflow. UserError for another one: there is no code to compare with.
    :param cases: those that there is code for, see `rf.bench.models.select_cases`.
    :param sizes: of `rf.bench.case.SIZES`.
    :param rounds: of `rf.profile.timing.compare`.
    :param packages: what else to compare with, see `rf.bench.packages`.
    :param progress: called with a line of text before each case.
    :param timing: further arguments of `compare`.

    Raises RfError when the two sides do not compute the same numbers.
    """
    peer = peer_of(backend)
    rows = []
    try:
        for size in sizes:
            for case in cases:
                progress(f"{case.name}, {size}")
                rows += _bench_case(backend, peer, case, size, rounds, packages, timing)
    finally:
        rf.reset_run_ctx()
    return rows


def _bench_case(
    backend: Backend,
    peer: Peer,
    case: Case,
    size: str,
    rounds: int,
    packages: Sequence[Package],
    timing: dict[str, Any],
) -> list[ModelTime]:
    with use_backend(backend.name):
        differences = check_case(backend, case, size, packages)
        ours, theirs = build(case, size, backend, case.dropout, packages)
        with use_backend("meta"):
            frontend = case.rf(get_backend("meta"), case.sizes[size], case.dropout)
        rows = []
        for step in case.steps:
            make = _forward_calls if step == "forward" else _train_calls
            functions = make(peer, ours, theirs, frontend)
            with backend.no_grad() if step == "forward" else contextlib.nullcontext():
                for _ in range(WARM_UP):
                    for function in functions.values():
                        function()
                # Packages in turns of their own: much code between two calls leaves the caches of the processor cold.
                apart = {p.name: functions.pop(p.name) for p in packages if p.name in functions}
                ms = _times(functions, rounds, timing)
                ratios = {name: ms["rf"] / ms[name] for name in theirs.others if name not in apart}
                if apart:
                    apart_ms = _times({"rf": functions["rf"]} | apart, rounds, timing)
                    ratios |= {name: apart_ms["rf"] / apart_ms[name] for name in apart}
                    ms |= {name: apart_ms[name] for name in apart}
            rows.append(
                ModelTime(
                    case.name,
                    case.what,
                    size,
                    step,
                    ms.pop("rf"),
                    peer.name,
                    ms.pop(peer.name),
                    ms.pop("meta"),
                    peer.targets(case).get((step, size)),
                    differences[step],
                    case.dropout,
                    rounds,
                    ms,
                    ratios,
                    {p.name: p.targets[key] for p in packages if (key := (case.name, step, size)) in p.targets},
                )
            )
    return rows


def _times(functions: Calls, rounds: int, timing: dict[str, Any]) -> dict[str, float]:
    """ms, by name."""
    return {name: ns / 1e6 for name, ns in compare(functions, rounds=rounds, **timing).ns.items()}


def check_case(backend: Backend, case: Case, size: str, packages: Sequence[Package] = ()) -> dict[str, float]:
    """Build both sides without dropout and compare their numbers; differences by step, see `ModelTime`."""
    ours, theirs = build(case, size, backend, 0.0, packages)
    differences = {}
    if "forward" in case.steps:
        differences["forward"] = check_forward(case, backend, ours, theirs)
    if "train" in case.steps:
        differences["train"] = check_gradients(case, backend, ours, theirs)
    return differences


def _forward_calls(peer: Peer, ours: RfModel, theirs: Reference, frontend: RfModel) -> Calls:
    for reference in (theirs, *theirs.others.values()):
        peer.set_training(reference, False)
    calls: Calls = {"rf": ours.forward, peer.name: theirs.forward, "meta": _on_meta(frontend.forward)}
    return calls | {name: other.forward for name, other in theirs.others.items()}


def _train_calls(peer: Peer, ours: RfModel, theirs: Reference, frontend: RfModel) -> Calls:
    assert frontend.loss is not None
    calls: Calls = {"rf": peer.train_step_of_rf(ours)}
    for name, reference in ((peer.name, theirs), *theirs.others.items()):
        peer.set_training(reference, True)
        calls[name] = peer.train_step(reference)
    return calls | {"meta": _on_meta(frontend.loss)}


def _on_meta(function: Callable[[], object]) -> Callable[[], None]:
    def call() -> None:
        with use_backend("meta"):
            function()

    return call
