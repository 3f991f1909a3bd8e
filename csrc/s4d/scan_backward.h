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
      this->over(items,
                 [&](int64_t item, const Workspace<T> &workspace, int rank) { run_item(item, workspace, rank); });
    } else {
      this->over(items * inner, [&](int64_t i, const Workspace<T> &workspace, int) {
        absorb_alone(i / inner, i % inner + 1, workspace);
      });
      this->over(plan.layout.blocks * groups,
                 [&](int64_t i, const Workspace<T> &workspace, int) { chain(i / groups, i % groups, workspace); });
      this->over(items * tiles, [&](int64_t i, const Workspace<T> &workspace, int rank) {
        run_alone(i / tiles, i % tiles, workspace, rank);
      });
    }
    parallel(threads, [&](int rank, int size) {
      const Range part = share(shape.features, rank, size);
      finish(shape, plan.layout, weights, sums, threads, driven, grads, part.begin, part.end);
    });
  }

 private:
  int64_t slot() const { return plan.layout.blocks * Sums<T>::size(shape.modes); }
  Sums<T> sums_of(int64_t block, int rank) const { return {sums + rank * slot() + block * Sums<T>::size(shape.modes)}; }
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
      each_state(weights.real, shape, plan.layout, block, group, r,
                 [&](int64_t, int64_t, int64_t slot) { adjoint[slot] = adjoint[slot + lanes<T>] = 0; });
    }
  }

  void pack_gradient(const Tiles<T> &tiles, int64_t step, int64_t count, T *tile) const {
    if (gy) {
      tiles.pack(gy, step, count, tile);
    } else {
      std::memset(tile, 0, static_cast<size_t>(tiles.blocks * Tiles<T>::kSize) * sizeof(T));
    }
  }

  // One tile of all blocks of an item, whose adjoints are in the workspace; the tile before it is fetched meanwhile.
  void run_tile(const Tiles<T> &tiles, int64_t tile, int64_t step, int64_t count, const Workspace<T> &workspace,
                int rank) const {
    tiles.pack(u, step, count, workspace.u);
    pack_gradient(tiles, step, count, workspace.y);
    for (int64_t i = 0; i < tiles.blocks; ++i) {
      const int64_t block = tiles.first + i, from = i * Tiles<T>::kSize;
      backward_tile(weights.real, !driven, this->tables_of(block), shape.modes, this->skip(block), count,
                    workspace.u + from, workspace.y + from, workspace.grad + from,
                    checkpoints + at(block, tiles.group, tile), adjoint_of(workspace, i), workspace.history,
                    sums_of(block, rank));
      if (step < kTile) continue;
      tiles.fetch(u, step - kTile, i, tiles.blocks);
      if (gy) tiles.fetch(gy, step - kTile, i, tiles.blocks);
    }
    tiles.unpack(workspace.grad, step, count, gu);
  }
  T *adjoint_of(const Workspace<T> &workspace, int64_t i) const {
    return workspace.state + i * plan.state(shape.modes);
  }
  double *total_of(const Workspace<T> &workspace, int64_t i) const {
    return workspace.total + i * plan.state(shape.modes);
  }

  void run_item(int64_t item, const Workspace<T> &workspace, int rank) const {
    const Group<T> group = this->group_of(item);
    const Tiles<T> tiles = this->tiles_of(item, group);
    const int64_t size = plan.state(shape.modes);
    int64_t tile = 0;
    for (int64_t step = 0; step < group.steps; step = group.next(step, kTile, plan.breaks)) ++tile;
    for (int64_t i = 0; i < tiles.blocks; ++i) {
      enter(tiles.first + i, group, adjoint_of(workspace, i));
      leave(tiles.first + i, group, group.steps, adjoint_of(workspace, i));  // rows of no steps
      std::copy_n(adjoint_of(workspace, i), size, total_of(workspace, i));
    }
    for (int64_t end = group.steps, step; tile-- > 0; end = step) {
      step = group.previous(end, kTile, plan.breaks);
      const int64_t count = end - step;
      run_tile(tiles, tile, step, count, workspace, rank);
      for (int64_t i = 0; i < tiles.blocks; ++i) {
        if (plan.exact && count == kTile) {
          absorb(tiles.first + i, count, workspace.y + i * Tiles<T>::kSize, workspace.gained);
          this->carry_over(tiles.first + i, workspace.gained, total_of(workspace, i), adjoint_of(workspace, i));
        } else {
          std::copy_n(adjoint_of(workspace, i), size, total_of(workspace, i));
        }
        leave(tiles.first + i, group, step, adjoint_of(workspace, i));
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

  void absorb_alone(int64_t item, int64_t tile, const Workspace<T> &workspace) const {
    const Group<T> group = this->group_of(item);
    const Tiles<T> tiles = this->tiles_of(item, group);
    const int64_t step = tile * kTile, count = group.next(step, kTile, false) - step;
    if (step >= group.steps) return;
    pack_gradient(tiles, step, count, workspace.y);
    for (int64_t i = 0; i < tiles.blocks; ++i) {
      const int64_t block = tiles.first + i;
      absorb(block, count, workspace.y + i * Tiles<T>::kSize, adjoints + at(block, group, tile - 1));
    }
  }

  // From what each tile gives to the adjoints after each. Only the last tile can be short.
  void chain(int64_t block, int64_t index, const Workspace<T> &workspace) const {
    const Group<T> group(shape, plan.layout, index);
    const int64_t size = plan.state(shape.modes), last = ceil_div(group.steps, kTile) - 1;
    enter(block, group, workspace.total);
    leave(block, group, group.steps, workspace.total);
    for (int64_t tile = last; tile >= 0; --tile) {
      T *state = adjoints + at(block, group, tile);
      if (tile == last - 1) {
        set_leap(shape, plan.layout, weights, block, group.steps - last * kTile, workspace.leap);
        carry(shape.modes, workspace.leap, state, workspace.total);
      }
      if (tile < last - 1) {
        this->carry_over(block, state, workspace.total, state);
      } else {
        for (int64_t i = 0; i < size; ++i) state[i] = static_cast<T>(workspace.total[i]);
      }
    }
    Tiles<T>{shape, plan.layout, group, block, 1}.clear_padding(gu);
  }

  void run_alone(int64_t item, int64_t tile, const Workspace<T> &workspace, int rank) const {
    const Group<T> group = this->group_of(item);
    const Tiles<T> tiles = this->tiles_of(item, group);
    const int64_t step = tile * kTile, end = group.next(step, kTile, false);
    if (step >= group.steps) return;
    for (int64_t i = 0; i < tiles.blocks; ++i) {
      std::memcpy(adjoint_of(workspace, i), adjoints + at(tiles.first + i, group, tile), this->state_bytes());
    }
    run_tile(tiles, tile, step, end - step, workspace, rank);
    for (int64_t i = 0; i < tiles.blocks && tile == 0; ++i) leave(tiles.first + i, group, 0, adjoint_of(workspace, i));
  }
};

}  // namespace holdfast::s4d
