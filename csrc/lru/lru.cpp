// The C ABI of kernels.lru: the layer tile by tile, or the scan between its two matrix products, in place. States are
// planar [re | im], or real where the eigenvalues are: `lam` and every row hold `numbers` numbers, 2N planar, N real.
#include "lru/fused.h"
#include "scan/problem.h"

namespace holdfast::lru {

// Fused: sizes are multiples of a vector; each gradient may be null but grad_h0, and lam's is (rows, numbers), a
// summand for each row. In place: forward turns h from inputs into states, backward turns `g` from the gradient of the
// states into that of the inputs. d, h0, lengths, grad_last may be null.
// clang-format off
#define HOLDFAST_LRU_FIELDS(X) \
  X(int64_t, rows) X(int64_t, steps) X(int64_t, inputs) X(int64_t, numbers) X(int64_t, outputs) X(int32_t, wide) \
  X(int32_t, threads) X(int32_t, planar) X(int32_t, reverse) X(const int64_t *, lengths) X(const void *, u) \
  X(const void *, lam) X(const void *, b) X(const void *, c) X(const void *, d) X(const void *, h0) X(void *, h) \
  X(void *, y) X(void *, last) X(void *, g) X(const void *, grad_y) X(const void *, grad_last) X(void *, grad_u) \
  X(void *, grad_lam) X(void *, grad_b) X(void *, grad_c) X(void *, grad_d) X(void *, grad_h0) X(void *, workspace)
// clang-format on
HOLDFAST_CALL(lru, HOLDFAST_LRU_FIELDS)

namespace {

Kind kind_of(const Call &call) { return call.planar ? Kind::planar : Kind::real; }
Shape shape_of(const Call &call) { return {call.rows, call.steps, call.numbers, call.lengths, call.reverse != 0}; }

template <typename T>
Layer<T> layer_of(const Call &call) {
  const int64_t tiles = call.rows * call.steps / kTileSteps;  // below two, a second thread only waits
  const int team = static_cast<int>(std::clamp<int64_t>(tiles, 1, std::max(call.threads, 1)));
  return {kind_of(call),
          shape_of(call),
          call.inputs,
          call.outputs,
          static_cast<const T *>(call.u),
          static_cast<const T *>(call.lam),
          static_cast<const T *>(call.b),
          static_cast<const T *>(call.c),
          static_cast<const T *>(call.d),
          static_cast<const T *>(call.h0),
          team};
}

template <typename T>
int64_t fused_forward(const Call &call) {
  return run_forward_tiles<T>(call, layer_of<T>(call), static_cast<T *>(call.h), static_cast<T *>(call.y),
                              static_cast<T *>(call.last));
}

template <typename T>
int64_t fused_backward(const Call &call) {
  const Gradients<T> grads{static_cast<T *>(call.grad_u), static_cast<T *>(call.grad_lam),
                           static_cast<T *>(call.grad_b), static_cast<T *>(call.grad_c),
                           static_cast<T *>(call.grad_d), static_cast<T *>(call.grad_h0)};
  return run_backward_tiles<T>(call, layer_of<T>(call), static_cast<const T *>(call.h),
                               static_cast<const T *>(call.grad_y), static_cast<const T *>(call.grad_last), grads);
}

template <typename T>
int64_t forward(const Call &call) {
  const int64_t row = call.steps * call.numbers;
  T *const h = static_cast<T *>(call.h);
  ForwardProblem<T> p{};
  p.kind = kind_of(call), p.shape = shape_of(call);
  p.a = {static_cast<const T *>(call.lam), 0, 0};
  p.b = {h, row, call.numbers}, p.h = {h, row, call.numbers};
  p.h0 = static_cast<const T *>(call.h0), p.last = static_cast<T *>(call.last);
  return run(call, p);
}

template <typename T>
int64_t backward(const Call &call) {
  const int64_t row = call.steps * call.numbers;
  T *const g = static_cast<T *>(call.g);
  BackwardProblem<T> p{};
  p.kind = kind_of(call), p.shape = shape_of(call);
  p.a = {static_cast<const T *>(call.lam), 0, 0};
  p.grad_h = {g, row, call.numbers}, p.grad_b = {g, row, call.numbers};
  p.h = {static_cast<const T *>(call.h), row, call.numbers};
  p.h0 = static_cast<const T *>(call.h0), p.grad_last = static_cast<const T *>(call.grad_last);
  p.sums = static_cast<T *>(call.grad_lam), p.grad_h0 = static_cast<T *>(call.grad_h0);
  return run(call, p);
}

}  // namespace

HOLDFAST_KERNEL(lru_fused_forward, fused_forward)
HOLDFAST_KERNEL(lru_fused_backward, fused_backward)
HOLDFAST_KERNEL(lru_forward, forward)
HOLDFAST_KERNEL(lru_backward, backward)

}  // namespace holdfast::lru
