"""Dim: identity, filling and refilling, size tensors, errors. Dim math and masks have their own files."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest

import rf


@pytest.fixture(autouse=True)
def _numpy() -> Any:
    with rf.use_backend("numpy"):
        yield


def batch(n: int = 3) -> rf.Dim:
    return rf.Dim(None, name="B").fill(n)


def seq(*sizes: int, over: rf.Dim | None = None) -> rf.Dim:
    return rf.Dim(None, name="T").fill(sizes, [over if over is not None else batch(len(sizes))])


# -- making one


def test_static() -> None:
    f = rf.Dim(4, name="F")
    assert (f.dimension, f.size, f.get_dim_value(), f.name, f.description) == (4, 4, 4, "F", "F")
    assert f.is_static() and not f.is_dynamic() and not f.is_dynamic_seq_length() and f.is_dim_known()
    assert not f.need_masking()
    assert f.dyn_size_ext is None and f.dyn_size is None
    assert f.get_dim_value_tensor() == 4 and f.get_size_tensor_or_int() == 4
    sizes = f.get_size_tensor()
    assert sizes.dims == () and sizes.dtype == "int32" and sizes.item() == 4
    assert repr(f) == "F=4" and f.short_repr() == "F=4"


def test_dynamic_over_batch() -> None:
    b = batch()
    t = rf.Dim(None, name="T").fill([2, 5, 0], [b])
    assert t.dimension is None and t.size is None
    assert t.get_dim_value() == 5 and type(t.get_dim_value()) is int
    assert t.is_dynamic() and t.is_dynamic_seq_length() and not t.is_static() and t.is_dim_known() and t.need_masking()
    sizes = t.get_size_tensor()
    assert sizes.dims == (b,) and sizes.dtype == "int32" and sizes.numpy().tolist() == [2, 5, 0]
    longest = t.get_dim_value_tensor()
    assert isinstance(longest, rf.Tensor) and longest.dims == () and longest.dtype == "int32" and longest.item() == 5
    assert isinstance(t.get_size_tensor_or_int(), rf.Tensor)
    assert t.get_dyn_size_ext_for_device("cpu").numpy().tolist() == [2, 5, 0]
    assert repr(t) == "T=5(2,5,0)"


def test_not_filled_yet() -> None:
    b = batch(2)
    t = rf.Dim(None, dyn_size_ext=rf.Tensor("sizes", [b], "int32"), name="T")
    for get in (t.get_dim_value, t.need_masking, (t + 1).get_dim_value, (t + 1).need_masking):
        with pytest.raises(rf.DimError, match="the sizes of dim T are not known yet"):
            get()
    assert not rf.Dim(None, name="open").need_masking()
    t.fill([1, 2])
    other = t.copy(match_priority=1)
    assert other.get_dim_value() == 2 and other.need_masking() and (t + 1).need_masking()


def test_one_length_for_everybody() -> None:
    t = rf.Dim(None, name="T").fill(7)
    assert t.is_dynamic() and t.get_dim_value() == 7 and not t.need_masking()
    assert t.get_size_tensor().dims == () and repr(t) == "T=7"


def test_from_a_size_tensor() -> None:
    b = batch()
    sizes = rf.Tensor("sizes", [b], "int64", raw_tensor=np.array([1, 2, 3]))
    for t in (rf.Dim(sizes, name="T"), rf.Dim(None, dyn_size_ext=sizes, name="T")):
        assert t.get_dim_value() == 3 and t.get_size_tensor().dims == (b,)
        assert t.get_size_tensor().dtype == "int32"
    # other arrays that others change later do not change the dim
    raw = np.array([1, 2, 3], dtype="int32")
    t = rf.Dim(rf.Tensor("sizes", [b], "int32", raw_tensor=raw))
    raw[:] = 9
    assert t.get_sizes().values.tolist() == [1, 2, 3]


def test_over_two_dims() -> None:
    b, beam = batch(2), rf.Dim(3, name="beam")
    t = rf.Dim(None, name="T").fill([[1, 2, 3], [4, 5, 6]], [b, beam])
    assert t.get_dim_value() == 6 and t.get_size_tensor().dims == (b, beam)
    assert repr(t) == "T=6(1,2,3,4,5,6)"


def test_many_lengths_are_not_all_printed() -> None:
    assert repr(seq(*range(20))) == "T=19(0,1,2,3,4,5,6,7,...)"


@pytest.mark.parametrize("bad", [-1, 1.5, "3", True, [3], None])
def test_bad_dimension(bad: Any) -> None:
    if bad is None:
        assert rf.Dim(bad).dimension is None
        return
    with pytest.raises((TypeError, rf.DimError), match=r"Dim.*(dimension must be|must be >= 0)"):
        rf.Dim(bad)


def test_numpy_integer_is_an_int() -> None:
    f = rf.Dim(np.int64(3))
    assert f.dimension == 3 and type(f.dimension) is int


def test_description_vocab_capacity_kind() -> None:
    vocab = object()
    d = rf.Dim(3, description="classes", vocab=vocab, capacity=10, kind="feature")
    assert (d.name, d.vocab, d.capacity, d.kind) == ("classes", vocab, 10, "feature")
    assert rf.Dim(None, bounded_by=d).capacity == 10


# -- identity


def test_equal_is_identical() -> None:
    a, b = rf.Dim(3, name="F"), rf.Dim(3, name="F")
    assert a == a and a != b and (a == b) is False and hash(a) != hash(b)
    assert a != 3 and a != "F" and (a == None) is False  # noqa: E711
    assert len({a, b}) == 2 and a in [b, a] and a not in [b]
    assert {a: 1}[a] == 1


def test_copies_are_the_dim_itself() -> None:
    a = rf.Dim(3, name="F")
    assert copy.copy(a) is a and copy.deepcopy(a) is a and copy.deepcopy({"x": [a]})["x"][0] is a


def test_cannot_be_pickled() -> None:
    with pytest.raises(TypeError, match="F=3 cannot be pickled"):
        pickle.dumps(rf.Dim(3, name="F"))


def test_order_is_that_of_names() -> None:
    b, a = rf.Dim(1, name="b"), rf.Dim(2, name="a")
    assert sorted([b, a]) == [a, b]


@pytest.mark.parametrize("dynamic", [False, True])
def test_match_priority(dynamic: bool) -> None:
    a = seq(1, 2) if dynamic else rf.Dim(3, name="T")
    first = a.copy(match_priority=1)
    assert first == a and hash(first) == hash(a) and first is not a
    assert first.match_priority == 1 and a.match_priority == 0
    assert a.copy(match_priority=1) is first and first.copy(match_priority=0) is a
    assert first.get_dim_value() == a.get_dim_value() and first.dimension == a.dimension
    assert first.is_dynamic() is dynamic and first.need_masking() is dynamic
    assert repr(first).startswith("T'=")
    with pytest.raises(rf.DimError, match="match_priority must be 0..3"):
        a.copy(match_priority=4)
    # dim math does not know the priority
    assert first + 1 is a + 1
    if dynamic:
        a.fill([5, 6])
        assert first.get_dim_value() == 6


def test_another_dim_of_the_same_sizes() -> None:
    t = seq(2, 3)
    other = t.copy(same_as_self=False, description="T2")
    assert other != t and other.name == "T2" and other.get_sizes().values.tolist() == [2, 3]
    f = rf.Dim(3, name="F", vocab="v")
    assert f.copy(same_as_self=False) != f and f.copy(same_as_self=False).dimension == 3
    assert f.copy(same_as_self=False).vocab == "v"


# -- filling


def test_declare_now_fill_later() -> None:
    b = rf.Dim(None, name="B")
    t = rf.Dim(rf.Tensor("sizes", [b], "int32"), name="T")
    assert t.is_dynamic() and not t.is_dim_known()
    for action in (t.get_dim_value, t.need_masking, t.get_size_tensor, t.get_mask, t.get_dim_value_tensor):
        with pytest.raises(rf.DimError, match="the sizes of dim T are not known yet; fill it first"):
            action()
    assert repr(t) == "T=?"
    t.fill([2, 3])
    assert t.get_dim_value() == 3 and t.get_size_tensor().dims == (b,) and b.get_dim_value() == 2


def test_unfilled_without_size_dims_never_needs_masking() -> None:
    b = rf.Dim(None, name="B")
    assert not b.need_masking() and not b.is_dim_known()
    with pytest.raises(rf.DimError, match="B are not known yet"):
        b.get_dim_value()


def test_refill_in_place() -> None:
    b = batch(2)
    t = rf.Dim(None, name="T").fill([2, 3], [b])
    mask = t.get_mask().numpy()
    b.fill(3)
    assert t.fill([4, 1, 2]) is t
    assert t.get_dim_value() == 4 and t.get_mask().numpy().shape == (3, 4) and mask.shape == (2, 3)
    with pytest.raises(rf.DimError, match=r"sizes of shape \(\) need 0 size dims, got \[B=3\]"):
        t.fill(5)  # declared as one length per sequence


def test_refill_with_other_size_dims() -> None:
    b, beam = batch(2), rf.Dim(3, name="beam")
    t = rf.Dim(None, name="T").fill([2, 3], [b])
    t.fill([[1, 2, 3], [4, 5, 6]], [b, beam])
    assert t.get_size_tensor().dims == (b, beam) and t.get_dim_value() == 6


@pytest.mark.parametrize(
    ("sizes", "over", "match"),
    [
        ([1, -2, 3], "b", "sizes must be >= 0, got -2"),
        ([1.0, 2.0, 3.0], "b", "sizes must be integers, got dtype float64"),
        ([True, False, True], "b", "sizes must be integers, got dtype bool"),
        ([1, 2], "b", r"sizes of shape \(2,\) do not fit their dims \[B=3\]"),
        ([1, 2, 3], "none", "need 1 size dims, got"),
        ([[1, 2, 3]], "b", r"sizes of shape \(1, 3\) need 2 size dims"),
        ([1, 2, 3], "self", "cannot depend on itself"),
    ],
)
def test_bad_fill(sizes: Any, over: str, match: str) -> None:
    t = rf.Dim(None, name="T")
    dims = {"b": [batch()], "none": [], "self": [t]}[over]
    with pytest.raises(rf.DimError, match=match):
        t.fill(sizes, dims)
    assert not t.is_dim_known()


def test_bad_fill_keeps_the_sizes_that_are_there() -> None:
    t = seq(2, 3)
    with pytest.raises(rf.DimError):
        t.fill([1, -1])
    assert t.get_sizes().values.tolist() == [2, 3]


def test_static_dims_cannot_be_filled() -> None:
    with pytest.raises(rf.DimError, match="fill: F=3 is static"):
        rf.Dim(3, name="F").fill(4)


def test_derived_dims_cannot_be_filled() -> None:
    t = seq(2, 3)
    with pytest.raises(rf.DimError, match=r"\(T\+1\)=\? follows from other dims"):
        (t + 1).fill([1, 1])
    assert (t + 1).get_sizes().values.tolist() == [3, 4]


def test_fill_from_meta_is_an_error() -> None:
    b = batch()
    with rf.use_backend("meta"):
        sizes = rf.zeros([b], dtype="int32")
    with pytest.raises(rf.BackendError, match="lengths must come from host integers"):
        rf.Dim(None, name="T").fill(sizes)


def test_fill_from_a_template_is_an_error() -> None:
    with pytest.raises(rf.DimError, match="has no data"):
        rf.Dim(None, name="T").fill(rf.Tensor("sizes", [batch()], "int32"))


def test_empty_batch() -> None:
    b = rf.Dim(None, name="B").fill(0)
    t = rf.Dim(None, name="T").fill([], [b])
    assert t.get_dim_value() == 0 and t.need_masking() and t.get_mask().numpy().shape == (0, 0)


def test_reset_keeps_the_declaration() -> None:
    t = seq(2, 3)
    (b,) = t.get_sizes().dims
    derived = t + 1
    assert derived.get_dim_value() == 4
    for reset in (t.reset_eager, t.reset_raw, t.reset_batch_and_raw):
        reset()
        assert not t.is_dim_known() and not derived.is_dim_known()
        t.fill([2, 3])
        assert t.get_size_tensor().dims == (b,) and derived.get_dim_value() == 4
    f = rf.Dim(3)
    f.reset_eager()
    assert f.dimension == 3


# -- size tensors


@pytest.mark.parametrize("backend", ["numpy", pytest.param("torch", marks=pytest.mark.needs("torch"))])
def test_setting_the_raw_size_tensor_fills_the_dim(backend: str) -> None:
    b = rf.Dim(None, name="B")
    t = rf.Dim(rf.Tensor("sizes", [b], "int32"), name="T")
    x = t + 1
    with rf.use_backend(backend):
        for sizes in ([2, 5], [4, 1, 3]):
            b.reset_eager()
            raw = rf.convert_to_tensor(np.array(sizes, dtype="int32"), dims=[rf.Dim(len(sizes))]).raw_tensor
            assert t.dyn_size_ext is not None
            t.dyn_size_ext.raw_tensor = raw
            assert (
                t.get_dim_value() == max(sizes)
                and b.get_dim_value() == len(sizes)
                and x.get_dim_value() == max(sizes) + 1
            )
            raw[0] = 99  # the dim has its own copy
            assert t.dyn_size_ext.numpy().tolist() == sizes and t.get_mask().numpy().sum() == sum(sizes)


def test_size_tensor_is_a_tensor() -> None:
    t = seq(2, 5)
    sizes = t.dyn_size_ext
    assert isinstance(sizes, rf.Tensor) and sizes.dtype == "int32" and sizes.dims == t.get_sizes().dims
    assert (sizes + 1).numpy().tolist() == [3, 6]
    assert rf.reduce_max(sizes, axis=sizes.dims).item() == 5


def test_size_tensor_of_an_unfilled_dim_is_a_template() -> None:
    b = batch()
    t = rf.Dim(rf.Tensor("sizes", [b], "int32"), name="T")
    assert t.dyn_size_ext is not None and t.dyn_size_ext.raw_tensor is None and t.dyn_size_ext.dims == (b,)
    assert rf.Dim(None).dyn_size_ext is None


def test_assigning_the_size_tensor() -> None:
    b = batch()
    t = rf.Dim(None, name="T")
    t.dyn_size_ext = rf.Tensor("sizes", [b], "int32", raw_tensor=np.array([1, 2, 3], dtype="int32"))
    assert t.get_dim_value() == 3
    t.dyn_size_ext = None
    assert not t.is_dim_known()
    t.dyn_size_ext = rf.Tensor("sizes", [b], "int32")
    t.fill([3, 3, 4])
    assert t.get_dim_value() == 4
    assert t.dyn_size_ext is not None
    t.dyn_size_ext.raw_tensor = None
    assert not t.is_dim_known()


def test_bad_raw_sizes() -> None:
    t = seq(2, 5)
    assert t.dyn_size_ext is not None
    with pytest.raises(rf.DimError, match=r"does not fit the size dims"):
        t.dyn_size_ext.raw_tensor = np.array([[1, 2]])
    with pytest.raises(rf.RfError, match="length 3"):
        t.dyn_size_ext.raw_tensor = np.array([1, 2, 3])
    with pytest.raises(TypeError, match="list is not an array type"):
        t.dyn_size_ext.raw_tensor = [1, 2]
    assert t.get_dim_value() == 5


def test_size_tensor_of_a_derived_dim() -> None:
    t = seq(2, 5)
    sizes = (t * 2).dyn_size_ext
    assert sizes is not None and sizes.numpy().tolist() == [4, 10]


def test_sizes_on_meta_are_numpy_tensors() -> None:
    t = seq(2, 5)
    with rf.use_backend("meta"):
        sizes = t.get_size_tensor()
        assert sizes.backend is rf.get_backend("numpy") and sizes.numpy().tolist() == [2, 5]
        mixed = sizes * rf.zeros([*sizes.dims, t], dtype="int32")
        assert mixed.backend is rf.get_backend("meta") and mixed.dims_set == {t, *sizes.dims}


def test_size_tensor_of_a_batch_that_is_gone_is_a_template() -> None:
    b = batch(2)
    t = rf.Dim(None, name="T").fill([2, 5], [b])
    b.fill(3)
    assert t.dyn_size_ext is not None and t.dyn_size_ext.raw_tensor is None and t.dyn_size_ext.dims == (b,)
    t.dyn_size_ext.raw_tensor = np.array([1, 2, 3], dtype="int32")
    assert t.get_dim_value() == 3


# -- a raw axis tells an open dim its size


def test_open_dim_adopts_the_length_of_a_raw_axis() -> None:
    b, f = rf.Dim(None, name="B"), rf.Dim(2, name="F")
    rf.Tensor("x", [b, f], "float32", raw_tensor=np.zeros((3, 2), dtype="float32"))
    assert b.get_dim_value() == 3 and not b.need_masking()
    with pytest.raises(rf.ShapeError, match=r"axis 0 .*has length 5, but dim B=3 has 3.*Fill the dim anew"):
        rf.Tensor("x", [b, f], "float32", raw_tensor=np.zeros((5, 2), dtype="float32"))
    b.reset_eager()
    rf.Tensor("x", [b, f], "float32", raw_tensor=np.zeros((5, 2), dtype="float32"))
    assert b.get_dim_value() == 5


def test_declared_dim_does_not_adopt() -> None:
    t = rf.Dim(rf.Tensor("sizes", [batch()], "int32"), name="T")
    with pytest.raises(rf.DimError, match="T are not known yet"):
        rf.Tensor("x", [t], "float32", raw_tensor=np.zeros(3, dtype="float32"))


def test_global_dims() -> None:
    assert rf.batch_dim.is_batch_dim() and rf.batch_dim.is_dynamic() and not rf.batch_dim.is_dynamic_seq_length()
    assert not rf.batch_dim.need_masking()
    assert rf.batch_dim + 1 != rf.batch_dim and not (rf.batch_dim + 1).is_batch_dim()
    assert rf.single_step_dim.dimension == 1
    assert not rf.Dim(None, name="B").is_batch_dim()
    try:
        rf.batch_dim.fill(2)
        t = rf.Dim(rf.Tensor("sizes", [rf.batch_dim], "int32"), name="T").fill([1, 2])
        assert t.get_size_tensor().dims == (rf.batch_dim,)
    finally:
        rf.batch_dim.reset_eager()


# -- two dims and one size


def test_declare_same_as() -> None:
    a, b = rf.Dim(None, name="a"), rf.Dim(None, name="b")
    keys = {a: "a"}
    b.declare_same_as(a)
    assert a == b and hash(a) == hash(b) and keys[b] == "a" and len({a, b}) == 1
    a.fill(3)
    assert b.get_dim_value() == 3 and b.is_dim_known()
    b.fill(4)
    assert a.get_dim_value() == 4
    assert a + 1 is b + 1
    b.declare_same_as(a)
    a.declare_same_as(b)
    assert a == b


@pytest.mark.parametrize("filled", ["first", "second", "both"])
def test_declare_same_as_takes_the_sizes_that_are_there(filled: str) -> None:
    over = batch(2)
    a, b = rf.Dim(None, name="a"), rf.Dim(None, name="b")
    for name, d in (("first", a), ("second", b)):
        if filled in (name, "both"):
            d.fill([2, 3], [over])
    a.declare_same_as(b)
    assert a == b
    for d in (a, b):
        assert d.get_sizes().values.tolist() == [2, 3] and d.get_size_tensor().dims == (over,)


def test_declare_same_as_keeps_the_declared_size_dims() -> None:
    over = batch(2)
    a, b = rf.Dim(rf.Tensor("sizes", [over], "int32"), name="a"), rf.Dim(None, name="b")
    a.declare_same_as(b)
    a.fill([1, 2])
    assert b.get_size_tensor().dims == (over,)


def test_declare_same_as_static_and_one_length_for_everybody() -> None:
    a, b = rf.Dim(3, name="a"), rf.Dim(None, name="b").fill(3)
    a.declare_same_as(b)
    assert b.is_static() and b.dimension == 3


@pytest.mark.parametrize("static_first", [True, False])
def test_declare_same_as_static(static_first: bool) -> None:
    a, b = rf.Dim(3, name="a"), rf.Dim(None, name="b")
    derived = b + 1
    (a.declare_same_as(b) if static_first else b.declare_same_as(a))
    assert a == b and b.dimension == 3 and b.is_static() and b.get_dim_value() == 3 and derived.get_dim_value() == 4


def test_declare_same_as_contradiction() -> None:
    with pytest.raises(rf.DimError, match="a=3 and b=4 have different sizes"):
        rf.Dim(3, name="a").declare_same_as(rf.Dim(4, name="b"))
    over = batch(2)
    a, b = rf.Dim(None, name="a").fill([1, 2], [over]), rf.Dim(None, name="b").fill([2, 1], [over])
    with pytest.raises(rf.DimError, match="have different sizes"):
        a.declare_same_as(b)
    assert a != b
    beam = rf.Dim(2, name="beam")
    with pytest.raises(rf.DimError, match="have different sizes"):
        a.declare_same_as(rf.Dim(None).fill([1, 2], [beam]))


def test_declare_same_as_links_chains() -> None:
    dims = [rf.Dim(None, name=n) for n in "abcd"]
    dims[0].declare_same_as(dims[1])
    dims[2].declare_same_as(dims[3])
    dims[1].declare_same_as(dims[2])
    dims[0].fill(5)
    assert len(set(dims)) == 1 and [d.get_dim_value() for d in dims] == [5] * 4


def test_derived_dims_follow_what_was_declared_same() -> None:
    a, b = rf.Dim(None, name="a"), rf.Dim(None, name="b")
    derived = a + 1
    a.fill(3)
    assert derived.get_dim_value() == 4
    a.declare_same_as(b)
    assert derived.get_dim_value() == 4
    b.fill(7)
    assert derived.get_dim_value() == 8


@pytest.mark.parametrize("derived_first", [True, False])
def test_derived_dim_declared_same_as_another_still_follows(derived_first: bool) -> None:
    t, enc = seq(2, 3), rf.Dim(None, name="enc")
    derived = t * 2
    (derived.declare_same_as(enc) if derived_first else enc.declare_same_as(derived))
    assert enc.get_sizes().values.tolist() == [4, 6]
    t.fill([1, 5])
    assert enc.get_sizes().values.tolist() == derived.get_sizes().values.tolist() == [2, 10]


def test_copy_from_shares_sizes_and_masks() -> None:
    t, other = seq(2, 3), rf.Dim(None, name="kv")
    other.copy_from(t)
    assert other != t and other.get_sizes() is t.get_sizes()
    assert other.get_mask().raw_tensor is t.get_mask().raw_tensor
    assert other.get_mask().dims[-1] == other
    t.fill([5, 1])
    assert other.get_sizes().values.tolist() == [5, 1]
    assert other.get_mask().raw_tensor is t.get_mask().raw_tensor


def test_copy_from_before_the_source_is_filled() -> None:
    t = rf.Dim(rf.Tensor("sizes", [batch(2)], "int32"), name="T")
    other = rf.Dim(None, name="kv")
    other.copy_from(t)
    with pytest.raises(rf.DimError, match="are not known yet"):
        other.get_dim_value()
    t.fill([1, 4])
    assert other.get_dim_value() == 4 and other.need_masking()


def test_copy_from_static() -> None:
    other = rf.Dim(None, name="kv")
    other.copy_from(rf.Dim(3))
    assert other.is_static() and other.dimension == 3


def test_copy_from_needs_a_dim_without_sizes() -> None:
    for d in (rf.Dim(3, name="x"), rf.Dim(None, name="x").fill(3)):
        with pytest.raises(rf.DimError, match="copy_from: x=3 already has sizes"):
            d.copy_from(rf.Dim(4))


def test_what_copied_sizes_can_be_filled_on_its_own() -> None:
    t, other = seq(2, 3), rf.Dim(None, name="kv")
    other.copy_from(t)
    other.fill([7, 7])
    assert other.get_dim_value() == 7 and t.get_dim_value() == 3
    t.fill([1, 1])
    assert other.get_dim_value() == 7


def test_sizes_over_a_dim_that_was_refilled_are_those_of_another_batch() -> None:
    b = rf.Dim(None, name="B").fill(2)
    t = rf.Dim(None, name="T").fill([3, 1], dims=[b])
    longer = t + 1
    assert longer.get_dim_value() == 4
    b.fill(2)  # the same size: nothing is stale
    assert t.get_dim_value() == 3
    b.fill(3)
    for dim in (t, longer):
        with pytest.raises(rf.DimError, match="sizes of dim T are not known yet; fill it first"):
            dim.get_dim_value()
    t.fill([1, 2, 5])
    assert longer.get_dim_value() == 6 and longer.get_sizes().values.tolist() == [2, 3, 6]
