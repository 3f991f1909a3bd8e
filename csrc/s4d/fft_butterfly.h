// Discrete Fourier transforms of 2, 3, 4, 5 and 8 points in registers; every vector lane is a transform of its own.
// All have the sign of exp(-i ...). The inverse is the same code on points with real and imaginary part swapped:
// swap(z) = i conj(z), hence swap(conj(w) z) = w swap(z), so that twiddles are shared too.
#pragma once

#include "common/vector.h"

// gcc leaves functions that take arrays of vectors outside, and then every point goes through memory (1.6x).
#define HOLDFAST_INLINE inline __attribute__((always_inline))

namespace holdfast::fft {

template <typename T>
struct Point {
  Vector<T> re, im;
};

// Real parts of a point come first, then the imaginary parts; Swapped serves the inverse.
template <bool Swapped, typename T>
HOLDFAST_INLINE Point<T> get(const T *p) {
  const auto first = load(p), second = load(p + lanes<T>);
  if constexpr (Swapped) return {second, first};
  return {first, second};
}
template <bool Swapped, typename T>
HOLDFAST_INLINE void put(T *p, Point<T> x) {
  store(p, Swapped ? x.im : x.re);
  store(p + lanes<T>, Swapped ? x.re : x.im);
}

template <typename T>
HOLDFAST_INLINE Point<T> operator+(Point<T> x, Point<T> y) {
  return {x.re + y.re, x.im + y.im};
}
template <typename T>
HOLDFAST_INLINE Point<T> operator-(Point<T> x, Point<T> y) {
  return {x.re - y.re, x.im - y.im};
}
template <typename T>
HOLDFAST_INLINE Point<T> minus_i(Point<T> x) {
  return {x.im, -x.re};
}
template <typename T>
HOLDFAST_INLINE Point<T> scaled(T s, Point<T> x) {
  return {s * x.re, s * x.im};
}
template <typename T>
HOLDFAST_INLINE Point<T> turned(Point<T> x, T wr, T wi) {
  return {x.re * wr - x.im * wi, x.re * wi + x.im * wr};
}

template <typename T>
HOLDFAST_INLINE void dft(Point<T> (&x)[2]) {
  const auto sum = x[0] + x[1];
  x[1] = x[0] - x[1];
  x[0] = sum;
}

template <typename T>
HOLDFAST_INLINE void dft(Point<T> (&x)[3]) {
  const T half = T(0.5), sine = T(0.86602540378443864676);
  const auto sum = x[1] + x[2], turn = minus_i(scaled(sine, x[1] - x[2])), middle = x[0] - scaled(half, sum);
  x[0] = x[0] + sum;
  x[1] = middle + turn;
  x[2] = middle - turn;
}

template <typename T>
HOLDFAST_INLINE void dft(Point<T> (&x)[4]) {
  const auto a = x[0] + x[2], b = x[0] - x[2], c = x[1] + x[3], d = minus_i(x[1] - x[3]);
  x[0] = a + c;
  x[1] = b + d;
  x[2] = a - c;
  x[3] = b - d;
}

template <typename T>
HOLDFAST_INLINE void dft(Point<T> (&x)[5]) {
  const T c1 = T(0.30901699437494742410), c2 = T(-0.80901699437494742410);
  const T s1 = T(0.95105651629515357212), s2 = T(0.58778525229247312917);
  const auto a = x[1] + x[4], b = x[2] + x[3], p = x[1] - x[4], q = x[2] - x[3];
  const auto m1 = x[0] + scaled(c1, a) + scaled(c2, b), m2 = x[0] + scaled(c2, a) + scaled(c1, b);
  const auto n1 = minus_i(scaled(s1, p) + scaled(s2, q)), n2 = minus_i(scaled(s2, p) - scaled(s1, q));
  x[0] = x[0] + a + b;
  x[1] = m1 + n1;
  x[2] = m2 + n2;
  x[3] = m2 - n2;
  x[4] = m1 - n1;
}

constexpr double kHalfRoot = 0.70710678118654752440;

// Multiplies by exp(-i pi k / 4).
template <int K, typename T>
HOLDFAST_INLINE Point<T> eighth(Point<T> x) {
  const T s = T(kHalfRoot);
  if constexpr (K == 1) return {s * (x.re + x.im), s * (x.im - x.re)};
  if constexpr (K == 2) return minus_i(x);
  if constexpr (K == 3) return {s * (x.im - x.re), -s * (x.re + x.im)};
  return x;
}

template <typename T>
HOLDFAST_INLINE void dft(Point<T> (&x)[8]) {
  Point<T> even[4] = {x[0], x[2], x[4], x[6]}, odd[4] = {x[1], x[3], x[5], x[7]};
  dft(even);
  dft(odd);
  odd[1] = eighth<1>(odd[1]);
  odd[2] = eighth<2>(odd[2]);
  odd[3] = eighth<3>(odd[3]);
  HOLDFAST_UNROLL
  for (int k = 0; k < 4; ++k) {
    x[k] = even[k] + odd[k];
    x[k + 4] = even[k] - odd[k];
  }
}

constexpr double kCosine = 0.92387953251128675613, kSine = 0.38268343236508977173;  // of pi / 8

// x_k exp(-i pi k / 8) of four real numbers.
template <typename T>
HOLDFAST_INLINE void quarter_turned(Vector<T> x0, Vector<T> x1, Vector<T> x2, Vector<T> x3, Point<T> (&x)[4]) {
  const T c = T(kCosine), s = T(kSine), r = T(kHalfRoot);
  x[0] = {x0, Vector<T>{}};
  x[1] = {c * x1, -s * x1};
  x[2] = {r * x2, -r * x2};
  x[3] = {s * x3, -c * x3};
}

// Real parts of z_k exp(i pi k / 8), of points whose parts are swapped.
template <typename T>
HOLDFAST_INLINE void real_parts(const Point<T> (&x)[4], Vector<T> (&y)[4]) {
  const T c = T(kCosine), s = T(kSine), r = T(kHalfRoot);
  y[0] = x[0].im;
  y[1] = c * x[1].im - s * x[1].re;
  y[2] = r * (x[2].im - x[2].re);
  y[3] = s * x[3].im - c * x[3].re;
}

}  // namespace holdfast::fft
