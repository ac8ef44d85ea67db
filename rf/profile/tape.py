"""Recording of the kernel calls of a step, and their replay without rf.

Recording substitutes: the kernels of a backend (`backend.kernels`) and those of its methods that move data are
replaced by versions that note their arguments and results, and put back afterwards; a native path does the same on
its side. Nothing else knows of it, and a step that is not recorded pays nothing.

The calls are *linked*: an array is a numbered slot, so that a replay feeds the results of one kernel to the next as
the step did, and autograd records the same graph. Arrays that no recorded call made (parameters, cached masks and
scalars) are *leaves* and kept by reference. A leaf that is a parameter follows it, as an update may give it another
array (`Backend.assign`).
"""

from __future__ import annotations

import contextlib
import functools
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from rf import _core
from rf._core import Tensor
from rf._errors import BackendError, RfError
from rf.backend import Backend, Raw
from rf.profile.environment import native_path_note

__all__ = ["Call", "NativeTape", "PythonTape", "Recording", "Slot", "Tape", "record"]

METHODS = ("from_numpy", "to_device")
"""Methods of a backend that are recorded beside its kernels: what moves data in a step."""


class Slot(NamedTuple):
    """Stands for an array among the arguments of a recorded call."""

    number: int


@dataclass(frozen=True)
class Call:
    """One recorded kernel call.

    :param kernel: its name
    :param args: the arguments in order; a `Slot` for each array (or a tuple with slots), everything else as it was
    :param outputs: the slot of each result
    :param ns: how long the call took when it was recorded
    :param native: whether it ran on the native path
    :param grad: whether gradients were being recorded; None where that is not known
    """

    kernel: str
    args: tuple[Any, ...]
    outputs: tuple[int, ...]
    ns: int
    native: bool
    grad: bool | None

    @property
    def inputs(self) -> tuple[int, ...]:
        """The slots among the arguments, in order."""
        return tuple(_slots_in(self.args))


class Tape(Protocol):
    """The recorded kernel calls of one step."""

    @property
    def calls(self) -> Sequence[Call]:
        """The calls in the order of a replay."""
        ...

    def rebind(self) -> None:
        """Have the next replays use the arrays that the parameters hold now.

        Raises RfError for a parameter that has got another array where the tape cannot use another one.
        """
        ...

    def replay(self) -> Raw:
        """Run all calls again, as cheaply as possible; returns the new loss, connected to the leaves by a new graph.

        For its gradient, call it inside of `Backend.recording`.
        """
        ...

    def time_kernels(self) -> list[int]:
        """Run all calls again and time each: ns, in the order of `calls`. What reading the clock costs is in every
        value.
        """
        ...


class _Raw(NamedTuple):
    """A call as it was noted."""

    kernel: str
    function: Callable[..., Any]
    args: tuple[Any, ...]
    result: Any
    grad: bool
    ns: int

    @property
    def results(self) -> tuple[Raw, ...]:
        return tuple(self.result) if isinstance(self.result, (tuple, list)) else (self.result,)


_Parameters = Sequence[tuple[Tensor, Raw]]
"""Parameters, and the arrays that they held when they were recorded."""


class Recording:
    """What `record` gives: collects calls while it is active, then makes the tape."""

    def __init__(self, backend: Backend, parameters: Iterable[Tensor] = ()) -> None:
        self.backend = backend
        # With their arrays of now, which are what calls get: the step itself may give them others.
        self._parameters = [(p, p.raw_tensor) for p in parameters]
        self.native: Any = None
        """The tape of the native path, if there is one and the recording is over."""
        self._raw: list[_Raw] = []
        self._thread = threading.get_ident()
        self._inside = False

    def __len__(self) -> int:
        """How many calls of Python functions have been noted."""
        return len(self._raw)

    def version_of(self, kernel: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The recording version of a kernel."""

        def recorded(*args: Any, **options: Any) -> Any:
            # A kernel that calls kernels is one call. Other threads (data loading) are not part of the step.
            if self._inside or threading.get_ident() != self._thread:
                return function(*args, **options)
            call = functools.partial(function, **options) if options else function
            self._inside = True
            grad = self.backend.is_grad_enabled()
            start = time.perf_counter_ns()
            try:
                result = call(*args)
            finally:
                ns = time.perf_counter_ns() - start
                self._inside = False
            self._raw.append(_Raw(kernel, call, args, result, grad, ns))
            return result

        return recorded

    def tape(self, loss: Tensor) -> Tape:
        """The tape of what was recorded, whose replay returns the raw array that stands for `loss`. Can be called once.

        Raises RfError when `loss` is no result of a recorded call.
        """
        raws, self._raw = self._raw, []
        if self.native is not None and any(_address(loss.raw_tensor) in out for *_, out, _, _ in self.native.entries()):
            return NativeTape(self.backend, self.native, raws, loss, self._parameters)
        return PythonTape(_Program(self.backend, raws, loss.raw_tensor, self._parameters))


_recording: set[int] = set()


@contextlib.contextmanager
def record(backend: Backend, parameters: Iterable[Tensor] = ()) -> Iterator[Recording]:
    """Record the kernel calls that `backend` gets from this thread in the `with` block.

    :param parameters: those that may get other arrays between replays; all of `backend`.

    The block sees results as ever. At its end, also by an exception, everything is as it was before.

    Raises RfError when `backend` is already being recorded, BackendError for one that computes nothing.
    """
    if not backend.computes:
        raise BackendError(f"backend {backend.name} calls no kernels, so there is nothing to record")
    if id(backend) in _recording:
        raise RfError(f"the kernels of backend {backend.name} are already being recorded; recordings cannot be nested")
    recording = Recording(backend, parameters)
    own_attributes = dict(vars(backend))
    kernels = dict(backend.kernels)
    bind = backend.bind_kernel

    def bind_recorded(name: str) -> Callable[..., Any]:
        kernels[name] = bind(name)
        return recording.version_of(name, kernels[name])

    substitutes = {"bind_kernel": bind_recorded}  # kernels that are used for the first time get bound meanwhile
    substitutes |= {name: recording.version_of(name, getattr(backend, name)) for name in METHODS}
    native, _ = native_path_note(backend)
    _recording.add(id(backend))
    try:
        for name, function in substitutes.items():
            setattr(backend, name, function)
        for name, function in kernels.items():
            backend.kernels[name] = recording.version_of(name, function)
        if native:
            _core.start_recording(backend)
        try:
            yield recording
        finally:
            if native:
                recording.native = _core.stop_recording(backend)
    finally:
        for name in substitutes:
            if name in own_attributes:
                setattr(backend, name, own_attributes[name])
            else:
                delattr(backend, name)
        backend.kernels.update(kernels)
        _recording.discard(id(backend))


class PythonTape:
    """A tape of calls that all went through Python functions."""

    def __init__(self, program: _Program) -> None:
        self._program = program
        self.calls = tuple(program.calls)

    def rebind(self) -> None:
        """See `Tape`."""
        self._program.rebind()

    def replay(self) -> Raw:
        """See `Tape`."""
        return self._program.run()

    def time_kernels(self) -> list[int]:
        """See `Tape`."""
        return self._program.run_timed()

    def source(self, timed: bool = False) -> str:
        """The text of the function that a replay runs, for people."""
        return self._program.generate(timed)[0]


class NativeTape:
    """The tape of a native path, which replays without Python, and what Python called beside it.

    These others are the transfers of data and the kernels without operands that carry gradients (filling, ranges).
    They are run again, for what they cost, while their results are constants to the native tape.
    """

    def __init__(
        self, backend: Backend, native: Any, raws: Sequence[_Raw], loss: Tensor, parameters: _Parameters
    ) -> None:
        self._native = native
        self._loss = [loss]
        self._parameters = parameters
        entries = native.entries()
        # Kernels that the native path lacks are called by it, but through the table of Python kernels.
        called_by_it = {(kernel, out) for kernel, _, _, out, is_native, _ in entries if not is_native}
        beside = [r for r in raws if (r.kernel, tuple(_address(x) for x in r.results)) not in called_by_it]
        self._beside = _Program(backend, beside, None, parameters)
        calls = list(self._beside.calls)
        slots: dict[int, int] = {}
        num_slots = 1 + max((s for call in calls for s in (*call.inputs, *call.outputs)), default=-1)

        def slot(address: int, new: bool) -> int:
            nonlocal num_slots
            if new or address not in slots:
                slots[address] = num_slots
                num_slots += 1
            return slots[address]

        for kernel, static, operands, results, is_native, ns in entries:
            inputs = [None if not address else Slot(slot(address, False)) for address in operands]
            outputs = tuple(slot(address, True) for address in results)
            calls.append(Call(kernel, (*inputs, *static), outputs, ns, is_native, None))
        self.calls = tuple(calls)

    def rebind(self) -> None:
        """See `Tape`. An update on a native path writes into the array of a parameter."""
        for parameter, raw in self._parameters:
            if parameter.raw_tensor is not raw:
                raise RfError(f"{parameter!r} has another array than when it was recorded; record the step again")

    def replay(self) -> Raw:
        """See `Tape`."""
        self._beside.run()
        raws, _ = self._native.replay(self._loss)
        return raws[0]

    def time_kernels(self) -> list[int]:
        """See `Tape`."""
        ns = self._beside.run_timed()
        _, native_ns = self._native.replay(self._loss, True)
        return [*ns, *native_ns]


class _Program:
    """Calls as a generated Python function: one line per call, arrays in local variables.

    So running it adds nothing but the calls themselves, and an array dies after its last use, as in the step.
    """

    def __init__(self, backend: Backend, raws: Sequence[_Raw], loss: Raw | None, parameters: _Parameters) -> None:
        """`loss`: what `run` returns the new version of."""
        self._backend = backend
        self.calls: list[Call] = []
        self._functions = [raw.function for raw in raws]
        self._single = [not isinstance(raw.result, (tuple, list)) for raw in raws]
        self._leaves: dict[int, Raw] = {}
        self._parameters: dict[int, Tensor] = {}
        self._loss_slot = self._link(raws, loss, {id(raw): parameter for parameter, raw in parameters})
        self._ns: list[int] = []
        self._scopes: list[dict[str, Any]] = []
        self._run = self._compile(timed=False)
        self._run_timed: Callable[[], Any] | None = None

    def rebind(self) -> None:
        """Use the arrays that the parameters hold now."""
        for slot, parameter in self._parameters.items():
            self._leaves[slot] = parameter.raw_tensor
        for scope in self._scopes:
            scope.update((f"leaf{slot}", self._leaves[slot]) for slot in self._parameters)

    def run(self) -> Raw:
        """Make all calls again."""
        before = self._backend.is_grad_enabled()
        try:
            return self._run()
        finally:
            self._backend.set_grad_enabled(before)

    def run_timed(self) -> list[int]:
        """Make all calls again; ns of each."""
        if self._run_timed is None:
            self._run_timed = self._compile(timed=True)
        self._ns.clear()
        before = self._backend.is_grad_enabled()
        try:
            self._run_timed()
        finally:
            self._backend.set_grad_enabled(before)
        return list(self._ns)

    def _link(self, raws: Sequence[_Raw], loss: Raw | None, parameters: dict[int, Tensor]) -> int:
        """Number the arrays; returns the slot of the loss, -1 if there is none."""
        raw_types = self._backend.raw_types
        slots: dict[int, int] = {}
        num_slots = 0

        def encode(arg: Any) -> Any:
            nonlocal num_slots
            if isinstance(arg, raw_types):
                slot = slots.get(id(arg))
                if slot is None:
                    slot = slots[id(arg)] = num_slots
                    self._leaves[slot] = arg
                    if id(arg) in parameters:
                        self._parameters[slot] = parameters[id(arg)]
                    num_slots += 1
                return Slot(slot)
            if isinstance(arg, (tuple, list)) and any(isinstance(a, raw_types) for a in arg):
                return tuple(encode(a) for a in arg)
            return arg

        for raw in raws:
            # Host arrays that are turned into the backend's are data of the call, also where they are arrays of this
            # backend (NumPy).
            args = raw.args if raw.kernel == "from_numpy" else tuple(encode(a) for a in raw.args)
            outputs = []
            for array in raw.results:
                # Always a new slot, also for an array that has one: kernels may hand an argument through, or change
                # it in place.
                slots[id(array)] = num_slots
                outputs.append(num_slots)
                num_slots += 1
            self.calls.append(Call(raw.kernel, args, tuple(outputs), raw.ns, False, raw.grad))
        if loss is None:
            return -1
        slot = slots.get(id(loss))
        if slot is None or slot in self._leaves:
            raise RfError(
                f"the loss is none of the results of the {len(raws)} recorded kernel calls; record the whole step"
            )
        return slot

    def _compile(self, timed: bool) -> Callable[[], Any]:
        text, scope = self.generate(timed)
        exec(compile(text, "<replay of a tape>", "exec"), scope)
        self._scopes.append(scope)
        return scope["replay"]

    def generate(self, timed: bool) -> tuple[str, dict[str, Any]]:
        """The text of the function, and the names that it uses."""
        scope: dict[str, Any] = {f"leaf{slot}": array for slot, array in self._leaves.items()}
        scope["set_grad_enabled"] = self._backend.set_grad_enabled
        scope["clock"] = time.perf_counter_ns
        scope["note"] = self._ns.append
        names: dict[int, str] = {}
        last_use = {slot: i for i, call in enumerate(self.calls) for slot in (*call.outputs, *call.inputs)}
        last_use[self._loss_slot] = len(self.calls)

        def constant(prefix: str, value: Any) -> str:
            name = names.get(id(value))
            if name is None:
                name = names[id(value)] = f"{prefix}{len(names)}"
                scope[name] = value
            return name

        def expression(arg: Any) -> str:
            if isinstance(arg, Slot):
                return f"leaf{arg.number}" if arg.number in self._leaves else f"x{arg.number}"
            if isinstance(arg, tuple) and any(isinstance(a, Slot) for a in arg):
                return "(" + "".join(expression(a) + ", " for a in arg) + ")"
            if arg is None or isinstance(arg, (bool, int)):
                return repr(arg)
            return constant("static", arg)

        lines = ["def replay():"]
        grad: bool | None = None
        for i, call in enumerate(self.calls):
            if call.grad != grad:
                grad = call.grad
                lines.append(f"set_grad_enabled({grad})")
            results = ", ".join(f"x{slot}" for slot in call.outputs) + ("" if self._single[i] else ",")
            function = constant(re.sub(r"\W", "_", call.kernel) + "_", self._functions[i])
            statement = f"{results} = {function}({', '.join(expression(a) for a in call.args)})"
            lines += ["start = clock()", statement, "note(clock() - start)"] if timed else [statement]
            dead = {s for s in (*call.inputs, *call.outputs) if last_use[s] == i and s not in self._leaves}
            if dead:
                lines.append("del " + ", ".join(f"x{slot}" for slot in sorted(dead)))
        lines.append("return" if self._loss_slot < 0 else f"return x{self._loss_slot}")
        return "\n    ".join(lines) + "\n", scope


def _slots_in(args: Sequence[Any]) -> Iterator[int]:
    for arg in args:
        if isinstance(arg, Slot):
            yield arg.number
        elif isinstance(arg, tuple):
            yield from _slots_in(arg)


def _address(raw: Raw) -> int:
    """What the native path calls an array: the address of torch's TensorImpl."""
    return raw._cdata
