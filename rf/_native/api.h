// What the core and a native backend tell each other. A native backend is a second extension module that hands over a
// NativeBackend in a capsule; the core then keeps its arrays as payloads and calls its kernels directly, without making
// Python objects for them.
#pragma once
#include <Python.h>

#include <cstdint>
#include <vector>

namespace rf {

constexpr uint32_t kApiVersion = 5;
constexpr const char* kApiCapsule = "rf.native_backend";

// One reference to an array object of the native backend. Null stands for an absent operand.
using Payload = void*;

// A static argument of a kernel, taken apart once, when its plan is compiled.
struct Static {
  enum Kind : uint8_t { kNone, kBool, kInt, kFloat, kInts, kDtype, kOther };
  Kind kind = kNone;
  int64_t integer = 0;       // kBool, kInt; for kDtype the number of the dtype
  double number = 0;         // kBool, kInt and kFloat
  std::vector<int64_t> ints; // kInts: those of a tuple; of nested tuples, one after the other
};

// Reads borrowed operands, puts owned results into `out`. False: nothing is in `out`, and a Python error is set; or
// none is, then the kernel declines and the one in Python is called.
using Kernel = bool (*)(const Payload* in, int num_in, const Static* args, Payload* out);

struct NativeBackend {
  uint32_t version;
  void (*retain)(Payload);
  void (*release)(Payload);
  PyObject* (*wrap)(Payload);                   // the Python array object, a new reference
  Payload (*unwrap)(PyObject*);                 // an owned payload, or null with an error
  int (*dtype)(Payload);                        // number in rf.dtypes.ALL
  int (*shape)(Payload, const int64_t** sizes); // number of axes; sizes stay owned by the array
  bool (*on_host)(Payload);                     // whether the data lies in host memory
  Kernel (*find)(const char* kernel);           // null: not native, use the Python kernel
};

} // namespace rf
