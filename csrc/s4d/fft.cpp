// S4D by Fourier transforms: the C ABI. Python has checked every size and pointer; see
// src/holdfast/kernels/s4d/native.py.
#include "common/export.h"
#include "s4d/abi.h"
#include "s4d/fft_backward.h"
#include "s4d/fft_forward.h"

namespace holdfast::s4d {
namespace {

template <typename T>
void measure(const int64_t *sizes, int threads, int64_t *out) {
  const Shape shape = shape_of(sizes, nullptr, 0);
  const Weights<T> weights{};
  Arena to(nullptr), back(nullptr);
  FftForward<T> layer(shape, weights, nullptr, nullptr, threads);
  layer.take(to);
  FftBackward<T>(shape, weights, nullptr, nullptr, threads).take(back);
  out[0] = to.used();
  out[1] = back.used();
  out[2] = layer.layout.blocks * layer.kernel_size();
  out[3] = layer.transform.twiddles;
}

template <typename T>
void forward(const int64_t *sizes, int flags, const int64_t *lengths, const T *u, const T *const *weights, T *y,
             T *h_last, double *modes, T *kernel, const T *twiddles, void *workspace, int threads) {
  const Shape shape = shape_of(sizes, lengths, flags);
  const Weights<T> all = weights_of(weights, flags, modes);
  FftForward<T> layer(shape, all, twiddles, kernel, threads);
  layer.u = u, layer.y = y, layer.h_last = h_last;
  Arena arena(workspace);
  layer.take(arena);
  layer.run();
}

template <typename T>
void backward(const int64_t *sizes, int flags, const int64_t *lengths, const T *u, const T *const *weights,
              const T *gy, const double *modes, const T *kernel, const T *twiddles, T *gu, T *const *grads,
              void *workspace, int threads) {
  const Shape shape = shape_of(sizes, lengths, flags);
  const Weights<T> all = weights_of(weights, flags, const_cast<double *>(modes));
  FftBackward<T> layer(shape, all, twiddles, const_cast<T *>(kernel), threads);
  layer.u = u, layer.gy = gy, layer.gu = gu;
  layer.grads = {grads[0], grads[1], grads[2], grads[3], grads[4], grads[5]};
  Arena arena(workspace);
  layer.take(arena);
  layer.run();
}

}  // namespace
}  // namespace holdfast::s4d

// sizes: out gets bytes of workspace forward and backward, numbers of the kernel and of the twiddles.
#define HOLDFAST_S4D_FFT(T, suffix)                                                                                \
  HOLDFAST_EXPORT void holdfast_s4d_fft_sizes_##suffix(const int64_t *sizes, int threads, int64_t *out) {          \
    holdfast::s4d::measure<T>(sizes, threads, out);                                                                \
  }                                                                                                                \
  HOLDFAST_EXPORT void holdfast_s4d_fft_twiddles_##suffix(int64_t time, T *out) {                                  \
    holdfast::fft::make_twiddles(out, holdfast::fft::make_plan(time));                                             \
  }                                                                                                                \
  HOLDFAST_EXPORT void holdfast_s4d_fft_##suffix(                                                                  \
      const int64_t *sizes, int flags, const int64_t *lengths, const T *u, const T *const *weights, T *y, T *h_last, \
      double *modes, T *kernel, const T *twiddles, void *workspace, int threads) {                                 \
    holdfast::s4d::forward<T>(sizes, flags, lengths, u, weights, y, h_last, modes, kernel, twiddles, workspace,    \
                              threads);                                                                            \
  }                                                                                                                \
  HOLDFAST_EXPORT void holdfast_s4d_fft_backward_##suffix(                                                         \
      const int64_t *sizes, int flags, const int64_t *lengths, const T *u, const T *const *weights, const T *gy,   \
      const double *modes, const T *kernel, const T *twiddles, T *gu, T *const *grads, void *workspace,            \
      int threads) {                                                                                               \
    holdfast::s4d::backward<T>(sizes, flags, lengths, u, weights, gy, modes, kernel, twiddles, gu, grads, workspace, \
                               threads);                                                                           \
  }

HOLDFAST_S4D_FFT(float, f32)
HOLDFAST_S4D_FFT(double, f64)
