"""What the conformance samples do not say of ops on frames: sizes of new dims, edge cases, errors."""

from __future__ import annotations

import numpy as np
import pytest

import rf

BACKENDS = ["numpy", pytest.param("torch", marks=pytest.mark.needs("torch")), "meta"]


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest):
    with rf.use_backend(request.param):
        yield request.param


@pytest.fixture(params=BACKENDS[:2])
def computing(request: pytest.FixtureRequest):
    with rf.use_backend(request.param):
        yield request.param


class Example:
    """x {B, T} with lengths 4, 2, 0 and values 0, 1, 2, ..."""

    def __init__(self, lengths: tuple[int, ...] = (4, 2, 0)) -> None:
        self.B = rf.Dim(len(lengths), name="B")
        self.T = rf.Dim(None, name="T").fill(np.array(lengths), [self.B])
        self.array = np.arange(len(lengths) * max(lengths), dtype=np.float32).reshape(len(lengths), max(lengths))
        self.x = rf.convert_to_tensor(self.array, dims=[self.B, self.T])

    def rows(self, x: rf.Tensor, dim: rf.Dim) -> list[list]:
        """Valid frames of each sequence."""
        sizes = np.broadcast_to(dim.get_sizes().values, len(self.array))
        return [row[:n] for row, n in zip(x.copy_transpose([self.B, dim]).numpy().tolist(), sizes)]


@pytest.mark.parametrize("start", [None, 0, 1, 3, -1, -3])
@pytest.mark.parametrize("end", [None, -1, -3])
@pytest.mark.parametrize("step", [None, 1, 2, 3])
def test_slice_is_that_of_python_for_each_sequence(computing: str, start: int, end: int, step: int) -> None:
    e = Example((5, 3, 1, 0))
    out, out_dim = rf.slice(e.x, axis=e.T, start=start, end=end, step=step)
    expected = [e.array[b, :n].tolist()[start:end:step] for b, n in enumerate((5, 3, 1, 0))]
    assert e.rows(out, out_dim) == expected


@pytest.mark.parametrize("start", [None, 0, 2, 4, 7, -2, -6])
@pytest.mark.parametrize("end", [None, 0, 3, 9, -1, -5])
@pytest.mark.parametrize("step", [None, 2])
def test_slice_of_a_static_axis_is_that_of_python(computing: str, start: int, end: int, step: int) -> None:
    n = rf.Dim(4, name="n")
    x = rf.convert_to_tensor(np.arange(4), dims=[n])
    expected = list(range(4))[start:end:step]
    out, out_dim = rf.slice(x, axis=n, start=start, end=end, step=step)
    assert out.numpy().tolist() == expected and out_dim.dimension == len(expected)


def test_slice_out_dims(backend: str) -> None:
    e = Example()
    assert rf.slice(e.x, axis=e.T, start=1)[1] is e.T.sub_left(1)
    assert rf.slice(e.x, axis=e.T, end=-1)[1] is e.T.sub_right(1)
    assert rf.slice(e.x, axis=e.T, start=1, step=2)[1] is e.T.sub_left(1).ceildiv_right(2)
    assert rf.slice(e.x, axis=e.T, size=2)[1].dimension == 2
    assert rf.slice(e.x, axis=e.T, end=2)[1].dimension == 2
    fixed = rf.Dim(3, name="fixed")
    assert rf.slice(e.x, axis=e.T, size=fixed)[1] is fixed
    a, b = rf.Dim(1, name="a"), rf.Dim(3, name="b")
    x = rf.convert_to_tensor(np.arange(4), dims=[a + b])
    assert rf.slice(x, axis=a + b, start=a)[1] is b


def test_slice_beyond_the_end_gives_zeros(computing: str) -> None:
    e = Example((3, 2, 0))
    out, out_dim = rf.slice(e.x + 1, axis=e.T, start=1, size=4)
    assert e.rows(out, out_dim) == [[2, 3, 0, 0], [5, 0, 0, 0], [0, 0, 0, 0]]


def test_slice_errors(backend: str) -> None:
    e = Example()
    with pytest.raises(rf.RfError, match="step must be an int >= 1, got -1(.|\n)*reverse_sequence"):
        rf.slice(e.x, axis=e.T, step=-1)
    with pytest.raises(rf.RfError, match="size alone, or end"):
        rf.slice(e.x, axis=e.T, size=2, end=3)
    with pytest.raises(rf.RfError, match="size alone, or end"):
        rf.slice(e.x, axis=e.T, size=2, step=2)
    with pytest.raises(rf.DimError, match="the dim given for it is wrong=9"):
        rf.slice(e.x, axis=e.T, start=1, out_dim=rf.Dim(9, name="wrong"))


def test_what_needs_values_says_so_on_meta() -> None:
    with rf.use_backend("meta"):
        e = Example()
        mask = e.x > 0
        for call in (
            lambda: rf.masked_select(e.x, mask=mask, dims=[e.B, e.T]),
            lambda: rf.repeat(e.x, in_spatial_dim=e.T, repeats=rf.cast(mask, "int32")),
            lambda: rf.slice(e.x, axis=e.T, start=rf.cast(rf.reduce_sum(e.x, axis=e.T), "int32")),
        ):
            with pytest.raises(rf.BackendError):
                call()
        known = rf.Dim(5, name="known")
        out, out_dim = rf.masked_select(e.x, mask=mask, dims=[e.B, e.T], out_dim=known)
        assert out_dim is known and out.dims == (known,)


def test_reverse_keeps_padding_at_the_end(computing: str) -> None:
    e = Example()
    assert e.rows(rf.reverse_sequence(e.x, axis=e.T), e.T) == [[3, 2, 1, 0], [5, 4], []]
    raw = rf.reverse_sequence(e.x, axis=e.T, handle_dynamic_dims=False)
    assert np.array_equal(raw.numpy(), e.array[:, ::-1])


def test_shifts(computing: str) -> None:
    e = Example()
    assert e.rows(rf.shift_right(e.x, axis=e.T, pad_value=-1), e.T) == [[-1, 0, 1, 2], [-1, 4], []]
    assert e.rows(rf.shift_left(e.x, axis=e.T, pad_value=-1), e.T) == [[1, 2, 3, -1], [5, -1], []]
    assert e.rows(rf.shift_left(e.x, axis=e.T, pad_value=-1, amount=3), e.T) == [[3, -1, -1, -1], [-1, -1], []]
    with pytest.raises(rf.DimError, match="amount must be >= 0"):
        rf.shift_left(e.x, axis=e.T, pad_value=0, amount=-1)


def test_sort_puts_valid_frames_first(computing: str) -> None:
    e = Example((4, 2, 0))
    x = rf.where(rf.sequence_mask([e.B, e.T]), -e.x, -1000.0)
    up, index, out_dim = rf.sort(x, axis=e.T)
    assert e.rows(up, out_dim) == [[-3, -2, -1, 0], [-5, -4], []]
    assert e.rows(index, out_dim) == [[3, 2, 1, 0], [1, 0], []] and index.sparse_dim is e.T
    x = rf.where(rf.sequence_mask([e.B, e.T]), -e.x, 1000.0)
    down, _, out_dim = rf.sort(x, axis=e.T, descending=True)
    assert e.rows(down, out_dim) == [[0, -1, -2, -3], [-4, -5], []]
    assert out_dim != e.T and out_dim.get_sizes().values.tolist() == [4, 2, 0]


def test_sort_is_stable_and_nan_is_largest(computing: str) -> None:
    n = rf.Dim(6, name="n")
    x = rf.convert_to_tensor(np.array([1, np.nan, 0, 1, 0, 1], dtype=np.float32), dims=[n])
    assert rf.sort(x, axis=n)[1].numpy().tolist() == [2, 4, 0, 3, 5, 1]
    assert rf.sort(x, axis=n, descending=True)[1].numpy().tolist() == [1, 0, 3, 5, 2, 4]


def test_search_sorted_does_not_count_padding(computing: str) -> None:
    e = Example((4, 2, 0))
    inf = rf.convert_to_tensor(np.full(3, np.inf, dtype=np.float32), dims=[e.B])
    assert rf.search_sorted(e.x, inf, axis=e.T, side="right").numpy().tolist() == [4, 2, 0]
    with pytest.raises(rf.RfError, match="'left' or 'right', got 'middle'"):
        rf.search_sorted(e.x, inf, axis=e.T, side="middle")
    with pytest.raises(rf.DimError, match="the values have the axis"):
        rf.search_sorted(e.x, e.x, axis=e.T)


def test_window_alignment(computing: str) -> None:
    e = Example((3, 2, 0))
    w = rf.Dim(3, name="w")
    out, out_dim = rf.window(e.x, spatial_dim=e.T, window_dim=w, pad_value=-1)
    assert out_dim is e.T
    rows = out.copy_transpose([e.B, e.T, w]).numpy().tolist()
    assert rows[0] == [[-1, 0, 1], [0, 1, 2], [1, 2, -1]]
    assert rows[1][:2] == [[-1, 3, 4], [3, 4, -1]]
    two = rf.Dim(2, name="two")
    rows = rf.window(e.x, spatial_dim=e.T, window_dim=two, pad_value=-1)[0].copy_transpose([e.B, e.T, two]).numpy()
    assert rows[0].tolist() == [[0, 1], [1, 2], [2, -1]], "an even window has more on the right"
    with pytest.raises(rf.DimError, match="is not the size"):
        rf.window(e.x, spatial_dim=e.T, window_dim=w, window_left=1, window_right=2)
    with pytest.raises(rf.DimError, match="static window_dim"):
        rf.window(e.x, spatial_dim=e.T, window_dim=e.T)


def test_repeat_sums_per_sequence(computing: str) -> None:
    e = Example((3, 2, 0))
    counts = rf.convert_to_tensor(np.array([[2, 0, 1], [1, 3, 9], [9, 9, 9]], dtype=np.int32), dims=[e.B, e.T])
    out, out_dim = rf.repeat(e.x, in_spatial_dim=e.T, repeats=counts)
    assert e.rows(out, out_dim) == [[0, 0, 2], [3, 4, 4, 4], []]
    assert rf.repeat(e.x, in_spatial_dim=e.T, repeats=2)[1] is e.T * 2
    with pytest.raises(rf.RfError, match=">= 0, got -2"):
        rf.repeat(e.x, in_spatial_dim=e.T, repeats=counts - 2)
    with pytest.raises(rf.RfError, match="must be integers"):
        rf.repeat(e.x, in_spatial_dim=e.T, repeats=e.x)
    with pytest.raises(rf.DimError, match="up to 4 frames"):
        rf.repeat(e.x, in_spatial_dim=e.T, repeats=counts, out_spatial_dim=rf.Dim(9, name="nine"))


def test_masked_select_fills_the_out_dim(computing: str) -> None:
    e = Example((4, 2, 0))
    mask = rf.convert_to_tensor(np.arange(12).reshape(3, 4) % 2 == 0, dims=[e.B, e.T])
    out, out_dim = rf.masked_select(e.x, mask=mask, dims=[e.B, e.T])
    assert out.numpy().tolist() == [0, 2, 4] and not out_dim.need_masking() and out_dim.get_dim_value() == 3
    new = rf.Dim(None, name="new")
    out, out_dim = rf.masked_select(e.x, mask=mask, dims=[e.T], out_dim=new)
    assert out_dim is new and e.rows(out, new) == [[0, 2], [4], []]
    assert e.rows(rf.masked_scatter(out, mask=mask, dims=[e.T], in_dim=new), e.T) == [[0, 0, 2, 0], [4, 0], []]
    back = rf.masked_scatter(out, -1.0, mask=mask, dims=[e.T], in_dim=new)
    assert e.rows(back, e.T) == [[0, -1, 2, -1], [4, -1], []]
    nothing, none = rf.masked_select(e.x, mask=e.x < 0, dims=[e.B, e.T])
    assert none.get_dim_value() == 0 and nothing.numpy().shape == (0,)
    assert not rf.masked_scatter(nothing, mask=e.x < 0, dims=[e.B, e.T], in_dim=none).numpy().any()


def test_masked_select_errors(backend: str) -> None:
    e = Example()
    with pytest.raises(rf.RfError, match="must be bool"):
        rf.masked_select(e.x, mask=e.x, dims=[e.T])
    with pytest.raises(rf.DimError, match="must be dims of the mask"):
        rf.masked_select(e.x, mask=e.x > 0, dims=[rf.Dim(3, name="other")])
    with pytest.raises(rf.DimError, match="in_dim other=9 is not a dim"):
        rf.pad_packed(e.x, in_dim=rf.Dim(9, name="other"), dims=[e.B, e.T])


def test_pack_needs_no_values(backend: str) -> None:
    e = Example()
    packed, packed_dim = rf.pack_padded(e.x, dims=[e.B, e.T])
    assert packed.dims == (packed_dim,) and packed_dim.get_dim_value() == 6
    assert set(rf.pad_packed(packed, in_dim=packed_dim, dims=[e.B, e.T]).dims) == {e.B, e.T}
    if backend != "meta":
        assert packed.numpy().tolist() == [0, 1, 2, 3, 4, 5]
    with pytest.raises(rf.DimError, match=r"have 6 valid entries, but in_dim is"):
        rf.pad_packed(e.x, in_dim=e.T, dims=[e.B, e.T])
    with pytest.raises(rf.RfError, match="enforce_sorted"):
        rf.pack_padded(e.x, dims=[e.B, e.T], enforce_sorted=True)


def test_expand_make_non_empty(backend: str) -> None:
    e = Example((1, 0))
    empty, none = rf.slice(e.x, axis=e.T, size=0)
    out, dim = rf.expand_make_non_empty(empty, axis=none)
    assert dim.get_dim_value() == 1 and dim in out.dims
    out, dim = rf.expand_make_non_empty(e.x, axis=e.T)
    assert dim is e.T
