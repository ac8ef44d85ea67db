"""The exponential moving average of what passes by."""

from __future__ import annotations

from collections.abc import Sequence

from rf._core import Tensor
from rf._dim import Dim, as_dims
from rf.nn.module import Module
from rf.nn.parameter import Parameter
from rf.ops.reduce import reduce_mean
from rf.run_ctx import get_run_ctx

__all__ = ["RunningMean"]


class RunningMean(Module):
    """mean = mean + alpha * (mean of the batch - mean), over all dims but `in_dim`.

    Parameter: `mean` {in}, auxiliary. Only valid frames count.
    """

    def __init__(
        self,
        in_dim: Dim | Sequence[Dim],
        *,
        alpha: float,
        dtype: str | None = None,
        is_prob_distribution: bool | None = None,
        update_only_in_train: bool = True,
    ) -> None:
        """
        :param in_dim: one static dim or several.
        :param alpha: weight of the batch.
        :param dtype: default: the default float dtype.
        :param is_prob_distribution: begin with the uniform distribution over `in_dim` instead of zeros.
        :param update_only_in_train: otherwise every call updates.
        """
        super().__init__()
        self.in_dims = as_dims(in_dim)
        self.alpha = alpha
        self.update_only_in_train = update_only_in_train
        self.mean = Parameter(self.in_dims, dtype, auxiliary=True, initial=0.0)
        if is_prob_distribution:
            size = 1
            for d in self.in_dims:
                size *= d.get_dim_value()
            self.mean.initial = 1.0 / size

    def __call__(self, x: Tensor) -> Tensor:
        """Update the mean by the batch {..., in}, in training, and return it {in}."""
        if not self.update_only_in_train or get_run_ctx().is_train_flag_enabled(func=RunningMean.__call__):
            rest = x.remaining_dims(self.in_dims)
            self.mean.move_toward(reduce_mean(x, axis=rest) if rest else x, self.alpha)
        return self.mean
