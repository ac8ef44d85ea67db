"""Dim math: which expressions are the same dim, what sizes they have, and that these follow refills."""

from __future__ import annotations

import gc
import math
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rf


@pytest.fixture(autouse=True)
def _numpy() -> Any:
    with rf.use_backend("numpy"):
        yield


class Names:
    """Dims to write expressions with: a, b, h are static, t and u dynamic over B, n has one length for everybody."""

    def __init__(self) -> None:
        self.a, self.b, self.h = rf.Dim(8, name="a"), rf.Dim(12, name="b"), rf.Dim(2, name="h")
        self.B = rf.Dim(None, name="B").fill(2)
        self.t = rf.Dim(None, name="t").fill([5, 1], [self.B])
        self.u = rf.Dim(None, name="u").fill([1, 4], [self.B])
        self.n = rf.Dim(None, name="n").fill(6)


@pytest.fixture
def d() -> Names:
    return Names()


def sizes(dim: rf.Dim) -> Any:
    return dim.get_sizes().values.tolist()


Expression = Callable[[Names], Any]

SAME: dict[str, tuple[Expression, Expression]] = {
    "a+0": (lambda d: d.a + 0, lambda d: d.a),
    "0+a": (lambda d: 0 + d.a, lambda d: d.a),
    "(t-1)+0": (lambda d: (d.t - 1) + 0, lambda d: d.t - 1),
    "0+(t-1)": (lambda d: 0 + (d.t - 1), lambda d: d.t - 1),
    "a-0": (lambda d: d.a - 0, lambda d: d.a),
    "a*1": (lambda d: d.a * 1, lambda d: d.a),
    "1*a": (lambda d: 1 * d.a, lambda d: d.a),
    "a//1": (lambda d: d.a // 1, lambda d: d.a),
    "a/1": (lambda d: d.a / 1, lambda d: d.a),
    "a.ceildiv_right(1)": (lambda d: d.a.ceildiv_right(1), lambda d: d.a),
    "(a-1)+1": (lambda d: (d.a - 1) + 1, lambda d: d.a),
    "(a+1)-1": (lambda d: (d.a + 1) - 1, lambda d: d.a),
    "(a+1).sub_right(1)": (lambda d: (d.a + 1).sub_right(1), lambda d: d.a),
    "(1+a).sub_left(1)": (lambda d: (1 + d.a).sub_left(1), lambda d: d.a),
    "(a+b)-b": (lambda d: (d.a + d.b) - d.b, lambda d: d.a),
    "(a+b).sub_left(a)": (lambda d: (d.a + d.b).sub_left(d.a), lambda d: d.b),
    "a+1+2": (lambda d: d.a + 1 + 2, lambda d: d.a + 3),
    "2+(1+a)": (lambda d: 2 + (1 + d.a), lambda d: 3 + d.a),
    "a+3-1": (lambda d: d.a + 3 - 1, lambda d: d.a + 2),
    "a+(-1)": (lambda d: d.a + (-1), lambda d: d.a - 1),
    "a+(b+1)": (lambda d: d.a + (d.b + 1), lambda d: (d.a + d.b) + 1),
    "a+a": (lambda d: d.a + d.a, lambda d: 2 * d.a),
    "a*2*3": (lambda d: d.a * 2 * 3, lambda d: d.a * 6),
    "2*(3*a)": (lambda d: 2 * (3 * d.a), lambda d: 6 * d.a),
    "a*(b*h)": (lambda d: d.a * (d.b * d.h), lambda d: d.a * d.b * d.h),
    "(h*a).div_left(h)": (lambda d: (d.h * d.a).div_left(d.h), lambda d: d.a),
    "(a*h)//h": (lambda d: (d.a * d.h) // d.h, lambda d: d.a),
    "(a*h)/h": (lambda d: (d.a * d.h) / d.h, lambda d: d.a),
    "(a*h).div_right(h)": (lambda d: (d.a * d.h).div_right(d.h), lambda d: d.a),
    "(a*2)/2": (lambda d: (d.a * 2) / 2, lambda d: d.a),
    "(2*a).div_left(2)": (lambda d: (2 * d.a).div_left(2), lambda d: d.a),
    "(a*b*h).div_left(a*b)": (lambda d: (d.a * d.b * d.h).div_left(d.a * d.b), lambda d: d.h),
    "(a*b*h)/(b*h)": (lambda d: (d.a * d.b * d.h) / (d.b * d.h), lambda d: d.a),
    "ceildiv twice": (lambda d: d.a.ceildiv_right(2).ceildiv_right(2), lambda d: d.a.ceildiv_right(4)),
    "ceildiv twice, left": (lambda d: d.a.ceildiv_left(2).ceildiv_left(3), lambda d: d.a.ceildiv_left(6)),
    "sum": (lambda d: sum([d.a, d.b]), lambda d: d.a + d.b),
    "prod": (lambda d: math.prod([d.a, d.b]), lambda d: d.a * d.b),
    "a-a": (lambda d: d.a - d.a, lambda d: d.b - d.b),
    "dynamic t+1": (lambda d: d.t + 1, lambda d: d.t + 1),
    "dynamic (t-1)+1": (lambda d: (d.t - 1) + 1, lambda d: d.t),
    "dynamic t+t": (lambda d: d.t + d.t, lambda d: 2 * d.t),
    "numpy integers": (lambda d: d.a + np.int64(1), lambda d: d.a + 1),
    "sub_right": (lambda d: d.a.sub_right(2), lambda d: d.a - 2),
}

DIFFERENT: dict[str, tuple[Expression, Expression]] = {
    "a+b, b+a": (lambda d: d.a + d.b, lambda d: d.b + d.a),
    "1+a, a+1": (lambda d: 1 + d.a, lambda d: d.a + 1),
    "a*2, 2*a": (lambda d: d.a * 2, lambda d: 2 * d.a),
    "a*b, b*a": (lambda d: d.a * d.b, lambda d: d.b * d.a),
    "(1+a)-1": (lambda d: (1 + d.a) - 1, lambda d: d.a),
    "(a+1).sub_left(1)": (lambda d: (d.a + 1).sub_left(1), lambda d: d.a),
    "a//2*2": (lambda d: d.a // 2 * 2, lambda d: d.a),
    "h*a//h": (lambda d: d.h * d.a // d.h, lambda d: d.a),
    "(a*h).div_left(h)": (lambda d: (d.a * d.h).div_left(d.h), lambda d: d.a),
    "a-1, a.sub_left(1)": (lambda d: d.a - 1, lambda d: d.a.sub_left(1)),
    "ceildiv left, right": (lambda d: d.a.ceildiv_left(2), lambda d: d.a.ceildiv_right(2)),
    "a//2, ceildiv": (lambda d: d.a // 2, lambda d: d.a.ceildiv_right(2)),
    "a/2, a//2": (lambda d: d.a / 2, lambda d: d.a // 2),
    "a+1, a+2": (lambda d: d.a + 1, lambda d: d.a + 2),
    "a+1, b+1": (lambda d: d.a + 1, lambda d: d.b + 1),
    "a*0+1, 1": (lambda d: d.a * 0, lambda d: d.a - d.a),
}


@pytest.mark.parametrize("what", SAME)
def test_same_dim(d: Names, what: str) -> None:
    one, other = (expression(d) for expression in SAME[what])
    assert one is other and one == other


@pytest.mark.parametrize("what", DIFFERENT)
def test_different_dims(d: Names, what: str) -> None:
    one, other = (expression(d) for expression in DIFFERENT[what])
    assert one != other and hash(one) != hash(other)


VALUES: dict[str, tuple[Expression, Any]] = {
    "a+b": (lambda d: d.a + d.b, 20),
    "b-a": (lambda d: d.b - d.a, 4),
    "a-8": (lambda d: d.a - 8, 0),
    "b.sub_left(a)": (lambda d: d.b.sub_left(d.a), 4),
    "a*h": (lambda d: d.a * d.h, 16),
    "b//5": (lambda d: d.b // 5, 2),
    "b/h": (lambda d: d.b / d.h, 6),
    "b.div_left(3)": (lambda d: d.b.div_left(3), 4),
    "b.ceildiv_right(5)": (lambda d: d.b.ceildiv_right(5), 3),
    "b.ceildiv_left(a)": (lambda d: d.b.ceildiv_left(d.a), 2),
    "t+1": (lambda d: d.t + 1, [6, 2]),
    "t-3 stops at 0": (lambda d: d.t - 3, [2, 0]),
    "t.sub_left(3)": (lambda d: d.t.sub_left(3), [2, 0]),
    "t-u": (lambda d: d.t - d.u, [4, 0]),
    "t*2": (lambda d: d.t * 2, [10, 2]),
    "t//2": (lambda d: d.t // 2, [2, 0]),
    "t.ceildiv_right(2)": (lambda d: d.t.ceildiv_right(2), [3, 1]),
    "(t*6)/3": (lambda d: (d.t * 6) / 3, [10, 2]),
    "t+u": (lambda d: d.t + d.u, [6, 5]),
    "t*u": (lambda d: d.t * d.u, [5, 4]),
    "t+n": (lambda d: d.t + d.n, [11, 7]),
    "n+1": (lambda d: d.n + 1, 7),
    "a+t": (lambda d: d.a + d.t, [13, 9]),
    "a*t": (lambda d: d.a * d.t, [40, 8]),
    "t*0": (lambda d: d.t * 0, [0, 0]),
    "t+t+1": (lambda d: d.t + d.t + 1, [11, 3]),
    "conv, valid": (lambda d: d.t.sub_left(1).sub_right(1).ceildiv_right(2), [2, 0]),
}


@pytest.mark.parametrize("what", VALUES)
def test_sizes(d: Names, what: str) -> None:
    expression, expected = VALUES[what]
    dim = expression(d)
    assert sizes(dim) == expected
    assert dim.get_dim_value() == np.max(expected), (
        "the extent is the maximum of the result, not the math of the maxima"
    )
    assert dim.is_static() is (dim.dimension is not None) is (isinstance(expected, int) and what != "n+1")
    if isinstance(expected, list):
        assert dim.get_size_tensor().dims == (d.B,) and dim.need_masking()


def test_sizes_over_different_dims(d: Names) -> None:
    beam = rf.Dim(3, name="beam")
    v = rf.Dim(None, name="v").fill([1, 2, 3], [beam])
    both = d.t + v
    assert both.get_size_tensor().dims == (d.B, beam)
    assert sizes(both) == [[6, 7, 8], [2, 3, 4]]
    swapped = rf.Dim(None, name="w").fill([[1, 0], [0, 1], [2, 2]], [beam, d.B])
    assert sizes(both * swapped) == [[6, 0, 16], [0, 3, 8]]


ERRORS: dict[str, tuple[Expression, str]] = {
    "static difference below 0": (lambda d: d.a - d.b, r"\(a-b\): the size would be -4, which is negative"),
    "static difference below 0, on the left": (lambda d: d.a.sub_left(9), "the size would be -1, which is negative"),
    "inexact division": (
        lambda d: d.a / 3,
        r"a/3: 8 is not divisible by 3; use // to round down or ceildiv_right to round up",
    ),
    "inexact division of static dims": (lambda d: d.b / d.a, "12 is not divisible by 8"),
    "inexact division on the left": (lambda d: d.a.div_left(3), "8 is not divisible by 3"),
    "inexact division of lengths": (lambda d: (d.t / 2).get_dim_value(), r"\[5, 1\] is not divisible by 2"),
    "division by zero": (lambda d: d.a // 0, "division by a size of 0"),
    "division by a size of zero": (lambda d: d.a // rf.Dim(0, name="z"), "division by a size of 0"),
    "not filled": (
        lambda d: (rf.Dim(rf.Tensor("s", [d.B], "int32"), name="later") + 1).get_dim_value(),
        "sizes of dim later are not known yet",
    ),
    "not filled, open": (
        lambda d: (rf.Dim(None, name="later") * 2).get_dim_value(),
        "sizes of dim later are not known yet",
    ),
}


@pytest.mark.parametrize("what", ERRORS)
def test_errors(d: Names, what: str) -> None:
    expression, match = ERRORS[what]
    with pytest.raises(rf.DimError, match=match):
        expression(d)


@pytest.mark.parametrize("other", [1.5, "1", None, True, np.float32(1)])
@pytest.mark.parametrize(
    "operator",
    ["__add__", "__sub__", "__mul__", "__floordiv__", "__truediv__", "ceildiv_right", "div_left", "sub_left"],
)
def test_only_dims_and_ints(d: Names, operator: str, other: Any) -> None:
    with pytest.raises(TypeError, match="dim math needs a Dim or an int, got"):
        getattr(d.a, operator)(other)


def test_size_tensors_are_not_dims(d: Names) -> None:
    with pytest.raises(TypeError, match="dim math needs"):
        d.a + d.t.get_size_tensor()  # type: ignore[operator]


def test_names(d: Names) -> None:
    assert repr(d.a + 1) == "(a+1)=9" and repr(1 + d.a) == "(1+a)=9"
    assert repr(d.b.sub_left(2)) == "(-2+b)=10" and repr(d.a * d.h) == "a*h=16"
    assert repr(d.a // 3) == "a//3=2" and repr(d.a / 2) == "a/2=4" and repr(d.a.ceildiv_right(3)) == "⌈a/3⌉=3"
    dynamic = d.t + 1
    assert repr(dynamic) == "(t+1)=?", "repr computes nothing"
    dynamic.get_dim_value()
    assert repr(dynamic) == "(t+1)=6(6,2)"


def test_derived_dims_are_no_batch_dim_and_have_no_vocab(d: Names) -> None:
    v = rf.Dim(3, name="v", vocab="abc")
    assert (v + 1).vocab is None and not (d.t + 1).is_batch_dim()


# -- refilling


@pytest.mark.parametrize(
    "expression",
    [
        lambda d: d.t + 1,
        lambda d: d.a + d.t,
        lambda d: d.t + d.a,
        lambda d: d.a * d.t,
        lambda d: (d.t + d.u) * 2 // 3,
        lambda d: (d.t.ceildiv_right(2) + 3).ceildiv_left(2),
        lambda d: d.t - d.u,
        lambda d: (d.a - 1) + d.u,
        lambda d: (d.t * 2) / 2,
    ],
)
def test_derived_dims_follow_a_refill(d: Names, expression: Expression) -> None:
    dim = expression(d)
    before = sizes(dim)
    mask_before = dim.get_mask().numpy().copy()
    d.B.fill(3)
    d.t.fill([7, 2, 9])
    d.u.fill([2, 8, 1])
    fresh = Names()
    fresh.B.fill(3)
    fresh.t.fill([7, 2, 9])
    fresh.u.fill([2, 8, 1])
    assert sizes(dim) == sizes(expression(fresh)) != before
    assert dim.get_dim_value() == max(sizes(dim))
    assert expression(d) is dim, "the same expression is still the same object"
    mask = dim.get_mask().numpy()
    assert mask.sum(-1).tolist() == sizes(dim) and mask.shape != mask_before.shape


def test_only_what_depends_on_it_is_forgotten(d: Names) -> None:
    of_t, of_u = d.t + 1, d.u + 1
    of_u.get_dim_value()
    filling = of_u.get_sizes()
    of_t.get_dim_value()
    d.t.fill([3, 3])
    assert of_u.get_sizes() is filling and sizes(of_t) == [4, 4]


def test_derived_before_filled() -> None:
    b = rf.Dim(None, name="B")
    t = rf.Dim(rf.Tensor("sizes", [b], "int32"), name="T")
    out = (t + 2).ceildiv_right(2)
    assert not out.is_dim_known()
    t.fill([1, 4])
    assert sizes(out) == [2, 3] and out.need_masking()


def test_reset_forgets_what_is_derived(d: Names) -> None:
    out = (d.t + 1) * 2
    out.get_dim_value()
    d.t.reset_eager()
    with pytest.raises(rf.DimError, match="t are not known yet"):
        out.get_dim_value()


# -- the memo


def test_memo_is_weak() -> None:
    a = rf.Dim(8, name="a")
    gc.disable()
    try:
        refs = [weakref.ref(a + i) for i in range(1, 300)]
        assert not any(r() for r in refs), "nothing but the user keeps a derived dim"
        keep = a + 7
        assert a + 7 is keep
    finally:
        gc.enable()
    assert a._memo is not None and len(a._memo) < 100


def test_memo_is_weak_within_a_chain_too() -> None:
    a = rf.Dim(8, name="a") + 2
    for i in range(1, 300):
        assert (a + i).get_dim_value() == 10 + i
    assert a._memo is not None and len(a._memo) < 100
    keep = a + 7
    assert a + 7 is keep and (a + 3) + 4 is keep and a + 0 is a


def test_a_growing_history_is_one_dim_a_step() -> None:
    start = rf.Dim(0, name="history")
    dims = [start]
    for _ in range(100):
        dims.append(dims[-1] + 1)
        assert dims[-2] + 1 is dims[-1]
    assert [d.dimension for d in dims] == list(range(101))
    assert dims[-1] is start + 100 and dims[-1] - 100 is start


def test_name_of_a_derived_dim(d: Names) -> None:
    t = rf.Dim(None, name="t")
    out = (t + 3) * 2
    assert out.name == out.description == "(t+3)*2" and repr(out) == "(t+3)*2=?"
    out.name = "frames"
    assert out.name == "frames" and (t + 3) * 2 is out
    copy = rf.Dim(None)
    copy.copy_from(d.t + 1)
    assert copy.name is None and rf.Dim(3).name is None


def test_dims_of_a_step_die_without_the_garbage_collector() -> None:
    static = rf.Dim(4, name="F")

    def step() -> list[weakref.ref[Any]]:
        b = rf.Dim(None, name="B").fill(2)
        t = rf.Dim(None, name="T").fill([3, 1], [b])
        derived = [t + 1, static + t, t * static, (t + 1).ceildiv_right(2), 1 + t]
        raws = [dim.get_mask().raw_tensor for dim in [t, *derived]]
        raws.append(t.get_size_tensor().raw_tensor)
        return [weakref.ref(x) for x in [b, t, *derived, *raws]]

    gc.disable()
    try:
        refs = [r for _ in range(100) for r in step()]
        assert not any(r() for r in refs)
    finally:
        gc.enable()
    assert static._memo is not None and len(static._memo) < 200
    assert static._dependents is None or len(static._dependents) < 200


def test_a_dim_that_stays_does_not_collect_dependents() -> None:
    t = rf.Dim(None, name="T").fill(3)
    for _ in range(1000):
        (t + 1).get_dim_value()
    assert t._dependents is not None and len(t._dependents) < 200


# -- random expressions against integers


LEAVES: list[tuple[Expression, Any]] = [
    (lambda d: d.t, np.array([50, 33])),
    (lambda d: d.u, np.array([41, 37])),
    (lambda d: d.a, 8),
    (lambda d: d.n, 6),
]
"""Dims and what they are in plain integer arithmetic, with which dim math must agree."""

operations = st.lists(
    st.tuples(
        st.sampled_from(["+", "r+", "-", "sub_left", "*", "r*", "//", "ceildiv_right", "ceildiv_left", "exact"]),
        st.one_of(st.integers(1, 4), st.sampled_from(range(len(LEAVES)))),
        st.booleans(),
    ),
    max_size=6,
)


def apply(dim: rf.Dim, value: Any, operation: str, other: Any, other_value: Any) -> tuple[rf.Dim, Any]:
    if operation == "+":
        return dim + other, value + other_value
    if operation == "r+":
        return other + dim, value + other_value
    if operation in ("-", "sub_left"):
        if np.any(value < other_value):
            return dim, value
        return (dim - other if operation == "-" else dim.sub_left(other)), value - other_value
    if operation == "*":
        return dim * other, value * other_value
    if operation == "r*":
        return other * dim, value * other_value
    if operation == "exact":
        if np.any(value % other_value):
            return dim, value
        return dim / other, value // other_value
    if operation == "//":
        return dim // other, value // other_value
    return getattr(dim, operation)(other), -(-value // other_value)


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(range(len(LEAVES))), operations)
def test_dim_math_is_integer_arithmetic(first: int, steps: list[tuple[str, int, bool]]) -> None:
    with rf.use_backend("numpy"):
        d = Names()
        d.t.fill([50, 33])
        d.u.fill([41, 37])
        dim, value = LEAVES[first][0](d), LEAVES[first][1]
        same, _ = dim, value
        for operation, number, is_dim in steps:
            if np.max(value) > 10**6 or np.min(value) < 1:
                break
            leaf = LEAVES[number % len(LEAVES)]
            other, other_value = (leaf[0](d), leaf[1]) if is_dim else (number + 1, number + 1)
            same, _ = apply(same, value, operation, other, other_value)
            dim, value = apply(dim, value, operation, other, other_value)
        assert dim is same, "written twice, it is one object"
        actual = dim.get_sizes()
        expected = np.asarray(value)
        if expected.ndim < actual.values.ndim:  # lengths of t may have cancelled
            expected = np.broadcast_to(expected, actual.values.shape)
        elif expected.ndim > actual.values.ndim:
            assert (expected == expected.flat[0]).all()
            expected = expected[0]
        np.testing.assert_array_equal(actual.values, expected)
        assert dim.get_dim_value() == int(expected.max())


def test_what_is_cut_off_stops_at_zero_before_more_is_added() -> None:
    b = rf.Dim(None, name="B")
    t = rf.Dim(None, name="T").fill([1, 7, 0], dims=[b])
    assert ((t - 3) + 2).get_sizes().values.tolist() == [2, 6, 2]
    assert (2 + t.sub_left(3)).get_sizes().values.tolist() == [2, 6, 2]
    assert (t + 2 - 3).get_sizes().values.tolist() == [0, 6, 0]
    assert (t - 3) + 2 is (t - 3) + 2 and (t - 3) + 2 is not t - 1
    assert (t - 3) + 3 is t and ((t - 3) + 2) - 2 is t - 3 and (t - 1) - 2 is t - 3
    assert t + -2 is t - 2 and -2 + t is t.sub_left(2)
    assert (5 - rf.Dim(3)).dimension == 2 and (7 - t).get_sizes().values.tolist() == [6, 0, 7]
