"""The LSTM against torch.nn.LSTM, sequence by sequence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import rf
from rf.ops.rec import lstm, lstm_step

COMPUTING = [pytest.param("numpy"), pytest.param("torch", marks=pytest.mark.needs("torch"))]
F, G = 3, 4


def arrays(num: int, frames: int) -> dict[str, np.ndarray]:
    shapes = {
        "x": (num, frames, F),
        "h": (num, G),
        "c": (num, G),
        "ff": (4 * G, F),
        "rec": (4 * G, G),
        "bias": (4 * G,),
    }
    rng = np.random.default_rng(0)
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


class Dims:
    def __init__(self, lengths: Sequence[int], static: bool = False):
        self.b, self.f, self.g = rf.Dim(len(lengths), name="B"), rf.Dim(F, name="F"), rf.Dim(G, name="G")
        sizes = np.array(lengths, dtype=np.int32)
        self.t = rf.Dim(max(lengths), name="T") if static else rf.Dim(None, name="T").fill(sizes, [self.b])
        self.gates = 4 * self.g

    def tensors(self, data: dict[str, Any], bias: bool = True) -> list[rf.Tensor | None]:
        dims = {"x": [self.b, self.t, self.f], "h": [self.b, self.g], "c": [self.b, self.g]}
        dims |= {"ff": [self.gates, self.f], "rec": [self.gates, self.g], "bias": [self.gates]}
        out = [rf.convert_to_tensor(data[name], dims=d) for name, d in dims.items()]
        return out if bias else [*out[:-1], None]


def torch_lstm(data: dict[str, np.ndarray], i: int, n: int, bias: bool = True) -> tuple[np.ndarray, ...]:
    """torch's module on the first n frames of sequence i: outputs, last h, last c."""
    import torch

    module = torch.nn.LSTM(F, G, bias=bias)
    with torch.no_grad():
        module.weight_ih_l0.copy_(torch.tensor(data["ff"]))
        module.weight_hh_l0.copy_(torch.tensor(data["rec"]))
        if bias:
            module.bias_ih_l0.copy_(torch.tensor(data["bias"]))
            module.bias_hh_l0.zero_()
        state = torch.tensor(data["h"][None, i]), torch.tensor(data["c"][None, i])
        y, (h, c) = module(torch.tensor(data["x"][i, :n]), state)
    return y.numpy(), h[0].numpy(), c[0].numpy()


@pytest.mark.needs("torch")
@pytest.mark.parametrize("backend", ["numpy", "torch"])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    ("lengths", "static"), [((5, 2, 4), False), ((5, 0, 3, 0), False), ((4, 4), False), ((3, 3), True)], ids=str
)
def test_batch_is_torch_of_each_sequence(lengths: Sequence[int], static: bool, bias: bool, backend: str) -> None:
    data = arrays(len(lengths), max(lengths))
    for i, n in enumerate(lengths):
        data["x"][i, n:] = np.nan
    with rf.use_backend(backend):
        dims = Dims(lengths, static)
        x, h, c, *weights = dims.tensors(data, bias)
        y, new_h, new_c = lstm(x, h, c, *weights, spatial_dim=dims.t, in_dim=dims.f, out_dim=dims.g)  # type: ignore[arg-type]
        assert y.dims_set == {dims.b, dims.t, dims.g} and y.feature_dim == dims.g
        out = y.copy_transpose([dims.b, dims.t, dims.g]).numpy()
    for i, n in enumerate(lengths):
        if n == 0:
            expected_y, expected_h, expected_c = np.zeros((0, G)), data["h"][i], data["c"][i]
        else:
            expected_y, expected_h, expected_c = torch_lstm(data, i, n, bias)
        np.testing.assert_allclose(out[i, :n], expected_y, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(new_h.numpy()[i], expected_h, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(new_c.numpy()[i], expected_c, rtol=1e-5, atol=1e-5)
        assert (out[i, n:] == 0).all()


@pytest.mark.parametrize("backend", COMPUTING)
def test_steps_are_the_sequence(backend: str) -> None:
    data = arrays(2, 5)
    with rf.use_backend(backend):
        dims = Dims((5, 5))
        x, h, c, *weights = dims.tensors(data)
        y, last_h, last_c = lstm(x, h, c, *weights, spatial_dim=dims.t, in_dim=dims.f, out_dim=dims.g)  # type: ignore[arg-type]
        out = y.copy_transpose([dims.b, dims.t, dims.g]).numpy()
        for t in range(5):
            frame = rf.convert_to_tensor(data["x"][:, t], dims=[dims.b, dims.f])
            h, c = lstm_step(frame, h, c, *weights, dims.f, dims.g)
            np.testing.assert_allclose(h.numpy(), out[:, t], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(h.numpy(), last_h.numpy(), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(c.numpy(), last_c.numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.needs("torch")
def test_gradients_are_those_of_each_sequence_and_padding_gets_none() -> None:
    """Also with NaN in the padding and an empty sequence."""
    import torch

    lengths = (5, 0, 2)
    data = arrays(3, 5)
    with rf.use_backend("torch"):

        def gradients(rows: Sequence[int], frames: int) -> list[Any]:
            own = {k: torch.tensor(v[list(rows)] if k in ("x", "h", "c") else v) for k, v in data.items()}
            own["x"] = own["x"][:, :frames].clone()
            for i, row in enumerate(rows):
                own["x"][i, lengths[row] :] = torch.nan
            leaves = [own[k].requires_grad_() for k in data]
            dims = Dims([lengths[r] for r in rows])
            y, h, c = lstm(*dims.tensors(own), spatial_dim=dims.t, in_dim=dims.f, out_dim=dims.g)  # type: ignore[arg-type]
            loss = rf.reduce_sum(rf.square(y), axis=y.dims) + rf.reduce_sum(rf.square(h + 2.0 * c), axis=h.dims)
            grads = torch.autograd.grad(loss.raw_tensor, leaves, allow_unused=True)
            return [torch.zeros_like(x) if g is None else g for x, g in zip(leaves, grads)]

        x, h, c, *weights = gradients((0, 1, 2), 5)
        alone = [gradients((i,), n) for i, n in enumerate(lengths)]
    for i, n in enumerate(lengths):
        torch.testing.assert_close(x[i, :n], alone[i][0][0])
        assert (x[i, n:] == 0).all()
        torch.testing.assert_close(h[i], alone[i][1][0])
        torch.testing.assert_close(c[i], alone[i][2][0])
    for k, w in enumerate(weights):
        torch.testing.assert_close(w, sum(a[3 + k] for a in alone))


def test_errors_name_the_dim() -> None:
    with rf.use_backend("numpy"):
        dims = Dims((3, 2))
        x, h, c, ff, rec, bias = dims.tensors(arrays(2, 3))
        options: dict[str, Any] = {"spatial_dim": dims.t, "in_dim": dims.f, "out_dim": dims.g}
        other = rf.Dim(7, name="other")
        for args, change, text in [
            ((x, h, c, ff, rec, bias), {"in_dim": other}, "other=7"),
            ((x, h, c, ff, rec, bias), {"spatial_dim": other}, "other=7"),
            ((x, x, c, ff, rec, bias), {}, "state h"),
            ((x, h, c, rec, rec, bias), {}, "ff_weight"),
        ]:
            with pytest.raises(rf.DimError, match=text):
                lstm(*args, **(options | change))  # type: ignore[arg-type]
        with pytest.raises(rf.DimError, match="in_dim"):
            lstm_step(h, h, c, ff, rec, bias, dims.f, dims.g)
