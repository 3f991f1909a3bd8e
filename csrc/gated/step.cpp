// One step of a stack of LSTM, GRU or RNN layers for a stream, with weights that were packed before.
//
// The blocks of a row of sums (gated/plan.h) lie vector by vector: those of the same units one after another. So one
// product gives all gates of a vector of units, which are finished in registers, and a step needs no workspace.
#include <algorithm>

#include "common/call.h"
#include "common/masked.h"
#include "common/math.h"
#include "common/parallel.h"
#include "common/product.h"

namespace holdfast::gated_step {

// x (batch, features); h, c and their next ones (layers, batch, state), apart from each other; y (batch, state). To
// pack one layer: w_ih (gates state, features), w_hh (gates state, state) and b (blocks, state), null for 0; what is
// packed is the workspace. `weights` are those of all layers, one after another.
// clang-format off
#define HOLDFAST_GATED_STEP_FIELDS(X) \
  X(int32_t, wide) X(int32_t, threads) X(int32_t, kind) X(int64_t, features) X(int64_t, state) X(int64_t, layers) \
  X(const void *, weights) X(int64_t, batch) X(const void *, x) X(const void *, h) X(const void *, c) X(void *, y) \
  X(void *, h_next) X(void *, c_next) X(const void *, w_ih) X(const void *, w_hh) X(const void *, b) \
  X(void *, workspace)
// clang-format on
HOLDFAST_CALL(gated_step, HOLDFAST_GATED_STEP_FIELDS)

namespace {

enum Kind : int32_t { kLstm = 0, kGru = 1, kTanh = 2, kRelu = 3 };
constexpr int64_t kBlocks = 4, kGroup = 8;  // blocks of a row at most; rows that share the loaded weights

// Blocks of a row: all of them, those that inputs give (from the first one), those that states give (to the last one),
// and the gates of torch's weights that these are.
struct Blocks {
  int64_t all, given;
  int64_t input_gate[kBlocks], state_gate[kBlocks];
  int64_t first_of_states() const { return all - given; }
};

inline Blocks blocks_of(int32_t kind) {
  if (kind == kLstm) return {4, 4, {0, 1, 2, 3}, {0, 1, 2, 3}};
  if (kind == kGru) return {4, 3, {2, 0, 1, 0}, {0, 1, 2, 0}};
  return {1, 1, {0, 0, 0, 0}, {0, 0, 0, 0}};
}

// Numbers of one vector of units: weights of the inputs, of the states, and biases.
template <typename T>
int64_t unit_size(const Blocks &blocks, int64_t depth, int64_t state) {
  return ((depth + state) * blocks.given + blocks.all) * lanes<T>;
}

template <typename T>
T *pack_units(const Call &call, const Blocks &blocks, int64_t at, T *to) {
  const int64_t m = call.state;
  const auto rows = [&](const void *from, int64_t depth, const int64_t *gates) {
    const T *w = static_cast<const T *>(from);
    pack_vectors<T>(depth, blocks.given, to, kMaxVectors, [&](int64_t row, int64_t block, T *into) {
      for (int64_t i = 0; i < lanes<T>; ++i) into[i] = at + i < m ? w[(gates[block] * m + at + i) * depth + row] : T(0);
    });
    to += depth * blocks.given * lanes<T>;
  };
  rows(call.w_ih, call.features, blocks.input_gate);
  rows(call.w_hh, m, blocks.state_gate);
  for (int64_t i = 0; i < blocks.all * lanes<T>; ++i) {
    const int64_t unit = at + i % lanes<T>;
    *to++ = call.b && unit < m ? static_cast<const T *>(call.b)[i / lanes<T> * m + unit] : T(0);
  }
  return to;
}

template <typename T>
int64_t pack_layer(const Call &call) {
  const Blocks blocks = blocks_of(call.kind);
  const int64_t m = call.state, count = vectors_in<T>(m) * unit_size<T>(blocks, call.features, m);
  return with_workspace(
      call, [&](Arena &arena) { return arena.take<T>(count); },
      [&](T *to) {
        for (int64_t at = 0; at < m; at += lanes<T>) to = pack_units(call, blocks, at, to);
      });
}

// The next state, and of an LSTM the next cell, of one vector of units from its finished sums.
template <typename T>
inline Vector<T> finish(int32_t kind, const T *sums, Vector<T> before, Vector<T> &cell) {
  const auto block = [&](int64_t k) { return load(sums + k * lanes<T>); };
  if (kind == kLstm) {
    cell = sigmoid<T>(block(1)) * cell + sigmoid<T>(block(0)) * tanh_of<T>(block(2));
    return sigmoid<T>(block(3)) * tanh_of<T>(cell);
  }
  if (kind == kGru) {
    const Vector<T> fresh = tanh_of<T>(block(0) + sigmoid<T>(block(1)) * block(3));
    return fresh + sigmoid<T>(block(2)) * (before - fresh);
  }
  return kind == kTanh ? tanh_of<T>(block(0)) : at_least<T>(block(0), T(0));
}

// One layer over `rows` rows; `weights` are its own.
template <typename T>
void run_layer(const Call &call, const Blocks &blocks, int64_t rows, int64_t depth, const T *weights, const T *x,
               int64_t states_at, T *y) {
  const int64_t m = call.state, n = blocks.given * lanes<T>, row = kBlocks * lanes<T>;
  const int64_t first = blocks.first_of_states() * lanes<T>;
  const bool lstm = call.kind == kLstm;
  const T *h = static_cast<const T *>(call.h) + states_at;
  const T *c = lstm ? static_cast<const T *>(call.c) + states_at : nullptr;
  T *h_next = static_cast<T *>(call.h_next) + states_at;
  T *c_next = lstm ? static_cast<T *>(call.c_next) + states_at : nullptr;
  alignas(kCacheLineBytes) T sums[kGroup * kBlocks * lanes<T>];
  for (int64_t at = 0; at < m; at += lanes<T>, weights += unit_size<T>(blocks, depth, m)) {
    const T *state_weights = weights + depth * n, *b = state_weights + m * n;
    for (int64_t r = 0; r < rows; ++r)  // what no product with the inputs writes is the bias
      std::memcpy(sums + r * row + n, b + n, static_cast<size_t>(first) * sizeof(T));
    multiply<T>({x, depth}, rows, depth, weights, n, {b, 0}, {sums, row}, true);
    multiply<T>({h, m}, rows, m, state_weights, n, {sums + first, row}, {sums + first, row}, true);
    const int64_t part = std::min(m - at, lanes<T>);
    for (int64_t r = 0; r < rows; ++r) {
      Vector<T> cell = lstm ? read(c + r * m + at, part) : Vector<T>{};
      const Vector<T> next = finish<T>(call.kind, sums + r * row, read(h + r * m + at, part), cell);
      write(h_next + r * m + at, next, part);
      if (lstm) write(c_next + r * m + at, cell, part);
      if (y) write(y + r * m + at, next, part);
    }
  }
}

template <typename T>
int64_t step(const Call &call) {
  const FlushDenormals scope;
  const Blocks blocks = blocks_of(call.kind);
  const int64_t m = call.state, vectors = vectors_in<T>(m);
  for (int64_t begin = 0; begin < call.batch; begin += kGroup) {
    const int64_t rows = std::min(kGroup, call.batch - begin);
    const T *x = static_cast<const T *>(call.x) + begin * call.features;
    const T *weights = static_cast<const T *>(call.weights);
    for (int64_t layer = 0, depth = call.features; layer < call.layers; ++layer, depth = m) {
      const int64_t states_at = (layer * call.batch + begin) * m;
      T *y = layer + 1 == call.layers ? static_cast<T *>(call.y) + begin * m : nullptr;
      run_layer(call, blocks, rows, depth, weights, x, states_at, y);
      Arena size(nullptr);
      size.take<T>(vectors * unit_size<T>(blocks, depth, m));
      weights += size.used() / static_cast<int64_t>(sizeof(T));
      x = static_cast<const T *>(call.h_next) + states_at;
    }
  }
  return 0;
}

}  // namespace

HOLDFAST_KERNEL(gated_step_pack, pack_layer)
HOLDFAST_KERNEL(gated_step, step)

}  // namespace holdfast::gated_step
