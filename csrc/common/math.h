// Mathematics that the kernels share: exponentials and what is made of them on whole vectors, complex numbers in
// double. The C library's functions take one number at a time, 10 to 20 cycles each; these take a vector in about as
// many.
#pragma once

#include <cmath>
#include <cstdint>

#include "common/masked.h"

namespace holdfast {

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

// (e^x - e^-x) / (e^x + e^-x)
template <typename T>
inline Vector<T> tanh_of(Vector<T> x) {
  // (e^2|x| - 1) / (e^2|x| + 1), where e^2|x| - 1 is formed without cancellation near 0; past the limit it is 1. With
  // |x| for x the errors of the quotient's parts shrink as it nears 1, and the result is odd to the last bit.
  using Integers = typename Bits<T>::type;
  const Integers sign = (Integers)x & Bits<T>::sign;
  const Vector<T> magnitude = (Vector<T>)((Integers)x ^ sign);
  const auto [scale, rest] = exponential<T>(at_most<T>(magnitude + magnitude, sizeof(T) == 4 ? T(20) : T(40)));
  const Vector<T> numerator = scale * rest + (scale - T(1));
  return (Vector<T>)((Integers)(numerator / (numerator + T(2))) | sign);
}

// 1 / (1 + e^-x)
template <typename T>
inline Vector<T> sigmoid(Vector<T> x) {
  constexpr T limit = sizeof(T) == 4 ? T(88) : T(709);  // where the result goes below the normal numbers
  const auto [scale, rest] = exponential<T>(at_most<T>(at_least<T>(-x, -limit), limit));
  return T(1) / (T(1) + (scale + scale * rest));
}

// 2^x = scale (1 + rest), scale a power of two and |rest| < 0.42.
template <typename T>
struct Power {
  Vector<T> scale, rest;
};

// 2^r - 1 for |r| <= 1/2: relative error 2.3e-8 (float, interpolation at Chebyshev points) and 9e-19 (double) before
// rounding. The result is relative to r, so a decay that is nearly 1 keeps the digits of its distance to 1.
inline Vector<float> power_rest(Vector<float> r) {
  Vector<float> q = 1.54531629e-4f * r + 1.33908634e-3f;
  q = q * r + 9.61808256e-3f;
  q = q * r + 5.55035711e-2f;
  q = q * r + 2.40226508e-1f;
  return (q * r + 6.93147188e-1f) * r;
}
inline Vector<double> power_rest(Vector<double> r) {
  const Vector<double> s = r * 0.69314718055994530942;
  return s + s * s * expm1_tail(s);
}

// The larger and the smaller of two; where `x` is NaN it is x, as the instructions have it when x comes second.
template <typename T>
inline Vector<T> larger(Vector<T> bound, Vector<T> x) {
#if defined(__AVX512F__)
  return at_least<T>(x, bound[0]);
#elif defined(__AVX2__)
  if constexpr (sizeof(T) == 4) return __builtin_ia32_maxps256(bound, x);
  else return __builtin_ia32_maxpd256(bound, x);
#else
  return x < bound ? bound : x;
#endif
}
template <typename T>
inline Vector<T> smaller(Vector<T> bound, Vector<T> x) {
#if defined(__AVX2__) && !defined(__AVX512F__)
  if constexpr (sizeof(T) == 4) return __builtin_ia32_minps256(bound, x);
  else return __builtin_ia32_minpd256(bound, x);
#else
  return x > bound ? bound : x;
#endif
}

// 0 below the normal numbers and infinite above them; a NaN passes through.
template <typename T>
inline Power<T> power_of_two(Vector<T> x) {
  constexpr T largest = sizeof(T) == 4 ? T(128) : T(1024);
  x = larger<T>(broadcast<T>(T(1) - largest), x);  // 1 - largest: the first power that is not a normal number
#if defined(__AVX512F__) && defined(__clang__)
  if constexpr (sizeof(T) == 4) {
    const __m512 v = (__m512)x, n = _mm512_roundscale_ps(v, 8);
    return {(Vector<T>)_mm512_scalef_ps(_mm512_set1_ps(1.0f), n), power_rest(x - (Vector<T>)n)};
  } else {
    const __m512d v = (__m512d)x, n = _mm512_roundscale_pd(v, 8);
    return {(Vector<T>)_mm512_scalef_pd(_mm512_set1_pd(1.0), n), power_rest(x - (Vector<T>)n)};
  }
#elif defined(__AVX512F__)
  constexpr int to_nearest = 8, current_rounding = 4;
  const Vector<T> one = broadcast<T>(T(1));
  if constexpr (sizeof(T) == 4) {
    const Vector<T> n = __builtin_ia32_rndscaleps_mask(x, to_nearest, x, -1, current_rounding);
    return {__builtin_ia32_scalefps512_mask(one, n, one, -1, current_rounding), power_rest(x - n)};
  } else {
    const Vector<T> n = __builtin_ia32_rndscalepd_mask(x, to_nearest, x, -1, current_rounding);
    return {__builtin_ia32_scalefpd512_mask(one, n, one, -1, current_rounding), power_rest(x - n)};
  }
#else
  using Integers = typename Bits<T>::type;
  x = smaller<T>(broadcast<T>(largest), x);
  const Vector<T> shifted = x + Bits<T>::magic;
  const Integers power = ((Integers)shifted << Bits<T>::shift) + Bits<T>::one;
  return {(Vector<T>)power, power_rest(x - (shifted - Bits<T>::magic))};
#endif
}

// log(1 + e) for 0 <= e <= 1: 2 atanh(s) with s = e / (2 + e) <= 1/3, whose series in s^2 ends below rounding.
template <typename T>
inline Vector<T> log1p_small(Vector<T> e) {
  constexpr int terms = sizeof(T) == 4 ? 8 : 17;
  const Vector<T> s = e / (e + T(2)), square = s * s;
  Vector<T> series = broadcast<T>(T(1) / T(2 * terms - 1));
#pragma GCC unroll 16  // or each step divides for its coefficient: half of the time of a softplus
  for (int k = terms - 2; k >= 0; --k) series = series * square + T(1) / T(2 * k + 1);
  return (s + s) * series;
}

// log(1 + e^x), and x itself above 20, as torch has it; and its slope, the sigmoid of x.
template <typename T>
struct Softplus {
  Vector<T> value, slope;
};
template <typename T>
inline Softplus<T> softplus_with_slope(Vector<T> x) {
  constexpr T limit = sizeof(T) == 4 ? T(88) : T(709);
  const Vector<T> zero{}, one = broadcast<T>(T(1)), magnitude = x < zero ? -x : x;
  const auto [scale, rest] = exponential<T>(-at_most<T>(magnitude, limit));
  const Vector<T> e = scale + scale * rest;  // e^-|x|
  const Vector<T> value = at_least<T>(x, T(0)) + log1p_small<T>(e), slope = (x < zero ? e : one) / (one + e);
  return {x > T(20) ? x : value, x > T(20) ? one : slope};
}
template <typename T>
inline Vector<T> softplus(Vector<T> x) {
  return softplus_with_slope<T>(x).value;
}

// A complex number without the NaN rules of std::complex, whose product is a library call.
struct Complex {
  double re = 0, im = 0;
};

inline Complex operator+(Complex x, Complex y) { return {x.re + y.re, x.im + y.im}; }
inline Complex operator-(Complex x, Complex y) { return {x.re - y.re, x.im - y.im}; }
inline Complex operator*(Complex x, Complex y) { return {x.re * y.re - x.im * y.im, x.re * y.im + x.im * y.re}; }
inline Complex operator*(double s, Complex x) { return {s * x.re, s * x.im}; }

// x / y, scaled by y's larger part so that |y|^2 neither overflows nor vanishes.
inline Complex operator/(Complex x, Complex y) {
  if (std::fabs(y.re) >= std::fabs(y.im)) {
    const double r = y.im / y.re, s = 1 / (y.re + y.im * r);
    return {(x.re + x.im * r) * s, (x.im - x.re * r) * s};
  }
  const double r = y.re / y.im, s = 1 / (y.re * r + y.im);
  return {(x.re * r + x.im) * s, (x.im * r - x.re) * s};
}

inline double magnitude(Complex x) { return std::fmax(std::fabs(x.re), std::fabs(x.im)); }

inline Complex power(Complex x, int64_t n) {
  Complex result{1, 0};
  for (; n > 0; n >>= 1) {
    if (n & 1) result = result * x;
    x = x * x;
  }
  return result;
}

}  // namespace holdfast
