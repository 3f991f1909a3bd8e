// The gated delta rule as a recurrence: S <- e^g S, S <- S + k x^T with x = beta (v - S^T k), y = scale S^T q.
//
// A head's state S (keys, values) falls apart into columns that never meet: x of a column needs that column alone. So
// some vectors of columns at a time run through a tile of steps while they lie in the first cache. That takes 3 keys
// values multiply-adds a step, where the matrix products of blocks of 64 steps take 6.5 (keys = values = 64).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "common/call.h"
#include "common/masked.h"
#include "common/parallel.h"
#include "common/product.h"

namespace holdfast::delta_rule {

// q, k (rows, steps, heads, keys), v, y (rows, steps, heads, values), g, beta (rows, steps, heads), state and last
// (rows, heads, keys, values), gradients like what they are of. checkpoints (rows, heads, tiles, padded state) are the
// states before each tile, or null; state and grad_last may be null, which is 0.
// clang-format off
#define HOLDFAST_DELTA_RULE_FIELDS(X) \
  X(int64_t, rows) X(int64_t, steps) X(int64_t, heads) X(int64_t, keys) X(int64_t, values) X(int32_t, wide) \
  X(int32_t, threads) X(double, scale) X(int32_t, normalize) X(const void *, q) X(const void *, k) \
  X(const void *, v) X(const void *, g) X(const void *, beta) X(const void *, state) X(void *, y) X(void *, last) \
  X(void *, checkpoints) X(const void *, grad_y) X(const void *, grad_last) X(void *, grad_q) X(void *, grad_k) \
  X(void *, grad_v) X(void *, grad_g) X(void *, grad_beta) X(void *, grad_state) X(void *, workspace)
// clang-format on
HOLDFAST_CALL(delta_rule, HOLDFAST_DELTA_RULE_FIELDS)

// Steps between two kept states: their states, 17 of 128 keys by 64 values, stay in the second cache.
constexpr int64_t kTileSteps = 16;
// Of a panel's state at most: half of a first cache of 32 KB (128 keys: 16% slower with all of it).
constexpr int64_t kPanelBytes = 1 << 14;
constexpr double kEpsilon = 1e-6;  // below the root of a norm, as in transformers
// Keys and columns that a state is padded to; the same for every variant, since Python allocates checkpoints.
constexpr int64_t kKeyGrain = 8, kColumnGrain = 16;

constexpr int64_t padded(int64_t count, int64_t grain) { return (count + grain - 1) / grain * grain; }

template <typename T>
struct Problem {
  const Call &call;
  int64_t keys, columns;  // padded
  int64_t widest;         // vectors of columns in a panel

  explicit Problem(const Call &c)
      : call(c), keys(padded(c.keys, kKeyGrain)), columns(padded(c.values, kColumnGrain)),
        widest(std::max<int64_t>(kPanelBytes / (keys * HOLDFAST_VECTOR_BYTES), 1)) {}

  int64_t size() const { return keys * columns; }
  int64_t tiles() const { return (call.steps + kTileSteps - 1) / kTileSteps; }
  int threads() const {
    const int64_t most = std::min<int64_t>(call.threads, call.rows * call.heads);
    return static_cast<int>(std::max<int64_t>(most, 1));
  }

  // Calls body(rank, row, head) for every head of every row.
  template <typename Body>
  void each(Body &&body) const {
    parallel(threads(), [&](int rank, int size) {
      const Range mine = share(call.rows * call.heads, rank, size);
      for (int64_t task = mine.begin; task < mine.end; ++task) body(rank, task / call.heads, task % call.heads);
    });
  }
};

// One head of one row; `at` is where a step's numbers begin in an array of `width` numbers per head.
template <typename T>
struct Head {
  const Problem<T> &problem;
  int64_t row, head;

  int64_t at(int64_t step, int64_t width) const {
    const Call &call = problem.call;
    return ((row * call.steps + step) * call.heads + head) * width;
  }
  int64_t index() const { return row * problem.call.heads + head; }
  T *checkpoint(int64_t tile) const {
    T *const all = static_cast<T *>(problem.call.checkpoints);
    return all ? all + (index() * problem.tiles() + tile) * problem.size() : nullptr;
  }
};

// A state lies panel by panel: some vectors of columns, for all keys. Calls body(width, first column) for each panel,
// with the width in vectors as a constant.
template <typename T, typename Body>
inline void each_panel(const Problem<T> &problem, Body &&body) {
  const int64_t total = problem.columns / lanes<T>, widest = problem.widest;
  for (int64_t first = 0; first < total;) {
    const int64_t left = total - first;
    if (left >= 4 && widest >= 4) body(std::integral_constant<int, 4>(), first * lanes<T>), first += 4;
    else if (left >= 2 && widest >= 2) body(std::integral_constant<int, 2>(), first * lanes<T>), first += 2;
    else body(std::integral_constant<int, 1>(), first * lanes<T>), first += 1;
  }
}

// Copies (keys, values) to panels, and back.
template <typename T>
inline void to_panels(const Problem<T> &problem, const T *from, T *to) {
  std::fill_n(to, problem.size(), T(0));
  if (!from) return;
  each_panel(problem, [&](auto width, int64_t first) {
    const int64_t stride = width * lanes<T>, count = std::clamp<int64_t>(problem.call.values - first, 0, stride);
    for (int64_t key = 0; key < problem.call.keys; ++key)
      std::copy_n(from + key * problem.call.values + first, count, to + first * problem.keys + key * stride);
  });
}
template <typename T>
inline void from_panels(const Problem<T> &problem, const T *from, T *to) {
  each_panel(problem, [&](auto width, int64_t first) {
    const int64_t stride = width * lanes<T>, count = std::clamp<int64_t>(problem.call.values - first, 0, stride);
    for (int64_t key = 0; key < problem.call.keys; ++key)
      std::copy_n(from + first * problem.keys + key * stride, count, to + key * problem.call.values + first);
  });
}

// `Width` vectors of a row of `values` numbers from column `first`; what lies past its end is 0, or not written.
template <int Width, typename T>
inline void read_columns(const T *from, int64_t first, int64_t values, Vector<T> *to) {
  HOLDFAST_UNROLL
  for (int w = 0; w < Width; ++w) {
    const int64_t part = std::clamp<int64_t>(values - first - w * lanes<T>, 0, lanes<T>);
    to[w] = part ? read(from + first + w * lanes<T>, part) : Vector<T>{};
  }
}
template <int Width, typename T>
inline void write_columns(T *to, int64_t first, int64_t values, const Vector<T> *from) {
  HOLDFAST_UNROLL
  for (int w = 0; w < Width; ++w) {
    const int64_t part = std::clamp<int64_t>(values - first - w * lanes<T>, 0, lanes<T>);
    if (part) write(to + first + w * lanes<T>, from[w], part);
  }
}

template <typename T>
inline T dot(const T *x, const T *y, int64_t count) {
  Vector<T> sums{};
  for (int64_t i = 0; i < count; i += lanes<T>) {
    const int64_t part = std::min(lanes<T>, count - i);
    sums += read(x + i, part) * read(y + i, part);
  }
  return sum_lanes<T>(sums);
}

// Queries and keys of a tile, (kTileSteps, keys) each, divided by their norms where asked for; decays and betas.
template <typename T>
struct Tile {
  T *q, *k, *inverse_q, *inverse_k, *decay, *beta;

  static int64_t numbers(const Problem<T> &problem) { return 2 * kTileSteps * (problem.keys + 2) + kKeyGrain; }

  Tile(const Problem<T> &problem, T *memory) {
    q = memory, k = q + kTileSteps * problem.keys, inverse_q = k + kTileSteps * problem.keys;
    inverse_k = inverse_q + kTileSteps, decay = inverse_k + kTileSteps, beta = decay + kTileSteps;
  }

  void fill(const Head<T> &head, int64_t first, int64_t steps) const {
    const Call &call = head.problem.call;
    for (int64_t s = 0; s < steps; ++s) {
      const int64_t at = head.at(first + s, call.keys), one = head.at(first + s, 1);
      inverse_q[s] = normal(call, static_cast<const T *>(call.q) + at, q + s * head.problem.keys, head.problem.keys);
      inverse_k[s] = normal(call, static_cast<const T *>(call.k) + at, k + s * head.problem.keys, head.problem.keys);
      decay[s] = std::exp(static_cast<const T *>(call.g)[one]);
      beta[s] = static_cast<const T *>(call.beta)[one];
    }
  }

  // to = from over its norm where asked for, padded with zeros; returns what it was multiplied with.
  static T normal(const Call &call, const T *from, T *to, int64_t padded_keys) {
    std::fill_n(to + call.keys, padded_keys - call.keys, T(0));
    const T factor = call.normalize ? T(1) / std::sqrt(dot(from, from, call.keys) + T(kEpsilon)) : T(1);
    for (int64_t i = 0; i < call.keys; i += lanes<T>) {
      const int64_t part = std::min(lanes<T>, call.keys - i);
      write(to + i, factor * read(from + i, part), part);
    }
    return factor;
  }
};

}  // namespace holdfast::delta_rule
