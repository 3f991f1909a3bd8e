// The gated delta rule forward.
#pragma once

#include "delta_rule/problem.h"

namespace holdfast::delta_rule {

// Keys whose sums are kept apart, so that multiply-adds do not wait for each other: 8 accumulators, 4 of 16 registers.
#if defined(__AVX512F__)
constexpr int kApart = 8;
#else
constexpr int kApart = 4;
#endif

// sums[w] = S^T k of a panel (keys, Width vectors).
template <int Width, typename T>
inline void read_state(const T *state, const T *k, int64_t keys, Vector<T> *sums) {
  constexpr int side = kApart / Width;
  Vector<T> apart[side][Width] = {};
  for (int64_t key = 0; key < keys; key += side) {
    HOLDFAST_UNROLL
    for (int u = 0; u < side; ++u) HOLDFAST_UNROLL
    for (int w = 0; w < Width; ++w) apart[u][w] += k[key + u] * load(state + ((key + u) * Width + w) * lanes<T>);
  }
  HOLDFAST_UNROLL
  for (int w = 0; w < Width; ++w) {
    sums[w] = apart[0][w];
    HOLDFAST_UNROLL
    for (int u = 1; u < side; ++u) sums[w] += apart[u][w];
  }
}

// to = decay from + k x^T; sums of it with q, and with the keys of the step after, while it is in registers.
template <int Width, typename T>
inline void step_state(const T *from, T *to, T decay, const T *k, const T *q, const T *next, int64_t keys,
                       const Vector<T> *x, Vector<T> *with_q, Vector<T> *with_next) {
  constexpr int side = kApart / Width;
  Vector<T> of_q[side][Width] = {}, of_next[side][Width] = {};
  for (int64_t key = 0; key < keys; key += side) {
    HOLDFAST_UNROLL
    for (int u = 0; u < side; ++u) HOLDFAST_UNROLL
    for (int w = 0; w < Width; ++w) {
      const int64_t at = ((key + u) * Width + w) * lanes<T>;
      const Vector<T> now = decay * load(from + at) + k[key + u] * x[w];
      store(to + at, now);
      of_q[u][w] += q[key + u] * now;
      of_next[u][w] += next[key + u] * now;
    }
  }
  HOLDFAST_UNROLL
  for (int w = 0; w < Width; ++w) {
    with_q[w] = of_q[0][w], with_next[w] = of_next[0][w];
    HOLDFAST_UNROLL
    for (int u = 1; u < side; ++u) with_q[w] += of_q[u][w], with_next[w] += of_next[u][w];
  }
}

// One panel through a tile, in place.
template <int Width, typename T>
HOLDFAST_APART void forward_panel(const Head<T> &head, const Tile<T> &tile, int64_t first_step, int64_t steps,
                                  int64_t first, T *state) {
  const Call &call = head.problem.call;
  const int64_t keys = head.problem.keys;
  Vector<T> seen[Width], x[Width], y[Width];
  read_state<Width>(state, tile.k, keys, seen);
  for (int64_t s = 0; s < steps; ++s) {
    const int64_t at = head.at(first_step + s, call.values);
    read_columns<Width>(static_cast<const T *>(call.v) + at, first, call.values, x);
    HOLDFAST_UNROLL
    for (int w = 0; w < Width; ++w) x[w] = tile.beta[s] * (x[w] - tile.decay[s] * seen[w]);
    const T *const k = tile.k + s * keys, *const next = s + 1 < steps ? k + keys : k;
    step_state<Width>(state, state, tile.decay[s], k, tile.q + s * keys, next, keys, x, y, seen);
    HOLDFAST_UNROLL
    for (int w = 0; w < Width; ++w) y[w] *= static_cast<T>(call.scale);
    write_columns<Width>(static_cast<T *>(call.y) + at, first, call.values, y);
  }
}

template <typename T>
int64_t forward(const Call &call) {
  const Problem<T> problem(call);
  const int64_t own = problem.size() + padded(Tile<T>::numbers(problem), kColumnGrain);
  const int64_t given = call.keys * call.values;
  const auto take = [&](Arena &arena) { return arena.take<T>(problem.threads() * own); };
  return with_workspace(call, take, [&](T *memory) {
    problem.each([&](int rank, int64_t row, int64_t index) {
      const Head<T> head{problem, row, index};
      T *const state = memory + rank * own;
      const Tile<T> tile(problem, state + problem.size());
      const T *const start = static_cast<const T *>(call.state);
      to_panels(problem, start ? start + head.index() * given : nullptr, state);
      for (int64_t first = 0; first < call.steps; first += kTileSteps) {
        const int64_t steps = std::min(kTileSteps, call.steps - first);
        if (T *const kept = head.checkpoint(first / kTileSteps)) std::copy_n(state, problem.size(), kept);
        tile.fill(head, first, steps);
        each_panel(problem, [&](auto width, int64_t column) {
          forward_panel<width>(head, tile, first, steps, column, state + column * problem.keys);
        });
      }
      from_panels(problem, state, static_cast<T *>(call.last) + head.index() * given);
    });
  });
}

}  // namespace holdfast::delta_rule
