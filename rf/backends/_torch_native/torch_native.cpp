// The native torch path: kernels of the torch backend that the native core calls without going through Python. Each calls ATen through its dispatcher,
// as the Python function of the same name does, so autograd, autocast, tracing and compilation see the same ops. The reference is
// rf/backends/torch.py; a kernel that is missing here is taken from there.
//
// A payload is a TensorImpl with one reference; an operand slot can be read as an at::Tensor, which is one such pointer.
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
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>

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

// Lets other threads run while a kernel works on much data. For little data, giving up the lock would cost more than the kernel.
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

// Whether autograd has nothing to record for an op on the first `n` operands. It would find that out itself, a dispatch per op later.
bool constant(const Payload* in, int n) {
  for (int i = 0; i < n; ++i)
    if (in[i] && tensor(in[i]).unsafeGetTensorImpl()->autograd_meta() != nullptr) return false;
  return true;
}

// Evaluates a kernel's expression; below autograd where nothing is to be recorded, which is only right where the result shares no memory with an operand.
template <class F> at::Tensor evaluate(const at::Tensor& x, bool below_autograd, F&& expression) {
  Unlocked unlocked(x);
  if (!below_autograd) return expression();
  at::AutoDispatchBelowADInplaceOrView below;
  return expression();
}

// A kernel from an expression on the operands in[0] (also called x), in[1], ... and static arguments s[0], ... RF_VIEW is for results that may share memory with x,
// RF_FRESH for those that never do, with `n` operands.
#define RF_KERNEL(name, below_autograd, expression)                                                                    \
  bool k_##name(const Payload* in, [[maybe_unused]] const Static* s, Payload* out) {                                   \
    HANDLE_TH_ERRORS                                                                                                   \
    const at::Tensor& x = tensor(in[0]);                                                                               \
    give(out[0], evaluate(x, below_autograd, [&]() -> at::Tensor { return expression; }));                             \
    return true;                                                                                                       \
    END_HANDLE_TH_ERRORS_RET(false)                                                                                    \
  }
#define RF_VIEW(name, expression) RF_KERNEL(name, false, expression)
#define RF_FRESH(name, n, expression) RF_KERNEL(name, constant(in, n), expression)

// Elementwise kernels on one or two operands, which are the many. ATen gives no warnings here, so the buffer for them, which HANDLE_TH_ERRORS
// sets up, is left out.
#define RF_ELEMENTWISE(name, n, expression)                                                                            \
  bool k_##name(const Payload* in, const Static*, Payload* out) {                                                      \
    try {                                                                                                              \
      const at::Tensor& x = tensor(in[0]);                                                                             \
      give(out[0], evaluate(x, constant(in, n), [&]() -> at::Tensor { return expression; }));                          \
      return true;                                                                                                     \
    } catch (...) {                                                                                                    \
      torch::translate_exception_to_python(std::current_exception());                                                  \
      return false;                                                                                                    \
    }                                                                                                                  \
  }
#define RF_UNARY(name) RF_ELEMENTWISE(name, 1, at::name(x))
#define RF_BINARY(name, function) RF_ELEMENTWISE(name, 2, function(x, tensor(in[1])))

const std::array<at::ScalarType, 12> kDtypes = {
    at::kBool, at::kByte,     at::kChar,  at::kShort,  at::kInt,           at::kLong,
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
  // not through the dispatcher: under a tracing mode that would give something that must not be kept
  if (is_new) it->second = at::detail::scalar_tensor_static(value, type, at::kCPU);
  return it->second;
}

// -- elementwise

RF_UNARY(neg) RF_UNARY(abs) RF_UNARY(exp) RF_UNARY(expm1) RF_UNARY(log) RF_UNARY(log1p) RF_UNARY(sqrt) RF_UNARY(rsqrt)
RF_UNARY(square) RF_UNARY(reciprocal) RF_UNARY(sin) RF_UNARY(cos) RF_UNARY(tanh) RF_UNARY(sigmoid) RF_UNARY(log_sigmoid)
RF_UNARY(ceil) RF_UNARY(floor) RF_UNARY(round) RF_UNARY(erf) RF_UNARY(sign) RF_UNARY(relu) RF_UNARY(elu) RF_UNARY(selu)
RF_UNARY(silu) RF_UNARY(gelu) RF_UNARY(logical_not)
RF_FRESH(is_finite, 1, at::isfinite(x))
RF_FRESH(is_infinite, 1, at::isinf(x))
RF_FRESH(is_neg_infinite, 1, at::isneginf(x))
RF_VIEW(identity, x)

RF_BINARY(add, at::add) RF_BINARY(sub, at::sub) RF_BINARY(mul, at::mul) RF_BINARY(truediv, at::div)
RF_BINARY(floordiv, at::floor_divide) RF_BINARY(mod, at::remainder) RF_BINARY(pow, at::pow)
RF_BINARY(maximum, at::maximum) RF_BINARY(minimum, at::minimum) RF_BINARY(logaddexp, at::logaddexp)
RF_BINARY(logical_and, at::logical_and) RF_BINARY(logical_or, at::logical_or)
RF_BINARY(equal, at::eq) RF_BINARY(not_equal, at::ne) RF_BINARY(less, at::lt) RF_BINARY(less_equal, at::le)
RF_BINARY(greater, at::gt) RF_BINARY(greater_equal, at::ge)
RF_FRESH(squared_difference, 2, at::square(at::sub(x, tensor(in[1]))))
RF_FRESH(where, 3, at::where(x, tensor(in[1]), tensor(in[2])))
RF_VIEW(cast, x.to(kDtypes.at(static_cast<size_t>(s[0].integer))))

bool k_fill_outside(const Payload* in, const Static* s, Payload* out) {
  HANDLE_TH_ERRORS
  const at::Tensor& x = tensor(in[0]);
  const at::Tensor& value = scalar_of(s[0].number, x.scalar_type());
  give(out[0], evaluate(x, constant(in, 2), [&] { return at::where(tensor(in[1]), x, value); }));
  return true;
  END_HANDLE_TH_ERRORS_RET(false)
}

bool k_at_least(const Payload* in, const Static* s, Payload* out) {
  HANDLE_TH_ERRORS
  const at::Tensor& x = tensor(in[0]);
  give(out[0], at::maximum(x, scalar_of(s[0].number, x.scalar_type())));
  return true;
  END_HANDLE_TH_ERRORS_RET(false)
}

// -- structure

RF_VIEW(permute, x.permute(s[0].ints))

// Inserting axes of length 1 is possible as a view whatever the strides are.
at::Tensor unsqueeze(const at::Tensor& x, const std::vector<int64_t>& axes) {
  if (axes.size() == 1) return x.unsqueeze(axes[0]);
  c10::SmallVector<int64_t, 8> sizes(x.sizes().begin(), x.sizes().end());
  for (int64_t axis : axes) sizes.insert(sizes.begin() + axis, 1);
  return x.view(sizes);
}
RF_VIEW(unsqueeze, unsqueeze(x, s[0].ints))
RF_VIEW(squeeze, x.squeeze(s[0].ints))

// -- reductions. An empty tuple of axes means that nothing is reduced, where ATen would reduce everything.

RF_KERNEL(sum, !s[0].ints.empty() && constant(in, 1), s[0].ints.empty() ? x : at::sum(x, s[0].ints, false, x.scalar_type()))
RF_KERNEL(mean, !s[0].ints.empty() && constant(in, 1), s[0].ints.empty() ? x : at::mean(x, s[0].ints, false))
RF_KERNEL(any, !s[0].ints.empty() && constant(in, 1), s[0].ints.empty() ? x : at::any(x, s[0].ints, false))
RF_KERNEL(all, !s[0].ints.empty() && constant(in, 1), s[0].ints.empty() ? x : at::all(x, s[0].ints, false))
RF_KERNEL(logsumexp, !s[0].ints.empty() && constant(in, 1), s[0].ints.empty() ? x : at::logsumexp(x, s[0].ints, false))
RF_FRESH(argmax, 1, at::argmax(x, s[0].integer, false).to(at::kInt))
RF_FRESH(argmin, 1, at::argmin(x, s[0].integer, false).to(at::kInt))
RF_FRESH(cumsum, 1, at::cumsum(x, s[0].integer, x.scalar_type()))

// The maximum over no elements is -inf, or the lowest integer; ATen refuses to say.
at::Tensor extremum(const at::Tensor& x, const std::vector<int64_t>& axes, bool largest) {
  if (axes.empty()) return x;
  bool nothing = false;
  for (int64_t axis : axes) nothing = nothing || x.size(axis) == 0;
  if (!nothing) return largest ? at::amax(x, axes, false) : at::amin(x, axes, false);
  c10::SmallVector<int64_t, 8> sizes;
  for (int64_t axis = 0; axis < x.dim(); ++axis)
    if (std::find(axes.begin(), axes.end(), axis) == axes.end()) sizes.push_back(x.size(axis));
  if (at::isFloatingType(x.scalar_type())) {
    double infinity = std::numeric_limits<double>::infinity();
    return at::full(sizes, largest ? -infinity : infinity, x.options());
  }
  int bits = static_cast<int>(8 * x.element_size());
  bool is_signed = at::isSignedType(x.scalar_type());
  int64_t top = is_signed ? static_cast<int64_t>((uint64_t{1} << (bits - 1)) - 1) : 255;
  return at::full(sizes, largest ? (is_signed ? -top - 1 : 0) : top, x.options());
}
RF_KERNEL(max, !s[0].ints.empty() && constant(in, 1), extremum(x, s[0].ints, true))
RF_KERNEL(min, !s[0].ints.empty() && constant(in, 1), extremum(x, s[0].ints, false))

// -- contraction

// (common..., a..., reduce...) x (common..., reduce..., b...) -> (common..., a..., b...)
at::Tensor contract(const at::Tensor& a, const at::Tensor& b, size_t num_common, size_t num_a, size_t num_reduce,
                    size_t num_b) {
  if (num_reduce == 1 && num_b == 1 && num_a == 1 && num_common == 1) return at::bmm(a, b);
  if (num_reduce == 1 && num_b == 1 && num_common == 0 && num_a > 0) {
    if (num_a == 1) return at::mm(a, b);
    c10::SmallVector<int64_t, 8> sizes(a.sizes().begin(), a.sizes().end());
    at::Tensor y = at::mm(a.reshape({c10::multiply_integers(sizes.begin(), sizes.end() - 1), sizes.back()}), b);
    sizes.back() = b.size(1);
    return at::_unsafe_view(y, sizes);
  }
  auto product = [](at::IntArrayRef sizes) { return c10::multiply_integers(sizes); };
  at::IntArrayRef size_a = a.sizes(), size_b = b.sizes();
  at::IntArrayRef common = size_a.slice(0, num_common);
  at::IntArrayRef only_a = size_a.slice(num_common, num_a);
  at::IntArrayRef reduced = size_a.slice(num_common + num_a, num_reduce);
  at::IntArrayRef only_b = size_b.slice(num_common + num_reduce, num_b);
  int64_t batch = product(common), rows = product(only_a), inner = product(reduced), columns = product(only_b);
  at::Tensor y = at::bmm(a.reshape({batch, rows, inner}), b.reshape({batch, inner, columns}));
  c10::SmallVector<int64_t, 8> sizes(common.begin(), common.end());
  sizes.append(only_a.begin(), only_a.end());
  sizes.append(only_b.begin(), only_b.end());
  return at::_unsafe_view(y, sizes);
}
RF_FRESH(contract, 2, contract(x, tensor(in[1]), static_cast<size_t>(s[0].integer), static_cast<size_t>(s[1].integer),
                               static_cast<size_t>(s[2].integer), static_cast<size_t>(s[3].integer)))

// The weight lies as (in, out), so no transposed view of it is made.
at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const Payload& bias) {
  if (!bias) return contract(x, weight, 0, static_cast<size_t>(x.dim()) - 1, 1, 1);
  const at::Tensor& b = tensor(bias);
  if (x.dim() == 2) return at::addmm(b, x, weight);
  if (x.dim() < 2) return at::add(at::matmul(x, weight), b);
  c10::SmallVector<int64_t, 8> sizes(x.sizes().begin(), x.sizes().end());
  int64_t rows = c10::multiply_integers(x.sizes().slice(0, sizes.size() - 1));
  at::Tensor y = at::addmm(b, x.reshape({rows, sizes.back()}), weight);
  sizes.back() = weight.size(1);
  return at::_unsafe_view(y, sizes);
}
RF_FRESH(linear, 3, linear(x, tensor(in[1]), in[2]))

// -- normalizing

RF_FRESH(softmax, 1, at::softmax(x, s[0].integer))
RF_FRESH(log_softmax, 1, at::log_softmax(x, s[0].integer))

// An array in host memory, and nobody who traces, transforms or simulates what is done to it.
bool plain(const at::Tensor& x) {
  constexpr c10::DispatchKeySet special({c10::DispatchKey::Python, c10::DispatchKey::FuncTorchBatched,
                                         c10::DispatchKey::FuncTorchGradWrapper, c10::DispatchKey::Functionalize});
  return x.is_cpu() && !x.key_set().has_any(special) && !c10::impl::dispatch_mode_enabled();
}

// What is masked out, as a contiguous array of the shape of x, for ATen's masked softmax; undefined if all of a row is, which that function does not allow.
// The layers of a model ask for the same one again and again, so the last ones are kept; they are recognized by their mask, which is referred to weakly.
// Call it while holding the lock.
const at::Tensor& padding_of(const at::Tensor& mask, const at::Tensor& x, int64_t axis) {
  struct Entry {
    c10::weak_intrusive_ptr<c10::TensorImpl> mask;
    uint32_t version;
    int64_t axis;
    c10::SmallVector<int64_t, 5> sizes;
    at::Tensor padding;
  };
  static std::vector<Entry> cache;
  static size_t next = 0;
  constexpr size_t kEntries = 16;
  uint32_t version = mask.is_inference() ? 0 : mask._version();
  for (Entry& e : cache)
    if (e.mask._unsafe_get_target() == mask.unsafeGetTensorImpl() && e.mask.use_count() > 0 && e.version == version &&
        e.axis == axis && x.sizes() == at::IntArrayRef(e.sizes))
      return e.padding;
  at::Tensor padding = at::logical_not(mask).expand(x.sizes()).contiguous();
  if (at::any(at::all(padding, axis)).item<bool>()) padding = at::Tensor();
  Entry entry{c10::weak_intrusive_ptr<c10::TensorImpl>(mask.getIntrusivePtr()), version, axis,
              c10::SmallVector<int64_t, 5>(x.sizes().begin(), x.sizes().end()), std::move(padding)};
  if (cache.size() < kEntries) {
    cache.push_back(std::move(entry));
    return cache.back().padding;
  }
  next = (next + 1) % kEntries;
  cache[next] = std::move(entry);
  return cache[next].padding;
}

// ATen's masked softmax does everything in one pass, but only element by element: with more data the vectorized softmax is ahead.
constexpr int64_t kFusedMaskLimit = 2048;

double lowest(at::ScalarType type) {
  if (type == at::kDouble) return std::numeric_limits<double>::lowest();
  return type == at::kHalf ? -65504.0 : -3.3895313892515355e38; // fits float32 and bfloat16
}

bool k_masked_softmax(const Payload* in, const Static* s, Payload* out) {
  HANDLE_TH_ERRORS
  const at::Tensor& x = tensor(in[0]);
  const at::Tensor& mask = tensor(in[1]);
  int64_t axis = s[0].integer;
  if (x.numel() <= kFusedMaskLimit && x.numel() > 0 && x.scalar_type() == at::kFloat && plain(x)) {
    const at::Tensor& padding = padding_of(mask, x, axis);
    if (padding.defined()) {
      give(out[0], evaluate(x, constant(in, 1), [&] { return at::_masked_softmax(x, padding, axis, 2); }));
      return true;
    }
  }
  const at::Tensor& zero = scalar_of(0, x.scalar_type());
  const at::Tensor& low = scalar_of(lowest(x.scalar_type()), x.scalar_type());
  at::Tensor y;
  {
    Unlocked unlocked(x);
    y = at::where(mask, at::softmax(at::where(mask, x, low), axis), zero);
  }
  give(out[0], std::move(y));
  return true;
  END_HANDLE_TH_ERRORS_RET(false)
}

bool k_masked_log_softmax(const Payload* in, const Static* s, Payload* out) {
  HANDLE_TH_ERRORS
  const at::Tensor& x = tensor(in[0]);
  const at::Tensor& mask = tensor(in[1]);
  const at::Tensor& low = scalar_of(lowest(x.scalar_type()), x.scalar_type());
  const at::Tensor& never = scalar_of(-std::numeric_limits<double>::infinity(), x.scalar_type());
  at::Tensor y;
  {
    Unlocked unlocked(x);
    y = at::where(mask, at::log_softmax(at::where(mask, x, low), s[0].integer), never);
  }
  give(out[0], std::move(y));
  return true;
  END_HANDLE_TH_ERRORS_RET(false)
}

at::IntArrayRef last_sizes(const at::Tensor& x, const Static& count) {
  auto n = static_cast<size_t>(count.integer);
  return x.sizes().slice(static_cast<size_t>(x.dim()) - n, n);
}
RF_FRESH(layer_norm, 3, at::layer_norm(x, last_sizes(x, s[0]), optional(in[1]), optional(in[2]), s[1].number, false))

at::Tensor rms_norm(const at::Tensor& x, const Payload* in, const Static* s) {
  at::Tensor y = at::rms_norm(x, last_sizes(x, s[0]), optional(in[1]), s[1].number);
  return in[2] ? at::add(y, tensor(in[2])) : y;
}
RF_FRESH(rms_norm, 3, rms_norm(x, in, s))

// -- indexing

// (batch..., axis, rest...) indexed by (batch..., index...) -> (batch..., index..., rest...)
at::Tensor gather(const at::Tensor& source, const at::Tensor& indices, int64_t num_batch) {
  if (num_batch == 0 && source.dim() == 2) return at::embedding(source, indices);
  c10::List<std::optional<at::Tensor>> index;
  int64_t extra = indices.dim() - num_batch;
  for (int64_t axis = 0; axis < num_batch; ++axis) {
    c10::SmallVector<int64_t, 8> sizes(static_cast<size_t>(num_batch + extra), 1);
    sizes[static_cast<size_t>(axis)] = source.size(axis);
    index.push_back(at::arange(source.size(axis), source.options().dtype(at::kLong)).view(sizes));
  }
  index.push_back(indices.to(at::kLong));
  return at::index(source, index);
}
RF_FRESH(gather, 2, gather(x, tensor(in[1]), s[0].integer))

// -- the table

struct Named {
  std::string_view name;
  Kernel kernel;
};
#define RF_ENTRY(name) {#name, k_##name},
constexpr Named kKernels[] = {
    RF_ENTRY(neg) RF_ENTRY(abs) RF_ENTRY(exp) RF_ENTRY(expm1) RF_ENTRY(log) RF_ENTRY(log1p) RF_ENTRY(sqrt) RF_ENTRY(rsqrt)
    RF_ENTRY(square) RF_ENTRY(reciprocal) RF_ENTRY(sin) RF_ENTRY(cos) RF_ENTRY(tanh) RF_ENTRY(sigmoid)
    RF_ENTRY(log_sigmoid) RF_ENTRY(ceil) RF_ENTRY(floor) RF_ENTRY(round) RF_ENTRY(erf) RF_ENTRY(sign) RF_ENTRY(relu)
    RF_ENTRY(elu) RF_ENTRY(selu) RF_ENTRY(silu) RF_ENTRY(gelu) RF_ENTRY(logical_not) RF_ENTRY(is_finite)
    RF_ENTRY(is_infinite) RF_ENTRY(is_neg_infinite) RF_ENTRY(identity) RF_ENTRY(add) RF_ENTRY(sub) RF_ENTRY(mul)
    RF_ENTRY(truediv) RF_ENTRY(floordiv) RF_ENTRY(mod) RF_ENTRY(pow) RF_ENTRY(maximum) RF_ENTRY(minimum)
    RF_ENTRY(logaddexp) RF_ENTRY(logical_and) RF_ENTRY(logical_or) RF_ENTRY(equal) RF_ENTRY(not_equal) RF_ENTRY(less)
    RF_ENTRY(less_equal) RF_ENTRY(greater) RF_ENTRY(greater_equal) RF_ENTRY(squared_difference) RF_ENTRY(where)
    RF_ENTRY(cast) RF_ENTRY(fill_outside) RF_ENTRY(at_least) RF_ENTRY(permute) RF_ENTRY(unsqueeze) RF_ENTRY(squeeze)
    RF_ENTRY(sum) RF_ENTRY(mean) RF_ENTRY(any) RF_ENTRY(all) RF_ENTRY(logsumexp) RF_ENTRY(argmax) RF_ENTRY(argmin)
    RF_ENTRY(cumsum) RF_ENTRY(max) RF_ENTRY(min) RF_ENTRY(contract) RF_ENTRY(linear) RF_ENTRY(softmax)
    RF_ENTRY(log_softmax) RF_ENTRY(masked_softmax) RF_ENTRY(masked_log_softmax) RF_ENTRY(layer_norm) RF_ENTRY(rms_norm)
    RF_ENTRY(gather)
};

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
bool on_host(Payload p) { return impl(p)->is_cpu(); }

const rf::NativeBackend kBackend = {rf::kApiVersion, retain, release, wrap, unwrap, dtype, on_host, find};

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
    PyModuleDef_HEAD_INIT, "rf_torch_native", "Kernels of the torch backend for the native core.", -1, methods,
    nullptr,               nullptr,           nullptr,                                             nullptr,
};

} // namespace

PyMODINIT_FUNC PyInit_rf_torch_native() { return PyModule_Create(&module_def); }
