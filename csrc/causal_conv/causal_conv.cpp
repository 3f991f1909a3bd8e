// The C ABI of kernels.causal_conv: y_t = b + sum over k of w_k x_(t - K + 1 + k) for each channel, through silu where
// asked for. A vector's lanes are channels. Taps are (taps, channels), the state (rows, taps - 1, channels) is the
// inputs before the first step, the oldest first. A task is some channels of a row, so many that a step touches whole
// pages.
#include "common/call.h"
#include "common/math.h"
#include "common/parallel.h"

namespace holdfast::causal_conv {

// Gradients have to be zero before. Those of weight (rows, parts, taps, channels) and bias (rows, parts, channels) are
// a summand for each row and part of its steps. bias, state, lengths and grad_last may be null.
#define HOLDFAST_CAUSAL_CONV_FIELDS(X)                                                                              \
  X(int64_t, rows)                                                                                                  \
  X(int64_t, steps)                                                                                                 \
  X(int64_t, channels) X(int64_t, taps) X(int64_t, x_row) X(int64_t, x_step) X(int32_t, wide) X(int32_t, threads)   \
      X(int32_t, silu) X(const int64_t *, lengths) X(const void *, x) X(const void *, weight) X(const void *, bias) \
          X(const void *, state) X(void *, y) X(void *, last) X(const void *, grad_y) X(const void *, grad_last)    \
              X(void *, grad_x) X(void *, grad_weight) X(void *, grad_bias) X(void *, grad_state) X(void *, workspace)
HOLDFAST_CALL(causal_conv, HOLDFAST_CAUSAL_CONV_FIELDS)

namespace {

constexpr int64_t kBlockVectors = 16;  // vectors of a task
// Steps whose gradients of the weights are added up one after another: float32 rounds in sums of 256, not of all steps.
constexpr int64_t kPartSteps = 256;

template <typename T>
struct Convolution {
  int64_t rows, steps, channels, taps;
  int64_t x_row, x_step;
  bool silu;
  const int64_t *lengths;
  const T *x, *weight, *bias, *state;
  int threads;

  int64_t length(int64_t row) const { return lengths ? lengths[row] : steps; }

  // Calls body(row, first, end) for every row and block of channels.
  template <typename Body>
  void each(Body &&body) const {
    constexpr int64_t wide = kBlockVectors * lanes<T>;
    const int64_t blocks = (channels + wide - 1) / wide;
    parallel(threads, [&](int rank, int size) {
      const Range mine = share(rows * blocks, rank, size);
      for (int64_t task = mine.begin; task < mine.end; ++task) {
        const int64_t first = task % blocks * wide;
        body(task / blocks, first, first + wide < channels ? first + wide : channels);
      }
    });
  }

  // The input at step t, which may be before the first one.
  Vector<T> input(int64_t row, int64_t t, int64_t channel, int64_t count) const {
    if (t >= 0) return get(x + row * x_row + t * x_step + channel, count);
    return state ? get(state + (row * (taps - 1) + t + taps - 1) * channels + channel, count) : Vector<T>{};
  }

  Vector<T> before_silu(int64_t row, int64_t t, int64_t channel, int64_t count) const {
    Vector<T> sum = bias ? get(bias + channel, count) : Vector<T>{};
    for (int64_t k = 0; k < taps; ++k)
      sum += get(weight + k * channels + channel, count) * input(row, t - taps + 1 + k, channel, count);
    return sum;
  }
};

template <typename T>
Convolution<T> convolution(const Call &call) {
  return {call.rows,
          call.steps,
          call.channels,
          call.taps,
          call.x_row,
          call.x_step,
          call.silu != 0,
          call.lengths,
          static_cast<const T *>(call.x),
          static_cast<const T *>(call.weight),
          static_cast<const T *>(call.bias),
          static_cast<const T *>(call.state),
          call.threads};
}

// Calls body(channel, count) for each vector of the channels from `first` to `end`.
template <typename T, typename Body>
inline void vectors(int64_t first, int64_t end, Body &&body) {
  for (int64_t channel = first; channel < end; channel += lanes<T>)
    body(channel, end - channel < lanes<T> ? end - channel : lanes<T>);
}

// y is zero after a row's end before; `last` takes the inputs of a row's last taps - 1 steps.
template <typename T>
int64_t forward(const Call &call) {
  const Convolution<T> c = convolution<T>(call);
  T *const y = static_cast<T *>(call.y), *const last = static_cast<T *>(call.last);
  c.each([&](int64_t row, int64_t first, int64_t end) {
    const int64_t length = c.length(row), memory = c.taps - 1;
    for (int64_t t = 0; t < length; ++t)
      vectors<T>(first, end, [&](int64_t channel, int64_t count) {
        Vector<T> value = c.before_silu(row, t, channel, count);
        if (c.silu) value *= sigmoid<T>(value);
        put(y + (row * c.steps + t) * c.channels + channel, value, count);
      });
    for (int64_t k = 0; k < memory; ++k)
      vectors<T>(first, end, [&](int64_t channel, int64_t count) {
        put(last + (row * memory + k) * c.channels + channel, c.input(row, length - memory + k, channel, count), count);
      });
  });
  return 0;
}

template <typename T>
int64_t backward(const Call &call) {
  const Convolution<T> c = convolution<T>(call);
  const T *const grad_y = static_cast<const T *>(call.grad_y), *const grad_last =
                                                                   static_cast<const T *>(call.grad_last);
  T *const of_x = static_cast<T *>(call.grad_x), *const of_weight = static_cast<T *>(call.grad_weight);
  T *const of_bias = static_cast<T *>(call.grad_bias), *const of_state = static_cast<T *>(call.grad_state);
  c.each([&](int64_t row, int64_t first, int64_t end) {
    const int64_t length = c.length(row), memory = c.taps - 1, parts = (c.steps + kPartSteps - 1) / kPartSteps;
    const auto place = [&](int64_t t) {
      return t >= 0 ? of_x + (row * c.steps + t) * c.channels : of_state + (row * memory + t + memory) * c.channels;
    };
    const auto add = [](T *to, Vector<T> value, int64_t count) { put(to, get(to, count) + value, count); };
    for (int64_t k = 0; k < memory && grad_last; ++k)
      vectors<T>(first, end, [&](int64_t channel, int64_t count) {
        const T *const from = grad_last + (row * memory + k) * c.channels + channel;
        add(place(length - memory + k) + channel, get(from, count), count);
      });
    for (int64_t t = 0; t < length; ++t)
      vectors<T>(first, end, [&](int64_t channel, int64_t count) {
        Vector<T> g = get(grad_y + (row * c.steps + t) * c.channels + channel, count);
        if (c.silu) {
          const Vector<T> v = c.before_silu(row, t, channel, count), s = sigmoid<T>(v);
          g *= s * (T(1) + v * (T(1) - s));
        }
        const int64_t part = row * parts + t / kPartSteps;
        add(of_bias + part * c.channels + channel, g, count);
        for (int64_t k = 0; k < c.taps; ++k) {
          const Vector<T> x = c.input(row, t - memory + k, channel, count);
          add(of_weight + (part * c.taps + k) * c.channels + channel, g * x, count);
          add(place(t - memory + k) + channel, g * get(c.weight + k * c.channels + channel, count), count);
        }
      });
  });
  return 0;
}

}  // namespace

HOLDFAST_EXPORT int64_t holdfast_causal_conv_part_steps() { return kPartSteps; }
HOLDFAST_KERNEL(causal_conv_forward, forward)
HOLDFAST_KERNEL(causal_conv_backward, backward)

}  // namespace holdfast::causal_conv
