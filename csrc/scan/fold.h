// Rows in vector lanes, for steps of fewer channels than a vector has lanes: a tile of several rows is transposed
// into float64 scratch, where the recurrence finds whole vectors, and the results are transposed back.
#pragma once

#include "scan/rows.h"

namespace holdfast::scan {

constexpr int64_t scratch_vectors = 128;  // an array's tile: 8 KB, so that five of them stay near the first cache
constexpr int64_t fold_numbers = 2 * width;
using Scratch = double[scratch_vectors * width];

// The same step range of `width` rows, one a lane. A lane has no more than `count` steps; a null lane has none.
template <typename T>
struct Lanes {
  T *data[width];
  int64_t time;
  T *at(int64_t lane, int64_t k) const { return data[lane] + k * time; }
};

// As many spans as there are lanes, from `first` on; those past the end have no steps and no rows.
struct Group {
  int64_t first, present;
  Span spans[width];
  int64_t count[width], longest;

  Group(const Split &split, const Shape &shape, int64_t begin)
      : first(begin), present(std::min(width, split.rows(shape) - begin)), spans{}, count{}, longest(0) {
    for (int64_t lane = 0; lane < present; ++lane) {
      spans[lane] = split.span(shape, first + lane);
      count[lane] = spans[lane].count;
      longest = std::max(longest, count[lane]);
    }
  }
  template <typename T>
  Lanes<T> lanes(const Array<T> &array, const Shape &shape) const {
    Lanes<T> result{};
    for (int64_t lane = 0; lane < present; ++lane) {
      if (count[lane] == 0) continue;
      const Strip<T> s = strip(array, shape, spans[lane]);
      result.data[lane] = s.data;
      result.time = s.time;
    }
    return result;
  }
};

// What the lanes compute: complex channels are split into planes by the transposition itself; planar ones keep their
// order.
inline Kind folded(Kind kind) { return kind == Kind::real ? kind : Kind::planar; }
inline Layout folded_layout(Kind kind, int64_t numbers) {
  if (kind == Kind::real) return {0, numbers, width, -1, 0};
  if (kind == Kind::complex) return {0, numbers / 2, 2 * width, -1, width};
  return {0, numbers / 2, width, -1, numbers / 2 * width};
}
// Where number j of a lane stands among the states.
inline int64_t folded_state(Kind kind, int64_t j, int64_t numbers) {
  if (kind != Kind::planar) return j * width;
  return (j < numbers / 2 ? 2 * j : 2 * (j - numbers / 2) + 1) * width;
}

// One step of the exchange: pairs of rows `Distance` apart swap their off-diagonal blocks.
template <int64_t Distance>
inline void exchange(Wide *v) {
  HOLDFAST_UNROLL
  for (int64_t i = 0; i < width; ++i) {
    if (i & Distance) continue;
    const Wide x = v[i], y = v[i + Distance];
#if HOLDFAST_VECTOR_BYTES == 64
    if constexpr (Distance == 1) {
      v[i] = __builtin_shufflevector(x, y, 0, 8, 2, 10, 4, 12, 6, 14);
      v[i + 1] = __builtin_shufflevector(x, y, 1, 9, 3, 11, 5, 13, 7, 15);
    } else if constexpr (Distance == 2) {
      v[i] = __builtin_shufflevector(x, y, 0, 1, 8, 9, 4, 5, 12, 13);
      v[i + 2] = __builtin_shufflevector(x, y, 2, 3, 10, 11, 6, 7, 14, 15);
    } else {
      v[i] = __builtin_shufflevector(x, y, 0, 1, 2, 3, 8, 9, 10, 11);
      v[i + 4] = __builtin_shufflevector(x, y, 4, 5, 6, 7, 12, 13, 14, 15);
    }
#elif HOLDFAST_VECTOR_BYTES == 32
    if constexpr (Distance == 1) {
      v[i] = __builtin_shufflevector(x, y, 0, 4, 2, 6);
      v[i + 1] = __builtin_shufflevector(x, y, 1, 5, 3, 7);
    } else {
      v[i] = __builtin_shufflevector(x, y, 0, 1, 4, 5);
      v[i + 2] = __builtin_shufflevector(x, y, 2, 3, 6, 7);
    }
#else
    v[i] = __builtin_shufflevector(x, y, 0, 2);
    v[i + 1] = __builtin_shufflevector(x, y, 1, 3);
#endif
  }
}

inline void transpose(Wide *v) {
  exchange<1>(v);
  if constexpr (width >= 4) exchange<2>(v);
  if constexpr (width >= 8) exchange<4>(v);
}

// True where [from, to) of every lane is one run of memory that all lanes have in full.
template <typename T>
inline bool whole(const Lanes<T> &lanes, const int64_t *count, int64_t to, int64_t numbers) {
  if (lanes.time != numbers && lanes.time != -numbers) return false;
  for (int64_t lane = 0; lane < width; ++lane) {
    if (lanes.data[lane] == nullptr || count[lane] < to) return false;
  }
  return true;
}

// Where step k of tile [from, to) stands in scratch: in the order of memory, so that runs stay runs.
inline int64_t slot(int64_t k, int64_t from, int64_t to, int64_t time) { return time < 0 ? to - 1 - k : k - from; }

// Steps [from, to) into scratch[slot][number][lane], 0 where a lane has no such step.
template <typename T>
HOLDFAST_APART void gather(const Lanes<const T> &lanes, const int64_t *count, int64_t from, int64_t to, int64_t numbers,
                           double *scratch) {
  int64_t done = 0;
  const int64_t run = (to - from) * numbers;
  const int64_t start = lanes.time < 0 ? to - 1 : from;
  if (whole(lanes, count, to, numbers)) {
    for (; done + width <= run; done += width) {
      Wide v[width];
      HOLDFAST_UNROLL
      for (int64_t lane = 0; lane < width; ++lane) v[lane] = load_wide(lanes.at(lane, start) + done);
      transpose(v);
      HOLDFAST_UNROLL
      for (int64_t i = 0; i < width; ++i) store(scratch + (done + i) * width, v[i]);
    }
    for (; done < run; ++done) {
      for (int64_t lane = 0; lane < width; ++lane) scratch[done * width + lane] = lanes.at(lane, start)[done];
    }
    return;
  }
  for (int64_t lane = 0; lane < width; ++lane) {
    for (int64_t k = from; k < to; ++k) {
      const bool present = lanes.data[lane] && k < count[lane];
      double *const step = scratch + slot(k, from, to, lanes.time) * numbers * width + lane;
      for (int64_t j = 0; j < numbers; ++j) step[j * width] = present ? lanes.at(lane, k)[j] : 0;
    }
  }
}

template <typename T>
HOLDFAST_APART void scatter(const Lanes<T> &lanes, const int64_t *count, int64_t from, int64_t to, int64_t numbers,
                            const double *scratch) {
  int64_t done = 0;
  const int64_t run = (to - from) * numbers;
  const int64_t start = lanes.time < 0 ? to - 1 : from;
  if (whole(lanes, count, to, numbers)) {
    for (; done + width <= run; done += width) {
      Wide v[width];
      HOLDFAST_UNROLL
      for (int64_t i = 0; i < width; ++i) v[i] = load(scratch + (done + i) * width);
      transpose(v);
      HOLDFAST_UNROLL
      for (int64_t lane = 0; lane < width; ++lane) store_wide(lanes.at(lane, start) + done, v[lane]);
    }
    for (; done < run; ++done) {
      for (int64_t lane = 0; lane < width; ++lane) {
        lanes.at(lane, start)[done] = static_cast<T>(scratch[done * width + lane]);
      }
    }
    return;
  }
  for (int64_t lane = 0; lane < width; ++lane) {
    for (int64_t k = from; k < std::min(to, count[lane]); ++k) {
      const double *const step = scratch + slot(k, from, to, lanes.time) * numbers * width + lane;
      for (int64_t j = 0; j < numbers; ++j) lanes.at(lane, k)[j] = static_cast<T>(step[j * width]);
    }
  }
}

// The strip of a scratch tile: step 0 is step `from` of the rows.
template <typename T>
inline Strip<T> tile_strip(T *scratch, int64_t steps, int64_t time, int64_t numbers) {
  const int64_t row = numbers * width;
  return time < 0 ? Strip<T>{scratch + (steps - 1) * row, -row} : Strip<T>{scratch, row};
}

// Where the next tile from `from` ends: at the latest where some lane does, so that its state can be taken there.
inline int64_t tile_end(const int64_t *count, int64_t from, int64_t steps) {
  int64_t to = from + steps;
  for (int64_t lane = 0; lane < width; ++lane) {
    if (count[lane] > from) to = std::min(to, count[lane]);
  }
  return to;
}

// Where the tile that ends at `to` begins, so that no lane ends inside it.
inline int64_t tile_begin(const int64_t *count, int64_t to, int64_t steps) {
  int64_t from = std::max<int64_t>(to - steps, 0);
  for (int64_t lane = 0; lane < width; ++lane) {
    if (count[lane] < to) from = std::max(from, count[lane]);
  }
  return from;
}

template <typename U>
inline void read_lane(Kind kind, int64_t lane, int64_t numbers, const U *row, double *states) {
  for (int64_t j = 0; j < numbers; ++j) states[folded_state(kind, j, numbers) + lane] = row ? row[j] : 0;
}

// The lane's product of no factors.
inline void set_lane_one(Kind kind, int64_t lane, int64_t numbers, double *products) {
  for (int64_t j = 0; j < numbers; ++j) products[j * width + lane] = kind == Kind::real || j % 2 == 0;
}

template <typename U>
inline void write_lane(Kind kind, int64_t lane, int64_t numbers, const double *states, U *row) {
  if (row == nullptr) return;
  for (int64_t j = 0; j < numbers; ++j) row[j] = static_cast<U>(states[folded_state(kind, j, numbers) + lane]);
}

}  // namespace holdfast::scan
