"""The short-time Fourier transform, mel features, and SpecAugment."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import rf
from rf.audio.mel import mel_matrix

COMPUTING = [pytest.param("numpy"), pytest.param("torch", marks=pytest.mark.needs("torch"))]


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    rf.reset_run_ctx()
    rf.set_random_seed(5)
    yield
    rf.reset_run_ctx()
    rf.set_random_seed(42)


def signal(num: int, samples: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal((num, samples)).astype(np.float32)


# -- STFT


def stft_by_definition(x: np.ndarray, step: int, length: int, fft: int, window: np.ndarray) -> np.ndarray:
    frames = max(0, (len(x) - length) // step + 1)
    x = np.concatenate([x, np.zeros(fft)])
    n, k = np.arange(fft), np.arange(fft // 2 + 1)
    basis = np.exp(-2j * np.pi * n[:, None] * k / fft)
    return np.array([(x[i * step : i * step + fft] * window) @ basis for i in range(frames)]).reshape(frames, len(k))


def hann(n: int) -> np.ndarray:
    return 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(n) / n)


@pytest.mark.parametrize("backend", COMPUTING)
@pytest.mark.parametrize(
    ("options", "size", "offset"),
    [
        ({"frame_length": 6}, 6, 0),
        ({"frame_length": 6, "fft_length": 10}, 6, 0),
        ({"frame_length": 7, "fft_length": 10}, 6, 0),
        ({"frame_length": 7, "fft_length": 11, "window_enforce_even": False}, 7, 0),
        ({"frame_length": 6, "fft_length": 10, "align_window_left": False}, 6, 2),
        ({"frame_length": 6, "fft_length": 10, "window_use_frame_length": False}, 10, 0),
    ],
    ids=str,
)
def test_stft_by_its_definition(options: dict[str, Any], size: int, offset: int, backend: str) -> None:
    lengths = (40, 17, 6, 3, 0)
    x = signal(5, 40)
    for i, n in enumerate(lengths):
        x[i, n:] = np.nan
    fft = options.get("fft_length", options["frame_length"])
    window = np.zeros(fft)
    window[offset : offset + size] = hann(size)
    length = options["frame_length"] if options.get("window_use_frame_length", True) else fft
    with rf.use_backend(backend):
        b = rf.Dim(5, name="B")
        t = rf.Dim(None, name="T").fill(lengths, [b])
        out, frames, freq = rf.stft(rf.convert_to_tensor(x.T, dims=[t, b]), in_spatial_dim=t, frame_step=3, **options)
        assert out.dtype == "complex64" and out.feature_dim == freq and freq.dimension == fft // 2 + 1
        values = out.copy_transpose([b, frames, freq]).numpy()
    for i, n in enumerate(lengths):
        expected = stft_by_definition(x[i, :n], 3, length, fft, window)
        assert frames.get_sizes().values[i] == len(expected)
        np.testing.assert_allclose(values[i, : len(expected)], expected, atol=1e-5)


@pytest.mark.needs("torch")
def test_stft_as_in_torch() -> None:
    import torch

    x = signal(2, 50)
    with rf.use_backend("torch"):
        b, t = rf.Dim(2, name="B"), rf.Dim(50, name="T")
        out, frames, freq = rf.stft(
            rf.convert_to_tensor(x, dims=[b, t]),
            in_spatial_dim=t,
            frame_step=4,
            frame_length=10,
            fft_length=16,
            window_use_frame_length=False,
            window_enforce_even=False,
        )
        expected = torch.stft(
            torch.tensor(x),
            16,
            hop_length=4,
            win_length=16,
            window=torch.hann_window(16),
            center=False,
            return_complex=True,
        )
        torch.testing.assert_close(out.copy_transpose([b, freq, frames]).raw_tensor, expected)


@pytest.mark.parametrize("backend", COMPUTING)
def test_stft_of_half_precision_and_without_batch(backend: str) -> None:
    with rf.use_backend(backend):
        t = rf.Dim(8, name="T")
        out, _, _ = rf.stft(rf.ones([t], dtype="float16"), in_spatial_dim=t, frame_step=2, frame_length=4)
        assert out.dtype == "complex64" and len(out.dims) == 2


def test_stft_errors() -> None:
    with rf.use_backend("numpy"):
        t, u = rf.Dim(8, name="T"), rf.Dim(8, name="U")
        x = rf.zeros([t])
        for options, text in [
            ({"in_spatial_dim": u}, "U=8"),
            ({"fft_length": 3}, "fft_length=3"),
            ({"frame_step": 0}, "frame_step=0"),
            ({"out_dim": rf.Dim(9, name="nine")}, "nine"),
            ({"out_spatial_dim": rf.Dim(9, name="nine")}, "nine"),
            ({"frame_length": 1}, "window_enforce_even"),
        ]:
            with pytest.raises(rf.RfError, match=text):
                rf.stft(x, **({"in_spatial_dim": t, "frame_step": 2, "frame_length": 4} | options))


# -- mel


def mel(f: float) -> float:
    return 1125 * math.log(1 + f / 700)


def test_mel_filters_by_their_definition() -> None:
    rate, fft, num, low, high = 8000.0, 256, 12, 60.0, 3800.0
    matrix = mel_matrix(low, high, rate, fft, num)
    step = (mel(high) - mel(low)) / (num + 1)
    corners = [700 * (math.exp((mel(low) + i * step) / 1125) - 1) for i in range(num + 2)]
    for k, j in np.ndindex(matrix.shape):
        f, (left, center, right) = k * rate / fft, corners[j : j + 3]
        inside = (f - left) / (center - left) if f <= center else (right - f) / (right - center)
        assert matrix[k, j] == pytest.approx(max(inside, 0), abs=1e-9)
    assert matrix.shape == (129, 12) and (matrix.max(0) > 0).all()


@pytest.mark.parametrize("backend", COMPUTING)
def test_mel_filterbank(backend: str) -> None:
    with rf.use_backend(backend):
        b, freq, out_dim = rf.Dim(2, name="B"), rf.Dim(33, name="freq"), rf.Dim(5, name="mel")
        x = np.abs(signal(2, 33))
        source = rf.convert_to_tensor(x, dims=[b, freq])
        for _ in range(2):  # the second time from the cache
            out = rf.audio.mel_filterbank(source, in_dim=freq, out_dim=out_dim, sampling_rate=8000, f_min=50)
            assert out.feature_dim == out_dim and out.dims == (b, out_dim)
            np.testing.assert_allclose(out.numpy(), x @ mel_matrix(50, 4000, 8000, 64, 5), rtol=1e-5)
        again = rf.Dim(33, name="freq")
        out = rf.audio.mel_filterbank(
            rf.convert_to_tensor(x, dims=[b, again], dtype="float64"), in_dim=again, out_dim=out_dim, sampling_rate=8000
        )
        assert out.dtype == "float64"
        for options, text in [
            ({"in_dim": rf.Dim(None, name="open")}, "static"),
            ({"fft_length": 128}, "freq=33"),
            ({"f_min": 4000}, "f_min=4000"),
            ({"f_max": 5000}, "4000"),
        ]:
            with pytest.raises(rf.RfError, match=text):
                rf.audio.mel_filterbank(
                    source, **({"in_dim": freq, "out_dim": out_dim, "sampling_rate": 8000} | options)
                )


@pytest.mark.parametrize("backend", COMPUTING)
@pytest.mark.parametrize("log_base", [10, math.e])
def test_log_mel_features(log_base: float, backend: str) -> None:
    lengths = (800, 333, 200, 150)
    x = signal(4, 800)
    for i, n in enumerate(lengths):
        x[i, n:] = np.nan
    with rf.use_backend(backend):
        b, one, out_dim = rf.Dim(4, name="B"), rf.Dim(1, name="one"), rf.Dim(10, name="mel")
        t = rf.Dim(None, name="T").fill(lengths, [b])
        out, frames = rf.audio.log_mel_filterbank_from_raw(
            rf.convert_to_tensor(x[..., None], dims=[b, t, one], feature_dim=one),
            in_spatial_dim=t,
            out_dim=out_dim,
            sampling_rate=8000,
            log_base=log_base,
        )
        assert out.feature_dim == out_dim and out.dtype == "float32"
        values = out.copy_transpose([b, frames, out_dim]).numpy()
    assert frames.get_sizes().values.tolist() == [(n - 200) // 80 + 1 if n >= 200 else 0 for n in lengths]
    window = np.concatenate([hann(200), np.zeros(56)])
    for i, n in enumerate(lengths):
        spectrum = stft_by_definition(x[i, :n], 80, 200, 256, window)
        power = np.abs(spectrum) ** 2 @ mel_matrix(0, 4000, 8000, 256, 10)
        expected = np.log(np.maximum(power, 1e-10)) / math.log(log_base)
        np.testing.assert_allclose(values[i, : len(expected)], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("backend", COMPUTING)
def test_silence_has_finite_features(backend: str) -> None:
    with rf.use_backend(backend):
        t = rf.Dim(1000, name="T")
        out, _ = rf.audio.log_mel_filterbank_from_raw(rf.zeros([t]), in_spatial_dim=t, out_dim=rf.Dim(5))
        assert (out.numpy() == -10).all()


# -- SpecAugment


def masked_runs(hit: np.ndarray) -> list[int]:
    """Lengths of the runs of True."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], hit.astype(int), [0]])))
    return (edges[1::2] - edges[::2]).tolist()


class Features:
    """A batch of ones with lengths 400, 150, 1 and 0."""

    def __init__(self) -> None:
        self.lengths = (400, 150, 1, 0)
        self.b, self.f = rf.Dim(4, name="B"), rf.Dim(20, name="F")
        self.t = rf.Dim(None, name="T").fill(self.lengths, [self.b])
        self.x = rf.ones([self.b, self.t, self.f], feature_dim=self.f)

    def augment(self, **options: Any) -> np.ndarray:
        out = rf.audio.specaugment(self.x, spatial_dim=self.t, **options)
        assert out is not self.x and out.dims == self.x.dims and out.feature_dim == self.f
        return out.numpy()


@pytest.mark.parametrize("backend", COMPUTING)
def test_specaugment_is_for_training(backend: str) -> None:
    with rf.use_backend(backend):
        data = Features()
        assert (data.augment() == 1).all()
        assert (data.augment(only_on_train=False) == 0).any()
        rf.init_train_step_run_ctx(step=2000)
        assert (data.augment() == 0).any()
        with rf.get_run_ctx().train_flag_ctx(False, func=rf.audio.specaugment):
            assert (data.augment() == 1).all()


@pytest.mark.parametrize("backend", COMPUTING)
@pytest.mark.parametrize(
    ("step", "times", "bands"), [(0, {400: (0, 4), 150: (0, 2)}, (0, 2)), (1000, {400: (1, 8), 150: (1, 4)}, (1, 3)),
                                 (2000, {400: (2, 16), 150: (2, 8)}, (2, 5))],
)  # fmt: skip
def test_number_and_size_of_masks(
    step: int, times: dict[int, tuple[int, int]], bands: tuple[int, int], backend: str
) -> None:
    with rf.use_backend(backend):
        data = Features()
        rf.init_train_step_run_ctx(step=step)
        frames_seen, bands_seen = set(), set()
        for _ in range(30):
            out = data.augment(max_consecutive_spatial_dims=5, max_consecutive_feature_dims=1)
            for i, n in enumerate(data.lengths[:2]):
                spans = (out[i, :n] == 0).all(1)
                rows = out[i, :n][~spans]
                columns = (rows == 0).all(0)
                assert (rows[:, ~columns] == 1).all()  # nothing but spans and bands
                low, high = times[n]
                assert spans.sum() <= 5 * high and len(masked_runs(spans)) <= high
                assert spans.any() or low == 0
                assert bands[0] <= columns.sum() <= bands[1]
                frames_seen.add(int(spans.sum()))
                bands_seen.add(int(columns.sum()))
        assert len(frames_seen) > 5 and bands_seen == set(range(bands[0], bands[1] + 1))


@pytest.mark.parametrize("backend", COMPUTING)
def test_masks_of_a_sequence_do_not_depend_on_the_batch(backend: str) -> None:
    """The distribution for 150 frames is that of a batch in which they are the longest."""
    with rf.use_backend(backend):
        shares = []
        for other in (400, 150):
            b, f = rf.Dim(2, name="B"), rf.Dim(20, name="F")
            t = rf.Dim(None, name="T").fill([150, other], [b])
            x = rf.ones([b, t, f], feature_dim=f)
            rf.init_train_step_run_ctx(step=5000)
            drawn = [rf.audio.specaugment(x, spatial_dim=t).numpy()[0, :150] for _ in range(200)]
            shares.append(np.mean([(d == 0).mean() for d in drawn]))
        assert abs(shares[0] - shares[1]) < 0.04
        b, f = rf.Dim(2, name="B"), rf.Dim(20, name="F")
        t = rf.Dim(None, name="T").fill([150, 2000], [b])
        x = rf.ones([b, t, f], feature_dim=f)
        options: dict[str, Any] = {"spatial_dim": t, "num_masks_per_seq": False}
        share = np.mean([(rf.audio.specaugment(x, **options).numpy()[0, :150] == 0).mean() for _ in range(20)])
        assert share > shares[0] + 0.2  # by the longest one: a short sequence is nearly wiped out


@pytest.mark.parametrize("backend", COMPUTING)
def test_random_mask(backend: str) -> None:
    with rf.use_backend(backend):
        data = Features()
        options: dict[str, Any] = {"mask_axis": data.t, "broadcast_axis": data.f, "max_dims": 1}
        out = rf.audio.random_mask(data.x, min_num=3, max_num=3, mask_value=7.0, **options).numpy()
        assert ((out == 7).all(2).sum(1)[:2] == 3).all()  # spans of one frame never lie on each other
        assert (out[:2][out[:2] != 7] == 1).all()
        frames = rf.Dim(30, name="T")
        shared = rf.audio.random_mask(
            rf.ones([data.b, frames, data.f]),
            mask_axis=frames,
            broadcast_axis=[data.b, data.f],
            min_num=3,
            max_num=3,
            max_dims=2,
        ).numpy()
        assert (shared == shared[:1]).all() and (shared == 0).any()
        assert (rf.audio.random_mask(data.x, min_num=0, max_num=0, **options).numpy() == 1).all()
        num = rf.convert_to_tensor(np.array([5, 1, 0, 0], dtype=np.int32), dims=[data.b])
        out = rf.audio.random_mask(data.x, min_num=num, max_num=num, **options).numpy()
        assert (out == 0).all(2).sum(1).tolist()[:2] == [5, 1]


@pytest.mark.parametrize("backend", COMPUTING)
def test_mask(backend: str) -> None:
    with rf.use_backend(backend):
        b, t = rf.Dim(3, name="B"), rf.Dim(10, name="T")
        pos = rf.convert_to_tensor(np.array([0, 4, 9], dtype=np.int32), dims=[b])
        widths = set()
        for _ in range(40):
            out = rf.audio.mask(rf.ones([t, b]), mask_axis=t, pos=pos, max_amount=3).copy_transpose([b, t]).numpy()
            for row, start in zip(out, [0, 4, 9]):
                (run,) = masked_runs(row == 0)
                assert row[start] == 0 and (start == 0 or row[start - 1] == 1)
                widths.add(run)
            assert masked_runs(out[2] == 0) == [1]
        assert widths == {1, 2, 3}
