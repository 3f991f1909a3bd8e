// The forward recurrence of the gated kernel.
#pragma once

#include "gated/plan.h"

namespace holdfast::gated {

template <typename T>
struct ForwardMemory {
  Row *rows;           // of the batch, shared by all threads
  T *w_ih, *w_hh, *b;  // packed, shared too
  // of one thread: states and cells (group, state), sums (group, row), inputs (steps, group, row)
  T *state = nullptr, *cell = nullptr, *sums = nullptr, *inputs = nullptr;
  int64_t bytes;

  ForwardMemory(const Call &call, const Plan<T> &plan, int64_t rank, Arena &&arena) {
    rows = arena.take<Row>(call.batch);
    w_ih = arena.take<T>(call.features * plan.inputs.count * plan.block);
    w_hh = arena.take<T>(call.state * plan.states.count * plan.block);
    b = arena.take<T>(kBlocks * plan.block);
    for (int64_t i = 0; i <= rank; ++i) {
      state = arena.take<T>(plan.group * plan.own);
      cell = arena.take<T>(plan.group * plan.own);
      sums = arena.take<T>(plan.group * plan.stride);
      inputs = arena.take<T>(plan.steps * plan.group * plan.stride);
    }
    bytes = arena.used();
  }
};

// Where the numbers of one row and step lie.
template <typename T>
struct StepArrays {
  T *h, *gates, *cells;
  StepArrays(const Call &call, int64_t at)
      : h(static_cast<T *>(call.h) + at * call.state),
        gates(call.gates ? static_cast<T *>(call.gates) + at * kBlocks * call.state : nullptr),
        cells(call.cells ? static_cast<T *>(call.cells) + at * call.state : nullptr) {}
};

template <typename T, bool Gru>
void forward_step(const Call &call, const Plan<T> &plan, const ForwardMemory<T> &memory, const Group &group,
                  int64_t active, int64_t step, const T *inputs) {
  const int64_t m = call.state, direction = call.reverse ? -1 : 1;
  for (int64_t r = 0; r < active; ++r) {
    const Row &row = group[r];
    const StepArrays<T> to(call, row.index * call.time + row.first + direction * step);
    const T *sums = memory.sums + r * plan.stride, *input = inputs + r * plan.stride;
    T *state = memory.state + r * plan.own, *cell = memory.cell + r * plan.own;
    if (step + kAhead < row.length) {
      fetch_to_write(to.h + direction * kAhead * m, m);
      if (to.gates) fetch_to_write(to.gates + direction * kAhead * kBlocks * m, kBlocks * m);
      if (to.cells) fetch_to_write(to.cells + direction * kAhead * m, m);
    }
    for (int64_t j = 0; j < m; j += lanes<T>) {
      const int64_t part = std::min(m - j, lanes<T>);
      Vector<T> kept[kBlocks], next;
      if constexpr (Gru) {
        const Vector<T> reset = sigmoid<T>(load(sums + plan.block + j)), hidden = load(sums + 3 * plan.block + j);
        const Vector<T> update = sigmoid<T>(load(sums + 2 * plan.block + j));
        const Vector<T> fresh = tanh_of<T>(load(input + j) + reset * hidden);
        next = fresh + update * (load(state + j) - fresh);
        kept[0] = fresh, kept[1] = reset, kept[2] = update, kept[3] = hidden;
      } else {
        const Vector<T> in = sigmoid<T>(load(sums + j)), forget = sigmoid<T>(load(sums + plan.block + j));
        const Vector<T> fresh = tanh_of<T>(load(sums + 2 * plan.block + j));
        const Vector<T> out = sigmoid<T>(load(sums + 3 * plan.block + j));
        const Vector<T> content = forget * load(cell + j) + in * fresh;
        next = out * tanh_of<T>(content);
        store(cell + j, content);
        if (to.cells) write(to.cells + j, content, part);
        kept[0] = in, kept[1] = forget, kept[2] = fresh, kept[3] = out;
      }
      store(state + j, next);
      write(to.h + j, next, part);
      for (int64_t k = 0; to.gates && k < kBlocks; ++k) write(to.gates + k * m + j, kept[k], part);
    }
  }
}

// inputs[s][r] = W x + b for the steps begin + s < end of every row; of a GRU the last block is b alone.
template <typename T>
void project_inputs(const Call &call, const Plan<T> &plan, const ForwardMemory<T> &memory, const Group &group,
                    int64_t begin, int64_t end) {
  const int64_t d = call.features, direction = call.reverse ? -1 : 1;
  for (int64_t r = 0; r < group.count; ++r) {
    const Row &row = group[r];
    const int64_t steps = std::min(row.length, end) - begin;
    if (steps <= 0) break;
    const T *x = static_cast<const T *>(call.x) + (row.index * call.time + row.first + direction * begin) * d;
    multiply<T>({x, direction * d}, steps, d, memory.w_ih, plan.inputs.count * plan.block, {memory.b, 0},
                {memory.inputs + r * plan.stride, plan.group * plan.stride}, true);
  }
}

template <typename T>
void start_rows(const Call &call, const Plan<T> &plan, const Group &group, const void *from, T *to) {
  for (int64_t r = 0; r < group.count; ++r) {
    std::fill_n(to + r * plan.own, plan.own, T(0));
    if (from) std::copy_n(static_cast<const T *>(from) + group[r].index * call.state, call.state, to + r * plan.own);
  }
}

template <typename T>
void end_rows(const Call &call, const Plan<T> &plan, const Group &group, const T *from, void *to) {
  for (int64_t r = 0; to && r < group.count; ++r)
    std::copy_n(from + r * plan.own, call.state, static_cast<T *>(to) + group[r].index * call.state);
}

template <typename T>
void forward_group(const Call &call, const Plan<T> &plan, const ForwardMemory<T> &memory, const Group &group) {
  const int64_t m = call.state, first = plan.states.first * plan.block;
  start_rows(call, plan, group, call.h0, memory.state);
  start_rows(call, plan, group, call.c0, memory.cell);
  // what no product with the inputs writes is the bias: of a GRU, that of the state's part of n
  for (int64_t i = 0; call.gru && i < plan.steps * plan.group; ++i)
    std::copy_n(memory.b + 3 * plan.block, plan.block, memory.inputs + i * plan.stride + 3 * plan.block);
  const auto finish = call.gru ? forward_step<T, true> : forward_step<T, false>;
  for (int64_t begin = 0; begin < group.longest(); begin += plan.steps) {
    const int64_t end = std::min(begin + plan.steps, group.longest());
    project_inputs(call, plan, memory, group, begin, end);
    for (int64_t step = begin; step < end; ++step) {
      const int64_t active = group.active(step);
      const T *inputs = memory.inputs + (step - begin) * plan.group * plan.stride;
      multiply<T>({memory.state, plan.own}, active, m, memory.w_hh, plan.states.count * plan.block,
                  {inputs + first, plan.stride}, {memory.sums + first, plan.stride}, true);
      finish(call, plan, memory, group, active, step, inputs);
    }
  }
  end_rows(call, plan, group, memory.state, call.last);
  end_rows(call, plan, group, memory.cell, call.c_last);
  for (int64_t r = 0; r < group.count; ++r) {
    const Row &row = group[r];
    const int64_t unused = (call.time - row.length) * m;
    const StepArrays<T> after(call, row.index * call.time + row.length);
    std::fill_n(after.h, unused, T(0));
    if (after.gates) std::fill_n(after.gates, kBlocks * unused, T(0));
    if (after.cells) std::fill_n(after.cells, unused, T(0));
  }
}

template <typename T>
int64_t forward(const Call &call) {
  const Plan<T> plan(call);
  if (!call.workspace) return ForwardMemory<T>(call, plan, plan.threads - 1, Arena(nullptr)).bytes;
  const ForwardMemory<T> shared(call, plan, 0, Arena(call.workspace));
  fill_by_length(call, shared.rows);
  const int64_t m = call.state;
  pack_forward(static_cast<const T *>(call.w_ih), call.features, m, plan, plan.inputs, shared.w_ih);
  pack_forward(static_cast<const T *>(call.w_hh), m, m, plan, plan.states, shared.w_hh);
  for (int64_t i = 0; i < kBlocks * plan.block; ++i) {
    const int64_t block = i / plan.block, unit = i % plan.block;
    shared.b[i] = call.b && unit < m ? static_cast<const T *>(call.b)[block * m + unit] : T(0);
  }
  parallel(plan.threads, [&](int rank, int size) {
    const ForwardMemory<T> memory(call, plan, rank, Arena(call.workspace));
    for_each_group(shared.rows, call.batch, rank, size, plan.group,
                   [&](const Group &group) { forward_group(call, plan, memory, group); });
  });
  return 0;
}

}  // namespace holdfast::gated
