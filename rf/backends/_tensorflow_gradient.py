"""Gradients on TensorFlow, where a tape must record the forward computation.

Parameters are plain eager tensors, not `tf.Variable`: as operands these cost half the time, since a variable is read by
an op of its own at each use. So assigning to a parameter makes a new array; tapes watch the arrays of all trainable
parameters.
"""

# pyright: reportMissingModuleSource=false

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from rf._errors import BackendError
from rf.backend import Raw
from rf.backends._tensorflow_fast import (
    fast,
    ints,
    is_recorded,
    is_recording,
    like,
    set_recording,
    stop_recording,
    watch,
    with_gradient,
)

_identity = fast("Identity")
_mul, _add, _sub, _abs = fast("Mul"), fast("AddV2"), fast("Sub"), fast("Abs")
_sum_keeping = fast("Sum", keep_dims=True)


class _State(threading.local):
    tape: tf.GradientTape | None = None


class GradientKernels:
    """Mixed into `rf.backends.tensorflow.TensorFlowBackend`."""

    def __init__(self) -> None:
        super().__init__()
        self._state = _State()
        self._trainable: weakref.WeakValueDictionary[int, Raw] = weakref.WeakValueDictionary()

    # -- recording

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        self._end()
        tape = self._begin()
        try:
            yield
        finally:
            if self._state.tape is tape:
                self._end()

    def _begin(self) -> tf.GradientTape:
        # Persistent, as rf.gradient may be called several times. It goes with the step.
        tape = self._state.tape = tf.GradientTape(persistent=True)
        tape.__enter__()
        watch(tape, *self._trainable.values())
        return tape

    def _end(self) -> None:
        tape, self._state.tape = self._state.tape, None
        if tape is not None:
            tape.__exit__(None, None, None)

    def no_grad(self) -> contextlib.AbstractContextManager[Any]:
        return stop_recording()

    is_grad_enabled = staticmethod(is_recording)
    set_grad_enabled = staticmethod(set_recording)

    def set_requires_gradient(self, x: Raw) -> Raw:
        # Outside of a train step, it is recorded from now on until the next one, or rf.reset_run_ctx.
        tape = self._state.tape or self._begin()
        watch(tape, x)
        return x

    def gradient(self, y: Raw, xs: Sequence[Raw]) -> list[Raw | None]:
        tape = self._state.tape
        if tape is None or not is_recorded(y):
            raise BackendError(
                "gradient: y was not recorded, or does not depend on anything that requires gradients. "
                "Backend tensorflow records from rf.init_train_step_run_ctx on (or rf.set_requires_gradient): "
                "call that before y is computed."
            )
        with tape.stop_recording():
            return [_dense(g) for g in tape.gradient(y, list(xs))]

    stop_gradient = staticmethod(fast("StopGradient"))

    def scaled_gradient(self, x: Raw, scale: Raw, shift: Raw | None, axis: int | None) -> Raw:
        def backward(_x: Raw, _y: Raw, g: Raw) -> Sequence[Raw]:
            out = _mul(g, scale)
            if shift is not None:
                more = shift if axis is None else _mul(shift, _sum_keeping(_abs(g), ints((axis,))))
                out = _add(out, more)
            return (out,)

        return with_gradient((x,), _identity, backward)

    # -- parameters

    def create_parameter(self, value: Raw, trainable: bool) -> Raw:
        with stop_recording():
            value = _identity(value)  # tapes know arrays by their identity
        return self.set_trainable(value, trainable)

    def set_trainable(self, parameter: Raw, trainable: bool) -> Raw:
        if not trainable:
            self._trainable.pop(id(parameter), None)
        else:
            self._trainable[id(parameter)] = parameter
            if self._state.tape is not None:
                watch(self._state.tape, parameter)
        return parameter

    def move_toward(self, parameter: Raw, value: Raw, weight: float) -> Raw:
        with stop_recording():
            value = _add(parameter, _mul(_sub(value, parameter), like(value, weight)))
        if isinstance(parameter, tf.Variable):
            parameter.assign(value)
            return parameter
        return self.set_trainable(value, self._trainable.pop(id(parameter), None) is not None)

    def assign(self, parameter: Raw, value: Raw) -> Raw:
        if isinstance(parameter, tf.Variable):
            parameter.assign(value)
            return parameter
        return self.create_parameter(value, self._trainable.pop(id(parameter), None) is not None)

    def assign_all(self, parameters: Sequence[Raw], values: Sequence[Raw]) -> list[Raw]:
        out = [
            self.assign(parameter, value) if isinstance(parameter, tf.Variable) else value
            for parameter, value in zip(parameters, values)
        ]
        trainable = [x for p, x in zip(parameters, out) if self._trainable.pop(id(p), None) is not None]
        self._trainable.update((id(x), x) for x in trainable)
        if self._state.tape is not None:
            watch(self._state.tape, *trainable)
        return out


def _dense(g: Any) -> Raw | None:
    """A gradient as one array: those of variables that were only looked up come as slices."""
    return tf.convert_to_tensor(g) if isinstance(g, tf.IndexedSlices) else g
