// Discretization of the S4D modes and its derivative, in double whatever the tensors hold: rounding Abar to
// float32 turns a mode's phase by up to 6e-8 per step, which is 8e-3 after 131072 steps.
#pragma once

#include <cstring>
#include <limits>

#include "common/math.h"

namespace holdfast::s4d {

// What the kernels need of one mode: h_t = a h_{t-1} + b u_t.
struct Mode {
  Complex a, b;
};

// Below this |w| the quotients of phi lose digits and their series takes over; its ninth term is 1e-16 there.
constexpr double kSeries = 0.05;

// phi(w) = (e^w - 1) / w and its derivative, by the series sum_k w^k / (k + 1)!.
inline void phi_series(Complex w, Complex &phi, Complex &slope) {
  phi = slope = {0, 0};
  double factorial = 3628800;  // 10!
  for (int k = 9; k >= 0; --k) {
    phi = phi * w + Complex{1 / factorial, 0};
    if (k > 0) slope = slope * w + Complex{k / factorial, 0};
    factorial /= k + 1;
  }
}

inline Complex exp_minus_one(Complex w) {
  const double half = std::sin(w.im / 2), grown = std::expm1(w.re);
  return {grown * std::cos(w.im) - 2 * half * half, (grown + 1) * std::sin(w.im)};
}

// A float in double, also one below the normal numbers, which the conversion takes for 0 while denormals are flushed:
// dt = e^-90 with lam = -1e38 is half a time constant.
inline double exact(float x) {
  int32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  if ((bits & 0x7f800000) != 0) return static_cast<double>(x);
  const double magnitude = (bits & 0x7fffff) * 0x1p-149;
  return bits < 0 ? -magnitude : magnitude;
}
inline double exact(double x) { return x; }

// 0 e^w for w = infinity would be NaN, as would the sine of an infinite phase; NaN itself stays.
inline Complex bounded(Complex w) {
  constexpr double largest = std::numeric_limits<double>::max();
  const auto bound = [](double x) { return x > largest ? largest : x < -largest ? -largest : x; };
  return {bound(w.re), bound(w.im)};
}

// Steps and gains that the elements of a kernel can stand for.
struct Bounds {
  // exp(log_dt) overflows in float32 at log_dt = 89: past the largest number a decaying mode no longer changes.
  double largest_step;
  // The kernels carry h / b, which has to stay a number of the tensors for |h| up to 1e14 (float32) or 1e127; a smaller
  // |b| moves a state by less than this a step.
  double smallest_gain;
};
template <typename T>
constexpr Bounds bounds_of = {static_cast<double>(std::numeric_limits<T>::max()), sizeof(T) == 4 ? 0x1p-80 : 0x1p-600};

// (e^w - 1) / lam = dt phi(w) for |w| >= kSeries, where the quotient keeps its digits; by lam, since w may be infinite.
inline Mode exact_step(Complex w, Complex lam) {
  Complex grown = exp_minus_one(w);
  const Complex a{std::exp(w.re) * std::cos(w.im), grown.im};
  // e^w - 1 vanishes at w = 2 pi i k, and with it b; below 1e-15 it is rounding
  if (magnitude(grown) < 1e-15) grown = {1e-15, 0};
  return {a, grown / lam};
}

inline Mode trapezoidal_step(double dt, Complex w, Complex lam) {
  if (magnitude(w) > 1) {  // both sides of each fraction times 2 / dt: neither overflows with w
    const Complex r{2 / dt, 0}, s = Complex{1, 0} / (r - lam);
    return {(r + lam) * s, 2.0 * s};
  }
  const Complex s = Complex{1, 0} / Complex{1 - w.re / 2, -w.im / 2};
  return {Complex{1 + w.re / 2, w.im / 2} * s, dt * s};
}

inline Mode discretize(double dt, Complex lam, bool bilinear, Bounds bounds) {
  if (dt > bounds.largest_step) dt = bounds.largest_step;
  const Complex w = bounded(dt * lam);
  Mode mode;
  if (bilinear) {
    mode = trapezoidal_step(dt, w, lam);
  } else if (magnitude(w) < kSeries) {
    Complex phi, slope;
    phi_series(w, phi, slope);
    mode.a = {std::exp(w.re) * std::cos(w.im), exp_minus_one(w).im};
    mode.b = dt * phi;
  } else {
    mode = exact_step(w, lam);
  }
  if (magnitude(mode.b) < bounds.smallest_gain) mode.b = {bounds.smallest_gain, 0};
  return mode;
}

struct ModeGradient {
  double dt, lam_re, lam_im;
};

// From the derivatives with respect to a and b (d loss = Re(ga da + gb db)) to those of dt and lam.
inline ModeGradient discretize_backward(double dt, Complex lam, bool bilinear, Bounds bounds, Mode mode, Complex ga,
                                        Complex gb) {
  if (dt > bounds.largest_step) dt = bounds.largest_step;
  const Complex w = bounded(dt * lam);
  Complex phi, slope, ratio, gw;  // ratio: b / dt, which is phi(w), or 1 / (1 - w / 2)
  const bool near = !bilinear && magnitude(w) < kSeries;
  if (near) phi_series(w, phi, slope);
  if (magnitude(mode.b) > bounds.smallest_gain) {
    ratio = (1 / dt) * mode.b;
  } else {  // b was raised to the smallest gain
    ratio = bilinear ? Complex{1, 0} / Complex{1 - w.re / 2, -w.im / 2} : near ? phi : exp_minus_one(w) / w;
  }
  if (bilinear) {
    gw = (ga + (dt / 2) * gb) * ratio * ratio;
  } else {
    if (!near) slope = (mode.a - ratio) / w;
    gw = ga * mode.a + dt * gb * slope;
  }
  return {(gw * lam + gb * ratio).re, dt * gw.re, -dt * gw.im};
}

}  // namespace holdfast::s4d
