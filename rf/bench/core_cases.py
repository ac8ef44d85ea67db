"""The rows of `rf bench core`: basic operations of dims and tensors, planning, and the frontend's part of ops.

A build gets a `rf.profile.ops.World` on the backend of the row and returns the function to measure. It may use nothing
that loads a framework: the functions are also run under valgrind.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy

import rf
from rf._errors import UserError
from rf._registry import OPS
from rf.backend import use_backend
from rf.ops.contract import linear
from rf.ops.normalize import layer_norm
from rf.profile import _ops_torch
from rf.profile.ops import World

__all__ = ["CASES", "CoreCase", "select_cases"]

Function = Callable[[], object]


@dataclass(frozen=True)
class CoreCase:
    """One row.

    :param what: the operation in words
    :param build: makes the function to measure
    :param reference: key in `rf.bench._torch_core.CALLS`; None if torch has nothing like it
    :param data: it is about arrays, and timed on the backend that was asked for; else on `meta`
    :param counted_on: backend that instructions are counted on
    """

    name: str
    what: str
    build: Callable[[World], Function]
    reference: str | None = None
    data: bool = False
    counted_on: str = "meta"


CASES: list[CoreCase] = []


def _case(name: str, what: str, reference: str | None = None, **options: Any) -> Callable[..., None]:
    def add(build: Callable[[World], Function]) -> None:
        CASES.append(CoreCase(name, what, build, reference, **options))

    return add


def select_cases(pattern: str | None) -> list[CoreCase]:
    """Those whose name or description contains `pattern`; UserError if none does."""
    found = [case for case in CASES if (pattern or "").lower() in f"{case.name} {case.what}".lower()]
    if not found:
        raise UserError(f"no operation matches {pattern!r}; there are: {', '.join(case.name for case in CASES)}")
    return found


def _dims(w: World) -> tuple[rf.Dim, rf.Dim, rf.Dim]:
    return w.batch, w.time, w.feature


# -- Tensor: creation


@_case("Tensor, template", "rf.Tensor of 3 dims and a dtype", "torch.empty(())")
def _(w: World) -> Function:
    dims = _dims(w)
    return lambda: rf.Tensor("x", dims, "float32")


@_case("Tensor, array", "rf.Tensor of 3 dims, a dtype and an array", "x.view(2, 3, 4)", data=True, counted_on="numpy")
def _(w: World) -> Function:
    dims, raw = _dims(w), w.btf().raw_tensor
    return lambda: rf.Tensor("x", dims, "float32", raw_tensor=raw)


@_case(
    "convert, array",
    "rf.convert_to_tensor of an array and 3 dims",
    "x.as_strided((2, 3, 4), (12, 4, 1))",
    data=True,
    counted_on="numpy",
)
def _(w: World) -> Function:
    dims, raw = _dims(w), w.btf().raw_tensor
    return lambda: rf.convert_to_tensor(raw, dims=dims)


@_case(
    "convert, array, dtype",
    "rf.convert_to_tensor of an array, 3 dims and its dtype",
    "torch.as_tensor(x, dtype=torch.float32)",
    data=True,
    counted_on="numpy",
)
def _(w: World) -> Function:
    dims, raw = _dims(w), w.btf().raw_tensor
    return lambda: rf.convert_to_tensor(raw, dims=dims, dtype="float32")


@_case("convert, number", "rf.convert_to_tensor(1.5)", "torch.tensor(1.5)", data=True, counted_on="numpy")
def _(w: World) -> Function:
    return lambda: rf.convert_to_tensor(1.5)


@_case("convert, Tensor", "rf.convert_to_tensor of a Tensor", "torch.as_tensor(x)", data=True)
def _(w: World) -> Function:
    a = w.btf()
    return lambda: rf.convert_to_tensor(a)


@_case("zeros", "rf.zeros of 3 dims", "torch.zeros(2, 3, 4)", data=True, counted_on="numpy")
def _(w: World) -> Function:
    dims = _dims(w)
    return lambda: rf.zeros(dims, dtype="float32")


# -- Tensor: copies


@_case("copy", "a.copy()", "x.detach()", data=True)
def _(w: World) -> Function:
    a = w.btf()
    return lambda: a.copy()


@_case("copy_template", "a.copy_template()", "torch.empty(())")
def _(w: World) -> Function:
    a = w.btf()
    return lambda: a.copy_template()


@_case("copy_transpose", "{B,T,F} to (F,B,T)", "x.permute(2, 0, 1)", data=True)
def _(w: World) -> Function:
    a, order = w.btf(), (w.feature, w.batch, w.time)
    return lambda: a.copy_transpose(order)


@_case("copy_compatible_to_dims", "{B,F} to (B,T,F)", "x.unsqueeze(1)", data=True, counted_on="numpy")
def _(w: World) -> Function:
    a, dims = w.tensor(w.batch, w.feature), _dims(w)
    return lambda: a.copy_compatible_to_dims(dims)


@_case("copy_compatible_to_dims_raw", "{B,F} to (B,T,F)", "x.unsqueeze(1)", data=True, counted_on="numpy")
def _(w: World) -> Function:
    a, dims = w.tensor(w.batch, w.feature), _dims(w)
    return lambda: a.copy_compatible_to_dims_raw(dims)


# -- Tensor: attributes


@_case("raw_tensor", "a.raw_tensor", "x.storage_offset()", data=True)
def _(w: World) -> Function:
    a = w.btf()
    return lambda: a.raw_tensor


@_case("raw_tensor, set", "a.raw_tensor = array", "x.resize_(2, 3, 4)", data=True, counted_on="numpy")
def _(w: World) -> Function:
    a = w.btf()
    raw = a.raw_tensor

    def call() -> None:
        a.raw_tensor = raw

    return call


@_case("dtype", "a.dtype", "x.dtype", data=True)
def _(w: World) -> Function:
    a = w.btf()
    return lambda: a.dtype


@_case("device", "a.device", "x.device", data=True, counted_on="numpy")
def _(w: World) -> Function:
    a = w.btf()
    return lambda: a.device


@_case("dims", "a.dims", "x.shape", data=True)
def _(w: World) -> Function:
    a = w.btf()
    return lambda: a.dims


@_case("dims_set", "a.dims_set")
def _(w: World) -> Function:
    a = w.btf()
    return lambda: a.dims_set


@_case("ndim", "a.batch_ndim", "x.ndim")
def _(w: World) -> Function:
    a = w.btf()
    return lambda: a.batch_ndim


@_case("feature_dim", "a.feature_dim")
def _(w: World) -> Function:
    a = w.btf()
    a.feature_dim = w.feature
    return lambda: a.feature_dim


@_case("feature_dim, set", "a.feature_dim = F")
def _(w: World) -> Function:
    a, dim = w.btf(), w.feature

    def call() -> None:
        a.feature_dim = dim

    return call


@_case("remaining_dims", "a.remaining_dims(F)")
def _(w: World) -> Function:
    a, dim = w.btf(), w.feature
    return lambda: a.remaining_dims(dim)


@_case("axis of a dim", "a.get_axis_from_description(F)")
def _(w: World) -> Function:
    a, dim = w.btf(), w.feature
    return lambda: a.get_axis_from_description(dim)


@_case("Tensor, hash", "hash(a)")
def _(w: World) -> Function:
    a = w.btf()
    return lambda: hash(a)


# -- Dim


@_case("Dim, static", "rf.Dim(5)")
def _(w: World) -> Function:
    return lambda: rf.Dim(5, name="x")


@_case("Dim, dynamic", "rf.Dim(None)")
def _(w: World) -> Function:
    return lambda: rf.Dim(None, name="x")


@_case("Dim, new and filled", "rf.Dim(None).fill([3, 2], [B])")
def _(w: World) -> Function:
    over = [w.batch]
    return lambda: rf.Dim(None, name="x").fill([3, 2], over)


@_case("Dim, size tensor", "rf.Dim(sizes), a Tensor {B}")
def _(w: World) -> Function:
    sizes = w.time.get_size_tensor()
    return lambda: rf.Dim(sizes, name="x")


@_case("fill", "T.fill(int32 NumPy array, [B])")
def _(w: World) -> Function:
    dim, over = w.time, [w.batch]
    values = numpy.array([3, 2], "int32")
    return lambda: dim.fill(values, over)


@_case("Dim ==, same", "T == T")
def _(w: World) -> Function:
    dim = w.time
    return lambda: dim == dim


@_case("Dim ==, other", "T == F")
def _(w: World) -> Function:
    a, b = w.time, w.feature
    return lambda: a == b


@_case("Dim, hash", "hash(T)")
def _(w: World) -> Function:
    dim = w.time
    return lambda: hash(dim)


@_case("Dim in dims", "F in (B, T, F)")
def _(w: World) -> Function:
    dim, dims = w.feature, _dims(w)
    return lambda: dim in dims


@_case("T + 1, known", "T + 1, which exists already")
def _(w: World) -> Function:
    dim = w.time
    held = dim + 1

    def call() -> rf.Dim:
        assert held is not None
        return dim + 1

    return call


@_case("T + 1, new", "T + 1, which nobody holds, dynamic")
def _(w: World) -> Function:
    dim = w.time
    return lambda: dim + 1


@_case("F + 1, new", "F + 1, which nobody holds, static")
def _(w: World) -> Function:
    dim = w.feature
    return lambda: dim + 1


@_case("T + 1, sizes", "T + 1, which nobody holds, and its sizes")
def _(w: World) -> Function:
    dim = w.time
    return lambda: (dim + 1).get_dim_value()


@_case("B * T, known", "B * T, which exists already")
def _(w: World) -> Function:
    a, b = w.batch, w.time
    held = a * b

    def call() -> rf.Dim:
        assert held is not None
        return a * b

    return call


@_case("get_dim_value, static", "F.get_dim_value()", "x.size(1)")
def _(w: World) -> Function:
    dim = w.feature
    return lambda: dim.get_dim_value()


@_case("get_dim_value, dynamic", "T.get_dim_value()", "x.size(1)")
def _(w: World) -> Function:
    dim = w.time
    return lambda: dim.get_dim_value()


@_case("get_dim_value_tensor", "T.get_dim_value_tensor()", data=True, counted_on="numpy")
def _(w: World) -> Function:
    dim = w.time
    return lambda: dim.get_dim_value_tensor()


@_case("get_size_tensor", "T.get_size_tensor()", data=True, counted_on="numpy")
def _(w: World) -> Function:
    dim = w.time
    return lambda: dim.get_size_tensor()


@_case("dyn_size_ext", "T.dyn_size_ext", data=True, counted_on="numpy")
def _(w: World) -> Function:
    dim = w.time
    return lambda: dim.dyn_size_ext


@_case("dimension", "F.dimension")
def _(w: World) -> Function:
    dim = w.feature
    return lambda: dim.dimension


@_case("is_dynamic", "T.is_dynamic()")
def _(w: World) -> Function:
    dim = w.time
    return lambda: dim.is_dynamic()


@_case("need_masking", "T.need_masking()")
def _(w: World) -> Function:
    dim = w.time
    return lambda: dim.need_masking()


@_case("mask, cached", "T.get_mask(), in the cache", data=True, counted_on="numpy")
def _(w: World) -> Function:
    dim = w.time
    return lambda: dim.get_mask()


# -- planning, and the frontend's part of ops


@_case("plan, found", "a + b, {B,T,F}")
def _(w: World) -> Function:
    a, b = w.btf(), w.btf()
    return lambda: a + b


@_case("plan, new", "a + b, {B,T,F}, planned each time")
def _(w: World) -> Function:
    a, b, op = w.btf(), w.btf(), OPS["add"]

    def call() -> rf.Tensor:
        op.clear_plans()
        return a + b

    return call


_SAME_AS_IN_BENCH_OPS = (
    "a + 1.0",
    "a + {F}",
    "a + {B}",
    "relu",
    "where",
    "cast",
    "matmul",
    "Linear",
    "LayerNorm",
    "softmax, static",
    "softmax, dynamic",
    "reduce_mean, dynamic",
    "gather",
    "dropout",
)


def _add_ops() -> None:
    by_name = {case.op: case for case in _ops_torch.CASES}
    for name in _SAME_AS_IN_BENCH_OPS:
        case = by_name[name]
        CASES.append(CoreCase(name, case.compares, lambda w, build=case.build: next(build(w))))


_add_ops()


@_case("linear", "the op alone, {B,T,F}")
def _(w: World) -> Function:
    a, weight, bias = w.btf(), w.tensor(w.feature, w.out), w.tensor(w.out)
    in_dim, out_dim = w.feature, w.out
    return lambda: linear(a, weight, bias, in_dim, out_dim)


@_case("layer_norm", "the op alone, {B,T,F}")
def _(w: World) -> Function:
    a, scale, bias, dims = w.btf(), w.tensor(w.feature), w.tensor(w.feature), (w.feature,)
    return lambda: layer_norm(a, scale, bias, dims, 1e-5)


@_case("split", "rf.split {B,T,F} into two of 2")
def _(w: World) -> Function:
    a, dim, out_dims = w.btf(), w.feature, [rf.Dim(2, name="F1"), rf.Dim(2, name="F2")]
    return lambda: rf.split(a, axis=dim, out_dims=out_dims)


@_case("concat", "rf.concat of {B,T,F} and {B,T,G} over F and G")
def _(w: World) -> Function:
    a, b = w.btf(), w.tensor(w.batch, w.time, w.out)
    first, second = (a, w.feature), (b, w.out)
    return lambda: rf.concat(first, second)


@_case("pad", "rf.pad of {B,T,F} by 1 on both sides of F")
def _(w: World) -> Function:
    a, dim = w.btf(), w.feature
    return lambda: rf.pad(a, axes=[dim], padding=[(1, 1)], value=0)


@_case("pad, dynamic", "rf.pad of {B,T,F} by 1 on both sides of T")
def _(w: World) -> Function:
    a, dim = w.btf(), w.time
    return lambda: rf.pad(a, axes=[dim], padding=[(1, 1)], value=0)


@_case("Conv1d", "rf.Conv1d on {B,T,F}, filter of 3, same padding")
def _(w: World) -> Function:
    with use_backend(w.backend.name):
        module = rf.Conv1d(w.feature, w.out, 3, padding="same")
    a, dim = w.btf(), w.time
    return lambda: module(a, in_spatial_dim=dim)


@_case("permute", "{B,T,F} to (F,B,T)")
def _(w: World) -> Function:
    a, order = w.btf(), (w.feature, w.batch, w.time)
    return lambda: a.copy_transpose(order)
