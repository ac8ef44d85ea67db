// Running plans and single kernels. The specification is `_run` and `apply` in rf/_core_py.py.
#pragma once
#include "plan.h"

namespace rf {

// Calls the Python kernel on native payloads: wraps the operands, unwraps the results.
inline bool execute_python(BackendEntry& backend, PyObject* kernel, PyObject* statics, int num_in, int num_out,
                           const Payload* in, Payload* out) {
  Ref fn(python_kernel(backend, kernel));
  if (!fn) return false;
  Py_ssize_t num_static = PyTuple_GET_SIZE(statics);
  std::vector<Ref> owned;
  std::vector<PyObject*> args;
  for (int i = 0; i < num_in; ++i) {
    owned.emplace_back(in[i] ? backend.native->wrap(in[i]) : Py_NewRef(Py_None));
    if (!owned.back()) return false;
    args.push_back(owned.back().get());
  }
  for (Py_ssize_t i = 0; i < num_static; ++i) args.push_back(PyTuple_GET_ITEM(statics, i));
  Ref result(PyObject_Vectorcall(fn.get(), args.data(), args.size(), nullptr));
  if (!result) return false;
  if (num_out == 1) return (out[0] = backend.native->unwrap(result.get())) != nullptr;
  Ref items(PySequence_Fast(result.get(), "a kernel of several results must return a sequence"));
  if (!items) return false;
  if (PySequence_Fast_GET_SIZE(items.get()) != num_out) {
    PyErr_Format(PyExc_RuntimeError, "kernel %U returned %zd results, not %d", kernel,
                 PySequence_Fast_GET_SIZE(items.get()), num_out);
    return false;
  }
  for (int i = 0; i < num_out; ++i) {
    out[i] = backend.native->unwrap(PySequence_Fast_GET_ITEM(items.get(), i));
    if (!out[i]) {
      while (i-- > 0) backend.native->release(std::exchange(out[i], nullptr));
      return false;
    }
  }
  return true;
}

// The native kernel; Python's where there is none (null), or where it declines.
inline bool execute_kernel(BackendEntry& backend, PyObject* kernel, PyObject* statics_tuple, const Static* statics,
                           Kernel native, int num_in, int num_out, const Payload* in, Payload* out) {
  if (RF_LIKELY(native != nullptr)) {
    if (RF_LIKELY(native(in, num_in, statics, out))) return true;
    if (PyErr_Occurred()) return false;
  }
  return execute_python(backend, kernel, statics_tuple, num_in, num_out, in, out);
}

inline bool execute_direct(BackendEntry& backend, Instr& instr, const Payload* in, Payload* out) {
  return execute_kernel(backend, instr.kernel, instr.statics_tuple, instr.statics.data(), instr.native[backend.number],
                        static_cast<int>(instr.slots.size()), instr.num_out, in, out);
}

inline void resolve(Plan& plan, BackendEntry& backend) {
  if (backend.native)
    for (Instr& instr : plan.instrs)
      instr.native[backend.number] = backend.native->find(PyUnicode_AsUTF8(instr.kernel));
  plan.resolved[backend.number] = true;
}

// The raw auxiliary array (a new reference) for a plan: from the dim's cache, or made by Dim.auxiliary.
inline PyObject* auxiliary(Aux& aux, BackendEntry& backend, DimObject* dim, TensorObject* first) {
  bool on_host = backend.native ? backend.native->on_host(first->payload) : backend.host_only;
  if (RF_LIKELY(on_host)) {
    PyObject*& key = aux.key[backend.number];
    if (!key) {
      if (!names.auxiliary_key) {
        Ref module(PyImport_ImportModule("rf._dim"));
        if (!module) return nullptr;
        names.auxiliary_key = PyObject_GetAttrString(module.get(), "auxiliary_key");
        if (!names.auxiliary_key) return nullptr;
      }
      key = PyObject_CallFunctionObjArgs(names.auxiliary_key, backend.object, aux.kind, aux.pattern, aux.dtype, Py_None,
                                         nullptr);
      if (!key) return nullptr;
    }
    if (!is_none(dim->cache)) {
      PyObject* raw = PyDict_GetItemWithError(dim->cache, key);
      if (RF_LIKELY(raw != nullptr)) return Py_NewRef(raw);
      if (PyErr_Occurred()) return nullptr;
    }
  }
  Ref raw_first(raw_of(first));
  if (!raw_first) return nullptr;
  Ref device(PyObject_CallMethodOneArg(backend.object, names.s_device_of, raw_first.get()));
  if (!device) return nullptr;
  return PyObject_CallMethodObjArgs(as_object(dim), names.s_auxiliary, backend.object, aux.kind, aux.pattern, aux.dtype,
                                    device.get(), nullptr);
}

// The dims tuple of a result, a new reference.
inline PyObject* dims_of(const Out& out, TensorObject* const* inputs, DimObject* const* distinct) {
  if (out.like >= 0) return Py_NewRef(inputs[out.like]->dims);
  PyObject* dims = PyTuple_New(static_cast<Py_ssize_t>(out.dims.size()));
  if (!dims) return nullptr;
  for (size_t i = 0; i < out.dims.size(); ++i) {
    DimObject* dim = distinct[out.dims[i] & (kMaxDims - 1)];
    int priority = out.dims[i] >> kPriorityShift;
    PyObject* entry;
    if (RF_LIKELY(priority == 0)) {
      entry = Py_NewRef(as_object(dim));
    } else {
      Ref copy(PyObject_GetAttr(as_object(dim), names.s_copy));
      Ref kwargs(Py_BuildValue("{Oi}", names.s_match_priority, priority));
      Ref no_args(PyTuple_New(0));
      entry = copy && kwargs && no_args ? PyObject_Call(copy.get(), no_args.get(), kwargs.get()) : nullptr;
      if (!entry) {
        Py_DECREF(dims);
        return nullptr;
      }
    }
    PyTuple_SET_ITEM(dims, static_cast<Py_ssize_t>(i), entry);
  }
  return dims;
}

inline TensorObject* make_result(const Out& out, BackendEntry& backend, TensorObject* const* inputs,
                                 DimObject* const* distinct) {
  PyObject* dims = dims_of(out, inputs, distinct);
  if (!dims) return nullptr;
  TensorObject* t = new_tensor(dims, out.dtype, &backend);
  if (!t) return nullptr;
  if (out.feature >= 0) t->feature_dim = Py_NewRef(as_object(distinct[out.feature]));
  if (out.sparse >= 0) t->sparse_dim = Py_NewRef(as_object(distinct[out.sparse]));
  return t;
}

// Slots of a native backend: operands are borrowed, results are owned until they are handed out.
struct NativeSlots {
  NativeSlots(BackendEntry& backend, int first_owned) : backend_(backend), first_(first_owned), end_(first_owned) {}
  ~NativeSlots() {
    for (int i = first_; i < end_; ++i)
      if (slots[i]) backend_.native->release(slots[i]);
    for (int i = 0; i < num_kept_; ++i) Py_DECREF(kept_[i]);
  }
  void owned_until(int end) { end_ = end; }
  void keep(PyObject* owned) { kept_[num_kept_++] = owned; }
  // Gives out slot i: moves a result, adds a reference to anything else.
  Payload take(int i) {
    if (i >= first_ && i < end_ && !taken_twice_) return std::exchange(slots[i], nullptr);
    if (slots[i]) backend_.native->retain(slots[i]);
    return slots[i];
  }
  void several_outputs() { taken_twice_ = true; }

  Payload slots[kMaxSlots];

private:
  BackendEntry& backend_;
  int first_;
  int end_;
  bool taken_twice_ = false;
  PyObject* kept_[kMaxSlots];
  int num_kept_ = 0;
};

inline PyObject* collect(const Plan& plan, TensorObject** results) {
  if (RF_LIKELY(plan.single)) return as_object(results[0]);
  PyObject* tuple = PyTuple_New(static_cast<Py_ssize_t>(plan.outs.size()));
  for (size_t i = 0; i < plan.outs.size(); ++i) {
    if (tuple)
      PyTuple_SET_ITEM(tuple, static_cast<Py_ssize_t>(i), as_object(results[i]));
    else
      Py_DECREF(as_object(results[i]));
  }
  return tuple;
}

// Makes the result Tensors; `put(result, slot)` gives each its data and returns false with an error.
template <class Put>
PyObject* make_results(const Plan& plan, BackendEntry& backend, TensorObject* const* inputs, DimObject* const* distinct,
                       Put&& put) {
  TensorObject* results[kMaxSlots];
  size_t n = 0;
  for (const Out& out : plan.outs) {
    TensorObject* t = make_result(out, backend, inputs, distinct);
    if (!t || !put(t, out.slot)) {
      Py_XDECREF(as_object(t));
      while (n-- > 0) Py_DECREF(as_object(results[n]));
      return nullptr;
    }
    results[n++] = t;
  }
  return collect(plan, results);
}

inline PyObject* run_native(Plan& plan, BackendEntry& backend, TensorObject** inputs, DimObject** distinct) {
  if (RF_UNLIKELY(!plan.resolved[backend.number])) resolve(plan, backend);
  int n = plan.num_inputs;
  NativeSlots s(backend, n + static_cast<int>(plan.aux.size()));
  TensorObject* first = nullptr;
  for (int i = 0; i < n; ++i) {
    s.slots[i] = inputs[i] ? inputs[i]->payload : nullptr;
    if (!first) first = inputs[i];
  }
  for (Aux& aux : plan.aux) {
    PyObject* raw = auxiliary(aux, backend, distinct[aux.dim], first);
    if (!raw) return nullptr;
    s.keep(raw);
    Payload payload = backend.native->unwrap(raw);
    if (!payload) return nullptr;
    backend.native->release(payload); // `raw` keeps it alive
    s.slots[n++] = payload;
  }
  for (Instr& instr : plan.instrs) {
    Payload in[kMaxSlots];
    int k = 0;
    for (int16_t slot : instr.slots) in[k++] = slot < 0 ? nullptr : s.slots[slot];
    if (!backend.execute(backend, instr, in, s.slots + n)) return nullptr;
    n += instr.num_out;
    s.owned_until(n);
  }
  if (plan.outs.size() > 1) s.several_outputs();
  return make_results(plan, backend, inputs, distinct, [&](TensorObject* t, int slot) {
    t->payload = s.take(slot);
    int dtype = backend.native->dtype(t->payload);
    if (dtype >= 0) t->dtype = static_cast<uint8_t>(dtype);
    return true;
  });
}

inline PyObject* run_python(Plan& plan, BackendEntry& backend, TensorObject** inputs, DimObject** distinct) {
  std::vector<Ref> slots;
  slots.reserve(static_cast<size_t>(plan.num_slots));
  TensorObject* first = nullptr;
  for (int i = 0; i < plan.num_inputs; ++i) {
    slots.emplace_back(inputs[i] ? raw_of(inputs[i]) : Py_NewRef(Py_None));
    if (!slots.back()) return nullptr;
    if (!first) first = inputs[i];
  }
  for (Aux& aux : plan.aux) {
    slots.emplace_back(auxiliary(aux, backend, distinct[aux.dim], first));
    if (!slots.back()) return nullptr;
  }
  for (Instr& instr : plan.instrs) {
    Ref fn(python_kernel(backend, instr.kernel));
    if (!fn) return nullptr;
    PyObject* args[2 * kMaxSlots];
    size_t k = 0;
    for (int16_t slot : instr.slots) args[k++] = slot < 0 ? Py_None : slots[static_cast<size_t>(slot)].get();
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(instr.statics_tuple); ++i)
      args[k++] = PyTuple_GET_ITEM(instr.statics_tuple, i);
    Ref result(PyObject_Vectorcall(fn.get(), args, k, nullptr));
    if (!result) return nullptr;
    if (instr.num_out == 1) {
      slots.push_back(std::move(result));
      continue;
    }
    Ref items(PySequence_Fast(result.get(), "a kernel of several results must return a sequence"));
    if (!items) return nullptr;
    if (PySequence_Fast_GET_SIZE(items.get()) != instr.num_out) {
      PyErr_Format(PyExc_RuntimeError, "kernel %U: wrong number of results", instr.kernel);
      return nullptr;
    }
    for (int i = 0; i < instr.num_out; ++i) slots.push_back(Ref::borrow(PySequence_Fast_GET_ITEM(items.get(), i)));
  }
  return make_results(plan, backend, inputs, distinct, [&](TensorObject* t, int slot) {
    t->raw = Py_NewRef(slots[static_cast<size_t>(slot)].get());
    return true;
  });
}

inline PyObject* run_nothing(Plan& plan, BackendEntry& backend, TensorObject** inputs, DimObject** distinct) {
  return make_results(plan, backend, inputs, distinct, [&](TensorObject* t, int) {
    t->raw = Py_NewRef(backend.no_value);
    return true;
  });
}

inline PyObject* run_plan(Plan& plan, BackendEntry& backend, TensorObject** inputs, DimObject** distinct) {
  if (backend.native) return run_native(plan, backend, inputs, distinct);
  if (!backend.computes) return run_nothing(plan, backend, inputs, distinct);
  return run_python(plan, backend, inputs, distinct);
}

} // namespace rf
