// The recurrence itself over one row: h_k = a_k h_{k-1} + b_k and its adjoint. Direction is only the sign of the time
// strides. Everything that runs once per step is compiled once, in tile.cpp; what is around it asks for a Kind.
#pragma once

#include "scan/lanes.h"

namespace holdfast::scan {

// Units of channels that are taken at a time. Memory is fast in its own order only: a step of up to 64 units (256 real
// channels of AVX2) is taken whole, where the share of the triad fell to 0.6 with four units at a time.
constexpr int64_t most_units = 64;
// Units that are read before any of them is written: one that overlaps another has to be, in place, and more would not
// leave registers for the states.
constexpr int read_units = 4;

// Step k of a row begins at data + k * time.
template <typename T>
struct Strip {
  T *data;
  int64_t time;
  T *at(int64_t k) const { return data + k * time; }
  // step k of an array that may be null
  T *find(int64_t k) const { return data ? at(k) : nullptr; }
};

// Where the units of channels lie within a step, in numbers. A last unit that is not full is moved back so that it
// overlaps the one before it: both compute the same values there, and no masked store is needed.
struct Layout {
  int64_t begin, full, step;
  int64_t tail;  // begin of the overlapping unit, or -1
  int64_t im;    // from real to imaginary parts of planar numbers

  int64_t units() const { return full + (tail >= 0); }
  int64_t at(int64_t unit) const { return unit < full ? begin + unit * step : tail; }
  // the same units of a step that begins with them
  Layout shifted() const { return {0, full, step, tail < 0 ? -1 : tail - begin, im}; }
};

// How the units are cut into groups: large ones of whole blocks of 4 adjacent units, or small ones of at most 4 units.
// Only a small group holds an overlapping unit, and then not alone.
struct Groups {
  int64_t items, unit, count;  // of `unit` units each, shared by `count` groups

  Groups(const Layout &layout, Kind kind) : items(layout.units()), unit(1) {
    const bool large = layout.tail < 0 && layout.step == width && items % read_units == 0 && items > read_units;
    if (large) items /= read_units, unit = read_units;
    const int64_t most = large ? most_units / read_units / parts_of(kind) : read_units;
    count = (items + most - 1) / most;
  }
  // the first unit of a group, or where the last one ends
  int64_t begin(int64_t group) const { return items * group / count * unit; }
};

template <typename T>
struct Forward {
  Strip<const T> a, b;  // a.data alone, where a is constant in time
  Strip<T> h;           // data may be null: then only the state is followed
  int64_t ahead;        // steps to fetch beforehand, or 0
  bool streams;         // h is written past the caches
};

// Runs `steps` steps from the states, kept unit by unit in whole vectors whatever the arrays' order is. `dense`: a
// varies in time.
template <typename T>
void forward(Kind kind, bool dense, const Forward<T> &run, const Layout &layout, int64_t steps, double *states);

// The adjoint. With c the gradient that reaches the state after step k: g = grad_h_k + c, grad_b_k = g,
// grad_a_k = g conj(h_{k-1}), and conj(a_k) g goes on to step k - 1.
template <typename T>
struct Backward {
  Strip<const T> a, grad_h, h;
  const T *before;  // h_{-1}, or null: 0
  Strip<T> grad_b;  // data may be null, or grad_h's own
  Strip<T> grad_a;  // data may be null; used where a is dense
  bool want_a;
  int64_t ahead;
  bool streams;
};

// Runs the steps downwards. Where a is constant its gradient is added to `sums`, laid out as `states`.
template <typename T>
void backward(Kind kind, bool dense, const Backward<T> &run, const Layout &layout, int64_t steps, double *states,
              double *sums);

}  // namespace holdfast::scan
