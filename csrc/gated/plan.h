// What the kernel of gated recurrences is called with, and how it divides the work.
//
//   LSTM: i, f, o = sigmoid(.), g = tanh(.) of W x + U h + b;  c' = f c + i g,  h' = o tanh(c')
//   GRU:  r, z = sigmoid(.) of W x + U h + b;  n = tanh(W x + b + r (U h + b_hidden)),  h' = (1 - z) n + z h
//
// A row of sums has four blocks of whole vectors. LSTM: i, f, g, o, all of them from inputs and states. GRU: the
// input's part of n, then r and z, then the state's part of n; so the first three come from inputs and the last three
// from states, and both are one product. Their derivatives lie the same way.
#pragma once

#include <algorithm>

#include "common/call.h"
#include "common/groups.h"
#include "common/masked.h"
#include "common/math.h"
#include "common/parallel.h"
#include "common/product.h"

namespace holdfast::gated {

// Arrays are contiguous, weights as torch.nn.LSTM and GRU have them: w_ih (gates state, features), w_hh (gates state,
// state). b (4, state) has the blocks of a row. gates (batch, time, 4, state) are the blocks after their activations
// (GRU: the last one before), kept for backward; cells (batch, time, state) are the LSTM's c. h0, c0, lengths, grad_h,
// grad_last, grad_c_last and each gradient may be null, gates and cells too where nothing is kept.
// clang-format off
#define HOLDFAST_GATED_FIELDS(X) \
  X(int64_t, batch) X(int64_t, time) X(int64_t, features) X(int64_t, state) X(int32_t, wide) X(int32_t, threads) \
  X(int32_t, gru) X(int32_t, reverse) X(const void *, x) X(const void *, w_ih) X(const void *, w_hh) \
  X(const void *, b) X(const void *, h0) X(const void *, c0) X(const int64_t *, lengths) X(void *, h) \
  X(void *, gates) X(void *, cells) X(void *, last) X(void *, c_last) X(const void *, grad_h) \
  X(const void *, grad_last) X(const void *, grad_c_last) X(void *, grad_x) X(void *, grad_w_ih) \
  X(void *, grad_w_hh) X(void *, grad_b) X(void *, grad_h0) X(void *, grad_c0) X(void *, workspace)
// clang-format on
HOLDFAST_CALL(gated, HOLDFAST_GATED_FIELDS)

constexpr int64_t kBlocks = 4;

// Which blocks of a row a product writes, and which gate of torch's weights each of them is.
struct Part {
  int64_t first, count;
  int64_t gate[kBlocks];
};

inline Part input_part(const Call &call) { return call.gru ? Part{0, 3, {2, 0, 1, 0}} : Part{0, 4, {0, 1, 2, 3}}; }
inline Part state_part(const Call &call) { return call.gru ? Part{1, 3, {0, 1, 2, 0}} : Part{0, 4, {0, 1, 2, 3}}; }

template <typename T>
struct Plan {
  int64_t vectors;  // of a block
  int64_t block;    // numbers of a block, in whole vectors
  int64_t stride;   // of a row of sums or of their derivatives, four blocks
  int64_t own;      // of a row of states
  int64_t group;    // rows of the batch that advance together
  int64_t steps;    // between two products with the inputs, or two sums of weight gradients
  int threads;
  Part inputs, states;

  explicit Plan(const Call &call) : inputs(input_part(call)), states(state_part(call)) {
    vectors = vectors_in<T>(call.state);
    block = vectors * lanes<T>;
    own = block;
    // not a multiple of a page: rows of a group would fall on the same few cache sets
    stride = kBlocks * block + (kBlocks * block % 1024 == 0 ? lanes<T> : 0);
    const int64_t work = call.batch * call.time * kBlocks * vectors * (16 + call.state + call.features);
    threads = static_cast<int>(std::clamp<int64_t>(std::min(call.batch, work / 8192), 1, std::max(call.threads, 1)));
    const int64_t rows = std::max<int64_t>((call.batch + threads - 1) / threads, 1);
    // 8 rows use each loaded vector of weights 8 times; more rows only where a row is short
    const int64_t largest = std::clamp<int64_t>(64 / std::max<int64_t>(kBlocks * vectors, 1), 8, 32);
    const int64_t groups = (rows + largest - 1) / largest;
    group = (rows + groups - 1) / groups;
    // about 96 rows in one sum of weight gradients: fewer cost more additions, more leave the second-level cache
    steps = std::max<int64_t>(96 / group, 6);
  }
};

// Rows of weights for the products that go forward: `depth` inputs or states by the blocks of `part`.
template <typename T>
void pack_forward(const T *w, int64_t depth, int64_t state, const Plan<T> &plan, const Part &part, T *packed) {
  pack_vectors<T>(depth, part.count * plan.vectors, packed, kMaxVectors, [&](int64_t row, int64_t v, T *to) {
    const int64_t gate = part.gate[v / plan.vectors], at = v % plan.vectors * lanes<T>;
    for (int64_t i = 0; i < lanes<T>; ++i) to[i] = at + i < state ? w[(gate * state + at + i) * depth + row] : T(0);
  });
}

// The same for those that go back: the blocks of `part` by `depth` inputs or states.
template <typename T>
void pack_backward(const T *w, int64_t depth, int64_t state, const Plan<T> &plan, const Part &part, T *packed) {
  pack_vectors<T>(part.count * plan.block, vectors_in<T>(depth), packed, kMaxVectors,
                  [&](int64_t row, int64_t v, T *to) {
                    const int64_t gate = part.gate[row / plan.block], unit = row % plan.block, at = v * lanes<T>;
                    for (int64_t i = 0; i < lanes<T>; ++i)
                      to[i] = unit < state && at + i < depth ? w[(gate * state + unit) * depth + at + i] : T(0);
                  });
}

}  // namespace holdfast::gated
