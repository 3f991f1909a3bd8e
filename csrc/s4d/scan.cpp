// S4D by a fused scan: the C ABI.
#include "s4d/call.h"
#include "s4d/scan_backward.h"
#include "s4d/scan_forward.h"

namespace holdfast::s4d {
namespace {

template <typename T>
int64_t scan_forward(const Call &call) {
  const Shape shape = shape_of(call);
  const Weights<T> weights = weights_of<T>(call);
  const auto take = [&](Arena &arena) {
    ScanForward<T> scan(shape, weights, static_cast<const T *>(call.u), static_cast<const T *>(call.h0),
                        static_cast<T *>(call.y), static_cast<T *>(call.last), static_cast<T *>(call.saved),
                        call.threads);
    // work that goes by tiles needs the checkpoints also where there is no backward
    if (!call.saved && scan.plan.by_tiles) scan.checkpoints = arena.take<T>(scan.plan.checkpoints(shape.modes));
    scan.take(arena);
    return scan;
  };
  return with_workspace(call, take, [&](ScanForward<T> &scan) { scan.run(); });
}

template <typename T>
int64_t scan_backward(const Call &call) {
  const Shape shape = shape_of(call);
  const Weights<T> weights = weights_of<T>(call);
  const bool initial = call.initial != 0;
  const auto take = [&](Arena &arena) {
    ScanBackward<T> scan(shape, weights, initial, call.threads);
    scan.take(arena);
    return scan;
  };
  return with_workspace(call, take, [&](ScanBackward<T> &scan) {
    scan.u = static_cast<const T *>(call.u), scan.gy = static_cast<const T *>(call.grad_y);
    scan.gh_last = static_cast<const T *>(call.grad_last), scan.checkpoints = static_cast<const T *>(call.saved);
    scan.gu = static_cast<T *>(call.grad_u), scan.gh0 = static_cast<T *>(call.grad_h0);
    scan.grads = gradients_of<T>(call);
    scan.driven = !initial && !call.grad_last;
    scan.run();
  });
}

// Numbers of `saved`. Python allocates it by a formula of its own, which torch.compile can trace; a test compares them.
template <typename T>
int64_t scan_saved(const Call &call) {
  return ScanPlan<T>(shape_of(call), call.initial != 0, call.threads).checkpoints(call.states);
}

}  // namespace

HOLDFAST_EXPORT const char *holdfast_s4d_fields() { return HOLDFAST_S4D_FIELDS(HOLDFAST_FIELD_TEXT); }
HOLDFAST_EXPORT int64_t holdfast_s4d_tile_steps() { return kTile; }
HOLDFAST_KERNEL(s4d_scan_forward, scan_forward)
HOLDFAST_KERNEL(s4d_scan_backward, scan_backward)
HOLDFAST_KERNEL(s4d_scan_saved, scan_saved)

}  // namespace holdfast::s4d
