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

// Tokens of a tile, and of a block of the products' rows, which threads get whole ones of.
constexpr int64_t kTileTokens = 192, kBlockTokens = 24;
// Gradients of the bias that are added up one after another: sums of sums lose less than one sum.
constexpr int64_t kSummed = 16;
// From this many weights on, threads share the rows of the weight's gradient: one sum each would be too much to clear
// and to add up. Below, they share the tokens, so that a tile is read once.
constexpr int64_t kManyWeights = 1 << 16;

template <typename T>
struct Linear {
  int64_t tokens, in, out;
  const T *x, *weight, *bias, *grad;
  int threads;

  bool many_weights() const { return in * out >= kManyWeights && out >= 2 * threads * lanes<T>; }

  // Calls body(rank, first, count) for each tile of the tokens, each thread its own.
  template <typename Body>
  void tiles(Body &&body) const {
    parallel(threads, [&](int rank, int size) {
      const Range mine = share(tokens, rank, size, kBlockTokens);
      for (int64_t at = mine.begin; at < mine.end; at += kTileTokens)
        body(rank, at, std::min(mine.end - at, kTileTokens));
    });
  }

  // The weight for products that sum over `depth` of its entries.
  void pack_weight(int64_t row_stride, int64_t column_stride, int64_t depth, int64_t columns, T *packed) const {
    parallel(many_weights() ? threads : 1, [&](int rank, int size) {
      const Range mine = share(depth, rank, size);
      pack_rows(weight, row_stride, column_stride, depth, columns, packed, kMaxVectors, mine.begin, mine.end);
    });
  }

  // Adds the gradient of the weight's rows from `first` on, for `count` tokens.
  void add_weight(int64_t at, int64_t count, int64_t first, int64_t rows, T *sums) const {
    const Run<T> run{grad + at * out + first, x + at * in, count};
    add_outer<T>(&run, 1, rows, in, out, in, sums, in);
  }

  // Adds the gradient of the bias from entry `first` to `end`, for `count` tokens; in double, since one total takes in
  // hundreds of tiles.
  void add_bias(int64_t at, int64_t count, int64_t first, int64_t end, double *sums) const {
    for (int64_t j = first; j < end; j += lanes<T>) {
      const int64_t part = std::min(end - j, lanes<T>);
      Vector<T> sum{};
      for (int64_t t = at; t < at + count; t += kSummed) {
        Vector<T> few{};
        for (int64_t k = t; k < std::min(at + count, t + kSummed); ++k) few += get(grad + k * out + j, part);
        sum += few;
      }
      for (int64_t i = 0; i < part; ++i) sums[j + i] += static_cast<double>(sum[i]);
    }
  }
};

template <typename T>
Linear<T> linear_of(const Call &call) {
  const int64_t blocks = call.tokens / kBlockTokens;
  const int threads = static_cast<int>(std::clamp<int64_t>(blocks, 1, std::max(call.threads, 1)));
  return {call.tokens,
          call.inputs,
          call.outputs,
          static_cast<const T *>(call.x),
          static_cast<const T *>(call.weight),
          static_cast<const T *>(call.bias),
          static_cast<const T *>(call.grad),
          threads};
}

// The packed weight, which all threads read; forward the bias in whole vectors, backward each thread's sums of the
// weight's gradient, and sums of the bias's.
template <typename T>
struct Workspace {
  T *packed, *rest;
  double *bias;
  Workspace(Arena &arena, int64_t packed_numbers, int64_t rest_numbers, int64_t bias_numbers)
      : packed(arena.take<T>(packed_numbers)), rest(arena.take<T>(rest_numbers)),
        bias(arena.take<double>(bias_numbers)) {}
};

template <typename T>
int64_t forward(const Call &call) {
  const Linear<T> linear = linear_of<T>(call);
  const int64_t in = linear.in, out = linear.out, whole = vectors_in<T>(out) * lanes<T>;
  T *const y = static_cast<T *>(call.y);
  const auto take = [&](Arena &arena) {
    return Workspace<T>(arena, packed_size<T>(in, out), linear.bias ? whole : 0, 0);
  };
  return with_workspace(call, take, [&](const Workspace<T> &memory) {
    linear.pack_weight(1, in, in, out, memory.packed);
    const T *const added = linear.bias ? memory.rest : nullptr;
    if (added) std::fill(std::copy_n(linear.bias, out, memory.rest), memory.rest + whole, T(0));
    linear.tiles([&](int, int64_t at, int64_t n) {
      multiply<T>({linear.x + at * in, in}, n, in, memory.packed, out, {added, 0}, {y + at * out, out}, out == whole);
    });
  });
}

template <typename T>
struct Gradients {
  T *x, *weight, *bias;
};

// Gradients of weight and bias, threads sharing their rows.
template <typename T>
void sum_by_rows(const Linear<T> &linear, const Gradients<T> &grads, double *bias) {
  const int64_t in = linear.in;
  parallel(linear.threads, [&](int rank, int size) {
    const Range mine = share(linear.out, rank, size, lanes<T>);
    if (grads.weight) std::fill(grads.weight + mine.begin * in, grads.weight + mine.end * in, T(0));
    for (int64_t at = 0; at < linear.tokens; at += kTileTokens) {
      const int64_t n = std::min(linear.tokens - at, kTileTokens);
      if (grads.weight) linear.add_weight(at, n, mine.begin, mine.end - mine.begin, grads.weight + mine.begin * in);
      if (grads.bias) linear.add_bias(at, n, mine.begin, mine.end, bias);
    }
  });
}

template <typename T>
int64_t backward(const Call &call) {
  const Linear<T> linear = linear_of<T>(call);
  const Gradients<T> grads{static_cast<T *>(call.grad_x), static_cast<T *>(call.grad_weight),
                           static_cast<T *>(call.grad_bias)};
  const int64_t in = linear.in, out = linear.out, threads = linear.threads;
  const bool by_rows = linear.many_weights();
  const int64_t own = grads.weight && !by_rows ? out * in : 0, biases = grads.bias ? out : 0;
  const auto take = [&](Arena &arena) {
    return Workspace<T>(arena, grads.x ? packed_size<T>(out, in) : 0, threads * own, threads * biases);
  };
  return with_workspace(call, take, [&](const Workspace<T> &memory) {
    if (grads.x) linear.pack_weight(in, 1, out, in, memory.packed);
    // a team may be smaller than asked for; the sums of absent threads must still be 0
    std::fill_n(memory.rest, threads * own, T(0));
    std::fill_n(memory.bias, threads * biases, 0.0);
    if (by_rows) sum_by_rows(linear, grads, memory.bias);
    linear.tiles([&](int rank, int64_t at, int64_t n) {
      if (grads.x)
        multiply<T>({linear.grad + at * out, out}, n, out, memory.packed, in, {nullptr, 0}, {grads.x + at * in, in},
                    true);
      if (own) linear.add_weight(at, n, 0, out, memory.rest + rank * own);
      if (biases && !by_rows) linear.add_bias(at, n, 0, out, memory.bias + rank * biases);
    });
    for (int64_t i = 0; i < own; ++i) {
      T total = 0;
      for (int64_t rank = 0; rank < threads; ++rank) total += memory.rest[rank * own + i];
      grads.weight[i] = total;
    }
    for (int64_t i = 0; i < biases; ++i) {
      double total = 0;
      for (int64_t rank = 0; rank < threads; ++rank) total += memory.bias[rank * biases + i];
      grads.bias[i] = static_cast<T>(total);
    }
  });
}

}  // namespace

HOLDFAST_KERNEL(linear_forward, forward)
HOLDFAST_KERNEL(linear_backward, backward)

}  // namespace holdfast::linear
