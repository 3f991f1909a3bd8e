// Fourier transforms along time for causal convolutions of real sequences, one sequence in each vector lane and
// nothing else beside it: what one holds, however large or broken, cannot reach another.
//
// No padding: a sequence x of n steps is evaluated at the n points X with X^n = -i, exp(-2 pi i (k + 1/4) / n). Reduced
// by X^n = -i, a product of two real polynomials has its first n coefficients, the wanted ones, in the real parts, and
// those that would wrap around in the imaginary parts. So n complex points serve where a padded transform has 2 n.
//
// Decimation in frequency on the way down and in time on the way back, so that spectra stay in scrambled order and
// no bit reversal is needed: products of spectra do not care. Depth first, so that from some level on everything is
// in the first-level cache. The first stage has radix 4, reads real numbers and takes the quarter turn into account
// (on the way back it leaves only real parts); after it the points are those of ordinary transforms. The last stage,
// both ways, is fused with the product of the spectra.
#pragma once

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "s4d/fft_butterfly.h"

namespace holdfast::fft {

constexpr int kMaxStages = 24;
constexpr int kFirst = 4;  // radix of the first stage

struct Plan {
  int64_t size = 0;                // points of the transform, kFirst * radix[0] * radix[1] * ...
  int64_t inner = 0;               // size / kFirst, what is left after the first stage
  int stages = 0;                  // after the first
  int radix[kMaxStages] = {};      // of each of these
  int64_t table[kMaxStages] = {};  // where the twiddles of each begin; those of the first stage are at 0
  int64_t twiddles = 0;            // numbers in the table
};

// Relative time of a stage per point, measured on data in the first-level cache.
inline double stage_cost(int radix) {
  return radix == 8 ? 1.6 : radix == 5 ? 1.5 : radix == 3 ? 1.2 : radix == 4 ? 1.1 : 0.9;
}

inline void set_radices(Plan &plan, int threes, int fives, int twos) {
  int n = 0;
  for (int i = 0; i < fives; ++i) plan.radix[n++] = 5;
  for (int i = 0; i < threes; ++i) plan.radix[n++] = 3;
  const int eights = twos / 3, rest = twos % 3;
  for (int i = 0; i + 1 < eights; ++i) plan.radix[n++] = 8;
  if (rest) plan.radix[n++] = 1 << rest;
  if (eights) plan.radix[n++] = 8;  // no twiddles in the last stage: the largest radix saves the most there
  plan.stages = n;
}

inline double plan_cost(const Plan &plan) {
  double cost = 1.6;
  for (int s = 0; s < plan.stages; ++s) cost += stage_cost(plan.radix[s]);
  return cost * static_cast<double>(plan.inner);
}

// The cheapest transform that holds `time` steps, among sizes 4 * 2^a 3^b 5^c with b + c <= 3.
inline Plan make_plan(int64_t time) {
  const int64_t quarter = (time + kFirst - 1) / kFirst, need = quarter > 2 ? quarter : 2;
  Plan best;
  for (int threes = 0; threes <= 3; ++threes) {
    for (int fives = 0; threes + fives <= 3; ++fives) {
      Plan plan;
      int twos = 0;
      plan.inner = 1;
      for (int i = 0; i < threes; ++i) plan.inner *= 3;
      for (int i = 0; i < fives; ++i) plan.inner *= 5;
      for (; plan.inner < need; ++twos) plan.inner *= 2;
      set_radices(plan, threes, fives, twos);
      if (best.size == 0 || plan_cost(plan) < plan_cost(best)) best = plan, best.size = kFirst * plan.inner;
    }
  }
  best.twiddles = 2 * kFirst * best.inner;
  int64_t n = best.inner;
  for (int s = 0; s < best.stages; n /= best.radix[s++]) {
    best.table[s] = best.twiddles;
    best.twiddles += 2 * (n / best.radix[s]) * (best.radix[s] - 1);
  }
  return best;
}

// exp(-2 pi i j (q + turn) / n) for j < n / radix and first <= q < radix, as (re, im) pairs.
template <typename T>
void make_twiddles(T *out, int64_t n, int first, int radix, double turn) {
  for (int64_t j = 0; j < n / radix; ++j) {
    for (int q = first; q < radix; ++q) {
      const double angle = -2 * M_PI * static_cast<double>(j) * (q + turn) / static_cast<double>(n);
      *out++ = static_cast<T>(std::cos(angle));
      *out++ = static_cast<T>(std::sin(angle));
    }
  }
}

template <typename T>
void make_twiddles(T *out, const Plan &plan) {
  make_twiddles(out, plan.size, 0, kFirst, 0.25);
  int64_t n = plan.inner;
  for (int s = 0; s < plan.stages; n /= plan.radix[s++]) make_twiddles(out + plan.table[s], n, 1, plan.radix[s], 0);
}

template <typename T>
constexpr int64_t kPoint = 2 * lanes<T>;  // numbers in a point

// One stage over R * m points in place, towards the spectrum or (Inverse) back.
template <int R, bool Inverse, typename T>
HOLDFAST_INLINE void stage(T *data, int64_t m, const T *w) {
  for (int64_t j = 0; j < m; ++j, data += kPoint<T>, w += 2 * (R - 1)) {
    Point<T> x[R];
    HOLDFAST_UNROLL
    for (int q = 0; q < R; ++q) x[q] = get<Inverse>(data + q * m * kPoint<T>);
    if constexpr (!Inverse) dft(x);
    HOLDFAST_UNROLL
    for (int q = 1; q < R; ++q) x[q] = turned(x[q], w[2 * q - 2], w[2 * q - 1]);
    if constexpr (Inverse) dft(x);
    HOLDFAST_UNROLL
    for (int q = 0; q < R; ++q) put<Inverse>(data + q * m * kPoint<T>, x[q]);
  }
}

// Before leaves of 8 points the distances are constants.
template <int R, bool Inverse, typename T>
HOLDFAST_INLINE void any_stage(T *data, int64_t m, const T *w) {
  m == 8 ? stage<R, Inverse>(data, 8, w) : stage<R, Inverse>(data, m, w);
}

template <bool Inverse, typename T>
HOLDFAST_APART void run_stage(const Plan &plan, int s, T *data, int64_t n, const T *twiddles) {
  const T *w = twiddles + plan.table[s];
  switch (plan.radix[s]) {
    case 2:
      return any_stage<2, Inverse>(data, n / 2, w);
    case 3:
      return any_stage<3, Inverse>(data, n / 3, w);
    case 4:
      return any_stage<4, Inverse>(data, n / 4, w);
    case 5:
      return any_stage<5, Inverse>(data, n / 5, w);
    default:
      return stage<8, Inverse>(data, n / 8, w);
  }
}

// The first stage, from the real numbers source(t) for t < size into `data`.
template <typename T, typename Source>
void first_stage(const Plan &plan, const T *w, T *data, Source &&source) {
  const int64_t m = plan.inner;
  for (int64_t j = 0; j < m; ++j, data += kPoint<T>, w += 2 * kFirst) {
    Point<T> x[kFirst];
    quarter_turned(source(j), source(j + m), source(j + 2 * m), source(j + 3 * m), x);
    dft(x);
    HOLDFAST_UNROLL
    for (int q = 0; q < kFirst; ++q) put<false>(data + q * m * kPoint<T>, turned(x[q], w[2 * q], w[2 * q + 1]));
  }
}

// The last stage of the inverse: sink(t, real number) for t < size. Nothing is scaled.
template <typename T, typename Sink>
void last_stage(const Plan &plan, const T *w, const T *data, Sink &&sink) {
  const int64_t m = plan.inner;
  for (int64_t j = 0; j < m; ++j, data += kPoint<T>, w += 2 * kFirst) {
    Point<T> x[kFirst];
    HOLDFAST_UNROLL
    for (int q = 0; q < kFirst; ++q) x[q] = turned(get<true>(data + q * m * kPoint<T>), w[2 * q], w[2 * q + 1]);
    dft(x);
    Vector<T> y[kFirst];
    real_parts(x, y);
    HOLDFAST_UNROLL
    for (int k = 0; k < kFirst; ++k) sink(j + k * m, y[k]);
  }
}

// `count` times the last stage, whose R points lie next to each other.
template <typename Work>
HOLDFAST_APART void run_leaves(int radix, int64_t offset, int64_t count, Work &work) {
  const auto run = [&](auto r) {
    for (int64_t i = 0; i < count; ++i) work.template leaf<r()>(offset + i * r());
  };
  switch (radix) {
    case 2:
      return run(std::integral_constant<int, 2>{});
    case 3:
      return run(std::integral_constant<int, 3>{});
    case 4:
      return run(std::integral_constant<int, 4>{});
    case 5:
      return run(std::integral_constant<int, 5>{});
    default:
      return run(std::integral_constant<int, 8>{});
  }
}

// Walks the inner stages depth first: work.down(s, offset, n), the parts, work.up(s, offset, n), and at the last stage
// work.leaf<R>(offset).
template <typename Work>
void descend(const Plan &plan, int s, int64_t offset, int64_t n, Work &work) {
  const int radix = plan.radix[s], last = plan.stages - 1;
  if (s == last) return run_leaves(radix, offset, 1, work);
  work.down(s, offset, n);
  if (s + 1 == last) {
    run_leaves(plan.radix[last], offset, radix, work);
  } else {
    for (int q = 0; q < radix; ++q) descend(plan, s + 1, offset + q * (n / radix), n / radix, work);
  }
  work.up(s, offset, n);
}

template <typename Work>
void descend(const Plan &plan, Work &work) {
  for (int q = 0; q < kFirst; ++q) descend(plan, 0, q * plan.inner, plan.inner, work);
}

}  // namespace holdfast::fft
