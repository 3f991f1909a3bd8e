// What both directions of the selective scan work on. A vector's lanes are channels; the states of a vector of channels
// lie one after another, so that nothing is shuffled. Weights and states of the C ABI are (states, channels).
#pragma once

#include <algorithm>
#include <cstdint>

#include "common/call.h"
#include "common/math.h"
#include "common/parallel.h"

namespace holdfast::selective {

// Row and step strides count numbers, and belong to the pointer of that name. Weights and states are (..., states,
// channels). checkpoints (rows, tiles, states, channels) takes the states before each tile, or is null. D, z, dt_bias,
// h0, lengths, resets, grad_last and each gradient of what may be missing may be null. Gradients of B and C are (parts,
// rows, steps, groups, states) and zero before; of A, D and dt_bias a summand for each row.
// clang-format off
#define HOLDFAST_SELECTIVE_FIELDS(X) \
  X(int64_t, rows) X(int64_t, steps) X(int64_t, channels) X(int64_t, groups) X(int64_t, states) X(int64_t, parts) \
  X(int64_t, u_row) X(int64_t, u_step) X(int64_t, dt_row) X(int64_t, dt_step) X(int64_t, B_row) X(int64_t, B_step) \
  X(int64_t, C_row) X(int64_t, C_step) X(int64_t, z_row) X(int64_t, z_step) X(int64_t, resets_row) \
  X(int64_t, resets_step) X(int32_t, wide) X(int32_t, threads) X(int32_t, softplus) X(int32_t, reverse) \
  X(const int64_t *, lengths) X(const unsigned char *, resets) X(const void *, u) X(const void *, dt) \
  X(const void *, A) X(const void *, B) X(const void *, C) X(const void *, D) X(const void *, z) \
  X(const void *, dt_bias) X(const void *, h0) X(void *, y) X(void *, last) X(void *, checkpoints) \
  X(const void *, grad_y) X(const void *, grad_last) X(void *, grad_u) X(void *, grad_dt) X(void *, grad_A) \
  X(void *, grad_B) X(void *, grad_C) X(void *, grad_D) X(void *, grad_z) X(void *, grad_dt_bias) \
  X(void *, grad_h0) X(void *, workspace)
// clang-format on
HOLDFAST_CALL(selective, HOLDFAST_SELECTIVE_FIELDS)

// Steps between two kept states; a tile of 64 steps, 4 states and a vector of channels stays in the first cache.
constexpr int64_t kTileSteps = 64;
// States that run side by side, which hides the latency of one step after another.
constexpr int kSideStates = 4;

// Steps of one row in the order of the run: step s is at data + s * step.
template <typename T>
struct Steps {
  T *data;
  int64_t step;
  T *at(int64_t s) const { return data + s * step; }
  explicit operator bool() const { return data != nullptr; }
};

// A tensor (rows, steps, ...) whose last dimensions are dense; null where it was not given.
template <typename T>
struct Sequence {
  T *data;
  int64_t row, step;
};

// The channels of one vector: `count` of them from `channel`, all of one group.
struct Place {
  int64_t group, channel, count;
};

template <typename T>
struct Problem {
  int64_t rows, steps, channels, groups, states, parts;
  bool softplus, reverse;
  int threads;
  const int64_t *lengths;
  Sequence<const unsigned char> resets;
  Sequence<const T> u, dt, b, c, z;
  const T *a, *d, *bias, *h0;

  int64_t in_group() const { return channels / groups; }
  int64_t vectors_in_group() const { return (in_group() + lanes<T> - 1) / lanes<T>; }
  int64_t vectors() const { return groups * vectors_in_group(); }
  int64_t tiles() const { return (steps + kTileSteps - 1) / kTileSteps; }
  int64_t length(int64_t row) const { return lengths ? lengths[row] : steps; }

  Place place(int64_t vector) const {
    const int64_t group = vector / vectors_in_group(), first = vector % vectors_in_group() * lanes<T>;
    const int64_t left = in_group() - first;
    return {group, group * in_group() + first, left < lanes<T> ? left : lanes<T>};
  }

  template <typename S>
  Steps<S> row(Sequence<S> of, int64_t row) const {
    if (!of.data) return {nullptr, 0};
    S *const begin = of.data + row * of.row;
    if (!reverse) return {begin, of.step};
    return {begin + (length(row) - 1) * of.step, -of.step};
  }

  // Dense (rows, steps, channels), such as results.
  template <typename S>
  Sequence<S> dense(S *data) const {
    return {data, steps * channels, channels};
  }

  // Calls body(rank, row, part, vectors) for every row, its vectors cut into `parts`.
  template <typename Body>
  void each(Body &&body) const {
    parallel(threads, [&](int rank, int size) {
      const Range mine = share(rows * parts, rank, size);
      for (int64_t task = mine.begin; task < mine.end; ++task) {
        const int64_t part = task % parts;
        body(rank, task / parts, part, share(vectors(), static_cast<int>(part), static_cast<int>(parts)));
      }
    });
  }
};

}  // namespace holdfast::selective
