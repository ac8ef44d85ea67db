"""Dtypes of results, and Python numbers as operands: the same on every backend."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest

import rf
from rf import dtypes

BACKENDS = ["numpy", pytest.param("torch", marks=pytest.mark.needs("torch")), "meta"]
COMPUTING = BACKENDS[:2]
F = rf.Dim(3, name="F")

# Rows and columns are in the order of dtypes.ALL, without strings.
PROMOTION = """
b1   u8   i8   i16  i32  i64  f16  bf   f32  f64  c64  c128
u8   u8   i16  i16  i32  i64  f16  bf   f32  f64  c64  c128
i8   i16  i8   i16  i32  i64  f16  bf   f32  f64  c64  c128
i16  i16  i16  i16  i32  i64  f16  bf   f32  f64  c64  c128
i32  i32  i32  i32  i32  i64  f16  bf   f32  f64  c64  c128
i64  i64  i64  i64  i64  i64  f16  bf   f32  f64  c64  c128
f16  f16  f16  f16  f16  f16  f16  f32  f32  f64  c64  c128
bf   bf   bf   bf   bf   bf   f32  bf   f32  f64  c64  c128
f32  f32  f32  f32  f32  f32  f32  f32  f32  f64  c64  c128
f64  f64  f64  f64  f64  f64  f64  f64  f64  f64  c128 c128
c64  c64  c64  c64  c64  c64  c64  c64  c64  c128 c64  c128
c128 c128 c128 c128 c128 c128 c128 c128 c128 c128 c128 c128
"""
SHORT = dict(zip(PROMOTION.split()[:12], dtypes.ALL, strict=False))
NAMES = dtypes.ALL[:-1]
TABLE = {
    (a, b): SHORT[c]
    for a, row in zip(NAMES, PROMOTION.strip().splitlines())
    for b, c in zip(NAMES, row.split(), strict=True)
}


def test_promotion_table() -> None:
    assert len(TABLE) == len(NAMES) ** 2
    for (a, b), expected in TABLE.items():
        assert dtypes.result_type(a, b) == dtypes.result_type(b, a) == expected, (a, b)


@pytest.mark.needs("torch")
def test_promotion_is_that_of_torch() -> None:
    import torch

    for (a, b), expected in TABLE.items():
        assert torch.promote_types(getattr(torch, a), getattr(torch, b)) is getattr(torch, expected), (a, b)


def made(dtype: str, values: Any = (1, 2, 3)) -> rf.Tensor:
    return rf.cast(rf.convert_to_tensor(np.array(values, dtype="float64"), dims=[F]), dtype)


@pytest.mark.parametrize("backend", BACKENDS)
def test_promotion_of_operators(backend: str) -> None:
    names = [n for n in NAMES if not (backend == "numpy" and n == "bfloat16")]
    with rf.use_backend(backend):
        for a, b in itertools.product(names, names):
            x, y = made(a), made(b)
            expected = TABLE[a, b]
            number = "int32" if expected == "bool" else expected
            assert (x + y).dtype == number and (x * y).dtype == number, (a, b)
            assert (x == y).dtype == "bool"
            assert rf.where(made("bool"), x, y).dtype == expected
            assert (x / y).dtype == (expected if dtypes.kind(expected) >= 2 else "float32"), (a, b)
            if backend != "meta":
                check(x + y, number)
                check(x / y, (x / y).dtype)


def check(x: rf.Tensor, dtype: str, values: Any = None) -> None:
    """The dtype that the Tensor says is that of the data; and the values."""
    assert x.dtype == dtype
    assert x.backend is not None
    if not x.backend.computes:
        return
    assert x.backend.dtype_of(x.raw_tensor) == dtype
    if values is not None:
        np.testing.assert_allclose(x.numpy().astype("complex128"), np.array(values, dtype="complex128"), rtol=1e-3)


SCALARS: list[tuple[str, Any, Any, str, Any]] = [
    # dtype, values, operation, dtype of the result, values of the result
    ("int32", [1, 2, 3], lambda x: x * 0.5, "float32", [0.5, 1, 1.5]),
    ("int32", [1, 2, 3], lambda x: x + 1, "int32", [2, 3, 4]),
    ("int32", [1, 2, 3], lambda x: 1 - x, "int32", [0, -1, -2]),
    ("int32", [1, 2, 3], lambda x: 0 - x, "int32", [-1, -2, -3]),
    ("int32", [1, 2, 3], lambda x: x / 2, "float32", [0.5, 1, 1.5]),
    ("int32", [1, 2, 3], lambda x: 6 / x, "float32", [6, 3, 2]),
    ("int32", [-3, 2, 3], lambda x: x // 2, "int32", [-2, 1, 1]),
    ("int32", [-3, 2, 3], lambda x: x % 2, "int32", [1, 0, 1]),
    ("int32", [-3, 2, 3], lambda x: x % -2, "int32", [-1, 0, -1]),
    ("int32", [1, 2, 3], lambda x: x // 0.5, "float32", [2, 4, 6]),
    ("int32", [1, 2, 3], lambda x: x**2, "int32", [1, 4, 9]),
    ("int32", [1, 2, 4], lambda x: x**0.5, "float32", [1, 2**0.5, 2]),
    ("int32", [1, 2, 3], lambda x: x**-1.0, "float32", [1, 1 / 2, 1 / 3]),
    ("int32", [1, 2, 3], lambda x: 2**x, "int32", [2, 4, 8]),
    ("int32", [1, 2, 3], lambda x: x > 1.5, "bool", [False, True, True]),
    ("int32", [1, 2, 3], lambda x: x < 1.5, "bool", [True, False, False]),
    ("int32", [0, 2, 3], lambda x: x == 0.5, "bool", [False, False, False]),
    ("int32", [1, 2, 3], lambda x: x + True, "int32", [2, 3, 4]),
    ("int32", [1, 2, 3], lambda x: x + 1j, "complex64", [1 + 1j, 2 + 1j, 3 + 1j]),
    ("int8", [1, 2, 3], lambda x: x + 100, "int8", [101, 102, 103]),
    ("uint8", [1, 2, 3], lambda x: x * 2, "uint8", [2, 4, 6]),
    ("uint8", [1, 2, 3], lambda x: x > 1.5, "bool", [False, True, True]),
    ("int64", [1, 2, 3], lambda x: x + 2**40, "int64", [1 + 2**40, 2 + 2**40, 3 + 2**40]),
    ("bool", [0, 1, 1], lambda x: x + 1, "int32", [1, 2, 2]),
    ("bool", [0, 1, 1], lambda x: x * 0.5, "float32", [0, 0.5, 0.5]),
    ("bool", [0, 1, 1], lambda x: x + True, "int32", [1, 2, 2]),
    ("bool", [0, 1, 1], lambda x: x & True, "bool", [False, True, True]),
    ("bool", [0, 1, 1], lambda x: x | True, "bool", [True, True, True]),
    ("bool", [0, 1, 1], lambda x: x == 1, "bool", [False, True, True]),
    ("float32", [1, 2, 4], lambda x: x**-1, "float32", [1, 0.5, 0.25]),
    ("float32", [1, 2, 4], lambda x: x // -1, "float32", [-1, -2, -4]),
    ("float32", [1, 2, 4], lambda x: 0 - x, "float32", [-1, -2, -4]),
    ("float32", [1, 2, 4], lambda x: 0 / x, "float32", [0, 0, 0]),
    ("float32", [1, 2, 4], lambda x: x * 2**40, "float32", [2**40, 2**41, 2**42]),
    ("float32", [1, 2, 4], lambda x: x + True, "float32", [2, 3, 5]),
    ("float32", [1, 2, 4], lambda x: x * 1j, "complex64", [1j, 2j, 4j]),
    ("float16", [1, 2, 4], lambda x: x + 0.5, "float16", [1.5, 2.5, 4.5]),
    ("float16", [1, 2, 4], lambda x: x * 3, "float16", [3, 6, 12]),
    ("float64", [1, 2, 4], lambda x: x + 1j, "complex128", [1 + 1j, 2 + 1j, 4 + 1j]),
    ("complex64", [1, 2, 4], lambda x: x * 0.5, "complex64", [0.5, 1, 2]),
    # NumPy numbers are like Python's, on both sides
    ("float32", [1, 2, 4], lambda x: x * np.float64(0.5), "float32", [0.5, 1, 2]),
    ("float32", [1, 2, 4], lambda x: np.float64(0.5) * x, "float32", [0.5, 1, 2]),
    ("int32", [1, 2, 4], lambda x: np.int64(2) * x, "int32", [2, 4, 8]),
    ("int32", [1, 2, 4], lambda x: np.float32(0.5) > x, "bool", [False, False, False]),
    ("float16", [1, 2, 4], lambda x: x - np.int32(1), "float16", [0, 1, 3]),
    ("int32", [1, 2, 4], lambda x: rf.maximum(x, 1.5), "float32", [1.5, 2, 4]),
    ("int32", [1, 2, 4], lambda x: rf.where(x > 1, x, 0.5), "float32", [0.5, 2, 4]),
    ("int32", [1, 2, 4], lambda x: rf.where(x > 1, 1, 0), "int32", [0, 1, 1]),
    ("int32", [1, 2, 4], lambda x: rf.where(x > 1, True, False), "bool", [False, True, True]),
]


@pytest.mark.parametrize("case", range(len(SCALARS)), ids=[f"{i}-{s[0]}-to-{s[3]}" for i, s in enumerate(SCALARS)])
@pytest.mark.parametrize("backend", BACKENDS)
def test_numbers_as_operands(backend: str, case: int) -> None:
    dtype, values, operation, expected_dtype, expected = SCALARS[case]
    with rf.use_backend(backend):
        x = made(dtype, values)
        check(operation(x), expected_dtype, expected)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("dtype", "number", "match"),
    [
        ("int8", 128, r"the number 128 does not fit int8 \(-128..127\); cast the tensor to a wider dtype first"),
        ("int8", -129, "the number -129 does not fit int8"),
        ("uint8", -1, r"the number -1 does not fit uint8 \(0..255\)"),
        ("int32", 2**31, "the number 2147483648 does not fit int32"),
        ("bool", 2**31, "does not fit int32"),
        ("int64", 2**63, "does not fit int64"),
    ],
)
def test_numbers_that_do_not_fit(backend: str, dtype: str, number: int, match: str) -> None:
    with rf.use_backend(backend):
        for operation in (lambda x: x + number, lambda x: number * x, lambda x: x > number):
            with pytest.raises(rf.RfError, match=match):
                operation(made(dtype, [0, 1, 1]))


@pytest.mark.parametrize("backend", COMPUTING)
def test_special_numbers(backend: str) -> None:
    with rf.use_backend(backend):
        x = made("float32")
        assert np.isnan((x * math.nan).numpy()).all() and np.isnan((x + math.nan).numpy()).all()
        assert (x * math.inf).numpy().tolist() == [math.inf] * 3 and (x - math.inf).numpy().tolist() == [-math.inf] * 3
        for large in (1e300, 10**400):
            assert (x * large).numpy().tolist() == [math.inf] * 3 and (x * -large).numpy().tolist() == [-math.inf] * 3
            assert (x < large).numpy().all()
        # numbers that are equal but not the same are not mixed up in the cache of scalars
        for number, sign in ((0.0, 0), (-0.0, 1), (0, 0), (-0.0, 1), (0.0, 0)):
            assert np.signbit((x * number).numpy()).tolist() == [bool(sign)] * 3
        i = made("int32")
        results = [(i * n).dtype for n in (1, 1.0, True, 1.0, 1, 1 + 0j, 1)]
        assert results == ["int32", "float32", "int32", "float32", "int32", "complex64", "int32"]
        assert (rf.log(made("float32", [-1, 0, 1]))).numpy().tolist()[1:] == [-math.inf, 0]


def test_numbers_alone_use_the_selected_backend() -> None:
    with rf.use_backend("numpy"):
        x = rf.add(1, 2)
        assert x.dims == () and x.dtype == "int32" and x.item() == 3
        assert rf.add(1, 0.5).dtype == "float32" and rf.equal(1, 1.0).item() is True
        assert rf.maximum(1, 2) == 2 and rf.minimum(1, 2.5, 0) == 0, "these stay Python numbers"


@pytest.mark.parametrize("backend", BACKENDS)
def test_scalar_tensors_are_tensors(backend: str) -> None:
    """A Tensor without dims is no number: its dtype takes part in promotion."""
    with rf.use_backend(backend):
        x = made("float32")
        assert (x * rf.convert_to_tensor(2.0, dtype="float64")).dtype == "float64"
        assert (made("int32") * rf.convert_to_tensor(2, dtype="int64")).dtype == "int64"


# -- the default float dtype


def test_default_float_dtype() -> None:
    assert rf.get_default_float_dtype() == "float32" and rf.get_default_int_dtype() == "int32"
    with rf.use_backend("numpy"):
        i = made("int32")
        assert (i * 0.5).dtype == (i / 2).dtype == rf.sqrt(i).dtype == rf.zeros([F]).dtype == "float32"
        with rf.set_default_float_dtype_ctx("float64"):
            assert (i * 0.5).dtype == (i / 2).dtype == rf.sqrt(i).dtype == rf.zeros([F]).dtype == "float64"
            assert (
                rf.convert_to_tensor(0.5).dtype
                == rf.reduce_mean(i, axis=F).dtype
                == rf.Tensor("x", [F]).dtype
                == "float64"
            )
            check(i * 0.5, "float64", [0.5, 1, 1.5])
            assert (made("float32") * 0.5).dtype == "float32", "a float tensor keeps its dtype"
        assert (i * 0.5).dtype == (i / 2).dtype == rf.sqrt(i).dtype == rf.zeros([F]).dtype == "float32"
        check(i * 0.5, "float32", [0.5, 1, 1.5])


@pytest.mark.parametrize("bad", ["int32", "float31", "complex64"])
def test_bad_default_float_dtype(bad: str) -> None:
    with pytest.raises(rf.RfError):
        rf.set_default_float_dtype(bad)
    assert rf.get_default_float_dtype() == "float32"


def test_default_float_dtype_is_restored_after_an_error() -> None:
    with pytest.raises(ZeroDivisionError), rf.set_default_float_dtype_ctx("float64"):
        1 / 0  # noqa: B018
    assert rf.get_default_float_dtype() == "float32"


def test_is_float_dtype() -> None:
    assert [n for n in dtypes.ALL if rf.is_float_dtype(n)] == ["float16", "bfloat16", "float32", "float64"]
    assert not rf.is_float_dtype("nonsense")


# -- strings


def test_strings() -> None:
    with rf.use_backend("numpy"):
        x = rf.convert_to_tensor(["a", "bc", "d"], dims=[F])
        assert x.dtype == "string" and x.numpy().tolist() == ["a", "bc", "d"]
        assert x.copy_transpose([F]).numpy().tolist() == ["a", "bc", "d"]
        assert (x == rf.convert_to_tensor(["a", "b", "d"], dims=[F])).numpy().tolist() == [True, False, True]
        for operation in (
            lambda: x + 1,
            lambda: x * made("int32"),
            lambda: rf.exp(x),
            lambda: x == 1,
            lambda: rf.reduce_mean(x, axis=F),
        ):
            with pytest.raises(rf.RfError, match="there is no arithmetic with strings"):
                operation()
