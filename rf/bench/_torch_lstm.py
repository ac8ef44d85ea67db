"""LSTMs as torch code: a language model, and one layer as a loop over its frames.

torch has two biases for each layer, of which only the sum matters. The second one is 0 and not trained, so that both
sides train the same parameters.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = [
    "CompiledCell",
    "LstmCellLoop",
    "LstmLanguageModel",
    "LstmLayer",
    "cell_loop_from_rf",
    "language_model_from_rf",
    "layer_from_rf",
    "traced_cell",
]

IGNORE = -100
"""The target in the padding."""

_LSTM_NAMES = {"ff_weight": "weight_ih", "rec_weight": "weight_hh", "bias": "bias_ih"}


def language_model_from_rf(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights (or their gradients) of `rf.bench.models_rf.LstmLanguageModel` under the names here.

    Gates are in the same order, and their weights in the same layout {gates, in}.
    """
    out = {}
    for name, value in weights.items():
        if name.startswith("layers."):
            _, layer, parameter = name.split(".")
            out[f"lstm.{_LSTM_NAMES[parameter]}_l{layer}"] = value
        else:
            out[name] = value.t() if name == "logits.weight" else value
    return out


class LstmLanguageModel(nn.Module):
    """Labels so far -> scores of the next label: (batch, time) -> (batch, time, vocab)."""

    def __init__(self, *, vocab_dim: int, embed_dim: int, hidden_dim: int, num_layers: int, dropout: float) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab_dim, embed_dim)
        self.dropout = nn.Dropout(dropout)
        between = dropout if num_layers > 1 else 0.0
        self.lstm = nn.LSTM(embed_dim, hidden_dim, num_layers, batch_first=True, dropout=between)
        self.logits = nn.Linear(hidden_dim, vocab_dim)
        _freeze_second_bias(self.lstm)

    def forward(self, labels: Tensor) -> Tensor:
        """
        :param labels: (batch, time). Padding at the end needs no packing: no valid label sees it.
        """
        x, _ = self.lstm(self.dropout(self.embedding(labels)))
        return self.logits(self.dropout(x))

    def loss(self, labels: Tensor, targets: Tensor) -> Tensor:
        """Cross entropy, mean over the valid labels. Targets in the padding are `IGNORE`."""
        return F.cross_entropy(self(labels).flatten(0, 1), targets.flatten(), ignore_index=IGNORE)


def cell_loop_from_rf(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights (or their gradients) of `rf.bench.models_rf.LstmCellLoop` under the names here."""
    return {f"cell.{_LSTM_NAMES[name.removeprefix('cell.')]}": value for name, value in weights.items()}


class LstmCellLoop(nn.Module):
    """An LSTM layer, frame by frame: (batch, time, in) -> (batch, time, hidden)."""

    def __init__(
        self, *, in_dim: int, hidden_dim: int, make_cell: Callable[[int, int], nn.Module] = nn.LSTMCell
    ) -> None:
        """
        :param make_cell: (in, hidden) -> the cell.
        """
        super().__init__()
        self.hidden_dim = hidden_dim
        self.cell = make_cell(in_dim, hidden_dim)
        _freeze_second_bias(self.cell)

    def forward(self, x: Tensor) -> Tensor:
        h = c = x.new_zeros(x.shape[0], self.hidden_dim)
        out = []
        for frame in x.unbind(dim=1):
            h, c = self.cell(frame, (h, c))
            out.append(h)
        return torch.stack(out, dim=1)

    def loss(self, x: Tensor, target: Tensor) -> Tensor:
        """Mean squared error."""
        return F.mse_loss(self(x), target)


def traced_cell(in_dim: int, hidden_dim: int) -> nn.Module:
    """torch.nn.LSTMCell in TorchScript."""
    cell, x, h = nn.LSTMCell(in_dim, hidden_dim), torch.zeros(2, in_dim), torch.zeros(2, hidden_dim)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # torch.jit is deprecated as a whole
        traced = torch.jit.trace(cell, (x, (h, h)))
    assert isinstance(traced, nn.Module)
    return traced


class CompiledCell(nn.LSTMCell):
    """torch.nn.LSTMCell under torch.compile, which compiles at the first call. It takes no module of torch's own."""

    def __init__(self, in_dim: int, hidden_dim: int, *, backend: str = "inductor") -> None:
        super().__init__(in_dim, hidden_dim)
        self.compile(fullgraph=True, backend=backend)

    def forward(self, input: Tensor, hx: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, Tensor]:
        return super().forward(input, hx)


def layer_from_rf(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights (or their gradients) of `rf.bench.models_rf.LstmCellLoop` under the names of `LstmLayer`."""
    return {f"lstm.{_LSTM_NAMES[name.removeprefix('cell.')]}_l0": value for name, value in weights.items()}


class LstmLayer(nn.Module):
    """What `LstmCellLoop` computes, by torch.nn.LSTM."""

    def __init__(self, *, in_dim: int, hidden_dim: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(in_dim, hidden_dim, batch_first=True)
        _freeze_second_bias(self.lstm)

    def forward(self, x: Tensor) -> Tensor:
        return self.lstm(x)[0]

    def loss(self, x: Tensor, target: Tensor) -> Tensor:
        """Mean squared error."""
        return F.mse_loss(self(x), target)


def _freeze_second_bias(module: nn.Module) -> None:
    for name, parameter in module.named_parameters():
        if name.startswith("bias_hh"):
            nn.init.zeros_(parameter)
            parameter.requires_grad_(False)
