// What is done with spectra on the way (see fft.h): transform, invert, convolve, and the backward of a convolution.
#pragma once

#include "fft.h"

namespace holdfast::fft {

// The spectrum of what first_stage left in `data`, in place.
template <typename T>
struct ToSpectrum {
  const Plan &plan;
  const T *twiddles;
  T *data;

  void down(int s, int64_t offset, int64_t n) { run_stage<false>(plan, s, data + offset * kPoint<T>, n, twiddles); }
  void up(int, int64_t, int64_t) {}
  template <int R>
  void leaf(int64_t offset) {
    T *p = data + offset * kPoint<T>;
    Point<T> x[R];
    for (int q = 0; q < R; ++q) x[q] = get<false>(p + q * kPoint<T>);
    dft(x);
    for (int q = 0; q < R; ++q) put<false>(p + q * kPoint<T>, x[q]);
  }
};

// The way back from a spectrum to what last_stage takes, in place.
template <typename T>
struct FromSpectrum {
  const Plan &plan;
  const T *twiddles;
  T *data;

  void down(int, int64_t, int64_t) {}
  void up(int s, int64_t offset, int64_t n) { run_stage<true>(plan, s, data + offset * kPoint<T>, n, twiddles); }
  template <int R>
  void leaf(int64_t offset) {
    T *p = data + offset * kPoint<T>;
    Point<T> x[R];
    for (int q = 0; q < R; ++q) x[q] = get<true>(p + q * kPoint<T>);
    dft(x);
    for (int q = 0; q < R; ++q) put<true>(p + q * kPoint<T>, x[q]);
  }
};

// x k, or x conj(k): the convolution with a real kernel, or the correlation.
template <bool Conjugate, typename T>
HOLDFAST_INLINE Point<T> product(Point<T> x, Point<T> k) {
  if constexpr (Conjugate) return {x.re * k.re + x.im * k.im, x.im * k.re - x.re * k.im};
  return {x.re * k.re - x.im * k.im, x.re * k.im + x.im * k.re};
}

template <int R, typename T>
HOLDFAST_INLINE void back(T *p, Point<T> (&x)[R]) {
  for (int q = 0; q < R; ++q) x[q] = {x[q].im, x[q].re};
  dft(x);
  for (int q = 0; q < R; ++q) put<true>(p + q * kPoint<T>, x[q]);
}

// data becomes its convolution (or correlation) with the kernel whose spectrum is given.
template <typename T, bool Conjugate>
struct Convolve {
  const Plan &plan;
  const T *twiddles;
  T *data;
  const T *kernel;

  void down(int s, int64_t offset, int64_t n) { run_stage<false>(plan, s, data + offset * kPoint<T>, n, twiddles); }
  void up(int s, int64_t offset, int64_t n) { run_stage<true>(plan, s, data + offset * kPoint<T>, n, twiddles); }
  template <int R>
  void leaf(int64_t offset) {
    T *p = data + offset * kPoint<T>;
    const T *k = kernel + offset * kPoint<T>;
    Point<T> x[R];
    for (int q = 0; q < R; ++q) x[q] = get<false>(p + q * kPoint<T>);
    dft(x);
    for (int q = 0; q < R; ++q) x[q] = product<Conjugate>(x[q], get<false>(k + q * kPoint<T>));
    back(p, x);
  }
};

// grad becomes the gradient of the convolution's input; `sum` gains the spectrum of the kernel's gradient. Two
// real rows travel as real and imaginary part: the wanted sum of their correlations is the real part in time.
template <typename T, bool Conjugate>
struct ConvolveBackward {
  const Plan &plan;
  const T *twiddles;
  T *input, *grad;
  const T *kernel;
  T *sum;

  void down(int s, int64_t offset, int64_t n) {
    run_stage<false>(plan, s, input + offset * kPoint<T>, n, twiddles);
    run_stage<false>(plan, s, grad + offset * kPoint<T>, n, twiddles);
  }
  void up(int s, int64_t offset, int64_t n) { run_stage<true>(plan, s, grad + offset * kPoint<T>, n, twiddles); }
  template <int R>
  void leaf(int64_t offset) {
    ToSpectrum<T>{plan, twiddles, input}.template leaf<R>(offset);
    const T *u = input + offset * kPoint<T>, *k = kernel + offset * kPoint<T>;
    T *p = grad + offset * kPoint<T>, *total = sum + offset * kPoint<T>;
    Point<T> x[R];
    for (int q = 0; q < R; ++q) x[q] = get<false>(p + q * kPoint<T>);
    dft(x);
    for (int q = 0; q < R; ++q) {
      const auto in = get<false>(u + q * kPoint<T>);
      // of a correlation y = u conj(k) the kernel's gradient is u conj(g), of a convolution conj(u) g
      const auto gained = Conjugate ? product<true>(in, x[q]) : product<true>(x[q], in);
      put<false>(total + q * kPoint<T>, get<false>(total + q * kPoint<T>) + gained);
      x[q] = product<!Conjugate>(x[q], get<false>(k + q * kPoint<T>));
    }
    back(p, x);
  }
};

}  // namespace holdfast::fft
