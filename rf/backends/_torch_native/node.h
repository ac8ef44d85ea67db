// What fused kernels are written with: when they may be used, memory, and one autograd node for a whole kernel.
//
// A fused kernel computes in one loop, or a few, what ATen would need many calls for, and records one node instead of
// one per call. It may be used where nobody looks at the single ops: on strided float32 or float64 arrays in host
// memory, outside of autocast, tracing, transformations and other modes of the dispatcher. Everywhere else the kernel
// calls ATen as usual; that version (`by_aten` of a node) also gives gradients of gradients.
#pragma once
#include "support.h"

#include <ATen/EmptyTensor.h>
#include <ATen/Parallel.h>
#include <ATen/ops/alias.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>

#include <mutex>

namespace {

namespace ag = torch::autograd;

// -- when

// What autograd has to do for an op on some operands: nothing, record it, or more than fused kernels can (forward
// mode).
enum class Record { kNo, kYes, kForwardMode };

Record record_of(const Payload* in, int n) {
  Record answer = Record::kNo;
  for (int i = 0; i < n; ++i) {
    if (!in[i]) continue;
    const auto* meta = static_cast<const ag::AutogradMeta*>(tensor(in[i]).unsafeGetTensorImpl()->autograd_meta());
    if (!meta) continue;
    if (meta->fw_grad_) return Record::kForwardMode;
    if ((meta->requires_grad_ || meta->grad_fn_) && at::GradMode::is_enabled()) answer = Record::kYes;
  }
  return answer;
}

// Whether the dispatcher would do nothing for x but autograd and the CPU kernel.
bool direct(const at::Tensor& x) {
  constexpr c10::DispatchKeySet usual({c10::DispatchKey::CPU, c10::DispatchKey::AutogradCPU,
                                       c10::DispatchKey::ADInplaceOrView, c10::DispatchKey::BackendSelect});
  c10::impl::LocalDispatchKeySet local = c10::impl::tls_local_dispatch_key_set();
  c10::DispatchKeySet active = (x.key_set() | local.included_) - local.excluded_;
  return (active.raw_repr() & ~usual.raw_repr()) == 0; // a difference of sets would leave out the device
}

// Whether one thread is what ATen would use for x anyhow.
bool one_thread(const at::Tensor& x) { return x.numel() <= 32768 || at::get_num_threads() == 1; }

// Whether the first `n` operands, of which the first must be there, are of one dtype, float32 or float64, and `direct`.
bool plain_floats(const Payload* in, int n) {
  at::ScalarType type = tensor(in[0]).scalar_type();
  if (type != at::kFloat && type != at::kDouble) return false;
  for (int i = 0; i < n; ++i)
    if (in[i] && (!direct(tensor(in[i])) || tensor(in[i]).scalar_type() != type)) return false;
  return true;
}

// Whether they can be given to a kernel that uses one thread.
bool fusable(const Payload* in, int n) { return one_thread(tensor(in[0])) && plain_floats(in, n); }

// Runs `function` with a zero of the C++ type of x, float or double.
template <class F> auto with_type(const at::Tensor& x, F&& function) {
  return x.scalar_type() == at::kFloat ? function(float()) : function(double());
}

// Products of so many terms are computed in the kernels: a call of ATen costs more.
constexpr int64_t kSmallProduct = 65536;

// -- memory

at::Tensor empty(at::IntArrayRef sizes, at::ScalarType type) {
  return at::Tensor(at::detail::empty_cpu(sizes, type, /*pin_memory=*/false));
}

at::Tensor empty_strided(at::IntArrayRef sizes, at::IntArrayRef strides, at::ScalarType type) {
  return at::Tensor(at::detail::empty_strided_cpu(sizes, strides, type, /*pin_memory=*/false));
}

// The same memory as a matrix, for ATen's matrix products; autograd does not know of it.
at::Tensor matrix(const at::Tensor& x, int64_t rows, int64_t columns, int64_t row_stride, int64_t column_stride) {
  auto impl = c10::make_intrusive<c10::TensorImpl>(c10::TensorImpl::VIEW, c10::Storage(x.storage()),
                                                   c10::DispatchKeySet(c10::DispatchKey::CPU), x.dtype());
  impl->set_storage_offset(x.storage_offset());
  std::array<int64_t, 2> sizes{rows, columns}, strides{row_stride, column_stride};
  impl->set_sizes_and_strides(at::IntArrayRef(sizes), at::IntArrayRef(strides));
  return at::Tensor(std::move(impl));
}
at::Tensor matrix(const at::Tensor& x, int64_t rows, int64_t columns) { return matrix(x, rows, columns, columns, 1); }
at::Tensor transposed(const at::Tensor& m) { return matrix(m, m.size(1), m.size(0), m.stride(1), m.stride(0)); }

// x as it lies in memory when that is dense and in order, else a copy; below autograd.
at::Tensor dense(const at::Tensor& x) {
  if (x.is_contiguous()) return x;
  at::AutoDispatchBelowADInplaceOrView below;
  return x.contiguous();
}

// -- nodes

using NodePtr = std::decay_t<decltype(std::declval<ag::Edge>().function)>;

// torch counted references to nodes with std::shared_ptr once.
template <class Node> auto make_node() {
  if constexpr (std::is_same_v<NodePtr, std::shared_ptr<ag::Node>>)
    return std::shared_ptr<Node>(new Node(), [](Node* node) { deleteNode(node); }); // torch's own

  else
    return c10::make_intrusive<Node>();
}

constexpr int kMaxSaved = 6;

// The node of a fused kernel. It keeps the operands, and what a subclass puts into `kept`.
struct Fused : ag::Node {
  std::array<ag::SavedVariable, kMaxSaved> operands;
  int num_operands = 0;
  std::array<at::Tensor, 3> kept; // results that nobody else sees

  // Gradients of the operands (undefined where not needed) from those of the results; without recording anything.
  virtual ag::variable_list backward(const at::Tensor* in, const ag::variable_list& grads) = 0;
  // The same results from the operands, by ATen.
  virtual ag::variable_list by_aten(const at::Tensor* in) = 0;

  bool needs(int operand) const { return task_should_compute_output(static_cast<size_t>(operand)); }

  void keep_operands(const Payload* in, int n) {
    num_operands = n;
    ag::edge_list edges(static_cast<size_t>(n));
    for (int i = 0; i < n; ++i) {
      if (!in[i]) continue;
      edges[static_cast<size_t>(i)] = ag::impl::gradient_edge(tensor(in[i]));
      operands[static_cast<size_t>(i)] = ag::SavedVariable(tensor(in[i]), false);
    }
    set_next_edges(std::move(edges));
  }

  ag::variable_list apply(ag::variable_list&& grads) override {
    std::lock_guard<std::mutex> lock(mutex_);
    std::array<at::Tensor, kMaxSaved> in;
    for (int i = 0; i < num_operands; ++i) in[static_cast<size_t>(i)] = operands[static_cast<size_t>(i)].unpack();
    bool any = false;
    for (const at::Tensor& g : grads) any = any || g.defined();
    if (!any) return ag::variable_list(static_cast<size_t>(num_operands));
    if (at::GradMode::is_enabled() || !usual(grads)) return differentiate(in.data(), grads);
    return backward(in.data(), grads);
  }

  // Whether `backward` can do it: a gradient of every result that it asks for, as plain arrays in host memory.
  virtual bool usual(const ag::variable_list& grads) const { return grads[0].defined() && direct(grads[0]); }

  // Through ATen's version; with gradients of gradients if wanted.
  ag::variable_list differentiate(const at::Tensor* in, const ag::variable_list& grads) {
    bool again = at::GradMode::is_enabled();
    ag::variable_list results(static_cast<size_t>(num_operands));
    at::AutoGradMode enabled(true);
    std::array<at::Tensor, kMaxSaved> fresh;
    ag::variable_list wanted, outputs, output_grads;
    for (int i = 0; i < num_operands; ++i) {
      auto k = static_cast<size_t>(i);
      fresh[k] = in[i];
      if (!in[i].defined() || !needs(i)) continue;
      fresh[k] = again ? at::alias(in[i]) : in[i].detach().requires_grad_();
      wanted.push_back(fresh[k]);
    }
    ag::variable_list all = by_aten(fresh.data());
    for (size_t i = 0; i < grads.size(); ++i) {
      if (!grads[i].defined() || !all[i].requires_grad()) continue;
      outputs.push_back(all[i]);
      output_grads.push_back(grads[i]);
    }
    if (outputs.empty() || wanted.empty()) return results;
    ag::variable_list found = ag::grad(outputs, wanted, output_grads, true, again, true);
    size_t next = 0;
    for (int i = 0; i < num_operands; ++i)
      if (in[i].defined() && needs(i)) results[static_cast<size_t>(i)] = found[next++];
    return results;
  }

  void release_variables() override {
    std::lock_guard<std::mutex> lock(mutex_);
    for (int i = 0; i < num_operands; ++i) operands[static_cast<size_t>(i)].reset_data();
    for (at::Tensor& t : kept) t.reset();
  }
};

template <class Node> void set_history(const at::Tensor& result, const Node& node) {
  ag::set_history(result, NodePtr(node));
}

// Vectorized by the compiler also where the order of additions changes.
#define RF_SIMD_SUM(...) _Pragma(RF_STRINGIFY(omp simd reduction(+ : __VA_ARGS__)))
#define RF_SIMD _Pragma("omp simd")
#define RF_STRINGIFY(...) #__VA_ARGS__

// A fused kernel: `fused` where it may be used (it gets what to record), else `expression`, as RF_FRESH.
#define RF_FUSED(name, n, condition, fused, expression)                                                                \
  bool k_##name(const Payload* in, [[maybe_unused]] int num_in, [[maybe_unused]] const Static* s, Payload* out) {      \
    try {                                                                                                              \
      const at::Tensor& x = tensor(in[0]);                                                                             \
      Record record = record_of(in, n);                                                                                \
      if (record != Record::kForwardMode && fusable(in, n) && (condition)) {                                           \
        Unlocked unlocked(x);                                                                                          \
        give(out[0], fused);                                                                                           \
      } else {                                                                                                         \
        give(out[0], evaluate(x, record == Record::kNo, [&]() -> at::Tensor { return expression; }));                  \
      }                                                                                                                \
      return true;                                                                                                     \
    } catch (...) {                                                                                                    \
      torch::translate_exception_to_python(std::current_exception());                                                  \
      return false;                                                                                                    \
    }                                                                                                                  \
  }

} // namespace
