"""Samples of reductions, contractions and normalizations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from conformance.sample import S, Sample
from rf._registry import OPS


def _logsumexp(x: np.ndarray, axis: Any) -> np.ndarray:
    return np.log(np.exp(x).sum(axis))


MODES: dict[str, Callable[..., Any]] = {
    "sum": np.sum,
    "mean": np.mean,
    "max": np.max,
    "min": np.min,
    "logsumexp": _logsumexp,
    "any": np.any,
    "all": np.all,
    "argmax": np.argmax,
    "argmin": np.argmin,
}


def _reductions(mode: str) -> list[Sample]:
    name, np_fn = f"reduce_{mode}", MODES[mode]
    dtype = ":bool" if mode in ("any", "all") else ""
    out = ":int32" if mode.startswith("arg") else dtype or ":float32"
    grad = out == ":float32"
    samples = [
        S(name, f"B T F{dtype}", axis="T", out="B F" + out, ref=lambda x: np_fn(x, 1), masked=True, grad=grad),
        S(name, f"B T F{dtype}", axis="F", out="B T" + out, ref=lambda x: np_fn(x, 2), grad=grad),
        # which frames there are then depends on the sequence that is reduced over
        S(name, f"B T F{dtype}", axis="B", out="T F" + out, ref=lambda x: np_fn(x, 0), masked=True, alone=False,
          grad=grad),
        S(name, f"B T U{dtype}", axis="U", out="B T" + out, ref=lambda x: np_fn(x, 2), masked="U", grad=grad),
        S(name, f"B T W{dtype}", axis="W", out="B T" + out, masked="W", grad=grad),
        S(name, f"B T W{dtype}", axis="T", out="B W" + out, masked=True, grad=grad),
        S(name, f"B N F{dtype}", axis="N", out="B F" + out, ref=lambda x: np_fn(x, 1), grad=grad),
        S(name, f"T F{dtype}", axis="T", out="B F" + out, grad=grad, static=False, id="puts-B-back"),
        S(name, f"B T F{dtype}", axis="T", use_mask=False, out="B F" + out, alone=False, poison=False, zero=False,
          grad=grad),
    ]  # fmt: skip
    if not mode.startswith("arg"):
        samples += [
            S(name, f"B T F{dtype}", axis=["T", "F"], out="B" + out, ref=lambda x: np_fn(x, (1, 2)), masked=True,
              grad=grad),
            S(name, f"B T F{dtype}", axis=["B", "T"], out="F" + out, ref=lambda x: np_fn(x, (0, 1)), masked=True,
              alone=False, grad=grad),
            S(name, f"B T U{dtype}", axis=["T", "U"], out="B" + out, ref=lambda x: np_fn(x, (1, 2)), masked=True,
              grad=grad),
            S(name, f"B T U F{dtype}", axis=["B", "T", "U"], out="F" + out, masked=True, alone=False, grad=grad),
            S(name, f"B T W{dtype}", axis=["T", "W"], out="B" + out, masked=True, grad=grad),
            S(name, f"B T W{dtype}", axis=["B", "T", "W"], out=out, masked=True, alone=False, grad=grad),
            S(name, f"B T{dtype}", axis=[], out="B T" + out, ref=lambda x: x, grad=grad, id="no-axis"),
        ]  # fmt: skip
    if mode in ("sum", "mean", "max", "argmin"):
        samples += [
            S(name, "B T:int32", axis="T", out="B:float32" if mode == "mean" else "B:int32", ref=lambda x: np_fn(x, 1),
              masked=True),
            S(name, "B T:float16", axis="T", light=True, ref=lambda x: np_fn(x, 1),
              out="B:int32" if mode == "argmin" else "B:float16"),
            S(name, "B T:bfloat16", axis="T", light=True, no_backend=["numpy"]),
            S(name, "B T:bool", axis="T", ref=lambda x: np_fn(x, 1), light=mode != "max", masked=True,
              out="B:" + {"mean": "float32", "max": "bool"}.get(mode, "int32")),
            S(name, "B T:uint8", axis="T", light=True),
        ]  # fmt: skip
    return samples


SAMPLES: list[Sample] = [s for mode in MODES for s in _reductions(mode)]
SAMPLES += [
    S("reduce", "B T *F", axis="T", mode="mean", out="B *F", ref=lambda x: x.mean(1), masked=True),
    S("reduce_sum", "B T>V", axis="T", out="B:int32>V", masked=True, id="sparse"),
    S("reduce_argmax", "B T~coarse", axis="T", out="B:int32>T", ref=lambda x: x.argmax(1), masked=True, grad=False,
      id="ties"),
    S("reduce_argmin", "B T:int32", axis="T", out="B:int32>T", ref=lambda x: x.argmin(1), masked=True, id="ties"),
    S("reduce_logsumexp", "B T F~wide", axis="T", out="B F", ref=lambda x: _logsumexp(x, 1), masked=True, id="wide"),
]  # fmt: skip

# -- contractions

SAMPLES += [
    S("matmul", "B T F", "F G", reduce="F", out="B T G", ref=lambda a, b: a @ b),
    S("matmul", "F G", "B T F", reduce="F", out="B T G", ref=lambda a, b: b @ a),
    S("matmul", "B T F", "B U F", reduce="F", out="B T U", ref=lambda a, b: np.einsum("btf,buf->btu", a, b)),
    S("matmul", "B T F", "B T F", reduce="F", out="B T", ref=lambda a, b: (a * b).sum(-1)),
    S("matmul", "B T F", "B T G", reduce="T", out="B F G", ref=lambda a, b: np.einsum("btf,btg->bfg", a, b),
      masked=True),
    S("matmul", "B T F", "B T F", reduce=["T", "F"], out="B", ref=lambda a, b: (a * b).sum((1, 2)), masked=True),
    S("matmul", "B T F", "B T G", reduce=["B", "T"], out="F G", masked=True, alone=False, ref=lambda a,
      b: np.einsum("btf,btg->fg", a, b)),
    S("matmul", "B T F", "T G", reduce="T", out="B F G", ref=lambda a, b: np.einsum("btf,tg->bfg", a, b)),
    S("matmul", "B T W F", "B T W", reduce="W", out="B T F", masked="W"),
    S("matmul", "B H T D", "B H U D", reduce="D", out="B H T U"),
    S("matmul", "B H T U", "B H U D", reduce="U", out="B H T D", masked="U"),
    S("matmul", "B T F", "B T G", reduce="T", use_mask=False, out="B F G", alone=False, poison=False, zero=False),
    S("matmul", "F", "F", reduce="F", out="", ref=lambda a, b: a @ b),
    S("matmul", "B T F", "G", reduce=[], out="B T F G", ref=lambda a, b: a[..., None] * b, id="outer"),
    S("matmul", "B T F:int32", "F G:int32", reduce="F", out="B T G:int32", ref=lambda a, b: a @ b),
    S("matmul", "B T F:int32", "F G", reduce="F", out="B T G:float32", ref=lambda a, b: a @ b, grad=False),
    S("matmul", "B T F:float16", "F G:float16", reduce="F", out="B T G:float16", ref=lambda a, b: a @ b, light=True),
    S("matmul", "B T F:bool", "F G:bool", reduce="F", out="B T G:int32", ref=lambda a,
      b: a.astype("int32") @ b.astype("int32")),
    S("matmul", "B T *F", "F *G", reduce="F", out="B T *G", id="feature"),
    S("dot", "B T F", "F G", reduce="F", out="B T G", ref=lambda a, b: a @ b),
    S("linear", "B T F", "F G", "G", out="B T *G", ref=lambda x, w, b: x @ w + b,
      call=lambda d, x, w, b: OPS["linear"](x, w, b, d.F, d.G)),
    S("linear", "B T F", "F G", out="B T *G", ref=lambda x, w: x @ w,
      call=lambda d, x, w: OPS["linear"](x, w, None, d.F, d.G)),
    S("linear", "F", "F G", "G", out="*G", call=lambda d, x, w, b: OPS["linear"](x, w, b, d.F, d.G)),
]  # fmt: skip

# -- normalizations


def _softmax(x: np.ndarray, axis: int) -> np.ndarray:
    return np.exp(x) / np.exp(x).sum(axis, keepdims=True)


def _layer_norm(x: np.ndarray, scale: Any = 1, bias: Any = 0) -> np.ndarray:
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-3) * scale + bias


def _rms_norm(x: np.ndarray, scale: Any = 1, bias: Any = 0) -> np.ndarray:
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-3) * scale + bias


for softmax, ref in {"softmax": _softmax, "log_softmax": lambda x, axis: np.log(_softmax(x, axis))}.items():
    SAMPLES += [
        S(softmax, "B T *F", axis="F", out="B T *F:float32", ref=lambda x, ref=ref: ref(x, 2)),
        S(softmax, "B T F", axis="T", out="B T F", ref=lambda x, ref=ref: ref(x, 1), masked=True),
        S(softmax, "B T U", axis="U", out="B T U", ref=lambda x, ref=ref: ref(x, 2), masked="U"),
        S(softmax, "B T W", axis="W", out="B T W", masked="W"),
        S(softmax, "B H T C", axis="C", out="B H T C", masked="C"),
        S(softmax, "B N", axis="N", out="B N", ref=lambda x, ref=ref: ref(x, 1)),
        S(softmax, "T", axis="T", out="B T", static=False, id="puts-B-back"),
        S(softmax, "B T~wide", axis="T", out="B T", masked=True),
        S(softmax, "B T", axis="T", use_mask=False, out="B T", alone=False, poison=False, zero=False),
        S(softmax, "B T:int32", axis="T", out="B T:float32", ref=lambda x, ref=ref: ref(x, 1), masked=True),
        S(softmax, "B T:float16", axis="T", out="B T:float16", light=True),
        S(softmax, "B T:bfloat16", axis="T", out="B T:bfloat16", light=True, no_backend=["numpy"]),
    ]  # fmt: skip
for norm, norm_ref in {"layer_norm": _layer_norm, "rms_norm": _rms_norm}.items():
    SAMPLES += [
        S(norm, "B T *D", "D", "D", out="B T *D", ref=norm_ref,
          call=lambda d, x, scale, bias, norm=norm: OPS[norm](x, scale, bias, (d.D,), 1e-3)),
        S(norm, "B T D", "D", out="B T D", ref=norm_ref,
          call=lambda d, x, scale, norm=norm: OPS[norm](x, scale, None, (d.D,), 1e-3)),
        S(norm, "B T D", out="B T D", ref=norm_ref, call=lambda d, x, norm=norm: OPS[norm](x, None, None, (d.D,),
          1e-3)),
        S(norm, "B T D G", "D G", "G D", out="B T D G",
          call=lambda d, x, scale, bias, norm=norm: OPS[norm](x, scale, bias, (d.D, d.G), 1e-3)),
        S(norm, "B T D:float16", out="B T D:float16", light=True,
          call=lambda d, x, norm=norm: OPS[norm](x, None, None, (d.D,), 1e-3)),
    ]  # fmt: skip
