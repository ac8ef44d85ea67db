// The operators of Tensor: each is a call of the op object of that name, so operators and functions are one path.
#pragma once
#include "op.h"

namespace rf {

enum Operator {
  kAdd,
  kSub,
  kMul,
  kTruediv,
  kFloordiv,
  kMod,
  kPow,
  kAnd,
  kOr,
  kNeg,
  kAbs,
  kInvert,
  kLess,
  kLessEqual,
  kEqual,
  kNotEqual,
  kGreater,
  kGreaterEqual,
  kNumOperators,
};
constexpr const char* kOperatorOps[kNumOperators] = {
    "add", "sub", "mul",         "truediv", "floordiv",   "mod",   "pow",       "logical_and", "logical_or",
    "neg", "abs", "logical_not", "less",    "less_equal", "equal", "not_equal", "greater",     "greater_equal",
};
inline OpObject* operator_ops[kNumOperators];

// Ops register themselves when they are made; a later op of the same name takes over, as in the table.
inline void register_operator(PyObject* name, OpObject* op) {
  for (int i = 0; i < kNumOperators; ++i) {
    if (PyUnicode_CompareWithASCIIString(name, kOperatorOps[i]) == 0) {
      Py_INCREF(reinterpret_cast<PyObject*>(op));
      Py_XDECREF(reinterpret_cast<PyObject*>(std::exchange(operator_ops[i], op)));
    }
  }
}

inline OpObject* operator_op(int which) {
  OpObject* op = operator_ops[which];
  if (RF_UNLIKELY(!op)) PyErr_SetString(PyExc_RuntimeError, "rf.ops is not imported; import rf");
  return op;
}

// 1 when `x` may stand beside a Tensor, 0 when not, -1 with an error.
inline int is_operand(PyObject* x) {
  if (RF_LIKELY(is_tensor(x) || PyFloat_CheckExact(x) || PyLong_CheckExact(x))) return 1;
  Ref answer(PyObject_CallFunctionObjArgs(names.prepare_is_operand, x, nullptr));
  return answer ? PyObject_IsTrue(answer.get()) : -1;
}

template <int which> PyObject* binary_operator(PyObject* a, PyObject* b) {
  int ok = is_operand(is_tensor(a) ? b : a);
  if (RF_UNLIKELY(ok <= 0)) {
    if (ok < 0) return nullptr;
    Py_RETURN_NOTIMPLEMENTED;
  }
  OpObject* op = operator_op(which);
  if (!op) return nullptr;
  PyObject* args[] = {a, b, Py_False};
  return op_call(op, args, 3);
}

inline PyObject* power_operator(PyObject* a, PyObject* b, PyObject* modulus) {
  if (modulus != Py_None) Py_RETURN_NOTIMPLEMENTED;
  return binary_operator<kPow>(a, b);
}

template <int which> PyObject* unary_operator(PyObject* a) {
  OpObject* op = operator_op(which);
  return op ? op_call(op, &a, 1) : nullptr;
}

inline PyObject* tensor_compare(PyObject* a, PyObject* b, int how) {
  static constexpr int kOps[] = {kLess, kLessEqual, kEqual, kNotEqual, kGreater, kGreaterEqual};
  int ok = is_operand(b);
  if (RF_UNLIKELY(ok < 0)) return nullptr;
  bool equality = how == Py_EQ || how == Py_NE;
  if (RF_UNLIKELY(!ok || (equality && !as_tensor(a)->backend))) {
    if (!equality) Py_RETURN_NOTIMPLEMENTED;
    return PyBool_FromLong((a == b) == (how == Py_EQ));
  }
  OpObject* op = operator_op(kOps[how]);
  if (!op) return nullptr;
  PyObject* args[] = {a, b, Py_False};
  return op_call(op, args, 3);
}

inline Py_hash_t tensor_hash(PyObject* self) {
  auto bits = reinterpret_cast<size_t>(self);
  auto hash = static_cast<Py_hash_t>((bits >> 4) | (bits << (8 * sizeof(bits) - 4)));
  return hash == -1 ? -2 : hash;
}

template <Operator which> PyObject* method_operator(PyObject* self, PyObject*) { return unary_operator<which>(self); }

inline bool make_tensor_type(PyObject* base) {
  static PyType_Slot slots[] = {
      {Py_tp_new, reinterpret_cast<void*>(tensor_new)},
      {Py_tp_init, reinterpret_cast<void*>(tensor_init)},
      {Py_tp_dealloc, reinterpret_cast<void*>(tensor_dealloc)},
      {Py_tp_traverse, reinterpret_cast<void*>(tensor_traverse)},
      {Py_tp_hash, reinterpret_cast<void*>(tensor_hash)},
      {Py_tp_richcompare, reinterpret_cast<void*>(tensor_compare)},
      {Py_tp_getset, tensor_getset},
      {Py_tp_methods, tensor_methods},
      {Py_nb_add, reinterpret_cast<void*>(binary_operator<kAdd>)},
      {Py_nb_subtract, reinterpret_cast<void*>(binary_operator<kSub>)},
      {Py_nb_multiply, reinterpret_cast<void*>(binary_operator<kMul>)},
      {Py_nb_true_divide, reinterpret_cast<void*>(binary_operator<kTruediv>)},
      {Py_nb_floor_divide, reinterpret_cast<void*>(binary_operator<kFloordiv>)},
      {Py_nb_remainder, reinterpret_cast<void*>(binary_operator<kMod>)},
      {Py_nb_power, reinterpret_cast<void*>(power_operator)},
      {Py_nb_and, reinterpret_cast<void*>(binary_operator<kAnd>)},
      {Py_nb_or, reinterpret_cast<void*>(binary_operator<kOr>)},
      {Py_nb_negative, reinterpret_cast<void*>(unary_operator<kNeg>)},
      {Py_nb_absolute, reinterpret_cast<void*>(unary_operator<kAbs>)},
      {Py_nb_invert, reinterpret_cast<void*>(unary_operator<kInvert>)},
      {Py_tp_doc, const_cast<char*>("An array with named dims; see rf._core_py.Tensor and rf._tensor_methods.")},
      {0, nullptr},
  };
  static PyType_Spec spec = {"rf._native._core.Tensor", sizeof(TensorObject), 0,
                             Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, slots};
  Ref bases(PyTuple_Pack(1, base));
  if (!bases) return false;
  TensorType = reinterpret_cast<PyTypeObject*>(PyType_FromSpecWithBases(&spec, bases.get()));
  if (TensorType && PyType_HasFeature(TensorType, Py_TPFLAGS_HAVE_GC)) {
    PyErr_SetString(PyExc_SystemError, "Tensor must not be tracked by the garbage collector");
    return false;
  }
  return TensorType != nullptr;
}

} // namespace rf
