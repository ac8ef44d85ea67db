"""Losses against torch and against their definitions by brute force."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

import rf

COMPUTING = [pytest.param("numpy"), pytest.param("torch", marks=pytest.mark.needs("torch"))]


def random(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def log_softmax(x: np.ndarray) -> np.ndarray:
    x = x.astype(np.float64)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


# -- cross entropy


@pytest.mark.needs("torch")
def test_cross_entropy_is_that_of_torch() -> None:
    import torch
    import torch.nn.functional as F

    x, target = random(3, 4, 5), np.random.default_rng(1).integers(0, 5, (3, 4)).astype(np.int32)
    expected = F.cross_entropy(torch.tensor(x).permute(0, 2, 1), torch.tensor(target).long(), reduction="none")
    with rf.use_backend("torch"):
        b, t, v = rf.Dim(3, name="B"), rf.Dim(4, name="T"), rf.Dim(5, name="V")
        out = rf.cross_entropy(
            estimated=rf.convert_to_tensor(x.transpose(2, 1, 0), dims=[v, t, b]),
            target=rf.convert_to_tensor(target, dims=[b, t], sparse_dim=v),
            axis=v,
            estimated_type="logits",
        )
        np.testing.assert_allclose(out.copy_transpose([b, t]).numpy(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("backend", COMPUTING)
@pytest.mark.parametrize("kind", ["logits", "log-probs", "probs"])
def test_any_target_value_may_be_in_the_padding(kind: str, backend: str) -> None:
    with rf.use_backend(backend):
        b, v = rf.Dim(2, name="B"), rf.Dim(5, name="V")
        t = rf.Dim(None, name="T").fill([3, 1], [b])
        target = np.array([[0, 4, 2], [1, -100, 77]], dtype=np.int32)
        x = np.exp(random(2, 3, 5)) if kind == "probs" else random(2, 3, 5)
        loss = rf.cross_entropy(
            estimated=rf.convert_to_tensor(x, dims=[b, t, v]),
            target=rf.convert_to_tensor(target, dims=[b, t], sparse_dim=v),
            axis=v,
            estimated_type=kind,
        )
        total = rf.reduce_sum(loss, axis=loss.dims).item()
    log_probs = {"logits": log_softmax, "log-probs": lambda y: y, "probs": np.log}[kind](x)
    expected = -sum(log_probs[i, j, target[i, j]] for i, j in [(0, 0), (0, 1), (0, 2), (1, 0)])
    assert total == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("backend", COMPUTING)
def test_probability_zero_has_a_finite_loss(backend: str) -> None:
    with rf.use_backend(backend):
        v = rf.Dim(2, name="V")
        probs = rf.convert_to_tensor(np.array([0, 1], dtype=np.float32), dims=[v])
        for target in (
            rf.convert_to_tensor(0, sparse_dim=v),
            rf.convert_to_tensor(np.array([1, 0], dtype=np.float32), dims=[v]),
        ):
            loss = rf.cross_entropy(estimated=probs, target=target, axis=v, estimated_type="probs").item()
            assert 80 < loss < 100


def test_cross_entropy_errors() -> None:
    with rf.use_backend("numpy"):
        b, v, w = rf.Dim(2, name="B"), rf.Dim(5, name="V"), rf.Dim(5, name="W")
        x = rf.zeros([b, v])
        for target, axis, kind, text in [
            (rf.zeros([b], dtype="int32", sparse_dim=w), v, "logits", "W=5"),
            (rf.zeros([b], dtype="int32"), w, "logits", "W=5"),
            (rf.zeros([b]), v, "logits", "indices"),
            (rf.zeros([b], dtype="int32"), v, "scores", "'scores'"),
        ]:
            with pytest.raises(rf.RfError, match=text):
                rf.cross_entropy(estimated=x, target=target, axis=axis, estimated_type=kind)


# -- label smoothing


@pytest.mark.parametrize("backend", COMPUTING)
def test_label_smoothing(backend: str) -> None:
    with rf.use_backend(backend):
        b, v = rf.Dim(2, name="B"), rf.Dim(5, name="V")
        target = rf.convert_to_tensor(np.array([3, 0], dtype=np.int32), dims=[b], sparse_dim=v)
        expected = np.full((2, 5), 0.1 / 4)
        expected[0, 3] = expected[1, 0] = 0.9
        smooth = rf.label_smoothing(target, 0.1)
        assert smooth.dims == (b, v) and smooth.feature_dim == v
        np.testing.assert_allclose(smooth.numpy(), expected, rtol=1e-6)
        np.testing.assert_allclose(rf.label_smoothing(rf.one_hot(target), 0.1).numpy(), expected, rtol=1e-6)
        with pytest.raises(rf.DimError, match="static"):
            rf.smooth_one_hot(rf.zeros([b], dtype="int32", sparse_dim=rf.Dim(None, name="V").fill(3)), label_prob=0.9)
        with pytest.raises(rf.DimError, match="sparse dim"):
            rf.smooth_one_hot(rf.zeros([b], dtype="int32"), label_prob=0.9)


@pytest.mark.needs("torch")
@pytest.mark.parametrize("exclude", [None, [4], [0, 4]])
def test_gradient_of_log_probs_is_that_of_smoothed_targets(exclude: list[int] | None) -> None:
    import torch

    with rf.use_backend("torch"):
        b, v = rf.Dim(2, name="B"), rf.Dim(5, name="V")
        raw = torch.tensor(log_softmax(random(2, 5)), requires_grad=True)
        log_probs = rf.Tensor("x", [b, v], "float64", raw_tensor=raw, feature_dim=v)
        target = np.array([[0.0, 0.25, 0.5, 0, 0.25], [0, 0, 1, 0, 0]])
        smooth = rf.label_smoothed_log_prob_gradient(log_probs, 0.1, exclude_labels=exclude)
        np.testing.assert_array_equal(smooth.numpy(), log_probs.numpy())
        loss = -rf.matmul(smooth, rf.convert_to_tensor(target, dims=[b, v]), reduce=[b, v])
        (grad,) = torch.autograd.grad(loss.raw_tensor, raw)
    kept = [i for i in range(5) if i not in (exclude or ())]
    expected = target.copy()
    mass = target[:, kept].sum(1, keepdims=True)
    floor = 0.1 / (len(kept) - 1)
    expected[:, kept] = target[:, kept] * (1 - floor * len(kept)) + mass * floor
    np.testing.assert_allclose(-grad.numpy(), expected, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(expected.sum(1), target.sum(1))


# -- CTC


def spellings(num_frames: int, num_classes: int, blank: int, label_loop: bool) -> Iterator[tuple[tuple[int, ...], Any]]:
    """All paths, each with what it spells."""
    for path in itertools.product(range(num_classes), repeat=num_frames):
        spelled = [p for i, p in enumerate(path) if p != blank and (not label_loop or i == 0 or path[i - 1] != p)]
        yield path, tuple(spelled)


def ctc_by_enumeration(
    log_probs: np.ndarray, target: Sequence[int], blank: int, label_loop: bool, max_approx: bool
) -> float:
    scores = [
        sum(float(log_probs[t, p]) for t, p in enumerate(path))
        for path, spelled in spellings(len(log_probs), log_probs.shape[1], blank, label_loop)
        if spelled == tuple(target)
    ]
    if not scores:
        return math.inf
    return -max(scores) if max_approx else -float(np.logaddexp.reduce(scores))


class Ctc:
    """A batch with sequences of all kinds: usual, repetition, empty target, too long target, no frames, and both
    empty."""

    frames = (4, 4, 3, 2, 0, 0, 3)
    targets = ((0, 1), (1, 1), (), (0, 1, 0), (1,), (), (1, 1))

    def __init__(self, blank: int):
        names = {2: (0, 1), 0: (1, 2), 1: (0, 2)}[blank]
        self.symbols = [tuple(names[s] for s in target) for target in self.targets]
        self.b, self.v = rf.Dim(len(self.frames), name="B"), rf.Dim(3, name="V")
        self.t = rf.Dim(None, name="T").fill(np.array(self.frames), [self.b])
        self.s = rf.Dim(None, name="S").fill(np.array([len(t) for t in self.targets]), [self.b])
        self.logits = random(len(self.frames), 4, 3)
        self.labels = np.full((len(self.frames), 3), 99, dtype=np.int32)
        for i, (n, symbols) in enumerate(zip(self.frames, self.symbols)):
            self.logits[i, n:] = np.nan
            self.labels[i, : len(symbols)] = symbols

    def options(self, blank: int) -> dict[str, Any]:
        return {
            "targets": rf.convert_to_tensor(self.labels, dims=[self.b, self.s]),
            "input_spatial_dim": self.t,
            "targets_spatial_dim": self.s,
            "blank_index": blank,
        }


@pytest.mark.parametrize("backend", COMPUTING)
@pytest.mark.parametrize("blank", [0, 1, 2])
@pytest.mark.parametrize("normalized", [False, True])
@pytest.mark.parametrize(("label_loop", "max_approx"), list(itertools.product([True, False], [False, True])))
def test_ctc_is_the_sum_over_all_paths(
    label_loop: bool, max_approx: bool, normalized: bool, blank: int, backend: str
) -> None:
    with rf.use_backend(backend):
        case = Ctc(blank)
        logits = rf.convert_to_tensor(case.logits, dims=[case.b, case.t, case.v], feature_dim=case.v)
        out = rf.ctc_loss(
            logits=logits,
            logits_normalized=normalized,
            max_approx=max_approx,
            label_loop=label_loop,
            **case.options(blank),
        )
        assert out.dims == (case.b,)
        values = out.numpy()
    for i, (n, symbols) in enumerate(zip(case.frames, case.symbols)):
        x = case.logits[i, :n].astype(np.float64)
        expected = ctc_by_enumeration(x if normalized else log_softmax(x), symbols, blank, label_loop, max_approx)
        assert values[i] == pytest.approx(expected, rel=1e-5), f"sequence {i}"


@pytest.mark.needs("torch")
@pytest.mark.parametrize("normalized", [False, True])
@pytest.mark.parametrize(("label_loop", "max_approx"), list(itertools.product([True, False], [False, True])))
def test_ctc_gradient(label_loop: bool, max_approx: bool, normalized: bool) -> None:
    """0 in the padding and where there is no alignment; else that of finite differences on NumPy."""
    import torch

    case = Ctc(2)
    options: dict[str, Any] = {"logits_normalized": normalized, "max_approx": max_approx, "label_loop": label_loop}

    def loss(array: Any) -> rf.Tensor:
        logits = rf.convert_to_tensor(array, dims=[case.b, case.t, case.v], feature_dim=case.v)
        return rf.ctc_loss(logits=logits, **options, **case.options(2))

    with rf.use_backend("torch"):
        raw = torch.tensor(case.logits, dtype=torch.float64, requires_grad=True)
        out = loss(raw)
        (grad,) = torch.autograd.grad(out.raw_tensor.sum(), raw)
        finite = np.isfinite(out.numpy())
    assert torch.isfinite(grad).all()
    with rf.use_backend("numpy"):
        x = case.logits.astype(np.float64)
        for i, t, v in np.ndindex(x.shape):
            ends = []
            for sign in (1, -1):
                moved = x.copy()
                moved[i, t, v] += sign * 1e-5
                ends.append(loss(moved).numpy()[i])
            if not finite[i] or t >= case.frames[i]:
                assert grad[i, t, v] == 0
            else:
                assert float(grad[i, t, v]) == pytest.approx((ends[0] - ends[1]) / 2e-5, rel=1e-5, abs=1e-7)


@pytest.mark.needs("torch")
def test_ctc_is_that_of_torch() -> None:
    import torch
    import torch.nn.functional as F

    x = random(3, 10, 6)
    labels = np.random.default_rng(1).integers(1, 6, (3, 4)).astype(np.int32)
    frames, sizes = [10, 8, 9], [4, 2, 3]
    log_probs = torch.log_softmax(torch.tensor(x), -1).transpose(0, 1)
    expected = F.ctc_loss(log_probs, torch.tensor(labels), frames, sizes, reduction="none")
    with rf.use_backend("torch"):
        b, v = rf.Dim(3, name="B"), rf.Dim(6, name="V")
        t, s = rf.Dim(None, name="T").fill(frames, [b]), rf.Dim(None, name="S").fill(sizes, [b])
        out = rf.ctc_loss(
            logits=rf.convert_to_tensor(x, dims=[b, t, v], feature_dim=v),
            targets=rf.convert_to_tensor(labels, dims=[b, s]),
            input_spatial_dim=t,
            targets_spatial_dim=s,
            blank_index=0,
        )
        torch.testing.assert_close(out.raw_tensor, expected)


@pytest.mark.parametrize("backend", COMPUTING)
@pytest.mark.parametrize("label_loop", [True, False])
def test_best_path(label_loop: bool, backend: str) -> None:
    with rf.use_backend(backend):
        case = Ctc(2)
        logits = rf.convert_to_tensor(case.logits, dims=[case.b, case.t, case.v], feature_dim=case.v)
        path = rf.ctc_best_path(logits=logits, label_loop=label_loop, **case.options(2))
        assert path.sparse_dim == case.v and path.dims == (case.b, case.t)
        values = path.numpy()
    for i, (n, symbols) in enumerate(zip(case.frames, case.symbols)):
        log_probs = log_softmax(case.logits[i, :n])
        candidates = {
            p: sum(float(log_probs[t, c]) for t, c in enumerate(p))
            for p, spelled in spellings(n, 3, 2, label_loop)
            if spelled == symbols
        }
        best = max(candidates, key=lambda p: candidates[p]) if candidates else (2,) * n
        assert tuple(values[i, :n]) == best
        assert (values[i, n:] == 2).all()


@pytest.mark.parametrize("backend", COMPUTING)
def test_durations_of_a_path(backend: str) -> None:
    with rf.use_backend(backend):
        b = rf.Dim(3, name="B")
        t = rf.Dim(None, name="T").fill([6, 4, 0], [b])
        rows = np.array([[0, 1, 1, 0, 1, 2], [3, 3, 0, 0, 9, 9], [5, 5, 5, 5, 5, 5]], dtype=np.int32)
        path = rf.convert_to_tensor(rows, dims=[b, t])
        out, dim = rf.ctc_durations_from_path(path=path, path_spatial_dim=t, blank_index=0)
        assert dim.get_sizes().values.tolist() == [7, 3, 1]
        assert out.numpy().tolist() == [[1, 2, 1, 1, 0, 1, 0], [0, 2, 2, 0, 0, 0, 0], [0] * 7]
        out, dim = rf.ctc_no_label_loop_blank_durations_from_path(path=path, path_spatial_dim=t, blank_index=0)
        assert dim.get_sizes().values.tolist() == [5, 3, 1]
        assert out.numpy().tolist() == [[1, 0, 1, 0, 0], [0, 0, 2, 0, 0], [0] * 5]
        s = rf.Dim(None, name="S").fill([3, 1, 0], [b])
        options: dict[str, Any] = {"path": path, "path_spatial_dim": t, "blank_index": 0, "targets_spatial_dim": s}
        _, dim = rf.ctc_durations_from_path(**options)
        assert dim == 2 * s + 1
        s.fill([2, 1, 0])
        with pytest.raises(rf.DimError, match="segments"):
            rf.ctc_durations_from_path(**options)
        with pytest.warns(RuntimeWarning, match="segments"):
            rf.ctc_durations_from_path(stop_on_failed_check=False, **options)


@pytest.mark.parametrize("backend", COMPUTING)
def test_greedy_decoding(backend: str) -> None:
    with rf.use_backend(backend):
        b, v, labels = rf.Dim(3, name="B"), rf.Dim(4, name="V+1"), rf.Dim(3, name="V")
        t = rf.Dim(None, name="T").fill([6, 3, 0], [b])
        best = np.array([[1, 1, 3, 1, 0, 0], [3, 3, 2, 2, 1, 0], [2, 2, 2, 2, 2, 2]])
        logits = np.where(np.arange(4) == best[..., None], 1, 0).astype(np.float32)
        x = rf.convert_to_tensor(logits, dims=[b, t, v], feature_dim=v)
        out, s = rf.ctc_greedy_decode(x, in_spatial_dim=t, blank_index=3, target_dim=labels)
        assert s.get_sizes().values.tolist() == [3, 1, 0] and out.sparse_dim == labels
        assert out.numpy().tolist() == [[1, 1, 0], [2, 0, 0], [0, 0, 0]]
        own = rf.Dim(None, name="S")
        out, s = rf.ctc_greedy_decode(x, in_spatial_dim=t, blank_index=-1, out_spatial_dim=own, wb_target_dim=v)
        assert s is own and out.sparse_dim == v and own.get_sizes().values.tolist() == [3, 1, 0]
        with pytest.raises(rf.DimError, match="blank"):
            rf.ctc_greedy_decode(x, in_spatial_dim=t, blank_index=0, target_dim=labels)


def test_ctc_errors() -> None:
    with rf.use_backend("numpy"):
        case = Ctc(2)
        dims = [case.b, case.t, case.v]
        logits = rf.convert_to_tensor(case.logits, dims=dims, feature_dim=case.v)
        options = case.options(2)
        with pytest.raises(rf.RfError, match="feature dim"):
            rf.ctc_loss(logits=rf.convert_to_tensor(case.logits, dims=dims), **options)
        with pytest.raises(rf.RfError, match="blank_index 3"):
            rf.ctc_loss(logits=logits, **(options | {"blank_index": 3}))
        with pytest.raises(rf.DimError, match="is not a dim of the logits"):
            rf.ctc_loss(logits=logits, **(options | {"input_spatial_dim": case.s}))
        with pytest.raises(rf.DimError, match="is not a dim of the targets"):
            rf.ctc_loss(logits=logits, **(options | {"targets_spatial_dim": case.t}))


# -- edit distance


def levenshtein(a: Sequence[int], b: Sequence[int]) -> int:
    """By the recursion, without any cleverness."""
    if not a or not b:
        return len(a) + len(b)
    return min(levenshtein(a[1:], b) + 1, levenshtein(a, b[1:]) + 1, levenshtein(a[1:], b[1:]) + (a[0] != b[0]))


@pytest.mark.parametrize("backend", COMPUTING)
def test_edit_distance(backend: str) -> None:
    rng = np.random.default_rng(3)
    a, b = rng.integers(0, 3, (20, 6)).astype(np.int32), rng.integers(0, 3, (20, 5)).astype(np.int32)
    sizes = rng.integers(0, 7, 20), rng.integers(0, 6, 20)
    sizes[0][0] = 6
    sizes[1][0] = 5
    with rf.use_backend(backend):
        n = rf.Dim(20, name="B")
        t, u = (rf.Dim(None, name=name).fill(s, [n]) for name, s in zip("TU", sizes))
        x, y = rf.convert_to_tensor(a, dims=[n, t]), rf.convert_to_tensor(b.T, dims=[u, n])
        out = rf.edit_distance(x, t, y, u)
        assert out.dims == (n,) and out.dtype == "int32" and out.backend is rf.get_backend(backend)
        values = out.numpy()
    expected = [levenshtein(p[:m].tolist(), q[:k].tolist()) for p, m, q, k in zip(a, sizes[0], b, sizes[1])]
    assert values.tolist() == expected
