// S4D by Fourier transforms, backward: from the gradient of y alone, with no initial state.
#pragma once

#include "s4d/fft_layer.h"

namespace holdfast::s4d {

template <typename T>
struct FftBackward : FftLayer<T> {
  using Base = FftLayer<T>;
  using Base::shape, Base::layout, Base::transform, Base::twiddles, Base::threads, Base::weights, Base::parts;
  const T *u = nullptr, *gy = nullptr;
  T *gu = nullptr;
  Gradients<T> grads = {};
  T *of_spectrum = nullptr;  // (blocks, parts, points, re and im, lanes)
  T *of_kernel = nullptr;    // (blocks, rows, lanes)
  double *sums = nullptr;

  using Base::Base;

  void take(Arena &arena) {
    Base::take(arena, 2);
    of_spectrum = arena.take<T>(layout.blocks * parts() * this->points());
    of_kernel = arena.take<T>(layout.blocks * rows() * lanes<T>);
    sums = arena.take<double>(threads * slot());
  }

  void run() const {
    this->fill_tables(false);
    this->make_spectrum();
    correlate();
    make_kernel_gradient();
    for (int64_t i = 0; i < threads * slot(); ++i) sums[i] = 0;
    add_moments();
    parallel(threads, [&](int rank, int size) {
      const Range part = share(shape.features, rank, size);
      finish(shape, layout, weights, sums, threads, true, grads, part.begin, part.end);
    });
  }

 private:
  int64_t slot() const { return layout.blocks * Sums<T>::size(shape.modes); }
  // moments are taken from step 1 on, sixteen at once
  int64_t rows() const { return Base::kernel_rows(shape.time) + 2 * kStride; }

  void correlate() const {
    std::memset(of_spectrum, 0, static_cast<size_t>(layout.blocks * parts() * this->points()) * sizeof(T));
    this->over_groups([&](int64_t part, int64_t block, int64_t blocks, int64_t group, int64_t groups, int rank) {
      const int64_t unit = this->stage_unit();
      T *input = this->stages + rank * 2 * this->stage_units() * unit, *grad = input + this->stage_units() * unit;
      this->read(block, blocks, group, groups, u, input);
      this->read(block, blocks, group, groups, gy, grad);
      for (int64_t b = 0; b < blocks; ++b) {
        T *sum = of_spectrum + ((block + b) * parts() + part) * this->points();
        for (int64_t g = 0; g < groups; ++g) {
          const int64_t at = (g * blocks + b) * unit;
          correlate_unit(input + at, grad + at, block + b, sum, rank);
        }
      }
      this->write(block, blocks, group, groups, grad, gu);
    });
  }

  void correlate_unit(const T *stage, T *grad_stage, int64_t block, T *sum, int rank) const {
    T *input = this->buffers + rank * 2 * this->points(), *grad = input + this->points();
    const T *kernel = this->spectrum + block * this->points();
    this->enter(stage, input);
    this->enter(grad_stage, grad);
    fft::ConvolveBackward<T> work{{transform, twiddles, grad}, input, kernel, sum};
    fft::descend(transform, work);
    this->leave(grad, grad_stage);
  }

  void make_kernel_gradient() const {
    parallel(threads, [&](int rank, int size) {
      const Range part = share(layout.blocks, rank, size);
      const T scale = T(1) / static_cast<T>(transform.size);
      for (int64_t block = part.begin; block < part.end; ++block) {
        T *sum = of_spectrum + block * parts() * this->points(), *out = of_kernel + block * rows() * lanes<T>;
        for (int64_t p = 1; p < parts(); ++p) {
          const T *other = sum + p * this->points();
          for (int64_t i = 0; i < this->points(); ++i) sum[i] += other[i];
        }
        this->turn(sum);
        fft::FromSpectrum<T> work{{transform, twiddles, sum}};
        fft::descend(transform, work);
        std::memset(out + shape.time * lanes<T>, 0, static_cast<size_t>((rows() - shape.time) * lanes<T>) * sizeof(T));
        fft::last_stage(transform, twiddles, sum, [&](int64_t t, Vector<T> x) {
          if (t < shape.time) store(out + t * lanes<T>, scale * x);
        });
      }
    });
  }

  // d K_t = Re(a^t dc + c t a^(t-1) da), summed over time with the gradient of K.
  void add_moments() const {
    this->over_tiles([&](int64_t block, int64_t tile, const double *power, int rank) {
      const Tables<T> tables = this->tables_of(block);
      const Sums<T> total{sums + rank * slot() + block * Sums<T>::size(shape.modes)};
      const T *g = of_kernel + (block * rows() + tile * kTile) * lanes<T>;
      const int64_t left = shape.time - 1 - tile * kTile, count = left < kTile ? left : kTile;
      if (tile == 0) {
        add<T>(total.skip(shape.modes), load(g));
        for (int64_t mode = 0; mode < shape.modes; ++mode) add<T>(total.of_c(mode), load(g));
      }
      for (int64_t mode = 0; mode < shape.modes; ++mode) {
        Pair<T> zeroth, first;
        moments_tile(weights.real, tables, mode, ceil_div(count, 2 * kStride) * 2 * kStride, g + lanes<T>, zeroth,
                     first);
        const Coefficients<T> of(shape, layout, weights, block, mode);
        const double *p = power + mode * 2 * lanes<T>, later = static_cast<double>(tile * kTile + 1);
        for (int64_t i = 0; i < lanes<T>; ++i) {
          const Complex at{p[i], p[lanes<T> + i]}, z{double(zeroth.re[i]), double(zeroth.im[i])};
          const Complex of_c = Complex{of.a.re[i], of.a.im[i]} * (at * z);
          const Complex slope = at * (later * z + Complex{double(first.re[i]), double(first.im[i])});
          const Complex of_a = Complex{of.c.re[i], of.c.im[i]} * slope;
          total.of_a(mode)[i] += of_a.re, total.of_a(mode)[lanes<T> + i] += of_a.im;
          total.of_c(mode)[i] += of_c.re, total.of_c(mode)[lanes<T> + i] += of_c.im;
        }
      }
    });
  }
};

}  // namespace holdfast::s4d
