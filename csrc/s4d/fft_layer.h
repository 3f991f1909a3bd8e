// S4D as a convolution: y = K * u with K_t = Re sum_modes c a^t and the skip weight added to K_0.
#pragma once

#include <numeric>

#include "s4d/fft_convolve.h"
#include "s4d/fft_staging.h"
#include "s4d/scan.h"

namespace holdfast::s4d {

// Bytes of a thread's staging area, and the most that one area holds in blocks times groups of rows: the more, the
// longer the stretches that are read and the more often a kernel's spectrum is used while it is in the cache.
constexpr int64_t kStageBytes = int64_t{4} << 20;
constexpr int64_t kStageUnits = 16;

// What both directions share: the kernel, its spectrum, and the threads' buffers.
template <typename T>
struct FftLayer {
  const Shape &shape;
  const Weights<T> &weights;
  const T *twiddles;
  const int threads;
  const Layout<T> layout;
  const fft::Plan transform;
  T *kernel = nullptr;    // (blocks, rows, lanes)
  T *spectrum = nullptr;  // (blocks, points, re and im, lanes)
  T *tables = nullptr, *buffers = nullptr, *stages = nullptr, *states = nullptr;
  double *totals = nullptr;

  FftLayer(const Shape &shape_, const Weights<T> &weights_, const T *twiddles_, T *kernel_, int threads_)
      : shape(shape_), weights(weights_), twiddles(twiddles_), threads(threads_), layout(shape_),
        transform(fft::make_plan(shape_.time)), kernel(kernel_) {}

  // The impulse response is made sixteen steps at once.
  static int64_t kernel_rows(int64_t time) { return ceil_div(time, 2 * kStride) * 2 * kStride; }
  int64_t kernel_size() const { return kernel_rows(shape.time) * lanes<T>; }
  int64_t points() const { return transform.size * fft::kPoint<T>; }
  int64_t state() const { return shape.modes * Tables<T>::kPair; }
  int64_t tiles() const { return ceil_div(shape.time, kTile); }
  Tables<T> tables_of(int64_t block) const { return {tables + block * Tables<T>::size(shape.modes), shape.modes}; }

  void take(Arena &arena, int64_t buffers_each) {
    tables = arena.take<T>(layout.blocks * Tables<T>::size(shape.modes));
    spectrum = arena.take<T>(layout.blocks * points());
    buffers = arena.take<T>(threads * buffers_each * points());
    stages = arena.take<T>(threads * buffers_each * stage_units() * stage_unit());
    states = arena.take<T>(threads * state());
    totals = arena.take<double>(threads * 2 * state());
  }

  // Parts of the batch that are worked on apart, so that few blocks still give every thread the same work.
  int64_t parts() const {
    const int64_t wanted = layout.blocks >= 4 * threads ? 1 : threads / std::gcd(layout.blocks, int64_t{threads});
    return wanted < layout.groups ? wanted : layout.groups;
  }

  // Blocks times groups that a staging area holds, and numbers in such a unit.
  int64_t stage_units() const {
    const int64_t fit = kStageBytes / (stage_unit() * static_cast<int64_t>(sizeof(T)));
    return fit < 1 ? 1 : fit < kStageUnits ? fit : kStageUnits;
  }
  int64_t stage_unit() const { return shape.time * lanes<T>; }

  // body(part, first block, blocks, first group, groups, rank), each block of a part on one thread.
  template <typename Body>
  void over_groups(Body &&body) const {
    parallel(threads, [&](int rank, int size) {
      const Range mine = share(layout.blocks * parts(), rank, size);
      for (int64_t task = mine.begin; task < mine.end;) {
        const int64_t part = task / layout.blocks, block = task % layout.blocks;
        int64_t count = layout.blocks - block < mine.end - task ? layout.blocks - block : mine.end - task;
        if (count > stage_units()) count = stage_units();
        const int64_t many = stage_units() / count;
        const Range batch = share(layout.groups, static_cast<int>(part), static_cast<int>(parts()));
        for (int64_t group = batch.begin; group < batch.end; group += many) {
          body(part, block, count, group, group + many < batch.end ? many : batch.end - group, rank);
        }
        task += count;
      }
      finish_streams();
    });
  }

  void read(int64_t block, int64_t blocks, int64_t group, int64_t groups, const T *data, T *stage) const {
    for (int64_t g = 0; g < groups; ++g) {
      Staging<T>{shape, layout, block, blocks, group + g}.read(data, stage + g * blocks * stage_unit());
    }
  }
  void write(int64_t block, int64_t blocks, int64_t group, int64_t groups, const T *stage, T *data) const {
    const int64_t bytes = shape.batch * shape.time * shape.features * static_cast<int64_t>(sizeof(T));
    for (int64_t g = 0; g < groups; ++g) {
      const Staging<T> staging{shape, layout, block, blocks, group + g};
      staging.write(stage + g * blocks * stage_unit(), data, bytes > kCached);
    }
  }

  // The first stage from a unit of the staging area, the last one into it.
  void enter(const T *stage, T *points) const {
    fft::first_stage(transform, twiddles, points,
                     [&](int64_t t) { return t < shape.time ? load(stage + t * lanes<T>) : Vector<T>{}; });
  }
  void leave(const T *points, T *stage) const {
    fft::last_stage(transform, twiddles, points, [&](int64_t t, Vector<T> x) {
      if (t < shape.time) store(stage + t * lanes<T>, x);
    });
  }

  void fill_tables(bool first) const {
    parallel(threads, [&](int rank, int size) {
      const Range part = share(layout.blocks, rank, size);
      for (int64_t block = part.begin; block < part.end; ++block) {
        const int64_t begin = block * layout.width, end = begin + layout.width;
        if (first) discretize(shape, weights, begin, end < shape.features ? end : shape.features);
        tables_of(block).fill(shape, layout, weights, block);
      }
    });
  }

  // Goes over the tiles of time of all blocks with the power of a at the beginning of each, kept in double:
  // body(block, tile, powers of this tile, rank).
  template <typename Body>
  void over_tiles(Body &&body) const {
    parallel(threads, [&](int rank, int size) {
      double *power = totals + rank * 2 * state(), *leap = power + state();
      const Range part = share(layout.blocks * tiles(), rank, size);
      for (int64_t i = part.begin; i < part.end; ++i) {
        const int64_t block = i / tiles(), tile = i % tiles();
        if (i == part.begin || tile == 0) {
          set_leap(shape, layout, weights, block, kTile, leap);
          set_leap(shape, layout, weights, block, tile * kTile, power);
        }
        body(block, tile, power, rank);
        advance(leap, power);
      }
    });
  }

  void advance(const double *leap, double *power) const {
    const int64_t width = lanes<T>;
    for (int64_t mode = 0; mode < shape.modes; ++mode, leap += 2 * width, power += 2 * width) {
      for (int64_t i = 0; i < width; ++i) {
        const double re = leap[i] * power[i] - leap[width + i] * power[width + i];
        power[width + i] = leap[i] * power[width + i] + leap[width + i] * power[i];
        power[i] = re;
      }
    }
  }

  void make_kernel() const {
    over_tiles([&](int64_t block, int64_t tile, const double *power, int rank) {
      const Tables<T> table = tables_of(block);
      T *state_ = states + rank * state();
      for (int64_t mode = 0; mode < shape.modes; ++mode) {
        const T *c = table.c(mode);
        const double *p = power + mode * 2 * lanes<T>;
        T *to = state_ + mode * 2 * lanes<T>;
        for (int64_t i = 0; i < lanes<T>; ++i) {
          const Complex z = Complex{p[i], p[lanes<T> + i]} * Complex{double(c[i]), double(c[lanes<T> + i])};
          to[i] = static_cast<T>(z.re);
          to[lanes<T> + i] = static_cast<T>(z.im);
        }
      }
      const int64_t step = tile * kTile, left = shape.time - step;
      T *out = kernel + block * kernel_size() + step * lanes<T>;
      impulse_tile(weights.real, table, shape.modes, left < kTile ? left : kTile, state_, out);
      if (tile == 0) store(out, load(out) + skip_of(shape, layout, weights, block));
    });
  }

  // In reverse y is the correlation with the kernel: the conjugate of its spectrum.
  void turn(T *points_) const {
    if (!shape.reverse) return;
    for (int64_t i = 0; i < transform.size; ++i, points_ += fft::kPoint<T>) {
      store(points_ + lanes<T>, -load(points_ + lanes<T>));
    }
  }

  // The scale of the inverse transform is in the kernel's spectrum.
  void make_spectrum() const {
    parallel(threads, [&](int rank, int size) {
      const Range part = share(layout.blocks, rank, size);
      const T scale = T(1) / static_cast<T>(transform.size);
      for (int64_t block = part.begin; block < part.end; ++block) {
        const T *from = kernel + block * kernel_size();
        T *to = spectrum + block * points();
        fft::first_stage(transform, twiddles, to,
                         [&](int64_t t) { return t < shape.time ? scale * load(from + t * lanes<T>) : Vector<T>{}; });
        fft::ToSpectrum<T> work{{transform, twiddles, to}};
        fft::descend(transform, work);
        turn(to);
      }
    });
  }
};

}  // namespace holdfast::s4d
