// The C ABI of kernels._linear: y = x W' + b and its gradients, by this library's own products. MKL, which torch's
// products come from, runs the AVX2 code on CPUs with AVX-512 that are not Intel's: half of what they can do.
#include <algorithm>

#include "common/call.h"
#include "common/parallel.h"
#include "common/product.h"

namespace holdfast::linear {

// x and grad_x are (tokens, inputs), y and grad (tokens, outputs), W (outputs, inputs); `inputs` is a multiple of a
// vector. bias and each gradient may be null.
// clang-format off
#define HOLDFAST_LINEAR_FIELDS(X) \
  X(int64_t, tokens) X(int64_t, inputs) X(int64_t, outputs) X(int32_t, wide) X(int32_t, threads) X(const void *, x) \
  X(const void *, weight) X(const void *, bias) X(void *, y) X(const void *, grad) X(void *, grad_x) \
  X(void *, grad_weight) X(void *, grad_bias) X(void *, workspace)
// clang-format on
HOLDFAST_CALL(linear, HOLDFAST_LINEAR_FIELDS)

namespace {

// Tokens of a tile: a multiple of the products' block of rows.
constexpr int64_t kTileTokens = 192;
// Gradients of the bias that are added up one after another: sums of sums lose less than one sum.
constexpr int64_t kSummed = 16;

// Calls body(rank, first, count) for each tile, each thread its own.
template <typename Body>
void tiles(const Call &call, int threads, Body &&body) {
  parallel(threads, [&](int rank, int size) {
    const Range mine = share(call.tokens, rank, size, kTileTokens);
    for (int64_t at = mine.begin; at < mine.end; at += kTileTokens)
      body(rank, at, std::min(mine.end - at, kTileTokens));
  });
}

int threads_of(const Call &call) {
  const int64_t tiles = call.tokens / kTileTokens;  // below two, a second thread only waits
  return static_cast<int>(std::clamp<int64_t>(tiles, 1, std::max(call.threads, 1)));
}

// Numbers of whole vectors with room for `count`.
template <typename T>
int64_t whole(int64_t count) {
  return vectors_in<T>(count) * lanes<T>;
}

// The packed weight, which all threads read, and the bias in whole vectors or each thread's sums of the weight's and the
// bias's gradient.
template <typename T>
struct Workspace {
  T *packed, *rest;
  Workspace(Arena &arena, int64_t packed_numbers, int64_t rest_numbers)
      : packed(arena.take<T>(packed_numbers)), rest(arena.take<T>(rest_numbers)) {}
};

template <typename T>
int64_t forward(const Call &call) {
  const int64_t in = call.inputs, out = call.outputs;
  const T *const x = static_cast<const T *>(call.x), *const bias = static_cast<const T *>(call.bias);
  T *const y = static_cast<T *>(call.y);
  const auto take = [&](Arena &arena) { return Workspace<T>(arena, packed_size<T>(in, out), bias ? whole<T>(out) : 0); };
  return with_workspace(call, take, [&](const Workspace<T> &memory) {
    pack(static_cast<const T *>(call.weight), 1, in, in, out, memory.packed, kMaxVectors);
    const T *const added = bias ? memory.rest : nullptr;
    if (bias) std::fill(std::copy_n(bias, out, memory.rest), memory.rest + whole<T>(out), T(0));
    tiles(call, threads_of(call), [&](int, int64_t at, int64_t n) {
      multiply<T>({x + at * in, in}, n, in, memory.packed, out, {added, 0}, {y + at * out, out}, out % lanes<T> == 0);
    });
  });
}

template <typename T>
int64_t backward(const Call &call) {
  const int64_t in = call.inputs, out = call.outputs;
  const T *const x = static_cast<const T *>(call.x), *const grad = static_cast<const T *>(call.grad);
  T *const grad_x = static_cast<T *>(call.grad_x), *const grad_weight = static_cast<T *>(call.grad_weight);
  T *const grad_bias = static_cast<T *>(call.grad_bias);
  const int threads = threads_of(call);
  const int64_t of_weight = grad_weight ? out * in : 0, own = of_weight + (grad_bias ? out : 0);
  const auto take = [&](Arena &arena) {
    return Workspace<T>(arena, grad_x ? packed_size<T>(out, in) : 0, threads * own);
  };
  return with_workspace(call, take, [&](const Workspace<T> &memory) {
    if (grad_x) pack(static_cast<const T *>(call.weight), in, 1, out, in, memory.packed, kMaxVectors);
    // a team may be smaller than asked for; the sums of absent threads must still be 0
    std::fill_n(memory.rest, threads * own, T(0));
    tiles(call, threads, [&](int rank, int64_t at, int64_t n) {
      const T *const g = grad + at * out;
      T *const sums = memory.rest + rank * own;
      if (grad_x) multiply<T>({g, out}, n, out, memory.packed, in, {nullptr, 0}, {grad_x + at * in, in}, true);
      if (grad_weight) {
        const Run<T> run{g, x + at * in, n};
        add_outer<T>(&run, 1, out, in, out, in, sums, in);
      }
      if (grad_bias) {
        for (int64_t j = 0; j < out; j += lanes<T>) {
          const int64_t count = std::min(out - j, lanes<T>);
          Vector<T> part{};
          for (int64_t t = 0; t < n; t += kSummed) {
            Vector<T> few{};
            for (int64_t k = t; k < std::min(n, t + kSummed); ++k) few += get(g + k * out + j, count);
            part += few;
          }
          put(sums + of_weight + j, get(sums + of_weight + j, count) + part, count);
        }
      }
    });
    for (int64_t i = 0; i < own; ++i) {
      T total = 0;
      for (int rank = 0; rank < threads; ++rank) total += memory.rest[rank * own + i];
      (i < of_weight ? grad_weight[i] : grad_bias[i - of_weight]) = total;
    }
  });
}

}  // namespace

HOLDFAST_KERNEL(linear_forward, forward)
HOLDFAST_KERNEL(linear_backward, backward)

}  // namespace holdfast::linear
