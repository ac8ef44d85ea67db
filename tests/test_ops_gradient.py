"""Control over gradients, against torch's autograd."""

from __future__ import annotations

import numpy as np
import pytest

import rf

X = np.arange(1, 7, dtype=np.float32).reshape(2, 3)


def dims() -> tuple[rf.Dim, rf.Dim]:
    return rf.Dim(2, name="B"), rf.Dim(3, name="F")


@pytest.mark.needs("torch")
def test_gradient_and_stop_gradient() -> None:
    with rf.use_backend("torch"):
        x, y = (rf.convert_to_tensor(X, dims=dims()) for _ in range(2))
        rf.set_requires_gradient(x)
        loss = rf.reduce_sum(rf.square(x), axis=x.dims)
        assert np.array_equal(rf.gradient(loss, x).numpy(), 2 * X)
        assert rf.gradient(loss, x).dims == x.dims  # a second time
        half = rf.reduce_sum(x * rf.stop_gradient(x), axis=x.dims)
        assert np.array_equal(rf.gradient(half, x).numpy(), X)
        rf.set_requires_gradient(y)
        both = rf.gradient(loss + rf.reduce_sum(y, axis=y.dims) * 0.0, [x, y])
        assert np.array_equal(both[0].numpy(), 2 * X) and (both[1].numpy() == 0).all()
        with rf.stop_gradient_scope():
            inside = x * 2.0
        assert not inside.raw_tensor.requires_grad and (x * 2.0).raw_tensor.requires_grad


@pytest.mark.needs("torch")
@pytest.mark.parametrize("scale", [0, -1, 0.5, "B", "scalar"])
def test_scaled_gradient(scale: float | str) -> None:
    with rf.use_backend("torch"):
        b, f = dims()
        x = rf.convert_to_tensor(X, dims=[b, f], feature_dim=f)
        rf.set_requires_gradient(x)
        by_row = np.array([2, 3], dtype=np.float32)
        factor = {"B": rf.convert_to_tensor(by_row, dims=[b]), "scalar": rf.convert_to_tensor(4.0)}.get(scale, scale)
        y = rf.scaled_gradient(x, factor)  # type: ignore[arg-type]
        assert y is not x and y.feature_dim == f and np.array_equal(y.numpy(), X)
        loss = rf.reduce_sum(rf.square(y), axis=y.dims)
        if scale == 0:
            assert not loss.raw_tensor.requires_grad
            return
        expected = {"B": by_row[:, None], "scalar": 4.0}.get(scale, scale)
        np.testing.assert_allclose(rf.gradient(loss, x).numpy(), 2 * X * expected)  # type: ignore[operator]


@pytest.mark.needs("torch")
def test_scaled_and_shifted_gradient() -> None:
    with rf.use_backend("torch"):
        b, f = dims()
        x = rf.convert_to_tensor(X, dims=[f, b][::-1])
        rf.set_requires_gradient(x)
        g = np.array([[1, -2, 3], [0, 0, 0]], dtype=np.float32)
        weights = rf.convert_to_tensor(g.T, dims=[f, b])

        def gradient(y: rf.Tensor) -> np.ndarray:
            return rf.gradient(rf.reduce_sum(y * weights, axis=[b, f]), x).copy_transpose([b, f]).numpy()

        np.testing.assert_allclose(gradient(rf.scaled_gradient_ext(x, scale=0.5)), g / 2)
        np.testing.assert_allclose(gradient(rf.scaled_gradient_ext(x, scale=0.5, shift=0.25)), g / 2 + 0.25)
        shift = np.array([0, 0.5, 1], dtype=np.float32)
        out = rf.scaled_gradient_ext(
            x, scale=2.0, shift=rf.convert_to_tensor(shift, dims=[f]), scale_shift_by_sum_over_axis=f
        )
        np.testing.assert_allclose(gradient(out), 2 * g + shift * np.array([[6], [0]]))


def test_without_gradients() -> None:
    with rf.use_backend("numpy"):
        x = rf.convert_to_tensor(X, dims=dims())
        rf.set_requires_gradient(x)
        with rf.stop_gradient_scope():
            assert np.array_equal(rf.scaled_gradient(rf.stop_gradient(x), -1.0).numpy(), X)
        with pytest.raises(rf.BackendError, match="numpy"):
            rf.gradient(rf.reduce_sum(x, axis=x.dims), x)
    with rf.use_backend("meta"):
        x = rf.convert_to_tensor(X, dims=dims())
        assert rf.gradient(rf.reduce_sum(x, axis=x.dims), x).dims == x.dims


def test_errors() -> None:
    with rf.use_backend("numpy"):
        b, f = dims()
        x = rf.convert_to_tensor(X, dims=[b, f])
        with pytest.raises(rf.DimError, match="scalar"):
            rf.gradient(x, x)
        with pytest.raises(rf.RfError, match="int32"):
            rf.set_requires_gradient(rf.cast(x, "int32"))
        with pytest.raises(rf.DimError, match="G=4"):
            rf.scaled_gradient(x, rf.zeros([rf.Dim(4, name="G")]))
        with pytest.raises(rf.DimError, match="G=4"):
            rf.scaled_gradient_ext(x, scale=1.0, shift=1.0, scale_shift_by_sum_over_axis=rf.Dim(4, name="G"))
