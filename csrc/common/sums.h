// Sums over the lanes of several vectors at once: halves are added crosswise, so that no vector is taken apart by
// itself. Kept as whole vectors over a tile they would fill the first cache twice.
#pragma once

#include "common/vector.h"

#if defined(__AVX2__) && defined(__has_builtin)
#if __has_builtin(__builtin_shufflevector)
#define HOLDFAST_CROSSED 1
#endif
#endif

namespace holdfast {

#if defined(HOLDFAST_CROSSED)
typedef float Floats __attribute__((vector_size(32)));
typedef float HalfFloats __attribute__((vector_size(16)));
typedef double Doubles __attribute__((vector_size(32)));

inline Floats crossed(Floats x, Floats y) {
  return __builtin_shufflevector(x, y, 0, 8, 1, 9, 4, 12, 5, 13) +
         __builtin_shufflevector(x, y, 2, 10, 3, 11, 6, 14, 7, 15);
}
inline Doubles crossed(Doubles x, Doubles y) {
  return __builtin_shufflevector(x, y, 0, 4, 2, 6) + __builtin_shufflevector(x, y, 1, 5, 3, 7);
}

#if defined(__AVX512F__)
inline Floats narrow(Vector<float> v) {
  return __builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7) +
         __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15);
}
inline Doubles narrow(Vector<double> v) {
  return __builtin_shufflevector(v, v, 0, 1, 2, 3) + __builtin_shufflevector(v, v, 4, 5, 6, 7);
}
#else
inline Floats narrow(Vector<float> v) { return v; }
inline Doubles narrow(Vector<double> v) { return v; }
#endif

// The sums of four vectors, in their order.
inline HalfFloats four_sums(const Vector<float> *v) {
  // both halves are then (v0, v1, v2, v3), each a sum of half of the lanes
  const Floats all = crossed(crossed(narrow(v[0]), narrow(v[2])), crossed(narrow(v[1]), narrow(v[3])));
  return __builtin_shufflevector(all, all, 0, 1, 2, 3) + __builtin_shufflevector(all, all, 4, 5, 6, 7);
}
inline Doubles four_sums(const Vector<double> *v) {
  const Doubles first = crossed(narrow(v[0]), narrow(v[1])), second = crossed(narrow(v[2]), narrow(v[3]));
  return __builtin_shufflevector(first, second, 0, 1, 4, 5) + __builtin_shufflevector(first, second, 2, 3, 6, 7);
}

template <typename T, typename Four>
inline void add_to(T *p, Four v) {
  Four now;
  std::memcpy(&now, p, sizeof now);
  now += v;
  std::memcpy(p, &now, sizeof now);
}
#endif

// Adds the sum of each of `Width` vectors to `to`.
template <int Width, typename T>
inline void add_sums(const Vector<T> *v, T *to) {
#if defined(HOLDFAST_CROSSED)
  if constexpr (Width % 4 == 0) {
    HOLDFAST_UNROLL
    for (int w = 0; w < Width; w += 4) add_to(to + w, four_sums(v + w));
    return;
  }
#endif
  for (int w = 0; w < Width; ++w) to[w] += sum<T>(v[w]);
}

}  // namespace holdfast
