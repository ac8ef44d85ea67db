// Sums and means over axes that follow each other, division, and the squared difference, in one loop and one node each.
#pragma once
#include "fused_elementwise.h"
#include "node.h"

namespace {

// An array (outer, reduced, inner) in memory, of which the middle is summed.
struct Block {
  int64_t outer = 1, reduced = 1, inner = 1;
  bool possible = false;

  Block(const at::Tensor& x, const std::vector<int64_t>& axes) {
    if (axes.empty() || x.numel() == 0 || !x.is_contiguous()) return;
    int64_t first = axes.front(), last = axes.back();
    if (last - first + 1 != static_cast<int64_t>(axes.size())) return;
    possible = true;
    for (int64_t a = 0; a < x.dim(); ++a) (a < first ? outer : a > last ? inner : reduced) *= x.size(a);
  }
};

// Of a sum, or a mean with factor 1 / count. Its gradients are ops of ATen, so they have gradients themselves.
struct ReduceNode : ag::Node {
  c10::SmallVector<int64_t, 5> sizes;
  std::vector<int64_t> axes;
  double factor = 1;
  std::string name() const override { return factor == 1 ? "rf::SumBackward" : "rf::MeanBackward"; }

  ag::variable_list apply(ag::variable_list&& grads) override {
    at::Tensor g = grads[0];
    if (!g.defined()) return {at::Tensor()};
    if (factor != 1) g = at::mul(g, factor);
    c10::SmallVector<int64_t, 5> kept(sizes);
    for (int64_t a : axes) kept[static_cast<size_t>(a)] = 1;
    return {g.reshape(kept).expand(sizes)};
  }
};

at::Tensor fused_reduce(const Payload* in, const std::vector<int64_t>& axes, double factor, Record record) {
  const at::Tensor& x = tensor(in[0]);
  Block block(x, axes);
  c10::SmallVector<int64_t, 5> sizes(x.sizes().begin(), x.sizes().end());
  sizes.erase(sizes.begin() + axes.front(), sizes.begin() + axes.back() + 1);
  at::Tensor y = empty(sizes, x.scalar_type());
  with_type(x, [&](auto zero) {
    using T = decltype(zero);
    const T* from = x.const_data_ptr<T>();
    T *to = y.mutable_data_ptr<T>(), scale = static_cast<T>(factor);
    for (int64_t o = 0; o < block.outer; ++o) {
      if (block.inner == 1) {
        T sum = 0;
        RF_SIMD_SUM(sum)
        for (int64_t r = 0; r < block.reduced; ++r) sum += from[r];
        from += block.reduced;
        *to++ = sum * scale;
        continue;
      }
      std::fill(to, to + block.inner, T(0));
      for (int64_t r = 0; r < block.reduced; ++r, from += block.inner) {
        RF_SIMD
        for (int64_t i = 0; i < block.inner; ++i) to[i] += from[i];
      }
      for (int64_t i = 0; i < block.inner; ++i) to[i] *= scale;
      to += block.inner;
    }
  });
  if (record == Record::kYes) {
    auto node = make_node<ReduceNode>();
    node->sizes.assign(x.sizes().begin(), x.sizes().end());
    node->axes = axes;
    node->factor = factor;
    node->add_next_edge(ag::impl::gradient_edge(x));
    set_history(y, node);
  }
  return y;
}

// An empty tuple of axes means that nothing is reduced, where ATen would reduce everything.
bool k_sum(const Payload* in, int, const Static* s, Payload* out) {
  HANDLE_TH_ERRORS
  const at::Tensor& x = tensor(in[0]);
  const std::vector<int64_t>& axes = s[0].ints;
  Record record = record_of(in, 1);
  if (x.numel() <= kSmallArray && record != Record::kForwardMode && fusable(in, 1) && Block(x, axes).possible)
    give(out[0], fused_reduce(in, axes, 1, record));
  else if (axes.empty())
    give(out[0], at::Tensor(x));
  else
    give(out[0], evaluate(x, record == Record::kNo, [&] { return at::sum(x, axes, false, x.scalar_type()); }));
  return true;
  END_HANDLE_TH_ERRORS_RET(false)
}

// The mean over nothing is 0.
bool k_mean(const Payload* in, int, const Static* s, Payload* out) {
  HANDLE_TH_ERRORS
  const at::Tensor& x = tensor(in[0]);
  const std::vector<int64_t>& axes = s[0].ints;
  Record record = record_of(in, 1);
  if (x.numel() <= kSmallArray && record != Record::kForwardMode && fusable(in, 1) && Block(x, axes).possible) {
    give(out[0], fused_reduce(in, axes, 1 / static_cast<double>(Block(x, axes).reduced), record));
  } else if (axes.empty()) {
    give(out[0], at::Tensor(x));
  } else {
    give(out[0], evaluate(x, record == Record::kNo,
                          [&] { return x.numel() ? at::mean(x, axes, false) : at::sum(x, axes, false); }));
  }
  return true;
  END_HANDLE_TH_ERRORS_RET(false)
}

// -- division

struct DivNode : ag::Node {
  std::array<ag::SavedVariable, 2> operands;
  std::string name() const override { return "rf::DivBackward"; }

  ag::variable_list apply(ag::variable_list&& grads) override {
    std::lock_guard<std::mutex> lock(mutex_);
    ag::variable_list results(2);
    at::Tensor x = operands[0].unpack(), y = operands[1].unpack();
    if (!grads[0].defined()) return results;
    at::Tensor quotient = at::div(grads[0], y);
    if (task_should_compute_output(0)) results[0] = at::sum_to(at::Tensor(quotient), x.sizes());
    if (task_should_compute_output(1)) results[1] = at::sum_to(at::neg(at::div(at::mul(quotient, x), y)), y.sizes());
    return results;
  }

  void release_variables() override {
    std::lock_guard<std::mutex> lock(mutex_);
    for (ag::SavedVariable& v : operands) v.reset_data();
  }
};

at::Tensor fused_quotient(const Payload* in, const Meeting& met, Record record) {
  at::Tensor y = pairwise(in, met, [](auto a, auto b) { return a / b; });
  if (record == Record::kYes) {
    auto node = make_node<DivNode>();
    for (size_t i = 0; i < 2; ++i) {
      node->operands[i] = ag::SavedVariable(tensor(in[i]), false);
      node->add_next_edge(ag::impl::gradient_edge(tensor(in[i])));
    }
    set_history(y, node);
  }
  return y;
}

RF_FUSED_PAIR(truediv, fused_quotient(in, met, record), at::div(x, y))

// -- squared difference of two arrays that lie alike

struct SquaredDifferenceNode : Fused {
  std::string name() const override { return "rf::SquaredDifferenceBackward"; }

  ag::variable_list backward(const at::Tensor* in, const ag::variable_list& grads) override {
    at::Tensor grad = laid_out_as(grads[0], in[0]), d = empty_laid_out_as(in[0]);
    with_type(d, [&](auto zero) {
      using T = decltype(zero);
      const T *g = grad.const_data_ptr<T>(), *x = in[0].const_data_ptr<T>(), *y = in[1].const_data_ptr<T>();
      T* to = d.mutable_data_ptr<T>();
      int64_t n = d.numel();
      RF_SIMD
      for (int64_t i = 0; i < n; ++i) to[i] = 2 * g[i] * (x[i] - y[i]);
    });
    ag::variable_list results(2);
    if (needs(0)) results[0] = d;
    if (needs(1)) results[1] = at::neg(d);
    return results;
  }

  ag::variable_list by_aten(const at::Tensor* in) override { return {at::square(at::sub(in[0], in[1]))}; }
};

at::Tensor fused_squared_difference(const Payload* in, const Meeting& met, Record record) {
  at::Tensor y = pairwise(in, met, [](auto a, auto b) { return (a - b) * (a - b); });
  if (record == Record::kYes) {
    auto node = make_node<SquaredDifferenceNode>();
    node->keep_operands(in, 2);
    set_history(y, node);
  }
  return y;
}

bool k_squared_difference(const Payload* in, int, const Static*, Payload* out) {
  HANDLE_TH_ERRORS
  const at::Tensor &x = tensor(in[0]), &y = tensor(in[1]);
  Record record = record_of(in, 2);
  Meeting met = record != Record::kForwardMode && fusable(in, 2) && x.sizes() == y.sizes() ? meeting(in) : Meeting();
  if (met.possible)
    give(out[0], fused_squared_difference(in, met, record));
  else
    give(out[0], evaluate(x, record == Record::kNo, [&] { return at::square(at::sub(x, y)); }));
  return true;
  END_HANDLE_TH_ERRORS_RET(false)
}

} // namespace
