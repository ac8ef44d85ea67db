"""Samples of gather, scatter, one-hot and the largest entries."""

from __future__ import annotations

from typing import Any

import numpy as np

import rf
from conformance.sample import S, Sample


def _scattered(x: np.ndarray, i: np.ndarray, size: int, ufunc: Any, initial: float) -> np.ndarray:
    """x {B, T, F} at i {B, T} -> {B, size, F}"""
    out = np.full((x.shape[0], size, x.shape[2]), initial, x.dtype)
    for b in range(x.shape[0]):
        for t in range(x.shape[1]):
            out[b, i[b, t]] = ufunc(out[b, i[b, t]], x[b, t])
    return out


def _largest(x: np.ndarray, k: int) -> np.ndarray:
    return -np.sort(-x, -1)[..., :k]


SCATTER_MODES = ("sum", "max", "min", "mean", "logsumexp", "logmeanexp", "argmax")

SAMPLES: list[Sample] = [
    # -- gather
    S("gather", "V *F", "indices=B T>V", out="B T *F", ref=lambda x, i: x[i], id="embedding"),
    S("gather", "*V F", "indices=B>V", out="B F", ref=lambda x, i: x[i], id="feature-axis"),
    S("gather", "B T F", "indices=B>T", out="B F", ref=lambda x, i: x[np.arange(2), i], zero=False, id="one"),
    S("gather", "B T F", "indices=B T:int32~indexT", axis="T", out="B T F", zero=False),
    S("gather", "B T F", "indices=B U:int32>T", out="B U F", zero=False, id="frames"),
    S("gather", "B T F", "indices=B K H:int32>T", out="B K H F", zero=False),
    S("gather", "B T>V", "indices=B>T", out="B:int32>V", zero=False),
    S("gather", "B T F", axis="T", indices=0, out="B F", ref=lambda x: x[:, 0], zero=False, empty=False),
    S("gather", "B T F", axis="T", indices=-1, out="B F", ref=lambda x: x[:, -1], masked=True, zero=True),
    S("gather", "B T F", axis="T", indices=-2, out="B F", masked=True, static=False),
    S("gather", "B T *F", axis="F", indices=1, out="B T", ref=lambda x: x[..., 1]),
    S("gather", "B F T", axis="F", indices=-1, out="B T", ref=lambda x: x[:, -1]),
    S("gather", "B T F", axis="T", indices=9, clip_to_valid=True, out="B F", masked=True, ref=lambda x: x[:, -1]),
    S("gather", "B T F", "indices=B U:int32", axis="T", clip_to_valid=True, out="B U F", masked=True),
    S("gather", "B T F", "indices=K:int32", axis="T", clip_to_valid=True, out="B K F", masked=True,
      id="indices-lack-B"),
    S("gather", "V F", "indices=B T:int32", axis="V", clip_to_valid=True, out="B T F", ref=lambda x,
      i: x[np.clip(i, 0, 4)]),
    S("gather", "B T F", call=lambda d, x: rf.gather(x, indices=rf.last_frame_position_of_dim(d.T), axis=d.T),
      out="B F", zero=False,
      id="last-frame", masked=True),
    # -- one-hot
    S("one_hot", "B T>V", out="B T *V:float32", ref=lambda i: np.eye(5)[i]),
    S("one_hot", "B T:uint8>V", out="B T *V:float32", ref=lambda i: np.eye(5)[i]),
    S("sparse_to_dense", "B T>V", label_value=0.9, other_value=0.025, out="B T *V:float32"),
    S("sparse_to_dense", "B T:int32", axis="V", label_value=1, other_value=0, out="B T *V:int32"),
    S("sparse_to_dense", "B T>V", "label_value=B T", other_value=0, out="B T *V"),
    # -- scatter
    *[S("scatter", "B T F", "indices=B T>V", mode=mode, indices_dim="T", masked=True,
        out="B V F" if mode != "argmax" else "B V F:int32>T", grad=mode != "argmax") for mode in SCATTER_MODES],
    *[S("scatter", "B T F", "indices=B T>V", mode=mode, indices_dim="T", fill_value=7, masked=True, out="B V F",
        grad=mode != "argmax") for mode in SCATTER_MODES],
    S("scatter", "B T F", "indices=B T>V", indices_dim="T", out="B V F", id="sum", masked=True,
      ref=lambda x, i: _scattered(x, i, 5, np.add, 0)),
    S("scatter", "B T F", "indices=B T>V", indices_dim="T", out="B V F", id="max", mode="max", fill_value=0,
      masked=True,
      ref=lambda x, i: np.nan_to_num(_scattered(x, i, 5, np.maximum, -np.inf), neginf=0)),
    S("scatter", "B T *F", "indices=B T>V", indices_dim=["B", "T"], out="V *F", masked=True, alone=False),
    S("scatter", "B T F", "indices=T>V", indices_dim="T", out="B V F", masked=True, id="indices-lack-B"),
    S("scatter", "F", "indices=B T>V", indices_dim="T", out="B V F", masked=True, id="source-lacks"),
    S("scatter", "T", "indices=T>V", indices_dim="T", out="B V", masked=False, static=False, id="puts-B-back"),
    S("scatter", "B T K", "indices=B T K>V", indices_dim="K", out="B T V", id="masked-batch-dim"),
    S("scatter", "B T *F", "indices=T F>V", indices_dim="F", out="B T *V", id="feature", alone=True),
    S("scatter", "B K", "indices=B K>T", indices_dim="K", out="B T", zero=False, id="into-frames"),
    S("scatter", "B T", "indices=B T:int32~indexP", indices_dim="T", out_dim=["F", "G"], out="B F G", masked=True),
    S("scatter", "B T:int32", "indices=B T>V", indices_dim="T", out="B V:int32", masked=True),
    S("scatter", "B T:int32", "indices=B T>V", indices_dim="T", mode="max", masked=True),
    S("scatter", "B T:int32", "indices=B T>V", indices_dim="T", mode="logsumexp", out="B V:float32", masked=True),
    S("scatter", "B T:bool", "indices=B T>V", indices_dim="T", out="B V:int32", masked=True),
    S("scatter", "B T:bool", "indices=B T>V", indices_dim="T", mode="max", out="B V:bool", masked=True),
    S("scatter", "B T", "indices=B T>V", indices_dim="T", use_mask=False, out="B V", poison=False, alone=False),
    S("scatter", "B T~wide", "indices=B T>V", indices_dim="T", mode="logsumexp", masked=True),
    S("scatter", "B P~coarse", "indices=B P>F", indices_dim="P", mode="argmax", grad=False, id="ties"),
    S("scatter_mean", "B T F", "indices=B T>V", indices_dim="T", out="B V F", masked=True),
    S("scatter_logsumexp", "B T F", "indices=B T>V", indices_dim="T", out="B V F", masked=True),
    S("scatter_logmeanexp", "B T F", "indices=B T>V", indices_dim="T", out="B V F", masked=True),
    S("scatter_argmax", "B T", "indices=B T>V", indices_dim="T", invalid_idx=-5, out="B V:int32>T", grad=False,
      masked=True),
    S("scatter_count", "indices=B T>V", indices_dim="T", out="B V:int32", masked=True,
      ref=lambda i: np.stack([np.bincount(row, minlength=5) for row in i])),
    S("scatter_count", "indices=B T>V", indices_dim="T", fill_value=-1, out="B V:int32", masked=True),
    # -- the largest entries
    S("top_k", "B T V", axis="V", k=3, out="B T top-k", ref=lambda x: _largest(x, 3)),
    S("top_k", "B T *V", axis="V", k_dim="F", out="B T *F", ref=lambda x: _largest(x, 2)),
    S("top_k", "B T V~coarse", axis="V", k=4, id="ties", grad=False),
    S("top_k", "B V>V", axis="V", k=2, out="B top-k:int32>V"),
    S("top_k", "B V:bool", axis="V", k=2, out="B top-k:bool"),
    S("top_k", "B V:float16", axis="V", k=2, out="B top-k:float16", grad=False),
    S("top_k", "B V", axis="V", k=5, out="B top-k", id="all"),
    S("top_k", "B V", axis="V", k=0, out="B top-k", id="none", grad=False),
    S("top_k", "B V", axis="V", k=3, k_dim=lambda d: rf.Dim(None, name="new"), out="B new"),
    S("top_k", "B T F", axis="T", k=1, out="B top-k F", masked=True, zero=False, ref=lambda x: x.max(1)[:, None]),
    S("top_k", "B U", axis="U", k=1, out="B top-k", masked=True, zero=False, id="U"),
    S("top_k", "B K V", axis=["K", "V"], k=4, out="B top-k", ref=lambda x: _largest(x.reshape(2, -1), 4)),
    S("top_k", "B K V~coarse", axis=["V", "K"], k=4, out="B top-k", id="ties", grad=False),
    S("top_k", "B T", axis="T", k=9, out="B top-k", masked=True, alone=False, zero=False, id="more-than-there-are",
      grad=False,
      static=False),
    S("top_k", "B T V", axis=["T", "V"], k=3, out="B top-k", masked=True, zero=False, id="dynamic"),
    S("top_k", "B T F", axis=["B", "T"], k=2, out="F top-k", masked=True, alone=False, zero=False, empty=False),
    S("top_k_mask", "B T V", axis="V", k=2, out="B T V:bool", grad=False,
      ref=lambda x: x >= np.sort(x, -1)[..., -2:-1]),
    S("top_k_mask", "B T V~coarse", axis="V", k=2, out="B T V:bool", grad=False, id="ties"),
    S("top_k_mask", "B T", axis="T", k=2, out="B T:bool", masked=True, grad=False),
    S("top_k_mask", "B T", axis="T", k=9, out="B T:bool", masked=True, grad=False, ref=lambda x: np.ones_like(x, bool)),
    S("top_p_mask", "B F V~prob", axis="V", p=0.6, out="B F V:bool", grad=False),
    S("top_p_mask", "B F V~prob", axis="V", p=0.6, one_more=False, out="B F V:bool", grad=False),
    S("top_p_mask", "B F V~prob", axis="V", p=0.0, one_more=False, min_tokens_to_keep=2, out="B F V:bool", grad=False,
      ref=lambda x: x >= np.sort(x, -1)[..., -2:-1]),
    S("top_p_mask", "B F V~prob", "p=B~unit", axis="V", out="B F V:bool", grad=False, id="tensor"),
    S("top_p_mask", "B T~prob", axis="T", p=0.3, out="B T:bool", masked=True, grad=False),
]  # fmt: skip
