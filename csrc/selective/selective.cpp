// The C ABI of kernels.selective. Both functions give 0 where there was no memory.
#include "common/export.h"
#include "selective/backward.h"

namespace {

using namespace holdfast::selective;

// sizes: rows, steps, channels, groups, states, parts of a row
// strides: of rows and of steps, in numbers, for u, dt, b, c, z and resets
// inputs: u, dt, a, b, c, d, z, bias, h0; from d on each may be null. a and h0 are (..., states, channels)
template <typename T>
Problem<T> problem_of(const int64_t *sizes, const int64_t *strides, int flags, const int64_t *lengths,
                      const unsigned char *resets, const T *const *in, int threads) {
  const auto sequence = [&](const auto *data, int i) {
    return Sequence<std::remove_reference_t<decltype(*data)>>{data, strides[2 * i], strides[2 * i + 1]};
  };
  return {sizes[0], sizes[1], sizes[2], sizes[3], sizes[4], sizes[5], flags, threads, lengths, sequence(resets, 5),
          sequence(in[0], 0), sequence(in[1], 1), sequence(in[3], 2), sequence(in[4], 3), sequence(in[6], 4),
          in[2], in[5], in[7], in[8]};
}

}  // namespace

#define HOLDFAST_SELECTIVE(SUFFIX, T)                                                                                \
  HOLDFAST_EXPORT int holdfast_selective_forward_##SUFFIX(                                                           \
      const int64_t *sizes, const int64_t *strides, int flags, const int64_t *lengths, const unsigned char *resets,  \
      const T *const *inputs, T *y, T *last, T *saved, int threads) {                                                \
    return run_forward<T>(problem_of<T>(sizes, strides, flags, lengths, resets, inputs, threads), y, last, saved);   \
  }                                                                                                                  \
  HOLDFAST_EXPORT int holdfast_selective_backward_##SUFFIX(                                                          \
      const int64_t *sizes, const int64_t *strides, int flags, const int64_t *lengths, const unsigned char *resets,  \
      const T *const *inputs, const T *saved, const T *grad_y, const T *grad_last, T *const *g, int threads) {       \
    const Gradients<T> grads{g[0], g[1], g[2], g[3], g[4], g[5], g[6], g[7], g[8]};                                  \
    return run_backward<T>(problem_of<T>(sizes, strides, flags, lengths, resets, inputs, threads), saved, grad_y,    \
                           grad_last, grads);                                                                        \
  }

HOLDFAST_SELECTIVE(f32, float)
HOLDFAST_SELECTIVE(f64, double)
