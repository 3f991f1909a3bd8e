// S4D by a fused scan: the C ABI. Python has checked every size and pointer; see src/holdfast/kernels/s4d/native.py.
#include "common/export.h"
#include "s4d/abi.h"
#include "s4d/scan_backward.h"
#include "s4d/scan_forward.h"

namespace holdfast::s4d {
namespace {

// A place that says "given" to code that only counts and never reads.
template <typename T>
const T *given(bool yes) {
  static const T place = 0;
  return yes ? &place : nullptr;
}

template <typename T>
void measure(const int64_t *sizes, int flags, bool lengths, int threads, int64_t *out) {
  const Shape shape = shape_of(sizes, given<int64_t>(lengths), flags);
  const Weights<T> weights{};
  const bool initial = (flags & kInitial) != 0;
  Arena forward(nullptr), backward(nullptr);
  ScanForward<T>(shape, weights, nullptr, given<T>(initial), nullptr, nullptr, nullptr, threads).take(forward);
  ScanBackward<T>(shape, weights, initial, threads).take(backward);
  const ScanPlan<T> plan(shape, initial, threads);
  out[0] = forward.used();
  out[1] = backward.used();
  out[2] = plan.checkpoints(shape.modes);
  out[3] = plan.by_tiles;
}

template <typename T>
void forward(const int64_t *sizes, int flags, const int64_t *lengths, const T *u, const T *const *weights, const T *h0,
             T *y, T *h_last, double *modes, T *checkpoints, void *workspace, int threads) {
  const Shape shape = shape_of(sizes, lengths, flags);
  const Weights<T> all = weights_of(weights, flags, modes);
  ScanForward<T> scan(shape, all, u, h0, y, h_last, checkpoints, threads);
  Arena arena(workspace);
  scan.take(arena);
  scan.run();
}

template <typename T>
void backward(const int64_t *sizes, int flags, const int64_t *lengths, const T *u, const T *const *weights,
              const T *gy, const T *gh_last, const double *modes, const T *checkpoints, T *gu, T *const *grads, T *gh0,
              void *workspace, int threads) {
  const Shape shape = shape_of(sizes, lengths, flags);
  const Weights<T> all = weights_of(weights, flags, const_cast<double *>(modes));
  const bool initial = (flags & kInitial) != 0;
  ScanBackward<T> scan(shape, all, initial, threads);
  scan.u = u, scan.gy = gy, scan.gh_last = gh_last, scan.checkpoints = checkpoints;
  scan.gu = gu, scan.gh0 = gh0;
  scan.grads = {grads[0], grads[1], grads[2], grads[3], grads[4], grads[5]};
  scan.driven = !initial && !gh_last;
  Arena arena(workspace);
  scan.take(arena);
  scan.run();
}

}  // namespace
}  // namespace holdfast::s4d

// Bytes of workspace forward and backward, numbers of the checkpoints, and whether these are needed in any case.
#define HOLDFAST_S4D_SCAN(T, suffix)                                                                                 \
  HOLDFAST_EXPORT void holdfast_s4d_scan_sizes_##suffix(const int64_t *sizes, int flags, int lengths, int threads,   \
                                                        int64_t *out) {                                              \
    holdfast::s4d::measure<T>(sizes, flags, lengths != 0, threads, out);                                             \
  }                                                                                                                  \
  HOLDFAST_EXPORT void holdfast_s4d_scan_##suffix(                                                                   \
      const int64_t *sizes, int flags, const int64_t *lengths, const T *u, const T *const *weights, const T *h0, T *y, \
      T *h_last, double *modes, T *checkpoints, void *workspace, int threads) {                                      \
    holdfast::s4d::forward<T>(sizes, flags, lengths, u, weights, h0, y, h_last, modes, checkpoints, workspace,       \
                              threads);                                                                              \
  }                                                                                                                  \
  HOLDFAST_EXPORT void holdfast_s4d_scan_backward_##suffix(                                                          \
      const int64_t *sizes, int flags, const int64_t *lengths, const T *u, const T *const *weights, const T *gy,     \
      const T *gh_last, const double *modes, const T *checkpoints, T *gu, T *const *grads, T *gh0, void *workspace,  \
      int threads) {                                                                                                 \
    holdfast::s4d::backward<T>(sizes, flags, lengths, u, weights, gy, gh_last, modes, checkpoints, gu, grads, gh0,   \
                               workspace, threads);                                                                  \
  }

HOLDFAST_S4D_SCAN(float, f32)
HOLDFAST_S4D_SCAN(double, f64)
