// The scan backward over whole sequences, from the states that the forward kept at the beginning of each tile.
#pragma once

#include <algorithm>

#include "s4d/scan.h"

namespace holdfast::s4d {

template <typename T>
struct ScanBackward : Scan<T> {
  using Scan<T>::shape, Scan<T>::weights, Scan<T>::plan, Scan<T>::threads;
  const T *u, *gy, *gh_last, *checkpoints;  // gy or gh_last may be null
  T *gu, *gh0;                              // gh0 may be null
  Gradients<T> grads;
  bool driven;  // by the input alone: no initial state, no gradient of the final one
  double *sums = nullptr;
  T *adjoints = nullptr;

  ScanBackward(const Shape &shape_, const Weights<T> &weights_, bool initial, int threads_)
      : Scan<T>(shape_, weights_, initial, threads_, true) {}

  void take(Arena &arena) {
    Scan<T>::take(arena);
    sums = arena.take<double>(threads * slot());
    adjoints = arena.take<T>(plan.by_tiles ? plan.checkpoints(shape.modes) : 0);
  }

  void run() {
    this->fill_tables();
    for (int64_t i = 0; i < threads * slot(); ++i) sums[i] = 0;
    const int64_t tiles = plan.tiles, items = plan.items, inner = tiles - 1, groups = plan.layout.groups;
    if (!plan.by_tiles) {
      this->over(items, [&](int64_t item, const Desk<T> &desk, int rank) { run_item(item, desk, rank); });
    } else {
      this->over(items * inner, [&](int64_t i, const Desk<T> &desk, int) { absorb_alone(i / inner, i % inner + 1, desk); });
      this->over(plan.layout.blocks * groups, [&](int64_t i, const Desk<T> &desk, int) { chain(i / groups, i % groups, desk); });
      this->over(items * tiles, [&](int64_t i, const Desk<T> &desk, int rank) { run_alone(i / tiles, i % tiles, desk, rank); });
    }
    parallel(threads, [&](int rank, int size) {
      const Range part = share(shape.features, rank, size);
      finish(shape, plan.layout, weights, sums, threads, driven, grads, part.begin, part.end);
    });
  }

 private:
  int64_t slot() const { return plan.layout.blocks * Sums<T>::size(shape.modes); }
  Sums<T> sums_of(int64_t block, int rank) const {
    return {sums + rank * slot() + block * Sums<T>::size(shape.modes)};
  }
  int64_t at(int64_t block, const Group<T> &group, int64_t tile) const {
    return this->place(block, group.row / plan.layout.fold, tile);
  }

  // The adjoint of x after the last step.
  template <typename U>
  void enter(int64_t block, const Group<T> &group, U *adjoint) const {
    for (int64_t i = 0; i < plan.state(shape.modes); ++i) adjoint[i] = 0;
    for (int64_t r = 0; r < group.rows && gh_last; ++r) {
      read_state(true, shape, plan.layout, weights, block, group, r, gh_last, adjoint);
    }
  }
  // The gradient of the initial state of the rows that start at `step`; their lanes are done then.
  template <typename U>
  void leave(int64_t block, const Group<T> &group, int64_t step, U *adjoint) const {
    for (int64_t r = 0; r < group.rows && gh0; ++r) {
      if (group.start(r) != step) continue;
      write_state(true, shape, plan.layout, weights, block, group, r, adjoint, gh0);
      each_state(weights.real, shape, plan.layout, block, group, r, [&](int64_t, int64_t, int64_t slot) {
        adjoint[slot] = adjoint[slot + lanes<T>] = 0;
      });
    }
  }

  void pack_gradient(const Tiles<T> &tiles, int64_t step, int64_t count, T *tile) const {
    if (gy) {
      tiles.pack(gy, step, count, tile);
    } else {
      std::memset(tile, 0, static_cast<size_t>(tiles.blocks * Tiles<T>::kSize) * sizeof(T));
    }
  }

  // One tile of all blocks of an item, whose adjoints are on the desk; the tile before it is fetched meanwhile.
  void run_tile(const Tiles<T> &tiles, int64_t tile, int64_t step, int64_t count, const Desk<T> &desk, int rank) const {
    tiles.pack(u, step, count, desk.u);
    pack_gradient(tiles, step, count, desk.y);
    for (int64_t i = 0; i < tiles.blocks; ++i) {
      const int64_t block = tiles.first + i, from = i * Tiles<T>::kSize;
      backward_tile(weights.real, !driven, this->tables_of(block), shape.modes, this->skip(block), count, desk.u + from,
                    desk.y + from, desk.grad + from, checkpoints + at(block, tiles.group, tile), adjoint_of(desk, i),
                    desk.trail, sums_of(block, rank));
      if (step < kTile) continue;
      tiles.fetch(u, step - kTile, i, tiles.blocks);
      if (gy) tiles.fetch(gy, step - kTile, i, tiles.blocks);
    }
    tiles.unpack(desk.grad, step, count, gu);
  }
  T *adjoint_of(const Desk<T> &desk, int64_t i) const { return desk.state + i * plan.state(shape.modes); }
  double *total_of(const Desk<T> &desk, int64_t i) const { return desk.total + i * plan.state(shape.modes); }

  void run_item(int64_t item, const Desk<T> &desk, int rank) const {
    const Group<T> group = this->group_of(item);
    const Tiles<T> tiles = this->tiles_of(item, group);
    const int64_t size = plan.state(shape.modes);
    int64_t tile = 0;
    for (int64_t step = 0; step < group.steps; step = group.next(step, kTile, plan.breaks)) ++tile;
    for (int64_t i = 0; i < tiles.blocks; ++i) {
      enter(tiles.first + i, group, adjoint_of(desk, i));
      leave(tiles.first + i, group, group.steps, adjoint_of(desk, i));  // rows of no steps
      std::copy_n(adjoint_of(desk, i), size, total_of(desk, i));
    }
    for (int64_t end = group.steps, step; tile-- > 0; end = step) {
      step = group.previous(end, kTile, plan.breaks);
      const int64_t count = end - step;
      run_tile(tiles, tile, step, count, desk, rank);
      for (int64_t i = 0; i < tiles.blocks; ++i) {
        if (plan.exact && count == kTile) {
          absorb(tiles.first + i, count, desk.y + i * Tiles<T>::kSize, desk.gained);
          this->cross(tiles.first + i, desk.gained, total_of(desk, i), adjoint_of(desk, i));
        } else {
          std::copy_n(adjoint_of(desk, i), size, total_of(desk, i));
        }
        leave(tiles.first + i, group, step, adjoint_of(desk, i));
      }
    }
    tiles.clear_padding(gu);
  }

  // What a tile alone gives to the adjoint of the tile before it: a c sum_j a^j gy_j.
  void absorb(int64_t block, int64_t count, const T *out, T *gained) const {
    const Tables<T> table = this->tables_of(block);
    absorb_tile(weights.real, table, shape.modes, count, out + (count - 1) * lanes<T>, -lanes<T>, gained);
    for (int64_t mode = 0; mode < shape.modes; ++mode, gained += Tables<T>::kPair) {
      store_pair(gained, load_pair(table.a(mode)) * (load_pair(table.c(mode)) * load_pair(gained)));
    }
  }

  void absorb_alone(int64_t item, int64_t tile, const Desk<T> &desk) const {
    const Group<T> group = this->group_of(item);
    const Tiles<T> tiles = this->tiles_of(item, group);
    const int64_t step = tile * kTile, count = group.next(step, kTile, false) - step;
    if (step >= group.steps) return;
    pack_gradient(tiles, step, count, desk.y);
    for (int64_t i = 0; i < tiles.blocks; ++i) {
      const int64_t block = tiles.first + i;
      absorb(block, count, desk.y + i * Tiles<T>::kSize, adjoints + at(block, group, tile - 1));
    }
  }

  // From what each tile gives to the adjoints after each. Only the last tile can be short.
  void chain(int64_t block, int64_t index, const Desk<T> &desk) const {
    const Group<T> group(shape, plan.layout, index);
    const int64_t size = plan.state(shape.modes), last = ceil_div(group.steps, kTile) - 1;
    enter(block, group, desk.total);
    leave(block, group, group.steps, desk.total);
    for (int64_t tile = last; tile >= 0; --tile) {
      T *state = adjoints + at(block, group, tile);
      if (tile == last - 1) {
        set_leap(shape, plan.layout, weights, block, group.steps - last * kTile, desk.leap);
        carry(shape.modes, desk.leap, state, desk.total);
      }
      if (tile < last - 1) {
        this->cross(block, state, desk.total, state);
      } else {
        for (int64_t i = 0; i < size; ++i) state[i] = static_cast<T>(desk.total[i]);
      }
    }
    Tiles<T>{shape, plan.layout, group, block, 1}.clear_padding(gu);
  }

  void run_alone(int64_t item, int64_t tile, const Desk<T> &desk, int rank) const {
    const Group<T> group = this->group_of(item);
    const Tiles<T> tiles = this->tiles_of(item, group);
    const int64_t step = tile * kTile, end = group.next(step, kTile, false);
    if (step >= group.steps) return;
    for (int64_t i = 0; i < tiles.blocks; ++i) {
      std::memcpy(adjoint_of(desk, i), adjoints + at(tiles.first + i, group, tile), this->state_bytes());
    }
    run_tile(tiles, tile, step, end - step, desk, rank);
    for (int64_t i = 0; i < tiles.blocks && tile == 0; ++i) leave(tiles.first + i, group, 0, adjoint_of(desk, i));
  }
};

}  // namespace holdfast::s4d
