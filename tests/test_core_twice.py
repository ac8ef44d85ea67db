"""A dim that occurs twice in a tensor: an op along it means the entry of highest match priority, in any axis order."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import rf

BACKENDS = ["numpy", pytest.param("torch", marks=pytest.mark.needs("torch"))]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(
    ("op", "reference"),
    [
        (lambda x, d: rf.softmax(x, axis=d), lambda r: np.exp(r) / np.exp(r).sum(-1, keepdims=True)),
        (lambda x, d: rf.log_softmax(x, axis=d), lambda r: r - np.log(np.exp(r).sum(-1, keepdims=True))),
        (lambda x, d: rf.cumsum(x, spatial_dim=d), lambda r: r.cumsum(-1)),
        (lambda x, d: rf.reduce_sum(x, axis=d), lambda r: r.sum(-1)),
    ],
    ids=["softmax", "log_softmax", "cumsum", "reduce_sum"],
)
def test_along_the_entry_of_highest_priority(
    backend: str, masked: bool, op: Callable[[rf.Tensor, rf.Dim], rf.Tensor], reference: Callable[..., np.ndarray]
) -> None:
    with rf.use_backend(backend):
        b = rf.Dim(None, name="B")
        t = rf.Dim(None, name="T").fill([3, 2], dims=[b]) if masked else rf.Dim(3, name="T")
        inner = t.copy(match_priority=1)
        raw = np.random.default_rng(1).standard_normal((2, 3, 3)).astype("float32")
        lengths = [3, 2] if masked else [3, 3]
        for swap in (False, True):
            dims = [b, inner, t] if swap else [b, t, inner]
            x = rf.convert_to_tensor(raw.swapaxes(1, 2) if swap else raw, dims=dims)
            out = op(x, t)
            got = out.copy_transpose([b, *([t, inner] if len(out.dims) == 3 else [t])]).numpy()
            for i, n in enumerate(lengths):
                want = reference(raw[i, :n, :n])
                np.testing.assert_allclose(got[(i, *(slice(n) for _ in want.shape))], want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("backend", BACKENDS)
def test_pieces_of_the_entry_of_highest_priority(backend: str) -> None:
    with rf.use_backend(backend):
        t, a, c = rf.Dim(3, name="T"), rf.Dim(1, name="a"), rf.Dim(2, name="c")
        raw = np.arange(9, dtype="float32").reshape(3, 3)
        x = rf.convert_to_tensor(raw, dims=[t, t.copy(match_priority=1)])
        first, second = rf.split(x, axis=t, out_dims=[a, c])
        assert first.copy_transpose([t, a]).numpy().tolist() == raw[:, :1].tolist()
        assert second.copy_transpose([t, c]).numpy().tolist() == raw[:, 1:].tolist()
        assert [r.numpy().tolist() for r in rf.unstack(x, axis=t)] == raw.T.tolist()
