"""Control flow on values: branches, loops and assertions. All of it is Python control flow, which reads what it decides
on.

On a backend without values a decision that depends on a Tensor raises BackendError. Loops over a dim of known sizes
need no values.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy

from rf._core import Tensor
from rf._dim import Dim
from rf._errors import DimError, RfError
from rf.ops.concat import replace_dim_v2
from rf.ops.create import full, zeros
from rf.ops.elementwise import cast, logical_and, where
from rf.ops.reduce import reduce_all, reduce_any
from rf.ops.tree import flatten, map_structure, map_structure_with_path
from rf.tensor_array import TensorArray

__all__ = ["assert_", "cond", "control_flow_ctx", "get_current_control_flow_ctx", "scan", "while_loop"]

T = TypeVar("T")
S = TypeVar("S")


def _decide(name: str, value: bool | Tensor) -> bool:
    """The Python bool of a decision."""
    if isinstance(value, Tensor):
        if value.dims or value.dtype != "bool":
            raise RfError(
                f"{name}: the condition must be a scalar bool, got {value!r}; reduce it (rf.reduce_any, rf.reduce_all)"
            )
        return bool(value.item())
    if isinstance(value, (bool, numpy.bool_)):
        return bool(value)
    raise TypeError(f"{name}: the condition must be a bool or a scalar bool Tensor, got {type(value).__name__}")


def cond(pred: bool | Tensor, true_fn: Callable[[], T], false_fn: Callable[[], T]) -> T:
    """`true_fn()` if `pred` holds, else `false_fn()`; the other one is not called.

    :param pred: a bool, or a scalar bool Tensor, which is read: this waits for the device.
    """
    return true_fn() if _decide("cond", pred) else false_fn()


def assert_(condition: bool | Tensor, message: str, *, stop: bool = True) -> None:
    """Raise AssertionError with `message` unless `condition` holds everywhere; the padding does not count.

    :param condition: a bool, or a bool Tensor {...}. On a GPU the check runs there, without waiting: the error comes up
        later. On a backend without values nothing is checked.
    :param stop: False only warns.
    """
    if isinstance(condition, Tensor):
        if condition.dtype != "bool":
            raise RfError(f"assert_: the condition must be bool, got {condition!r}")
        if condition.dims:
            condition = reduce_all(condition, axis=condition.dims)
        backend = condition.backend
        if backend is None or not backend.computes:
            return
        if stop and backend.assert_later(condition.raw_tensor, message):
            return
    if not _decide("assert_", condition):
        if stop:
            raise AssertionError(message)
        warnings.warn(message, RuntimeWarning, stacklevel=2)


# -- loops


def while_loop(cond: Callable[[S], bool | Tensor], body: Callable[[S], S], initial: S) -> S:
    """`while cond(s): s = body(s)`, from s = initial; returns the last s.

    :param cond: gives a bool, or a scalar bool Tensor, which is read.
    :param body: gives new loop variables of the same structure: the same dims (in any order), sparse dims and feature
        dims.
    :param initial: a Tensor, Dim, TensorArray or None, or nested dicts, lists and tuples of these. A Dim that is a loop
        variable itself may be another one in each iteration; Tensors that have it follow.

    Raises DimError when a loop variable changes in another way.
    """
    state = initial
    while _decide("while_loop", cond(state)):
        new = body(state)
        _check_same_kind(state, new)
        state = new
    return state


def _check_same_kind(old: Any, new: Any) -> None:
    renamed: dict[Dim, Dim] = {}
    map_structure(lambda a, b: renamed.update({a: b}) if isinstance(a, Dim) and isinstance(b, Dim) else None, old, new)

    def of_new(dim: Dim | None) -> Dim | None:
        return renamed.get(dim, dim) if dim is not None else None

    def check(path: str, a: Any, b: Any) -> None:
        if isinstance(a, TensorArray) and isinstance(b, TensorArray):
            a, b = a.tensor_template, b.tensor_template
        if isinstance(a, Tensor) and isinstance(b, Tensor):
            same = {of_new(d) for d in a.dims} == set(b.dims) and len(a.dims) == len(b.dims)
            if not same or of_new(a.sparse_dim) != b.sparse_dim or of_new(a.feature_dim) != b.feature_dim:
                raise DimError(
                    f"loop variable {path or '(the only one)'}: changed from {a!r} to {b!r}. Its dims, sparse dim and "
                    "feature dim must stay; a dim that grows must be a loop variable itself."
                )
        elif isinstance(a, Dim) != isinstance(b, Dim) or (a is None) != (b is None) or isinstance(b, Tensor):
            raise RfError(f"loop variable {path or '(the only one)'}: changed from {a!r} to {b!r}")

    map_structure_with_path(check, old, new)


def scan(
    *,
    spatial_dim: Dim | None = None,
    cond_dims: Sequence[Dim] | None = None,
    cond_before_body: bool = True,
    initial: Any = None,
    xs: Any = None,
    ys: Any = None,
    cond: Callable[[Any, Any], Tensor] | None = None,
    body: Callable[[Any, Any], tuple[Any, Any]],
    max_seq_len: int | Tensor | None = None,
    return_tensor_arrays: bool = False,
) -> tuple[Any, Any, Dim]:
    """A loop with a state over frames: y, state = body(x, state) for each frame. Each sequence ends by itself: its
    state stays then.

    With sizes: over `spatial_dim`, whose frames of `xs` the body gets. Without: as long as `cond` holds for any
    sequence, and `spatial_dim` gets the number of steps of each sequence.

    :param spatial_dim: with sizes; or without them or None, then `cond` and `cond_dims` are needed.
    :param cond_dims: the dims of what `cond` gives, such as [batch_dim]: those that the sizes of `spatial_dim` will
        depend on.
    :param cond_before_body: whether `cond` is asked before the first step.
    :param initial: the state before the first step: nested Tensors, Dims and None.
    :param xs: nested Tensors {..., spatial_dim}.
    :param ys: templates of the outputs of one step; needed only without sizes, when there may be no step at all.
    :param cond: cond(None, state) gives a bool Tensor {*cond_dims}; what is once False for a sequence stays so.
    :param body: body(x, state) gives the outputs of this frame, and the new state of the same structure. It also runs
        for sequences that have ended; x is 0 there.
    :param max_seq_len: an upper bound of the number of steps without sizes: an int, or an int Tensor over dims of
        `cond_dims`.
    :param return_tensor_arrays: give the outputs as TensorArrays, for outputs whose dims vary from step to step.
    :returns: (outputs {spatial_dim, ...}, final state, spatial_dim). Outputs in the padding are what the body gave
        there.

    Raises DimError when the state changes its dims (see `while_loop`).
    """
    if spatial_dim is not None and spatial_dim.is_dim_known():
        if cond is not None or max_seq_len is not None:
            raise RfError(f"scan: {spatial_dim!r} has sizes, so cond and max_seq_len have no place")
        collected, state = _scan_over(spatial_dim, initial, xs, ys, body, return_tensor_arrays)
    else:
        if cond is None or cond_dims is None or xs is not None:
            raise RfError(f"scan: {spatial_dim!r} has no sizes yet, so it needs cond and cond_dims, and cannot have xs")
        spatial_dim = Dim(None, name="scan") if spatial_dim is None else spatial_dim
        collected, state = _scan_until(
            spatial_dim, list(cond_dims), cond_before_body, initial, ys, cond, body, max_seq_len, return_tensor_arrays
        )
    if collected is None:
        raise RfError("scan: there was no step, so the outputs are unknown; give templates of them: ys=")
    if return_tensor_arrays:
        return collected, state, spatial_dim
    axis = spatial_dim
    return map_structure(lambda y: None if y is None else y.stack(axis=axis), collected), state, spatial_dim


def _collect(arrays: Any, y: Any, unchecked: bool) -> Any:
    """The outputs of one more step."""
    if arrays is None:
        arrays = _arrays(y, unchecked)
    return map_structure(lambda array, new: None if array is None else array.push_back(new), arrays, y)


def _arrays(templates: Any, unchecked: bool) -> Any:
    return map_structure(
        lambda t: None if t is None else TensorArray(t.copy_template(), _enable_delayed_check=unchecked), templates
    )


def _scan_over(dim: Dim, state: Any, xs: Any, ys: Any, body: Any, unchecked: bool) -> tuple[Any, Any]:
    # Without the padding: a gradient of 0 times NaN would come back through the steps that do not count.
    frames = map_structure(
        lambda x: None if x is None else TensorArray.unstack(x.copy_masked(0, dims=[dim]), axis=dim), xs
    )
    outputs = None if ys is None else _arrays(ys, unchecked)
    tensors = [x for x in flatten((state, xs)) if isinstance(x, Tensor)]
    device = tensors[0].device if tensors else None
    active = TensorArray.unstack(dim.get_mask(device=device), axis=dim) if dim.need_masking() else None
    for i in range(dim.get_dim_value()):
        y, new = body(map_structure(lambda x: None if x is None else x[i], frames), state)  # noqa: B023
        state = _advance(state, new, None if active is None else active[i])
        outputs = _collect(outputs, y, unchecked)
    if outputs is None:
        # No frame: what the outputs are, a frame of zeros tells.
        y, _ = body(map_structure(_zero_frame, frames), state)
        outputs = _arrays(y, unchecked)
    return outputs, state


def _zero_frame(array: TensorArray | None) -> Tensor | None:
    if array is None:
        return None
    t = array.tensor_template
    return zeros(t.dims, dtype=t.dtype, sparse_dim=t.sparse_dim, feature_dim=t.feature_dim)


def _scan_until(
    dim: Dim,
    cond_dims: list[Dim],
    cond_first: bool,
    state: Any,
    ys: Any,
    cond: Any,
    body: Any,
    max_seq_len: int | Tensor | None,
    unchecked: bool,
) -> tuple[Any, Any]:
    def still(state: Any) -> Tensor:
        out = cond(None, state)
        if not isinstance(out, Tensor) or out.dtype != "bool" or out.dims_set != set(cond_dims):
            raise DimError(f"scan: cond must give a bool Tensor over cond_dims {cond_dims}, got {out!r}")
        return out

    outputs = None if ys is None else _arrays(ys, unchecked)
    active = still(state) if cond_first else full(dims=cond_dims, fill_value=True, dtype="bool")
    seq_len = zeros(cond_dims, dtype="int32")
    step = 0
    while True:
        if isinstance(max_seq_len, Tensor):
            active = logical_and(active, max_seq_len > step)
        elif max_seq_len is not None and step >= max_seq_len:
            break
        if not _decide("scan", reduce_any(active, axis=active.dims) if active.dims else active):
            break
        seq_len = seq_len + cast(active, "int32")
        y, new = body(None, state)
        state = _advance(state, new, active)
        outputs = _collect(outputs, y, unchecked)
        active = logical_and(active, still(state))
        step += 1
    dim.fill(seq_len.copy_transpose(cond_dims))
    return outputs, state


def _advance(old: Any, new: Any, active: Tensor | None) -> Any:
    """The new state where `active` holds, else the old one. Neither loop runs when none is active."""
    _check_same_kind(old, new)
    if active is None or not active.dims:
        return new
    mask = active
    merged: dict[Dim, Dim] = {}

    def merge_dim(a: Any, b: Any) -> Any:
        if isinstance(a, Dim) and a != b and any(d in mask.dims for d in (*a.get_sizes().dims, *b.get_sizes().dims)):
            zero = zeros(mask.dims, dtype="int32", device=mask.device)
            sizes = [d.get_size_tensor(device=mask.device) + zero for d in (b, a)]
            out = Dim(None, name=b.name)
            merged[a] = merged[b] = out.fill(where(mask, *sizes))
            return out
        return b

    new_dims = map_structure(merge_dim, old, new)

    def merge(a: Any, b: Any) -> Any:
        if not isinstance(b, Tensor):
            return b
        for d in [d for d in a.dims if d in merged and d not in b.dims]:
            a = replace_dim_v2(a, in_dim=d, out_dim=merged[d])
        for d in [d for d in b.dims if d in merged]:
            b = replace_dim_v2(b, in_dim=d, out_dim=merged[d])
        if a.dims_set != b.dims_set:
            # A dim that grows for all sequences at once: what is behind the end of a sequence does not matter.
            return b
        # What several sequences share goes on as long as one of them does.
        shared = [d for d in mask.dims if d not in b.dims]
        if len(shared) == len(mask.dims):
            return b
        return where(reduce_any(mask, axis=shared) if shared else mask, b, a)

    return map_structure(merge, old, new_dims)


# -- control flow contexts of graph backends


def control_flow_ctx(ctx: Any = None) -> contextlib.AbstractContextManager[None]:
    """No effect: there are only eager backends."""
    return contextlib.nullcontext()


def get_current_control_flow_ctx() -> None:
    """None: there are only eager backends."""
    return None
