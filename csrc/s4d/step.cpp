// One step of the S4D recurrence for a stream: h+ = factor h + gain u, y = 2 Re[c h+] + d u for each feature, all modes of a
// feature side by side as torch's complex numbers, or real: y = c h+ + d u.
#include "common/export.h"
#include "common/parallel.h"

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
void s4d_step(int complex, int64_t batch, int64_t features, int64_t modes, const T *u, const T *state, const T *factor,
              const T *gain, const T *c, const T *d, T *y, T *next) {
  const holdfast::FlushDenormals scope;
  const int64_t numbers = complex ? 2 * modes : modes;
  for (int64_t i = 0; i < batch * features; ++i) {
    const int64_t at = i % features * numbers, row = i * numbers;
    const T read = complex ? complex_modes(modes, u[i], state + row, factor + at, gain + at, c + at, next + row)
                           : real_modes(modes, u[i], state + row, factor + at, gain + at, c + at, next + row);
    y[i] = read + d[i % features] * u[i];
  }
}

}  // namespace

// u and y (batch, features); state and next (batch, features, modes), apart from each other; the others without batch.
#define HOLDFAST_S4D_STEP(NAME, T)                                                                                  \
  HOLDFAST_EXPORT void NAME(int complex, int64_t batch, int64_t features, int64_t modes, const T *u, const T *state, \
                            const T *factor, const T *gain, const T *c, const T *d, T *y, T *next) {                \
    s4d_step<T>(complex, batch, features, modes, u, state, factor, gain, c, d, y, next);                            \
  }
HOLDFAST_S4D_STEP(holdfast_s4d_step_f32, float)
HOLDFAST_S4D_STEP(holdfast_s4d_step_f64, double)
