"""How kernels of TensorFlow are called: through the fast path of its eager runtime, which its own Python functions take
as well, after they have converted and checked their arguments.

This is the only file that uses private parts of TensorFlow. Where a version lacks them, or a call is not one for the
fast path (operands of a graph, ...), `tf.raw_ops` is called instead.
"""

# pyright: reportMissingModuleSource=false

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

Raw = Any
Kernel = Callable[..., Any]
Backward = Callable[..., Sequence[Raw | None]]

try:
    from tensorflow.python import pywrap_tfe as _tfe  # pyright: ignore[reportMissingImports]
    from tensorflow.python.eager import context as _context  # pyright: ignore[reportMissingImports]
    from tensorflow.python.eager import core as _core  # pyright: ignore[reportMissingImports]
    from tensorflow.python.eager import tape as _tape  # pyright: ignore[reportMissingImports]
    from tensorflow.python.framework import op_def_registry as _registry  # pyright: ignore[reportMissingImports, reportAttributeAccessIssue]

    _execute: Any = _tfe.TFE_Py_FastPathExecute
    _definition: Any = _registry.get
    _record: Any = _tfe.TFE_Py_TapeSetRecordOperation
    _no_tape: Any = _tfe.TFE_Py_TapeSetIsEmpty
    _is_recorded: Any = _tfe.TFE_Py_TapeSetShouldRecordBackprop
    _is_stopped: Any = _tfe.TFE_Py_TapeSetIsStopped
    _stop: Any = _tfe.TFE_Py_TapeSetStopOnThread
    _restart: Any = _tfe.TFE_Py_TapeSetRestartOnThread
    _watch: Any = _tape.watch
    _failed: Any = _core._NotOkStatusException
    _no_fast_path: Any = _core._FallbackException
    _as_error: Any = _core._status_to_exception
    _ctx: Any = _context.context()
    FAST = True
except (ImportError, AttributeError):
    FAST = False

if TYPE_CHECKING:

    class OtherKernels:
        """What the class that kernels are mixed into has besides them."""

        def __getattr__(self, name: str) -> Any: ...

else:
    OtherKernels = object

_RENAMED = {"squeeze_dims": "axis"}
"""Attributes that `tf.raw_ops` calls otherwise."""


def fast(op: str, *attr_names: str, **attrs: Any) -> Kernel:
    """The kernel of the TensorFlow op `op`: called with its inputs in their order, then the values of `attr_names`.

    `attrs` are the same in every call; attributes that can be inferred from the inputs (dtypes), and defaults, need not
    be given. Results are recorded by the gradient tapes that are active.
    """
    slow = _raw_op(op, attr_names, attrs)
    if not FAST:
        return slow
    execute, failed, no_fast_path, ctx, num = _execute, _failed, _no_fast_path, _ctx, len(attr_names)
    fixed = tuple(part for item in (attrs | _defaults(op, (*attr_names, *attrs))).items() for part in item)
    first = attr_names[0] if attr_names else ""

    if num == 0:

        def kernel(*args: Any) -> Any:
            try:
                return execute(ctx, op, None, *args, *fixed)
            except no_fast_path:
                return slow(*args)
            except failed as exc:
                raise _as_error(exc) from None

    elif num == 1:

        def kernel(*args: Any) -> Any:
            try:
                return execute(ctx, op, None, *args[:-1], first, args[-1], *fixed)
            except no_fast_path:
                return slow(*args)
            except failed as exc:
                raise _as_error(exc) from None

    else:

        def kernel(*args: Any) -> Any:
            named = [part for item in zip(attr_names, args[-num:]) for part in item]
            try:
                return execute(ctx, op, None, *args[:-num], *named, *fixed)
            except no_fast_path:
                return slow(*args)
            except failed as exc:
                raise _as_error(exc) from None

    kernel.__name__ = op
    return kernel


def _defaults(op: str, given: Sequence[str]) -> dict[str, Any]:
    """The other attributes of an op, which the fast path does not fill in, though gradients read them."""
    definition = _definition(op)
    inferred = {name for x in definition.input_arg for name in (x.type_attr, x.number_attr, x.type_list_attr)}
    out = {}
    for attr in definition.attr:
        if attr.HasField("default_value") and attr.name not in inferred and attr.name not in given:
            kind = attr.default_value.WhichOneof("value")
            value = getattr(attr.default_value, kind)
            out[attr.name] = list(value.i) if kind == "list" else value
    return out


def _raw_op(op: str, attr_names: Sequence[str], attrs: dict[str, Any]) -> Kernel:
    function = getattr(tf.raw_ops, op)
    inputs = list(inspect.signature(function).parameters)
    fixed = {_RENAMED.get(name, name): value for name, value in attrs.items()}
    names = [_RENAMED.get(name, name) for name in attr_names]

    def kernel(*args: Any) -> Any:
        at = len(args) - len(names)
        return function(**dict(zip(inputs, args[:at])), **dict(zip(names, args[at:])), **fixed)

    kernel.__name__ = op
    return kernel


# -- constants


_INT32 = tf.int32.as_datatype_enum
_COMPLEX = frozenset({tf.complex64.as_datatype_enum, tf.complex128.as_datatype_enum})
_EagerTensor: Any = None
_ints: dict[Any, Raw] = {}
_scalars: dict[tuple[Any, int], Raw] = {}


def start() -> type:
    """Start the runtime, for which everything must have been configured by now; returns the type of its arrays."""
    global _EagerTensor
    _EagerTensor = type(tf.constant(0))
    return _EagerTensor


def array(x: np.ndarray, dtype: int, device: str | None = None) -> Raw:
    """A raw array that may share memory with `x`, whose NumPy dtype is that of `dtype` (its number in TensorFlow)."""
    return _EagerTensor(x, device_name(device), dtype)


def device_name(device: str | None) -> str:
    """How TensorFlow calls a device of rf ("cpu", "cuda", "cuda:1"); None is the CPU."""
    kind, _, number = (device or "cpu").partition(":")
    return f"/job:localhost/replica:0/task:0/device:{'GPU' if kind == 'cuda' else kind.upper()}:{number or 0}"


def on(device: str | None) -> contextlib.AbstractContextManager[Any]:
    """What is made in this block lies on the device; None leaves it to TensorFlow."""
    return contextlib.nullcontext() if device is None else tf.device(device_name(device))


def ints(values: int | tuple[int, ...] | tuple[tuple[int, int], ...]) -> Raw:
    """An int32 array on the host, for shapes, axes and positions. Kept, as a step needs the same ones again."""
    raw = _ints.get(values)
    if raw is None:
        if len(_ints) > 10_000:
            _ints.clear()
        raw = _ints[values] = array(np.array(values, dtype=np.int32), _INT32)
    return raw


def like(x: Raw, value: Any) -> Raw:
    """A scalar on the host, of the dtype of `x`. Kept."""
    number = x._datatype_enum() if type(x) is _EagerTensor else x.dtype.as_datatype_enum
    raw = _scalars.get((value, number))
    if raw is None:
        if len(_scalars) > 10_000:
            _scalars.clear()
        numpy_dtype = tf.as_dtype(number).as_numpy_dtype
        raw = _scalars[value, number] = array(np.array(np.asarray(value), dtype=numpy_dtype), number)
    return raw


# -- gradients


def with_gradient(inputs: Sequence[Raw], forward: Kernel, backward: Backward) -> Raw:
    """`forward(*inputs)`, one array, whose gradient g is followed back by `backward(*inputs, result, g)`: one gradient,
    or None, for each input."""
    if not FAST:

        @tf.custom_gradient
        def function(*xs: Raw) -> Any:
            y = forward(*xs)
            return y, lambda g: backward(*xs, y, g)

        return function(*inputs)
    if _no_tape():
        return forward(*inputs)
    _stop()
    try:
        y = forward(*inputs)
    finally:
        _restart()
    _record("rf", [y], list(inputs), lambda g: backward(*inputs, y, g), None)
    return y


Needed = Sequence[bool]
OwnBackward = Callable[[tuple[Any, ...], Needed, Raw, Raw], Sequence[Raw | None]]


def followed(inputs: Sequence[Raw]) -> list[bool] | None:
    """Which of the inputs an active tape follows; None where no gradient of our own is to be recorded: nothing is
    followed, or the inputs are not all eager tensors of real numbers."""
    if not FAST or _no_tape():
        return None
    needed = []
    for x in inputs:
        if type(x) is not _EagerTensor or x._datatype_enum() in _COMPLEX:
            return None
        needed.append(_is_recorded([x]))
    return needed if True in needed else None


def record(call: Callable[[], Any], inputs: Sequence[Raw], *backwards: Callable[..., Sequence[Raw | None]]) -> Any:
    """`call()`, of which TensorFlow records nothing by itself.

    :param inputs: what `followed` has been asked about.
    :param backwards: (gradients of the results) -> a gradient, or None, for each input. With several of them, each
        belongs to one of the results.
    """
    _stop()
    try:
        out = call()
    finally:
        _restart()
    outputs = list(out) if isinstance(out, (list, tuple)) else [out]
    if len(backwards) == 1:
        _record("rf", outputs, list(inputs), backwards[0], None)
    else:
        for y, backward in zip(outputs, backwards):
            _record("rf", [y], list(inputs), backward, None)
    return out


def differentiable(kernel: Kernel, num: int, backward: OwnBackward) -> Kernel:
    """`kernel` with a gradient of our own.

    TensorFlow's own gradients serve graphs too, so they ask for shapes by further ops, which cost more than the
    gradient itself. They remain for complex numbers and variables.

    :param kernel: gives one array.
    :param num: so many arguments, the first ones, are arrays that may have a gradient.
    :param backward: (arguments, needed, result, its gradient) -> a gradient, or None, for each of those; `needed` says
        of which ones it is wanted at all.
    """

    def recorded(*args: Any) -> Any:
        inputs = args[:num]
        needed = followed(inputs)
        if needed is None:
            return kernel(*args)
        y: Any = None
        y = record(lambda: kernel(*args), inputs, lambda g: backward(args, needed, y, g))
        return y

    return recorded


def is_recorded(x: Raw) -> bool:
    """Whether an active tape follows `x`; True where that cannot be found out."""
    return not FAST or bool(_is_recorded([x]))


def watch(tape: tf.GradientTape, *xs: Raw) -> None:
    """Have the tape follow the arrays, also where recording is stopped right now, in which TensorFlow would not
    listen."""
    stopped = FAST and _is_stopped()
    if stopped:
        _restart()
    try:
        for x in xs:
            if FAST and type(x) is _EagerTensor:
                _watch(tape._tape, x)
            else:
                tape.watch(x)
    finally:
        if stopped:
            _stop()


def is_recording() -> bool:
    """Whether the tapes of this thread, if there are any, record now."""
    return not FAST or not _is_stopped()


def set_recording(enabled: bool) -> None:
    """Have the tapes of this thread record from now on, or not."""
    if FAST and is_recording() != enabled:
        (_restart if enabled else _stop)()


@contextlib.contextmanager
def stop_recording() -> Any:
    """In this block, no tape of this thread records."""
    if not FAST or _is_stopped():
        yield
        return
    _stop()
    try:
        yield
    finally:
        _restart()
