// Activations of the RNN kernel on whole vectors, each with its derivative written in its own output.
#pragma once

#include "common/masked.h"

namespace holdfast::rnn {

template <typename T>
struct Bits;
template <>
struct Bits<float> {
  typedef int32_t type __attribute__((vector_size(HOLDFAST_VECTOR_BYTES)));
  static constexpr int32_t sign = INT32_MIN, one = 0x3f800000, shift = 23;
  static constexpr float magic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer, kept in the low bits
};
template <>
struct Bits<double> {
  typedef int64_t type __attribute__((vector_size(HOLDFAST_VECTOR_BYTES)));
  static constexpr int64_t sign = INT64_MIN, one = 0x3ff0000000000000, shift = 52;
  static constexpr double magic = 6755399441055744.0;  // 1.5 * 2^52
};

// (e^r - 1 - r) / r^2 for |r| <= ln(2)/2: e^r - 1 then has relative error 2e-9 (float, minimax) and 9e-19 (double,
// interpolation at Chebyshev points) before rounding.
inline Vector<float> expm1_tail(Vector<float> r) {
  Vector<float> q = 1.98458991e-4f * r + 1.39406277e-3f;
  q = q * r + 8.33338965e-3f;
  q = q * r + 4.16663624e-2f;
  q = q * r + 1.66666657e-1f;
  return q * r + 0.5f;
}
inline Vector<double> expm1_tail(Vector<double> r) {
  Vector<double> q = 2.0914686968086876e-09 * r + 2.5105217004720745e-08;
  q = q * r + 2.75572736431103e-07;
  q = q * r + 2.7557255400206422e-06;
  q = q * r + 2.4801587325547743e-05;
  q = q * r + 0.00019841269874820627;
  q = q * r + 0.0013888888888883748;
  q = q * r + 0.008333333333326136;
  q = q * r + 0.04166666666666667;
  q = q * r + 0.1666666666666667;
  return q * r + 0.5;
}

// e^x = scale * (1 + rest), scale a power of two and |rest| < 0.42; |x| may be 88 (float) or 709 (double) at most.
template <typename T>
struct Exponential {
  Vector<T> scale, rest;
};
template <typename T>
inline Exponential<T> exponential(Vector<T> x) {
  using Integers = typename Bits<T>::type;
  // ln 2 in two parts, the first short enough that its product with the integer part is exact
  constexpr T high = sizeof(T) == 4 ? T(0.693359375) : T(6.93147180369123816490e-01);
  constexpr T low = sizeof(T) == 4 ? T(-2.12194440e-4) : T(1.90821492927058770002e-10);
  const Vector<T> shifted = x * T(1.44269504088896340736) + Bits<T>::magic;
  const Vector<T> n = shifted - Bits<T>::magic;
  const Vector<T> r = (x - n * high) - n * low;
  const Integers power = ((Integers)shifted << Bits<T>::shift) + Bits<T>::one;
  return {(Vector<T>)power, r + r * r * expm1_tail(r)};
}

enum Activation : int32_t { kTanh = 0, kHardtanh = 1, kRelu = 2, kSigmoid = 3, kLinear = 4 };

template <typename T, int32_t Kind>
inline Vector<T> activate(Vector<T> x) {
  if constexpr (Kind == kTanh) {
    // (e^2|x| - 1) / (e^2|x| + 1), where e^2|x| - 1 is formed without cancellation near 0; past the limit it is 1. With
    // |x| for x the errors of the quotient's parts shrink as it nears 1, and the result is odd to the last bit.
    using Integers = typename Bits<T>::type;
    const Integers sign = (Integers)x & Bits<T>::sign;
    const Vector<T> magnitude = (Vector<T>)((Integers)x ^ sign);
    const auto [scale, rest] = exponential<T>(at_most<T>(magnitude + magnitude, sizeof(T) == 4 ? T(20) : T(40)));
    const Vector<T> numerator = scale * rest + (scale - T(1));
    return (Vector<T>)((Integers)(numerator / (numerator + T(2))) | sign);
  } else if constexpr (Kind == kSigmoid) {
    constexpr T limit = sizeof(T) == 4 ? T(88) : T(709);  // where the result goes below the normal numbers
    const auto [scale, rest] = exponential<T>(at_most<T>(at_least<T>(-x, -limit), limit));
    return T(1) / (T(1) + (scale + scale * rest));
  } else if constexpr (Kind == kHardtanh) {
    return at_most<T>(at_least<T>(x, T(-1)), T(1));
  } else if constexpr (Kind == kRelu) {
    return at_least<T>(x, T(0));
  } else {
    return x;
  }
}

// `slope` times the derivative of the activation at the input that gave `y`.
template <typename T, int32_t Kind>
inline Vector<T> differentiate(Vector<T> y, Vector<T> slope) {
  const Vector<T> zero{};
  if constexpr (Kind == kTanh) return slope * (T(1) - y * y);
  if constexpr (Kind == kSigmoid) return slope * (y * (T(1) - y));
  if constexpr (Kind == kHardtanh) return ((y <= T(-1)) | (y >= T(1))) ? zero : slope;
  if constexpr (Kind == kRelu) return y <= T(0) ? zero : slope;
  return slope;
}

}  // namespace holdfast::rnn
