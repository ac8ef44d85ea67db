"""What a sample is, and how it is run.

A sample is one line: an op, its operands in a small notation, its other arguments, and what is special about it.

    S("reduce_mean", "B T F", axis="T", out="B F", masked=True, ref=lambda x: x.mean(1))
    S("gather", "V F", "B T:int32>V", axis="V", out="B T F")

An operand is ``name=DIMS:dtype>SPARSE~kind``, all but DIMS optional: dims are capital letters (a `*` in front marks
the feature dim), `name` passes it as a keyword, `kind` says which values it holds (see `_values`). Capital letters in
other arguments mean dims too; an argument that is a lambda is called with the dims (``lambda d: d.T + 1``).

The dims: B is the batch, T and U are dynamic over B (lengths differ), W is dynamic over B and T (ragged in two ways),
C is dynamic over T (a history), N is dynamic with one length for everybody; all others are static.
"""

from __future__ import annotations

import contextlib
import functools
import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import rf
from conformance.compare import State, align, freeze, leaves

STATIC = {"F": 2, "G": 3, "V": 5, "H": 2, "D": 4, "K": 3, "E": 1, "P": 6}
T_SIZES = (4, 2, 3, 6, 1)
U_SIZES = (2, 3, 1, 4, 5)
W_SIZES = ((2, 1, 3, 1, 2, 1), (1, 2, 1, 3, 1, 2), (3, 1, 2, 1, 1, 2), (1, 1, 2, 3, 2, 1), (2, 2, 1, 1, 3, 1))
N_SIZE = 3
DYNAMIC = {"T": "B", "U": "B", "W": "BT", "C": "T"}
"""Dims with lengths -> what these depend on."""
EXTENTS = {**STATIC, "B": 5, "T": 6, "U": 6, "W": 3, "C": 6, "N": N_SIZE}
"""Data is drawn once, for the largest batch, and then cut: an entry of the batch always holds the same."""


@dataclass(frozen=True)
class Batch:
    """Which of the five sequences make the batch, and which of them are cut to zero length.

    :param padded: one raw axis longer than the longest sequence cannot be had, so padding is made by longer sequences
    :param full: all sequences are as long as the longest: there is no padding
    :param static: T and U are static dims
    """

    rows: tuple[int, ...]
    zero: tuple[int, ...] = ()
    full: bool = False
    static: bool = False


BATCHED = Batch((0, 1, 2))
WIDER = Batch((0, 1, 2, 3))
STATIC_TIME = Batch((0, 1), full=True, static=True)
FULL_TIME = Batch((0, 1), full=True)
WITH_ZERO = Batch((0, 1, 2), zero=(1,))
ALL_ZERO = Batch((0, 1), zero=(0, 1))
EMPTY = Batch(())


class Dims:
    """The dims of one run, as attributes: ``d.T``."""

    def __init__(self, batch: Batch):
        self._batch = batch
        self.known: dict[str, rf.Dim] = {}

    def __getattr__(self, name: str) -> rf.Dim:
        if not re.fullmatch("[A-Z]", name):
            raise AttributeError(name)
        if name not in self.known:
            self.known[name] = self._make(name)
        return self.known[name]

    def _make(self, name: str) -> rf.Dim:
        rows = list(self._batch.rows)
        if name in STATIC:
            return rf.Dim(STATIC[name], name=name)
        dim = rf.Dim(None, name=name)
        if name == "B":
            return dim.fill(len(rows))
        if name == "N":
            return dim.fill(N_SIZE)
        if name in "TU":
            sizes = self.lengths(name)
            if self._batch.static:
                return rf.Dim(max(sizes), name=name)
            return dim.fill(sizes, [self.B])
        longest = max(self.lengths("T"), default=0)
        if name == "C":
            return dim.fill(np.arange(1, longest + 1), [self.T])
        assert name == "W", f"no dim {name} is known; see the top of this file"
        return dim.fill(np.array(W_SIZES)[rows, :longest].reshape(len(rows), longest), [self.B, self.T])

    def lengths(self, name: str) -> list[int]:
        """Sizes of T or U."""
        sizes = {"T": T_SIZES, "U": U_SIZES}[name]
        out = [0 if row in self._batch.zero else sizes[row] for row in self._batch.rows]
        return [max(out)] * len(out) if self._batch.full else out

    def resolve(self, value: Any) -> Any:
        """An argument of a sample with dims in the place of capital letters."""
        if isinstance(value, str) and re.fullmatch("[A-Z]", value):
            return getattr(self, value)
        if isinstance(value, (tuple, list)):
            return type(value)(self.resolve(v) for v in value)
        if isinstance(value, dict):
            return {k: self.resolve(v) for k, v in value.items()}
        return value(self) if getattr(value, "__name__", "") == "<lambda>" else value


@dataclass(frozen=True)
class Operand:
    """One operand of a sample, parsed."""

    dims: tuple[str, ...]
    dtype: str
    name: str = ""
    feature: str = ""
    sparse: str = ""
    kind: str = ""

    @classmethod
    def parse(cls, text: str, default: str) -> Operand:
        """See the top of this file for the notation."""
        match = re.fullmatch(r"(?:(\w+)=)?([*A-Z ]*)(?::(\w+))?(?:>([A-Z]))?(?:~(\w+))?", text)
        assert match, f"operand {text!r}: not of the form name=DIMS:dtype>SPARSE~kind"
        name, dims, dtype, sparse, kind = match.groups(default="")
        feature = re.search(r"\*([A-Z])", dims)
        dtype = dtype or ("int32" if sparse else default)
        letters = tuple(re.findall("[A-Z]", dims))
        return cls(letters, dtype, name, feature[1] if feature else "", sparse, kind)

    @property
    def is_float(self) -> bool:
        """Whether gradients can reach it."""
        return "float" in self.dtype

    @property
    def indexes(self) -> str:
        """The dim that the values index, if they do."""
        return self.sparse or (self.kind[-1] if self.kind.startswith("index") else "")

    def short(self) -> str:
        """For the id of the sample."""
        return ("".join(self.dims) or "scalar") + (f":{self.dtype}" if self.dtype != "float32" else "")

    def permuted(self, how: int) -> Operand:
        """The same with its dims in another order: 0 as they are, 1 reversed, 2 rotated."""
        dims = (self.dims, self.dims[::-1], self.dims[1:] + self.dims[:1])[how]
        return replace(self, dims=dims)


@dataclass(frozen=True)
class Result:
    """What a sample says of its first result: ``DIMS:dtype>SPARSE``, with a `*` before the feature dim."""

    dims: tuple[str, ...]
    dtype: str
    sparse: str | None
    feature: str | None

    @classmethod
    def parse(cls, text: str) -> Result:
        """See the class."""
        match = re.fullmatch(r"([^:>]*)(?::(\w+))?(?:>(\S+))?", text)
        assert match, f"out={text!r}: not of the form DIMS:dtype>SPARSE"
        names = match[1].split()
        feature = next((n[1:] for n in names if n.startswith("*")), None)
        return cls(tuple(n.removeprefix("*") for n in names), match[2] or "", match[3], feature)


@dataclass(frozen=True)
class Sample:
    """See the top of this file, and `S` for the fields."""

    op: str
    operands: tuple[Operand, ...]
    args: Mapping[str, Any]
    id: str
    call: Callable[..., Any] | None
    out: Result | None
    ref: Callable[..., Any] | None
    masked: str
    grad: bool
    alone: bool
    wider: bool
    poison: bool
    zero: bool
    empty: bool
    order: bool
    static: bool
    values: bool
    needs_values: bool
    no_backend: tuple[str, ...]
    light: bool

    def __str__(self) -> str:
        return self.id

    @property
    def dtype(self) -> str:
        """The dtype of the first float operand, for choosing a tolerance."""
        return next((o.dtype for o in self.operands if o.is_float), "float32")

    @property
    def dynamic(self) -> bool:
        """Whether lengths matter anywhere."""
        return any(set(o.dims) & set(DYNAMIC) for o in self.operands)

    def as_float64(self) -> Sample:
        """The same with float64 operands."""
        operands = tuple(replace(o, dtype="float64") if o.is_float else o for o in self.operands)
        return replace(self, operands=operands)


def S(
    op: str,
    *operands: str,
    id: str = "",
    call: Callable[..., Any] | None = None,
    out: str | None = None,
    ref: Callable[..., Any] | None = None,
    dtype: str = "float32",
    masked: bool | str = False,
    grad: bool | None = None,
    alone: bool = True,
    wider: bool | None = None,
    poison: bool = True,
    zero: bool = True,
    empty: bool = True,
    order: bool = True,
    static: bool = True,
    values: bool = True,
    needs_values: bool = False,
    no_backend: Sequence[str] = (),
    light: bool = False,
    **args: Any,
) -> Sample:
    """A sample.

    :param op: name of the function in `rf`; with `call`, the name that it covers
    :param operands: see the top of this file
    :param id: tells apart samples that would have the same id
    :param call: ``call(dims, *operands, **args)`` instead of ``rf.<op>(*operands, **args)``
    :param out: dims, dtype, sparse and feature dim of the first result, see `Result`; when given, these are checked
    :param ref: NumPy function of the operands' arrays, without padding; its axes are those of `out`
    :param dtype: default dtype of the operands
    :param masked: the op is aware of the lengths of all dynamic dims, or of those given ("TU"): what their padding
        holds must not reach anything, also not in gradients
    :param grad: whether gradients are compared; default: when an operand is float
    :param alone: each sequence alone gives the same as in the batch
    :param wider: a longer sequence in the batch changes nothing for the others; default as `alone`
    :param poison: what the padding holds does not matter at valid frames (False where masking is switched off)
    :param zero: sequences of length 0 are allowed
    :param empty: a batch of no sequences is allowed
    :param order: the order of dims of the operands does not matter
    :param static: makes sense with static T
    :param values: the values are determined (False for random numbers)
    :param needs_values: cannot run on meta: raises BackendError there
    :param no_backend: backends that have no such op (dtype not supported)
    :param light: check only the result: another sample, say of another dtype, is checked in full
    :param args: further arguments
    """
    parsed = tuple(Operand.parse(o, dtype) for o in operands)
    parts = [op, *(o.short() for o in parsed)]
    parts += [f"{k}={_short(v)}" for k, v in args.items() if not callable(v)]
    name = "-".join([*parts, *([id] if id else [])])
    sample = Sample(
        op=op,
        operands=parsed,
        args=args,
        id=name,
        call=call,
        out=None if out is None else Result.parse(out),
        ref=ref,
        masked="".join(DYNAMIC) if masked is True else masked or "",
        grad=any(o.is_float for o in parsed) and values if grad is None else grad,
        alone=alone,
        wider=alone if wider is None else wider,
        poison=poison,
        zero=zero,
        empty=empty,
        order=order and any(len(o.dims) > 1 for o in parsed),
        static=static and not any(set(o.dims) & set("WC") for o in parsed),
        values=values,
        needs_values=needs_values,
        no_backend=tuple(no_backend),
        light=light,
    )
    off = ("grad", "alone", "wider", "poison", "zero", "empty", "order")
    return replace(sample, **dict.fromkeys(off, False)) if light else sample  # type: ignore[arg-type]


def for_dtypes(dtypes: str, *args: Any, **kwargs: Any) -> list[Sample]:
    """The same sample once per dtype in the space-separated list `dtypes`."""
    return [S(*args, dtype=dtype, **kwargs) for dtype in dtypes.split()]


def _short(value: Any) -> str:
    if isinstance(value, (tuple, list)):
        return "+".join(map(_short, value))
    if isinstance(value, dict):
        return "+".join(f"{k}{_short(v)}" for k, v in value.items())
    return str(value).replace(" ", "")


# -- running


@dataclass
class Run:
    """One call of a sample.

    :param result: the frozen results
    :param raws: the raw operands
    :param tensors: the tensors among the results, not frozen
    :param recording: ends when the run is dropped: what is computed until then may be differentiated
    """

    dims: Dims
    result: list[State]
    raws: list[Any]
    tensors: list[rf.Tensor]
    recording: contextlib.ExitStack


def run(
    sample: Sample,
    backend: str,
    batch: Batch,
    *,
    order: int = 0,
    poison: bool = False,
    arrays: Sequence[np.ndarray] | None = None,
    requires_grad: bool = False,
) -> Run:
    """Call the op of `sample` on `backend`.

    :param order: order of the operands' dims, see `Operand.permuted`
    :param poison: padding holds NaN and infinities (other valid values for integers)
    :param arrays: values of the operands, axes in their order in the sample, instead of the usual ones
    :param requires_grad: the float operands are leaves that gradients can be asked of, until the next such call
    """
    with rf.use_backend(backend):
        dims = Dims(batch)
        raws, operands, recording = [], [], contextlib.ExitStack()
        if requires_grad:
            recording.enter_context(rf.get_backend(backend).recording())
        for i, operand in enumerate(sample.operands):
            array = operand_array(sample, i, batch, poison=poison) if arrays is None else arrays[i]
            permuted = operand.permuted(order)
            array = array.transpose([operand.dims.index(n) for n in permuted.dims])
            # Rotated dims come with axes that do not lie in memory in their order, as after a permutation.
            raw = to_raw(backend, np.array(array, order="K" if order == 2 else "C"), operand.dtype)
            if requires_grad and operand.is_float:
                raw = rf.get_backend(backend).set_requires_gradient(raw)
            raws.append(raw)
            operands.append(to_tensor(permuted, raw, dims))
        positional = [t for o, t in zip(sample.operands, operands) if not o.name]
        keyword = {o.name: t for o, t in zip(sample.operands, operands) if o.name}
        keyword |= {k: dims.resolve(v) for k, v in sample.args.items()}
        if sample.call is None:
            result = getattr(rf, sample.op)(*positional, **keyword)
        else:
            result = sample.call(dims, *positional, **keyword)
        tensors = [x for x in leaves(result) if isinstance(x, rf.Tensor)]
        return Run(dims, freeze(result, dims.known), raws, tensors, recording)


def to_tensor(operand: Operand, raw: Any, dims: Dims) -> rf.Tensor:
    """The operand as a Tensor."""
    return rf.Tensor(
        operand.name or "x",
        [getattr(dims, n) for n in operand.dims],
        operand.dtype,
        raw_tensor=raw,
        feature_dim=getattr(dims, operand.feature) if operand.feature else None,
        sparse_dim=getattr(dims, operand.sparse) if operand.sparse else None,
    )


def to_raw(backend: str, array: np.ndarray, dtype: str) -> Any:
    """A fresh raw array of `backend`."""
    if backend == "torch":
        import torch

        return torch.tensor(array, dtype=getattr(torch, dtype))
    if backend == "meta":
        return rf.get_backend("meta").no_value
    if backend == "numpy":
        return np.array(array, dtype=dtype)
    return rf.get_backend(backend).from_numpy(array, dtype)


# -- data


def operand_array(sample: Sample, index: int, batch: Batch, *, poison: bool = False) -> np.ndarray:
    """Values of operand `index`, axes in the order of the sample; with `poison`, the worst in the padding."""
    operand = sample.operands[index]
    dims = Dims(batch)
    rows = list(batch.rows)
    array = _drawn(sample.op, index, operand)
    for axis, n in enumerate(operand.dims):
        array = (
            array.take(rows, axis=axis) if n == "B" else array.take(range(getattr(dims, n).get_dim_value()), axis=axis)
        )
    if operand.indexes:
        array = _wrap_indices(array, operand, dims)
    if poison:
        mask = valid_part(operand, dims)
        array = np.where(mask, array, _poison(array, operand, dims))
    return array


def valid_part(operand: Operand, dims: Dims, among: str = "TUWC") -> np.ndarray:
    """Where the operand is not padding of the dims `among`. Written anew, so that rf's masks are tested, not used."""
    sizes = {n: getattr(dims, n).get_sizes() for n in operand.dims}
    shape = tuple(sizes[n].extent for n in operand.dims)
    out = np.ones(shape, dtype=bool)
    for axis, n in enumerate(operand.dims):
        over = DYNAMIC.get(n, "")
        if n in among and sizes[n].dims and set(over) <= set(operand.dims):
            lengths = align(sizes[n].values, [operand.dims.index(o) for o in over], len(shape))
            positions = np.arange(shape[axis]).reshape([-1 if a == axis else 1 for a in range(len(shape))])
            out &= positions < lengths
    return out


@functools.cache
def _drawn(op: str, index: int, operand: Operand) -> np.ndarray:
    # named by what it is, so that samples do not change when others are added
    seed = zlib.crc32(f"{op} {index} {operand.kind}".encode())
    shape = tuple(EXTENTS[n] for n in operand.dims)
    return _values(np.random.default_rng(seed), shape, operand)


def _values(rng: np.random.Generator, shape: tuple[int, ...], operand: Operand) -> np.ndarray:
    """Values of a kind.

    Default: floats in -2 .. 2 that keep 0.1 away from all multiples of 1/4 (kinks of |x|, relu, floor, ...); integers
    in -4 .. 4 without 0; bools. "pos": positive. "unit": in -1 .. 1. "prob": positive, sums to 1 over the last dim.
    "count": integers 0 .. 3. "wide": floats up to +-50. "coarse": whole numbers, so that equal ones occur. "half":
    halves between whole numbers. "indexV": indices into dim V like those of a sparse dim, but without that mark.
    """
    if operand.dtype == "bool":
        return rng.random(shape) < 0.5
    if operand.kind == "count":
        return rng.integers(0, 4, shape).astype(operand.dtype)
    if operand.indexes:
        return rng.integers(0, 10_000, shape).astype(operand.dtype)
    if "int" in operand.dtype:
        low = 1 if operand.dtype == "uint8" or operand.kind == "pos" else -4
        values = rng.integers(low, 5, shape)
        return np.where(values == 0, 3, values).astype(operand.dtype)
    values = rng.integers(-8, 8, shape) / 4 + 0.1 + 0.05 * rng.random(shape)
    if operand.kind == "pos":
        values = np.abs(values) + 0.1
    elif operand.kind == "unit":
        values = values / 2.2
    elif operand.kind == "wide":
        values = values * 25
    elif operand.kind == "coarse":
        values = np.round(values)
    elif operand.kind == "half":
        values = np.floor(values) + 0.5
    elif operand.kind == "prob":
        values = np.exp(values) / np.exp(values).sum(-1, keepdims=True)
    else:
        assert operand.kind == "", f"no kind {operand.kind!r} of values"
    if "complex" in operand.dtype:
        values = values + 1j * np.roll(values, 1)
    if operand.dtype == "bfloat16":
        # rounded as bfloat16 would: NumPy, the reference, holds it as float32
        bits = values.astype(np.float32).view(np.uint32)
        return (bits & np.uint32(0xFFFF0000)).view(np.float32)
    return values.astype(operand.dtype)


def _wrap_indices(array: np.ndarray, operand: Operand, dims: Dims) -> np.ndarray:
    """Bring integers into the range of the dim that they index: below the size of each sequence."""
    sizes = getattr(dims, operand.indexes).get_sizes()
    if not sizes.dims:
        return (array % max(sizes.extent, 1)).astype(operand.dtype)
    names = [next(n for n in dims.known if dims.known[n] is d) for d in sizes.dims]
    if not set(names) <= set(operand.dims):
        # one index for all sequences: below the shortest
        return (array % max(int(sizes.values.min(initial=1)), 1)).astype(operand.dtype)
    lengths = align(np.maximum(sizes.values, 1), [operand.dims.index(n) for n in names], array.ndim)
    return (array % lengths).astype(operand.dtype)


def _poison(array: np.ndarray, operand: Operand, dims: Dims) -> np.ndarray:
    """What padding holds in the worst case."""
    if operand.dtype == "bool":
        return ~array
    if operand.indexes:
        return _wrap_indices(array + 1, operand, dims)
    if "int" in operand.dtype:
        return np.full_like(array, np.iinfo(array.dtype).max)
    bad = np.array([np.nan, np.inf, -np.inf])
    return bad[np.arange(array.size).reshape(array.shape) % 3].astype(array.dtype)
