"""Where the time of a training step goes: from the step, the step without kernels, and the kernels without the step."""

from __future__ import annotations

import contextlib
import math
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from rf._core import Tensor, make_tensor
from rf._errors import BackendError, RfError
from rf.backend import Backend, use_backend
from rf.profile.modules import ModuleTime, ModuleTree, record_modules
from rf.profile.tape import Tape, record

__all__ = ["KernelTime", "Profile", "Step", "kernel_times", "profile_step"]

WARM_UP = 3
"""Steps before anything is measured: plans get made, caches filled, memory pools grown."""
TABLE_RUNS = 5
"""Runs that the tables per kernel and per module are chosen from."""


@dataclass(frozen=True)
class Step:
    """A training step, on one backend, of one batch that stays the same.

    :param forward: from the batch as host arrays to the loss (no dims): everything that the frontend takes part in
    :param update: differentiates a loss and updates the parameters; None on a backend that computes nothing
    :param model: the modules of the step
    """

    backend: Backend
    forward: Callable[[], Tensor]
    update: Callable[[Tensor], object] | None
    model: ModuleTree


@dataclass(frozen=True)
class KernelTime:
    """The calls of one kernel in a step, together."""

    kernel: str
    calls: int
    total_ns: int


@dataclass(frozen=True)
class Profile:
    """What `profile_step` measured; ns per step.

    forward_ns, update_ns: of the step itself: medians.
    wait_ns: waiting for the next batch: the mean, as batches come in bursts.
    frontend_ns: forward on the backend `meta`: median.
    replay_ns: the kernel calls of forward, replayed without rf; replay_update_ns: `update` on the loss of the replay;
    medians.
    kernels: forward kernel calls by kernel, the most expensive first, of the replay whose total was the median.
    modules, frontend_modules: forward by module, on the backend and on `meta`, of the run whose total was the median.
    warnings: what makes the numbers doubtful.
    """

    steps: int
    forward_ns: float
    update_ns: float
    wait_ns: float
    frontend_ns: float
    replay_ns: float
    replay_update_ns: float
    kernels: list[KernelTime]
    modules: list[ModuleTime]
    frontend_modules: list[ModuleTime]
    warnings: list[str] = field(default_factory=list)

    @property
    def wall_ns(self) -> float:
        """The whole step, waiting for its batch included."""
        return self.forward_ns + self.update_ns + self.wait_ns

    @property
    def split_ns(self) -> dict[str, float]:
        """The wall time in rows that sum to it. "unexplained" is what is left, and negative when the others claim too
        much.
        """
        rows = {
            "frontend": self.frontend_ns,
            "backend": self.replay_ns + self.replay_update_ns,
            "data": self.wait_ns,
        }
        rows["unexplained"] = self.wall_ns - sum(rows.values())
        return rows


def profile_step(
    real: Step,
    meta: Step,
    *,
    steps: int = 20,
    next_batch: Callable[[], object] = lambda: None,
    alternate: bool = True,
    clock: Callable[[], int] = time.perf_counter_ns,
) -> Profile:
    """Take a training step apart.

    Frontend: the same step on `meta`, where nothing else costs time. Backend: its kernel calls, replayed without rf,
    with the same backward pass and update. Data: waiting for the next batch. Nothing is subtracted from any
    measurement, so that errors show in the rest, which is what the wall time has more than these.

    The garbage collector runs as it does in training.

    :param real: the step; its parameters are trained on meanwhile.
    :param meta: the same step on `meta`.
    :param steps: how many of each are measured.
    :param next_batch: gets the next batch of the data; called before each step. What it returns is not used, since a
        step of other sizes would be another step.
    :param alternate: measure step, frontend and replay in turns, so that all see the same machine. Not with data that
        is loaded in the background: it would get the time of three steps for each one.
    :param clock: ns since some fixed moment.

    Raises BackendError when `real` is on a backend that has no gradients, or `meta` on one that computes; RfError
    when the step computes on raw arrays, so that its kernel calls alone are not the step.
    """
    if real.update is None or not real.backend.computes or not real.backend.has_gradients:
        raise BackendError(f"a training step needs gradients, which backend {real.backend.name} does not compute")
    if meta.backend.computes:
        raise BackendError(f"the frontend is measured on a backend that computes nothing, not on {meta.backend.name}")
    measure = _Measurement(real, meta, next_batch, clock)
    tape, warnings = measure.prepare()
    block = 1 if alternate else steps
    for _ in range(steps // block):
        measure.run(tape, block)
    kernels = kernel_times(tape, TABLE_RUNS)
    with use_backend(real.backend.name):
        modules = _median_run([record_modules(real.model, real.forward, clock=clock) for _ in range(TABLE_RUNS)])
    with use_backend(meta.backend.name):
        frontend = _median_run([record_modules(meta.model, meta.forward, clock=clock) for _ in range(TABLE_RUNS)])
    median = {part: statistics.median(ns) for part, ns in measure.ns.items()}
    return Profile(
        steps=steps,
        forward_ns=median["forward"],
        update_ns=median["update"],
        wait_ns=statistics.fmean(measure.ns["wait"]),
        frontend_ns=median["frontend"],
        replay_ns=median["replay"],
        replay_update_ns=median["replay_update"],
        kernels=kernels,
        modules=modules,
        frontend_modules=frontend,
        warnings=warnings,
    )


class _Measurement:
    """The samples of every part of the step."""

    def __init__(self, real: Step, meta: Step, next_batch: Callable[[], object], clock: Callable[[], int]) -> None:
        assert real.update is not None
        self.real = real
        self.meta = meta
        self.update = real.update
        self.next_batch = next_batch
        self.clock = clock
        self.ns: dict[str, list[int]] = {
            part: [] for part in ("wait", "forward", "update", "frontend", "replay", "replay_update")
        }

    def prepare(self) -> tuple[Tape, list[str]]:
        """Warm up, record the kernel calls, and check that the replay computes what the step does."""
        with use_backend(self.meta.backend.name):
            for _ in range(WARM_UP):
                self.meta.forward()
        with use_backend(self.real.backend.name):
            for _ in range(WARM_UP):
                loss = self.real.forward()
                self.update(loss)
            on_cuda = (loss.device or "").startswith("cuda")
            self.synchronize = _synchronize if on_cuda else lambda: None
            with _random_state(self.real.backend, on_cuda), record(self.real.backend) as recording:
                loss = self.real.forward()
            tape = recording.tape(loss)
            self.loss_dtype = loss.dtype
            with _random_state(self.real.backend, on_cuda):
                replayed = self._as_loss(tape.replay())
            warnings = _differences(loss, replayed)
            del loss
            self.update(replayed)
        return tape, warnings

    def run(self, tape: Tape, number: int) -> None:
        """Take `number` samples of every part."""
        with use_backend(self.real.backend.name):
            for _ in range(number):
                self._time("wait", self.next_batch)
                loss = self._time("forward", self.real.forward)
                self._time("update", self._finish, loss)
                del loss
        with use_backend(self.meta.backend.name):
            for _ in range(number):
                self._time("frontend", self.meta.forward)
        with use_backend(self.real.backend.name):
            for _ in range(number):
                loss = self._as_loss(self._time("replay", tape.replay))
                self._time("replay_update", self._finish, loss)
                del loss

    def _time(self, part: str, function: Callable[..., Any], *args: Any) -> Any:
        start = self.clock()
        result = function(*args)
        self.ns[part].append(self.clock() - start)
        return result

    def _finish(self, loss: Tensor) -> None:
        self.update(loss)
        # Also forward may still be running on the device; it is waited for here, as in a training loop that reads the
        # loss.
        self.synchronize()

    def _as_loss(self, raw: Any) -> Tensor:
        return make_tensor(self.real.backend, raw, (), self.loss_dtype)


def kernel_times(tape: Tape, runs: int) -> list[KernelTime]:
    """The calls of a tape by kernel, the most expensive first. Of so many timed replays, the one whose total is the
    median.
    """
    tape.time_kernels()
    ns = sorted((tape.time_kernels() for _ in range(runs)), key=sum)[runs // 2]
    sums: dict[str, list[int]] = {}
    for call, call_ns in zip(tape.calls, ns):
        entry = sums.setdefault(call.kernel, [0, 0])
        entry[0] += 1
        entry[1] += call_ns
    rows = [KernelTime(kernel, calls, total) for kernel, (calls, total) in sums.items()]
    return sorted(rows, key=lambda row: -row.total_ns)


def _median_run(runs: list[list[ModuleTime]]) -> list[ModuleTime]:
    return sorted(runs, key=lambda rows: rows[0].total_ns)[len(runs) // 2]


def _differences(loss: Tensor, replayed: Tensor) -> list[str]:
    """In what a replay is not what the step was. Raises RfError when gradients could not be computed from it."""
    lines = []
    want, have = loss.item(), replayed.item()
    if not math.isclose(want, have, rel_tol=1e-5) and not (math.isnan(want) and math.isnan(have)):
        lines.append(f"the replay is not the step: its loss is {have}, that of the step {want}")
    if not math.isfinite(want):
        lines.append(f"the loss is {want}: the step does not train, and its update may cost another time")
    graph, other = _graph(loss.raw_tensor), _graph(replayed.raw_tensor)
    # Nodes that accumulate the gradients of parameters belong to the parameters.
    common = [name for node, name in graph.items() if node in other and "AccumulateGrad" not in name]
    if common:
        raise RfError(
            f"the step cannot be replayed: {common[0]} and {len(common) - 1} more nodes of its graph come from no "
            "recorded kernel. Something computes on raw tensors; use ops of rf."
        )
    if sorted(graph.values()) != sorted(other.values()):
        lines.append(f"the replay is not the step: its graph has {len(other)} nodes, that of the step {len(graph)}")
    return lines


def _graph(raw: Any) -> dict[Any, str]:
    """The nodes of the graph of gradients below an array, with their names."""
    found: dict[Any, str] = {}
    queue = [getattr(raw, "grad_fn", None)]
    while queue:
        node = queue.pop()
        if node is not None and node not in found:
            found[node] = node.name()
            queue += [following for following, _ in node.next_functions]
    return found


@contextlib.contextmanager
def _random_state(backend: Backend, on_cuda: bool) -> Iterator[None]:
    """Random numbers in the block are those of the last such block, and none are used up."""
    if backend.name != "torch":
        yield
        return
    import torch

    with torch.random.fork_rng(devices=range(torch.cuda.device_count()) if on_cuda else ()):
        torch.manual_seed(0)
        yield


def _synchronize() -> None:
    import torch

    torch.cuda.synchronize()
