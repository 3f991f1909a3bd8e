// The loops over time of scan/tile.h, for each kind of numbers.
#include "scan/tile.h"

#include <type_traits>

namespace holdfast::scan {

namespace {

// Where the units do not all fit, they take turns, each for a tile of steps: long enough to pay for the change, short
// enough that the whole width of the tile stays in the first cache until the next units read their part of its lines.
constexpr int64_t tile_bytes = 16 << 10;
constexpr int64_t tile_least = 4;

template <typename K>
inline typename K::Value get(const double *states, int64_t unit) {
  return K::read(states + unit * K::parts * width, width);
}
template <typename K>
inline void put(double *states, int64_t unit, typename K::Value x) {
  K::template write<false>(states + unit * K::parts * width, width, x);
}

// Where M units lie in a step; those of a large group are adjacent, so that one address serves them all.
template <int M, bool Adjacent>
struct Places {
  int64_t first[Adjacent ? 1 : M], im;
  Places(const Layout &layout, int64_t unit) : im(layout.im) {
    HOLDFAST_UNROLL
    for (int m = 0; m < (Adjacent ? 1 : M); ++m) first[m] = layout.at(unit + m);
  }
  int64_t at(int m) const { return Adjacent ? first[0] + m * width : first[m]; }

  // Fetches the units of a step into the second cache. A block of channels jumps from step to step, which the hardware
  // does not foresee: with two blocks to a row it reached 0.3-0.5 of the triad, so fetched 0.8-1.1.
  template <typename T>
  void prefetch(const T *step) const {
    constexpr int stride = static_cast<int>(sizeof(double) / sizeof(T));
    HOLDFAST_UNROLL
    for (int m = 0; m < M; m += stride) __builtin_prefetch(step + at(m), 0, 2);
  }
  template <typename K, typename T>
  void write(bool streams, T *step, const typename K::Value *x) const {
    if (streams) {
      HOLDFAST_UNROLL
      for (int m = 0; m < M; ++m) K::template write<true>(step + at(m), im, x[m]);
    } else {
      HOLDFAST_UNROLL
      for (int m = 0; m < M; ++m) K::template write<false>(step + at(m), im, x[m]);
    }
  }
};

// Runs steps [from, to) of `blocks` times M units, at most Most. One block has its states in registers; those of many
// are in the first cache, and taken in the direction of the steps: the hardware foresees addresses that only rise or
// only fall. `run` is a copy: what other memory may alias is read again after every store.
template <typename K, bool Dense, int M, int Most, typename T>
inline void forward_group(const Forward<T> run, const Layout &layout, int64_t unit, int64_t blocks, int64_t from,
                          int64_t to, double *states) {
  using Value = typename K::Value;
  const Places<M, (Most > M)> places(layout, unit);
  const int64_t count = Most > M ? blocks : 1;
  constexpr int64_t block = M * width;
  Value h[Most];
  typename K::Factor factors[Most];
  for (int64_t i = 0; i < count; ++i) HOLDFAST_UNROLL
  for (int m = 0; m < M; ++m) {
    h[i * M + m] = get<K>(states, unit + i * M + m);
    if constexpr (!Dense) factors[i * M + m] = K::factor(K::read(run.a.data + i * block + places.at(m), places.im));
  }
  const int64_t ahead_a = run.ahead * run.a.time, ahead_b = run.ahead * run.b.time;
  const bool down = run.b.time < 0;
  for (int64_t k = from; k < to; ++k) {
    const T *const a_now = run.a.at(k), *const b_now = run.b.at(k);
    T *const h_now = run.h.find(k);
    if (run.ahead) {
      for (int64_t i = 0; i < count; ++i) {
        places.prefetch(b_now + i * block + ahead_b);
        if constexpr (Dense) places.prefetch(a_now + i * block + ahead_a);
      }
    }
    for (int64_t j = 0; j < count; ++j) {
      const int64_t i = down ? count - 1 - j : j;
      const T *const ak = a_now + i * block, *const bk = b_now + i * block;
      Value next[M];
      HOLDFAST_UNROLL
      for (int m = 0; m < M; ++m) {
        const Value b = K::read(bk + places.at(m), places.im);
        if constexpr (Dense) {
          next[m] = K::fma(K::factor(K::read(ak + places.at(m), places.im)), h[i * M + m], b);
        } else {
          next[m] = K::fma(factors[i * M + m], h[i * M + m], b);
        }
      }
      HOLDFAST_UNROLL
      for (int m = 0; m < M; ++m) h[i * M + m] = next[m];
      if (h_now) places.template write<K>(run.streams, h_now + i * block, next);
    }
  }
  for (int64_t i = 0; i < count * M; ++i) put<K>(states, unit + i, h[i]);
}

// The adjoint of forward_group.
template <typename K, bool Dense, int M, int Most, typename T>
inline void backward_group(const Backward<T> run, const Layout &layout, int64_t unit, int64_t blocks, int64_t from,
                           int64_t to, double *states, double *sums) {
  using Value = typename K::Value;
  using Factor = typename K::Factor;
  const Places<M, (Most > M)> places(layout, unit);
  const int64_t count = Most > M ? blocks : 1;
  constexpr int64_t block = M * width;
  Value c[Most], sum[Most];
  Factor factors[Most];
  for (int64_t i = 0; i < count; ++i) HOLDFAST_UNROLL
  for (int m = 0; m < M; ++m) {
    c[i * M + m] = get<K>(states, unit + i * M + m);
    if constexpr (Dense) continue;
    sum[i * M + m] = get<K>(sums, unit + i * M + m);
    factors[i * M + m] = K::conjugate(K::factor(K::read(run.a.data + i * block + places.at(m), places.im)));
  }
  const int64_t ahead_a = run.ahead * run.a.time, ahead_g = run.ahead * run.grad_h.time,
                ahead_h = run.ahead * run.h.time;
  const bool down = run.grad_h.time > 0;
  for (int64_t k = to; k-- > from;) {
    const T *const h_before = k > 0 ? run.h.find(k - 1) : run.before;
    if (run.ahead) {
      for (int64_t i = 0; i < count; ++i) {
        places.prefetch(run.grad_h.at(k) + i * block - ahead_g);
        if constexpr (Dense) places.prefetch(run.a.at(k) + i * block - ahead_a);
        if (run.want_a) places.prefetch(run.h.at(k - 1) + i * block - ahead_h);
      }
    }
    for (int64_t j = 0; j < count; ++j) {
      const int64_t i = down ? count - 1 - j : j;
      const T *const ak = run.a.at(k) + i * block, *const gk = run.grad_h.at(k) + i * block;
      const T *const hk = h_before ? h_before + i * block : nullptr;
      Value g[M];
      HOLDFAST_UNROLL
      for (int m = 0; m < M; ++m) {
        g[m] = K::add(K::read(gk + places.at(m), places.im), c[i * M + m]);
        if constexpr (Dense) {
          c[i * M + m] = K::fma(K::conjugate(K::factor(K::read(ak + places.at(m), places.im))), g[m], Value{});
        } else {
          c[i * M + m] = K::fma(factors[i * M + m], g[m], Value{});
        }
      }
      if (run.want_a) {
        Value h[M], of_a[M];
        HOLDFAST_UNROLL
        for (int m = 0; m < M; ++m) h[m] = hk ? K::read(hk + places.at(m), places.im) : Value{};
        HOLDFAST_UNROLL
        for (int m = 0; m < M; ++m)
          of_a[m] = K::fma(K::conjugate(K::factor(h[m])), g[m], Dense ? Value{} : sum[i * M + m]);
        if constexpr (Dense) {
          places.template write<K>(run.streams, run.grad_a.at(k) + i * block, of_a);
        } else {
          HOLDFAST_UNROLL
          for (int m = 0; m < M; ++m) sum[i * M + m] = of_a[m];
        }
      }
      if (run.grad_b.data) places.template write<K>(run.streams, run.grad_b.at(k) + i * block, g);
    }
  }
  for (int64_t i = 0; i < count * M; ++i) {
    put<K>(states, unit + i, c[i]);
    if constexpr (!Dense) put<K>(sums, unit + i, sum[i]);
  }
}

// Calls group(units, first unit, from, to) so that all steps of all units are covered, in the order of memory where the
// units are many. `bytes` of one unit.
template <bool Down, typename Group>
inline void sweep(Kind kind, int64_t bytes, const Layout &layout, int64_t steps, Group &&group) {
  const Groups groups(layout, kind);
  const int64_t fit = tile_bytes / (layout.units() * bytes);
  const int64_t tile = groups.count == 1 ? steps : fit < tile_least ? tile_least : fit;
  for (int64_t done = 0; done < steps; done += tile) {
    const int64_t count = done + tile < steps ? tile : steps - done, from = Down ? steps - done - count : done;
    for (int64_t i = 0; i < groups.count; ++i) {
      const int64_t unit = groups.begin(i);
      group(groups.begin(i + 1) - unit, unit, from, from + count);
    }
  }
}

template <typename K, bool Dense, typename T>
void forward_units(const Forward<T> &run, const Layout &layout, int64_t steps, double *states) {
  constexpr int most = most_units / K::parts;
  const auto group = [&](int64_t size, int64_t unit, int64_t from, int64_t to) {
    switch (size) {
      case 1:
        return forward_group<K, Dense, 1, 1>(run, layout, unit, 1, from, to, states);
      case 2:
        return forward_group<K, Dense, 2, 2>(run, layout, unit, 1, from, to, states);
      case 3:
        return forward_group<K, Dense, 3, 3>(run, layout, unit, 1, from, to, states);
      case 4:
        return forward_group<K, Dense, 4, 4>(run, layout, unit, 1, from, to, states);
      default:
        return forward_group<K, Dense, 4, most>(run, layout, unit, size / 4, from, to, states);
    }
  };
  sweep<false>(K::kind, K::parts * width * static_cast<int64_t>(sizeof(T)), layout, steps, group);
}

template <typename K, bool Dense, typename T>
void backward_units(const Backward<T> &run, const Layout &layout, int64_t steps, double *states, double *sums) {
  constexpr int most = most_units / K::parts;
  const auto group = [&](int64_t size, int64_t unit, int64_t from, int64_t to) {
    switch (size) {
      case 1:
        return backward_group<K, Dense, 1, 1>(run, layout, unit, 1, from, to, states, sums);
      case 2:
        return backward_group<K, Dense, 2, 2>(run, layout, unit, 1, from, to, states, sums);
      case 3:
        return backward_group<K, Dense, 3, 3>(run, layout, unit, 1, from, to, states, sums);
      case 4:
        return backward_group<K, Dense, 4, 4>(run, layout, unit, 1, from, to, states, sums);
      default:
        return backward_group<K, Dense, 4, most>(run, layout, unit, size / 4, from, to, states, sums);
    }
  };
  sweep<true>(K::kind, K::parts * width * static_cast<int64_t>(sizeof(T)), layout, steps, group);
}

// Calls body(kind, dense) with the two choices as types. Planar numbers whose factor varies in time are folded complex
// ones, which are float64.
template <typename T, typename Body>
inline void choose(Kind kind, bool dense, Body &&body) {
  if (kind == Kind::real) return dense ? body(Real{}, std::true_type{}) : body(Real{}, std::false_type{});
  if (kind == Kind::complex) return dense ? body(Complex{}, std::true_type{}) : body(Complex{}, std::false_type{});
  if constexpr (sizeof(T) == sizeof(double)) {
    if (dense) return body(Planar{}, std::true_type{});
  }
  body(Planar{}, std::false_type{});
}

}  // namespace

template <typename T>
void forward(Kind kind, bool dense, const Forward<T> &run, const Layout &layout, int64_t steps, double *states) {
  choose<T>(kind, dense, [&](auto k, auto varies) {
    forward_units<decltype(k), decltype(varies)::value>(run, layout, steps, states);
  });
}

template <typename T>
void backward(Kind kind, bool dense, const Backward<T> &run, const Layout &layout, int64_t steps, double *states,
              double *sums) {
  choose<T>(kind, dense, [&](auto k, auto varies) {
    backward_units<decltype(k), decltype(varies)::value>(run, layout, steps, states, sums);
  });
}

template void forward(Kind, bool, const Forward<float> &, const Layout &, int64_t, double *);
template void forward(Kind, bool, const Forward<double> &, const Layout &, int64_t, double *);
template void backward(Kind, bool, const Backward<float> &, const Layout &, int64_t, double *, double *);
template void backward(Kind, bool, const Backward<double> &, const Layout &, int64_t, double *, double *);

}  // namespace holdfast::scan
