// The adjoint of the RNN kernel: backward in time with W^T, weight gradients summed a block of time at once.
#pragma once

#include "rnn/activation.h"
#include "rnn/plan.h"

namespace holdfast::rnn {

template <typename T>
struct BackwardMemory {
  Row *rows;  // of the batch, shared by all threads
  T *w, *u;   // packed, shared too
  // of one thread: gradients of the group's states, of the sums inside sigma for one block, and of the weights,
  // these transposed so that the states lie in vectors whatever the number of features
  T *carry = nullptr, *deltas = nullptr, *grad_w = nullptr, *grad_u = nullptr, *grad_b = nullptr;
  Run<T> *runs = nullptr;
  int64_t row;  // elements from one row of `deltas` to the next: as `stride`, off the multiples of a cache set
  int64_t bytes;

  BackwardMemory(const Call &call, const Plan<T> &plan, int64_t rank, Arena &&arena) {
    const int64_t m = call.state, d = call.features;
    rows = arena.take<Row>(call.batch);
    w = arena.take<T>((call.diagonal ? 1 : m) * plan.vectors * lanes<T>);
    u = arena.take<T>(plan.few ? d * plan.vectors * lanes<T> : m * vectors_in<T>(d) * lanes<T>);
    row = plan.block * plan.stride + lanes<T>;
    for (int64_t i = 0; i <= rank; ++i) {
      carry = arena.take<T>(plan.group * plan.stride);
      deltas = arena.take<T>(plan.group * row);
      grad_w = arena.take<T>((call.diagonal ? 1 : m) * plan.stride);
      grad_u = arena.take<T>(d * plan.stride);
      grad_b = arena.take<T>(plan.stride);
      runs = arena.take<Run<T>>(2 * plan.group);
    }
    bytes = arena.used();
  }
};

template <typename T>
void pack_backward(const Call &call, const Plan<T> &plan, const BackwardMemory<T> &memory) {
  const int64_t m = call.state, d = call.features;
  const T *w = static_cast<const T *>(call.w), *u = static_cast<const T *>(call.u);
  if (call.diagonal) pack<T>(w, 0, 1, 1, m, memory.w, plan.vectors);
  else pack<T>(w, m, 1, m, m, memory.w);
  if (plan.few) pack<T>(u, 1, d, d, m, memory.u, plan.vectors);
  else pack<T>(u, d, 1, m, d, memory.u);
}

// Step `step` of the first `active` rows before the matrix product: turns the gradient of the state into that of the
// sum inside sigma, kept in `deltas`; for Euler steps the gradient of the state stays in `carry`.
template <typename T, int32_t Kind>
void backward_step(const Call &call, const Plan<T> &plan, const BackwardMemory<T> &memory, const Group &group,
                   int64_t active, int64_t step, int64_t begin) {
  const int64_t m = call.state, d = call.features, direction = call.reverse ? -1 : 1;
  const T *diagonal = call.diagonal ? memory.w : nullptr;
  const bool euler = call.euler;
  for (int64_t r = 0; r < active; ++r) {
    const Row &row = group[r];
    const int64_t at = row.index * call.time + row.first + direction * step;
    const T dt = call.dts ? static_cast<const T *>(call.dts)[at] : static_cast<T>(call.dt);
    const T *grad = call.grad_h ? static_cast<const T *>(call.grad_h) + at * m : nullptr;
    const T *y = static_cast<const T *>(euler ? call.y : call.h) + at * m;
    T *carry = memory.carry + r * plan.stride;
    T *delta = memory.deltas + r * memory.row + (step - begin) * plan.stride;
    if (step >= kAhead) {
      if (grad) fetch_to_read(grad - direction * kAhead * m, m);
      fetch_to_read(y - direction * kAhead * m, m);
    }
    // what the end of this block will use
    if (euler && call.grad_w) fetch_to_read(static_cast<const T *>(call.h) + at * m, m);
    if (!plan.few && call.grad_u) fetch_to_read(static_cast<const T *>(call.x) + at * d, d);
    if (!plan.few && call.grad_x) fetch_to_write(static_cast<T *>(call.grad_x) + at * d, d);
    Vector<T> along_dt{};
    for (int64_t v = 0; v < plan.vectors; ++v) {
      const int64_t j = v * lanes<T>, part = std::min(m - j, lanes<T>);
      const bool whole = part == lanes<T>;
      Vector<T> slope = load(carry + j);
      if (grad) slope += whole ? load(grad + j) : load_part(grad + j, part);
      const Vector<T> value = whole ? load(y + j) : load_part(y + j, part);
      Vector<T> inner = differentiate<T, Kind>(value, slope);
      if (euler) {
        inner *= dt;
        along_dt += slope * value;
      }
      store(delta + j, inner);
      if (diagonal) store(carry + j, (euler ? slope : Vector<T>{}) + inner * load(diagonal + j));
      else if (euler) store(carry + j, slope);
    }
    if (euler && call.grad_dts) static_cast<T *>(call.grad_dts)[at] = sum_lanes<T>(along_dt);
  }
}

template <typename T>
using BackwardStep = void (*)(const Call &, const Plan<T> &, const BackwardMemory<T> &, const Group &, int64_t, int64_t,
                              int64_t);

template <typename T>
BackwardStep<T> backward_step_for(const Call &call) {
  static constexpr BackwardStep<T> steps[] = {backward_step<T, kTanh>, backward_step<T, kHardtanh>,
                                              backward_step<T, kRelu>, backward_step<T, kSigmoid>,
                                              backward_step<T, kLinear>};
  return steps[call.activation];
}

// grad_x = delta U for `steps` steps of one row from `begin` on.
template <typename T>
void differentiate_inputs(const Call &call, const Plan<T> &plan, const BackwardMemory<T> &memory, const Row &row,
                          const T *deltas, int64_t begin, int64_t steps) {
  const int64_t d = call.features, direction = call.reverse ? -1 : 1;
  T *grad = static_cast<T *>(call.grad_x) + (row.index * call.time + row.first + direction * begin) * d;
  if (!plan.few) {
    multiply<T>({deltas, plan.stride}, steps, call.state, memory.u, d, {nullptr, 0}, {grad, direction * d}, false);
    return;
  }
  for (int64_t s = 0; s < steps; ++s)
    for (int64_t i = 0; i < d; ++i) {
      Vector<T> total{};
      for (int64_t v = 0; v < plan.vectors; ++v)
        total += load(deltas + s * plan.stride + v * lanes<T>) * load(memory.u + (i * plan.vectors + v) * lanes<T>);
      grad[s * direction * d + i] = sum_lanes<T>(total);
    }
}

// sum over the rows of all runs of left * right, for a diagonal W.
template <typename T>
void add_products(const Run<T> *runs, int64_t count, int64_t columns, int64_t left_stride, int64_t right_stride,
                  T *out) {
  for (int64_t j = 0; j < columns; j += lanes<T>) {
    const int64_t part = std::min(columns - j, lanes<T>);
    Vector<T> total{};
    for (int64_t run = 0; run < count; ++run)
      for (int64_t k = 0; k < runs[run].count; ++k) {
        const T *left = runs[run].left + k * left_stride + j;
        total += (part == lanes<T> ? load(left) : load_part(left, part)) * load(runs[run].right + k * right_stride + j);
      }
    store(out + j, load(out + j) + total);
  }
}

// Adds what the steps begin <= step < end give to the gradient of W: delta_t h_{t-1}^T, with h0 before the first step.
template <typename T>
void add_recurrent_weights(const Call &call, const Plan<T> &plan, const BackwardMemory<T> &memory, const Group &group,
                           int64_t begin, int64_t end) {
  const int64_t m = call.state, direction = call.reverse ? -1 : 1, skip = begin == 0 ? 1 : 0;
  int64_t count = 0;
  for (int64_t r = 0; r < group.count && group[r].length > begin; ++r) {
    const Row &row = group[r];
    const int64_t steps = std::min(row.length, end) - begin;
    const T *deltas = memory.deltas + r * memory.row;
    if (skip && call.h0) memory.runs[count++] = {static_cast<const T *>(call.h0) + row.index * m, deltas, 1};
    if (steps == skip) continue;
    const int64_t before = row.index * call.time + row.first + direction * (begin + skip - 1);
    memory.runs[count++] = {static_cast<const T *>(call.h) + before * m, deltas + skip * plan.stride, steps - skip};
  }
  if (call.diagonal) add_products<T>(memory.runs, count, m, direction * m, plan.stride, memory.grad_w);
  else add_outer<T>(memory.runs, count, m, m, direction * m, plan.stride, memory.grad_w, plan.stride);
}

// The same for U, delta_t x_t^T, and b, delta_t.
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
  if (call.grad_u)
    add_outer<T>(memory.runs, count, d, call.state, direction * d, plan.stride, memory.grad_u, plan.stride);
  if (!call.grad_b) return;
  for (int64_t j = 0; j < plan.vectors * lanes<T>; j += lanes<T>) {
    Vector<T> total{};
    for (int64_t run = 0; run < count; ++run)
      for (int64_t k = 0; k < memory.runs[run].count; ++k) total += load(memory.runs[run].right + k * plan.stride + j);
    store(memory.grad_b + j, load(memory.grad_b + j) + total);
  }
}

template <typename T>
void backward_group(const Call &call, const Plan<T> &plan, const BackwardMemory<T> &memory, const Group &group) {
  const int64_t m = call.state;
  for (int64_t r = 0; r < group.count; ++r) {
    T *carry = memory.carry + r * plan.stride;
    std::fill_n(carry, plan.stride, T(0));
    if (call.grad_last) std::copy_n(static_cast<const T *>(call.grad_last) + group[r].index * m, m, carry);
  }
  const BackwardStep<T> start = backward_step_for<T>(call);
  const int64_t blocks = (group.longest() + plan.block - 1) / plan.block;
  for (int64_t begin = (blocks - 1) * plan.block; begin >= 0; begin -= plan.block) {
    const int64_t end = std::min(begin + plan.block, group.longest());
    for (int64_t step = end - 1; step >= begin; --step) {
      const int64_t active = group.active(step);
      start(call, plan, memory, group, active, step, begin);
      if (!call.diagonal)
        multiply<T>({memory.deltas + (step - begin) * plan.stride, memory.row}, active, m, memory.w, m,
                    {call.euler ? memory.carry : nullptr, plan.stride}, {memory.carry, plan.stride}, true);
    }
    if (call.grad_x)
      for (int64_t r = 0; r < group.count && group[r].length > begin; ++r)
        differentiate_inputs(call, plan, memory, group[r], memory.deltas + r * memory.row, begin,
                             std::min(group[r].length, end) - begin);
    if (call.grad_w) add_recurrent_weights(call, plan, memory, group, begin, end);
    if (call.grad_u || call.grad_b) add_input_weights(call, plan, memory, group, begin, end);
  }
  for (int64_t r = 0; r < group.count; ++r) {
    const Row &row = group[r];
    if (call.grad_h0) std::copy_n(memory.carry + r * plan.stride, m, static_cast<T *>(call.grad_h0) + row.index * m);
    const int64_t from = row.index * call.time + row.length, unused = call.time - row.length;
    if (call.grad_x) std::fill_n(static_cast<T *>(call.grad_x) + from * call.features, unused * call.features, T(0));
    if (call.grad_dts) std::fill_n(static_cast<T *>(call.grad_dts) + from, unused, T(0));
  }
}

// out (columns, rows) = the threads' parts (rows, columns), summed in the order of their ranks so that the result does
// not depend on which was first.
template <typename T>
void sum_parts(const Call &call, const Plan<T> &plan, T *BackwardMemory<T>::*part, int64_t rows, int64_t columns,
               void *out) {
  T *to = static_cast<T *>(out);
  for (int rank = 0; to && rank < plan.threads; ++rank) {
    const T *from = BackwardMemory<T>(call, plan, rank, Arena(call.workspace)).*part;
    for (int64_t j = 0; j < columns; ++j)
      for (int64_t i = 0; i < rows; ++i)
        to[j * rows + i] = (rank ? to[j * rows + i] : T(0)) + from[i * plan.stride + j];
  }
}

template <typename T>
int64_t backward(const Call &call) {
  const Plan<T> plan(call);
  if (!call.workspace) return BackwardMemory<T>(call, plan, plan.threads - 1, Arena(nullptr)).bytes;
  const int64_t m = call.state, rows_of_w = call.diagonal ? 1 : m;
  const BackwardMemory<T> shared(call, plan, 0, Arena(call.workspace));
  fill_by_length(call, shared.rows);
  pack_backward(call, plan, shared);
  parallel(plan.threads, [&](int rank, int size) {
    // a team may be smaller than asked for; the parts of absent threads must still be 0
    for (int part = rank; part < plan.threads; part += size) {
      const BackwardMemory<T> memory(call, plan, part, Arena(call.workspace));
      std::fill_n(memory.grad_w, rows_of_w * plan.stride, T(0));
      std::fill_n(memory.grad_u, call.features * plan.stride, T(0));
      std::fill_n(memory.grad_b, plan.stride, T(0));
    }
    const BackwardMemory<T> memory(call, plan, rank, Arena(call.workspace));
    for_each_group(shared.rows, call.batch, rank, size, plan.group,
                   [&](const Group &group) { backward_group(call, plan, memory, group); });
  });
  sum_parts(call, plan, &BackwardMemory<T>::grad_w, rows_of_w, m, call.grad_w);
  sum_parts(call, plan, &BackwardMemory<T>::grad_u, call.features, m, call.grad_u);
  sum_parts(call, plan, &BackwardMemory<T>::grad_b, 1, m, call.grad_b);
  return 0;
}

}  // namespace holdfast::rnn
