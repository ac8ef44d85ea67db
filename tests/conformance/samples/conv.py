"""Samples of convolution and pooling."""

from __future__ import annotations

from typing import Any

import numpy as np

import rf
from conformance.sample import S, Sample


def conv(id: str, *operands: str, **args: Any) -> Sample:
    """A 1-d convolution F -> G over T with filter K, bias G unless given otherwise."""
    operands = operands or ("B T F", "filter=G F K", "bias=G")
    args = {"in_dim": "F", "out_dim": "G", "in_spatial_dims": ["T"], "filter_size": ["K"], "padding": "same"} | args
    return S("conv", *operands, id=id, masked=args.get("use_mask") is None, **args)


def transposed(id: str, *operands: str, **args: Any) -> Sample:
    """A 1-d transposed convolution, likewise."""
    operands = operands or ("B T F", "filter=F G K", "bias=G")
    args = {"in_dim": "F", "out_dim": "G", "in_spatial_dims": ["T"], "filter_size": ["K"], "padding": "valid"} | args
    return S("transposed_conv", *operands, id=id, masked=True, **args)


def pool(id: str, *operands: str, **args: Any) -> Sample:
    """Pooling over T."""
    args = {"in_spatial_dims": ["T"], "pool_size": 2} | args
    return S("pool", *(operands or ("B T F",)), id=id, masked=args.get("use_mask") is None, **args)


def _same_conv(x: np.ndarray, filter: np.ndarray, bias: np.ndarray) -> np.ndarray:
    padded = np.pad(x, ((0, 0), (1, 1), (0, 0)))
    windows = np.stack([padded[:, i : i + x.shape[1]] for i in range(3)], -1)
    return np.einsum("btfk,gfk->btg", windows, filter) + bias


two_d = {"in_spatial_dims": ["T", "D"], "filter_size": ["K", "H"]}

SAMPLES: list[Sample] = [
    conv("same", out="B T *G", ref=_same_conv),
    conv("square", "B T *F", "filter=G F K", in_dim="F", out_dim="G"),
    conv("valid", padding="valid"),
    conv("stride2", strides=2),
    conv("stride3-valid", strides=3, padding="valid"),
    conv("pad1", padding=1),
    conv("pad3", padding=3),
    conv("dilated", dilation_rate=2),
    conv("dilated-stride", dilation_rate=2, strides=2),
    conv("even-filter", "B T F", "filter=G F D", filter_size=["D"]),
    conv("even-filter-stride", "B T F", "filter=G F D", filter_size=["D"], strides=2),
    conv("size1", "B T F", "filter=G F E", filter_size=["E"]),
    conv("no-batch", "T F", "filter=G F K", static=False),
    conv("two-batch-dims", "B T F H", "filter=G F K", "bias=G"),
    conv("ragged-batch-dims", "B U T F", "filter=G F K", "bias=G"),
    conv("depthwise", "B T D", "filter=D E K", "bias=D", in_dim="D", out_dim="D", groups=4, out="B T *D"),
    conv("groups", "B T D", "filter=P F K", "bias=P", in_dim="D", out_dim="P", groups=2),
    conv("2d", "B T D F", "filter=G F K H", "bias=G", **two_d),
    conv("2d-stride", "B T D F", "filter=G F K H", **two_d, strides=[2, 1], padding=["same", "valid"]),
    conv("2d-two-dynamic", "B T U F", "filter=G F K H", in_spatial_dims=["T", "U"], filter_size=["K", "H"], strides=2),
    conv("3d", "B T D P F", "filter=G F K H E", in_spatial_dims=["T", "D", "P"], filter_size=["K", "H", "E"]),
    conv("static-space", "B D F", "filter=G F K", in_spatial_dims=["D"], out="B D *G"),
    conv("over-history", "T C F", "filter=G F K", in_spatial_dims=["C"]),
    conv("lacks-size-dims", "T F", "filter=G F K", "bias=G", strides=2, static=False),
    conv("unmasked", use_mask=False, poison=False, alone=False, zero=False),
    conv("given-out-dim", out_spatial_dims=lambda d: [rf.Dim(None, name="new")], strides=2),
    S("conv", "B T F:float16", "filter=G F K:float16", in_dim="F", out_dim="G", in_spatial_dims=["T"],
      filter_size=["K"], padding="same", id="float16", grad=False, out="B T *G:float16", masked=True),
    transposed("valid"),
    transposed("same", padding="same"),
    transposed("same-stride1", padding="same", strides=1, out="B T *G"),
    transposed("stride2", strides=2),
    transposed("stride4", strides=4),
    transposed("stride1", strides=1),
    transposed("remove", remove_padding=1, strides=2),
    transposed("pad", padding=1, strides=2),
    transposed("output-padding", strides=2, output_padding=1),
    transposed("output-padding-same", strides=2, output_padding=1, padding="same"),
    transposed("2d", "B T D F", "filter=F G K H", **two_d, strides=[2, 1]),
    transposed("no-bias", "T F", "filter=F G K", static=False),
    pool("max", mode="max"),
    pool("avg", mode="avg"),
    pool("max-same", mode="max", pool_size=3, strides=2, padding="same"),
    pool("avg-same", mode="avg", pool_size=3, strides=2, padding="same"),
    pool("max-same1", mode="max", pool_size=3, strides=1, padding="same", out="B T F"),
    pool("avg-same1", mode="avg", pool_size=3, strides=1, padding="same", out="B T F"),
    pool("max-pad", mode="max", pool_size=2, strides=1, padding=2),
    pool("avg-pad", mode="avg", pool_size=2, strides=1, padding=2),
    pool("max-dilated", mode="max", dilation_rate=2, padding="same", strides=1),
    pool("avg-dilated", mode="avg", dilation_rate=2, padding="same", strides=1),
    pool("max-int", "B T F:int32", mode="max", pool_size=3, padding="same"),
    pool("avg-int", "B T F:int32", mode="avg", pool_size=3, padding="same"),
    pool("max-T", "B T", mode="max"),
    pool("avg-lacks", "T F", mode="avg", pool_size=3, padding="same", static=False),
    pool("max-2d", "B T D F", mode="max", in_spatial_dims=["T", "D"], pool_size=[2, 3], padding=["same", "valid"]),
    pool("avg-2d-dynamic", "B T U F", mode="avg", in_spatial_dims=["T", "U"], pool_size=2, padding="same"),
    pool("avg-3d", "B T D P", mode="avg", in_spatial_dims=["T", "D", "P"], pool_size=2),
    pool("max-3d", "B T D P", mode="max", in_spatial_dims=["T", "D", "P"], pool_size=2),
    pool("static", "B D F", mode="avg", in_spatial_dims=["D"]),
    pool("unmasked", mode="avg", use_mask=False, poison=False, alone=False, zero=False),
    S("max_pool", "B T F", pool_size=2, in_spatial_dims=["T"], masked=True),
    S("max_pool1d", "B T F", pool_size=2, in_spatial_dim="T", masked=True),
    S("pool1d", "B T F", mode="avg", pool_size=2, in_spatial_dim="T", masked=True),
    S("pool2d", "B T D", mode="avg", pool_size=2, in_spatial_dims=["T", "D"], masked=True),
    S("pool3d", "B T D P", mode="max", pool_size=2, in_spatial_dims=["T", "D", "P"], masked=True),
    S("make_conv_out_spatial_dims", call=lambda d: rf.make_conv_out_spatial_dims(
        [d.T, d.U], filter_size=3, padding=["same", "valid"], strides=2), alone=False),
    S("calc_conv_out_length", "B:int32~count", call=lambda d, n: rf.calc_conv_out_length(
        n, filter_size=2, stride=2, padding="valid"), ref=lambda n: -(-np.maximum(n - 1, 0) // 2), out="B:int32"),
    S("make_transposed_conv_out_spatial_dims", call=lambda d: rf.make_transposed_conv_out_spatial_dims(
        [d.T], filter_size=3, padding="valid", strides=2), alone=False),
    S("calc_transposed_conv_out_length", "B:int32~count", call=lambda d, n: rf.calc_transposed_conv_out_length(
        n, filter_size=3, stride=2, padding="valid"), ref=lambda n: 2 * n + 1, out="B:int32"),
]  # fmt: skip
