"""TensorArray: a list of Tensors of equal dims, as loops collect and read them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rf._core import Tensor, apply
from rf._dim import Dim
from rf._errors import DimError, RfError
from rf.ops.create import zeros
from rf.ops.shape import stack

__all__ = ["TensorArray"]


class TensorArray:
    """A list of Tensors of the same dims and sparse dim. It never changes: `push_back` gives a new one.

    :param tensor_template: dims, dtype and sparse dim of the entries; needs no data.
    """

    def __init__(
        self,
        tensor_template: Tensor,
        *,
        capacity: int | None = None,
        _backend_tensor_array: list[Tensor] | None = None,
        _backend: Any = None,
        _enable_delayed_check: bool = False,
    ) -> None:
        """
        :param capacity: without effect.
        :param _backend_tensor_array: the entries, a list that is taken over.
        :param _enable_delayed_check: whether entries may have other dims than the template.
        """
        self.tensor_template = tensor_template
        self._items: list[Tensor] = [] if _backend_tensor_array is None else _backend_tensor_array
        self._length = len(
            self._items
        )  # the list is shared with arrays that were made from this one, and may be longer
        self._unchecked = _enable_delayed_check

    @classmethod
    def unstack(cls, tensor: Tensor, *, axis: Dim) -> TensorArray:
        """{..., axis} as a list of {...}, over the padded extent."""
        at, n = tensor.get_axis_from_description(axis), axis.get_dim_value()
        template = tensor.copy_template_excluding_axis(at)
        spec = (template.dims, template.dtype, template.feature_dim, template.sparse_dim)
        items: list[Tensor] = []
        if n == 1:
            items = list(apply("select", (tensor,), (at, 0), [spec]))
        elif n > 1:
            items = list(apply("unstack", (tensor,), (at, n), [spec] * n))
        return cls(template, _backend_tensor_array=items)

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int | Tensor) -> Tensor:
        i = int(index)
        if not -self._length <= i < self._length:
            raise IndexError(f"TensorArray: index {i} of {self._length} entries")
        return self._items[i % self._length]

    def __iter__(self) -> Iterator[Tensor]:
        return iter(self._items[: self._length])

    def __repr__(self) -> str:
        return f"TensorArray({self._length} x {self.tensor_template!r})"

    def push_back(self, tensor: Tensor) -> TensorArray:
        """An array with one entry more. Raises DimError when its dims or sparse dim are not those of the template."""
        template = self.tensor_template
        if not self._unchecked and (tensor.dims_set != template.dims_set or tensor.sparse_dim != template.sparse_dim):
            raise DimError(f"TensorArray.push_back: the entry {tensor!r} does not match the template {template!r}")
        # The next entry of the shared list can be taken once; who comes second works on a copy.
        items = self._items if len(self._items) == self._length else self._items[: self._length]
        items.append(tensor)
        return TensorArray(template, _backend_tensor_array=items, _enable_delayed_check=self._unchecked)

    def stack(self, *, axis: Dim) -> Tensor:
        """The entries along a new dim, which must be as long: {axis, ...}. Without entries, zeros of the template's
        dims."""
        if self._length != axis.get_dim_value():
            raise DimError(f"TensorArray.stack: {self._length} entries do not fit {axis!r}")
        template = self.tensor_template
        if not self._length:
            dims = (axis, *template.dims)
            return zeros(dims, dtype=template.dtype, sparse_dim=template.sparse_dim, feature_dim=template.feature_dim)
        if self._unchecked and any(t.dims_set != self._items[0].dims_set for t in self):
            raise RfError(f"TensorArray.stack: the entries have different dims: {[t.dims for t in self]}")
        return stack(list(self), out_dim=axis)[0]
