// Whole scans over (rows, steps, numbers), forward and backward.
#pragma once

#include "scan/rows.h"

namespace holdfast::scan {

template <typename T>
struct ForwardProblem {
  Kind kind;
  bool dense;  // a varies in time
  Shape shape;
  Array<const T> a, b;
  Array<T> h;   // may be b's own memory
  const T *h0;  // (rows, numbers) or null
  T *last;      // (rows, numbers)
};

template <typename T>
void run_forward(const ForwardProblem<T> &p, int threads);

template <typename T>
struct BackwardProblem {
  Kind kind;
  bool dense;
  Shape shape;
  Array<const T> a, grad_h, h;
  const T *h0, *grad_last;  // (rows, numbers) or null
  Array<T> grad_b;          // data may be null, or grad_h's own
  Array<T> grad_a;          // a's gradient where a is dense, or null
  T *sums;                  // (rows, numbers), a's gradient where a is constant in time, or null
  T *grad_h0;               // (rows, numbers)

  bool want_a() const { return grad_a.data != nullptr || sums != nullptr; }
};

template <typename T>
void run_backward(const BackwardProblem<T> &p, int threads);

}  // namespace holdfast::scan
