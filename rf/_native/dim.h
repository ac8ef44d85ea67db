// DimBase: what the core needs to know of a dim. The specification is `DimBase` in rf/_core_py.py.
#pragma once
#include "util.h"

#include <cstddef>
#include <structmember.h>

namespace rf {

struct DimObject {
  PyObject_HEAD PyObject* same_as;
  PyObject* size_dims; // tuple, or None/null while unknown
  PyObject* cache;     // dict: number of an auxiliary array -> raw array
  long long extent;
  int match_priority;
  char dynamic;
  PyObject* weakrefs;
};

inline PyTypeObject* DimType = nullptr;

inline bool is_dim(PyObject* p) { return PyObject_TypeCheck(p, DimType); }

// The representative of equal dims.
inline DimObject* base_of(PyObject* p) {
  auto* dim = reinterpret_cast<DimObject*>(p);
  while (RF_UNLIKELY(!is_none(dim->same_as))) dim = reinterpret_cast<DimObject*>(dim->same_as);
  return dim;
}

inline PyObject* as_object(DimObject* dim) { return reinterpret_cast<PyObject*>(dim); }

inline int dim_init(PyObject* self, PyObject*, PyObject*) {
  auto* dim = reinterpret_cast<DimObject*>(self);
  Py_CLEAR(dim->same_as);
  Py_CLEAR(dim->size_dims);
  Py_CLEAR(dim->cache);
  dim->extent = -1;
  dim->match_priority = 0;
  dim->dynamic = 0;
  return 0;
}

inline int dim_traverse(PyObject* self, visitproc visit, void* arg) {
  auto* dim = reinterpret_cast<DimObject*>(self);
  Py_VISIT(Py_TYPE(self));
  Py_VISIT(dim->same_as);
  Py_VISIT(dim->size_dims);
  Py_VISIT(dim->cache);
  return 0;
}

inline int dim_clear(PyObject* self) {
  auto* dim = reinterpret_cast<DimObject*>(self);
  Py_CLEAR(dim->same_as);
  Py_CLEAR(dim->size_dims);
  Py_CLEAR(dim->cache);
  return 0;
}

inline void dim_dealloc(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  PyObject_GC_UnTrack(self);
  if (reinterpret_cast<DimObject*>(self)->weakrefs) PyObject_ClearWeakRefs(self);
  dim_clear(self);
  type->tp_free(self);
  Py_DECREF(type);
}

inline PyObject* dim_base(PyObject* self, void*) { return Py_NewRef(as_object(base_of(self))); }

inline PyObject* dim_compare(PyObject* a, PyObject* b, int op) {
  if (op != Py_EQ && op != Py_NE) Py_RETURN_NOTIMPLEMENTED;
  bool equal = a == b || (is_dim(a) && is_dim(b) && base_of(a) == base_of(b));
  return PyBool_FromLong(equal == (op == Py_EQ));
}

inline Py_hash_t dim_hash(PyObject* self) {
  auto bits = reinterpret_cast<size_t>(base_of(self));
  auto hash = static_cast<Py_hash_t>((bits >> 4) | (bits << (8 * sizeof(bits) - 4)));
  return hash == -1 ? -2 : hash;
}

inline PyObject* dim_get_dim_value(PyObject* self, PyObject*) {
  DimObject* base = base_of(self);
  if (RF_LIKELY(base->extent >= 0)) return PyLong_FromLongLong(base->extent);
  Ref sizes{PyObject_CallMethod(as_object(base), "get_sizes", nullptr)};
  return sizes ? PyObject_GetAttrString(sizes.get(), "extent") : nullptr;
}

inline PyObject* dim_need_masking(PyObject* self, PyObject*) {
  DimObject* base = base_of(self);
  if (!base->dynamic) Py_RETURN_FALSE;
  if (is_none(base->size_dims)) {
    Ref done{PyObject_CallMethodNoArgs(as_object(base), names.s_settle)};
    if (!done) return nullptr;
  }
  if (is_none(base->size_dims)) Py_RETURN_FALSE;
  int any = PyObject_IsTrue(base->size_dims);
  return any < 0 ? nullptr : PyBool_FromLong(any);
}

inline PyMethodDef dim_methods[] = {
    {"get_dim_value", dim_get_dim_value, METH_NOARGS, "The padded length of a raw axis, as a Python int."},
    {"need_masking", dim_need_masking, METH_NOARGS,
     "Whether sequences may differ in length, so that raw axes of this dim may hold padding."},
    {nullptr, nullptr, 0, nullptr},
};

inline PyMemberDef dim_members[] = {
    {"same_as", T_OBJECT, offsetof(DimObject, same_as), 0, nullptr},
    {"size_dims", T_OBJECT, offsetof(DimObject, size_dims), 0, nullptr},
    {"cache", T_OBJECT, offsetof(DimObject, cache), 0, nullptr},
    {"extent", T_LONGLONG, offsetof(DimObject, extent), 0, nullptr},
    {"match_priority", T_INT, offsetof(DimObject, match_priority), 0, nullptr},
    {"dynamic", T_BOOL, offsetof(DimObject, dynamic), 0, nullptr},
    {"__weaklistoffset__", T_PYSSIZET, offsetof(DimObject, weakrefs), READONLY, nullptr},
    {nullptr, 0, 0, 0, nullptr},
};

inline PyGetSetDef dim_getset[] = {
    {"base", dim_base, nullptr, "The representative: equal dims have the same one.", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};

inline bool make_dim_type() {
  static PyType_Slot slots[] = {
      {Py_tp_init, reinterpret_cast<void*>(dim_init)},
      {Py_tp_new, reinterpret_cast<void*>(PyType_GenericNew)},
      {Py_tp_dealloc, reinterpret_cast<void*>(dim_dealloc)},
      {Py_tp_traverse, reinterpret_cast<void*>(dim_traverse)},
      {Py_tp_clear, reinterpret_cast<void*>(dim_clear)},
      {Py_tp_richcompare, reinterpret_cast<void*>(dim_compare)},
      {Py_tp_hash, reinterpret_cast<void*>(dim_hash)},
      {Py_tp_methods, dim_methods},
      {Py_tp_members, dim_members},
      {Py_tp_getset, dim_getset},
      {Py_tp_doc, const_cast<char*>("What the core needs to know of a dim; see rf._core_py.DimBase.")},
      {0, nullptr},
  };
  static PyType_Spec spec = {"rf._native._core.DimBase", sizeof(DimObject), 0,
                             Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, slots};
  DimType = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&spec));
  return DimType != nullptr;
}

} // namespace rf
