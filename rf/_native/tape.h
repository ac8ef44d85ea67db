// Recording: while a tape is being made, instructions of a native backend are run by another function, which notes what it runs. Off, nothing is
// different from never having recorded. A tape can be replayed without Dims, plans or Python, which measures what the kernels alone cost.
#pragma once
#include "run.h"

#include <chrono>

namespace rf {

struct TapeEntry {
  PyObject* kernel; // name
  PyObject* statics_tuple;
  std::vector<Static> statics;
  Kernel native; // null: a Python kernel
  std::vector<Payload> in; // retained, null for an absent operand
  std::vector<Payload> out;
  int64_t ns; // of the recorded call
};

struct TapeObject {
  PyObject_HEAD
  BackendEntry* backend;
  std::vector<TapeEntry>* entries;
};

inline PyTypeObject* TapeType = nullptr;
inline TapeObject* as_tape(PyObject* p) { return reinterpret_cast<TapeObject*>(p); }

inline int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

inline bool execute_and_note(BackendEntry& backend, PyObject* kernel, PyObject* statics_tuple,
                             const std::vector<Static>& statics, Kernel native, int num_in, int num_out,
                             const Payload* in, Payload* out) {
  int64_t start = now_ns();
  bool ok = native ? native(in, num_in, statics.data(), out)
                   : execute_python(backend, kernel, statics_tuple, num_in, num_out, in, out);
  int64_t end = now_ns();
  if (!ok) return false;
  TapeEntry entry{Py_NewRef(kernel), Py_NewRef(statics_tuple), statics, native, {}, {}, end - start};
  for (int i = 0; i < num_in; ++i) {
    if (in[i]) backend.native->retain(in[i]);
    entry.in.push_back(in[i]);
  }
  for (int i = 0; i < num_out; ++i) {
    backend.native->retain(out[i]);
    entry.out.push_back(out[i]);
  }
  as_tape(backend.tape)->entries->push_back(std::move(entry));
  return true;
}

inline bool execute_recording(BackendEntry& backend, Instr& instr, const Payload* in, Payload* out) {
  return execute_and_note(backend, instr.kernel, instr.statics_tuple, instr.statics, instr.native[backend.number],
                          static_cast<int>(instr.slots.size()), instr.num_out, in, out);
}

inline void tape_dealloc(PyObject* self) {
  TapeObject* tape = as_tape(self);
  if (tape->entries) {
    for (TapeEntry& e : *tape->entries) {
      for (Payload p : e.in)
        if (p) tape->backend->native->release(p);
      for (Payload p : e.out) tape->backend->native->release(p);
      Py_DECREF(e.kernel);
      Py_DECREF(e.statics_tuple);
    }
    delete tape->entries;
  }
  PyTypeObject* type = Py_TYPE(self);
  type->tp_free(self);
  Py_DECREF(type);
}

inline PyObject* ids_of(const std::vector<Payload>& payloads) {
  PyObject* tuple = PyTuple_New(static_cast<Py_ssize_t>(payloads.size()));
  for (size_t i = 0; tuple && i < payloads.size(); ++i)
    PyTuple_SET_ITEM(tuple, static_cast<Py_ssize_t>(i), PyLong_FromVoidPtr(payloads[i]));
  return tuple;
}

// [(kernel, static arguments, operand ids, result ids, is native, ns)]
inline PyObject* tape_entries(PyObject* self, PyObject*) {
  TapeObject* tape = as_tape(self);
  Ref list(PyList_New(0));
  if (!list) return nullptr;
  for (const TapeEntry& e : *tape->entries) {
    Ref in(ids_of(e.in)), out(ids_of(e.out));
    if (!in || !out) return nullptr;
    Ref item(Py_BuildValue("(OOOOOL)", e.kernel, e.statics_tuple, in.get(), out.get(), e.native ? Py_True : Py_False,
                           static_cast<long long>(e.ns)));
    if (!item || PyList_Append(list.get(), item.get()) < 0) return nullptr;
  }
  return list.release();
}

// replay(tensors, timed) -> (raw arrays that stand for `tensors` this time, [ns per entry] or None). What a kernel did not make (parameters, inputs, masks)
// is used as it was.
inline PyObject* tape_replay(PyObject* self, PyObject* args) {
  PyObject* wanted;
  int timed = 0;
  if (!PyArg_ParseTuple(args, "O|p:replay", &wanted, &timed)) return nullptr;
  return guarded<PyObject*>(nullptr, [&]() -> PyObject* {
    TapeObject* tape = as_tape(self);
    const NativeBackend* native = tape->backend->native;
    std::unordered_map<Payload, Payload> now; // recorded result -> result of this replay, owned
    std::vector<int64_t> ns;
    bool ok = true;
    std::vector<Payload> in, out;
    for (const TapeEntry& e : *tape->entries) {
      in.clear();
      for (Payload p : e.in) {
        auto found = now.find(p);
        in.push_back(found == now.end() ? p : found->second);
      }
      out.assign(e.out.size(), nullptr);
      int64_t start = timed ? now_ns() : 0;
      ok = e.native ? e.native(in.data(), static_cast<int>(in.size()), e.statics.data(), out.data())
                    : execute_python(*tape->backend, e.kernel, e.statics_tuple, static_cast<int>(in.size()),
                                     static_cast<int>(out.size()), in.data(), out.data());
      if (timed) ns.push_back(now_ns() - start);
      if (!ok) break;
      for (size_t i = 0; i < out.size(); ++i) {
        Payload& slot = now[e.out[i]];
        if (slot) native->release(slot); // a kernel may hand on its operand: the same payload twice
        slot = out[i];
      }
    }
    Ref result;
    Ref items(ok ? PySequence_Fast(wanted, "replay takes a sequence of Tensors") : nullptr);
    if (items) {
      Py_ssize_t n = PySequence_Fast_GET_SIZE(items.get());
      Ref raws(PyList_New(n));
      Ref times(timed ? PyList_New(static_cast<Py_ssize_t>(ns.size())) : Py_NewRef(Py_None));
      ok = raws && times;
      for (Py_ssize_t i = 0; ok && i < n; ++i) {
        PyObject* t = PySequence_Fast_GET_ITEM(items.get(), i);
        if (!is_tensor(t) || !as_tensor(t)->payload) {
          PyErr_SetString(PyExc_TypeError, "replay takes Tensors of the recorded backend");
          ok = false;
          break;
        }
        auto found = now.find(as_tensor(t)->payload);
        PyObject* raw = native->wrap(found == now.end() ? as_tensor(t)->payload : found->second);
        ok = raw != nullptr;
        if (raw) PyList_SET_ITEM(raws.get(), i, raw);
      }
      for (size_t i = 0; ok && timed && i < ns.size(); ++i)
        PyList_SET_ITEM(times.get(), static_cast<Py_ssize_t>(i), PyLong_FromLongLong(ns[i]));
      if (ok) result = Ref(PyTuple_Pack(2, raws.get(), times.get()));
    }
    for (auto& item : now) native->release(item.second);
    return result.release();
  });
}

inline PyMethodDef tape_methods[] = {
    {"entries", tape_entries, METH_NOARGS, "[(kernel, static, operand ids, result ids, is native, ns), ...]"},
    {"replay", tape_replay, METH_VARARGS, "replay(tensors, timed=False) -> (raw arrays, [ns per entry] or None)"},
    {nullptr, nullptr, 0, nullptr},
};

inline bool make_tape_type() {
  static PyType_Slot slots[] = {
      {Py_tp_dealloc, reinterpret_cast<void*>(tape_dealloc)},
      {Py_tp_methods, tape_methods},
      {Py_tp_doc, const_cast<char*>("The kernel calls recorded on a native backend.")},
      {0, nullptr},
  };
  static PyType_Spec spec = {"rf._native._core.Tape", sizeof(TapeObject), 0,
                             Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, slots};
  TapeType = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&spec));
  return TapeType != nullptr;
}

inline PyObject* start_recording(PyObject*, PyObject* object) {
  BackendEntry* backend = entry_of(object);
  if (!backend) return nullptr;
  if (!backend->native || backend->tape) {
    PyErr_SetString(PyExc_RuntimeError, backend->tape ? "already recording" : "only a native backend can be recorded here");
    return nullptr;
  }
  auto* tape = PyObject_New(TapeObject, TapeType);
  if (!tape) return nullptr;
  tape->backend = backend;
  tape->entries = new (std::nothrow) std::vector<TapeEntry>();
  backend->tape = reinterpret_cast<PyObject*>(tape);
  if (!tape->entries) {
    Py_CLEAR(backend->tape);
    return PyErr_NoMemory();
  }
  backend->execute = execute_recording;
  Py_RETURN_NONE;
}

inline PyObject* stop_recording(PyObject*, PyObject* object) {
  BackendEntry* backend = entry_of(object);
  if (!backend) return nullptr;
  if (!backend->tape) {
    PyErr_SetString(PyExc_RuntimeError, "not recording");
    return nullptr;
  }
  backend->execute = execute_direct;
  return std::exchange(backend->tape, nullptr);
}

} // namespace rf
