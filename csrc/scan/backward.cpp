// Whole backward problems, cut like the forward ones, with the carry running against time.
#include "scan/carry.h"
#include "scan/fold.h"
#include "scan/problem.h"

namespace holdfast::scan {

namespace {

template <typename T>
void summarize_block(const BackwardProblem<T> &p, const Backward<T> &run, const Layout &layout, int64_t steps,
                     double *states, double *products) {
  const int64_t some = std::max<int64_t>(summary_numbers / (layout.units() * width), 1);
  for (int64_t left = steps, count; left > 0; left -= count) {
    count = std::min(some, left);
    Backward<T> part{};
    part.a = {run.a.at(left - count), run.a.time};
    part.grad_h = {run.grad_h.at(left - count), run.grad_h.time};
    part.ahead = run.ahead;
    backward(p.kind, true, part, layout, count, states, nullptr);
    part.a.data += layout.begin;
    part.grad_h = {no_inputs<T>, 0};
    part.ahead = 0;
    backward(p.kind, true, part, layout.shifted(), count, products, nullptr);
  }
}

// `sum`: the gradient of a that is constant in time, or of a summary the product of a that varies.
template <typename T>
void backward_block(const BackwardProblem<T> &p, const Span &span, const Layout &layout, Edge<const T> init,
                    Edge<T> grad_init, Edge<T> sum, bool write, bool streams) {
  alignas(64) double states[state_limit], sums[state_limit];
  read_states(p.kind, layout, static_cast<const T *>(nullptr), states);
  init.with([&](const auto *row) { read_states(p.kind, layout, row, states); });
  set_states(p.kind, layout, sums, p.dense && !write ? 1 : 0);
  Backward<T> run{};
  run.a = strip(p.a, p.shape, span);
  run.grad_h = strip(p.grad_h, p.shape, span);
  run.ahead = steps_ahead<T>(p.kind, p.shape, layout);
  if (write) {
    run.h = strip(p.h, p.shape, span);
    run.before = span.first > 0 ? run.h.at(-1) : offset(p.h0, span.row * p.shape.numbers);
    run.grad_b = strip(p.grad_b, p.shape, span);
    run.grad_a = strip(p.grad_a, p.shape, span);
    run.want_a = p.want_a();
    run.streams = streams;
  }
  if (p.dense && !write) {
    summarize_block(p, run, layout, span.count, states, sums);
  } else {
    backward(p.kind, p.dense, run, layout, span.count, states, sums);
  }
  if (streams) finish_streams();
  grad_init.with([&](auto *row) { write_states(p.kind, layout, states, row); });
  sum.with([&](auto *row) { write_states(p.kind, layout, sums, row); });
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

// One tile of a folded group, in scratch memory.
struct FoldTile {
  alignas(64) Scratch a, grad_h, h, grad_b, grad_a;
};

template <typename T>
void backward_fold(const BackwardProblem<T> &p, const Group &group, Edge<const T> init, Edge<T> grad_init, Edge<T> sum,
                   bool write) {
  const Kind kind = folded(p.kind);
  const int64_t numbers = p.shape.numbers, tile = scratch_vectors / numbers;
  const Layout layout = folded_layout(p.kind, numbers);
  alignas(64) double states[fold_numbers * width] = {}, sums[fold_numbers * width];
  FoldTile scratch;
  const bool follow_product = p.dense && !write, want_a = p.want_a() && write;
  set_states(kind, layout, sums, follow_product ? 1 : 0);
  const auto rows_a = group.lanes(p.a, p.shape), rows_g = group.lanes(p.grad_h, p.shape);
  const auto rows_b = group.lanes(p.grad_b, p.shape), rows_s = group.lanes(p.grad_a, p.shape);
  if (!p.dense) gather(rows_a, group.count, 0, 1, numbers, scratch.a);
  for (int64_t to = group.longest, from;; to = from) {
    // before its own last step a lane has seen only zeros
    for (int64_t lane = 0; lane < group.present; ++lane) {
      if (group.count[lane] != to) continue;
      init.at(lane * numbers).with([&](const auto *row) { read_lane(p.kind, lane, numbers, row, states); });
      if (follow_product) set_lane_one(p.kind, lane, numbers, sums);
    }
    if (to == 0) break;
    from = tile_begin(group.count, to, tile);
    const int64_t steps = to - from;
    if (p.dense) gather(rows_a, group.count, from, to, numbers, scratch.a);
    gather(rows_g, group.count, from, to, numbers, scratch.grad_h);
    if (want_a) gather_before(p, group, from, to, scratch.h);
    Backward<double> run{};
    run.a = tile_strip<const double>(scratch.a, steps, p.dense ? rows_a.time : 1, numbers);
    run.grad_h = tile_strip<const double>(scratch.grad_h, steps, rows_g.time, numbers);
    if (write) {
      const auto before = tile_strip<const double>(scratch.h, steps, p.shape.reverse ? -1 : 1, numbers);
      run.h = {before.at(1), before.time};
      run.before = before.data;
      run.grad_b = tile_strip<double>(p.grad_b.data ? scratch.grad_b : nullptr, steps, rows_b.time, numbers);
      run.grad_a = tile_strip<double>(p.grad_a.data ? scratch.grad_a : nullptr, steps, rows_s.time, numbers);
      run.want_a = want_a;
    }
    backward(kind, p.dense, run, layout, steps, states, sums);
    if (follow_product) {
      run.grad_h = {no_inputs<double>, 0};
      backward(kind, true, run, layout, steps, sums, nullptr);
    }
    if (write && p.grad_b.data) scatter(rows_b, group.count, from, to, numbers, scratch.grad_b);
    if (write && p.grad_a.data) scatter(rows_s, group.count, from, to, numbers, scratch.grad_a);
  }
  for (int64_t lane = 0; lane < group.present; ++lane) {
    grad_init.at(lane * numbers).with([&](auto *row) { write_lane(p.kind, lane, numbers, states, row); });
    sum.at(lane * numbers).with([&](auto *row) { write_lane(p.kind, lane, numbers, sums, row); });
  }
}

// All spans of the problem. `init`, `grad_init` and `sums` hold one row of numbers for each span, or are null.
template <typename T>
void backward_spans(const BackwardProblem<T> &p, const Split &split, Edge<const T> init, Edge<T> grad_init,
                    Edge<T> sums, bool write, bool streams) {
  const int64_t numbers = p.shape.numbers, rows = split.rows(p.shape);
  parallel(split.threads, [&](int rank, int size) {
    if (write) {
      clear_tails(p.grad_b, p.shape, rank, size);
      clear_tails(p.grad_a, p.shape, rank, size);
    }
    for (int64_t first = rank * width; split.fold && first < rows; first += size * width) {
      const int64_t at = first * numbers;
      backward_fold(p, Group(split, p.shape, first), init.at(at), grad_init.at(at), sums.at(at), write);
    }
    for (int64_t task = rank; !split.fold && task < rows * split.blocks; task += size) {
      const int64_t index = task / split.blocks, at = index * numbers;
      const Layout layout =
          block_layout(extent_of(p.kind, numbers), im_of(p.kind, numbers), task % split.blocks, split.blocks);
      backward_block(p, split.span(p.shape, index), layout, init.at(at), grad_init.at(at), sums.at(at), write, streams);
    }
  });
}

template <typename T>
void backward_written(const BackwardProblem<T> &p, const Split &split, Edge<const T> init, Edge<T> grad_init,
                      Edge<T> sums) {
  const int64_t im = im_of(p.kind, p.shape.numbers);
  const bool fresh_b = p.grad_b.data == nullptr || (p.grad_b.data != p.grad_h.data && streams(p.grad_b, p.shape, im));
  const bool fresh_a = p.grad_a.data == nullptr || streams(p.grad_a, p.shape, im);
  backward_spans(p, split, init, grad_init, sums, true, fresh_a && fresh_b);
}

template <typename T>
void backward_segments(const BackwardProblem<T> &p, const Split &split, const Carries &carries) {
  const Shape &shape = p.shape;
  const int64_t numbers = shape.numbers;
  const Edge<T> ends{nullptr, carries.ends()}, products{nullptr, carries.products()};
  backward_spans<T>(p, split, {}, ends, p.dense ? products : Edge<T>{}, false, false);
  if (!p.dense) powers(p.kind, carries, split, shape, p.a, true);
  chain(p.kind, carries, split, shape, p.grad_last, true);
  backward_written<T>(p, split, {nullptr, carries.starts()}, ends, p.sums ? products : Edge<T>{});
  for (int64_t row = 0; row < shape.rows; ++row) {
    double *const first = carries.products() + row * split.segments * numbers;
    copy_row(numbers, carries.ends() + row * split.segments * numbers, p.grad_h0 + row * numbers);
    for (int64_t i = numbers; p.sums && i < split.segments * numbers; ++i) first[i % numbers] += first[i];
    copy_row(numbers, first, offset(p.sums, row * numbers));
  }
}

}  // namespace

template <typename T>
void run(const BackwardProblem<T> &p, const Split &split, const Carries &carries) {
  if (split.segments > 1) return backward_segments(p, split, carries);
  backward_written<T>(p, split, {p.grad_last, nullptr}, {p.grad_h0, nullptr}, {p.sums, nullptr});
}

template void run(const BackwardProblem<float> &, const Split &, const Carries &);
template void run(const BackwardProblem<double> &, const Split &, const Carries &);

}  // namespace holdfast::scan
