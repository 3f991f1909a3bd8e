// The C ABI of kernels.scan: h_t = a_t h_{t-1} + b_t over (rows, steps, numbers), and its adjoint.
#include "scan/problem.h"

namespace holdfast::scan {

// Strides count numbers, two for a complex element; h and the gradients are contiguous. `dense`: a varies in time, and
// grad_a is like h, else (rows, numbers). h0, lengths, grad_last, grad_a and grad_b may be null.
// clang-format off
#define HOLDFAST_SCAN_FIELDS(X) \
  X(int64_t, rows) X(int64_t, steps) X(int64_t, numbers) X(int64_t, a_row) X(int64_t, a_time) X(int64_t, b_row) \
  X(int64_t, b_time) X(int64_t, grad_h_row) X(int64_t, grad_h_time) X(int32_t, wide) X(int32_t, threads) \
  X(int32_t, complex) X(int32_t, dense) X(int32_t, reverse) X(const void *, a) X(const void *, b) \
  X(const void *, h0) X(const int64_t *, lengths) X(void *, h) X(void *, last) X(const void *, grad_h) \
  X(const void *, grad_last) X(void *, grad_a) X(void *, grad_b) X(void *, grad_h0) X(void *, workspace)
// clang-format on
HOLDFAST_CALL(scan, HOLDFAST_SCAN_FIELDS)

namespace {

Shape shape_of(const Call &call) { return {call.rows, call.steps, call.numbers, call.lengths, call.reverse != 0}; }
Kind kind_of(const Call &call) { return call.complex ? Kind::complex : Kind::real; }

template <typename T>
int64_t bytes(const Call &call) {
  return call.rows * call.steps * call.numbers * static_cast<int64_t>(sizeof(T));
}

template <typename T>
int64_t forward(const Call &call) {
  ForwardProblem<T> p{};
  p.kind = kind_of(call), p.dense = call.dense != 0, p.shape = shape_of(call);
  p.a = {static_cast<const T *>(call.a), call.a_row, call.a_time};
  p.b = {static_cast<const T *>(call.b), call.b_row, call.b_time};
  p.h = {static_cast<T *>(call.h), call.steps * call.numbers, call.numbers};
  p.h0 = static_cast<const T *>(call.h0), p.last = static_cast<T *>(call.last);
  advise_large(call.h, bytes<T>(call));
  return run(call, p);
}

template <typename T>
int64_t backward(const Call &call) {
  const int64_t row = call.steps * call.numbers;
  BackwardProblem<T> p{};
  p.kind = kind_of(call), p.dense = call.dense != 0, p.shape = shape_of(call);
  p.a = {static_cast<const T *>(call.a), call.a_row, call.a_time};
  p.grad_h = {static_cast<const T *>(call.grad_h), call.grad_h_row, call.grad_h_time};
  p.h = {static_cast<const T *>(call.h), row, call.numbers};
  p.h0 = static_cast<const T *>(call.h0), p.grad_last = static_cast<const T *>(call.grad_last);
  p.grad_b = {static_cast<T *>(call.grad_b), row, call.numbers};
  T *const grad_a = static_cast<T *>(call.grad_a);
  p.grad_a = {call.dense ? grad_a : nullptr, row, call.numbers};
  p.sums = call.dense ? nullptr : grad_a;
  p.grad_h0 = static_cast<T *>(call.grad_h0);
  advise_large(call.grad_b, bytes<T>(call));
  if (call.dense) advise_large(call.grad_a, bytes<T>(call));
  return run(call, p);
}

}  // namespace

HOLDFAST_KERNEL(scan_forward, forward)
HOLDFAST_KERNEL(scan_backward, backward)

}  // namespace holdfast::scan
