"""Parameter: a Tensor whose values stay from call to call, and are changed in place."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy

from rf import dtypes
from rf._core import DimBase, Tensor, apply, make_tensor
from rf._errors import DimError, RfError
from rf.backend import Backend, selected_backend, use_backend
from rf.ops.create import convert_to_tensor
from rf.ops.device import copy_to_device, get_default_device
from rf.ops.elementwise import cast

if TYPE_CHECKING:
    from rf._dim import Dim
    from rf.init import ParamInitType

__all__ = ["Parameter", "set_parameter_copy_behavior_ctx"]

_copy_mode: contextvars.ContextVar[str] = contextvars.ContextVar("rf_parameter_copy", default="copy_init")


class Parameter(Tensor):
    """A Tensor that a module keeps: a weight, or a running statistic.

    Its storage exists from the start, on the selected backend, filled with zeros until `initial` or `assign` says
    otherwise. Copying it (`copy.deepcopy` of a module) gives a new parameter that is initialized anew, with newly drawn
    values; see `set_parameter_copy_behavior_ctx`.
    """

    def __init__(
        self,
        dims_or_tensor: Sequence[Dim] | Tensor | None = None,
        dtype: str | None = None,
        *,
        dims: Sequence[Dim] | None = None,
        sparse_dim: Dim | None = None,
        trainable: bool | None = None,
        auxiliary: bool = False,
        non_critical_for_restore: bool = False,
        weight_decay: float | None = 0.0,
        initial: ParamInitType | None = None,
        raw_tensor: Any = None,
        device: str | None = None,
    ) -> None:
        """
        :param dims_or_tensor: the dims, all static; or a Tensor, whose dims, dtype and values are taken.
        :param dtype: default: the default float dtype, int32 when there is a sparse dim.
        :param dims: another way to give the dims.
        :param sparse_dim: what integer values are indices into.
        :param trainable: default: yes, unless `auxiliary` or not float.
        :param auxiliary: not part of what is learned, such as running statistics.
        :param non_critical_for_restore: a checkpoint may lack it.
        :param weight_decay: for the optimizer; None is 0.
        :param initial: see the property.
        :param raw_tensor: the storage, taken as it is.
        :param device: default: the default device.

        Raises DimError for dynamic dims, and for a dim that occurs twice at one match priority.
        """
        if isinstance(dims_or_tensor, Tensor):
            source = dims_or_tensor
            dims = source.dims
            dtype = dtype or source.dtype
            sparse_dim = sparse_dim or source.sparse_dim
            initial = source if initial is None and source.raw_tensor is not None else initial
        elif dims_or_tensor is not None:
            dims = dims_or_tensor
        if dims is None or isinstance(dims, DimBase):
            raise TypeError(f"Parameter: dims must be a sequence of Dims, got {dims!r}")
        for d in dims:
            if d.is_dynamic():
                raise DimError(
                    f"Parameter of dims {list(dims)}: {d!r} is dynamic, but the size of a parameter is fixed"
                )
        if dtype is None:
            dtype = dtypes.get_default_float_dtype() if sparse_dim is None else dtypes.get_default_array_index_dtype()
        super().__init__("parameter", dims, dtype, sparse_dim=sparse_dim)
        self._trainable = trainable
        self._auxiliary = auxiliary
        self._non_critical_for_restore = non_critical_for_restore
        self._weight_decay = weight_decay
        self._initial: ParamInitType | None = None
        if raw_tensor is not None:
            self.raw_tensor = raw_tensor
        else:
            backend = selected_backend()
            shape = tuple(d.get_dim_value() for d in self.dims)
            self._store(backend, backend.full(shape, 0, self.dtype, device or get_default_device()))
        if initial is not None:
            self.initial = initial

    # -- properties

    @property
    def initial(self) -> ParamInitType | None:
        """Where the first values come from: a `rf.init.ParamInit`, a Tensor, an array or a number. Setting it writes
        the values.
        """
        return self._initial

    @initial.setter
    def initial(self, value: ParamInitType | None) -> None:
        from rf.init import ParamInit

        self._initial = value
        if isinstance(value, ParamInit):
            value = value(self.dims, self.dtype, sparse_dim=self.sparse_dim, device=self.device)
        self.assign(0 if value is None else value)

    @property
    def trainable(self) -> bool:
        """Whether an optimizer shall change it. Setting None restores the default."""
        if self._trainable is None:
            return not self._auxiliary and dtypes.kind(self.dtype) > 1
        return self._trainable

    @trainable.setter
    def trainable(self, value: bool | None) -> None:
        self._trainable = value
        self._update_trainable()

    @property
    def auxiliary(self) -> bool:
        """Whether it belongs to the state of the model, but not to what is learned."""
        return self._auxiliary

    @auxiliary.setter
    def auxiliary(self, value: bool) -> None:
        self._auxiliary = value
        self._update_trainable()

    @property
    def non_critical_for_restore(self) -> bool:
        """Whether a checkpoint may lack it."""
        return self._non_critical_for_restore

    @non_critical_for_restore.setter
    def non_critical_for_restore(self, value: bool) -> None:
        self._non_critical_for_restore = value

    @property
    def weight_decay(self) -> float:
        """For the optimizer: how much it shall decay. 0 leaves it to the optimizer."""
        return self._weight_decay or 0.0

    @weight_decay.setter
    def weight_decay(self, value: float | None) -> None:
        self._weight_decay = value

    # -- values

    def assign(self, value: Tensor | Any) -> None:
        """Set the values, in place.

        :param value: a Tensor of any of the dims (others are broadcast), an array over the dims in their order, or a
            number. It is converted to the dtype, and copied.
        """
        backend = self._own_backend("assign")
        if isinstance(value, numpy.ndarray) and value.ndim:
            value = convert_to_tensor(value, dims=self.dims, dtype=self.dtype, _backend=backend.name)
        elif not isinstance(value, Tensor):
            value = convert_to_tensor(value, dtype=self.dtype, _backend=backend.name)
        if not backend.computes:
            value.copy_compatible_to_dims_raw(self.dims)  # raises when the dims do not fit
            return
        if value.backend is not backend:
            raise RfError(f"assign {value!r} to {self!r}: another backend; convert it first (rf.convert_backend)")
        with backend.no_grad():
            value = copy_to_device(value if value.dtype == self.dtype else cast(value, self.dtype), self.device)
            shape = backend.shape_of(self.raw_tensor)
            raw = backend.kernels["expand"](value.copy_compatible_to_dims_raw(self.dims), shape)
            stored = backend.kernels["assign"](self.raw_tensor, raw)
            if stored is not self.raw_tensor:
                self.raw_tensor = stored

    def assign_add(self, value: Tensor | Any) -> None:
        """Add to the values, in place. See `assign`."""
        with self._own_backend("assign_add").no_grad():
            self.assign(self + value)

    def move_toward(self, value: Tensor, weight: float) -> None:
        """Add weight * (value - self), in place: an exponential running mean.

        :param value: a Tensor over exactly these dims.
        :param weight: 0 leaves the values, 1 replaces them.
        """
        backend = self._own_backend("move_toward")
        if value.dims != self.dims:
            value = value.copy_transpose(self.dims)
        if not backend.computes:
            return
        if value.dtype != self.dtype:
            value = cast(value, self.dtype)
        (stored,) = apply("move_toward", (self, value), (weight,), [(self.dims, self.dtype, None, None)])
        if stored.raw_tensor is not self.raw_tensor:
            self.raw_tensor = stored.raw_tensor

    def assign_key(
        self,
        axis: Dim | Sequence[Dim],
        key: Any,
        key_dim: Dim | Sequence[Dim | None] | None,
        value: Tensor | Any,
    ) -> None:
        """Set a part of the values, in place.

        :param axis: one of the dims, or several.
        :param key: for each axis an int, an int Tensor of indices, or a Python slice without step.
        :param key_dim: for each axis the dim of `value` that stands for what the key selects; None where the key is an
            int.
        :param value: a Tensor over these dims and the dims that are not in `axis` (any may be absent), or a number.
        """
        axes, keys, key_dims = _as_list(axis), _as_list(key), _as_list(key_dim)
        index: list[Any] = [slice(None)] * len(self.dims)
        dims: list[Dim | None] = list(self.dims)
        for i, (a, k) in enumerate(zip(axes, keys)):
            at = self.get_axis_from_description(a)
            dims[at] = key_dims[i] if i < len(key_dims) else None
            if isinstance(k, Tensor):
                dims[at] = k.dims[0] if k.dims else None
                k = k.numpy()
            index[at] = k
        if not self._own_backend("assign_key").computes:
            return
        array = numpy.array(self.numpy())
        # Every key as a list of indices, so that they never act jointly; an int selects along a dim of size 1.
        lists = [numpy.atleast_1d(numpy.arange(n)[k]) for n, k in zip(array.shape, index)]
        if isinstance(value, Tensor):
            present = [d for d in dims if d is not None and d in value.dims]
            if len(present) != len(value.dims):
                raise DimError(f"assign_key: {value!r} has other dims than {[d for d in dims if d is not None]}")
            part = value.numpy().transpose([value.get_axis_from_description(d) for d in present])
            value = part.reshape([d.get_dim_value() if d is not None and d in present else 1 for d in dims])
        array[numpy.ix_(*lists)] = value
        self.assign(array)

    def to(self, *, device: str | None = None, dtype: str | None = None) -> None:
        """Move to a device and, if its own dtype is float, convert to `dtype`, in place. The raw tensor may be another
        one then.
        """
        backend = self._own_backend("to")
        with backend.no_grad():
            x: Tensor = make_tensor(backend, self.raw_tensor, self.dims, self.dtype)
            if dtype is not None and dtypes.kind(self.dtype) > 1:
                x = cast(x, dtype)
            x = copy_to_device(x, device)
        if x.dtype != self.dtype or x.raw_tensor is not self.raw_tensor:
            self.raw_tensor = None
            self.dtype = x.dtype
            self._store(backend, x.raw_tensor)

    # -- copies

    def __copy__(self) -> Parameter:
        if _copy_mode.get() == "share":
            return self
        backend = self._own_backend("copy")
        with use_backend(backend.name):
            out = Parameter(
                self.dims,
                self.dtype,
                sparse_dim=self.sparse_dim,
                trainable=self._trainable,
                auxiliary=self._auxiliary,
                non_critical_for_restore=self._non_critical_for_restore,
                weight_decay=self._weight_decay,
                device=self.device,
            )
            out.feature_dim = self.feature_dim
            if self._initial is not None:
                out.initial = self._initial
            else:
                out.assign(self)
        return out

    def __deepcopy__(self, memo: Any) -> Parameter:
        return self.__copy__()

    # -- storage

    def _own_backend(self, what: str) -> Backend:
        if self.backend is None:
            raise RfError(f"{what}: {self!r} has no storage (raw_tensor is None)")
        return self.backend

    def _store(self, backend: Backend, raw: Any) -> None:
        self.raw_tensor = backend.create_parameter(raw, self.trainable)

    def _update_trainable(self) -> None:
        if self.backend is not None:
            self.raw_tensor = self.backend.set_trainable(self.raw_tensor, self.trainable)


def _as_list(x: Any) -> list[Any]:
    return list(x) if isinstance(x, (list, tuple)) else [x]


@contextlib.contextmanager
def set_parameter_copy_behavior_ctx(mode: str) -> Iterator[None]:
    """What copying a parameter means within a `with` block.

    :param mode: "copy_init" (the default elsewhere): a new parameter, initialized anew, or with the same values when it
        has no `initial`. "share": the parameter itself.
    """
    if mode not in ("copy_init", "share"):
        raise RfError(f"set_parameter_copy_behavior_ctx: unknown mode {mode!r}; choose copy_init or share")
    token = _copy_mode.set(mode)
    try:
        yield
    finally:
        _copy_mode.reset(token)
