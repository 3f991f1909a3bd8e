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

template <typename T>
struct Layer {
  Kind kind;  // of the states
  Shape shape;
  int64_t inputs, outputs;
  const T *u, *lam, *b, *c, *d, *h0;  // b (numbers, inputs), c (outputs, numbers); d and h0 may be null
  int threads;

  // Rows are cut in time where the threads would get uneven shares of them.
  Split split() const {
    const int64_t wanted = shape.rows < 8 * threads ? threads / std::gcd(shape.rows, static_cast<int64_t>(threads)) : 1;
    const int64_t segments = std::clamp<int64_t>(shape.steps / kTileSteps, 1, wanted);
    return {false, segments, (shape.steps + segments - 1) / segments, 1, threads};
  }
  Layout layout() const { return block_layout(extent_of(kind, shape.numbers), im_of(kind, shape.numbers), 0, 1); }
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

// Runs every span of `split` from carries.starts(), or from 0 where nothing is to be written: then only the states at
// the ends are wanted, of all but the last segment of a row, and `scratch` holds a tile of inputs for each thread.
template <typename T>
void forward_tiles(const Layer<T> &layer, const Split &split, const Carries &carries, const T *b, const T *c, T *h,
                   T *y, T *scratch, bool write) {
  const Shape &shape = layer.shape;
  const int64_t in = layer.inputs, p = shape.numbers, out = layer.outputs;
  const Layout layout = layer.layout();
  parallel(split.threads, [&](int rank, int size) {
    alignas(64) double states[state_limit];
    const Range mine = share(split.rows(shape), rank, size);
    for (int64_t index = mine.begin; index < mine.end; ++index) {
      if (!write && index % split.segments == split.segments - 1) continue;
      const Span span = split.span(shape, index);
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
    if (!write) return;
    clear_ends(shape, h, p, rank, size);
    clear_ends(shape, y, out, rank, size);
  });
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
  const Split split = layer.split();
  const auto take = [&](Arena &arena) {
    return Workspace<T>(arena, layer, split, packed_size<T>(in, p), packed_size<T>(p, out), kTileSteps * p);
  };
  return with_workspace(call, take, [&](const Workspace<T> &memory) {
    const Carries &carries = memory.carries;
    pack(layer.b, 1, in, in, p, memory.b, kMaxVectors);
    pack(layer.c, 1, p, p, out, memory.c, kMaxVectors);
    const auto run = [&](bool write) {
      forward_tiles<T>(layer, split, carries, memory.b, memory.c, h, y, memory.threads, write);
    };
    if (split.segments > 1) {
      run(false);
      powers(layer.kind, carries, split, layer.shape, Array<const T>{layer.lam, 0, 0}, false);
    }
    chain(layer.kind, carries, split, layer.shape, layer.h0, false);
    run(true);
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
void backward_tiles(const Layer<T> &layer, const Split &split, const Carries &carries, const T *c, const T *b,
                    const T *h, const T *grad_y, const Gradients<T> &grads, T *memory, bool write) {
  const Shape &shape = layer.shape;
  const int64_t in = layer.inputs, p = shape.numbers, out = layer.outputs;
  const Layout layout = layer.layout();
  parallel(split.threads, [&](int rank, int size) {
    alignas(64) double states[state_limit], lam_sums[state_limit];
    const Sums<T> sums(layer, memory + rank * Sums<T>::size(layer));
    const Range mine = share(split.rows(shape), rank, size);
    for (int64_t index = mine.begin; index < mine.end; ++index) {
      if (!write && index % split.segments == 0) continue;
      const Span span = split.span(shape, index);
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
    if (write && grads.u) clear_ends(shape, grads.u, in, rank, size);
  });
}

template <typename T, typename Call>
int64_t run_backward_tiles(const Call &call, const Layer<T> &layer, const T *h, const T *grad_y, const T *grad_last,
                           const Gradients<T> &grads) {
  const int64_t in = layer.inputs, p = layer.shape.numbers, out = layer.outputs, own = Sums<T>::size(layer);
  const Split split = layer.split();
  const auto take = [&](Arena &arena) {
    return Workspace<T>(arena, layer, split, packed_size<T>(p, in), packed_size<T>(out, p), own);
  };
  return with_workspace(call, take, [&](const Workspace<T> &memory) {
    const Carries &carries = memory.carries;
    pack(layer.c, p, 1, out, p, memory.c, kMaxVectors);
    pack(layer.b, in, 1, p, in, memory.b, kMaxVectors);
    // a team may be smaller than asked for; the sums of absent threads must still be 0
    std::fill_n(memory.threads, split.threads * own, T(0));
    const auto run = [&](bool write) {
      backward_tiles<T>(layer, split, carries, memory.c, memory.b, h, grad_y, grads, memory.threads, write);
    };
    if (split.segments > 1) {
      run(false);
      powers(layer.kind, carries, split, layer.shape, Array<const T>{layer.lam, 0, 0}, true);
    }
    chain(layer.kind, carries, split, layer.shape, grad_last, true);
    run(true);
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
