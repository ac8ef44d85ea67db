"""Products of matrices on TensorFlow: which of its ops computes one.

On the CPU, TensorFlow has MatMul and BatchMatMulV2 computed by oneDNN, which is fast for large matrices, but slow to
start, most of all for many matrices and on several threads. BatchMatMulV3 is computed by Eigen.
"""

# pyright: reportMissingModuleSource=false

from __future__ import annotations

import math

import tensorflow as tf

from rf.backend import Raw
from rf.backends._tensorflow_fast import OtherKernels, fast, ints, with_gradient

_FLOATS = (tf.float32.as_datatype_enum, tf.float64.as_datatype_enum)
_COMPLEX = (tf.complex64.as_datatype_enum, tf.complex128.as_datatype_enum)
_SMALL = 1 << 19
"""Up to so many multiplications, starting oneDNN costs more than it wins; measured with 1 and 2 threads."""

_reshape, _add, _bias_add = fast("Reshape"), fast("AddV2"), fast("BiasAdd", data_format="NHWC")


class _Ops:
    """Each computes (..., rows, in) x (..., in, out), with either operand transposed."""

    def __init__(self, a: bool, b: bool) -> None:
        self.small = fast("BatchMatMulV3", "Tout", adj_x=a, adj_y=b)
        self.many = fast("BatchMatMulV2", adj_x=a, adj_y=b)
        self.one = fast("MatMul", transpose_a=a, transpose_b=b)


_NN, _NT, _TN = _Ops(False, False), _Ops(False, True), _Ops(True, False)


class ProductKernels(OtherKernels):
    """Mixed into `rf.backends.tensorflow.TensorFlowBackend`."""

    def contract(self, a: Raw, b: Raw, num_common: int, num_a: int, num_reduce: int, num_b: int) -> Raw:
        if num_reduce == 1 and num_b == 1 and (num_a == 1 or (num_a and not num_common)):
            if self._number_of(a) in _COMPLEX:
                return _NN.many(a, b)
            return with_gradient((a, b), self._product, self._product_backward)
        shape_a, shape_b = self.shape_of(a), self.shape_of(b)
        common, rest_a = shape_a[:num_common], shape_a[num_common : num_common + num_a]
        rest_b = shape_b[num_common + num_reduce :]
        rows, reduced, columns = math.prod(rest_a), math.prod(shape_a[num_common + num_a :]), math.prod(rest_b)
        if len(shape_a) != num_common + 2 or num_a != 1:
            a = _reshape(a, ints((*common, rows, reduced)))
        if len(shape_b) != num_common + 2 or num_b != 1:
            b = _reshape(b, ints((*common, reduced, columns)))
        y = self.contract(a, b, num_common, 1, 1, 1)
        return y if num_a == 1 and num_b == 1 else _reshape(y, ints((*common, *rest_a, *rest_b)))

    def _product(self, a: Raw, b: Raw) -> Raw:
        """(..., rows, in) x (..., in, out), or (..., in) x (in, out)."""
        shape_a, shape_b = self.shape_of(a), self.shape_of(b)
        number = self._number_of(a)
        if math.prod(shape_a) * shape_b[-1] <= _SMALL and self.host_only and number in _FLOATS:
            return _NN.small(a, b, number)
        if len(shape_a) == len(shape_b):
            return (_NN.one if len(shape_a) == 2 else _NN.many)(a, b)
        # Of matrices of unequal number, oneDNN makes as many calls as there are.
        rows = _reshape(a, ints((math.prod(shape_a[:-1]), shape_a[-1])))
        return _reshape(_NN.one(rows, b), ints((*shape_a[:-1], shape_b[-1])))

    def _product_backward(self, a: Raw, b: Raw, _y: Raw, g: Raw) -> tuple[Raw, Raw]:
        """TensorFlow's own would make the gradient of one b for every batch entry of a, then sum."""
        shape, shape_b = self.shape_of(a), self.shape_of(b)
        num_in, num_out = shape_b[-2:]
        if len(shape) == len(shape_b):
            return (
                self._choose(_NT, g, b, (*shape[:-1], num_out), num_in),
                self._choose(_TN, a, g, shape, num_out),
            )
        rows = math.prod(shape[:-1])
        g, a = _reshape(g, ints((rows, num_out))), _reshape(a, ints((rows, num_in)))
        grad_a = self._choose(_NT, g, b, (rows, num_out), num_in)
        return _reshape(grad_a, ints(shape)), self._choose(_TN, a, g, (rows, num_in), num_out)

    def _choose(self, ops: _Ops, a: Raw, b: Raw, shape_a: tuple[int, ...], columns: int) -> Raw:
        number = self._number_of(a)
        if math.prod(shape_a) * columns <= _SMALL and self.host_only and number in _FLOATS:
            return ops.small(a, b, number)
        return (ops.one if len(shape_a) == 2 else ops.many)(a, b)

    def linear(self, x: Raw, weight: Raw, bias: Raw | None) -> Raw:
        if len(self.shape_of(x)) == 1:
            y = self.contract(x, weight, 0, 0, 1, 1)
            return y if bias is None else _add(y, bias)
        y = self.contract(x, weight, 0, len(self.shape_of(x)) - 1, 1, 1)
        return y if bias is None else _bias_add(y, bias)
