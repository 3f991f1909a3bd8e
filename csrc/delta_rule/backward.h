// The gated delta rule backward: tiles in the order against the run, their states recomputed from the one before.
#pragma once

#include "common/sums.h"
#include "delta_rule/forward.h"

namespace holdfast::delta_rule {

constexpr int kKeysAtOnce = 4;  // whose sums over columns are formed together

// The memory of one thread: gradient of the state, and what a tile needs. `history` has a panel's states before each
// step and after the last, `x` the corrections of its steps and `rest` what they correct, v - S^T k.
template <typename T>
struct Workspace {
  T *grad, *history, *x, *rest, *of_q, *of_k, *of_decay, *of_beta, *tile;

  static constexpr int64_t panel(const Problem<T> &problem) {
    return problem.keys * std::min<int64_t>(4 * lanes<T>, problem.columns);
  }
  static int64_t numbers(const Problem<T> &problem) {
    return problem.size() + (kTileSteps + 1) * panel(problem) + 2 * kTileSteps * 4 * lanes<T> +
           2 * kTileSteps * (problem.keys + 1) + padded(Tile<T>::numbers(problem), kColumnGrain);
  }

  Workspace(const Problem<T> &problem, T *memory) {
    grad = memory;
    history = grad + problem.size();
    x = history + (kTileSteps + 1) * panel(problem);
    rest = x + kTileSteps * 4 * lanes<T>;
    of_q = rest + kTileSteps * 4 * lanes<T>;
    of_k = of_q + kTileSteps * problem.keys;
    of_decay = of_k + kTileSteps * problem.keys;
    of_beta = of_decay + kTileSteps;
    tile = of_beta + kTileSteps;
  }
};

// Fills `history`, `x` and `rest` of a panel from its state before the tile.
template <int Width, typename T>
HOLDFAST_APART void repeat_panel(const Head<T> &head, const Tile<T> &tile, int64_t first_step, int64_t steps,
                                 int64_t first, const T *kept, const Workspace<T> &workspace) {
  const Call &call = head.problem.call;
  const int64_t keys = head.problem.keys, panel = keys * Width * lanes<T>;
  std::copy_n(kept, panel, workspace.history);
  Vector<T> seen[Width], x[Width], unused[Width];
  read_state<Width>(workspace.history, tile.k, keys, seen);
  for (int64_t s = 0; s < steps; ++s) {
    read_columns<Width>(static_cast<const T *>(call.v) + head.at(first_step + s, call.values), first, call.values, x);
    HOLDFAST_UNROLL
    for (int w = 0; w < Width; ++w) {
      const Vector<T> rest = x[w] - tile.decay[s] * seen[w];
      x[w] = tile.beta[s] * rest;
      store(workspace.rest + (s * Width + w) * lanes<T>, rest);
      store(workspace.x + (s * Width + w) * lanes<T>, x[w]);
    }
    const T *const k = tile.k + s * keys, *const next = s + 1 < steps ? k + keys : k;
    T *const from = workspace.history + s * panel;
    step_state<Width>(from, from + panel, tile.decay[s], k, k, next, keys, x, unused, seen);
  }
}

// Adds q dy^T to the gradient of the state after a step; `of_x` = that times k, and of_q += state times dy.
template <int Width, typename T>
inline void add_output(T *grad, const T *after, const T *q, const T *k, int64_t keys, const Vector<T> *dy,
                       Vector<T> *of_x, T *of_q) {
  HOLDFAST_UNROLL
  for (int w = 0; w < Width; ++w) of_x[w] = Vector<T>{};
  for (int64_t key = 0; key < keys; key += kKeysAtOnce) {
    Vector<T> sums[kKeysAtOnce];
    HOLDFAST_UNROLL
    for (int u = 0; u < kKeysAtOnce; ++u) {
      sums[u] = Vector<T>{};
      HOLDFAST_UNROLL
      for (int w = 0; w < Width; ++w) {
        const int64_t at = ((key + u) * Width + w) * lanes<T>;
        const Vector<T> total = load(grad + at) + q[key + u] * dy[w];
        store(grad + at, total);
        of_x[w] += k[key + u] * total;
        sums[u] += load(after + at) * dy[w];
      }
    }
    add_sums<kKeysAtOnce>(sums, of_q + key);
  }
}

// From the gradient of the state after a step to that before it; of_k, and returns the gradient of log decay.
template <int Width, typename T>
inline T step_gradient(T *grad, const T *before, T decay, const T *k, int64_t keys, const Vector<T> *x,
                       const Vector<T> *of_v, T *of_k) {
  Vector<T> of_decay[2] = {};
  for (int64_t key = 0; key < keys; key += kKeysAtOnce) {
    Vector<T> sums[kKeysAtOnce];
    HOLDFAST_UNROLL
    for (int u = 0; u < kKeysAtOnce; ++u) {
      sums[u] = Vector<T>{};
      HOLDFAST_UNROLL
      for (int w = 0; w < Width; ++w) {
        const int64_t at = ((key + u) * Width + w) * lanes<T>;
        const Vector<T> total = load(grad + at), decayed = decay * load(before + at);
        sums[u] += total * x[w] - decayed * of_v[w];
        const Vector<T> passed = total - k[key + u] * of_v[w];
        of_decay[u % 2] += passed * decayed;
        store(grad + at, decay * passed);
      }
    }
    add_sums<kKeysAtOnce>(sums, of_k + key);
  }
  return sum_lanes<T>(of_decay[0] + of_decay[1]);
}

template <int Width, typename T>
HOLDFAST_APART void backward_panel(const Head<T> &head, const Tile<T> &tile, int64_t first_step, int64_t steps,
                                   int64_t first, const Workspace<T> &workspace, T *grad) {
  const Call &call = head.problem.call;
  const int64_t keys = head.problem.keys, panel = keys * Width * lanes<T>;
  for (int64_t s = steps - 1; s >= 0; --s) {
    const int64_t at = head.at(first_step + s, call.values);
    const T *const k = tile.k + s * keys, *const before = workspace.history + s * panel;
    Vector<T> dy[Width], x[Width], of_x[Width], of_beta{};
    read_columns<Width>(static_cast<const T *>(call.grad_y) + at, first, call.values, dy);
    HOLDFAST_UNROLL
    for (int w = 0; w < Width; ++w) {
      dy[w] *= static_cast<T>(call.scale);
      x[w] = load(workspace.x + (s * Width + w) * lanes<T>);
    }
    add_output<Width>(grad, before + panel, tile.q + s * keys, k, keys, dy, of_x, workspace.of_q + s * keys);
    HOLDFAST_UNROLL
    for (int w = 0; w < Width; ++w) {
      of_beta += of_x[w] * load(workspace.rest + (s * Width + w) * lanes<T>);
      of_x[w] *= tile.beta[s];  // now of v
    }
    write_columns<Width>(static_cast<T *>(call.grad_v) + at, first, call.values, of_x);
    workspace.of_beta[s] += sum_lanes<T>(of_beta);
    workspace.of_decay[s] +=
        step_gradient<Width>(grad, before, tile.decay[s], k, keys, x, of_x, workspace.of_k + s * keys);
  }
}

// to = gradient of a query or key from that of its normalized one: y = r x, dx = r (dy - y (y . dy)).
template <typename T>
inline void through_norm(const Call &call, const T *normal, const T *grad, T inverse, T *to) {
  const T along = call.normalize ? dot(normal, grad, call.keys) : T(0);
  for (int64_t i = 0; i < call.keys; i += lanes<T>) {
    const int64_t part = std::min(lanes<T>, call.keys - i);
    write(to + i, inverse * (read(grad + i, part) - along * read(normal + i, part)), part);
  }
}

template <typename T>
void backward_tile(const Head<T> &head, const Tile<T> &tile, int64_t first, const Workspace<T> &workspace) {
  const Call &call = head.problem.call;
  const int64_t keys = head.problem.keys, steps = std::min(kTileSteps, call.steps - first);
  tile.fill(head, first, steps);
  std::fill_n(workspace.of_q, 2 * kTileSteps * (keys + 1), T(0));  // of_q, of_k, of_decay and of_beta
  const T *const kept = head.checkpoint(first / kTileSteps);
  each_panel(head.problem, [&](auto width, int64_t column) {
    repeat_panel<width>(head, tile, first, steps, column, kept + column * keys, workspace);
    backward_panel<width>(head, tile, first, steps, column, workspace, workspace.grad + column * keys);
  });
  for (int64_t s = 0; s < steps; ++s) {
    const int64_t at = head.at(first + s, call.keys), one = head.at(first + s, 1), own = s * keys;
    through_norm(call, tile.q + own, workspace.of_q + own, tile.inverse_q[s], static_cast<T *>(call.grad_q) + at);
    through_norm(call, tile.k + own, workspace.of_k + own, tile.inverse_k[s], static_cast<T *>(call.grad_k) + at);
    static_cast<T *>(call.grad_g)[one] = workspace.of_decay[s];
    static_cast<T *>(call.grad_beta)[one] = workspace.of_beta[s];
  }
}

template <typename T>
int64_t backward(const Call &call) {
  const Problem<T> problem(call);
  const int64_t own = padded(Workspace<T>::numbers(problem), kColumnGrain), given = call.keys * call.values;
  const auto take = [&](Arena &arena) { return arena.take<T>(problem.threads() * own); };
  return with_workspace(call, take, [&](T *memory) {
    problem.each([&](int rank, int64_t row, int64_t index) {
      const Head<T> head{problem, row, index};
      const Workspace<T> workspace(problem, memory + rank * own);
      const Tile<T> tile(problem, workspace.tile);
      const T *const end = static_cast<const T *>(call.grad_last);
      to_panels(problem, end ? end + head.index() * given : nullptr, workspace.grad);
      for (int64_t t = problem.tiles() - 1; t >= 0; --t) backward_tile(head, tile, t * kTileSteps, workspace);
      from_panels(problem, workspace.grad, static_cast<T *>(call.grad_state) + head.index() * given);
    });
  });
}

}  // namespace holdfast::delta_rule
