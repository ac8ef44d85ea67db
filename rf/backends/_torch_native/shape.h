// Kernels that rearrange or index.
#pragma once
#include "support.h"

namespace {

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
RF_VIEW(reshape, x.reshape(s[0].ints))
RF_VIEW(expand, x.expand(s[0].ints))
RF_VIEW(select, x.select(s[0].integer, s[1].integer))
RF_VIEW(slice, x.slice(s[0].integer, s[1].integer, s[2].integer, s[3].integer))
RF_VIEW(flatten, x.flatten(s[0].integer, s[0].integer + s[1].integer - 1))

at::Tensor unflatten(const at::Tensor& x, int64_t axis, const std::vector<int64_t>& parts) {
  c10::SmallVector<int64_t, 8> sizes(x.sizes().begin(), x.sizes().begin() + axis);
  int64_t known = 1;
  for (int64_t n : parts) known *= n < 0 ? 1 : n;
  // a -1 is worked out here, since view() cannot when x has no entries
  for (int64_t n : parts) sizes.push_back(n >= 0 ? n : known ? x.size(axis) / known : 0);
  sizes.append(x.sizes().begin() + axis + 1, x.sizes().end());
  return x.view(sizes);
}
RF_VIEW(unflatten, unflatten(x, s[0].integer, s[1].ints))

at::Tensor expand_axis(const at::Tensor& x, int64_t axis, int64_t size) {
  c10::SmallVector<int64_t, 8> sizes(x.sizes().begin(), x.sizes().end());
  sizes.insert(sizes.begin() + axis, size);
  return (axis ? x.unsqueeze(axis) : x).expand(sizes);
}
RF_VIEW(expand_axis, expand_axis(x, s[0].integer, s[1].integer))

bool k_split(const Payload* in, int, const Static* s, Payload* out) {
  HANDLE_TH_ERRORS
  std::vector<at::Tensor> pieces = at::split_with_sizes(tensor(in[0]), s[1].ints, s[0].integer);
  for (size_t i = 0; i < pieces.size(); ++i) give(out[i], std::move(pieces[i]));
  return true;
  END_HANDLE_TH_ERRORS_RET(false)
}

std::vector<at::Tensor> all_of(const Payload* in, int n) {
  std::vector<at::Tensor> tensors;
  for (int i = 0; i < n; ++i) tensors.push_back(tensor(in[i]));
  return tensors;
}
RF_FRESH(concat, num_in, at::cat(all_of(in, num_in), s[0].integer))
RF_FRESH(append, 2, at::cat({x, tensor(in[1]).unsqueeze(s[0].integer)}, s[0].integer))
RF_FRESH(stack, num_in, at::stack(all_of(in, num_in), s[0].integer))

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

} // namespace
