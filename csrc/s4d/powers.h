// Tile kernels on powers of a, sixteen steps at once: the impulse response, its adjoint, and the state that a tile
// of inputs leaves. Each power is loaded once for two groups of eight steps. Sums over tiles are in double. Compiled in
// powers.cpp; `real` says that the modes have no imaginary parts.
#pragma once

#include "s4d/tables.h"

namespace holdfast::s4d {

// kernel_t = Re sum_modes c a^t for the steps of one tile, where `state` holds c a^first of each mode and is
// used up. A whole number of sixteens is written.
template <typename T>
void impulse_tile(bool real, const Tables<T> &tables, int64_t modes, int64_t count, T *state, T *kernel);

// sum_j a^j g_j and sum_j j a^j g_j over one tile of `count` steps, a multiple of sixteen.
template <typename T>
void moments_tile(bool real, const Tables<T> &tables, int64_t mode, int64_t count, const T *g, Pair<T> &zeroth,
                  Pair<T> &first);

// What `count` inputs, `stride` numbers apart, leave in states that were 0: sum_j a^(count - 1 - j) u_j of each mode.
template <typename T>
void absorb_tile(bool real, const Tables<T> &tables, int64_t modes, int64_t count, const T *u, int64_t stride,
                 T *state);

// total = a^n total + gained, in double; `leap` holds a^n.
template <typename T>
void carry(int64_t modes, const double *leap, const T *gained, double *total);

}  // namespace holdfast::s4d
