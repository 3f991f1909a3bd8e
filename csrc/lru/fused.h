// The linear recurrent unit tile by tile: both products and the scan on some steps of a row while they are in the second
// cache, so that states are written once, and their gradients never leave it.
#pragma once

#include "common/product.h"
#include "scan/carry.h"

namespace holdfast::lru {

using namespace holdfast::scan;

// Steps of a tile: a multiple of the products' block of rows. With 128 numbers a step a tile of states is 48 KB.
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

// Memory of a call, or null where there is none.
template <typename T>
struct Buffer {
  std::unique_ptr<T[]> data;
  explicit Buffer(int64_t count) : data(new (std::nothrow) T[static_cast<size_t>(count)]()) {}
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

// Runs every span of `split` from carries.starts(), or from 0 where nothing is to be written: then only the states at the
// ends are wanted, of all but the last segment of a row, and `scratch` holds a tile of inputs for each thread.
template <typename T>
void forward_tiles(const Layer<T> &layer, const Split &split, const Carries &carries, Right<T> b, Right<T> c, T *h, T *y,
                   T *scratch, bool write) {
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
        product(false, Left<T>{layer.u + tile.at * in, in, 1}, b, here, p, tile.count, p, in);
        const Strip<T> strip = tile.strip(shape, here);
        const Forward<T> run{{layer.lam, 0}, {strip.data, strip.time}, write ? strip : Strip<T>{}, 0, false};
        forward(layer.kind, false, run, layout, tile.count, states);
        if (!write) continue;
        T *const result = y + tile.at * out;
        product(false, Left<T>{here, p, 1}, c, result, out, tile.count, out, p);
        if (layer.d) add_scaled(layer.d, layer.u + tile.at * in, result, tile.count, out);
      }
      write_states(layer.kind, layout, states, carries.ends() + index * p);
    }
    if (!write) return;
    clear_ends(shape, h, p, rank, size);
    clear_ends(shape, y, out, rank, size);
  });
}

template <typename T>
bool run_forward_tiles(const Layer<T> &layer, T *h, T *y, T *last) {
  const int64_t in = layer.inputs, p = layer.shape.numbers, out = layer.outputs;
  const Split split = layer.split();
  const Carries carries(split.rows(layer.shape), p);
  const Buffer<T> packed(packed_size<T>(p, in) + packed_size<T>(out, p)), scratch(split.threads * kTileSteps * p);
  if (!carries.data || !packed.data || !scratch.data) return false;
  const Right<T> b = pack(layer.b, 1, in, p, in, packed.data.get());
  const Right<T> c = pack(layer.c, 1, p, out, p, packed.data.get() + packed_size<T>(p, in));
  if (split.segments > 1) {
    forward_tiles(layer, split, carries, b, c, h, y, scratch.data.get(), false);
    powers(layer.kind, carries, split, layer.shape, Array<const T>{layer.lam, 0, 0}, false);
  }
  chain(layer.kind, carries, split, layer.shape, layer.h0, false);
  forward_tiles(layer, split, carries, b, c, h, y, scratch.data.get(), true);
  for (int64_t row = 0; row < layer.shape.rows; ++row)
    copy_row(p, carries.ends() + ((row + 1) * split.segments - 1) * p, last + row * p);
  return true;
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
void backward_tiles(const Layer<T> &layer, const Split &split, const Carries &carries, Right<T> c, Right<T> b, const T *h,
                    const T *grad_y, const Gradients<T> &grads, T *memory, bool write) {
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
        product(false, Left<T>{gy, out, 1}, c, sums.tile, p, tile.count, p, out);
        const Strip<T> g = tile.strip(shape, sums.tile);
        const Strip<const T> states_here = tile.strip(shape, here);
        const T *const before = span.first + k > 0 ? states_here.at(-1) : offset(layer.h0, span.row * p);
        const Backward<T> run{{layer.lam, 0}, {g.data, g.time},      states_here, before, write ? g : Strip<T>{},
                              {nullptr, 0},   write && grads.lam, 0,           false};
        backward(layer.kind, false, run, layout, tile.count, states, lam_sums);
        if (!write) continue;
        if (grads.u) {
          product(false, Left<T>{sums.tile, p, 1}, b, grads.u + tile.at * in, in, tile.count, in, p);
          if (layer.d) add_scaled(layer.d, gy, grads.u + tile.at * in, tile.count, in);
        }
        if (grads.b) product(true, Left<T>{sums.tile, 1, p}, Right<T>::plain(u, in), sums.b, in, p, in, tile.count);
        if (grads.c) product(true, Left<T>{gy, 1, out}, Right<T>::plain(here, p), sums.c, p, out, p, tile.count);
        if (grads.d) add_products(gy, u, sums.d, tile.count, out);
      }
      write_states(layer.kind, layout, states, carries.ends() + index * p);
      if (write) write_states(layer.kind, layout, lam_sums, carries.products() + index * p);
    }
    if (write && grads.u) clear_ends(shape, grads.u, in, rank, size);
  });
}

template <typename T>
bool run_backward_tiles(const Layer<T> &layer, const T *h, const T *grad_y, const T *grad_last,
                        const Gradients<T> &grads) {
  const int64_t in = layer.inputs, p = layer.shape.numbers, out = layer.outputs, own = Sums<T>::size(layer);
  const Split split = layer.split();
  const Carries carries(split.rows(layer.shape), p);
  const Buffer<T> packed(packed_size<T>(p, out) + packed_size<T>(in, p)), memory(split.threads * own);
  if (!carries.data || !packed.data || !memory.data) return false;
  const Right<T> c = pack(layer.c, p, 1, p, out, packed.data.get());
  const Right<T> b = pack(layer.b, in, 1, in, p, packed.data.get() + packed_size<T>(p, out));
  if (split.segments > 1) {
    backward_tiles(layer, split, carries, c, b, h, grad_y, grads, memory.data.get(), false);
    powers(layer.kind, carries, split, layer.shape, Array<const T>{layer.lam, 0, 0}, true);
  }
  chain(layer.kind, carries, split, layer.shape, grad_last, true);
  backward_tiles(layer, split, carries, c, b, h, grad_y, grads, memory.data.get(), true);
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
  const Sums<T> first(layer, memory.data.get());
  add_up(grads.b, first.b, p * in);
  add_up(grads.c, first.c, out * p);
  add_up(grads.d, first.d, out);
  return true;
}

}  // namespace holdfast::lru
