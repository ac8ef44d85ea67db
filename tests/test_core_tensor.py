"""Tensor: construction and what is checked then, attributes, copies, Python protocol.

Numbers and dtypes have their own file.
"""

from __future__ import annotations

import gc
import math
import operator
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import rf
from rf import Dim, Tensor

COMPUTING = ["numpy", pytest.param("torch", marks=pytest.mark.needs("torch"))]


@pytest.fixture(autouse=True)
def _numpy() -> Any:
    with rf.use_backend("numpy"):
        yield


@pytest.fixture
def b() -> Dim:
    return Dim(None, name="B").fill(2)


@pytest.fixture
def t(b: Dim) -> Dim:
    return Dim(None, name="T").fill([3, 1], [b])


@pytest.fixture
def f() -> Dim:
    return Dim(4, name="F")


def raw(*shape: int, dtype: str = "float32") -> np.ndarray:
    return np.arange(math.prod(shape)).reshape(shape).astype(dtype)


def tensor(*dims: Dim, dtype: str = "float32", **kwargs: Any) -> Tensor:
    return Tensor("x", dims, dtype, raw_tensor=raw(*[d.get_dim_value() for d in dims], dtype=dtype), **kwargs)


# -- construction


def test_attributes(b: Dim, t: Dim, f: Dim) -> None:
    data = raw(2, 3, 4)
    x = Tensor("x", [b, t, f], "float32", raw_tensor=data, feature_dim=f)
    assert x.name == "x" and x.dims == (b, t, f) and x.dims_set == {b, t, f} and x.dtype == "float32"
    assert x.raw_tensor is data, "the array is not copied"
    assert x.backend is rf.get_backend("numpy") and x.device is None
    assert x.feature_dim is f and x.feature_dim_axis == 2 and x.sparse_dim is None
    assert x.batch_ndim == x.ndim == 3
    assert Tensor("x", [b, f], "float32", feature_dim_axis=1).feature_dim is f
    x.name = "y"
    assert x.name == "y"


@pytest.mark.needs("torch")
def test_torch_tensors_go_in_and_come_out_without_a_copy(b: Dim, f: Dim) -> None:
    import torch

    data = torch.nn.Parameter(torch.zeros(2, 4))
    x = Tensor("x", [b, f], "float32", raw_tensor=data)
    assert x.raw_tensor is data and x.device == "cpu" and x.backend is rf.get_backend("torch")
    shared = x.copy_transpose([f, b]).raw_tensor
    with torch.no_grad():
        data[0, 1] = 5
    assert shared[1, 0].item() == 5


def test_dtype_is_that_of_the_raw_tensor_or_the_default(f: Dim) -> None:
    assert Tensor("x", [f], raw_tensor=raw(4, dtype="int64")).dtype == "int64"
    assert Tensor("x", [f]).dtype == "float32"


def test_template(b: Dim, f: Dim) -> None:
    x = Tensor("x", [b, f], "float32")
    assert x.raw_tensor is None and x.backend is None and x.device is None
    x.dtype = "float64"
    assert x.dtype == "float64"
    x.raw_tensor = raw(2, 4, dtype="float64")
    assert x.backend is rf.get_backend("numpy")
    x.reset()
    assert x.raw_tensor is None and x.backend is None
    assert Tensor("x", [Dim(None, name="later")], "float32").dims[0].name == "later"


BAD: dict[str, tuple[Callable[[Dim, Dim, Dim], Any], type[Exception], str]] = {
    "too few axes": (
        lambda b, t, f: Tensor("x", [b, t, f], "float32", raw_tensor=raw(2, 3)),
        rf.ShapeError,
        r"^Tensor 'x': the raw tensor has 2 axes \(2, 3\), the dims are \{B=2, T=3\(3,1\), F=4\}$",
    ),
    "too many axes": (
        lambda b, t, f: Tensor("x", [f], "float32", raw_tensor=raw(4, 1)),
        rf.ShapeError,
        r"has 2 axes \(4, 1\)",
    ),
    "static size": (
        lambda b, t, f: Tensor("x", [b, f], "float32", raw_tensor=raw(2, 5)),
        rf.ShapeError,
        r"^Tensor 'x': axis 1 of the raw tensor \(2, 5\) has length 5, but dim F=4 has 4; dims are \{B=2, F=4\}$",
    ),
    "padded length": (
        lambda b, t, f: Tensor("x", [b, t], "float32", raw_tensor=raw(2, 2)),
        rf.ShapeError,
        r"axis 1 .*has length 2, but dim T=3\(3,1\) has 3; dims are .*Fill the dim anew for this batch",
    ),
    "dtype": (
        lambda b, t, f: Tensor("x", [f], "float32", raw_tensor=raw(4, dtype="float64")),
        rf.ShapeError,
        "^Tensor 'x': the raw tensor has dtype float64, the Tensor says float32; convert it first$",
    ),
    "unknown dtype": (
        lambda b, t, f: Tensor("x", [f], "float31"),
        rf.RfError,
        "unknown dtype 'float31'; rf knows bool, uint8,",
    ),
    "a list as raw tensor": (
        lambda b, t, f: Tensor("x", [f], "float32", raw_tensor=[1, 2, 3, 4]),
        TypeError,
        "builtins.list is not an array type",
    ),
    "a dim twice": (
        lambda b, t, f: Tensor("x", [f, b, f], "float32"),
        rf.DimError,
        r"Tensor x with dims \{F=4, B=2, F=4\}: F=4 occurs twice\. Give one of them another dim \(rf.replace_dim\)"
        r".*dim.copy\(match_priority=1\)",
    ),
    "an int as dim": (
        lambda b, t, f: Tensor("x", [f, 3], "float32"),
        TypeError,
        "dims must be Dim objects, got 3 of type int",
    ),  # type: ignore[list-item]
    "a foreign feature dim": (
        lambda b, t, f: Tensor("x", [b], "float32", feature_dim=f),
        rf.DimError,
        r"feature_dim F=4 is not a dim of x: \{B=2\}",
    ),
    "sparse floats": (
        lambda b, t, f: Tensor("x", [b], "float32", sparse_dim=f),
        rf.DimError,
        "sparse_dim F=4 needs an integer tensor",
    ),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_construction(what: str, b: Dim, t: Dim, f: Dim) -> None:
    make, error, match = BAD[what]
    with pytest.raises(error, match=match):
        make(b, t, f)


def test_setting_raw_checks_too(b: Dim, f: Dim) -> None:
    x = tensor(b, f)
    before = x.raw_tensor
    for bad in (raw(2, 5), raw(8), raw(2, 4, dtype="int32")):
        with pytest.raises(rf.ShapeError):
            x.raw_tensor = bad
    assert x.raw_tensor is before
    x.raw_tensor = raw(2, 4)
    assert x.raw_tensor is not before


def test_square_needs_a_match_priority(f: Dim) -> None:
    first = f.copy(match_priority=1)
    x = Tensor("x", [first, f], "float32", raw_tensor=raw(4, 4))
    assert x.get_axis_from_description(f) == 0, "the highest priority is meant"
    assert x.get_axis_from_description(first) == 0
    turned = x.copy_transpose([f, first])
    assert turned.dims == (f, first) and turned.dims[0].match_priority == 0
    np.testing.assert_array_equal(turned.numpy(), raw(4, 4).T)
    # what is left when one is reduced is a normal dim
    summed = rf.reduce_sum(x, axis=f)
    assert summed.dims == (f,) and summed.dims[0].match_priority == 0
    np.testing.assert_array_equal(summed.numpy(), raw(4, 4).sum(0))


def test_feature_and_sparse_dim_can_be_set(b: Dim, f: Dim) -> None:
    x = tensor(b, f, dtype="int32")
    x.feature_dim = f
    x.sparse_dim = f
    assert x.feature_dim is f and x.sparse_dim is f
    x.feature_dim = x.sparse_dim = None
    assert x.feature_dim is None and x.sparse_dim is None and x.feature_dim_axis is None
    with pytest.raises(rf.DimError):
        x.feature_dim = Dim(4, name="other")


def test_vocab(b: Dim) -> None:
    v = Dim(3, name="V", vocab="abc")
    assert Tensor("x", [b], "int32", sparse_dim=v).vocab == "abc"
    assert Tensor("x", [b, v], "float32", feature_dim=v).vocab == "abc"
    assert Tensor("x", [b, v], "float32").vocab is None


# -- copies


def test_copy_is_a_new_object_of_the_same_data(b: Dim, f: Dim) -> None:
    x = tensor(b, f, feature_dim=f)
    y = x.copy("y")
    assert y is not x and y.raw_tensor is x.raw_tensor and y.name == "y" and y.dims == x.dims and y.feature_dim is f
    y.feature_dim = None
    assert x.feature_dim is f
    assert x.copy().name == "x"
    z = tensor(b, dtype="int32", sparse_dim=f).copy()
    assert z.sparse_dim is f
    assert Tensor("x", [b], "float32").copy().raw_tensor is None


def test_copy_template(b: Dim, t: Dim, f: Dim) -> None:
    x = tensor(b, t, f, feature_dim=f)
    template = x.copy_template()
    assert (
        template.raw_tensor is None
        and template.dims == x.dims
        and template.feature_dim is f
        and template.dtype == "float32"
    )
    assert x.copy_template("n", dtype="int32").dtype == "int32" and x.copy_template("n").name == "n"
    g = Dim(5, name="G")
    assert (
        x.copy_template_new_dim_tags([b, g]).dims == (b, g) and x.copy_template_new_dim_tags([b, g]).feature_dim is None
    )
    assert x.copy_template_replace_dim_tag(1, g).dims == (b, g, f)
    assert x.copy_template_excluding_axis(1).dims == (b, f) and x.copy_template_excluding_axis(-1).dims == (b, t)


@pytest.mark.parametrize("backend", COMPUTING)
def test_copy_transpose(backend: str, b: Dim, t: Dim, f: Dim) -> None:
    with rf.use_backend(backend):
        x = rf.convert_to_tensor(raw(2, 3, 4), dims=[b, t, f], feature_dim=f)
    for dims, perm in (([f, b, t], (2, 0, 1)), ([b, t, f], (0, 1, 2)), ([2, 1, 0], (2, 1, 0)), ([f, 0, 1], (2, 0, 1))):
        y = x.copy_transpose(dims)
        assert y is not x and y.dims == tuple(x.dims[i] for i in perm) and y.feature_dim is f
        np.testing.assert_array_equal(y.numpy(), raw(2, 3, 4).transpose(perm))
    with pytest.raises(TypeError, match="axes are addressed by dims"):
        x.copy_transpose([2, 1, 0], allow_int=False)
    for bad in ([b, t], [b, t, f, f], [b, b, t], []):
        with pytest.raises(rf.DimError, match="not exactly the dims of x|not exactly the dims of"):
            x.copy_transpose(bad)
    assert Tensor("x", [b, t], "float32").copy_transpose([t, b]).dims == (t, b)


@pytest.mark.parametrize("backend", COMPUTING)
def test_copy_compatible_to_dims(backend: str, b: Dim, t: Dim, f: Dim) -> None:
    with rf.use_backend(backend):
        x = rf.convert_to_tensor(raw(2, 4), dims=[b, f])
    assert tuple(x.copy_compatible_to_dims_raw([f, t, b]).shape) == (4, 1, 2)
    assert tuple(x.copy_compatible_to_dims_raw([b, f]).shape) == (2, 4)
    y = x.copy_compatible_to_dims([t, f, b])
    assert y.dims[0] != t and y.dims[0].dimension == 1 and y.dims[1:] == (f, b)
    z = x.copy_compatible_to_dims([t, f, b], unbroadcast=True)
    assert z.dims == (t, f, b)
    np.testing.assert_array_equal(z.numpy(), np.broadcast_to(raw(2, 4).T, (3, 4, 2)))
    with pytest.raises(rf.DimError, match=r"copy_compatible_to_dims \[B=2, T=3\(3,1\)\]: lacks \[F=4\]"):
        x.copy_compatible_to_dims_raw([b, t])


def test_copy_masked(b: Dim, t: Dim, f: Dim) -> None:
    x = tensor(b, t)
    assert x.copy_masked(-1.0).numpy().tolist() == [[0, 1, 2], [3, -1, -1]]
    assert x.copy_masked(-1.0, dims=[b]).numpy().tolist() == x.numpy().tolist()
    assert x.copy_masked(-1.0) is not x and tensor(b, f).copy_masked(-1.0) is not None
    without_b = tensor(t)
    assert without_b.copy_masked(-1.0).numpy().tolist() == [0, 1, 2], "without its size dims nothing is padding"
    assert x.copy_masked(Tensor("v", [b], "float32", raw_tensor=np.float32([7, 8]))).numpy().tolist() == [
        [0, 1, 2],
        [3, 8, 8],
    ]


# -- inspection


def test_remaining_dims(b: Dim, t: Dim, f: Dim) -> None:
    x = tensor(b, t, f)
    assert x.remaining_dims() == [b, t, f] and x.remaining_dims(t) == [b, f] and x.remaining_dims([f, b]) == [t]
    with pytest.raises(rf.DimError, match="other=4 is not a dim of x"):
        x.remaining_dims(Dim(4, name="other"))


def test_get_axis(b: Dim, t: Dim, f: Dim) -> None:
    x = tensor(b, t, f)
    assert x.get_axis_from_description(f) == 2 and x.get_axis_from_description(-1, allow_int=True) == 2
    with pytest.raises(TypeError, match="axes are addressed by dims"):
        x.get_axis_from_description(1)
    with pytest.raises(rf.DimError, match="is not a dim of"):
        x.get_axis_from_description(Dim(4, name="other"))


def test_num_elements(b: Dim, t: Dim, f: Dim) -> None:
    assert tensor(f).num_elements() == 4
    count = tensor(b, t, f).num_elements()
    assert isinstance(count, Tensor) and count.item() == 16 and count.dims == ()


def test_verify_out_shape(b: Dim, t: Dim) -> None:
    x = tensor(b, t)
    assert x.verify_out_shape({t, b}) is x
    with pytest.raises(rf.RfError, match="expected dims .* got x: "):
        x.verify_out_shape({t})


# -- results


def test_a_result_is_always_a_new_object(b: Dim, f: Dim) -> None:
    x = tensor(b, f)
    i = tensor(b, f, dtype="int32")
    results = [
        x + 0, x * 1, 0 + x, x - 0, x / 1, x**1, rf.identity(x), rf.cast(x, "float32"), i // 1, rf.relu(x), x.copy(),
        x.copy_transpose([b, f]), rf.clip_by_value(x), x.copy_masked(0.0), rf.reduce_sum(x, axis=[]), rf.copy(x),
    ]  # fmt: skip
    assert all(y is not x and y is not i for y in results)
    x.feature_dim = f
    assert all(y.feature_dim is None for y in results)


@pytest.mark.parametrize("backend", ["numpy", "meta", pytest.param("torch", marks=pytest.mark.needs("torch"))])
def test_feature_and_sparse_dim_of_results(backend: str, b: Dim, f: Dim) -> None:
    g = Dim(3, name="G")
    with rf.use_backend(backend):
        x, y = rf.zeros([b, f, g], feature_dim=f), rf.zeros([f, g], feature_dim=g)
        plain, i = rf.zeros([b, f, g]), rf.zeros([b], dtype="int32", sparse_dim=f)
        other = rf.zeros([b], dtype="int32", sparse_dim=g)
    assert (x + plain).feature_dim is f and (plain + x).feature_dim is f and (x + x).feature_dim is f
    assert (x + y).feature_dim is None, "they disagree"
    assert (x * 2).feature_dim is f and rf.exp(x).feature_dim is f and rf.cast(x, "float64").feature_dim is f
    assert rf.reduce_sum(x, axis=b).feature_dim is f and rf.reduce_sum(x, axis=f).feature_dim is None
    assert rf.softmax(x, axis=f).feature_dim is f and x.copy_transpose([g, f, b]).feature_dim is f
    assert (x > 0).feature_dim is f and rf.where(x > 0, x, 0).feature_dim is f
    assert (i + 1).sparse_dim is f and (i + i).sparse_dim is f and (i + other).sparse_dim is None
    assert (i == 1).sparse_dim is None and (i * 0.5).sparse_dim is None
    assert rf.cast(i, "int64").sparse_dim is f and rf.cast(i, "float32").sparse_dim is None
    assert rf.reduce_max(i, axis=b).sparse_dim is f and rf.where(i == 1, i, i).sparse_dim is f
    assert rf.reduce_argmax(x, axis=f).sparse_dim is f


# -- the Python protocol


def test_no_truth_value(f: Dim) -> None:
    for x in (tensor(f), rf.convert_to_tensor(True), Tensor("x", [f], "float32")):
        with pytest.raises(TypeError, match="the truth value of .* is not defined; use x.item()"):
            bool(x)
        with pytest.raises(TypeError, match="the truth value"):
            assert x or x


def test_hash_is_identity(f: Dim) -> None:
    x, y = tensor(f), tensor(f)
    assert len({x, y, x}) == 2 and {x: 1}[x] == 1 and x in {x}


def test_equality(f: Dim) -> None:
    x, template = tensor(f), Tensor("t", [f], "float32")
    assert isinstance(x == x, Tensor) and isinstance(x != 1, Tensor) and isinstance(x == 1, Tensor)
    assert (x == None) is False and (x != None) is True  # noqa: E711
    assert (x == "x") is False and (x != "x") is True and (x == [1]) is False
    assert (template == template) is True and (template == x) is False and (template != x) is True


def test_not_an_operand(f: Dim) -> None:
    x = tensor(f)
    for other in ("a", None, [1, 2, 3, 4], {}, np.ones(4), object()):
        for operation in (operator.add, operator.lt, operator.mul, operator.pow):
            for operands in ((x, other), (other, x)):
                with pytest.raises(TypeError):
                    operation(*operands)


@pytest.mark.needs("torch")
def test_a_raw_torch_tensor_is_no_operand(f: Dim) -> None:
    import torch

    x = tensor(f)
    for operation in (lambda: x + torch.ones(4), lambda: torch.ones(4) + x):
        with pytest.raises(TypeError):
            operation()


def test_numbers_from_tensors() -> None:
    x = rf.convert_to_tensor(2.5)
    assert (x.item(), float(x), int(x)) == (2.5, 2.5, 2) and type(x.item()) is float
    assert type(rf.convert_to_tensor(3).item()) is int and rf.convert_to_tensor(True).item() is True
    with pytest.raises(rf.RfError, match=r"item: expected a Tensor without dims, got x: \{F=4\} float32"):
        tensor(Dim(4, name="F")).item()
    with pytest.raises(rf.RfError, match="template without data"):
        Tensor("x", [], "float32").numpy()


def test_math_functions(f: Dim) -> None:
    x = rf.convert_to_tensor(np.float32([-1.5, 0.5, 1.2, 2]), dims=[f])
    assert math.ceil(x).numpy().tolist() == [-1, 1, 2, 2]  # type: ignore[call-overload]
    assert math.floor(x).numpy().tolist() == [-2, 0, 1, 2]  # type: ignore[call-overload]
    assert abs(x).numpy().tolist() == pytest.approx([1.5, 0.5, 1.2, 2])


def test_augmented_assignment_binds_a_new_tensor(f: Dim) -> None:
    x = tensor(f)
    before, old = x, x.numpy().copy()
    x += 1
    assert x is not before and before.numpy().tolist() == old.tolist()


def test_repr(b: Dim, t: Dim, f: Dim) -> None:
    assert repr(tensor(b, t, f)) == "x: {B=2, T=3(3,1), F=4} float32 numpy"
    assert repr(Tensor("y", [b], "int32", sparse_dim=f)) == "y: {B=2} int32 -> F=4 template"
    assert repr(Tensor(None, [], "bool")) == "{} bool template"
    assert repr(Tensor("z", [t + 1], "float32")) == "z: {(T+1)=?} float32 template"


def test_repr_never_computes(monkeypatch: pytest.MonkeyPatch, b: Dim, t: Dim) -> None:
    x = tensor(b, t) + 1
    backend = rf.get_backend("numpy")

    def fail(*_args: Any) -> Any:
        raise AssertionError("repr looked at the data")

    for name in ("to_numpy", "item", "device_of"):
        monkeypatch.setattr(backend, name, fail)
    derived = t + 1
    template = Tensor("x", [derived], "float32")
    assert repr(x) and repr(template) and derived._sizes is None


# -- backends


@pytest.mark.needs("torch")
def test_convert_backend(b: Dim, t: Dim, f: Dim) -> None:
    x = tensor(b, t, dtype="int32", sparse_dim=f)
    y = rf.convert_backend(x, "torch")
    assert y.backend is rf.get_backend("torch") and y.dims == x.dims and y.dtype == "int32" and y.sparse_dim is f
    np.testing.assert_array_equal(y.numpy(), x.numpy())
    back = rf.convert_backend(y, "numpy")
    assert isinstance(back.raw_tensor, np.ndarray)
    meta = rf.convert_backend(y, "meta")
    assert meta.backend is rf.get_backend("meta") and meta.dims == x.dims and meta.dtype == "int32"
    assert rf.convert_backend(y, "torch") is not y


def test_meta_has_no_values(b: Dim) -> None:
    with rf.use_backend("meta"):
        x = rf.zeros([b])
        for action in (x.numpy, rf.reduce_sum(x, axis=b).item, lambda: float(rf.reduce_sum(x, axis=b))):
            with pytest.raises(rf.BackendError, match="the meta backend computes nothing, so a value does not exist"):
                action()
        with pytest.raises(rf.BackendError, match="a value does not exist"):
            rf.convert_backend(x, "numpy")


def test_tensors_die_with_their_last_reference(b: Dim, f: Dim) -> None:
    gc.disable()
    try:
        x = tensor(b, f)
        ref = weakref.ref(x.raw_tensor)
        y = (x + 1).copy_transpose([f, b])
        del x, y
        assert ref() is None
    finally:
        gc.enable()
