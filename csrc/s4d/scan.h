// What the forward and the backward scan share: how work is divided, where it keeps its numbers, states in and out.
#pragma once

#include "common/arena.h"
#include "common/parallel.h"
#include "s4d/powers.h"
#include "s4d/scan_tile.h"

namespace holdfast::s4d {

// Sequences from here on carry their float32 states from tile to tile in double, by what each tile alone leaves and
// by a^128: step by step, the rounding of a slow mode is of one sign and grows by 6e-8 per step.
constexpr int64_t kLong = 512;

// Blocks of features whose tiles are copied together: many, unless threads would get uneven shares.
inline int64_t blocks_together(int64_t blocks, int64_t groups, int threads) {
  for (int64_t together = blocks < 8 ? blocks : 8; together > 1; --together) {
    const int64_t items = ceil_div(blocks, together) * groups;
    if (items >= 4 * threads || (items % threads == 0 && blocks % together == 0)) return together;
  }
  return 1;
}

// Items are rows of one vector with some blocks of features. Items go to threads whole, one tile after the other; or,
// where they are too few, tile by tile: then the states between tiles come first, from what each tile alone leaves.
template <typename T>
struct ScanPlan {
  Layout<T> layout;
  int64_t together, sets, items;  // blocks in an item, sets of so many blocks, sets times groups of rows
  int64_t tiles;                  // the most that a sequence can have
  bool breaks;                    // rows of a vector start at different steps, with states of their own
  bool by_tiles;
  bool exact;  // states between tiles are carried in double

  ScanPlan(const Shape &shape, bool initial, int threads) : layout(shape) {
    breaks = initial && shape.lengths && layout.fold > 1;
    tiles = ceil_div(shape.time, kTile) + (breaks ? layout.fold : 0);
    by_tiles = !breaks && tiles > 1 && layout.blocks * layout.groups < threads;
    exact = by_tiles || (!breaks && sizeof(T) == 4 && shape.time >= kLong);
    together = blocks_together(layout.blocks, layout.groups, by_tiles ? 1 : threads);
    sets = ceil_div(layout.blocks, together);
    items = sets * layout.groups;
  }

  int64_t state(int64_t modes) const { return modes * Tables<T>::kPair; }
  int64_t checkpoints(int64_t modes) const { return layout.blocks * layout.groups * tiles * state(modes); }
  int64_t first(int64_t item) const { return item / layout.groups * together; }
  int64_t blocks(int64_t item) const {
    const int64_t left = layout.blocks - first(item);
    return left < together ? left : together;
  }
};

// Where a thread keeps the tiles that it works on.
template <typename T>
struct Workspace {
  T *u, *y, *grad, *state, *gained, *history;
  double *total, *leap;

  Workspace(Arena &arena, int64_t blocks, int64_t modes, bool backward) {
    const int64_t state_size = modes * Tables<T>::kPair;
    u = arena.take<T>(blocks * Tiles<T>::kSize);
    y = arena.take<T>(blocks * Tiles<T>::kSize);
    grad = arena.take<T>(backward ? blocks * Tiles<T>::kSize : 0);
    history = arena.take<T>(backward ? kTile * kBackwardModes * Tables<T>::kPair : 0);
    state = arena.take<T>(blocks * state_size);
    gained = arena.take<T>(state_size);
    total = arena.take<double>(blocks * state_size);
    leap = arena.take<double>(backward ? state_size : 0);
  }
};

// visit(mode's index, place in a tensor (batch, features, modes[, 2]), place in a kernel's array) for the lanes of
// row r of a group in one block of features.
template <typename T, typename Visit>
void each_state(bool real, const Shape &shape, const Layout<T> &layout, int64_t block, const Group<T> &group, int64_t r,
                Visit &&visit) {
  for (int64_t i = 0; i < layout.width && block * layout.width + i < shape.features; ++i) {
    for (int64_t mode = 0; mode < shape.modes; ++mode) {
      const int64_t n = (block * layout.width + i) * shape.modes + mode;
      const int64_t at = ((group.row + r) * shape.features * shape.modes + n) * (real ? 1 : 2);
      visit(n, at, mode * Tables<T>::kPair + r * layout.width + i);
    }
  }
}

// Reads row r of a tensor into `state`, a kernel's array of any precision: x = h / b, or for an adjoint b conj(g),
// because the kernels' adjoints stand for d loss = Re(g dx) and the tensor's for Re(conj(g) dh).
template <typename T, typename U>
void read_state(bool adjoint, const Shape &shape, const Layout<T> &layout, const Weights<T> &weights, int64_t block,
                const Group<T> &group, int64_t r, const T *tensor, U *state) {
  each_state(weights.real, shape, layout, block, group, r, [&](int64_t n, int64_t at, int64_t slot) {
    const Complex b = weights.modes[n].b;
    const double re = static_cast<double>(tensor[at]), im = weights.real ? 0.0 : static_cast<double>(tensor[at + 1]);
    const Complex z = adjoint ? Complex{re, -im} * b : Complex{re, im} / b;
    state[slot] = static_cast<U>(z.re);
    state[slot + lanes<T>] = static_cast<U>(z.im);
  });
}

// The reverse of read_state.
template <typename T, typename U>
void write_state(bool adjoint, const Shape &shape, const Layout<T> &layout, const Weights<T> &weights, int64_t block,
                 const Group<T> &group, int64_t r, const U *state, T *tensor) {
  each_state(weights.real, shape, layout, block, group, r, [&](int64_t n, int64_t at, int64_t slot) {
    const Complex b = weights.modes[n].b;
    const Complex x{static_cast<double>(state[slot]), static_cast<double>(state[slot + lanes<T>])};
    const Complex z = adjoint ? x / b : x * b;
    tensor[at] = static_cast<T>(z.re);
    if (!weights.real) tensor[at + 1] = static_cast<T>(adjoint ? -z.im : z.im);
  });
}

// The skip weights of a block of features, lane by lane.
template <typename T>
Vector<T> skip_of(const Shape &shape, const Layout<T> &layout, const Weights<T> &weights, int64_t block) {
  Vector<T> v{};
  for (int64_t lane = 0; lane < layout.fold * layout.width && weights.skip; ++lane) {
    const int64_t feature = block * layout.width + lane % layout.width;
    if (feature < shape.features) v[lane] = weights.skip[feature];
  }
  return v;
}

// a^n of every mode and lane of a block of features.
template <typename T>
void set_leap(const Shape &shape, const Layout<T> &layout, const Weights<T> &weights, int64_t block, int64_t n,
              double *leap) {
  for (int64_t mode = 0; mode < shape.modes; ++mode, leap += 2 * lanes<T>) {
    const Coefficients<T> of(shape, layout, weights, block, mode);
    for (int64_t lane = 0; lane < lanes<T>; ++lane) {
      const Complex p = power({of.a.re[lane], of.a.im[lane]}, n);
      leap[lane] = p.re;
      leap[lanes<T> + lane] = p.im;
    }
  }
}

// Shape, weights, tables and threads of one call.
template <typename T>
struct Scan {
  const Shape &shape;
  const Weights<T> &weights;
  const int threads;
  const ScanPlan<T> plan;
  T *tables = nullptr;
  double *leaps = nullptr;  // a^kTile of each block, where states are carried in double
  char *workspaces = nullptr;
  int64_t workspace_bytes = 0;
  bool backward = false;

  Scan(const Shape &shape_, const Weights<T> &weights_, bool initial, int threads_, bool backward_)
      : shape(shape_), weights(weights_), threads(threads_), plan(shape_, initial, threads_), backward(backward_) {}

  void take(Arena &arena) {
    Arena counter(nullptr);
    Workspace<T>(counter, plan.together, shape.modes, backward);
    workspace_bytes = counter.used();
    tables = arena.take<T>(plan.layout.blocks * Tables<T>::size(shape.modes));
    leaps = arena.take<double>(plan.exact ? plan.layout.blocks * plan.state(shape.modes) : 0);
    workspaces = arena.take<char>(workspace_bytes * threads);
  }

  Tables<T> tables_of(int64_t block) const { return {tables + block * Tables<T>::size(shape.modes), shape.modes}; }
  // Moves a state, in double and as the kernels take it, past a tile that leaves `gained` in a state that was 0.
  void carry_over(int64_t block, const T *gained, double *total, T *state) const {
    const int64_t size = plan.state(shape.modes);
    carry(shape.modes, leaps + block * size, gained, total);
    for (int64_t i = 0; i < size; ++i) state[i] = static_cast<T>(total[i]);
  }
  Vector<T> skip(int64_t block) const { return skip_of(shape, plan.layout, weights, block); }
  Group<T> group_of(int64_t item) const { return Group<T>(shape, plan.layout, item % plan.layout.groups); }
  Tiles<T> tiles_of(int64_t item, const Group<T> &group) const {
    return {shape, plan.layout, group, plan.first(item), plan.blocks(item)};
  }
  // Where the state of a block, a group of rows and a tile lies among checkpoints.
  int64_t place(int64_t block, int64_t group, int64_t tile) const {
    return ((block * plan.layout.groups + group) * plan.tiles + tile) * plan.state(shape.modes);
  }
  size_t state_bytes() const { return static_cast<size_t>(plan.state(shape.modes)) * sizeof(T); }

  // body(i, workspace, rank) for i < count, a contiguous share on each thread.
  template <typename Body>
  void over(int64_t count, Body &&body) const {
    parallel(threads, [&](int rank, int size) {
      Arena own(workspaces + rank * workspace_bytes);
      const Workspace<T> workspace(own, plan.together, shape.modes, backward);
      const Range part = share(count, rank, size);
      for (int64_t i = part.begin; i < part.end; ++i) body(i, workspace, rank);
      finish_streams();
    });
  }

  void fill_tables() const {
    over(plan.layout.blocks, [&](int64_t block, const Workspace<T> &, int) {
      const int64_t begin = block * plan.layout.width, end = begin + plan.layout.width;
      if (!backward) discretize(shape, weights, begin, end < shape.features ? end : shape.features);
      tables_of(block).fill(shape, plan.layout, weights, block);
      if (plan.exact) set_leap(shape, plan.layout, weights, block, kTile, leaps + block * plan.state(shape.modes));
    });
  }
};

}  // namespace holdfast::s4d
