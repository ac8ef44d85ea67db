"""The run context: what kind of step is running (train flag, step, epoch), and the losses and outputs it has marked.

A context that the main thread sets up is seen by all threads, unless a thread has set up its own, which only that
thread (or `contextvars` context) sees.
"""

from __future__ import annotations

import contextlib
import contextvars
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rf import dtypes
from rf._core import Tensor
from rf._dim import Dim, batch_dim
from rf._errors import DimError, RfError
from rf._registry import SERVICES
from rf.backend import backend_of_raw, selected_backend
from rf.ops.create import convert_to_tensor
from rf.ops.elementwise import cast
from rf.ops.reduce import reduce_mean, reduce_sum
from rf.tensor_dict import TensorDict

__all__ = [
    "Loss",
    "RunCtx",
    "get_run_ctx",
    "get_run_ctx_step",
    "init_forward_step_run_ctx",
    "init_train_step_run_ctx",
    "reset_run_ctx",
]

STAGES = ("init", "train_step", "forward_step")


@dataclass
class Loss:
    """One loss of a step, not reduced yet. All reductions count valid frames only.

    :param loss: {...} float.
    :param scale: factor in the total loss; reported values are without it.
    :param as_error: for reporting only.
    :param use_normalized_loss: the mean goes into the total loss instead of the sum.
    :param use_flatten_frames: without effect: padding never counts.
    :param custom_inv_norm_factor: what to divide the sum by instead of the number of elements; is summed up itself.
    """

    loss: Tensor
    name: str
    scale: float = 1.0
    as_error: bool = False
    use_normalized_loss: bool = False
    use_flatten_frames: bool = True
    custom_inv_norm_factor: Tensor | None = None

    _cache: dict[str, Tensor] = field(default_factory=dict, repr=False, compare=False)

    def _cached(self, key: str, x: Tensor, reduce: Callable[..., Tensor]) -> Tensor:
        out = self._cache.get(key)
        if out is None:
            out = self._cache[key] = reduce(x, axis=x.dims) if x.dims else x.copy()
        return out

    def get_summed_loss(self) -> Tensor:
        """Sum over all dims; a scalar."""
        return self._cached("sum", self.loss, reduce_sum)

    def get_mean_loss(self) -> Tensor:
        """Mean over all dims, or the sum / `get_inv_norm_factor()` where that is custom; a scalar."""
        if self.custom_inv_norm_factor is not None:
            return self.get_summed_loss() / cast(self._custom(self.custom_inv_norm_factor), self.loss.dtype)
        return self._cached("mean", self.loss, reduce_mean)

    def get_inv_norm_factor(self) -> int | Tensor:
        """What the mean divides by: the number of valid elements (an int, or a scalar int Tensor on the host), or the
        sum of the custom factor."""
        if self.custom_inv_norm_factor is not None:
            return self._custom(self.custom_inv_norm_factor)
        return self.loss.num_elements()

    def _custom(self, factor: Tensor) -> Tensor:
        return self._cached("factor", factor, reduce_sum)

    def get_scaled_reduced_loss(self) -> Tensor:
        """What the total loss adds up: sum or mean, times scale."""
        return (self.get_mean_loss() if self.use_normalized_loss else self.get_summed_loss()) * self.scale


class RunCtx:
    """One step of training, evaluation or forwarding, or the time before ("init"). See `get_run_ctx`.

    :param stage: "init"; "train_step" for training and evaluation, where losses are marked; "forward_step", where
        outputs are marked.
    :param train_flag: whether dropout and the like are active.
    :param step: number of the step, from 0.
    :param epoch: number of the epoch, from 1.
    :param expected_outputs: templates of the outputs by name; these and no others must be marked then.
    """

    def __init__(
        self,
        *,
        stage: str,
        train_flag: bool | Tensor = False,
        step: int | Tensor = 0,
        epoch: int | Tensor = 1,
        expected_outputs: Any = None,
    ) -> None:
        if stage not in STAGES:
            raise RfError(f"RunCtx: unknown stage {stage!r}; choose one of {', '.join(STAGES)}")
        self._stage = stage
        self._train_flag = train_flag
        self._step = step
        self._epoch = epoch
        self.losses: dict[str, Loss] = {}
        self.outputs = TensorDict()
        self.expected_outputs: Mapping[str, Tensor] | None = getattr(expected_outputs, "data", expected_outputs)
        self._recording = contextlib.ExitStack()

    def __repr__(self) -> str:
        return f"<RunCtx {self._stage}, train_flag {self._train_flag}, epoch {self._epoch}, step {self._step}>"

    @property
    def stage(self) -> str:
        """ "init", "train_step" or "forward_step"."""
        return self._stage

    # -- train flag

    @property
    def train_flag(self) -> bool | Tensor:
        """Whether this is training, for everything that has no flag of its own (`train_flag_ctx`)."""
        return self._flag(None)

    def is_train_flag_enabled(self, *, func: Any) -> bool:
        """Whether `func` shall behave as in training. `func`: the function or method that asks, such as
        `rf.dropout`."""
        flag = self._flag(func)
        return flag if isinstance(flag, bool) else bool(flag.item())

    def _flag(self, func: Any) -> bool | Tensor:
        entry = _overrides.get()
        while entry is not None:
            if entry.ctx is self and (entry.funcs is None or func in entry.funcs):
                return entry.flag
            entry = entry.outer
        return self._train_flag

    @contextlib.contextmanager
    def train_flag_ctx(self, train_flag: bool | Tensor, *, func: Any = None) -> Iterator[None]:
        """Another train flag for the duration of a `with` block, in this thread; the innermost one counts.

        :param func: only for this function or these functions; None: for all.
        """
        funcs = None if func is None else tuple(func) if isinstance(func, Collection) else (func,)
        token = _overrides.set(_Override(self, train_flag, funcs, _overrides.get()))
        try:
            yield
        finally:
            _overrides.reset(token)

    # -- step and epoch

    @property
    def step(self) -> int | Tensor:
        """Number of the step."""
        return self._step

    @property
    def epoch(self) -> int | Tensor:
        """Number of the epoch."""
        return self._epoch

    def get_step_tensor(self) -> Tensor:
        """The step as a scalar int Tensor on the host."""
        return convert_to_tensor(self._step, keep_scalar_on_cpu=True)

    def get_epoch_tensor(self) -> Tensor:
        """The epoch as a scalar int Tensor on the host."""
        return convert_to_tensor(self._epoch, keep_scalar_on_cpu=True)

    # -- losses

    def mark_as_loss(
        self,
        loss: Any,
        name: str,
        *,
        dims: Sequence[Dim] | None = None,
        scale: float = 1.0,
        as_error: bool = False,
        use_normalized_loss: bool = False,
        use_flatten_frames: bool = True,
        custom_inv_norm_factor: Tensor | None = None,
    ) -> None:
        """Register a loss of this train step. Give it unreduced: sums and means then count exactly the valid frames.

        :param loss: {...} Tensor; integers and bools are cast to the default float dtype. A raw array needs `dims`, or
            at most the batch axis.
        :param name: for reports; new in this step.
        :param dims: the dims of a raw `loss`.
        :param scale: for the gradient only; 0 leaves the loss out of it.
        :param as_error: report it, and leave it out of the gradient.
        :param use_normalized_loss: the gradient is that of the mean, not of the sum.
        :param use_flatten_frames: without effect: padding never counts.
        :param custom_inv_norm_factor: replaces the number of elements in means and reports, for example the number of
            words of each sequence; summed up over its dims.

        Raises RfError outside a train step or when the name is taken.
        """
        if self._stage != "train_step":
            raise RfError(
                f"mark_as_loss {name!r}: only in a train step (rf.init_train_step_run_ctx), "
                f"this is stage {self._stage!r}"
            )
        if name in self.losses:
            raise RfError(f"mark_as_loss: there is already a loss {name!r} in this step; give it another name")
        loss = _as_tensor("mark_as_loss", loss, name, dims)
        if not dtypes.is_float_dtype(loss.dtype):
            loss = cast(loss, dtypes.get_default_float_dtype())
        self.losses[name] = Loss(
            loss, name, scale, as_error, use_normalized_loss, use_flatten_frames, custom_inv_norm_factor
        )

    def total_loss(self) -> Tensor | float:
        """What training minimizes: the sum of scale * (sum or mean) over all losses that are no errors and have a
        scale.

        0.0 when all were excluded. Raises RfError when no loss was marked.
        """
        if not self.losses:
            raise RfError("total_loss: no loss was marked in this step; call loss.mark_as_loss(name)")
        total: Tensor | float = 0.0
        for loss in self.losses.values():
            if loss.scale != 0 and not loss.as_error:
                reduced = loss.get_scaled_reduced_loss()
                total = reduced if isinstance(total, float) else total + reduced
        return total

    # -- outputs

    def mark_as_output(self, tensor: Any, name: str, *, dims: Sequence[Dim] | None = None) -> None:
        """Register an output of this forward step, with axes in a defined order.

        :param tensor: Tensor, or a raw array with `dims`.
        :param name: new in this step, and one of the expected outputs if there are such.
        :param dims: the order; default: that of the expected output, else inferred: `rf.batch_dim` first, a dim after
            the dims its sizes depend on, static ones last.

        Raises RfError outside a forward step, for a name that is taken or not expected; DimError when the order is
        ambiguous, or the dims are not those of the tensor or of the expected output.
        """
        if self._stage != "forward_step":
            raise RfError(
                f"mark_as_output {name!r}: only in a forward step (rf.init_forward_step_run_ctx), "
                f"this is stage {self._stage!r}"
            )
        if name in self.outputs:
            raise RfError(f"mark_as_output: there is already an output {name!r} in this step; give it another name")
        expected = None
        if self.expected_outputs is not None:
            if name not in self.expected_outputs:
                raise RfError(f"mark_as_output: {name!r} is not expected; expected are {list(self.expected_outputs)}")
            expected = self.expected_outputs[name]
            dims = expected.dims if dims is None else dims
        tensor = _as_tensor("mark_as_output", tensor, name, dims)
        order = tuple(dims) if dims is not None else _default_order(name, tensor)
        if set(order) != set(tensor.dims) or len(order) != len(tensor.dims):
            raise DimError(f"mark_as_output {name!r}: the tensor is {tensor!r}, not with dims {list(order)}")
        if expected is not None:
            if tuple(expected.dims) != order:
                raise DimError(
                    f"mark_as_output {name!r}: dims {list(order)} are not in the expected order of {expected!r}"
                )
            if expected.dtype != tensor.dtype or expected.sparse_dim != tensor.sparse_dim:
                raise RfError(f"mark_as_output {name!r}: {tensor!r} does not match the expected {expected!r}")
        self.outputs.data[name] = tensor.copy_transpose(order, allow_int=False).copy(name=name)

    def mark_as_default_output(self, tensor: Any, *, shape: Sequence[Dim] | None = None) -> None:
        """`mark_as_output` with name "output"."""
        self.mark_as_output(tensor, "output", dims=shape)

    def check_outputs_complete(self) -> None:
        """Raises RfError when an expected output was not marked."""
        missing = [name for name in self.expected_outputs or () if name not in self.outputs]
        if missing:
            raise RfError(f"the outputs {missing} are expected, but only {list(self.outputs.data)} were marked")


def _as_tensor(what: str, x: Any, name: str, dims: Sequence[Dim] | None) -> Tensor:
    if isinstance(x, Tensor):
        if dims is not None and set(dims) != set(x.dims):
            raise DimError(f"{what} {name!r}: {x!r} does not have the dims {list(dims)}")
        return x
    backend = backend_of_raw(x)
    if dims is None and backend is not None:
        num_axes = len(backend.shape_of(x))
        if num_axes > 1:
            raise DimError(f"{what} {name!r}: a raw array with {num_axes} axes needs dims")
        dims = (batch_dim,) * num_axes
    return convert_to_tensor(x, dims=dims or ())


def _default_order(name: str, tensor: Tensor) -> tuple[Dim, ...]:
    rest = list(tensor.dims)
    order = [d for d in rest if d.is_batch_dim()]
    rest = [d for d in rest if not d.is_batch_dim()]
    while dynamic := [d for d in rest if d.is_dynamic()]:
        # a dim comes after those that its sizes depend on
        first = [d for d in dynamic if not (d.need_masking() and any(s in rest for s in d.base.size_dims or ()))]
        if len(first) != 1:
            break
        order.append(first[0])
        rest.remove(first[0])
    if len(rest) > 1:
        raise DimError(f"mark_as_output {name!r}: the order of {rest} in {tensor!r} is ambiguous; give dims=[...]")
    return (*order, *rest)


# -- the current one


@dataclass(frozen=True, slots=True)
class _Override:
    ctx: RunCtx
    flag: bool | Tensor
    funcs: tuple[Any, ...] | None
    outer: _Override | None


_process: RunCtx | None = None
_here: contextvars.ContextVar[RunCtx | None] = contextvars.ContextVar("rf_run_ctx", default=None)
_overrides: contextvars.ContextVar[_Override | None] = contextvars.ContextVar("rf_train_flags", default=None)


def get_run_ctx() -> RunCtx:
    """The current run context; one of stage "init" when no step has begun."""
    global _process
    ctx = _here.get() or _process
    if ctx is None:
        ctx = _process = RunCtx(stage="init")
    return ctx


def get_run_ctx_step() -> Tensor:
    """The step of the current run context, as a scalar int Tensor on the host."""
    return get_run_ctx().get_step_tensor()


def _set(ctx: RunCtx | None) -> None:
    global _process
    before = _here.get()
    if before is not None:
        before._recording.close()
    if ctx is not None and ctx.stage == "train_step":
        ctx._recording.enter_context(selected_backend().recording())
    _here.set(ctx)
    if threading.current_thread() is threading.main_thread():
        _process = ctx


def init_train_step_run_ctx(
    *, train_flag: bool | Tensor = True, step: int | Tensor = 0, epoch: int | Tensor = 1
) -> None:
    """Begin a step of training, or with `train_flag=False` of evaluation. Replaces the current context.

    What the selected backend computes is recorded for gradients until the step is left.
    """
    _set(RunCtx(stage="train_step", train_flag=train_flag, step=step, epoch=epoch))


def init_forward_step_run_ctx(*, expected_outputs: Any = None, step: int | Tensor = 0, epoch: int | Tensor = 1) -> None:
    """Begin a forward step; the train flag is False. Replaces the current context.

    :param expected_outputs: templates by name (a dict, or an object whose `data` is one).
    """
    _set(RunCtx(stage="forward_step", expected_outputs=expected_outputs, step=step, epoch=epoch))


def reset_run_ctx() -> None:
    """Leave the step: the current context is of stage "init" again."""
    _set(None)


def _mark_as_loss(x: Tensor, name: str, **options: Any) -> None:
    get_run_ctx().mark_as_loss(x, name, **options)


def _mark_as_output(x: Tensor, name: str, **options: Any) -> None:
    get_run_ctx().mark_as_output(x, name, **options)


SERVICES["mark_as_loss"] = _mark_as_loss
SERVICES["mark_as_output"] = _mark_as_output
