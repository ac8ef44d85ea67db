"""Encodings of positions. Those of plain ranges are slices of tables, which are made once and grow when a longer
sequence comes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy

from rf import dtypes, init
from rf._core import Tensor, make_tensor
from rf._dim import Dim, single_step_dim
from rf._errors import DimError, RfError
from rf.backend import Backend, selected_backend
from rf.nn.module import Module
from rf.nn.parameter import Parameter
from rf.ops.concat import concat
from rf.ops.create import convert_to_tensor
from rf.ops.device import copy_to_device, get_default_device
from rf.ops.elementwise import cast, clip_by_value, combine_bc, cos, sin
from rf.ops.index import gather

__all__ = [
    "LearnedRelativePositionalEncoding",
    "relative_positional_encoding",
    "sinusoidal_encoding",
    "sinusoidal_positional_encoding",
]

Offset = int | Tensor | None


class _Table:
    """A raw array of a function of the position, one row for each, and slices of it."""

    def __init__(self, function: Callable[[numpy.ndarray], numpy.ndarray]) -> None:
        self._function = function
        self._first = self._end = 0
        self._raw: Any = None
        self._slices: dict[tuple[int, int | None], Any] = {}

    def slice(self, backend: Backend, first: int, end: int | None, dtype: str, device: str | None) -> Any:
        """Rows of the positions first .. end - 1, as a raw array; without `end` the one of `first`, without an axis."""
        raw = self._slices.get((first, end))
        if raw is None:
            stop = first + 1 if end is None else max(first, end)
            if self._raw is None or first < self._first or stop > self._end:
                self._first = min(self._first, -_power_of_two(-first) if first < 0 else 0)
                self._end = max(self._end, _power_of_two(stop))
                rows = self._function(numpy.arange(self._first, self._end, dtype=numpy.float64))
                self._raw = backend.constant(rows, dtype, device)
                self._slices.clear()
            if end is None:
                raw = backend.kernels["select"](self._raw, 0, first - self._first)
            else:
                raw = backend.kernels["slice"](self._raw, 0, first - self._first, stop - self._first, 1)
            if type(raw) is type(self._raw):  # not something that only stands for an array, while a framework traces
                if len(self._slices) >= 128:
                    self._slices.clear()
                self._slices[first, end] = raw
        return raw


def _power_of_two(n: int) -> int:
    return 1 << max(6, (n - 1).bit_length()) if n > 0 else 1


Key = tuple[Any, ...]
"""What a table holds: ("absolute", feature size, base), ("relative", feature size) or ("clipped", least, greatest)."""

_tables: dict[Any, _Table] = {}
_relative_dims: dict[tuple[int, int, int], Dim] = {}


def _rows(
    key: Key, first: int, end: int | None, dtype: str, device: str | None, backend: Backend | None
) -> tuple[Backend, Any]:
    """`_Table.slice` of the table with this key, by default on the selected backend."""
    backend = backend or selected_backend()
    if not backend.computes:
        return backend, backend.no_value
    full_key = (key, backend.index, dtype, device or get_default_device())
    table = _tables.get(full_key)
    if table is None:
        table = _tables[full_key] = _Table(_function_of(key))
    return backend, table.slice(backend, first, end, dtype, full_key[-1])


def _function_of(key: Key) -> Callable[[numpy.ndarray], numpy.ndarray]:
    if key[0] == "clipped":
        return lambda positions: numpy.clip(positions, key[1], key[2]) - key[1]
    frequencies = _frequencies(key)
    return lambda positions: _sin_cos(positions[:, None] * frequencies)


def _frequencies(key: Key) -> numpy.ndarray:
    """base^(-i / (feat / 2 - 1)) for absolute positions, 10000^(-i / (feat / 2)) for relative ones."""
    half = key[1] // 2
    log_base, steps = (math.log(key[2]), max(1, half - 1)) if key[0] == "absolute" else (math.log(1e4), half)
    return numpy.exp(numpy.arange(half, dtype=numpy.float64) * (-log_base / steps))


def _sin_cos(angles: numpy.ndarray) -> numpy.ndarray:
    return numpy.concatenate([numpy.sin(angles), numpy.cos(angles)], axis=-1)


def _even_size(feat_dim: Dim) -> int:
    size = feat_dim.get_dim_value()
    if size % 2:
        raise DimError(
            f"positional encoding: the size of {feat_dim!r} must be even: one half is sine, the other cosine"
        )
    return size


def _host_values(x: Tensor) -> numpy.ndarray | None:
    """The values of a Tensor that lies on the host, else None: those elsewhere would have to be waited for."""
    return x.numpy() if _on_host(x) else None


def _on_host(x: Tensor) -> bool:
    return x.backend is not None and x.backend.computes and x.device in (None, "cpu")


def _offset_along(dim: Dim | None, first: int, sign: int, offset: numpy.ndarray) -> numpy.ndarray:
    """first + sign * offset, first + sign * offset + 1, ... along `dim`, which becomes the last axis."""
    offset = sign * offset.astype(numpy.int64)
    return offset + first if dim is None else offset[..., None] + numpy.arange(first, first + dim.get_dim_value())


def _look_up(
    key: Key,
    positions: numpy.ndarray,
    dims: Sequence[Dim],
    feat_dim: Dim,
    dtype: str,
    device: str | None,
    backend: Backend | None,
) -> Tensor:
    """The rows of the table at `positions`, whose axes are `dims`."""
    first, end = (int(positions.min()), int(positions.max()) + 1) if positions.size else (0, 1)
    backend, raw = _rows(key, first, end, dtype, device, backend)
    rows = Dim(end - first, name="positions")
    table = make_tensor(backend, raw, (rows, feat_dim), dtype, feat_dim)
    indices = convert_to_tensor(positions - first, dims=dims, dtype="int32", device=device, _backend=backend.name)
    return gather(table, indices=indices, axis=rows)


def _range(dim: Dim, first: int, like: Tensor) -> Tensor:
    """first, first + 1, ... along `dim`, beside `like`."""
    values = numpy.arange(first, first + dim.get_dim_value(), dtype=numpy.int32)
    backend = like.backend.name if like.backend is not None else None
    return convert_to_tensor(values, dims=[dim], device=like.device, _backend=backend)


def _sin_cos_of(key: Key, positions: Tensor, feat_dim: Dim, dtype: str, device: str | None = None) -> Tensor:
    """{...} -> {..., feat}, in float64 until the end, so that far positions are as exact as in the tables."""
    frequencies = _frequencies(key)
    half = Dim(len(frequencies), name="half")
    backend = positions.backend.name if positions.backend is not None else None
    freq = convert_to_tensor(frequencies, dims=[half], dtype="float64", device=positions.device, _backend=backend)
    angles = combine_bc(cast(positions, "float64"), "*", freq)
    out, _ = concat((sin(angles), half), (cos(angles), half), out_dim=feat_dim)
    out = cast(out, dtype)
    out.feature_dim = feat_dim
    return copy_to_device(out, device)


# -- absolute


def sinusoidal_encoding(indices: Tensor, *, feat_dim: Dim, base: float = 1e4, dtype: str | None = None) -> Tensor:
    """Sines, then cosines, of indices * base^(-i / (feat / 2 - 1)), i = 0 .. feat / 2 - 1: {...} -> {..., feat}.

    :param indices: positions, any number dtype.
    :param feat_dim: static, even.
    :param base: ratio of the highest to the lowest frequency.
    :param dtype: default: the default float dtype.

    Source: Vaswani et al. 2017, arXiv:1706.03762, in the form of the tensor2tensor library.
    """
    key = ("absolute", _even_size(feat_dim), base)
    return _sin_cos_of(key, indices, feat_dim, dtype or dtypes.get_default_float_dtype())


def sinusoidal_positional_encoding(
    *,
    spatial_dim: Dim,
    feat_dim: Dim,
    offset: Offset = None,
    base: float = 1e4,
    dtype: str | None = None,
    device: str | None = None,
    _backend: Backend | None = None,
) -> Tensor:
    """`sinusoidal_encoding` of the positions offset, offset + 1, ...: {spatial, feat}.

    :param spatial_dim: the positions go on in its padding. `rf.single_step_dim`: the one position `offset`, without
        that dim.
    :param feat_dim: static, even.
    :param offset: int, or an int Tensor, of which the result has the dims too. Default 0.
    :param base: see `sinusoidal_encoding`.
    :param dtype: default: the default float dtype.
    :param device: default: the default device.

    Raises RfError for a single step without `offset`.
    """
    dtype = dtype or dtypes.get_default_float_dtype()
    single = spatial_dim == single_step_dim
    if single and offset is None:
        raise RfError("sinusoidal_positional_encoding of single_step_dim: give offset, the position of the step")
    key = ("absolute", _even_size(feat_dim), base)
    if isinstance(offset, Tensor) and not offset.dims and _on_host(offset):
        offset = int(offset)
    elif isinstance(offset, Tensor):
        values = _host_values(offset)
        if values is None:
            positions = offset if single else combine_bc(offset, "+", _range(spatial_dim, 0, offset))
            return _sin_cos_of(key, positions, feat_dim, dtype, device)
        dims = offset.dims if single else (*offset.dims, spatial_dim)
        at = _offset_along(None if single else spatial_dim, 0, 1, values)
        return _look_up(key, at, dims, feat_dim, dtype, device, _backend)
    first = offset or 0
    end = None if single else first + spatial_dim.get_dim_value()
    backend, raw = _rows(key, first, end, dtype, device, _backend)
    return make_tensor(backend, raw, (feat_dim,) if single else (spatial_dim, feat_dim), dtype, feat_dim)


def initial_position() -> Tensor:
    """The int32 scalar 0 on the host, also where tensors have no values: positions, like sizes, stay real."""
    backend = selected_backend()
    return convert_to_tensor(0, keep_scalar_on_cpu=True, _backend=backend.name if backend.computes else "numpy")


def call_pos_enc(pos_enc: Callable[..., Tensor], x: Tensor, spatial_dim: Dim, feat_dim: Dim, offset: Offset) -> Tensor:
    """`pos_enc(spatial_dim=, feat_dim=, offset=)`; that of this module is told where `x` lies, too."""
    options: dict[str, Any] = {}
    if getattr(pos_enc, "func", pos_enc) is sinusoidal_positional_encoding:
        options = {"dtype": x.dtype, "device": x.device, "_backend": x.backend}
    return pos_enc(spatial_dim=spatial_dim, feat_dim=feat_dim, offset=offset, **options)


# -- relative


def _relative_dim(num_query: int, num_key: int, offset: int) -> Dim:
    """The dim of the relative positions of these sizes; the same object for the same positions."""
    key = (num_query, num_key, offset)
    dim = _relative_dims.get(key)
    if dim is None:
        if len(_relative_dims) >= 1024:
            _relative_dims.clear()
        dim = _relative_dims[key] = Dim(max(0, num_query + num_key - 1), name="relative-position")
    return dim


def _relative_range(query_spatial_dim: Dim, key_value_spatial_dim: Dim, offset: Offset) -> tuple[int, int, Dim]:
    """(first relative position when the offset is 0, end, the dim of the positions)."""
    num_key = key_value_spatial_dim.get_dim_value()
    if query_spatial_dim == single_step_dim:
        return 0, num_key, key_value_spatial_dim
    num_query = query_spatial_dim.get_dim_value()
    # Positions relative to a Tensor are their own.
    dim = _relative_dim(num_query, num_key, offset if isinstance(offset, int) else -1 if offset is None else -2)
    first = 1 - num_query
    return first, first + max(0, num_query + num_key - 1), dim


def _relative_positions(first: int, dim: Dim, offset: Tensor) -> Tensor:
    return combine_bc(_range(dim, first, offset), "-", offset)


def relative_positional_encoding(
    *,
    query_spatial_dim: Dim,
    key_value_spatial_dim: Dim,
    feat_dim: Dim,
    query_offset: int | Tensor = 0,
    dtype: str | None = None,
    device: str | None = None,
    _backend: Backend | None = None,
) -> tuple[Tensor, Dim]:
    """Sines, then cosines, of the relative positions (key - query), from 1 - n_query to n_key - 1.

    Frequencies are 10000^(-2 i / feat), i = 0 .. feat / 2 - 1. The positions lie along one axis, so query i finds key j
    at index j - i + n_query - 1.

    :param query_spatial_dim: of n_query queries; `rf.single_step_dim` for one.
    :param key_value_spatial_dim: of n_key keys.
    :param feat_dim: static, even.
    :param query_offset: position of the first query, counted from the first key. The result has the dims of a Tensor
        too.
    :param dtype: default: the default float dtype.
    :param device: default: the default device.
    :returns: ({positions, feat}, positions dim). That dim has one size for the whole batch: n_query + n_key - 1 by
        their longest sequences. With one query it is `key_value_spatial_dim` itself.

    Source: Dai et al. 2019, arXiv:1901.02860.
    """
    dtype = dtype or dtypes.get_default_float_dtype()
    first, end, dim = _relative_range(query_spatial_dim, key_value_spatial_dim, query_offset)
    key = ("relative", _even_size(feat_dim))
    if isinstance(query_offset, Tensor):
        values = _host_values(query_offset)
        if values is None:
            return _sin_cos_of(key, _relative_positions(first, dim, query_offset), feat_dim, dtype, device), dim
        at, dims = _offset_along(dim, first, -1, values), (*query_offset.dims, dim)
        return _look_up(key, at, dims, feat_dim, dtype, device, _backend), dim
    first, end = first - query_offset, end - query_offset
    backend, raw = _rows(key, first, end, dtype, device, _backend)
    return make_tensor(backend, raw, (dim, feat_dim), dtype, feat_dim), dim


class LearnedRelativePositionalEncoding(Module):
    """A learned vector for each distance between a key and a query, up to a greatest one.

    Parameter: `pos_emb` {2 * clipping + 1, feat} ({clipping + 1, feat} if causal), the farthest key on the left first.
    Source: Shaw et al. 2018, arXiv:1803.02155.
    """

    def __init__(self, feat_dim: Dim, *, clipping: int = 16, dtype: str | None = None, causal: bool = False) -> None:
        """
        :param feat_dim: static.
        :param clipping: greatest distance; farther keys count as being there.
        :param dtype: of the vectors; default: the default float dtype.
        :param causal: keys right of the query share the vector of distance 0.
        """
        super().__init__()
        self.feat_dim = feat_dim
        self.clipping = clipping
        self.causal = causal
        self.clipped_spatial_dim = Dim(clipping + 1 if causal else 2 * clipping + 1, name="clipped-relative-position")
        dims = (self.clipped_spatial_dim, feat_dim)
        self.pos_emb = Parameter(dims, dtype, initial=init.Normal(max(1, feat_dim.get_dim_value()) ** -0.5))
        self.pos_emb.feature_dim = feat_dim

    def __call__(
        self, *, query_spatial_dim: Dim, key_value_spatial_dim: Dim, query_offset: Offset = None
    ) -> tuple[Tensor, Dim]:
        """Arguments and result as those of `relative_positional_encoding`."""
        offset = 0 if query_offset is None else query_offset
        first, end, dim = _relative_range(query_spatial_dim, key_value_spatial_dim, offset)
        if isinstance(offset, Tensor):
            indices = self._clipped(copy_to_device(_relative_positions(first, dim, offset), self.pos_emb.device))
        else:
            key = ("clipped", -self.clipping, 0 if self.causal else self.clipping)
            backend, raw = _rows(key, first - offset, end - offset, "int32", self.pos_emb.device, self.pos_emb.backend)
            indices = make_tensor(backend, raw, (dim,), "int32", None, self.clipped_spatial_dim)
        return gather(self.pos_emb, indices=indices, axis=self.clipped_spatial_dim), dim

    def full_matrix(self, *, query_spatial_dim: Dim, key_value_spatial_dim: Dim, query_offset: Offset = None) -> Tensor:
        """The vectors for each query and key, {query, key, feat}; with one query {key, feat}. Arguments as for a
        call.
        """
        positions = _range(key_value_spatial_dim, 0, self.pos_emb)
        if query_spatial_dim != single_step_dim:
            positions = combine_bc(positions, "-", _range(query_spatial_dim, 0, self.pos_emb))
        if query_offset is not None:
            positions = combine_bc(positions, "-", query_offset)
        return gather(self.pos_emb, indices=self._clipped(positions), axis=self.clipped_spatial_dim)

    def _clipped(self, positions: Tensor) -> Tensor:
        positions = clip_by_value(positions, -self.clipping, 0 if self.causal else self.clipping) + self.clipping
        positions.sparse_dim = self.clipped_spatial_dim
        return positions
