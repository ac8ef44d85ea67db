// Functions of numbers and rows that compilers vectorize.
#pragma once
#include "node.h"

namespace {

// e^x, to 1 or 2 units in the last place; 0 and infinity only approximately. By Cody and Waite's reduction, and a
// polynomial on [-ln 2 / 2, ln 2 / 2] (coefficients of Cephes' expf).
inline float exponential(float x) {
  x = x > 88.3762626647949f ? 88.3762626647949f : x;
  x = x < -87.3365447505f ? -87.3365447505f : x;
  float n = std::nearbyint(x * 1.44269504088896341f);
  float r = x - n * 0.693359375f + n * 2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  int32_t bits = (static_cast<int32_t>(n) + 127) << 23;
  float power;
  std::memcpy(&power, &bits, sizeof(power));
  return p * power;
}
inline double exponential(double x) { return std::exp(x); }

template <class T> inline T logistic(T x) { return 1 / (1 + exponential(-x)); }

// Softmax of a row; -infinity gets 0, also where all entries are that. NaN and +infinity give NaN.
template <class T> void softmax_in_place(T* x, int64_t n) {
  constexpr T kNever = -std::numeric_limits<T>::infinity();
  T highest = kNever;
  for (int64_t j = 0; j < n; ++j) highest = x[j] > highest || x[j] != x[j] ? x[j] : highest;
  if (highest == kNever) {
    std::fill(x, x + n, T(0));
    return;
  }
  T sum = 0;
  RF_SIMD_SUM(sum)
  for (int64_t j = 0; j < n; ++j) {
    T e = x[j] == kNever ? T(0) : exponential(x[j] - highest);
    x[j] = e;
    sum += e;
  }
  T factor = 1 / sum;
  RF_SIMD
  for (int64_t j = 0; j < n; ++j) x[j] = x[j] == 0 ? T(0) : x[j] * factor; // 0 also in a row with NaN
}

} // namespace
