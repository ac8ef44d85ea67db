"""What the conformance samples do not say of gather, scatter and top_k: defaults, ties, short sequences, errors."""

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


def tensor(values: object, *dims: rf.Dim, **args: object) -> rf.Tensor:
    return rf.convert_to_tensor(np.array(values), dims=dims, **args)  # type: ignore[arg-type]


def test_gather_with_an_int(computing: str) -> None:
    b = rf.Dim(3, name="B")
    t = rf.Dim(None, name="T").fill(np.array([4, 2, 0]), [b])
    x = tensor(np.arange(1.0, 13).reshape(3, 4), b, t)
    assert rf.gather(x, axis=t, indices=1).numpy().tolist() == [2, 6, 10]
    assert rf.gather(x, axis=t, indices=-1).numpy()[:2].tolist() == [4, 6], "the last frame of each sequence"
    assert rf.gather(x, axis=t, indices=-2).numpy()[:2].tolist() == [3, 5]
    assert rf.gather(x, axis=t, indices=3, clip_to_valid=True).numpy()[:2].tolist() == [4, 6]
    assert rf.gather(x, axis=b, indices=-1).numpy().tolist() == [9, 10, 11, 12]


def test_gather_errors(backend: str) -> None:
    f, g = rf.Dim(3, name="F"), rf.Dim(2, name="G")
    x = tensor([1.0, 2.0, 3.0], f)
    with pytest.raises(rf.DimError, match="the index 3 is outside F=3"):
        rf.gather(x, axis=f, indices=3)
    with pytest.raises(rf.DimError, match="the index -4 is outside F=3"):
        rf.gather(x, axis=f, indices=-4)
    with pytest.raises(rf.DimError, match="give axis="):
        rf.gather(x, indices=0)
    with pytest.raises(rf.DimError, match="the indices have no sparse dim"):
        rf.gather(x, indices=tensor([0, 1], g))
    with pytest.raises(rf.RfError, match="must be integers"):
        rf.gather(x, indices=tensor([0.0, 1.0], g), axis=f)
    with pytest.raises(rf.DimError, match="axis G=2 is not a dim of the source"):
        rf.gather(x, indices=tensor([0, 1], g), axis=g)


def test_gather_is_planned_for_any_lengths() -> None:
    from rf._registry import OPS

    def step(lengths: list[int]) -> None:
        b = rf.Dim(len(lengths), name="B")
        t = rf.Dim(None, name="T").fill(np.array(lengths), [b])
        v, f = rf.Dim(3, name="V"), rf.Dim(2, name="F")
        table = tensor(np.ones((3, 2), np.float32), v, f)
        rf.gather(table, indices=tensor(np.zeros((len(lengths), max(lengths)), np.int32), b, t, sparse_dim=v))

    with rf.use_backend("numpy"):
        step([2, 1])
        before = OPS["gather"].num_plans
        step([5, 7, 1])
        assert OPS["gather"].num_plans == before


@pytest.mark.parametrize("n", [8, 1000])
@pytest.mark.parametrize("k", [1, 3, 7])
def test_top_k_takes_the_first_of_equal_values(computing: str, n: int, k: int) -> None:
    """With few values, so that equal ones lie on both sides of the cut, and with all different ones, for torch.topk."""
    rng = np.random.default_rng(0)
    b, v = rf.Dim(4, name="B"), rf.Dim(n, name="V")
    for array in (rng.integers(0, 3, (4, n)), rng.permuted(np.arange(4 * n).reshape(4, n), axis=1), np.zeros((4, n))):
        array = array.astype(np.float32)
        values, indices, k_dim = rf.top_k(tensor(array, b, v), axis=v, k=k)
        expected = np.argsort(-array, axis=1, kind="stable")[:, :k]
        assert indices.copy_transpose([b, k_dim]).numpy().tolist() == expected.tolist()
        assert np.array_equal(values.copy_transpose([b, k_dim]).numpy(), np.take_along_axis(array, expected, 1))
        unsorted = rf.top_k(tensor(array, b, v), axis=v, k=k, sorted=False)[1]
        assert np.array_equal(np.sort(unsorted.numpy(), 1), np.sort(expected, 1))


def test_top_k_with_nan_and_infinities(computing: str) -> None:
    v = rf.Dim(6, name="V")
    x = tensor(np.array([-np.inf, 1, np.nan, np.inf, -np.inf, 1], np.float32), v)
    assert rf.top_k(x, axis=v, k=5)[1].numpy().tolist() == [2, 3, 1, 5, 0]


def test_top_k_prefers_valid_frames_to_padding(computing: str) -> None:
    """A valid -inf (an impossible hypothesis) comes before padding."""
    b = rf.Dim(2, name="B")
    t = rf.Dim(None, name="T").fill(np.array([3, 2]), [b])
    x = tensor(np.array([[-np.inf, -np.inf, -np.inf], [-np.inf, -np.inf, 5]], np.float32), b, t)
    assert rf.top_k(x, axis=t, k=2)[1].numpy().tolist() == [[0, 1], [0, 1]]


def test_top_k_over_beam_and_vocabulary(computing: str) -> None:
    beam, v = rf.Dim(2, name="beam"), rf.Dim(3, name="V")
    x = tensor(np.array([[1, 9, 3], [8, 2, 9]], np.float32), beam, v)
    values, (from_beam, label), k_dim = rf.top_k(x, axis=[beam, v], k=3)
    assert values.numpy().tolist() == [9, 9, 8]
    assert from_beam.numpy().tolist() == [0, 1, 1] and from_beam.sparse_dim is beam
    assert label.numpy().tolist() == [1, 2, 0] and label.sparse_dim is v
    assert k_dim.dimension == 3
    _, (label, from_beam), _ = rf.top_k(x, axis=[v, beam], k_dim=rf.Dim(3, name="k"))
    assert label.numpy().tolist() == [1, 2, 0], "equal values in the order of the merged axis"


def test_top_k_sizes(backend: str) -> None:
    b, v = rf.Dim(2, name="B"), rf.Dim(4, name="V")
    x = tensor(np.ones((2, 4), np.float32), b, v)
    k_dim = rf.Dim(None, name="k")
    assert rf.top_k(x, axis=v, k=3, k_dim=k_dim)[2] is k_dim and k_dim.dimension == 3
    with pytest.raises(rf.DimError, match="5 entries asked for, but .* have 4"):
        rf.top_k(x, axis=v, k=5)
    with pytest.raises(rf.RfError, match="give k, or a k_dim"):
        rf.top_k(x, axis=v)
    with pytest.raises(rf.DimError, match="k is 2, but k_dim is k=3"):
        rf.top_k(x, axis=v, k=2, k_dim=k_dim)
    with rf.use_backend("numpy"):
        k = tensor(np.array([1, 3], np.int32), b)
    _, _, per_sequence = rf.top_k(x, axis=v, k=k)
    assert per_sequence.get_sizes().values.tolist() == [1, 3]


def test_top_k_fills_up_short_sequences(computing: str) -> None:
    b = rf.Dim(2, name="B")
    t = rf.Dim(None, name="T").fill(np.array([2, 1]), [b])
    x = tensor(np.array([[1, 2], [3, 9]], np.float32), b, t)
    values, indices, _ = rf.top_k(x, axis=t, k=4)
    assert values.numpy().tolist() == [[2, 1, -np.inf, -np.inf], [3, -np.inf, -np.inf, -np.inf]]
    assert indices.numpy()[0, :2].tolist() == [1, 0]


def test_top_p_mask(computing: str) -> None:
    v = rf.Dim(4, name="V")
    probs = tensor(np.array([0.1, 0.5, 0.1, 0.3], np.float32), v)

    def taken(p: float, **args: object) -> list[int]:
        return np.flatnonzero(rf.top_p_mask(probs, axis=v, p=p, **args).numpy()).tolist()  # type: ignore[arg-type]

    assert taken(0.4) == [1]
    assert taken(0.6) == [1, 3]
    assert taken(0.6, one_more=False) == [1]
    assert taken(0.3, one_more=False) == [1], "at least one is kept"
    assert taken(0.3, one_more=False, min_tokens_to_keep=3) == [0, 1, 3]
    assert taken(1.1) == [0, 1, 2, 3]


def test_scatter_modes(computing: str) -> None:
    n, v = rf.Dim(4, name="n"), rf.Dim(3, name="V")
    x = tensor(np.array([1, 2, 4, 3], np.float32), n)
    i = tensor(np.array([0, 2, 2, 0], np.int32), n, sparse_dim=v)

    def scattered(mode: str, **args: object) -> list[float]:
        return rf.scatter(x, indices=i, indices_dim=n, mode=mode, **args).numpy().tolist()  # type: ignore[arg-type]

    assert scattered("sum") == [4, 0, 6]
    assert scattered("mean") == [2, 0, 3]
    assert scattered("max") == [3, -np.inf, 4]
    assert scattered("min") == [1, np.inf, 2]
    assert scattered("argmax") == [3, -1, 2]
    assert scattered("max", fill_value=-9) == [3, -9, 4]
    assert scattered("logsumexp") == pytest.approx([np.logaddexp(1, 3), -np.inf, np.logaddexp(2, 4)])
    assert scattered("logmeanexp") == pytest.approx(
        [np.logaddexp(1, 3) - np.log(2), -np.inf, np.logaddexp(2, 4) - np.log(2)]
    )
    assert rf.scatter_count(indices=i, indices_dim=n).numpy().tolist() == [2, 0, 2]


def test_scatter_errors(backend: str) -> None:
    n, v = rf.Dim(2, name="n"), rf.Dim(3, name="V")
    x = tensor(np.ones(2, np.float32), n)
    i = tensor(np.array([0, 2], np.int32), n)
    with pytest.raises(rf.DimError, match="give out_dim="):
        rf.scatter(x, indices=i, indices_dim=n)
    with pytest.raises(rf.RfError, match="unknown mode 'median'; choose one of sum"):
        rf.scatter(x, indices=i, indices_dim=n, out_dim=v, mode="median")
    with pytest.raises(rf.RfError, match="must be integers"):
        rf.scatter(x, indices=x, indices_dim=n, out_dim=v)
    with pytest.raises(rf.DimError, match="V=3 is a dim of neither operand"):
        rf.scatter(x, indices=i, indices_dim=v, out_dim=v)
    with pytest.raises(rf.DimError, match="one_hot|sparse_to_dense"):
        rf.one_hot(i)
    with pytest.raises(rf.DimError, match="twice"):
        rf.one_hot(rf.range_over_dim(v))


@pytest.mark.needs("torch")
def test_gradient_of_logsumexp_is_finite_where_all_entries_are_impossible() -> None:
    import torch

    with rf.use_backend("torch"):
        n, v = rf.Dim(3, name="n"), rf.Dim(3, name="V")
        raw = torch.tensor([-np.inf, -np.inf, 1.0], requires_grad=True)
        x = rf.Tensor("x", [n], "float32", raw_tensor=raw)
        i = tensor(np.array([0, 0, 1], np.int32), n, sparse_dim=v)
        out = rf.scatter_logsumexp(x, indices=i, indices_dim=n)
        assert out.numpy().tolist() == [-np.inf, 1, -np.inf]
        rf.reduce_sum(rf.exp(out), axis=v).raw_tensor.backward()
        assert raw.grad is not None and torch.isfinite(raw.grad).all()
