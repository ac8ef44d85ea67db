// Fused kernels of frames: linear, layer norm, dropout.
#pragma once
#include "node.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/addmm_cpu_dispatch.h>
#include <ATen/ops/bernoulli_cpu_dispatch.h>
#include <ATen/ops/lerp.h>
#include <ATen/ops/mm_cpu_dispatch.h>

namespace {

// -- linear: (..., in) x (in, out) + (out) -> (..., out)

at::Tensor linear_by_aten(const at::Tensor& x, const at::Tensor& weight, const at::Tensor* bias) {
  if (x.dim() < 2) {
    at::Tensor y = at::matmul(x, weight);
    return bias ? at::add(y, *bias) : y;
  }
  auto product = [&](const at::Tensor& rows) { return bias ? at::addmm(*bias, rows, weight) : at::mm(rows, weight); };
  if (x.dim() == 2) return product(x);
  c10::SmallVector<int64_t, 8> sizes(x.sizes().begin(), x.sizes().end());
  int64_t rows = c10::multiply_integers(x.sizes().slice(0, sizes.size() - 1));
  at::Tensor y = product(x.reshape({rows, sizes.back()}));
  sizes.back() = weight.size(1);
  return at::_unsafe_view(y, sizes);
}

// Sums over the rows of a matrix. In double, as there may be many rows.
template <class T> void add_rows(const T* x, int64_t rows, int64_t columns, T* sums) {
  std::vector<double> exact(static_cast<size_t>(columns), 0);
  double* sum = exact.data();
  for (int64_t i = 0; i < rows; ++i) {
    const T* row = x + i * columns;
    RF_SIMD
    for (int64_t j = 0; j < columns; ++j) sum[j] += row[j];
  }
  for (int64_t j = 0; j < columns; ++j) sums[j] = static_cast<T>(sum[j]);
}

struct LinearNode : Fused {
  std::string name() const override { return "rf::LinearBackward"; }

  ag::variable_list backward(const at::Tensor* in, const ag::variable_list& grads) override {
    int64_t n = in[1].size(0), m = in[1].size(1), rows = in[0].numel() / n;
    at::Tensor grad = dense(grads[0]);
    at::Tensor g = matrix(grad, rows, m);
    ag::variable_list results(static_cast<size_t>(num_operands));
    if (needs(0)) {
      results[0] = at::cpu::mm(g, transposed(matrix(in[1], n, m, in[1].stride(0), in[1].stride(1))));
      results[0].unsafeGetTensorImpl()->set_sizes_contiguous(in[0].sizes());
    }
    if (needs(1)) results[1] = at::cpu::mm(transposed(matrix(dense(in[0]), rows, n)), g);
    if (num_operands > 2 && needs(2)) {
      results[2] = empty({m}, g.scalar_type());
      with_type(g, [&](auto zero) {
        using T = decltype(zero);
        add_rows(g.const_data_ptr<T>(), rows, m, results[2].mutable_data_ptr<T>());
      });
    }
    return results;
  }

  ag::variable_list by_aten(const at::Tensor* in) override {
    return {linear_by_aten(in[0], in[1], num_operands > 2 ? &in[2] : nullptr)};
  }
};

bool can_fuse_linear(const Payload* in) {
  const at::Tensor& x = tensor(in[0]);
  const at::Tensor& w = tensor(in[1]);
  return x.numel() > 0 && x.dim() >= 1 && w.dim() == 2 && w.numel() > 0;
}

at::Tensor fused_linear(const Payload* in, Record record) {
  const at::Tensor& x = tensor(in[0]);
  const at::Tensor& w = tensor(in[1]);
  int64_t n = w.size(0), m = w.size(1), rows = x.numel() / n;
  at::Tensor input = matrix(dense(x), rows, n), weight = matrix(w, n, m, w.stride(0), w.stride(1)), y;
  if (in[2]) {
    y = empty({rows, m}, x.scalar_type());
    at::Tensor bias = dense(tensor(in[2]));
    with_type(x, [&](auto zero) {
      using T = decltype(zero);
      const T* from = bias.const_data_ptr<T>();
      T* to = y.mutable_data_ptr<T>();
      for (int64_t i = 0; i < rows; ++i) std::memcpy(to + i * m, from, static_cast<size_t>(m) * sizeof(T));
    });
    at::cpu::addmm_(y, input, weight);
  } else {
    y = at::cpu::mm(input, weight);
  }
  c10::SmallVector<int64_t, 8> sizes(x.sizes().begin(), x.sizes().end());
  sizes.back() = m;
  y.unsafeGetTensorImpl()->set_sizes_contiguous(sizes);
  if (record == Record::kYes) {
    auto node = make_node<LinearNode>();
    node->keep_operands(in, in[2] ? 3 : 2);
    set_history(y, node);
  }
  return y;
}

RF_FUSED(linear, 3, can_fuse_linear(in), fused_linear(in, record),
         linear_by_aten(x, tensor(in[1]), in[2] ? &tensor(in[2]) : nullptr))

// -- layer norm over the last `n` entries

at::Tensor layer_norm_by_aten(const at::Tensor& x, at::IntArrayRef sizes, const std::optional<at::Tensor>& scale,
                              const std::optional<at::Tensor>& bias, double eps) {
  // What at::layer_norm does in the end; before that, autocast would see to the dtype.
  if (x.scalar_type() == at::kFloat) return std::get<0>(at::native_layer_norm(x, sizes, scale, bias, eps));
  return at::layer_norm(x, sizes, scale, bias, eps, false);
}

at::IntArrayRef last_sizes(const at::Tensor& x, int64_t count) {
  return x.sizes().slice(static_cast<size_t>(x.dim() - count), static_cast<size_t>(count));
}

struct LayerNormNode : Fused { // kept: mean and 1 / deviation of each row
  int64_t num_axes = 0;
  double eps = 0;
  std::string name() const override { return "rf::LayerNormBackward"; }

  ag::variable_list backward(const at::Tensor* in, const ag::variable_list& grads) override {
    ag::variable_list results(3);
    int64_t n = c10::multiply_integers(last_sizes(in[0], num_axes)), rows = in[0].numel() / n;
    at::Tensor x = dense(in[0]), grad = dense(grads[0]), scale = in[1].defined() ? dense(in[1]) : at::Tensor();
    at::ScalarType type = in[0].scalar_type();
    if (needs(0)) results[0] = empty(in[0].sizes(), type);
    if (in[1].defined() && needs(1)) results[1] = empty(in[1].sizes(), type);
    if (in[2].defined() && needs(2)) results[2] = empty(in[2].sizes(), type);
    with_type(in[0], [&](auto zero) {
      using T = decltype(zero);
      const T* g = grad.const_data_ptr<T>();
      const T* from = x.const_data_ptr<T>();
      const T *means = kept[0].const_data_ptr<T>(), *inverse = means + rows;
      std::vector<T> normalized(static_cast<size_t>(n));
      T* xhat = normalized.data();
      const T* gamma = scale.defined() ? scale.const_data_ptr<T>() : nullptr;
      T* dx = results[0].defined() ? results[0].mutable_data_ptr<T>() : nullptr;
      T* dgamma = results[1].defined() ? results[1].mutable_data_ptr<T>() : nullptr;
      T* dbeta = results[2].defined() ? results[2].mutable_data_ptr<T>() : nullptr;
      std::vector<double> sums(static_cast<size_t>(2 * n), 0);
      double *sum_gamma = sums.data(), *sum_beta = sum_gamma + n;
      for (int64_t i = 0; i < rows; ++i, g += n, from += n) {
        T mean = means[i], factor = inverse[i];
        RF_SIMD
        for (int64_t j = 0; j < n; ++j) xhat[j] = (from[j] - mean) * factor;
        if (dgamma) {
          RF_SIMD
          for (int64_t j = 0; j < n; ++j) sum_gamma[j] += g[j] * xhat[j];
        }
        if (dbeta) {
          RF_SIMD
          for (int64_t j = 0; j < n; ++j) sum_beta[j] += g[j];
        }
        if (!dx) continue;
        T sum = 0, dot = 0;
        if (gamma) {
          RF_SIMD_SUM(sum, dot)
          for (int64_t j = 0; j < n; ++j) {
            T h = g[j] * gamma[j];
            sum += h;
            dot += h * xhat[j];
          }
        } else {
          RF_SIMD_SUM(sum, dot)
          for (int64_t j = 0; j < n; ++j) {
            sum += g[j];
            dot += g[j] * xhat[j];
          }
        }
        sum /= static_cast<T>(n);
        dot /= static_cast<T>(n);
        RF_SIMD
        for (int64_t j = 0; j < n; ++j) dx[j] = ((gamma ? g[j] * gamma[j] : g[j]) - sum - xhat[j] * dot) * factor;
        dx += n;
      }
      if (dgamma) std::transform(sum_gamma, sum_gamma + n, dgamma, [](double v) { return static_cast<T>(v); });
      if (dbeta) std::transform(sum_beta, sum_beta + n, dbeta, [](double v) { return static_cast<T>(v); });
    });
    return results;
  }

  ag::variable_list by_aten(const at::Tensor* in) override {
    auto some = [](const at::Tensor& t) { return t.defined() ? std::optional<at::Tensor>(t) : std::nullopt; };
    return {layer_norm_by_aten(in[0], last_sizes(in[0], num_axes), some(in[1]), some(in[2]), eps)};
  }
};

at::Tensor fused_layer_norm(const Payload* in, int64_t num_axes, double eps, Record record) {
  at::Tensor x = dense(tensor(in[0])), scale = in[1] ? dense(tensor(in[1])) : at::Tensor(),
             bias = in[2] ? dense(tensor(in[2])) : at::Tensor();
  int64_t n = c10::multiply_integers(last_sizes(x, num_axes)), rows = x.numel() / n;
  at::Tensor y = empty(x.sizes(), x.scalar_type()), statistics;
  if (record == Record::kYes) statistics = empty({2, rows}, x.scalar_type());
  with_type(x, [&](auto zero) {
    using T = decltype(zero);
    const T* from = x.const_data_ptr<T>();
    const T* gamma = scale.defined() ? scale.const_data_ptr<T>() : nullptr;
    const T* beta = bias.defined() ? bias.const_data_ptr<T>() : nullptr;
    T* to = y.mutable_data_ptr<T>();
    T* means = statistics.defined() ? statistics.mutable_data_ptr<T>() : nullptr;
    for (int64_t i = 0; i < rows; ++i, from += n, to += n) {
      T mean = 0, variance = 0;
      RF_SIMD_SUM(mean)
      for (int64_t j = 0; j < n; ++j) mean += from[j];
      mean /= static_cast<T>(n);
      RF_SIMD_SUM(variance)
      for (int64_t j = 0; j < n; ++j) variance += (from[j] - mean) * (from[j] - mean);
      T factor = 1 / std::sqrt(variance / static_cast<T>(n) + static_cast<T>(eps));
      if (gamma && beta) {
        RF_SIMD
        for (int64_t j = 0; j < n; ++j) to[j] = (from[j] - mean) * factor * gamma[j] + beta[j];
      } else {
        for (int64_t j = 0; j < n; ++j)
          to[j] = (from[j] - mean) * factor * (gamma ? gamma[j] : 1) + (beta ? beta[j] : 0);
      }
      if (means) {
        means[i] = mean;
        means[rows + i] = factor;
      }
    }
  });
  if (record == Record::kYes) {
    auto node = make_node<LayerNormNode>();
    node->num_axes = num_axes;
    node->eps = eps;
    node->kept[0] = std::move(statistics);
    node->keep_operands(in, 3);
    set_history(y, node);
  }
  return y;
}

RF_FUSED(layer_norm, 3, x.numel() > 0, fused_layer_norm(in, s[0].integer, s[1].number, record),
         layer_norm_by_aten(x, last_sizes(x, s[0].integer), optional(in[1]), optional(in[2]), s[1].number))

// -- dropout

// Random bits that are good enough to drop by: xoshiro256++ (Blackman and Vigna 2019, arXiv:1805.01407), begun from one
// number of torch's generator, so a seed there gives the same draws here.
class Bits {
public:
  explicit Bits(uint64_t seed) {
    for (uint64_t& word : state_) { // splitmix64, as its authors advise
      seed += 0x9E3779B97F4A7C15ull;
      uint64_t z = seed;
      z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
      z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
      word = z ^ (z >> 31);
    }
  }
  uint64_t next() {
    auto rotate = [](uint64_t x, int k) { return (x << k) | (x >> (64 - k)); };
    uint64_t result = rotate(state_[0] + state_[3], 23) + state_[0], t = state_[1] << 17;
    state_[2] ^= state_[0];
    state_[3] ^= state_[1];
    state_[1] ^= state_[2];
    state_[0] ^= state_[3];
    state_[2] ^= t;
    state_[3] = rotate(state_[3], 45);
    return result;
  }

private:
  uint64_t state_[4];
};

// Fills `factors` with 0, with probability p, or 1 / (1 - p).
template <class T> void draw_factors(T* factors, int64_t n, double p) {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  uint64_t seed;
  {
    std::lock_guard<std::mutex> lock(generator.mutex());
    seed = at::check_generator<at::CPUGeneratorImpl>(generator)->random64();
  }
  Bits bits(seed);
  auto limit = static_cast<uint64_t>(std::llround(std::clamp(p, 0.0, 1.0) * 4294967296.0));
  T scale = p < 1 ? static_cast<T>(1 / (1 - p)) : T(0);
  for (int64_t i = 0; i < n; i += 2) {
    uint64_t both = bits.next();
    factors[i] = (both & 0xFFFFFFFFu) >= limit ? scale : T(0);
    if (i + 1 < n) factors[i + 1] = (both >> 32) >= limit ? scale : T(0);
  }
}

struct DropoutNode : ag::Node { // needs no operand
  ag::SavedVariable factors;
  std::string name() const override { return "rf::DropoutBackward"; }

  ag::variable_list apply(ag::variable_list&& grads) override {
    std::lock_guard<std::mutex> lock(mutex_);
    at::Tensor factor = factors.unpack();
    if (!grads[0].defined()) return {at::Tensor()};
    return {at::mul(grads[0], factor)};
  }

  void release_variables() override {
    std::lock_guard<std::mutex> lock(mutex_);
    factors.reset_data();
  }
};

// The sizes of the draws: 1 for axes that share one.
c10::SmallVector<int64_t, 8> sizes_of_draws(const at::Tensor& x, const Static& kept_axes) {
  if (kept_axes.kind == Static::kNone) return {x.sizes().begin(), x.sizes().end()};
  c10::SmallVector<int64_t, 8> sizes(static_cast<size_t>(x.dim()), 1);
  for (int64_t a : kept_axes.ints) sizes[static_cast<size_t>(a)] = x.size(a);
  return sizes;
}

at::Tensor fused_dropout(const Payload* in, double p, const Static& kept_axes, Record record) {
  at::Tensor x = dense(tensor(in[0])), factors = empty(sizes_of_draws(x, kept_axes), x.scalar_type()), y;
  bool shared = factors.sizes() != x.sizes();
  if (!shared) y = empty(x.sizes(), x.scalar_type());
  with_type(x, [&](auto zero) {
    using T = decltype(zero);
    T* factor = factors.mutable_data_ptr<T>();
    draw_factors(factor, factors.numel(), p);
    if (shared) return;
    const T* from = x.const_data_ptr<T>();
    T* to = y.mutable_data_ptr<T>();
    int64_t n = x.numel();
    RF_SIMD
    for (int64_t i = 0; i < n; ++i) to[i] = from[i] * factor[i];
  });
  if (shared) {
    at::AutoDispatchBelowADInplaceOrView below;
    y = at::mul(x, factors);
  }
  if (record == Record::kYes) {
    auto node = make_node<DropoutNode>();
    node->factors = ag::SavedVariable(factors, false);
    node->add_next_edge(ag::impl::gradient_edge(tensor(in[0])));
    set_history(y, node);
  }
  return y;
}

// One draw per index of `kept_axes`.
at::Tensor dropout_by_aten(const at::Tensor& x, double p, const Static& kept_axes) {
  if (kept_axes.kind == Static::kNone) return at::dropout(x, p, true);
  return at::mul(x, at::dropout(at::ones(sizes_of_draws(x, kept_axes), x.options()), p, true));
}

RF_FUSED(dropout, 1, x.numel() > 0, fused_dropout(in, s[0].number, s[1], record), dropout_by_aten(x, s[0].number, s[1]))

} // namespace
