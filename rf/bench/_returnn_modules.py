"""Models of the benchmark that RETURNN has nowhere else, written for its frontend as a user of it would."""

# Of the extra `peers`, which checks are made without.
# pyright: reportMissingImports=false

from __future__ import annotations

import returnn.frontend as rf
from returnn.tensor import Dim, Tensor, single_step_dim

__all__ = ["FeedForwardBlock", "LstmCellLoop", "LstmLanguageModel"]


class FeedForwardBlock(rf.Module):
    """x + dropout(linear(gelu(linear(norm(x))))): {..., model} -> {..., model}."""

    def __init__(self, model_dim: Dim, ff_dim: Dim, *, dropout: float) -> None:
        super().__init__()
        self.norm = rf.LayerNorm(model_dim)
        self.linear_in = rf.Linear(model_dim, ff_dim)
        self.linear_out = rf.Linear(ff_dim, model_dim)
        self.dropout = dropout

    def __call__(self, x: Tensor) -> Tensor:
        y = self.linear_out(rf.gelu(self.linear_in(self.norm(x))))
        return rf.dropout(y, self.dropout) + x


class LstmLanguageModel(rf.Module):
    """Labels so far -> scores of the next label: {..., spatial} -> {..., spatial, vocab}."""

    def __init__(self, vocab_dim: Dim, embed_dim: Dim, hidden_dims: list[Dim], *, dropout: float) -> None:
        super().__init__()
        self.embedding = rf.Embedding(vocab_dim, embed_dim)
        self.layers = rf.ModuleList(rf.LSTM(i, o) for i, o in zip([embed_dim, *hidden_dims], hidden_dims))
        self.logits = rf.Linear(hidden_dims[-1], vocab_dim)
        self.dropout = dropout

    def __call__(self, labels: Tensor, *, spatial_dim: Dim) -> Tensor:
        batch_dims = labels.remaining_dims(spatial_dim)
        x = rf.dropout(self.embedding(labels), self.dropout)
        for layer in self.layers:
            state = layer.default_initial_state(batch_dims=batch_dims)
            x, _ = layer(x, state=state, spatial_dim=spatial_dim)
            x = rf.dropout(x, self.dropout)
        return self.logits(x)


class LstmCellLoop(rf.Module):
    """An LSTM layer, frame by frame: {..., spatial, in} -> {spatial, ..., hidden}."""

    def __init__(self, in_dim: Dim, hidden_dim: Dim) -> None:
        super().__init__()
        self.cell = rf.LSTM(in_dim, hidden_dim)

    def __call__(self, x: Tensor, *, spatial_dim: Dim) -> Tensor:
        state = self.cell.default_initial_state(batch_dims=x.remaining_dims([spatial_dim, self.cell.in_dim]))
        out = []
        for frame in rf.unstack(x, axis=spatial_dim):
            h, state = self.cell(frame, state=state, spatial_dim=single_step_dim)
            out.append(h)
        return rf.stack(out, out_dim=spatial_dim)[0]
