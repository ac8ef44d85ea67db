"""TensorDict: the named tensors that go into a step or come out of it, as templates that are filled for every batch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy

from rf._core import Tensor
from rf._dim import Dim
from rf._errors import RfError
from rf.backend import backend_of_raw, selected_backend

__all__ = ["TensorDict"]


class TensorDict:
    """Named Tensors; `data` is the dict.

    Declared once with templates, it is filled from raw arrays for every batch: `assign_from_raw_tensor_dict_` sets the
    sizes of the dims and the data, in place.

    :param data: name -> Tensor, or name -> dict of arguments for Tensor (without the name); or an iterable of Tensors
        that have names.
    """

    def __init__(self, data: Mapping[str, Any] | Iterable[Tensor] | None = None) -> None:
        self.data: dict[str, Tensor] = {}
        if data is not None:
            self.update(data, auto_convert=True)

    def update(self, data: Mapping[str, Any] | Iterable[Tensor] | TensorDict, *, auto_convert: bool = False) -> None:
        """Add or replace entries. `auto_convert`: also take dicts of arguments for Tensor."""
        if isinstance(data, TensorDict):
            data = data.data
        items: Any = data.items() if isinstance(data, Mapping) else [(t.name, t) for t in data]
        for name, value in items:
            if name is None:
                raise RfError(f"TensorDict: the tensor {value!r} has no name; give a dict of name -> Tensor")
            if isinstance(value, Mapping) and auto_convert:
                value = Tensor(name, **value)
            if not isinstance(value, Tensor):
                raise TypeError(f"TensorDict: {name!r} must be a Tensor, got {type(value).__name__}")
            self.data[name] = value

    def __contains__(self, name: str) -> bool:
        return name in self.data

    def __getitem__(self, name: str) -> Tensor:
        if name not in self.data:
            raise KeyError(f"no tensor {name!r}; there are {', '.join(self.data) or 'none'}")
        return self.data[name]

    def __repr__(self) -> str:
        return "TensorDict(" + "; ".join(f"{name}: {t!r}" for name, t in self.data.items()) + ")"

    def all_dims(self) -> list[Dim]:
        """Every dim of the tensors, also sparse dims and dims that sizes depend on, once."""
        dims: list[Dim] = []

        def add(d: Dim) -> None:
            if d not in dims:
                for s in d.base.size_dims or d.base.declared_size_dims():
                    add(s)
                dims.append(d)

        for t in self.data.values():
            for d in (*t.dims, *([] if t.sparse_dim is None else [t.sparse_dim])):
                add(d)
        return dims

    def reset_content(self) -> None:
        """Drop all data, and forget the sizes of all dims that are filled per batch."""
        for t in self.data.values():
            t.reset()
        for d in self.all_dims():
            d.reset_eager()

    def copy_template(self) -> TensorDict:
        """The same names and dims without data."""
        return TensorDict({name: t.copy_template() for name, t in self.data.items()})

    def assign_from_raw_tensor_dict_(
        self,
        raw_tensor_dict: Mapping[str, Any],
        *,
        with_scalar_dyn_sizes: bool = True,
        duplicate_dims_are_excluded: bool = False,
    ) -> None:
        """Fill data and sizes from raw arrays, in place; whatever was there before is forgotten.

        :param raw_tensor_dict: `name` -> array of a backend (NumPy arrays are converted to the selected backend), and
            `name:size<axis>` -> int array with the sizes of the dynamic dim at that axis. A dim without sizes of its
            own (the batch) takes its size from the arrays.
        :param with_scalar_dyn_sizes: whether sizes without dims are in the dict; without them they are taken from the
            arrays.
        :param duplicate_dims_are_excluded: the sizes of a dim that occurs several times are given once only.

        Raises RfError when an entry is missing, and ShapeError or DimError when an array does not fit its dims.
        """
        self.reset_content()
        backend = selected_backend()
        for name, t in self.data.items():
            if name not in raw_tensor_dict:
                raise RfError(f"TensorDict: no array for {name!r}; there are {', '.join(raw_tensor_dict)}")
            for axis, d in enumerate(t.dims):
                key = f"{name}:size{axis}"
                declared = d.base.declared_size_dims()
                if not d.is_dynamic() or d.base.derivation is not None or d.is_dim_known():
                    continue
                if key in raw_tensor_dict:
                    d.fill(_host(raw_tensor_dict[key]), dims=declared)
                elif declared and not duplicate_dims_are_excluded:
                    raise RfError(f"TensorDict: no sizes {key!r} for the dim {d!r} of {t!r}")
        for name, t in self.data.items():
            raw = raw_tensor_dict[name]
            if isinstance(raw, numpy.ndarray) and backend.name != "numpy":
                raw = backend.from_numpy(raw, t.dtype)
            t.raw_tensor = raw

    def as_raw_tensor_dict(
        self,
        *,
        include_const_sizes: bool = False,
        include_scalar_dyn_sizes: bool = True,
        exclude_duplicate_dims: bool = False,
        expected_value_type: type | tuple[type, ...] = object,
    ) -> dict[str, Any]:
        """`name` -> raw array, and `name:size<axis>` -> the sizes of the dim at that axis.

        :param include_const_sizes: also the ints of static dims.
        :param include_scalar_dyn_sizes: also dynamic sizes without dims.
        :param exclude_duplicate_dims: the sizes of each dim once only.
        :param expected_value_type: what all values must be instances of.
        """
        out: dict[str, Any] = {}
        seen: list[Dim] = []
        for name, t in self.data.items():
            if t.raw_tensor is None:
                raise RfError(f"TensorDict: {t!r} has no data")
            out[name] = t.raw_tensor
            for axis, d in enumerate(t.dims):
                if exclude_duplicate_dims and d in seen:
                    continue
                seen.append(d)
                if d.is_static():
                    if include_const_sizes:
                        out[f"{name}:size{axis}"] = d.dimension
                elif d.get_sizes().dims or include_scalar_dyn_sizes:
                    out[f"{name}:size{axis}"] = d.get_size_tensor().raw_tensor
        for key, value in out.items():
            if not isinstance(value, expected_value_type):
                raise TypeError(f"TensorDict: {key!r} is {type(value).__name__}, expected {expected_value_type}")
        return out


def _host(sizes: Any) -> numpy.ndarray:
    backend = None if isinstance(sizes, numpy.ndarray) else backend_of_raw(sizes)
    return numpy.asarray(sizes) if backend is None else backend.to_numpy(sizes)
