// The C ABI of kernels.lru: the scan between its two matrix products, in place on planar states [re | im], or on real
// states where the eigenvalues are real. `lam` and every row hold `numbers` numbers: 2N planar, N real.
#include "common/export.h"
#include "lru/fused.h"
#include "scan/problem.h"

namespace {

using namespace holdfast::scan;

Kind kind_of(int planar) { return planar ? Kind::planar : Kind::real; }

template <typename T>
void lru_forward(int planar, int reverse, int64_t rows, int64_t steps, int64_t numbers, const T *lam, const T *h0,
                 const int64_t *lengths, T *x, T *last, int threads) {
  if (rows == 0 || numbers == 0) return;
  const int64_t row = steps * numbers;
  const Shape shape{rows, steps, numbers, lengths, reverse != 0};
  run_forward<T>({kind_of(planar), false, shape, {lam, 0, 0}, {x, row, numbers}, {x, row, numbers}, h0, last}, threads);
}

template <typename T>
void lru_backward(int planar, int reverse, int64_t rows, int64_t steps, int64_t numbers, const T *lam, const T *h,
                  const T *h0, const T *grad_last, const int64_t *lengths, T *g, T *grad_lam, T *grad_h0, int threads) {
  if (rows == 0 || numbers == 0) return;
  const int64_t row = steps * numbers;
  const BackwardProblem<T> problem{kind_of(planar),
                                   false,
                                   {rows, steps, numbers, lengths, reverse != 0},
                                   {lam, 0, 0},
                                   {g, row, numbers},
                                   {h, row, numbers},
                                   h0,
                                   grad_last,
                                   {g, row, numbers},
                                   {nullptr, 0, 0},
                                   grad_lam,
                                   grad_h0};
  run_backward(problem, threads);
}

// sizes: rows, steps, inputs, numbers, outputs; inputs: u, lam, b, c, d, h0
template <typename T>
holdfast::lru::Layer<T> layer_of(int planar, int reverse, const int64_t *sizes, const int64_t *lengths, const T *const *inputs,
                                 int threads) {
  const Shape shape{sizes[0], sizes[1], sizes[3], lengths, reverse != 0};
  const int64_t tiles = sizes[0] * sizes[1] / holdfast::lru::kTileSteps;  // below two, a second thread only waits
  const int team = static_cast<int>(std::clamp<int64_t>(tiles, 1, threads));
  return {kind_of(planar), shape, sizes[2], sizes[4], inputs[0], inputs[1], inputs[2], inputs[3], inputs[4], inputs[5], team};
}

}  // namespace

// The layer tile by tile, for sizes that are multiples of a vector; d and h0 of the inputs may be null. Gives 0 where there
// was no memory.
#define HOLDFAST_LRU_FUSED_FORWARD(NAME, T)                                                                         \
  HOLDFAST_EXPORT int NAME(int planar, int reverse, const int64_t *sizes, const int64_t *lengths,                   \
                           const T *const *inputs, T *h, T *y, T *last, int threads) {                              \
    const auto layer = layer_of<T>(planar, reverse, sizes, lengths, inputs, threads);                                       \
    return holdfast::lru::run_forward_tiles(layer, h, y, last);                                                     \
  }

// grads: of u, lam, b, c, d, h0; each may be null but the last. lam's is (rows, numbers), a summand for each row.
#define HOLDFAST_LRU_FUSED_BACKWARD(NAME, T)                                                                        \
  HOLDFAST_EXPORT int NAME(int planar, int reverse, const int64_t *sizes, const int64_t *lengths,                   \
                           const T *const *inputs, const T *h, const T *grad_y, const T *grad_last, T *const *g,    \
                           int threads) {                                                                           \
    const auto layer = layer_of<T>(planar, reverse, sizes, lengths, inputs, threads);                                       \
    const holdfast::lru::Gradients<T> grads{g[0], g[1], g[2], g[3], g[4], g[5]};                                    \
    return holdfast::lru::run_backward_tiles(layer, h, grad_y, grad_last, grads);                                   \
  }

HOLDFAST_LRU_FUSED_FORWARD(holdfast_lru_fused_forward_f32, float)
HOLDFAST_LRU_FUSED_FORWARD(holdfast_lru_fused_forward_f64, double)
HOLDFAST_LRU_FUSED_BACKWARD(holdfast_lru_fused_backward_f32, float)
HOLDFAST_LRU_FUSED_BACKWARD(holdfast_lru_fused_backward_f64, double)

// Turns x (rows, steps, numbers) from inputs into states; writes the state at each row's end.
#define HOLDFAST_LRU_FORWARD(NAME, T)                                                                              \
  HOLDFAST_EXPORT void NAME(int planar, int reverse, int64_t rows, int64_t steps, int64_t numbers, const T *lam,   \
                            const T *h0, const int64_t *lengths, T *x, T *last, int threads) {                     \
    lru_forward<T>(planar, reverse, rows, steps, numbers, lam, h0, lengths, x, last, threads);                     \
  }

// Turns g (rows, steps, numbers) from the gradient of the states into that of the inputs. grad_lam (rows, numbers), one
// summand for each row, may be null, and so may h0, grad_last and lengths.
#define HOLDFAST_LRU_BACKWARD(NAME, T)                                                                             \
  HOLDFAST_EXPORT void NAME(int planar, int reverse, int64_t rows, int64_t steps, int64_t numbers, const T *lam,   \
                            const T *h, const T *h0, const T *grad_last, const int64_t *lengths, T *g, T *grad_lam, \
                            T *grad_h0, int threads) {                                                             \
    lru_backward<T>(planar, reverse, rows, steps, numbers, lam, h, h0, grad_last, lengths, g, grad_lam, grad_h0,   \
                    threads);                                                                                      \
  }

HOLDFAST_LRU_FORWARD(holdfast_lru_forward_f32, float)
HOLDFAST_LRU_FORWARD(holdfast_lru_forward_f64, double)
HOLDFAST_LRU_BACKWARD(holdfast_lru_backward_f32, float)
HOLDFAST_LRU_BACKWARD(holdfast_lru_backward_f64, double)
