// Whole backward problems, cut like the forward ones, with the carry running against time.
#pragma once

#include "scan/carry.h"
#include "scan/fold.h"

namespace holdfast::scan {

template <typename T>
struct BackwardProblem {
  Shape shape;
  Array<const T> a, grad_h, h;
  const T *h0, *grad_last;  // (rows, numbers) or null
  Array<T> grad_b;          // data may be null, or grad_h's own
  Array<T> grad_a;          // a's gradient where a is dense, or null
  T *sums;                  // (rows, numbers), a's gradient where a is constant in time, or null
  T *grad_h0;               // (rows, numbers)

  bool want_a() const { return grad_a.data != nullptr || sums != nullptr; }
};

template <typename K, bool Dense, bool Write, typename T, typename U>
void backward_block(const BackwardProblem<T> &p, const Span &span, const Layout &layout, const U *init, U *grad_init,
                    U *sum, bool streams) {
  alignas(64) double states[state_limit], sums[state_limit];
  read_states<K>(layout, init, states);
  set_states<K>(layout, sums, Dense && !Write ? K::one() : typename K::Value{});
  const Strip<const T> h = strip(p.h, p.shape, span);
  const T *const before = span.first > 0 ? h.at(-1) : offset(p.h0, span.row * p.shape.numbers);
  const Backward<T> run{strip(p.a, p.shape, span),
                        strip(p.grad_h, p.shape, span),
                        h,
                        before,
                        strip(p.grad_b, p.shape, span),
                        strip(p.grad_a, p.shape, span),
                        p.want_a(),
                        steps_ahead<K, T>(p.shape, layout),
                        streams};
  backward<K, Dense, Write>(run, layout, span.count, states, sums);
  if (streams) finish_streams();
  write_states<K>(layout, states, grad_init);
  write_states<K>(layout, sums, sum);
}

// The states before steps [from, to), h_{from - 1} first: the rows' own, and h0 before the first of all.
template <typename T>
void gather_before(const BackwardProblem<T> &p, const Group &group, int64_t from, int64_t to, double *scratch) {
  const int64_t numbers = p.shape.numbers;
  Lanes<const T> rows = group.lanes(p.h, p.shape);
  for (int64_t lane = 0; lane < width; ++lane) {
    if (rows.data[lane]) rows.data[lane] -= rows.time;
  }
  if (from > 0) return gather(rows, group.count, from, to, numbers, scratch);
  gather(rows, group.count, 1, to, numbers, scratch + (rows.time < 0 ? 0 : numbers * width));
  double *const first = scratch + (rows.time < 0 ? to - 1 : 0) * numbers * width;
  for (int64_t lane = 0; lane < width; ++lane) {
    const Span &span = group.spans[lane];
    const bool inside = span.first > 0;
    const T *const row = span.count == 0 ? nullptr : inside ? rows.data[lane] : offset(p.h0, span.row * numbers);
    for (int64_t j = 0; j < numbers; ++j) first[j * width + lane] = row ? row[j] : 0;
  }
}

template <typename K, bool Dense, bool Write, typename T, typename U>
void backward_fold(const BackwardProblem<T> &p, const Group &group, const U *init, U *grad_init, U *sum) {
  using Kind = typename Folded<K>::Kind;
  const int64_t numbers = p.shape.numbers, tile = scratch_vectors / numbers;
  const Layout layout = Folded<K>::layout(numbers);
  alignas(64) double states[fold_numbers * width] = {}, sums[fold_numbers * width];
  alignas(64) Scratch a, grad_h, h, grad_b, grad_a;
  set_states<Kind>(layout, sums, Dense && !Write ? Kind::one() : typename Kind::Value{});
  const auto rows_a = group.lanes(p.a, p.shape), rows_g = group.lanes(p.grad_h, p.shape);
  const auto rows_b = group.lanes(p.grad_b, p.shape), rows_s = group.lanes(p.grad_a, p.shape);
  if constexpr (!Dense) gather(rows_a, group.count, 0, 1, numbers, a);
  for (int64_t to = group.longest, from;; to = from) {
    // before its own last step a lane has seen only zeros
    for (int64_t lane = 0; lane < group.present; ++lane) {
      if (group.count[lane] != to) continue;
      read_lane<K>(lane, numbers, group.row(init, lane, numbers), states);
      if constexpr (Dense && !Write) set_lane_one<K>(lane, numbers, sums);
    }
    if (to == 0) break;
    from = tile_begin(group.count, to, tile);
    const int64_t steps = to - from;
    if constexpr (Dense) gather(rows_a, group.count, from, to, numbers, a);
    gather(rows_g, group.count, from, to, numbers, grad_h);
    if (p.want_a() && Write) gather_before(p, group, from, to, h);
    const int64_t time = p.shape.reverse ? -1 : 1;
    const auto before = tile_strip<const double>(h, steps, time, numbers);
    const Backward<double> run{tile_strip<const double>(a, steps, Dense ? rows_a.time : 1, numbers),
                               tile_strip<const double>(grad_h, steps, rows_g.time, numbers),
                               {before.at(1), before.time},
                               before.data,
                               tile_strip<double>(p.grad_b.data ? grad_b : nullptr, steps, rows_b.time, numbers),
                               tile_strip<double>(p.grad_a.data ? grad_a : nullptr, steps, rows_s.time, numbers),
                               p.want_a(),
                               0,
                               false};
    backward<Kind, Dense, Write, Write ? Folded<K>::most : read_units>(run, layout, steps, states, sums);
    if constexpr (Write) {
      if (p.grad_b.data) scatter(rows_b, group.count, from, to, numbers, grad_b);
      if (p.grad_a.data) scatter(rows_s, group.count, from, to, numbers, grad_a);
    }
  }
  for (int64_t lane = 0; lane < group.present; ++lane) {
    write_lane<K>(lane, numbers, states, group.row(grad_init, lane, numbers));
    write_lane<K>(lane, numbers, sums, group.row(sum, lane, numbers));
  }
}

// All spans of the problem. `init`, `grad_init` and `sums` hold one row of numbers for each span, or are null.
template <typename K, bool Dense, bool Write, typename T, typename U>
void backward_spans(const BackwardProblem<T> &p, const Split &split, const U *init, U *grad_init, U *sums,
                    bool streams = false) {
  const int64_t numbers = p.shape.numbers, rows = split.rows(p.shape);
  parallel(split.threads, [&](int rank, int size) {
    if constexpr (Write) {
      clear_tails(p.grad_b, p.shape, rank, size);
      clear_tails(p.grad_a, p.shape, rank, size);
    }
    for (int64_t group = rank; split.fold && group * width < rows; group += size) {
      backward_fold<K, Dense, Write>(p, Group(split, p.shape, group * width), init, grad_init, sums);
    }
    for (int64_t task = rank; !split.fold && task < rows * split.blocks; task += size) {
      const int64_t index = task / split.blocks;
      const Layout layout =
          block_layout(extent_of<K>(numbers), im_of<K>(numbers), task % split.blocks, split.blocks);
      backward_block<K, Dense, Write>(p, split.span(p.shape, index), layout, offset(init, index * numbers),
                                    offset(grad_init, index * numbers), offset(sums, index * numbers), streams);
    }
  });
}

template <typename K, bool Dense, typename T, typename U>
void backward_written(const BackwardProblem<T> &p, const Split &split, const U *init, U *grad_init, U *sums) {
  const int64_t im = im_of<K>(p.shape.numbers);
  const bool fresh_b = p.grad_b.data == nullptr || (p.grad_b.data != p.grad_h.data && streams(p.grad_b, p.shape, im));
  const bool fresh_a = p.grad_a.data == nullptr || streams(p.grad_a, p.shape, im);
  backward_spans<K, Dense, true>(p, split, init, grad_init, sums, fresh_a && fresh_b);
}

template <typename K, bool Dense, typename T>
void run_backward(const BackwardProblem<T> &p, int threads) {
  const Shape &shape = p.shape;
  const int64_t numbers = shape.numbers;
  Split split = choose_split(shape, extent_of<K>(numbers), threads);
  if (split.segments > 1) {
    const Carries carries(split.rows(shape), numbers);
    if (carries.data) {
      backward_spans<K, Dense, false>(p, split, static_cast<const double *>(nullptr), carries.ends(),
                                             Dense ? carries.products() : nullptr);
      if constexpr (!Dense) powers<K>(carries, split, shape, p.a, true);
      chain<K>(carries, split, shape, p.grad_last, true);
      backward_written<K, Dense>(p, split, static_cast<const double *>(carries.starts()), carries.ends(),
                                 p.sums ? carries.products() : nullptr);
      for (int64_t row = 0; row < shape.rows; ++row) {
        const int64_t first = row * split.segments * numbers;
        copy_row(numbers, carries.ends() + first, p.grad_h0 + row * numbers);
        for (int64_t s = 1; p.sums && s < split.segments; ++s) {
          for (int64_t j = 0; j < numbers; ++j) carries.products()[first + j] += carries.products()[first + s * numbers + j];
        }
        copy_row(numbers, carries.products() + first, offset(p.sums, row * numbers));
      }
      return;
    }
    split.segments = 1;
    split.segment_steps = shape.steps;
  }
  backward_written<K, Dense>(p, split, p.grad_last, p.grad_h0, p.sums);
}

}  // namespace holdfast::scan
