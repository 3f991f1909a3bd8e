// Powers of two, softplus and silu on whole vectors, as the selective scan needs them.
#pragma once

#if defined(__AVX512F__)
#include <immintrin.h>
#endif

#include "common/vector.h"
#include "rnn/activation.h"

namespace holdfast::selective {

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
  return s + s * s * rnn::expm1_tail(s);
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
  x = larger<T>(broadcast<T>(T(1) - largest), x);  // 1 - largest: the first power that is no normal number
#if defined(__AVX512F__)
  // the masked forms with a source: the plain ones make gcc 12 warn of its own header
  if constexpr (sizeof(T) == 4) {
    const __m512 v = (__m512)x, one = _mm512_set1_ps(1.0f), n = _mm512_mask_roundscale_ps(v, 0xffff, v, 8);
    return {(Vector<T>)_mm512_mask_scalef_ps(one, 0xffff, one, n), power_rest(x - (Vector<T>)n)};
  } else {
    const __m512d v = (__m512d)x, one = _mm512_set1_pd(1.0), n = _mm512_mask_roundscale_pd(v, 0xff, v, 8);
    return {(Vector<T>)_mm512_mask_scalef_pd(one, 0xff, one, n), power_rest(x - (Vector<T>)n)};
  }
#else
  using Integers = typename rnn::Bits<T>::type;
  x = smaller<T>(broadcast<T>(largest), x);
  const Vector<T> shifted = x + rnn::Bits<T>::magic;
  const Integers power = ((Integers)shifted << rnn::Bits<T>::shift) + rnn::Bits<T>::one;
  return {(Vector<T>)power, power_rest(x - (shifted - rnn::Bits<T>::magic))};
#endif
}

// log(1 + e) for 0 <= e <= 1: 2 atanh(s) with s = e / (2 + e) <= 1/3, whose series in s^2 ends below rounding.
template <typename T>
inline Vector<T> log1p_small(Vector<T> e) {
  constexpr int terms = sizeof(T) == 4 ? 8 : 17;
  const Vector<T> s = e / (e + T(2)), square = s * s;
  Vector<T> series = broadcast<T>(T(1) / T(2 * terms - 1));
  for (int k = terms - 2; k >= 0; --k) series = series * square + T(1) / T(2 * k + 1);
  return (s + s) * series;
}

// log(1 + e^x), and x itself above 20, as torch has it.
template <typename T>
inline Vector<T> softplus(Vector<T> x) {
  constexpr T limit = sizeof(T) == 4 ? T(88) : T(709);
  const Vector<T> zero{}, magnitude = x < zero ? -x : x;
  const auto [scale, rest] = rnn::exponential<T>(-at_most<T>(magnitude, limit));
  const Vector<T> result = at_least<T>(x, T(0)) + log1p_small<T>(scale + scale * rest);
  return x > T(20) ? x : result;
}

template <typename T>
inline Vector<T> sigmoid(Vector<T> x) {
  return rnn::activate<T, rnn::kSigmoid>(x);
}

}  // namespace holdfast::selective
