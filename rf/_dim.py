"""Dim: the identity of an axis, its sizes, and the masks that follow from them.

A Dim is a symbol that can be rebound: it may be declared without sizes and be filled, and filled again for every batch,
in place. Dims derived from it (dim math) follow. Sizes live on the host as int32; what is computed from them (maximum,
masks, device copies) is cached per filling and shared between dims that share sizes. Caches hold raw arrays, never
Tensors, so no cycle keeps a batch alive.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from typing import Any, overload

import numpy

from rf import _dim_math
from rf._core import DimBase, Tensor, make_tensor
from rf._errors import BackendError, DimError
from rf._registry import SERVICES
from rf.backend import Backend, backend_of_raw, get_backend, selected_backend

__all__ = ["Dim", "batch_dim", "single_step_dim"]


class Sizes:
    """One filling: the sizes of a dim over its size dims, and everything cached that follows from them."""

    __slots__ = ("values", "dims", "extent", "cache", "raw")

    def __init__(self, values: numpy.ndarray, dims: tuple[Dim, ...]):
        self.values = values
        self.dims = dims
        self.extent = int(values.max()) if values.size else 0
        self.cache: dict[int, Any] = {}
        self.raw: tuple[Backend, Any] | None = None  # the sizes as an array of the backend that last asked for it
        values.flags.writeable = False


class Dim(DimBase):
    """An axis of tensors: an object, compared by identity, never by size or name.

    :param dimension: an int for a static dim; an int Tensor with the size of each sequence (its dims are the *size
        dims*, for example {B}; without dims: one length for everybody, nothing is ever masked); None to be filled
        later.
    :param name: for people; carries no meaning.
    :param capacity: an upper bound of the sizes. Kept as information.
    :param dyn_size_ext: the size Tensor, as another way to give it. A template (raw_tensor None) declares the size
        dims.
    :param vocab: anything; kept for the user.
    """

    __slots__ = (
        "_size",
        "_name",
        "capacity",
        "vocab",
        "kind",
        "_sizes",
        "_template",
        "derivation",
        "_memo",
        "_dependents",
        "_sized",
        "_last_extent",
        "_copies",
    )

    def __init__(
        self,
        dimension: int | Tensor | None = None,
        *,
        name: str | None = None,
        capacity: int | None = None,
        dyn_size_ext: Tensor | None = None,
        description: str | None = None,
        bounded_by: Dim | None = None,
        vocab: Any = None,
        kind: Any = None,
    ) -> None:
        super().__init__()
        if isinstance(dimension, (numpy.integer,)):
            dimension = int(dimension)
        if isinstance(dimension, bool) or not isinstance(dimension, (int, Tensor, type(None))):
            raise TypeError(f"Dim: dimension must be an int, an int Tensor of sizes, or None; got {dimension!r}")
        self._name = name or description
        self.capacity = capacity
        self.vocab = vocab
        self.kind = kind
        self.derivation: _dim_math.Derivation | None = None
        self._size: int | None = None
        self._sizes: Sizes | None = None
        self._template: tuple[Dim, ...] | None = None
        self._memo: dict[Any, weakref.ref[Dim]] | None = None
        self._dependents: list[weakref.ref[Dim]] | None = None
        self._sized: dict[int, weakref.ref[Dim]] | None = None  # dims whose sizes are given over this one
        self._last_extent = -1
        self._copies: dict[int, weakref.ref[Dim]] | None = None
        if isinstance(dimension, int):
            if dimension < 0:
                raise DimError(f"Dim {self.name or ''}: the size must be >= 0, got {dimension}")
            self._size = self.extent = dimension
            self.size_dims = ()
            return
        self.dynamic = True
        if isinstance(dimension, Tensor):
            dyn_size_ext = dimension
        if dyn_size_ext is not None:
            self.dyn_size_ext = dyn_size_ext
        elif bounded_by is not None:
            self.capacity = bounded_by.capacity

    # -- identity

    def __copy__(self) -> Dim:
        return self

    def __deepcopy__(self, memo: Any) -> Dim:
        return self

    def __reduce__(self) -> Any:
        raise TypeError(
            f"{self!r} cannot be pickled: a dim is an identity, a copy of it elsewhere would be another dim"
        )

    def __lt__(self, other: Dim) -> bool:
        return (self.name or "") < (other.name or "")

    def copy(
        self, *, match_priority: int | None = None, same_as_self: bool = True, description: str | None = None
    ) -> Dim:
        """The same dim with another match priority (equal to self), or with `same_as_self=False` a new dim with the
        same sizes."""
        if not same_as_self:
            out = Dim(self.base._size, name=description or self.name, vocab=self.vocab, kind=self.kind)
            if self.dynamic:
                out.copy_from(self)
            return out
        base, priority = self.base, match_priority or 0
        if priority == 0:
            return base
        if not 0 < priority < 4:
            raise DimError(f"match_priority must be 0..3, got {priority}")
        if base._copies is None:
            base._copies = {}
        ref = base._copies.get(priority)
        out = None if ref is None else ref()
        if out is None:
            out = Dim(None, name=self.name)
            out.same_as, out.match_priority = base, priority
            out.dynamic, out._size, out.extent = base.dynamic, base._size, base.extent
            base._copies[priority] = weakref.ref(out)
        return out

    def declare_same_as(self, other: Dim) -> None:
        """Make both dims equal, for good. Whichever is static, derived or filled gives the sizes.

        Raises DimError when both have sizes and these differ.
        """
        a, b = self.base, other.base
        if a is b:
            return
        if a.is_dim_known() and b.is_dim_known():
            mine, theirs = a.get_sizes(), b.get_sizes()
            if mine.dims != theirs.dims or not numpy.array_equal(mine.values, theirs.values):
                raise DimError(f"declare_same_as: {a!r} and {b!r} have different sizes")
        if b.dynamic and (not a.dynamic or (a.derivation is not None and b.derivation is None)):
            a, b = b, a  # a static dim, or one that follows from others, stays what it is
        elif a.is_dim_known() and not b.is_dim_known():
            b._set_sizes(a.get_sizes())
        if b._template is None:
            b._template = a._template
        a.same_as = b
        # what was derived from `a` must follow the fillings of `b` from now on
        b._dependents = (b._dependents or []) + (a._dependents or [])
        a._invalidate()

    # -- sizes

    @property
    def dimension(self) -> int | None:
        """The size of a static dim, None for a dynamic one."""
        return self.base._size

    size = dimension

    @property
    def name(self) -> str | None:
        """As given; that of a derived dim is its expression."""
        if self._name is None and self.derivation is not None and self.derivation.kind != "same":
            self._name = _dim_math.describe(self.derivation)
        return self._name

    @name.setter
    def name(self, value: str | None) -> None:
        self._name = value

    @property
    def description(self) -> str | None:
        """Same as `name`."""
        return self.name

    def is_static(self) -> bool:
        """Whether the size is one fixed int."""
        return not self.base.dynamic

    def is_dynamic(self) -> bool:
        """Whether the size can differ from batch to batch."""
        return self.base.dynamic

    def is_dynamic_seq_length(self) -> bool:
        """Whether it is dynamic and not the batch dim."""
        return self.base.dynamic and self.base is not batch_dim.base

    def is_batch_dim(self) -> bool:
        """Whether it is the global `rf.batch_dim`."""
        return self.base is batch_dim.base

    def is_dim_known(self) -> bool:
        """Whether sizes are there, now."""
        try:
            return self.get_dim_value() >= 0
        except DimError:
            return False

    def fill(self, sizes: int | Tensor | Sequence[int] | numpy.ndarray, dims: Sequence[Dim] | None = None) -> Dim:
        """Set the sizes, in place; masks and derived dims follow. May be called again for every batch.

        :param sizes: an int (one length for everybody), an int Tensor, or host integers over `dims`.
        :param dims: the size dims of `sizes` when it is no Tensor; default: those that the dim was declared with.
        :returns: self.

        Raises DimError for a static or derived dim, negative sizes, or sizes whose shape does not fit their dims.
        """
        base = self.base
        if not base.dynamic:
            raise DimError(f"fill: {self!r} is static")
        if base.derivation is not None and base.derivation.kind != "same":
            raise DimError(f"fill: {self!r} follows from other dims; fill those")
        if isinstance(sizes, Tensor):
            if sizes.backend is None:
                raise DimError(f"fill {self!r}: the size tensor {sizes!r} has no data")
            if not sizes.backend.computes:
                raise BackendError(
                    f"fill {self!r}: the sizes {sizes!r} were computed on backend {sizes.backend.name}, which has no "
                    "values; "
                    "lengths must come from host integers there"
                )
            over: Sequence[Dim] = sizes.dims
            values = sizes.backend.to_numpy(sizes.raw_tensor)
        else:
            values = numpy.asarray(sizes)
            if values.size == 0 and not isinstance(sizes, numpy.ndarray):
                values = values.astype(numpy.int32)
            over = dims if dims is not None else base._template or ()
        if values.dtype.kind not in "iu":
            raise DimError(f"fill {self!r}: sizes must be integers, got dtype {values.dtype}")
        if values.ndim != len(over):
            raise DimError(
                f"fill {self!r}: sizes of shape {values.shape} need {values.ndim} size dims, got {list(over)}"
            )
        if values.size and values.min() < 0:
            raise DimError(f"fill {self!r}: sizes must be >= 0, got {int(values.min())}")
        if any(d.base is base for d in over):
            raise DimError(f"fill {self!r}: the sizes of a dim cannot depend on itself")
        for n, d in zip(values.shape, over):
            d.base.adopt_extent(n)
            if d.base.get_dim_value() != n:
                raise DimError(f"fill {self!r}: sizes of shape {values.shape} do not fit their dims {list(over)}")
        # An own copy: the caller's array may change later.
        base.derivation = None
        base._set_sizes(Sizes(numpy.array(values, dtype=numpy.int32), tuple(over)))
        return self

    def _set_sizes(self, sizes: Sizes) -> None:
        if self._sized is not None and self._last_extent not in (-1, sizes.extent):
            # Sizes over this dim were those of another batch.
            for ref in self._sized.values():
                dim = ref()
                if dim is not None and dim._sizes is not None and self in dim._sizes.dims:
                    dim._invalidate()
            self._sized = None
        self._last_extent = sizes.extent
        for d in sizes.dims:
            base = d.base
            if base._sized is None:
                base._sized = {}
            elif len(base._sized) > 64:
                base._sized = {k: r for k, r in base._sized.items() if r() is not None}
            base._sized[id(self)] = weakref.ref(self)
        self._invalidate()
        self._sizes = sizes
        self.extent, self.size_dims, self.cache = sizes.extent, sizes.dims, sizes.cache
        self._template = sizes.dims

    def _invalidate(self) -> None:
        self._sizes = None
        self.extent, self.size_dims, self.cache = -1, None, None
        if self._dependents:
            self._dependents = [r for r in self._dependents if r() is not None]
            for ref in self._dependents:
                dependent = ref()
                if dependent is not None and dependent._sizes is not None and dependent.derivation is not None:
                    dependent._invalidate()

    def declared_size_dims(self) -> tuple[Dim, ...]:
        """The dims that the sizes depend on, as declared or as last filled; () for a dim without."""
        return self.base._template or ()

    def settle(self) -> None:
        """Make sure that the size dims are known: derived dims compute their sizes.

        A dim that was declared without size dims has none, whether it is filled or not. Raises DimError when sizes are
        missing.
        """
        base = self.base
        if not base.dynamic or base._sizes is not None:
            return
        if base.derivation is None:
            if not base._template:
                base.size_dims = ()
                return
            raise base._not_filled()
        if base.derivation.kind == "same":
            base._set_sizes(base.derivation.items[0][1].get_sizes())
            return
        values, dims = _dim_math.evaluate(base)
        base._set_sizes(Sizes(values, dims))

    def _not_filled(self) -> DimError:
        name = self.name or "?"
        return DimError(f"the sizes of dim {name} are not known yet; fill it first: dim.fill(sizes, dims=[batch_dim])")

    def get_sizes(self) -> Sizes:
        """The current filling; for a static dim one without size dims."""
        base = self.base
        if not base.dynamic:
            return Sizes(numpy.array(base._size, dtype=numpy.int32), ())
        base.settle()
        if base._sizes is None:
            raise base._not_filled()
        return base._sizes

    def adopt_extent(self, n: int) -> None:
        """A raw axis of length `n` carries this dim: when its size was open (declared without sizes), it is `n` for
        everybody."""
        base = self.base
        if base.dynamic and base._sizes is None and base.derivation is None and base._template in (None, ()):
            base._set_sizes(Sizes(numpy.array(n, dtype=numpy.int32), ()))

    def copy_from(self, other: Dim) -> None:
        """Take over the sizes of `other` (and share its masks), and stay another dim. Self must have no sizes of its
        own."""
        base, source = self.base, other.base
        if not base.dynamic or base.is_dim_known():
            raise DimError(f"copy_from: {self!r} already has sizes")
        if not source.dynamic:
            base._size, base.dynamic, base.extent, base.size_dims = source._size, False, source.extent, ()
            return
        if source.is_dim_known():
            base._set_sizes(source.get_sizes())
        base.derivation = _dim_math.Derivation("same", ((1, source),))
        _dim_math.register(base)

    def reset_eager(self) -> None:
        """Forget the sizes and everything computed from them, here and in derived dims; the declared size dims are
        kept."""
        if self.base.dynamic:
            self.base._invalidate()

    reset_raw = reset_eager
    reset_batch_and_raw = reset_eager

    # -- sizes as Tensors

    @property
    def dyn_size_ext(self) -> Tensor | None:
        """The sizes as an int32 Tensor over the size dims (host); None for a static dim, a template when not filled
        yet.

        Assigning to it, or to its `raw_tensor`, fills the dim.
        """
        base = self.base
        if not base.dynamic:
            return None
        if base._sizes is None:
            if base.derivation is not None and base.is_dim_known():
                return base.dyn_size_ext
            if base._template is None:
                return None
        return _SizeTensor.of(base)

    @dyn_size_ext.setter
    def dyn_size_ext(self, value: Tensor | None) -> None:
        base = self.base
        if value is None:
            base._invalidate()
        elif value.backend is None:
            base._invalidate()
            base._template = value.dims
        else:
            base.fill(value)

    @property
    def dyn_size(self) -> Any:
        """The raw array of `dyn_size_ext`."""
        sizes = self.dyn_size_ext
        return None if sizes is None else sizes.raw_tensor

    def get_size_tensor(self, device: str | None = None) -> Tensor:
        """The sizes as an int32 Tensor, for static dims too; on the host unless `device` is given."""
        backend = _size_backend()
        sizes = self.get_sizes()
        raw = _size_raw(sizes, backend)
        return make_tensor(backend, raw if device is None else backend.to_device(raw, device), sizes.dims, "int32")

    def get_size_tensor_or_int(self, device: str | None = None) -> Tensor | int:
        """`get_size_tensor`, or the int of a static dim."""
        static = self.base._size
        return self.get_size_tensor(device) if static is None else static

    def get_dyn_size_ext_for_device(self, device: str | None) -> Tensor:
        """`get_size_tensor(device)`."""
        return self.get_size_tensor(device)

    def get_dim_value_tensor(self) -> Tensor | int:
        """The padded length: an int for a static dim, else a scalar int32 Tensor on the host."""
        static = self.base._size
        if static is not None:
            return static
        backend = _size_backend()
        return make_tensor(backend, backend.scalar(self.get_dim_value(), "int32"), (), "int32")

    def get_mask(self, dim_order: Sequence[Dim] | None = None, device: str | None = None) -> Tensor:
        """Bool Tensor over the size dims and self, True where a frame belongs to its sequence.

        The raw array is cached per filling, layout and device. `dim_order` gives the axis order (default: size dims,
        self).
        """
        base = self.base
        base.settle()
        own: tuple[Dim, ...] = (*(base.size_dims or ()), base)
        order = own if dim_order is None else tuple(d for d in dim_order if d in own)
        if len(order) != len(own):
            raise DimError(f"get_mask of {self!r}: dim_order {dim_order} must contain all of {list(own)}")
        backend = selected_backend()
        if not backend.computes:
            return make_tensor(backend, backend.no_value, order, "bool")
        pattern = tuple(own.index(d) for d in order)
        return make_tensor(backend, self.auxiliary(backend, "mask", pattern, "bool", device), order, "bool")

    # -- what plans ask for

    def auxiliary(self, backend: Backend, kind: str, pattern: tuple[int, ...], dtype: str, device: str | None) -> Any:
        """A raw array computed from the sizes, cached per filling.

        :param kind: "mask": True on valid frames, axes size dims + self. "lengths": the sizes, at least 1 (to divide
            by), axes size dims. "sizes": the sizes as they are. "host_sizes": the same, on the host whatever
            `device` is. "total": their sum, at least 1, a scalar.
        :param pattern: for each axis of the result, the axis of the array above that lies there; -1 for an axis of
            length 1.
        """
        base = self.base
        sizes = base.get_sizes()
        if kind == "host_sizes":
            device = "cpu"
        key = auxiliary_key(backend, kind, pattern, dtype, device)
        raw = sizes.cache.get(key)
        if raw is None:
            values = sizes.values
            if kind == "mask":
                values = numpy.arange(sizes.extent, dtype=numpy.int32) < values[..., None]
            elif kind == "lengths":
                values = numpy.maximum(values, 1)
            elif kind == "total":
                values = numpy.maximum(values.sum(dtype=numpy.int64), 1)
            elif kind not in ("sizes", "host_sizes"):
                raise AssertionError(kind)
            if kind != "total":
                kept = [i for i in pattern if i >= 0]
                values = values.transpose(kept).reshape([values.shape[i] if i >= 0 else 1 for i in pattern])
            raw = sizes.cache[key] = backend.constant(
                numpy.ascontiguousarray(values).reshape(values.shape), dtype, device
            )
        return raw

    # -- dim math: see rf._dim_math for the rules

    def __add__(self, other: Dim | int) -> Dim:
        return _dim_math.add_right(self, other) if type(other) is int else _dim_math.add(self, other)

    def __radd__(self, other: Dim | int) -> Dim:
        return _dim_math.add(other, self)

    def __sub__(self, other: Dim | int) -> Dim:
        return _dim_math.sub_right(self, other)

    sub_right = __sub__

    def sub_left(self, other: Dim | int) -> Dim:
        """Self shortened by `other` on the left."""
        return _dim_math.sub_left(self, other)

    def __rsub__(self, other: Dim | int) -> Dim:
        return _dim_math.sub_right(other, self)

    def __mul__(self, other: Dim | int) -> Dim:
        return _dim_math.mul(self, other)

    def __rmul__(self, other: Dim | int) -> Dim:
        return _dim_math.mul(other, self)

    def __floordiv__(self, other: Dim | int) -> Dim:
        return _dim_math.floordiv(self, other)

    def __truediv__(self, other: Dim | int) -> Dim:
        return _dim_math.div_right(self, other)

    div_right = __truediv__

    def div_left(self, other: Dim | int) -> Dim:
        """Self divided by `other`, undoing `other * x`; must go without remainder."""
        return _dim_math.div_left(self, other)

    def ceildiv_right(self, other: Dim | int) -> Dim:
        """Self divided by `other`, rounded up."""
        return _dim_math.ceildiv(self, other, "right")

    def ceildiv_left(self, other: Dim | int) -> Dim:
        """Self divided by `other`, rounded up; the left version is another dim than the right one."""
        return _dim_math.ceildiv(self, other, "left")

    # -- printing

    def __repr__(self) -> str:
        base = self.base
        name = self.name or base.name or "?"
        mark = "'" * self.match_priority
        if not base.dynamic:
            return f"{name}{mark}={base._size}"
        sizes = base._sizes
        if sizes is None:
            return f"{name}{mark}=?"
        if not sizes.dims:
            return f"{name}{mark}={sizes.extent}"
        flat = sizes.values.reshape(-1)
        shown = ",".join(str(int(n)) for n in flat[:8]) + (",..." if flat.size > 8 else "")
        return f"{name}{mark}={sizes.extent}({shown})"

    short_repr = __repr__


_aux_numbers: dict[Any, int] = {}


def auxiliary_key(backend: Backend, kind: str, pattern: tuple[int, ...], dtype: str, device: str | None) -> int:
    """The key of an auxiliary array in the cache of a filling: a small int, so that the native core can look it up
    fast."""
    parts = (backend.index, kind, pattern, dtype, device if device != "cpu" else None)
    number = _aux_numbers.get(parts)
    if number is None:
        number = _aux_numbers[parts] = len(_aux_numbers)
    return number


def _size_backend() -> Backend:
    backend = selected_backend()
    # On a backend without values, sizes are NumPy tensors: lengths stay real.
    return backend if backend.computes else get_backend("numpy")


def _size_raw(sizes: Sizes, backend: Backend) -> Any:
    if sizes.raw is None or sizes.raw[0] is not backend:
        sizes.raw = (backend, backend.constant(sizes.values, "int32"))
    return sizes.raw[1]


class _SizeTensor(Tensor):
    """What `Dim.dyn_size_ext` returns: setting its raw tensor fills the dim."""

    __slots__ = ("_dim",)

    @staticmethod
    def of(dim: Dim) -> _SizeTensor:
        sizes = dim._sizes
        dims = sizes.dims if sizes is not None else dim._template or ()
        if sizes is not None and any(
            not d.is_dim_known() or d.get_dim_value() != n for n, d in zip(sizes.values.shape, dims)
        ):
            sizes = None  # these are of a batch that is gone
        out = _SizeTensor(f"{dim.name or 'dim'}:size", dims, "int32")
        out._dim = dim
        if sizes is not None:
            Tensor.raw_tensor.__set__(out, _size_raw(sizes, _size_backend()))  # type: ignore[attr-defined]
        return out

    @property
    def raw_tensor(self) -> Any:
        """The raw sizes."""
        return Tensor.raw_tensor.__get__(self)  # type: ignore[attr-defined]

    @raw_tensor.setter
    def raw_tensor(self, value: Any) -> None:
        dim = self._dim
        if value is None:
            dim.reset_eager()
        else:
            backend = backend_of_raw(value)
            if backend is None:
                raise TypeError(f"sizes of {dim!r}: {type(value).__name__} is not an array type of any loaded backend")
            shape = backend.shape_of(value)
            if len(shape) != len(self.dims):
                raise DimError(
                    f"sizes of {dim!r}: the array of shape {tuple(shape)} does not fit the size dims {list(self.dims)}"
                )
            for n, d in zip(shape, self.dims):
                d.base.adopt_extent(n)
            dtype = backend.dtype_of(value)
            dim.fill(Tensor("sizes", self.dims, dtype, raw_tensor=value))
            value = _size_raw(dim.get_sizes(), _size_backend())
        Tensor.raw_tensor.__set__(self, value)  # type: ignore[attr-defined]


@overload
def as_dims(dims: Dim) -> tuple[Dim, ...]: ...
@overload
def as_dims(dims: Iterable[Dim]) -> tuple[Dim, ...]: ...
def as_dims(dims: Dim | Iterable[Dim]) -> tuple[Dim, ...]:
    """One dim or several, as a tuple."""
    return (dims,) if isinstance(dims, DimBase) else tuple(dims)  # type: ignore[return-value]


SERVICES["Dim"] = Dim

batch_dim = Dim(None, name="B")
"""The batch dim of the data that a step gets. Its size is that of the current batch."""

single_step_dim = Dim(1, name="single_step")
"""Stands for "one step of a recurrent model" where a spatial dim is asked for; never occurs in a tensor."""
