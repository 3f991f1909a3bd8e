// The coefficients of a block of features, lane by lane, as the tile kernels read them.
#pragma once

#include "s4d/lanes.h"
#include "s4d/modes.h"

namespace holdfast::s4d {

// Steps that the power kernels take at once.
constexpr int64_t kStride = 8;

// Weights as the caller gave them, and the modes made of them. Real modes have no imaginary parts.
template <typename T>
struct Weights {
  const T *dt, *lam_re, *lam_im, *c_re, *c_im, *skip;
  bool bilinear, real;
  Mode *modes;  // (features, modes)

  Complex lam(int64_t i) const { return {exact(lam_re[i]), lam_im ? exact(lam_im[i]) : 0.0}; }
  // y = Re(gain C h): conjugate pairs of complex modes count twice
  double gain() const { return lam_im ? 2 : 1; }
  Complex c(int64_t i) const { return {static_cast<double>(c_re[i]), c_im ? static_cast<double>(c_im[i]) : 0.0}; }
};

template <typename T>
void discretize(const Shape &shape, const Weights<T> &weights, int64_t begin, int64_t end) {
  for (int64_t f = begin; f < end; ++f) {
    const double dt = exact(weights.dt[f]);
    for (int64_t n = f * shape.modes; n < (f + 1) * shape.modes; ++n) {
      weights.modes[n] = discretize(dt, weights.lam(n), weights.bilinear, bounds_of<T>);
    }
  }
}

// One vector of a complex coefficient.
template <typename T>
struct Pair {
  Vector<T> re, im;
};

template <typename T>
inline Pair<T> real_pair(Vector<T> re) {
  return {re, Vector<T>{}};
}
template <typename T>
inline Pair<T> load_pair(const T *p) {
  return {load(p), load(p + lanes<T>)};
}
template <typename T>
inline void store_pair(T *p, Pair<T> x) {
  store(p, x.re);
  store(p + lanes<T>, x.im);
}
template <typename T>
inline Pair<T> operator*(Pair<T> x, Pair<T> y) {
  return {x.re * y.re - x.im * y.im, x.re * y.im + x.im * y.re};
}
template <bool Real, typename T>
inline Pair<T> times(Pair<T> x, Pair<T> y) {
  if constexpr (Real) return real_pair<T>(x.re * y.re);
  return x * y;
}
template <typename T>
inline Pair<T> operator+(Pair<T> x, Pair<T> y) {
  return {x.re + y.re, x.im + y.im};
}
template <typename T>
inline Pair<T> operator*(Vector<T> s, Pair<T> x) {
  return {s * x.re, s * x.im};
}

// A complex double in each lane of a Vector<T>; the loops over lanes become vector code.
template <typename T>
struct Wide {
  double re[lanes<T>], im[lanes<T>];

  friend Wide operator*(const Wide &x, const Wide &y) {
    Wide z;
    for (int64_t i = 0; i < lanes<T>; ++i) z.re[i] = x.re[i] * y.re[i] - x.im[i] * y.im[i];
    for (int64_t i = 0; i < lanes<T>; ++i) z.im[i] = x.re[i] * y.im[i] + x.im[i] * y.re[i];
    return z;
  }
  void store(T *p, double scale = 1) const {
    for (int64_t i = 0; i < lanes<T>; ++i) p[i] = static_cast<T>(scale * re[i]);
    for (int64_t i = 0; i < lanes<T>; ++i) p[lanes<T> + i] = static_cast<T>(scale * im[i]);
  }
};

// a and c of one mode over the lanes of a block of features. The state that the kernels carry is x = h / b, so
// that the input enters with weight 1: x_t = a x_{t-1} + u_t, y_t = Re(c x_t) with c = gain C b.
template <typename T>
struct Coefficients {
  Wide<T> a, c;

  Coefficients(const Shape &shape, const Layout<T> &layout, const Weights<T> &weights, int64_t block, int64_t mode) {
    for (int64_t lane = 0; lane < lanes<T>; ++lane) {
      const int64_t feature = block * layout.width + lane % layout.width;
      const bool used = lane < layout.fold * layout.width && feature < shape.features;
      const int64_t n = feature * shape.modes + mode;
      const Mode m = used ? weights.modes[n] : Mode{};
      const Complex output = used ? weights.gain() * (weights.c(n) * m.b) : Complex{};
      a.re[lane] = m.a.re, a.im[lane] = m.a.im;
      c.re[lane] = output.re, c.im[lane] = output.im;
    }
  }
};

// Tables of one block of features; entries are [mode][entry][re, im][lane].
template <typename T>
struct Tables {
  static constexpr int64_t kPair = 2 * lanes<T>;
  static constexpr int64_t kStepEntries = 2;             // a, c
  static constexpr int64_t kPowerEntries = 2 * kStride;  // a^1 .. a^8, and j a^j for j = 0 .. 7
  T *steps, *powers;

  static int64_t size(int64_t modes) { return modes * (kStepEntries + kPowerEntries) * kPair; }

  Tables(T *memory, int64_t modes) : steps(memory), powers(memory + modes * kStepEntries * kPair) {}

  const T *a(int64_t mode) const { return steps + mode * kStepEntries * kPair; }
  const T *c(int64_t mode) const { return a(mode) + kPair; }
  const T *power(int64_t mode, int64_t j) const { return powers + (mode * kPowerEntries + j - 1) * kPair; }
  const T *slope(int64_t mode, int64_t j) const { return powers + (mode * kPowerEntries + kStride + j) * kPair; }

  void fill(const Shape &shape, const Layout<T> &layout, const Weights<T> &weights, int64_t block) {
    for (int64_t mode = 0; mode < shape.modes; ++mode) {
      const Coefficients<T> of(shape, layout, weights, block, mode);
      T *step = steps + mode * kStepEntries * kPair, *entry = powers + mode * kPowerEntries * kPair;
      of.a.store(step);
      of.c.store(step + kPair);
      Wide<T> p = of.a;
      std::memset(entry + kStride * kPair, 0, kPair * sizeof(T));
      for (int64_t j = 1; j <= kStride; ++j, p = p * of.a) {
        p.store(entry + (j - 1) * kPair);
        if (j < kStride) p.store(entry + (kStride + j) * kPair, static_cast<double>(j));
      }
    }
  }
};

}  // namespace holdfast::s4d
