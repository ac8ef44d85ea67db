"""Data types are strings, the same for every backend; promotion is decided here and nowhere else.

Promotion never looks at values and never depends on the backend: the wider kind wins (bool < int < float < complex),
inside a kind the wider type wins, and `float16` with `bfloat16` gives `float32`. A Python number adapts to the tensor
it meets: an int keeps the tensor's dtype, a float turns an integer tensor into the default float dtype (numerics of
torch's promotion for scalars).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import cache

from rf._errors import RfError
from rf._registry import OPS

__all__ = [
    "get_default_float_dtype",
    "set_default_float_dtype",
    "set_default_float_dtype_ctx",
    "get_default_int_dtype",
    "get_default_array_index_dtype",
    "is_float_dtype",
]

# The position in this tuple is the number that the native core uses for the dtype.
ALL = (
    "bool",
    "uint8",
    "int8",
    "int16",
    "int32",
    "int64",
    "float16",
    "bfloat16",
    "float32",
    "float64",
    "complex64",
    "complex128",
    "string",
)
_KIND = {name: 0 if name == "bool" else 1 if "int" in name else 2 if "float" in name else 3 for name in ALL[:-1]}
_KIND["string"] = 4
_BITS = {"bool": 1, "uint8": 8, "int8": 8, "int16": 16, "int32": 32, "int64": 64}
_BITS.update({"float16": 16, "bfloat16": 16, "float32": 32, "float64": 64, "complex64": 64, "complex128": 128})

_default_float = "float32"


def check(dtype: str) -> str:
    """`dtype` itself when rf knows it; raises RfError that lists the valid names otherwise."""
    if dtype not in ALL:
        raise RfError(f"unknown dtype {dtype!r}; rf knows {', '.join(ALL)}")
    return dtype


def kind(dtype: str) -> int:
    """0 for bool, 1 for integers, 2 for floats, 3 for complex, 4 for strings."""
    return _KIND[dtype]


@cache
def result_type(a: str, b: str) -> str:
    """The dtype of an arithmetic result of two tensors of dtypes `a` and `b`."""
    if a == b:
        return a
    if "string" in (a, b):
        raise _no_arithmetic()
    if _KIND[a] != _KIND[b]:
        wide, narrow = (a, b) if _KIND[a] > _KIND[b] else (b, a)
        return "complex128" if wide == "complex64" and narrow == "float64" else wide
    if {a, b} == {"float16", "bfloat16"}:
        return "float32"
    if {a, b} == {"uint8", "int8"}:
        return "int16"
    return a if _BITS[a] > _BITS[b] else b


def scalar_type(value: bool | int | float | complex, tensor_dtype: str) -> str:
    """The dtype that the Python number `value` takes on beside a tensor of `tensor_dtype`."""
    if tensor_dtype == "string":
        raise _no_arithmetic()
    if isinstance(value, bool):
        return "bool"
    tensor_kind = _KIND[tensor_dtype]
    if isinstance(value, int):
        return get_default_int_dtype() if tensor_kind == 0 else tensor_dtype
    if isinstance(value, float):
        return tensor_dtype if tensor_kind >= 2 else _default_float
    return tensor_dtype if tensor_kind == 3 else "complex128" if tensor_dtype == "float64" else "complex64"


def number_type(value: bool | int | float | complex | str) -> str:
    """The dtype of a Python number that stands alone."""
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int):
        return get_default_int_dtype()
    if isinstance(value, float):
        return _default_float
    return "string" if isinstance(value, str) else "complex64"


def floating(dtype: str) -> str:
    """`dtype` when it is float or complex, else the default float dtype: what sqrt, exp or a true division work in."""
    if dtype == "string":
        raise _no_arithmetic()
    return dtype if _KIND[dtype] >= 2 else _default_float


def _no_arithmetic() -> RfError:
    return RfError("there is no arithmetic with strings; they can be compared with each other, gathered and rearranged")


def get_default_float_dtype() -> str:
    """The dtype of new float tensors, "float32" unless changed."""
    return _default_float


def set_default_float_dtype(dtype: str) -> None:
    """Set the dtype of new float tensors for the whole process. Raises RfError when it is not a float dtype."""
    global _default_float
    if not is_float_dtype(check(dtype)):
        raise RfError(f"the default float dtype must be a float dtype, got {dtype!r}")
    _default_float = dtype
    for op in OPS.values():  # plans have the old default in them
        op.clear_plans()


@contextlib.contextmanager
def set_default_float_dtype_ctx(dtype: str) -> Iterator[None]:
    """`set_default_float_dtype` for the duration of a `with` block."""
    before = _default_float
    set_default_float_dtype(dtype)
    try:
        yield
    finally:
        set_default_float_dtype(before)


def get_default_int_dtype() -> str:
    """The dtype of new integer tensors: "int32"."""
    return "int32"


def get_default_array_index_dtype() -> str:
    """The dtype of index tensors: "int32"."""
    return "int32"


def is_float_dtype(dtype: str) -> bool:
    """Whether `dtype` is a real floating point type."""
    return _KIND.get(dtype) == 2
