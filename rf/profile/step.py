"""Where the time of a training step goes: from the step, the step without kernels, and the kernels without the step."""

from __future__ import annotations

import contextlib
import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy

from rf import _random
from rf._core import Tensor, make_tensor
from rf._errors import BackendError, RfError
from rf.backend import Backend, use_backend
from rf.profile.modules import ModuleTime, ModuleTree, record_modules
from rf.profile.tape import Tape, record
from rf.run_ctx import reset_run_ctx

__all__ = ["KernelTime", "Profile", "Step", "kernel_times", "profile_step"]

WARM_UP = 3
"""Steps before anything is measured: plans get made, caches filled, memory pools grown."""
TABLE_RUNS = 5
"""Runs that the tables per kernel and per module are chosen from."""
GRADIENT_TOLERANCE = 1e-3
"""How much the gradient of a replay may differ from that of the step, relative to its norm: devices may sum in any
order.
"""


@dataclass(frozen=True)
class Step:
    """A training step, on one backend, of one batch that stays the same.

    :param forward: from the batch as host arrays to the loss (no dims): everything that the frontend takes part in.
        Begins the train step (`rf.init_train_step_run_ctx`) that a backend may need for gradients, and need not end it.
    :param update: differentiates a loss and updates the parameters; None on a backend that computes nothing
    :param model: the modules of the step, and its parameters
    """

    backend: Backend
    forward: Callable[[], Tensor]
    update: Callable[[Tensor], object] | None
    model: ModuleTree

    def forward_only(self) -> None:
        """The forward part, after which nobody asks for gradients."""
        self.forward()
        reset_run_ctx()


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
    frontend_ns: forward on a backend that computes nothing, `frontend_backend`: median.
    replay_ns: the kernel calls of forward, replayed without rf, and what the backend does to record them for gradients;
    replay_update_ns: `update` on the loss of the replay; medians.
    kernels: forward kernel calls by kernel, the most expensive first, of the replay whose total was the median.
    modules, frontend_modules: forward by module, on the backend and on `frontend_backend`, of the run whose total was
    the median.
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
    frontend_backend: str = "meta"

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

    Frontend: the same step on a meta backend, where nothing else costs time. Backend: its kernel calls, replayed
    without rf, with the same backward pass and update, and recorded for gradients in the same way. Data: waiting for
    the next batch. Nothing is subtracted from any measurement, so that errors show in the rest, which is what the wall
    time has more than these.

    The garbage collector runs as it does in training.

    :param real: the step; its parameters are trained on meanwhile.
    :param meta: the same step on a backend that computes nothing: `meta:NAME` of the backend of `real`, or `meta`.
    :param steps: how many of each are measured.
    :param next_batch: gets the next batch of the data; called before each step. What it returns is not used, since a
        step of other sizes would be another step.
    :param alternate: measure step, frontend and replay in turns, so that all see the same machine. Not with data that
        is loaded in the background: it would get the time of three steps for each one.
    :param clock: ns since some fixed moment.

    Leaves the run context reset (`rf.reset_run_ctx`).

    Raises BackendError when `real` is on a backend that has no gradients, or `meta` on one that computes or stands for
    another; RfError when the step computes on raw arrays, so that its kernel calls alone are not the step.
    """
    if real.update is None or not real.backend.computes or not real.backend.has_gradients:
        raise BackendError(f"a training step needs gradients, which backend {real.backend.name} does not compute")
    if meta.backend.computes:
        raise BackendError(f"the frontend is measured on a backend that computes nothing, not on {meta.backend.name}")
    if meta.backend.stands_for not in (None, real.backend.name):
        raise BackendError(f"{meta.backend.name} does not stand for {real.backend.name}, where the step is")
    measure = _Measurement(real, meta, next_batch, clock)
    try:
        tape, warnings = measure.prepare()
        block = 1 if alternate else steps
        for _ in range(steps // block):
            measure.run(tape, block)
        tape.rebind()
        kernels = kernel_times(tape, TABLE_RUNS, real.backend.recording)
        with use_backend(real.backend.name):
            modules = _median_run(
                [record_modules(real.model, real.forward_only, clock=clock) for _ in range(TABLE_RUNS)]
            )
        with use_backend(meta.backend.name):
            frontend = _median_run(
                [record_modules(meta.model, meta.forward_only, clock=clock) for _ in range(TABLE_RUNS)]
            )
    finally:
        reset_run_ctx()
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
        frontend_backend=meta.backend.name,
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
                self.meta.forward_only()
        backend = self.real.backend
        parameters = dict(self.real.model.named_parameters())
        with use_backend(backend.name):
            for _ in range(WARM_UP):
                self._finish(self.real.forward())
            with _random_state(backend), record(backend, parameters.values()) as recording:
                loss = self.real.forward()
            tape = recording.tape(loss)
            self.loss_dtype = loss.dtype
            trainable = {name: p.raw_tensor for name, p in parameters.items() if p.trainable}
            want = backend.gradient(loss.raw_tensor, list(trainable.values()))
            reset_run_ctx()
            with contextlib.ExitStack() as stack:
                with _random_state(backend):
                    replayed = self._as_loss(self._replay(tape, stack))
                warnings = _differences(loss, replayed)
                del loss
                warnings += _gradient_differences(backend, replayed, trainable, want)
                self._finish(replayed, stack)
        if _random.is_portable():
            warnings.append(
                "random numbers are drawn on the host (portable mode): neither the frontend nor the replay does that, "
                "so its time is in the unexplained rest"
            )
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
                self._time("frontend", self.meta.forward_only)
        with use_backend(self.real.backend.name):
            for _ in range(number):
                tape.rebind()
                with contextlib.ExitStack() as stack:
                    loss = self._as_loss(self._time("replay", self._replay, tape, stack))
                    self._time("replay_update", self._finish, loss, stack)
                    del loss

    def _time(self, part: str, function: Callable[..., Any], *args: Any) -> Any:
        start = self.clock()
        result = function(*args)
        self.ns[part].append(self.clock() - start)
        return result

    def _replay(self, tape: Tape, stack: contextlib.ExitStack) -> Any:
        """The kernels of forward, recorded for gradients until the stack is closed, as a train step does it."""
        stack.enter_context(self.real.backend.recording())
        return tape.replay()

    def _finish(self, loss: Tensor, stack: contextlib.ExitStack | None = None) -> None:
        self.update(loss)
        reset_run_ctx()
        if stack is not None:
            stack.close()
        # Also forward may still be running on the device; it is waited for here, as in a training loop that reads the
        # loss.
        self.real.backend.synchronize()

    def _as_loss(self, raw: Any) -> Tensor:
        return make_tensor(self.real.backend, raw, (), self.loss_dtype)


def kernel_times(
    tape: Tape, runs: int, recording: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext
) -> list[KernelTime]:
    """The calls of a tape by kernel, the most expensive first. Of so many timed replays, the one whose total is the
    median.

    :param recording: context of each replay.
    """

    def run() -> list[int]:
        with recording():
            return tape.time_kernels()

    run()
    ns = sorted((run() for _ in range(runs)), key=sum)[runs // 2]
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
    """In what a replay is not what the step was. Raises RfError when gradients could not be computed from it.

    The graph is looked at where arrays lead to it.
    """
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
            f"recorded kernel. {_BESIDE}"
        )
    if sorted(graph.values()) != sorted(other.values()):
        lines.append(f"the replay is not the step: its graph has {len(other)} nodes, that of the step {len(graph)}")
    return lines


_BESIDE = "Something computes on raw tensors; use ops of rf."


def _gradient_differences(
    backend: Backend, replayed: Tensor, parameters: dict[str, Any], want: Sequence[Any | None]
) -> list[str]:
    """In what the gradients of a replay are not those that were wanted, by parameter. Raises RfError when some do not
    exist.
    """
    try:
        have = backend.gradient(replayed.raw_tensor, list(parameters.values()))
    except BackendError as exc:
        raise RfError(f"the step cannot be replayed: its loss has no gradient then. {_BESIDE}") from exc
    missing = [name for name, w, h in zip(parameters, want, have) if w is not None and h is None]
    if missing:
        raise RfError(
            f"the step cannot be replayed: the gradient of {missing[0]} and {len(missing) - 1} more parameters comes "
            f"from no recorded kernel. {_BESIDE}"
        )
    square = difference = 0.0
    for w, h in zip(want, have):
        if w is not None:
            a, b = (backend.to_numpy(g).astype(numpy.float64) for g in (w, h))
            square += float(numpy.sum(a * a))
            difference += float(numpy.sum((a - b) ** 2))
    if difference > (GRADIENT_TOLERANCE**2) * square:
        return [f"the replay is not the step: its gradient differs by {math.sqrt(difference / square):.1%} of the norm"]
    return []


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
def _random_state(backend: Backend) -> Iterator[None]:
    """Random numbers of the backend in the block are those of the last such block, and none are used up."""
    state = backend.get_random_state()
    backend.set_random_seed(0)
    try:
        yield
    finally:
        backend.set_random_state(state)
