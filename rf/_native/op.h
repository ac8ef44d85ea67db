// Op: a planned op. Builds the key of a call, finds the plan, runs it. The specification is `Op` in rf/_core_py.py.
#pragma once
#include "run.h"

namespace rf {

struct OpObject {
  PyObject_HEAD vectorcallfunc vectorcall;
  PyObject* name;
  PyObject* planner;
  int num_tensors;
  bool masked;
  PlanCache* plans;
};

inline PyTypeObject* OpType = nullptr;
inline OpObject* as_op(PyObject* p) { return reinterpret_cast<OpObject*>(p); }

// The key of a call: the structure of its operands' dims, and its static arguments, as bytes.
class Key {
public:
  Key(PyObject* const* args, Py_ssize_t num_args) : args_(args), num_args_(num_args) {}

  bool build(bool masked) {
    PyObject* first_dims = nullptr;
    for (Py_ssize_t i = 0; i < num_args_; ++i) {
      PyObject* a = args_[i];
      if (is_tensor(a)) {
        TensorObject* t = as_tensor(a);
        if (t->dims == first_dims) {
          put(kSameDims);
        } else {
          if (!first_dims) first_dims = t->dims;
          Py_ssize_t n = PyTuple_GET_SIZE(t->dims);
          put(static_cast<uint8_t>(kTensor | (n & 31)));
          for (Py_ssize_t j = 0; j < n; ++j)
            if (!put_dim(PyTuple_GET_ITEM(t->dims, j))) return false;
        }
        put(t->dtype);
        if (!t->feature_dim)
          put(kNothing);
        else if (!put_dim(t->feature_dim))
          return false;
        if (!t->sparse_dim)
          put(kNothing);
        else if (!put_dim(t->sparse_dim))
          return false;
      } else if (!put_argument(a, 0)) {
        return false;
      }
      if (RF_UNLIKELY(size > kMaxKey - 32)) return too_long();
    }
    if (masked) {
      for (int i = 0; i < num_distinct; ++i) { // size dims may add to `distinct` while it is walked
        DimObject* dim = distinct[i];
        if (!dim->dynamic) continue;
        if (is_none(dim->size_dims)) {
          Ref done(PyObject_CallMethodNoArgs(as_object(dim), names.s_settle));
          if (!done) return false;
        }
        Py_ssize_t n = is_none(dim->size_dims) ? 0 : PyTuple_GET_SIZE(dim->size_dims);
        put(static_cast<uint8_t>(kSizeDims | (n & 31)));
        put(static_cast<uint8_t>(i));
        for (Py_ssize_t j = 0; j < n; ++j)
          if (!put_dim(PyTuple_GET_ITEM(dim->size_dims, j))) return false;
        if (RF_UNLIKELY(size > kMaxKey - 32)) return too_long();
      }
    }
    return true;
  }

  static constexpr size_t kMaxKey = 512;
  uint8_t bytes[kMaxKey];
  size_t size = 0;
  DimObject* distinct[kMaxDims];
  int num_distinct = 0;

private:
  enum : uint8_t {
    kTensor = 0x80,
    kDim = 0xA0,
    kTuple = 0xA1,
    kNone = 0xB2,
    kFalse = 0xB0,
    kTrue = 0xB1,
    kInt = 0xB3,
    kFloat = 0xB4,
    kString = 0xB5,
    kSizeDims = 0xC0,
    kSameDims = 0xFE,
    kNothing = 0xFF,
  };

  void put(uint8_t byte) { bytes[size++] = byte; }
  void put_word(const void* word) {
    std::memcpy(bytes + size, word, 8);
    size += 8;
  }

  bool put_dim(PyObject* object) {
    auto* dim = reinterpret_cast<DimObject*>(object);
    auto code = static_cast<uint8_t>(dim->match_priority << kPriorityShift);
    DimObject* base = base_of(object);
    for (int i = 0; i < num_distinct; ++i) {
      if (distinct[i] == base) {
        put(static_cast<uint8_t>(code | i));
        return true;
      }
    }
    if (RF_UNLIKELY(num_distinct == kMaxDims)) return too_many();
    put(static_cast<uint8_t>(code | num_distinct));
    distinct[num_distinct++] = base;
    return true;
  }

  bool put_argument(PyObject* a, int depth) {
    if (a == Py_None) {
      put(kNone);
    } else if (PyBool_Check(a)) {
      put(a == Py_True ? kTrue : kFalse);
    } else if (is_dim(a)) {
      put(kDim);
      return put_dim(a);
    } else if ((PyTuple_Check(a) || PyList_Check(a)) && depth < 4) {
      Py_ssize_t n = PySequence_Fast_GET_SIZE(a);
      if (n > 255) return too_long();
      put(kTuple);
      put(static_cast<uint8_t>(n));
      for (Py_ssize_t i = 0; i < n; ++i) {
        if (!put_argument(PySequence_Fast_GET_ITEM(a, i), depth + 1)) return false;
        if (RF_UNLIKELY(size > kMaxKey - 64)) return too_long();
      }
    } else if (PyLong_Check(a)) {
      long long value = PyLong_AsLongLong(a);
      if (value == -1 && PyErr_Occurred()) return false;
      put(kInt);
      put_word(&value);
    } else if (PyFloat_Check(a)) {
      double value = PyFloat_AS_DOUBLE(a);
      put(kFloat);
      put_word(&value);
    } else if (PyUnicode_Check(a)) {
      Py_ssize_t n;
      const char* text = PyUnicode_AsUTF8AndSize(a, &n);
      if (!text) return false;
      if (n > 64 || size + static_cast<size_t>(n) > kMaxKey - 64) return too_long();
      put(kString);
      put(static_cast<uint8_t>(n));
      std::memcpy(bytes + size, text, static_cast<size_t>(n));
      size += static_cast<size_t>(n);
    } else {
      PyErr_Format(PyExc_TypeError, "an op takes Tensors, Dims, numbers, strings, None and tuples of these, got %R",
                   reinterpret_cast<PyObject*>(Py_TYPE(a)));
      return false;
    }
    return true;
  }

  bool too_long() {
    PyErr_SetString(PyExc_ValueError, "too many arguments for one op call");
    return false;
  }

  bool too_many() {
    Ref tuple(PyTuple_New(num_args_));
    if (!tuple) return false;
    for (Py_ssize_t i = 0; i < num_args_; ++i) PyTuple_SET_ITEM(tuple.get(), i, Py_NewRef(args_[i]));
    Ref error(PyObject_CallFunctionObjArgs(names.prepare_too_many_dims, tuple.get(), nullptr));
    if (error) PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error.get())), error.get());
    return false;
  }

  PyObject* const* args_;
  Py_ssize_t num_args_;
};

// The cached scalar Tensor (a new reference) of a Python float or int beside operands of `dtype`. Sets *usual to false,
// and returns null without an error, when the general path has to decide.
inline PyObject* scalar_operand(BackendEntry& backend, PyObject* number, uint8_t dtype, bool* usual) {
  ScalarKey key;
  *usual = true;
  if (PyFloat_CheckExact(number)) {
    if (dtype_kind[dtype] != 2) return *usual = false, nullptr;
    double value = PyFloat_AS_DOUBLE(number);
    std::memcpy(&key.bits, &value, 8);
    key.tag = static_cast<uint16_t>(dtype | 0x100);
  } else {
    if (dtype_kind[dtype] != 1 && dtype_kind[dtype] != 2) return *usual = false, nullptr;
    int overflow;
    long long value = PyLong_AsLongLongAndOverflow(number, &overflow);
    if (overflow) return *usual = false, nullptr;
    if (value == -1 && PyErr_Occurred()) return nullptr;
    key.bits = static_cast<uint64_t>(value);
    key.tag = dtype;
  }
  auto found = backend.scalars.find(key);
  if (RF_LIKELY(found != backend.scalars.end())) return Py_NewRef(found->second);
  Ref tensor(PyObject_CallFunctionObjArgs(names.prepare_scalar, backend.object, number, dtype_names[dtype], nullptr));
  if (!tensor) return nullptr;
  if (backend.scalars.size() >= 10000) {
    for (auto& item : backend.scalars) Py_DECREF(item.second);
    backend.scalars.clear();
  }
  backend.scalars[key] = Py_NewRef(tensor.get());
  return tensor.release();
}

inline PyObject* op_run(OpObject* op, PyObject* const* args, Py_ssize_t num_args, BackendEntry& backend) {
  Key key(args, num_args);
  if (!key.build(op->masked)) return nullptr;
  Plan* plan = op->plans->find(key.bytes, key.size);
  if (RF_UNLIKELY(!plan)) {
    Ref arguments(PyTuple_New(num_args));
    Ref distinct(PyTuple_New(key.num_distinct));
    if (!arguments || !distinct) return nullptr;
    for (Py_ssize_t i = 0; i < num_args; ++i) PyTuple_SET_ITEM(arguments.get(), i, Py_NewRef(args[i]));
    for (int i = 0; i < key.num_distinct; ++i)
      PyTuple_SET_ITEM(distinct.get(), i, Py_NewRef(as_object(key.distinct[i])));
    Ref source(PyObject_CallFunctionObjArgs(names.prepare_make_plan, reinterpret_cast<PyObject*>(op), arguments.get(),
                                            distinct.get(), nullptr));
    if (!source) return nullptr;
    std::unique_ptr<Plan> compiled = compile_plan(source.get());
    if (!compiled) return nullptr;
    plan = op->plans->insert(key.bytes, key.size, std::move(compiled));
  }
  TensorObject* inputs[kMaxSlots];
  for (int i = 0; i < plan->num_inputs; ++i) inputs[i] = args[i] == Py_None ? nullptr : as_tensor(args[i]);
  return run_plan(*plan, backend, inputs, key.distinct);
}

// The call with anything unusual among the operands: rf._prepare.operands converts them or raises.
inline PyObject* op_call_prepared(OpObject* op, PyObject* const* args, Py_ssize_t num_args) {
  Ref tuple(PyTuple_New(num_args));
  if (!tuple) return nullptr;
  for (Py_ssize_t i = 0; i < num_args; ++i) PyTuple_SET_ITEM(tuple.get(), i, Py_NewRef(args[i]));
  Ref count(PyLong_FromLong(op->num_tensors));
  if (!count) return nullptr;
  Ref pair(PyObject_CallFunctionObjArgs(names.prepare_operands, op->name, tuple.get(), count.get(), nullptr));
  if (!pair) return nullptr;
  PyObject* prepared = PyTuple_GET_ITEM(pair.get(), 0);
  BackendEntry* backend = entry_of(PyTuple_GET_ITEM(pair.get(), 1));
  if (!backend) return nullptr;
  return op_run(op, &PyTuple_GET_ITEM(prepared, 0), PyTuple_GET_SIZE(prepared), *backend);
}

inline PyObject* op_call(OpObject* op, PyObject* const* args, Py_ssize_t num_args) {
  return guarded<PyObject*>(nullptr, [&]() -> PyObject* {
    if (RF_UNLIKELY(num_args < op->num_tensors || num_args > 16)) {
      PyErr_Format(PyExc_TypeError, "%U takes %d operands and at most 16 arguments, got %zd", op->name, op->num_tensors,
                   num_args);
      return nullptr;
    }
    BackendEntry* backend = nullptr;
    int num_numbers = 0;
    uint8_t dtype = 255; // promoted dtype of the tensor operands
    for (int i = 0; i < op->num_tensors; ++i) {
      PyObject* a = args[i];
      if (RF_LIKELY(is_tensor(a))) {
        TensorObject* t = as_tensor(a);
        if (!t->backend || (backend && t->backend != backend)) return op_call_prepared(op, args, num_args);
        backend = t->backend;
        dtype = dtype == 255 ? t->dtype : dtype_result[dtype][t->dtype];
      } else if (PyFloat_CheckExact(a) || PyLong_CheckExact(a)) {
        ++num_numbers;
      } else if (a != Py_None) {
        return op_call_prepared(op, args, num_args);
      }
    }
    if (RF_UNLIKELY(!backend)) return op_call_prepared(op, args, num_args);
    if (num_numbers == 0) return op_run(op, args, num_args, *backend);
    if (dtype == 255) return op_call_prepared(op, args, num_args);
    PyObject* replaced[16];
    Ref owned[16];
    for (Py_ssize_t i = 0; i < num_args; ++i) {
      replaced[i] = args[i];
      if (i < op->num_tensors && (PyFloat_CheckExact(args[i]) || PyLong_CheckExact(args[i]))) {
        bool usual;
        owned[i] = Ref(scalar_operand(*backend, args[i], dtype, &usual));
        if (!usual) return op_call_prepared(op, args, num_args);
        if (!owned[i]) return nullptr;
        replaced[i] = owned[i].get();
      }
    }
    return op_run(op, replaced, num_args, *backend);
  });
}

inline PyObject* op_vectorcall(PyObject* self, PyObject* const* args, size_t nargsf, PyObject* kwnames) {
  if (kwnames && PyTuple_GET_SIZE(kwnames)) {
    PyErr_Format(PyExc_TypeError, "op %U takes positional arguments only", as_op(self)->name);
    return nullptr;
  }
  return op_call(as_op(self), args, PyVectorcall_NARGS(nargsf));
}

inline void register_operator(PyObject* name, OpObject* op);

inline PyObject* op_new(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  static const char* keywords[] = {"name", "num_tensors", "planner", "masked", nullptr};
  PyObject *name, *planner = nullptr;
  int num_tensors = -1, masked = 0;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "U|$iOp:Op", const_cast<char**>(keywords), &name, &num_tensors,
                                   &planner, &masked))
    return nullptr;
  if (num_tensors < 0 || num_tensors > 16 || !planner) {
    PyErr_SetString(PyExc_TypeError, "Op(name, *, num_tensors (0..16), planner, masked=False)");
    return nullptr;
  }
  auto* op = reinterpret_cast<OpObject*>(type->tp_alloc(type, 0));
  if (!op) return nullptr;
  op->plans = new (std::nothrow) PlanCache();
  op->vectorcall = op_vectorcall;
  op->name = Py_NewRef(name);
  op->planner = Py_NewRef(planner);
  op->num_tensors = num_tensors;
  op->masked = masked != 0;
  auto* self = reinterpret_cast<PyObject*>(op);
  if (!op->plans || PyDict_SetItem(names.ops, name, self) < 0) {
    if (!op->plans) PyErr_NoMemory();
    Py_DECREF(self);
    return nullptr;
  }
  register_operator(name, op);
  return self;
}

inline void op_dealloc(PyObject* self) {
  OpObject* op = as_op(self);
  delete op->plans;
  Py_XDECREF(op->name);
  Py_XDECREF(op->planner);
  PyTypeObject* type = Py_TYPE(self);
  type->tp_free(self);
  Py_DECREF(type);
}

inline PyObject* op_repr(PyObject* self) { return PyUnicode_FromFormat("<rf op %U>", as_op(self)->name); }

inline PyObject* op_clear_plans(PyObject* self, PyObject*) {
  as_op(self)->plans->clear();
  Py_RETURN_NONE;
}

inline PyObject* op_num_plans(PyObject* self, void*) { return PyLong_FromSize_t(as_op(self)->plans->size()); }

inline PyMemberDef op_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(OpObject, vectorcall), READONLY, nullptr},
    {"name", T_OBJECT_EX, offsetof(OpObject, name), READONLY, nullptr},
    {"planner", T_OBJECT_EX, offsetof(OpObject, planner), READONLY, nullptr},
    {"num_tensors", T_INT, offsetof(OpObject, num_tensors), READONLY, nullptr},
    {"masked", T_BOOL, offsetof(OpObject, masked), READONLY, nullptr},
    {nullptr, 0, 0, 0, nullptr},
};

inline PyMethodDef op_methods[] = {
    {"clear_plans", op_clear_plans, METH_NOARGS, "Forget all plans (a default dtype has changed)."},
    {nullptr, nullptr, 0, nullptr},
};

inline PyGetSetDef op_getset[] = {
    {"num_plans", op_num_plans, nullptr, "How many structures have been planned.", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};

inline bool make_op_type() {
  static PyType_Slot slots[] = {
      {Py_tp_new, reinterpret_cast<void*>(op_new)},
      {Py_tp_dealloc, reinterpret_cast<void*>(op_dealloc)},
      {Py_tp_repr, reinterpret_cast<void*>(op_repr)},
      {Py_tp_call, reinterpret_cast<void*>(PyVectorcall_Call)},
      {Py_tp_members, op_members},
      {Py_tp_methods, op_methods},
      {Py_tp_getset, op_getset},
      {Py_tp_doc, const_cast<char*>("A planned op; see rf._core_py.Op.")},
      {0, nullptr},
  };
  static PyType_Spec spec = {"rf._native._core.Op", sizeof(OpObject), 0,
                             Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL, slots};
  OpType = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&spec));
  return OpType != nullptr;
}

} // namespace rf
