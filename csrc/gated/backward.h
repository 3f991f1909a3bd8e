// The adjoint of the gated kernel: backward in time with the transposed weights, weight gradients summed over several
// steps.
#pragma once

#include "gated/forward.h"

namespace holdfast::gated {

template <typename T>
struct BackwardMemory {
  Row *rows;       // of the batch, shared by all threads
  T *w_ih, *w_hh;  // packed, shared too
  // of one thread: gradients of the group's states and cells, of a row of sums for some steps, and of the weights,
  // these transposed so that the blocks lie in vectors whatever the number of features
  T *carry = nullptr, *cell = nullptr, *deltas = nullptr, *grad_w_ih = nullptr, *grad_w_hh = nullptr, *grad_b = nullptr;
  Run<T> *runs = nullptr;
  int64_t row;  // numbers from one row's deltas to the next row's
  int64_t bytes;

  BackwardMemory(const Call &call, const Plan<T> &plan, int64_t rank, Arena &&arena) {
    rows = arena.take<Row>(call.batch);
    w_ih = arena.take<T>(packed_size<T>(plan.inputs.count * plan.block, call.features));
    w_hh = arena.take<T>(packed_size<T>(plan.states.count * plan.block, call.state));
    row = plan.steps * plan.stride + lanes<T>;
    for (int64_t i = 0; i <= rank; ++i) {
      carry = arena.take<T>(plan.group * plan.own);
      cell = arena.take<T>(plan.group * plan.own);
      deltas = arena.take<T>(plan.group * row);
      grad_w_ih = arena.take<T>(call.features * plan.stride);
      grad_w_hh = arena.take<T>(call.state * plan.stride);
      grad_b = arena.take<T>(plan.stride);
      runs = arena.take<Run<T>>(2 * plan.group);
    }
    bytes = arena.used();
  }
};

// Step `step` of the first `active` rows before the product with the weights: turns the gradients of state and cell
// into those of the sums, kept in `deltas`; what reaches the state before it without the weights stays in `carry`.
template <typename T, bool Gru>
void backward_step(const Call &call, const Plan<T> &plan, const BackwardMemory<T> &memory, const Group &group,
                   int64_t active, int64_t step, int64_t begin) {
  const int64_t m = call.state, d = call.features, direction = call.reverse ? -1 : 1;
  const Vector<T> zero{};
  for (int64_t r = 0; r < active; ++r) {
    const Row &row = group[r];
    const int64_t at = row.index * call.time + row.first + direction * step;
    const StepArrays<T> from(call, at);
    const T *grad = call.grad_h ? static_cast<const T *>(call.grad_h) + at * m : nullptr;
    const void *initial = Gru ? call.h0 : call.c0;
    const T *before = step > 0  ? (Gru ? from.h : from.cells) - direction * m
                      : initial ? static_cast<const T *>(initial) + row.index * m
                                : nullptr;
    T *carry = memory.carry + r * plan.own, *cell = memory.cell + r * plan.own;
    T *delta = memory.deltas + r * memory.row + (step - begin) * plan.stride;
    if (step >= kAhead) {
      if (grad) fetch_to_read(grad - direction * kAhead * m, m);
      fetch_to_read(from.gates - direction * kAhead * kBlocks * m, kBlocks * m);
      fetch_to_read((Gru ? from.h : from.cells) - direction * (kAhead + 1) * m * (step > kAhead), m);
    }
    // what the end of these steps will use
    if (!Gru && call.grad_w_hh) fetch_to_read(from.h, m);
    if (call.grad_w_ih) fetch_to_read(static_cast<const T *>(call.x) + at * d, d);
    if (call.grad_x) fetch_to_write(static_cast<T *>(call.grad_x) + at * d, d);
    for (int64_t j = 0; j < m; j += lanes<T>) {
      const int64_t part = std::min(m - j, lanes<T>);
      const auto gate = [&](int64_t k) { return read(from.gates + k * m + j, part); };
      const Vector<T> slope = grad ? load(carry + j) + read(grad + j, part) : load(carry + j);
      const Vector<T> previous = before ? read(before + j, part) : zero;
      Vector<T> out[kBlocks];
      if constexpr (Gru) {
        const Vector<T> fresh = gate(0), reset = gate(1), update = gate(2), hidden = gate(3);
        out[0] = slope * (T(1) - update) * (T(1) - fresh * fresh);
        out[1] = out[0] * hidden * (reset * (T(1) - reset));
        out[2] = slope * (previous - fresh) * (update * (T(1) - update));
        out[3] = out[0] * reset;
        store(carry + j, slope * update);
      } else {
        const Vector<T> in = gate(0), forget = gate(1), fresh = gate(2), open = gate(3);
        const Vector<T> content = tanh_of<T>(read(from.cells + j, part));
        const Vector<T> inner = load(cell + j) + slope * open * (T(1) - content * content);
        out[0] = inner * fresh * (in * (T(1) - in));
        out[1] = inner * previous * (forget * (T(1) - forget));
        out[2] = inner * in * (T(1) - fresh * fresh);
        out[3] = slope * content * (open * (T(1) - open));
        store(cell + j, inner * forget);
      }
      for (int64_t k = 0; k < kBlocks; ++k) store(delta + k * plan.block + j, out[k]);
    }
  }
}

// Adds delta_t h_{t-1}^T of the steps begin <= step < end, with h0 before the first step.
template <typename T>
void add_state_weights(const Call &call, const Plan<T> &plan, const BackwardMemory<T> &memory, const Group &group,
                       int64_t begin, int64_t end) {
  const int64_t m = call.state, direction = call.reverse ? -1 : 1, skip = begin == 0 ? 1 : 0;
  const int64_t first = plan.states.first * plan.block;
  int64_t count = 0;
  for (int64_t r = 0; r < group.count && group[r].length > begin; ++r) {
    const Row &row = group[r];
    const int64_t steps = std::min(row.length, end) - begin;
    const T *deltas = memory.deltas + r * memory.row + first;
    if (skip && call.h0) memory.runs[count++] = {static_cast<const T *>(call.h0) + row.index * m, deltas, 1};
    if (steps == skip) continue;
    const int64_t before = row.index * call.time + row.first + direction * (begin + skip - 1);
    memory.runs[count++] = {static_cast<const T *>(call.h) + before * m, deltas + skip * plan.stride, steps - skip};
  }
  add_outer<T>(memory.runs, count, m, plan.states.count * plan.block, direction * m, plan.stride,
               memory.grad_w_hh + first, plan.stride);
}

// The same of delta_t x_t^T, and of delta_t for the biases.
template <typename T>
void add_input_weights(const Call &call, const Plan<T> &plan, const BackwardMemory<T> &memory, const Group &group,
                       int64_t begin, int64_t end) {
  const int64_t d = call.features, direction = call.reverse ? -1 : 1;
  int64_t count = 0;
  for (int64_t r = 0; r < group.count && group[r].length > begin; ++r) {
    const int64_t at = group[r].index * call.time + group[r].first + direction * begin;
    memory.runs[count++] = {static_cast<const T *>(call.x) + at * d, memory.deltas + r * memory.row,
                            std::min(group[r].length, end) - begin};
  }
  if (call.grad_w_ih)
    add_outer<T>(memory.runs, count, d, plan.inputs.count * plan.block, direction * d, plan.stride, memory.grad_w_ih,
                 plan.stride);
  for (int64_t j = 0; call.grad_b && j < kBlocks * plan.block; j += lanes<T>) {
    Vector<T> total{};
    for (int64_t run = 0; run < count; ++run)
      for (int64_t k = 0; k < memory.runs[run].count; ++k) total += load(memory.runs[run].right + k * plan.stride + j);
    store(memory.grad_b + j, load(memory.grad_b + j) + total);
  }
}

template <typename T>
void backward_group(const Call &call, const Plan<T> &plan, const BackwardMemory<T> &memory, const Group &group) {
  const int64_t m = call.state, d = call.features, direction = call.reverse ? -1 : 1;
  const int64_t first = plan.states.first * plan.block;
  start_rows(call, plan, group, call.grad_last, memory.carry);
  start_rows(call, plan, group, call.grad_c_last, memory.cell);
  const auto start = call.gru ? backward_step<T, true> : backward_step<T, false>;
  const int64_t pieces = (group.longest() + plan.steps - 1) / plan.steps;
  for (int64_t begin = (pieces - 1) * plan.steps; begin >= 0; begin -= plan.steps) {
    const int64_t end = std::min(begin + plan.steps, group.longest());
    for (int64_t step = end - 1; step >= begin; --step) {
      const int64_t active = group.active(step);
      start(call, plan, memory, group, active, step, begin);
      multiply<T>({memory.deltas + (step - begin) * plan.stride + first, memory.row}, active,
                  plan.states.count * plan.block, memory.w_hh, m, {call.gru ? memory.carry : nullptr, plan.own},
                  {memory.carry, plan.own}, true);
    }
    for (int64_t r = 0; call.grad_x && r < group.count && group[r].length > begin; ++r) {
      T *grad = static_cast<T *>(call.grad_x) + (group[r].index * call.time + group[r].first + direction * begin) * d;
      multiply<T>({memory.deltas + r * memory.row, plan.stride}, std::min(group[r].length, end) - begin,
                  plan.inputs.count * plan.block, memory.w_ih, d, {nullptr, 0}, {grad, direction * d}, false);
    }
    if (call.grad_w_hh) add_state_weights(call, plan, memory, group, begin, end);
    if (call.grad_w_ih || call.grad_b) add_input_weights(call, plan, memory, group, begin, end);
  }
  end_rows(call, plan, group, memory.carry, call.grad_h0);
  end_rows(call, plan, group, memory.cell, call.grad_c0);
  for (int64_t r = 0; call.grad_x && r < group.count; ++r) {
    const Row &row = group[r];
    std::fill_n(static_cast<T *>(call.grad_x) + (row.index * call.time + row.length) * d, (call.time - row.length) * d,
                T(0));
  }
}

// out (gates state, depth) as torch has it = the threads' parts (depth, row), summed in the order of their ranks.
template <typename T>
void sum_parts(const Call &call, const Plan<T> &plan, T *BackwardMemory<T>::*part, const Part &blocks, int64_t depth,
               void *out) {
  T *to = static_cast<T *>(out);
  for (int rank = 0; to && rank < plan.threads; ++rank) {
    const T *from = BackwardMemory<T>(call, plan, rank, Arena(call.workspace)).*part + blocks.first * plan.block;
    for (int64_t k = 0; k < blocks.count; ++k)
      for (int64_t j = 0; j < call.state; ++j) {
        T *row = to + (blocks.gate[k] * call.state + j) * depth;
        for (int64_t i = 0; i < depth; ++i)
          row[i] = (rank ? row[i] : T(0)) + from[i * plan.stride + k * plan.block + j];
      }
  }
}

template <typename T>
int64_t backward(const Call &call) {
  const Plan<T> plan(call);
  if (!call.workspace) return BackwardMemory<T>(call, plan, plan.threads - 1, Arena(nullptr)).bytes;
  const int64_t m = call.state, d = call.features;
  const BackwardMemory<T> shared(call, plan, 0, Arena(call.workspace));
  fill_by_length(call, shared.rows);
  pack_backward(static_cast<const T *>(call.w_ih), d, m, plan, plan.inputs, shared.w_ih);
  pack_backward(static_cast<const T *>(call.w_hh), m, m, plan, plan.states, shared.w_hh);
  parallel(plan.threads, [&](int rank, int size) {
    // a team may be smaller than asked for; the parts of absent threads must still be 0
    for (int part = rank; part < plan.threads; part += size) {
      const BackwardMemory<T> memory(call, plan, part, Arena(call.workspace));
      std::fill_n(memory.grad_w_ih, d * plan.stride, T(0));
      std::fill_n(memory.grad_w_hh, m * plan.stride, T(0));
      std::fill_n(memory.grad_b, plan.stride, T(0));
    }
    const BackwardMemory<T> memory(call, plan, rank, Arena(call.workspace));
    for_each_group(shared.rows, call.batch, rank, size, plan.group,
                   [&](const Group &group) { backward_group(call, plan, memory, group); });
  });
  sum_parts(call, plan, &BackwardMemory<T>::grad_w_ih, plan.inputs, d, call.grad_w_ih);
  sum_parts(call, plan, &BackwardMemory<T>::grad_w_hh, plan.states, m, call.grad_w_hh);
  sum_parts(call, plan, &BackwardMemory<T>::grad_b, Part{0, kBlocks, {0, 1, 2, 3}}, 1, call.grad_b);
  return 0;
}

}  // namespace holdfast::gated
