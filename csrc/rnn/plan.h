// What the RNN kernel is called with, and how it divides the work: rows over threads, groups of rows, blocks of time.
#pragma once

#include <algorithm>

#include "common/call.h"
#include "common/groups.h"
#include "common/masked.h"
#include "common/parallel.h"
#include "common/product.h"

namespace holdfast::rnn {

// Arrays are contiguous. dt is the step where dts is null; y is sigma(...) of Euler steps, or null. b, h0, dts,
// lengths, grad_h, grad_last and each gradient may be null. diagonal: w is (state,); euler: h + dt sigma(...), not
// sigma(...).
// clang-format off
#define HOLDFAST_RNN_FIELDS(X) \
  X(int64_t, batch) X(int64_t, time) X(int64_t, features) X(int64_t, state) X(int32_t, wide) X(int32_t, threads) \
  X(int32_t, activation) X(int32_t, diagonal) X(int32_t, euler) X(int32_t, reverse) X(double, dt) \
  X(const void *, x) X(const void *, w) X(const void *, u) X(const void *, b) X(const void *, h0) \
  X(const void *, dts) X(const int64_t *, lengths) X(void *, h) X(void *, y) X(void *, last) \
  X(const void *, grad_h) X(const void *, grad_last) X(void *, grad_x) X(void *, grad_w) X(void *, grad_u) \
  X(void *, grad_b) X(void *, grad_h0) X(void *, grad_dts) X(void *, workspace)
// clang-format on
HOLDFAST_CALL(rnn, HOLDFAST_RNN_FIELDS)

template <typename T>
struct Plan {
  int64_t vectors;  // of a row of states
  int64_t stride;   // of a row of states in our own buffers
  int64_t group;    // rows of the batch that advance together
  int64_t block;    // steps between two products with the inputs, or two sums of weight gradients
  int threads;
  bool few;  // so few features that their products are summed beside the activation, not by `multiply`

  explicit Plan(const Call &call) {
    vectors = vectors_in<T>(call.state);
    // an odd number of vectors, lest the same part of all rows fall on the same few cache sets
    stride = (vectors > kMaxVectors ? vectors | 1 : vectors) * lanes<T>;
    // a team costs about 3 us: below that much work a thread more is a loss
    const int64_t work = call.batch * call.time * vectors * (call.diagonal ? 16 : 16 + call.state);
    threads = static_cast<int>(std::clamp<int64_t>(std::min(call.batch, work / 8192), 1, std::max(call.threads, 1)));
    const int64_t rows = std::max<int64_t>((call.batch + threads - 1) / threads, 1);
    // enough vectors per step to hide the latency of the activation, few enough rows to stay in the first-level cache
    const int64_t largest = std::clamp<int64_t>(32 / std::max<int64_t>(vectors, 1), 8, 32);
    const int64_t groups = (rows + largest - 1) / largest;
    group = (rows + groups - 1) / groups;
    // about 96 rows in one sum of weight gradients: fewer cost more additions, more leave the first-level cache
    block = std::max<int64_t>(96 / group, 6);
    few = call.features <= 4;
  }
};

}  // namespace holdfast::rnn
