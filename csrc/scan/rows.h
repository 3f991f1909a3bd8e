// Arrays of (row, time, number), the parts of them that one task handles, and how work is cut into tasks.
#pragma once

#include <algorithm>
#include <numeric>
#include <type_traits>

#include "common/parallel.h"
#include "scan/tile.h"

namespace holdfast::scan {

// Step t of a row begins at data + r * row + t * time; the numbers of a step lie side by side.
template <typename T>
struct Array {
  T *data;
  int64_t row, time;
};

struct Shape {
  int64_t rows, steps, numbers;  // numbers per step: two for a complex channel
  const int64_t *lengths;        // steps of each row, or null: all of them
  bool reverse;

  int64_t length(int64_t row) const { return lengths ? lengths[row] : steps; }
};

// Steps [first, first + count) of a row, counted in the order of the recurrence.
struct Span {
  int64_t row, first, count;
};

template <typename T>
inline Strip<T> strip(const Array<T> &array, const Shape &shape, const Span &span) {
  if (array.data == nullptr || span.count == 0) return {array.data, 0};
  const int64_t t = shape.reverse ? shape.length(span.row) - 1 - span.first : span.first;
  return {array.data + span.row * array.row + t * array.time, shape.reverse ? -array.time : array.time};
}

// How the work is cut. Segments cut time: each is a row of its own once its first state is known. Blocks cut
// channels. Folding puts rows into the lanes where the channels are too few to fill a vector.
struct Split {
  bool fold;
  int64_t segments, first_steps, segment_steps;  // the last segment has the steps that are left
  int64_t blocks;
  int threads;

  int64_t rows(const Shape &shape) const { return shape.rows * segments; }
  Span span(const Shape &shape, int64_t index) const {
    const int64_t row = index / segments, segment = index % segments;
    const int64_t first = segment ? first_steps + (segment - 1) * segment_steps : 0;
    const int64_t left = std::max<int64_t>(shape.length(row) - first, 0);
    return {row, first, segment == segments - 1 ? left : std::min(left, segment ? segment_steps : first_steps)};
  }
};

constexpr int64_t block_grain = 16;       // numbers: a cache line of float32, so that two threads never share one
constexpr int64_t block_limit = 2048;     // numbers: states of a block stay in the first cache (16 KB)
constexpr int64_t thread_work = 1 << 15;  // numbers that are worth a thread: some 5 us
constexpr int64_t segment_least = 64;     // steps: below, the summary of a segment costs more than it saves
constexpr int64_t state_limit = 2 * (block_limit + block_grain + width);  // planar: two vectors per unit

template <typename U>
inline U *offset(U *data, int64_t count) {
  return data ? data + count : nullptr;
}

// Numbers of a step over which units run, and the distance from real to imaginary parts.
inline int64_t extent_of(Kind kind, int64_t numbers) { return numbers / parts_of(kind); }
inline int64_t im_of(Kind kind, int64_t numbers) { return kind == Kind::planar ? numbers / 2 : 0; }

// `extent` counts the numbers over which units run: half of a planar step.
inline Split choose_split(const Shape &shape, int64_t extent, int threads) {
  const int64_t work = shape.rows * shape.steps * shape.numbers;
  Split split{extent < width, 1, shape.steps, shape.steps, 1, 0};
  split.threads = static_cast<int>(std::clamp<int64_t>(work / thread_work, 1, std::max(threads, 1)));
  const int64_t team = split.threads;
  int64_t segments = 1;
  if (split.fold) {
    segments = width * team / std::max<int64_t>(shape.rows, 1);
  } else {
    const int64_t parts = team / std::gcd(shape.rows, team);
    const int64_t balanced = shape.rows < 8 * team ? parts : 1;
    const int64_t needed = (extent + block_limit - 1) / block_limit;
    split.blocks = std::clamp<int64_t>((needed + balanced - 1) / balanced * balanced, 1,
                                       std::max<int64_t>(extent / block_grain, 1));
    // a summary costs two thirds of the run itself: with two threads nothing is gained
    if (team > 2 && shape.rows * split.blocks * 2 <= team) segments = 2 * team / (shape.rows * split.blocks);
  }
  split.segments = std::clamp<int64_t>(segments, 1, std::max<int64_t>(shape.steps / segment_least, 1));
  split.first_steps = split.segment_steps = (shape.steps + split.segments - 1) / split.segments;
  return split;
}

// The units of block `index` of `blocks`.
inline Layout block_layout(int64_t extent, int64_t im, int64_t index, int64_t blocks) {
  const int64_t grains = extent / block_grain;
  const int64_t begin = grains * index / blocks * block_grain;
  const int64_t end = index + 1 == blocks ? extent : grains * (index + 1) / blocks * block_grain;
  const int64_t full = (end - begin) / width;
  return {begin, full, width, (end - begin) % width ? end - width : -1, im};
}

// How many steps ahead to fetch: none where all of an array stays in the second cache, or where the addresses only rise
// or only fall, which the hardware foresees.
template <typename T>
inline int64_t steps_ahead(Kind kind, const Shape &shape, const Layout &layout) {
  const int64_t bytes = shape.rows * shape.steps * shape.numbers * static_cast<int64_t>(sizeof(T));
  const bool whole = layout.full * width * parts_of(kind) == shape.numbers && Groups(layout, kind).count == 1;
  return bytes < (int64_t{1} << 20) || whole ? 0 : 8;
}

// Writes 0 after the end of the rows of `rank`.
template <typename T>
inline void clear_tails(const Array<T> &array, const Shape &shape, int rank, int size) {
  if (array.data == nullptr || shape.lengths == nullptr) return;
  for (int64_t row = rank; row < shape.rows; row += size) {
    for (int64_t t = shape.lengths[row]; t < shape.steps; ++t) {
      T *const step = array.data + row * array.row + t * array.time;
      std::fill(step, step + shape.numbers, T{0});
    }
  }
}

// Inputs of a step that has none. With them the recurrence follows the product of a that varies in time, which a
// summary of steps, the map h -> product h + state, has beside the state.
template <typename T>
constexpr T no_inputs[state_limit / 2] = {};
// A summary of that many numbers is followed by its product, while a is in the first cache.
constexpr int64_t summary_numbers = 2048;

// A row of numbers: the caller's, or a float64 one between segments of time; none where both are null.
template <typename T>
struct Edge {
  T *own;
  std::conditional_t<std::is_const_v<T>, const double, double> *wide;

  Edge at(int64_t count) const { return {offset(own, count), offset(wide, count)}; }
  // Calls body(row) with the one that there is.
  template <typename Body>
  void with(Body &&body) const {
    if (wide) return body(wide);
    if (own) body(own);
  }
};

template <typename U>
inline void read_states(Kind kind, const Layout &layout, const U *row, double *states) {
  for (int64_t unit = 0; unit < layout.units(); ++unit)
    for (int part = 0; part < parts_of(kind); ++part, states += width)
      store(states, row ? load_wide(row + layout.at(unit) + part * layout.im) : Wide{});
}

template <typename U>
inline void write_states(Kind kind, const Layout &layout, const double *states, U *row) {
  if (row == nullptr) return;
  for (int64_t unit = 0; unit < layout.units(); ++unit)
    for (int part = 0; part < parts_of(kind); ++part, states += width)
      store_wide(row + layout.at(unit) + part * layout.im, load(states));
}

inline void set_states(Kind kind, const Layout &layout, double *states, double value) {
  for (int64_t i = 0; i < layout.units() * parts_of(kind) * width; ++i) {
    const bool imaginary = kind == Kind::complex ? i % 2 : kind == Kind::planar ? i / width % 2 : false;
    states[i] = imaginary ? 0 : value;
  }
}

// True where every whole unit of the array lies on a multiple of its bytes, as streaming stores need.
template <typename T>
inline bool streams(const Array<T> &array, const Shape &shape, int64_t im) {
  const int64_t bytes = shape.rows * shape.steps * shape.numbers * static_cast<int64_t>(sizeof(T));
  return bytes >= fresh_bytes && reinterpret_cast<uintptr_t>(array.data) % (width * sizeof(T)) == 0 &&
         array.row % width == 0 && array.time % width == 0 && shape.numbers % width == 0 && im % width == 0;
}

}  // namespace holdfast::scan
