// The native core of rf: holds Dims and Tensors and runs plans. rf/_core_py.py is its specification. One translation
// unit, one header per concept:
//   util.h      owned references, imported names        plan.h      plans and their cache
//   api.h       what a native backend provides          run.h       running plans
//   dim.h       DimBase                                 op.h        Op: key, look-up, call
//   backend.h   the core's view of backends             operators.h the operators of Tensor
//   tensor.h    Tensor                                  tape.h      recording and replay
#define PY_SSIZE_T_CLEAN
#include "operators.h"
#include "tape.h"

namespace rf {

// make_tensor(backend, raw, dims, dtype, feature_dim=None, sparse_dim=None)
PyObject* make_tensor(PyObject*, PyObject* const* args, Py_ssize_t n) {
  if (n < 4 || n > 6 || !PyTuple_Check(args[2])) {
    PyErr_SetString(PyExc_TypeError,
                    "make_tensor(backend, raw, dims: tuple, dtype, feature_dim=None, sparse_dim=None)");
    return nullptr;
  }
  BackendEntry* backend = entry_of(args[0]);
  if (!backend) return nullptr;
  int dtype = dtype_number(args[3]);
  if (dtype < 0) return nullptr;
  TensorObject* t = new_tensor(Py_NewRef(args[2]), static_cast<uint8_t>(dtype), nullptr);
  if (!t) return nullptr;
  if (!set_data(t, backend, args[1])) {
    Py_DECREF(as_object(t));
    return nullptr;
  }
  if (n > 4 && args[4] != Py_None) t->feature_dim = Py_NewRef(args[4]);
  if (n > 5 && args[5] != Py_None) t->sparse_dim = Py_NewRef(args[5]);
  return as_object(t);
}

// A result from (dims, dtype, feature_dim, sparse_dim), without data. Null with an error.
TensorObject* from_spec(PyObject* spec) {
  PyObject *dims, *dtype, *feature, *sparse;
  if (!PyTuple_Check(spec) || !PyArg_ParseTuple(spec, "O!OOO", &PyTuple_Type, &dims, &dtype, &feature, &sparse)) {
    if (!PyErr_Occurred())
      PyErr_SetString(PyExc_TypeError, "a result is described by (dims, dtype, feature_dim, sparse_dim)");
    return nullptr;
  }
  int number = dtype_number(dtype);
  if (number < 0) return nullptr;
  TensorObject* t = new_tensor(Py_NewRef(dims), static_cast<uint8_t>(number), nullptr);
  if (!t) return nullptr;
  if (feature != Py_None) t->feature_dim = Py_NewRef(feature);
  if (sparse != Py_None) t->sparse_dim = Py_NewRef(sparse);
  return t;
}

struct KernelCall {
  BackendEntry* backend;
  PyObject* kernel;
  PyObject* statics;
  std::vector<PyObject*> inputs; // Tensors or None
};

bool call_native(KernelCall& call, int num_out, TensorObject** results) {
  BackendEntry& backend = *call.backend;
  Kernel kernel = backend.native->find(PyUnicode_AsUTF8(call.kernel));
  std::vector<Static> statics;
  if ((kernel || backend.tape) && !to_statics(call.statics, statics)) return false;
  std::vector<Payload> in, out(static_cast<size_t>(num_out), nullptr);
  for (PyObject* t : call.inputs) in.push_back(t == Py_None ? nullptr : as_tensor(t)->payload);
  int num_in = static_cast<int>(in.size());
  bool ok = backend.tape ? execute_and_note(backend, call.kernel, call.statics, statics, kernel, num_in, num_out,
                                            in.data(), out.data())
                         : execute_kernel(backend, call.kernel, call.statics, statics.data(), kernel, num_in, num_out,
                                          in.data(), out.data());
  if (!ok) return false;
  for (int i = 0; i < num_out; ++i) {
    results[i]->backend = &backend;
    results[i]->payload = out[static_cast<size_t>(i)];
    int dtype = backend.native->dtype(results[i]->payload);
    if (dtype >= 0) results[i]->dtype = static_cast<uint8_t>(dtype);
  }
  return true;
}

bool call_python(KernelCall& call, int num_out, TensorObject** results) {
  Ref fn(python_kernel(*call.backend, call.kernel));
  if (!fn) return false;
  std::vector<Ref> owned;
  std::vector<PyObject*> args;
  for (PyObject* t : call.inputs) {
    owned.emplace_back(t == Py_None ? Py_NewRef(Py_None) : raw_of(as_tensor(t)));
    args.push_back(owned.back().get());
  }
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(call.statics); ++i) args.push_back(PyTuple_GET_ITEM(call.statics, i));
  Ref result(PyObject_Vectorcall(fn.get(), args.data(), args.size(), nullptr));
  if (!result) return false;
  if (num_out == 1) return set_data(results[0], call.backend, result.get());
  Ref items(PySequence_Fast(result.get(), "a kernel of several results must return a sequence"));
  if (!items) return false;
  if (PySequence_Fast_GET_SIZE(items.get()) != num_out) {
    PyErr_Format(PyExc_RuntimeError, "kernel %U returned %zd results, not %d", call.kernel,
                 PySequence_Fast_GET_SIZE(items.get()), num_out);
    return false;
  }
  for (int i = 0; i < num_out; ++i)
    if (!set_data(results[i], call.backend, PySequence_Fast_GET_ITEM(items.get(), i))) return false;
  return true;
}

// apply(kernel, inputs, static, outs) -> tuple of Tensors
PyObject* apply(PyObject*, PyObject* const* args, Py_ssize_t n) {
  return guarded<PyObject*>(nullptr, [&]() -> PyObject* {
    if (n != 4 || !PyUnicode_Check(args[0])) {
      PyErr_SetString(PyExc_TypeError, "apply(kernel, inputs, static, outs)");
      return nullptr;
    }
    Ref inputs(PySequence_Tuple(args[1]));
    Ref statics(PySequence_Tuple(args[2]));
    Ref outs(PySequence_Tuple(args[3]));
    if (!inputs || !statics || !outs) return nullptr;
    BackendEntry* backend = nullptr;
    bool usual = true;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(inputs.get()); ++i) {
      PyObject* t = PyTuple_GET_ITEM(inputs.get(), i);
      if (t == Py_None) continue;
      if (!is_tensor(t) || !as_tensor(t)->backend || (backend && as_tensor(t)->backend != backend)) {
        usual = false;
        break;
      }
      backend = as_tensor(t)->backend;
    }
    if (!usual || !backend) {
      Ref count(PyLong_FromSsize_t(PyTuple_GET_SIZE(inputs.get())));
      if (!count) return nullptr;
      Ref pair(PyObject_CallFunctionObjArgs(names.prepare_operands, args[0], inputs.get(), count.get(), nullptr));
      if (!pair) return nullptr;
      inputs = Ref::borrow(PyTuple_GET_ITEM(pair.get(), 0));
      backend = entry_of(PyTuple_GET_ITEM(pair.get(), 1));
      if (!backend) return nullptr;
    }
    Py_ssize_t num_out = PyTuple_GET_SIZE(outs.get());
    Ref results(PyTuple_New(num_out));
    if (!results) return nullptr;
    std::vector<TensorObject*> tensors;
    for (Py_ssize_t i = 0; i < num_out; ++i) {
      TensorObject* t = from_spec(PyTuple_GET_ITEM(outs.get(), i));
      if (!t) return nullptr;
      PyTuple_SET_ITEM(results.get(), i, as_object(t));
      tensors.push_back(t);
    }
    if (!backend->computes) {
      for (TensorObject* t : tensors) {
        t->backend = backend;
        t->raw = Py_NewRef(backend->no_value);
      }
      return results.release();
    }
    KernelCall call{backend, args[0], statics.get(), {}};
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(inputs.get()); ++i)
      call.inputs.push_back(PyTuple_GET_ITEM(inputs.get(), i));
    bool ok = backend->native ? call_native(call, static_cast<int>(num_out), tensors.data())
                              : call_python(call, static_cast<int>(num_out), tensors.data());
    return ok ? results.release() : nullptr;
  });
}

// register_native(backend, capsule): from now on, Tensors of `backend` hold payloads.
PyObject* register_native(PyObject*, PyObject* args) {
  PyObject *object, *capsule;
  if (!PyArg_ParseTuple(args, "OO:register_native", &object, &capsule)) return nullptr;
  auto* native = static_cast<const NativeBackend*>(PyCapsule_GetPointer(capsule, kApiCapsule));
  if (!native) return nullptr;
  if (native->version != kApiVersion) {
    PyErr_Format(PyExc_ImportError, "the native backend speaks version %u of the interface, the core %u",
                 static_cast<unsigned>(native->version), static_cast<unsigned>(kApiVersion));
    return nullptr;
  }
  for (int i = 0; i < num_backends; ++i) {
    if (backends[i].object == object) {
      PyErr_SetString(PyExc_RuntimeError, "register_native must come before the first tensor of the backend");
      return nullptr;
    }
  }
  BackendEntry* entry = entry_of(object);
  if (!entry) return nullptr;
  entry->native = native;
  entry->execute = execute_direct;
  Py_RETURN_NONE;
}

PyMethodDef methods[] = {
    {"make_tensor", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(make_tensor)), METH_FASTCALL,
     "make_tensor(backend, raw, dims, dtype, feature_dim=None, sparse_dim=None)\n--\n\nA Tensor around a raw result, "
     "unchecked."},
    {"apply", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(apply)), METH_FASTCALL,
     "apply(kernel, inputs, static, outs)\n--\n\nCall one kernel; see rf._core_py.apply."},
    {"register_native", register_native, METH_VARARGS, "register_native(backend, capsule)"},
    {"start_recording", start_recording, METH_O, "start_recording(backend)"},
    {"stop_recording", stop_recording, METH_O, "stop_recording(backend) -> Tape"},
    {nullptr, nullptr, 0, nullptr},
};

bool fetch(PyObject* module, const char* name, PyObject*& out) {
  out = PyObject_GetAttrString(module, name);
  return out != nullptr;
}

bool import_names() {
  Ref prepare(PyImport_ImportModule("rf._prepare"));
  Ref registry(PyImport_ImportModule("rf._registry"));
  if (!prepare || !registry) return false;
  PyObject* p = prepare.get();
  return fetch(registry.get(), "OPS", names.ops) && fetch(p, "operands", names.prepare_operands) &&
         fetch(p, "make_plan", names.prepare_make_plan) && fetch(p, "scalar", names.prepare_scalar) &&
         fetch(p, "too_many_dims", names.prepare_too_many_dims) && fetch(p, "is_operand", names.prepare_is_operand) &&
         fetch(p, "init_dtype", names.prepare_init_dtype) && fetch(p, "check_new", names.prepare_check_new) &&
         fetch(p, "check_set_dtype", names.prepare_check_set_dtype) && fetch(p, "check_raw", names.prepare_check_raw) &&
         fetch(p, "check_feature_dim", names.prepare_check_feature_dim) &&
         fetch(p, "check_sparse_dim", names.prepare_check_sparse_dim) &&
         (names.s_settle = PyUnicode_InternFromString("settle")) &&
         (names.s_auxiliary = PyUnicode_InternFromString("auxiliary")) &&
         (names.s_copy = PyUnicode_InternFromString("copy")) &&
         (names.s_match_priority = PyUnicode_InternFromString("match_priority")) &&
         (names.s_kernels = PyUnicode_InternFromString("kernels")) &&
         (names.s_device_of = PyUnicode_InternFromString("device_of")) &&
         (names.s_raw_tensor = PyUnicode_InternFromString("raw_tensor"));
}

bool import_dtypes() {
  Ref module(PyImport_ImportModule("rf.dtypes"));
  Ref all(module ? PyObject_GetAttrString(module.get(), "ALL") : nullptr);
  if (!all) return false;
  num_dtypes = static_cast<int>(PyTuple_GET_SIZE(all.get()));
  if (num_dtypes > kMaxDtypes) {
    PyErr_SetString(PyExc_RuntimeError, "too many dtypes");
    return false;
  }
  std::memset(dtype_kind, 255, sizeof dtype_kind);
  std::memset(dtype_result, 255, sizeof dtype_result);
  for (int i = 0; i < num_dtypes; ++i) {
    dtype_names[i] = Py_NewRef(PyTuple_GET_ITEM(all.get(), i));
    PyUnicode_InternInPlace(&dtype_names[i]);
  }
  for (int i = 0; i < num_dtypes; ++i) {
    if (PyUnicode_CompareWithASCIIString(dtype_names[i], "string") == 0) continue;
    Ref kind(PyObject_CallMethod(module.get(), "kind", "O", dtype_names[i]));
    if (!kind) return false;
    dtype_kind[i] = static_cast<uint8_t>(PyLong_AsLong(kind.get()));
    for (int j = 0; j < num_dtypes; ++j) {
      if (PyUnicode_CompareWithASCIIString(dtype_names[j], "string") == 0) continue;
      Ref result(PyObject_CallMethod(module.get(), "result_type", "OO", dtype_names[i], dtype_names[j]));
      int number = result ? dtype_number(result.get()) : -1;
      if (number < 0) return false;
      dtype_result[i][j] = static_cast<uint8_t>(number);
    }
  }
  return true;
}

PyModuleDef module_def = {
    PyModuleDef_HEAD_INIT,
    "rf._native._core",
    "The native core; see rf._core_py for what it does.",
    -1,
    methods,
    nullptr,
    nullptr,
    nullptr,
    nullptr,
};

} // namespace rf

PyMODINIT_FUNC PyInit__core() {
  using namespace rf;
  if (!import_names() || !import_dtypes()) return nullptr;
  Ref methods_module(PyImport_ImportModule("rf._tensor_methods"));
  Ref base(methods_module ? PyObject_GetAttrString(methods_module.get(), "TensorMethods") : nullptr);
  if (!base || !make_dim_type() || !make_tensor_type(base.get()) || !make_op_type() || !make_tape_type())
    return nullptr;
  Ref module(PyModule_Create(&module_def));
  if (!module) return nullptr;
  if (PyModule_AddObjectRef(module.get(), "NATIVE", Py_True) < 0 ||
      PyModule_AddObjectRef(module.get(), "DimBase", reinterpret_cast<PyObject*>(DimType)) < 0 ||
      PyModule_AddObjectRef(module.get(), "Tensor", reinterpret_cast<PyObject*>(TensorType)) < 0 ||
      PyModule_AddObjectRef(module.get(), "Op", reinterpret_cast<PyObject*>(OpType)) < 0)
    return nullptr;
  return module.release();
}
