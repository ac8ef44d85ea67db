// Elementwise kernels and reductions.
#pragma once
#include "fused_elementwise.h"
#include "fused_reduce.h"
#include "support.h"

namespace {

// -- elementwise
RF_UNARY(abs)
RF_UNARY(exp)
RF_UNARY(expm1)
RF_UNARY(log)
RF_UNARY(log1p)
RF_UNARY(sqrt)
RF_UNARY(rsqrt)
RF_UNARY(reciprocal)
RF_UNARY(sin)
RF_UNARY(cos)
RF_UNARY(tanh)
RF_UNARY(log_sigmoid)
RF_UNARY(ceil)
RF_UNARY(floor)
RF_UNARY(round)
RF_UNARY(erf)
RF_UNARY(sign)
RF_UNARY(elu)
RF_UNARY(selu)
RF_UNARY(logical_not)
RF_FRESH(is_finite, 1, at::isfinite(x))
RF_FRESH(is_infinite, 1, at::isinf(x))
RF_FRESH(is_neg_infinite, 1, at::isneginf(x))
RF_VIEW(identity, x)
RF_BINARY(floordiv, at::floor_divide)
RF_BINARY(mod, at::remainder)
RF_BINARY(pow, at::pow)
RF_BINARY(maximum, at::maximum)
RF_BINARY(minimum, at::minimum)
RF_BINARY(logaddexp, at::logaddexp)
RF_BINARY(logical_and, at::logical_and)
RF_BINARY(logical_or, at::logical_or)
RF_BINARY(equal, at::eq)
RF_BINARY(not_equal, at::ne)
RF_BINARY(less, at::lt)
RF_BINARY(less_equal, at::le)
RF_BINARY(greater, at::gt)
RF_BINARY(greater_equal, at::ge)
RF_FRESH(where, 3, at::where(x, tensor(in[1]), tensor(in[2])))
RF_VIEW(cast, x.to(kDtypes.at(static_cast<size_t>(s[0].integer))))

bool k_at_least(const Payload* in, int, const Static* s, Payload* out) {
  HANDLE_TH_ERRORS
  const at::Tensor& x = tensor(in[0]);
  give(out[0], at::maximum(x, scalar_of(s[0].number, x.scalar_type())));
  return true;
  END_HANDLE_TH_ERRORS_RET(false)
}

// -- reductions. An empty tuple of axes means that nothing is reduced, where ATen would reduce everything.
RF_KERNEL(any, !s[0].ints.empty() && constant(in, 1), s[0].ints.empty() ? x : at::any(x, s[0].ints, false))
RF_KERNEL(all, !s[0].ints.empty() && constant(in, 1), s[0].ints.empty() ? x : at::all(x, s[0].ints, false))
RF_KERNEL(logsumexp, !s[0].ints.empty() && constant(in, 1), s[0].ints.empty() ? x : at::logsumexp(x, s[0].ints, false))

// Index of the first largest or smallest value; 0 where there is none.
at::Tensor index_of_extremum(const at::Tensor& x, int64_t axis, bool largest) {
  if (x.size(axis) > 0) return (largest ? at::argmax(x, axis, false) : at::argmin(x, axis, false)).to(at::kInt);
  c10::SmallVector<int64_t, 8> sizes(x.sizes().begin(), x.sizes().end());
  sizes.erase(sizes.begin() + axis);
  return at::zeros(sizes, x.options().dtype(at::kInt));
}
RF_FRESH(argmax, 1, index_of_extremum(x, s[0].integer, true))
RF_FRESH(argmin, 1, index_of_extremum(x, s[0].integer, false))
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

} // namespace
