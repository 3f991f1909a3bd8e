// Activations of the RNN kernel on whole vectors, each with its derivative written in its own output.
#pragma once

#include "common/math.h"

namespace holdfast::rnn {

enum Activation : int32_t { kTanh = 0, kHardtanh = 1, kRelu = 2, kSigmoid = 3, kLinear = 4 };

template <typename T, int32_t Kind>
inline Vector<T> activate(Vector<T> x) {
  if constexpr (Kind == kTanh) return tanh_of<T>(x);
  if constexpr (Kind == kSigmoid) return sigmoid<T>(x);
  if constexpr (Kind == kHardtanh) return at_most<T>(at_least<T>(x, T(-1)), T(1));
  if constexpr (Kind == kRelu) return at_least<T>(x, T(0));
  return x;
}

// `slope` times the derivative of the activation at the input that gave `y`.
template <typename T, int32_t Kind>
inline Vector<T> differentiate(Vector<T> y, Vector<T> slope) {
  const Vector<T> zero{};
  if constexpr (Kind == kTanh) return slope * (T(1) - y * y);
  if constexpr (Kind == kSigmoid) return slope * (y * (T(1) - y));
  if constexpr (Kind == kHardtanh) return ((y <= T(-1)) | (y >= T(1))) ? zero : slope;
  if constexpr (Kind == kRelu) return y <= T(0) ? zero : slope;
  return slope;
}

}  // namespace holdfast::rnn
