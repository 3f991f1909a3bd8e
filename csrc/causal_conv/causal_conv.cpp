// The C ABI of kernels.causal_conv: y_t = b + sum over k of w_k x_(t - K + 1 + k) for each channel, through silu where asked
// for. A vector's lanes are channels. Taps are (taps, channels), the state (rows, taps - 1, channels) is the inputs before
// the first step, the oldest first. A task is some channels of a row, so many that a step touches whole pages.
#include "common/export.h"
#include "selective/exponential.h"
#include "selective/problem.h"

namespace {

using namespace holdfast;
using selective::get;
using selective::put;

constexpr int64_t kBlock = 16;  // vectors of a task
constexpr int64_t kPart = 256;  // steps whose gradients of the weights are added up one after another

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
    constexpr int64_t wide = kBlock * lanes<T>;
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

// Calls body(channel, count) for each vector of the channels from `first` to `end`.
template <typename T, typename Body>
inline void vectors(int64_t first, int64_t end, Body &&body) {
  for (int64_t channel = first; channel < end; channel += lanes<T>)
    body(channel, end - channel < lanes<T> ? end - channel : lanes<T>);
}

// y is zero after a row's end before; `last` takes the inputs of a row's last taps - 1 steps.
template <typename T>
void forward(const Convolution<T> &c, T *y, T *last) {
  c.each([&](int64_t row, int64_t first, int64_t end) {
    const int64_t length = c.length(row), memory = c.taps - 1;
    for (int64_t t = 0; t < length; ++t)
      vectors<T>(first, end, [&](int64_t channel, int64_t count) {
        Vector<T> value = c.before_silu(row, t, channel, count);
        if (c.silu) value *= selective::sigmoid<T>(value);
        put(y + (row * c.steps + t) * c.channels + channel, value, count);
      });
    for (int64_t k = 0; k < memory; ++k)
      vectors<T>(first, end, [&](int64_t channel, int64_t count) {
        put(last + (row * memory + k) * c.channels + channel, c.input(row, length - memory + k, channel, count), count);
      });
  });
}

// All gradients have to be zero before. Those of weight (rows, parts, taps, channels) and bias (rows, parts, channels) are
// a summand for each row and part of its steps.
template <typename T>
void backward(const Convolution<T> &c, const T *grad_y, const T *grad_last, T *of_x, T *of_weight, T *of_bias, T *of_state) {
  c.each([&](int64_t row, int64_t first, int64_t end) {
    const int64_t length = c.length(row), memory = c.taps - 1, parts = (c.steps + kPart - 1) / kPart;
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
          const Vector<T> v = c.before_silu(row, t, channel, count), s = selective::sigmoid<T>(v);
          g *= s * (T(1) + v * (T(1) - s));
        }
        const int64_t part = row * parts + t / kPart;
        add(of_bias + part * c.channels + channel, g, count);
        for (int64_t k = 0; k < c.taps; ++k) {
          const Vector<T> x = c.input(row, t - memory + k, channel, count);
          add(of_weight + (part * c.taps + k) * c.channels + channel, g * x, count);
          add(place(t - memory + k) + channel, g * get(c.weight + k * c.channels + channel, count), count);
        }
      });
  });
}

// sizes: rows, steps, channels, taps, and the strides of rows and steps of x; inputs: x, weight, bias, state
template <typename T>
Convolution<T> convolution(const int64_t *s, int silu, const int64_t *lengths, const T *const *in, int threads) {
  return {s[0], s[1], s[2], s[3], s[4], s[5], silu != 0, lengths, in[0], in[1], in[2], in[3], threads};
}

}  // namespace

#define HOLDFAST_CAUSAL_CONV(SUFFIX, T)                                                                              \
  HOLDFAST_EXPORT void holdfast_causal_conv_forward_##SUFFIX(const int64_t *sizes, int silu, const int64_t *lengths, \
                                                             const T *const *inputs, T *y, T *last, int threads) {   \
    forward<T>(convolution<T>(sizes, silu, lengths, inputs, threads), y, last);                                      \
  }                                                                                                                  \
  HOLDFAST_EXPORT void holdfast_causal_conv_backward_##SUFFIX(                                                       \
      const int64_t *sizes, int silu, const int64_t *lengths, const T *const *inputs, const T *grad_y,               \
      const T *grad_last, T *of_x, T *of_weight, T *of_bias, T *of_state, int threads) {                             \
    backward<T>(convolution<T>(sizes, silu, lengths, inputs, threads), grad_y, grad_last, of_x, of_weight, of_bias,  \
                of_state);                                                                                           \
  }

HOLDFAST_CAUSAL_CONV(f32, float)
HOLDFAST_CAUSAL_CONV(f64, double)
