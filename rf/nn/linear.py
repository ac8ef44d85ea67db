"""Linear maps and embeddings."""

from __future__ import annotations

from rf import init
from rf._core import Tensor
from rf._dim import Dim
from rf._errors import DimError
from rf.nn.module import Module
from rf.nn.parameter import Parameter
from rf.ops.attention import clean
from rf.ops.contract import linear
from rf.ops.index import gather

__all__ = ["Embedding", "Linear", "in_side"]


def in_side(in_dim: Dim, *out_dims: Dim) -> Dim:
    """`in_dim` as it stands in a parameter: of higher match priority when it occurs among `out_dims` too (a square
    weight).
    """
    return in_dim.copy(match_priority=1) if in_dim in out_dims else in_dim


class Linear(Module):
    """y = x W + b: {..., in} -> {..., out}, out being the feature dim.

    Parameters: `weight` {in, out}, Glorot; `bias` {out}, zeros. Padding is mapped like everything else.
    """

    def __init__(self, in_dim: Dim, out_dim: Dim, *, with_bias: bool = True) -> None:
        """
        :param in_dim: static; the input must have it.
        :param out_dim: static; may be `in_dim` itself.
        :param with_bias: whether there is a bias.
        """
        super().__init__()
        self.in_dim = in_dim
        self.out_dim = out_dim
        self.with_bias = with_bias
        self.weight = Parameter((in_side(in_dim, out_dim), out_dim), initial=init.Glorot())
        self.bias = Parameter((out_dim,), initial=0.0) if with_bias else None

    def __call__(self, source: Tensor) -> Tensor:
        """
        :param source: {..., in}.
        :returns: {..., out}.

        Raises DimError when the source lacks `in_dim`, or has `out_dim` besides.
        """
        return linear(source, self.weight, self.bias, self.in_dim, self.out_dim)


class Embedding(Module):
    """A vector for each label: {...} of labels -> {..., out}.

    Parameter: `weight` {in, out}, truncated normal of standard deviation out ** -0.5, so that the vectors have about
    unit length.
    """

    def __init__(self, in_dim: Dim, out_dim: Dim) -> None:
        """
        :param in_dim: the labels (the sparse dim of the input).
        :param out_dim: of the vectors.
        """
        super().__init__()
        self.in_dim = in_dim
        self.out_dim = out_dim
        dims = (in_side(in_dim, out_dim), out_dim)
        self.weight = Parameter(dims, initial=init.Normal(max(1, out_dim.get_dim_value()) ** -0.5))
        if in_dim != out_dim:
            self.weight.feature_dim = out_dim

    def __call__(self, source: Tensor) -> Tensor:
        """
        :param source: int, sparse dim `in_dim`. What labels lie in the padding does not matter.
        :returns: {..., out}.

        Raises DimError when the source has another sparse dim.
        """
        if source.sparse_dim != self.in_dim:
            raise DimError(
                f"Embedding of {self.in_dim!r}: the labels {source!r} have another sparse dim; see rf.set_sparse_dim"
            )
        return gather(self.weight, indices=clean(source, source.dims), axis=self.in_dim)
