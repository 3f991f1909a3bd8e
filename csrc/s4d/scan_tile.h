// The fused scan on one tile: states live in registers, a few modes at a time; only tiles touch memory. Compiled in
// scan_tile.cpp; `real` says that the modes have no imaginary parts.
#pragma once

#include "s4d/gradient.h"

namespace holdfast::s4d {

// Modes whose states and coefficients fit the registers: 6 vectors per mode forward, 10 backward.
constexpr int kForwardModes = HOLDFAST_VECTOR_BYTES == 64 ? 4 : 2;
constexpr int kBackwardModes = 2;

// y = skip u + sum of the modes, over one tile; advances their states.
template <typename T>
void forward_tile(bool real, const Tables<T> &tables, int64_t modes, Vector<T> skip, int64_t count, const T *u, T *y,
                  T *state);

// The gradient of forward_tile: `state` is the one before the tile, `adjoint` the gradient of the state after it on
// entry and before it on return; `history` has room for the states of the tile. `with_b`: sums for the gradient of b
// too.
template <typename T>
void backward_tile(bool real, bool with_b, const Tables<T> &tables, int64_t modes, Vector<T> skip, int64_t count,
                   const T *u, const T *gy, T *gu, const T *state, T *adjoint, T *history, const Sums<T> &sums);

}  // namespace holdfast::s4d
