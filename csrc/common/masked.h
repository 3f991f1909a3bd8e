// Operations on parts of vectors, and comparisons, that compilers do not make of plain vector code.
#pragma once

#include "common/vector.h"

// <immintrin.h> costs each file that includes it a second of build; gcc's own functions behind it are there without.
#if defined(__AVX512F__) && defined(__clang__)
#include <immintrin.h>
#endif

namespace holdfast {

// Loads and stores of the first `count` lanes without a call of memcpy, which costs more than a whole row of 8 states.
template <typename T>
inline Vector<T> load_part(const T *p, int64_t count) {
#if defined(__AVX512F__)
  const auto mask = (1u << count) - 1;
#if defined(__clang__)
  if constexpr (sizeof(T) == 4) return (Vector<T>)_mm512_maskz_loadu_ps(static_cast<__mmask16>(mask), p);
  else return (Vector<T>)_mm512_maskz_loadu_pd(static_cast<__mmask8>(mask), p);
#else
  if constexpr (sizeof(T) == 4) return __builtin_ia32_loadups512_mask(p, Vector<T>{}, static_cast<uint16_t>(mask));
  else return __builtin_ia32_loadupd512_mask(p, Vector<T>{}, static_cast<uint8_t>(mask));
#endif
#else
  Vector<T> v{};
  for (int64_t i = 0; i < lanes<T>; ++i) v[i] = i < count ? p[i] : T(0);
  return v;
#endif
}
template <typename T>
inline void store_part(T *p, Vector<T> v, int64_t count) {
#if defined(__AVX512F__)
  const auto mask = (1u << count) - 1;
#if defined(__clang__)
  if constexpr (sizeof(T) == 4) _mm512_mask_storeu_ps(p, static_cast<__mmask16>(mask), (__m512)v);
  else _mm512_mask_storeu_pd(p, static_cast<__mmask8>(mask), (__m512d)v);
#else
  if constexpr (sizeof(T) == 4) __builtin_ia32_storeups512_mask(p, v, static_cast<uint16_t>(mask));
  else __builtin_ia32_storeupd512_mask(p, v, static_cast<uint8_t>(mask));
#endif
#else
  for (int64_t i = 0; i < count; ++i) p[i] = v[i];
#endif
}

// The same where all lanes may be wanted.
template <typename T>
inline Vector<T> read(const T *p, int64_t part) {
  return part == lanes<T> ? load(p) : load_part(p, part);
}
template <typename T>
inline void write(T *p, Vector<T> v, int64_t part) {
  part == lanes<T> ? store(p, v) : store_part(p, v, part);
}

// Comparisons are written so that a NaN passes through, as it does in torch; that is what the instructions give when
// the limit comes first, and compilers do not see it in a ?: of vectors.
template <typename T>
inline Vector<T> at_most(Vector<T> x, T limit) {
  const Vector<T> bound = broadcast<T>(limit);
#if defined(__AVX512F__) && defined(__clang__)
  if constexpr (sizeof(T) == 4) return (Vector<T>)_mm512_mask_min_ps((__m512)x, 0xffff, (__m512)bound, (__m512)x);
  else return (Vector<T>)_mm512_mask_min_pd((__m512d)x, 0xff, (__m512d)bound, (__m512d)x);
#elif defined(__AVX512F__)
  constexpr int current_rounding = 4;
  if constexpr (sizeof(T) == 4) return __builtin_ia32_minps512_mask(bound, x, x, -1, current_rounding);
  else return __builtin_ia32_minpd512_mask(bound, x, x, -1, current_rounding);
#else
  return x > bound ? bound : x;
#endif
}
template <typename T>
inline Vector<T> at_least(Vector<T> x, T limit) {
  const Vector<T> bound = broadcast<T>(limit);
#if defined(__AVX512F__) && defined(__clang__)
  if constexpr (sizeof(T) == 4) return (Vector<T>)_mm512_mask_max_ps((__m512)x, 0xffff, (__m512)bound, (__m512)x);
  else return (Vector<T>)_mm512_mask_max_pd((__m512d)x, 0xff, (__m512d)bound, (__m512d)x);
#elif defined(__AVX512F__)
  constexpr int current_rounding = 4;
  if constexpr (sizeof(T) == 4) return __builtin_ia32_maxps512_mask(bound, x, x, -1, current_rounding);
  else return __builtin_ia32_maxpd512_mask(bound, x, x, -1, current_rounding);
#else
  return x < bound ? bound : x;
#endif
}

}  // namespace holdfast
