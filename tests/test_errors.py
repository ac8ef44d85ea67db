"""Texts of errors, as users see them: what was asked, each operand with its dims, the dim at fault, what to write
instead."""

# ruff: noqa: E501  # texts are as long as they are

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rf
from rf import Dim, Tensor
from rf.backend import backend_names


class World:
    """Dims and tensors of the examples."""

    def __init__(self) -> None:
        self.B = Dim(None, name="B").fill(3)
        self.T = Dim(None, name="T").fill([5, 2, 7], [self.B])
        self.T2 = Dim(None, name="T2").fill([5, 2, 7], [self.B])
        self.F, self.G, self.V = Dim(512, name="F"), Dim(4, name="G"), Dim(10, name="V")

    def __call__(self, name: str, *dims: Dim, dtype: str = "float32", **kwargs: Any) -> Tensor:
        raw = np.zeros([d.get_dim_value() for d in dims], dtype=dtype)
        return Tensor(name, dims, dtype, raw_tensor=raw, **kwargs)


EXPECTED: dict[str, tuple[Callable[[World], Any], str]] = {
    "add": (
        lambda w: w("x", w.B, w.T, w.F) + w("y", w.B, w.T2),
        """
DimError: add: no operand has all dims of the result {B=3, T=7(5,2,7), F=512, T2=7(5,2,7)}:
  a: x: {B=3, T=7(5,2,7), F=512} float32 numpy, lacks [T2=7(5,2,7)]
  b: y: {B=3, T2=7(5,2,7)} float32 numpy, lacks [T=7(5,2,7), F=512]
If two of these dims are meant to be the same, use one Dim object for both (rf.replace_dim). If the outer product is meant, write rf.combine_bc(a, "add", b) (compare_bc, or allow_broadcast_all_sources=True).
""",
    ),
    "where": (
        lambda w: rf.where(w("c", w.B, dtype="bool"), w("x", w.T), 0.0),
        """
DimError: where: no operand has all dims of the result {B=3, T=7(5,2,7)}:
  a: c: {B=3} bool numpy, lacks [T=7(5,2,7)]
  b: x: {T=7(5,2,7)} float32 numpy, lacks [B=3]
  c: {} float32 numpy, lacks [B=3, T=7(5,2,7)]
If two of these dims are meant to be the same, use one Dim object for both (rf.replace_dim). If the outer product is meant, write rf.combine_bc(a, "where", b) (compare_bc, or allow_broadcast_all_sources=True).
""",
    ),
    "matmul": (
        lambda w: rf.matmul(w("x", w.B, w.T, w.F), w("weight", w.G, w.V), reduce=w.F),
        """
DimError: matmul over [F=512]: F=512 is not a dim of operand b:
  a: x: {B=3, T=7(5,2,7), F=512} float32 numpy
  b: weight: {G=4, V=10} float32 numpy
If it has that dim under another Dim object, use one object for both (rf.replace_dim).
""",
    ),
    "reduce": (
        lambda w: rf.reduce_mean(w("x", w.B, w.T), axis=w.F),
        "DimError: reduce_mean: axis F=512 is not a dim of x: {B=3, T=7(5,2,7)} float32 numpy",
    ),
    "reduce_any": (
        lambda w: rf.reduce_any(w("x", w.B, w.T), axis=w.T),
        "RfError: reduce_any: needs a bool tensor, got x: {B=3, T=7(5,2,7)} float32 numpy",
    ),
    "softmax": (
        lambda w: rf.softmax(w("x", w.B, w.T), axis=w.F),
        "DimError: softmax: axis F=512 is not a dim of x: {B=3, T=7(5,2,7)} float32 numpy",
    ),
    "gather": (
        lambda w: rf.gather(w("table", w.V, w.F), indices=w("i", w.B, dtype="int32"), axis=w.G),
        """
DimError: gather: axis G=4 is not a dim of the source:
  source: table: {V=10, F=512} float32 numpy
  indices: i: {B=3} int32 numpy
""",
    ),
    "gather with floats": (
        lambda w: rf.gather(w("table", w.V, w.F), indices=w("i", w.B), axis=w.V),
        "RfError: gather: indices must be integers, got i: {B=3} float32 numpy",
    ),
    "raw shape": (
        lambda w: Tensor("x", [w.B, w.T, w.G], "float32", raw_tensor=np.zeros((3, 7, 5), dtype="float32")),
        "ShapeError: Tensor 'x': axis 2 of the raw tensor (3, 7, 5) has length 5, but dim G=4 has 4; dims are {B=3, T=7(5,2,7), G=4}",
    ),
    "raw length": (
        lambda w: Tensor("x", [w.B, w.T], "float32", raw_tensor=np.zeros((3, 9), dtype="float32")),
        "ShapeError: Tensor 'x': axis 1 of the raw tensor (3, 9) has length 9, but dim T=7(5,2,7) has 7; dims are {B=3, T=7(5,2,7)}. "
        "Fill the dim anew for this batch (dim.fill or dim.reset_eager).",
    ),
    "raw axes": (
        lambda w: Tensor("x", [w.B, w.T, w.F], "float32", raw_tensor=np.zeros((3, 7), dtype="float32")),
        "ShapeError: Tensor 'x': the raw tensor has 2 axes (3, 7), the dims are {B=3, T=7(5,2,7), F=512}",
    ),
    "raw dtype": (
        lambda w: Tensor("x", [w.G], "float32", raw_tensor=np.zeros(4)),
        "ShapeError: Tensor 'x': the raw tensor has dtype float64, the Tensor says float32; convert it first",
    ),
    "dim twice": (
        lambda w: Tensor("x", [w.T, w.F, w.T], "float32"),
        "DimError: Tensor x with dims {T=7(5,2,7), F=512, T=7(5,2,7)}: T=7(5,2,7) occurs twice. Give one of them another dim "
        "(rf.replace_dim), or, for a square parameter, dim.copy(match_priority=1).",
    ),
    "truth value": (
        lambda w: bool(w("x", w.B) > 0),
        "TypeError: the truth value of {B=3} bool numpy is not defined; use x.item() for a scalar on the host, rf.where or rf.cond to choose by it",
    ),
    "item": (
        lambda w: w("x", w.B).item(),
        "RfError: item: expected a Tensor without dims, got x: {B=3} float32 numpy; reduce it first, or use x.numpy()",
    ),
    "index": (
        lambda w: w("x", w.B)[0],
        "TypeError: x[...] is not supported on x: {B=3} float32 numpy; use rf.gather(x, indices=..., axis=dim) or rf.slice(x, axis=dim, ...)",
    ),
    "raw operand": (
        lambda w: rf.mul(w("x", w.B), np.zeros(3)),
        "TypeError: mul: expected a Tensor or a number, got ndarray: a raw array has no dims; wrap it with rf.convert_to_tensor(x, dims=[...])",
    ),
    "template": (
        lambda w: w("x", w.B) * Tensor("y", [w.B], "float32"),
        "RfError: mul: the operand y: {B=3} float32 template is a template without data (raw_tensor is None)",
    ),
    "number": (
        lambda w: w("x", w.B, dtype="uint8") - 300,
        "RfError: the number 300 does not fit uint8 (0..255); cast the tensor to a wider dtype first",
    ),
    "logical": (
        lambda w: w("x", w.B) & w("y", w.B, dtype="bool"),
        """
RfError: logical_and: needs bool operands, got
  a: x: {B=3} float32 numpy
  b: y: {B=3} bool numpy
Compare first (x != 0).
""",
    ),
    "not filled": (
        lambda w: rf.zeros([Dim(Tensor("sizes", [w.B], "int32"), name="U")]),
        "DimError: the sizes of dim U are not known yet; fill it first: dim.fill(sizes, dims=[batch_dim])",
    ),
    "static fill": (lambda w: w.F.fill(3), "DimError: fill: F=512 is static"),
    "fill": (lambda w: w.T.fill([1, 2]), "DimError: fill T=7(5,2,7): sizes of shape (2,) do not fit their dims [B=3]"),
    "negative": (lambda w: w.G - w.V, "DimError: dim (G-V): the size would be -6, which is negative"),
    "inexact": (
        lambda w: w.V / 4,
        "DimError: dim V/4: 10 is not divisible by 4; use // to round down or ceildiv_right to round up",
    ),
    "declare_same_as": (
        lambda w: w.G.declare_same_as(w.V),
        "DimError: declare_same_as: G=4 and V=10 have different sizes",
    ),
    "dtype": (
        lambda w: rf.cast(w("x", w.B), "float"),
        "RfError: unknown dtype 'float'; rf knows bool, uint8, int8, int16, int32, int64, float16, bfloat16, float32, float64, complex64, complex128, string",
    ),
    "backend": (
        lambda w: rf.select_backend("jax"),
        "UserError: unknown backend 'jax'; choose one of: BACKENDS; or meta:NAME, meta in place of NAME",
    ),
    "feature dim": (
        lambda w: Tensor("x", [w.B], "float32", feature_dim=w.F),
        "DimError: feature_dim F=512 is not a dim of x: {B=3} float32 template",
    ),
}


@pytest.mark.parametrize("what", EXPECTED)
def test_text(what: str) -> None:
    call, expected = EXPECTED[what]
    with rf.use_backend("numpy"), pytest.raises((rf.RfError, TypeError)) as caught:
        call(World())
    expected = expected.strip().replace("BACKENDS", ", ".join(backend_names()))  # other tests may register more
    assert f"{type(caught.value).__name__}: {caught.value}" == expected


@pytest.mark.needs("torch")
def test_mixed_backends() -> None:
    w = World()
    with rf.use_backend("torch"):
        y = rf.zeros([w.B])
    y.name = "y"
    with pytest.raises(rf.BackendError) as caught:
        w("x", w.B) + y
    assert str(caught.value) == (
        "add: operands of different backends (numpy, torch):\n"
        "  x: {B=3} float32 numpy on numpy\n"
        "  y: {B=3} float32 torch on torch\n"
        "Convert one of them first: rf.convert_backend(x, name)."
    )


def test_meta() -> None:
    with rf.use_backend("meta"), pytest.raises(rf.BackendError) as caught:
        rf.zeros([]).item()
    assert str(caught.value).startswith("the meta backend computes nothing, so a value does not exist. Control flow")


def test_no_error_text_names_internals() -> None:
    """What users see speaks of their dims and tensors, not of slots, plans or raw keys."""
    for call, _ in EXPECTED.values():
        with rf.use_backend("numpy"), pytest.raises((rf.RfError, TypeError)) as caught:
            call(World())
        for word in ("_raw", "_dims", "slot", "planner", "object at 0x"):
            assert word not in str(caught.value)


def test_errors_are_of_rf_and_of_their_natural_class() -> None:
    assert issubclass(rf.DimError, ValueError) and issubclass(rf.ShapeError, ValueError)
    assert issubclass(rf.BackendError, RuntimeError) and issubclass(rf.BackendMissingError, rf.BackendError)
    for error in (rf.DimError, rf.ShapeError, rf.BackendError, rf.UserError):
        assert issubclass(error, rf.RfError)


def test_traceback_ends_in_readable_code() -> None:
    """An error of a planner comes out of the op call without anything in between that was caught and raised again."""
    w = World()
    with rf.use_backend("numpy"), pytest.raises(rf.DimError) as caught:
        w("x", w.B) + w("y", w.T)
    assert caught.value.__cause__ is None and caught.value.__context__ is None
    assert Path(str(caught.traceback[0].path)).name == os.path.basename(__file__)
