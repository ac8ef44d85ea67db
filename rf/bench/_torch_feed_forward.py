"""A feed-forward block as torch code."""

from __future__ import annotations

from collections.abc import Mapping

import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["FeedForwardBlock", "from_rf"]


def from_rf(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights (or their gradients) of `rf.bench.models_rf.FeedForwardBlock` under the names here."""
    return {
        "norm.weight": weights["norm.scale"],
        "norm.bias": weights["norm.bias"],
        "linear_in.weight": weights["linear_in.weight"].t(),
        "linear_in.bias": weights["linear_in.bias"],
        "linear_out.weight": weights["linear_out.weight"].t(),
        "linear_out.bias": weights["linear_out.bias"],
    }


class FeedForwardBlock(nn.Module):
    """x + dropout(linear(gelu(linear(norm(x))))): (..., model) -> (..., model)."""

    def __init__(self, *, model_dim: int, ff_dim: int, dropout: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(model_dim, eps=1e-6)
        self.linear_in = nn.Linear(model_dim, ff_dim)
        self.linear_out = nn.Linear(ff_dim, model_dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.dropout(self.linear_out(F.gelu(self.linear_in(self.norm(x)))))

    def loss(self, x: Tensor, target: Tensor) -> Tensor:
        """Mean squared error."""
        return F.mse_loss(self(x), target)
