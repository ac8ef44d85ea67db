"""Convolution and pooling against torch's own functions, and their lengths. The conformance samples have the rest."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import rf

COMPUTING = [pytest.param("numpy"), pytest.param("torch", marks=pytest.mark.needs("torch"))]
LENGTHS = (9, 4, 0, 1)


def random(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def batch(lengths: Sequence[int] = LENGTHS, name: str = "T") -> tuple[rf.Dim, rf.Dim]:
    b = rf.Dim(len(lengths), name="B")
    return b, rf.Dim(None, name=name).fill(np.array(lengths, dtype=np.int32), [b])


# -- lengths


@pytest.mark.parametrize("padding", ["same", "valid", 0, 1, 2])
@pytest.mark.parametrize(("size", "stride", "dilation"), list(itertools.product([1, 2, 3, 4], [1, 2, 3], [1, 2])))
def test_conv_lengths_agree(size: int, stride: int, dilation: int, padding: str | int) -> None:
    """For ints, dims, tensors, and by the definition: so many windows fit."""
    options: dict[str, Any] = {"filter_size": size, "stride": stride, "padding": padding, "dilation_rate": dilation}
    lengths = list(range(10))
    b, t = batch(lengths)
    expected = []
    for n in lengths:
        reach = (size - 1) * dilation + 1
        total = n + (reach - 1 if padding == "same" else 0 if padding == "valid" else 2 * int(padding))
        expected.append(len(range(0, total - reach + 1, stride)))
    assert [rf.calc_conv_out_length(n, **options) for n in lengths] == expected
    out = rf.calc_conv_out_length(t, **options)
    assert out.get_sizes().values.tolist() == expected
    assert rf.calc_conv_out_length(t, **options) is out
    with rf.use_backend("numpy"):
        assert rf.calc_conv_out_length(t.get_size_tensor(), **options).numpy().tolist() == expected
    if stride == 1 and (padding == "same" or (padding == "valid" and size == 1)):
        assert out is t


@pytest.mark.parametrize("padding", ["same", "valid", 1])
@pytest.mark.parametrize("output_padding", [None, 0, 1])
@pytest.mark.parametrize(("size", "stride"), list(itertools.product([1, 2, 3, 4], [None, 1, 2, 3])))
def test_transposed_lengths_agree(size: int, stride: int | None, padding: Any, output_padding: int | None) -> None:
    options: dict[str, Any] = {"filter_size": size, "stride": stride, "padding": padding}
    options["output_padding"] = output_padding
    lengths = list(range(2, 8))
    b, t = batch(lengths)
    step = stride or size
    if output_padding is None and padding != 1:
        expected = [n * step + (max(size - step, 0) if padding == "valid" else 0) for n in lengths]
    else:
        cut = {"valid": 0, "same": size // 2, 1: 1}[padding]
        expected = [max((n - 1) * step + size - 2 * cut + (output_padding or 0), 0) for n in lengths]
    assert [rf.calc_transposed_conv_out_length(n, **options) for n in lengths] == expected
    out = rf.calc_transposed_conv_out_length(t, **options)
    assert out.get_sizes().values.tolist() == expected
    with rf.use_backend("numpy"):
        assert rf.calc_transposed_conv_out_length(t.get_size_tensor(), **options).numpy().tolist() == expected


def test_dims_are_the_same_objects_every_time() -> None:
    b, t = batch()
    first = rf.make_conv_out_spatial_dims([t], filter_size=3, padding="valid", strides=2)
    again = rf.make_conv_out_spatial_dims([t], filter_size=3, padding="valid", strides=2)
    assert first[0] is again[0]
    named = rf.make_conv_out_spatial_dims([t], filter_size=4, padding="valid", description_prefix="sub")
    assert named[0].name == "sub:spatial0"
    t.fill([3, 3, 3, 3], [b])
    assert first[0].get_sizes().values.tolist() == [1, 1, 1, 1]


# -- against torch


def _torch_conv(x: np.ndarray, w: np.ndarray, bias: np.ndarray | None, padding: Any, **options: Any) -> np.ndarray:
    """torch's convolution of one sequence (channels, *space)."""
    import torch
    import torch.nn.functional as F

    n = w.ndim - 2
    dilation, stride = options.get("dilation_rate", 1), options.get("strides", 1)
    pads = []
    for k in w.shape[2:]:
        total = (k - 1) * dilation
        left, right = (total // 2, total - total // 2) if padding == "same" else (0, 0)
        pads.append((left, right) if isinstance(padding, str) else (padding, padding))
    padded = np.pad(x, ((0, 0), *pads))
    out = [len(range(0, m - (k - 1) * dilation, stride)) for m, k in zip(padded.shape[1:], w.shape[2:])]
    if 0 in out:
        return np.zeros((w.shape[0], *out), dtype=np.float32)
    conv = [F.conv1d, F.conv2d, F.conv3d][n - 1]
    args = [torch.tensor(a) if a is not None else None for a in (padded[None], w, bias)]
    return conv(*args, stride=stride, dilation=dilation, groups=options.get("groups", 1))[0].numpy()  # type: ignore[operator]


@pytest.mark.needs("torch")
@pytest.mark.parametrize("backend", ["numpy", "torch"])
@pytest.mark.parametrize("padding", ["same", "valid", 2])
@pytest.mark.parametrize("options", [{}, {"strides": 2}, {"strides": 3, "dilation_rate": 2}, {"groups": 2}], ids=str)
@pytest.mark.parametrize("size", [1, 3, 4])
def test_conv1d_of_a_batch_is_torch_of_each_sequence(size: int, options: Any, padding: Any, backend: str) -> None:
    x, w, bias = random(4, 9, 4), random(6, 4 // options.get("groups", 1), size, seed=1), random(6, seed=2)
    with rf.use_backend(backend):
        b, t = batch()
        c_in, c_out, k = rf.Dim(4, name="in"), rf.Dim(6, name="out"), rf.Dim(size, name="K")
        filter_in = c_in if "groups" not in options else rf.Dim(2, name="in/groups")
        out, (t_out,) = rf.conv(
            rf.convert_to_tensor(x, dims=[b, t, c_in]),
            in_dim=c_in,
            out_dim=c_out,
            in_spatial_dims=[t],
            filter=rf.convert_to_tensor(w, dims=[c_out, filter_in, k]),
            filter_size=k,
            padding=padding,
            bias=rf.convert_to_tensor(bias, dims=[c_out]),
            **options,
        )
        assert out.feature_dim == c_out
        values = out.copy_transpose([b, c_out, t_out]).numpy()
    for i, n in enumerate(LENGTHS):
        expected = _torch_conv(x[i, :n].T, w, bias, padding, **options)
        assert t_out.get_sizes().values[i] == expected.shape[1]
        np.testing.assert_allclose(values[i, :, : expected.shape[1]], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.needs("torch")
@pytest.mark.parametrize("backend", ["numpy", "torch"])
@pytest.mark.parametrize("padding", ["same", "valid"])
@pytest.mark.parametrize("n", [2, 3])
def test_conv_over_several_dims(n: int, padding: str, backend: str) -> None:
    space = (5, 6, 4)[:n]
    x, w = random(2, 3, *space), random(4, 3, *(3, 2, 2)[:n], seed=1)
    with rf.use_backend(backend):
        b, c_in, c_out = rf.Dim(2, name="B"), rf.Dim(3, name="in"), rf.Dim(4, name="out")
        dims = [rf.Dim(m, name=f"S{i}") for i, m in enumerate(space)]
        sizes = [rf.Dim(m, name=f"K{i}") for i, m in enumerate(w.shape[2:])]
        out, out_dims = rf.conv(
            rf.convert_to_tensor(x, dims=[b, c_in, *dims]),
            in_dim=c_in,
            out_dim=c_out,
            in_spatial_dims=dims,
            filter=rf.convert_to_tensor(w, dims=[c_out, c_in, *sizes]),
            filter_size=sizes,
            padding=padding,
            strides=2,
        )
        values = out.copy_transpose([b, c_out, *out_dims]).numpy()
    for i in range(2):
        np.testing.assert_allclose(values[i], _torch_conv(x[i], w, None, padding, strides=2), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("backend", COMPUTING)
def test_square_filter_is_told_apart_by_match_priority(backend: str) -> None:
    x, w = random(2, 5, 3), random(3, 3, 2, seed=1)
    with rf.use_backend(backend):
        b, t, c, k = rf.Dim(2, name="B"), rf.Dim(5, name="T"), rf.Dim(3, name="C"), rf.Dim(2, name="K")
        source = rf.convert_to_tensor(x, dims=[b, t, c])
        options: dict[str, Any] = {"in_dim": c, "out_dim": c, "in_spatial_dims": [t], "filter_size": [k]}
        c_in = c.copy(match_priority=1)
        a, _ = rf.conv(source, filter=rf.convert_to_tensor(w, dims=[c, c_in, k]), padding="valid", **options)
        np.testing.assert_allclose(
            a.numpy(), np.einsum("btck,dck->bdt", np.stack([x[:, :-1], x[:, 1:]], -1), w), rtol=1e-5, atol=1e-5
        )
        flipped = rf.convert_to_tensor(w, dims=[c_in, c, k])
        a, _ = rf.conv(source, filter=flipped, padding="valid", **options)
        np.testing.assert_allclose(
            a.numpy(), np.einsum("btck,cdk->bdt", np.stack([x[:, :-1], x[:, 1:]], -1), w), rtol=1e-5, atol=1e-5
        )


# -- transposed convolution


def _torch_transposed(x: np.ndarray, w: np.ndarray, bias: np.ndarray, stride: int) -> np.ndarray:
    import torch
    import torch.nn.functional as F

    return F.conv_transpose1d(torch.tensor(x[None]), torch.tensor(w), torch.tensor(bias), stride=stride)[0].numpy()


@pytest.mark.needs("torch")
@pytest.mark.parametrize("backend", ["numpy", "torch"])
@pytest.mark.parametrize("options", [{}, {"remove_padding": 1}, {"output_padding": 1}, {"padding": 1}], ids=str)
@pytest.mark.parametrize("stride", [None, 1, 2, 3, 4])
def test_transposed_conv_of_a_batch_is_torch_of_each_sequence(stride: int | None, options: Any, backend: str) -> None:
    x, w, bias = random(4, 9, 2), random(2, 5, 3, seed=1), random(5, seed=2)
    with rf.use_backend(backend):
        b, t = batch()
        c_in, c_out, k = rf.Dim(2, name="in"), rf.Dim(5, name="out"), rf.Dim(3, name="K")
        out, (t_out,) = rf.transposed_conv(
            rf.convert_to_tensor(x, dims=[b, t, c_in]),
            in_dim=c_in,
            out_dim=c_out,
            in_spatial_dims=[t],
            filter=rf.convert_to_tensor(w, dims=[c_in, c_out, k]),
            filter_size=k,
            bias=rf.convert_to_tensor(bias, dims=[c_out]),
            strides=stride,
            **({"padding": "valid"} | options),
        )
        values = out.copy_transpose([b, c_out, t_out]).numpy()
    sizes = t_out.get_sizes().values
    for i, n in enumerate(LENGTHS):
        if n == 0:
            continue
        expected = _torch_transposed(x[i, :n].T, w, bias, stride or 3)
        extra = max((stride or 3) - 3, 0) if options.get("output_padding") is None and "padding" not in options else 0
        extra += options.get("output_padding", 0)
        expected = np.concatenate([expected, np.repeat(bias[:, None], extra, 1)], 1)
        cut = options.get("remove_padding", 0) + options.get("padding", 0)
        expected = expected[:, cut : expected.shape[1] - cut]
        assert sizes[i] == expected.shape[1]
        np.testing.assert_allclose(values[i, :, : sizes[i]], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("size", [2, 3, 4, 5])
@pytest.mark.parametrize("stride", [1, 2, 3])
def test_same_transposed_conv_is_the_transposed_map_of_same_conv(stride: int, size: int) -> None:
    """<conv(x), y> = <x, transposed_conv(y)> for all x, y."""
    with rf.use_backend("numpy"):
        long, short = rf.Dim(4 * stride, name="long"), rf.Dim(4, name="short")
        a, c, k = rf.Dim(2, name="A"), rf.Dim(3, name="C"), rf.Dim(size, name="K")
        x, y = rf.random_normal([long, a], dtype="float64"), rf.random_normal([short, c], dtype="float64")
        w = rf.random_normal([c, a, k], dtype="float64")
        down, (d,) = rf.conv(
            x, in_dim=a, out_dim=c, in_spatial_dims=[long], filter=w, filter_size=k, padding="same", strides=stride
        )
        up, (u,) = rf.transposed_conv(
            y, in_dim=c, out_dim=a, in_spatial_dims=[short], filter=w, filter_size=k, padding="same", strides=stride
        )
        assert d.dimension == 4 and u.dimension == 4 * stride
        left = (down.copy_transpose([d, c]).numpy() * y.numpy()).sum()
        right = (up.copy_transpose([u, a]).numpy() * x.numpy()).sum()
        assert left == pytest.approx(right)


# -- pooling


@pytest.mark.needs("torch")
@pytest.mark.parametrize("backend", ["numpy", "torch"])
@pytest.mark.parametrize(("mode", "padding"), list(itertools.product(["max", "avg"], ["same", "valid", 1])))
@pytest.mark.parametrize(("size", "stride"), [(2, None), (3, 1), (3, 2), (2, 3)])
def test_pool_is_over_the_valid_frames_of_each_window(
    size: int, stride: int | None, mode: str, padding: Any, backend: str
) -> None:
    x = random(4, 9, 2)
    for i, n in enumerate(LENGTHS):
        x[i, n:] = np.nan
    with rf.use_backend(backend):
        b, t = batch()
        f = rf.Dim(2, name="F")
        out, t_out = rf.pool1d(
            rf.convert_to_tensor(x, dims=[b, t, f], feature_dim=f),
            mode=mode, pool_size=size, strides=stride, padding=padding, in_spatial_dim=t,
        )  # fmt: skip
        assert out.feature_dim == f
        values = out.copy_transpose([b, t_out, f]).numpy()
    left = (size - 1) // 2 if padding == "same" else 0 if padding == "valid" else padding
    for i, n in enumerate(LENGTHS):
        for j in range(t_out.get_sizes().values[i]):
            start = j * (stride or size) - left
            window = x[i, max(start, 0) : max(min(start + size, n), 0)]
            expected = np.zeros(2) if not len(window) else window.max(0) if mode == "max" else window.mean(0)
            np.testing.assert_allclose(values[i, j], expected, rtol=1e-5, atol=1e-6, err_msg=f"sequence {i}, frame {j}")


@pytest.mark.needs("torch")
def test_pool_without_padding_is_torch() -> None:
    import torch
    import torch.nn.functional as F

    x = random(2, 3, 8, 6)
    with rf.use_backend("torch"):
        b, f, h, w = (rf.Dim(n) for n in x.shape)
        source = rf.convert_to_tensor(x, dims=[b, f, h, w])
        for mode, function in (("max", F.max_pool2d), ("avg", F.avg_pool2d)):
            out, dims = rf.pool2d(source, mode=mode, pool_size=[2, 3], in_spatial_dims=[h, w])
            assert torch.equal(out.copy_transpose([b, f, *dims]).raw_tensor, function(torch.tensor(x), (2, 3)))


@pytest.mark.parametrize("backend", COMPUTING)
def test_max_pool_of_minus_infinity(backend: str) -> None:
    with rf.use_backend(backend):
        t = rf.Dim(4, name="T")
        x = rf.convert_to_tensor(np.array([-np.inf, -np.inf, 1, -np.inf], dtype=np.float32), dims=[t])
        out, _ = rf.max_pool1d(x, pool_size=2, in_spatial_dim=t)
        assert out.numpy().tolist() == [-np.inf, 1]


# -- errors


def test_errors_name_the_dim() -> None:
    with rf.use_backend("numpy"):
        b, t = batch()
        f, g, k = rf.Dim(2, name="F"), rf.Dim(3, name="G"), rf.Dim(3, name="K")
        other = rf.Dim(None, name="other").fill([1, 1, 1, 1], [b])
        x, w = rf.zeros([b, t, f]), rf.zeros([g, f, k])
        options: dict[str, Any] = {"in_dim": f, "out_dim": g, "in_spatial_dims": [t], "filter_size": [k]}
        options |= {"padding": "same", "filter": w}
        for change, text in [
            ({"in_spatial_dims": [other]}, "other=1"),
            ({"in_dim": g}, "G=3"),
            ({"filter": rf.zeros([g, f])}, "filter"),
            ({"padding": "full"}, "'full'"),
            ({"strides": [1, 2]}, "strides"),
            ({"groups": 2}, "groups"),
            ({"filter_size": [k, k]}, "filter_size"),
            ({"out_spatial_dims": [rf.Dim(7, name="seven")]}, "seven"),
        ]:
            with pytest.raises(rf.RfError, match=text):
                rf.conv(x, **(options | change))
        with pytest.raises(rf.DimError, match="twice"):
            rf.conv(rf.zeros([g, t, f]), **options)
        with pytest.raises(rf.DimError, match="is not a dim"):
            rf.pool(x, mode="max", pool_size=2, in_spatial_dims=[other])
        with pytest.raises(rf.RfError, match="'sum'"):
            rf.pool(x, mode="sum", pool_size=2, in_spatial_dims=[t])
        with pytest.raises(rf.DimError, match="nd=2"):
            rf.pool(x, nd=2, mode="max", pool_size=2, in_spatial_dims=[t])
        short = rf.Dim(2, name="S")
        with pytest.raises(rf.DimError, match="negative"):
            rf.conv(rf.zeros([b, short, f]), **(options | {"in_spatial_dims": [short], "filter_size": [k], "padding": 0,
                    "dilation_rate": 2}))  # fmt: skip
