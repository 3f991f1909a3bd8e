// The forward recurrence of the RNN kernel.
#pragma once

#include "rnn/activation.h"
#include "rnn/plan.h"

namespace holdfast::rnn {

template <typename T>
struct ForwardMemory {
  Row *rows;     // of the batch, shared by all threads
  T *w, *u, *b;  // packed, shared too
  // of one thread: (group, state) twice, and (block, group, state)
  T *state = nullptr, *sums = nullptr, *inputs = nullptr;
  int64_t bytes;

  ForwardMemory(const Call &call, const Plan<T> &plan, int64_t rank, Arena &&arena) {
    const int64_t row = plan.vectors * lanes<T>;
    rows = arena.take<Row>(call.batch);
    w = arena.take<T>(call.diagonal ? row : call.state * row);
    u = arena.take<T>(call.features * row);
    b = arena.take<T>(row);
    for (int64_t i = 0; i <= rank; ++i) {
      state = arena.take<T>(plan.group * plan.stride);
      sums = arena.take<T>(plan.group * plan.stride);
      inputs = arena.take<T>(plan.few ? 0 : plan.block * plan.group * plan.stride);
    }
    bytes = arena.used();
  }
};

template <typename T>
void pack_forward(const Call &call, const Plan<T> &plan, const ForwardMemory<T> &memory) {
  const T *w = static_cast<const T *>(call.w), *u = static_cast<const T *>(call.u), *b = static_cast<const T *>(call.b);
  const int64_t m = call.state, d = call.features;
  if (call.diagonal) pack<T>(w, 0, 1, 1, m, memory.w, plan.vectors);
  else pack<T>(w, 1, m, m, m, memory.w);
  pack<T>(u, 1, d, d, m, memory.u, plan.few ? plan.vectors : kMaxVectors);
  const T zero = 0;
  pack<T>(b ? b : &zero, 0, b ? 1 : 0, 1, m, memory.b, plan.vectors);
}

// One step of the first `active` rows of a group, after the matrix product: adds what is still missing in `sums`,
// applies the activation, updates the state and writes the outputs.
template <typename T, int32_t Kind>
void forward_step(const Call &call, const Plan<T> &plan, const ForwardMemory<T> &memory, const Group &group,
                  int64_t active, int64_t step, Rows<const T> sums) {
  const int64_t m = call.state, vectors = plan.vectors, tail = m - (vectors - 1) * lanes<T>;
  const int64_t features = plan.few ? call.features : 0, direction = call.reverse ? -1 : 1;
  const T *u = memory.u, *diagonal = call.diagonal ? memory.w : nullptr;
  const bool euler = call.euler;
  for (int64_t r = 0; r < active; ++r) {
    const Row &row = group[r];
    const int64_t at = row.index * call.time + row.first + direction * step;
    const T dt = call.dts ? static_cast<const T *>(call.dts)[at] : static_cast<T>(call.dt);
    const T *x = static_cast<const T *>(call.x) + at * call.features;
    T *h = static_cast<T *>(call.h) + at * m, *y = call.y ? static_cast<T *>(call.y) + at * m : nullptr;
    T *state = memory.state + r * plan.stride;
    if (step + kAhead < row.length) {
      fetch_to_write(h + direction * kAhead * m, m);
      if (y) fetch_to_write(y + direction * kAhead * m, m);
    }
    // the inputs are read a block at a time, so they are fetched a block ahead
    if (!plan.few && step + plan.block < row.length)
      fetch_to_read(x + direction * plan.block * call.features, call.features);
    for (int64_t v = 0; v < vectors; ++v) {
      const int64_t j = v * lanes<T>;
      Vector<T> z = load(sums.data + r * sums.stride + j);
      for (int64_t d = 0; d < features; ++d) z += x[d] * load(u + d * vectors * lanes<T> + j);
      if (diagonal) z += load(diagonal + j) * load(state + j);
      const Vector<T> value = activate<T, Kind>(z);
      const Vector<T> next = euler ? load(state + j) + dt * value : value;
      store(state + j, next);
      if (v + 1 < vectors || tail == lanes<T>) {
        store(h + j, next);
        if (y) store(y + j, value);
      } else {
        store_part(h + j, next, tail);
        if (y) store_part(y + j, value, tail);
      }
    }
  }
}

template <typename T>
using ForwardStep = void (*)(const Call &, const Plan<T> &, const ForwardMemory<T> &, const Group &, int64_t, int64_t,
                             Rows<const T>);

template <typename T>
ForwardStep<T> forward_step_for(const Call &call) {
  static constexpr ForwardStep<T> steps[] = {forward_step<T, kTanh>, forward_step<T, kHardtanh>, forward_step<T, kRelu>,
                                             forward_step<T, kSigmoid>, forward_step<T, kLinear>};
  return steps[call.activation];
}

// inputs[s][r] = U x + b for the steps begin + s < end of every row.
template <typename T>
void project_inputs(const Call &call, const Plan<T> &plan, const ForwardMemory<T> &memory, const Group &group,
                    int64_t begin, int64_t end) {
  const int64_t d = call.features, direction = call.reverse ? -1 : 1;
  for (int64_t r = 0; r < group.count; ++r) {
    const Row &row = group[r];
    const int64_t steps = std::min(row.length, end) - begin;
    if (steps <= 0) break;
    const T *x = static_cast<const T *>(call.x) + (row.index * call.time + row.first + direction * begin) * d;
    multiply<T>({x, direction * d}, steps, d, memory.u, call.state, {memory.b, 0},
                {memory.inputs + r * plan.stride, plan.group * plan.stride}, true);
  }
}

template <typename T>
void forward_group(const Call &call, const Plan<T> &plan, const ForwardMemory<T> &memory, const Group &group) {
  const int64_t m = call.state;
  for (int64_t r = 0; r < group.count; ++r) {
    T *state = memory.state + r * plan.stride;
    std::fill_n(state, plan.stride, T(0));
    if (call.h0) std::copy_n(static_cast<const T *>(call.h0) + group[r].index * m, m, state);
  }
  const ForwardStep<T> finish = forward_step_for<T>(call);
  for (int64_t begin = 0; begin < group.longest(); begin += plan.block) {
    const int64_t end = std::min(begin + plan.block, group.longest());
    if (!plan.few) project_inputs(call, plan, memory, group, begin, end);
    for (int64_t step = begin; step < end; ++step) {
      const int64_t active = group.active(step);
      Rows<const T> sums{memory.b, 0};
      if (!plan.few) sums = {memory.inputs + (step - begin) * plan.group * plan.stride, plan.stride};
      if (!call.diagonal) {
        multiply<T>({memory.state, plan.stride}, active, m, memory.w, m, sums, {memory.sums, plan.stride}, true);
        sums = {memory.sums, plan.stride};
      }
      finish(call, plan, memory, group, active, step, sums);
    }
  }
  for (int64_t r = 0; r < group.count; ++r) {
    const Row &row = group[r];
    std::copy_n(memory.state + r * plan.stride, m, static_cast<T *>(call.last) + row.index * m);
    const int64_t from = (row.index * call.time + row.length) * m, unused = (call.time - row.length) * m;
    std::fill_n(static_cast<T *>(call.h) + from, unused, T(0));
    if (call.y) std::fill_n(static_cast<T *>(call.y) + from, unused, T(0));
  }
}

template <typename T>
int64_t forward(const Call &call) {
  const Plan<T> plan(call);
  if (!call.workspace) return ForwardMemory<T>(call, plan, plan.threads - 1, Arena(nullptr)).bytes;
  const ForwardMemory<T> shared(call, plan, 0, Arena(call.workspace));
  fill_by_length(call, shared.rows);
  pack_forward(call, plan, shared);
  parallel(plan.threads, [&](int rank, int size) {
    const ForwardMemory<T> memory(call, plan, rank, Arena(call.workspace));
    for_each_group(shared.rows, call.batch, rank, size, plan.group,
                   [&](const Group &group) { forward_group(call, plan, memory, group); });
  });
  return 0;
}

}  // namespace holdfast::rnn
