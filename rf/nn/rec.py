"""Recurrent modules."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from rf import init
from rf._core import Tensor
from rf._dim import Dim, single_step_dim
from rf._errors import RfError
from rf.nn.module import Module
from rf.nn.parameter import Parameter
from rf.nn.state import State
from rf.ops.attention import clean
from rf.ops.contract import matmul
from rf.ops.create import convert_to_tensor, zeros
from rf.ops.dropout import dropout
from rf.ops.elementwise import less, sigmoid, tanh, where
from rf.ops.index import gather
from rf.ops.rec import lstm, lstm_step
from rf.ops.shape import replace_dim, split, stack
from rf.run_ctx import get_run_ctx

__all__ = ["LSTM", "LstmState", "ZoneoutLSTM"]


class LstmState(State):
    """The state of an LSTM: output `h` {..., out} and cell `c` {..., out}."""

    def __init__(self, *_args: Any, h: Tensor | None = None, c: Tensor | None = None) -> None:
        """
        :param _args: as for `State`; the others are then ignored.
        """
        if _args:
            super().__init__(*_args)
        else:
            super().__init__(h=h, c=c)


class LSTM(Module):
    """Long short-term memory, one layer: {..., spatial, in} -> {..., spatial, out}.

    i, f, g, o = W x_t + R h + b; c = sigmoid(f) c + sigmoid(i) tanh(g); h = sigmoid(o) tanh(c).
    Parameters: `ff_weight` W {4 * out, in}, `rec_weight` R {4 * out, out}, Glorot; `bias` b {4 * out}, zeros.
    Numerics of torch.nn.LSTM, whose two biases are added up here.
    """

    def __init__(self, in_dim: Dim, out_dim: Dim, *, with_bias: bool = True) -> None:
        """
        :param in_dim: static.
        :param out_dim: static.
        :param with_bias: whether there is a bias.
        """
        super().__init__()
        self.in_dim = in_dim
        self.out_dim = out_dim
        gates = 4 * out_dim
        self.ff_weight = Parameter((gates, in_dim), initial=init.Glorot())
        self.rec_weight = Parameter((gates, out_dim), initial=init.Glorot())
        self.bias = Parameter((gates,), initial=0.0) if with_bias else None

    def __call__(self, source: Tensor, *, state: LstmState, spatial_dim: Dim) -> tuple[Tensor, LstmState]:
        """
        :param source: {..., spatial, in}.
        :param state: before the first frame; see `default_initial_state`.
        :param spatial_dim: time; `rf.single_step_dim` for one step, the source is {..., in} then.
        :returns: (output, 0 in the padding; state after the last valid frame of each sequence).
        """
        weights = self.ff_weight, self.rec_weight, self.bias
        if spatial_dim == single_step_dim:
            h, c = lstm_step(source, state.h, state.c, *weights, self.in_dim, self.out_dim)
            return h, LstmState(h=h, c=c)
        out, h, c = lstm(
            source, state.h, state.c, *weights, spatial_dim=spatial_dim, in_dim=self.in_dim, out_dim=self.out_dim
        )
        return out, LstmState(h=h, c=c)

    def default_initial_state(self, *, batch_dims: Collection[Dim]) -> LstmState:
        """Zeros over batch_dims and `out_dim`."""
        dims = [*batch_dims, self.out_dim]
        h, c = (zeros(dims, feature_dim=self.out_dim, device=self.ff_weight.device) for _ in range(2))
        return LstmState(h=h, c=c)


class ZoneoutLSTM(LSTM):
    """`LSTM` that, in training, keeps entries of the state from the last step at random (Krueger et al. 2016,
    arXiv:1606.01305).

    Outside training the state is the mean over these draws.
    """

    def __init__(
        self,
        in_dim: Dim,
        out_dim: Dim,
        *,
        with_bias: bool = True,
        zoneout_factor_cell: float = 0.0,
        zoneout_factor_output: float = 0.0,
        use_zoneout_output: bool = True,
        forget_bias: float = 0.0,
        parts_order: str = "ifco",
    ) -> None:
        """
        :param zoneout_factor_cell: probability of keeping an entry of the cell.
        :param zoneout_factor_output: of keeping an entry of the output in the state.
        :param use_zoneout_output: the result is what the state keeps; False: what the step has computed.
        :param forget_bias: added to the forget gate.
        :param parts_order: of the gates in the weights: input, forget, cell (or j), output.
        """
        super().__init__(in_dim, out_dim, with_bias=with_bias)
        self.parts_order = parts_order.replace("c", "j")
        if sorted(self.parts_order) != sorted("ifjo"):
            raise RfError(f"ZoneoutLSTM: parts_order must have each of i, f, c, o once, got {parts_order!r}")
        for factor in (zoneout_factor_cell, zoneout_factor_output):
            if not 0 <= factor < 1:
                raise RfError(f"ZoneoutLSTM: a zoneout factor must be within 0..1 (1 excluded), got {factor}")
        self.zoneout_factor_cell = zoneout_factor_cell
        self.zoneout_factor_output = zoneout_factor_output
        self.use_zoneout_output = use_zoneout_output
        self.forget_bias = forget_bias

    def __call__(self, source: Tensor, *, state: LstmState, spatial_dim: Dim) -> tuple[Tensor, LstmState]:
        """Arguments and result as for `LSTM`."""
        source = clean(source, (spatial_dim,))
        x = matmul(source, self.ff_weight, reduce=self.in_dim)
        if self.bias is not None:
            x = x + self.bias
        if spatial_dim == single_step_dim:
            return self._step(x, state)
        steps = Dim(spatial_dim.get_dim_value(), name="step")
        sizes = spatial_dim.get_size_tensor(device=source.device) if spatial_dim.need_masking() else None
        outputs = []
        for t in range(spatial_dim.get_dim_value()):
            out, new_state = self._step(gather(x, indices=t, axis=spatial_dim), state)
            if sizes is not None:
                inside = less(convert_to_tensor(t, _backend=sizes.backend.name if sizes.backend else None), sizes)
                new_state = LstmState(h=where(inside, new_state.h, state.h), c=where(inside, new_state.c, state.c))
                out = where(inside, out, 0.0)
            state = new_state
            outputs.append(out)
        if not outputs:
            dims = [*[d for d in x.dims if d not in self.ff_weight.dims], self.out_dim]
            return zeros(dims, feature_dim=self.out_dim), state
        out, _ = stack(outputs, out_dim=steps)
        out, _ = replace_dim(out, in_dim=steps, out_dim=spatial_dim)
        out.feature_dim = self.out_dim
        return out, state

    def _step(self, x: Tensor, state: LstmState) -> tuple[Tensor, LstmState]:
        gates = x + matmul(state.h, self.rec_weight, reduce=self.out_dim)
        parts = split(gates, axis=4 * self.out_dim, out_dims=[self.out_dim] * 4)
        part = dict(zip(self.parts_order, parts))
        forget = part["f"] + self.forget_bias if self.forget_bias else part["f"]
        cell = sigmoid(forget) * state.c + sigmoid(part["i"]) * tanh(part["j"])
        new_c = _zoneout(state.c, cell, self.zoneout_factor_cell)
        output = sigmoid(part["o"]) * tanh(new_c)
        new_h = _zoneout(state.h, output, self.zoneout_factor_output)
        return new_h if self.use_zoneout_output else output, LstmState(h=new_h, c=new_c)


def _zoneout(before: Tensor, after: Tensor, factor: float) -> Tensor:
    """`before` with probability `factor`, else `after`, entry by entry; outside training the mean."""
    if not factor:
        return after
    change = after - before
    if get_run_ctx().is_train_flag_enabled(func=ZoneoutLSTM.__call__):
        change = dropout(change, factor, on_forward=True)
    return before + change * (1 - factor)
