"""The model: equal on all backends, alone and in a batch, whatever the padding holds; decoding; learning."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from nn_helpers import gradients, set_parameters, tensor

import rf
from rf import models
from rf.models.beam_search import beam_search

pytestmark = pytest.mark.needs("torch")

NAME = "conformer-ctc-aed"
FEATURES = SimpleNamespace(sampling_rate=None)
AUDIO = SimpleNamespace(sampling_rate=8000)

# Short ones too: 1 to 4 frames give one encoder frame, fewer than two labels need.
INPUT_LENGTHS = (40, 21, 3, 1, 0, 9)
TARGET_LENGTHS = (5, 3, 0, 1, 0, 2)


@pytest.fixture(autouse=True)
def _reset():
    rf.reset_run_ctx()
    yield
    rf.reset_run_ctx()


class Batch:
    """Some of the sequences above, as Tensors on the selected backend."""

    def __init__(self, model: models.Model, which: Sequence[int], padding: float, audio: bool = False) -> None:
        factor = 50 if audio else 1
        lengths = [INPUT_LENGTHS[i] * factor for i in which]
        target_lengths = [TARGET_LENGTHS[i] for i in which]
        rest = () if model.feature_dim is None else (model.feature_dim.get_dim_value(),)
        inputs = np.full((len(which), max(lengths), *rest), padding, dtype=np.float32)
        targets = np.full((len(which), max(target_lengths)), -1 if np.isnan(padding) else 0, dtype=np.int32)
        for row, i in enumerate(which):
            rng = np.random.RandomState(i)
            inputs[row, : lengths[row]] = rng.randn(lengths[row], *rest)
            targets[row, : target_lengths[row]] = rng.randint(0, 5, target_lengths[row])
        self.batch = rf.Dim(len(which), name="B")
        self.in_dim = rf.Dim(None, name="T").fill(np.array(lengths, dtype=np.int32), dims=[self.batch])
        self.target_dim = rf.Dim(None, name="S").fill(np.array(target_lengths, dtype=np.int32), dims=[self.batch])
        dims = [self.batch, self.in_dim] + ([] if model.feature_dim is None else [model.feature_dim])
        self.inputs = tensor(inputs, dims)
        self.targets = tensor(targets, [self.batch, self.target_dim], sparse_dim=model.label_dim)

    def losses(self, model: models.Model, *, train: bool = False) -> dict[str, Any]:
        rf.init_train_step_run_ctx(train_flag=train)
        model.train_step(self.inputs, self.in_dim, self.targets, self.target_dim)
        return rf.get_run_ctx().losses

    def values(self, model: models.Model) -> dict[str, np.ndarray]:
        """Encoder frames and the losses, one row for each sequence, 0 in the padding."""
        out = {}
        for name, loss in self.losses(model).items():
            rest = [d for d in loss.loss.dims if d is not self.batch]
            out[name] = loss.loss.copy_masked(0.0).copy_transpose([self.batch, *rest]).numpy()
        encoded, time = model.encode(self.inputs, self.in_dim)  # type: ignore[attr-defined]
        out["encoder"] = (
            encoded.copy_masked(0.0)
            .copy_transpose([self.batch, time, *encoded.remaining_dims([self.batch, time])])
            .numpy()
        )
        return out


def make_model(data: Any = FEATURES, **changes: Any) -> models.Model:
    config = dataclasses.replace(models.make_config(NAME, "tiny", data), **changes)
    feature_dim = rf.Dim(16, name="feature") if data is FEATURES else None
    model = models.create(NAME, config, feature_dim, rf.Dim(5, name="label"))
    set_parameters(model, scale=0.2)
    return model


ALL = list(range(len(INPUT_LENGTHS)))


def check_equal(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> None:
    assert a.keys() == b.keys() >= {"ctc", "ce", "label_error", "encoder"}
    for name in a:
        assert np.isfinite(a[name]).all(), name
        np.testing.assert_allclose(a[name], b[name], rtol=1e-5, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("data", [FEATURES, AUDIO], ids=["features", "audio"])
def test_equal_on_numpy_and_torch_whatever_the_padding_holds(data: Any) -> None:
    results = {}
    for backend in ("numpy", "torch"):
        with rf.use_backend(backend):
            model = make_model(data)
            for padding in (0.0, np.nan):
                results[backend, padding] = Batch(model, ALL, padding, data is AUDIO).values(model)
    for key in results:
        check_equal(results[key], results["torch", 0.0])


@pytest.mark.parametrize("data", [FEATURES, AUDIO], ids=["features", "audio"])
def test_alone_equals_batched(data: Any) -> None:
    with rf.use_backend("torch"):
        model = make_model(data)
        together = Batch(model, ALL, np.nan, data is AUDIO).values(model)
        for i in ALL:
            alone = Batch(model, [i], 0.0, data is AUDIO).values(model)
            for name, value in alone.items():
                want = together[name][i]
                want = want[: value.shape[1]] if value.ndim > 1 else want
                np.testing.assert_allclose(value[0], want, rtol=1e-5, atol=1e-5, err_msg=f"{name} of {i}")


@pytest.mark.parametrize("train", [False, True])
def test_gradients_do_not_see_padding(train: bool) -> None:
    with rf.use_backend("torch"):
        model = make_model(augment=False)
        grads = []
        for padding in (0.0, np.nan):
            rf.set_random_seed(4)
            batch = Batch(model, ALL, padding)
            batch.losses(model, train=train)
            grads.append(gradients(model, rf.get_run_ctx().total_loss()))
        assert sum(np.abs(g).max() > 0 for g in grads[0].values()) > 0.9 * len(grads[0])
        for name, value in grads[0].items():
            np.testing.assert_allclose(grads[1][name], value, rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("data", [FEATURES, AUDIO], ids=["features", "audio"])
def test_meta_gives_the_dims(data: Any) -> None:
    described = []
    for backend in ("torch", "meta"):
        with rf.use_backend(backend):
            rf.set_random_seed(1)
            model = make_model(data)
            losses = Batch(model, ALL, 0.0, data is AUDIO).losses(model, train=True)
            total = rf.get_run_ctx().total_loss()
            described.append(
                [(name, [repr(d) for d in loss.loss.dims], loss.loss.dtype) for name, loss in losses.items()]
                + [total.dims]
            )
    assert described[0] == described[1]


def test_losses_against_torch() -> None:
    with rf.use_backend("torch"):
        model = make_model()
        batch = Batch(model, ALL, np.nan)
        losses = batch.losses(model)
        encoded, time = model.encode(batch.inputs, batch.in_dim)
        logits = model.ctc_logits(encoded).copy_transpose([time, batch.batch, model.label_and_blank_dim]).raw_tensor
        want = torch.nn.functional.ctc_loss(
            logits.detach().log_softmax(-1),
            batch.targets.raw_tensor.clamp(min=0).long(),
            torch.tensor(time.get_sizes().values).long(),
            torch.tensor(TARGET_LENGTHS),
            blank=5,
            reduction="none",
            zero_infinity=True,
        )
        np.testing.assert_allclose(losses["ctc"].loss.numpy(), want.numpy(), rtol=1e-4, atol=1e-4)
        per_label = float(losses["ctc"].get_mean_loss())
        assert per_label == pytest.approx(float(want.sum() / sum(max(n, 1) for n in TARGET_LENGTHS)), rel=1e-4)
        logits, wanted, dim = model.decoder_logits(encoded, time, batch.targets, batch.target_dim)
        raw = logits.copy_transpose([batch.batch, dim, model.label_and_eos_dim]).raw_tensor.detach()
        mean = 0.0
        for i, n in enumerate(TARGET_LENGTHS):
            labels = torch.tensor([*batch.targets.numpy()[i, :n], 5]).long()
            np.testing.assert_array_equal(wanted.copy_transpose([batch.batch, dim]).numpy()[i, : n + 1], labels.numpy())
            mean += float(torch.nn.functional.cross_entropy(raw[i, : n + 1], labels, reduction="sum"))
        mean /= sum(n + 1 for n in TARGET_LENGTHS)
        assert float(losses["ce"].get_mean_loss()) == pytest.approx(mean, rel=1e-4)
        total = float(rf.get_run_ctx().total_loss())
        assert total == pytest.approx(per_label + mean, rel=1e-4)
        assert 0 <= float(losses["label_error"].get_mean_loss()) <= 1


def test_decoding_does_not_depend_on_the_batch() -> None:
    results = []
    for backend in ("torch", "numpy"):
        with rf.use_backend(backend):
            model = make_model()
            batch = Batch(model, ALL, np.nan)
            found = (
                model.greedy_ctc(batch.inputs, batch.in_dim),
                model.beam_search(batch.inputs, batch.in_dim, beam_size=3),
            )
            results.append(found)
            for i in ALL if backend == "torch" else ():
                alone = Batch(model, [i], 0.0)
                assert model.greedy_ctc(alone.inputs, alone.in_dim) == [found[0][i]]
                assert model.beam_search(alone.inputs, alone.in_dim, beam_size=3) == [found[1][i]]
    assert results[0] == results[1]
    for labels, n in zip(results[0][1], INPUT_LENGTHS):
        assert len(labels) <= -(-n // 4) and all(type(c) is int and 0 <= c < 5 for c in labels)
    assert len({len(labels) for labels in results[0][1]}) > 2


def test_greedy_ctc_collapses() -> None:
    with rf.use_backend("numpy"):
        model = make_model()
        batch, time = rf.Dim(2, name="B"), rf.Dim(None, name="T")
        time.fill([7, 3], dims=[batch])
        frames = np.array([[1, 1, 5, 1, 2, 5, 5], [5, 4, 4, 3, 3, 3, 3]])
        model.encode = lambda x, d: (x, d)  # type: ignore[method-assign]
        model.ctc_logits = lambda x: x  # type: ignore[method-assign]
        scores = tensor(np.eye(6, dtype="float32")[frames], [batch, time, model.label_and_blank_dim])
        assert model.greedy_ctc(scores, time) == [[1, 1, 2], [4]]
        with pytest.raises(rf.DimError, match="exactly one batch dim"):
            model.greedy_ctc(rf.gather(scores, indices=0, axis=batch), time)


# -- beam search on its own


def search_with_table(table: np.ndarray, max_lengths: list[int], beam_size: int, backend: str) -> list[list[int]]:
    """Beam search with log probabilities (entry, previous label, label); label 0 begins and ends a sequence."""
    with rf.use_backend(backend):
        batch, label, previous = (
            rf.Dim(len(table), name="B"),
            rf.Dim(table.shape[-1], name="label"),
            rf.Dim(table.shape[1]),
        )
        log_probs = tensor(table, [batch, previous, label])

        def step(labels: rf.Tensor, state: rf.State) -> tuple[rf.Tensor, rf.State]:
            assert state.seen.dims_set == labels.dims_set
            return rf.gather(log_probs, indices=labels, axis=previous), rf.State(seen=state.seen + 1, nothing=None)

        return beam_search(
            step,
            lambda dims: rf.State(seen=rf.zeros(dims), nothing=None),
            batch_dim=batch,
            label_dim=label,
            bos_index=0,
            eos_index=0,
            max_lengths=max_lengths,
            beam_size=beam_size,
        )


def best_of_all(table: np.ndarray, max_length: int) -> list[int]:
    """The label sequence of greatest log probability per label, end included, among all of them."""
    best: tuple[float, list[int]] = (-np.inf, [])
    for n in range(max_length + 1):
        for labels in itertools.product(range(1, table.shape[-1]), repeat=n):
            path = [0, *labels, 0]
            score = sum(table[a, b] for a, b in zip(path, path[1:])) / (n + 1)
            best = max(best, (float(score), list(labels)))
    return best[1]


@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_wide_beam_search_finds_the_best_of_all(backend: str) -> None:
    rng = np.random.RandomState(1)
    table = rng.randn(6, 4, 4).astype("float32") * 2
    table -= np.log(np.exp(table).sum(-1, keepdims=True))
    max_lengths = [3, 0, 1, 2, 3, 3]
    found = search_with_table(table, max_lengths, 100, backend)
    assert found == [best_of_all(t, n) for t, n in zip(table, max_lengths)]
    assert len(set(map(len, found))) > 1
    narrow = search_with_table(table, max_lengths, 2, backend)
    assert [search_with_table(table[i : i + 1], max_lengths[i : i + 1], 2, backend)[0] for i in range(6)] == narrow
    greedy = search_with_table(table, max_lengths, 1, backend)
    for t, labels, n in zip(table, greedy, max_lengths):
        label = 0
        for i in range(n):
            label = int(t[label].argmax())
            assert label == (labels[i] if i < len(labels) else 0)
            if label == 0:
                break


def test_beam_search_of_no_sequences_and_bad_size() -> None:
    assert search_with_table(np.zeros((0, 3, 3), dtype="float32"), [], 2, "torch") == []
    with pytest.raises(rf.RfError, match="at least 1"):
        search_with_table(np.zeros((1, 3, 3), dtype="float32"), [1], 0, "torch")


# -- registry


def test_registry() -> None:
    assert models.preset_names(NAME)[:2] == ("tiny", "small")
    options = SimpleNamespace(dropout=0.3, augment=None, seed=3)
    config = models.make_config(NAME, "small", AUDIO, options)
    assert config.dropout == 0.3 and config.augment and config.sampling_rate == 8000
    assert models.make_config(NAME, "tiny", FEATURES, {"augment": False}).augment is False
    with rf.use_backend("numpy"):
        model = make_model()
        again = models.create(NAME, models.config_to_json(model), model.feature_dim, model.label_dim)
        assert again.config == model.config
        shapes = [(n, p.dims[0].dimension) for n, p in model.named_parameters()]
        assert shapes == [(n, p.dims[0].dimension) for n, p in again.named_parameters()]
        with pytest.raises(rf.RfError, match="give one of them"):
            models.create(NAME, model.config, None, model.label_dim)
        with pytest.raises(rf.RfError, match="power of two"):
            make_model(subsampling=3)
    with pytest.raises(rf.UserError, match="unknown model 'x'; choose one of: conformer-ctc-aed"):
        models.create("x", {}, None, rf.Dim(3))
    with pytest.raises(rf.UserError, match="unknown preset 'x'"):
        models.make_config(NAME, "x", FEATURES)
    with pytest.raises(rf.UserError, match="not one of this model"):
        models.create(NAME, {"something": 1}, None, rf.Dim(3))


@pytest.mark.parametrize("subsampling", [1, 2, 8])
def test_other_subsampling(subsampling: int) -> None:
    with rf.use_backend("numpy"):
        model = make_model(subsampling=subsampling)
        batch = Batch(model, ALL, np.nan)
        encoded, time = model.encode(batch.inputs, batch.in_dim)
        assert time.get_sizes().values.tolist() == [-(-n // subsampling) for n in INPUT_LENGTHS]
        assert np.isfinite(encoded.copy_masked(0.0).numpy()).all()


def test_it_learns() -> None:
    """Three sequences by heart, in seconds."""
    with rf.use_backend("torch"):
        rf.set_random_seed(1)
        config = dataclasses.replace(models.make_config(NAME, "tiny", FEATURES), dropout=0.0, augment=False)
        model = models.create(NAME, config, rf.Dim(16, name="feature"), rf.Dim(5, name="label"))
        batch = Batch(model, [0, 1, 5], np.nan)
        optimizer = torch.optim.Adam([p.raw_tensor for p in model.parameters() if p.trainable], lr=5e-3)
        for _ in range(60):
            batch.losses(model, train=True)
            optimizer.zero_grad()
            rf.get_run_ctx().total_loss().raw_tensor.backward()
            torch.nn.utils.clip_grad_norm_([p.raw_tensor for p in model.parameters()], 5.0)
            optimizer.step()
        losses = batch.losses(model)
        rf.reset_run_ctx()
        assert float(losses["label_error"].get_mean_loss()) == 0
        want = [batch.targets.numpy()[i, :n].tolist() for i, n in enumerate((5, 3, 2))]
        assert model.beam_search(batch.inputs, batch.in_dim, beam_size=4) == want
        assert model.greedy_ctc(batch.inputs, batch.in_dim) == want


def test_a_training_step_never_asks_the_device_for_a_value() -> None:
    """On a GPU, each of these ops would wait until all work before it is done, if its operand lies there."""
    from torch.utils._python_dispatch import TorchDispatchMode

    waits = ("_local_scalar_dense", "nonzero", "masked_select", "unique", "equal.default", "repeat_interleave.Tensor")

    class Waits(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()
            self.found: list[str] = []
            self.total = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.total += 1
            if any(name in str(func) for name in waits):
                self.found.append(str(func))
            return func(*args, **(kwargs or {}))

    with rf.use_backend("torch"):
        model = make_model(augment=False)  # whose top_k looks at values where that is cheap, on the host only
        batch = Batch(model, ALL, 0.0)
        for recorded in (False, True):  # the first step makes what later ones keep
            with Waits() as waited:
                batch.losses(model, train=True)
                total = rf.get_run_ctx().total_loss()
                assert isinstance(total, rf.Tensor)
                total.raw_tensor.backward()
            assert waited.total > 500
            if recorded:
                # The one value is the position where the decoder begins, which lies on the host always.
                assert waited.found == ["aten._local_scalar_dense.default"]
    assert rf.nn.pos_enc.initial_position().device == "cpu"
    with Waits() as waited:
        torch.ones(2).sum().item()
    assert waited.found == ["aten._local_scalar_dense.default"]
