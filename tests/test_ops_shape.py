"""What the conformance samples do not say of ops on axes: which dims come out, what is shared, plans, errors."""

from __future__ import annotations

import numpy as np
import pytest

import rf
from rf._registry import OPS

BACKENDS = ["numpy", pytest.param("torch", marks=pytest.mark.needs("torch")), "meta"]


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest):
    with rf.use_backend(request.param):
        yield request.param


class Example:
    """x {B, T, F} with lengths 4, 2, 0 and values 0, 1, 2, ..."""

    def __init__(self, lengths: tuple[int, ...] = (4, 2, 0)) -> None:
        self.B = rf.Dim(len(lengths), name="B")
        self.T = rf.Dim(None, name="T").fill(np.array(lengths), [self.B])
        self.F = rf.Dim(6, name="F")
        self.H = rf.Dim(2, name="H")
        self.D = rf.Dim(3, name="D")
        shape = (len(lengths), max(lengths), 6)
        self.array = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
        self.x = rf.convert_to_tensor(self.array, dims=[self.B, self.T, self.F], feature_dim=self.F)


def values(x: rf.Tensor, *dims: rf.Dim) -> list:
    return x.copy_transpose(dims).numpy().tolist()


def test_merge_default_out_dim_is_the_product(backend: str) -> None:
    e = Example()
    x = rf.split_dims(e.x, axis=e.F, dims=[e.H, e.D])
    merged, out_dim = rf.merge_dims(x, dims=[e.H, e.D])
    assert out_dim is e.H * e.D and merged.dims == (e.B, e.T, out_dim)
    _, frames = rf.merge_dims(e.x, dims=[e.T, e.F])
    assert frames is e.T * e.F and frames.get_sizes().values.tolist() == [24, 12, 0]


def test_merge_where_frames_are_not_in_one_piece(backend: str) -> None:
    e = Example()
    for dims in ([e.B, e.T], [e.F, e.T], [e.T, e.B]):
        _, out_dim = rf.merge_dims(e.x, dims=dims)
        assert not out_dim.need_masking() and out_dim.is_dynamic()
        assert out_dim.get_dim_value() == np.prod([d.get_dim_value() for d in dims])


def test_merged_group_stands_where_its_last_dim_stood(backend: str) -> None:
    e = Example()
    x = rf.split_dims(e.x, axis=e.F, dims=[e.H, e.D]).copy_transpose([e.B, e.H, e.T, e.D])
    assert rf.merge_dims(x, dims=[e.H, e.D], out_dim=e.F)[0].dims == (e.B, e.T, e.F)


def test_plans_of_static_splits_serve_other_lengths() -> None:
    ops = [OPS["split_dims"], OPS["merge_dims"], OPS["split"], OPS["replace_dim"]]

    def step(e: Example) -> None:
        x = rf.split_dims(e.x, axis=e.F, dims=[e.H, e.D])
        rf.merge_dims(x, dims=[e.H, e.D], out_dim=e.F)
        rf.split(e.x, axis=e.F, out_dims=[e.D, e.D])
        rf.replace_dim(e.x, in_dim=e.T)

    with rf.use_backend("numpy"):
        step(Example())
        before = [op.num_plans for op in ops]
        step(Example((7, 1, 3, 2)))
        assert [op.num_plans for op in ops] == before


def test_split_dims_infers_the_one_without_sizes(backend: str) -> None:
    e = Example((6, 3, 0))
    chunks, chunk = rf.Dim(None, name="chunks"), rf.Dim(3, name="chunk")
    out = rf.split_dims(e.x, axis=e.T, dims=[chunks, chunk])
    assert out.dims == (e.B, chunks, chunk, e.F)
    assert chunks.get_sizes().values.tolist() == [2, 1, 0]
    e.T.fill(np.array([9, 6, 3]))
    assert chunks.get_sizes().values.tolist() == [3, 2, 1], "it follows a new filling"


def test_split_dims_that_does_not_divide(backend: str) -> None:
    e = Example((6, 4, 0))
    chunks, chunk = rf.Dim(None, name="chunks"), rf.Dim(3, name="chunk")
    with pytest.raises(rf.DimError, match="not divisible"):
        # the raw axis divides, but a sequence does not
        rf.split_dims(e.x, axis=e.T, dims=[chunks, chunk])
    with pytest.raises(rf.DimError, match="pad it first"):
        rf.split_dims(e.x, axis=e.F, dims=[rf.Dim(None, name="a"), rf.Dim(4, name="b")])
    with pytest.raises(rf.DimError, match="F=6 has 6 entries, .* have 8"):
        rf.split_dims(e.x, axis=e.F, dims=[e.H, rf.Dim(4, name="four")])
    with pytest.raises(rf.DimError, match="at most one"):
        rf.split_dims(e.x, axis=e.F, dims=[rf.Dim(None), rf.Dim(None)])


def test_split_dims_pad_to_multiples(backend: str) -> None:
    e = Example((4, 2, 0))
    chunks, chunk = rf.Dim(None, name="chunks"), rf.Dim(3, name="chunk")
    out = rf.split_dims(e.x, axis=e.T, dims=[chunks, chunk], pad_to_multiples=True, pad_value=-1)
    assert chunks.get_sizes().values.tolist() == [2, 1, 0]
    if backend != "meta":
        first = rf.gather(out, axis=e.F, indices=0)
        assert values(first, e.B, chunks, chunk)[:2] == [[[0, 6, 12], [18, -1, -1]], [[24, 30, -1], [-1, -1, -1]]]


def test_replace_dim_shares_sizes_and_masks() -> None:
    with rf.use_backend("numpy"):
        e = Example()
        out, new = rf.replace_dim(e.x, in_dim=e.T)
        assert new != e.T and out.dims == (e.B, new, e.F) and out.feature_dim == e.F
        assert new.get_mask().raw_tensor is e.T.get_mask().raw_tensor
        assert out.raw_tensor is e.x.raw_tensor and out is not e.x
        kv = rf.Dim(None, name="kv")
        _, same = rf.replace_dim(e.x, in_dim=e.T, out_dim=kv)
        assert same is kv and kv.get_sizes().values.tolist() == [4, 2, 0]


def test_replace_dim_errors(backend: str) -> None:
    e = Example()
    with pytest.raises(rf.DimError, match="differ in length(.|\n)*replace_dim_v2"):
        rf.replace_dim(e.x, in_dim=e.F, out_dim=e.H)
    with pytest.raises(rf.DimError, match="twice"):
        six = rf.Dim(6, name="six")
        rf.replace_dim(rf.expand_dim(e.x, six), in_dim=e.F, out_dim=six)
    with pytest.raises(rf.DimError, match="in_dim H=2 is not a dim of"):
        rf.replace_dim(e.x, in_dim=e.H)
    with pytest.raises(rf.DimError, match="not allowed"):
        rf.replace_dim_v2(e.x, in_dim=e.F, out_dim=e.H, allow_shrink=False)
    with pytest.raises(rf.DimError, match="not allowed"):
        rf.replace_dim_v2(e.x, in_dim=e.F, out_dim=rf.Dim(9), allow_expand=False)


def test_axes_that_are_not_there(backend: str) -> None:
    e = Example()
    other = rf.Dim(6, name="other")
    for call in (
        lambda: rf.merge_dims(e.x, dims=[e.T, other]),
        lambda: rf.split_dims(e.x, axis=other, dims=[e.H, e.D]),
        lambda: rf.split(e.x, axis=other, out_dims=[e.D, e.D]),
        lambda: rf.squeeze(e.x, rf.Dim(1, name="other")),
        lambda: rf.unstack(e.x, axis=other),
        lambda: rf.pad(e.x, axes=[other], padding=[(1, 1)]),
        lambda: rf.concat((e.x, other), (e.x, e.F)),
        lambda: rf.slice(e.x, axis=other, start=1),
        lambda: rf.gather(e.x, axis=other, indices=0),
        lambda: rf.reverse_sequence(e.x, axis=other),
        lambda: rf.cumsum(e.x, spatial_dim=other),
        lambda: rf.sort(e.x, axis=other),
        lambda: rf.top_k(e.x, axis=other, k=1),
    ):
        with pytest.raises(rf.DimError, match=r"other=\d is not a dim of .*B=3, T=4\(4,2,0\), F=6"):
            call()


def test_errors_of_single_axes(backend: str) -> None:
    e = Example()
    with pytest.raises(rf.DimError, match="not a static dim of size 1"):
        rf.squeeze(e.x, e.F)
    with pytest.raises(rf.DimError, match="F=6 twice"):
        rf.expand_dim(e.x, e.F)
    with pytest.raises(rf.DimError, match="T=4.* is dynamic"):
        rf.unstack(e.x, axis=e.T)
    with pytest.raises(rf.DimError, match="needs masking; cut sequences with rf.slice"):
        rf.split(e.x, axis=e.T, out_dims=[e.H, e.H])
    with pytest.raises(rf.DimError, match=r"F=6 has 6 entries, \[H=2, D=3\] have 5"):
        rf.split(e.x, axis=e.F, out_dims=[e.H, e.D])
    with pytest.raises(rf.DimError, match="the dims differ(.|\n)*expand_dims"):
        rf.stack([e.x, rf.gather(e.x, axis=e.F, indices=0)])
    with pytest.raises(rf.DimError, match="no feature dim"):
        rf.gating(rf.gather(e.x, axis=e.F, indices=0))


def test_concat_keeps_each_sequence_in_one_piece() -> None:
    with rf.use_backend("numpy"):
        e = Example((3, 1, 0))
        u = rf.Dim(None, name="U").fill(np.array([1, 2, 2]), [e.B])
        a = rf.gather(e.x, axis=e.F, indices=0)
        b = rf.convert_to_tensor(np.array([[-1, -2], [-3, -4], [-5, -6]], dtype=np.float32), dims=[e.B, u])
        out, out_dim = rf.concat((a, e.T), (b, u))
        assert out_dim is e.T + u and out_dim.get_sizes().values.tolist() == [4, 3, 2]
        got = values(out, e.B, out_dim)
        assert [row[:n] for row, n in zip(got, (4, 3, 2))] == [[0, 6, 12, -1], [18, -3, -4], [-5, -6]]


def test_concat_errors(backend: str) -> None:
    e = Example()
    frame = rf.gather(e.x, axis=e.T, indices=0)
    with pytest.raises(rf.DimError, match="the dims differ(.|\n)*allow_broadcast=True"):
        rf.concat((e.x, e.F), (frame, e.F))
    with pytest.raises(rf.DimError, match="the dim given for it is H=2"):
        rf.concat((e.x, e.F), (e.x, e.F), out_dim=e.H)
    with pytest.raises(rf.RfError, match="no .* pairs"):
        rf.concat()
    with pytest.raises(rf.DimError, match="tensor 1 has no feature dim"):
        rf.concat_features(e.x, rf.gather(e.x, axis=e.F, indices=0))


def test_pad_out_dims_by_dim_math(backend: str) -> None:
    e = Example()
    _, (out_dim,) = rf.pad(e.x, axes=[e.T], padding=[(1, 2)])
    assert out_dim is 1 + e.T + 2 and out_dim.get_sizes().values.tolist() == [7, 5, 3]
    _, (same,) = rf.pad(e.x, axes=[e.T], padding=[(0, 0)])
    assert same is e.T
    given = rf.Dim(None, name="given")
    out, dims = rf.pad(e.x, axes=[e.T], padding=[(1, 0)], out_dims=[given])
    assert dims == [given] and given in out.dims and given.get_sizes().values.tolist() == [5, 3, 1]


def test_pad_errors(backend: str) -> None:
    e = Example()
    with pytest.raises(rf.DimError, match=">= 0, got -1"):
        rf.pad(e.x, axes=[e.T], padding=[(-1, 0)])
    with pytest.raises(rf.DimError, match="a mode is one of constant, reflect"):
        rf.pad(e.x, axes=[e.T], padding=[(1, 0)], mode="mirror")
    with pytest.raises(rf.DimError, match="for axes"):
        rf.pad(e.x, axes=[e.T, e.F], padding=[(1, 0)])
    with pytest.raises(rf.DimError, match="the dim given for it is H=2"):
        rf.pad(e.x, axes=[e.F], padding=[(1, 0)], out_dims=[e.H])


def test_always_a_new_tensor(backend: str) -> None:
    e = Example()
    for out in (
        rf.merge_dims(e.x, dims=[e.T])[0],
        rf.expand_dims(e.x, []),
        rf.pad(e.x, axes=[e.T], padding=[(0, 0)])[0],
        rf.pad(e.x, axes=[], padding=[])[0],
        rf.slice(e.x, axis=e.T)[0],
        rf.concat((e.x, e.T))[0],
        rf.replace_dim(e.x, in_dim=e.T, out_dim=e.T)[0],
        rf.expand_make_non_empty(e.x, axis=e.T)[0],
        rf.set_sparse_dim(rf.cast(e.x, "int32"), e.H),
        rf.copy(e.x),
    ):
        assert out is not e.x
        out.feature_dim = None
    assert e.x.feature_dim is e.F


def test_copy_is_a_snapshot() -> None:
    with rf.use_backend("numpy"):
        e = Example()
        copy = rf.copy(e.x)
        assert np.array_equal(copy.numpy(), e.array) and not np.shares_memory(copy.numpy(), e.x.numpy())


def test_num_elements_counts_valid_entries() -> None:
    with rf.use_backend("numpy"):
        e = Example((4, 2, 0))
        words = rf.Dim(None, name="W").fill(np.array([[1, 2, 3, 4], [5, 6, 9, 9], [9, 9, 9, 9]]), [e.B, e.T])
        assert int(rf.num_elements_of_shape([e.B, e.T])) == 6
        assert int(rf.num_elements_of_shape([e.B, e.T, e.F])) == 36
        assert int(rf.num_elements_of_shape([e.B, e.T, words])) == 1 + 2 + 3 + 4 + 5 + 6
        assert rf.num_elements_of_shape(e.T).numpy().tolist() == [4, 2, 0]
        assert rf.num_elements_of_shape([e.T, words]).numpy().tolist() == [10, 11, 0]
        assert rf.num_elements_of_shape([e.B, e.T], use_mask=False) == 12
        assert rf.num_elements_of_shape([e.B, e.F]) == 18
        assert int(e.x.num_elements()) == 36
        assert rf.masked_fraction_of_shape([e.B, e.T]).numpy() == pytest.approx(0.5)
        assert rf.masked_fraction_of_shape([e.B, e.T], inverse=True).numpy() == pytest.approx(2)
        assert rf.masked_fraction_of_shape([e.B, e.F]) == 1


def test_match_priority_only_when_needed() -> None:
    a, b = rf.Dim(2, name="a"), rf.Dim(2, name="b")
    assert rf.dim_match_priority_when_needed(a, b) is a
    assert rf.dim_match_priority_when_needed(a, b, a).match_priority == 1


def test_use_mask_default() -> None:
    assert rf.use_mask_default() is True
    assert rf.use_mask_default(default=False, func_name="conv") is False


@pytest.mark.needs("torch")
def test_operands_of_another_backend_than_the_selected_one() -> None:
    """Masks and indices are made where the operand is."""
    import torch

    with rf.use_backend("numpy"):
        e = Example()
        x = rf.Tensor("x", [e.B, e.T, e.F], "float32", raw_tensor=torch.tensor(e.array))
        out, _ = rf.pad(x, axes=[e.T], padding=[(1, 1)], value=1)
        assert isinstance(out.raw_tensor, torch.Tensor)
        for y in (
            rf.concat((x, e.T), (x, e.T))[0],
            rf.slice(x, axis=e.T, size=3)[0],
            rf.reverse_sequence(x, axis=e.T),
            rf.shift_left(x, axis=e.T, pad_value=0),
            rf.pack_padded(x, dims=[e.B, e.T])[0],
            rf.gather(x, axis=e.T, indices=-1),
            rf.top_k_mask(x, axis=e.T, k=1),
            rf.one_hot(rf.top_k(x, axis=e.F, k=1)[1]),
        ):
            assert isinstance(y.raw_tensor, torch.Tensor)


@pytest.mark.parametrize("backend", ["numpy", "torch", "meta"])
def test_more_pieces_than_a_plan_can_hold(backend: str) -> None:
    with rf.use_backend(backend):
        n, f = rf.Dim(200, name="N"), rf.Dim(3, name="F")
        x = rf.convert_to_tensor(np.arange(600, dtype="float32").reshape(200, 3), dims=[n, f], feature_dim=f)
        rows = rf.unstack(x, axis=n)
        assert len(rows) == 200 and all(r.dims == (f,) and r.feature_dim is f for r in rows)
        parts = [rf.Dim(10, name=f"p{i}") for i in range(20)]
        pieces = rf.split(x, axis=n, out_dims=parts)
        assert [p.dims for p in pieces] == [(d, f) for d in parts]
        again, _ = rf.concat(*zip(pieces, parts))
        if backend != "meta":
            assert rows[7].numpy().tolist() == [21, 22, 23]
            assert (again.numpy() == x.numpy()).all()
        with pytest.raises(rf.DimError, match="have 190 together"):
            rf.split(x, axis=n, out_dims=parts[1:])
