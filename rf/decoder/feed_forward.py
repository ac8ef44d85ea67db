"""The framewise blocks of Transformer layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import rf
from rf import Dim, Tensor
from rf.nn.build import NotSpecified

__all__ = ["FeedForward", "FeedForwardGated", "make_activation", "make_norm"]

Activation = Callable[[Tensor], Tensor]


def make_activation(activation: Activation | dict[str, Any]) -> Activation:
    """A function, or what a dict describes."""
    return rf.build_from_dict(activation) if isinstance(activation, dict) else activation


def make_norm(norm: Any, out_dim: Dim) -> Any:
    """What normalizes frames.

    :param norm: a type, which gets `out_dim`; a dict, see `rf.build_from_dict`; a module, which is copied; or another
        function.
    """
    if isinstance(norm, (type, dict, rf.Module)):
        return rf.make_module(norm, None, out_dim)
    if not callable(norm):
        raise TypeError(f"norm: expected a type, a dict, a module or a function, got {norm!r}")
    return norm


class FeedForward(rf.Module):
    """Linear, activation, dropout, linear: {..., out} -> {..., out}, framewise. Parameters: those of `linear_ff` and
    `linear_out`.
    """

    def __init__(
        self,
        out_dim: Dim,
        *,
        ff_dim: Dim | int | type[NotSpecified] | None = NotSpecified,
        dropout: float = 0.1,
        activation: Activation | dict[str, Any] = rf.relu,
        with_bias: bool = True,
    ) -> None:
        """
        :param out_dim: of input and output.
        :param ff_dim: between the linear maps; default: 4 times `out_dim`.
        :param dropout: probability, in training, after the activation.
        :param activation: a function, or a dict, see `rf.build_from_dict`.
        :param with_bias: of the linear maps.
        """
        super().__init__()
        self.out_dim = out_dim
        self.dropout = dropout
        self.dropout_broadcast = rf.dropout_broadcast_default()
        self.activation = make_activation(activation)
        self.ff_dim = ff_dim_or(ff_dim, 4 * out_dim)
        self.linear_ff = rf.Linear(out_dim, self.ff_dim, with_bias=with_bias)
        self.linear_out = rf.Linear(self.ff_dim, out_dim, with_bias=with_bias)

    def __call__(self, inp: Tensor) -> Tensor:
        """
        :param inp: {..., out}.
        """
        x = self.activation(self.linear_ff(inp))
        x = rf.dropout(x, self.dropout, axis=self.dropout_broadcast and self.ff_dim)
        return self.linear_out(x)


class FeedForwardGated(rf.Module):
    """activation(a) * gate(b), of halves a and b of one linear map, then dropout and a linear map: {..., out} -> {...,
    out}.

    Source: Shazeer 2020, arXiv:2002.05202; with the defaults it is SwiGLU. Parameters: those of `linear_ff` (2 * ff)
    and `linear_out`.
    """

    def __init__(
        self,
        out_dim: Dim,
        *,
        ff_dim: Dim | int | type[NotSpecified] | None = NotSpecified,
        dropout: float = 0.1,
        activation: Activation | dict[str, Any] = rf.swish,
        gate_activation: Activation | dict[str, Any] = rf.identity,
        with_bias: bool = False,
    ) -> None:
        """
        :param ff_dim: default: 8 / 3 times `out_dim`, rounded up to a multiple of 256.
        :param gate_activation: of the second half.

        The others are those of `FeedForward`.
        """
        super().__init__()
        self.out_dim = out_dim
        self.dropout = dropout
        self.dropout_broadcast = rf.dropout_broadcast_default()
        self.activation = make_activation(activation)
        self.gate_activation = make_activation(gate_activation)
        size = -(-8 * out_dim.get_dim_value() // (3 * 256)) * 256
        self.ff_dim = ff_dim_or(ff_dim, Dim(size, name="ff"))
        self.linear_ff = rf.Linear(out_dim, 2 * self.ff_dim, with_bias=with_bias)
        self.linear_out = rf.Linear(self.ff_dim, out_dim, with_bias=with_bias)

    def __call__(self, inp: Tensor) -> Tensor:
        """
        :param inp: {..., out}.
        """
        x, _ = rf.gating(
            self.linear_ff(inp), gate_func=self.gate_activation, act_func=self.activation, out_dim=self.ff_dim
        )
        x = rf.dropout(x, self.dropout, axis=self.dropout_broadcast and self.ff_dim)
        return self.linear_out(x)


def ff_dim_or(ff_dim: Any, default: Dim) -> Dim:
    """The inner dim: a Dim, a new one of an int, or the default when not given."""
    if ff_dim is None or ff_dim is NotSpecified:
        return default
    return ff_dim if isinstance(ff_dim, Dim) else Dim(ff_dim, name="ff")
