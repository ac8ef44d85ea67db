"""What users of comparable systems reported as bugs, as tests: it must not happen here.

The numbers in the names are those of this list of threads:

1 pytorch 41383; 3 pytorch 16045; 4 haliax 13; 5 pytorch 70529; 6 audio 4205; 7 pytorch 103749; 8 returnn 576;
9 NeMo 5401; 10 espnet 6600; 11 audio 2242; 12 pytorch 1811; 13 espnet 2684; 14 pytorch 18215; 15 pytorch 73205;
16 keras 20350; 17 keras-core 774; 18 OpenNMT-py 994.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rf
from rf import Dim, Tensor

WITH_GRADIENTS = [
    pytest.param("torch", marks=pytest.mark.needs("torch")),
    pytest.param("tensorflow", marks=pytest.mark.needs("tensorflow")),
]
COMPUTING = ["numpy", *WITH_GRADIENTS]


@pytest.fixture(params=COMPUTING)
def backend(request: pytest.FixtureRequest) -> Any:
    with rf.use_backend(request.param) as backend, backend.recording():
        yield request.param


@pytest.fixture(params=WITH_GRADIENTS)
def backend_with_gradients(request: pytest.FixtureRequest) -> Any:
    with rf.use_backend(request.param) as backend, backend.recording():
        yield request.param


def batch(*lengths: int) -> tuple[Dim, Dim]:
    b = Dim(None, name="B").fill(len(lengths))
    return b, Dim(None, name="T").fill(lengths, [b])


def tensor(array: Any, *dims: Dim, **kwargs: Any) -> Tensor:
    array = np.asarray(array)
    return rf.convert_to_tensor(array.astype("float32") if array.dtype.kind == "f" else array, dims=dims, **kwargs)


def frames(lengths: Sequence[int], *rest: int, padding: float = 0.0, seed: int = 0) -> np.ndarray:
    """Random frames, the same for each sequence in any batch."""
    out = np.full((len(lengths), max(lengths), *rest), padding)
    for i, n in enumerate(lengths):
        out[i, :n] = np.random.RandomState(seed + 100 * n).randn(n, *rest)
    return out


def with_random_parameters(module: Any) -> Any:
    for i, (name, p) in enumerate(module.named_parameters()):
        values = np.random.RandomState(i).uniform(-0.5, 0.5, [d.get_dim_value() for d in p.dims]).astype("float32")
        p.assign(tensor(np.abs(values) + 0.5 if "variance" in name else values, *p.dims))
    return module


def close(actual: Any, expected: Any) -> None:
    actual = actual.numpy() if isinstance(actual, Tensor) else actual
    np.testing.assert_allclose(actual, expected, rtol=2e-5, atol=2e-5)


# -- 1: numbers as operands


@pytest.mark.needs("torch")
def test_01_a_number_makes_no_tensor_per_call() -> None:
    with rf.use_backend("torch"):
        implementation = rf.get_backend("torch")
        x = tensor([1.0, 2.0], Dim(2, name="F"))
        x * 2
        made = len(implementation.scalars)
        for _ in range(3):
            close(2 * x, [2.0, 4.0])
            close(x * 2, [2.0, 4.0])
        assert len(implementation.scalars) == made


# -- 3, 4: matching of dims


def test_03_a_loss_does_not_make_an_outer_product(backend: str) -> None:
    b, one = Dim(3, name="B"), Dim(1, name="F")
    prediction, target = tensor([[1.0], [2.0], [3.0]], b, one), tensor([1.0, 2.0, 5.0], b)
    loss = rf.squared_difference(prediction, target)
    assert loss.dims_set == {b, one}
    close(loss.copy_transpose([b, one]), [[0.0], [0.0], [4.0]])
    with pytest.raises(rf.DimError, match="no operand has all dims"):
        rf.squared_difference(prediction, tensor([1.0, 2.0, 5.0], Dim(3, name="other")))


def test_04_self_attention_needs_no_renaming(backend: str) -> None:
    b, t = batch(3, 2)
    h = Dim(4, name="h")
    x = tensor(frames([3, 2], 4), b, t, h)
    y = rf.dot_attention(x, x, x, key_dim=h, axis=t)
    assert y.dims_set == {b, t, h}
    v = Dim(5, name="V")
    log_prob = rf.log_softmax(tensor(frames([3, 2], 5), b, t, v), axis=v)
    labels = tensor(np.array([[1, 2, 3], [4, 0, 0]], dtype="int32"), b, t, sparse_dim=v)
    picked = rf.gather(log_prob, indices=labels, axis=v)
    assert picked.dims_set == {b, t}
    close(picked.copy_transpose([b, t]).numpy()[1, 0], log_prob.copy_transpose([b, t, v]).numpy()[1, 0, 4])


# -- 5, 6, 9, 10, 11: padding in statistics and convolutions


def test_05_batch_norm_ignores_padding(backend: str) -> None:
    f = Dim(3, name="F")
    lengths = (5, 2)
    b, t = batch(*lengths)
    array = frames(lengths, 3, padding=1000.0)
    valid = np.concatenate([array[i, :n] for i, n in enumerate(lengths)])
    norm = rf.BatchNorm(f, momentum=0.5)
    rf.init_train_step_run_ctx(train_flag=True)
    try:
        y = norm(tensor(array, b, t, f)).copy_transpose([b, t, f]).numpy()
    finally:
        rf.init_forward_step_run_ctx()
    expected = (valid - valid.mean(0)) / np.sqrt(valid.var(0) + norm.eps)
    close(np.concatenate([y[i, :n] for i, n in enumerate(lengths)]), expected)
    close(norm.running_mean, 0.5 * valid.mean(0))
    assert norm.running_variance.numpy() == pytest.approx(0.5 + 0.5 * valid.var(0), rel=0.2)


@pytest.mark.parametrize("norm", ["BatchNorm", "LayerNorm", "GroupNorm"])
def test_06_conformer_block_does_not_depend_on_neighbors_in_the_batch(backend: str, norm: str) -> None:
    from rf.encoder.conformer import ConformerConvBlock

    f = Dim(4, name="F")
    make = {"BatchNorm": rf.BatchNorm, "LayerNorm": rf.LayerNorm, "GroupNorm": lambda d: rf.GroupNorm(d, num_groups=2)}
    rf.init_forward_step_run_ctx()
    block = with_random_parameters(ConformerConvBlock(f, kernel_size=31, norm=make[norm](f)))

    def encode(*lengths: int, padding: float = 0.0) -> np.ndarray:
        b, t = batch(*lengths)
        return (
            block(tensor(frames(lengths, 4, padding=padding), b, t, f), spatial_dim=t).copy_transpose([b, t, f]).numpy()
        )

    together = encode(20, 7, padding=50.0)
    close(encode(7)[0], together[1, :7])
    close(encode(20)[0], together[0])


def test_09_pooling_over_time_ignores_padding(backend: str) -> None:
    lengths = (40, 30, 20, 1)
    b, t = batch(*lengths)
    f = Dim(2, name="F")
    array = frames(lengths, 2, padding=7.0)
    x = tensor(array, b, t, f)
    mean, variance = rf.moments(x, t)
    for i, n in enumerate(lengths):
        close(rf.reduce_mean(x, axis=t).numpy()[i], array[i, :n].mean(0))
        close(mean.numpy()[i], array[i, :n].mean(0))
        close(variance.numpy()[i], array[i, :n].var(0))
    integers = tensor((array * 10).astype("int32"), b, t, f)
    close(rf.reduce_mean(integers, axis=t).numpy()[3], (array * 10).astype("int32")[3, 0])
    _, corrected = rf.moments(x, t, correction=1)
    assert np.isfinite(corrected.numpy()).all()
    close(corrected.numpy()[2], array[2, :20].var(0, ddof=1))


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.integers(1, 12), min_size=2, max_size=4),
    st.integers(1, 4),
    st.integers(1, 3),
    st.integers(1, 2),
    st.sampled_from(["same", "valid"]),
)
def test_10_length_after_a_convolution_does_not_depend_on_the_batch(
    lengths: list[int], size: int, stride: int, dilation: int, padding: str
) -> None:
    with rf.use_backend("numpy"):
        f = Dim(1, name="F")
        conv = rf.Conv1d(f, Dim(1, name="out"), size, strides=stride, dilation_rate=dilation, padding=padding)

        def sizes(*lengths: int) -> list[int]:
            b, t = batch(*lengths)
            out, dim = conv(rf.zeros([b, t, f]), in_spatial_dim=t)
            assert dim in out.dims
            return dim.get_sizes().values.tolist() if dim.need_masking() else [dim.get_dim_value()]

        together = sizes(*lengths)
        assert together == [sizes(n)[0] for n in lengths]


def test_11_group_norm_over_time_ignores_padding(backend: str) -> None:
    f = Dim(4, name="F")
    norm = rf.GroupNormSpatial(f, num_groups=2)

    def normalized(*lengths: int) -> np.ndarray:
        b, t = batch(*lengths)
        return norm(tensor(frames(lengths, 4, padding=3.0), b, t, f), spatial_dim=t).copy_transpose([b, t, f]).numpy()

    alone = normalized(6)
    for longer in (7, 100):
        close(normalized(6, longer)[0, :6], alone[0])


# -- 7, 8: attention and softmax without anything to attend to


@pytest.mark.parametrize("keys", [(0, 2), (3, 0), (0, 0)])
def test_07_no_keys_give_zeros_and_finite_gradients(backend: str, keys: tuple[int, int]) -> None:
    b, t = batch(4, 2)
    s = Dim(None, name="S").fill(keys, [b])
    d = Dim(3, name="d")
    q, k = tensor(frames([4, 2], 3), b, t, d), tensor(frames([3, 3], 3)[:, : max(keys)], b, s, d)
    if rf.get_backend(backend).has_gradients:
        for x in (q, k):
            rf.set_requires_gradient(x)
    y = rf.dot_attention(q, k, k, key_dim=d, axis=s)
    values = y.copy_transpose([b, t, d]).numpy()
    assert np.isfinite(values).all()
    for i, n in enumerate(keys):
        assert n or (values[i] == 0).all()
    if rf.get_backend(backend).has_gradients:
        for grad in rf.gradient(rf.reduce_sum(y, axis=y.dims), [q, k]):
            assert np.isfinite(grad.numpy()).all()


def test_08_softmax_of_a_masked_row_has_finite_gradients(backend_with_gradients: str) -> None:
    b, t = batch(3, 0)
    q = Dim(None, name="Q").fill([2, 0], [b])
    energy = tensor(np.full((2, 2, 3), np.nan), b, q, t)
    energy = rf.where(rf.sequence_mask([t]), 1.0, energy)
    energy = rf.where(rf.sequence_mask([q]), energy, np.nan)
    rf.set_requires_gradient(energy)
    weights = rf.softmax(energy.copy_masked(0.0), axis=t)
    loss = rf.reduce_sum(rf.reduce_sum(rf.square(weights), axis=t), axis=[q, b])
    assert np.isfinite(loss.item())
    assert np.isfinite(rf.gradient(loss, energy).numpy()).all()


# -- 12: reversing


def test_12_only_the_valid_part_is_reversed(backend: str) -> None:
    lengths = (8, 6, 3)
    b, t = batch(*lengths)
    f, h = Dim(2, name="F"), Dim(3, name="H")
    array = frames(lengths, 2, padding=99.0)
    x = tensor(array, b, t, f)
    flipped = rf.reverse_sequence(x, axis=t).copy_transpose([b, t, f]).numpy()
    for i, n in enumerate(lengths):
        close(flipped[i, :n], array[i, :n][::-1])

    lstm = with_random_parameters(rf.LSTM(f, h))

    def backward_lstm(x: Tensor, b: Dim, t: Dim) -> np.ndarray:
        state = lstm.default_initial_state(batch_dims=[b])
        y, _ = lstm(rf.reverse_sequence(x, axis=t), state=state, spatial_dim=t)
        return rf.reverse_sequence(y, axis=t).copy_transpose([b, t, h]).numpy()

    together = backward_lstm(x, b, t)
    for i, n in enumerate(lengths):
        one, time = batch(n)
        close(backward_lstm(tensor(array[i : i + 1, :n], one, time, f), one, time)[0], together[i, :n])


# -- 13: relative positions


def test_13_relative_positions_are_those_of_a_direct_look_up(backend: str) -> None:
    """Scores of position j - i are read at position j - i, to both sides, for queries and keys of unlike lengths."""
    d, p = Dim(4, name="d"), None
    q_dim, k_dim = Dim(3, name="q"), Dim(5, name="k")
    encoding, p = rf.relative_positional_encoding(query_spatial_dim=q_dim, key_value_spatial_dim=k_dim, feat_dim=d)
    assert p.get_dim_value() == 3 - 1 + 5
    table = encoding.copy_transpose([p, d]).numpy()
    for index, position in enumerate(range(-2, 5)):
        frequencies = np.exp(-2 * np.arange(2) * np.log(1e4) / 4)
        close(table[index], np.concatenate([np.sin(position * frequencies), np.cos(position * frequencies)]))
    from rf._registry import OPS

    query, key = tensor(frames([3], 4)[0], q_dim, d), tensor(np.zeros((5, 4)), k_dim, d)
    weights = OPS["rel_attention_weights"](query, key, encoding, None, None, d, k_dim, q_dim, p, False, 1.0)
    scores = np.array([[query.numpy()[i] @ table[j - i + 2] for j in range(5)] for i in range(3)])
    close(weights.copy_transpose([q_dim, k_dim]), np.exp(scores) / np.exp(scores).sum(-1, keepdims=True))


# -- 14, 15: losses


def test_14_ctc_with_empty_and_with_too_long_targets(backend: str) -> None:
    b, t = batch(4, 4, 2)
    u = Dim(None, name="U").fill([0, 2, 3], [b])
    c = Dim(5, name="C")
    logits = tensor(frames([4, 4, 2], 5), b, t, c)
    targets = tensor(np.array([[0, 0, 0], [1, 2, 0], [1, 2, 3]], dtype="int32"), b, u, sparse_dim=c)
    if rf.get_backend(backend).has_gradients:
        rf.set_requires_gradient(logits)
    loss = rf.ctc_loss(logits=logits, targets=targets, input_spatial_dim=t, targets_spatial_dim=u, blank_index=4)
    log_prob = rf.log_softmax(logits, axis=c).copy_transpose([b, t, c]).numpy()
    values = loss.numpy()
    close(values[0], -log_prob[0, :, 4].sum())
    assert np.isfinite(values[1]) and (np.isinf(values[2]) or np.isfinite(values[2]))
    if rf.get_backend(backend).has_gradients:
        possible = rf.where(rf.is_finite(loss), loss, 0.0)
        assert np.isfinite(rf.gradient(rf.reduce_sum(possible, axis=b), logits).numpy()).all()


def test_15_label_smoothing_does_not_count_padding(backend: str) -> None:
    lengths = (3, 1)
    b, t = batch(*lengths)
    v = Dim(4, name="V")
    array = frames(lengths, 4, padding=5.0)
    labels = np.array([[0, 3, 1], [2, 0, 0]], dtype="int32")
    targets = rf.label_smoothing(tensor(labels, b, t, sparse_dim=v), 0.1)
    loss = rf.cross_entropy(estimated=tensor(array, b, t, v), target=targets, axis=v, estimated_type="logits")
    valid, wanted = np.concatenate([array[0], array[1, :1]]), np.concatenate([labels[0], labels[1, :1]])
    log_prob = valid - np.log(np.exp(valid).sum(-1, keepdims=True))
    smooth = np.full((4, 4), 0.1 / 3)
    smooth[np.arange(4), wanted] = 0.9
    close(rf.reduce_mean(loss, axis=[b, t]).item(), -(smooth * log_prob).sum(-1).mean())
    close(rf.reduce_sum(loss, axis=[b, t]).item(), -(smooth * log_prob).sum())


# -- 16: ties


@pytest.mark.parametrize(
    ("values", "largest", "smallest"),
    [([-1.0, -0.0, 1e-45], 2, 0), ([0.0, -0.0, 0.0], 0, 0), ([3.0, 3.0, 1.0, 1.0], 0, 2), ([-np.inf, -np.inf], 0, 0)],
)
def test_16_the_first_of_equal_values(
    backend: str, values: list[float], largest: int, smallest: int, request: pytest.FixtureRequest
) -> None:
    if backend == "tensorflow" and 1e-45 in values:
        reason = "TensorFlow's kernels on the CPU take numbers below the smallest normal one (1.2e-38) for 0"
        request.applymarker(pytest.mark.xfail(strict=True, reason=reason))
    f = Dim(len(values), name="F")
    x = tensor(values, f)
    assert rf.reduce_argmax(x, axis=f).item() == largest and rf.reduce_argmin(x, axis=f).item() == smallest
    if len(set(values)) == 1:
        _, indices, _ = rf.top_k(x, axis=f, k=1)
        assert indices.numpy().tolist() == [0]


# -- 17: transposed convolution


@pytest.mark.parametrize("size", [3, 4])
@pytest.mark.parametrize("length", [1, 4, 5])
@pytest.mark.parametrize("padding", ["valid", "same"])
def test_17_transposed_convolution_is_the_gradient_of_a_convolution(
    backend: str, size: int, length: int, padding: str
) -> None:
    if padding == "same":
        strides = 1
    else:
        strides = 2
    b, f, g = Dim(1, name="B"), Dim(2, name="F"), Dim(1, name="G")
    t = Dim(None, name="T").fill(length)
    conv = with_random_parameters(rf.TransposedConv1d(f, g, size, padding=padding, strides=strides, with_bias=False))
    array = frames([length], 2)
    y, out_dim = conv(tensor(array, b, t, f), in_spatial_dim=t)
    filter_ = conv.filter.copy_transpose([f, g, *[d for d in conv.filter.dims if d not in (f, g)]]).numpy()
    full = np.zeros(((length - 1) * strides + size, 1))
    for i in range(length):
        for k in range(size):
            full[i * strides + k] += array[0, i] @ filter_[:, :, k]
    if padding == "same":
        left = (size - 1) // 2
        full = full[left : left + length]
    assert out_dim.get_dim_value() == len(full)
    close(y.copy_transpose([b, out_dim, g]).numpy()[0], full)


# -- 18: search


def test_18_beam_search_does_not_depend_on_the_batch(backend: str) -> None:
    from rf.models.beam_search import beam_search

    v = Dim(4, name="V")
    # of each sequence: the next label by the last
    tables = np.log(np.random.RandomState(7).dirichlet([0.5] * 4, (6, 4)))

    def search(*rows: int) -> list[list[int]]:
        b = Dim(None, name="B").fill(len(rows))
        last = Dim(4, name="last")
        table = tensor(tables[list(rows)], b, last, v)

        def step(labels: Tensor, state: rf.State) -> tuple[Tensor, rf.State]:
            return rf.gather(table, indices=labels, axis=last), state

        return beam_search(
            step,
            lambda _: rf.State(),
            batch_dim=b,
            label_dim=v,
            bos_index=0,
            eos_index=3,
            max_lengths=[3 + row for row in rows],
            beam_size=4,
        )

    together = search(0, 1, 2, 3, 4, 5)
    assert together == [search(row)[0] for row in range(6)]
    assert len({len(labels) for labels in together}) > 1, "they end at different steps"


# -- more threads


def test_a_square_of_equal_lengths_needs_a_request(backend: str) -> None:
    """jax 1236: arrays that are silently broadcast to a higher rank."""
    a, b = Dim(3, name="a"), Dim(3, name="b")
    with pytest.raises(rf.DimError):
        tensor(np.ones(3), a) + tensor(np.ones(3), b)
    assert rf.combine_bc(tensor(np.ones(3), a), "+", tensor(np.ones(3), b)).dims == (a, b)


def test_square_root_of_integers_is_float(backend: str) -> None:
    """keras 18400."""
    x = rf.sqrt(tensor(np.array([4, 9], dtype="int32"), Dim(2, name="F")))
    assert x.dtype == "float32" and x.numpy().tolist() == [2.0, 3.0]


def test_integer_results_are_int32_on_every_backend(backend: str) -> None:
    """keras 23495."""
    f = Dim(3, name="F")
    x = tensor([3.0, 1.0, 2.0], f)
    assert rf.reduce_argmax(x, axis=f).dtype == rf.range_over_dim(f).dtype == "int32"
    assert rf.reduce_sum(x > 1, axis=f).dtype == "int32"
    _, indices, _ = rf.top_k(x, axis=f, k=2)
    assert indices.dtype == "int32"


def test_floor_division_and_modulo_of_negative_numbers(backend: str) -> None:
    """keras 18679."""
    f = Dim(4, name="F")
    a, b = tensor(np.array([7, -7, 7, -7], dtype="int32"), f), tensor(np.array([2, 2, -2, -2], dtype="int32"), f)
    for x, y in ((a, b), (rf.cast(a, "float32"), rf.cast(b, "float32"))):
        assert (x // y).numpy().tolist() == [3, -4, -4, 3] and (x % y).numpy().tolist() == [1, 1, -1, -1]


def test_gradient_of_where_stops_at_the_side_not_taken(backend_with_gradients: str) -> None:
    """pytorch 68425: the gradient is of the side that is taken. One that is NaN by itself needs a where before it,
    too."""
    f = Dim(3, name="F")
    x = tensor([0.0, 4.0, 9.0], f)
    rf.set_requires_gradient(x)
    safe = rf.where(x > 0, x, 1.0)
    y = rf.reduce_sum(rf.where(x > 0, rf.sqrt(safe), 0.0), axis=f)
    close(rf.gradient(y, x), [0.0, 1 / 4, 1 / 6])


def test_an_index_out_of_range_is_an_error(backend: str) -> None:
    """keras 18984: some frameworks take the last entry, or zeros, instead. A request for that is `clip_to_valid`."""
    f, g = Dim(3, name="F"), Dim(2, name="G")
    x, indices = tensor([1.0, 2.0, 3.0], f), tensor(np.array([0, 3], dtype="int32"), g)
    with pytest.raises(Exception, match=r"out of (bounds|range)|is not in \[0, 3\)"):  # that of the framework
        rf.gather(x, indices=indices, axis=f)
    assert rf.gather(x, indices=indices, axis=f, clip_to_valid=True).numpy().tolist() == [1.0, 3.0]


def test_layer_norm_of_a_constant(backend_with_gradients: str) -> None:
    """pytorch 104857: what eps is added to, seen where the variance is 0, in value and gradient."""
    f = Dim(4, name="F")
    x = tensor(np.full(4, 3.0), f)
    rf.set_requires_gradient(x)
    norm = rf.LayerNorm(f, eps=1e-4)
    y = norm(x)
    close(y, np.zeros(4))
    weights = np.array([1.0, 0.0, 0.0, 0.0])
    grad = rf.gradient(rf.reduce_sum(y * tensor(weights, f), axis=f), x)
    close(grad, (weights - 0.25) / np.sqrt(1e-4))


def test_mask_is_true_on_frames(backend: str) -> None:
    """speechbrain 2276: a mask of inverted polarity."""
    _, t = batch(3, 1)
    assert t.get_mask().numpy().tolist() == [[True, True, True], [True, False, False]]


def test_frames_of_a_centered_stft(backend: str) -> None:
    """librosa 530: how many frames there are is the formula of a valid convolution, for each length."""
    _, t = batch(10, 4, 3, 0)
    b = t.get_sizes().dims[0]
    _, frames_dim, _ = rf.stft(tensor(np.zeros((4, 10)), b, t), in_spatial_dim=t, frame_step=2, frame_length=4)
    assert frames_dim.get_sizes().values.tolist() == [4, 1, 0, 0]


def test_default_dtype_does_not_leak_from_numpy(backend: str) -> None:
    """NumPy's default float64 must not get into models."""
    f = Dim(3, name="F")
    x = tensor([1.0, 2.0, 3.0], f)
    results: list[Callable[[], Tensor]] = [
        lambda: x * 0.5,
        lambda: x / 3,
        lambda: x**2,
        lambda: rf.erf(x),
        lambda: rf.gelu(x),
        lambda: rf.reduce_mean(x, axis=f),
        lambda: rf.reduce_logsumexp(x, axis=f),
        lambda: rf.softmax(x, axis=f),
        lambda: rf.cumsum(x, spatial_dim=f),
        lambda: rf.LayerNorm(f)(x),
        lambda: rf.convert_to_tensor(0.1),
        lambda: rf.ones([f]),
        lambda: rf.random_uniform([f]),
        lambda: rf.linspace_over_dim(f),
    ]
    for call in results:
        y = call()
        assert y.dtype == "float32" and y.numpy().dtype == np.float32
