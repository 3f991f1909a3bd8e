// The scan forward over whole sequences.
#pragma once

#include <algorithm>

#include "s4d/scan.h"

namespace holdfast::s4d {

template <typename T>
struct ScanForward : Scan<T> {
  using Scan<T>::shape, Scan<T>::weights, Scan<T>::plan;
  const T *u, *h0;
  T *y, *h_last, *checkpoints;  // the last two may be null; checkpoints may not where work goes by tiles

  ScanForward(const Shape &shape_, const Weights<T> &weights_, const T *u_, const T *h0_, T *y_, T *h_last_,
              T *checkpoints_, int threads_)
      : Scan<T>(shape_, weights_, h0_ != nullptr, threads_, false), u(u_), h0(h0_), y(y_), h_last(h_last_),
        checkpoints(checkpoints_) {}

  void run() {
    this->fill_tables();
    const int64_t tiles = plan.tiles, items = plan.items, inner = tiles - 1;
    if (!plan.by_tiles) {
      this->over(items, [&](int64_t item, const Workspace<T> &workspace, int) { run_item(item, workspace); });
      return;
    }
    this->over(items * inner,
               [&](int64_t i, const Workspace<T> &workspace, int) { absorb_alone(i / inner, i % inner, workspace); });
    this->over(plan.layout.blocks * plan.layout.groups, [&](int64_t i, const Workspace<T> &workspace, int) {
      chain(i / plan.layout.groups, i % plan.layout.groups, workspace);
    });
    this->over(items * tiles,
               [&](int64_t i, const Workspace<T> &workspace, int) { run_alone(i / tiles, i % tiles, workspace); });
  }

 private:
  T *checkpoint(int64_t block, const Group<T> &group, int64_t tile) const {
    return checkpoints + this->place(block, group.row / plan.layout.fold, tile);
  }

  // States of the rows that start at `step`; elsewhere `state` stays.
  template <typename U>
  void enter(int64_t block, const Group<T> &group, int64_t step, U *state) const {
    for (int64_t r = 0; r < group.rows && h0; ++r) {
      if (group.start(r) == step) read_state(false, shape, plan.layout, weights, block, group, r, h0, state);
    }
  }
  template <typename U>
  void leave(int64_t block, const Group<T> &group, const U *state) const {
    for (int64_t r = 0; r < group.rows && h_last; ++r) {
      write_state(false, shape, plan.layout, weights, block, group, r, state, h_last);
    }
  }

  // One tile of all blocks of an item, whose states are in the workspace; the tile after it is fetched meanwhile.
  void run_tile(const Tiles<T> &tiles, int64_t step, int64_t count, const Workspace<T> &workspace) const {
    tiles.pack(u, step, count, workspace.u);
    for (int64_t i = 0; i < tiles.blocks; ++i) {
      const int64_t block = tiles.first + i, at = i * Tiles<T>::kSize;
      forward_tile(weights.real, this->tables_of(block), shape.modes, this->skip(block), count, workspace.u + at,
                   workspace.y + at, state_of(workspace, i));
      tiles.fetch(u, step + count, i, tiles.blocks);
    }
    tiles.unpack(workspace.y, step, count, y);
  }
  T *state_of(const Workspace<T> &workspace, int64_t i) const { return workspace.state + i * plan.state(shape.modes); }
  double *total_of(const Workspace<T> &workspace, int64_t i) const {
    return workspace.total + i * plan.state(shape.modes);
  }

  void run_item(int64_t item, const Workspace<T> &workspace) const {
    const Group<T> group = this->group_of(item);
    const Tiles<T> tiles = this->tiles_of(item, group);
    const int64_t size = plan.state(shape.modes);
    std::memset(workspace.state, 0, static_cast<size_t>(tiles.blocks) * this->state_bytes());
    for (int64_t step = 0, tile = 0; step < group.steps; ++tile) {
      const int64_t end = group.next(step, kTile, plan.breaks);
      for (int64_t i = 0; i < tiles.blocks; ++i) {
        enter(tiles.first + i, group, step, state_of(workspace, i));
        if (checkpoints)
          std::memcpy(checkpoint(tiles.first + i, group, tile), state_of(workspace, i), this->state_bytes());
        if (tile == 0) std::copy_n(state_of(workspace, i), size, total_of(workspace, i));
      }
      run_tile(tiles, step, end - step, workspace);
      for (int64_t i = 0; i < tiles.blocks && plan.exact; ++i) {
        if (end - step == kTile) {
          absorb(tiles.first + i, workspace.u + i * Tiles<T>::kSize, workspace.gained);
          this->carry_over(tiles.first + i, workspace.gained, total_of(workspace, i), state_of(workspace, i));
        } else {
          std::copy_n(state_of(workspace, i), size, total_of(workspace, i));
        }
      }
      step = end;
    }
    for (int64_t i = 0; i < tiles.blocks; ++i) {
      enter(tiles.first + i, group, group.steps, state_of(workspace, i));  // rows of no steps
      leave(tiles.first + i, group, state_of(workspace, i));
    }
    tiles.clear_padding(y);
  }

  // What a whole tile alone leaves in the state.
  void absorb(int64_t block, const T *in, T *gained) const {
    absorb_tile(weights.real, this->tables_of(block), shape.modes, kTile, in, lanes<T>, gained);
  }

  void absorb_alone(int64_t item, int64_t tile, const Workspace<T> &workspace) const {
    const Group<T> group = this->group_of(item);
    const Tiles<T> tiles = this->tiles_of(item, group);
    if ((tile + 1) * kTile >= group.steps) return;
    tiles.pack(u, tile * kTile, kTile, workspace.u);
    for (int64_t i = 0; i < tiles.blocks; ++i) {
      absorb(tiles.first + i, workspace.u + i * Tiles<T>::kSize, checkpoint(tiles.first + i, group, tile + 1));
    }
  }

  // From what each tile leaves to the states between them.
  void chain(int64_t block, int64_t index, const Workspace<T> &workspace) const {
    const Group<T> group(shape, plan.layout, index);
    const int64_t size = plan.state(shape.modes);
    std::fill_n(workspace.total, size, 0.0);
    enter(block, group, 0, workspace.total);
    for (int64_t tile = 0; tile * kTile < group.steps; ++tile) {
      T *state = checkpoint(block, group, tile);
      if (tile == 0) {
        for (int64_t i = 0; i < size; ++i) state[i] = static_cast<T>(workspace.total[i]);
      } else {
        this->carry_over(block, state, workspace.total, state);
      }
    }
    if (group.steps == 0) leave(block, group, workspace.total);
    Tiles<T>{shape, plan.layout, group, block, 1}.clear_padding(y);
  }

  void run_alone(int64_t item, int64_t tile, const Workspace<T> &workspace) const {
    const Group<T> group = this->group_of(item);
    const Tiles<T> tiles = this->tiles_of(item, group);
    const int64_t step = tile * kTile, end = group.next(step, kTile, false);
    if (step >= group.steps) return;
    for (int64_t i = 0; i < tiles.blocks; ++i) {
      std::memcpy(state_of(workspace, i), checkpoint(tiles.first + i, group, tile), this->state_bytes());
    }
    run_tile(tiles, step, end - step, workspace);
    for (int64_t i = 0; i < tiles.blocks && end == group.steps; ++i)
      leave(tiles.first + i, group, state_of(workspace, i));
  }
};

}  // namespace holdfast::s4d
