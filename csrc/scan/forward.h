// Whole forward problems: rows, blocks and folded groups over threads, and segments of time one after another.
#pragma once

#include "scan/carry.h"
#include "scan/fold.h"

namespace holdfast::scan {

template <typename T>
struct ForwardProblem {
  Shape shape;
  Array<const T> a, b;
  Array<T> h;   // may be b's own memory
  const T *h0;  // (rows, numbers) or null
  T *last;      // (rows, numbers)
};

template <typename K, bool Dense, bool Write, typename T, typename U>
void forward_block(const ForwardProblem<T> &p, const Span &span, const Layout &layout, const U *init, U *last,
                   double *product, bool streams) {
  alignas(64) double states[state_limit], products[state_limit];
  read_states<K>(layout, init, states);
  set_states<K>(layout, products, K::one());
  const Forward<T> run{strip(p.a, p.shape, span), strip(p.b, p.shape, span), strip(p.h, p.shape, span),
                       steps_ahead<K, T>(p.shape, layout), streams};
  forward<K, Dense, Write>(run, layout, span.count, states, products);
  if (streams) finish_streams();
  write_states<K>(layout, states, last);
  write_states<K>(layout, products, product);
}

template <typename K, bool Dense, bool Write, typename T, typename U>
void forward_fold(const ForwardProblem<T> &p, const Group &group, const U *init, U *last, double *product) {
  using Kind = typename Folded<K>::Kind;
  const int64_t numbers = p.shape.numbers, tile = scratch_vectors / numbers;
  const Layout layout = Folded<K>::layout(numbers);
  alignas(64) double states[fold_numbers * width], products[fold_numbers * width];
  alignas(64) Scratch a, b, h;
  for (int64_t lane = 0; lane < width; ++lane) {
    read_lane<K>(lane, numbers, group.row(init, lane, numbers), states);
  }
  set_states<Kind>(layout, products, Kind::one());
  const auto take = [&](int64_t end) {
    for (int64_t lane = 0; lane < group.present; ++lane) {
      if (group.count[lane] != end) continue;
      write_lane<K>(lane, numbers, states, group.row(last, lane, numbers));
      write_lane<K>(lane, numbers, products, group.row(product, lane, numbers));
    }
  };
  take(0);
  const auto rows_a = group.lanes(p.a, p.shape), rows_b = group.lanes(p.b, p.shape);
  const auto rows_h = group.lanes(p.h, p.shape);
  if constexpr (!Dense) gather(rows_a, group.count, 0, 1, numbers, a);
  for (int64_t from = 0, to; from < group.longest; from = to) {
    to = tile_end(group.count, from, tile);
    if constexpr (Dense) gather(rows_a, group.count, from, to, numbers, a);
    gather(rows_b, group.count, from, to, numbers, b);
    const Forward<double> run{tile_strip<const double>(a, to - from, Dense ? rows_a.time : 1, numbers),
                              tile_strip<const double>(b, to - from, rows_b.time, numbers),
                              tile_strip<double>(h, to - from, rows_h.time, numbers), 0, false};
    forward<Kind, Dense, Write, Write ? Folded<K>::most : read_units>(run, layout, to - from, states, products);
    if constexpr (Write) scatter(rows_h, group.count, from, to, numbers, h);
    take(to);
  }
}

// All spans of the problem. `init`, `last` and `products` hold one row of numbers for each span, or are null.
template <typename K, bool Dense, bool Write, typename T, typename U>
void forward_spans(const ForwardProblem<T> &p, const Split &split, const U *init, U *last, double *products,
                   bool streams = false) {
  const int64_t numbers = p.shape.numbers, rows = split.rows(p.shape);
  parallel(split.threads, [&](int rank, int size) {
    if constexpr (Write) clear_tails(p.h, p.shape, rank, size);
    for (int64_t group = rank; split.fold && group * width < rows; group += size) {
      forward_fold<K, Dense, Write>(p, Group(split, p.shape, group * width), init, last, products);
    }
    for (int64_t task = rank; !split.fold && task < rows * split.blocks; task += size) {
      const int64_t index = task / split.blocks;
      const Layout layout =
          block_layout(extent_of<K>(numbers), im_of<K>(numbers), task % split.blocks, split.blocks);
      forward_block<K, Dense, Write>(p, split.span(p.shape, index), layout, offset(init, index * numbers),
                                   offset(last, index * numbers), offset(products, index * numbers), streams);
    }
  });
}

template <typename K, bool Dense, typename T, typename U>
void forward_written(const ForwardProblem<T> &p, const Split &split, const U *init, U *last) {
  // in place the lines have been read anyway, and a streaming store would only drive them out
  const bool fresh = p.h.data != p.b.data && streams(p.h, p.shape, im_of<K>(p.shape.numbers));
  forward_spans<K, Dense, true>(p, split, init, last, nullptr, fresh);
}

template <typename K, bool Dense, typename T>
void run_forward(const ForwardProblem<T> &p, int threads) {
  const Shape &shape = p.shape;
  Split split = choose_split(shape, extent_of<K>(shape.numbers), threads);
  if (split.segments > 1) {
    const Carries carries(split.rows(shape), shape.numbers);
    if (carries.data) {
      forward_spans<K, Dense, false>(p, split, static_cast<const double *>(nullptr), carries.ends(),
                                            Dense ? carries.products() : nullptr);
      if constexpr (!Dense) powers<K>(carries, split, shape, p.a, false);
      chain<K>(carries, split, shape, p.h0, false);
      forward_written<K, Dense>(p, split, static_cast<const double *>(carries.starts()), carries.ends());
      for (int64_t row = 0; row < shape.rows; ++row) {
        copy_row(shape.numbers, carries.ends() + ((row + 1) * split.segments - 1) * shape.numbers,
                 p.last + row * shape.numbers);
      }
      return;
    }
    split.segments = 1;
    split.segment_steps = shape.steps;
  }
  forward_written<K, Dense>(p, split, p.h0, p.last);
}

}  // namespace holdfast::scan
