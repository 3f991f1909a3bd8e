// Whole scans over (rows, steps, numbers), forward and backward.
#pragma once

#include "common/call.h"
#include "scan/carry.h"

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
void run(const ForwardProblem<T> &p, const Split &split, const Carries &carries);

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
void run(const BackwardProblem<T> &p, const Split &split, const Carries &carries);

// Runs a whole problem for the C ABI: the carries between segments of time are all its workspace.
template <typename Call, typename Problem>
int64_t run(const Call &call, const Problem &p) {
  if (p.shape.rows == 0 || p.shape.numbers == 0) return 0;
  const Split split = choose_split(p.shape, extent_of(p.kind, p.shape.numbers), call.threads);
  const int64_t spans = split.segments > 1 ? split.rows(p.shape) : 0;
  return with_workspace(
      call, [&](Arena &arena) { return Carries(arena, spans, p.shape.numbers); },
      [&](const Carries &carries) { run(p, split, carries); });
}

}  // namespace holdfast::scan
