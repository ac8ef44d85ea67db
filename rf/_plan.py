"""Plans: what an op does to its operands, worked out once per structure of their dims.

A plan refers to dims by number. While the key of a call is made, every distinct dim that occurs in the operands gets
the next number; the plan says "output axis 0 is dim 2", never which Dim object or which size that is. So one plan
serves every batch, every new Dim, and every layer of the same structure.

A plan is a straight-line program over *slots*. Slots 0..n-1 are the operands, then come the auxiliary arrays that dims
own (masks, lengths), then one slot per result of each instruction. Both cores run such programs; only planners
(`rf/ops`) write them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from rf._errors import DimError

if TYPE_CHECKING:
    from rf._core import Tensor
    from rf._dim import Dim

PRIORITY_SHIFT = 4  # a dim in a plan is `number | match_priority << PRIORITY_SHIFT`
MAX_DISTINCT_DIMS = 16


class Instr(NamedTuple):
    """`slots[...] = kernel(*[slots[i] for i in slots], *static)`; slot -1 stands for an operand that is None."""

    kernel: str
    slots: tuple[int, ...]
    static: tuple[Any, ...] = ()
    num_out: int = 1


class Aux(NamedTuple):
    """An array owned by a dim's filling (see `Dim.auxiliary`), laid out by `pattern` for broadcasting."""

    kind: str
    dim: int
    pattern: tuple[int, ...]
    dtype: str


class Out(NamedTuple):
    """One result: where it lies and which dims it has. `like >= 0` reuses the dims tuple of that operand."""

    slot: int
    dims: tuple[int, ...]
    like: int
    dtype: str
    feature: int
    sparse: int


@dataclass(slots=True)
class Plan:
    """A program and the description of its results."""

    num_inputs: int
    aux: tuple[Aux, ...]
    instrs: tuple[Instr, ...]
    outs: tuple[Out, ...]
    single: bool


class PlanBuilder:
    """Writes one plan. Planners speak of Dim objects; the builder turns them into numbers."""

    def __init__(self, args: Sequence[Any], num_tensors: int, distinct: Sequence[Dim]):
        self.tensors: list[Tensor | None] = list(args[:num_tensors])
        self._distinct = list(distinct)
        self._aux: list[Aux] = []
        self._instrs: list[list[Any]] = []
        self._num_results = 0

    # -- reading

    def number(self, dim: Dim) -> int:
        """The number of `dim` in this plan."""
        base = dim.base
        for i, other in enumerate(self._distinct):
            if other is base:
                return i | dim.match_priority << PRIORITY_SHIFT
        raise AssertionError(f"{dim!r} does not occur in the operands")

    # -- writing

    def emit(self, kernel: str, *slots: int | _Slot, static: tuple[Any, ...] = (), num_out: int = 1) -> Any:
        """Append an instruction; returns its result slot (a tuple of slots when num_out > 1)."""
        self._instrs.append([kernel, slots, static, num_out])
        first = self._num_results
        self._num_results += num_out
        if num_out == 1:
            return _Slot("r", first)
        return tuple(_Slot("r", first + i) for i in range(num_out))

    def auxiliary(self, kind: str, dim: Dim, pattern: tuple[int, ...], dtype: str) -> _Slot:
        """An array of the dim's filling."""
        aux = Aux(kind, self.number(dim), pattern, dtype)
        if aux not in self._aux:
            self._aux.append(aux)
        return _Slot("a", self._aux.index(aux))

    def mask(self, dim: Dim, order: Sequence[Dim], keep_leading: bool = False) -> _Slot:
        """The bool mask of `dim`, broadcastable against a raw array whose axes are `order`; its size dims must be in
        `order`.

        `keep_leading`: the mask has all axes of `order`, also leading ones of length 1.
        """
        pattern = mask_pattern((*(dim.base.size_dims or ()), dim), order)
        if keep_leading:
            pattern = (-1,) * (len(order) - len(pattern)) + pattern
        return self.auxiliary("mask", dim, pattern, "bool")

    def lengths(self, dim: Dim, order: Sequence[Dim], dtype: str) -> _Slot:
        """The sizes of `dim` as `dtype`, at least 1, broadcastable against axes `order`."""
        return self.auxiliary("lengths", dim, mask_pattern(dim.base.size_dims or (), order), dtype)

    def align(self, slot: int | _Slot, dims: Sequence[Dim], order: Sequence[Dim]) -> int | _Slot:
        """Permute and insert axes of length 1 so that an array over `dims` broadcasts against axes `order`."""
        where = [_index(d, dims) for d in order]
        present = [i for i in where if i >= 0]
        assert len(present) == len(dims), (dims, order)
        if present != sorted(present):
            slot = self.emit("permute", slot, static=(tuple(present),))
        first = next((j for j, i in enumerate(where) if i >= 0), len(where))
        new_axes = tuple(j - first for j in range(first, len(where)) if where[j] < 0)
        if new_axes:
            slot = self.emit("unsqueeze", slot, static=(new_axes,))
        return slot

    def permute(self, slot: int | _Slot, dims: Sequence[Dim], order: Sequence[Dim]) -> int | _Slot:
        """Bring an array over `dims` into `order` (the same dims)."""
        perm = tuple(_index(d, dims) for d in order)
        return slot if perm == tuple(range(len(perm))) else self.emit("permute", slot, static=(perm,))

    def cast(self, slot: int | _Slot, have: str, want: str) -> int | _Slot:
        """Convert to dtype `want` when it differs."""
        return slot if have == want else self.emit("cast", slot, static=(want,))

    # -- closing

    def out(
        self,
        slot: int | _Slot,
        dims: Sequence[Dim],
        dtype: str,
        feature_dim: Dim | None = None,
        sparse_dim: Dim | None = None,
    ) -> Out:
        """Describe one result."""
        numbers = tuple(self.number(d) for d in dims)
        like = -1
        for i, t in enumerate(self.tensors):
            if t is not None and len(t.dims) == len(dims) and all(same(x, y) for x, y in zip(t.dims, dims)):
                like = i
                break
        feature = -1
        if feature_dim is not None and any(d.base is feature_dim.base for d in dims):
            feature = self.number(feature_dim) & (MAX_DISTINCT_DIMS - 1)
        sparse = -1 if sparse_dim is None else self.number(sparse_dim) & (MAX_DISTINCT_DIMS - 1)
        return Out(slot, numbers, like, dtype, feature, sparse)  # type: ignore[arg-type]

    def finish(self, *outs: Out, single: bool | None = None) -> Plan:
        """The finished plan; `single` says whether the call returns one Tensor (default: when there is one result)."""
        num_inputs, num_aux = len(self.tensors), len(self._aux)

        def number(slot: int | _Slot) -> int:
            if isinstance(slot, int):
                return slot
            return num_inputs + slot.index + (num_aux if slot.space == "r" else 0)

        instrs = tuple(
            Instr(kernel, tuple(number(s) for s in slots), static, n) for kernel, slots, static, n in self._instrs
        )
        outs = tuple(o._replace(slot=number(o.slot)) for o in outs)
        return Plan(num_inputs, tuple(self._aux), instrs, outs, len(outs) == 1 if single is None else single)


class _Slot(NamedTuple):
    space: str
    index: int


def same(a: Dim, b: Dim) -> bool:
    """Whether two entries of dims tuples are the same dim at the same match priority."""
    return a.base is b.base and a.match_priority == b.match_priority


def _index(dim: Dim, dims: Sequence[Dim]) -> int:
    for i, d in enumerate(dims):
        if same(d, dim):
            return i
    return -1


def axis_of(entry: Dim, dims: Sequence[Dim]) -> int:
    """The axis of an entry of `dims`; `dims.index` would give the first axis of a dim that occurs twice."""
    axis = _index(entry, dims)
    assert axis >= 0, (entry, dims)
    return axis


def own_dim(name: str, x: Tensor, dim: Dim, what: str = "axis") -> Dim:
    """The entry of `x.dims` that `dim` means: where it occurs twice, that of the highest match priority.

    Raises DimError when there is none.
    """
    if dim not in x.dims:
        raise DimError(f"{name}: {what} {dim!r} is not a dim of {x!r}")
    return x.dims[x.get_axis_from_description(dim)]


def mask_pattern(own: Sequence[Dim], order: Sequence[Dim]) -> tuple[int, ...]:
    """For each axis of `order`, which axis of `own` lies there, -1 for a broadcast axis; leading -1 are dropped."""
    # Of two axes of one dim, that of the match priority asked for; a single one is meant whatever its priority is.
    exact = [any(same(d, o) for o in order) for d in own]
    pattern = [
        next((i for i, d in enumerate(own) if (same(d, o) if exact[i] else d.base is o.base)), -1) for o in order
    ]
    while pattern and pattern[0] < 0:
        pattern.pop(0)
    return tuple(pattern)
