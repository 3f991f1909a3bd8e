// One step of the S4D recurrence for a stream: h+ = factor h + gain u, y = 2 Re[c h+] + d u for each feature, all modes
// of a feature side by side as torch's complex numbers, or real: y = c h+ + d u.
#include "common/call.h"
#include "common/parallel.h"

namespace holdfast::s4d_step {

// u and y (batch, features); state and next (batch, features, modes), apart from each other; the others without batch.
// clang-format off
#define HOLDFAST_S4D_STEP_FIELDS(X) \
  X(int64_t, batch) X(int64_t, features) X(int64_t, modes) X(int32_t, wide) X(int32_t, complex) X(const void *, u) \
  X(const void *, state) X(const void *, factor) X(const void *, gain) X(const void *, c) X(const void *, d) \
  X(void *, y) X(void *, next) X(int32_t, threads) X(void *, workspace)
// clang-format on
HOLDFAST_CALL(s4d_step, HOLDFAST_S4D_STEP_FIELDS)

namespace {

template <typename T>
T complex_modes(int64_t modes, T u, const T *__restrict state, const T *__restrict factor, const T *__restrict gain,
                const T *__restrict c, T *__restrict next) {
  T sum = 0;
  for (int64_t n = 0; n < 2 * modes; n += 2) {
    const T re = factor[n] * state[n] - factor[n + 1] * state[n + 1] + gain[n] * u;
    const T im = factor[n] * state[n + 1] + factor[n + 1] * state[n] + gain[n + 1] * u;
    next[n] = re;
    next[n + 1] = im;
    sum += c[n] * re - c[n + 1] * im;
  }
  return 2 * sum;
}

template <typename T>
T real_modes(int64_t modes, T u, const T *__restrict state, const T *__restrict factor, const T *__restrict gain,
             const T *__restrict c, T *__restrict next) {
  T sum = 0;
  for (int64_t n = 0; n < modes; ++n) {
    next[n] = factor[n] * state[n] + gain[n] * u;
    sum += c[n] * next[n];
  }
  return sum;
}

template <typename T>
int64_t step(const Call &call) {
  const FlushDenormals scope;
  const int64_t features = call.features, modes = call.modes, numbers = call.complex ? 2 * modes : modes;
  const T *const u = static_cast<const T *>(call.u), *const state = static_cast<const T *>(call.state);
  const T *const factor = static_cast<const T *>(call.factor), *const gain = static_cast<const T *>(call.gain);
  const T *const c = static_cast<const T *>(call.c), *const d = static_cast<const T *>(call.d);
  T *const y = static_cast<T *>(call.y), *const next = static_cast<T *>(call.next);
  const auto read = call.complex ? complex_modes<T> : real_modes<T>;
  for (int64_t i = 0; i < call.batch * features; ++i) {
    const int64_t at = i % features * numbers, row = i * numbers;
    y[i] = read(modes, u[i], state + row, factor + at, gain + at, c + at, next + row) + d[i % features] * u[i];
  }
  return 0;
}

}  // namespace

HOLDFAST_KERNEL(s4d_step, step)

}  // namespace holdfast::s4d_step
