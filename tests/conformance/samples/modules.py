"""Samples of the fused ops behind modules, and of modules: built anew for each run, with the same parameters on every
backend."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

import numpy as np

import rf
from conformance.sample import Dims, S, Sample
from rf._registry import OPS


def with_parameters(module: Any) -> Any:
    """The module, with parameters that depend on their names only; variances are positive."""
    for name, p in module.named_parameters():
        rng = np.random.default_rng(zlib.crc32(name.encode()))
        values = rng.uniform(-0.7, 0.7, [d.get_dim_value() for d in p.dims]).astype(p.dtype)
        p.assign(rf.convert_to_tensor(np.abs(values) + 0.5 if "variance" in name else values, dims=p.dims))
    return module


def module(op: str, make: Callable[[Dims], Any], *operands: str, call: Callable[..., Any], **args: Any) -> Sample:
    """A sample of what `make` builds: ``call(dims, module, *operands)``."""
    return S(op, *operands, call=lambda d, *x: call(d, with_parameters(make(d)), *x), **args)


def _attention(cls: Any, **args: Any) -> Callable[[Dims], Any]:
    return lambda d: cls(d.D, d.D, key_dim_total=d.D, value_dim_total=d.P, num_heads=2, **args)


def _layer_norm(x: np.ndarray) -> np.ndarray:
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-6)


def _batch_norm(x: np.ndarray, gamma: np.ndarray, beta: np.ndarray) -> np.ndarray:
    axes = tuple(range(x.ndim - 1))
    return (x - x.mean(axes)) / np.sqrt(x.var(axes) + 1e-3) * gamma + beta


def _weights(q: np.ndarray, k: np.ndarray) -> np.ndarray:
    scores = np.exp(0.5 * np.einsum("btd,bud->btu", q, k))
    return scores / scores.sum(-1, keepdims=True)


SAMPLES: list[Sample] = [
    # -- ops of attention; their operands hold no NaN in the padding, so there is no poison
    S("clean", "B T U F", call=lambda d, x: OPS["clean"](x, (d.T, d.U, d.F)), out="B T U F", masked=True,
      ref=lambda x: x),
    S("clean", "B T F", call=lambda d, x: OPS["clean"](x, (d.F,)), out="B T F", id="nothing"),
    S("dot_attention_weights", "B T D", "B U D", out="B T U", poison=False, ref=_weights,
      call=lambda d, q, k: OPS["dot_attention_weights"](q, k, d.D, d.U, None, 0.5)),
    S("dot_attention_weights", "B T D", "B T D", out="B T T'", poison=False, id="self",
      call=lambda d, q, k: OPS["dot_attention_weights"](q, k, d.D, d.T, None, 0.5)),
    S("dot_attention", "B H T D", "B H U D", "B U H F", out="B H T F", poison=False,
      call=lambda d, q, k, v: OPS["dot_attention"](q, k, v, d.D, d.U, None, 0.5, None, None, None)),
    S("dot_attention", "B H T D", "B H T D", "B T H F", out="B T D", poison=False, id="causal-merged",
      call=lambda d, q, k, v: OPS["dot_attention"](q, k, v, d.D, d.T, d.T, 0.5, d.H, d.F, d.D)),
    S("attend", "B T U", "B U F", out="B T F", poison=False, wider=False, alone=False, zero=False,
      call=lambda d, w, v: OPS["attend"](w, v, d.U, None, None, None), ref=lambda w, v: w @ v),
    S("rope", "B T D", "T D", call=lambda d, x, e: OPS["rope"](x, e, d.D), out="B T D"),
    S("split_heads", "B T P", out="B T H F", ref=lambda x: x.reshape(2, 4, 2, 3)[..., :2],
      call=lambda d, x: OPS["split_heads"](x, d.P, d.H, (d.F, d.E), (2, 2, 1))),
    S("rf.dot_attention", "B T *D", "B U D", "B U F", out="B T F", masked="U", ref=lambda q, k, v: _weights(q, k) @ v,
      call=lambda d, q, k, v: rf.dot_attention(q, k, v, key_dim=d.D, axis=d.U)),
    # -- batch norm
    S("batch_norm_of_batch", "B T D", "D", "D", out="B T D", masked=True, alone=False, ref=_batch_norm,
      call=lambda d, x, gamma, beta: OPS["batch_norm_of_batch"](x, gamma, beta, d.D, True, 1e-3)),
    S("batch_norm_of_batch", "B T D", out="B T D", poison=False, zero=False, alone=False,
      call=lambda d, x: OPS["batch_norm_of_batch"](x, None, None, d.D, False, 1e-3), id="unmasked"),
    S("batch_norm_apply", "B T D", "D", "D~pos", "D", "D", out="B T D",
      call=lambda d, x, m, v, gamma, beta: OPS["batch_norm_apply"](x, m, v, gamma, beta, d.D, 1e-3)),
    module("BatchNorm", lambda d: rf.BatchNorm(d.D), "B T D", call=lambda d, m, x: m(x), out="B T D"),
    # -- modules
    module("Linear", lambda d: rf.Linear(d.D, d.G), "B T D", call=lambda d, m, x: m(x), out="B T *G"),
    module("Linear", lambda d: rf.Linear(d.D, d.D), "B T D", call=lambda d, m, x: m(x), out="B T *D", id="square"),
    module("Embedding", lambda d: rf.Embedding(d.V, d.D), "B T>V", call=lambda d, m, x: m(x), out="B T *D"),
    module("LayerNorm", lambda d: rf.LayerNorm(d.D), "B T D", call=lambda d, m, x: m(x), out="B T D"),
    S("LayerNorm", "B T D", call=lambda d, x: rf.LayerNorm(d.D)(x), out="B T D", ref=_layer_norm, id="initial"),
    module("RMSNorm", lambda d: rf.RMSNorm(d.D), "B T D", call=lambda d, m, x: m(x), out="B T D"),
    module("GroupNorm", lambda d: rf.GroupNorm(d.D, num_groups=2), "B T D", call=lambda d, m, x: m(x), out="B T D"),
    module("GroupNormSpatial", lambda d: rf.GroupNormSpatial(d.D, num_groups=2), "B T D",
           call=lambda d, m, x: m(x, spatial_dim=d.T), out="B T D", masked=True),
    S("moments", "B T D", axis="T", out="B D", masked=True, ref=lambda x: x.mean(1)),
    S("moments", "B T D", axis=["B", "T"], correction=1, out="D", masked=True, alone=False, ref=lambda x: x.mean((0,
      1))),
    S("moments", "B T D", axis="T", use_mask=False, out="B D", alone=False, poison=False, zero=False),
    S("normalize", "B T D", axis="T", out="B T D", masked=True, ref=lambda x: (x - x.mean(1, keepdims=True)) / np.sqrt(
        x.var(1, keepdims=True) + 1e-6)),
    S("normalize", "B T D", axis=["B", "T"], out="B T D", masked=True, alone=False),
    S("normalize", "B T D", axis="D", out="B T D", ref=_layer_norm),
    module("Normalize", lambda d: rf.Normalize(param_dims=d.D), "B T D", call=lambda d, m, x: m(x, axis=d.T),
           out="B T D", masked=True),
    module("Conv1d", lambda d: rf.Conv1d(d.D, d.G, 3, padding="same"), "B T D",
           call=lambda d, m, x: m(x, in_spatial_dim=d.T), out="B T *G", masked=True),
    module("Conv1d", lambda d: rf.Conv1d(d.D, d.G, 2, padding="valid", strides=2), "B T D",
           call=lambda d, m, x: m(x, in_spatial_dim=d.T), masked=True, id="strided"),
    module("SelfAttention", _attention(rf.SelfAttention), "B T D", call=lambda d, m, x: m(x, axis=d.T), out="B T *D",
           masked=True),
    module("CausalSelfAttention", _attention(rf.CausalSelfAttention), "B T D", out="B T *D", masked=True,
           call=lambda d, m, x: m(x, d.T)[0]),
    module("RelPosSelfAttention", _attention(rf.RelPosSelfAttention), "B T D", out="B T *D", masked=True,
           call=lambda d, m, x: m(x, axis=d.T)),
    module("RelPosCausalSelfAttention", _attention(rf.RelPosCausalSelfAttention), "B T D", out="B T *D", masked=True,
           call=lambda d, m, x: m(x, axis=d.T)[0]),
    module("RotaryPosSelfAttention", _attention(rf.RotaryPosSelfAttention), "B T D", out="B T *D", masked=True,
           call=lambda d, m, x: m(x, axis=d.T)),
    module("CrossAttention", lambda d: rf.CrossAttention(d.G, d.D, d.D, key_dim_total=d.D, value_dim_total=d.P,
      num_heads=2),
           "B T D", "B U G", out="B T *D", masked=True, call=lambda d, m, x, y: m(x, m.transform_encoder(y, axis=d.U))),
    module("LSTM", lambda d: rf.LSTM(d.D, d.G), "B T D", out="B T *G", masked=True,
           call=lambda d, m, x: m(x, state=m.default_initial_state(batch_dims=[d.B]), spatial_dim=d.T)),
    # -- others
    S("concat", "B T F", "B T D", "B T G", "B T H", "B T E", out="B T (F+D+G+H+E)",
      call=lambda d, *x: rf.concat(*zip(x, [d.F, d.D, d.G, d.H, d.E]))),
    S("reduce_logmeanexp", "B T F", axis="T", out="B F", masked=True, ref=lambda x: np.log(np.exp(x).mean(1))),
    S("reduce_logmeanexp", "B T F", axis=["B", "T"], out="F", masked=True, alone=False,
      ref=lambda x: np.log(np.exp(x).mean((0, 1)))),
    S("reduce_out", "B T *D", mode="max", num_pieces=2, out="B T *D/2", ref=lambda x: x.reshape(2, 4, 2, 2).max(-1)),
    S("reduce_out", "B T *D", mode="sum", num_pieces=2, out_dim="H", out="B T *H"),
    S("dim_match_priority_when_needed", call=lambda d: rf.dim_match_priority_when_needed(d.F, d.G, d.F)),
]  # fmt: skip
