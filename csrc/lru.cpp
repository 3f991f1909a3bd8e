// The C ABI of kernels.lru: the scan between its two matrix products, in place on planar states [re | im], or on real
// states where the eigenvalues are real. `lam` and every row hold `numbers` numbers: 2N planar, N real.
#include "export.h"
#include "scan_backward.h"
#include "scan_forward.h"

namespace {

using namespace holdfast::scan;

template <typename T>
void lru_forward(int planar, int reverse, int64_t rows, int64_t steps, int64_t numbers, const T *lam, const T *h0,
                 const int64_t *lengths, T *x, T *last, int threads) {
  if (rows == 0 || numbers == 0) return;
  const int64_t row = steps * numbers;
  const ForwardProblem<T> problem{
      {rows, steps, numbers, lengths, reverse != 0}, {lam, 0, 0}, {x, row, numbers}, {x, row, numbers}, h0, last};
  planar ? run_forward<Planar, false>(problem, threads) : run_forward<Real, false>(problem, threads);
}

template <typename T>
void lru_backward(int planar, int reverse, int64_t rows, int64_t steps, int64_t numbers, const T *lam, const T *h,
                  const T *h0, const T *grad_last, const int64_t *lengths, T *g, T *grad_lam, T *grad_h0, int threads) {
  if (rows == 0 || numbers == 0) return;
  const int64_t row = steps * numbers;
  const BackwardProblem<T> problem{{rows, steps, numbers, lengths, reverse != 0},
                                   {lam, 0, 0},
                                   {g, row, numbers},
                                   {h, row, numbers},
                                   h0,
                                   grad_last,
                                   {g, row, numbers},
                                   {nullptr, 0, 0},
                                   grad_lam,
                                   grad_h0};
  planar ? run_backward<Planar, false>(problem, threads) : run_backward<Real, false>(problem, threads);
}

}  // namespace

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
