"""Samples of ops that rearrange, join and lengthen axes, and of helpers about dims."""

from __future__ import annotations

import functools

import numpy as np

import rf
from conformance.sample import S, Sample


def _glu(x: np.ndarray) -> np.ndarray:
    a, b = np.split(x, 2, -1)
    return a / (1 + np.exp(-b))


@functools.cache
def _dim(name: str, size: int) -> rf.Dim:
    """A static dim that is the same for all runs."""
    return rf.Dim(size, name=name)


def _new(name: str = "new") -> rf.Dim:
    return rf.Dim(None, name=name)


def _padded(mode: str, left: int, right: int) -> Sample:
    name = {"replicate": "edge", "circular": "wrap"}.get(mode, mode)
    out = "B (" + f"{left}+" * (left > 0) + "T" + f"+{right}" * (right > 0) + ") F"

    def ref(x: np.ndarray) -> np.ndarray:
        return np.pad(x, ((0, 0), (left, right), (0, 0)), mode=name)  # type: ignore[call-overload]

    return S("pad", "B T F", axes=["T"], padding=[(left, right)], mode=mode, masked=True, ref=ref, out=out)


SAMPLES: list[Sample] = [
    S("copy", "B T *F", out="B T *F", ref=lambda x: x),
    S("copy", "B T>V", out="B T:int32>V", ref=lambda x: x),
    # -- merge, split, reshape
    S("merge_dims", "B T H D", dims=["H", "D"], out="B T H*D", ref=lambda x: x.reshape(2, 4, 8)),
    S("merge_dims", "B H T D", dims=["H", "D"], out_dim=lambda d: _dim("HD", 8), out="B T HD", id="out-dim",
      ref=lambda x: x.transpose(0, 2, 1, 3).reshape(2, 4, 8)),
    S("merge_dims", "B T H D", dims=["D", "H"], out="B T D*H", ref=lambda x: x.transpose(0, 1, 3, 2).reshape(2, 4, 8)),
    S("merge_dims", "B T H *D", dims=["H", "D"], out="B T *H*D", id="feature"),
    S("merge_dims", "B T F", dims=["T", "F"], out="B T*F", ref=lambda x: x.reshape(2, 8)),
    S("merge_dims", "B T F", dims=["F", "T"], out="B merged", alone=False, poison=False, static=False,
      ref=lambda x: x.transpose(0, 2, 1).reshape(2, 8)),
    S("merge_dims", "B T F", dims=["B", "T"], out="merged F", alone=False, poison=False, static=False,
      ref=lambda x: x.reshape(8, 2)),
    S("merge_dims", "B T F", dims=["T", "B"], out="merged F", alone=False, poison=False, static=False),
    S("merge_dims", "B T F", dims=["T"], out="B T F", ref=lambda x: x),
    S("merge_dims", "B T *F", dims=["F"], out_dim=lambda d: _new(), out="B T *new", ref=lambda x: x),
    S("merge_dims", "B T", dims=[], out="B T merged", ref=lambda x: x[:, :, None]),
    S("merge_dims", "B N F:int32", dims=["B", "N", "F"], out="B*N*F:int32", ref=lambda x: x.reshape(-1), alone=False),
    S("split_dims", "B T P", axis="P", dims=["F", "K"], out="B T F K", ref=lambda x: x.reshape(2, 4, 2, 3)),
    S("split_dims", "B T *P", axis="P", dims=["F", "G"], out="B T F G", id="feature"),
    S("split_dims", "B T P", axis="P", dims=lambda d: [d.F, _new()], out="B T F new", id="infer-minor",
      ref=lambda x: x.reshape(2, 4, 2, 3)),
    S("split_dims", "B T P", axis="P", dims=lambda d: [_new(), d.F], out="B T new F", id="infer-major",
      ref=lambda x: x.reshape(2, 4, 3, 2)),
    S("split_dims", "B T", axis="T", dims=["T", "E"], out="B T E", ref=lambda x: x[:, :, None]),
    S("split_dims", "B T", axis="T", dims=["T"], out="B T", ref=lambda x: x, id="one"),
    S("split_dims", "B E", axis="E", dims=[], out="B", ref=lambda x: x[:, 0], id="none"),
    S("split_dims", "B T F", axis="T", dims=lambda d: [_new(), d.K], pad_to_multiples=True, out="B new K F",
      ref=lambda x: np.pad(x, ((0, 0), (0, 2), (0, 0))).reshape(2, 2, 3, 2)),
    S("split_dims", "B T F", axis="T", dims=lambda d: [_new(), d.K], pad_to_multiples=True, pad_value=7.0, id="value"),
    S("split_dims", "B T F", call=lambda d, x: _merge_and_back(x, [d.B, d.T], [d.B, d.T]), out="B T F",
      ref=lambda x: x, id="undo"),
    S("split_dims", "B T F", call=lambda d, x: _merge_and_back(x, [d.T, d.F], [_new(), d.F]), id="undo-T-F",
      ref=lambda x: x, out="B new F"),
    S("reshape", "B P H", in_dims=["P", "H"], out_dims=["G", "D"], out="B G D", ref=lambda x: x.reshape(2, 3, 4)),
    S("reshape", "B P H", in_dims=["H", "P"], out_dims=lambda d: [_new(), d.D], out="B new D",
      ref=lambda x: x.transpose(0, 2, 1).reshape(2, 3, 4), id="infer"),
    S("reshape", "N T P", in_dims=["P", "N"], out_dims=lambda d: [d.K, _new()], out="K new T", id="dynamic"),
    S("split", "B T P", axis="P", out_dims=["F", "D"], out="B T F", ref=lambda x: x[..., :2]),
    S("split", "B T *P", axis="P", out_dims=["K", "K"], out="B T *K", ref=lambda x: x[..., :3], id="feature"),
    S("split", "B T *P", axis="P", out_dims=lambda d: [_new()], out="B T *new", ref=lambda x: x, id="one"),
    S("split", "B N P", axis="N", out_dims=lambda d: [d.F, d.E], out="B F P", ref=lambda x: x[:, :2],
      id="scalar-dynamic"),
    S("gating", "B T *P", out="B T *P/2", ref=_glu),
    S("gating", "B P T", axis="P", out_dim="K", out="B T K", ref=lambda x: _glu(x.transpose(0, 2, 1))),
    # -- one axis more or less
    S("expand_dim", "B T *F", dim="K", out="K B T *F", ref=lambda x: np.stack([x] * 3)),
    S("expand_dim", "F", call=lambda d, x: rf.expand_dim(x, d.T), out="T F", ref=lambda x: np.stack([x] * 4),
      static=False,
      empty=False),
    S("expand_dims", "F", call=lambda d, x: rf.expand_dims(x, [d.B, d.T]), out="B T F"),
    S("expand_dims", "F", dims=[], out="F", ref=lambda x: x),
    S("squeeze", "B T E F", axis="E", out="B T F", ref=lambda x: x[:, :, 0]),
    S("squeeze", "B T *E", axis="E", out="B T", ref=lambda x: x[:, :, 0]),
    S("stack", "B T F", "B F T", call=lambda d, *x: rf.stack(x), out="stack B T F", ref=lambda x,
      y: np.stack([x, y.transpose(0, 2, 1)])),
    S("stack", "B T", "B T:int32", call=lambda d, *x: rf.stack(x, out_dim=d.F), out="F B T:float32", id="dtypes"),
    S("stack", "B T", call=lambda d, *x: rf.stack(x), out="stack B T", ref=lambda x: x[None]),
    S("unstack", "B T F", axis="F", out="B T", ref=lambda x: x[..., 0]),
    S("unstack", "B E T", axis="E", out="B T", ref=lambda x: x[:, 0]),
    # -- relabel
    S("replace_dim", "B T *F", in_dim="T", out="B T#2 *F", ref=lambda x: x),
    S("replace_dim", "B T *F", in_dim="F", out_dim=lambda d: _new(), out="B T *new", ref=lambda x: x),
    S("replace_dim", "B T K>V", in_dim="K", out_dim="G", out="B T G:int32>V", ref=lambda x: x),
    S("replace_dim_v2", "B T F", in_dim="F", out_dim="D", out="B T D",
      ref=lambda x: np.pad(x, ((0, 0), (0, 0), (0, 2)))),
    S("replace_dim_v2", "B T D", in_dim="D", out_dim="F", out="B T F", ref=lambda x: x[..., :2]),
    S("replace_dim_v2", "B T F", in_dim="T", out_dim="U", out="B U F", masked=True),
    S("replace_dim_v2", "B U F", in_dim="U", out_dim="T", out="B T F", masked=True),
    S("set_sparse_dim", "B T:int32", sparse_dim="V", out="B T:int32>V", ref=lambda x: x),
    # -- complex
    S("real_as_complex", "B T F", pair_dim="F", out="B T:complex64", ref=lambda x: x[..., 0] + 1j * x[..., 1],
      grad=False),
    S("real_as_complex", "B T H:float64", pair_dim="H", out="B T:complex128", grad=False),
    S("complex_as_real", "B T:complex64", out="B T complex:float32", ref=lambda x: np.stack([x.real, x.imag], -1)),
    S("make_complex", "B T", "T", out="B T:complex64", ref=lambda x, y: x + 1j * y, grad=False),
    S("make_complex", "B", "F", out="B F:complex64", ref=lambda x, y: x[:, None] + 1j * y, grad=False),
    S("make_complex", "B T", call=lambda d, x: rf.make_complex(x, 0.0), out="B T:complex64", grad=False, id="number"),
    # -- concat
    S("concat", "B T F", "B T D", call=lambda d, x, y: rf.concat((x, d.F), (y, d.D)), out="B T (F+D)",
      ref=lambda x, y: np.concatenate([x, y], -1)),
    S("concat", "B T *F", "T B D:int32", call=lambda d, x, y: rf.concat((x, d.F), (y, d.D)), out="B T *(F+D):float32",
      ref=lambda x, y: np.concatenate([x, y.transpose(1, 0, 2)], -1), id="order"),
    S("concat", "B T F", "B U F", call=lambda d, x, y: rf.concat((x, d.T), (y, d.U)), out="B (T+U) F", masked=True,
      ref=lambda x, y: np.concatenate([x, y], 1)),
    S("concat", "B T F", "B U F", "B K F", "B T F", id="four", masked=True, out="B (T+U+K+T) F",
      call=lambda d, x, y, z, w: rf.concat((x, d.T), (y, d.U), (z, d.K), (w, d.T))),
    S("concat", "B K F", "B T F", call=lambda d, x, y: rf.concat((x, d.K), (y, d.T)), out="B (K+T) F", masked=True,
      ref=lambda x, y: np.concatenate([x, y], 1), id="static-first"),
    S("concat", "B T F", "B K F", call=lambda d, x, y: rf.concat((x, d.T), (y, d.K)), out="B (T+K) F", masked=True,
      ref=lambda x, y: np.concatenate([x, y], 1), id="static-last"),
    S("concat", "B N F", "B T F", call=lambda d, x, y: rf.concat((x, d.N), (y, d.T)), out="B (N+T) F", masked=True,
      id="scalar"),
    S("concat", "B T W", "B T K", call=lambda d, x, y: rf.concat((x, d.W), (y, d.K)), out="B T (W+K)", masked=True,
      id="ragged"),
    S("concat", "T F", "B U F", id="broadcast", masked=True, out="B (T+U) F",
      call=lambda d, x, y: rf.concat((x, d.T), (y, d.U), allow_broadcast=True)),
    S("concat", "B T F", "B U F", id="raw", out="B concat F", alone=False, poison=False, static=False,
      call=lambda d, x, y: rf.concat((x, d.T), (y, d.U), handle_dynamic_dims=False)),
    S("concat", "B T F", call=lambda d, x: rf.concat((x, d.T)), out="B T F", ref=lambda x: x, id="one"),
    S("concat", "B T F", call=lambda d, x: rf.concat(*[(x, d.F)] * 8), ref=lambda x: np.concatenate([x] * 8, -1),
      id="eight",
      out="B T (2*F+F+F+F+F+F+F)"),
    S("concat", "B T F", "B T D", call=lambda d, x, y: rf.concat((x, d.F), (y, d.D), out_dim=d.P), out="B T P",
      id="out-dim"),
    S("concat", "B T F", "B U F", id="new-out-dim", masked=True, out="B new F",
      call=lambda d, x, y: rf.concat((x, d.T), (y, d.U), out_dim=_new())),
    S("concat_features", "B T *F", "B T *D", out="B T *(F+D)", ref=lambda x, y: np.concatenate([x, y], -1)),
    S("concat_features", "B T *F", "B *D", allow_broadcast=True, out="B T *(F+D)"),
    # -- pad
    S("pad", "B T F", axes=["F"], padding=[(1, 2)], out="B T (1+F+2)",
      ref=lambda x: np.pad(x, ((0, 0), (0, 0), (1, 2)))),
    S("pad", "B T *F", axes=["F"], padding=[(0, "K")], value=3, out="B T *(F+K)", id="dim"),
    S("pad", "B T F", axes=["T"], padding=[(2, 0)], value=-1.5, out="B (2+T) F", masked=True, id="left",
      ref=lambda x: np.pad(x, ((0, 0), (2, 0), (0, 0)), constant_values=-1.5)),
    S("pad", "B T F", axes=["T"], padding=[(1, 2)], value=-1.5, out="B (1+T+2) F", masked=True, id="both",
      ref=lambda x: np.pad(x, ((0, 0), (1, 2), (0, 0)), constant_values=-1.5)),
    S("pad", "B T U", axes=["T", "U"], padding=[(1, 2), 1], out="B (1+T+2) (1+U+1)", masked=True, id="two-axes"),
    S("pad", "B T F", axes="T", padding=1, out="B (1+T+1) F", masked=True, id="one-number"),
    S("pad", "B T F", axes=["T"], padding=[(0, 0)], out="B T F", ref=lambda x: x, id="nothing"),
    S("pad", "B T F", axes=[], padding=[], out="B T F", ref=lambda x: x, id="no-axes"),
    S("pad", "B T F", "value=B", axes=["T"], padding=[(1, 1)], out="B (1+T+1) F", masked=True, id="tensor-value"),
    S("pad", "T F", "value=B F", axes=["T"], padding=[(0, 1)], out="B (T+1) F", masked=True, id="value-adds-B"),
    S("pad", "B T F", "n=B:int32~count", id="per-sequence-right", masked=True, needs_values=True,
      call=lambda d, x, n: rf.pad(x, axes=[d.T], padding=[(0, n)], value=2.0), out="B (T+pad) F"),
    S("pad", "B T F", "n=B:int32~count", id="per-sequence-left", masked=True, needs_values=True,
      call=lambda d, x, n: rf.pad(x, axes=[d.T], padding=[(n, 1)], value=2.0), out="B (pad+T+1) F"),
    S("pad", "B K F", "n=B:int32~count", id="per-sequence-static-axis", masked=True, needs_values=True,
      call=lambda d, x, n: rf.pad(x, axes=[d.K], padding=[(n, n)], value=2.0)),
    S("pad", "B T F", axes=["T"], padding=[("U", "U")], masked=True, id="dynamic-amounts", out="B (U+T+U) F"),
    S("pad", "B T F", axes=["T"], padding=[(1, 2)], handle_dynamic_dims=False, out="B padded F", alone=False,
      poison=False,
      id="raw", static=False, ref=lambda x: np.pad(x, ((0, 0), (1, 2), (0, 0)))),
    S("pad", "B T:int32", axes=["T"], padding=[(1, 1)], value=9, out="B (1+T+1):int32", masked=True),
    S("pad", "B T:bool", axes=["T"], padding=[(1, 1)], value=True, out="B (1+T+1):bool", masked=True),
    S("pad", "B T:bool", axes=["T"], padding=[(1, 1)], out="B (1+T+1):bool", masked=True, id="default"),
    *[_padded(mode, *n) for mode in ("reflect", "replicate", "circular") for n in ((1, 1), (2, 3), (0, 7), (7, 0))],
    S("pad", "B P F", axes=["P", "F"], padding=[(2, 3), (1, 1)], mode="reflect", out="B (2+P+3) (1+F+1)",
      ref=lambda x: np.pad(x, ((0, 0), (2, 3), (1, 1)), mode="reflect"), id="static"),
    S("pad", "B F E", axes=["F"], padding=[(4, 3)], mode="reflect", out="B (4+F+3) E",
      ref=lambda x: np.pad(x, ((0, 0), (4, 3), (0, 0)), mode="reflect"), id="longer-than-the-axis"),
    S("cum_concat_step", "B F", "prev_accum=B T F", axis="T", out="B (T+1) F", masked=True,
      ref=lambda x, y: np.concatenate([y, x[:, None]], 1)),
    S("cum_concat_step", "B F", "prev_accum=B N F", axis="N", out="B (N+1) F", ref=lambda x,
      y: np.concatenate([y, x[:, None]], 1)),
    S("cum_concat_step", "B F", "prev_accum=B K F", axis="K", out_spatial_dim="D", out="B D F", id="out-dim"),
    # -- helpers about dims
    S("range_over_dim_strided", dim="T", stride=2, out="⌈T/2⌉:int32>T", ref=lambda: np.array([0, 2]), empty=False),
    S("range_over_dim_strided", call=lambda d: rf.range_over_dim_strided(d.P, stride=d.F, dtype="float32"),
      out="⌈P/F⌉:float32", ref=lambda: np.array([0, 2, 4])),
    S("range_over_merged_dims", dims=["F", "K"], out="F K:int32>F*K", ref=lambda: np.arange(6).reshape(2, 3)),
    S("range_over_merged_dims", dims=["T", "F"], out="T F:int32>T*F", ref=lambda: np.arange(8).reshape(4, 2)),
    S("range_over_merged_dims", dims=["B", "T"], out="B T:int32>merged", ref=lambda: np.arange(8).reshape(2, 4)),
    S("range_over_merged_dims", dims=["F"], out="F:int32>F", ref=lambda: np.arange(2)),
    S("linspace_over_dim", dim="D", start=1, end=3, out="D:float32", ref=lambda: np.array([1, 1.5, 2, 2.5])),
    S("linspace_over_dim", dim="T", out="B T:float32", static=False),
    S("linspace_over_dim", "start=B", call=lambda d, start: rf.linspace_over_dim(d.K, start, 1.0), out="B K",
      id="tensor"),
    S("num_elements_of_shape", dims=["B", "T"], out=":int32"),
    S("num_elements_of_shape", dims=["T"], out="B:int32", static=False, id="lengths"),
    S("num_elements_of_shape", dims=["T", "W", "F"], out="B:int32", static=False),
    S("num_elements_of_shape", dims=["B", "T", "W"], out=":int32", static=False),
    S("num_elements_of_shape", dims=["B", "U", "T"], out=":int32"),
    S("num_elements_of_shape", dims=["B", "F"]),
    S("num_elements_of_shape", dims=["B", "T"], use_mask=False),
    S("masked_fraction_of_shape", dims=["B", "T"], out=":float32", static=False),
    S("masked_fraction_of_shape", dims=["T"], inverse=True, out="B:float32", static=False),
    S("masked_fraction_of_shape", dims=["B", "F"], inverse=True),
    S("last_frame_position_of_dim", dim="T", out="B:int32>T", static=False),
    S("last_frame_position_of_dim", dim="F"),
    S("last_frame_position_of_dim", dim="N", out=":int32>N"),
    S("use_mask_default", func_name="pad"),
]  # fmt: skip


def _merge_and_back(x: rf.Tensor, dims: list[rf.Dim], back: list[rf.Dim]) -> rf.Tensor:
    merged, axis = rf.merge_dims(x, dims=dims)
    return rf.split_dims(merged, axis=axis, dims=back)
