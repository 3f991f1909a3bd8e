// The recurrence itself over one row: h_k = a_k h_{k-1} + b_k and its adjoint, up to four units of channels at a time
// with their states in registers. Direction is only the sign of the time strides.
#pragma once

#include <algorithm>
#include <type_traits>

#include "scan/lanes.h"

namespace holdfast::scan {

// Units whose states are in registers at a time. Memory is fast in its own order only: a step of up to 16 units (128
// real channels of AVX-512) is taken whole, where the share of the triad fell to 0.6 with four units at a time.
constexpr int64_t most_units = 16;
// Units that are read before any of them is written: one that overlaps another has to be, in place, and more would not
// leave registers for the states.
constexpr int read_units = 4;
// Where the units do not all fit, they take turns, each for a tile of steps: long enough to pay for the change, short
// enough that the whole width of the tile stays in the first cache until the next units read their part of its lines.
constexpr int64_t tile_bytes = 16 << 10;
constexpr int64_t tile_least = 4;

// Step k of a row begins at data + k * time.
template <typename T>
struct Strip {
  T *data;
  int64_t time;
  T *at(int64_t k) const { return data + k * time; }
};

// Where the units of channels lie within a step, in numbers. A last unit that is not full is moved back so that it
// overlaps the one before it: both compute the same values there, and no masked store is needed.
struct Layout {
  int64_t begin, full, step;
  int64_t tail;  // begin of the overlapping unit, or -1
  int64_t im;    // from real to imaginary parts of planar numbers

  int64_t units() const { return full + (tail >= 0); }
  int64_t at(int64_t unit) const { return unit < full ? begin + unit * step : tail; }
};

// States are kept unit by unit, whole vectors, whatever the arrays' order is.
template <typename K>
inline typename K::Value get(const double *states, int64_t unit) {
  return K::read(states + unit * K::parts * width, width);
}
template <typename K>
inline void put(double *states, int64_t unit, typename K::Value x) {
  K::template write<false>(states + unit * K::parts * width, width, x);
}

// Fetches the units at `at` of a step into the second cache. A block of channels jumps from step to step, which
// the hardware does not foresee: with two blocks to a row it reached 0.3-0.5 of the triad, so fetched 0.8-1.1.
template <int M, typename T>
inline void prefetch(const T *step, const int64_t *at) {
  for (int m = 0; m < M; m += static_cast<int>(sizeof(double) / sizeof(T))) __builtin_prefetch(step + at[m], 0, 2);
}

// Calls part(first, end) for each few of M units that are read together, in the direction in which the steps go: the
// hardware foresees addresses that only rise or only fall.
template <int M, bool Down, typename Part>
inline void in_reads(Part &&part) {
  constexpr int few = M < read_units ? M : read_units;
#pragma GCC unroll 4
  for (int done = 0; done < M; done += few) {
    const int first = Down ? M - few - done : done;
    part(first, first + few);
  }
}

// Writes value(m) of the units first .. end of a step; the choice is made once for all of them.
template <typename K, typename T, typename Value>
inline void write_units(bool streams, T *step, const Layout &layout, const int64_t *at, int first, int end, Value &&value) {
  if (streams) {
    for (int m = first; m < end; ++m) K::template write<true>(step + at[m], layout.im, value(m));
  } else {
    for (int m = first; m < end; ++m) K::template write<false>(step + at[m], layout.im, value(m));
  }
}

template <typename T>
struct Forward {
  Strip<const T> a, b;
  Strip<T> h;
  int64_t ahead;  // steps to fetch beforehand, or 0
  bool streams;   // h is written past the caches
};

// Runs steps [from, to) of `M` units. Without Write nothing is written, and where a is dense the product of a is
// formed beside the state: a summary of the steps as the map h -> product h + state.
template <typename K, bool Dense, bool Write, int M, typename T>
inline void forward_group(const Forward<T> &run, const Layout &layout, int64_t unit, int64_t from, int64_t to,
                          double *states, double *products) {
  using Value = typename K::Value;
  constexpr bool multiply = Dense && !Write;
  int64_t at[M];
  Value h[M], b[M], product[M];
  typename K::Factor a[M];
  for (int m = 0; m < M; ++m) {
    at[m] = layout.at(unit + m);
    h[m] = get<K>(states, unit + m);
    if constexpr (multiply) product[m] = get<K>(products, unit + m);
    if constexpr (!Dense) a[m] = K::factor(K::read(run.a.data + at[m], layout.im));
  }
  for (int64_t k = from; k < to; ++k) {
    const T *const ak = run.a.at(k);
    const T *const bk = run.b.at(k);
    if (run.ahead) {
      prefetch<M>(run.b.at(k + run.ahead), at);
      if constexpr (Dense) prefetch<M>(run.a.at(k + run.ahead), at);
    }
    T *const hk = run.h.at(k);
    in_reads<M, false>([&](int first, int end) {
      for (int m = first; m < end; ++m) {
        b[m] = K::read(bk + at[m], layout.im);
        if constexpr (Dense) a[m] = K::factor(K::read(ak + at[m], layout.im));
      }
      for (int m = first; m < end; ++m) {
        h[m] = K::fma(a[m], h[m], b[m]);
        if constexpr (multiply) product[m] = K::fma(a[m], product[m], Value{});
      }
      if constexpr (Write) write_units<K>(run.streams, hk, layout, at, first, end, [&](int m) { return h[m]; });
    });
  }
  for (int m = 0; m < M; ++m) {
    put<K>(states, unit + m, h[m]);
    if constexpr (multiply) put<K>(products, unit + m, product[m]);
  }
}

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

// Runs steps [from, to) downwards. Where a is constant its gradient is summed in `sums`. Without Write only the
// state (and the product) is followed.
template <typename K, bool Dense, bool Write, int M, typename T>
inline void backward_group(const Backward<T> &run, const Layout &layout, int64_t unit, int64_t from, int64_t to,
                           double *states, double *sums) {
  using Value = typename K::Value;
  int64_t at[M];
  Value c[M], g[M], sum[M];
  typename K::Factor a[M], h[M];
  for (int m = 0; m < M; ++m) {
    at[m] = layout.at(unit + m);
    c[m] = get<K>(states, unit + m);
    sum[m] = get<K>(sums, unit + m);
    if constexpr (!Dense) a[m] = K::conjugate(K::factor(K::read(run.a.data + at[m], layout.im)));
  }
  for (int64_t k = to; k-- > from;) {
    const T *const ak = run.a.at(k);
    const T *const gk = run.grad_h.at(k);
    if (run.ahead) {
      prefetch<M>(run.grad_h.at(k - run.ahead), at);
      if constexpr (Dense) prefetch<M>(run.a.at(k - run.ahead), at);
      if (Write && run.want_a) prefetch<M>(run.h.at(k - 1 - run.ahead), at);
    }
    const T *const hk = k > 0 ? run.h.at(k - 1) : run.before;
    in_reads<M, true>([&](int first, int end) {
      for (int m = first; m < end; ++m) {
        g[m] = K::add(K::read(gk + at[m], layout.im), c[m]);
        if constexpr (Dense) a[m] = K::conjugate(K::factor(K::read(ak + at[m], layout.im)));
      }
      for (int m = first; m < end; ++m) c[m] = K::fma(a[m], g[m], Value{});
      if constexpr (!Write) {
        if constexpr (Dense)
          for (int m = first; m < end; ++m) sum[m] = K::fma(a[m], sum[m], Value{});
        return;
      }
      if (run.want_a) {
        for (int m = first; m < end; ++m) {
          h[m] = K::conjugate(K::factor(hk ? K::read(hk + at[m], layout.im) : Value{}));
        }
        if constexpr (Dense) {
          write_units<K>(run.streams, run.grad_a.at(k), layout, at, first, end,
                         [&](int m) { return K::fma(h[m], g[m], Value{}); });
        } else {
          for (int m = first; m < end; ++m) sum[m] = K::fma(h[m], g[m], sum[m]);
        }
      }
      if (run.grad_b.data) {
        write_units<K>(run.streams, run.grad_b.at(k), layout, at, first, end, [&](int m) { return g[m]; });
      }
    });
  }
  for (int m = 0; m < M; ++m) {
    put<K>(states, unit + m, c[m]);
    put<K>(sums, unit + m, sum[m]);
  }
}

// Units of a group at most: many where results are written, in the order of memory; a summary reads as well by fours.
template <typename K, bool Write>
constexpr int64_t most_of = Write ? most_units / K::parts : read_units;

// How many groups the units are cut into, of 16, 8 or at most 4. Only a group of at most 4 holds an overlapping unit, and
// then not alone.
inline int64_t group_count(const Layout &layout, int64_t most) {
  const int64_t units = layout.units();
  for (int64_t size = most; size >= 8; size /= 2) {
    if (layout.tail < 0 && units % size == 0) return units / size;
  }
  return (units + read_units - 1) / read_units;
}

// Calls group(std::integral_constant<int, M>, unit, from, to) so that all steps of all units are covered, in the order of
// memory where the units are many.
template <typename K, typename T, bool Down, int64_t Most, typename Group>
inline void sweep(const Layout &layout, int64_t steps, Group &&group) {
  constexpr int64_t unit_bytes = K::parts * width * static_cast<int64_t>(sizeof(T));
  const int64_t units = layout.units(), groups = group_count(layout, Most);
  const int64_t size = units / groups, larger = units % groups;
  const int64_t tile = groups == 1 ? steps : std::max(tile_least, tile_bytes / (units * unit_bytes));
  for (int64_t done = 0; done < steps; done += tile) {
    const int64_t count = done + tile < steps ? tile : steps - done;
    const int64_t from = Down ? steps - done - count : done;
    for (int64_t i = 0; i < groups; ++i) {
      const int64_t unit = i * size + (i < larger ? i : larger);
      const auto run = [&](auto m) { group(m, unit, from, from + count); };
      switch (size + (i < larger)) {
        case 1: run(std::integral_constant<int, 1>{}); break;
        case 2: run(std::integral_constant<int, 2>{}); break;
        case 3: run(std::integral_constant<int, 3>{}); break;
        case 4: run(std::integral_constant<int, 4>{}); break;
        case 8:
          if constexpr (Most >= 8) run(std::integral_constant<int, 8>{});
          break;
        default:
          if constexpr (Most > 8) run(std::integral_constant<int, Most>{});
      }
    }
  }
}

template <typename K, bool Dense, bool Write, int64_t Most = most_of<K, Write>, typename T>
HOLDFAST_APART void forward(const Forward<T> &run, const Layout &layout, int64_t steps, double *states, double *products) {
  sweep<K, T, false, Most>(layout, steps, [&](auto m, int64_t unit, int64_t from, int64_t to) {
    forward_group<K, Dense, Write, m()>(run, layout, unit, from, to, states, products);
  });
}

template <typename K, bool Dense, bool Write, int64_t Most = most_of<K, Write>, typename T>
HOLDFAST_APART void backward(const Backward<T> &run, const Layout &layout, int64_t steps, double *states, double *sums) {
  sweep<K, T, true, Most>(layout, steps, [&](auto m, int64_t unit, int64_t from, int64_t to) {
    backward_group<K, Dense, Write, m()>(run, layout, unit, from, to, states, sums);
  });
}

}  // namespace holdfast::scan
