"""Samples of elementwise ops: unary, binary, compare, select, cast."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

import rf
from conformance.sample import S, Sample

_erf = np.vectorize(math.erf)


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


Reference = Callable[..., Any]

UNARY: dict[str, Reference] = {
    "exp": np.exp,
    "expm1": np.expm1,
    "sin": np.sin,
    "cos": np.cos,
    "tanh": np.tanh,
    "erf": _erf,
    "sigmoid": _sigmoid,
    "log_sigmoid": lambda x: np.log(_sigmoid(x)),
    "elu": lambda x: np.where(x > 0, x, np.exp(x) - 1),
    "selu": lambda x: 1.05070098735548 * np.where(x > 0, x, 1.67326324235437 * (np.exp(x) - 1)),
    "silu": lambda x: x * _sigmoid(x),
    "swish": lambda x: x * _sigmoid(x),
    "gelu": lambda x: x * (1 + _erf(x / 2**0.5)) / 2,
    "reciprocal": lambda x: 1 / x,
}
UNARY_POSITIVE: dict[str, Reference] = {
    "log": np.log,
    "log1p": np.log1p,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "safe_log": np.log,
}
UNARY_KEEPING_DTYPE: dict[str, Reference] = {
    "neg": np.negative,
    "square": np.square,
    "relu": lambda x: np.maximum(x, 0),
    "relu_square": lambda x: np.maximum(x, 0) ** 2,
    "abs": np.abs,
    "sign": np.sign,
    "identity": lambda x: x,
}
ROUNDING: dict[str, Reference] = {"ceil": np.ceil, "floor": np.floor, "round": np.round}
TESTS: dict[str, Reference] = {"is_finite": np.isfinite, "is_infinite": np.isinf, "is_neg_infinite": np.isneginf}

SAMPLES: list[Sample] = []
for name, ref in {**UNARY, **UNARY_POSITIVE}.items():
    kind = "~pos" if name in UNARY_POSITIVE else ""
    for dtype in ("float32", "float64", "float16", "bfloat16"):
        no_backend = ("numpy",) if dtype == "bfloat16" else ()
        light = dtype != "float32"
        SAMPLES.append(
            S(name, f"B T *F:{dtype}{kind}", out=f"B T *F:{dtype}", ref=ref, no_backend=no_backend, light=light)
        )
    # integers are computed in the default float dtype
    SAMPLES.append(S(name, f"B T:int32{kind}", out="B T:float32", ref=ref, light=True))
for name, ref in UNARY_KEEPING_DTYPE.items():
    SAMPLES += [
        S(name, f"B T F:{dtype}", out=f"B T F:{dtype}", ref=ref, light=dtype != "float32")
        for dtype in ("float32", "float16", "int32")
    ]
for name, ref in ROUNDING.items():
    SAMPLES += [
        S(name, f"B T F:{dtype}", out=f"B T F:{dtype}", ref=ref, light=dtype != "float32")
        for dtype in ("float32", "int32")
    ]
for name, ref in TESTS.items():
    SAMPLES += [
        S(name, f"B T:{dtype}", out="B T:bool", ref=ref, light=dtype != "float32", grad=False)
        for dtype in ("float32", "int32")
    ]
SAMPLES += [
    S("logical_not", "B T:bool", out="B T:bool", ref=np.logical_not),
    S("abs", "B F:complex64", out="B F:float32", ref=np.abs),
    S("abs", "B F:complex128", out="B F:float64", ref=np.abs),
    S("exp", "B F:complex64", out="B F:complex64", ref=np.exp),
    S("identity", "B T>V", out="B T:int32>V", ref=lambda x: x),
    S("round", "B F~half", out="B F", ref=np.round, grad=False, id="halves"),
    S("relu", "", out=""),
    S("relu", "T F", out="T F", id="without-B"),
]

# -- binary

BINARY: dict[str, Reference] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "squared_difference": lambda a, b: (a - b) ** 2,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "floor_divide": np.floor_divide,
    "mod": np.mod,
}
COMPARE: dict[str, Reference] = {
    "equal": np.equal,
    "not_equal": np.not_equal,
    "less": np.less,
    "less_equal": np.less_equal,
    "greater": np.greater,
    "greater_equal": np.greater_equal,
}
for name, ref in BINARY.items():
    grad = name != "floor_divide"
    SAMPLES += [
        S(name, "B T F", "B T F", out="B T F:float32", ref=ref, grad=grad),
        S(name, "B T F", "F", out="B T F:float32", ref=ref, grad=grad),
        S(name, "B T F:float16", "B T F:float16", out="B T F:float16", ref=ref, light=True),
        S(name, "B T:int32", "T:int32", out="B T:int32", ref=ref, light=name != "add"),
        S(name, "B T:int32", "B T F", out="B T F:float32", ref=lambda a, b, ref=ref: ref(a[..., None], b), light=True),
    ]
SAMPLES += [
    S("true_divide", "B T F", "B T F", out="B T F:float32", ref=np.true_divide),
    S("true_divide", "B T:int32", "T:int32", out="B T:float32", ref=np.true_divide),
    S("true_divide", "B T:int32", "B T:float64", out="B T:float64", ref=np.true_divide),
    S("pow", "B T F~pos", "B T F", out="B T F:float32", ref=np.power),
    S("pow", "B T:int32", "T:int32~pos", out="B T:int32", ref=np.power),
    S("log_add_exp", "B T F~wide", "F~wide", out="B T F:float32", ref=np.logaddexp),
    S("log_add_exp", "B T:int32", "T:int32", out="B T:float32", ref=np.logaddexp, grad=False),
    S("ceil_divide", "B T:int32", "T:int32", out="B T:int32", ref=lambda a, b: -(-a // b)),
    S("ceil_divide", "B T F", "F", out="B T F:float32", ref=lambda a, b: np.ceil(a / b), grad=False),
    S("logical_and", "B T:bool", "T:bool", out="B T:bool", ref=np.logical_and),
    S("logical_or", "B T:bool", "T:bool", out="B T:bool", ref=np.logical_or),
    S("opt_logical_and", "B T:bool", "T:bool", out="B T:bool", ref=np.logical_and),
    S("opt_logical_or", "B T:bool", "T:bool", out="B T:bool", ref=np.logical_or),
    S("add", "B F:complex64", "B F", out="B F:complex64", ref=np.add, grad=False),
    S("mul", "B F:bool", "B F:bool", out="B F:int32", ref=np.multiply),
    S("add", "B F:bool", "B F:int32", out="B F:int32", ref=np.add),
    S("add", "*F", "B T *F", out="B T *F", ref=np.add, id="larger-right"),
    S("add", "", "B T F", out="B T F", ref=np.add, id="scalar-left"),
    S("add", "B T>V", "B T>V", out="B T:int32>V", ref=np.add),
    S("add", "T", "B T", out="B T", ref=np.add, id="without-B"),
]
for name, ref in COMPARE.items():
    SAMPLES += [
        S(name, "B T F~coarse", "F~coarse", out="B T F:bool", ref=ref, grad=False),
        S(name, "B T:int32", "T:int32", out="B T:bool", ref=ref, light=True),
        S(name, "B T:int32", "T", out="B T:bool", ref=ref, light=True),
    ]

# -- with numbers, operators, and the functions that take the kind as a string

for symbol, ref in {"+": np.add, "-": np.subtract, "*": np.multiply, "/": np.true_divide}.items():
    call = {
        "+": lambda d, x, y: (x + y, x + 2, 2 + x, x + 0.5, 0 + x, x + 0),
        "-": lambda d, x, y: (x - y, x - 2, 2 - x, x - 0.5, 0 - x, x - 0),
        "*": lambda d, x, y: (x * y, x * 2, 2 * x, x * 0.5, 1 * x, x * 1),
        "/": lambda d, x, y: (x / y, x / 2, 2 / x, x / 0.5, 1 / x, x / 1),
    }[symbol]
    SAMPLES += [
        S(f"operator{symbol}", "B T F", "F", call=call, out="B T F:float32", ref=ref),
        S(f"operator{symbol}", "B T:int32", "T:int32", call=call, ref=ref, out="B T"),
    ]
SAMPLES += [
    S("operator//", "B T", "T", call=lambda d, x, y: (x // y, x // 0.5, 2 // x), out="B T", ref=np.floor_divide,
      grad=False),
    S("operator%", "B T", "T", call=lambda d, x, y: (x % y, x % 0.5, 2 % x), out="B T", ref=np.mod, grad=False),
    S("operator//", "B T:int32", "T:int32", call=lambda d, x, y: (x // y, x // 2, 7 // x), out="B T",
      ref=np.floor_divide),
    S("operator%", "B T:int32", "T:int32", call=lambda d, x, y: (x % y, x % 3, 7 % x), out="B T", ref=np.mod),
    S("operator**", "B T~pos", "T", call=lambda d, x, y: (x**y, x**2, 2**x, x**0.5, x**-1), out="B T", ref=np.power),
    S("operator**", "B T:int32", call=lambda d, x: (x**2, x**1, 2.0**x), out="B T:int32", ref=np.square),
    S("operators", "B T F", call=lambda d, x: (-x, abs(x), x < 0, x <= 0.5, x > 0, x >= 1, x == x, x != 1),
      out="B T F"),
    S("operators", "B T:bool", "T:bool", call=lambda d, x, y: (~x, x & y, x | y, x & True, False | x), out="B T:bool"),
    S("operators", "B T:int32", call=lambda d, x: (x > 0.5, x == 3, x * 0.5, x + True), out="B T:bool"),
    S("operators", "B T:uint8", call=lambda d, x: (x > 0.5, x == 3, x * 0.5, x - 1), out="B T:bool", order=False),
    S("combine", "B T F", "F", kind="-", call=lambda d, x, y, kind: rf.combine(x, kind, y), out="B T F",
      ref=np.subtract),
    S("combine", "B T F", "F", call=lambda d, x, y: rf.combine(x, "truediv", y, dim_order=[d.F, d.G, d.T]),
      out="B T F"),
    S("combine", "B T", "B F", call=lambda d, x, y: rf.combine(x, "*", y, allow_broadcast_all_sources=True),
      out="B T F", ref=lambda x, y: x[:, :, None] * y[:, None]),
    S("combine_bc", "B T", "B U", call=lambda d, x, y: rf.combine_bc(x, "+", y),
      out="B T U", ref=lambda x, y: x[:, :, None] + y[:, None]),
    S("combine_bc", "B", "F", call=lambda d, x, y: rf.combine_bc(x, "squared_difference", y), out="B F"),
    S("combine_bc", "B T", "F", call=lambda d, x, y: rf.combine_bc(x, "-", y, dim_order=[d.F]), out="B T F"),
    S("compare", "B T F", "F", call=lambda d, x, y: rf.compare(x, "<", y), out="B T F:bool", ref=np.less, grad=False),
    S("compare_bc", "T:int32", "B:int32", call=lambda d, x, y: rf.compare_bc(x, "less", y),
      out="B T:bool", ref=lambda x, y: x < y[:, None]),
    S("maximum", "B T F", "F", "", out="B T F", ref=lambda a, b, c: np.maximum(np.maximum(a, b), c), id="three"),
    S("minimum", "B T F", "F", "", out="B T F", ref=lambda a, b, c: np.minimum(np.minimum(a, b), c), id="three"),
    S("clip_by_value", "B T F", clip_value_min=-0.3, clip_value_max=0.7, out="B T F",
      ref=lambda x: np.clip(x, -0.3, 0.7)),
    S("clip_by_value", "B T F", clip_value_max=0.7, out="B T F", ref=lambda x: np.minimum(x, 0.7)),
    S("clip_by_value", "B T F", "F~unit", "F~pos", out="B T F"),
    S("clip_by_value", "B T", "F~unit", allow_broadcast_all_sources=True, out="B T F"),
    S("lerp", "B T F", "B T F", weight=0.3, out="B T F", ref=lambda a, b: a + 0.3 * (b - a)),
    S("lerp", "B T F", "F", "B T", out="B T F", ref=lambda a, b, w: a + w[..., None] * (b - a)),
    S("lerp", "B T", "F", weight=0.5, allow_broadcast_all_sources=True, out="B T F"),
    S("safe_log", "B T", eps=0.5, out="B T", ref=lambda x: np.log(np.maximum(x, 0.5))),
    S("where", "B T:bool", "B T F", "F", out="B T F", ref=lambda c, x, y: np.where(c[..., None], x, y)),
    S("where", "B T:bool", "B T", false_=0.0, out="B T:float32", ref=lambda c, x: np.where(c, x, 0)),
    S("where", "B T:bool", "false_=B T:int32", true_=0.5, out="B T:float32", ref=lambda c, x: np.where(c, 0.5, x)),
    S("where", "B T:bool", true_=1, false_=2, out="B T:int32", ref=lambda c: np.where(c, 1, 2)),
    S("where", "B T:bool", "B T:int32", "B T:float16", out="B T:float16", grad=False),
    S("where", "B T:bool", "F", "", allow_broadcast_all_sources=True, out="B T F"),
    S("where", "B T:bool", "B T>V", "B T>V", out="B T:int32>V"),
    S("cast", "B T>V", call=lambda d, x: rf.cast(x, "int64"), out="B T:int64>V", ref=lambda x: x),
    S("cast", "B T>V", call=lambda d, x: rf.cast(x, "float32"), out="B T:float32", ref=lambda x: x, id="float"),
    S("copy_masked", "B T F", call=lambda d, x: x.copy_masked(0.5), out="B T F", masked=True, ref=lambda x: x),
    S("copy_masked", "B T F", "B", call=lambda d, x, y: x.copy_masked(y), out="B T F", masked=True, ref=lambda x, y: x),
    S("copy_masked", "B T U:int32", call=lambda d, x: x.copy_masked(0, dims=[d.T]), out="B T U:int32", masked=True),
    S("copy_masked", "B T W", call=lambda d, x: x.copy_masked(0), out="B T W", masked=True),
]  # fmt: skip
CASTS = """
    float32 float64, float32 float16, float16 float32, int32 float32, bool int32, bool float32, int32 bool, int32 int64,
    float32 int32, float32 float32, float32 complex64, float64 float32, int64 uint8
"""
for pair in CASTS.split(","):
    source, target = pair.split()
    SAMPLES.append(
        S(
            "cast",
            f"B T:{source}~pos",
            id=f"to-{target}",
            call=lambda d, x, to=target: rf.cast(x, to),
            out=f"B T:{target}",
            ref=lambda x, to=target: x.astype(to),
            light=pair.split() != ["float32", "float64"],
        )
    )

# What treats each frame by itself cannot depend on how many there are: that a sequence alone gives the same is enough.
SAMPLES = [s if s.masked else replace(s, wider=False) for s in SAMPLES]
