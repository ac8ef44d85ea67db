"""Everything about a Tensor that does not depend on how it is stored; both cores' `Tensor` derives from this class."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from rf import _core  # which imports this module first: its contents are there when a method is called
from rf._errors import DimError, RfError
from rf._registry import OPS, SERVICES

if TYPE_CHECKING:
    import numpy

    from rf._core import Tensor
    from rf._dim import Dim
    from rf.backend import Backend


class TensorMethods:
    """See the module docstring."""

    __slots__ = ()
    __array_ufunc__ = None  # a NumPy scalar on the left of an operator leaves the operation to us

    if TYPE_CHECKING:
        _dims: tuple[Dim, ...]
        name: str | None

        @property
        def dims(self) -> tuple[Dim, ...]: ...
        @property
        def dtype(self) -> str: ...
        @property
        def backend(self) -> Backend | None: ...

        def _has_raw(self) -> bool: ...

        raw_tensor: Any
        feature_dim: Dim | None
        sparse_dim: Dim | None

    # -- inspection

    @property
    def dims_set(self) -> set[Dim]:
        """The dims as a set."""
        return set(self.dims)

    @property
    def batch_ndim(self) -> int:
        """Number of dims."""
        return len(self.dims)

    ndim = batch_ndim

    @property
    def device(self) -> str | None:
        """Where the data lies ("cpu", "cuda:0"); None for a template and on backends without devices."""
        return None if self.backend is None else self.backend.device_of(self.raw_tensor)

    @property
    def feature_dim_axis(self) -> int | None:
        """Axis of `feature_dim`."""
        return None if self.feature_dim is None else self.get_axis_from_description(self.feature_dim)

    @property
    def vocab(self) -> Any:
        """The vocabulary of the sparse dim, else of the feature dim."""
        dim = self.sparse_dim or self.feature_dim
        return None if dim is None else dim.vocab

    def remaining_dims(self, remove: Dim | Collection[Dim] | None = None) -> list[Dim]:
        """The dims in order without those in `remove`; each of these must be there (DimError)."""
        out = list(self.dims)
        removed: Collection[Dim] = () if remove is None else remove if isinstance(remove, Collection) else (remove,)
        for d in removed:
            if d not in out:
                raise DimError(f"remaining_dims: {d!r} is not a dim of {self!r}")
            out.remove(d)
        return out

    def get_axis_from_description(self, dim: Dim | int, allow_int: bool = False) -> int:
        """The axis of `dim`; where a dim occurs twice, that of the highest match priority. Raises DimError if
        absent."""
        if isinstance(dim, int):
            if not allow_int:
                raise TypeError(f"expected a Dim, got the int {dim}; axes are addressed by dims")
            return dim % len(self.dims)
        axes = [i for i, d in enumerate(self.dims) if d == dim]
        if len(axes) == 1:
            return axes[0]
        if not axes:
            raise DimError(f"{dim!r} is not a dim of {self!r}")
        exact = [i for i in axes if self.dims[i].match_priority == dim.match_priority]
        if dim.match_priority and exact:
            return exact[0]
        return max(axes, key=lambda i: self.dims[i].match_priority)

    def _axis_of_entry(self, dim: Dim | int, allow_int: bool) -> int:
        """The axis of exactly this entry of `dims`, match priority included; else as `get_axis_from_description`."""
        if not isinstance(dim, int):
            for axis, d in enumerate(self.dims):
                if d == dim and d.match_priority == dim.match_priority:
                    return axis
        return self.get_axis_from_description(dim, allow_int=allow_int)

    def num_elements(self) -> int | Tensor:
        """Number of valid elements: an int if nothing is masked, else a scalar int Tensor on the host."""
        return SERVICES["num_elements_of_shape"](self.dims)

    def verify_out_shape(self, out_shape: Collection[Any], allow_missing_implicit_dims: bool = False) -> Tensor:
        """Self, or RfError when its dims are not exactly those of the set `out_shape`."""
        if set(self.dims) != set(out_shape):
            raise RfError(f"expected dims {set(out_shape)}, got {self!r}")
        return self  # type: ignore[return-value]

    # -- copies; all share the raw data

    def _make(self, dims: Sequence[Dim], raw: Any, dtype: str | None = None, name: str | None = None) -> Tensor:
        feature = self.feature_dim
        if feature is not None and feature not in dims:
            feature = None
        name, dtype = name or self.name, dtype or self.dtype
        if raw is None:
            return _core.Tensor(name, dims, dtype, sparse_dim=self.sparse_dim, feature_dim=feature)
        assert self.backend is not None
        out = _core.make_tensor(self.backend, raw, tuple(dims), dtype, feature, self.sparse_dim)
        if name is not None:
            out.name = name
        return out

    def copy(self, name: str | None = None) -> Tensor:
        """A new Tensor object with the same raw data."""
        return self._make(self.dims, self.raw_tensor, name=name)

    def copy_template(self, name: str | None = None, *, dtype: str | None = None) -> Tensor:
        """The same dims without data."""
        return self._make(self.dims, None, dtype, name)

    def copy_template_new_dim_tags(self, new_dim_tags: Sequence[Dim], *, name: str | None = None) -> Tensor:
        """A template with other dims."""
        return self._make(tuple(new_dim_tags), None, None, name)

    def copy_template_replace_dim_tag(self, axis: int, new_dim_tag: Dim, name: str | None = None) -> Tensor:
        """A template with one dim replaced."""
        dims = list(self.dims)
        dims[axis] = new_dim_tag
        return self._make(dims, None, None, name)

    def copy_template_excluding_axis(self, exclude_axis: int, name: str | None = None) -> Tensor:
        """A template with one dim removed."""
        dims = [d for i, d in enumerate(self.dims) if i != exclude_axis % len(self.dims)]
        return self._make(dims, None, None, name)

    def copy_transpose(self, perm: Sequence[Dim | int], *, allow_int: bool = True) -> Tensor:
        """Axes in the order of `perm`, which must name every dim once. Raises DimError otherwise."""
        if self._has_raw():
            return OPS["permute"](self, perm if isinstance(perm, (tuple, list)) else tuple(perm), allow_int)
        return self._make([self.dims[axis] for axis in self.axes_of_entries(perm, allow_int)], None)

    def axes_of_entries(self, perm: Sequence[Dim | int], allow_int: bool) -> tuple[int, ...]:
        """The axis of each entry of `perm`, which must name every dim once. Raises DimError otherwise."""
        axes = tuple(self._axis_of_entry(d, allow_int) for d in perm)
        if sorted(axes) != list(range(len(self.dims))):
            raise DimError(f"copy_transpose to {list(perm)}: these are not exactly the dims of {self!r}")
        return axes

    def copy_compatible_to_dims(self, dims: Sequence[Dim], unbroadcast: bool = False) -> Tensor:
        """Axes in the order of `dims`, with a new dim of size 1 for each that self lacks (expanded to its size if
        `unbroadcast`)."""
        from rf._dim import Dim

        missing = [d for d in dims if d not in self.dims]
        if unbroadcast:
            return SERVICES["expand_dims"](self, missing).copy_transpose(dims)
        new = {id(d): Dim(1, name=f"{d.name}:1") for d in missing}
        raw = self.copy_compatible_to_dims_raw(dims)
        return self._make([new.get(id(d), d) for d in dims], raw)

    def copy_compatible_to_dims_raw(self, dims: Sequence[Dim]) -> Any:
        """The raw array of `copy_compatible_to_dims`. Raises DimError when a dim of self is not in `dims`."""
        absent = [d for d in self.dims if d not in dims]
        if absent:
            raise DimError(f"copy_compatible_to_dims {list(dims)}: lacks {absent} of {self!r}")
        x = self.copy_transpose([d for d in dims if d in self.dims], allow_int=False)
        new_axes = tuple(i for i, d in enumerate(dims) if d not in self.dims)
        if x.backend is None or not x.backend.computes or not new_axes:
            return x.raw_tensor
        return x.backend.kernels["unsqueeze"](x.raw_tensor, new_axes)

    def copy_masked(self, mask_value: Any, *, dims: Sequence[Dim] | None = None) -> Tensor:
        """`mask_value` in the padding of every dim (of `dims`, default all) that needs masking; dims whose size dims
        are absent are skipped."""
        own = self.dims if dims is None else [d for d in dims if d in self.dims]
        masked = tuple(d for d in own if d.need_masking() and all(s in self.dims for s in d.base.size_dims))
        return OPS["copy_masked"](self, mask_value, masked) if masked else self.copy()

    # -- forwarded

    def mark_as_loss(self, name: str, **options: Any) -> None:
        """`rf.get_run_ctx().mark_as_loss(self, name, ...)`."""
        SERVICES["mark_as_loss"](self, name, **options)

    def mark_as_output(self, name: str, *, shape: Sequence[Dim] | None = None) -> None:
        """`rf.get_run_ctx().mark_as_output(self, name, dims=shape)`."""
        SERVICES["mark_as_output"](self, name, dims=shape)

    def mark_as_default_output(self, *, shape: Sequence[Dim] | None = None) -> None:
        """`rf.get_run_ctx().mark_as_default_output(self, shape=shape)`."""
        SERVICES["mark_as_output"](self, "output", dims=shape)

    def reset(self) -> None:
        """Drop the data."""
        self.raw_tensor = None

    # -- Python protocol

    def __copy__(self) -> Tensor:
        return self.copy()

    def __deepcopy__(self, memo: Any) -> Tensor:
        raw = self.raw_tensor
        if self.backend is not None and self.backend.computes:
            raw = self.backend.kernels["copy"](raw)
        return self._make(self.dims, raw)

    def numpy(self) -> numpy.ndarray:
        """The values on the host, axes in the order of `dims`, padding included."""
        if self.backend is None:
            raise RfError(f"numpy: {self!r} is a template without data")
        return self.backend.to_numpy(self.raw_tensor)

    def item(self) -> Any:
        """The Python number of a Tensor without dims. Waits for the device."""
        if self.backend is None or self.dims:
            raise RfError(f"item: expected a Tensor without dims, got {self!r}; reduce it first, or use x.numpy()")
        return self.backend.item(self.raw_tensor)

    def __int__(self) -> int:
        return int(self.item())

    def __float__(self) -> float:
        return float(self.item())

    def __ceil__(self) -> Tensor:
        return OPS["ceil"](self)

    def __floor__(self) -> Tensor:
        return OPS["floor"](self)

    def __bool__(self) -> bool:
        raise TypeError(
            f"the truth value of {self!r} is not defined; use x.item() for a scalar on the host, "
            "rf.where or rf.cond to choose by it"
        )

    def __getitem__(self, key: Any) -> Any:
        raise TypeError(
            f"x[...] is not supported on {self!r}; "
            "use rf.gather(x, indices=..., axis=dim) or rf.slice(x, axis=dim, ...)"
        )

    def __iter__(self) -> Any:
        raise TypeError(f"{self!r} cannot be iterated over; use rf.unstack(x, axis=dim)")

    def __repr__(self) -> str:
        name = f"{self.name}: " if self.name else ""
        sparse = "" if self.sparse_dim is None else f" -> {self.sparse_dim!r}"
        data = "" if self.backend is not None else " template"
        backend = "" if self.backend is None else f" {self.backend.name}"
        return f"{name}{{{', '.join(map(repr, self.dims))}}} {self.dtype}{sparse}{backend}{data}"
