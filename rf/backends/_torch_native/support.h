// What kernels are written with: operands as at::Tensor, results, locks, scalars, the macros.
//
// A payload is a TensorImpl with one reference; an operand slot can be read as an at::Tensor, which is one such
// pointer.
#pragma once
#include "../../_native/api.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ScalarOps.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/_masked_softmax.h>
#include <ATen/ops/_unsafe_view.h>
#include <ATen/ops/abs.h>
#include <ATen/ops/add.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/all.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/amin.h>
#include <ATen/ops/any.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/argmax.h>
#include <ATen/ops/argmin.h>
#include <ATen/ops/bernoulli.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/ceil.h>
#include <ATen/ops/clamp_min.h>
#include <ATen/ops/cos.h>
#include <ATen/ops/cumsum.h>
#include <ATen/ops/div.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/elu.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/eq.h>
#include <ATen/ops/erf.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/expm1.h>
#include <ATen/ops/floor.h>
#include <ATen/ops/floor_divide.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ge.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/gt.h>
#include <ATen/ops/index.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/isinf.h>
#include <ATen/ops/isneginf.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/le.h>
#include <ATen/ops/log.h>
#include <ATen/ops/log1p.h>
#include <ATen/ops/log_sigmoid.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/logaddexp.h>
#include <ATen/ops/logical_and.h>
#include <ATen/ops/logical_not.h>
#include <ATen/ops/logical_or.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/lt.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/mean.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/ne.h>
#include <ATen/ops/native_batch_norm.h>
#include <ATen/ops/native_layer_norm.h>
#include <ATen/ops/neg.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/reciprocal.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/remainder.h>
#include <ATen/ops/rms_norm.h>
#include <ATen/ops/round.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/selu.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/sign.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/sin.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/sqrt.h>
#include <ATen/ops/square.h>
#include <ATen/ops/sub.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/split_with_sizes.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/as_strided.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/ones.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/autograd/variable.h>

#include <array>
#include <cmath>
#include <limits>
#include <string_view>
#include <unordered_map>

namespace {

using rf::Kernel;
using rf::Payload;
using rf::Static;

static_assert(sizeof(at::Tensor) == sizeof(Payload), "an at::Tensor must be one pointer");

const at::Tensor& tensor(const Payload& p) { return reinterpret_cast<const at::Tensor&>(p); }

std::optional<at::Tensor> optional(const Payload& p) {
  if (!p) return std::nullopt;
  return tensor(p);
}

void give(Payload& out, at::Tensor&& result) { out = result.unsafeReleaseTensorImpl(); }

// Lets other threads run while a kernel works on much data. For little data, giving up the lock would cost more than
// the kernel.
class Unlocked {
public:
  explicit Unlocked(const at::Tensor& x) {
    if (x.numel() > 16384) state_ = PyEval_SaveThread();
  }
  ~Unlocked() {
    if (state_) PyEval_RestoreThread(state_);
  }
  Unlocked(const Unlocked&) = delete;
  Unlocked& operator=(const Unlocked&) = delete;

private:
  PyThreadState* state_ = nullptr;
};

// Whether autograd has nothing to record for an op on the first `n` operands. It would find that out itself, a dispatch
// per op later.
bool constant(const Payload* in, int n) {
  for (int i = 0; i < n; ++i) {
    if (!in[i]) continue;
    const at::Tensor& x = tensor(in[i]);
    const auto* meta = static_cast<const torch::autograd::AutogradMeta*>(x.unsafeGetTensorImpl()->autograd_meta());
    if (!meta) continue;
    if (meta->fw_grad_) return false;
    if ((meta->requires_grad_ || meta->grad_fn_) && at::GradMode::is_enabled()) return false;
  }
  return true;
}

// Evaluates a kernel's expression; below autograd where nothing is to be recorded, which is only right where the result
// shares no memory with an operand.
template <class F> at::Tensor evaluate(const at::Tensor& x, bool below_autograd, F&& expression) {
  Unlocked unlocked(x);
  if (!below_autograd) return expression();
  at::AutoDispatchBelowADInplaceOrView below;
  return expression();
}

// A kernel from an expression on the operands in[0] (also called x), in[1], ... and static arguments s[0], ... RF_VIEW
// is for results that may share memory with x, RF_FRESH for those that never do, with `n` operands.
#define RF_KERNEL(name, below_autograd, expression)                                                                    \
  bool k_##name(const Payload* in, [[maybe_unused]] int num_in, [[maybe_unused]] const Static* s, Payload* out) {      \
    HANDLE_TH_ERRORS                                                                                                   \
    const at::Tensor& x = tensor(in[0]);                                                                               \
    give(out[0], evaluate(x, below_autograd, [&]() -> at::Tensor { return expression; }));                             \
    return true;                                                                                                       \
    END_HANDLE_TH_ERRORS_RET(false)                                                                                    \
  }
#define RF_VIEW(name, expression) RF_KERNEL(name, false, expression)

// The ops of RF_FRESH kernels give no warnings, so the buffer for them, which HANDLE_TH_ERRORS sets up, is left out.
#define RF_FRESH(name, n, expression)                                                                                  \
  bool k_##name(const Payload* in, [[maybe_unused]] int num_in, [[maybe_unused]] const Static* s, Payload* out) {      \
    try {                                                                                                              \
      const at::Tensor& x = tensor(in[0]);                                                                             \
      give(out[0], evaluate(x, constant(in, n), [&]() -> at::Tensor { return expression; }));                          \
      return true;                                                                                                     \
    } catch (...) {                                                                                                    \
      torch::translate_exception_to_python(std::current_exception());                                                  \
      return false;                                                                                                    \
    }                                                                                                                  \
  }
#define RF_UNARY(name) RF_FRESH(name, 1, at::name(x))
#define RF_BINARY(name, function) RF_FRESH(name, 2, function(x, tensor(in[1])))

const std::array<at::ScalarType, 12> kDtypes = {
    at::kBool, at::kByte,     at::kChar,  at::kShort,  at::kInt,          at::kLong,
    at::kHalf, at::kBFloat16, at::kFloat, at::kDouble, at::kComplexFloat, at::kComplexDouble,
}; // in the order of rf.dtypes.ALL

int dtype_number(at::ScalarType type) {
  for (size_t i = 0; i < kDtypes.size(); ++i)
    if (kDtypes[i] == type) return static_cast<int>(i);
  return -1;
}

// A 0-dim tensor on the host, made once per value and dtype. Call it while holding the lock.
const at::Tensor& scalar_of(double value, at::ScalarType type) {
  struct Hash {
    size_t operator()(const std::pair<uint64_t, int>& k) const {
      return (k.first ^ (static_cast<uint64_t>(k.second) << 50)) * 0x9E3779B97F4A7C15ull;
    }
  };
  static std::unordered_map<std::pair<uint64_t, int>, at::Tensor, Hash> cache;
  uint64_t bits;
  std::memcpy(&bits, &value, 8);
  auto [it, is_new] = cache.try_emplace({bits, static_cast<int>(type)});
  // Not through the dispatcher: under a tracing mode that would give something that must not be kept. Nor in inference
  // mode: what is made there cannot be saved for gradients later.
  c10::InferenceMode normal(false);
  if (is_new) it->second = at::detail::scalar_tensor_static(value, type, at::kCPU);
  return it->second;
}

} // namespace
