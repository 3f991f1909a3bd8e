// The selective scan forward: a tile of steps for one vector of channels after another.
#pragma once

#include <type_traits>

#include "selective/problem.h"

namespace holdfast::selective {

// One tile of one vector of channels, in the order of the run. The arrays are (kTileSteps, lanes).
template <typename T>
struct Tile {
  int64_t steps;
  T *delta, *drive, *y;  // step size, step size times input, output before the gate
  Steps<const T> b, c;
  Steps<const unsigned char> resets;

  bool cut(int64_t s) const { return resets && *resets.at(s); }
};

// h 2^x of 2^x = scale (1 + rest); h + rest h before the power of two, so that a decay near 1 is never rounded itself.
template <typename T>
inline Vector<T> decayed(Vector<T> scale, Vector<T> rest, Vector<T> h) {
  return scale * (h + rest * h);
}

// Steps `Width` states through a tile, and adds to the output.
template <int Width, typename T>
HOLDFAST_APART void advance(const Tile<T> &tile, int64_t state, const T *a, T *h) {
  Vector<T> now[Width], rate[Width];
  HOLDFAST_UNROLL
  for (int w = 0; w < Width; ++w) {
    now[w] = load(h + w * lanes<T>);
    rate[w] = load(a + w * lanes<T>);
  }
  for (int64_t s = 0; s < tile.steps; ++s) {
    if (tile.cut(s)) HOLDFAST_UNROLL
    for (int w = 0; w < Width; ++w) now[w] = Vector<T>{};
    const Vector<T> delta = load(tile.delta + s * lanes<T>), drive = load(tile.drive + s * lanes<T>);
    Vector<T> y = load(tile.y + s * lanes<T>);
    const T *const b = tile.b.at(s) + state, *const c = tile.c.at(s) + state;
    HOLDFAST_UNROLL
    for (int w = 0; w < Width; ++w) {
      const auto [scale, rest] = power_of_two<T>(delta * rate[w]);
      now[w] = drive * b[w] + decayed<T>(scale, rest, now[w]);
      y += now[w] * c[w];
    }
    store(tile.y + s * lanes<T>, y);
  }
  HOLDFAST_UNROLL
  for (int w = 0; w < Width; ++w) store(h + w * lanes<T>, now[w]);
}

// Inputs and results of one row and one vector of channels.
template <typename T>
struct Channels {
  const Problem<T> &problem;
  Place place;
  Vector<T> bias, skip;
  Steps<const T> u, dt, z, b, c;
  Steps<const unsigned char> resets;

  Channels(const Problem<T> &p, int64_t row, int64_t vector)
      : problem(p), place(p.place(vector)), bias(of(p.bias)), skip(of(p.d)), u(p.row(p.u, row)), dt(p.row(p.dt, row)),
        z(p.row(p.z, row)), b(p.row(p.b, row)), c(p.row(p.c, row)), resets(p.row(p.resets, row)) {}

  Vector<T> of(const T *weights) const { return weights ? get(weights + place.channel, place.count) : Vector<T>{}; }
  Vector<T> get_at(Steps<const T> from, int64_t s) const { return get(from.at(s) + place.channel, place.count); }
  // The same of the next vector, to be there when its turn comes: steps lie in pages of their own, where the processor
  // fetches nothing by itself.
  template <typename S>
  void fetch_next(Steps<S> of, int64_t s) const {
    __builtin_prefetch(of.at(s) + place.channel + lanes<T>, !std::is_const_v<S>, 2);
  }

  // Step sizes, driven inputs and direct paths of the steps from `first`; where `Slope` also the slope of the step
  // sizes.
  template <bool Slope>
  HOLDFAST_APART Tile<T> tile(int64_t first, int64_t steps, T *delta, T *drive, T *y, T *slope) const {
    for (int64_t s = 0; s < steps; ++s) {
      fetch_next(u, first + s), fetch_next(dt, first + s);
      const Vector<T> x = get_at(u, first + s), raw = get_at(dt, first + s) + bias;
      const auto [soft, of_soft] = softplus_with_slope<T>(raw);
      const Vector<T> size = problem.softplus ? soft : raw;
      if constexpr (Slope) store(slope + s * lanes<T>, problem.softplus ? of_soft : broadcast<T>(T(1)));
      store(delta + s * lanes<T>, size);
      store(drive + s * lanes<T>, size * x);
      store(y + s * lanes<T>, skip * x);
    }
    const int64_t group = place.group * problem.states;
    const Steps<const T> own_b{b.at(first) + group, b.step}, own_c{c.at(first) + group, c.step};
    return {steps, delta, drive, y, own_b, own_c, {resets ? resets.at(first) : nullptr, resets.step}};
  }

  // The rates of all states in units of log 2, (states, lanes).
  void rates(T *to) const {
    for (int64_t n = 0; n < problem.states; ++n)
      store(to + n * lanes<T>, of(problem.a + n * problem.channels) * T(1.44269504088896340736));
  }
};

// Copies (states, channels) of one row from or to (states, lanes) of one vector.
template <typename T>
inline void gather(const Problem<T> &problem, Place place, const T *from, T *to) {
  for (int64_t n = 0; n < problem.states; ++n) {
    const T *const own = from + n * problem.channels + place.channel;
    if (from) __builtin_prefetch(own + lanes<T>, 0, 2);  // of the next vector
    store(to + n * lanes<T>, from ? get(own, place.count) : Vector<T>{});
  }
}
template <typename T>
inline void scatter(const Problem<T> &problem, Place place, const T *from, T *to) {
  for (int64_t n = 0; n < problem.states; ++n)
    put(to + n * problem.channels + place.channel, load(from + n * lanes<T>), place.count);
}

template <typename T>
inline const T *row_of(const Problem<T> &problem, const T *states, int64_t row) {
  return states ? states + row * problem.states * problem.channels : nullptr;
}

// Numbers of workspace of one thread: states and rates of every vector, and a tile of three arrays.
template <typename T>
int64_t forward_numbers(const Problem<T> &problem) {
  return 2 * problem.states * lanes<T> * problem.vectors() + 3 * kTileSteps * lanes<T>;
}

template <typename T>
void run_forward(const Problem<T> &problem, T *memory, T *y, T *last, T *checkpoints) {
  const int64_t block = problem.states * lanes<T>, own = forward_numbers(problem);
  problem.each([&](int rank, int64_t row, int64_t, Range vectors) {
    T *const delta = memory + rank * own, *const drive = delta + kTileSteps * lanes<T>;
    T *const out = drive + kTileSteps * lanes<T>, *const states = out + kTileSteps * lanes<T>;
    const int64_t length = problem.length(row), size = problem.states * problem.channels;
    for (int64_t v = vectors.begin; v < vectors.end; ++v) {
      const Channels<T> channels(problem, row, v);
      gather(problem, channels.place, row_of(problem, problem.h0, row), states + 2 * v * block);
      channels.rates(states + (2 * v + 1) * block);
    }
    for (int64_t first = 0; first < length; first += kTileSteps)
      for (int64_t v = vectors.begin; v < vectors.end; ++v) {
        const Channels<T> channels(problem, row, v);
        const int64_t steps = length - first < kTileSteps ? length - first : kTileSteps;
        const Tile<T> tile = channels.template tile<false>(first, steps, delta, drive, out, nullptr);
        T *const h = states + 2 * v * block, *const a = h + block;
        if (checkpoints)
          scatter(problem, channels.place, h, checkpoints + (row * problem.tiles() + first / kTileSteps) * size);
        int64_t n = 0;
        for (; n + kSideStates <= problem.states; n += kSideStates)
          advance<kSideStates>(tile, n, a + n * lanes<T>, h + n * lanes<T>);
        for (; n < problem.states; ++n) advance<1>(tile, n, a + n * lanes<T>, h + n * lanes<T>);
        const Steps<T> to = problem.row(problem.dense(y), row);
        for (int64_t s = 0; s < steps; ++s) {
          Vector<T> value = load(out + s * lanes<T>);
          if (channels.z) {
            const Vector<T> z = channels.get_at(channels.z, first + s);
            value *= z * sigmoid<T>(z);
          }
          channels.fetch_next(to, first + s);
          put(to.at(first + s) + channels.place.channel, value, channels.place.count);
        }
      }
    for (int64_t v = vectors.begin; v < vectors.end; ++v)
      scatter(problem, problem.place(v), states + 2 * v * block, last + row * size);
  });
}

}  // namespace holdfast::selective
