// Numbers of a scan in vector lanes. Whatever the arrays hold, states are float64: a float32 recurrence with |a| near
// 1 drifts (1.3e-5 after 131072 steps, more where the rounding is biased), and while memory is the limit the
// wider arithmetic is free.
#pragma once

#include "common/memory.h"
#include "common/vector.h"

namespace holdfast::scan {

using Wide = Vector<double>;
constexpr int64_t width = lanes<double>;

// What the numbers of a step are: real, complex as torch stores them (re, im, re, im), or planar, where all real parts
// come first and then all imaginary parts.
enum class Kind { real, complex, planar };

// Vectors that hold one unit of channels.
constexpr int parts_of(Kind kind) { return kind == Kind::planar ? 2 : 1; }

typedef float Narrow __attribute__((vector_size(HOLDFAST_VECTOR_BYTES / 2)));

inline Wide load_wide(const double *p) { return load(p); }
inline Wide load_wide(const float *p) {
  Narrow v;
  std::memcpy(&v, p, sizeof v);
#if defined(__clang__) || HOLDFAST_VECTOR_BYTES == 16
  return __builtin_convertvector(v, Wide);
#elif HOLDFAST_VECTOR_BYTES == 32
  return __builtin_ia32_cvtps2pd256(v);  // of convertvector gcc 12 makes four instructions
#else
  return __builtin_ia32_cvtps2pd512_mask(v, Wide{}, -1, 4);
#endif
}

template <bool Stream = false>
inline void store_wide(double *p, Wide v) {
  if constexpr (Stream) {
    stream(p, v);
  } else {
    store(p, v);
  }
}
template <bool Stream = false>
inline void store_wide(float *p, Wide v) {
  const Narrow n = __builtin_convertvector(v, Narrow);
  if constexpr (Stream) {
    stream(p, n);
  } else {
    std::memcpy(p, &n, sizeof n);
  }
}

#if HOLDFAST_VECTOR_BYTES == 64
inline Wide even(Wide v) { return __builtin_shufflevector(v, v, 0, 0, 2, 2, 4, 4, 6, 6); }
inline Wide odd(Wide v) { return __builtin_shufflevector(v, v, 1, 1, 3, 3, 5, 5, 7, 7); }
inline Wide swap(Wide v) { return __builtin_shufflevector(v, v, 1, 0, 3, 2, 5, 4, 7, 6); }
constexpr Wide alternate = {-1, 1, -1, 1, -1, 1, -1, 1};
#elif HOLDFAST_VECTOR_BYTES == 32
inline Wide even(Wide v) { return __builtin_shufflevector(v, v, 0, 0, 2, 2); }
inline Wide odd(Wide v) { return __builtin_shufflevector(v, v, 1, 1, 3, 3); }
inline Wide swap(Wide v) { return __builtin_shufflevector(v, v, 1, 0, 3, 2); }
constexpr Wide alternate = {-1, 1, -1, 1};
#else
inline Wide even(Wide v) { return __builtin_shufflevector(v, v, 0, 0); }
inline Wide odd(Wide v) { return __builtin_shufflevector(v, v, 1, 1); }
inline Wide swap(Wide v) { return __builtin_shufflevector(v, v, 1, 0); }
constexpr Wide alternate = {-1, 1};
#endif

// The three kinds as types. A Value is what one unit of channels holds, in `parts` vectors; a Factor is a value
// made ready to multiply. `im` is the distance in an array from real to imaginary parts (planar numbers only).

struct Real {
  static constexpr Kind kind = Kind::real;
  static constexpr int parts = parts_of(kind);
  struct Value {
    Wide v;
  };
  using Factor = Value;
  template <typename T>
  static Value read(const T *p, int64_t) {
    return {load_wide(p)};
  }
  template <bool Stream, typename T>
  static void write(T *p, int64_t, Value x) {
    store_wide<Stream>(p, x.v);
  }
  static Factor factor(Value a) { return a; }
  static Factor conjugate(Factor a) { return a; }
  static Value fma(Factor a, Value x, Value y) { return {a.v * x.v + y.v}; }
  static Value add(Value x, Value y) { return {x.v + y.v}; }
};

// Interleaved (re, im), as torch stores complex tensors.
struct Complex {
  static constexpr Kind kind = Kind::complex;
  static constexpr int parts = parts_of(kind);
  struct Value {
    Wide v;
  };
  struct Factor {
    Wide re, im;  // im with alternating sign, so that a x = re x + im swap(x)
  };
  template <typename T>
  static Value read(const T *p, int64_t) {
    return {load_wide(p)};
  }
  template <bool Stream, typename T>
  static void write(T *p, int64_t, Value x) {
    store_wide<Stream>(p, x.v);
  }
  static Factor factor(Value a) { return {even(a.v), odd(a.v) * alternate}; }
  static Factor conjugate(Factor a) { return {a.re, -a.im}; }
  static Value fma(Factor a, Value x, Value y) { return {a.re * x.v + (a.im * swap(x.v) + y.v)}; }
  static Value add(Value x, Value y) { return {x.v + y.v}; }
};

// Real parts in one run of memory, imaginary parts in another.
struct Planar {
  static constexpr Kind kind = Kind::planar;
  static constexpr int parts = parts_of(kind);
  struct Value {
    Wide re, im;
  };
  using Factor = Value;
  template <typename T>
  static Value read(const T *p, int64_t im) {
    return {load_wide(p), load_wide(p + im)};
  }
  template <bool Stream, typename T>
  static void write(T *p, int64_t im, Value x) {
    store_wide<Stream>(p, x.re);
    store_wide<Stream>(p + im, x.im);
  }
  static Factor factor(Value a) { return a; }
  static Factor conjugate(Factor a) { return {a.re, -a.im}; }
  static Value fma(Factor a, Value x, Value y) {
    return {a.re * x.re + (y.re - a.im * x.im), a.re * x.im + (y.im + a.im * x.re)};
  }
  static Value add(Value x, Value y) { return {x.re + y.re, x.im + y.im}; }
};

}  // namespace holdfast::scan
