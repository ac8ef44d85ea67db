"""The mean over no elements is 0, whether there is a mask or not."""

from __future__ import annotations

import numpy as np
import pytest

import rf


@pytest.mark.parametrize("backend", ["numpy", pytest.param("torch", marks=pytest.mark.needs("torch"))])
def test_mean_over_nothing_is_zero(backend: str) -> None:
    with rf.use_backend(backend):
        b, f = rf.Dim(None, name="B").fill(0), rf.Dim(2, name="F")
        t = rf.Dim(None, name="T").fill([], dims=[b])
        x = rf.convert_to_tensor(np.zeros((0, 0, 2), dtype="float32"), dims=[b, t, f])
        for axis in (b, t, [b, t], [b, t, f]):
            out = rf.reduce_mean(x, axis=axis).numpy()
            assert not np.isnan(out).any() and not out.any()
        assert rf.reduce_mean(x, axis=[b, t]).numpy().tolist() == [0.0, 0.0]
