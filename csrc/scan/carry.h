// The carry between segments of time. A segment maps the state before it to product * state + rest; with the maps of
// all segments at hand their first states follow one from another, and each segment is a row of its own.
#pragma once

#include "common/arena.h"
#include "common/math.h"
#include "scan/rows.h"

namespace holdfast::scan {

using Number = holdfast::Complex;  // scan::Complex is a kind of lanes

// Not inlined: gcc 12 with -fno-trapping-math turns a loop of `zero ? 0 : x * y` over interleaved complex numbers into
// wrong vector code (the add/subtract pattern loses its mask).
__attribute__((noinline)) inline Number multiply(Number x, Number y) {
  return {x.re * y.re - x.im * y.im, x.re * y.im + x.im * y.re};
}

// Calls body(re, im) with the places of each channel's parts in a step; im is -1 for real numbers.
template <typename Body>
inline void each_channel(Kind kind, int64_t numbers, Body &&body) {
  const int64_t channels = kind == Kind::real ? numbers : numbers / 2, step = kind == Kind::complex ? 2 : 1;
  const int64_t im = kind == Kind::complex ? 1 : channels;
  for (int64_t c = 0; c < channels; ++c) body(c * step, kind == Kind::real ? -1 : c * step + im);
}

template <typename U>
inline Number number(const U *row, int64_t re, int64_t im) {
  return {static_cast<double>(row[re]), im < 0 ? 0.0 : static_cast<double>(row[im])};
}
template <typename U>
inline void set_number(U *row, int64_t re, int64_t im, Number x) {
  row[re] = static_cast<U>(x.re);
  if (im >= 0) row[im] = static_cast<U>(x.im);
}

// to = product * from + rest. A state of 0 stays 0 even under a product that has overflowed.
inline void follow(Kind kind, int64_t numbers, const double *product, const double *rest, const double *from,
                   double *to) {
  each_channel(kind, numbers, [&](int64_t re, int64_t im) {
    const Number x = number(from, re, im), add = number(rest, re, im);
    const bool zero = x.re == 0 && x.im == 0;
    const Number moved = zero ? Number{0, 0} : multiply(number(product, re, im), x);
    set_number(to, re, im, {moved.re + add.re, moved.im + add.im});
  });
}

// result = a^count, conjugated where asked, by repeated squaring: 2 log2(count) roundings in float64.
template <typename T>
inline void power(Kind kind, int64_t numbers, const T *a, int64_t count, bool conjugate, double *result) {
  each_channel(kind, numbers, [&](int64_t re, int64_t im) {
    Number base = number(a, re, im), total{1, 0};
    for (int64_t left = count; left > 0; left >>= 1) {
      if (left & 1) total = multiply(total, base);
      base = multiply(base, base);
    }
    if (conjugate) total.im = -total.im;
    set_number(result, re, im, total);
  });
}

// Rows of float64 numbers, three for each span.
struct Carries {
  int64_t rows, numbers;
  double *data;

  Carries(Arena &arena, int64_t rows, int64_t numbers)
      : rows(rows), numbers(numbers), data(arena.take<double>(3 * rows * numbers)) {}
  double *products() const { return data; }
  double *ends() const { return data + rows * numbers; }
  double *starts() const { return data + 2 * rows * numbers; }
};

template <typename U, typename V>
inline void copy_row(int64_t numbers, const U *from, V *to) {
  if (to == nullptr) return;
  for (int64_t j = 0; j < numbers; ++j) to[j] = from ? static_cast<V>(from[j]) : V{0};
}

// Fills starts() of every row from products() and ends() of its segments, beginning with `first` (rows, numbers);
// downwards in time where `down`. Where `led`, the first segment has run from its own start, and its end is a state.
template <typename T>
inline void chain(Kind kind, const Carries &carries, const Split &split, const Shape &shape, const T *first, bool down,
                  bool led = false) {
  const int64_t numbers = shape.numbers, last = split.segments - 1;
  for (int64_t row = 0; row < shape.rows; ++row) {
    const auto at = [&](double *data, int64_t s) {
      return data + (row * split.segments + (down ? last - s : s)) * numbers;
    };
    copy_row(numbers, offset(first, row * numbers), at(carries.starts(), 0));
    if (led && last > 0) copy_row(numbers, at(carries.ends(), 0), at(carries.starts(), 1));
    for (int64_t s = led; s < last; ++s) {
      follow(kind, numbers, at(carries.products(), s), at(carries.ends(), s), at(carries.starts(), s),
             at(carries.starts(), s + 1));
    }
  }
}

// products() of every span where a is constant in time, but of those of segment `but`.
template <typename T>
inline void powers(Kind kind, const Carries &carries, const Split &split, const Shape &shape, const Array<const T> &a,
                   bool conjugate, int64_t but = -1) {
  for (int64_t index = 0; index < carries.rows; ++index) {
    if (index % split.segments == but) continue;
    const Span span = split.span(shape, index);
    power(kind, shape.numbers, a.data + span.row * a.row, span.count, conjugate,
          carries.products() + index * shape.numbers);
  }
}

}  // namespace holdfast::scan
