// The C ABI of kernels.gate: out = x + p o sigmoid(q) with [p | q] = gelu(y) W' + b, tile by tile, so that gelu(y) and the
// gradients of p and q never leave the cache. Sizes are multiples of a vector; W is (2 width, width).
#include <memory>
#include <new>

#include "common/export.h"
#include "common/parallel.h"
#include "common/product.h"
#include "rnn/activation.h"

namespace {

using namespace holdfast;

// Tokens of a tile: a multiple of the products' block of rows. At width 128 a tile of [p | q] is 96 KB.
constexpr int64_t kTile = 96;

template <typename T>
inline Vector<T> sigmoid(Vector<T> x) {
  return rnn::activate<T, rnn::kSigmoid>(x);
}

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
      const Range mine = share(tokens, rank, size, kTile);
      for (int64_t at = mine.begin; at < mine.end; at += kTile)
        body(rank, at, mine.end - at < kTile ? mine.end - at : kTile);
    });
  }
};

template <typename T>
std::unique_ptr<T[]> zeros(int64_t count) {
  return std::unique_ptr<T[]>(new (std::nothrow) T[static_cast<size_t>(count)]());
}

// `z` (tokens, 2 width) keeps gelu(y) W' for backward, or is null.
template <typename T>
int gate_forward(const Gate<T> &gate, const T *x, T *out, T *z) {
  const int64_t d = gate.width, own = (gate.tokens < kTile ? gate.tokens : kTile) * 3 * d;
  const auto packed = zeros<T>(packed_size<T>(2 * d, d)), memory = zeros<T>(gate.threads * own);
  if (!packed || !memory) return 0;
  const Right<T> weight = pack(gate.weight, 1, d, 2 * d, d, packed.get());
  gate.tiles([&](int rank, int64_t at, int64_t n) {
    T *const a = memory.get() + rank * own, *const pq = z ? z + at * 2 * d : a + own / 3;
    for (int64_t i = 0; i < n * d; i += lanes<T>) store(a + i, Gelu<T>(load(gate.y + at * d + i)).value);
    product(false, Left<T>{a, d, 1}, weight, pq, 2 * d, n, 2 * d, d);
    for (int64_t t = 0; t < n; ++t)
      for (int64_t j = 0; j < d; j += lanes<T>) {
        const Vector<T> p = load(pq + t * 2 * d + j) + load(gate.bias + j);
        const Vector<T> q = load(pq + t * 2 * d + d + j) + load(gate.bias + d + j);
        store(out + (at + t) * d + j, load(x + (at + t) * d + j) + p * sigmoid<T>(q));
      }
  });
  return 1;
}

template <typename T>
int gate_backward(const Gate<T> &gate, const T *z, const T *grad, T *grad_y, T *grad_weight, T *grad_bias) {
  const int64_t d = gate.width, sums = 2 * d * d + 2 * d, own = sums + kTile * 4 * d;
  const auto packed = zeros<T>(packed_size<T>(d, 2 * d)), memory = zeros<T>(gate.threads * own);
  if (!packed || !memory) return 0;
  const Right<T> weight = pack(gate.weight, d, 1, d, 2 * d, packed.get());
  gate.tiles([&](int rank, int64_t at, int64_t n) {
    T *const sum = memory.get() + rank * own, *const pq = sum + sums, *const a = pq + kTile * 2 * d, *const ga = a + kTile * d;
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
    product(false, Left<T>{pq, 2 * d, 1}, weight, ga, d, n, d, 2 * d);
    for (int64_t i = 0; i < n * d; i += lanes<T>) {
      const Gelu<T> gelu(load(gate.y + at * d + i));
      store(a + i, gelu.value);
      store(grad_y + at * d + i, load(ga + i) * gelu.slope);
    }
    product(true, Left<T>{pq, 1, 2 * d}, Right<T>::plain(a, d), sum, d, 2 * d, d, n);
  });
  for (int64_t i = 0; i < sums; ++i) {
    T total = 0;
    for (int rank = 0; rank < gate.threads; ++rank) total += memory[static_cast<size_t>(rank * own + i)];
    (i < 2 * d * d ? grad_weight[i] : grad_bias[i - 2 * d * d]) = total;
  }
  return 1;
}

template <typename T>
Gate<T> gate_of(int64_t tokens, int64_t width, const T *y, const T *weight, const T *bias, int threads) {
  const int64_t tiles = tokens / kTile;  // below two, a second thread only waits
  return {tokens, width, y, weight, bias, tiles < threads ? (tiles < 1 ? 1 : static_cast<int>(tiles)) : threads};
}

}  // namespace

// Both give 0 where there was no memory.
#define HOLDFAST_GATE(SUFFIX, T)                                                                                     \
  HOLDFAST_EXPORT int holdfast_gate_forward_##SUFFIX(int64_t tokens, int64_t width, const T *y, const T *weight,     \
                                                     const T *bias, const T *x, T *out, T *z, int threads) {         \
    return gate_forward<T>(gate_of(tokens, width, y, weight, bias, threads), x, out, z);                             \
  }                                                                                                                  \
  HOLDFAST_EXPORT int holdfast_gate_backward_##SUFFIX(int64_t tokens, int64_t width, const T *y, const T *weight,    \
                                                      const T *bias, const T *z, const T *grad, T *grad_y,           \
                                                      T *grad_weight, T *grad_bias, int threads) {                   \
    return gate_backward<T>(gate_of(tokens, width, y, weight, bias, threads), z, grad, grad_y, grad_weight,          \
                            grad_bias);                                                                              \
  }
HOLDFAST_GATE(f32, float)
HOLDFAST_GATE(f64, double)
