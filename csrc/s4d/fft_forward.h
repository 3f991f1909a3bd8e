// S4D by Fourier transforms, forward.
#pragma once

#include "s4d/fft_layer.h"

namespace holdfast::s4d {

template <typename T>
struct FftForward : FftLayer<T> {
  using Base = FftLayer<T>;
  using Base::shape, Base::layout, Base::transform, Base::twiddles, Base::threads, Base::weights;
  const T *u = nullptr;
  T *y = nullptr, *h_last = nullptr;  // h_last may be null
  int64_t together = 1;
  T *tile_memory = nullptr;
  double *finals = nullptr, *leaps = nullptr;

  using Base::Base;

  void take(Arena &arena) {
    Base::take(arena, 1);
    together = blocks_together(layout.blocks, layout.groups, threads);
    tile_memory = arena.take<T>(threads * together * Tiles<T>::kSize);
    finals = arena.take<double>(threads * together * this->state());
    leaps = arena.take<double>(layout.blocks * this->state());
  }

  void run() const {
    this->fill_tables(true);
    this->make_kernel();
    this->make_spectrum();
    convolve();
    if (h_last) final_states();
  }

 private:
  void convolve() const {
    this->over_groups([&](int64_t, int64_t block, int64_t blocks, int64_t group, int64_t groups, int rank) {
      T *stage = this->stages + rank * this->stage_units() * this->stage_unit();
      this->read(block, blocks, group, groups, u, stage);
      for (int64_t b = 0; b < blocks; ++b) {
        for (int64_t g = 0; g < groups; ++g)
          convolve_unit(stage + (g * blocks + b) * this->stage_unit(), block + b, rank);
      }
      this->write(block, blocks, group, groups, stage, y);
    });
  }

  void convolve_unit(T *stage, int64_t block, int rank) const {
    T *data = this->buffers + rank * this->points();
    const T *kernel = this->spectrum + block * this->points();
    this->enter(stage, data);
    fft::Convolve<T> work{{transform, twiddles, data}, kernel};
    fft::descend(transform, work);
    this->leave(data, stage);
  }

  // b sum_s a^(T - 1 - s) u_s: a scan without outputs, tile by tile, for all blocks of a group of rows.
  void final_states() const {
    parallel(threads, [&](int rank, int size) {
      const Range part = share(layout.blocks, rank, size);
      for (int64_t b = part.begin; b < part.end; ++b)
        set_leap(shape, layout, weights, b, kTile, leaps + b * this->state());
    });
    parallel(threads, [&](int rank, int size) {
      const Range part = share(layout.groups * sets(), rank, size);
      for (int64_t i = part.begin; i < part.end; ++i)
        final_state(i % layout.groups, i / layout.groups * together, rank);
    });
  }

  void final_state(int64_t index, int64_t first, int rank) const {
    const int64_t size = this->state(), blocks = layout.blocks - first < together ? layout.blocks - first : together;
    const Group<T> group(shape, layout, index);
    const Tiles<T> tiles{shape, layout, group, first, blocks};
    double *total = finals + rank * together * size;
    T *state = this->states + rank * size, *tile = tile_memory + rank * together * Tiles<T>::kSize;
    std::memset(total, 0, static_cast<size_t>(blocks * size) * sizeof(double));
    // the odd tile comes first: nothing has to cross it
    for (int64_t step = 0, end = group.steps % kTile; step < group.steps; step = end, end += kTile) {
      if (end == 0) end = kTile;
      tiles.pack(u, step, end - step, tile);
      for (int64_t b = 0; b < blocks; ++b) {
        const T *in = tile + b * Tiles<T>::kSize;
        absorb_tile(weights.real, this->tables_of(first + b), shape.modes, end - step, in, lanes<T>, state);
        carry(shape.modes, leaps + (first + b) * size, state, total + b * size);
      }
    }
    for (int64_t b = 0; b < blocks; ++b) {
      for (int64_t r = 0; r < group.rows; ++r) {
        write_state(false, shape, layout, weights, first + b, group, r, total + b * size, h_last);
      }
    }
  }

  int64_t sets() const { return ceil_div(layout.blocks, together); }
};

}  // namespace holdfast::s4d
