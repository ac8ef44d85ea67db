"""The contract between rf and an array library: raw arrays, ints and tuples of ints in, raw arrays out.

A backend never sees a Tensor or a Dim. Everything about dims, masks, broadcasting and dtypes has been decided before a
method here is called: operands already broadcast by position against each other and have equal dtypes unless said
otherwise. A method that the ops call through a plan is a *kernel*: tensor operands first, then static arguments, all
positional.

Primitives have no default: a backend without one of them works, but raises KernelMissingError where an op needs it.
Derived kernels have a default written in primitives, which a backend overrides where it has a fused one. Only what
moves data between the host and the backend is abstract. Axes are non-negative ints; `axes` is a tuple of them in
ascending order.
"""

from __future__ import annotations

import abc
import contextlib
import inspect
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy

from rf._backend_fused import FusedKernels
from rf._backend_nn import NeuralNetKernels
from rf._backend_primitive import Primitive, primitive
from rf._errors import BackendError

Raw = Any
Shape = tuple[int, ...]

_indices = itertools.count()


class KernelTable(dict[str, Callable[..., Any]]):
    """Kernels of a backend by name, bound at first use. The profiler puts recording versions in here and takes them out
    again."""

    def __init__(self, backend: Backend):
        super().__init__()
        self._backend = backend

    def __missing__(self, name: str) -> Callable[..., Any]:
        fn = self[name] = self._backend.bind_kernel(name)
        return fn


class Backend(NeuralNetKernels, FusedKernels, abc.ABC):
    """Base class of all backends. One object per backend and process, made by `get_backend`."""

    name: str
    computes = True
    """False for a backend that answers with dims only; kernels are then not called."""
    no_value: Raw = None
    """What stands for a raw array where nothing is computed."""
    stands_for: str | None = None
    """Of a backend that computes nothing: whose place it takes; None: that of any."""
    has_gradients = False
    host_only = False
    """Whether arrays always lie in host memory."""
    raw_types: tuple[type, ...] = ()
    """Types of raw arrays (subclasses count)."""

    def __init__(self) -> None:
        self.kernels = KernelTable(self)
        self.scalars: dict[Any, Raw] = {}
        self.masks: dict[Any, Raw] = {}
        """Masks that follow from sizes alone."""
        self.index = next(_indices)
        """A small number, for keys of caches."""

    def bind_kernel(self, name: str) -> Callable[..., Any]:
        """The function for kernel `name`."""
        return getattr(self, name)

    def missing_kernels(self) -> tuple[str, ...]:
        """Names of the primitives that this backend lacks; none where nothing is computed."""
        lacks = (isinstance(inspect.getattr_static(self, name), Primitive) for name in PRIMITIVES)
        return tuple(itertools.compress(PRIMITIVES, lacks)) if self.computes else ()

    def __repr__(self) -> str:
        return f"<rf backend {self.name}>"

    # -- inspection and transfer

    @abc.abstractmethod
    def shape_of(self, x: Raw) -> Shape: ...

    @abc.abstractmethod
    def dtype_of(self, x: Raw) -> str: ...

    def device_of(self, x: Raw) -> str | None:
        """Where the array lies, as a string ("cpu", "cuda:0"); None when the backend knows no devices."""
        return None

    @abc.abstractmethod
    def from_numpy(self, x: numpy.ndarray, dtype: str, device: str | None = None) -> Raw:
        """A raw array with the values of `x`. May share memory."""

    def constant(self, x: numpy.ndarray, dtype: str, device: str | None = None) -> Raw:
        """Like `from_numpy`, for arrays that are kept: not affected by a mode of the framework (tracing, ...) that is
        on right now."""
        return self.from_numpy(x, dtype, device)

    @abc.abstractmethod
    def to_numpy(self, x: Raw) -> numpy.ndarray:
        """The values on the host, without gradient. May share memory."""

    def to_device(self, x: Raw, device: str) -> Raw:
        """A copy on `device`, or `x` itself when it is there."""
        return x

    def scalar(self, value: Any, dtype: str) -> Raw:
        """A 0-dim array on the host, usable beside arrays on any device."""
        return self.full((), value, dtype, None)

    def item(self, x: Raw) -> Any:
        """The Python number of a 0-dim array (waits for the device)."""
        return self.to_numpy(x).item()

    def synchronize(self) -> None:
        """Wait until the devices have computed all that they were asked for."""

    # -- threads of the kernels, for measurements

    def num_threads(self) -> int | None:
        """How many threads a kernel may use; None where that cannot be found out."""
        return None

    def set_num_threads(self, number: int) -> bool:
        """Have kernels use that many threads; False, without effect, where that cannot be changed any more."""
        return False

    # -- creation

    @primitive
    def full(self, shape: Shape, value: Any, dtype: str, device: str | None) -> Raw: ...

    @primitive
    def arange(self, n: int, dtype: str, device: str | None) -> Raw:
        """0 .. n-1."""

    def copy(self, x: Raw) -> Raw:
        """A real copy of the data."""
        return self.add(x, self.scalar(0, self.dtype_of(x)))

    # -- structure

    @primitive
    def cast(self, x: Raw, dtype: str) -> Raw: ...

    @primitive
    def permute(self, x: Raw, perm: Shape) -> Raw: ...

    @primitive
    def reshape(self, x: Raw, shape: Shape) -> Raw: ...

    @primitive
    def unsqueeze(self, x: Raw, axes: Shape) -> Raw:
        """Insert axes of length 1 so that they end up at positions `axes` of the result."""

    @primitive
    def squeeze(self, x: Raw, axes: Shape) -> Raw:
        """Remove the length-1 axes `axes`."""

    @primitive
    def expand(self, x: Raw, shape: Shape) -> Raw:
        """Broadcast axes of length 1 to `shape` (same number of axes)."""

    @primitive
    def concat(self, *raws_then_axis: Any) -> Raw:
        """`concat(x, y, ..., axis)`."""

    @primitive
    def slice(self, x: Raw, axis: int, start: int, stop: int, step: int) -> Raw:
        """`x[start:stop:step]` along `axis`; 0 <= start <= stop, step >= 1."""

    @primitive
    def flip(self, x: Raw, axis: int) -> Raw: ...

    @primitive
    def pad(self, x: Raw, paddings: tuple[tuple[int, int], ...], mode: str, value: Any) -> Raw:
        """Pad each axis by (left, right); mode "constant", "reflect", "replicate" or "circular"."""

    def flatten(self, x: Raw, start: int, num: int) -> Raw:
        """Merge the `num` >= 1 axes from `start` on into one."""
        shape = self.shape_of(x)
        return self.reshape(x, (*shape[:start], math.prod(shape[start : start + num]), *shape[start + num :]))

    def unflatten(self, x: Raw, axis: int, sizes: Shape) -> Raw:
        """Split `axis` into axes of `sizes`; one of these may be -1: as many as there are."""
        shape = self.shape_of(x)
        rest = math.prod(n for n in sizes if n >= 0)
        sizes = tuple(n if n >= 0 else shape[axis] // rest if rest else 0 for n in sizes)
        return self.reshape(x, (*shape[:axis], *sizes, *shape[axis + 1 :]))

    def expand_axis(self, x: Raw, axis: int, size: int) -> Raw:
        """Insert an axis of length `size` at `axis`, along which x repeats; a view where possible."""
        shape = self.shape_of(x)
        return self.expand(self.unsqueeze(x, (axis,)), (*shape[:axis], size, *shape[axis:]))

    def select(self, x: Raw, axis: int, index: int) -> Raw:
        """Entry `index` >= 0 along `axis`, which is removed."""
        return self.squeeze(self.slice(x, axis, index, index + 1, 1), (axis,))

    def stack(self, *raws_then_axis: Any) -> Raw:
        """`stack(x, y, ..., axis)`: along a new axis."""
        *raws, axis = raws_then_axis
        return self.concat(*(self.unsqueeze(x, (axis,)) for x in raws), axis)

    def unstack(self, x: Raw, axis: int, size: int) -> tuple[Raw, ...]:
        """All `size` entries along `axis`, which is removed."""
        return tuple(self.select(x, axis, i) for i in range(size))

    def append(self, x: Raw, frame: Raw, axis: int) -> Raw:
        """x, and after it `frame`, which lacks the axis, along `axis`."""
        return self.concat(x, self.unsqueeze(frame, (axis,)), axis)

    def unfold(self, x: Raw, axis: int, size: int, step: int) -> Raw:
        """All windows of `size` frames, every `step` frames: the axis counts windows, a new last axis the frames in
        them."""
        num = (self.shape_of(x)[axis] - size) // step + 1
        frames = (self.slice(x, axis, i, i + (num - 1) * step + 1, step) for i in range(size))
        return self.stack(*frames, len(self.shape_of(x)))

    @primitive
    def make_complex(self, real: Raw, imag: Raw) -> Raw: ...

    @primitive
    def real_as_complex(self, x: Raw) -> Raw:
        """(..., 2) with real and imaginary part -> (...)."""

    @primitive
    def complex_as_real(self, x: Raw) -> Raw:
        """(...) -> (..., 2)."""

    def split(self, x: Raw, axis: int, sizes: Shape) -> tuple[Raw, ...]:
        """Consecutive pieces along `axis`."""
        out, start = [], 0
        for n in sizes:
            out.append(self.slice(x, axis, start, start + n, 1))
            start += n
        return tuple(out)

    # -- elementwise: unary. Float functions get float operands.

    neg: Callable[..., Raw] = primitive()
    abs: Callable[..., Raw] = primitive()
    exp: Callable[..., Raw] = primitive()
    log: Callable[..., Raw] = primitive()
    sqrt: Callable[..., Raw] = primitive()
    sin: Callable[..., Raw] = primitive()
    cos: Callable[..., Raw] = primitive()
    tanh: Callable[..., Raw] = primitive()
    ceil: Callable[..., Raw] = primitive()
    floor: Callable[..., Raw] = primitive()
    round: Callable[..., Raw] = primitive()
    expm1: Callable[..., Raw] = primitive()
    log1p: Callable[..., Raw] = primitive()
    erf: Callable[..., Raw] = primitive()
    sign: Callable[..., Raw] = primitive()
    logical_not: Callable[..., Raw] = primitive()
    is_finite: Callable[..., Raw] = primitive()
    is_infinite: Callable[..., Raw] = primitive()
    is_neg_infinite: Callable[..., Raw] = primitive()

    def _like(self, x: Raw, value: Any) -> Raw:
        return self.scalar(value, self.dtype_of(x))

    def identity(self, x: Raw) -> Raw:
        """x itself, in a new Tensor."""
        return x

    def reciprocal(self, x: Raw) -> Raw:
        """1 / x."""
        return self.truediv(self._like(x, 1), x)

    def rsqrt(self, x: Raw) -> Raw:
        """1 / sqrt(x)."""
        return self.reciprocal(self.sqrt(x))

    def square(self, x: Raw) -> Raw:
        """x * x."""
        return self.mul(x, x)

    def sigmoid(self, x: Raw) -> Raw:
        """1 / (1 + exp(-x))."""
        half = self._like(x, 0.5)
        return self.add(self.mul(self.tanh(self.mul(x, half)), half), half)

    def log_sigmoid(self, x: Raw) -> Raw:
        """log(sigmoid(x)), stable: min(x, 0) - log1p(exp(-|x|))."""
        return self.sub(self.minimum(x, self._like(x, 0)), self.log1p(self.exp(self.neg(self.abs(x)))))

    def relu(self, x: Raw) -> Raw:
        """max(x, 0)."""
        return self.maximum(x, self._like(x, 0))

    def elu(self, x: Raw) -> Raw:
        """x for x > 0, else exp(x) - 1."""
        zero = self._like(x, 0)
        return self.where(self.greater(x, zero), x, self.expm1(self.minimum(x, zero)))

    def selu(self, x: Raw) -> Raw:
        """scale * (x for x > 0, else alpha * (exp(x) - 1)); constants of Klambauer et al. 2017, arXiv:1706.02515."""
        zero = self._like(x, 0)
        negative = self.mul(self._like(x, 1.6732632423543772), self.expm1(self.minimum(x, zero)))
        return self.mul(self._like(x, 1.0507009873554805), self.where(self.greater(x, zero), x, negative))

    def silu(self, x: Raw) -> Raw:
        """x * sigmoid(x)."""
        return self.mul(x, self.sigmoid(x))

    def gelu(self, x: Raw) -> Raw:
        """x * Phi(x) with the exact normal distribution function."""
        phi = self.add(self._like(x, 1), self.erf(self.mul(x, self._like(x, math.sqrt(0.5)))))
        return self.mul(self.mul(x, self._like(x, 0.5)), phi)

    # -- elementwise: binary and compare

    add: Callable[..., Raw] = primitive()
    sub: Callable[..., Raw] = primitive()
    mul: Callable[..., Raw] = primitive()
    truediv: Callable[..., Raw] = primitive()
    floordiv: Callable[..., Raw] = primitive()
    mod: Callable[..., Raw] = primitive()
    pow: Callable[..., Raw] = primitive()
    maximum: Callable[..., Raw] = primitive()
    minimum: Callable[..., Raw] = primitive()
    logical_and: Callable[..., Raw] = primitive()
    logical_or: Callable[..., Raw] = primitive()
    equal: Callable[..., Raw] = primitive()
    not_equal: Callable[..., Raw] = primitive()
    less: Callable[..., Raw] = primitive()
    less_equal: Callable[..., Raw] = primitive()
    greater: Callable[..., Raw] = primitive()
    greater_equal: Callable[..., Raw] = primitive()

    @primitive
    def where(self, condition: Raw, x: Raw, y: Raw) -> Raw: ...

    def fill_outside(self, x: Raw, mask: Raw, value: float) -> Raw:
        """x where `mask` holds, else `value`; both broadcast against each other."""
        return self.where(mask, x, self._like(x, value))

    def at_least(self, x: Raw, value: float) -> Raw:
        """max(x, value)."""
        return self.maximum(x, self._like(x, value))

    def squared_difference(self, x: Raw, y: Raw) -> Raw:
        """(x - y)^2."""
        return self.square(self.sub(x, y))

    @primitive
    def logaddexp(self, x: Raw, y: Raw) -> Raw:
        """log(exp(x) + exp(y)), stable."""

    # -- reductions: the axes are removed. Over no elements, max is -inf and min inf (or the extreme integer).

    @primitive
    def sum(self, x: Raw, axes: Shape) -> Raw: ...

    @primitive
    def max(self, x: Raw, axes: Shape) -> Raw: ...

    @primitive
    def min(self, x: Raw, axes: Shape) -> Raw: ...

    @primitive
    def any(self, x: Raw, axes: Shape) -> Raw: ...

    @primitive
    def all(self, x: Raw, axes: Shape) -> Raw: ...

    @primitive
    def argmax(self, x: Raw, axis: int) -> Raw:
        """Index (int32) of the first largest value."""

    @primitive
    def argmin(self, x: Raw, axis: int) -> Raw:
        """Index (int32) of the first smallest value."""

    @primitive
    def mean(self, x: Raw, axes: Shape) -> Raw: ...

    @primitive
    def logsumexp(self, x: Raw, axes: Shape) -> Raw: ...

    @primitive
    def cumsum(self, x: Raw, axis: int) -> Raw: ...

    # -- contraction

    @primitive
    def contract(self, a: Raw, b: Raw, num_common: int, num_a: int, num_reduce: int, num_b: int) -> Raw:
        """(common..., a..., reduce...) x (common..., reduce..., b...) -> (common..., a..., b...), summing over
        reduce."""

    def linear(self, x: Raw, weight: Raw, bias: Raw | None) -> Raw:
        """(..., in) x (in, out) + (out) -> (..., out)."""
        y = self.contract(x, weight, 0, len(self.shape_of(x)) - 1, 1, 1)
        return y if bias is None else self.add(y, bias)

    # -- normalizing (more in `NeuralNetKernels`)

    @primitive
    def softmax(self, x: Raw, axis: int) -> Raw: ...

    @primitive
    def log_softmax(self, x: Raw, axis: int) -> Raw: ...

    # -- indexing

    @primitive
    def gather(self, source: Raw, indices: Raw, num_batch: int) -> Raw:
        """(batch..., axis, rest...) indexed by (batch..., index...) -> (batch..., index..., rest...)."""

    @primitive
    def scatter(
        self, x: Raw, indices: Raw, num_batch: int, num_index: int, size: int, mode: str, initial: float
    ) -> Raw:
        """Combine (batch..., index..., rest...) at positions (batch..., index...) -> (batch..., size, rest...).

        Mode "sum" adds, "max" and "min" compare, each starting from `initial`.
        """

    @primitive
    def sort(self, x: Raw, axis: int, descending: bool) -> tuple[Raw, Raw]:
        """(values, int32 indices), equal values in their original order; NaN counts as larger than anything."""
        raise NotImplementedError

    def top_k(self, x: Raw, axis: int, k: int, in_order: bool) -> tuple[Raw, Raw]:
        """(values, int32 indices) of the k largest, largest first unless not `in_order`; the first ones of equal
        values."""
        values, indices = self.sort(x, axis, True)
        return self.slice(values, axis, 0, k, 1), self.slice(indices, axis, 0, k, 1)

    def search_sorted(self, sorted_: Raw, values: Raw, num_batch: int, right: bool) -> Raw:
        """How many of `sorted_` (batch..., n) are less (`right`: or equal) than each of `values` (batch..., rest...);
        int32."""
        num_rest = len(self.shape_of(values)) - num_batch
        entries = self.unsqueeze(sorted_, tuple(range(num_batch, num_batch + num_rest)))
        each = self.unsqueeze(values, (num_batch + num_rest,))
        before = self.less_equal(entries, each) if right else self.less(entries, each)
        return self.sum(self.cast(before, "int32"), (num_batch + num_rest,))

    # -- gradients; on a backend without gradients these are plain forward functions

    def recording(self) -> contextlib.AbstractContextManager[Any]:
        """Context of a train step, in which what `gradient` needs is recorded, on a backend that must be told so.

        It belongs to the thread that enters it.
        """
        return contextlib.nullcontext()

    def stop_gradient(self, x: Raw) -> Raw:
        """The same values, constant for differentiation."""
        return x

    def no_grad(self) -> contextlib.AbstractContextManager[Any]:
        """Context in which nothing is recorded for gradients."""
        return contextlib.nullcontext()

    def is_grad_enabled(self) -> bool:
        """False where this thread is inside of `no_grad`, on a backend with gradients."""
        return True

    def set_grad_enabled(self, enabled: bool) -> None:
        """Go on as inside of `no_grad`, or as outside of it, in this thread."""

    def gradient(self, y: Raw, xs: Sequence[Raw]) -> list[Raw | None]:
        """d y / d x for each x, None where y does not depend on it; y has one element."""
        raise BackendError(f"backend {self.name} computes no gradients; use rf.select_backend('torch')")

    # -- parameters

    def create_parameter(self, value: Raw, trainable: bool) -> Raw:
        """The raw array that holds a parameter, made of `value`, which nobody else uses."""
        return value

    def set_trainable(self, parameter: Raw, trainable: bool) -> Raw:
        """Whether gradients reach the parameter; returns the raw array that holds it."""
        return parameter

    def assign(self, parameter: Raw, value: Raw) -> Raw:
        """Set the values of a parameter; returns the raw array that holds them: the same one where the backend can
        write into it, else a new one. It shares no memory with `value`."""
        return self.copy(value)

    def assign_all(self, parameters: Sequence[Raw], values: Sequence[Raw]) -> list[Raw]:
        """`assign` to each of the parameters; nobody else uses the values, so they may become what holds them."""
        return [self.assign(parameter, value) for parameter, value in zip(parameters, values)]


PRIMITIVES = tuple(
    name for cls in (Backend, FusedKernels) for name, value in vars(cls).items() if isinstance(value, Primitive)
)
"""Names of all kernels without a default."""


def stft_window(length: int, offset: int, total: int) -> numpy.ndarray:
    """A periodic Hann window of `length` samples from `offset` on, 0 elsewhere: 0.5 - 0.5 cos(2 pi n / length)."""
    out = numpy.zeros(total)
    out[offset : offset + length] = 0.5 - 0.5 * numpy.cos(2 * math.pi / length * numpy.arange(length))
    return out
