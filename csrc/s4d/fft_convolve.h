// What is done with spectra on the way (see fft.h): transform, invert, convolve, and the backward of a convolution.
#pragma once

#include "s4d/fft.h"

namespace holdfast::fft {

// A walk that transforms on the way down (Down), on the way back (Up), or both.
template <typename T, bool Down, bool Up>
struct Walk {
  const Plan &plan;
  const T *twiddles;
  T *data;

  T *at(int64_t offset) const { return data + offset * kPoint<T>; }
  void down(int s, int64_t offset, int64_t n) {
    if constexpr (Down) run_stage<false>(plan, s, at(offset), n, twiddles);
  }
  void up(int s, int64_t offset, int64_t n) {
    if constexpr (Up) run_stage<true>(plan, s, at(offset), n, twiddles);
  }
};

template <bool Swapped, int R, typename T>
HOLDFAST_INLINE void get_all(const T *p, Point<T> (&x)[R]) {
  HOLDFAST_UNROLL
  for (int q = 0; q < R; ++q) x[q] = get<Swapped>(p + q * kPoint<T>);
}
template <bool Swapped, int R, typename T>
HOLDFAST_INLINE void put_all(T *p, const Point<T> (&x)[R]) {
  HOLDFAST_UNROLL
  for (int q = 0; q < R; ++q) put<Swapped>(p + q * kPoint<T>, x[q]);
}

// The spectrum of what first_stage left in `data`, in place.
template <typename T>
struct ToSpectrum : Walk<T, true, false> {
  template <int R>
  HOLDFAST_INLINE void leaf(int64_t offset) {
    Point<T> x[R];
    get_all<false>(this->at(offset), x);
    dft(x);
    put_all<false>(this->at(offset), x);
  }
};

// The way back from a spectrum to what last_stage takes, in place.
template <typename T>
struct FromSpectrum : Walk<T, false, true> {
  template <int R>
  HOLDFAST_INLINE void leaf(int64_t offset) {
    Point<T> x[R];
    get_all<true>(this->at(offset), x);
    dft(x);
    put_all<true>(this->at(offset), x);
  }
};

// x k, or x conj(k).
template <bool Conjugate, typename T>
HOLDFAST_INLINE Point<T> product(Point<T> x, Point<T> k) {
  if constexpr (Conjugate) return {x.re * k.re + x.im * k.im, x.im * k.re - x.re * k.im};
  return {x.re * k.re - x.im * k.im, x.re * k.im + x.im * k.re};
}

template <int R, typename T>
HOLDFAST_INLINE void back(T *p, Point<T> (&x)[R]) {
  HOLDFAST_UNROLL
  for (int q = 0; q < R; ++q) x[q] = {x[q].im, x[q].re};
  dft(x);
  put_all<true>(p, x);
}

// data becomes its convolution with the kernel whose spectrum is given; the conjugate spectrum makes it a correlation.
template <typename T>
struct Convolve : Walk<T, true, true> {
  const T *kernel;

  template <int R>
  HOLDFAST_INLINE void leaf(int64_t offset) {
    const T *k = kernel + offset * kPoint<T>;
    Point<T> x[R];
    get_all<false>(this->at(offset), x);
    dft(x);
    HOLDFAST_UNROLL
    for (int q = 0; q < R; ++q) x[q] = product<false>(x[q], get<false>(k + q * kPoint<T>));
    back(this->at(offset), x);
  }
};

// data, a gradient, becomes that of the convolution's input; `sum` gains the spectrum of the kernel's gradient,
// conj(u) g: of a correlation that is its conjugate.
template <typename T>
struct ConvolveBackward : Walk<T, true, true> {
  using Both = Walk<T, true, true>;
  T *input;
  const T *kernel;
  T *sum;

  ToSpectrum<T> other() const { return {{this->plan, this->twiddles, input}}; }
  void down(int s, int64_t offset, int64_t n) {
    other().down(s, offset, n);
    Both::down(s, offset, n);
  }
  template <int R>
  HOLDFAST_INLINE void leaf(int64_t offset) {
    other().template leaf<R>(offset);
    const T *u = input + offset * kPoint<T>, *k = kernel + offset * kPoint<T>;
    T *total = sum + offset * kPoint<T>;
    Point<T> x[R];
    get_all<false>(this->at(offset), x);
    dft(x);
    HOLDFAST_UNROLL
    for (int q = 0; q < R; ++q) {
      const auto gained = product<true>(x[q], get<false>(u + q * kPoint<T>));
      put<false>(total + q * kPoint<T>, get<false>(total + q * kPoint<T>) + gained);
      x[q] = product<true>(x[q], get<false>(k + q * kPoint<T>));
    }
    back(this->at(offset), x);
  }
};

}  // namespace holdfast::fft
