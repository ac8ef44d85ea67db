"""Products of matrices on TensorFlow: which of its ops computes one, and their gradients.

On the CPU, TensorFlow has MatMul and BatchMatMulV2 computed by oneDNN, which is fast for large matrices, but slow to
start, most of all for many matrices and on several threads. BatchMatMulV3 is computed by Eigen.
"""

# pyright: reportMissingModuleSource=false

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from rf.backend import Raw, Shape
from rf.backends import _tensorflow_ops as ops
from rf.backends._tensorflow_fast import Needed, OtherKernels, differentiable, fast, ints

Args = tuple[Any, ...]

_FLOATS = (tf.float32.as_datatype_enum, tf.float64.as_datatype_enum)
_SMALL = 1 << 19
"""Up to so many multiplications, starting oneDNN costs more than it wins; measured with 1 and 2 threads."""

_reshape = fast("Reshape")
_bias_add, _bias_add_back = fast("BiasAdd", data_format="NHWC"), fast("BiasAddGrad", data_format="NHWC")


@functools.cache
def _on_host() -> bool:
    return not tf.config.get_visible_devices("GPU")


class _Product:
    """(..., rows, in) x (..., in, out) for as many axes in both, either operand transposed."""

    def __init__(self, a: bool, b: bool) -> None:
        self._small = fast("BatchMatMulV3", "Tout", adj_x=a, adj_y=b)
        self._many = fast("BatchMatMulV2", adj_x=a, adj_y=b)
        self._one = fast("MatMul", transpose_a=a, transpose_b=b)

    def __call__(self, a: Raw, b: Raw, multiplications: int) -> Raw:
        number = a._datatype_enum()
        if multiplications <= _SMALL and number in _FLOATS and _on_host():
            return self._small(a, b, number)
        return (self._one if len(a._shape_tuple()) == 2 else self._many)(a, b)


_nn, _nt, _tn = _Product(False, False), _Product(False, True), _Product(True, False)


def _flat(x: Raw) -> Raw:
    """(..., n) as a matrix."""
    *shape, n = x._shape_tuple()
    return _reshape(x, ints((math.prod(shape), n)))


# -- as many axes in both


def _multiplications(a: Shape, columns: int) -> int:
    return math.prod(a) * columns


def _matmul(a: Raw, b: Raw) -> Raw:
    return _nn(a, b, _multiplications(a._shape_tuple(), b._shape_tuple()[-1]))


def _matmul_back(args: Args, needed: Needed, _y: Raw, g: Raw) -> Sequence[Raw | None]:
    a, b = args
    total = _multiplications(a._shape_tuple(), b._shape_tuple()[-1])
    return (
        ops.sum_to(_nt(g, b, total), a) if needed[0] else None,
        ops.sum_to(_tn(a, g, total), b) if needed[1] else None,
    )


matmul = differentiable(_matmul, 2, _matmul_back)
"""(common..., n, k) x (common..., k, m), the common axes none or several."""


# -- many rows, one matrix


def _product(x: Raw, weight: Raw) -> Raw:
    shape, num_out = x._shape_tuple(), weight._shape_tuple()[-1]
    total = _multiplications(shape, num_out)
    if len(shape) == 2 or (total <= _SMALL and x._datatype_enum() in _FLOATS and _on_host()):
        return _nn(x, weight, total)
    # Of matrices of unequal number, oneDNN makes as many calls as there are.
    return _reshape(_nn(_flat(x), weight, total), ints((*shape[:-1], num_out)))


def _product_back(args: Args, needed: Needed, _y: Raw, g: Raw) -> Sequence[Raw | None]:
    """TensorFlow's own would make a gradient of the weight for each batch entry, then sum."""
    x, weight = args
    shape = x._shape_tuple()
    total = _multiplications(shape, weight._shape_tuple()[-1])
    if len(shape) > 2:
        x, g = _flat(x), _flat(g)
    grad_x = None
    if needed[0]:
        grad_x = _nt(g, weight, total)
        if len(shape) > 2:
            grad_x = _reshape(grad_x, ints(shape))
    return grad_x, _tn(x, g, total) if needed[1] else None


def _affine(x: Raw, weight: Raw, bias: Raw) -> Raw:
    return _bias_add(_product(x, weight), bias)


def _affine_back(args: Args, needed: Needed, y: Raw, g: Raw) -> Sequence[Raw | None]:
    return *_product_back(args[:2], needed, y, g), _bias_add_back(g) if needed[2] else None


product = differentiable(_product, 2, _product_back)
"""(..., in) x (in, out), with two axes at least."""
affine = differentiable(_affine, 3, _affine_back)
"""`product` + (out)."""


class ProductKernels(OtherKernels):
    """Mixed into `rf.backends.tensorflow.TensorFlowBackend`."""

    def contract(self, a: Raw, b: Raw, num_common: int, num_a: int, num_reduce: int, num_b: int) -> Raw:
        if num_reduce == 1 and num_b == 1:
            if num_a == 1:
                return matmul(a, b)
            if num_a and not num_common:
                return product(a, b)
        shape_a, shape_b = self.shape_of(a), self.shape_of(b)
        common, rest_a = shape_a[:num_common], shape_a[num_common : num_common + num_a]
        rest_b = shape_b[num_common + num_reduce :]
        rows, reduced, columns = math.prod(rest_a), math.prod(shape_a[num_common + num_a :]), math.prod(rest_b)
        if len(shape_a) != num_common + 2 or num_a != 1:
            a = ops.reshape(a, (*common, rows, reduced))
        if len(shape_b) != num_common + 2 or num_b != 1:
            b = ops.reshape(b, (*common, reduced, columns))
        y = matmul(a, b)
        return y if num_a == 1 and num_b == 1 else ops.reshape(y, (*common, *rest_a, *rest_b))

    def linear(self, x: Raw, weight: Raw, bias: Raw | None) -> Raw:
        num_rest = len(self.shape_of(x)) - 1
        if num_rest and bias is not None:
            return affine(x, weight, bias)
        y = self.contract(x, weight, 0, num_rest, 1, 1)
        return y if bias is None else ops.add(y, bias)
