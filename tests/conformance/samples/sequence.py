"""Samples of ops along one dim of frames, and of selecting frames by masks."""

from __future__ import annotations

import numpy as np

import rf
from conformance.sample import S, Sample


def _new(name: str = "new") -> rf.Dim:
    return rf.Dim(None, name=name)


def _windows(x: np.ndarray, left: int, size: int) -> np.ndarray:
    padded = np.pad(x, ((0, 0), (left, size - 1 - left), (0, 0)))
    return np.stack([padded[:, i : i + x.shape[1]] for i in range(size)], -1)


def _nothing_masked(x: np.ndarray) -> np.ndarray:
    return x


SAMPLES: list[Sample] = [
    # -- slice
    S("slice", "B T *F", axis="T", out="B T *F", ref=_nothing_masked, id="all"),
    S("slice", "B T *F", axis="F", out_dim=lambda d: _new(), out="B T *new", ref=_nothing_masked, id="rename"),
    S("slice", "B T F", axis="T", start=1, out="B (-1+T) F", masked=True, ref=lambda x: x[:, 1:], zero=True),
    S("slice", "B T F", axis="T", end=-1, out="B (T-1) F", masked=True, ref=lambda x: x[:, :-1]),
    S("slice", "B T F", axis="T", start=1, end=-2, out="B (-1+T-2) F", masked=True, ref=lambda x: x[:, 1:-2]),
    S("slice", "B T F", axis="T", start=-3, out="B (-T-3+T) F", masked=True, static=False),
    S("slice", "B T F", axis="T", start=-3, end=-1, masked=True, static=False),
    S("slice", "B T F", axis="T", end=3, out="B slice F", masked=True, static=False),
    S("slice", "B T F", axis="T", start=2, end=7, out="B slice F", masked=True, static=False),
    S("slice", "B T F", axis="T", size=2, out="B slice F", masked=True, ref=lambda x: x[:, :2]),
    S("slice", "B T F", axis="T", start=1, size=3, out="B slice F", masked=True, ref=lambda x: x[:, 1:4]),
    S("slice", "B T F", axis="T", start=-2, size=2, masked=True, ref=lambda x: x[:, -2:], out="B slice F"),
    S("slice", "B T F", axis="T", size="U", out="B U F", masked=True),
    S("slice", "B T F", axis="T", size="U", start=1, out="B U F", masked=True),
    S("slice", "B T F", axis="T", start="U", masked=True, static=False),
    S("slice", "B T F", axis="T", start="K", masked=True, static=False, out="B (-K+T) F"),
    S("slice", "B T F", axis="T", end="U", masked=True, static=False),
    S("slice", "B T F", axis="T", step=2, out="B ⌈T/2⌉ F", masked=True, ref=lambda x: x[:, ::2]),
    S("slice", "B T F", axis="T", start=1, step=3, masked=True, ref=lambda x: x[:, 1::3], out="B ⌈(-1+T)/3⌉ F"),
    S("slice", "B T F", axis="T", start="U", step=2, masked=True, static=False),
    S("slice", "B T F", axis="T", start=1, end=-1, step=2, masked=True),
    S("slice", "B T F", axis="T", start=1, end=5, step=2, masked=True, static=False),
    S("slice", "B P F", axis="P", start=1, end=4, out="B slice F", ref=lambda x: x[:, 1:4]),
    S("slice", "B P F", axis="P", start=-2, out="B (-4+P) F", ref=lambda x: x[:, -2:]),
    S("slice", "B P F", axis="P", start=2, end=10, step=2, out="B ⌈slice/2⌉ F", ref=lambda x: x[:, 2:10:2]),
    S("slice", "B P *F", axis="F", size=1, out="B P *slice", ref=lambda x: x[..., :1]),
    S("slice", "B N F", axis="N", start=-2, out="B (-N-2+N) F", ref=lambda x: x[:, -2:]),
    S("slice", "B T W", axis="W", start=1, out="B T (-1+W)", masked=True),
    S("slice", "B T F", axis="T", size=2, out_dim="H", out="B H F", id="out-dim", masked=True),
    S("slice", "B T *F", "i=B>T", call=lambda d, x, i: rf.slice(x, axis=d.T, start=i, size=2), out="B slice *F",
      id="start-per-sequence", masked=True),
    S("slice", "B T *F", "i=B>F", call=lambda d, x, i: rf.slice(x, axis=d.F, start=i, size=d.U), out="B T *U",
      id="start-per-sequence-size-dim"),
    S("slice", "B T F", "i=B>T", call=lambda d, x, i: rf.slice(x, axis=d.T, start=i), masked=True, needs_values=True,
      id="start-per-sequence-no-size", static=False),
    S("slice", "B T F", "i=B>T", call=lambda d, x, i: rf.slice(x, axis=d.T, end=i + 1), masked=True, needs_values=True,
      id="end-per-sequence", static=False),
    S("slice", "B P F", "i=>P", call=lambda d, x, i: rf.slice(x, axis=d.P, start=i, size=1)[0], needs_values=True,
      id="scalar-tensor"),
    S("slice", "F T", axis="T", start=-1, out="B F (-T-1+T)", static=False, id="puts-B-back"),
    # -- along the axis
    S("cumsum", "B T F", spatial_dim="T", out="B T F", ref=lambda x: x.cumsum(1), masked=True),
    S("cumsum", "B T *F", spatial_dim="F", out="B T *F", ref=lambda x: x.cumsum(2)),
    S("cumsum", "B T:int32", spatial_dim="T", out="B T:int32", ref=lambda x: x.cumsum(1)),
    S("cumsum", "B T:bool", spatial_dim="T", out="B T:int32", ref=lambda x: x.cumsum(1)),
    S("sort", "B T F", axis="T", out="B T#2 F", masked=True, ref=lambda x: np.sort(x, 1)),
    S("sort", "B T F", axis="T", descending=True, out="B T#2 F", masked=True, ref=lambda x: -np.sort(-x, 1)),
    S("sort", "B T *P", axis="P", out="B T *P#2", ref=lambda x: np.sort(x, 2)),
    S("sort", "B T P~coarse", axis="P", descending=True, id="ties", grad=False),
    S("sort", "B T:int32", axis="T", out="B T#2:int32", masked=True),
    S("sort", "B T:int32", axis="T", descending=True, out="B T#2:int32", masked=True),
    S("sort", "B T W", axis="W", out="B T W#2", masked=True),
    S("sort", "T F", axis="T", out="B T#2 F", static=False, id="puts-B-back"),
    S("search_sorted", "P", "B T", call=lambda d, x, v: _search(x, v, d.P), out="B T:int32", id="one-table",
      ref=lambda x, v: np.searchsorted(np.sort(x), v), grad=False),
    S("search_sorted", "B T", "B U", call=lambda d, x, v: _search(x, v, d.T), out="B U:int32", masked=True, grad=False),
    S("search_sorted", "B T", "B U F", call=lambda d, x, v: _search(x, v, d.T, "right"), masked=True, grad=False,
      id="right"),
    S("search_sorted", "B H P~coarse", "H B~coarse", call=lambda d, x, v: _search(x, v, d.P, "right"), grad=False,
      id="ties"),
    S("search_sorted", "B T:int32", "B U:int32", call=lambda d, x, v: _search(x, v, d.T, "right"), masked=True,
      id="int"),
    S("search_sorted", "B P", "F", call=lambda d, x, v: _search(x, v, d.P), out="B F:int32", grad=False,
      id="values-lack-B"),
    S("search_sorted", "B P", "B:int32", grad=False, id="int64",
      call=lambda d, x, v: _search(x, v, d.P, out_dtype="int64"), out="B:int64"),
    # -- frames moved
    S("reverse_sequence", "B T *F", axis="T", out="B T *F", masked=True, ref=lambda x: x[:, ::-1]),
    S("reverse_sequence", "B T W", axis="W", out="B T W", masked=True),
    S("reverse_sequence", "B T *F", axis="F", out="B T *F", ref=lambda x: x[..., ::-1]),
    S("reverse_sequence", "B T F", axis="T", handle_dynamic_dims=False, out="B T F", alone=False, poison=False),
    S("shift_right", "B T F", axis="T", pad_value=2.5, out="B T F", masked=False,
      ref=lambda x: np.pad(x, ((0, 0), (1, 0), (0, 0)), constant_values=2.5)[:, :-1]),
    S("shift_right", "B T F", axis="T", pad_value=0, amount=3, out="B T F"),
    S("shift_right", "B T F", axis="T", pad_value=0, amount=10, out="B T F", ref=np.zeros_like),
    S("shift_right", "B T F", "pad_value=B", axis="T", out="B T F", id="tensor"),
    S("shift_right", "B T>V", axis="T", pad_value=0, out="B T:int32>V"),
    S("shift_left", "B T F", axis="T", pad_value=2.5, out="B T F", masked=True,
      ref=lambda x: np.pad(x, ((0, 0), (0, 1), (0, 0)), constant_values=2.5)[:, 1:]),
    S("shift_left", "B T F", axis="T", pad_value=0, amount=3, out="B T F", masked=True),
    S("shift_left", "B T F", axis="T", pad_value=0, amount=10, out="B T F", ref=np.zeros_like, masked=True, grad=False),
    S("shift_left", "B T F", "pad_value=B F", axis="T", out="B T F", id="tensor", masked=True),
    S("shift_left", "B P F", axis="P", pad_value=1, amount=2, out="B P F"),
    # -- windows
    S("window", "B T F", spatial_dim="T", window_dim="K", out="B T F K", masked=True, ref=lambda x: _windows(x, 1, 3)),
    S("window", "B T *F", spatial_dim="T", window_dim="D", out="B T *F D", masked=True,
      ref=lambda x: _windows(x, 1, 4)),
    S("window", "B T F", spatial_dim="T", window_dim="K", window_left=2, window_right=0, masked=True, out="B T F K",
      ref=lambda x: _windows(x, 2, 3)),
    S("window", "B T F", spatial_dim="T", window_dim="K", window_right=2, masked=True, out="B T F K",
      ref=lambda x: _windows(x, 0, 3)),
    S("window", "B T F", spatial_dim="T", window_dim="K", stride=2, out="B ⌈T/2⌉ F K", masked=True,
      ref=lambda x: _windows(x, 1, 3)[:, ::2]),
    S("window", "B T F", spatial_dim="T", window_dim="K", pad_value=-7.0, masked=True),
    S("window", "B T F", spatial_dim="T", window_dim="K", padding="valid", out="B (T-2) F K", masked=True,
      ref=lambda x: _windows(x, 1, 3)[:, 1:-1]),
    S("window", "B T F", spatial_dim="T", window_dim="K", padding="valid", stride=2, masked=True),
    S("window", "B T F", spatial_dim="T", window_dim="P", padding="valid", masked=True, id="longer-than-most",
      static=False),
    S("window", "B T F", spatial_dim="T", window_dim="E", out="B T F E", masked=True, ref=lambda x: x[..., None]),
    S("window", "B P", spatial_dim="P", window_dim="K", out="B P K"),
    S("window", "B T W", spatial_dim="W", window_dim="K", out="B T W K", masked=True),
    S("window", "T F", spatial_dim="T", window_dim="K", out="B T F K", static=False, id="puts-B-back"),
    S("window", "B T F", spatial_dim="T", window_dim="K", use_mask=False, poison=False, alone=False, out="B T F K"),
    # -- repeat
    S("repeat", "B T *F", "repeats=B T:int32~count", in_spatial_dim="T", masked=True, needs_values=True,
      out="B repeated *F"),
    S("repeat", "B T F", "repeats=T:int32~count", in_spatial_dim="T", masked=True, needs_values=True, static=False),
    S("repeat", "B K F", "repeats=B K:int32~count", in_spatial_dim="K", needs_values=True),
    S("repeat", "K F", "repeats=B K:int32~count", in_spatial_dim="K", needs_values=True, out="B repeated F"),
    S("repeat", "B T F", in_spatial_dim="T", repeats=2, out="B T*2 F", masked=True, ref=lambda x: x.repeat(2, 1)),
    S("repeat", "B T F", in_spatial_dim="T", repeats=0, masked=True, grad=False),
    S("repeat", "B K F", in_spatial_dim="K", repeats=2, out_spatial_dim="P", out="B P F", ref=lambda x: x.repeat(2, 1)),
    S("expand_make_non_empty", "B K F", axis="K", out="B K F", ref=_nothing_masked),
    S("expand_make_non_empty", "B F", call=lambda d, x: _empty(x, d.F), out="B padded", grad=False, id="empty"),
    # -- masks
    S("sequence_mask", dims=["B", "T"], out="B T:bool", static=False),
    S("sequence_mask", dims=["T"], out="B T:bool", static=False),
    S("sequence_mask", dims=["U", "T", "B"], out="B T U:bool", static=False),
    S("sequence_mask", dims=["B", "T", "W"], out="B T W:bool", static=False),
    S("sequence_mask", dims=["F", "B"], out=":bool"),
    S("masked_select", "B T F", "mask=B T:bool", dims=["B", "T"], masked=True, needs_values=True, alone=False,
      out="selected F", ref=lambda x, m: x[m]),
    S("masked_select", "B T F", "mask=B T:bool", dims=["T"], masked=True, needs_values=True, out="B selected F"),
    S("masked_select", "T F", "mask=B T:bool", dims=["T"], needs_values=True, out="B selected F", poison=False,
      static=False),
    S("masked_select", "T F", "mask=B T:bool", dims=["B", "T"], needs_values=True, alone=False, out="selected F",
      id="lacks-B",
      poison=False, static=False),
    S("masked_select", "B P *F", "mask=P F:bool", dims=["P", "F"], needs_values=True, out="B *selected",
      ref=lambda x, m: x[:, m]),
    S("masked_select", "B T F", "mask=T F:bool", dims=["T"], masked=True, needs_values=True, id="mask-lacks-B",
      static=False,
      out="B F selected"),
    S("masked_scatter", "B T F", "mask=T F:bool", call=lambda d, x, mask: _select_and_back(x, mask, [d.T]),
      id="undo-lacks-B",
      masked=True, needs_values=True, static=False, out="B T F"),
    S("masked_select", "B T>V", "mask=B T:bool", dims=["T"], masked=True, needs_values=True, out="B selected:int32>V"),
    S("masked_scatter", "B T F", "mask=B T:bool", call=lambda d, x, mask: _select_and_back(x, mask, [d.B, d.T]),
      id="undo-B-T",
      out="B T F", ref=lambda x, m: np.where(m[..., None], x, 0), masked=True, needs_values=True),
    S("masked_scatter", "B T F", "mask=B T:bool", call=lambda d, x, mask: _select_and_back(x, mask, [d.T]), id="undo-T",
      out="B T F", ref=lambda x, m: np.where(m[..., None], x, 0), masked=True, needs_values=True),
    S("masked_scatter", "B K F", "backup=B T", "mask=B T:bool", dims=["T"], in_dim="K", out="B T F", id="backup",
      masked=False),
    S("masked_scatter", "N F", "mask=B T:bool", dims=["B", "T"], in_dim="N", out="B T F", alone=False, masked=False),
    S("pack_padded", "B T F", dims=["B", "T"], out="selected F", masked=True, alone=False, static=False),
    S("pack_padded", "B T F", dims=["T", "B"], out="selected F", masked=True, alone=False, static=False),
    S("pack_padded", "B T F", dims=["T"], out="B selected F", masked=True, static=False),
    S("pack_padded", "B T W", dims=["B", "T", "W"], out="selected", masked=True, alone=False),
    S("pack_padded", "B T W", dims=["T", "W"], out="B selected", masked=True),
    S("pack_padded", "B P F", dims=["B", "P"], out="B*P F", alone=False, ref=lambda x: x.reshape(-1, 2)),
    S("pad_packed", "B T F", call=lambda d, x: _pack_and_back(x, [d.B, d.T]), out="B T F", ref=_nothing_masked,
      id="undo-B-T",
      masked=True),
    S("pad_packed", "B T F", call=lambda d, x: _pack_and_back(x, [d.T]), out="B T F", ref=_nothing_masked, id="undo-T",
      masked=True),
    S("pad_packed", "B T W", call=lambda d, x: _pack_and_back(x, [d.B, d.T, d.W]), out="B T W", masked=True,
      id="undo-ragged"),
    S("pad_packed", "B P F", call=lambda d, x: _pack_and_back(x, [d.B, d.P]), out="B P F", ref=_nothing_masked,
      id="undo-static"),
]  # fmt: skip


def _search(x: rf.Tensor, values: rf.Tensor, axis: rf.Dim, side: str = "left", out_dtype: str = "int32") -> rf.Tensor:
    ordered, _, out_dim = rf.sort(x, axis=axis)
    ordered, _ = rf.replace_dim(ordered, in_dim=out_dim, out_dim=axis)
    return rf.search_sorted(ordered, values, axis=axis, side=side, out_dtype=out_dtype)


def _empty(x: rf.Tensor, axis: rf.Dim) -> tuple[rf.Tensor, rf.Dim]:
    out, out_dim = rf.slice(x, axis=axis, size=0)
    return rf.expand_make_non_empty(out, axis=out_dim)


def _select_and_back(x: rf.Tensor, mask: rf.Tensor, dims: list[rf.Dim]) -> rf.Tensor:
    packed, packed_dim = rf.masked_select(x, mask=mask, dims=dims)
    return rf.masked_scatter(packed, mask=mask, dims=dims, in_dim=packed_dim)


def _pack_and_back(x: rf.Tensor, dims: list[rf.Dim]) -> rf.Tensor:
    packed, packed_dim = rf.pack_padded(x, dims=dims)
    return rf.pad_packed(packed, in_dim=packed_dim, dims=dims)
