// Fused kernels over frames of channels: depthwise convolution, batch normalization with a mask, running statistics.
//
// Both want the channels of a frame side by side in memory, which is how frontends leave them: an array (batch,
// channels, time) is then a permuted view, and so is the result.
#pragma once
#include "fused.h"
#include "node.h"

namespace {

// -- depthwise convolution: (batch, channels, time) * (channels, 1, size) -> (batch, channels, time'). Strides,
// (left, right) padding, dilation.

struct Depthwise {
  int64_t batch, channels, time, size, out_time, stride, left, right, dilation;

  Depthwise() = default;
  Depthwise(const at::Tensor& x, const at::Tensor& filter, const Static* s)
      : batch(x.size(0)), channels(x.size(1)), time(x.size(2)), size(filter.size(2)), stride(s[0].ints[0]),
        left(s[1].ints[0]), right(s[1].ints[1]), dilation(s[2].ints[0]) {
    out_time = (time + left + right - (size - 1) * dilation - 1) / stride + 1;
  }

  // Calls f(frame of x, frame of the result, position in the filter) for all that meet.
  template <class F> void each(F&& f) const {
    for (int64_t b = 0; b < batch; ++b)
      for (int64_t to = 0; to < out_time; ++to)
        for (int64_t k = 0; k < size; ++k) {
          int64_t from = to * stride + k * dilation - left;
          if (from >= 0 && from < time) f(b * time + from, b * out_time + to, k);
        }
  }
};

// Whether (batch, channels, time) lies in memory as batch, time, channels without gaps.
bool channels_last(const at::Tensor& x) {
  int64_t channels = x.size(1), time = x.size(2);
  return (channels == 1 || x.stride(1) == 1) && (time == 1 || x.stride(2) == channels) &&
         (x.size(0) == 1 || x.stride(0) == channels * time);
}

at::Tensor empty_channels_last(int64_t batch, int64_t channels, int64_t time, at::ScalarType type) {
  return empty_strided({batch, channels, time}, {time * channels, 1, channels}, type);
}

at::Tensor to_channels_last(const at::Tensor& x) {
  if (channels_last(x)) return x;
  at::AutoDispatchBelowADInplaceOrView below;
  return x.permute({0, 2, 1}).contiguous().permute({0, 2, 1});
}

// (channels, 1, size) as (size, channels).
template <class T> std::vector<T> by_position(const at::Tensor& filter) {
  int64_t channels = filter.size(0), size = filter.size(2);
  std::vector<T> result(static_cast<size_t>(channels * size));
  const T* from = filter.const_data_ptr<T>();
  for (int64_t c = 0; c < channels; ++c)
    for (int64_t k = 0; k < size; ++k)
      result[static_cast<size_t>(k * channels + c)] = from[c * filter.stride(0) + k * filter.stride(2)];
  return result;
}

struct DepthwiseNode : Fused {
  Depthwise shape;
  std::string name() const override { return "rf::DepthwiseConvBackward"; }

  ag::variable_list backward(const at::Tensor* in, const ag::variable_list& grads) override {
    ag::variable_list results(3);
    at::Tensor x = to_channels_last(in[0]), grad = to_channels_last(grads[0]);
    at::ScalarType type = x.scalar_type();
    int64_t n = shape.channels;
    if (needs(0)) results[0] = empty_channels_last(shape.batch, n, shape.time, type);
    if (needs(1)) results[1] = empty(in[1].sizes(), type);
    if (in[2].defined() && needs(2)) results[2] = empty({n}, type);
    with_type(x, [&](auto zero) {
      using T = decltype(zero);
      const T *g = grad.const_data_ptr<T>(), *input = x.const_data_ptr<T>();
      if (results[0].defined()) {
        std::vector<T> weight = by_position<T>(in[1]);
        T* dx = results[0].mutable_data_ptr<T>();
        std::fill(dx, dx + results[0].numel(), T(0));
        shape.each([&](int64_t from, int64_t to, int64_t k) {
          T* d = dx + from * n;
          const T *gradient = g + to * n, *w = weight.data() + k * n;
          RF_SIMD
          for (int64_t c = 0; c < n; ++c) d[c] += gradient[c] * w[c];
        });
      }
      if (results[1].defined()) {
        std::vector<double> sums(static_cast<size_t>(n * shape.size), 0);
        shape.each([&](int64_t from, int64_t to, int64_t k) {
          double* d = sums.data() + k * n;
          const T *gradient = g + to * n, *frame = input + from * n;
          RF_SIMD
          for (int64_t c = 0; c < n; ++c) d[c] += gradient[c] * frame[c];
        });
        T* dw = results[1].mutable_data_ptr<T>();
        for (int64_t c = 0; c < n; ++c)
          for (int64_t k = 0; k < shape.size; ++k)
            dw[c * shape.size + k] = static_cast<T>(sums[static_cast<size_t>(k * n + c)]);
      }
      if (results[2].defined()) {
        add_rows(g, shape.batch * shape.out_time, n, results[2].mutable_data_ptr<T>());
      }
    });
    return results;
  }

  ag::variable_list by_aten(const at::Tensor* in) override {
    at::Tensor x = at::constant_pad_nd(in[0], {shape.left, shape.right});
    std::optional<at::Tensor> bias = in[2].defined() ? std::optional<at::Tensor>(in[2]) : std::nullopt;
    return {at::convolution(x, in[1], bias, {shape.stride}, {0}, {shape.dilation}, false, {0}, shape.channels)};
  }
};

bool can_fuse_depthwise(const Payload* in, const Static* s) {
  const at::Tensor &x = tensor(in[0]), &filter = tensor(in[1]);
  if (s[0].ints.size() != 1 || x.dim() != 3 || x.numel() == 0 || filter.numel() == 0) return false;
  if (s[3].integer != x.size(1) || filter.size(0) != x.size(1) || filter.size(1) != 1) return false;
  if (x.size(2) + s[1].ints[0] + s[1].ints[1] < (filter.size(2) - 1) * s[2].ints[0] + 1) return false;
  return channels_last(x);
}

at::Tensor fused_depthwise(const Payload* in, const Static* s, Record record) {
  const at::Tensor &x = tensor(in[0]), &filter = tensor(in[1]);
  Depthwise shape(x, filter, s);
  int64_t n = shape.channels;
  at::Tensor y = empty_channels_last(shape.batch, n, shape.out_time, x.scalar_type());
  at::Tensor bias = in[2] ? dense(tensor(in[2])) : at::Tensor();
  with_type(x, [&](auto zero) {
    using T = decltype(zero);
    std::vector<T> weight = by_position<T>(filter);
    const T* input = x.const_data_ptr<T>();
    const T* offset = bias.defined() ? bias.const_data_ptr<T>() : nullptr;
    T* output = y.mutable_data_ptr<T>();
    for (int64_t i = 0; i < shape.batch * shape.out_time; ++i)
      for (int64_t c = 0; c < n; ++c) output[i * n + c] = offset ? offset[c] : T(0);
    shape.each([&](int64_t from, int64_t to, int64_t k) {
      T* out = output + to * n;
      const T *frame = input + from * n, *w = weight.data() + k * n;
      RF_SIMD
      for (int64_t c = 0; c < n; ++c) out[c] += frame[c] * w[c];
    });
  });
  if (record == Record::kYes) {
    auto node = make_node<DepthwiseNode>();
    node->shape = shape;
    node->keep_operands(in, 3);
    set_history(y, node);
  }
  return y;
}

// -- batch normalization by the statistics of the unmasked entries; see NeuralNetKernels in rf/_backend_nn.py

// (y, mean, variance) by ATen. A mask and the parameters broadcast against x.
std::array<at::Tensor, 3> batch_norm_by_aten(at::Tensor x, const at::Tensor& mask, const at::Tensor& gamma,
                                             const at::Tensor& beta, const std::vector<int64_t>& axes, double eps) {
  at::ScalarType type = x.scalar_type();
  at::Tensor mean, variance, count;
  if (mask.defined()) {
    int64_t repeats = 1;
    for (int64_t a : axes)
      if (mask.size(a) == 1) repeats *= x.size(a);
    count = at::clamp_min(at::mul(at::sum(mask, type), repeats), 1);
    x = at::where(mask, x, 0.0);
  } else {
    int64_t covered = 1;
    for (int64_t a : axes) covered *= x.size(a);
    count = at::full({}, static_cast<double>(std::max<int64_t>(covered, 1)), x.options());
  }
  mean = at::div(at::sum(x, axes, true, type), count);
  x = at::sub(x, mean);
  if (mask.defined()) x = at::where(mask, x, 0.0);
  variance = at::div(at::sum(at::square(x), axes, true, type), count);
  at::Tensor factor = at::rsqrt(at::add(variance, eps));
  if (gamma.defined()) factor = at::mul(gamma, factor);
  at::Tensor y = at::mul(x, factor);
  if (beta.defined()) y = at::add(y, beta);
  return {y, mean.squeeze(axes), variance.squeeze(axes)};
}

// The frames of an array, and which of them count: for each index of the axes but that of the channels.
struct FrameList {
  std::vector<int64_t> offsets; // of the channels of each frame, in memory
  std::vector<uint8_t> valid;
  int64_t num_valid = 0;

  FrameList() = default;
  FrameList(const at::Tensor& x, int64_t channel_axis, const at::Tensor& mask) {
    int64_t n = x.numel() / x.size(channel_axis);
    offsets.resize(static_cast<size_t>(n));
    valid.resize(static_cast<size_t>(n));
    if (!mask.defined()) { // all of them, in whatever order
      std::fill(valid.begin(), valid.end(), 1);
      num_valid = n;
      for (int64_t i = 0; i < n; ++i) offsets[static_cast<size_t>(i)] = i * x.size(channel_axis);
      return;
    }
    const bool* flags = mask.const_data_ptr<bool>();
    c10::SmallVector<int64_t, 8> index(static_cast<size_t>(x.dim()), 0);
    for (size_t i = 0; i < offsets.size(); ++i) {
      int64_t at = 0, at_mask = 0;
      for (int64_t a = 0; a < x.dim(); ++a) {
        auto k = static_cast<size_t>(a);
        at += index[k] * x.stride(a);
        if (mask.size(a) > 1) at_mask += index[k] * mask.stride(a);
      }
      offsets[i] = at;
      valid[i] = flags[at_mask];
      num_valid += valid[i];
      for (int64_t a = x.dim() - 1; a >= 0; --a) {
        if (a == channel_axis) continue;
        if (++index[static_cast<size_t>(a)] < x.size(a)) break;
        index[static_cast<size_t>(a)] = 0;
      }
    }
  }
};

int64_t channel_axis(const at::Tensor& x, const std::vector<int64_t>& axes) {
  for (int64_t a = 0; a < x.dim(); ++a)
    if (std::find(axes.begin(), axes.end(), a) == axes.end()) return a;
  return -1;
}

struct BatchNormNode : Fused { // operands: x, gamma, beta; kept: means and 1 / deviations, mask
  FrameList frames;
  std::vector<int64_t> axes;
  double eps = 0;
  std::string name() const override { return "rf::BatchNormBackward"; }

  bool usual(const ag::variable_list& grads) const override {
    return grads[0].defined() && !grads[1].defined() && !grads[2].defined() && direct(grads[0]);
  }

  ag::variable_list backward(const at::Tensor* in, const ag::variable_list& grads) override {
    ag::variable_list results(3);
    const at::Tensor& x = in[0];
    at::ScalarType type = x.scalar_type();
    at::Tensor grad = grads[0];
    if (grad.strides() != x.strides()) {
      at::AutoDispatchBelowADInplaceOrView below;
      grad = empty_strided(x.sizes(), x.strides(), type).copy_(grads[0]);
    }
    int64_t n = x.size(channel_axis(x, axes));
    if (needs(0)) results[0] = empty_strided(x.sizes(), x.strides(), type);
    for (int i : {1, 2})
      if (in[i].defined() && needs(i)) results[static_cast<size_t>(i)] = empty(in[i].sizes(), type);
    at::Tensor gamma = in[1].defined() ? dense(in[1]) : at::Tensor();
    with_type(x, [&](auto zero) {
      using T = decltype(zero);
      const T *g = grad.const_data_ptr<T>(), *input = x.const_data_ptr<T>(), *mean = kept[0].const_data_ptr<T>(),
              *inverse = mean + n;
      std::vector<double> sums(static_cast<size_t>(3 * n), 0);
      double *sum = sums.data(), *dot = sum + n, *sum_all = dot + n;
      for (size_t i = 0; i < frames.offsets.size(); ++i) {
        const T *gi = g + frames.offsets[i], *xi = input + frames.offsets[i];
        RF_SIMD
        for (int64_t c = 0; c < n; ++c) sum_all[c] += gi[c];
        if (!frames.valid[i]) continue;
        RF_SIMD
        for (int64_t c = 0; c < n; ++c) {
          sum[c] += gi[c];
          dot[c] += gi[c] * (xi[c] - mean[c]) * inverse[c];
        }
      }
      if (results[1].defined()) std::copy(dot, dot + n, results[1].mutable_data_ptr<T>());
      if (results[2].defined()) std::copy(sum_all, sum_all + n, results[2].mutable_data_ptr<T>());
      if (!results[0].defined()) return;
      const T* scale = gamma.defined() ? gamma.const_data_ptr<T>() : nullptr;
      T* dx = results[0].mutable_data_ptr<T>();
      for (size_t c = 0; c < static_cast<size_t>(2 * n); ++c)
        sums[c] /= static_cast<double>(std::max<int64_t>(frames.num_valid, 1));
      std::vector<T> means(sums.begin(), sums.begin() + 2 * n);
      const T *mean_sum = means.data(), *mean_dot = mean_sum + n;
      for (size_t i = 0; i < frames.offsets.size(); ++i) {
        const T *gi = g + frames.offsets[i], *xi = input + frames.offsets[i];
        T* di = dx + frames.offsets[i];
        if (!frames.valid[i]) {
          std::fill(di, di + n, T(0));
          continue;
        }
        RF_SIMD
        for (int64_t c = 0; c < n; ++c)
          di[c] = (gi[c] - mean_sum[c] - (xi[c] - mean[c]) * inverse[c] * mean_dot[c]) * inverse[c] *
                  (scale ? scale[c] : T(1));
      }
    });
    return results;
  }

  ag::variable_list by_aten(const at::Tensor* in) override {
    auto results = batch_norm_by_aten(in[0], kept[1], in[1], in[2], axes, eps);
    return {results.begin(), results.end()};
  }
};

// The same without a mask, for an array in order (outer..., channels, inner...), such as images: each channel lies in
// pieces of `inner` entries.
struct Planes {
  int64_t outer = 1, channels = 1, inner = 1;
  Planes() = default;
  Planes(const at::Tensor& x, int64_t channel_axis) : channels(x.size(channel_axis)) {
    for (int64_t a = 0; a < x.dim(); ++a)
      (a < channel_axis ? outer : a > channel_axis ? inner : channels) *= a == channel_axis ? 1 : x.size(a);
  }
  // f(first entry) for each piece of a channel.
  template <class F> void each(int64_t channel, F&& f) const {
    for (int64_t o = 0; o < outer; ++o) f((o * channels + channel) * inner);
  }
  int64_t count() const { return outer * inner; }
};

struct PlanesNormNode : Fused { // operands: x, gamma, beta; kept: mean and 1 / deviation, one after the other
  Planes planes;
  std::vector<int64_t> axes;
  double eps = 0;
  std::string name() const override { return "rf::BatchNormBackward"; }

  bool usual(const ag::variable_list& grads) const override {
    return grads[0].defined() && !grads[1].defined() && !grads[2].defined() && direct(grads[0]);
  }

  ag::variable_list backward(const at::Tensor* in, const ag::variable_list& grads) override {
    ag::variable_list results(3);
    at::ScalarType type = in[0].scalar_type();
    at::Tensor grad = dense(grads[0]), gamma = in[1].defined() ? dense(in[1]) : at::Tensor();
    if (needs(0)) results[0] = empty(in[0].sizes(), type);
    for (int i : {1, 2})
      if (in[i].defined() && needs(i)) results[static_cast<size_t>(i)] = empty(in[i].sizes(), type);
    with_type(grad, [&](auto zero) {
      using T = decltype(zero);
      const T *g = grad.const_data_ptr<T>(), *x = in[0].const_data_ptr<T>(), *means = kept[0].const_data_ptr<T>(),
              *inverses = means + planes.channels;
      const T* scale = gamma.defined() ? gamma.const_data_ptr<T>() : nullptr;
      T *dx = results[0].defined() ? results[0].mutable_data_ptr<T>() : nullptr,
        *dgamma = results[1].defined() ? results[1].mutable_data_ptr<T>() : nullptr,
        *dbeta = results[2].defined() ? results[2].mutable_data_ptr<T>() : nullptr;
      int64_t n = planes.inner;
      for (int64_t c = 0; c < planes.channels; ++c) {
        double sum = 0, dot = 0;
        T mean = means[c], inverse = inverses[c];
        planes.each(c, [&](int64_t at) {
          const T *gi = g + at, *xi = x + at;
          T piece_sum = 0, piece_dot = 0;
          RF_SIMD_SUM(piece_sum, piece_dot)
          for (int64_t i = 0; i < n; ++i) {
            piece_sum += gi[i];
            piece_dot += gi[i] * (xi[i] - mean);
          }
          sum += piece_sum;
          dot += piece_dot;
        });
        dot *= inverse;
        if (dgamma) dgamma[c] = static_cast<T>(dot);
        if (dbeta) dbeta[c] = static_cast<T>(sum);
        if (!dx) continue;
        double count = static_cast<double>(planes.count());
        T factor = inverse * (scale ? scale[c] : T(1)), offset = static_cast<T>(sum / count),
          slope = static_cast<T>(dot * inverse / count);
        planes.each(c, [&](int64_t at) {
          const T *gi = g + at, *xi = x + at;
          T* di = dx + at;
          RF_SIMD
          for (int64_t i = 0; i < n; ++i) di[i] = (gi[i] - offset - (xi[i] - mean) * slope) * factor;
        });
      }
    });
    return results;
  }

  ag::variable_list by_aten(const at::Tensor* in) override {
    auto results = batch_norm_by_aten(in[0], at::Tensor(), in[1], in[2], axes, eps);
    return {results.begin(), results.end()};
  }
};

bool can_fuse_planes_norm(const Payload* in, const std::vector<int64_t>& axes) {
  const at::Tensor& x = tensor(in[0]);
  Payload floats[3] = {in[0], in[2], in[3]};
  if (in[1] || !fusable(floats, 3) || x.numel() == 0 || static_cast<int64_t>(axes.size()) != x.dim() - 1) return false;
  int64_t n = x.size(channel_axis(x, axes));
  for (int i : {2, 3})
    if (in[i] && tensor(in[i]).numel() != n) return false;
  return x.is_contiguous();
}

void fused_planes_norm(const Payload* in, const std::vector<int64_t>& axes, double eps, Record record, Payload* out) {
  const at::Tensor& x = tensor(in[0]);
  Planes planes(x, channel_axis(x, axes));
  int64_t channels = planes.channels, n = planes.inner;
  at::ScalarType type = x.scalar_type();
  at::Tensor y = empty(x.sizes(), type), mean = empty({channels}, type), variance = empty({channels}, type);
  at::Tensor statistics = record == Record::kYes ? empty({2 * channels}, type) : at::Tensor();
  at::Tensor gamma = in[2] ? dense(tensor(in[2])) : at::Tensor(), beta = in[3] ? dense(tensor(in[3])) : at::Tensor();
  with_type(x, [&](auto zero) {
    using T = decltype(zero);
    const T* from = x.const_data_ptr<T>();
    const T *scale = gamma.defined() ? gamma.const_data_ptr<T>() : nullptr,
            *offset = beta.defined() ? beta.const_data_ptr<T>() : nullptr;
    T *to = y.mutable_data_ptr<T>(), *means = mean.mutable_data_ptr<T>(), *variances = variance.mutable_data_ptr<T>(),
      *kept = statistics.defined() ? statistics.mutable_data_ptr<T>() : nullptr;
    double count = static_cast<double>(planes.count());
    for (int64_t c = 0; c < channels; ++c) {
      double total = 0, squares = 0;
      planes.each(c, [&](int64_t at) {
        const T* piece = from + at;
        T sum = 0;
        RF_SIMD_SUM(sum)
        for (int64_t i = 0; i < n; ++i) sum += piece[i];
        total += sum;
      });
      T m = static_cast<T>(total / count);
      planes.each(c, [&](int64_t at) {
        const T* piece = from + at;
        T sum = 0;
        RF_SIMD_SUM(sum)
        for (int64_t i = 0; i < n; ++i) sum += (piece[i] - m) * (piece[i] - m);
        squares += sum;
      });
      T v = static_cast<T>(squares / count);
      T inverse = 1 / std::sqrt(v + static_cast<T>(eps));
      T factor = inverse * (scale ? scale[c] : T(1)), shift = offset ? offset[c] : T(0);
      planes.each(c, [&](int64_t at) {
        const T* piece = from + at;
        T* result = to + at;
        RF_SIMD
        for (int64_t i = 0; i < n; ++i) result[i] = (piece[i] - m) * factor + shift;
      });
      means[c] = m;
      variances[c] = v;
      if (kept) {
        kept[c] = m;
        kept[channels + c] = inverse;
      }
    }
  });
  if (record == Record::kYes) {
    auto node = make_node<PlanesNormNode>();
    node->planes = planes;
    node->axes = axes;
    node->eps = eps;
    node->kept[0] = std::move(statistics);
    Payload operands[3] = {in[0], in[2], in[3]};
    node->keep_operands(operands, 3);
    set_history(y, node);
    set_history(mean, node);
    set_history(variance, node);
  }
  give(out[0], std::move(y));
  give(out[1], std::move(mean));
  give(out[2], std::move(variance));
}

// x, mask, gamma, beta. The channels of a frame side by side, and no gaps.
bool can_fuse_batch_norm(const Payload* in, const std::vector<int64_t>& axes) {
  const at::Tensor& x = tensor(in[0]);
  Payload floats[3] = {in[0], in[2], in[3]};
  if (!fusable(floats, 3) || x.numel() == 0 || static_cast<int64_t>(axes.size()) != x.dim() - 1) return false;
  int64_t axis = channel_axis(x, axes), n = x.size(axis);
  if ((x.stride(axis) != 1 && n > 1) || !x.is_non_overlapping_and_dense()) return false;
  for (int i : {2, 3})
    if (in[i] && tensor(in[i]).numel() != n) return false;
  if (!in[1]) return true;
  const at::Tensor& mask = tensor(in[1]);
  return direct(mask) && mask.scalar_type() == at::kBool && mask.size(axis) == 1;
}

void fused_batch_norm(const Payload* in, const std::vector<int64_t>& axes, double eps, Record record, Payload* out) {
  const at::Tensor& x = tensor(in[0]);
  at::Tensor mask = in[1] ? tensor(in[1]) : at::Tensor();
  int64_t axis = channel_axis(x, axes), n = x.size(axis);
  FrameList frames(x, axis, mask);
  at::ScalarType type = x.scalar_type();
  at::Tensor y = empty_strided(x.sizes(), x.strides(), type), mean = empty({n}, type), variance = empty({n}, type);
  at::Tensor statistics = empty({2, n}, type), gamma = in[2] ? dense(tensor(in[2])) : at::Tensor(),
             beta = in[3] ? dense(tensor(in[3])) : at::Tensor();
  with_type(x, [&](auto zero) {
    using T = decltype(zero);
    const T* input = x.const_data_ptr<T>();
    T *m = mean.mutable_data_ptr<T>(), *v = variance.mutable_data_ptr<T>(), *inv = statistics.mutable_data_ptr<T>() + n;
    T* to = y.mutable_data_ptr<T>();
    const T *scale = gamma.defined() ? gamma.const_data_ptr<T>() : nullptr,
            *offset = beta.defined() ? beta.const_data_ptr<T>() : nullptr;
    double count = static_cast<double>(std::max<int64_t>(frames.num_valid, 1));
    std::vector<double> sums(static_cast<size_t>(2 * n), 0);
    double *sum = sums.data(), *squares = sum + n;
    for (size_t i = 0; i < frames.offsets.size(); ++i) {
      if (!frames.valid[i]) continue;
      const T* frame = input + frames.offsets[i];
      RF_SIMD
      for (int64_t c = 0; c < n; ++c) sum[c] += frame[c];
    }
    for (int64_t c = 0; c < n; ++c) m[c] = static_cast<T>(sum[c] / count);
    for (size_t i = 0; i < frames.offsets.size(); ++i) {
      if (!frames.valid[i]) continue;
      const T* frame = input + frames.offsets[i];
      RF_SIMD
      for (int64_t c = 0; c < n; ++c) squares[c] += (frame[c] - m[c]) * (frame[c] - m[c]);
    }
    for (int64_t c = 0; c < n; ++c) {
      v[c] = static_cast<T>(squares[c] / count);
      inv[c] = 1 / std::sqrt(v[c] + static_cast<T>(eps));
    }
    std::copy(m, m + n, inv - n);
    for (size_t i = 0; i < frames.offsets.size(); ++i) {
      const T* frame = input + frames.offsets[i];
      T* result = to + frames.offsets[i];
      if (frames.valid[i]) {
        RF_SIMD
        for (int64_t c = 0; c < n; ++c)
          result[c] = (frame[c] - m[c]) * inv[c] * (scale ? scale[c] : T(1)) + (offset ? offset[c] : T(0));
      } else {
        for (int64_t c = 0; c < n; ++c) result[c] = offset ? offset[c] : T(0);
      }
    }
  });
  if (record == Record::kYes) {
    auto node = make_node<BatchNormNode>();
    node->frames = std::move(frames);
    node->axes = axes;
    node->eps = eps;
    node->kept[0] = std::move(statistics);
    node->kept[1] = std::move(mask);
    Payload operands[3] = {in[0], in[2], in[3]};
    node->keep_operands(operands, 3);
    set_history(y, node);
    set_history(mean, node);
    set_history(variance, node);
  }
  give(out[0], std::move(y));
  give(out[1], std::move(mean));
  give(out[2], std::move(variance));
}

// -- batch normalization by given statistics: x, mean, variance, gamma, beta, without gradients

// The axis of x that the parameters belong to; they have 1 along the others.
int64_t axis_of_parameters(const at::Tensor& x, const at::Tensor& mean) {
  int64_t axis = 0;
  while (axis + 1 < mean.dim() && mean.size(axis) == 1) ++axis;
  return x.dim() - mean.dim() + axis;
}

bool can_fuse_norm_apply(const Payload* in) {
  const at::Tensor &x = tensor(in[0]), &mean = tensor(in[1]);
  if (x.numel() == 0 || mean.dim() == 0 || mean.dim() > x.dim()) return false;
  int64_t axis = axis_of_parameters(x, mean), n = x.size(axis);
  for (int i = 1; i < 5; ++i) {
    if (!in[i]) continue;
    const at::Tensor& t = tensor(in[i]);
    if (t.numel() != n || t.sizes() != mean.sizes() || mean.size(axis - x.dim()) != n || !t.is_contiguous())
      return false;
  }
  return x.is_contiguous() || (x.stride(axis) == 1 && x.is_non_overlapping_and_dense());
}

at::Tensor fused_norm_apply(const Payload* in, double eps) {
  const at::Tensor& x = tensor(in[0]);
  int64_t axis = axis_of_parameters(x, tensor(in[1])), channels = x.size(axis), total = x.numel();
  at::Tensor y = empty_strided(x.sizes(), x.strides(), x.scalar_type());
  with_type(x, [&](auto zero) {
    using T = decltype(zero);
    auto data = [&](int i) { return in[i] ? tensor(in[i]).const_data_ptr<T>() : nullptr; };
    const T *from = data(0), *mean = data(1), *variance = data(2), *gamma = data(3), *beta = data(4);
    T* to = y.mutable_data_ptr<T>();
    std::vector<T> factors(static_cast<size_t>(2 * channels));
    T *factor = factors.data(), *shift = factor + channels;
    for (int64_t c = 0; c < channels; ++c) {
      factor[c] = (gamma ? gamma[c] : T(1)) / std::sqrt(variance[c] + static_cast<T>(eps));
      shift[c] = (beta ? beta[c] : T(0)) - mean[c] * factor[c];
    }
    int64_t inner = x.is_contiguous() ? c10::multiply_integers(x.sizes().slice(static_cast<size_t>(axis) + 1)) : 1;
    if (inner == 1) { // the channels of a frame side by side
      for (int64_t i = 0; i < total; i += channels) {
        RF_SIMD
        for (int64_t c = 0; c < channels; ++c) to[i + c] = from[i + c] * factor[c] + shift[c];
      }
      return;
    }
    for (int64_t i = 0, c = 0; i < total; i += inner, c = c + 1 == channels ? 0 : c + 1) {
      T f = factor[c], s = shift[c];
      RF_SIMD
      for (int64_t j = 0; j < inner; ++j) to[i + j] = from[i + j] * f + s;
    }
  });
  return y;
}

// parameter + weight * (value - parameter), in place.
bool k_move_toward(const Payload* in, int, const Static* s, Payload* out) {
  HANDLE_TH_ERRORS
  at::Tensor parameter = tensor(in[0]);
  at::NoGradGuard no_grad;
  parameter.lerp_(tensor(in[1]), s[0].number);
  give(out[0], std::move(parameter));
  return true;
  END_HANDLE_TH_ERRORS_RET(false)
}

} // namespace
