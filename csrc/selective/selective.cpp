// The C ABI of kernels.selective: the selective scan and its adjoint.
#include "selective/backward.h"

namespace holdfast::selective {

namespace {

template <typename T>
Problem<T> problem_of(const Call &call) {
  const auto sequence = [](const void *data, int64_t row, int64_t step) {
    return Sequence<const T>{static_cast<const T *>(data), row, step};
  };
  Problem<T> p{};
  p.rows = call.rows, p.steps = call.steps, p.channels = call.channels;
  p.groups = call.groups, p.states = call.states, p.parts = call.parts;
  p.softplus = call.softplus != 0, p.reverse = call.reverse != 0, p.threads = std::max(call.threads, 1);
  p.lengths = call.lengths, p.resets = {call.resets, call.resets_row, call.resets_step};
  p.u = sequence(call.u, call.u_row, call.u_step), p.dt = sequence(call.dt, call.dt_row, call.dt_step);
  p.b = sequence(call.B, call.B_row, call.B_step), p.c = sequence(call.C, call.C_row, call.C_step);
  p.z = sequence(call.z, call.z_row, call.z_step);
  p.a = static_cast<const T *>(call.A), p.d = static_cast<const T *>(call.D);
  p.bias = static_cast<const T *>(call.dt_bias), p.h0 = static_cast<const T *>(call.h0);
  return p;
}

template <typename T>
int64_t forward(const Call &call) {
  const Problem<T> p = problem_of<T>(call);
  const auto take = [&](Arena &arena) { return arena.take<T>(p.threads * forward_numbers(p)); };
  return with_workspace(call, take, [&](T *memory) {
    run_forward<T>(p, memory, static_cast<T *>(call.y), static_cast<T *>(call.last),
                   static_cast<T *>(call.checkpoints));
  });
}

template <typename T>
int64_t backward(const Call &call) {
  const Problem<T> p = problem_of<T>(call);
  const auto take = [&](Arena &arena) { return arena.take<T>(p.threads * Workspace<T>::size(p)); };
  const auto of = [](void *data) { return static_cast<T *>(data); };
  const Gradients<T> grads{of(call.grad_u), of(call.grad_dt), of(call.grad_A),       of(call.grad_B), of(call.grad_C),
                           of(call.grad_D), of(call.grad_z),  of(call.grad_dt_bias), of(call.grad_h0)};
  return with_workspace(call, take, [&](T *memory) {
    run_backward<T>(p, memory, of(call.checkpoints), static_cast<const T *>(call.grad_y),
                    static_cast<const T *>(call.grad_last), grads);
  });
}

// Numbers of `checkpoints`, which Python allocates by a formula of its own; a test compares them.
template <typename T>
int64_t saved(const Call &call) {
  const Problem<T> p = problem_of<T>(call);
  return p.rows * p.tiles() * p.states * p.channels;
}

}  // namespace

HOLDFAST_EXPORT int64_t holdfast_selective_tile_steps() { return kTileSteps; }
HOLDFAST_KERNEL(selective_forward, forward)
HOLDFAST_KERNEL(selective_backward, backward)
HOLDFAST_KERNEL(selective_saved, saved)

}  // namespace holdfast::selective
