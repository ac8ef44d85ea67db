"""Samples of losses, recurrence, signals, gradient control and random numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

import rf
from conformance.sample import S, Sample
from rf.ops.rec import lstm, lstm_step


def cross_entropy(id: str, estimated: str, target: str, kind: str, axis: str = "V", **args: Any) -> Sample:
    """Cross entropy over V."""
    operands = (f"estimated={estimated}", f"target={target}")
    return S("cross_entropy", *operands, axis=axis, estimated_type=kind, id=id, **args)


def _nll(logits: np.ndarray, target: np.ndarray) -> np.ndarray:
    exp = np.exp(logits)
    return -np.log(np.take_along_axis(exp, target[..., None], -1)[..., 0] / exp.sum(-1))


def ctc(id: str, logits: str = "B T *V", targets: str = "B U:int32~label", **args: Any) -> Sample:
    """CTC loss of labels 1 .. 3, blank 0 unless said otherwise. Sequences 1 and 2 of the batch are too short for their
    targets."""
    args = {"input_spatial_dim": "T", "targets_spatial_dim": "U", "blank_index": 0} | args
    args["call"] = lambda d, x, y, **a: _clipped(rf.ctc_loss(logits=x, targets=rf.cast(y % 3 + 1, "int32"), **a))
    return S("ctc_loss", logits, targets.replace("~label", "~pos"), id=id, masked=True, **args)


def _clipped(loss: rf.Tensor) -> rf.Tensor:
    # inf compares badly with finite differences
    return rf.where(rf.is_finite(loss), loss, rf.stop_gradient(rf.zeros_like(loss)))


_stft: dict[str, Any] = {"in_spatial_dim": "T", "frame_step": 1, "frame_length": 2}

SAMPLES: list[Sample] = [
    # -- losses
    cross_entropy("sparse", "B T *V", "B T>V", "logits", out="B T:float32", ref=_nll),
    cross_entropy("sparse-plain-int", "B T V", "B T:int32~indexV", "logits", out="B T", ref=_nll),
    cross_entropy("sparse-log-probs", "B T *V", "B T>V", "log-probs"),
    cross_entropy("sparse-probs", "B T *V~prob", "B T>V", "probs"),
    cross_entropy("dense", "B T *V", "B T V~prob", "logits"),
    cross_entropy("dense-log-probs", "B T *V", "B T V~prob", "log-probs"),
    cross_entropy("dense-probs", "B T *V~prob", "B T V~prob", "probs"),
    cross_entropy("dense-prior", "B T *V", "V~prob", "logits", out="B T"),
    cross_entropy("target-lacks", "B T *V", "B>V", "logits", out="B T"),
    cross_entropy("logits-lack", "B *V", "B T>V", "logits", out="B T"),
    cross_entropy("scalar", "V", ">V", "logits", out=":float32"),
    cross_entropy("over-time", "B T", "B>T", "logits", "T", out="B", masked=True, zero=False),
    cross_entropy("over-time-dense", "B T", "B T~prob", "logits", "T", out="B", masked=True),
    cross_entropy("int64", "B T *V", "B T:int64>V", "logits", out="B T"),
    cross_entropy("float16", "B T *V:float16", "B T>V", "logits", out="B T:float16", grad=False),
    S("label_smoothing", "B T>V", smoothing=0.1, out="B T *V:float32"),
    S("label_smoothing", "B T *V~prob", smoothing=0.1, out="B T *V", ref=lambda p: p * (1 - 0.125) + 0.025),
    S("smooth_one_hot", "B T>V", label_prob=0.9, out="B T *V:float32"),
    S("label_smoothed_log_prob_gradient", "B T *V", smoothing=0.1, out="B T *V", ref=lambda x: x, grad=False),
    S("label_smoothed_log_prob_gradient", "B T *V", smoothing=0.1, exclude_labels=[4], out="B T *V", grad=False),
    ctc("plain", out="B:float32"),
    ctc("last-blank", blank_index=-1),
    ctc("normalized", "B T *V", logits_normalized=True),
    ctc("max", max_approx=True),
    ctc("no-loop", label_loop=False),
    ctc("no-loop-max", label_loop=False, max_approx=True),
    ctc("static-targets", targets="B H:int32~label", targets_spatial_dim="H"),
    ctc("static-frames", "B P *V", input_spatial_dim="P"),
    ctc("targets-lack-batch", targets="H:int32~label", targets_spatial_dim="H", out="B"),
    ctc("two-batch-dims", "B H T *V", "B H U:int32~label", out="B H"),
    ctc("no-batch", "P *V", "H:int32~label", input_spatial_dim="P", targets_spatial_dim="H", out=""),
    S("ctc_greedy_decode", "B T *V", in_spatial_dim="T", blank_index=0, needs_values=True, grad=False),
    S("ctc_greedy_decode", "B T *V~coarse", in_spatial_dim="T", blank_index=-1, target_dim="D", needs_values=True,
      grad=False),
    S("ctc_greedy_decode", "D *V", in_spatial_dim="D", blank_index=1, needs_values=True, grad=False),
    S("ctc_best_path", "B T *V", "B U:int32~pos", needs_values=True, grad=False, out="B T:int32>V",
      call=lambda d, x, y: rf.ctc_best_path(logits=x, targets=rf.cast(y % 3 + 1, "int32"), input_spatial_dim=d.T,
                                            targets_spatial_dim=d.U, blank_index=0)),
    S("ctc_durations_from_path", "B T:int32~count", needs_values=True,
      call=lambda d, x: rf.ctc_durations_from_path(path=x, path_spatial_dim=d.T, blank_index=0)),
    S("ctc_no_label_loop_blank_durations_from_path", "B T:int32~count", needs_values=True,
      call=lambda d, x: rf.ctc_no_label_loop_blank_durations_from_path(path=x, path_spatial_dim=d.T, blank_index=0)),
    S("edit_distance", "B T:int32~count", "B U:int32~count", needs_values=True, out="B:int32",
      call=lambda d, a, b: rf.edit_distance(a, d.T, b, d.U)),
    S("edit_distance", "B T:int32~count", "D:int32~count", needs_values=True, out="B:int64",
      call=lambda d, a, b: rf.edit_distance(a, d.T, b, d.D, dtype="int64"), id="int64"),
    # -- recurrence
    S("lstm", "B T F", "B E", "B E", "D F", "D E", "D", call=lambda d, x, h, c, w, r, b: lstm(
        x, h, c, w, r, b, spatial_dim=d.T, in_dim=d.F, out_dim=d.E), out="B T *E", masked=True),
    S("lstm", "B T F", "E", "E", "D F", "D E", call=lambda d, x, h, c, w, r: lstm(
        x, h, c, w, r, None, spatial_dim=d.T, in_dim=d.F, out_dim=d.E), out="B T *E", masked=True, id="no-bias"),
    S("lstm", "B H T F", "B E", "B E", "D F", "D E", "D", call=lambda d, x, h, c, w, r, b: lstm(
        x, h, c, w, r, b, spatial_dim=d.T, in_dim=d.F, out_dim=d.E), out="B H T *E", masked=True, id="two-batch-dims"),
    S("lstm", "T F", "B E", "B E", "D F", "D E", "D", call=lambda d, x, h, c, w, r, b: lstm(
        x, h, c, w, r, b, spatial_dim=d.T, in_dim=d.F, out_dim=d.E), out="B T *E", masked=True, id="x-lacks-batch"),
    S("lstm", "B P F", "B E", "B E", "D F", "D E", "D", call=lambda d, x, h, c, w, r, b: lstm(
        x, h, c, w, r, b, spatial_dim=d.P, in_dim=d.F, out_dim=d.E), out="B P *E", id="static"),
    S("lstm_step", "B F", "B E", "B E", "D F", "D E", "D", call=lambda d, x, h, c, w, r, b: lstm_step(
        x, h, c, w, r, b, d.F, d.E), out="B *E"),
    S("lstm_step", "B F", "E", "B E", "D F", "D E", call=lambda d, x, h, c, w, r: lstm_step(
        x, h, c, w, r, None, d.F, d.E), out="B *E", id="no-bias"),
    # -- signals
    S("stft", "B T", **_stft, masked=True, grad=False),
    S("stft", "B T F", in_spatial_dim="T", frame_step=2, frame_length=3, fft_length=4, masked=True, grad=False),
    S("stft", "B T", in_spatial_dim="T", frame_step=1, frame_length=3, fft_length=5, masked=True, grad=False,
      align_window_left=False, window_enforce_even=False),
    S("stft", "B T", in_spatial_dim="T", frame_step=1, frame_length=2, fft_length=4, masked=True, grad=False,
      window_use_frame_length=False),
    S("stft", "B T", masked=True, id="power", call=lambda d, x: rf.square(rf.abs(
        rf.stft(x, in_spatial_dim=d.T, frame_step=1, frame_length=4)[0]))),
    S("stft", "B P:float64", in_spatial_dim="P", frame_step=2, frame_length=4, grad=False, id="float64"),
    S("mel_filterbank", "B T G~pos", call=lambda d, x: rf.audio.mel_filterbank(
        x, in_dim=d.G, out_dim=d.F, sampling_rate=8000), out="B T *F"),
    S("log_mel_filterbank_from_raw", "B T", masked=True, call=lambda d, x: rf.audio.log_mel_filterbank_from_raw(
        x, in_spatial_dim=d.T, out_dim=d.F, sampling_rate=1000, window_len=0.004, step_len=0.001)),
    S("specaugment", "B T *D", out="B T *D", ref=lambda x: x, call=lambda d, x: rf.audio.specaugment(
        x, spatial_dim=d.T)),
    S("specaugment", "B T *D", out="B T *D", values=False, id="on", call=lambda d, x: rf.audio.specaugment(
        x, spatial_dim=d.T, only_on_train=False)),
    S("random_mask", "B T *D", out="B T *D", ref=np.zeros_like, call=lambda d, x: rf.audio.random_mask(
        x, mask_axis=d.D, broadcast_axis=d.T, min_num=4, max_num=4, max_dims=2)),
    S("mask", "B T *D", "B>T", out="B T *D", values=False, call=lambda d, x, pos: rf.audio.mask(
        x, mask_axis=d.T, pos=pos, max_amount=2), zero=False),
    # -- control flow
    S("cond", "B T", out="B T", ref=lambda x: 2 * x, call=lambda d, x: rf.cond(True, lambda: 2 * x, lambda: x)),
    S("cond", "B T", "", needs_values=True, out="B T", call=lambda d, x, y: rf.cond(y > 0, lambda: 2 * x, lambda: x),
      id="on-value"),
    S("while_loop", "B F", out="B F", needs_values=True, grad=False,
      call=lambda d, x: rf.while_loop(lambda y: rf.reduce_max(rf.abs(y), axis=y.dims) > 0.1, lambda y: y / 2.0, x),
      alone=False),
    S("scan", "B T F", "B F", call=lambda d, x, s: rf.scan(
        spatial_dim=d.T, xs=x, initial=s, body=lambda x, s: (s * 2.0, s + x))[:2], masked=True,
      out="B T F", ref=lambda x, s: 2 * (s[:, None] + np.cumsum(x, 1) - x)),
    S("assert_", "B T", call=lambda d, x: rf.assert_(x < 100.0, "large"), alone=False, grad=False),
    # -- gradients
    S("stop_gradient", "B T *F", out="B T *F", ref=lambda x: x, grad=False),
    S("scaled_gradient", "B T *F", scale=1.0, out="B T *F", ref=lambda x: x),
    S("scaled_gradient", "B T *F", scale=-1.0, out="B T *F", grad=False),
    S("scaled_gradient", "B T *F", "scale=B", out="B T *F", grad=False),
    S("scaled_gradient", "B T:int32>V", scale=0, out="B T:int32>V"),
    S("scaled_gradient_ext", "B T *F", scale=0.5, shift=0.1, out="B T *F", grad=False),
    S("scaled_gradient_ext", "B T *F", "scale=F", "shift=F", scale_shift_by_sum_over_axis="F", out="B T *F",
      grad=False),
    # -- random numbers
    S("random_uniform", dims=["B", "T"], out="B T:float32", values=False),
    S("random_uniform", "minval=B", dims=["B", "T"], maxval=9, out="B T:float32", values=False),
    S("random_uniform", "maxval=B:int32~pos", dims=["B", "T"], out="B T:int32", values=False,
      call=lambda d, x=None, **a: rf.random_uniform([d.B, d.T], maxval=a["maxval"], dtype="int32"), id="int-bounds"),
    S("random_normal", dims=["B", "T"], out="B T:float32", values=False),
    S("random_normal", "stddev=B~pos", dims=["B", "T"], out="B T:float32", values=False),
    S("random_truncated_normal", dims=["B", "T"], out="B T:float32", values=False),
    S("random_uniform", call=lambda d: rf.random_uniform([d.B, d.F], static=True, seed=3), out="B F:float32",
      id="static"),
    S("random_normal", call=lambda d: rf.random_normal([d.F], static=True, seed=3, dtype="float64"), out="F:float64",
      id="static"),
    S("random_truncated_normal", call=lambda d: rf.random_truncated_normal([d.F, d.G], static=True, seed=3),
      out="F G:float32", id="static"),
    S("random", call=lambda d: rf.random([d.V], distribution="uniform", minval=0, maxval=9, dtype="int32", static=True,
      seed=3, sparse_dim=d.P), out="V:int32>P", id="static-int"),
    S("random_choice_with_replacement", "probs=B V~prob", dims=["B", "T"], axis="V", out="B T:int32>V", values=False),
    S("random_choice_without_replacement", "log_probs=B V", axis="V", num_samples_dim="F", out="B F:int32>V",
      values=False),
    S("dropout", "B T *F", drop_prob=0.5, out="B T *F", ref=lambda x: x),
    S("dropout", "B T *F", drop_prob=0.5, on_forward=True, out="B T *F", values=False),
    S("dropout", "B T *F", drop_prob=0.5, axis="F", on_forward=True, out="B T *F", values=False),
    S("dropout", "B T *F", drop_prob=1.0, on_forward=True, out="B T *F", ref=np.zeros_like),
    S("dropout", "B T *F", drop_prob=1.0, axis=["B", "F"], on_forward=True, out="B T *F", ref=np.zeros_like),
]  # fmt: skip
