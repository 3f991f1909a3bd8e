// The selective scan backward: tiles in the order against the run. The states within a tile are recomputed from the
// one that was kept before it, four at a time, while their tile is in the first cache.
#pragma once

#include <initializer_list>

#include "common/sums.h"
#include "selective/forward.h"

namespace holdfast::selective {

// Gradients, each dense and null where it is not wanted; those of b and c are (parts, rows, steps, groups, states), of
// a and of what is like it a summand for each row, (rows, states, channels) and (rows, channels).
template <typename T>
struct Gradients {
  T *u, *dt, *a, *b, *c, *d, *z, *bias, *h0;
};

// What a tile gathers for one vector of channels: (kTileSteps, lanes) each.
template <typename T>
struct Adjoint {
  const T *out;      // gradient of y before the gate
  T *drive, *decay;  // of step size times input, and of the step size through the decay, in units of log 2
  T *sum_b, *sum_c;  // (kTileSteps, states): of b and c
  int64_t states;
};

// Computes `Width` states of a tile again. `factors` (kTileSteps, Width, lanes) takes the decays and `kept`, of the
// same shape, the states before each step times them. Adds to the gradient of c, and to the output where `Output`.
template <int Width, bool Output, typename T>
HOLDFAST_APART void repeat(const Tile<T> &tile, const Adjoint<T> &adjoint, int64_t state, const T *a, const T *h,
                           T *kept, T *factors) {
  Vector<T> now[Width], rate[Width];
  HOLDFAST_UNROLL
  for (int w = 0; w < Width; ++w) {
    now[w] = load(h + w * lanes<T>);
    rate[w] = load(a + w * lanes<T>);
  }
  for (int64_t s = 0; s < tile.steps; ++s) {
    const Vector<T> delta = load(tile.delta + s * lanes<T>), drive = load(tile.drive + s * lanes<T>);
    const Vector<T> out = load(adjoint.out + s * lanes<T>);
    const T *const b = tile.b.at(s) + state;
    Vector<T> of_c[Width];
    const bool cut = tile.cut(s);
    HOLDFAST_UNROLL
    for (int w = 0; w < Width; ++w) {
      if (cut) now[w] = Vector<T>{};
      const auto [scale, rest] = power_of_two<T>(delta * rate[w]);
      const Vector<T> before = decayed<T>(scale, rest, now[w]);
      store(kept + (s * Width + w) * lanes<T>, before);
      store(factors + (s * Width + w) * lanes<T>, cut ? Vector<T>{} : scale + scale * rest);
      now[w] = drive * b[w] + before;
      of_c[w] = out * now[w];
    }
    add_sums<Width>(of_c, adjoint.sum_c + s * adjoint.states + state);
    if constexpr (Output) {
      const T *const c = tile.c.at(s) + state;
      Vector<T> y = load(tile.y + s * lanes<T>);
      HOLDFAST_UNROLL
      for (int w = 0; w < Width; ++w) y += now[w] * c[w];
      store(tile.y + s * lanes<T>, y);
    }
  }
}

// Carries the gradient `g` of `Width` states back through a tile, and adds to `of_rate`, the gradient of their rates.
template <int Width, typename T>
HOLDFAST_APART void step_back(const Tile<T> &tile, const Adjoint<T> &adjoint, int64_t state, const T *a, const T *kept,
                              const T *factors, T *g, T *of_rate) {
  Vector<T> now[Width], rate[Width], sum[Width];
  HOLDFAST_UNROLL
  for (int w = 0; w < Width; ++w) {
    now[w] = load(g + w * lanes<T>);
    rate[w] = load(a + w * lanes<T>);
    sum[w] = Vector<T>{};  // of this tile alone: float32 then rounds in sums of 64, not of all steps
  }
  for (int64_t s = tile.steps - 1; s >= 0; --s) {
    const Vector<T> out = load(adjoint.out + s * lanes<T>);
    const Vector<T> delta = load(tile.delta + s * lanes<T>), drive = load(tile.drive + s * lanes<T>);
    Vector<T> of_drive = load(adjoint.drive + s * lanes<T>), of_decay = load(adjoint.decay + s * lanes<T>);
    const T *const b = tile.b.at(s) + state, *const c = tile.c.at(s) + state;
    Vector<T> of_b[Width];
    HOLDFAST_UNROLL
    for (int w = 0; w < Width; ++w) {
      const Vector<T> total = now[w] + out * c[w];
      of_b[w] = total * drive;
      of_drive += total * b[w];
      now[w] = load(factors + (s * Width + w) * lanes<T>) * total;
      const Vector<T> exponent = load(kept + (s * Width + w) * lanes<T>) * total;
      of_decay += exponent * rate[w];
      sum[w] += exponent * delta;
    }
    add_sums<Width>(of_b, adjoint.sum_b + s * adjoint.states + state);
    store(adjoint.drive + s * lanes<T>, of_drive);
    store(adjoint.decay + s * lanes<T>, of_decay);
  }
  HOLDFAST_UNROLL
  for (int w = 0; w < Width; ++w) {
    store(g + w * lanes<T>, now[w]);
    store(of_rate + w * lanes<T>, load(of_rate + w * lanes<T>) + sum[w]);
  }
}

// The memory of one thread.
template <typename T>
struct Workspace {
  T *delta, *drive, *slope, *y, *out, *of_drive, *of_decay, *kept, *factors, *h, *sum_b, *sum_c, *vectors;

  static int64_t size(const Problem<T> &p) {
    const int64_t tile = kTileSteps * lanes<T>;
    return 7 * tile + 2 * tile * kSideStates + p.states * lanes<T> + 2 * kTileSteps * p.states + p.vectors() * each(p);
  }
  // For each vector: gradient of the states, gradient of the rates, rates; gradients of bias and direct path.
  static int64_t each(const Problem<T> &p) { return (3 * p.states + 2) * lanes<T>; }

  Workspace(const Problem<T> &p, T *memory) {
    const int64_t tile = kTileSteps * lanes<T>;
    for (T **part : {&delta, &drive, &slope, &y, &out, &of_drive, &of_decay}) *part = memory, memory += tile;
    kept = memory, memory += tile * kSideStates;
    factors = memory, memory += tile * kSideStates;
    h = memory, memory += p.states * lanes<T>;
    sum_b = memory, memory += kTileSteps * p.states;
    sum_c = memory, memory += kTileSteps * p.states;
    vectors = memory;
  }
};

template <int Width, typename T>
inline void pass(const Tile<T> &tile, const Adjoint<T> &adjoint, const Workspace<T> &workspace, int64_t n, bool gated,
                 T *g, T *of_rate, const T *a) {
  const int64_t at = n * lanes<T>;
  (gated ? repeat<Width, true, T> : repeat<Width, false, T>)(tile, adjoint, n, a + at, workspace.h + at, workspace.kept,
                                                             workspace.factors);
  step_back<Width>(tile, adjoint, n, a + at, workspace.kept, workspace.factors, g + at, of_rate + at);
}

// One tile of one vector of channels.
template <typename T>
HOLDFAST_APART void backward_tile(const Channels<T> &channels, int64_t row, int64_t first, int64_t steps,
                                  const T *checkpoints, const T *grad_y, const Gradients<T> &grads,
                                  const Workspace<T> &workspace, T *own) {
  const Problem<T> &problem = channels.problem;
  const Place place = channels.place;
  const int64_t block = problem.states * lanes<T>;
  T *const g = own, *const of_rate = own + block, *const a = own + 2 * block, *const of_bias = own + 3 * block;
  T *const of_skip = of_bias + lanes<T>;
  const Tile<T> tile =
      channels.template tile<true>(first, steps, workspace.delta, workspace.drive, workspace.y, workspace.slope);
  const Steps<const T> from = problem.row(problem.dense(grad_y), row);
  for (int64_t s = 0; s < steps; ++s) {
    channels.fetch_next(from, first + s);
    Vector<T> out = channels.get_at(from, first + s);
    if (channels.z) {
      const Vector<T> z = channels.get_at(channels.z, first + s);
      out *= z * sigmoid<T>(z);
    }
    store(workspace.out + s * lanes<T>, out);
    store(workspace.of_drive + s * lanes<T>, Vector<T>{});
    store(workspace.of_decay + s * lanes<T>, Vector<T>{});
  }
  const int64_t tiles = row * problem.tiles() + first / kTileSteps;
  gather(problem, place, checkpoints + tiles * problem.states * problem.channels, workspace.h);
  const Adjoint<T> adjoint{workspace.out,   workspace.of_drive, workspace.of_decay,
                           workspace.sum_b, workspace.sum_c,    problem.states};
  const bool gated = static_cast<bool>(channels.z);
  int64_t n = 0;
  for (; n + kSideStates <= problem.states; n += kSideStates)
    pass<kSideStates>(tile, adjoint, workspace, n, gated, g, of_rate, a);
  for (; n < problem.states; ++n) pass<1>(tile, adjoint, workspace, n, gated, g, of_rate, a);

  const auto write = [&](T *to, int64_t s, Vector<T> value) {
    if (!to) return;
    const Steps<T> all = problem.row(problem.dense(to), row);
    channels.fetch_next(all, first + s);
    put(all.at(first + s) + place.channel, value, place.count);
  };
  Vector<T> bias{}, skip{};
  for (int64_t s = 0; s < steps; ++s) {
    const Vector<T> u = channels.get_at(channels.u, first + s), out = load(workspace.out + s * lanes<T>);
    const Vector<T> of_drive = load(workspace.of_drive + s * lanes<T>);
    const Vector<T> of_delta = load(workspace.of_decay + s * lanes<T>) * T(0.69314718055994530942) + of_drive * u;
    const Vector<T> of_dt = of_delta * load(workspace.slope + s * lanes<T>);
    write(grads.u, s, out * channels.skip + of_drive * load(workspace.delta + s * lanes<T>));
    write(grads.dt, s, of_dt);
    bias += of_dt;
    skip += out * u;
    if (gated) {
      const Vector<T> z = channels.get_at(channels.z, first + s), share = sigmoid<T>(z);
      const Vector<T> slope = share * (T(1) + z * (T(1) - share));
      write(grads.z, s, channels.get_at(from, first + s) * load(workspace.y + s * lanes<T>) * slope);
    }
  }
  store(of_bias, load(of_bias) + bias);
  store(of_skip, load(of_skip) + skip);
}

// Writes the sums of one tile and group, and clears them.
template <typename T>
inline void flush(const Problem<T> &problem, int64_t row, int64_t part, int64_t group, int64_t first, int64_t steps,
                  T *sums, T *to) {
  const int64_t width = problem.groups * problem.states;
  const Sequence<T> all{to + part * problem.rows * problem.steps * width, problem.steps * width, width};
  const Steps<T> own = problem.row(all, row);
  for (int64_t s = 0; s < steps; ++s)
    for (int64_t n = 0; n < problem.states; ++n) {
      own.at(first + s)[group * problem.states + n] = sums[s * problem.states + n];
      sums[s * problem.states + n] = 0;
    }
}

template <typename T>
void run_backward(const Problem<T> &problem, T *memory, const T *checkpoints, const T *grad_y, const T *grad_last,
                  const Gradients<T> &grads) {
  const int64_t own = Workspace<T>::size(problem), each = Workspace<T>::each(problem),
                block = problem.states * lanes<T>;
  problem.each([&](int rank, int64_t row, int64_t part, Range vectors) {
    const Workspace<T> workspace(problem, memory + rank * own);
    const int64_t length = problem.length(row), size = problem.states * problem.channels;
    for (int64_t i = 0; i < 2 * kTileSteps * problem.states; ++i) workspace.sum_b[i] = 0;
    for (int64_t v = vectors.begin; v < vectors.end; ++v) {
      T *const mine = workspace.vectors + v * each;
      for (int64_t i = 0; i < each; ++i) mine[i] = 0;
      const Channels<T> channels(problem, row, v);
      gather(problem, channels.place, row_of(problem, grad_last, row), mine);
      channels.rates(mine + 2 * block);
    }
    for (int64_t first = (length - 1) / kTileSteps * kTileSteps; first >= 0 && length > 0; first -= kTileSteps) {
      const int64_t steps = length - first < kTileSteps ? length - first : kTileSteps;
      for (int64_t v = vectors.begin; v < vectors.end; ++v) {
        const Channels<T> channels(problem, row, v);
        backward_tile(channels, row, first, steps, checkpoints, grad_y, grads, workspace, workspace.vectors + v * each);
        const int64_t group = channels.place.group;
        if (v + 1 < vectors.end && problem.place(v + 1).group == group) continue;
        flush(problem, row, part, group, first, steps, workspace.sum_b, grads.b);
        flush(problem, row, part, group, first, steps, workspace.sum_c, grads.c);
      }
    }
    for (int64_t v = vectors.begin; v < vectors.end; ++v) {
      const T *const mine = workspace.vectors + v * each;
      const Place place = problem.place(v);
      if (grads.h0) scatter(problem, place, mine, grads.h0 + row * size);
      scatter(problem, place, mine + block, grads.a + row * size);
      const int64_t at = row * problem.channels + place.channel;
      if (grads.bias) put(grads.bias + at, load(mine + 3 * block), place.count);
      if (grads.d) put(grads.d + at, load(mine + 3 * block + lanes<T>), place.count);
    }
  });
}

}  // namespace holdfast::selective
