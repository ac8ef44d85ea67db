// Fused kernels of attention: small matrix products over operands as they lie, and the softmax of the scores.
#pragma once
#include "fused_math.h"
#include "node.h"

#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>

namespace {

// -- contraction: (common..., a..., reduce...) x (common..., reduce..., b...) -> (common..., a..., b...)

struct Groups {
  size_t common, a, reduce, b;
};

at::Tensor contract_by_aten(const at::Tensor& a, const at::Tensor& b, const Groups& n) {
  if (n.reduce == 1 && n.b == 1 && n.a == 1 && n.common == 1) return at::bmm(a, b);
  if (n.reduce == 1 && n.b == 1 && n.common == 0 && n.a > 0) {
    if (n.a == 1) return at::mm(a, b);
    c10::SmallVector<int64_t, 8> sizes(a.sizes().begin(), a.sizes().end());
    at::Tensor y = at::mm(a.reshape({c10::multiply_integers(sizes.begin(), sizes.end() - 1), sizes.back()}), b);
    sizes.back() = b.size(1);
    return at::_unsafe_view(y, sizes);
  }
  auto product = [](at::IntArrayRef sizes) { return c10::multiply_integers(sizes); };
  at::IntArrayRef size_a = a.sizes(), size_b = b.sizes();
  at::IntArrayRef common = size_a.slice(0, n.common);
  at::IntArrayRef only_a = size_a.slice(n.common, n.a);
  at::IntArrayRef reduced = size_a.slice(n.common + n.a, n.reduce);
  at::IntArrayRef only_b = size_b.slice(n.common + n.reduce, n.b);
  int64_t batch = product(common), rows = product(only_a), inner = product(reduced), columns = product(only_b);
  at::Tensor y = at::bmm(a.reshape({batch, rows, inner}), b.reshape({batch, inner, columns}));
  c10::SmallVector<int64_t, 8> sizes(common.begin(), common.end());
  sizes.append(only_a.begin(), only_a.end());
  sizes.append(only_b.begin(), only_b.end());
  return at::_unsafe_view(y, sizes);
}

// Where the entries of some axes of x lie: one offset per index of them, in order.
using Offsets = c10::SmallVector<int64_t, 32>;
Offsets offsets_of(const at::Tensor& x, size_t begin, size_t count) {
  Offsets result{0};
  for (size_t axis = begin; axis < begin + count; ++axis) {
    int64_t size = x.sizes()[axis], stride = x.strides()[axis];
    if (size == 1) continue;
    Offsets more;
    more.reserve(result.size() * static_cast<size_t>(size));
    for (int64_t base : result)
      for (int64_t i = 0; i < size; ++i) more.push_back(base + i * stride);
    result = std::move(more);
  }
  return result;
}

// One side of a product: a matrix for each index of the common axes, whatever its strides.
struct Side {
  Offsets common, rows, columns;
};
Side side_of(const at::Tensor& x, size_t common, size_t rows, size_t columns) {
  return {offsets_of(x, 0, common), offsets_of(x, common, rows), offsets_of(x, common + rows, columns)};
}
Side transposed(Side side) {
  std::swap(side.rows, side.columns);
  return side;
}

// Where each row of a contiguous (common, rows, columns) begins.
Side contiguous_rows(size_t common, size_t rows, size_t columns) {
  Side side{Offsets(common), Offsets(rows), Offsets(columns)};
  for (size_t i = 0; i < common; ++i) side.common[i] = static_cast<int64_t>(i * rows * columns);
  for (size_t i = 0; i < rows; ++i) side.rows[i] = static_cast<int64_t>(i * columns);
  for (size_t i = 0; i < columns; ++i) side.columns[i] = static_cast<int64_t>(i);
  return side;
}

// result (common, rows of a, columns of b), whose rows lie where `at_result` says. Copies one matrix of b at a time
// into order.
template <class T>
void multiply(const T* a, const Side& at_a, const T* b, const Side& at_b, T* result, const Side& at_result) {
  size_t rows = at_a.rows.size(), inner = at_a.columns.size(), columns = at_b.columns.size();
  std::vector<T> ordered(inner * columns);
  for (size_t batch = 0; batch < at_a.common.size(); ++batch) {
    const T *a_matrix = a + at_a.common[batch], *b_matrix = b + at_b.common[batch];
    for (size_t k = 0; k < inner; ++k)
      for (size_t j = 0; j < columns; ++j) ordered[k * columns + j] = b_matrix[at_b.rows[k] + at_b.columns[j]];
    for (size_t i = 0; i < rows; ++i) {
      T* out = result + at_result.common[batch] + at_result.rows[i];
      std::fill(out, out + columns, T(0));
      for (size_t k = 0; k < inner; ++k) {
        T factor = a_matrix[at_a.rows[i] + at_a.columns[k]];
        const T* row = ordered.data() + k * columns;
        RF_SIMD
        for (size_t j = 0; j < columns; ++j) out[j] += factor * row[j];
      }
    }
  }
}
template <class T> void multiply(const T* a, const Side& at_a, const T* b, const Side& at_b, T* result) {
  multiply(a, at_a, b, at_b, result, contiguous_rows(at_a.common.size(), at_a.rows.size(), at_b.columns.size()));
}

struct ContractNode : Fused {
  Groups n;
  std::string name() const override { return "rf::ContractBackward"; }

  ag::variable_list backward(const at::Tensor* in, const ag::variable_list& grads) override {
    ag::variable_list results(2);
    Side a = side_of(in[0], n.common, n.a, n.reduce), b = side_of(in[1], n.common, n.reduce, n.b),
         g = side_of(grads[0], n.common, n.a, n.b);
    for (int i : {0, 1})
      if (needs(i)) results[static_cast<size_t>(i)] = empty(in[i].sizes(), in[i].scalar_type());
    with_type(in[0], [&](auto zero) {
      using T = decltype(zero);
      const T* gradient = grads[0].const_data_ptr<T>();
      if (results[0].defined())
        multiply(gradient, g, in[1].const_data_ptr<T>(), transposed(b), results[0].mutable_data_ptr<T>());
      if (results[1].defined())
        multiply(in[0].const_data_ptr<T>(), transposed(a), gradient, g, results[1].mutable_data_ptr<T>());
    });
    return results;
  }

  ag::variable_list by_aten(const at::Tensor* in) override { return {contract_by_aten(in[0], in[1], n)}; }
};

bool can_fuse_contract(const Payload* in, const Groups& n) {
  const at::Tensor &a = tensor(in[0]), &b = tensor(in[1]);
  if (a.numel() == 0 || b.numel() == 0) return false;
  return a.numel() * c10::multiply_integers(b.sizes().slice(n.common + n.reduce, n.b)) <= kSmallProduct;
}

at::Tensor fused_contract(const Payload* in, const Groups& n, Record record) {
  const at::Tensor &a = tensor(in[0]), &b = tensor(in[1]);
  c10::SmallVector<int64_t, 8> sizes(a.sizes().begin(), a.sizes().begin() + static_cast<int64_t>(n.common + n.a));
  at::IntArrayRef only_b = b.sizes().slice(n.common + n.reduce, n.b);
  sizes.append(only_b.begin(), only_b.end());
  at::Tensor y = empty(sizes, a.scalar_type());
  with_type(a, [&](auto zero) {
    using T = decltype(zero);
    multiply(a.const_data_ptr<T>(), side_of(a, n.common, n.a, n.reduce), b.const_data_ptr<T>(),
             side_of(b, n.common, n.reduce, n.b), y.mutable_data_ptr<T>());
  });
  if (record == Record::kYes) {
    auto node = make_node<ContractNode>();
    node->n = n;
    node->keep_operands(in, 2);
    set_history(y, node);
  }
  return y;
}

Groups groups(const Static* s) {
  auto n = [&](int i) { return static_cast<size_t>(s[i].integer); };
  return {n(0), n(1), n(2), n(3)};
}

RF_FUSED(contract, 2, can_fuse_contract(in, groups(s)), fused_contract(in, groups(s), record),
         contract_by_aten(x, tensor(in[1]), groups(s)))

// -- scores to weights

// content[..., i, j] + position[..., i, j - i + (n_query - 1)], by padding and reshaping (Dai et al. 2019,
// arXiv:1901.02860).
at::Tensor rel_shifted_by_aten(const at::Tensor& content, const at::Tensor& position) {
  int64_t n_query = content.size(-2), n_key = content.size(-1), n_pos = position.size(-1);
  c10::SmallVector<int64_t, 8> sizes(position.sizes().begin(), position.sizes().end() - 2);
  sizes.push_back(n_pos + 1);
  sizes.push_back(n_query);
  int64_t axis = position.dim() - 2;
  at::Tensor p = at::constant_pad_nd(position, {1, 0}).view(sizes).slice(axis, 1, n_pos + 1);
  sizes[sizes.size() - 2] = n_query;
  sizes.back() = n_pos;
  return at::add(content, p.reshape(sizes).slice(axis + 1, 0, n_key));
}

double lowest(at::ScalarType type) {
  if (type == at::kDouble) return std::numeric_limits<double>::lowest();
  return type == at::kHalf ? -65504.0 : -3.3895313892515355e38; // fits float32 and bfloat16
}

// Softmax of what `visible` lets through; where it lets nothing through, 0.
at::Tensor masked_softmax_by_aten(const at::Tensor& x, const at::Tensor& visible, int64_t axis) {
  if (!visible.defined()) return at::softmax(x, axis);
  return at::where(visible, at::softmax(at::where(visible, x, lowest(x.scalar_type())), axis), 0.0);
}

// What may be seen: by the mask, if there is one, and if causal, keys up to the query.
at::Tensor visible_by_aten(const at::Tensor& x, const at::Tensor& mask, bool causal) {
  if (!causal) return mask;
  at::TensorOptions options = at::TensorOptions().dtype(at::kLong).device(x.device());
  at::Tensor before = at::le(at::arange(x.size(-1), options), at::arange(x.size(-2), options).unsqueeze(1));
  return mask.defined() ? at::logical_and(mask, before) : before;
}

struct WeightsNode : Fused { // operands: scores, or content and position; kept: weights, mask
  double factor = 1;
  bool causal = false;
  std::string name() const override { return "rf::AttentionWeightsBackward"; }

  ag::variable_list backward(const at::Tensor* in, const ag::variable_list& grads) override {
    ag::variable_list results(static_cast<size_t>(num_operands));
    const at::Tensor& weights = kept[0];
    at::Tensor grad = dense(grads[0]), scores = empty(weights.sizes(), weights.scalar_type());
    bool shifted = num_operands > 1 && needs(1);
    if (shifted) results[1] = empty(in[1].sizes(), weights.scalar_type());
    int64_t n_key = weights.size(-1), n_query = weights.size(-2), rows = weights.numel() / n_key;
    with_type(weights, [&](auto zero) {
      using T = decltype(zero);
      const T *g = grad.const_data_ptr<T>(), *w = weights.const_data_ptr<T>();
      T *d = scores.mutable_data_ptr<T>(), *dp = nullptr;
      int64_t n_pos = shifted ? in[1].size(-1) : 0;
      if (shifted) {
        dp = results[1].mutable_data_ptr<T>();
        std::fill(dp, dp + results[1].numel(), T(0));
      }
      for (int64_t row = 0; row < rows; ++row, g += n_key, w += n_key, d += n_key) {
        T dot = 0;
        RF_SIMD_SUM(dot)
        for (int64_t j = 0; j < n_key; ++j) dot += w[j] == 0 ? T(0) : g[j] * w[j];
        // What has no weight has no part in it, even where its gradient is NaN.
        RF_SIMD
        for (int64_t j = 0; j < n_key; ++j) d[j] = w[j] == 0 ? T(0) : w[j] * (g[j] - dot) * static_cast<T>(factor);
        if (shifted) {
          int64_t query = row % n_query;
          std::memcpy(dp + row * n_pos + n_query - 1 - query, d, static_cast<size_t>(n_key) * sizeof(T));
        }
      }
    });
    if (needs(0)) results[0] = std::move(scores);
    return results;
  }

  ag::variable_list by_aten(const at::Tensor* in) override {
    at::Tensor scores = num_operands > 1 ? rel_shifted_by_aten(in[0], in[1]) : in[0];
    if (factor != 1) scores = at::mul(scores, factor);
    return {masked_softmax_by_aten(scores, visible_by_aten(scores, kept[1], causal), scores.dim() - 1)};
  }
};

// Of (scores) or (content, position), and a mask that broadcasts against the scores: softmax over the last axis of
// (..., query, key).
at::Tensor fused_weights(const Payload* in, int num_operands, const Payload& mask_operand, double factor, bool causal,
                         Record record) {
  at::Tensor scores = dense(tensor(in[0])), position = num_operands > 1 ? tensor(in[1]) : at::Tensor();
  at::Tensor mask = mask_operand ? tensor(mask_operand).expand(scores.sizes()) : at::Tensor();
  int64_t n_key = scores.size(-1), n_query = scores.size(-2), rows = scores.numel() / n_key;
  at::Tensor y = empty(scores.sizes(), scores.scalar_type());
  auto lead = static_cast<size_t>(scores.dim() - 1);
  Offsets at_position = position.defined() ? offsets_of(position, 0, lead) : Offsets();
  Offsets at_mask = mask.defined() ? offsets_of(mask, 0, lead) : Offsets();
  with_type(scores, [&](auto zero) {
    using T = decltype(zero);
    const T *s = scores.const_data_ptr<T>(), *p = position.defined() ? position.const_data_ptr<T>() : nullptr;
    const bool* visible = mask.defined() ? mask.const_data_ptr<bool>() : nullptr;
    int64_t position_stride = p ? position.stride(-1) : 0, mask_stride = visible ? mask.stride(-1) : 0;
    T* w = y.mutable_data_ptr<T>();
    constexpr T kNever = -std::numeric_limits<T>::infinity();
    for (int64_t row = 0; row < rows; ++row, s += n_key, w += n_key) {
      int64_t query = row % n_query, end = causal ? std::min(query + 1, n_key) : n_key;
      auto r = static_cast<size_t>(row);
      if (p) {
        const T* shifted = p + at_position[r] + (n_query - 1 - query) * position_stride;
        for (int64_t j = 0; j < end; ++j) w[j] = (s[j] + shifted[j * position_stride]) * static_cast<T>(factor);
      } else {
        for (int64_t j = 0; j < end; ++j) w[j] = s[j] * static_cast<T>(factor);
      }
      if (visible) {
        const bool* flags = visible + at_mask[r];
        for (int64_t j = 0; j < end; ++j) w[j] = flags[j * mask_stride] ? w[j] : kNever;
      }
      softmax_in_place(w, end);
      std::fill(w + end, w + n_key, T(0));
    }
  });
  if (record == Record::kYes) {
    auto node = make_node<WeightsNode>();
    node->factor = factor;
    node->causal = causal;
    node->kept[0] = y.variable_data();
    node->kept[1] = std::move(mask);
    node->keep_operands(in, num_operands);
    set_history(y, node);
  }
  return y;
}

// With more data, ATen's softmax is ahead.
constexpr int64_t kSmallScores = 32768;

bool can_fuse_weights(const at::Tensor& scores, const Payload& mask) {
  if (scores.numel() == 0 || scores.dim() < 2 || scores.numel() > kSmallScores) return false;
  if (!mask) return true;
  const at::Tensor& m = tensor(mask);
  if (!direct(m) || m.scalar_type() != at::kBool || m.dim() > scores.dim()) return false;
  for (int64_t a = 1; a <= m.dim(); ++a)
    if (m.size(-a) != 1 && m.size(-a) != scores.size(-a)) return false;
  return true;
}

// -- dot-product attention: q (common..., rest..., key), k (common..., axis, key), v (common..., axis, value), and a
// mask that broadcasts against (common..., rest..., axis) -> (common..., rest..., value). If causal, the query is the
// last axis of the rest.

struct Attention {
  size_t common = 0, rest = 0;
  double scale = 1;
  bool causal = false;
};

at::Tensor attention_by_aten(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& mask,
                             const Attention& n) {
  at::Tensor scaled = n.scale == 1 ? q : at::mul(q, n.scale);
  at::Tensor scores = contract_by_aten(scaled, k.transpose(-1, -2), {n.common, n.rest, 1, 1});
  at::Tensor weights = masked_softmax_by_aten(scores, visible_by_aten(scores, mask, n.causal), scores.dim() - 1);
  return contract_by_aten(weights, v, {n.common, n.rest, 1, 1});
}

// The result is laid out with the last common axis, the heads, behind the rest: they are merged with the values next.
at::Tensor empty_with_heads_last(const at::Tensor& q, int64_t num_values, const Attention& n) {
  c10::SmallVector<int64_t, 8> sizes(q.sizes().begin(), q.sizes().end()), strides(sizes.size());
  sizes.back() = num_values;
  c10::SmallVector<size_t, 8> order;
  for (size_t a = 0; a + 1 < n.common; ++a) order.push_back(a);
  for (size_t a = n.common; a < n.common + n.rest; ++a) order.push_back(a);
  if (n.common) order.push_back(n.common - 1);
  order.push_back(sizes.size() - 1);
  int64_t stride = 1;
  for (size_t i = order.size(); i-- > 0;) {
    strides[order[i]] = stride;
    stride *= sizes[order[i]];
  }
  return empty_strided(sizes, strides, q.scalar_type());
}

struct AttentionNode : Fused { // kept: weights (common, rest, axis), mask
  Attention n;
  std::string name() const override { return "rf::AttentionBackward"; }

  ag::variable_list backward(const at::Tensor* in, const ag::variable_list& grads) override {
    ag::variable_list results(3);
    at::ScalarType type = in[0].scalar_type();
    Side q = side_of(in[0], n.common, n.rest, 1), k = side_of(in[1], n.common, 1, 1),
         v = side_of(in[2], n.common, 1, 1), g = side_of(grads[0], n.common, n.rest, 1);
    size_t rows = q.rows.size(), keys = k.rows.size();
    Side w = contiguous_rows(q.common.size(), rows, keys);
    for (int i : {0, 1, 2})
      if (needs(i)) results[static_cast<size_t>(i)] = empty(in[i].sizes(), type);
    with_type(in[0], [&](auto zero) {
      using T = decltype(zero);
      const T *weights = kept[0].const_data_ptr<T>(), *gradient = grads[0].const_data_ptr<T>();
      if (results[2].defined()) multiply(weights, transposed(w), gradient, g, results[2].mutable_data_ptr<T>());
      if (!results[0].defined() && !results[1].defined()) return;
      std::vector<T> scores(q.common.size() * rows * keys);
      multiply(gradient, g, in[2].const_data_ptr<T>(), transposed(v), scores.data());
      for (size_t row = 0; row < q.common.size() * rows; ++row) {
        T *d = scores.data() + row * keys, dot = 0;
        const T* p = weights + row * keys;
        RF_SIMD_SUM(dot)
        for (size_t j = 0; j < keys; ++j) dot += p[j] == 0 ? T(0) : d[j] * p[j];
        RF_SIMD
        for (size_t j = 0; j < keys; ++j) d[j] = p[j] == 0 ? T(0) : p[j] * (d[j] - dot) * static_cast<T>(n.scale);
      }
      if (results[0].defined())
        multiply(scores.data(), w, in[1].const_data_ptr<T>(), k, results[0].mutable_data_ptr<T>());
      if (results[1].defined())
        multiply(scores.data(), transposed(w), in[0].const_data_ptr<T>(), q, results[1].mutable_data_ptr<T>());
    });
    return results;
  }

  ag::variable_list by_aten(const at::Tensor* in) override {
    return {attention_by_aten(in[0], in[1], in[2], kept[1], n)};
  }
};

at::Tensor small_attention(const Payload* in, const Attention& n, Record record) {
  const at::Tensor &q = tensor(in[0]), &k = tensor(in[1]), &v = tensor(in[2]);
  Side at_q = side_of(q, n.common, n.rest, 1), at_k = side_of(k, n.common, 1, 1), at_v = side_of(v, n.common, 1, 1);
  size_t rows = at_q.rows.size(), keys = at_k.rows.size(), total = at_q.common.size() * rows;
  int64_t num_query = n.rest ? q.size(-2) : 1;
  at::Tensor y = empty_with_heads_last(q, v.size(-1), n), mask;
  at::Tensor weights = empty({static_cast<int64_t>(total), static_cast<int64_t>(keys)}, q.scalar_type());
  Offsets at_mask;
  if (in[3]) {
    c10::SmallVector<int64_t, 8> sizes(q.sizes().begin(), q.sizes().end());
    sizes.back() = k.size(-2);
    mask = tensor(in[3]).expand(sizes);
    at_mask = offsets_of(mask, 0, n.common + n.rest);
  }
  with_type(q, [&](auto zero) {
    using T = decltype(zero);
    T* w = weights.mutable_data_ptr<T>();
    Side at_w = contiguous_rows(at_q.common.size(), rows, keys);
    multiply(q.const_data_ptr<T>(), at_q, k.const_data_ptr<T>(), transposed(at_k), w, at_w);
    const bool* visible = mask.defined() ? mask.const_data_ptr<bool>() : nullptr;
    for (size_t row = 0; row < total; ++row) {
      T* scores = w + row * keys;
      size_t end = keys;
      if (n.causal) end = std::min(keys, row % static_cast<size_t>(num_query) + 1);
      for (size_t j = 0; j < end; ++j) scores[j] *= static_cast<T>(n.scale);
      if (visible) {
        const bool* flags = visible + at_mask[row];
        for (size_t j = 0; j < end; ++j)
          if (!flags[static_cast<int64_t>(j) * mask.stride(-1)]) scores[j] = -std::numeric_limits<T>::infinity();
      }
      softmax_in_place(scores, static_cast<int64_t>(end));
      std::fill(scores + end, scores + keys, T(0));
    }
    multiply(w, at_w, v.const_data_ptr<T>(), at_v, y.mutable_data_ptr<T>(), side_of(y, n.common, n.rest, 1));
  });
  if (record == Record::kYes) {
    auto node = make_node<AttentionNode>();
    node->n = n;
    node->kept[0] = std::move(weights);
    node->kept[1] = std::move(mask);
    node->keep_operands(in, 3);
    set_history(y, node);
  }
  return y;
}

// By ATen's kernel that never holds all weights (Dao et al. 2022, arXiv:2205.14135).
struct FlashNode : Fused { // kept: result, logarithms of the sums, what is added to the scores
  Attention n;
  at::Tensor mask;
  std::string name() const override { return "rf::FlashAttentionBackward"; }

  // As (batch, heads, query, features).
  at::Tensor four(const at::Tensor& x, bool is_query) const { return is_query && n.rest == 0 ? x.unsqueeze(-2) : x; }

  ag::variable_list backward(const at::Tensor* in, const ag::variable_list& grads) override {
    std::optional<at::Tensor> added = kept[2].defined() ? std::optional<at::Tensor>(kept[2]) : std::nullopt;
    auto [dq, dk, dv] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
        four(grads[0], true), four(in[0], true), in[1], in[2], kept[0], kept[1], 0, n.causal, added, n.scale);
    return {n.rest == 0 ? dq.squeeze(-2) : dq, dk, dv};
  }

  ag::variable_list by_aten(const at::Tensor* in) override { return {attention_by_aten(in[0], in[1], in[2], mask, n)}; }

  void release_variables() override {
    Fused::release_variables();
    mask.reset();
  }
};

bool can_use_flash(const Payload* in, const Attention& n) {
  const at::Tensor &q = tensor(in[0]), &k = tensor(in[1]), &v = tensor(in[2]);
  return n.common == 2 && n.rest <= 1 && q.size(-1) == v.size(-1) && q.stride(-1) == 1 && k.stride(-1) == 1 &&
         v.stride(-1) == 1 && !(n.causal && in[3]);
}

at::Tensor flash_attention(const Payload* in, const Attention& n, Record record) {
  auto node = make_node<FlashNode>();
  node->n = n;
  at::Tensor y;
  {
    at::AutoDispatchBelowADInplaceOrView below;
    const at::Tensor& q = tensor(in[0]);
    std::optional<at::Tensor> added;
    if (in[3]) {
      at::Tensor visible = tensor(in[3]);
      node->mask = visible;
      if (n.rest == 0) visible = visible.unsqueeze(-2);
      while (visible.dim() < 4) visible = visible.unsqueeze(0);
      added = at::where(visible, at::zeros({}, q.options()),
                        at::full({}, -std::numeric_limits<double>::infinity(), q.options()));
      node->kept[2] = *added;
    }
    std::tie(y, node->kept[1]) = at::_scaled_dot_product_flash_attention_for_cpu(
        node->four(q, true), tensor(in[1]), tensor(in[2]), 0, n.causal, added, n.scale);
    node->kept[0] = y;
    y = n.rest == 0 ? y.squeeze(-2) : y.alias();
  }
  if (record == Record::kYes) {
    node->keep_operands(in, 3);
    set_history(y, node);
  }
  return y;
}

bool fits(const at::Tensor& mask, const at::Tensor& q, int64_t num_keys) {
  if (!direct(mask) || mask.scalar_type() != at::kBool || mask.dim() > q.dim()) return false;
  for (int64_t a = 1; a <= mask.dim(); ++a)
    if (mask.size(-a) != 1 && mask.size(-a) != (a == 1 ? num_keys : q.size(-a))) return false;
  return true;
}

bool k_dot_attention(const Payload* in, int, const Static* s, Payload* out) {
  HANDLE_TH_ERRORS
  const at::Tensor &q = tensor(in[0]), &k = tensor(in[1]), &v = tensor(in[2]);
  Attention n;
  n.common = static_cast<size_t>(s[0].integer);
  n.rest = static_cast<size_t>(q.dim() - 1) - n.common;
  n.causal = s[1].integer != 0;
  n.scale = s[2].number;
  Record record = record_of(in, 3);
  if (record != Record::kForwardMode && plain_floats(in, 3) && q.numel() && k.numel() && v.numel() &&
      (!in[3] || fits(tensor(in[3]), q, k.size(-2)))) {
    int64_t products = q.numel() * k.size(-2);
    if (products <= kSmallProduct) {
      give(out[0], small_attention(in, n, record));
      return true;
    }
    if (can_use_flash(in, n)) {
      Unlocked unlocked(k);
      give(out[0], flash_attention(in, n, record));
      return true;
    }
  }
  give(out[0], evaluate(q, record == Record::kNo,
                        [&] { return attention_by_aten(q, k, v, in[3] ? tensor(in[3]) : at::Tensor(), n); }));
  return true;
  END_HANDLE_TH_ERRORS_RET(false)
}

} // namespace
