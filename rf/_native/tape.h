// Recording: while a tape is being made, instructions of a native backend are run by another function, which notes what
// it runs. Off, nothing is different from never having recorded. A tape can be replayed without Dims, plans or Python,
// which measures what the kernels alone cost.
#pragma once
#include "run.h"

#include <chrono>

namespace rf {

struct TapeEntry {
  PyObject* kernel; // name
  PyObject* statics_tuple;
  std::vector<Static> statics;
  Kernel native;           // null: a Python kernel
  std::vector<Payload> in; // retained, null for an absent operand
  std::vector<Payload> out;
  int64_t ns; // of the recorded call
};

// A tape as a program over numbered slots, so that a replay looks nothing up. What no recorded call made (parameters,
// inputs, masks) is a leaf, and is used as it was. A result is released after its last use, as in the recorded step.
struct Program {
  struct Step {
    std::vector<int> in; // -1 for an absent operand
    std::vector<int> out;
    std::vector<int> last_use;
  };
  std::vector<Step> steps;
  std::vector<Payload> values; // leaves, borrowed from the tape; results of the replay, owned while it runs
  std::vector<bool> is_leaf;
  std::unordered_map<Payload, int> slot_of;

  int slot(Payload p, bool leaf) {
    if (!p) return -1;
    auto [it, is_new] = slot_of.try_emplace(p, static_cast<int>(values.size()));
    if (is_new) {
      values.push_back(leaf ? p : nullptr);
      is_leaf.push_back(leaf);
    }
    return it->second;
  }
};

inline Program compile_tape(const std::vector<TapeEntry>& entries, const std::vector<Payload>& wanted) {
  Program program;
  std::vector<int> last;
  for (const TapeEntry& e : entries) {
    Program::Step step;
    auto index = static_cast<int>(program.steps.size());
    auto used = [&](int slot) {
      if (slot < 0) return slot;
      last.resize(program.values.size(), -1);
      last[static_cast<size_t>(slot)] = index;
      return slot;
    };
    for (Payload p : e.in) step.in.push_back(used(program.slot(p, true)));
    for (Payload p : e.out) step.out.push_back(used(program.slot(p, false)));
    program.steps.push_back(std::move(step));
  }
  for (Payload p : wanted) {
    auto found = program.slot_of.find(p);
    if (found != program.slot_of.end()) last[static_cast<size_t>(found->second)] = -1;
  }
  for (size_t i = 0; i < last.size(); ++i)
    if (last[i] >= 0 && !program.is_leaf[i])
      program.steps[static_cast<size_t>(last[i])].last_use.push_back(static_cast<int>(i));
  return program;
}

struct TapeObject {
  PyObject_HEAD BackendEntry* backend;
  std::vector<TapeEntry>* entries;
  Program* program; // of the last replay, whose `wanted` is kept beside it
  std::vector<Payload> wanted;
};

inline PyTypeObject* TapeType = nullptr;
inline TapeObject* as_tape(PyObject* p) { return reinterpret_cast<TapeObject*>(p); }

inline int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

inline bool execute_and_note(BackendEntry& backend, PyObject* kernel, PyObject* statics_tuple,
                             const std::vector<Static>& statics, Kernel native, int num_in, int num_out,
                             const Payload* in, Payload* out) {
  int64_t start = now_ns();
  bool ok = execute_kernel(backend, kernel, statics_tuple, statics.data(), native, num_in, num_out, in, out);
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
  delete tape->program;
  tape->wanted.~vector();
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

// replay(tensors, timed=False) -> (raw arrays that stand for `tensors` this time, [ns per entry] or None)
inline PyObject* tape_replay(PyObject* self, PyObject* args) {
  PyObject* sequence;
  int timed = 0;
  if (!PyArg_ParseTuple(args, "O|p:replay", &sequence, &timed)) return nullptr;
  return guarded<PyObject*>(nullptr, [&]() -> PyObject* {
    TapeObject* tape = as_tape(self);
    const NativeBackend* native = tape->backend->native;
    Ref tensors(PySequence_Tuple(sequence));
    if (!tensors) return nullptr;
    Py_ssize_t n = PyTuple_GET_SIZE(tensors.get());
    std::vector<Payload> wanted;
    for (Py_ssize_t i = 0; i < n; ++i) {
      PyObject* t = PyTuple_GET_ITEM(tensors.get(), i);
      if (!is_tensor(t) || !as_tensor(t)->payload) {
        PyErr_SetString(PyExc_TypeError, "replay takes Tensors of the recorded backend");
        return nullptr;
      }
      wanted.push_back(as_tensor(t)->payload);
    }
    if (!tape->program || tape->wanted != wanted) {
      delete std::exchange(tape->program, nullptr);
      tape->program = new Program(compile_tape(*tape->entries, wanted));
      tape->wanted = wanted;
    }
    Program& program = *tape->program;
    std::vector<int64_t> ns(timed ? tape->entries->size() : 0);
    std::vector<Payload> in, out;
    auto put = [&](int slot, Payload payload) {
      auto i = static_cast<size_t>(slot);
      if (program.is_leaf[i]) { // a kernel that hands on its operand
        if (payload) native->release(payload);
        return;
      }
      if (Payload old = std::exchange(program.values[i], payload)) native->release(old);
    };
    bool ok = true;
    for (size_t k = 0; ok && k < program.steps.size(); ++k) {
      const TapeEntry& e = (*tape->entries)[k];
      const Program::Step& step = program.steps[k];
      in.clear();
      for (int slot : step.in) in.push_back(slot < 0 ? nullptr : program.values[static_cast<size_t>(slot)]);
      out.assign(step.out.size(), nullptr);
      int num_in = static_cast<int>(in.size()), num_out = static_cast<int>(out.size());
      int64_t start = timed ? now_ns() : 0;
      ok = execute_kernel(*tape->backend, e.kernel, e.statics_tuple, e.statics.data(), e.native, num_in, num_out,
                          in.data(), out.data());
      if (timed) ns[k] = now_ns() - start;
      if (!ok) break;
      for (size_t i = 0; i < out.size(); ++i) put(step.out[i], out[i]);
      for (int slot : step.last_use) put(slot, nullptr);
    }
    Ref result;
    if (ok) {
      Ref raws(PyList_New(n));
      Ref times(timed ? PyList_New(static_cast<Py_ssize_t>(ns.size())) : Py_NewRef(Py_None));
      ok = raws && times;
      for (Py_ssize_t i = 0; ok && i < n; ++i) {
        Payload original = wanted[static_cast<size_t>(i)];
        auto found = program.slot_of.find(original);
        PyObject* raw = native->wrap(
            found == program.slot_of.end() ? original : program.values[static_cast<size_t>(found->second)]);
        ok = raw != nullptr;
        if (raw) PyList_SET_ITEM(raws.get(), i, raw);
      }
      for (size_t i = 0; ok && i < ns.size(); ++i)
        PyList_SET_ITEM(times.get(), static_cast<Py_ssize_t>(i), PyLong_FromLongLong(ns[i]));
      if (ok) result = Ref(PyTuple_Pack(2, raws.get(), times.get()));
    }
    for (size_t i = 0; i < program.values.size(); ++i)
      if (!program.is_leaf[i])
        if (Payload left = std::exchange(program.values[i], nullptr)) native->release(left);
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
    PyErr_SetString(PyExc_RuntimeError,
                    backend->tape ? "already recording" : "only a native backend can be recorded here");
    return nullptr;
  }
  auto* tape = PyObject_New(TapeObject, TapeType);
  if (!tape) return nullptr;
  tape->backend = backend;
  tape->program = nullptr;
  new (&tape->wanted) std::vector<Payload>();
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
