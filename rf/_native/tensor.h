// Tensor: the object. The specification is `Tensor` in rf/_core_py.py; methods that do not depend on storage are
// inherited from rf._tensor_methods.TensorMethods.
//
// The data is a Python array (`raw`) or, on a native backend, a payload, for which a Python object is only made when
// somebody asks for `raw_tensor`. A Tensor is not tracked by the garbage collector: what it refers to (dims, arrays)
// never refers back to it.
#pragma once
#include "backend.h"
#include "dim.h"

namespace rf {

struct TensorObject {
  PyObject_HEAD PyObject* dims; // tuple
  PyObject* raw;
  Payload payload;
  BackendEntry* backend; // null for a template
  PyObject* feature_dim; // null for none
  PyObject* sparse_dim;
  PyObject* name;
  uint8_t dtype; // number in rf.dtypes.ALL
};

inline PyTypeObject* TensorType = nullptr;

constexpr int kMaxDtypes = 16;
inline PyObject* dtype_names[kMaxDtypes];
inline uint8_t dtype_kind[kMaxDtypes];               // 0 bool, 1 int, 2 float, 3 complex, 255 other
inline uint8_t dtype_result[kMaxDtypes][kMaxDtypes]; // promotion; 255: none
inline int num_dtypes = 0;

inline bool is_tensor(PyObject* p) { return Py_TYPE(p) == TensorType || PyType_IsSubtype(Py_TYPE(p), TensorType); }
inline TensorObject* as_tensor(PyObject* p) { return reinterpret_cast<TensorObject*>(p); }
inline PyObject* as_object(TensorObject* t) { return reinterpret_cast<PyObject*>(t); }

// Number of a dtype name, -1 with an error when it is none.
inline int dtype_number(PyObject* name) {
  for (int i = 0; i < num_dtypes; ++i)
    if (dtype_names[i] == name) return i;
  for (int i = 0; i < num_dtypes; ++i) {
    int equal = PyObject_RichCompareBool(dtype_names[i], name, Py_EQ);
    if (equal < 0) return -1;
    if (equal) return i;
  }
  PyErr_Format(PyExc_ValueError, "unknown dtype %R", name);
  return -1;
}

// Results come and go by the million; a free list saves their allocation.
constexpr int kFreeTensors = 256;
inline TensorObject* free_tensors[kFreeTensors];
inline int num_free_tensors = 0;

// A Tensor without data; `dims` is stolen.
inline TensorObject* new_tensor(PyObject* dims, uint8_t dtype, BackendEntry* backend) {
  TensorObject* t;
  if (RF_LIKELY(num_free_tensors > 0)) {
    t = free_tensors[--num_free_tensors];
    _Py_NewReference(as_object(t)); // its reference to the type was kept
  } else {
    t = PyObject_New(TensorObject, TensorType);
    if (!t) {
      Py_DECREF(dims);
      return nullptr;
    }
  }
  t->dims = dims;
  t->raw = nullptr;
  t->payload = nullptr;
  t->backend = backend;
  t->feature_dim = t->sparse_dim = t->name = nullptr;
  t->dtype = dtype;
  return t;
}

inline void drop_data(TensorObject* t) {
  BackendEntry* backend = std::exchange(t->backend, nullptr);
  if (Payload payload = std::exchange(t->payload, nullptr)) backend->native->release(payload);
  Py_CLEAR(t->raw);
}

inline void tensor_dealloc(PyObject* self) {
  TensorObject* t = as_tensor(self);
  drop_data(t);
  Py_CLEAR(t->dims);
  Py_CLEAR(t->feature_dim);
  Py_CLEAR(t->sparse_dim);
  Py_CLEAR(t->name);
  PyTypeObject* type = Py_TYPE(self);
  if (RF_LIKELY(type == TensorType && num_free_tensors < kFreeTensors)) {
    free_tensors[num_free_tensors++] = t;
    return;
  }
  type->tp_free(self);
  Py_DECREF(type);
}

// Only subclasses written in Python are tracked and come here. That the slot is filled also keeps Tensor itself from
// inheriting the tracking flag of its base class, which free list and allocation count on.
inline int tensor_traverse(PyObject* self, visitproc visit, void* arg) {
  TensorObject* t = as_tensor(self);
  Py_VISIT(Py_TYPE(self));
  Py_VISIT(t->dims);
  Py_VISIT(t->raw);
  Py_VISIT(t->feature_dim);
  Py_VISIT(t->sparse_dim);
  Py_VISIT(t->name);
  return 0;
}

inline PyObject* tensor_new(PyTypeObject* type, PyObject*, PyObject*) {
  auto* t = reinterpret_cast<TensorObject*>(type->tp_alloc(type, 0));
  if (!t) return nullptr;
  t->dims = PyTuple_New(0);
  return as_object(t);
}

// Takes a Python array: a native backend gets its payload. Returns false with an error.
inline bool set_data(TensorObject* t, BackendEntry* backend, PyObject* raw) {
  Payload payload = nullptr;
  if (backend->native) {
    payload = backend->native->unwrap(raw);
    if (!payload) return false;
  }
  drop_data(t);
  t->backend = backend;
  if (payload)
    t->payload = payload;
  else
    t->raw = Py_NewRef(raw);
  return true;
}

// The Python array of a Tensor with data, a new reference.
inline PyObject* raw_of(TensorObject* t) {
  if (t->payload) return t->backend->native->wrap(t->payload);
  return Py_NewRef(t->raw ? t->raw : Py_None);
}

// Types of raw arrays seen so far, and their backends: rf._prepare.check_raw says which one it is the first time.
struct RawType {
  PyTypeObject* type;
  BackendEntry* backend;
};
constexpr int kMaxRawTypes = 8;
inline RawType raw_types[kMaxRawTypes];
inline int num_raw_types = 0;

// Whether a payload has the dtype of `t` and axes as long as its dims; when not, rf._prepare.check_raw explains or
// fills an open dim.
inline bool fits(TensorObject* t, const NativeBackend& native, Payload payload) {
  const int64_t* sizes;
  if (native.dtype(payload) != t->dtype || native.shape(payload, &sizes) != PyTuple_GET_SIZE(t->dims)) return false;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(t->dims); ++i)
    if (base_of(PyTuple_GET_ITEM(t->dims, i))->extent != sizes[i]) return false;
  return true;
}

inline int tensor_set_raw(PyObject* self, PyObject* value, void*) {
  TensorObject* t = as_tensor(self);
  if (is_none(value)) {
    drop_data(t);
    return 0;
  }
  for (int i = 0; i < num_raw_types; ++i) {
    BackendEntry* backend = raw_types[i].backend;
    if (raw_types[i].type != Py_TYPE(value) || !backend->native) continue;
    Payload payload = backend->native->unwrap(value);
    if (!payload) return -1;
    if (!fits(t, *backend->native, payload)) {
      backend->native->release(payload);
      break;
    }
    drop_data(t);
    t->backend = backend;
    t->payload = payload;
    return 0;
  }
  Ref backend(PyObject_CallFunctionObjArgs(names.prepare_check_raw, self, value, nullptr));
  if (!backend) return -1;
  BackendEntry* entry = entry_of(backend.get());
  if (!entry || !set_data(t, entry, value)) return -1;
  bool known = false;
  for (int i = 0; i < num_raw_types; ++i) known = known || raw_types[i].type == Py_TYPE(value);
  if (!known && num_raw_types < kMaxRawTypes) {
    Py_INCREF(reinterpret_cast<PyObject*>(Py_TYPE(value)));
    raw_types[num_raw_types++] = {Py_TYPE(value), entry};
  }
  return 0;
}

// Whether all are Dims, each once; when not, rf._prepare.check_new explains.
inline bool distinct_dims(PyObject* dims) {
  Py_ssize_t n = PyTuple_GET_SIZE(dims);
  for (Py_ssize_t i = 0; i < n; ++i) {
    PyObject* a = PyTuple_GET_ITEM(dims, i);
    if (!is_dim(a)) return false;
    for (Py_ssize_t j = 0; j < i; ++j) {
      PyObject* b = PyTuple_GET_ITEM(dims, j);
      if (base_of(a) == base_of(b) &&
          reinterpret_cast<DimObject*>(a)->match_priority == reinterpret_cast<DimObject*>(b)->match_priority)
        return false;
    }
  }
  return true;
}

inline int tensor_init(PyObject* self, PyObject* args, PyObject* kwargs) {
  static const char* keywords[] = {"name",       "dims", "dtype", "sparse_dim", "feature_dim", "feature_dim_axis",
                                   "raw_tensor", nullptr};
  PyObject *name = Py_None, *dims = nullptr, *dtype = Py_None, *sparse = Py_None, *feature = Py_None, *axis = Py_None;
  PyObject* raw = Py_None;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|OOO$OOOO:Tensor", const_cast<char**>(keywords), &name, &dims, &dtype,
                                   &sparse, &feature, &axis, &raw))
    return -1;
  TensorObject* t = as_tensor(self);
  Ref tuple(dims ? PySequence_Tuple(dims) : PyTuple_New(0));
  if (!tuple) return -1;
  drop_data(t);
  Py_XSETREF(t->dims, tuple.release());
  Py_XSETREF(t->name, name == Py_None ? nullptr : Py_NewRef(name));
  Py_CLEAR(t->feature_dim);
  Py_CLEAR(t->sparse_dim);
  int number = -1;
  for (int i = 0; i < num_dtypes; ++i)
    if (dtype_names[i] == dtype) number = i;
  if (number < 0) {
    Ref dtype_name(PyObject_CallFunctionObjArgs(names.prepare_init_dtype, dtype, raw, nullptr));
    if (!dtype_name) return -1;
    number = dtype_number(dtype_name.get());
    if (number < 0) return -1;
  }
  t->dtype = static_cast<uint8_t>(number);
  bool plain = sparse == Py_None && feature == Py_None && axis == Py_None;
  if (!plain || !distinct_dims(t->dims)) {
    Ref ok(PyObject_CallFunctionObjArgs(names.prepare_check_new, self, sparse, feature, axis, nullptr));
    if (!ok) return -1;
  }
  return raw == Py_None ? 0 : PyObject_SetAttr(self, names.s_raw_tensor, raw);
}

inline PyObject* get_or_none(PyObject* p) { return Py_NewRef(p ? p : Py_None); }
inline PyObject* tensor_get_dims(PyObject* self, void*) { return Py_NewRef(as_tensor(self)->dims); }
inline PyObject* tensor_get_dtype(PyObject* self, void*) { return Py_NewRef(dtype_names[as_tensor(self)->dtype]); }
inline PyObject* tensor_get_name(PyObject* self, void*) { return get_or_none(as_tensor(self)->name); }
inline PyObject* tensor_get_feature(PyObject* self, void*) { return get_or_none(as_tensor(self)->feature_dim); }
inline PyObject* tensor_get_sparse(PyObject* self, void*) { return get_or_none(as_tensor(self)->sparse_dim); }
inline PyObject* tensor_get_backend(PyObject* self, void*) {
  BackendEntry* backend = as_tensor(self)->backend;
  return get_or_none(backend ? backend->object : nullptr);
}
inline PyObject* tensor_get_raw(PyObject* self, void*) { return raw_of(as_tensor(self)); }

inline int refuse_delete() {
  PyErr_SetString(PyExc_AttributeError, "cannot delete an attribute of a Tensor");
  return -1;
}

inline int tensor_set_name(PyObject* self, PyObject* value, void*) {
  if (!value) return refuse_delete();
  Py_XSETREF(as_tensor(self)->name, Py_NewRef(value));
  return 0;
}

inline int tensor_set_dtype(PyObject* self, PyObject* value, void*) {
  if (!value) return refuse_delete();
  Ref ok(PyObject_CallFunctionObjArgs(names.prepare_check_set_dtype, self, value, nullptr));
  if (!ok) return -1;
  int number = dtype_number(value);
  if (number < 0) return -1;
  as_tensor(self)->dtype = static_cast<uint8_t>(number);
  return 0;
}

inline int set_checked_dim(PyObject* self, PyObject* value, PyObject* check, PyObject** field) {
  if (!value) return refuse_delete();
  Ref dim(PyObject_CallFunctionObjArgs(check, self, value, nullptr));
  if (!dim) return -1;
  Py_XSETREF(*field, is_none(dim.get()) ? nullptr : dim.release());
  return 0;
}
inline int tensor_set_feature(PyObject* self, PyObject* value, void*) {
  return set_checked_dim(self, value, names.prepare_check_feature_dim, &as_tensor(self)->feature_dim);
}
inline int tensor_set_sparse(PyObject* self, PyObject* value, void*) {
  return set_checked_dim(self, value, names.prepare_check_sparse_dim, &as_tensor(self)->sparse_dim);
}

inline PyObject* tensor_has_raw(PyObject* self, PyObject*) {
  return PyBool_FromLong(as_tensor(self)->backend != nullptr);
}

inline PyGetSetDef tensor_getset[] = {
    {"dims", tensor_get_dims, nullptr, "The dims in storage order.", nullptr},
    {"dtype", tensor_get_dtype, tensor_set_dtype, "The dtype as a string.", nullptr},
    {"name", tensor_get_name, tensor_set_name, "For error messages only; carries no meaning.", nullptr},
    {"backend", tensor_get_backend, nullptr, "The backend that owns the raw tensor; None for a template.", nullptr},
    {"raw_tensor", tensor_get_raw, tensor_set_raw, "The backend's own array; None for a template.", nullptr},
    {"feature_dim", tensor_get_feature, tensor_set_feature, "The dim that feature-wise functions use by default.",
     nullptr},
    {"sparse_dim", tensor_get_sparse, tensor_set_sparse, "The dim that the values are indices into.", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};

inline PyMethodDef tensor_methods[] = {
    {"_has_raw", tensor_has_raw, METH_NOARGS, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

} // namespace rf
