// The C ABI of kernels.causal_conv: y_t = b + sum over k of w_k x_(t - K + 1 + k) for each channel, through silu where
// asked for. A vector's lanes are channels. Taps are (taps, channels), the state (rows, taps - 1, channels) is the
// inputs before the first step, the oldest first. A task is some channels of a row.
#include <algorithm>
#include <numeric>

#include "common/call.h"
#include "common/math.h"
#include "common/parallel.h"

namespace holdfast::causal_conv {

// Gradients but that of x have to be zero before. Those of weight (rows, parts, taps, channels) and bias (rows, parts,
// channels) are a summand for each row and part of its steps. bias, state, lengths and grad_last may be null.
// clang-format off
#define HOLDFAST_CAUSAL_CONV_FIELDS(X) \
  X(int64_t, rows) X(int64_t, steps) X(int64_t, channels) X(int64_t, taps) X(int64_t, x_row) X(int64_t, x_step) \
  X(int32_t, wide) X(int32_t, threads) X(int32_t, silu) X(const int64_t *, lengths) X(const void *, x) \
  X(const void *, weight) X(const void *, bias) X(const void *, state) X(void *, y) X(void *, last) \
  X(const void *, grad_y) X(const void *, grad_last) X(void *, grad_x) X(void *, grad_weight) X(void *, grad_bias) \
  X(void *, grad_state) X(void *, workspace)
// clang-format on
HOLDFAST_CALL(causal_conv, HOLDFAST_CAUSAL_CONV_FIELDS)

namespace {

constexpr int64_t kBlockVectors = 16;  // vectors of a task, at the most
// Steps whose gradients of the weights are added up one after another: float32 rounds in sums of 256, not of all steps.
constexpr int64_t kPartSteps = 256;
// Steps of a tile, which one vector after another walks through: 32 steps of 16 vectors are 32 KB an array.
constexpr int64_t kTileSteps = 32;
static_assert(kPartSteps % kTileSteps == 0);

template <typename T>
struct Convolution {
  int64_t rows, steps, channels, taps;
  int64_t x_row, x_step;
  bool silu;
  const int64_t *lengths;
  const T *x, *weight, *bias, *state;
  int threads;

  int64_t length(int64_t row) const { return lengths ? lengths[row] : steps; }

  // Calls body(row, first, end) for every row and block of channels; few rows have as many blocks as give each thread
  // its share.
  template <typename Body>
  void each(Body &&body) const {
    const int64_t vectors = (channels + lanes<T> - 1) / lanes<T>, team = std::max(threads, 1);
    const int64_t parts = rows < 8 * team ? team / std::gcd(rows, team) : 1;
    const int64_t needed = ((vectors + kBlockVectors - 1) / kBlockVectors + parts - 1) / parts * parts;
    const int64_t wide = (vectors + needed - 1) / needed * lanes<T>;
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

// Calls body(taps) with the number of taps as a constant where it is 4, as in nearly every model, and 3; with 0 for any
// other.
template <typename Body>
inline void with_taps(int64_t taps, Body &&body) {
  if (taps == 4) return body(std::integral_constant<int, 4>{});
  if (taps == 3) return body(std::integral_constant<int, 3>{});
  body(std::integral_constant<int, 0>{});
}

// The weights of one vector of channels, and its last inputs, in registers.
template <typename T, int taps>
struct Window {
  Vector<T> weight[taps], bias, past[taps - 1];

  Window(const Convolution<T> &c, int64_t row, int64_t from, int64_t channel, int64_t count)
      : bias(c.bias ? get(c.bias + channel, count) : Vector<T>{}) {
    for (int k = 0; k < taps; ++k) weight[k] = get(c.weight + k * c.channels + channel, count);
    for (int k = 0; k < taps - 1; ++k) past[k] = c.input(row, from - taps + 1 + k, channel, count);
  }
  Vector<T> before_silu(Vector<T> x) const {
    Vector<T> sum = bias;
    for (int k = 0; k < taps - 1; ++k) sum += weight[k] * past[k];
    return sum + weight[taps - 1] * x;
  }
};

// Moves the entries of a window by one step.
template <typename V, std::size_t size>
inline void shift(V (&window)[size], V next) {
  for (std::size_t k = 0; k + 1 < size; ++k) window[k] = window[k + 1];
  window[size - 1] = next;
}

// Calls body(from, to) for each tile of the steps of a row.
template <typename Body>
inline void tiles(int64_t length, Body &&body) {
  for (int64_t from = 0; from < length; from += kTileSteps) body(from, std::min(from + kTileSteps, length));
}

// y is zero after a row's end before; `last` takes the inputs of a row's last taps - 1 steps.
template <typename T>
int64_t forward(const Call &call) {
  const Convolution<T> c = convolution<T>(call);
  T *const y = static_cast<T *>(call.y), *const last = static_cast<T *>(call.last);
  const auto write = [&](int64_t row, int64_t t, int64_t channel, int64_t count, Vector<T> value) {
    if (c.silu) value *= sigmoid<T>(value);
    put(y + (row * c.steps + t) * c.channels + channel, value, count);
  };
  c.each([&](int64_t row, int64_t first, int64_t end) {
    const int64_t length = c.length(row), memory = c.taps - 1;
    with_taps(c.taps, [&](auto taps) {
      tiles(length, [&](int64_t from, int64_t to) {
        vectors<T>(first, end, [&](int64_t channel, int64_t count) {
          if constexpr (taps.value > 0) {
            Window<T, taps.value> window(c, row, from, channel, count);
            for (int64_t t = from; t < to; ++t) {
              const Vector<T> x = get(c.x + row * c.x_row + t * c.x_step + channel, count);
              write(row, t, channel, count, window.before_silu(x));
              shift(window.past, x);
            }
          } else {
            for (int64_t t = from; t < to; ++t) write(row, t, channel, count, c.before_silu(row, t, channel, count));
          }
        });
      });
    });
    for (int64_t k = 0; k < memory; ++k)
      vectors<T>(first, end, [&](int64_t channel, int64_t count) {
        put(last + (row * memory + k) * c.channels + channel, c.input(row, length - memory + k, channel, count), count);
      });
  });
  return 0;
}

template <typename T>
struct Gradients {
  const T *y, *last;
  T *x, *weight, *bias, *state;
};

// The gradient of what silu has taken, from that of its result.
template <typename T>
inline Vector<T> through_silu(Vector<T> value, Vector<T> grad) {
  const Vector<T> s = sigmoid<T>(value);
  return grad * s * (T(1) + value * (T(1) - s));
}

// One task of the backward pass.
template <typename T>
struct BackwardBlock {
  const Convolution<T> &c;
  const Gradients<T> &grads;
  int64_t row, first, end, length, memory, parts;

  BackwardBlock(const Convolution<T> &c, const Gradients<T> &grads, int64_t row, int64_t first, int64_t end)
      : c(c), grads(grads), row(row), first(first), end(end), length(c.length(row)), memory(c.taps - 1),
        parts((c.steps + kPartSteps - 1) / kPartSteps) {}

  // Where the gradient of the input at step t goes, which may be one of the state.
  T *place(int64_t t) const {
    return t >= 0 ? grads.x + (row * c.steps + t) * c.channels : grads.state + (row * memory + t + memory) * c.channels;
  }
  static void add(T *to, Vector<T> value, int64_t count) { put(to, get(to, count) + value, count); }
  void add_to_weight(int64_t t, int64_t k, int64_t channel, int64_t count, Vector<T> value) const {
    const int64_t part = row * parts + t / kPartSteps;
    add(grads.weight + (part * c.taps + k) * c.channels + channel, value, count);
  }
  void add_to_bias(int64_t t, int64_t channel, int64_t count, Vector<T> value) const {
    add(grads.bias + (row * parts + t / kPartSteps) * c.channels + channel, value, count);
  }

  // Zeros from step `from` on, and the gradient of the last inputs on them and the state.
  void begin(int64_t from) const {
    for (int64_t t = std::max<int64_t>(from, 0); t < c.steps; ++t) std::fill(place(t) + first, place(t) + end, T(0));
    for (int64_t k = 0; k < memory && grads.last; ++k)
      vectors<T>(first, end, [&](int64_t channel, int64_t count) {
        const T *const of_last = grads.last + (row * memory + k) * c.channels + channel;
        add(place(length - memory + k) + channel, get(of_last, count), count);
      });
  }

  // Any number of taps: each step adds to the gradients of the inputs that it reads.
  void scatter() const {
    begin(0);
    for (int64_t t = 0; t < length; ++t)
      vectors<T>(first, end, [&](int64_t channel, int64_t count) {
        Vector<T> g = get(grads.y + (row * c.steps + t) * c.channels + channel, count);
        if (c.silu) g = through_silu<T>(c.before_silu(row, t, channel, count), g);
        add_to_bias(t, channel, count, g);
        for (int64_t k = 0; k < c.taps; ++k) {
          add_to_weight(t, k, channel, count, g * c.input(row, t - memory + k, channel, count));
          add(place(t - memory + k) + channel, g * get(c.weight + k * c.channels + channel, count), count);
        }
      });
  }

  // With the number of taps as a constant: an input's gradient is written once, after the last step that reads it.
  template <int taps>
  void gather() const {
    Vector<T> before[kBlockVectors][taps - 1] = {};  // the gradients of the steps before, which tiles hand on
    begin(length - memory);
    tiles(length, [&](int64_t from, int64_t to) {
      vectors<T>(first, end, [&](int64_t channel, int64_t count) {
        Window<T, taps> window(c, row, from, channel, count);
        Vector<T>(&kept)[taps - 1] = before[(channel - first) / lanes<T>];
        Vector<T> of_weight[taps] = {}, of_bias{}, past[taps - 1];
        std::copy_n(kept, taps - 1, past);
        for (int64_t t = from; t < to; ++t) {
          const Vector<T> x = get(c.x + row * c.x_row + t * c.x_step + channel, count);
          Vector<T> g = get(grads.y + (row * c.steps + t) * c.channels + channel, count);
          if (c.silu) g = through_silu<T>(window.before_silu(x), g);
          of_bias += g;
          for (int k = 0; k < taps - 1; ++k) of_weight[k] += g * window.past[k];
          of_weight[taps - 1] += g * x;
          const Vector<T> of_x = of_input<taps>(window.weight, past, g);
          T *const to_x = place(t - (taps - 1)) + channel;
          t < taps - 1 ? add(to_x, of_x, count) : put(to_x, of_x, count);
          shift(window.past, x);
          shift(past, g);
        }
        std::copy_n(past, taps - 1, kept);
        add_to_bias(from, channel, count, of_bias);
        for (int k = 0; k < taps; ++k) add_to_weight(from, k, channel, count, of_weight[k]);
      });
    });
    vectors<T>(first, end, [&](int64_t channel, int64_t count) {
      const Window<T, taps> window(c, row, length, channel, count);
      Vector<T>(&past)[taps - 1] = before[(channel - first) / lanes<T>];
      for (int64_t t = length; t < length + taps - 1; ++t) {
        add(place(t - (taps - 1)) + channel, of_input<taps>(window.weight, past, Vector<T>{}), count);
        shift(past, Vector<T>{});
      }
    });
  }

  // The gradient of the input taps - 1 steps ago, from those of the steps since then and `g` of this one.
  template <int taps>
  static Vector<T> of_input(const Vector<T> (&weight)[taps], const Vector<T> (&past)[taps - 1], Vector<T> g) {
    Vector<T> sum = weight[0] * g;
    for (int k = 1; k < taps; ++k) sum += weight[k] * past[taps - 1 - k];
    return sum;
  }
};

template <typename T>
int64_t backward(const Call &call) {
  const Convolution<T> c = convolution<T>(call);
  const Gradients<T> grads{static_cast<const T *>(call.grad_y), static_cast<const T *>(call.grad_last),
                           static_cast<T *>(call.grad_x),       static_cast<T *>(call.grad_weight),
                           static_cast<T *>(call.grad_bias),    static_cast<T *>(call.grad_state)};
  c.each([&](int64_t row, int64_t first, int64_t end) {
    const BackwardBlock<T> block(c, grads, row, first, end);
    with_taps(c.taps, [&](auto taps) {
      if constexpr (taps.value > 0) {
        block.template gather<taps.value>();
      } else {
        block.scatter();
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
