// Small helpers around the CPython API: owned references, imported names, error texts of C++ exceptions.
#pragma once
#include <Python.h>

#include <exception>
#include <new>
#include <utility>

#if defined(__GNUC__)
#define RF_LIKELY(x) __builtin_expect(!!(x), 1)
#define RF_UNLIKELY(x) __builtin_expect(!!(x), 0)
#else
#define RF_LIKELY(x) (x)
#define RF_UNLIKELY(x) (x)
#endif

namespace rf {

// An owned reference.
class Ref {
public:
  Ref() = default;
  explicit Ref(PyObject* owned) : p_(owned) {}
  Ref(Ref&& other) noexcept : p_(std::exchange(other.p_, nullptr)) {}
  Ref& operator=(Ref&& other) noexcept {
    PyObject* old = std::exchange(p_, std::exchange(other.p_, nullptr));
    Py_XDECREF(old);
    return *this;
  }
  Ref(const Ref&) = delete;
  Ref& operator=(const Ref&) = delete;
  ~Ref() { Py_XDECREF(p_); }
  static Ref borrow(PyObject* p) { return Ref(Py_XNewRef(p)); }
  PyObject* get() const { return p_; }
  PyObject* release() { return std::exchange(p_, nullptr); }
  explicit operator bool() const { return p_ != nullptr; }

private:
  PyObject* p_ = nullptr;
};

// Python functions and strings that the core needs, set up once when the module is loaded. Kept for the life of the
// process.
struct Names {
  PyObject* prepare_operands;
  PyObject* prepare_make_plan;
  PyObject* prepare_scalar;
  PyObject* prepare_too_many_dims;
  PyObject* prepare_is_operand;
  PyObject* prepare_init_dtype;
  PyObject* prepare_check_new;
  PyObject* prepare_check_set_dtype;
  PyObject* prepare_check_raw;
  PyObject* prepare_check_feature_dim;
  PyObject* prepare_check_sparse_dim;
  PyObject* ops;           // rf._registry.OPS
  PyObject* auxiliary_key; // rf._dim.auxiliary_key, fetched at first use: rf._dim imports the core
  PyObject* s_settle;
  PyObject* s_auxiliary;
  PyObject* s_copy;
  PyObject* s_match_priority;
  PyObject* s_kernels;
  PyObject* s_device_of;
  PyObject* s_raw_tensor;
};
inline Names names;

// Runs `f`; a C++ exception becomes a Python one and the result is `failed`.
template <class R, class F> R guarded(R failed, F&& f) noexcept {
  try {
    return f();
  } catch (const std::bad_alloc&) {
    PyErr_NoMemory();
  } catch (const std::exception& e) {
    PyErr_SetString(PyExc_RuntimeError, e.what());
  }
  return failed;
}

inline bool is_none(PyObject* p) { return p == nullptr || p == Py_None; }

} // namespace rf
