"""What a call does when its operands are not yet plain tensors of one backend, and every error text of the core.

The native core detects that something is unusual and comes here; this file explains or converts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy

from rf import dtypes
from rf._errors import BackendError, DimError, RfError, ShapeError
from rf._plan import MAX_DISTINCT_DIMS, Plan, PlanBuilder
from rf.backend import Backend, backend_of_raw, selected_backend

if TYPE_CHECKING:
    from rf._core import Op, Tensor
    from rf._dim import Dim

_NUMBERS = (bool, int, float, complex, numpy.generic)


def is_operand(x: Any) -> bool:
    """Whether `x` may stand beside a Tensor in an operator."""
    from rf._core import Tensor

    return isinstance(x, (Tensor, *_NUMBERS))


def make_plan(op: Op, args: Sequence[Any], distinct: Sequence[Dim]) -> Plan:
    """Have the planner of `op` write the plan for this structure."""
    return op.planner(PlanBuilder(args, op.num_tensors, distinct), *args)


def operands(name: str, args: Sequence[Any], num_tensors: int) -> tuple[tuple[Any, ...], Backend]:
    """Turn the leading `num_tensors` arguments into Tensors of one backend, and say which one.

    Numbers become scalars of the dtype that the tensor operands ask for; on a backend that computes nothing, NumPy
    tensors (sizes live on the host) are taken as operands too.
    """
    from rf._core import Tensor

    tensors = [a for a in args[:num_tensors] if isinstance(a, Tensor)]
    backends: list[Backend] = []
    for t in tensors:
        if t.backend is None:
            raise RfError(f"{name}: the operand {t!r} is a template without data (raw_tensor is None)")
        if t.backend not in backends:
            backends.append(t.backend)
    if len(backends) > 1:
        nothing = [b for b in backends if not b.computes]
        if len(nothing) != 1 or not all(b is nothing[0] or b.name == "numpy" for b in backends):
            what = "\n".join(f"  {t!r} on {t.backend.name}" for t in tensors if t.backend is not None)
            raise BackendError(
                f"{name}: operands of different backends ({', '.join(b.name for b in backends)}):\n{what}\n"
                "Convert one of them first: rf.convert_backend(x, name)."
            )
        backends = nothing
    backend = backends[0] if backends else selected_backend()
    with_tensor_dtype = next((t.dtype for t in tensors), None)
    for t in tensors:
        with_tensor_dtype = (
            dtypes.result_type(with_tensor_dtype, t.dtype) if with_tensor_dtype != "string" else "string"
        )
    device = next((backend.device_of(t.raw_tensor) for t in tensors if t.backend is backend), None)
    out = [_operand(name, a, backend, with_tensor_dtype, device) for a in args[:num_tensors]]
    return (*out, *args[num_tensors:]), backend


def _operand(name: str, x: Any, backend: Backend, beside: str | None, device: str | None) -> Tensor | None:
    from rf._core import Tensor, make_tensor

    if x is None:
        return None
    if isinstance(x, Tensor):
        if x.backend is backend:
            return x
        return make_tensor(backend, backend.no_value, x.dims, x.dtype, x.feature_dim, x.sparse_dim)
    if isinstance(x, numpy.generic):
        x = x.item()
    if isinstance(x, (bool, int, float, complex)):
        dtype = dtypes.number_type(x) if beside is None else dtypes.scalar_type(x, beside)
        return scalar(backend, x, dtype)
    hint = (
        ""
        if backend_of_raw(x) is None
        else ": a raw array has no dims; wrap it with rf.convert_to_tensor(x, dims=[...])"
    )
    raise TypeError(f"{name}: expected a Tensor or a number, got {type(x).__name__}{hint}")


def scalar(backend: Backend, value: bool | int | float | complex, dtype: str) -> Tensor:
    """The cached 0-dim tensor of a Python number; it lies on the host, which every kernel accepts beside tensors
    elsewhere."""
    from rf._core import make_tensor

    key = (type(value), value, dtype) if value == value and value != 0 else (type(value), repr(value), dtype)
    cache = backend.scalars
    raw = cache.get(key)
    if raw is None:
        if isinstance(value, int) and not isinstance(value, bool) and dtypes.kind(dtype) == 1:
            info = numpy.iinfo(dtype)
            if not info.min <= value <= info.max:
                raise RfError(
                    f"the number {value} does not fit {dtype} ({info.min}..{info.max}); "
                    "cast the tensor to a wider dtype first"
                )
        if isinstance(value, (int, float)) and dtypes.is_float_dtype(dtype):
            value = _rounded(value, dtype)
        if len(cache) > 10_000:
            cache.clear()
        raw = cache[key] = backend.scalar(value, dtype)
    return make_tensor(backend, raw, (), dtype)


def _rounded(value: int | float, dtype: str) -> float:
    """The number as float; infinite where the dtype cannot hold it."""
    try:
        number = float(value)
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")
    with numpy.errstate(over="ignore"):
        too_large = numpy.isinf(numpy.float64(number).astype("float32" if dtype == "bfloat16" else dtype))
    return numpy.copysign(numpy.inf, number).item() if too_large else number


def too_many_dims(args: Sequence[Any]) -> RfError:
    """More distinct dims in one call than a plan can number."""
    return DimError(f"one call may involve at most {MAX_DISTINCT_DIMS} distinct dims; operands:\n{describe(args)}")


def describe(args: Sequence[Any]) -> str:
    """One line per operand, for error messages."""
    from rf._core import Tensor

    return "\n".join(f"  {'abcdefgh'[i % 8]}: {a!r}" for i, a in enumerate(args) if isinstance(a, Tensor))


# -- Tensor construction and attributes


def init_dtype(dtype: str | None, raw: Any) -> str:
    """The dtype of a new Tensor: as given, else that of the raw tensor."""
    if dtype is not None:
        return dtypes.check(dtype)
    if raw is None:
        return dtypes.get_default_float_dtype()
    backend = backend_of_raw(raw)
    if backend is None:
        raise TypeError(_not_raw(raw))
    return backend.dtype_of(raw)


def check_new(t: Tensor, sparse_dim: Dim | None, feature_dim: Dim | None, feature_dim_axis: int | None) -> None:
    """Check the dims of a new Tensor and set its feature and sparse dim."""
    from rf._core import DimBase

    seen = set()
    for d in t.dims:
        if not isinstance(d, DimBase):
            raise TypeError(f"Tensor {t.name or ''}: dims must be Dim objects, got {d!r} of type {type(d).__name__}")
        entry = (id(d.base), d.match_priority)
        if entry in seen:
            raise DimError(
                f"Tensor {t.name or ''} with dims {{{', '.join(map(repr, t.dims))}}}: {d!r} occurs twice. "
                "Give one of them "
                "another dim (rf.replace_dim), or, for a square parameter, dim.copy(match_priority=1)."
            )
        seen.add(entry)
    if feature_dim_axis is not None:
        feature_dim = t.dims[feature_dim_axis]
    if feature_dim is not None:
        t.feature_dim = feature_dim
    if sparse_dim is not None:
        t.sparse_dim = sparse_dim


def check_feature_dim(t: Tensor, dim: Dim | None) -> Dim | None:
    """A feature dim must be one of the dims."""
    if dim is not None and dim not in t.dims:
        raise DimError(f"feature_dim {dim!r} is not a dim of {t!r}")
    return dim


def check_sparse_dim(t: Tensor, dim: Dim | None) -> Dim | None:
    """Only integer tensors (and bool for two classes) can hold indices."""
    if dim is not None and dtypes.kind(t.dtype) > 1:
        raise DimError(f"sparse_dim {dim!r} needs an integer tensor, got {t!r}")
    return dim


def check_set_dtype(t: Tensor, dtype: str) -> None:
    """The dtype of a template may be changed, that of data not."""
    dtypes.check(dtype)
    if t.raw_tensor is not None and dtype != t.dtype:
        raise RfError(f"cannot set dtype {dtype!r} on {t!r}; use rf.cast(x, {dtype!r})")


def check_raw(t: Tensor, raw: Any) -> Backend:
    """Check that `raw` fits the dims and dtype of `t`; returns its backend. Dims of unknown size take theirs from the
    array."""
    backend = backend_of_raw(raw)
    if backend is None:
        raise TypeError(_not_raw(raw))
    if not backend.computes:
        return backend
    dtype = backend.dtype_of(raw)
    if dtype != t.dtype:
        raise ShapeError(f"{_named(t)}: the raw tensor has dtype {dtype}, the Tensor says {t.dtype}; convert it first")
    shape = backend.shape_of(raw)
    if len(shape) != len(t.dims):
        raise ShapeError(
            f"{_named(t)}: the raw tensor has {len(shape)} axes {tuple(shape)}, the dims are {_dims(t.dims)}"
        )
    for axis, (n, d) in enumerate(zip(shape, t.dims)):
        d.base.adopt_extent(n)
        extent = d.base.get_dim_value()
        if extent != n:
            raise ShapeError(
                f"{_named(t)}: axis {axis} of the raw tensor {tuple(shape)} has length {n}, "
                f"but dim {d!r} has {extent}; dims are {_dims(t.dims)}"
                + (". Fill the dim anew for this batch (dim.fill or dim.reset_eager)." if d.dynamic else "")
            )
    return backend


def _named(t: Tensor) -> str:
    return f"Tensor {t.name!r}" if t.name else "Tensor"


def _dims(dims: Sequence[Dim]) -> str:
    return "{" + ", ".join(map(repr, dims)) + "}"


def _not_raw(raw: Any) -> str:
    return f"raw_tensor: {type(raw).__module__}.{type(raw).__name__} is not an array type of any loaded backend"
