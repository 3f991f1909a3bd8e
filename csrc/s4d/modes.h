// Discretisation of the S4D modes and its derivative, in double whatever the tensors hold: rounding Abar to
// float32 turns a mode's phase by up to 6e-8 a step, which is 8e-3 after 131072 steps.
#pragma once

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

inline Mode discretize(double dt, Complex lam, bool bilinear) {
  const Complex w = dt * lam;
  Mode mode;
  if (bilinear) {
    const Complex s = Complex{1, 0} / Complex{1 - w.re / 2, -w.im / 2};
    mode.a = Complex{1 + w.re / 2, w.im / 2} * s;
    mode.b = dt * s;
    return mode;
  }
  const Complex grown = exp_minus_one(w);
  mode.a = {std::exp(w.re) * std::cos(w.im), grown.im};
  Complex phi, slope;
  if (magnitude(w) < kSeries) {
    phi_series(w, phi, slope);
  } else {
    phi = grown / w;
  }
  mode.b = dt * phi;
  // The kernels divide states by b, which vanishes at w = 2 pi i k: this floor is below double's rounding of dt.
  if (magnitude(mode.b) < 1e-15 * dt) mode.b = {1e-15 * dt, 0};
  return mode;
}

struct ModeGradient {
  double dt, lam_re, lam_im;
};

// From the derivatives with respect to a and b (d loss = Re(ga da + gb db)) to those of dt and lam.
inline ModeGradient discretize_backward(double dt, Complex lam, bool bilinear, Mode mode, Complex ga, Complex gb) {
  const Complex w = dt * lam;
  Complex ratio = (1 / dt) * mode.b, gw;  // b / dt: phi(w), or 1 / (1 - w / 2)
  if (bilinear) {
    gw = (ga + (dt / 2) * gb) * ratio * ratio;
  } else {
    Complex phi, slope;
    if (magnitude(w) < kSeries) {
      phi_series(w, phi, slope);
    } else {
      slope = (mode.a - ratio) / w;
    }
    gw = ga * mode.a + dt * gb * slope;
  }
  return {(gw * lam + gb * ratio).re, dt * gw.re, -dt * gw.im};
}

}  // namespace holdfast::s4d
