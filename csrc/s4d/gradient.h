// Sums that the backward kernels leave, and the way from there to the gradients of the weights.
#pragma once

#include "s4d/tables.h"

namespace holdfast::s4d {

// Sums of one block of features in double, lane by lane, for d loss = Re(of_a da + of_c dc + of_b db) / with
// of_b times b: [mode][of_a, of_c, of_b][re, im][lane], then [lane] of the skip weight.
template <typename T>
struct Sums {
  static constexpr int64_t kEntries = 3;
  double *memory;

  static int64_t size(int64_t modes) { return (modes * kEntries * 2 + 1) * lanes<T>; }
  double *of_a(int64_t mode) const { return memory + mode * kEntries * 2 * lanes<T>; }
  double *of_c(int64_t mode) const { return of_a(mode) + 2 * lanes<T>; }
  double *of_b(int64_t mode) const { return of_a(mode) + 4 * lanes<T>; }
  double *skip(int64_t modes) const { return memory + modes * kEntries * 2 * lanes<T>; }
};

template <typename T>
inline void add(double *to, Vector<T> x) {
  for (int64_t i = 0; i < lanes<T>; ++i) to[i] += static_cast<double>(x[i]);
}
template <typename T>
inline void add(double *to, Pair<T> x) {
  add<T>(to, x.re);
  add<T>(to + lanes<T>, x.im);
}

template <typename T>
struct Gradients {
  T *dt, *lam_re, *lam_im, *c_re, *c_im, *skip;
};

// Adds the lanes that hold one feature, over the slots that threads filled, in a fixed order.
template <typename T>
struct Gather {
  const Layout<T> &layout;
  const double *memory;  // slots of `slot` numbers each
  int64_t slots, slot;

  double operator()(int64_t offset, int64_t lane) const {
    double total = 0;
    for (int64_t s = 0; s < slots; ++s) {
      for (int64_t r = 0; r < layout.fold; ++r) total += memory[s * slot + offset + r * layout.width + lane];
    }
    return total;
  }
  Complex pair(int64_t offset, int64_t lane) const { return {(*this)(offset, lane), (*this)(offset + lanes<T>, lane)}; }
};

// Gradients of the weights of features begin .. end. `driven`: only the input moved the states, so that what b
// does can be read from what c does; otherwise the sums of_b are there.
template <typename T>
void finish(const Shape &shape, const Layout<T> &layout, const Weights<T> &weights, const double *sums, int64_t slots,
            bool driven, const Gradients<T> &out, int64_t begin, int64_t end) {
  const int64_t size = Sums<T>::size(shape.modes);
  const Gather<T> gather{layout, sums, slots, layout.blocks * size};
  for (int64_t f = begin; f < end; ++f) {
    const int64_t base = f / layout.width * size, lane = f % layout.width;
    const double dt = exact(weights.dt[f]);
    double of_dt = 0;
    for (int64_t mode = 0; mode < shape.modes; ++mode) {
      const int64_t n = f * shape.modes + mode, at = base + mode * Sums<T>::kEntries * 2 * lanes<T>;
      const Mode m = weights.modes[n];
      const Complex of_a = gather.pair(at, lane), of_c = weights.gain() * gather.pair(at + 2 * lanes<T>, lane);
      const Complex of_b = driven ? of_c * weights.c(n) : gather.pair(at + 4 * lanes<T>, lane) / m.b;
      const ModeGradient g = discretize_backward(dt, weights.lam(n), weights.bilinear, bounds_of<T>, m, of_a, of_b);
      const Complex of_output = of_c * m.b;
      of_dt += g.dt;
      out.lam_re[n] = static_cast<T>(g.lam_re);
      out.c_re[n] = static_cast<T>(of_output.re);
      if (out.lam_im) out.lam_im[n] = static_cast<T>(g.lam_im);
      if (out.c_im) out.c_im[n] = static_cast<T>(-of_output.im);
    }
    out.dt[f] = static_cast<T>(of_dt);
    if (out.skip) out.skip[f] = static_cast<T>(gather(base + shape.modes * Sums<T>::kEntries * 2 * lanes<T>, lane));
  }
}

}  // namespace holdfast::s4d
