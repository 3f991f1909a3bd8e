// Whole forward problems: rows, blocks and folded groups over threads, and segments of time one after another.
#include "scan/carry.h"
#include "scan/fold.h"
#include "scan/problem.h"

namespace holdfast::scan {

namespace {

template <typename T>
void summarize_block(const ForwardProblem<T> &p, const Forward<T> &run, const Layout &layout, int64_t steps,
                     double *states, double *products) {
  const int64_t some = std::max<int64_t>(summary_numbers / (layout.units() * width), 1);
  const Layout shifted = layout.shifted();
  for (int64_t done = 0; done < steps; done += some) {
    const int64_t count = std::min(some, steps - done);
    const Strip<const T> a{run.a.at(done), run.a.time};
    forward<T>(p.kind, true, {a, {run.b.at(done), run.b.time}, {nullptr, 0}, run.ahead, false}, layout, count, states);
    forward<T>(p.kind, true, {{a.data + layout.begin, a.time}, {no_inputs<T>, 0}, {nullptr, 0}, 0, false}, shifted,
               count, products);
  }
}

template <typename T>
void forward_block(const ForwardProblem<T> &p, const Span &span, const Layout &layout, Edge<const T> init, Edge<T> last,
                   double *product, bool write, bool streams) {
  alignas(64) double states[state_limit], products[state_limit];
  read_states(p.kind, layout, static_cast<const T *>(nullptr), states);
  init.with([&](const auto *row) { read_states(p.kind, layout, row, states); });
  const Strip<T> h = write ? strip(p.h, p.shape, span) : Strip<T>{nullptr, 0};
  const Forward<T> run{strip(p.a, p.shape, span), strip(p.b, p.shape, span), h, steps_ahead<T>(p.kind, p.shape, layout),
                       streams};
  if (product) {
    set_states(p.kind, layout, products, 1);
    summarize_block(p, run, layout, span.count, states, products);
    write_states(p.kind, layout, products, product);
  } else {
    forward(p.kind, p.dense, run, layout, span.count, states);
  }
  if (streams) finish_streams();
  last.with([&](auto *row) { write_states(p.kind, layout, states, row); });
}

template <typename T>
void forward_fold(const ForwardProblem<T> &p, const Group &group, Edge<const T> init, Edge<T> last, double *product,
                  bool write) {
  const Kind kind = folded(p.kind);
  const int64_t numbers = p.shape.numbers, tile = scratch_vectors / numbers;
  const Layout layout = folded_layout(p.kind, numbers);
  alignas(64) double states[fold_numbers * width] = {}, products[fold_numbers * width];
  alignas(64) Scratch a, b, h;
  for (int64_t lane = 0; lane < group.present; ++lane)
    init.at(lane * numbers).with([&](const auto *row) { read_lane(p.kind, lane, numbers, row, states); });
  set_states(kind, layout, products, 1);
  const auto take = [&](int64_t end) {
    for (int64_t lane = 0; lane < group.present; ++lane) {
      if (group.count[lane] != end) continue;
      last.at(lane * numbers).with([&](auto *row) { write_lane(p.kind, lane, numbers, states, row); });
      write_lane(p.kind, lane, numbers, products, offset(product, lane * numbers));
    }
  };
  take(0);
  const auto rows_a = group.lanes(p.a, p.shape), rows_b = group.lanes(p.b, p.shape);
  const auto rows_h = group.lanes(p.h, p.shape);
  if (!p.dense) gather(rows_a, group.count, 0, 1, numbers, a);
  for (int64_t from = 0, to; from < group.longest; from = to) {
    to = tile_end(group.count, from, tile);
    if (p.dense) gather(rows_a, group.count, from, to, numbers, a);
    gather(rows_b, group.count, from, to, numbers, b);
    const auto factors = tile_strip<const double>(a, to - from, p.dense ? rows_a.time : 1, numbers);
    const auto inputs = tile_strip<const double>(b, to - from, rows_b.time, numbers);
    const auto results = write ? tile_strip<double>(h, to - from, rows_h.time, numbers) : Strip<double>{};
    forward<double>(kind, p.dense, {factors, inputs, results, 0, false}, layout, to - from, states);
    if (product) {
      forward<double>(kind, p.dense, {factors, {no_inputs<double>, 0}, {nullptr, 0}, 0, false}, layout, to - from,
                      products);
    }
    if (write) scatter(rows_h, group.count, from, to, numbers, h);
    take(to);
  }
}

// All spans of the problem. `init`, `last` and `products` hold one row of numbers for each span, or are null.
template <typename T>
void forward_spans(const ForwardProblem<T> &p, const Split &split, Edge<const T> init, Edge<T> last, double *products,
                   bool write, bool streams) {
  const int64_t numbers = p.shape.numbers, rows = split.rows(p.shape);
  parallel(split.threads, [&](int rank, int size) {
    if (write) clear_tails(p.h, p.shape, rank, size);
    for (int64_t first = rank * width; split.fold && first < rows; first += size * width) {
      forward_fold(p, Group(split, p.shape, first), init.at(first * numbers), last.at(first * numbers),
                   offset(products, first * numbers), write);
    }
    for (int64_t task = rank; !split.fold && task < rows * split.blocks; task += size) {
      const int64_t index = task / split.blocks, at = index * numbers;
      const Layout layout =
          block_layout(extent_of(p.kind, numbers), im_of(p.kind, numbers), task % split.blocks, split.blocks);
      forward_block(p, split.span(p.shape, index), layout, init.at(at), last.at(at), offset(products, at), write,
                    streams);
    }
  });
}

template <typename T>
void forward_written(const ForwardProblem<T> &p, const Split &split, Edge<const T> init, Edge<T> last) {
  // in place the lines have been read anyway, and a streaming store would only drive them out
  const bool fresh = p.h.data != p.b.data && streams(p.h, p.shape, im_of(p.kind, p.shape.numbers));
  forward_spans(p, split, init, last, nullptr, true, fresh);
}

template <typename T>
void forward_segments(const ForwardProblem<T> &p, const Split &split, const Carries &carries) {
  const Shape &shape = p.shape;
  forward_spans<T>(p, split, {}, {nullptr, carries.ends()}, p.dense ? carries.products() : nullptr, false, false);
  if (!p.dense) powers(p.kind, carries, split, shape, p.a, false);
  chain(p.kind, carries, split, shape, p.h0, false);
  forward_written<T>(p, split, {nullptr, carries.starts()}, {nullptr, carries.ends()});
  for (int64_t row = 0; row < shape.rows; ++row) {
    copy_row(shape.numbers, carries.ends() + ((row + 1) * split.segments - 1) * shape.numbers,
             p.last + row * shape.numbers);
  }
}

}  // namespace

template <typename T>
void run(const ForwardProblem<T> &p, const Split &split, const Carries &carries) {
  if (split.segments > 1) return forward_segments(p, split, carries);
  forward_written<T>(p, split, {p.h0, nullptr}, {p.last, nullptr});
}

template void run(const ForwardProblem<float> &, const Split &, const Carries &);
template void run(const ForwardProblem<double> &, const Split &, const Carries &);

}  // namespace holdfast::scan
