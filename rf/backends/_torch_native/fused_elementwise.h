// Elementwise kernels in one loop, for the operands that a step has most: two arrays that lie alike, an array and a
// number, an array and what broadcasts over its leading axes.
#pragma once
#include "fused_math.h"
#include "node.h"

#include <ATen/ops/glu.h>

namespace {

// With more data, what a loop saves no longer counts, and ATen may use several threads.
constexpr int64_t kSmallArray = 16384;

// Whether all entries of x are side by side in memory, in whatever order.
bool gapless(const at::Tensor& x) { return x.is_contiguous() || x.is_non_overlapping_and_dense(); }

at::Tensor empty_laid_out_as(const at::Tensor& x) {
  if (x.is_contiguous()) return empty(x.sizes(), x.scalar_type());
  return empty_strided(x.sizes(), x.strides(), x.scalar_type());
}

// x laid out in memory as `like`, of the same sizes.
at::Tensor laid_out_as(const at::Tensor& x, const at::Tensor& like) {
  if (x.strides() == like.strides() || (x.is_contiguous() && like.is_contiguous())) return x;
  at::AutoDispatchBelowADInplaceOrView below;
  return empty_laid_out_as(like).copy_(x);
}

// -- one operand

template <class T, class F> at::Tensor map(const at::Tensor& x, F&& f) {
  at::Tensor y = empty_laid_out_as(x);
  const T* from = x.const_data_ptr<T>();
  T* to = y.mutable_data_ptr<T>();
  int64_t n = x.numel();
  RF_SIMD
  for (int64_t i = 0; i < n; ++i) to[i] = f(from[i]);
  return y;
}

struct Relu {
  static constexpr const char* kName = "rf::ReluBackward";
  static at::Tensor by_aten(const at::Tensor& x) { return at::relu(x); }
  template <class T> static T value(T x) { return x < 0 ? T(0) : x; }
  template <class T> static T slope(T x) { return x <= 0 ? T(0) : T(1); }
};
struct Silu {
  static constexpr const char* kName = "rf::SiluBackward";
  static at::Tensor by_aten(const at::Tensor& x) { return at::silu(x); }
  template <class T> static T value(T x) { return x * logistic(x); }
  template <class T> static T slope(T x) {
    T s = logistic(x);
    return s * (1 + x * (1 - s));
  }
};
struct Sigmoid {
  static constexpr const char* kName = "rf::SigmoidBackward";
  static at::Tensor by_aten(const at::Tensor& x) { return at::sigmoid(x); }
  template <class T> static T value(T x) { return logistic(x); }
  template <class T> static T slope(T x) {
    T s = logistic(x);
    return s * (1 - s);
  }
};
struct Gelu {
  static constexpr const char* kName = "rf::GeluBackward";
  static at::Tensor by_aten(const at::Tensor& x) { return at::gelu(x); }
  template <class T> static T value(T x) { return x * normal_cdf(x); }
  template <class T> static T slope(T x) {
    return normal_cdf(x) + x * exponential(-x * x / 2) * static_cast<T>(0.39894228040143267794);
  }
};
struct Square {
  static constexpr const char* kName = "rf::SquareBackward";
  static at::Tensor by_aten(const at::Tensor& x) { return at::square(x); }
  template <class T> static T value(T x) { return x * x; }
  template <class T> static T slope(T x) { return 2 * x; }
};
struct Neg {
  static constexpr const char* kName = "rf::NegBackward";
  static at::Tensor by_aten(const at::Tensor& x) { return at::neg(x); }
  template <class T> static T value(T x) { return -x; }
  template <class T> static T slope(T) { return -1; }
};

template <class Function> struct UnaryNode : Fused {
  std::string name() const override { return Function::kName; }

  ag::variable_list backward(const at::Tensor* in, const ag::variable_list& grads) override {
    at::Tensor x = in[0], grad = laid_out_as(grads[0], x), dx = empty_laid_out_as(x);
    with_type(x, [&](auto zero) {
      using T = decltype(zero);
      const T *g = grad.const_data_ptr<T>(), *from = x.const_data_ptr<T>();
      T* to = dx.mutable_data_ptr<T>();
      int64_t n = x.numel();
      RF_SIMD
      for (int64_t i = 0; i < n; ++i) to[i] = g[i] * Function::slope(from[i]);
    });
    return {dx};
  }

  ag::variable_list by_aten(const at::Tensor* in) override { return {Function::by_aten(in[0])}; }
};

template <class Function> at::Tensor fused_unary(const Payload* in, Record record) {
  const at::Tensor& x = tensor(in[0]);
  at::Tensor y = with_type(x, [&](auto zero) {
    using T = decltype(zero);
    return map<T>(x, [](T v) { return Function::value(v); });
  });
  if (record == Record::kYes) {
    auto node = make_node<UnaryNode<Function>>();
    node->keep_operands(in, 1);
    set_history(y, node);
  }
  return y;
}

bool small(const at::Tensor& x) { return x.numel() <= kSmallArray && gapless(x); }

RF_FUSED(relu, 1, small(x), fused_unary<Relu>(in, record), at::relu(x))
RF_FUSED(silu, 1, small(x), fused_unary<Silu>(in, record), at::silu(x))
RF_FUSED(gelu, 1, small(x), fused_unary<Gelu>(in, record), at::gelu(x))
RF_FUSED(sigmoid, 1, small(x), fused_unary<Sigmoid>(in, record), at::sigmoid(x))
RF_FUSED(square, 1, small(x), fused_unary<Square>(in, record), at::square(x))
RF_FUSED(neg, 1, small(x), fused_unary<Neg>(in, record), at::neg(x))

// -- a factor

struct ScaleNode : ag::Node {
  double factor = 1;
  std::string name() const override { return "rf::ScaleBackward"; }
  ag::variable_list apply(ag::variable_list&& grads) override {
    if (!grads[0].defined()) return {at::Tensor()};
    return {at::mul(grads[0], factor)};
  }
};

at::Tensor fused_scale(const Payload* in, double factor, Record record) {
  const at::Tensor& x = tensor(in[0]);
  at::Tensor y = with_type(x, [&](auto zero) {
    using T = decltype(zero);
    T f = static_cast<T>(factor);
    return map<T>(x, [f](T v) { return v * f; });
  });
  if (record == Record::kYes) {
    auto node = make_node<ScaleNode>();
    node->factor = factor;
    node->add_next_edge(ag::impl::gradient_edge(x));
    set_history(y, node);
  }
  return y;
}

// -- two operands

// How two operands meet: x alone gives the sizes of the result; an entry of y is used for every `period`-th entry of x.
struct Meeting {
  bool possible = false;
  bool swapped = false; // it is y that gives the sizes
  int64_t period = 0;   // entries of the other one
};

// Whether `small` (as it lies in memory) repeats over the leading axes of `large`.
bool repeats(const at::Tensor& large, const at::Tensor& small) {
  if (small.numel() == 1) return small.dim() <= large.dim() && gapless(large);
  if (small.dim() > large.dim() || !large.is_contiguous() || !small.is_contiguous()) return false;
  int64_t offset = large.dim() - small.dim();
  bool leading = true;
  for (int64_t a = 0; a < small.dim(); ++a) {
    if (leading && small.size(a) == 1) continue;
    leading = false;
    if (small.size(a) != large.size(a + offset)) return false;
  }
  return true;
}

Meeting meeting(const Payload* in) {
  const at::Tensor &x = tensor(in[0]), &y = tensor(in[1]);
  if (x.numel() > kSmallArray || y.numel() > kSmallArray || x.numel() == 0 || y.numel() == 0) return {};
  if (x.sizes() == y.sizes() && (x.is_contiguous() ? y.is_contiguous() : x.strides() == y.strides() && gapless(x)))
    return {true, false, x.numel()};
  if (x.numel() >= y.numel() && repeats(x, y)) return {true, false, y.numel()};
  if (y.numel() > x.numel() && repeats(y, x)) return {true, true, x.numel()};
  return {};
}

// f(entry of x, entry of y) for all entries of the larger one.
template <class T, class F> void each_pair(const T* x, const T* y, T* to, int64_t n, const Meeting& m, F&& f) {
  if (m.period == n) {
    RF_SIMD
    for (int64_t i = 0; i < n; ++i) to[i] = f(x[i], y[i]);
  } else if (m.period == 1) {
    T one = m.swapped ? x[0] : y[0];
    if (m.swapped) {
      RF_SIMD
      for (int64_t i = 0; i < n; ++i) to[i] = f(one, y[i]);
    } else {
      RF_SIMD
      for (int64_t i = 0; i < n; ++i) to[i] = f(x[i], one);
    }
  } else {
    for (int64_t i = 0; i < n; i += m.period) {
      const T *a = m.swapped ? x : x + i, *b = m.swapped ? y + i : y;
      T* out = to + i;
      RF_SIMD
      for (int64_t j = 0; j < m.period; ++j) out[j] = f(a[j], b[j]);
    }
  }
}

// The sum of x over what an operand was repeated for.
at::Tensor summed(const at::Tensor& x, const at::Tensor& like) {
  int64_t period = like.numel(), n = x.numel();
  at::Tensor sums = empty(like.sizes(), x.scalar_type());
  at::Tensor from = period == 1 ? x : dense(x);
  with_type(x, [&](auto zero) {
    using T = decltype(zero);
    const T* p = from.const_data_ptr<T>();
    T* to = sums.mutable_data_ptr<T>();
    if (period == 1) {
      T sum = 0;
      RF_SIMD_SUM(sum)
      for (int64_t i = 0; i < n; ++i) sum += p[i];
      *to = sum;
      return;
    }
    std::fill(to, to + period, T(0));
    for (int64_t i = 0; i < n; i += period) {
      RF_SIMD
      for (int64_t j = 0; j < period; ++j) to[j] += p[i + j];
    }
  });
  return sums;
}

// Of a sum or a difference: gradients need no operands, only their sizes.
struct SumNode : ag::Node {
  int sign = 1; // of the second operand
  std::array<c10::SmallVector<int64_t, 5>, 2> sizes;
  std::string name() const override { return sign > 0 ? "rf::AddBackward" : "rf::SubBackward"; }
  ag::variable_list apply(ag::variable_list&& grads) override {
    ag::variable_list results(2);
    if (!grads[0].defined()) return results;
    for (size_t i = 0; i < 2; ++i) {
      if (!task_should_compute_output(i)) continue;
      at::Tensor g = grads[0];
      if (g.sizes() != at::IntArrayRef(sizes[i])) g = at::sum_to(std::move(g), at::IntArrayRef(sizes[i]));
      results[i] = i == 1 && sign < 0 ? at::neg(g) : std::move(g);
    }
    return results;
  }
};

struct ProductNode : Fused {
  Meeting met;
  std::string name() const override { return "rf::MulBackward"; }

  ag::variable_list backward(const at::Tensor* in, const ag::variable_list& grads) override {
    ag::variable_list results(2);
    const at::Tensor& large = in[met.swapped ? 1 : 0];
    at::Tensor grad = laid_out_as(grads[0], large);
    int64_t n = large.numel();
    for (int i : {0, 1}) {
      if (!needs(i)) continue;
      const at::Tensor& other = in[1 - i];
      at::Tensor d = empty_laid_out_as(large);
      with_type(large, [&](auto zero) {
        using T = decltype(zero);
        each_pair(grad.const_data_ptr<T>(), other.const_data_ptr<T>(), d.mutable_data_ptr<T>(), n,
                  Meeting{true, false, other.numel()}, [](T g, T v) { return g * v; });
      });
      if (in[i].numel() != n) d = summed(d, in[i]);
      results[static_cast<size_t>(i)] = d.sizes() == in[i].sizes() ? d : d.view(in[i].sizes());
    }
    return results;
  }

  ag::variable_list by_aten(const at::Tensor* in) override { return {at::mul(in[0], in[1])}; }
};

template <class F> at::Tensor pairwise(const Payload* in, const Meeting& met, F&& f) {
  const at::Tensor &x = tensor(in[0]), &y = tensor(in[1]), &large = met.swapped ? y : x;
  at::Tensor result = empty_laid_out_as(large);
  with_type(large, [&](auto zero) {
    using T = decltype(zero);
    each_pair(x.const_data_ptr<T>(), y.const_data_ptr<T>(), result.mutable_data_ptr<T>(), large.numel(), met, f);
  });
  return result;
}

at::Tensor fused_sum(const Payload* in, const Meeting& met, int sign, Record record) {
  at::Tensor y = sign > 0 ? pairwise(in, met, [](auto a, auto b) { return a + b; })
                          : pairwise(in, met, [](auto a, auto b) { return a - b; });
  if (record == Record::kYes) {
    auto node = make_node<SumNode>();
    node->sign = sign;
    for (size_t i = 0; i < 2; ++i) {
      const at::Tensor& t = tensor(in[i]);
      node->sizes[i].assign(t.sizes().begin(), t.sizes().end());
      node->add_next_edge(ag::impl::gradient_edge(t));
    }
    set_history(y, node);
  }
  return y;
}

at::Tensor fused_product(const Payload* in, const Meeting& met, Record record) {
  at::Tensor y = pairwise(in, met, [](auto a, auto b) { return a * b; });
  if (record == Record::kYes) {
    auto node = make_node<ProductNode>();
    node->met = met;
    node->keep_operands(in, 2);
    set_history(y, node);
  }
  return y;
}

// Like RF_FUSED, for two operands that meet.
#define RF_FUSED_PAIR(name, fused, expression)                                                                         \
  bool k_##name(const Payload* in, int, const Static*, Payload* out) {                                                 \
    try {                                                                                                              \
      const at::Tensor &x = tensor(in[0]), &y = tensor(in[1]);                                                         \
      Record record = record_of(in, 2);                                                                                \
      Meeting met = record != Record::kForwardMode && fusable(in, 2) ? meeting(in) : Meeting();                        \
      if (met.possible)                                                                                                \
        give(out[0], fused);                                                                                           \
      else                                                                                                             \
        give(out[0], evaluate(x, record == Record::kNo, [&]() -> at::Tensor { return expression; }));                  \
      return true;                                                                                                     \
    } catch (...) {                                                                                                    \
      torch::translate_exception_to_python(std::current_exception());                                                  \
      return false;                                                                                                    \
    }                                                                                                                  \
  }

RF_FUSED_PAIR(add, fused_sum(in, met, 1, record), at::add(x, y))
RF_FUSED_PAIR(sub, fused_sum(in, met, -1, record), at::sub(x, y))
RF_FUSED_PAIR(mul, fused_product(in, met, record), at::mul(x, y))

// -- gating: the first half of an axis times the sigmoid of the second

struct GluNode : Fused {
  std::string name() const override { return "rf::GluBackward"; }

  ag::variable_list backward(const at::Tensor* in, const ag::variable_list& grads) override {
    at::Tensor x = dense(in[0]), grad = dense(grads[0]), dx = empty(x.sizes(), x.scalar_type());
    int64_t n = grad.size(-1), rows = grad.numel() / n;
    with_type(x, [&](auto zero) {
      using T = decltype(zero);
      const T *g = grad.const_data_ptr<T>(), *a = x.const_data_ptr<T>();
      T* d = dx.mutable_data_ptr<T>();
      for (int64_t i = 0; i < rows; ++i, g += n, a += 2 * n, d += 2 * n) {
        RF_SIMD
        for (int64_t j = 0; j < n; ++j) {
          T s = logistic(a[n + j]);
          d[j] = g[j] * s;
          d[n + j] = g[j] * a[j] * s * (1 - s);
        }
      }
    });
    return {dx};
  }

  ag::variable_list by_aten(const at::Tensor* in) override { return {at::glu(in[0], -1)}; }
};

at::Tensor fused_glu(const Payload* in, Record record) {
  at::Tensor x = dense(tensor(in[0]));
  c10::SmallVector<int64_t, 8> sizes(x.sizes().begin(), x.sizes().end());
  sizes.back() /= 2;
  at::Tensor y = empty(sizes, x.scalar_type());
  int64_t n = sizes.back(), rows = y.numel() / n;
  with_type(x, [&](auto zero) {
    using T = decltype(zero);
    const T* from = x.const_data_ptr<T>();
    T* to = y.mutable_data_ptr<T>();
    for (int64_t i = 0; i < rows; ++i, from += 2 * n, to += n) {
      RF_SIMD
      for (int64_t j = 0; j < n; ++j) to[j] = from[j] * logistic(from[n + j]);
    }
  });
  if (record == Record::kYes) {
    auto node = make_node<GluNode>();
    node->keep_operands(in, 1);
    set_history(y, node);
  }
  return y;
}

RF_FUSED(glu, 1, s[0].integer == x.dim() - 1 && x.numel() > 0, fused_glu(in, record), at::glu(x, s[0].integer))

// -- a value where a mask does not hold

// x where the mask holds, else the value; both contiguous, and the mask is 1 behind the axes that it covers.
at::Tensor filled(const at::Tensor& x, const at::Tensor& mask, double value) {
  at::Tensor y = empty(x.sizes(), x.scalar_type());
  int64_t rows = mask.numel(), n = x.numel() / rows;
  with_type(x, [&](auto zero) {
    using T = decltype(zero);
    const T* from = x.const_data_ptr<T>();
    const bool* flags = mask.const_data_ptr<bool>();
    T *to = y.mutable_data_ptr<T>(), other = static_cast<T>(value);
    if (n == 1) {
      for (int64_t i = 0; i < rows; ++i) to[i] = flags[i] ? from[i] : other;
      return;
    }
    for (int64_t i = 0; i < rows; ++i) {
      if (flags[i])
        std::memcpy(to + i * n, from + i * n, static_cast<size_t>(n) * sizeof(T));
      else
        std::fill(to + i * n, to + (i + 1) * n, other);
    }
  });
  return y;
}

struct FillNode : ag::Node { // needs no operand but the mask, here with the axes of x
  ag::SavedVariable mask;
  std::string name() const override { return "rf::FillBackward"; }

  ag::variable_list apply(ag::variable_list&& grads) override {
    std::lock_guard<std::mutex> lock(mutex_);
    at::Tensor flags = mask.unpack();
    if (!grads[0].defined()) return {at::Tensor()};
    if (at::GradMode::is_enabled() || !direct(grads[0])) return {at::where(flags, grads[0], 0.0)};
    return {filled(dense(grads[0]), flags, 0)};
  }

  void release_variables() override {
    std::lock_guard<std::mutex> lock(mutex_);
    mask.reset_data();
  }
};

// Axes of x, counted from the first, that the mask covers without a gap and without broadcasting; behind them it is 1.
// -1: none.
int64_t covered_axes(const at::Tensor& x, const at::Tensor& mask) {
  if (mask.dim() != x.dim() || !x.is_contiguous() || !mask.is_contiguous() || !direct(mask)) return -1;
  int64_t n = 0;
  while (n < x.dim() && mask.size(n) == x.size(n)) ++n;
  for (int64_t a = n; a < x.dim(); ++a)
    if (mask.size(a) != 1) return -1;
  return n;
}

at::Tensor fused_fill(const Payload* in, double value, Record record) {
  const at::Tensor &x = tensor(in[0]), &mask = tensor(in[1]);
  at::Tensor y = filled(x, mask, value);
  if (record == Record::kYes) {
    auto node = make_node<FillNode>();
    node->mask = ag::SavedVariable(mask, false);
    node->add_next_edge(ag::impl::gradient_edge(x));
    set_history(y, node);
  }
  return y;
}

bool k_fill_outside(const Payload* in, int, const Static* s, Payload* out) {
  HANDLE_TH_ERRORS
  const at::Tensor &x = tensor(in[0]), &mask = tensor(in[1]);
  Record record = record_of(in, 1);
  if (record != Record::kForwardMode && x.numel() > 0 && fusable(in, 1) && covered_axes(x, mask) >= 0) {
    Unlocked unlocked(x);
    give(out[0], fused_fill(in, s[0].number, record));
    return true;
  }
  const at::Tensor& value = scalar_of(s[0].number, x.scalar_type());
  give(out[0], evaluate(x, record == Record::kNo, [&] { return at::where(mask, x, value); }));
  return true;
  END_HANDLE_TH_ERRORS_RET(false)
}

bool k_scale(const Payload* in, int, const Static* s, Payload* out) {
  HANDLE_TH_ERRORS
  const at::Tensor& x = tensor(in[0]);
  Record record = record_of(in, 1);
  if (record != Record::kForwardMode && fusable(in, 1) && small(x)) {
    give(out[0], fused_scale(in, s[0].number, record));
    return true;
  }
  const at::Tensor& factor = scalar_of(s[0].number, x.scalar_type());
  give(out[0], evaluate(x, record == Record::kNo, [&] { return at::mul(x, factor); }));
  return true;
  END_HANDLE_TH_ERRORS_RET(false)
}

} // namespace
