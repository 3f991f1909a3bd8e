// The linear recurrent unit tile by tile: both products and the scan on some steps of a row while they are in the
// second cache, so that states are written once, and their gradients never leave it.
#pragma once

#include "common/call.h"
#include "common/product.h"
#include "scan/carry.h"

namespace holdfast::lru {

using namespace holdfast::scan;

// Steps of a tile: a multiple of the products' block of rows. With 128 numbers per step a tile of states is 48 KB.
constexpr int64_t kTileSteps = 96;
// What following the states alone costs, of a whole pass: one of two products and the scan, and one of five.
constexpr double kForwardSummary = 0.6, kBackwardSummary = 0.4;

template <typename T>
struct Layer {
  Kind kind;  // of the states
  Shape shape;
  int64_t inputs, outputs;
  const T *u, *lam, *b, *c, *d, *h0;  // b (numbers, inputs), c (outputs, numbers); d and h0 may be null
  int threads;

  // Rows are cut in time where the threads would get uneven shares of them: into the segment that is first in the order
  // of the pass, and as many others as the shares want. `summary` is what a pass that writes nothing costs of one that
  // writes; the first segment is that much shorter, since it is written beside the summaries of the others.
  Split split(double summary, bool down) const {
    const int64_t wanted = shape.rows < 8 * threads ? threads / std::gcd(shape.rows, static_cast<int64_t>(threads)) : 1;
    const int64_t others = std::min(shape.steps / kTileSteps - 1, wanted);
    if (others < 2) return {false, 1, shape.steps, shape.steps, 1, threads};
    const int64_t tiles = static_cast<int64_t>(static_cast<double>(shape.steps / kTileSteps) / (others + summary));
    const int64_t steps = std::max<int64_t>(tiles, 1) * kTileSteps;
    return {false, others + 1, down ? steps : shape.steps - others * steps, steps, 1, threads};
  }
  Layout layout() const { return block_layout(extent_of(kind, shape.numbers), im_of(kind, shape.numbers), 0, 1); }
};

// Both passes over the segments of all rows. The first writes the first segment, whose start is known, while other
// threads follow the states alone through those after it, from 0 and all but the last; the second writes these.
struct Pass {
  const Split &split;
  bool second, down;

  int64_t first() const { return down ? split.segments - 1 : 0; }
  // where the pass writes, of the segments of a row: the others are one fewer, if there are any
  bool writes(int64_t index) const { return second || index % split.segments == first(); }
  int64_t count(const Shape &shape) const { return shape.rows * per_row(); }
  int64_t index(int64_t task) const {
    const int64_t skipped = split.segments > 1 && second != down ? 1 : 0;
    return task / per_row() * split.segments + task % per_row() + skipped;
  }

 private:
  int64_t per_row() const { return std::max<int64_t>(split.segments - 1, 1); }
};

// Tile k of a span: its first step in memory, counted over all rows, and how many there are.
struct Tile {
  int64_t at, count;

  Tile(const Shape &shape, const Span &span, int64_t k) : count(std::min(kTileSteps, span.count - k * kTileSteps)) {
    const int64_t done = span.first + k * kTileSteps;
    at = span.row * shape.steps + (shape.reverse ? shape.length(span.row) - done - count : done);
  }
  static int64_t number(const Span &span) { return (span.count + kTileSteps - 1) / kTileSteps; }
  // its states in the order of the recurrence
  template <typename T>
  Strip<T> strip(const Shape &shape, T *states) const {
    const int64_t numbers = shape.numbers;
    return shape.reverse ? Strip<T>{states + (count - 1) * numbers, -numbers} : Strip<T>{states, numbers};
  }
};

// y += d x on each step.
template <typename T>
inline void add_scaled(const T *d, const T *x, T *y, int64_t steps, int64_t features) {
  for (int64_t t = 0; t < steps; ++t, x += features, y += features)
    for (int64_t j = 0; j < features; j += lanes<T>) store(y + j, load(y + j) + load(d + j) * load(x + j));
}

// sum += the sum of x y over the steps.
template <typename T>
inline void add_products(const T *x, const T *y, T *sum, int64_t steps, int64_t features) {
  for (int64_t j = 0; j < features; j += lanes<T>) {
    Vector<T> part{};
    for (int64_t t = 0; t < steps; ++t) part += load(x + t * features + j) * load(y + t * features + j);
    store(sum + j, load(sum + j) + part);
  }
}

// Zeros after the end of the rows of `rank`, in an array of `numbers` a step.
template <typename T>
inline void clear_ends(const Shape &shape, T *data, int64_t numbers, int rank, int size) {
  const Shape same{shape.rows, shape.steps, numbers, shape.lengths, shape.reverse};
  clear_tails(Array<T>{data, shape.steps * numbers, numbers}, same, rank, size);
}

// Runs the spans of a pass from carries.starts(), or from 0 where nothing is to be written: then only the states at the
// ends are wanted, and `scratch` holds a tile of inputs for each thread.
template <typename T>
void forward_tiles(const Layer<T> &layer, const Pass &pass, const Carries &carries, const T *b, const T *c, T *h, T *y,
                   T *scratch) {
  const Shape &shape = layer.shape;
  const int64_t in = layer.inputs, p = shape.numbers, out = layer.outputs;
  const Layout layout = layer.layout();
  parallel(pass.split.threads, [&](int rank, int size) {
    alignas(64) double states[state_limit];
    const Range mine = share(pass.count(shape), rank, size);
    for (int64_t task = mine.begin; task < mine.end; ++task) {
      const int64_t index = pass.index(task);
      const bool write = pass.writes(index);
      const Span span = pass.split.span(shape, index);
      read_states(layer.kind, layout, write ? carries.starts() + index * p : nullptr, states);
      for (int64_t k = 0; k < Tile::number(span); ++k) {
        const Tile tile(shape, span, k);
        T *const here = write ? h + tile.at * p : scratch + rank * kTileSteps * p;
        multiply<T>({layer.u + tile.at * in, in}, tile.count, in, b, p, {nullptr, 0}, {here, p}, true);
        const Strip<T> strip = tile.strip(shape, here);
        const Forward<T> run{{layer.lam, 0}, {strip.data, strip.time}, write ? strip : Strip<T>{}, 0, false};
        forward(layer.kind, false, run, layout, tile.count, states);
        if (!write) continue;
        T *const result = y + tile.at * out;
        multiply<T>({here, p}, tile.count, p, c, out, {nullptr, 0}, {result, out}, true);
        if (layer.d) add_scaled(layer.d, layer.u + tile.at * in, result, tile.count, out);
      }
      write_states(layer.kind, layout, states, carries.ends() + index * p);
    }
    if (pass.second) return;
    clear_ends(shape, h, p, rank, size);
    clear_ends(shape, y, out, rank, size);
  });
}

// Runs `run` over both passes; the first segments start from `first` (rows, numbers), which may be null.
template <typename T, typename Run>
void run_passes(const Layer<T> &layer, const Split &split, const Carries &carries, const T *first, bool down,
                const Run &run) {
  const Pass begin{split, false, down}, then{split, true, down};
  const Shape &shape = layer.shape;
  for (int64_t row = 0; row < shape.rows; ++row) {
    copy_row(shape.numbers, offset(first, row * shape.numbers),
             carries.starts() + (row * split.segments + begin.first()) * shape.numbers);
  }
  run(begin);
  if (split.segments == 1) return;
  powers(layer.kind, carries, split, shape, Array<const T>{layer.lam, 0, 0}, down, begin.first());
  chain(layer.kind, carries, split, shape, first, down, true);
  run(then);
}

// Packed weights and the carries, which all threads share, and `own` numbers for each thread.
template <typename T>
struct Workspace {
  Carries carries;
  T *b, *c, *threads;
  Workspace(Arena &arena, const Layer<T> &layer, const Split &split, int64_t b_numbers, int64_t c_numbers, int64_t own)
      : carries(arena, split.rows(layer.shape), layer.shape.numbers), b(arena.take<T>(b_numbers)),
        c(arena.take<T>(c_numbers)), threads(arena.take<T>(split.threads * own)) {}
};

template <typename T, typename Call>
int64_t run_forward_tiles(const Call &call, const Layer<T> &layer, T *h, T *y, T *last) {
  const int64_t in = layer.inputs, p = layer.shape.numbers, out = layer.outputs;
  const Split split = layer.split(kForwardSummary, false);
  const auto take = [&](Arena &arena) {
    return Workspace<T>(arena, layer, split, packed_size<T>(in, p), packed_size<T>(p, out), kTileSteps * p);
  };
  return with_workspace(call, take, [&](const Workspace<T> &memory) {
    const Carries &carries = memory.carries;
    pack(layer.b, 1, in, in, p, memory.b, kMaxVectors);
    pack(layer.c, 1, p, p, out, memory.c, kMaxVectors);
    run_passes(layer, split, carries, layer.h0, false, [&](const Pass &pass) {
      forward_tiles<T>(layer, pass, carries, memory.b, memory.c, h, y, memory.threads);
    });
    for (int64_t row = 0; row < layer.shape.rows; ++row)
      copy_row(p, carries.ends() + ((row + 1) * split.segments - 1) * p, last + row * p);
  });
}

// Where gradients go; each may be null but h0's. lam's is (rows, numbers), a summand for each row.
template <typename T>
struct Gradients {
  T *u, *lam, *b, *c, *d, *h0;
};

// What one thread adds up, and its tile of the states' gradient, in one piece of memory.
template <typename T>
struct Sums {
  T *b, *c, *d, *tile;
  static int64_t size(const Layer<T> &layer) {
    return layer.shape.numbers * (layer.inputs + layer.outputs + kTileSteps) + layer.outputs;
  }
  Sums(const Layer<T> &layer, T *memory)
      : b(memory), c(b + layer.shape.numbers * layer.inputs), d(c + layer.outputs * layer.shape.numbers),
        tile(d + layer.outputs) {}
};

// The adjoint of forward_tiles; carries.products() takes lam's gradient.
template <typename T>
void backward_tiles(const Layer<T> &layer, const Pass &pass, const Carries &carries, const T *c, const T *b, const T *h,
                    const T *grad_y, const Gradients<T> &grads, T *memory) {
  const Shape &shape = layer.shape;
  const int64_t in = layer.inputs, p = shape.numbers, out = layer.outputs;
  const Layout layout = layer.layout();
  parallel(pass.split.threads, [&](int rank, int size) {
    alignas(64) double states[state_limit], lam_sums[state_limit];
    const Sums<T> sums(layer, memory + rank * Sums<T>::size(layer));
    const Range mine = share(pass.count(shape), rank, size);
    for (int64_t task = mine.begin; task < mine.end; ++task) {
      const int64_t index = pass.index(task);
      const bool write = pass.writes(index);
      const Span span = pass.split.span(shape, index);
      read_states(layer.kind, layout, write ? carries.starts() + index * p : nullptr, states);
      set_states(layer.kind, layout, lam_sums, 0);
      for (int64_t k = Tile::number(span); k-- > 0;) {
        const Tile tile(shape, span, k);
        const T *const gy = grad_y + tile.at * out, *const here = h + tile.at * p, *const u = layer.u + tile.at * in;
        multiply<T>({gy, out}, tile.count, out, c, p, {nullptr, 0}, {sums.tile, p}, true);
        const Strip<T> g = tile.strip(shape, sums.tile);
        const Strip<const T> states_here = tile.strip(shape, here);
        const T *const before = span.first + k > 0 ? states_here.at(-1) : offset(layer.h0, span.row * p);
        const Backward<T> run{{layer.lam, 0}, {g.data, g.time},   states_here, before, write ? g : Strip<T>{},
                              {nullptr, 0},   write && grads.lam, 0,           false};
        backward(layer.kind, false, run, layout, tile.count, states, lam_sums);
        if (!write) continue;
        if (grads.u) {
          multiply<T>({sums.tile, p}, tile.count, p, b, in, {nullptr, 0}, {grads.u + tile.at * in, in}, true);
          if (layer.d) add_scaled(layer.d, gy, grads.u + tile.at * in, tile.count, in);
        }
        const Run<T> of_b{sums.tile, u, tile.count}, of_c{gy, here, tile.count};
        if (grads.b) add_outer<T>(&of_b, 1, p, in, p, in, sums.b, in);
        if (grads.c) add_outer<T>(&of_c, 1, out, p, out, p, sums.c, p);
        if (grads.d) add_products(gy, u, sums.d, tile.count, out);
      }
      write_states(layer.kind, layout, states, carries.ends() + index * p);
      if (write) write_states(layer.kind, layout, lam_sums, carries.products() + index * p);
    }
    if (!pass.second && grads.u) clear_ends(shape, grads.u, in, rank, size);
  });
}

template <typename T, typename Call>
int64_t run_backward_tiles(const Call &call, const Layer<T> &layer, const T *h, const T *grad_y, const T *grad_last,
                           const Gradients<T> &grads) {
  const int64_t in = layer.inputs, p = layer.shape.numbers, out = layer.outputs, own = Sums<T>::size(layer);
  const Split split = layer.split(kBackwardSummary, true);
  const auto take = [&](Arena &arena) {
    return Workspace<T>(arena, layer, split, packed_size<T>(p, in), packed_size<T>(out, p), own);
  };
  return with_workspace(call, take, [&](const Workspace<T> &memory) {
    const Carries &carries = memory.carries;
    pack(layer.c, p, 1, out, p, memory.c, kMaxVectors);
    pack(layer.b, in, 1, p, in, memory.b, kMaxVectors);
    // a team may be smaller than asked for; the sums of absent threads must still be 0
    std::fill_n(memory.threads, split.threads * own, T(0));
    run_passes(layer, split, carries, grad_last, true, [&](const Pass &pass) {
      backward_tiles<T>(layer, pass, carries, memory.c, memory.b, h, grad_y, grads, memory.threads);
    });
    for (int64_t row = 0; row < layer.shape.rows; ++row) {
      double *const lam = carries.products() + row * split.segments * p;
      copy_row(p, carries.ends() + row * split.segments * p, grads.h0 + row * p);
      for (int64_t i = p; i < split.segments * p; ++i) lam[i % p] += lam[i];
      copy_row(p, lam, offset(grads.lam, row * p));
    }
    const auto add_up = [&](T *to, const T *of_first, int64_t count) {
      for (int64_t i = 0; to && i < count; ++i) {
        to[i] = 0;
        for (int rank = 0; rank < split.threads; ++rank) to[i] += of_first[rank * own + i];
      }
    };
    const Sums<T> first(layer, memory.threads);
    add_up(grads.b, first.b, p * in);
    add_up(grads.c, first.c, out * p);
    add_up(grads.d, first.d, out);
  });
}

}  // namespace holdfast::lru
