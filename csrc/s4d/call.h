// The C ABI of kernels.s4d.
#pragma once

#include "common/call.h"
#include "s4d/gradient.h"

namespace holdfast::s4d {

// Tensors are contiguous. lam_im and c_im are null for real modes; skip, lengths, h0, last, grad_last and gradients of
// what is missing may be null. modes: room for a and b of each, (features, modes, 4) doubles, written forward and read
// backward; saved: what backward needs, the checkpoints of the scan or the kernel of the transforms, null where there
// is no backward. twiddles: of transforms of `time` steps.
// clang-format off
#define HOLDFAST_S4D_FIELDS(X) \
  X(int64_t, batch) X(int64_t, time) X(int64_t, features) X(int64_t, states) X(int32_t, wide) X(int32_t, threads) \
  X(int32_t, bilinear) X(int32_t, reverse) X(int32_t, initial) X(const int64_t *, lengths) X(const void *, u) \
  X(const void *, dt) X(const void *, lam_re) X(const void *, lam_im) X(const void *, c_re) X(const void *, c_im) \
  X(const void *, skip) X(const void *, h0) X(void *, y) X(void *, last) X(void *, modes) X(void *, saved) \
  X(const void *, twiddles) X(const void *, grad_y) X(const void *, grad_last) X(void *, grad_u) X(void *, grad_dt) \
  X(void *, grad_lam_re) X(void *, grad_lam_im) X(void *, grad_c_re) X(void *, grad_c_im) X(void *, grad_skip) \
  X(void *, grad_h0) X(void *, workspace)
// clang-format on
struct Call {
  HOLDFAST_S4D_FIELDS(HOLDFAST_FIELD)
};

inline Shape shape_of(const Call &call) {
  return {call.batch, call.time, call.features, call.states, call.lengths, call.reverse != 0};
}

template <typename T>
Weights<T> weights_of(const Call &call) {
  const auto of = [](const void *data) { return static_cast<const T *>(data); };
  return {of(call.dt),        of(call.lam_re),        of(call.lam_im),
          of(call.c_re),      of(call.c_im),          of(call.skip),
          call.bilinear != 0, call.lam_im == nullptr, static_cast<Mode *>(call.modes)};
}

template <typename T>
Gradients<T> gradients_of(const Call &call) {
  const auto of = [](void *data) { return static_cast<T *>(data); };
  return {of(call.grad_dt),   of(call.grad_lam_re), of(call.grad_lam_im),
          of(call.grad_c_re), of(call.grad_c_im),   of(call.grad_skip)};
}

}  // namespace holdfast::s4d
