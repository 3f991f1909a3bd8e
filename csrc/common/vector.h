// Vectors of the full width that the compiler targets, as plain values: v + w, v * w, v[i]; gcc and clang.
#pragma once

#include <cstdint>
#include <cstring>
#include <utility>

#if defined(__AVX512F__)
#define HOLDFAST_VECTOR_BYTES 64
#elif defined(__AVX2__)
#define HOLDFAST_VECTOR_BYTES 32
#else
#define HOLDFAST_VECTOR_BYTES 16
#endif

// Before a loop over registers: whole, at any level of optimization.
#if defined(__clang__)
#define HOLDFAST_UNROLL _Pragma("unroll")
#else
#define HOLDFAST_UNROLL _Pragma("GCC unroll 16")
#endif

// For large functions with several callers: one copy of each, or the build takes minutes.
#define HOLDFAST_APART __attribute__((noinline))

namespace holdfast {

template <typename T>
struct VectorOf;
template <>
struct VectorOf<float> {
  typedef float type __attribute__((vector_size(HOLDFAST_VECTOR_BYTES)));
};
template <>
struct VectorOf<double> {
  typedef double type __attribute__((vector_size(HOLDFAST_VECTOR_BYTES)));
};

template <typename T>
using Vector = typename VectorOf<T>::type;

template <typename T>
constexpr int64_t lanes = HOLDFAST_VECTOR_BYTES / static_cast<int64_t>(sizeof(T));

// Unaligned load and store: one instruction each after optimization.
template <typename T>
inline Vector<T> load(const T *p) {
  Vector<T> v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
template <typename T>
inline void store(T *p, Vector<T> v) {
  std::memcpy(p, &v, sizeof v);
}

// The first `count` lanes only; the others are 0 on load and untouched on store.
template <typename T>
inline Vector<T> load_first(const T *p, int64_t count) {
  Vector<T> v{};
  std::memcpy(&v, p, static_cast<size_t>(count) * sizeof(T));
  return v;
}
template <typename T>
inline void store_first(T *p, Vector<T> v, int64_t count) {
  std::memcpy(p, &v, static_cast<size_t>(count) * sizeof(T));
}

// The same where all lanes may be wanted.
template <typename T>
inline Vector<T> get(const T *p, int64_t count) {
  return count == lanes<T> ? load(p) : load_first(p, count);
}
template <typename T>
inline void put(T *p, Vector<T> v, int64_t count) {
  count == lanes<T> ? store(p, v) : store_first(p, v, count);
}

template <typename T>
inline Vector<T> broadcast(T x) {
  return x - Vector<T>{};
}

// The sum of all lanes, pairwise: 4 steps where one lane after the other takes 16.
template <typename T, typename V, int... I>
inline T sum_lanes(V v, std::integer_sequence<int, I...>) {
  if constexpr (sizeof...(I) == 1) {
    return v[0] + v[1];
  } else {
    constexpr int half = static_cast<int>(sizeof...(I));
    const auto sums = __builtin_shufflevector(v, v, I...) + __builtin_shufflevector(v, v, (I + half)...);
    return sum_lanes<T>(sums, std::make_integer_sequence<int, half / 2>());
  }
}
template <typename T>
inline T sum_lanes(Vector<T> v) {
  return sum_lanes<T>(v, std::make_integer_sequence<int, lanes<T> / 2>());
}

template <typename T>
inline T sum(Vector<T> v) {
  T total = 0;
  for (int64_t i = 0; i < lanes<T>; ++i) total += v[i];
  return total;
}

}  // namespace holdfast
