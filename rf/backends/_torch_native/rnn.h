// The LSTM, over one frame and over a sequence.
//
// For float arrays in host memory, both are functions of autograd with their own gradient: products, and one pass over
// each row of the gates (lanes.h) instead of an op for each activation. A sequence is worked on in a packed order,
// frame by frame, in which the frames in the padding are left out: nothing reads what they hold. Everything else (other
// devices and dtypes, tracing, transformations) goes to usual ops: the step to those below, the sequence to the kernel
// in Python. So does the gradient when it shall have a gradient itself.
#pragma once
#include "lanes.h"
#include "node.h"

#include <ATen/EmptyTensor.h>
#include <ATen/ExpandUtils.h>
#include <ATen/ops/alias.h>
#include <ATen/ops/from_blob.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// -- where the kernels here can be used

bool can_fuse(const Payload* in, int n) {
  for (int i = 0; i < n; ++i)
    if (in[i] && tensor(in[i]).numel() == 0) return false;
  return plain_floats(in, n) && record_of(in, n) != Record::kForwardMode;
}

bool can_fuse(const variable_list& arrays, at::ScalarType type) {
  for (const at::Tensor& x : arrays)
    if (x.defined() && (!direct(x) || x.scalar_type() != type || x.numel() == 0)) return false;
  return true;
}

at::Tensor empty(at::IntArrayRef sizes, const at::Tensor& like) {
  return at::detail::empty_cpu(sizes, like.scalar_type(), false, std::nullopt);
}

at::Tensor contiguous(const at::Tensor& x) { return x.is_contiguous() ? x : x.contiguous(); }

// With the last axis contiguous, as the kernels read rows.
at::Tensor with_rows(const at::Tensor& x) { return x.stride(-1) == 1 || x.size(-1) == 1 ? x : x.contiguous(); }

// -- products

template <class T> Matrix<T> transposed(const Matrix<T>& a) {
  return {a.data, a.columns, a.rows, a.column_stride, a.row_stride};
}

template <class T> at::Tensor as_tensor(const Matrix<T>& a) {
  return at::from_blob(const_cast<T*>(a.data), {a.rows, a.columns}, {a.row_stride, a.column_stride},
                       c10::CppTypeToScalarType<T>::value);
}

// c = a b, or c += a b, for a contiguous c and contiguous rows of b
template <class T> void product(T* c, bool add, const Matrix<T>& a, const Matrix<T>& b) {
  if (a.rows * a.columns * b.columns <= kSmallProduct) {
    if (!add) std::memset(c, 0, static_cast<size_t>(a.rows * b.columns) * sizeof(T));
    row_kernels<T>().product(c, b.columns, a, b);
    return;
  }
  at::Tensor out = as_tensor(Matrix<T>{c, a.rows, b.columns, b.columns, 1});
  if (add)
    at::addmm_out(out, out, as_tensor(a), as_tensor(b));
  else
    at::mm_out(out, as_tensor(a), as_tensor(b));
}

// to (rows, columns) = or += from (columns, rows)^T, in blocks, so that what is read is used while it is in the cache
template <bool add, class T> void turn(T* to, const T* from, int64_t rows, int64_t columns) {
  constexpr int64_t block = 16;
  for (int64_t begin = 0; begin < columns; begin += block) {
    int64_t end = std::min(begin + block, columns);
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t j = begin; j < end; ++j) {
        T value = from[j * rows + i];
        to[i * columns + j] = add ? to[i * columns + j] + value : value;
      }
  }
}

// gates (+)= x w^T for the rows of x, which are contiguous, as those of w are.
template <class T> class GateWeight {
public:
  // `num_rows`: how many rows of x there will be, in all. A copy of w that is turned pays for many of them, unless its
  // rows are so long that they get into each other's way in the cache.
  GateWeight(const at::Tensor& w, int64_t num_rows)
      : w_{w.const_data_ptr<T>(), w.size(0), w.size(1), w.size(1), 1}, type_(w.scalar_type()) {
    if (num_rows < 32 || w.numel() >= 1 << 18) return;
    turned_ = at::detail::empty_cpu({w.numel()}, type_, false);
    turn<false>(turned_.template data_ptr<T>(), w_.data, w_.columns, w_.rows);
  }

  void apply(T* gates, bool add, const Matrix<T>& x) {
    int64_t n = w_.rows;
    if (turned_.defined()) {
      product<T>(gates, add, x, {turned_.template const_data_ptr<T>(), w_.columns, n, n, 1});
    } else if (x.rows * x.columns * n <= kSmallProduct) {
      if (!add) std::memset(gates, 0, static_cast<size_t>(x.rows * n) * sizeof(T));
      row_kernels<T>().dots(gates, n, x, transposed(w_));
    } else if (x.rows <= 64 && (x.rows >= 16 || (x.rows >= 8 && x.columns * n >= 1 << 20))) {
      // BLAS is much faster at w x^T here.
      if (!scratch_.defined()) scratch_ = at::detail::empty_cpu({n * x.rows}, type_, false);
      T* turned = scratch_.template data_ptr<T>();
      at::Tensor out = as_tensor(Matrix<T>{turned, n, x.rows, x.rows, 1});
      at::mm_out(out, as_tensor(w_), as_tensor(transposed(x)));
      add ? turn<true>(gates, turned, x.rows, n) : turn<false>(gates, turned, x.rows, n);
    } else {
      product<T>(gates, add, x, transposed(w_));
    }
  }

private:
  Matrix<T> w_;
  at::ScalarType type_;
  at::Tensor turned_;
  at::Tensor scratch_; // for as many rows as came first: later there are not more
};

template <class T> Matrix<T> matrix(const at::Tensor& x) {
  return {x.const_data_ptr<T>(), x.size(0), x.size(1), x.stride(0), x.stride(1)};
}

// The bias of the gates, zeros where there is none.
at::Tensor bias_of(const at::Tensor& bias, const at::Tensor& rec_weight) {
  return bias.defined() ? contiguous(bias) : at::zeros({rec_weight.size(0)}, rec_weight.options());
}

template <class T> at::Tensor sum_of_rows(const at::Tensor& x, int64_t rows, int64_t columns) {
  if (rows * columns > kSmallProduct) return at::sum(x, at::IntArrayRef{0});
  at::Tensor out = empty({columns}, x);
  static const T one = 1;
  product<T>(out.data_ptr<T>(), false, {&one, 1, rows, 0, 0}, {x.const_data_ptr<T>(), rows, columns, columns, 1});
  return out;
}

// -- usual ops, which have any gradient

std::array<at::Tensor, 2> step_of_ops(const at::Tensor& x, const at::Tensor& h, const at::Tensor& c,
                                      const at::Tensor& ff_weight, const at::Tensor& rec_weight,
                                      const std::optional<at::Tensor>& bias) {
  std::vector<at::Tensor> parts = at::add(at::linear(x, ff_weight, bias), at::linear(h, rec_weight)).chunk(4, -1);
  at::Tensor cell = at::add(at::mul(at::sigmoid(parts[1]), c), at::mul(at::sigmoid(parts[0]), at::tanh(parts[2])));
  return {at::mul(at::sigmoid(parts[3]), at::tanh(cell)), cell};
}

// Gradients of `forward(inputs)`, which have a gradient themselves if that is wanted. The inputs are taken as new nodes
// of the graph, so that what one of them does to another is not counted.
template <class F>
variable_list gradients_of_ops(variable_list inputs, const variable_list& d_outputs, AutogradContext* ctx,
                               F&& forward) {
  bool again = at::GradMode::is_enabled();
  at::AutoGradMode recorded(true);
  variable_list wanted, outputs, seeds;
  std::vector<size_t> where;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!inputs[i].defined()) continue;
    inputs[i] = at::alias(inputs[i]);
    if (!ctx->needs_input_grad(i)) continue;
    wanted.push_back(inputs[i]);
    where.push_back(i);
  }
  variable_list all = forward(inputs);
  for (size_t i = 0; i < all.size(); ++i) {
    if (!d_outputs[i].defined()) continue;
    outputs.push_back(all[i]);
    seeds.push_back(d_outputs[i]);
  }
  variable_list gradients(inputs.size());
  if (outputs.empty() || wanted.empty()) return gradients;
  variable_list found = torch::autograd::grad(outputs, wanted, seeds, true, again, true);
  for (size_t i = 0; i < where.size(); ++i) gradients[where[i]] = found[i];
  return gradients;
}

// -- one frame

struct Step {
  at::Tensor gates, h, c;
};

// x (rows, in), h and c (rows, out); weights contiguous. The gates are of use only with `keep`, for the gradient.
template <class T>
Step step_forward(const at::Tensor& x, const at::Tensor& h, const at::Tensor& c, const at::Tensor& ff_weight,
                  const at::Tensor& rec_weight, const at::Tensor& bias, bool keep) {
  int64_t rows = h.size(0), out = h.size(1);
  Step step{empty({rows, 4 * out}, x), empty({rows, out}, x), empty({rows, out}, x)};
  T* gates = step.gates.data_ptr<T>();
  GateWeight<T>(ff_weight, 0).apply(gates, false, matrix<T>(x));
  GateWeight<T>(rec_weight, 0).apply(gates, true, matrix<T>(h));
  auto cell = keep ? row_kernels<T>().forward : row_kernels<T>().forward_only;
  const T *before = c.const_data_ptr<T>(), *b = bias.const_data_ptr<T>();
  T *new_c = step.c.data_ptr<T>(), *new_h = step.h.data_ptr<T>();
  for (int64_t i = 0; i < rows; ++i)
    cell(gates + 4 * i * out, b, before + i * c.stride(0), new_c + i * out, new_h + i * out, out);
  return step;
}

template <class T>
variable_list step_backward(AutogradContext* ctx, const variable_list& saved, const at::Tensor& d_h,
                            const at::Tensor& d_c) {
  at::Tensor x = with_rows(saved[0]), h = with_rows(saved[1]), c = with_rows(saved[2]);
  at::Tensor ff_weight = contiguous(saved[3]), rec_weight = contiguous(saved[4]);
  const at::Tensor& gates = saved.back();
  int64_t rows = h.size(0), out = h.size(1);
  at::Tensor d_gates = empty({rows, 4 * out}, x), d_before = empty({rows, out}, x);
  at::Tensor from_h = d_h.defined() ? with_rows(d_h) : at::Tensor(), from_c = d_c.defined() ? with_rows(d_c) : d_c;
  std::vector<T> zeros(static_cast<size_t>(out));
  T *d = d_gates.data_ptr<T>(), *d_cell = d_before.data_ptr<T>();
  for (int64_t i = 0; i < rows; ++i) {
    T* row = d_cell + i * out;
    if (from_c.defined())
      std::memcpy(row, from_c.const_data_ptr<T>() + i * from_c.stride(0), static_cast<size_t>(out) * sizeof(T));
    else
      std::memset(row, 0, static_cast<size_t>(out) * sizeof(T));
    row_kernels<T>().backward(gates.const_data_ptr<T>() + 4 * i * out, c.const_data_ptr<T>() + i * c.stride(0),
                              from_h.defined() ? from_h.const_data_ptr<T>() + i * from_h.stride(0) : zeros.data(),
                              zeros.data(), row, d + 4 * i * out, out);
  }
  Matrix<T> all{d, rows, 4 * out, 4 * out, 1};
  variable_list gradients(6);
  auto give_product = [&](size_t i, const Matrix<T>& a, const at::Tensor& b) {
    if (!ctx->needs_input_grad(i)) return;
    gradients[i] = empty({a.rows, b.size(1)}, x);
    product(gradients[i].data_ptr<T>(), false, a, matrix<T>(b));
  };
  give_product(0, all, ff_weight);
  give_product(1, all, rec_weight);
  if (ctx->needs_input_grad(2)) gradients[2] = d_before;
  give_product(3, transposed(all), x);
  give_product(4, transposed(all), h);
  if (saved[5].defined() && ctx->needs_input_grad(5)) gradients[5] = sum_of_rows<T>(d_gates, rows, 4 * out);
  return gradients;
}

Step run_step(const at::Tensor& x, const at::Tensor& h, const at::Tensor& c, const at::Tensor& ff_weight,
              const at::Tensor& rec_weight, const at::Tensor& bias, bool keep) {
  at::AutoDispatchBelowADInplaceOrView below;
  return with_type(x, [&](auto number) {
    return step_forward<decltype(number)>(with_rows(x), with_rows(h), with_rows(c), contiguous(ff_weight),
                                          contiguous(rec_weight), bias_of(bias, rec_weight), keep);
  });
}

struct LstmStep : torch::autograd::Function<LstmStep> {
  static variable_list forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& h, const at::Tensor& c,
                               const at::Tensor& ff_weight, const at::Tensor& rec_weight,
                               const std::optional<at::Tensor>& bias) {
    at::Tensor b = bias ? *bias : at::Tensor();
    Step step = run_step(x, h, c, ff_weight, rec_weight, b, true);
    ctx->set_materialize_grads(false);
    ctx->save_for_backward({x, h, c, ff_weight, rec_weight, b, step.gates});
    return {std::move(step.h), std::move(step.c)};
  }

  static variable_list backward(AutogradContext* ctx, variable_list d) {
    variable_list saved = ctx->get_saved_variables();
    if (at::GradMode::is_enabled() || !can_fuse(d, saved[0].scalar_type())) {
      saved.pop_back();
      return gradients_of_ops(std::move(saved), d, ctx, [](const variable_list& in) {
        auto bias = in[5].defined() ? std::make_optional(in[5]) : std::nullopt;
        auto [h, c] = step_of_ops(in[0], in[1], in[2], in[3], in[4], bias);
        return variable_list{h, c};
      });
    }
    at::AutoDispatchBelowADInplaceOrView below;
    return with_type(saved[0], [&](auto number) { return step_backward<decltype(number)>(ctx, saved, d[0], d[1]); });
  }
};

bool k_lstm_step(const Payload* in, int, const Static*, Payload* out) {
  HANDLE_TH_ERRORS
  const at::Tensor &x = tensor(in[0]), &h = tensor(in[1]), &c = tensor(in[2]);
  const at::Tensor &ff_weight = tensor(in[3]), &rec_weight = tensor(in[4]);
  bool rows = x.dim() == 2 && h.dim() == 2 && c.dim() == 2 && x.size(0) == h.size(0) && h.sizes() == c.sizes();
  if (!rows || !can_fuse(in, 6)) {
    auto [new_h, new_c] = step_of_ops(x, h, c, ff_weight, rec_weight, optional(in[5]));
    give(out[0], std::move(new_h));
    give(out[1], std::move(new_c));
    return true;
  }
  Unlocked unlocked(ff_weight);
  if (constant(in, 6)) {
    Step step = run_step(x, h, c, ff_weight, rec_weight, in[5] ? tensor(in[5]) : at::Tensor(), false);
    give(out[0], std::move(step.h));
    give(out[1], std::move(step.c));
    return true;
  }
  variable_list y = LstmStep::apply(x, h, c, ff_weight, rec_weight, optional(in[5]));
  give(out[0], std::move(y[0]));
  give(out[1], std::move(y[1]));
  return true;
  END_HANDLE_TH_ERRORS_RET(false)
}

// -- a sequence

// The packed order: frame by frame, of each frame the rows up to the last one that is valid there.
struct Packing {
  Packing(int64_t frames, int64_t batch, const at::Tensor& lengths) : length(static_cast<size_t>(batch), frames) {
    if (lengths.defined()) {
      const int32_t* given = lengths.const_data_ptr<int32_t>();
      for (size_t i = 0; i < length.size(); ++i) length[i] = std::clamp<int64_t>(given[i], 0, frames);
    }
    std::vector<int64_t> rows;
    for (int64_t b = batch; b-- > 0;)
      while (static_cast<int64_t>(rows.size()) < length[static_cast<size_t>(b)]) rows.push_back(b + 1);
    first.push_back(0);
    for (int64_t n : rows) first.push_back(first.back() + n);
    whole = first.back() == frames * batch &&
            std::all_of(length.begin(), length.end(), [&](int64_t n) { return n == frames; });
  }
  int64_t num_frames() const { return static_cast<int64_t>(first.size()) - 1; }
  int64_t begin(int64_t t) const { return first[static_cast<size_t>(t)]; }
  int64_t rows(int64_t t) const { return begin(t + 1) - begin(t); }
  int64_t total() const { return first.back(); }
  bool valid(int64_t t, int64_t row) const { return t < length[static_cast<size_t>(row)]; }
  bool last(int64_t t, int64_t row) const { return t + 1 == length[static_cast<size_t>(row)]; }

  std::vector<int64_t> length; // of each row
  std::vector<int64_t> first;  // of each frame up to the last valid one, its first row in the packed order
  bool whole;                  // no padding
};

// Where frame t of row b lies in an array (time, batch, n) or (batch, time, n).
template <class T> struct Frames {
  Frames(const at::Tensor& x, bool time_first)
      : data(x.const_data_ptr<T>()), frame_stride(x.stride(time_first ? 0 : 1)),
        row_stride(x.stride(time_first ? 1 : 0)), size(static_cast<size_t>(x.size(2)) * sizeof(T)) {}
  T* at(int64_t t, int64_t b) const { return const_cast<T*>(data) + t * frame_stride + b * row_stride; }
  const T* data;
  int64_t frame_stride, row_stride;
  size_t size; // of a frame, in bytes
};

// x in the packed order, contiguous; 0 in the padding that is still in it.
template <class T> at::Tensor packed(const at::Tensor& x, const Packing& packing, bool time_first) {
  if (packing.whole && time_first && x.is_contiguous()) return x;
  at::Tensor out = empty({packing.total(), x.size(2)}, x);
  Frames<T> from(x, time_first);
  T* to = out.data_ptr<T>();
  for (int64_t t = 0; t < packing.num_frames(); ++t)
    for (int64_t b = 0; b < packing.rows(t); ++b, to += x.size(2))
      if (packing.valid(t, b))
        std::memcpy(to, from.at(t, b), from.size);
      else
        std::memset(to, 0, from.size);
  return out;
}

struct Sequence {
  at::Tensor y, h, c; // results
  // For the gradient, in the packed order: gates after activation, outputs of the frame before, cells
  at::Tensor gates, states, cells;
};

// x (time, batch, in) or (batch, time, in), h and c (batch, out), all contiguous but x
template <class T>
Sequence sequence_forward(const at::Tensor& x, const at::Tensor& h, const at::Tensor& c, const at::Tensor& ff_weight,
                          const at::Tensor& rec_weight, const at::Tensor& bias, const Packing& packing, bool time_first,
                          bool keep) {
  int64_t batch = h.size(0), out = h.size(1), in = x.size(2), num = packing.total();
  size_t row_size = static_cast<size_t>(out) * sizeof(T);
  Sequence s{empty({x.size(0), x.size(1), out}, x),
             empty({batch, out}, x),
             empty({batch, out}, x),
             empty({num, 4 * out}, x),
             at::Tensor(),
             at::Tensor()};
  if (keep) s.states = empty({num, out}, x), s.cells = empty({num, out}, x);
  T *gates = s.gates.data_ptr<T>(), *last_h = s.h.data_ptr<T>(), *last_c = s.c.data_ptr<T>();
  const T* b = bias.const_data_ptr<T>();
  std::memcpy(last_h, h.const_data_ptr<T>(), static_cast<size_t>(batch) * row_size);
  std::memcpy(last_c, c.const_data_ptr<T>(), static_cast<size_t>(batch) * row_size);
  Frames<T> y(s.y, time_first);
  if (!packing.whole) std::memset(s.y.data_ptr<T>(), 0, s.y.nbytes());
  if (num == 0) return s;
  at::Tensor inputs = packed<T>(x, packing, time_first);
  GateWeight<T>(ff_weight, num).apply(gates, false, {inputs.const_data_ptr<T>(), num, in, in, 1});
  GateWeight<T> recurrent(rec_weight, num);
  auto cell = keep ? row_kernels<T>().forward : row_kernels<T>().forward_only;
  for (int64_t t = 0; t < packing.num_frames(); ++t) {
    int64_t begin = packing.begin(t), rows = packing.rows(t);
    T* states = last_h;
    if (keep) { // 0 where a sequence has ended: these rows take part in the gradient of the weight
      states = s.states.data_ptr<T>() + begin * out;
      for (int64_t i = 0; i < rows; ++i)
        packing.valid(t, i) ? std::memcpy(states + i * out, last_h + i * out, row_size)
                            : std::memset(states + i * out, 0, row_size);
    }
    recurrent.apply(gates + 4 * begin * out, true, {states, rows, out, out, 1});
    for (int64_t i = 0; i < rows; ++i) {
      if (!packing.valid(t, i)) continue;
      T *new_h = last_h + i * out, *new_c = last_c + i * out;
      cell(gates + 4 * (begin + i) * out, b, new_c, new_c, new_h, out);
      if (keep) std::memcpy(s.cells.data_ptr<T>() + (begin + i) * out, new_c, row_size);
      std::memcpy(y.at(t, i), new_h, row_size);
    }
  }
  return s;
}

template <class T>
variable_list sequence_backward(AutogradContext* ctx, const variable_list& saved, const variable_list& d,
                                const Packing& packing, bool time_first) {
  const at::Tensor &gates = saved[7], &states = saved[8], &cells = saved[9];
  at::Tensor x = with_rows(saved[0]), c = contiguous(saved[2]);
  at::Tensor ff_weight = contiguous(saved[3]), rec_weight = contiguous(saved[4]);
  int64_t batch = c.size(0), out = c.size(1), in = x.size(2), num = packing.total();
  size_t row_size = static_cast<size_t>(out) * sizeof(T);
  at::Tensor d_y = d[0].defined() ? with_rows(d[0]) : d[0];
  at::Tensor d_last_h = d[1].defined() ? contiguous(d[1]) : d[1], d_last_c = d[2].defined() ? contiguous(d[2]) : d[2];
  at::Tensor d_h = empty({batch, out}, x), d_c = empty({batch, out}, x), d_gates = empty({num, 4 * out}, x);
  // Of the state after the frame that is being worked on. What comes from the last state is there from the beginning,
  // since before its last frame no row changes it.
  auto begin_with = [&](at::Tensor& to, const at::Tensor& from) {
    if (from.defined())
      std::memcpy(to.data_ptr<T>(), from.const_data_ptr<T>(), to.nbytes());
    else
      std::memset(to.data_ptr<T>(), 0, to.nbytes());
  };
  begin_with(d_h, d_last_h);
  begin_with(d_c, d_last_c);
  std::optional<Frames<T>> from_y;
  if (d_y.defined()) from_y.emplace(d_y, time_first);
  std::vector<T> zeros(static_cast<size_t>(out));
  T *dg = d_gates.data_ptr<T>(), *dh = d_h.data_ptr<T>(), *dc = d_c.data_ptr<T>();
  at::Tensor passed = empty({batch, out}, x);
  for (int64_t t = packing.num_frames() - 1; t >= 0; --t) {
    int64_t begin = packing.begin(t), rows = packing.rows(t);
    for (int64_t b = 0; b < rows; ++b) {
      T* to = dg + 4 * (begin + b) * out;
      if (!packing.valid(t, b)) {
        std::memset(to, 0, 4 * row_size);
        continue;
      }
      const T* more = from_y ? from_y->at(t, b) : zeros.data();
      const T* before =
          t > 0 ? cells.const_data_ptr<T>() + (packing.begin(t - 1) + b) * out : c.const_data_ptr<T>() + b * out;
      row_kernels<T>().backward(gates.const_data_ptr<T>() + 4 * (begin + b) * out, before, dh + b * out, more,
                                dc + b * out, to, out);
    }
    product<T>(passed.data_ptr<T>(), false, {dg + 4 * begin * out, rows, 4 * out, 4 * out, 1}, matrix<T>(rec_weight));
    for (int64_t b = 0; b < rows; ++b)
      if (packing.valid(t, b)) std::memcpy(dh + b * out, passed.data_ptr<T>() + b * out, row_size);
  }
  variable_list gradients(7);
  Matrix<T> all{dg, num, 4 * out, 4 * out, 1};
  if (ctx->needs_input_grad(1)) gradients[1] = d_h;
  if (ctx->needs_input_grad(2)) gradients[2] = d_c;
  auto give_product = [&](size_t i, const Matrix<T>& rows) {
    if (!ctx->needs_input_grad(i)) return;
    gradients[i] = empty({4 * out, rows.columns}, x);
    product<T>(gradients[i].data_ptr<T>(), false, transposed(all), rows);
  };
  if (ctx->needs_input_grad(3)) {
    at::Tensor rows = packed<T>(x, packing, time_first);
    give_product(3, {rows.const_data_ptr<T>(), num, in, in, 1});
  }
  give_product(4, {states.const_data_ptr<T>(), num, out, out, 1});
  if (saved[5].defined() && ctx->needs_input_grad(5)) gradients[5] = sum_of_rows<T>(d_gates, num, 4 * out);
  if (!ctx->needs_input_grad(0)) return gradients;
  gradients[0] = empty(x.sizes(), x);
  T* to = gradients[0].data_ptr<T>();
  if (packing.whole && time_first) {
    product<T>(to, false, all, matrix<T>(ff_weight));
    return gradients;
  }
  at::Tensor d_rows = empty({num, in}, x);
  product<T>(d_rows.data_ptr<T>(), false, all, matrix<T>(ff_weight));
  if (!packing.whole) std::memset(to, 0, gradients[0].nbytes());
  Frames<T> d_x(gradients[0], time_first);
  const T* row = d_rows.const_data_ptr<T>();
  for (int64_t t = 0; t < packing.num_frames(); ++t)
    for (int64_t b = 0; b < packing.rows(t); ++b, row += in)
      if (packing.valid(t, b)) std::memcpy(d_x.at(t, b), row, d_x.size);
  return gradients;
}

// The same in usual ops.
variable_list sequence_of_ops(const variable_list& in, const Packing& packing, bool time_first) {
  int64_t axis = time_first ? 0 : 1;
  at::Tensor h = in[1], c = in[2];
  auto bias = in[5].defined() ? std::make_optional(in[5]) : std::nullopt;
  std::vector<at::Tensor> outputs;
  for (int64_t t = 0; t < in[0].size(axis); ++t) {
    at::Tensor valid = at::empty({h.size(0), 1}, at::kBool);
    for (int64_t b = 0; b < h.size(0); ++b) valid.data_ptr<bool>()[b] = packing.valid(t, b);
    at::Tensor zero = at::zeros({}, h.options());
    auto [new_h, new_c] = step_of_ops(at::where(valid, in[0].select(axis, t), zero), h, c, in[3], in[4], bias);
    outputs.push_back(at::where(valid, new_h, zero));
    h = at::where(valid, new_h, h);
    c = at::where(valid, new_c, c);
  }
  return {at::stack(outputs, axis), h, c};
}

Packing packing_of(const at::Tensor& x, const at::Tensor& lengths, bool time_first) {
  return {x.size(time_first ? 0 : 1), x.size(time_first ? 1 : 0), lengths};
}

Sequence run_sequence(const at::Tensor& x, const at::Tensor& h, const at::Tensor& c, const at::Tensor& ff_weight,
                      const at::Tensor& rec_weight, const at::Tensor& bias, const at::Tensor& lengths, bool time_first,
                      bool keep) {
  at::AutoDispatchBelowADInplaceOrView below;
  return with_type(x, [&](auto number) {
    return sequence_forward<decltype(number)>(with_rows(x), contiguous(h), contiguous(c), contiguous(ff_weight),
                                              contiguous(rec_weight), bias_of(bias, rec_weight),
                                              packing_of(x, lengths, time_first), time_first, keep);
  });
}

template <bool time_first> struct LstmSequence : torch::autograd::Function<LstmSequence<time_first>> {
  static variable_list forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& h, const at::Tensor& c,
                               const at::Tensor& ff_weight, const at::Tensor& rec_weight,
                               const std::optional<at::Tensor>& bias, const std::optional<at::Tensor>& lengths) {
    at::Tensor b = bias ? *bias : at::Tensor(), n = lengths ? *lengths : at::Tensor();
    Sequence s = run_sequence(x, h, c, ff_weight, rec_weight, b, n, time_first, true);
    ctx->set_materialize_grads(false);
    ctx->save_for_backward({x, h, c, ff_weight, rec_weight, b, n, s.gates, s.states, s.cells});
    return {std::move(s.y), std::move(s.h), std::move(s.c)};
  }

  static variable_list backward(AutogradContext* ctx, variable_list d) {
    variable_list saved = ctx->get_saved_variables();
    Packing packing = packing_of(saved[0], saved[6], time_first);
    if (at::GradMode::is_enabled() || !can_fuse(d, saved[0].scalar_type())) {
      saved.resize(6);
      variable_list gradients = gradients_of_ops(
          std::move(saved), d, ctx, [&](const variable_list& in) { return sequence_of_ops(in, packing, time_first); });
      gradients.emplace_back(); // of the lengths
      return gradients;
    }
    at::AutoDispatchBelowADInplaceOrView below;
    return with_type(
        saved[0], [&](auto number) { return sequence_backward<decltype(number)>(ctx, saved, d, packing, time_first); });
  }
};

// Operands as in rf/_backend_fused.py. Declines what only the kernel in Python can do.
bool k_lstm(const Payload* in, int, const Static* s, Payload* out) {
  HANDLE_TH_ERRORS
  if (!can_fuse(in, 6)) return false;
  at::Tensor x = tensor(in[0]), h = tensor(in[1]), c = tensor(in[2]), lengths = in[6] ? tensor(in[6]) : at::Tensor();
  const at::Tensor &ff_weight = tensor(in[3]), &rec_weight = tensor(in[4]);
  int64_t axis = x.dim() + s[0].integer, hidden = rec_weight.size(1);
  bool time_first = axis == 0;
  bool usual = x.dim() == 3 && h.dim() == 2 && x.size(1 - axis) == h.size(0) && h.sizes() == c.sizes() &&
               (!lengths.defined() || (lengths.dim() == 1 && lengths.size(0) == h.size(0)));
  c10::SmallVector<int64_t, 8> batch;
  if (!usual) { // broadcast, time first, one batch axis
    x = x.movedim(axis, 0);
    at::IntArrayRef sizes = x.sizes().slice(1, static_cast<size_t>(x.dim()) - 2);
    batch.append(sizes.begin(), sizes.end());
    auto broadcast = [&](at::IntArrayRef more) { batch = at::infer_size_dimvector(batch, more); };
    broadcast(h.sizes().slice(0, static_cast<size_t>(h.dim()) - 1));
    broadcast(c.sizes().slice(0, static_cast<size_t>(c.dim()) - 1));
    if (lengths.defined()) broadcast(lengths.sizes());
    int64_t rows = c10::multiply_integers(batch), frames = x.size(0), inputs = x.size(-1);
    auto with = [&](std::initializer_list<int64_t> before, std::initializer_list<int64_t> after) {
      c10::SmallVector<int64_t, 8> full(before);
      full.append(batch.begin(), batch.end());
      full.append(after.begin(), after.end());
      return full;
    };
    c10::SmallVector<int64_t, 8> aligned{frames};
    aligned.append(batch.size() + 2 - static_cast<size_t>(x.dim()), 1);
    aligned.append(x.sizes().begin() + 1, x.sizes().end());
    x = x.reshape(aligned).expand(with({frames}, {inputs})).reshape({frames, rows, inputs});
    h = h.expand(with({}, {hidden})).reshape({rows, hidden});
    c = c.expand(with({}, {hidden})).reshape({rows, hidden});
    if (lengths.defined()) lengths = lengths.expand(batch).reshape({rows}).contiguous();
    time_first = true;
  }
  std::optional<at::Tensor> bias = optional(in[5]);
  at::Tensor y;
  {
    Unlocked unlocked(x);
    if (constant(in, 6)) {
      Sequence sequence =
          run_sequence(x, h, c, ff_weight, rec_weight, bias ? *bias : at::Tensor(), lengths, time_first, false);
      y = std::move(sequence.y), h = std::move(sequence.h), c = std::move(sequence.c);
    } else {
      std::optional<at::Tensor> n;
      if (lengths.defined()) n = lengths;
      variable_list all = time_first ? LstmSequence<true>::apply(x, h, c, ff_weight, rec_weight, bias, n)
                                     : LstmSequence<false>::apply(x, h, c, ff_weight, rec_weight, bias, n);
      y = std::move(all[0]), h = std::move(all[1]), c = std::move(all[2]);
    }
  }
  if (!usual) {
    c10::SmallVector<int64_t, 8> sizes{y.size(0)};
    sizes.append(batch.begin(), batch.end());
    sizes.push_back(hidden);
    y = y.reshape(sizes);
    y = y.movedim(0, y.dim() + s[0].integer);
    sizes.erase(sizes.begin());
    h = h.reshape(sizes);
    c = c.reshape(sizes);
  }
  give(out[0], std::move(y));
  give(out[1], std::move(h));
  give(out[2], std::move(c));
  return true;
  END_HANDLE_TH_ERRORS_RET(false)
}

} // namespace
