"""The specification of the core: what a dim and a tensor hold, how a call finds its plan, and how a plan is run.

`rf/_native` is the same in C++. Both are exercised by the same tests; where they differ, this file is right. `rf._core`
knows which one is active.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from rf import _prepare
from rf._plan import MAX_DISTINCT_DIMS, PRIORITY_SHIFT, Plan
from rf._registry import OPS
from rf._tensor_methods import TensorMethods

if TYPE_CHECKING:
    from rf._dim import Dim
    from rf.backend import Backend

NATIVE = False


class DimBase:
    """What the core needs to know of a dim. `rf._dim.Dim` derives from it and keeps these fields up to date.

    dynamic: the size is not one static int.
    extent: length of a raw axis of this dim, -1 while unknown.
    size_dims: the dims that the sizes depend on; () for one length for everybody; None while unknown.
    cache: auxiliary arrays of the current filling, shared between dims that share sizes; None while unknown.
    """

    __slots__ = ("same_as", "match_priority", "dynamic", "extent", "size_dims", "cache", "__weakref__")

    def __init__(self) -> None:
        self.same_as: Any = None
        self.match_priority = 0
        self.dynamic = False
        self.extent = -1
        self.size_dims: tuple[Dim, ...] | None = None
        self.cache: dict[int, Any] | None = None

    @property
    def base(self) -> Any:
        """The representative: equal dims have the same one."""
        dim = self
        while dim.same_as is not None:
            dim = dim.same_as
        return dim

    def get_dim_value(self) -> int:
        """The padded length of a raw axis, as a Python int."""
        base = self.base
        return base.extent if base.extent >= 0 else base.get_sizes().extent

    def need_masking(self) -> bool:
        """Whether sequences may differ in length, so that raw axes of this dim may hold padding."""
        base = self.base
        if not base.dynamic:
            return False
        if base.size_dims is None:
            base.settle()
        return bool(base.size_dims)

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, DimBase) and self.base is other.base)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(id(self.base))


class Tensor(TensorMethods):
    """An array with named dims. See `rf._tensor_methods` for everything that does not depend on how it is stored."""

    __slots__ = ("_dims", "_raw", "_backend", "_dtype", "_feature_dim", "_sparse_dim", "_name")

    def __init__(
        self,
        name: str | None = None,
        dims: Sequence[Dim] = (),
        dtype: str | None = None,
        *,
        sparse_dim: Dim | None = None,
        feature_dim: Dim | None = None,
        feature_dim_axis: int | None = None,
        raw_tensor: Any = None,
    ) -> None:
        self._name = name
        self._dims = tuple(dims)
        self._raw = None
        self._backend = None
        self._feature_dim = None
        self._sparse_dim = None
        self._dtype = _prepare.init_dtype(dtype, raw_tensor)
        _prepare.check_new(self, sparse_dim, feature_dim, feature_dim_axis)
        if raw_tensor is not None:
            self.raw_tensor = raw_tensor

    @property
    def name(self) -> str | None:
        """For error messages only; carries no meaning."""
        return self._name

    @name.setter
    def name(self, value: str | None) -> None:
        self._name = value

    @property
    def dims(self) -> tuple[Dim, ...]:
        """The dims in storage order."""
        return self._dims

    @property
    def dtype(self) -> str:
        """The dtype as a string."""
        return self._dtype

    @dtype.setter
    def dtype(self, value: str) -> None:
        _prepare.check_set_dtype(self, value)
        self._dtype = value

    @property
    def backend(self) -> Backend | None:
        """The backend that owns the raw tensor; None for a template."""
        return self._backend

    @property
    def raw_tensor(self) -> Any:
        """The backend's own array, axes in the order of `dims`; None for a template. Setting it checks shape and
        dtype."""
        return self._raw

    @raw_tensor.setter
    def raw_tensor(self, value: Any) -> None:
        if value is None:
            self._raw = self._backend = None
            return
        self._backend = _prepare.check_raw(self, value)
        self._raw = value

    @property
    def feature_dim(self) -> Dim | None:
        """The dim that feature-wise functions use by default; one of `dims` or None."""
        return self._feature_dim

    @feature_dim.setter
    def feature_dim(self, value: Dim | None) -> None:
        self._feature_dim = _prepare.check_feature_dim(self, value)

    @property
    def sparse_dim(self) -> Dim | None:
        """For index tensors: the dim that the values are indices into."""
        return self._sparse_dim

    @sparse_dim.setter
    def sparse_dim(self, value: Dim | None) -> None:
        self._sparse_dim = _prepare.check_sparse_dim(self, value)

    def _has_raw(self) -> bool:
        return self._raw is not None

    # Operators and functions are one path: both call the op object.

    def __add__(self, other: Any) -> Tensor:
        return OPS["add"](self, other, False) if _prepare.is_operand(other) else NotImplemented

    def __radd__(self, other: Any) -> Tensor:
        return OPS["add"](other, self, False) if _prepare.is_operand(other) else NotImplemented

    def __sub__(self, other: Any) -> Tensor:
        return OPS["sub"](self, other, False) if _prepare.is_operand(other) else NotImplemented

    def __rsub__(self, other: Any) -> Tensor:
        return OPS["sub"](other, self, False) if _prepare.is_operand(other) else NotImplemented

    def __mul__(self, other: Any) -> Tensor:
        return OPS["mul"](self, other, False) if _prepare.is_operand(other) else NotImplemented

    def __rmul__(self, other: Any) -> Tensor:
        return OPS["mul"](other, self, False) if _prepare.is_operand(other) else NotImplemented

    def __truediv__(self, other: Any) -> Tensor:
        return OPS["truediv"](self, other, False) if _prepare.is_operand(other) else NotImplemented

    def __rtruediv__(self, other: Any) -> Tensor:
        return OPS["truediv"](other, self, False) if _prepare.is_operand(other) else NotImplemented

    def __floordiv__(self, other: Any) -> Tensor:
        return OPS["floordiv"](self, other, False) if _prepare.is_operand(other) else NotImplemented

    def __rfloordiv__(self, other: Any) -> Tensor:
        return OPS["floordiv"](other, self, False) if _prepare.is_operand(other) else NotImplemented

    def __mod__(self, other: Any) -> Tensor:
        return OPS["mod"](self, other, False) if _prepare.is_operand(other) else NotImplemented

    def __rmod__(self, other: Any) -> Tensor:
        return OPS["mod"](other, self, False) if _prepare.is_operand(other) else NotImplemented

    def __pow__(self, other: Any) -> Tensor:
        return OPS["pow"](self, other, False) if _prepare.is_operand(other) else NotImplemented

    def __rpow__(self, other: Any) -> Tensor:
        return OPS["pow"](other, self, False) if _prepare.is_operand(other) else NotImplemented

    def __and__(self, other: Any) -> Tensor:
        return OPS["logical_and"](self, other, False) if _prepare.is_operand(other) else NotImplemented

    def __rand__(self, other: Any) -> Tensor:
        return OPS["logical_and"](other, self, False) if _prepare.is_operand(other) else NotImplemented

    def __or__(self, other: Any) -> Tensor:
        return OPS["logical_or"](self, other, False) if _prepare.is_operand(other) else NotImplemented

    def __ror__(self, other: Any) -> Tensor:
        return OPS["logical_or"](other, self, False) if _prepare.is_operand(other) else NotImplemented

    def __neg__(self) -> Tensor:
        return OPS["neg"](self)

    def __abs__(self) -> Tensor:
        return OPS["abs"](self)

    def __invert__(self) -> Tensor:
        return OPS["logical_not"](self)

    def __lt__(self, other: Any) -> Tensor:
        return OPS["less"](self, other, False) if _prepare.is_operand(other) else NotImplemented

    def __le__(self, other: Any) -> Tensor:
        return OPS["less_equal"](self, other, False) if _prepare.is_operand(other) else NotImplemented

    def __gt__(self, other: Any) -> Tensor:
        return OPS["greater"](self, other, False) if _prepare.is_operand(other) else NotImplemented

    def __ge__(self, other: Any) -> Tensor:
        return OPS["greater_equal"](self, other, False) if _prepare.is_operand(other) else NotImplemented

    def __eq__(self, other: object) -> Any:
        return OPS["equal"](self, other, False) if _prepare.is_operand(other) and self._has_raw() else self is other

    def __ne__(self, other: object) -> Any:
        if _prepare.is_operand(other) and self._has_raw():
            return OPS["not_equal"](self, other, False)
        return self is not other

    __hash__ = object.__hash__


def make_tensor(
    backend: Backend,
    raw: Any,
    dims: tuple[Dim, ...],
    dtype: str,
    feature_dim: Dim | None = None,
    sparse_dim: Dim | None = None,
) -> Tensor:
    """A Tensor around a raw result, unchecked: for results of kernels, whose dims are known to fit."""
    out = Tensor.__new__(Tensor)
    out._name = None
    out._dims = dims
    out._raw = raw
    out._backend = backend
    out._dtype = dtype
    out._feature_dim = feature_dim
    out._sparse_dim = sparse_dim
    return out


class Op:
    """A planned op: finds the plan for a call's structure, or has the planner write it, and runs it.

    name: key in `OPS`. num_tensors: so many leading arguments are operands (Tensor, Python number or None); the rest
    are Dims, tuples of Dims or static values. planner: `planner(builder, *args) -> Plan`, or raises the error that
    explains what is wrong with the operands. masked: dynamic dims among the arguments make a difference (their masks or
    lengths may be used).
    """

    __slots__ = ("name", "num_tensors", "planner", "masked", "plans")

    def __init__(self, name: str, *, num_tensors: int, planner: Callable[..., Plan], masked: bool = False) -> None:
        self.name = name
        self.num_tensors = num_tensors
        self.planner = planner
        self.masked = masked
        self.plans: dict[Any, Plan] = {}
        OPS[name] = self

    def __repr__(self) -> str:
        return f"<rf op {self.name}>"

    @property
    def num_plans(self) -> int:
        """How many structures have been planned."""
        return len(self.plans)

    def clear_plans(self) -> None:
        """Forget all plans (a default dtype has changed)."""
        self.plans.clear()

    def __call__(self, *args: Any) -> Any:
        backend = _common_backend(args[: self.num_tensors])
        if backend is None:
            args, backend = _prepare.operands(self.name, args, self.num_tensors)
        key, distinct = _structure(args, self.masked)
        plan = self.plans.get(key)
        if plan is None:
            plan = _prepare.make_plan(self, args, distinct)
            self.plans[key] = plan
        return _run(plan, backend, args, distinct)


def _common_backend(operands: Sequence[Any]) -> Backend | None:
    """The one backend of all operands; None when there is something to prepare (numbers, templates, mixed backends)."""
    backend = None
    for x in operands:
        if x is None:
            continue
        if not isinstance(x, Tensor) or x._backend is None or (backend is not None and x._backend is not backend):
            return None
        backend = x._backend
    return backend


def _structure(args: Sequence[Any], masked: bool) -> tuple[tuple[Any, ...], list[Dim]]:
    """The key of a call, and its distinct dims in the order of their numbers."""
    distinct: list[Dim] = []

    def number(dim: Dim) -> int:
        base = dim.base
        for i, d in enumerate(distinct):
            if d is base:
                return i | dim.match_priority << PRIORITY_SHIFT
        if len(distinct) == MAX_DISTINCT_DIMS:
            raise _prepare.too_many_dims(args)
        distinct.append(base)
        return len(distinct) - 1 | dim.match_priority << PRIORITY_SHIFT

    key: list[Any] = []
    for a in args:
        if isinstance(a, Tensor):
            key.append(tuple(number(d) for d in a._dims))
            key.append(a._dtype)
            key.append(None if a._feature_dim is None else number(a._feature_dim))
            key.append(None if a._sparse_dim is None else number(a._sparse_dim))
        else:
            key.append(_argument(a, number))
    if masked:
        for i, dim in enumerate(distinct):  # size dims may add to `distinct` while it is walked
            if dim.dynamic:
                if dim.size_dims is None:
                    dim.settle()
                key.append((i, *[number(d) for d in dim.size_dims or ()]))
    return tuple(key), distinct


def _argument(a: Any, number: Callable[[Dim], int]) -> tuple[Any, ...]:
    """The part of the key for a Dim, a static value, or a tuple of such."""
    if isinstance(a, DimBase):
        return ("d", number(a))  # type: ignore[arg-type]
    if isinstance(a, (tuple, list)):
        return tuple([_argument(x, number) for x in a])
    return (type(a), a)


def _run(plan: Plan, backend: Backend, args: Sequence[Any], distinct: list[Dim]) -> Any:
    raws: list[Any] = []
    if backend.computes:
        raws = [None if t is None else t._raw for t in args[: plan.num_inputs]]
        for aux in plan.aux:
            dim = distinct[aux.dim & MAX_DISTINCT_DIMS - 1]
            raws.append(dim.auxiliary(backend, aux.kind, aux.pattern, aux.dtype, backend.device_of(raws[0])))
        kernels = backend.kernels
        for kernel, slots, static, num_out in plan.instrs:
            result = kernels[kernel](*[None if i < 0 else raws[i] for i in slots], *static)
            if num_out == 1:
                raws.append(result)
            else:
                raws.extend(result)
    outs = []
    for slot, dims, like, dtype, feature, sparse in plan.outs:
        out = make_tensor(
            backend,
            raws[slot] if raws else backend.no_value,
            args[like]._dims if like >= 0 else tuple(_dim_of(n, distinct) for n in dims),
            dtype,
            distinct[feature] if feature >= 0 else None,
            distinct[sparse] if sparse >= 0 else None,
        )
        outs.append(out)
    return outs[0] if plan.single else tuple(outs)


def _dim_of(number: int, distinct: list[Dim]) -> Dim:
    dim = distinct[number & MAX_DISTINCT_DIMS - 1]
    priority = number >> PRIORITY_SHIFT
    return dim.copy(match_priority=priority) if priority else dim


OutSpec = tuple[tuple["Dim", ...], str, "Dim | None", "Dim | None"]


def apply(
    kernel: str, inputs: Sequence[Tensor | None], static: Sequence[Any], outs: Sequence[OutSpec]
) -> tuple[Tensor, ...]:
    """Call one kernel on operands of one backend, for ops that are not planned.

    `outs`: (dims, dtype, feature_dim, sparse_dim) of each result. On a backend that computes nothing the kernel is not
    called.
    """
    backend = _common_backend(inputs)
    if backend is None:
        inputs, backend = _prepare.operands(kernel, tuple(inputs), len(inputs))
    if not backend.computes:
        return tuple(make_tensor(backend, backend.no_value, *out) for out in outs)
    result = backend.kernels[kernel](*[None if x is None else x._raw for x in inputs], *static)
    if len(outs) == 1:
        return (make_tensor(backend, result, *outs[0]),)
    return tuple(make_tensor(backend, raw, *out) for raw, out in zip(result, outs))
