"""Kernels of the TensorFlow backend that look up, scatter or order values."""

# pyright: reportMissingModuleSource=false

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from rf.backend import Raw
from rf.backends._tensorflow_fast import OtherKernels, fast, ints, stop_recording, with_gradient

_INT32, _INT64 = tf.int32.as_datatype_enum, tf.int64.as_datatype_enum

_gather = fast("GatherV2", "batch_dims")
_reshape, _transpose = fast("Reshape"), fast("Transpose")
_segment_sum = fast("UnsortedSegmentSum")
_range, _fill = fast("Range"), fast("Fill")
_add, _mul, _neg, _sub = fast("AddV2"), fast("Mul"), fast("Neg"), fast("Sub")
_is_nan, _any, _select = fast("IsNan"), fast("Any", keep_dims=False), fast("SelectV2")
_top_k = fast("TopKV2", sorted=True, index_type=_INT32)
_bounds = fast("LowerBound", out_type=_INT32), fast("UpperBound", out_type=_INT32)
_expand = fast("BroadcastTo")
_cast = fast("Cast", "DstT", Truncate=False)
_scatter = {mode: fast(f"TensorScatter{op}") for mode, op in (("sum", "Add"), ("max", "Max"), ("min", "Min"))}


class IndexKernels(OtherKernels):
    """Mixed into `rf.backends.tensorflow.TensorFlowBackend`."""

    def gather(self, source: Raw, indices: Raw, num_batch: int) -> Raw:
        if self.dtype_of(indices) not in ("int32", "int64"):
            indices = _cast(indices, _INT32)

        # TensorFlow's own gradient is slow: many ops with batch axes, else an object of its own kind.
        def backward(source: Raw, indices: Raw, _y: Raw, g: Raw) -> Sequence[Raw | None]:
            shape = self.shape_of(source)
            rows, size, rest = math.prod(shape[:num_batch]), shape[num_batch], shape[num_batch + 1 :]
            index = _reshape(indices, ints((rows, _size(indices, rows))))
            flat = _reshape(_row_offsets(index, rows, size) if rows != 1 else index, ints((-1,)))
            g = _reshape(g, ints((_size(indices, 1), math.prod(rest))))
            return _reshape(_segment_sum(g, flat, ints(rows * size)), ints(shape)), None

        def forward(source: Raw, indices: Raw) -> Raw:
            return _gather(source, indices, ints(num_batch), num_batch)

        return with_gradient((source, indices), forward, backward)

    def scatter(
        self, x: Raw, indices: Raw, num_batch: int, num_index: int, size: int, mode: str, initial: float
    ) -> Raw:
        shape = self.shape_of(x)
        batch, rest = shape[:num_batch], shape[num_batch + num_index :]
        rows, per_row = math.prod(batch), math.prod(shape[num_batch : num_batch + num_index])
        index = _reshape(_cast(indices, _INT32), ints((rows, per_row)))
        index = _reshape(_row_offsets(index, rows, size), ints((rows * per_row, 1)))
        flat = _reshape(x, ints((rows * per_row, math.prod(rest))))
        out = _fill(ints((rows * size, math.prod(rest))), self._like(x, initial))
        if rows * per_row * math.prod(rest):
            out = _scatter[mode](out, index, flat)
        return _reshape(out, ints((*batch, size, *rest)))

    def sort(self, x: Raw, axis: int, descending: bool) -> tuple[Raw, Raw]:
        return self._largest(x, axis, self.shape_of(x)[axis], descending)

    def top_k(self, x: Raw, axis: int, k: int, in_order: bool) -> tuple[Raw, Raw]:
        return self._largest(x, axis, k, True)

    def _largest(self, x: Raw, axis: int, k: int, descending: bool) -> tuple[Raw, Raw]:
        """The k largest (smallest) in order, the first of equal ones first, NaN being larger than anything."""
        rank = len(self.shape_of(x))
        perm = (*(i for i in range(rank) if i != axis), axis)
        moved = x if axis == rank - 1 else _transpose(x, ints(perm))
        with stop_recording():
            key = moved if descending else self._reversed(moved)
            if "float" in self.dtype_of(x) and _any(_is_nan(key), ints(tuple(range(rank)))):
                order = _order_with_nan(self, key, descending)
                indices = self.slice(order, rank - 1, 0, k, 1)
            else:
                indices = _top_k(key, ints(k))[1]
        values = self.gather(moved, indices, rank - 1)
        if axis != rank - 1:
            back = ints(tuple(perm.index(i) for i in range(rank)))
            values, indices = _transpose(values, back), _transpose(indices, back)
        return values, indices

    def _reversed(self, x: Raw) -> Raw:
        """Numbers in the opposite order."""
        return _neg(x) if "float" in self.dtype_of(x) else _sub(self._like(x, -1), x)

    def search_sorted(self, sorted_: Raw, values: Raw, num_batch: int, right: bool) -> Raw:
        table, each = self.shape_of(sorted_), self.shape_of(values)
        batch = tuple(m if n == 1 else n for n, m in zip(table[:num_batch], each[:num_batch]))
        rows, rest, n = math.prod(batch), each[num_batch:], table[-1]
        table = _reshape(_expand(sorted_, ints((*batch, n))), ints((rows, n)))
        flat = _reshape(_expand(values, ints((*batch, *rest))), ints((rows, math.prod(rest))))
        return _reshape(_bounds[right](table, flat), ints((*batch, *rest)))


def _size(x: Raw, divisor: int) -> int:
    return math.prod(x._shape_tuple()) // max(divisor, 1)


def _row_offsets(index: Raw, rows: int, size: int) -> Raw:
    """(rows, n), each row beginning where that of the row before ends."""
    offsets = _mul(_range(ints(0), ints(rows), ints(1)), ints(size))
    offsets = _reshape(offsets, ints((rows, 1)))
    return _add(index, offsets if index._datatype_enum() == _INT32 else _cast(offsets, _INT64))


def _order_with_nan(kernels: Any, key: Raw, descending: bool) -> Raw:
    """The order of all entries of the last axis, by `key`, NaN first (`descending`) or last."""
    rank, n = len(kernels.shape_of(key)), kernels.shape_of(key)[-1]
    nan = _is_nan(key)
    order = _top_k(_select(nan, kernels._like(key, math.inf if descending else -math.inf), key), ints(n))[1]
    flags = _gather(nan, order, ints(rank - 1), rank - 1)
    if not descending:
        flags = kernels.logical_not(flags)
    then = _top_k(_cast(flags, _INT32), ints(n))[1]
    return _gather(order, then, ints(rank - 1), rank - 1)
