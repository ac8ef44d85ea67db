"""What all models have in common."""

from __future__ import annotations

from typing import Any, ClassVar

import rf
from rf import Dim, Tensor

__all__ = ["Model"]


class Model(rf.Module):
    """A trainable model from inputs (audio or features) to labels.

    Class attributes: `config_class`, a frozen dataclass; `presets`, configurations by name; `overridable`, names of
    those of its entries that the command line may set. Attribute: `config`.
    """

    config_class: ClassVar[type[Any]]
    presets: ClassVar[dict[str, Any]]
    overridable: ClassVar[tuple[str, ...]] = ()
    config: Any

    def __init__(self, config: Any, *, feature_dim: Dim | None, label_dim: Dim) -> None:
        """
        :param config: of `config_class`.
        :param feature_dim: of the inputs; None for audio.
        :param label_dim: labels of the targets.
        """
        super().__init__()
        self.config = config
        self.feature_dim = feature_dim
        self.label_dim = label_dim

    def train_step(self, inputs: Tensor, in_spatial_dim: Dim, targets: Tensor, targets_spatial_dim: Dim) -> None:
        """Compute the losses and mark them in the run context (`rf.get_run_ctx().mark_as_loss`).

        :param inputs: float, {batch, in_spatial} samples or {batch, in_spatial, feature}. What lies in the padding does
            not matter.
        :param in_spatial_dim: time.
        :param targets: int {batch, targets_spatial} with the sparse dim `label_dim`.
        :param targets_spatial_dim: of the targets.
        """
        raise NotImplementedError

    def greedy_ctc(self, inputs: Tensor, in_spatial_dim: Dim) -> list[list[int]]:
        """The labels of each sequence of the batch, by the best class of each frame."""
        raise NotImplementedError

    def beam_search(self, inputs: Tensor, in_spatial_dim: Dim, *, beam_size: int = 8) -> list[list[int]]:
        """The labels of each sequence of the batch, by beam search."""
        raise NotImplementedError
