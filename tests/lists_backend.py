"""A backend over lists of Python numbers, as an example of how to write one: docs/backends.md goes through it."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from rf import BackendError
from rf.backend import Backend, Shape, register_backend


@dataclass(frozen=True)
class Array:
    """`values` are those of all entries, the last axis running fastest."""

    values: list[Any]
    shape: Shape
    dtype: str


def moved(x: Array, move: Callable[..., np.ndarray], *args: Any) -> Array:
    """x with its entries where `move` puts their positions."""
    positions = move(np.arange(len(x.values)).reshape(x.shape), *args)
    return Array([x.values[p] for p in positions.ravel()], positions.shape, x.dtype)


def moving(move: Callable[..., np.ndarray]) -> Any:
    """A kernel that only rearranges entries."""
    return lambda self, x, *args: moved(x, move, *args)


def elementwise(function: Callable[..., Any], dtype: str = "") -> Any:
    """A kernel; operands broadcast. Padding may hold anything, so what is undefined is a value, not an exception."""

    def total(*args: Any) -> Any:
        try:
            return function(*args)
        except (ValueError, ZeroDivisionError, OverflowError) as exc:
            return math.inf if isinstance(exc, OverflowError) else math.nan

    def kernel(self: ListsBackend, *operands: Array) -> Array:
        shape = np.broadcast_shapes(*(x.shape for x in operands))
        rows = zip(*(moved(x, np.broadcast_to, shape).values for x in operands))
        return Array([total(*row) for row in rows], shape, dtype or operands[-1].dtype)

    return kernel


def reduction(function: Callable[[list[Any]], Any], dtype: str = "") -> Any:
    """A kernel that makes one number of the entries along the axes, of which there may be none."""

    def kernel(self: ListsBackend, x: Array, axes: Shape | int) -> Array:
        axes = axes if isinstance(axes, tuple) else (axes,)
        x = moved(x, np.moveaxis, axes, range(-len(axes), 0))
        shape, n = x.shape[: len(x.shape) - len(axes)], math.prod(x.shape[len(x.shape) - len(axes) :])
        rows = [x.values[i * n : (i + 1) * n] for i in range(math.prod(shape))]
        return Array([function(row) for row in rows], shape, dtype or x.dtype)

    return kernel


class ListsBackend(Backend):
    """Forward only. It has the kernels below, and those that the contract derives from them."""

    name = "lists"
    host_only = True
    raw_types = (Array,)

    def shape_of(self, x: Array) -> Shape:
        return x.shape

    def dtype_of(self, x: Array) -> str:
        return x.dtype

    def from_numpy(self, x: np.ndarray, dtype: str, device: str | None = None) -> Array:
        if dtype in ("bfloat16", "complex64", "complex128"):
            raise BackendError(f"backend lists has no {dtype}")
        with np.errstate(all="ignore"):
            return Array(x.astype(dtype).ravel().tolist(), x.shape, dtype)

    def to_numpy(self, x: Array) -> np.ndarray:
        with np.errstate(all="ignore"):
            return np.array(x.values).astype(x.dtype).reshape(x.shape)

    def full(self, shape: Shape, value: Any, dtype: str, device: str | None) -> Array:
        return self.from_numpy(np.full(shape, value), dtype)

    def cast(self, x: Array, dtype: str) -> Array:
        return self.from_numpy(self.to_numpy(x), dtype)

    permute, reshape, expand = moving(np.transpose), moving(np.reshape), moving(np.broadcast_to)
    unsqueeze, squeeze, flip = moving(np.expand_dims), moving(np.squeeze), moving(np.flip)

    def slice(self, x: Array, axis: int, start: int, stop: int, step: int) -> Array:
        return moved(x, lambda p: p[(slice(None),) * axis + (slice(start, stop, step),)])

    def gather(self, source: Array, indices: Array, num_batch: int) -> Array:
        index = self.to_numpy(indices)
        batch = np.indices(index.shape, sparse=True)[:num_batch]
        return moved(source, lambda p: p[(*batch, index)])

    neg, abs, sqrt = elementwise(operator.neg), elementwise(operator.abs), elementwise(math.sqrt)
    exp, tanh, logical_not = elementwise(math.exp), elementwise(math.tanh), elementwise(operator.not_)
    add, sub, mul = elementwise(operator.add), elementwise(operator.sub), elementwise(operator.mul)
    truediv, maximum, minimum = elementwise(operator.truediv), elementwise(max), elementwise(min)
    less, less_equal = elementwise(operator.lt, "bool"), elementwise(operator.le, "bool")
    greater, greater_equal = elementwise(operator.gt, "bool"), elementwise(operator.ge, "bool")
    equal, not_equal = elementwise(operator.eq, "bool"), elementwise(operator.ne, "bool")
    logical_and, logical_or = elementwise(operator.and_), elementwise(operator.or_)
    where = elementwise(lambda condition, x, y: x if condition else y)
    any, all, max = reduction(any), reduction(all), reduction(lambda row: max(row, default=-math.inf))
    sum, mean = reduction(sum), reduction(lambda row: sum(row) / (len(row) or 1))
    argmax = reduction(lambda row: row.index(max(row)) if row else 0, "int32")

    def contract(self, a: Array, b: Array, num_common: int, num_a: int, num_reduce: int, num_b: int) -> Array:
        common, reduced = a.shape[:num_common], a.shape[num_common + num_a :]
        rest_a, rest_b = a.shape[num_common : num_common + num_a], b.shape[num_common + num_reduce :]
        a = self.reshape(a, (*common, math.prod(rest_a), math.prod(reduced), 1))
        b = self.reshape(b, (*common, 1, math.prod(reduced), math.prod(rest_b)))
        return self.reshape(self.sum(self.mul(a, b), (num_common + 1,)), (*common, *rest_a, *rest_b))

    def softmax(self, x: Array, axis: int) -> Array:
        e = self.exp(self.sub(x, self.unsqueeze(self.max(x, (axis,)), (axis,))))
        return self.truediv(e, self.unsqueeze(self.sum(e, (axis,)), (axis,)))


register_backend("lists", ListsBackend)
