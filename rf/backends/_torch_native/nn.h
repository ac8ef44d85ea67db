// Contraction, normalizing, attention, dropout, losses.
#pragma once
#include "fused.h"
#include "fused_attention.h"
#include "fused_conv.h"

namespace {

// -- normalizing

RF_FRESH(softmax, 1, at::softmax(x, s[0].integer))
RF_FRESH(log_softmax, 1, at::log_softmax(x, s[0].integer))

// An array in host memory, and nobody who traces, transforms or simulates what is done to it.
bool plain(const at::Tensor& x) {
  constexpr c10::DispatchKeySet special({c10::DispatchKey::Python, c10::DispatchKey::FuncTorchBatched,
                                         c10::DispatchKey::FuncTorchGradWrapper, c10::DispatchKey::Functionalize});
  return x.is_cpu() && !x.key_set().has_any(special) && !c10::impl::dispatch_mode_enabled();
}

// What is masked out, as a contiguous array of the shape of x, for ATen's masked softmax; undefined if all of a row is,
// which that function does not allow. The layers of a model ask for the same one again and again, so the last ones are
// kept; they are recognized by their mask, which is referred to weakly. Call it while holding the lock.
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
  c10::InferenceMode normal(false); // what is kept may be used with gradients later
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

// ATen's masked softmax does everything in one pass, but only element by element: with more data the vectorized softmax
// is ahead.
constexpr int64_t kFusedMaskLimit = 2048;

at::Tensor masked_softmax(const at::Tensor& x, const at::Tensor& mask, int64_t axis, bool below_autograd) {
  // ATen's kernel writes its result as if it lay like a contiguous operand.
  if (x.numel() <= kFusedMaskLimit && x.numel() > 0 && x.scalar_type() == at::kFloat && plain(x) && x.is_contiguous()) {
    const at::Tensor& padding = padding_of(mask, x, axis);
    if (padding.defined()) return evaluate(x, below_autograd, [&] { return at::_masked_softmax(x, padding, axis, 2); });
  }
  return evaluate(x, below_autograd, [&] { return masked_softmax_by_aten(x, mask, axis); });
}

bool k_masked_softmax(const Payload* in, int, const Static* s, Payload* out) {
  HANDLE_TH_ERRORS
  const at::Tensor& x = tensor(in[0]);
  Record record = record_of(in, 1);
  if (record != Record::kForwardMode && s[0].integer == x.dim() - 1 && fusable(in, 1) && can_fuse_weights(x, in[1]))
    give(out[0], fused_weights(in, 1, in[1], 1, false, record));
  else
    give(out[0], masked_softmax(x, tensor(in[1]), s[0].integer, record == Record::kNo));
  return true;
  END_HANDLE_TH_ERRORS_RET(false)
}

bool k_masked_log_softmax(const Payload* in, int, const Static* s, Payload* out) {
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

at::Tensor rms_norm(const at::Tensor& x, const Payload* in, const Static* s) {
  at::Tensor y = at::rms_norm(x, last_sizes(x, s[0].integer), optional(in[1]), s[1].number);
  return in[2] ? at::add(y, tensor(in[2])) : y;
}
RF_FRESH(rms_norm, 3, rms_norm(x, in, s))

// -- attention

// Bool (query, key): whether key <= query. Every layer asks for the same one. Call it while holding the lock.
const at::Tensor& causal_mask(const at::Tensor& x) {
  static std::unordered_map<uint64_t, at::Tensor> cache;
  int64_t n_query = x.size(-2), n_key = x.size(-1);
  uint64_t key = static_cast<uint64_t>(n_query) << 32 | static_cast<uint64_t>(n_key);
  auto found = cache.find(key);
  if (found != cache.end() && found->second.device() == x.device()) return found->second;
  if (cache.size() >= 16) cache.clear();
  c10::InferenceMode normal(false); // what is kept may be used with gradients later
  at::TensorOptions options = at::TensorOptions().dtype(at::kLong).device(x.device());
  at::Tensor& mask = cache[key];
  mask = at::le(at::arange(n_key, options), at::arange(n_query, options).unsqueeze(1));
  return mask;
}

// Softmax over the last axis of (..., query, key) of what an optional mask lets through, and if causal, of keys up to
// the query only.
at::Tensor attention_softmax(const at::Tensor& x, const Payload& mask, bool causal, bool below) {
  int64_t axis = x.dim() - 1;
  if (!causal && !mask) return evaluate(x, below, [&] { return at::softmax(x, axis); });
  if (!causal) return masked_softmax(x, tensor(mask), axis, below);
  // Under a transformation or a simulation nothing is taken from the cache, nor put there.
  at::Tensor visible = plain(x) || !c10::impl::dispatch_mode_enabled() ? causal_mask(x) : at::Tensor();
  if (!visible.defined()) visible = visible_by_aten(x, at::Tensor(), true);
  if (mask) visible = at::logical_and(tensor(mask), visible);
  return masked_softmax(x, visible, axis, below);
}

bool k_attention_softmax(const Payload* in, int, const Static* s, Payload* out) {
  HANDLE_TH_ERRORS
  const at::Tensor& x = tensor(in[0]);
  bool causal = s[0].integer != 0;
  Record record = record_of(in, 1);
  if (record != Record::kForwardMode && fusable(in, 1) && can_fuse_weights(x, in[1]))
    give(out[0], fused_weights(in, 1, in[1], 1, causal, record));
  else
    give(out[0], attention_softmax(x, in[1], causal, record == Record::kNo));
  return true;
  END_HANDLE_TH_ERRORS_RET(false)
}

// (content[..., i, j] + position[..., i, j - i + (n_query - 1)]) * factor. Without gradients, the shifted positions are
// a view: row i begins one element earlier than the one before. The gradient of such a view is slow, so with gradients
// it is padded and reshaped (Dai et al. 2019, arXiv:1901.02860).
at::Tensor add_rel_shifted(const at::Tensor& content, const at::Tensor& position, const at::Tensor& factor,
                           bool below) {
  int64_t n_query = content.size(-2), n_key = content.size(-1), n_pos = position.size(-1);
  if (n_query == 0 || n_key == 0) return content.clone();
  at::Tensor shifted;
  if (below && plain(content) && plain(position)) {
    at::Tensor p = position.contiguous();
    c10::SmallVector<int64_t, 8> sizes(p.sizes().begin(), p.sizes().end());
    c10::SmallVector<int64_t, 8> strides(p.strides().begin(), p.strides().end());
    sizes.back() = n_key;
    strides[strides.size() - 2] = n_pos - 1;
    strides.back() = 1;
    shifted = at::as_strided(p, sizes, strides, p.storage_offset() + n_query - 1);
    return at::mul(at::add(content, shifted), factor);
  }
  return at::mul(rel_shifted_by_aten(content, position), factor);
}

bool k_rel_attention_softmax(const Payload* in, int, const Static* s, Payload* out) {
  HANDLE_TH_ERRORS
  const at::Tensor& content = tensor(in[0]);
  double factor = s[0].number;
  bool causal = s[1].integer != 0;
  Record record = record_of(in, 2);
  if (record != Record::kForwardMode && fusable(in, 2) && can_fuse_weights(content, in[2])) {
    give(out[0], fused_weights(in, 2, in[2], factor, causal, record));
    return true;
  }
  bool below = record == Record::kNo;
  const at::Tensor& scale = scalar_of(factor, content.scalar_type());
  at::Tensor scores = evaluate(content, below, [&] { return add_rel_shifted(content, tensor(in[1]), scale, below); });
  give(out[0], attention_softmax(scores, in[2], causal, below));
  return true;
  END_HANDLE_TH_ERRORS_RET(false)
}

// -- batch normalization; see NeuralNetKernels in rf/_backend_nn.py

// A parameter that broadcasts against x, as the vector over channels that ATen wants.
std::optional<at::Tensor> channels(const Payload& p) {
  if (!p) return std::nullopt;
  return tensor(p).reshape({tensor(p).numel()});
}

// Whether ATen's batch norm can be had: float32 with the channels on axis 1.
bool has_fused_batch_norm(const at::Tensor& x, const std::vector<int64_t>& axes) {
  return x.scalar_type() == at::kFloat && x.numel() > 0 && x.dim() >= 2 &&
         std::find(axes.begin(), axes.end(), 1) == axes.end() && static_cast<int64_t>(axes.size()) == x.dim() - 1;
}

bool k_batch_norm_of_batch(const Payload* in, int, const Static* s, Payload* out) {
  HANDLE_TH_ERRORS
  const at::Tensor& x = tensor(in[0]);
  const std::vector<int64_t>& axes = s[0].ints;
  Record record = record_of(in, 4);
  if (record != Record::kForwardMode && can_fuse_planes_norm(in, axes)) {
    Unlocked unlocked(x);
    fused_planes_norm(in, axes, s[1].number, record, out);
    return true;
  }
  if (record != Record::kForwardMode && can_fuse_batch_norm(in, axes)) {
    Unlocked unlocked(x);
    fused_batch_norm(in, axes, s[1].number, record, out);
    return true;
  }
  if (!in[1] && has_fused_batch_norm(x, axes)) {
    auto [y, mean, inverse] =
        at::native_batch_norm(x, channels(in[2]), channels(in[3]), std::nullopt, std::nullopt, true, 0, s[1].number);
    at::Tensor variance = at::sub(at::reciprocal(at::square(inverse)), scalar_of(s[1].number, at::kFloat));
    give(out[0], std::move(y));
    give(out[1], std::move(mean));
    give(out[2], std::move(variance));
    return true;
  }
  auto some = [](const Payload& p) { return p ? tensor(p) : at::Tensor(); };
  auto results = batch_norm_by_aten(x, some(in[1]), some(in[2]), some(in[3]), axes, s[1].number);
  for (size_t i = 0; i < 3; ++i) give(out[i], std::move(results[i]));
  return true;
  END_HANDLE_TH_ERRORS_RET(false)
}

bool k_batch_norm_apply(const Payload* in, int, const Static* s, Payload* out) {
  HANDLE_TH_ERRORS
  const at::Tensor& x = tensor(in[0]);
  const at::Tensor& mean = tensor(in[1]);
  if (record_of(in, 5) == Record::kNo && fusable(in, 5) && can_fuse_norm_apply(in)) {
    Unlocked unlocked(x);
    give(out[0], fused_norm_apply(in, s[0].number));
    return true;
  }
  // The parameters lie along axis 1: their leading axes of length 1 are left out.
  if (x.scalar_type() == at::kFloat && x.numel() > 0 && x.dim() - mean.dim() == 1 && mean.dim() >= 1 &&
      mean.size(0) == mean.numel()) {
    give(out[0], evaluate(x, constant(in, 5), [&] {
           return std::get<0>(at::native_batch_norm(x, channels(in[3]), channels(in[4]), channels(in[1]),
                                                    channels(in[2]), false, 0, s[0].number));
         }));
    return true;
  }
  const at::Tensor& eps = scalar_of(s[0].number, tensor(in[2]).scalar_type());
  give(out[0], evaluate(x, constant(in, 5), [&] {
         at::Tensor factor = at::rsqrt(at::add(tensor(in[2]), eps));
         if (in[3]) factor = at::mul(tensor(in[3]), factor);
         at::Tensor y = at::mul(at::sub(x, tensor(in[1])), factor);
         return in[4] ? at::add(y, tensor(in[4])) : y;
       }));
  return true;
  END_HANDLE_TH_ERRORS_RET(false)
}

// -- convolution, loss

// Whether the convolution of images is quicker with the channels side by side. For small ones it is, as oneDNN need not
// rearrange them then; for large ones it depends on the layer, and whole networks gain nothing. Measured with
// ResNet-18.
bool channels_last_pays(const at::Tensor& x, const at::Tensor& filter, int64_t groups) {
  return x.dim() == 4 && groups == 1 && x.scalar_type() == at::kFloat && direct(x) && direct(filter) && x.numel() > 0 &&
         x.numel() <= 65536 && filter.numel() <= 65536;
}

// (batch..., in, space...) * (out, in / groups, size...): s = strides, (left, right) paddings, dilations, groups. Where
// there is no window, ATen is given room for one, which is dropped again.
at::Tensor conv(at::Tensor x, at::Tensor filter, const std::optional<at::Tensor>& bias, const Static* s) {
  const std::vector<int64_t>&strides = s[0].ints, &edges = s[1].ints, &dilations = s[2].ints;
  auto n = static_cast<int64_t>(strides.size());
  int64_t num_batch = x.dim() - n - 1;
  c10::SmallVector<int64_t, 8> batch(x.sizes().begin(), x.sizes().begin() + num_batch);
  if (num_batch != 1) {
    c10::SmallVector<int64_t, 8> sizes{c10::multiply_integers(batch)};
    sizes.append(x.sizes().begin() + num_batch, x.sizes().end());
    x = x.reshape(sizes);
  }
  if (channels_last_pays(x, filter, s[3].integer)) {
    x = x.contiguous(at::MemoryFormat::ChannelsLast);
    filter = filter.contiguous(at::MemoryFormat::ChannelsLast);
  }
  c10::SmallVector<int64_t, 3> padding, no_padding(static_cast<size_t>(n), 0);
  c10::SmallVector<int64_t, 6> pad(static_cast<size_t>(2 * n), 0);
  bool symmetric = true, short_of_window = false;
  c10::SmallVector<bool, 3> short_axes;
  for (int64_t i = 0; i < n; ++i) {
    int64_t length = x.size(2 + i), left = edges[2 * i], right = edges[2 * i + 1];
    int64_t missing = std::max<int64_t>((filter.size(2 + i) - 1) * dilations[i] + 1 - length - left - right, 0);
    short_axes.push_back(missing > 0);
    short_of_window = short_of_window || missing > 0;
    right += missing;
    padding.push_back(left);
    pad[2 * (n - 1 - i)] = left;
    pad[2 * (n - 1 - i) + 1] = right;
    symmetric = symmetric && left == right && length > 0;
  }
  if (!symmetric) x = at::constant_pad_nd(x, pad);
  at::Tensor y =
      at::convolution(x, filter, bias, strides, symmetric ? at::IntArrayRef(padding) : at::IntArrayRef(no_padding),
                      dilations, false, no_padding, s[3].integer);
  if (short_of_window)
    for (int64_t i = 0; i < n; ++i)
      if (short_axes[static_cast<size_t>(i)]) y = y.slice(2 + i, 0, 0);
  if (num_batch == 1) return y;
  batch.append(y.sizes().begin() + 1, y.sizes().end());
  return y.reshape(batch);
}
RF_FUSED(conv, 3, can_fuse_depthwise(in, s), fused_depthwise(in, s, record), conv(x, tensor(in[1]), optional(in[2]), s))

at::Tensor cross_entropy(const at::Tensor& logits, const at::Tensor& targets) {
  at::Tensor flat = logits.dim() == 2 ? logits : logits.reshape({targets.numel(), logits.size(-1)});
  at::Tensor loss = at::cross_entropy_loss(flat, targets.reshape({targets.numel()}).to(at::kLong), {}, 0);
  return loss.view(targets.sizes());
}
RF_FRESH(cross_entropy, 2, cross_entropy(x, tensor(in[1])))

} // namespace
