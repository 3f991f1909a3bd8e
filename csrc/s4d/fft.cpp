// S4D by Fourier transforms: the C ABI.
#include "s4d/call.h"
#include "s4d/fft_backward.h"
#include "s4d/fft_forward.h"

namespace holdfast::s4d {
namespace {

template <typename T>
int64_t fft_forward(const Call &call) {
  const Shape shape = shape_of(call);
  const Weights<T> weights = weights_of<T>(call);
  const auto take = [&](Arena &arena) {
    FftForward<T> layer(shape, weights, static_cast<const T *>(call.twiddles), static_cast<T *>(call.saved),
                        call.threads);
    if (!call.saved) layer.kernel = arena.take<T>(layer.layout.blocks * layer.kernel_size());
    layer.take(arena);
    return layer;
  };
  return with_workspace(call, take, [&](FftForward<T> &layer) {
    layer.u = static_cast<const T *>(call.u), layer.y = static_cast<T *>(call.y);
    layer.h_last = static_cast<T *>(call.last);
    layer.run();
  });
}

template <typename T>
int64_t fft_backward(const Call &call) {
  const Shape shape = shape_of(call);
  const Weights<T> weights = weights_of<T>(call);
  const auto take = [&](Arena &arena) {
    FftBackward<T> layer(shape, weights, static_cast<const T *>(call.twiddles), static_cast<T *>(call.saved),
                         call.threads);
    layer.take(arena);
    return layer;
  };
  return with_workspace(call, take, [&](FftBackward<T> &layer) {
    layer.u = static_cast<const T *>(call.u), layer.gy = static_cast<const T *>(call.grad_y);
    layer.gu = static_cast<T *>(call.grad_u), layer.grads = gradients_of<T>(call);
    layer.run();
  });
}

// As scan_saved.
template <typename T>
int64_t fft_saved(const Call &call) {
  return Layout<T>(shape_of(call)).blocks * FftLayer<T>::kernel_rows(call.time) * lanes<T>;
}

// The table of twiddles is itself the workspace: it depends on `time` alone, so the caller keeps it.
template <typename T>
int64_t twiddles(const Call &call) {
  const fft::Plan plan = fft::make_plan(call.time);
  return with_workspace(
      call, [&](Arena &arena) { return arena.take<T>(plan.twiddles); },
      [&](T *table) { fft::make_twiddles(table, plan); });
}

}  // namespace

// Numbers of a step's kernel are made so many steps at once: the length of `saved` is rounded up to it.
HOLDFAST_EXPORT int64_t holdfast_s4d_kernel_steps() { return 2 * kStride; }
HOLDFAST_KERNEL(s4d_fft_forward, fft_forward)
HOLDFAST_KERNEL(s4d_fft_backward, fft_backward)
HOLDFAST_KERNEL(s4d_fft_saved, fft_saved)
HOLDFAST_KERNEL(s4d_twiddles, twiddles)

}  // namespace holdfast::s4d
