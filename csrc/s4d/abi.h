// How the arguments of the C ABI are read.
#pragma once

#include "s4d/tables.h"

namespace holdfast::s4d {

enum Flags { kBilinear = 1, kReverse = 2, kInitial = 4, kComplex = 8 };

// sizes: batch, time, features, modes.
inline Shape shape_of(const int64_t *sizes, const int64_t *lengths, int flags) {
  return {sizes[0], sizes[1], sizes[2], sizes[3], lengths, (flags & kReverse) != 0};
}

// weights: dt, lam_re, lam_im, c_re, c_im, skip; the imaginary parts of real modes and the skip may be null.
// modes: room for a and b of each, (features, modes, 4).
template <typename T>
Weights<T> weights_of(const T *const *weights, int flags, double *modes) {
  return {weights[0], weights[1], weights[2], weights[3], weights[4], weights[5], (flags & kBilinear) != 0,
          (flags & kComplex) == 0, reinterpret_cast<Mode *>(modes)};
}

}  // namespace holdfast::s4d
