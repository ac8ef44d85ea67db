// The native torch path: kernels of the torch backend that the native core calls without going through Python. Each
// calls ATen through its dispatcher, as the Python function of the same name does, so autograd, autocast, tracing and
// compilation see the same ops. The reference is rf/backends/torch.py; a kernel that is missing here is taken from
// there. One translation unit:
//   support.h      operands, results, macros       shape.h   structure, indexing
//   elementwise.h  elementwise, reductions         nn.h      contraction, normalizing, attention, losses
//   rnn.h          the LSTM                        lanes.h   its arithmetic
#include "elementwise.h"
#include "nn.h"
#include "rnn.h"
#include "shape.h"

namespace {

// -- the table

struct Named {
  std::string_view name;
  Kernel kernel;
};
#define RF_ENTRY(name) {#name, k_##name},
// clang-format off
constexpr Named kKernels[] = {
    RF_ENTRY(neg) RF_ENTRY(abs) RF_ENTRY(exp) RF_ENTRY(expm1) RF_ENTRY(log) RF_ENTRY(log1p) RF_ENTRY(sqrt)
    RF_ENTRY(rsqrt) RF_ENTRY(square) RF_ENTRY(reciprocal) RF_ENTRY(sin) RF_ENTRY(cos) RF_ENTRY(tanh)
    RF_ENTRY(sigmoid) RF_ENTRY(log_sigmoid) RF_ENTRY(ceil) RF_ENTRY(floor) RF_ENTRY(round) RF_ENTRY(erf)
    RF_ENTRY(sign) RF_ENTRY(relu) RF_ENTRY(elu) RF_ENTRY(selu) RF_ENTRY(silu) RF_ENTRY(gelu)
    RF_ENTRY(logical_not) RF_ENTRY(is_finite) RF_ENTRY(is_infinite) RF_ENTRY(is_neg_infinite) RF_ENTRY(identity)
    RF_ENTRY(add) RF_ENTRY(sub) RF_ENTRY(mul) RF_ENTRY(truediv) RF_ENTRY(floordiv) RF_ENTRY(mod) RF_ENTRY(pow)
    RF_ENTRY(maximum) RF_ENTRY(minimum) RF_ENTRY(logaddexp) RF_ENTRY(logical_and) RF_ENTRY(logical_or)
    RF_ENTRY(equal) RF_ENTRY(not_equal) RF_ENTRY(less) RF_ENTRY(less_equal) RF_ENTRY(greater)
    RF_ENTRY(greater_equal) RF_ENTRY(squared_difference) RF_ENTRY(where) RF_ENTRY(cast) RF_ENTRY(fill_outside)
    RF_ENTRY(at_least) RF_ENTRY(permute) RF_ENTRY(unsqueeze) RF_ENTRY(squeeze) RF_ENTRY(sum) RF_ENTRY(mean)
    RF_ENTRY(any) RF_ENTRY(all) RF_ENTRY(logsumexp) RF_ENTRY(argmax) RF_ENTRY(argmin) RF_ENTRY(cumsum)
    RF_ENTRY(max) RF_ENTRY(min) RF_ENTRY(contract) RF_ENTRY(linear) RF_ENTRY(softmax) RF_ENTRY(log_softmax)
    RF_ENTRY(masked_softmax) RF_ENTRY(masked_log_softmax) RF_ENTRY(layer_norm) RF_ENTRY(rms_norm)
    RF_ENTRY(gather) RF_ENTRY(reshape) RF_ENTRY(expand) RF_ENTRY(select) RF_ENTRY(slice) RF_ENTRY(flatten)
    RF_ENTRY(unflatten) RF_ENTRY(expand_axis) RF_ENTRY(split) RF_ENTRY(concat) RF_ENTRY(stack) RF_ENTRY(append)
    RF_ENTRY(scale) RF_ENTRY(attention_softmax) RF_ENTRY(batch_norm_of_batch) RF_ENTRY(batch_norm_apply)
    RF_ENTRY(dropout) RF_ENTRY(lstm) RF_ENTRY(lstm_step) RF_ENTRY(conv) RF_ENTRY(cross_entropy)
    RF_ENTRY(rel_attention_softmax) RF_ENTRY(move_toward) RF_ENTRY(glu) RF_ENTRY(dot_attention)
};
// clang-format on

Kernel find(const char* name) {
  for (const Named& entry : kKernels)
    if (entry.name == name) return entry.kernel;
  return nullptr;
}

c10::TensorImpl* impl(Payload p) { return static_cast<c10::TensorImpl*>(p); }
void retain(Payload p) { c10::raw::intrusive_ptr::incref(impl(p)); }
void release(Payload p) { c10::raw::intrusive_ptr::decref(impl(p)); }
PyObject* wrap(Payload p) {
  HANDLE_TH_ERRORS
  return THPVariable_Wrap(tensor(p));
  END_HANDLE_TH_ERRORS
}
Payload unwrap(PyObject* object) {
  if (!THPVariable_Check(object)) {
    PyErr_Format(PyExc_TypeError, "expected a torch.Tensor, got %R", reinterpret_cast<PyObject*>(Py_TYPE(object)));
    return nullptr;
  }
  c10::TensorImpl* p = THPVariable_Unpack(object).unsafeGetTensorImpl();
  c10::raw::intrusive_ptr::incref(p);
  return p;
}
int dtype(Payload p) { return dtype_number(c10::typeMetaToScalarType(impl(p)->dtype())); }
int shape(Payload p, const int64_t** sizes) {
  at::IntArrayRef s = impl(p)->sizes();
  *sizes = s.data();
  return static_cast<int>(s.size());
}
bool on_host(Payload p) { return impl(p)->is_cpu(); }

const rf::NativeBackend kBackend = {rf::kApiVersion, retain, release, wrap, unwrap, dtype, shape, on_host, find};

PyObject* capsule(PyObject*, PyObject*) {
  return PyCapsule_New(const_cast<rf::NativeBackend*>(&kBackend), rf::kApiCapsule, nullptr);
}

PyObject* kernels(PyObject*, PyObject*) {
  PyObject* list = PyList_New(0);
  for (const Named& entry : kKernels) {
    PyObject* name = PyUnicode_FromStringAndSize(entry.name.data(), static_cast<Py_ssize_t>(entry.name.size()));
    if (!list || !name || PyList_Append(list, name) < 0) {
      Py_XDECREF(name);
      Py_XDECREF(list);
      return nullptr;
    }
    Py_DECREF(name);
  }
  return list;
}

PyMethodDef methods[] = {
    {"capsule", capsule, METH_NOARGS, "What rf._native._core.register_native takes."},
    {"kernels", kernels, METH_NOARGS, "Names of the native kernels."},
    {nullptr, nullptr, 0, nullptr},
};
PyModuleDef module_def = {
    PyModuleDef_HEAD_INIT,
    "rf_torch_native",
    "Kernels of the torch backend for the native core.",
    -1,
    methods,
    nullptr,
    nullptr,
    nullptr,
    nullptr,
};

} // namespace

PyMODINIT_FUNC PyInit_rf_torch_native() { return PyModule_Create(&module_def); }
