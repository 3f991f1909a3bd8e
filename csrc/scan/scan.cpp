// The C ABI of kernels.scan. Sizes, strides and pointers are checked by the caller; strides count numbers (two
// for a complex element), h and the gradients are contiguous.
#include "common/export.h"
#include "scan/problem.h"

namespace {

using namespace holdfast::scan;
using holdfast::advise_large;

template <typename T>
int64_t bytes(const Shape &shape) {
  return shape.rows * shape.steps * shape.numbers * static_cast<int64_t>(sizeof(T));
}

template <typename T>
void scan_forward(int complex, int dense, int reverse, int64_t rows, int64_t steps, int64_t numbers, const T *a,
                  int64_t a_row, int64_t a_time, const T *b, int64_t b_row, int64_t b_time, const T *h0,
                  const int64_t *lengths, T *h, T *last, int threads) {
  if (rows == 0 || numbers == 0) return;
  const Shape shape{rows, steps, numbers, lengths, reverse != 0};
  const ForwardProblem<T> problem{complex ? Kind::complex : Kind::real,
                                  dense != 0,
                                  shape,
                                  {a, a_row, a_time},
                                  {b, b_row, b_time},
                                  {h, steps * numbers, numbers},
                                  h0,
                                  last};
  advise_large(h, bytes<T>(shape));
  run_forward(problem, threads);
}

template <typename T>
void scan_backward(int complex, int dense, int reverse, int64_t rows, int64_t steps, int64_t numbers, const T *a,
                   int64_t a_row, int64_t a_time, const T *grad_h, int64_t g_row, int64_t g_time, const T *h,
                   const T *h0, const T *grad_last, const int64_t *lengths, T *grad_a, T *grad_b, T *grad_h0,
                   int threads) {
  if (rows == 0 || numbers == 0) return;
  const Shape shape{rows, steps, numbers, lengths, reverse != 0};
  const int64_t row = steps * numbers;
  const BackwardProblem<T> problem{complex ? Kind::complex : Kind::real,
                                   dense != 0,
                                   shape,
                                   {a, a_row, a_time},
                                   {grad_h, g_row, g_time},
                                   {h, row, numbers},
                                   h0,
                                   grad_last,
                                   {grad_b, row, numbers},
                                   {dense ? grad_a : nullptr, row, numbers},
                                   dense ? nullptr : grad_a,
                                   grad_h0};
  advise_large(grad_b, bytes<T>(shape));
  if (dense) advise_large(grad_a, bytes<T>(shape));
  run_backward(problem, threads);
}

}  // namespace

// h_t = a_t h_{t-1} + b_t over (rows, steps, numbers). `a` varies in time where `dense`. Writes h and the state at each
// row's end; h0 and lengths may be null.
#define HOLDFAST_SCAN_FORWARD(NAME, T)                                                                                 \
  HOLDFAST_EXPORT void NAME(int complex, int dense, int reverse, int64_t rows, int64_t steps, int64_t numbers,         \
                            const T *a, int64_t a_row, int64_t a_time, const T *b, int64_t b_row, int64_t b_time,      \
                            const T *h0, const int64_t *lengths, T *h, T *last, int threads) {                         \
    scan_forward<T>(complex, dense, reverse, rows, steps, numbers, a, a_row, a_time, b, b_row, b_time, h0, lengths, h, \
                    last, threads);                                                                                    \
  }

// The gradients of the scan above. grad_a is like h where `dense`, else (rows, numbers); it and grad_b may be null,
// and so may h0, grad_last and lengths.
#define HOLDFAST_SCAN_BACKWARD(NAME, T)                                                                                \
  HOLDFAST_EXPORT void NAME(int complex, int dense, int reverse, int64_t rows, int64_t steps, int64_t numbers,         \
                            const T *a, int64_t a_row, int64_t a_time, const T *grad_h, int64_t g_row, int64_t g_time, \
                            const T *h, const T *h0, const T *grad_last, const int64_t *lengths, T *grad_a, T *grad_b, \
                            T *grad_h0, int threads) {                                                                 \
    scan_backward<T>(complex, dense, reverse, rows, steps, numbers, a, a_row, a_time, grad_h, g_row, g_time, h, h0,    \
                     grad_last, lengths, grad_a, grad_b, grad_h0, threads);                                            \
  }

HOLDFAST_SCAN_FORWARD(holdfast_scan_forward_f32, float)
HOLDFAST_SCAN_FORWARD(holdfast_scan_forward_f64, double)
HOLDFAST_SCAN_BACKWARD(holdfast_scan_backward_f32, float)
HOLDFAST_SCAN_BACKWARD(holdfast_scan_backward_f64, double)
