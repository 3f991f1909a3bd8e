// The tile kernels of s4d/powers.h.
#include "s4d/powers.h"

namespace holdfast::s4d {

namespace {

template <bool Real, typename T>
void impulse(const Tables<T> &tables, int64_t modes, int64_t count, T *state, T *kernel) {
  constexpr int64_t pair = Tables<T>::kPair;
  for (int64_t s = 0; s < count; s += 2 * kStride) {
    Vector<T> early[kStride] = {}, late[kStride] = {};
    for (int64_t mode = 0; mode < modes; ++mode) {
      Pair<T> v = load_pair(state + mode * pair);
      const Pair<T> far = load_pair(tables.power(mode, kStride)), w = times<Real>(v, far);
      early[0] += v.re;
      late[0] += w.re;
      HOLDFAST_UNROLL
      for (int64_t j = 1; j < kStride; ++j) {
        const T *p = tables.power(mode, j);
        const auto re = load(p);
        early[j] += v.re * re;
        late[j] += w.re * re;
        if constexpr (!Real) {
          const auto im = load(p + lanes<T>);
          early[j] -= v.im * im;
          late[j] -= w.im * im;
        }
      }
      store_pair(state + mode * pair, times<Real>(w, far));
    }
    HOLDFAST_UNROLL
    for (int64_t j = 0; j < kStride; ++j) {
      store(kernel + (s + j) * lanes<T>, early[j]);
      store(kernel + (s + kStride + j) * lanes<T>, late[j]);
    }
  }
}

template <bool Real, typename T>
void moments(const Tables<T> &tables, int64_t mode, int64_t count, const T *g, Pair<T> &zeroth, Pair<T> &first) {
  const Pair<T> far = load_pair(tables.power(mode, kStride));
  Pair<T> p = real_pair<T>(broadcast<T>(1));
  zeroth = first = Pair<T>{};
  for (int64_t s = 0; s < count; s += 2 * kStride, g += 2 * kStride * lanes<T>) {
    const auto early = load(g), late = load(g + kStride * lanes<T>);
    Pair<T> r = real_pair<T>(early), q = real_pair<T>(late), r1{}, q1{};
    HOLDFAST_UNROLL
    for (int64_t j = 1; j < kStride; ++j) {
      const Pair<T> a = load_pair(tables.power(mode, j)), ja = load_pair(tables.slope(mode, j));
      const auto x = load(g + j * lanes<T>), y = load(g + (kStride + j) * lanes<T>);
      r.re += a.re * x;
      q.re += a.re * y;
      r1.re += ja.re * x;
      q1.re += ja.re * y;
      if constexpr (!Real) {
        r.im += a.im * x;
        q.im += a.im * y;
        r1.im += ja.im * x;
        q1.im += ja.im * y;
      }
    }
    const auto at = broadcast<T>(static_cast<T>(s)), later = broadcast<T>(static_cast<T>(s + kStride));
    zeroth = zeroth + times<Real>(p, r + times<Real>(far, q));
    first = first + times<Real>(p, at * r + r1 + times<Real>(far, later * q + q1));
    p = times<Real>(p, times<Real>(far, far));
  }
}

// What `count` inputs, a multiple of sixteen and `stride` numbers apart, leave in a state that was 0:
// sum_j a^(count - 1 - j) u_j of one mode. The powers stay in registers.
template <bool Real, typename T>
inline Pair<T> absorb_mode(const Tables<T> &tables, int64_t mode, int64_t count, const T *u, int64_t stride) {
  Pair<T> power[kStride + 1], sum{};
  HOLDFAST_UNROLL
  for (int64_t j = 1; j <= kStride; ++j) power[j] = load_pair(tables.power(mode, j));
  for (int64_t s = 0; s < count; s += 2 * kStride, u += 2 * kStride * stride) {
    Pair<T> x = real_pair<T>(load(u + (kStride - 1) * stride)), y = real_pair<T>(load(u + (2 * kStride - 1) * stride));
    HOLDFAST_UNROLL
    for (int64_t j = 1; j < kStride; ++j) {
      const auto early = load(u + (kStride - 1 - j) * stride), late = load(u + (2 * kStride - 1 - j) * stride);
      x.re += power[j].re * early;
      y.re += power[j].re * late;
      if constexpr (!Real) {
        x.im += power[j].im * early;
        y.im += power[j].im * late;
      }
    }
    sum = times<Real>(power[kStride], times<Real>(power[kStride], sum) + x) + y;
  }
  return sum;
}

// The same for all modes and any count, into state.
template <bool Real, typename T>
void absorb(const Tables<T> &tables, int64_t modes, int64_t count, const T *u, int64_t stride, T *state) {
  const int64_t odd = count % (2 * kStride);
  for (int64_t mode = 0; mode < modes; ++mode) {
    const Pair<T> a = load_pair(tables.a(mode));
    Pair<T> head{}, leap = real_pair<T>(broadcast<T>(1));
    for (int64_t s = 0; s < odd; ++s) head = times<Real>(a, head) + real_pair<T>(load(u + s * stride));
    if (odd) {  // the odd steps come first and cross the others
      const Pair<T> far = load_pair(tables.power(mode, kStride));
      for (int64_t s = odd; s < count; s += 2 * kStride) leap = times<Real>(leap, times<Real>(far, far));
      head = times<Real>(leap, head);
    }
    store_pair(state + mode * Tables<T>::kPair,
               head + absorb_mode<Real>(tables, mode, count - odd, u + odd * stride, stride));
  }
}

}  // namespace

template <typename T>
void impulse_tile(bool real, const Tables<T> &tables, int64_t modes, int64_t count, T *state, T *kernel) {
  real ? impulse<true>(tables, modes, count, state, kernel) : impulse<false>(tables, modes, count, state, kernel);
}

template <typename T>
void moments_tile(bool real, const Tables<T> &tables, int64_t mode, int64_t count, const T *g, Pair<T> &zeroth,
                  Pair<T> &first) {
  real ? moments<true>(tables, mode, count, g, zeroth, first) : moments<false>(tables, mode, count, g, zeroth, first);
}

template <typename T>
void absorb_tile(bool real, const Tables<T> &tables, int64_t modes, int64_t count, const T *u, int64_t stride,
                 T *state) {
  real ? absorb<true>(tables, modes, count, u, stride, state) : absorb<false>(tables, modes, count, u, stride, state);
}

template <typename T>
void carry(int64_t modes, const double *leap, const T *gained, double *total) {
  constexpr int64_t width = lanes<T>;
  for (int64_t mode = 0; mode < modes; ++mode, leap += 2 * width, gained += 2 * width, total += 2 * width) {
    for (int64_t i = 0; i < width; ++i) {
      const double re = leap[i] * total[i] - leap[width + i] * total[width + i];
      const double im = leap[i] * total[width + i] + leap[width + i] * total[i];
      total[i] = re + static_cast<double>(gained[i]);
      total[width + i] = im + static_cast<double>(gained[width + i]);
    }
  }
}

#define HOLDFAST_S4D_POWERS(T)                                                                            \
  template void impulse_tile(bool, const Tables<T> &, int64_t, int64_t, T *, T *);                        \
  template void moments_tile(bool, const Tables<T> &, int64_t, int64_t, const T *, Pair<T> &, Pair<T> &); \
  template void absorb_tile(bool, const Tables<T> &, int64_t, int64_t, const T *, int64_t, T *);          \
  template void carry(int64_t, const double *, const T *, double *);
HOLDFAST_S4D_POWERS(float)
HOLDFAST_S4D_POWERS(double)

}  // namespace holdfast::s4d
