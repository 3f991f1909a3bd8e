// The loops over time of s4d/scan_tile.h.
#include "s4d/scan_tile.h"

namespace holdfast::s4d {

namespace {

// Adds what M modes give to y over `count` steps and advances their states.
template <int M, bool Real, typename T>
void forward_modes(const Tables<T> &tables, int64_t mode, int64_t count, const T *u, T *y, T *state) {
  Pair<T> a[M], c[M], x[M];
  HOLDFAST_UNROLL
  for (int i = 0; i < M; ++i) {
    a[i] = load_pair(tables.a(mode + i));
    c[i] = load_pair(tables.c(mode + i));
    x[i] = load_pair(state + (mode + i) * Tables<T>::kPair);
  }
  for (int64_t s = 0; s < count; ++s) {
    const auto in = load(u + s * lanes<T>);
    auto out = load(y + s * lanes<T>);
    HOLDFAST_UNROLL
    for (int i = 0; i < M; ++i) {
      if constexpr (Real) {
        x[i].re = a[i].re * x[i].re + in;
        out += c[i].re * x[i].re;
      } else {
        const auto re = a[i].re * x[i].re + (in - a[i].im * x[i].im);
        x[i].im = a[i].re * x[i].im + a[i].im * x[i].re;
        x[i].re = re;
        out += c[i].re * x[i].re;
        out -= c[i].im * x[i].im;
      }
    }
    store(y + s * lanes<T>, out);
  }
  HOLDFAST_UNROLL
  for (int i = 0; i < M; ++i) store_pair(state + (mode + i) * Tables<T>::kPair, x[i]);
}

// The gradient of that; gu gains the input's.
template <int M, bool Real, bool WithB, typename T>
void backward_modes(const Tables<T> &tables, int64_t mode, int64_t count, const T *u, const T *gy, T *gu,
                    const T *state, T *adjoint, T *history, const Sums<T> &sums) {
  constexpr int64_t pair = Tables<T>::kPair;
  Pair<T> a[M], x[M];
  HOLDFAST_UNROLL
  for (int i = 0; i < M; ++i) {
    a[i] = load_pair(tables.a(mode + i));
    x[i] = load_pair(state + (mode + i) * pair);
  }
  for (int64_t s = 0; s < count; ++s) {
    const auto in = load(u + s * lanes<T>);
    HOLDFAST_UNROLL
    for (int i = 0; i < M; ++i) {
      store_pair(history + (s * M + i) * pair, x[i]);
      if constexpr (Real) {
        x[i].re = a[i].re * x[i].re + in;
      } else {
        const auto re = a[i].re * x[i].re + (in - a[i].im * x[i].im);
        x[i].im = a[i].re * x[i].im + a[i].im * x[i].re;
        x[i].re = re;
      }
    }
  }
  Pair<T> c[M], g[M], of_a[M] = {}, of_c[M] = {}, of_b[M] = {};
  HOLDFAST_UNROLL
  for (int i = 0; i < M; ++i) {
    c[i] = load_pair(tables.c(mode + i));
    g[i] = load_pair(adjoint + (mode + i) * pair);
  }
  for (int64_t s = count - 1; s >= 0; --s) {
    const auto out = load(gy + s * lanes<T>);
    auto in = load(gu + s * lanes<T>);
    HOLDFAST_UNROLL
    for (int i = 0; i < M; ++i) {
      of_c[i].re += out * x[i].re;
      g[i].re += c[i].re * out;
      if constexpr (!Real) {
        of_c[i].im += out * x[i].im;
        g[i].im += c[i].im * out;
      }
      in += g[i].re;
      if constexpr (WithB) {
        const auto drive = load(u + s * lanes<T>);
        of_b[i].re += g[i].re * drive;
        if constexpr (!Real) of_b[i].im += g[i].im * drive;
      }
      x[i] = load_pair(history + (s * M + i) * pair);
      of_a[i].re += g[i].re * x[i].re;
      if constexpr (!Real) {
        of_a[i].re -= g[i].im * x[i].im;
        of_a[i].im += g[i].re * x[i].im;
        of_a[i].im += g[i].im * x[i].re;
      }
      g[i] = times<Real>(a[i], g[i]);
    }
    store(gu + s * lanes<T>, in);
  }
  HOLDFAST_UNROLL
  for (int i = 0; i < M; ++i) {
    store_pair(adjoint + (mode + i) * pair, g[i]);
    add<T>(sums.of_a(mode + i), of_a[i]);
    add<T>(sums.of_c(mode + i), of_c[i]);
    if constexpr (WithB) add<T>(sums.of_b(mode + i), of_b[i]);
  }
}

template <bool Real, typename T>
void forward_modes(const Tables<T> &tables, int64_t modes, Vector<T> skip, int64_t count, const T *u, T *y, T *state) {
  for (int64_t s = 0; s < count; ++s) store(y + s * lanes<T>, skip * load(u + s * lanes<T>));
  int64_t mode = 0;
  for (; mode + kForwardModes <= modes; mode += kForwardModes) {
    forward_modes<kForwardModes, Real>(tables, mode, count, u, y, state);
  }
  for (; mode + 2 <= modes; mode += 2) forward_modes<2, Real>(tables, mode, count, u, y, state);
  if (mode < modes) forward_modes<1, Real>(tables, mode, count, u, y, state);
}

template <bool Real, bool WithB, typename T>
void backward_modes(const Tables<T> &tables, int64_t modes, Vector<T> skip, int64_t count, const T *u, const T *gy,
                    T *gu, const T *state, T *adjoint, T *history, const Sums<T> &sums) {
  Vector<T> of_skip = {};
  for (int64_t s = 0; s < count; ++s) {
    const auto out = load(gy + s * lanes<T>);
    of_skip += out * load(u + s * lanes<T>);
    store(gu + s * lanes<T>, skip * out);
  }
  add<T>(sums.skip(modes), of_skip);
  int64_t mode = 0;
  for (; mode + kBackwardModes <= modes; mode += kBackwardModes) {
    backward_modes<kBackwardModes, Real, WithB>(tables, mode, count, u, gy, gu, state, adjoint, history, sums);
  }
  if (mode < modes) backward_modes<1, Real, WithB>(tables, mode, count, u, gy, gu, state, adjoint, history, sums);
}

}  // namespace

template <typename T>
void forward_tile(bool real, const Tables<T> &tables, int64_t modes, Vector<T> skip, int64_t count, const T *u, T *y,
                  T *state) {
  const auto run = real ? forward_modes<true, T> : forward_modes<false, T>;
  run(tables, modes, skip, count, u, y, state);
}

template <typename T>
void backward_tile(bool real, bool with_b, const Tables<T> &tables, int64_t modes, Vector<T> skip, int64_t count,
                   const T *u, const T *gy, T *gu, const T *state, T *adjoint, T *history, const Sums<T> &sums) {
  const auto run = real ? (with_b ? backward_modes<true, true, T> : backward_modes<true, false, T>)
                        : (with_b ? backward_modes<false, true, T> : backward_modes<false, false, T>);
  run(tables, modes, skip, count, u, gy, gu, state, adjoint, history, sums);
}

#define HOLDFAST_S4D_SCAN_TILE(T)                                                                                    \
  template void forward_tile(bool, const Tables<T> &, int64_t, Vector<T>, int64_t, const T *, T *, T *);             \
  template void backward_tile(bool, bool, const Tables<T> &, int64_t, Vector<T>, int64_t, const T *, const T *, T *, \
                              const T *, T *, T *, const Sums<T> &);
HOLDFAST_S4D_SCAN_TILE(float)
HOLDFAST_S4D_SCAN_TILE(double)

}  // namespace holdfast::s4d
