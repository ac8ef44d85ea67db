// Plans in C++: compiled once from the Python plans that planners write (rf/_plan.py), then run without Python.
#pragma once
#include "tensor.h"

#include <memory>
#include <string>
#include <vector>

namespace rf {

constexpr int kPriorityShift = 4; // rf._plan.PRIORITY_SHIFT
constexpr int kMaxDims = 16;      // rf._plan.MAX_DISTINCT_DIMS
constexpr int kMaxSlots = 64;

struct Instr {
  PyObject* kernel = nullptr; // name
  PyObject* statics_tuple = nullptr;
  std::vector<int16_t> slots;
  std::vector<Static> statics;
  int num_out = 1;
  Kernel native[kMaxBackends] = {}; // null: the Python kernel
};

struct Aux {
  PyObject* kind;
  PyObject* pattern;
  PyObject* dtype;
  int dim;
  PyObject* key[kMaxBackends] = {}; // number of the array in the cache of a dim, for host memory
};

struct Out {
  int slot;
  int like; // operand whose dims tuple is reused, or -1
  int feature;
  int sparse;
  uint8_t dtype;
  std::vector<uint8_t> dims;
};

struct Plan {
  int num_inputs = 0;
  int num_slots = 0;
  bool single = true;
  bool resolved[kMaxBackends] = {};
  std::vector<Aux> aux;
  std::vector<Instr> instrs;
  std::vector<Out> outs;
};

// Ints of a tuple, or of tuples in it, one after the other; the kind becomes kOther when there is anything else.
inline bool flatten_ints(PyObject* tuple, Static& s) {
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuple); ++i) {
    PyObject* item = PyTuple_GET_ITEM(tuple, i);
    if (PyTuple_Check(item)) {
      if (!flatten_ints(item, s)) return false;
    } else if (PyLong_Check(item)) {
      s.ints.push_back(PyLong_AsLongLong(item));
      if (s.ints.back() == -1 && PyErr_Occurred()) return false;
    } else {
      s.kind = Static::kOther;
    }
  }
  return true;
}

inline bool to_static(PyObject* value, Static& s) {
  if (value == Py_None) return true;
  if (PyBool_Check(value)) {
    s.kind = Static::kBool;
    s.integer = value == Py_True;
    s.number = static_cast<double>(s.integer);
  } else if (PyLong_Check(value)) {
    s.kind = Static::kInt;
    s.integer = PyLong_AsLongLong(value);
    if (s.integer == -1 && PyErr_Occurred()) return false;
    s.number = static_cast<double>(s.integer);
  } else if (PyFloat_Check(value)) {
    s.kind = Static::kFloat;
    s.number = PyFloat_AS_DOUBLE(value);
  } else if (PyUnicode_Check(value)) {
    s.kind = Static::kOther;
    for (int i = 0; i < num_dtypes; ++i) {
      int equal = PyObject_RichCompareBool(dtype_names[i], value, Py_EQ);
      if (equal < 0) return false;
      if (equal) {
        s.kind = Static::kDtype;
        s.integer = i;
      }
    }
  } else if (PyTuple_Check(value)) {
    s.kind = Static::kInts;
    return flatten_ints(value, s);
  } else {
    s.kind = Static::kOther;
  }
  return true;
}

inline bool to_statics(PyObject* tuple, std::vector<Static>& out) {
  out.resize(static_cast<size_t>(PyTuple_GET_SIZE(tuple)));
  for (size_t i = 0; i < out.size(); ++i)
    if (!to_static(PyTuple_GET_ITEM(tuple, static_cast<Py_ssize_t>(i)), out[i])) return false;
  return true;
}

inline bool to_ints(PyObject* sequence, std::vector<long>& out) {
  Ref fast(PySequence_Fast(sequence, "expected a sequence"));
  if (!fast) return false;
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(fast.get()); ++i) {
    out.push_back(PyLong_AsLong(PySequence_Fast_GET_ITEM(fast.get(), i)));
    if (out.back() == -1 && PyErr_Occurred()) return false;
  }
  return true;
}

inline bool int_attribute(PyObject* object, const char* name, int& out) {
  Ref value(PyObject_GetAttrString(object, name));
  if (!value) return false;
  long n = PyLong_AsLong(value.get());
  if (n == -1 && PyErr_Occurred()) return false;
  out = static_cast<int>(n);
  return true;
}

// Null with a Python error. Objects that a plan refers to are kept for the life of the process, like the plan itself.
inline std::unique_ptr<Plan> compile_plan(PyObject* source) {
  auto plan = std::make_unique<Plan>();
  if (!int_attribute(source, "num_inputs", plan->num_inputs)) return nullptr;
  Ref single(PyObject_GetAttrString(source, "single"));
  Ref aux(PyObject_GetAttrString(source, "aux"));
  Ref instrs(PyObject_GetAttrString(source, "instrs"));
  Ref outs(PyObject_GetAttrString(source, "outs"));
  if (!single || !aux || !instrs || !outs) return nullptr;
  plan->single = PyObject_IsTrue(single.get()) == 1;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(aux.get()); ++i) {
    PyObject* item = PyTuple_GET_ITEM(aux.get(), i); // (kind, dim, pattern, dtype)
    Aux a;
    a.kind = Py_NewRef(PyTuple_GET_ITEM(item, 0));
    a.dim = static_cast<int>(PyLong_AsLong(PyTuple_GET_ITEM(item, 1))) & (kMaxDims - 1);
    a.pattern = Py_NewRef(PyTuple_GET_ITEM(item, 2));
    a.dtype = Py_NewRef(PyTuple_GET_ITEM(item, 3));
    plan->aux.push_back(a);
  }
  plan->num_slots = plan->num_inputs + static_cast<int>(plan->aux.size());
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(instrs.get()); ++i) {
    PyObject* item = PyTuple_GET_ITEM(instrs.get(), i); // (kernel, slots, static, num_out)
    Instr instr;
    std::vector<long> slots;
    if (!to_ints(PyTuple_GET_ITEM(item, 1), slots) || !to_statics(PyTuple_GET_ITEM(item, 2), instr.statics))
      return nullptr;
    instr.slots.assign(slots.begin(), slots.end());
    instr.kernel = Py_NewRef(PyTuple_GET_ITEM(item, 0));
    instr.statics_tuple = Py_NewRef(PyTuple_GET_ITEM(item, 2));
    instr.num_out = static_cast<int>(PyLong_AsLong(PyTuple_GET_ITEM(item, 3)));
    plan->num_slots += instr.num_out;
    plan->instrs.push_back(std::move(instr));
  }
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(outs.get()); ++i) {
    PyObject* item = PyTuple_GET_ITEM(outs.get(), i); // (slot, dims, like, dtype, feature, sparse)
    Out out;
    std::vector<long> dims;
    if (!to_ints(PyTuple_GET_ITEM(item, 1), dims)) return nullptr;
    out.dims.assign(dims.begin(), dims.end());
    out.slot = static_cast<int>(PyLong_AsLong(PyTuple_GET_ITEM(item, 0)));
    out.like = static_cast<int>(PyLong_AsLong(PyTuple_GET_ITEM(item, 2)));
    int dtype = dtype_number(PyTuple_GET_ITEM(item, 3));
    if (dtype < 0) return nullptr;
    out.dtype = static_cast<uint8_t>(dtype);
    out.feature = static_cast<int>(PyLong_AsLong(PyTuple_GET_ITEM(item, 4)));
    out.sparse = static_cast<int>(PyLong_AsLong(PyTuple_GET_ITEM(item, 5)));
    plan->outs.push_back(std::move(out));
  }
  if (PyErr_Occurred()) return nullptr;
  if (plan->num_slots > kMaxSlots) {
    PyErr_Format(PyExc_RuntimeError, "a plan of %d slots; at most %d are possible", plan->num_slots, kMaxSlots);
    return nullptr;
  }
  return plan;
}

// Plans of one op by key: open addressing over the bytes of the key.
class PlanCache {
public:
  Plan* find(const uint8_t* key, size_t size) {
    if (RF_LIKELY(last_ && last_->key.size() == size && std::memcmp(last_->key.data(), key, size) == 0))
      return last_->plan.get();
    if (table_.empty()) return nullptr;
    uint64_t h = hash(key, size);
    for (size_t i = h & (table_.size() - 1);; i = (i + 1) & (table_.size() - 1)) {
      Entry* e = table_[i];
      if (!e) return nullptr;
      if (e->hash == h && e->key.size() == size && std::memcmp(e->key.data(), key, size) == 0) {
        last_ = e;
        return e->plan.get();
      }
    }
  }

  Plan* insert(const uint8_t* key, size_t size, std::unique_ptr<Plan> plan) {
    if (Plan* other = find(key, size)) return other; // planned meanwhile, by the planner itself or another thread
    if (2 * (size_ + 1) > table_.size()) grow();
    entries_.push_back(std::make_unique<Entry>());
    Entry* e = entries_.back().get();
    e->key.assign(reinterpret_cast<const char*>(key), size);
    e->hash = hash(key, size);
    e->plan = std::move(plan);
    place(e);
    ++size_;
    last_ = e;
    return e->plan.get();
  }

  // The plans stay alive: another thread may be running one.
  void clear() {
    table_.clear();
    last_ = nullptr;
    size_ = 0;
  }

  size_t size() const { return size_; }

private:
  struct Entry {
    std::string key;
    uint64_t hash;
    std::unique_ptr<Plan> plan;
  };

  static uint64_t hash(const uint8_t* p, size_t n) {
    uint64_t h = n * 0x9E3779B97F4A7C15ull;
    while (n >= 8) {
      uint64_t word;
      std::memcpy(&word, p, 8);
      h = (h ^ word) * 0xD6E8FEB86659FD93ull;
      h ^= h >> 32;
      p += 8;
      n -= 8;
    }
    uint64_t tail = 0;
    std::memcpy(&tail, p, n);
    h = (h ^ tail) * 0xD6E8FEB86659FD93ull;
    return h ^ (h >> 29);
  }

  void place(Entry* e) {
    size_t i = e->hash & (table_.size() - 1);
    while (table_[i]) i = (i + 1) & (table_.size() - 1);
    table_[i] = e;
  }

  void grow() {
    std::vector<Entry*> old = std::move(table_);
    table_.assign(old.empty() ? 16 : 2 * old.size(), nullptr);
    for (Entry* e : old)
      if (e) place(e);
  }

  std::vector<std::unique_ptr<Entry>> entries_;
  std::vector<Entry*> table_;
  Entry* last_ = nullptr;
  size_t size_ = 0;
};

} // namespace rf
