"""Plans: one per structure of a call, whatever the sizes, Dims and data; and calls from several threads and
backends."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import rf
from rf import Dim, Tensor
from rf._core import Op, apply, make_tensor
from rf._plan import MAX_DISTINCT_DIMS
from rf._registry import OPS

BACKENDS = ["numpy", pytest.param("torch", marks=pytest.mark.needs("torch")), "meta"]


@pytest.fixture(autouse=True)
def _numpy() -> Any:
    with rf.use_backend("numpy"):
        yield


def zeros(*dims: Dim, **kwargs: Any) -> Tensor:
    return rf.zeros(dims, **kwargs)


def batch_and_time(*sizes: int) -> tuple[Dim, Dim]:
    b = Dim(None, name="B").fill(len(sizes))
    return b, Dim(None, name="T").fill(sizes, [b])


def new_plans(op: str, *calls: Callable[[], Any]) -> list[int]:
    """How many plans each of the calls makes, one after the other."""
    OPS[op].clear_plans()
    counts = []
    for call in calls:
        before = OPS[op].num_plans
        call()
        counts.append(OPS[op].num_plans - before)
    return counts


# -- what shares a plan


def test_new_dims_and_sizes_share_a_plan() -> None:
    def call(n: int, m: int) -> None:
        a, b = Dim(n), Dim(m)
        x, y = rf.full(dims=[a, b], fill_value=1.0), rf.full(dims=[b], fill_value=2.0)
        z = x + y
        assert z.dims == (a, b) and z.numpy().tolist() == [[3.0] * m] * n

    assert new_plans("add", *[lambda n=n: call(n, n + 1) for n in (2, 3, 0, 2, 1)]) == [1, 0, 0, 0, 0]


def test_masked_ops_share_a_plan_between_batches() -> None:
    def call(*sizes: int) -> None:
        b, t = batch_and_time(*sizes)
        y = rf.reduce_sum(rf.ones([b, t]), axis=t)
        assert y.dims == (b,) and y.numpy().tolist() == list(sizes)

    assert new_plans("reduce", *[lambda s=s: call(*s) for s in ((2, 3), (5, 1, 4), (), (0, 0), (7,))]) == [
        1,
        0,
        0,
        0,
        0,
    ]


def test_refilling_needs_no_new_plan() -> None:
    b, t = batch_and_time(2, 3)

    def call(*sizes: int) -> None:
        b.fill(len(sizes))
        t.fill(sizes, [b])
        assert rf.softmax(zeros(b, t), axis=t).numpy().shape == (len(sizes), max(sizes))

    assert new_plans("softmax", lambda: call(2, 3), lambda: call(4, 1, 1), lambda: call(1)) == [1, 0, 0]


def test_numbers_do_not_make_plans() -> None:
    x = zeros(Dim(3))
    assert new_plans("mul", *[lambda n=n: x * n for n in (2.0, 3.0, 0.5, 2, -7)]) == [1, 0, 0, 0, 0]


def test_backends_share_plans() -> None:
    f = Dim(3)

    def call(backend: str) -> None:
        with rf.use_backend(backend):
            zeros(f) + zeros(f)

    assert new_plans("add", lambda: call("numpy"), lambda: call("meta"), lambda: call("numpy")) == [1, 0, 0]


def test_same_dims_object_or_not_gives_the_same() -> None:
    f, g = Dim(2, name="F"), Dim(3, name="G")
    dims = (f, g)
    x = make_tensor(rf.get_backend("numpy"), np.ones((2, 3), dtype="float32"), dims, "float32")
    y = make_tensor(rf.get_backend("numpy"), np.ones((2, 3), dtype="float32"), dims, "float32")
    z = make_tensor(rf.get_backend("numpy"), np.ones((2, 3), dtype="float32"), (f, g), "float32")
    for other in (x, y, z):
        assert (x + other).dims == dims and (x + other).numpy().tolist() == [[2.0] * 3] * 2


# -- what needs one of its own


def test_structure_makes_the_plan() -> None:
    a, b = Dim(3, name="a"), Dim(3, name="b")
    calls: list[Callable[[], Any]] = [
        lambda: zeros(a, b) + zeros(a, b),
        lambda: zeros(a, b) + zeros(b, a),
        lambda: zeros(a, b) + zeros(a),
        lambda: zeros(a, b) + zeros(b),
        lambda: zeros(b) + zeros(a, b),
        lambda: zeros(a) + zeros(a),
        lambda: zeros(a) + 1.0,
        lambda: 1.0 + zeros(a),
        lambda: zeros(a) + zeros(a, dtype="float64"),
        lambda: zeros(a, dtype="int32") + 1,
        lambda: zeros(a, dtype="int32") + 1.0,
        lambda: zeros(a, feature_dim=a) + zeros(a),
        lambda: zeros(a) + zeros(a, feature_dim=a),
        lambda: zeros(a, dtype="int32") + zeros(a, dtype="int32", sparse_dim=b),
        lambda: rf.combine(zeros(a), "+", zeros(a), allow_broadcast_all_sources=True),
        lambda: rf.combine_bc(zeros(a), "+", zeros(b)),
        lambda: rf.combine_bc(zeros(a), "+", zeros(b), dim_order=[b, a]),
    ]
    assert new_plans("add", *calls) == [1] * len(calls)
    for call in calls:
        call()
    assert OPS["add"].num_plans == len(calls), "and each once"


def test_what_lengths_depend_on_makes_the_plan() -> None:
    b, t = batch_and_time(2, 3)
    beam = Dim(2, name="beam")
    over_beam = Dim(None, name="T").fill([2, 3], [beam])
    over_both = Dim(None, name="T").fill([[2, 3], [1, 1]], [b, beam])
    scalar, static = Dim(None, name="T").fill(3), Dim(3, name="T")
    calls: list[Callable[[], Any]] = [
        lambda: rf.reduce_sum(zeros(b, beam, t), axis=t),
        lambda: rf.reduce_sum(zeros(b, beam, over_beam), axis=over_beam),
        lambda: rf.reduce_sum(zeros(b, beam, over_both), axis=over_both),
        lambda: rf.reduce_sum(zeros(b, beam, scalar), axis=scalar),
        lambda: rf.reduce_sum(zeros(b, beam, t), axis=[t, b]),
        lambda: rf.reduce_sum(zeros(b, beam, t), axis=[b, t]),
        lambda: rf.reduce_sum(zeros(b, beam, t), axis=t, use_mask=False),
    ]
    counts = new_plans("reduce", *calls)
    assert counts == [1] * len(calls)
    assert rf.reduce_sum(zeros(b, beam, static), axis=static).dims == (b, beam)


def test_equal_static_arguments_of_other_types_are_told_apart() -> None:
    seen: list[Any] = []

    def planner(p: Any, x: Tensor, value: Any) -> Any:
        seen.append(value)
        return p.finish(p.out(p.emit("identity", 0), x.dims, x.dtype))

    op = Op("test_static", num_tensors=1, planner=planner)
    try:
        x = zeros(Dim(2))
        values = [1, True, 1.0, "1", None, 0, False, 0.0, (1,), (True,), (1, (2,)), (), ("a", None)]
        for value in [*values, *values]:
            op(x, value)
        assert [(type(v), v) for v in seen] == [(type(v), v) for v in values]
        assert op.num_plans == len(values)
    finally:
        del OPS["test_static"]


def test_dims_in_tuples_are_structure_and_not_identity() -> None:
    def planner(p: Any, x: Tensor, pairs: Any) -> Any:
        return p.finish(p.out(p.emit("permute", 0, static=((1, 0),)), [d for d, _ in pairs], x.dtype))

    op = Op("test_pairs", num_tensors=1, planner=planner)
    try:
        for n in (2, 3, 4):
            a, b = Dim(n), Dim(n + 1)
            y = op(zeros(a, b), ((b, 1), (a, 2)))
            assert y.dims == (b, a) and y.numpy().shape == (n + 1, n)
        assert op.num_plans == 1
        op(zeros(a, b), ((b, 1), (a, 3)))
        assert op.num_plans == 2
    finally:
        del OPS["test_pairs"]


def test_a_list_is_as_good_as_a_tuple() -> None:
    a, b = Dim(2), Dim(3)
    x = zeros(a, b)
    assert new_plans("reduce", lambda: rf.reduce_sum(x, axis=(a, b)), lambda: rf.reduce_sum(x, axis=[a, b])) == [1, 0]
    assert rf.reduce_sum(x, axis=[]).dims == rf.reduce_sum(x, axis=()).dims == (a, b)


def test_a_failing_planner_leaves_no_plan() -> None:
    a, b = Dim(2), Dim(3)
    OPS["add"].clear_plans()
    for _ in range(2):
        with pytest.raises(rf.DimError):
            zeros(a) + zeros(b)
    assert OPS["add"].num_plans == 0


def test_default_float_dtype_changes_plans() -> None:
    x = zeros(Dim(2), dtype="int32")
    assert (x / 2).dtype == "float32"
    with rf.set_default_float_dtype_ctx("float64"):
        assert (x / 2).dtype == "float64" and (x / 2).numpy().dtype == "float64"
    assert (x / 2).dtype == "float32"


# -- limits


def test_many_dims() -> None:
    dims = [Dim(1, name=f"d{i}") for i in range(MAX_DISTINCT_DIMS)]
    x = zeros(*dims)
    assert (x + zeros(*dims[::-1])).dims == tuple(dims)
    with pytest.raises(
        rf.DimError,
        match=rf"at most {MAX_DISTINCT_DIMS} distinct dims; operands:\n  a: \{{d0=1.*\n  b: \{{one_more=1\}}",
    ):
        rf.combine_bc(x, "+", zeros(Dim(1, name="one_more")))


def test_all_match_priorities() -> None:
    f = Dim(2, name="F")
    dims = [f.copy(match_priority=p) for p in (3, 1, 2, 0)]
    x = rf.range_over_dim(f, dtype="float32")
    cube = make_tensor(
        rf.get_backend("numpy"), np.arange(16, dtype="float32").reshape(2, 2, 2, 2), tuple(dims), "float32"
    )
    turned = cube.copy_transpose(dims[::-1])
    assert [d.match_priority for d in turned.dims] == [0, 2, 1, 3]
    np.testing.assert_array_equal(turned.numpy(), cube.numpy().transpose(3, 2, 1, 0))
    summed = rf.reduce_sum(cube, axis=f)
    assert [d.match_priority for d in summed.dims] == [1, 2, 0], "the axis of the highest priority is meant"
    np.testing.assert_array_equal(summed.numpy(), cube.numpy().sum(0))
    np.testing.assert_array_equal((cube + x).numpy(), cube.numpy() + np.arange(2, dtype="float32"))


def test_square_matmul() -> None:
    f = Dim(2, name="F")
    weight = np.float32([[1, 2], [3, 4]])
    w = Tensor("w", [f.copy(match_priority=1), f], "float32", raw_tensor=weight)
    b = Dim(3, name="B")
    x = rf.convert_to_tensor(np.float32([[1, 0], [0, 1], [1, 1]]), dims=[b, f])
    y = rf.matmul(x, w, reduce=f)
    assert y.dims == (b, f) and y.dims[1].match_priority == 0
    np.testing.assert_array_equal(y.numpy(), x.numpy() @ weight)
    np.testing.assert_array_equal(rf.matmul(w, x, reduce=f).copy_transpose([b, f]).numpy(), x.numpy() @ weight)


# -- apply, for ops without a plan


@pytest.mark.parametrize("backend", BACKENDS)
def test_apply(backend: str) -> None:
    a, b, c = Dim(2, name="a"), Dim(3, name="b"), Dim(6, name="c")
    with rf.use_backend(backend):
        x = rf.ones([a, b])
        (y,) = apply("reshape", (x,), ((6,),), [((c,), "float32", c, None)])
        assert y.dims == (c,) and y.feature_dim is c and y.backend is rf.get_backend(backend)
        pieces = apply(
            "split", (y,), (0, (2, 4)), [((a,), "float32", None, None), ((Dim(4, name="d"),), "float32", None, None)]
        )
        assert [p.dims[0].dimension for p in pieces] == [2, 4]
    if backend != "meta":
        assert y.numpy().tolist() == [1.0] * 6 and pieces[1].numpy().tolist() == [1.0] * 4


# -- operands


def test_templates_are_no_operands() -> None:
    f = Dim(2, name="F")
    with pytest.raises(rf.RfError, match=r"add: the operand y: \{F=2\} float32 template is a template without data"):
        zeros(f) + Tensor("y", [f], "float32")


@pytest.mark.needs("torch")
def test_operands_of_two_backends() -> None:
    f = Dim(2, name="F")
    x = zeros(f)
    with rf.use_backend("torch"):
        y = zeros(f)
    for call in (lambda: x + y, lambda: rf.where(x > 0, x, y), lambda: rf.matmul(y, x, reduce=f)):
        with pytest.raises(
            rf.BackendError,
            match=r"(?s)operands of different backends \((numpy, torch|torch, numpy)\):.*rf\.convert_backend",
        ):
            call()
    with pytest.raises(rf.BackendError, match=r"\{F=2\} float32 numpy on numpy\n  \{F=2\} float32 torch on torch"):
        x + y


@pytest.mark.needs("torch")
def test_two_backends_alive_at_once() -> None:
    b, t = batch_and_time(2, 3)
    x = rf.ones([b, t])
    with rf.use_backend("torch"):
        y = rf.ones([b, t])
    for _ in range(2):  # which one is selected does not matter to tensors that are there
        for tensor, name in ((x, "numpy"), (y, "torch")):
            result = rf.softmax(tensor * 2 + 1, axis=t)
            assert result.backend is rf.get_backend(name)
            np.testing.assert_allclose(result.numpy(), [[1 / 2, 1 / 2, 0], [1 / 3] * 3], rtol=1e-6)
    with rf.use_backend("meta"):
        assert rf.reduce_sum(x, axis=t).numpy().tolist() == [2, 3]


def test_numpy_tensors_may_meet_meta_tensors() -> None:
    f = Dim(2, name="F")
    sizes = zeros(f)
    with rf.use_backend("meta"):
        x = zeros(f)
    for y in (x + sizes, sizes * x, rf.where(sizes > 0, x, sizes)):
        assert y.backend is rf.get_backend("meta") and y.dims == (f,)


# -- selecting a backend


def test_use_backend_nests_and_is_left_on_errors() -> None:
    with rf.use_backend("meta"):
        with rf.use_backend("numpy"), pytest.raises(ZeroDivisionError), rf.use_backend("meta"):
            1 / 0  # noqa: B018
        assert zeros(Dim(1)).backend is rf.get_backend("meta")
    assert zeros(Dim(1)).backend is rf.get_backend("numpy")


def test_unknown_backend() -> None:
    for function in (rf.get_backend, rf.select_backend, lambda name: rf.use_backend(name).__enter__()):
        with pytest.raises(rf.UserError, match="unknown backend 'jax'; choose one of: numpy, torch, "):
            function("jax")


def test_default_device() -> None:
    assert rf.get_default_device() is None and rf.get_default_dim_size_device() == "cpu"
    with rf.set_default_device_ctx("cpu"):
        assert rf.get_default_device() == "cpu"
        zeros(Dim(2))
    assert rf.get_default_device() is None
    rf.set_default_device("cpu")
    assert rf.get_default_device() == "cpu"
    rf.set_default_device(None)


def test_settings_without_a_choice() -> None:
    assert rf.dropout_broadcast_default() is True
    with rf.control_flow_ctx():
        assert rf.get_current_control_flow_ctx() is None


# -- threads


def in_threads(number: int, work: Callable[[int], None]) -> None:
    errors: list[BaseException] = []
    start = threading.Barrier(number)

    def run(i: int) -> None:
        try:
            start.wait()
            work(i)
        except BaseException as exc:  # handed to the main thread
            errors.append(exc)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(number)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


@pytest.mark.parametrize("backend", BACKENDS)
def test_eight_threads(backend: str) -> None:
    """Ops, plans, dim math and masks, on dims that all threads share and on own ones."""
    b, shared = batch_and_time(3, 1, 2)
    for op in OPS.values():
        op.clear_plans()

    def work(i: int) -> None:
        with rf.use_backend(backend):
            for round_ in range(20):
                own_b, own = batch_and_time(*[i + 1 + (k + round_) % 3 for k in range(3)])
                for over, time in ((b, shared), (own_b, own)):
                    x = rf.ones([over, time])
                    y = rf.reduce_sum(x * 2 + 1, axis=time)
                    z = rf.softmax(x, axis=time)
                    longer = rf.reduce_sum(rf.ones([over, time + 1]), axis=time + 1)
                    turned = x.copy_transpose([time, over]) + x
                    assert y.dims == (over,) and z.dims == (over, time) and turned.dims_set == {over, time}
                    if backend != "meta":
                        sizes = time.get_sizes().values
                        assert y.numpy().tolist() == (3 * sizes).tolist()
                        assert longer.numpy().tolist() == (sizes + 1).tolist()
                        np.testing.assert_allclose(z.numpy().sum(-1), 1, rtol=1e-5)

    in_threads(8, work)
    assert OPS["reduce"].num_plans == 1, "threads share plans"


def test_use_backend_belongs_to_its_thread() -> None:
    names = ["numpy", "meta"] * 4

    def work(i: int) -> None:
        for _ in range(50):
            with rf.use_backend(names[i]):
                assert zeros(Dim(1)).backend is rf.get_backend(names[i])

    in_threads(8, work)


def test_same_expression_in_all_threads_is_one_dim() -> None:
    t = Dim(8, name="T")
    found: list[list[Dim]] = [[] for _ in range(8)]

    def work(i: int) -> None:
        found[i] = [(t + n) * 2 for n in range(1, 60)]

    keep = [(t + n) * 2 for n in range(1, 60)]
    in_threads(8, work)
    assert all(dims == keep for dims in found)
