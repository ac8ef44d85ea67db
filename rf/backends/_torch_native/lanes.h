// What the LSTM computes on rows of numbers: sigmoid and tanh, the step of the cell and its gradient, small matrix
// products. All of it is written once, over N numbers at a time, and compiled for several instruction sets, of which
// the best one that the processor has is taken when the first kernel runs.
#pragma once
#include <array>
#include <cstdint>
#include <cstring>
#include <type_traits>

namespace {

#define RF_INLINE inline __attribute__((always_inline))
#define RF_UNROLL _Pragma("GCC unroll 16")

template <class T, int N> struct LanesOf {
  typedef T type __attribute__((vector_size(N * sizeof(T))));
};
template <class T> struct LanesOf<T, 1> {
  using type = T;
};
template <class T, int N> using Lanes = typename LanesOf<T, N>::type;

template <class V, class T> RF_INLINE V load(const T* from) {
  V v;
  std::memcpy(&v, from, sizeof(V));
  return v;
}
template <class V, class T> RF_INLINE void store(T* to, V v) { std::memcpy(to, &v, sizeof(V)); }

// -- sigmoid and tanh: exp(y) = 2^n exp(r) with r = y - n log(2), |r| <= log(2) / 2, and exp(r) - 1 by its power
// series, so far that the rest is below the precision. log(2) is taken off in two parts (Cody and Waite 1980), of which
// n times the first one is exact.

template <class T> struct Precision;
template <> struct Precision<float> {
  using Bits = uint32_t;
  static constexpr int mantissa = 23, bias = 127, terms = 7;
  static constexpr float log2_high = 0x1.62ep-1f, log2_low = 3.1946184945309417e-05f;
  static constexpr float to_integer = 0x1.8p23f;        // added to a number, its last bits are the nearest integer
  static constexpr float lowest = -87, highest = 88.8f; // of y; from there on exp is infinite
};
template <> struct Precision<double> {
  using Bits = uint64_t;
  static constexpr int mantissa = 52, bias = 1023, terms = 13;
  static constexpr double log2_high = 0x1.62e42fefa2p-1, log2_low = 7.371002565167799e-13;
  static constexpr double to_integer = 0x1.8p52;
  static constexpr double lowest = -708, highest = 709.9;
};

template <class T>
constexpr auto inverse_factorials = [] {
  std::array<T, Precision<T>::terms + 1> table{};
  double factorial = 1;
  for (size_t k = 0; k < table.size(); ++k) {
    if (k > 0) factorial *= static_cast<double>(k);
    table[k] = static_cast<T>(1 / factorial);
  }
  return table;
}();

// exp(y) = scale * (1 + rest)
template <class T, class V> RF_INLINE void split_exp(V y, V& scale, V& rest) {
  using P = Precision<T>;
  using Bits = Lanes<typename P::Bits, sizeof(V) / sizeof(T)>;
  V shifted = y * T(1.4426950408889634074) + P::to_integer;
  V n = shifted - P::to_integer;
  V r = (y - n * P::log2_high) - n * P::log2_low;
  V series = V{} + inverse_factorials<T>[P::terms];
  RF_UNROLL
  for (int k = P::terms - 1; k >= 1; --k) series = series * r + inverse_factorials<T>[k];
  rest = series * r;
  Bits bits;
  std::memcpy(&bits, &shifted, sizeof(bits));
  bits = (bits + typename P::Bits(P::bias)) << P::mantissa;
  std::memcpy(&scale, &bits, sizeof(bits));
}

// sigmoid(x) = 1 / (1 + exp(-x))
template <class T, class V> RF_INLINE V exp_of_minus(V x) {
  V y = -x, scale, rest;
  y = y > Precision<T>::highest ? V{} + Precision<T>::highest : y;
  y = y < Precision<T>::lowest ? V{} + Precision<T>::lowest : y;
  split_exp<T>(y, scale, rest);
  return scale * (T(1) + rest);
}
template <class T, class V> RF_INLINE V sigmoid(V x) { return T(1) / (T(1) + exp_of_minus<T>(x)); }

// tanh(|x|) = e / (e + 2) with e = exp(2|x|) - 1; near 0 no digits cancel.
template <class T, class V> RF_INLINE V exp_less_one(V x) {
  V y = (x < T(0) ? -x : x) * T(2), scale, rest;
  y = y > T(40) ? V{} + T(40) : y;
  split_exp<T>(y, scale, rest);
  return scale * rest + (scale - T(1));
}
template <class T, class V> RF_INLINE V with_sign_of(V x, V magnitude) { return x < T(0) ? -magnitude : magnitude; }
template <class T, class V> RF_INLINE V tangent(V x) {
  V e = exp_less_one<T>(x);
  return with_sign_of<T>(x, e / (e + T(2)));
}

// -- the cell. A row of gates is i, f, g, o, each of `n` numbers.

// Gates before bias and activation, cell before -> new cell, which may be in its place, and output. With `keep`, the
// gates become what they are after activation; without, some of the divisions, which cost most, are done together.
template <class T, int N, bool keep>
RF_INLINE void cell_forward(T* gates, const T* bias, const T* before, T* cell, T* out, int64_t n, int64_t j = 0) {
  using V = Lanes<T, N>;
  auto gate = [&](int64_t k)
                  __attribute__((always_inline)) { return load<V>(gates + k * n + j) + load<V>(bias + k * n + j); };
  for (; j + N <= n; j += N) {
    V i = gate(0), f = gate(1), g = gate(2), o = gate(3), c = load<V>(before + j);
    if constexpr (keep) {
      i = sigmoid<T>(i), f = sigmoid<T>(f), g = tangent<T>(g), o = sigmoid<T>(o);
      store(gates + j, i);
      store(gates + n + j, f);
      store(gates + 2 * n + j, g);
      store(gates + 3 * n + j, o);
      c = f * c + i * g;
      store(out + j, o * tangent<T>(c));
    } else {
      V e = exp_less_one<T>(g);
      c = c / (T(1) + exp_of_minus<T>(f)) + with_sign_of<T>(g, e / ((T(1) + exp_of_minus<T>(i)) * (e + T(2))));
      e = exp_less_one<T>(c);
      store(out + j, with_sign_of<T>(c, e / ((T(1) + exp_of_minus<T>(o)) * (e + T(2)))));
    }
    store(cell + j, c);
  }
  if constexpr (N > 1) cell_forward<T, N / 2, keep>(gates, bias, before, cell, out, n, j);
}

// Gates after their activation, the cell before, gradients of the output (a sum of two) and of the new cell -> those of
// the gates before their activation, and of the cell before, in place of that of the new one.
template <class T, int N>
RF_INLINE void cell_backward(const T* gates, const T* before, const T* d_out, const T* d_more, T* d_cell, T* d_gates,
                             int64_t n, int64_t j = 0) {
  using V = Lanes<T, N>;
  for (; j + N <= n; j += N) {
    V i = load<V>(gates + j), f = load<V>(gates + n + j), g = load<V>(gates + 2 * n + j);
    V o = load<V>(gates + 3 * n + j), c = load<V>(before + j), dh = load<V>(d_out + j) + load<V>(d_more + j);
    V t = tangent<T>(f * c + i * g);
    V dc = load<V>(d_cell + j) + dh * o * (T(1) - t * t);
    store(d_gates + j, dc * g * i * (T(1) - i));
    store(d_gates + n + j, dc * c * f * (T(1) - f));
    store(d_gates + 2 * n + j, dc * i * (T(1) - g * g));
    store(d_gates + 3 * n + j, dh * t * o * (T(1) - o));
    store(d_cell + j, dc * f);
  }
  if constexpr (N > 1) cell_backward<T, N / 2>(gates, before, d_out, d_more, d_cell, d_gates, n, j);
}

// -- small products

// Where the numbers of a matrix lie.
template <class T> struct Matrix {
  const T* data;
  int64_t rows, columns, row_stride, column_stride;
};

// R rows and W * N columns of c += a b; the rows of b are contiguous.
template <class T, int N, int R, int W>
RF_INLINE void product_tile(T* c, int64_t ldc, const Matrix<T>& a, const T* a_row, const Matrix<T>& b, int64_t column) {
  using V = Lanes<T, N>;
  V sum[R][W];
  RF_UNROLL
  for (int r = 0; r < R; ++r) RF_UNROLL
  for (int w = 0; w < W; ++w) sum[r][w] = load<V>(c + r * ldc + w * N);
  const T* b_row = b.data + column;
  for (int64_t k = 0; k < a.columns; ++k, b_row += b.row_stride, a_row += a.column_stride) RF_UNROLL
  for (int w = 0; w < W; ++w) {
    V y = load<V>(b_row + w * N);
    RF_UNROLL
    for (int r = 0; r < R; ++r) sum[r][w] += a_row[r * a.row_stride] * y;
  }
  RF_UNROLL
  for (int r = 0; r < R; ++r) RF_UNROLL
  for (int w = 0; w < W; ++w) store(c + r * ldc + w * N, sum[r][w]);
}

// c += a b, columns from j on, in strips of W * N
template <class T, int N, int W>
RF_INLINE int64_t product_strips(T* c, int64_t ldc, const Matrix<T>& a, const Matrix<T>& b, int64_t j) {
  for (; j + W * N <= b.columns; j += W * N) {
    int64_t i = 0;
    for (; i + 4 <= a.rows; i += 4) product_tile<T, N, 4, W>(c + i * ldc + j, ldc, a, a.data + i * a.row_stride, b, j);
    for (; i + 2 <= a.rows; i += 2) product_tile<T, N, 2, W>(c + i * ldc + j, ldc, a, a.data + i * a.row_stride, b, j);
    for (; i < a.rows; ++i) product_tile<T, N, 1, W>(c + i * ldc + j, ldc, a, a.data + i * a.row_stride, b, j);
  }
  return j;
}

template <class T, int N>
RF_INLINE void add_product(T* c, int64_t ldc, const Matrix<T>& a, const Matrix<T>& b, int64_t j = 0) {
  if constexpr (N > 1) j = product_strips<T, N, 2>(c, ldc, a, b, j);
  j = product_strips<T, N, 1>(c, ldc, a, b, j);
  if constexpr (N > 1) add_product<T, N / 2>(c, ldc, a, b, j);
}

template <class T, int N> RF_INLINE T sum_of(const Lanes<T, N>& v) {
  if constexpr (N == 1) {
    return v;
  } else {
    Lanes<T, N / 2> half[2];
    std::memcpy(half, &v, sizeof(v));
    return sum_of<T, N / 2>(half[0] + half[1]);
  }
}

// R rows and 4 columns of c += a b, the sums over k from `k` on; the rows of a and the columns of b are contiguous.
template <class T, int N, int R, int W>
RF_INLINE void dot_tile(T* c, int64_t ldc, const Matrix<T>& a, const T* a_row, const Matrix<T>& b, const T* b_column,
                        int64_t k = 0) {
  using V = Lanes<T, N>;
  if (k + N <= a.columns) {
    V sum[R][W] = {};
    for (; k + N <= a.columns; k += N) RF_UNROLL
    for (int w = 0; w < W; ++w) {
      V y = load<V>(b_column + w * b.column_stride + k);
      RF_UNROLL
      for (int r = 0; r < R; ++r) sum[r][w] += load<V>(a_row + r * a.row_stride + k) * y;
    }
    RF_UNROLL
    for (int r = 0; r < R; ++r) RF_UNROLL
    for (int w = 0; w < W; ++w) c[r * ldc + w] += sum_of<T, N>(sum[r][w]);
  }
  if constexpr (N > 1)
    if (k < a.columns) dot_tile<T, N / 2, R, W>(c, ldc, a, a_row, b, b_column, k);
}

template <class T, int N, int W>
RF_INLINE int64_t dot_columns(T* c, int64_t ldc, const Matrix<T>& a, const Matrix<T>& b, int64_t j) {
  for (; j + W <= b.columns; j += W) {
    int64_t i = 0;
    const T* column = b.data + j * b.column_stride;
    for (; i + 2 <= a.rows; i += 2) dot_tile<T, N, 2, W>(c + i * ldc + j, ldc, a, a.data + i * a.row_stride, b, column);
    for (; i < a.rows; ++i) dot_tile<T, N, 1, W>(c + i * ldc + j, ldc, a, a.data + i * a.row_stride, b, column);
  }
  return j;
}

template <class T, int N> RF_INLINE void add_dots(T* c, int64_t ldc, const Matrix<T>& a, const Matrix<T>& b) {
  int64_t j = dot_columns<T, N, 4>(c, ldc, a, b, 0);
  dot_columns<T, N, 1>(c, ldc, a, b, j);
}

// -- the same for several instruction sets

template <class T> struct RowKernels {
  void (*forward)(T* gates, const T* bias, const T* before, T* cell, T* out, int64_t n);      // gates are kept
  void (*forward_only)(T* gates, const T* bias, const T* before, T* cell, T* out, int64_t n); // and here are not
  void (*backward)(const T* gates, const T* before, const T* d_out, const T* d_more, T* d_cell, T* d_gates, int64_t n);
  void (*product)(T* c, int64_t ldc, const Matrix<T>& a, const Matrix<T>& b);
  void (*dots)(T* c, int64_t ldc, const Matrix<T>& a, const Matrix<T>& b);
};

#define RF_INSTRUCTION_SET(name, attribute, bytes)                                                                     \
  template <class T> struct name {                                                                                     \
    static constexpr int N = (bytes) / sizeof(T);                                                                      \
    attribute static void forward(T* gates, const T* bias, const T* before, T* cell, T* out, int64_t n) {              \
      cell_forward<T, N, true>(gates, bias, before, cell, out, n);                                                     \
    }                                                                                                                  \
    attribute static void forward_only(T* gates, const T* bias, const T* before, T* cell, T* out, int64_t n) {         \
      cell_forward<T, N, false>(gates, bias, before, cell, out, n);                                                    \
    }                                                                                                                  \
    attribute static void backward(const T* gates, const T* before, const T* d_out, const T* d_more, T* d_cell,        \
                                   T* d_gates, int64_t n) {                                                            \
      cell_backward<T, N>(gates, before, d_out, d_more, d_cell, d_gates, n);                                           \
    }                                                                                                                  \
    attribute static void product(T* c, int64_t ldc, const Matrix<T>& a, const Matrix<T>& b) {                         \
      add_product<T, N>(c, ldc, a, b);                                                                                 \
    }                                                                                                                  \
    attribute static void dots(T* c, int64_t ldc, const Matrix<T>& a, const Matrix<T>& b) {                            \
      add_dots<T, N>(c, ldc, a, b);                                                                                    \
    }                                                                                                                  \
    static RowKernels<T> all() { return {forward, forward_only, backward, product, dots}; }                            \
  };

RF_INSTRUCTION_SET(AnyProcessor, , 16)
#if defined(__x86_64__)
RF_INSTRUCTION_SET(Avx2, __attribute__((target("avx2,fma"))), 32)
RF_INSTRUCTION_SET(Avx512, __attribute__((target("avx512f,avx512vl,avx512dq,avx512bw,avx2,fma"))), 64)
#endif

template <class T> RowKernels<T> best_row_kernels() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512bw"))
    return Avx512<T>::all();
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return Avx2<T>::all();
#endif
  return AnyProcessor<T>::all();
}

template <class T> const RowKernels<T>& row_kernels() {
  static const RowKernels<T> kernels = best_row_kernels<T>();
  return kernels;
}

} // namespace
