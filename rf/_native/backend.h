// The core's view of backends: which Python object it is, whether it computes, and its native side if it has one.
#pragma once
#include "api.h"
#include "util.h"

#include <cstring>
#include <string>
#include <unordered_map>

namespace rf {

constexpr int kMaxBackends = 16;

struct TensorObject;
struct Instr;
struct BackendEntry;
using Execute = bool (*)(BackendEntry&, Instr&, const Payload* in, Payload* out);

struct ScalarKey {
  uint64_t bits;
  uint16_t tag; // dtype, and whether the number was a float
  bool operator==(const ScalarKey& o) const { return bits == o.bits && tag == o.tag; }
};
struct ScalarHash {
  size_t operator()(const ScalarKey& k) const { return (k.bits ^ (uint64_t(k.tag) << 48)) * 0x9E3779B97F4A7C15ull; }
};

struct BackendEntry {
  PyObject* object = nullptr;
  PyObject* no_value = nullptr;
  PyObject* kernels = nullptr;
  bool computes = true;
  bool host_only = false; // all arrays lie in host memory
  int number = 0;         // position in `backends`
  const NativeBackend* native = nullptr;
  Execute execute = nullptr; // how an instruction of a native backend is run: directly, or recorded
  PyObject* tape = nullptr;  // what is being recorded
  std::unordered_map<ScalarKey, PyObject*, ScalarHash> scalars;
};

inline BackendEntry backends[kMaxBackends];
inline int num_backends = 0;

// The entry of a Backend object; made at first sight. Null with an error if there are too many.
inline BackendEntry* entry_of(PyObject* object) {
  for (int i = 0; i < num_backends; ++i)
    if (backends[i].object == object) return &backends[i];
  if (num_backends == kMaxBackends) {
    PyErr_SetString(PyExc_RuntimeError, "too many backends");
    return nullptr;
  }
  Ref computes(PyObject_GetAttrString(object, "computes"));
  Ref no_value(PyObject_GetAttrString(object, "no_value"));
  Ref kernels(PyObject_GetAttr(object, names.s_kernels));
  Ref host_only(PyObject_GetAttrString(object, "host_only"));
  if (!computes || !no_value || !kernels || !host_only) return nullptr;
  int truth = PyObject_IsTrue(computes.get()), host = PyObject_IsTrue(host_only.get());
  if (truth < 0 || host < 0) return nullptr;
  BackendEntry& entry = backends[num_backends];
  entry.number = num_backends++;
  entry.object = Py_NewRef(object);
  entry.no_value = no_value.release();
  entry.kernels = kernels.release();
  entry.computes = truth != 0;
  entry.host_only = host != 0;
  return &entry;
}

// The Python kernel `name` of a backend, through its KernelTable: the profiler puts its own there. A new reference.
inline PyObject* python_kernel(BackendEntry& entry, PyObject* name) { return PyObject_GetItem(entry.kernels, name); }

} // namespace rf
