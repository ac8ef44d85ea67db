"""What the tests of modules share: batches with padding, and the check that padding and batch neighbors do not
matter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import rf

Call = Callable[[Any, rf.Tensor, rf.Dim], rf.Tensor]


def batch_dims(lengths: Sequence[int]) -> tuple[rf.Dim, rf.Dim]:
    """B and a spatial dim of these lengths."""
    batch = rf.Dim(len(lengths), name="B")
    return batch, rf.Dim(None, name="T").fill(np.array(lengths, dtype=np.int32), dims=[batch])


def padded(lengths: Sequence[int], *rest: int, padding: float, seed: int = 0, extra: int = 0) -> np.ndarray:
    """Random frames, the same whatever the padding is: (B, max length + extra, *rest)."""
    out = np.full((len(lengths), max(lengths, default=0) + extra, *rest), padding, dtype=np.float32)
    for i, n in enumerate(lengths):
        out[i, :n] = np.random.RandomState(seed * 100 + i).randn(n, *rest)
    return out


def tensor(array: np.ndarray, dims: Sequence[rf.Dim], **kwargs: Any) -> rf.Tensor:
    return rf.convert_to_tensor(array, dims=dims, **kwargs)


def set_parameters(module: rf.Module, seed: int = 0, scale: float = 0.5) -> None:
    """Random values that depend on names and shapes only; variances stay positive."""
    for i, (name, p) in enumerate(module.named_parameters()):
        shape = [d.get_dim_value() for d in p.dims]
        values = np.random.RandomState(seed * 1000 + i).randn(*shape).astype("float32") * scale
        p.assign(np.abs(values) + 0.5 if "variance" in name else values)


def gradients(module: rf.Module, loss: rf.Tensor) -> dict[str, np.ndarray]:
    """Of the trainable parameters, on torch."""
    parameters = {name: p.raw_tensor for name, p in module.named_parameters() if p.trainable}
    for raw in parameters.values():
        raw.grad = None
    loss.raw_tensor.backward()
    return {name: raw.grad.numpy() if raw.grad is not None else np.zeros(()) for name, raw in parameters.items()}


def check_sequence_module(
    make: Callable[[rf.Dim], Any],
    call: Call,
    *,
    lengths: Sequence[int] = (5, 2, 0, 1),
    in_size: int = 6,
    check_alone: bool = True,
    nan_gradients: bool = True,
    tolerance: float = 2e-5,
) -> np.ndarray:
    """Check a module that maps {B, T, in} to {B, T', ...}; returns its output (B, T', ...) with 0 in the padding.

    Equal: NumPy and torch; zeros, large numbers and NaN in the padding, in values and gradients of parameters; a
    sequence alone and in the batch; dims and dtype on meta. `nan_gradients=False` for modules with framewise parts at
    the start: their gradients are those of finite padding only.
    """
    results: dict[Any, np.ndarray] = {}
    grads: dict[float, dict[str, np.ndarray]] = {}

    def run(
        module: Any, in_dim: rf.Dim, lens: Sequence[int], array: np.ndarray
    ) -> tuple[rf.Tensor, tuple[rf.Dim, rf.Dim]]:
        batch, time = batch_dims(lens)
        return call(module, tensor(array, [batch, time, in_dim]), time), (batch, time)

    def valid(out: rf.Tensor, batch: rf.Dim) -> np.ndarray:
        rest = [d for d in out.dims if d is not batch and d.need_masking()]
        order = [batch, *rest, *[d for d in out.dims if d is not batch and d not in rest]]
        return out.copy_masked(0.0).copy_transpose(order).numpy()

    templates = {}
    for backend in ("numpy", "torch", "meta"):
        with rf.use_backend(backend):
            in_dim = rf.Dim(in_size, name="in")
            module = make(in_dim)
            set_parameters(module)
            for padding in (0.0, 1e3, np.nan):
                if backend != "torch" and not np.isnan(padding):
                    continue
                array = padded(lengths, in_size, padding=padding)
                out, (batch, _) = run(module, in_dim, lengths, array)
                templates[backend] = ([d.name for d in out.dims], out.dtype, out.feature_dim and out.feature_dim.name)
                if backend == "meta":
                    continue
                results[backend, padding] = valid(out, batch)
                if backend == "torch" and (nan_gradients or not np.isnan(padding)):
                    loss = rf.reduce_sum(rf.square(out) + out, axis=out.dims)
                    grads[padding] = gradients(module, loss)
            if backend == "torch" and check_alone:
                together = results["torch", 0.0]
                for i, n in enumerate(lengths):
                    array = padded(lengths, in_size, padding=0)[i : i + 1, :n]
                    out, (batch, _) = run(module, in_dim, [n], array)
                    alone = valid(out, batch)[0]
                    np.testing.assert_allclose(alone, together[i][: len(alone)], rtol=tolerance, atol=tolerance)
    assert templates["numpy"] == templates["torch"] == templates["meta"], templates
    reference = results["torch", 0.0]
    assert np.isfinite(reference).all()
    for key, result in results.items():
        np.testing.assert_allclose(result, reference, rtol=tolerance, atol=tolerance, err_msg=str(key))
    for padding, of_padding in grads.items():
        for name, value in of_padding.items():
            np.testing.assert_allclose(value, grads[0.0][name], rtol=1e-4, atol=1e-4, err_msg=f"{padding}: {name}")
    return reference
