"""Parameters and their first values."""

from __future__ import annotations

import copy

import numpy as np
import pytest

import rf

A = rf.Dim(3, name="a")
B = rf.Dim(4, name="b")
BACKENDS = ["numpy", "torch", "meta"]


@pytest.mark.parametrize("backend", BACKENDS)
def test_created_with_storage_dims_and_dtype(backend: str) -> None:
    with rf.use_backend(backend):
        p = rf.Parameter([A, B])
        assert isinstance(p, rf.Tensor) and p.dims == (A, B) and p.dtype == "float32" and p.trainable
        assert p.backend is rf.get_backend(backend) and p.weight_decay == 0.0
        labels = rf.Parameter([A], sparse_dim=B)
        assert labels.dtype == "int32" and not labels.trainable and labels.sparse_dim is B
        stats = rf.Parameter([A], auxiliary=True, non_critical_for_restore=True)
        assert not stats.trainable and stats.auxiliary and stats.non_critical_for_restore
        out = p + 1.0
        assert type(out) is rf.Tensor and out.dims == (A, B)
        if backend != "meta":
            np.testing.assert_array_equal(p.numpy(), np.zeros((3, 4)))


def test_wrong_dims() -> None:
    time = rf.Dim(None, name="time")
    with pytest.raises(rf.DimError, match="dynamic"):
        rf.Parameter([A, time])
    with pytest.raises(rf.DimError, match="occurs twice"):
        rf.Parameter([A, A])
    with pytest.raises(TypeError, match="sequence of Dims"):
        rf.Parameter(A)
    assert len(rf.Parameter([A.copy(match_priority=1), A]).dims) == 2


def test_trainable_reaches_torch() -> None:
    with rf.use_backend("torch"):
        p = rf.Parameter([A])
        assert p.raw_tensor.requires_grad
        raw = p.raw_tensor
        p.trainable = False
        assert not p.raw_tensor.requires_grad and p.raw_tensor is raw
        p.trainable = None
        assert p.trainable and raw.requires_grad
        p.auxiliary = True
        assert not p.trainable and not raw.requires_grad
        assert not rf.Parameter([A], trainable=False).raw_tensor.requires_grad


@pytest.mark.parametrize("backend", BACKENDS)
def test_assign_is_in_place_and_by_dims(backend: str) -> None:
    with rf.use_backend(backend):
        p = rf.Parameter([A, B])
        raw = p.raw_tensor
        values = np.arange(12, dtype="float64").reshape(3, 4)
        p.assign(values)
        p.assign(rf.convert_to_tensor(values.T.copy(), dims=[B, A]))
        if backend == "meta":
            with pytest.raises(rf.DimError):
                p.assign(rf.zeros([rf.Dim(4)]))
            return
        np.testing.assert_array_equal(p.numpy(), values)
        if backend == "torch":
            assert p.raw_tensor is raw and raw.requires_grad
        assert p.dtype == "float32"
        p.assign(rf.convert_to_tensor([1.0, 2.0, 3.0], dims=[A]))
        np.testing.assert_array_equal(p.numpy(), np.repeat([[1.0], [2.0], [3.0]], 4, axis=1))
        p.assign_add(0.5)
        p.assign_add(rf.convert_to_tensor(np.ones(4, "float32"), dims=[B]))
        np.testing.assert_array_equal(p.numpy()[0], 2.5)
        p.assign(7)
        np.testing.assert_array_equal(p.numpy(), 7)
        p.move_toward(rf.zeros([B, A]), 0.25)
        np.testing.assert_allclose(p.numpy(), 5.25)
        with pytest.raises(rf.DimError):
            p.assign(rf.zeros([rf.Dim(4)]))


def test_assigned_values_are_copies() -> None:
    with rf.use_backend("numpy"):
        p = rf.Parameter([A])
        values = np.ones(3, "float32")
        p.assign(values)
        q = rf.Parameter(p)
        values[:] = 5
        p.assign(2.0)
        np.testing.assert_array_equal(p.numpy(), 2)
        np.testing.assert_array_equal(q.numpy(), 1)


@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_assign_key(backend: str) -> None:
    with rf.use_backend(backend):
        p = rf.Parameter([A, B], initial=0.0)
        two = rf.Dim(2, name="two")
        p.assign_key(A, 1, None, rf.convert_to_tensor([1.0, 2.0, 3.0, 4.0], dims=[B]))
        p.assign_key(B, slice(0, 2), two, 9.0)
        p.assign_key(
            [A, B],
            [2, rf.convert_to_tensor([3, 2], dims=[two])],
            [None, two],
            rf.convert_to_tensor([5.0, 6.0], dims=[two]),
        )
        np.testing.assert_array_equal(p.numpy(), [[9, 9, 0, 0], [9, 9, 3, 4], [9, 9, 6, 5]])
        with pytest.raises(rf.DimError, match="other dims"):
            p.assign_key(A, 1, None, rf.zeros([two]))


@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_to_dtype(backend: str) -> None:
    with rf.use_backend(backend):
        linear = rf.Linear(A, B)
        linear.steps = rf.Parameter([], "int32")
        before = linear.weight.numpy()
        linear.to(dtype="float64")
        assert linear.weight.dtype == "float64" and linear.weight.trainable
        assert linear.steps.dtype == "int32"
        np.testing.assert_array_equal(linear.weight.numpy(), before.astype("float64"))
        assert linear(rf.zeros([A], dtype="float64")).dtype == "float64"
        if backend == "torch":
            assert linear.weight.raw_tensor.requires_grad and linear.weight.raw_tensor.is_leaf


def test_copies() -> None:
    with rf.use_backend("torch"):
        p = rf.Parameter([A, B], initial=rf.init.Glorot(), weight_decay=0.1)
    q = copy.deepcopy(p)  # on the backend of the parameter, whichever is selected
    assert q.backend is p.backend and q.weight_decay == 0.1 and q.raw_tensor is not p.raw_tensor
    assert not np.array_equal(q.numpy(), p.numpy()) and np.abs(q.numpy()).max() > 0
    with rf.use_backend("numpy"):
        constant = rf.Parameter([A], initial=3.0)
        constant.assign(4.0)
        np.testing.assert_array_equal(copy.copy(constant).numpy(), 3.0)
        without = rf.Parameter([A])
        without.assign(4.0)
        np.testing.assert_array_equal(copy.copy(without).numpy(), 4.0)
        with rf.set_parameter_copy_behavior_ctx("share"):
            assert copy.deepcopy([p])[0] is p
        assert copy.deepcopy([constant])[0] is not constant
    with pytest.raises(rf.RfError, match="unknown mode"), rf.set_parameter_copy_behavior_ctx("other"):
        pass


# -- init


@pytest.mark.parametrize(
    ("make", "variance", "bound"),
    [
        (rf.init.Glorot, 2 / (50 + 80), (6 / 130) ** 0.5),
        (rf.init.He, 2 / 50, 2 * (2 / 50) ** 0.5 / 0.8796),
        (rf.init.HeUniform, 2 / 50, (6 / 50) ** 0.5),
        (lambda: rf.init.Normal(0.3), 0.3**2 * 0.774, 0.6),
        (lambda: rf.init.Normal(0.3, truncated=False), 0.3**2, np.inf),
        (lambda: rf.init.VarianceScaling(3.0, "fan_out", "untruncated_normal"), 3 / 80, np.inf),
    ],
)
def test_variance(make, variance: float, bound: float) -> None:
    dims = [rf.Dim(50, name="in"), rf.Dim(80, name="out")]
    with rf.use_backend("numpy"):
        values = rf.Parameter(dims, initial=make()).numpy()
    assert abs(values.mean()) < 0.1 * variance**0.5
    assert abs(values.var() / variance - 1) < 0.1
    assert np.abs(values).max() <= bound * 1.001


def test_fans_of_filters_count_the_kernel() -> None:
    dims = [rf.Dim(30, name="out"), rf.Dim(20, name="in"), rf.Dim(5), rf.Dim(2)]
    with rf.use_backend("numpy"):
        values = rf.Parameter(dims, initial=rf.init.HeUniform()).numpy()
        vector = rf.Parameter([rf.Dim(1000)], initial=rf.init.VarianceScaling(distribution="uniform")).numpy()
    assert abs(values.var() / (2 / 200) - 1) < 0.1
    assert abs(vector.var() * 1000 - 1) < 0.15


def test_same_values_on_every_backend() -> None:
    values = []
    for backend in ("numpy", "torch"):
        with rf.use_backend(backend):
            rf.set_random_seed(3)
            values.append(rf.Linear(A, B).weight.numpy())
    np.testing.assert_array_equal(*values)


def test_bad_inits() -> None:
    with pytest.raises(rf.RfError, match="stddev must be positive"):
        rf.init.Normal(0.0)
    with pytest.raises(rf.RfError, match="'fan' is not one of fan_in"):
        rf.init.VarianceScaling(mode="fan")
    with pytest.raises(rf.RfError, match="scale must be positive"):
        rf.init.Glorot(scale=-1)
