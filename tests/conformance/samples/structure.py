"""Samples of ops that rearrange, index, and make tensors."""

from __future__ import annotations

import numpy as np

import rf
from conformance.sample import S, Sample
from rf._registry import OPS

SAMPLES: list[Sample] = [
    S("permute", "B T *F", call=lambda d, x: x.copy_transpose([d.F, d.B, d.T]), out="F B T",
      ref=lambda x: x.transpose(2, 0, 1)),
    S("permute", "B T>V", call=lambda d, x: x.copy_transpose([d.T, d.B]), out="T B:int32>V", ref=lambda x: x.T),
    # -- create
    S("zeros", dims=["B", "T"], out="B T:float32", ref=lambda: np.zeros((2, 4))),
    S("zeros", dims=[], out=":float32", id="scalar"),
    S("zeros", call=lambda d: rf.zeros([d.F], dtype="int32"), out="F:int32", id="int32"),
    S("ones", dims=["B", "T"], out="B T:float32", ref=lambda: np.ones((2, 4))),
    S("full", dims=["B", "F"], fill_value=3, out="B F:int32", ref=lambda: np.full((2, 2), 3)),
    S("full", dims=["F"], fill_value=True, out="F:bool"),
    S("fill", dims=["F"], fill_value=0.5, feature_dim="F", out="*F:float32"),
    S("constant", dims=["F"], fill_value=2, sparse_dim="V", out="F:int32>V"),
    S("zeros_like", "B T *F", out="B T *F", ref=np.zeros_like, grad=False),
    S("ones_like", "B T:int32", out="B T:int32", ref=np.ones_like),
    S("range_over_dim", dim="T", out="T:int32>T", ref=lambda: np.arange(4)),
    S("range_over_dim", call=lambda d: rf.range_over_dim(d.F, dtype="float32"), out="F:float32",
      ref=lambda: np.arange(2)),
    S("convert_to_tensor", value=[1, 2], dims=["F"], out="F:int32", ref=lambda: np.array([1, 2])),
    S("convert_to_tensor", value=0.5, out=":float32"),
    S("convert_to_tensor", value=[True, False], dims=["F"], out="F:bool"),
    S("convert_to_tensor", call=lambda d: rf.convert_to_tensor(np.arange(2), dims=[d.F], sparse_dim=d.V),
      out="F:int64>V"),
    S("convert_to_tensor", "B T", call=lambda d, x: rf.convert_to_tensor(x, dtype="int32"), out="B T:int32",
      grad=False),
    S("copy_to_device", "B T", out="B T", ref=lambda x: x),
    # -- index
    S("gather", "V F", "B T>V", call=lambda d, x, i: OPS["gather"](x, i, d.V), out="B T F", ref=lambda x, i: x[i]),
    S("gather", "B V F", "B T>V", call=lambda d, x, i: OPS["gather"](x, i, d.V), out="B T F"),
    S("gather", "B T F", "B>T", call=lambda d, x, i: OPS["gather"](x, i, d.T), out="B F", zero=False),
    S("gather", "B T F", "B U>T", call=lambda d, x, i: OPS["gather"](x, i, d.T), out="B U F", zero=False),
    S("gather", "V", ">V", call=lambda d, x, i: OPS["gather"](x, i, d.V), out="", id="scalar"),
]  # fmt: skip
