"""Wrong calls raise the same error, with the same text, on every backend."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import rf
from conformance.sample import BATCHED, Dims, Operand, to_raw, to_tensor


class Bad:
    """What a bad call may use: dims as ``b.T``, tensors as ``b("B T:int32")``."""

    def __init__(self, backend: str):
        self.backend = backend
        self.dims = Dims(BATCHED)

    def __getattr__(self, name: str) -> rf.Dim:
        return getattr(self.dims, name)

    def __call__(self, text: str) -> rf.Tensor:
        operand = Operand.parse(text, "float32")
        shape = [getattr(self.dims, n).get_dim_value() for n in operand.dims]
        return to_tensor(operand, to_raw(self.backend, np.ones(shape), operand.dtype), self.dims)


CALLS: dict[str, tuple[Callable[[Bad], Any], type[Exception], str]] = {
    # -- dims that do not fit
    "add of dims that do not fit": (
        lambda b: b("B T") + b("B F"),
        rf.DimError,
        r"add: no operand has all dims .*rf\.combine_bc",
    ),
    "compare of dims that do not fit": (lambda b: b("T") < b("F"), rf.DimError, "less: no operand has all dims"),
    "where of dims that do not fit": (
        lambda b: rf.where(b("B:bool"), b("T"), 0),
        rf.DimError,
        "where: no operand has all dims",
    ),
    "reduce over a dim that is not there": (
        lambda b: rf.reduce_sum(b("B T"), axis=b.F),
        rf.DimError,
        "reduce_sum: axis F=2 is not a dim of x: ",
    ),
    "argmax over two dims": (
        lambda b: rf.reduce(b("B F"), mode="argmax", axis=[b.B, b.F]),
        rf.DimError,
        "takes exactly one axis",
    ),
    "softmax over a dim that is not there": (
        lambda b: rf.softmax(b("B T"), axis=b.F),
        rf.DimError,
        "softmax: axis F=2 is not a dim of",
    ),
    "matmul over a dim that is not there": (
        lambda b: rf.matmul(b("B F"), b("G"), reduce=b.F),
        rf.DimError,
        "F=2 is not a dim of operand b",
    ),
    "gather along a dim that is not there": (
        lambda b: rf.gather(b("B T"), indices=b("B>V"), axis=b.V),
        rf.DimError,
        "axis V=5 is not a dim",
    ),
    "transpose to other dims": (lambda b: b("B T").copy_transpose([b.T, b.F]), rf.DimError, "F=2 is not a dim of"),
    "transpose to fewer dims": (lambda b: b("B T").copy_transpose([b.T]), rf.DimError, "not exactly the dims"),
    "remaining dims": (lambda b: b("B T").remaining_dims(b.F), rf.DimError, "F=2 is not a dim of"),
    "feature dim that is not there": (lambda b: setattr(b("B T"), "feature_dim", b.F), rf.DimError, "feature_dim F=2"),
    # -- dtypes that do not fit
    "logical_and of numbers": (lambda b: b("B") & b("B"), rf.RfError, "logical_and: needs bool operands"),
    "logical_not of numbers": (lambda b: ~b("B"), rf.RfError, "logical_not: needs a bool operand"),
    "neg of bools": (lambda b: -b("B:bool"), rf.RfError, "neg: needs a number"),
    "where with a number as condition": (lambda b: rf.where(b("B"), 1, 2), rf.RfError, "condition must be bool"),
    "reduce_any of numbers": (lambda b: rf.reduce_any(b("B"), axis=b.B), rf.RfError, "reduce_any: needs a bool tensor"),
    "gather with float indices": (
        lambda b: rf.gather(b("V"), indices=b("B"), axis=b.V),
        rf.RfError,
        "indices must be integers",
    ),
    "cast to an unknown dtype": (lambda b: rf.cast(b("B"), "float31"), rf.RfError, "unknown dtype 'float31'; rf knows"),
    "sparse dim of floats": (lambda b: setattr(b("B"), "sparse_dim", b.V), rf.DimError, "needs an integer tensor"),
    "a number that does not fit": (lambda b: b("B:int8") + 1000, rf.RfError, "the number 1000 does not fit int8"),
    "unknown mode": (
        lambda b: rf.reduce(b("B"), mode="median", axis=b.B),
        rf.RfError,
        "unknown mode 'median'; choose one of sum",
    ),
    "unknown kind": (lambda b: rf.combine(b("B"), "plus", 1), rf.RfError, "unknown kind 'plus'; choose one of add"),
    "set the dtype of data": (lambda b: setattr(b("B"), "dtype", "int32"), rf.RfError, "use rf.cast"),
    # -- things that are no operands
    "add of a raw array": (
        lambda b: rf.add(b("B"), np.ones(3)),
        TypeError,
        "a raw array has no dims; wrap it with rf.convert_to_tensor",
    ),
    "add of a string": (lambda b: rf.add(b("B"), "x"), TypeError, "expected a Tensor or a number, got str"),
    "add of a template": (
        lambda b: b("B") + rf.Tensor("y", [b.B], "float32"),
        rf.RfError,
        "y: .* template without data",
    ),
    "truth value": (lambda b: bool(b("B")), TypeError, "truth value of x: .* is not defined"),
    "index": (lambda b: b("B")[0], TypeError, r"use rf\.gather"),
    "iterate": (lambda b: list(b("B")), TypeError, r"use rf\.unstack"),
    "item of several": (lambda b: b("B").item(), rf.RfError, "expected a Tensor without dims"),
    "no dim": (lambda b: rf.Tensor("x", [3], "float32"), TypeError, "dims must be Dim objects"),  # type: ignore[list-item]
    "twice the same dim": (lambda b: rf.Tensor("x", [b.B, b.B], "float32"), rf.DimError, "B=3 occurs twice"),
}


def call(backend: str, name: str) -> tuple[type[BaseException], str]:
    function = CALLS[name][0]
    with rf.use_backend(backend), pytest.raises(Exception) as caught:  # which one, the tests say
        function(Bad(backend))
    return caught.type, str(caught.value)


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("backend", ["numpy", pytest.param("torch", marks=pytest.mark.needs("torch")), "meta"])
def test_error(backend: str, name: str) -> None:
    _, error, pattern = CALLS[name]
    type_, text = call(backend, name)
    assert type_ is error, f"{type_.__name__}: {text}"
    assert re.search(pattern, text, re.DOTALL), text
    _, numpy_text = call("numpy", name)
    assert re.sub(rf"\b{backend}\b", "numpy", text) == numpy_text
