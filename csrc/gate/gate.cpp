// The C ABI of kernels.gate: out = x + p o sigmoid(q) with [p | q] = gelu(y) W' + b, tile by tile, so that gelu(y) and
// the gradients of p and q never leave the cache. Sizes are multiples of a vector; W is (2 width, width).
#include <algorithm>

#include "common/call.h"
#include "common/math.h"
#include "common/parallel.h"
#include "common/product.h"

namespace holdfast::gate {

// y, x, out, z, grad and grad_y are (tokens, width or 2 width); z keeps gelu(y) W' for backward, or is null.
// clang-format off
#define HOLDFAST_GATE_FIELDS(X) \
  X(int64_t, tokens) X(int64_t, width) X(int32_t, wide) X(int32_t, threads) X(const void *, y) \
  X(const void *, weight) X(const void *, bias) X(const void *, x) X(void *, out) X(void *, z) \
  X(const void *, grad) X(void *, grad_y) X(void *, grad_weight) X(void *, grad_bias) X(void *, workspace)
// clang-format on
HOLDFAST_CALL(gate, HOLDFAST_GATE_FIELDS)

namespace {

// Tokens of a tile: a multiple of the products' block of rows. At width 128 a tile of [p | q] is 96 KB.
constexpr int64_t kTileTokens = 96;

// gelu(y) = y s with s = sigmoid(2 sqrt(2/pi) (y + 0.044715 y^3)), and its derivative.
template <typename T>
struct Gelu {
  Vector<T> value, slope;
  explicit Gelu(Vector<T> y) {
    constexpr T scale = T(1.5957691216057308), cubic = T(0.044715);
    const Vector<T> s = sigmoid<T>(scale * y * (T(1) + cubic * y * y));
    value = y * s;
    slope = s + value * (T(1) - s) * (scale * (T(1) + T(3) * cubic * y * y));
  }
};

template <typename T>
struct Gate {
  int64_t tokens, width;
  const T *y, *weight, *bias;
  int threads;

  // Calls body(rank, first, count) for each tile, each thread its own.
  template <typename Body>
  void tiles(Body &&body) const {
    parallel(threads, [&](int rank, int size) {
      const Range mine = share(tokens, rank, size, kTileTokens);
      for (int64_t at = mine.begin; at < mine.end; at += kTileTokens)
        body(rank, at, mine.end - at < kTileTokens ? mine.end - at : kTileTokens);
    });
  }
};

template <typename T>
Gate<T> gate_of(const Call &call) {
  const int64_t tiles = call.tokens / kTileTokens;  // below two, a second thread only waits
  const int threads = static_cast<int>(std::clamp<int64_t>(tiles, 1, std::max(call.threads, 1)));
  return {call.tokens,
          call.width,
          static_cast<const T *>(call.y),
          static_cast<const T *>(call.weight),
          static_cast<const T *>(call.bias),
          threads};
}

// The packed weight, which all threads read, and `own` numbers for each thread.
template <typename T>
struct Workspace {
  T *packed, *threads;
  Workspace(Arena &arena, int64_t packed_numbers, int64_t own_numbers)
      : packed(arena.take<T>(packed_numbers)), threads(arena.take<T>(own_numbers)) {}
};

template <typename T>
int64_t forward(const Call &call) {
  const Gate<T> gate = gate_of<T>(call);
  const int64_t d = gate.width, own = std::min(gate.tokens, kTileTokens) * 3 * d;
  const T *const x = static_cast<const T *>(call.x);
  T *const out = static_cast<T *>(call.out), *const z = static_cast<T *>(call.z);
  const auto take = [&](Arena &arena) { return Workspace<T>(arena, packed_size<T>(d, 2 * d), gate.threads * own); };
  return with_workspace(call, take, [&](const Workspace<T> &memory) {
    pack(gate.weight, 1, d, d, 2 * d, memory.packed, kMaxVectors);
    gate.tiles([&](int rank, int64_t at, int64_t n) {
      T *const a = memory.threads + rank * own, *const pq = z ? z + at * 2 * d : a + own / 3;
      for (int64_t i = 0; i < n * d; i += lanes<T>) store(a + i, Gelu<T>(load(gate.y + at * d + i)).value);
      multiply<T>({a, d}, n, d, memory.packed, 2 * d, {nullptr, 0}, {pq, 2 * d}, true);
      for (int64_t t = 0; t < n; ++t)
        for (int64_t j = 0; j < d; j += lanes<T>) {
          const Vector<T> p = load(pq + t * 2 * d + j) + load(gate.bias + j);
          const Vector<T> q = load(pq + t * 2 * d + d + j) + load(gate.bias + d + j);
          store(out + (at + t) * d + j, load(x + (at + t) * d + j) + p * sigmoid<T>(q));
        }
    });
  });
}

template <typename T>
int64_t backward(const Call &call) {
  const Gate<T> gate = gate_of<T>(call);
  const int64_t d = gate.width, sums = 2 * d * d + 2 * d, own = sums + kTileTokens * 4 * d;
  const T *const z = static_cast<const T *>(call.z), *const grad = static_cast<const T *>(call.grad);
  T *const grad_y = static_cast<T *>(call.grad_y);
  T *const grad_weight = static_cast<T *>(call.grad_weight), *const grad_bias = static_cast<T *>(call.grad_bias);
  const auto take = [&](Arena &arena) { return Workspace<T>(arena, packed_size<T>(2 * d, d), gate.threads * own); };
  return with_workspace(call, take, [&](const Workspace<T> &memory) {
    pack(gate.weight, d, 1, 2 * d, d, memory.packed, kMaxVectors);
    // a team may be smaller than asked for; the sums of absent threads must still be 0
    for (int rank = 0; rank < gate.threads; ++rank) std::fill_n(memory.threads + rank * own, sums, T(0));
    gate.tiles([&](int rank, int64_t at, int64_t n) {
      T *const sum = memory.threads + rank * own, *const pq = sum + sums, *const a = pq + kTileTokens * 2 * d,
               *const ga = a + kTileTokens * d;
      for (int64_t t = 0; t < n; ++t) {
        const T *const row = z + (at + t) * 2 * d;
        for (int64_t j = 0; j < d; j += lanes<T>) {
          const Vector<T> s = sigmoid<T>(load(row + d + j) + load(gate.bias + d + j));
          const Vector<T> p = load(grad + (at + t) * d + j) * s;
          store(pq + t * 2 * d + j, p);
          store(pq + t * 2 * d + d + j, p * (load(row + j) + load(gate.bias + j)) * (T(1) - s));
        }
      }
      for (int64_t j = 0; j < 2 * d; j += lanes<T>) {
        Vector<T> part{};
        for (int64_t t = 0; t < n; ++t) part += load(pq + t * 2 * d + j);
        store(sum + 2 * d * d + j, load(sum + 2 * d * d + j) + part);
      }
      multiply<T>({pq, 2 * d}, n, 2 * d, memory.packed, d, {nullptr, 0}, {ga, d}, true);
      for (int64_t i = 0; i < n * d; i += lanes<T>) {
        const Gelu<T> gelu(load(gate.y + at * d + i));
        store(a + i, gelu.value);
        store(grad_y + at * d + i, load(ga + i) * gelu.slope);
      }
      const Run<T> run{pq, a, n};
      add_outer<T>(&run, 1, 2 * d, d, 2 * d, d, sum, d);
    });
    for (int64_t i = 0; i < sums; ++i) {
      T total = 0;
      for (int rank = 0; rank < gate.threads; ++rank) total += memory.threads[rank * own + i];
      (i < 2 * d * d ? grad_weight[i] : grad_bias[i - 2 * d * d]) = total;
    }
  });
}

}  // namespace

HOLDFAST_KERNEL(gate_forward, forward)
HOLDFAST_KERNEL(gate_backward, backward)

}  // namespace holdfast::gate
