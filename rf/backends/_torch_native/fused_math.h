// Functions of numbers and rows that compilers vectorize.
#pragma once
#include "node.h"

namespace {

// e^x, to 1 or 2 units in the last place; below 1.2e-38 it is 0, and above 2.4e38 infinite. By Cody and Waite's
// reduction, and a polynomial on [-ln 2 / 2, ln 2 / 2] (coefficients of Cephes' expf).
inline float exponential(float x) {
  x = x > 89.0f ? 89.0f : x;   // 2^128, infinite
  x = x < -88.0f ? -88.0f : x; // 2^-127 is taken for 0
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

// The probability that a standard normal number is below x: erfc(-x / sqrt 2) / 2, by the Chebyshev fit of Press et al.
// (Numerical Recipes, 1992, section 6.2), whose relative error is below 1.2e-7 everywhere.
inline float normal_cdf(float x) {
  float z = std::abs(x) * 0.70710678118654752f, t = 1 / (1 + 0.5f * z);
  float p = 0.17087277f;
  p = p * t - 0.82215223f;
  p = p * t + 1.48851587f;
  p = p * t - 1.13520398f;
  p = p * t + 0.27886807f;
  p = p * t - 0.18628806f;
  p = p * t + 0.09678418f;
  p = p * t + 0.37409196f;
  p = p * t + 1.00002368f;
  p = p * t - 1.26551223f;
  float tail = 0.5f * t * exponential(p - z * z);
  return x > 0 ? 1 - tail : tail;
}
inline double normal_cdf(double x) { return 0.5 * std::erfc(-x * 0.70710678118654752440); }

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
