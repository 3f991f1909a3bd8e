// Rows of a tensor to and from the points of transforms. Whole stretches of a row go through a staging area,
// [block][step][lane], because reading one vector of each row, a block of features at a time, gets a third of the
// memory's bandwidth (9 of 28 GB/s).
#pragma once

#include "common/memory.h"
#include "s4d/lanes.h"

namespace holdfast::s4d {

template <typename T>
struct Staging {
  const Shape &shape;
  const Layout<T> &layout;
  int64_t block, blocks, group;  // which blocks of features, which group of rows

  // Zero after the end of a row, and in lanes that hold nothing.
  void read(const T *data, T *stage) const {
    if (layout.fold > 1) return read_folded(data, stage);
    read_row(data + group * shape.time * shape.features, shape.length(group), stage);
  }

  // Zero after the end of a row. `past_cache`: the result is not read soon.
  void write(const T *stage, T *data, bool past_cache) const {
    if (layout.fold > 1) return write_folded(stage, data);
    T *row = data + group * shape.time * shape.features;
    const bool aligned = reinterpret_cast<uintptr_t>(row) % HOLDFAST_VECTOR_BYTES == 0;
    const bool streamed = past_cache && aligned && shape.features % lanes<T> == 0;
    streamed ? write_row<true>(stage, shape.length(group), row) : write_row<false>(stage, shape.length(group), row);
  }

 private:
  // Blocks that fill their vectors, and the features of the one after them, if any.
  int64_t whole() const {
    const int64_t left = shape.features / lanes<T> - block;
    return left < blocks ? left : blocks;
  }
  int64_t rest() const { return whole() < blocks ? shape.features % lanes<T> : 0; }

  void read_row(const T *row, int64_t length, T *stage) const {
    const int64_t full = whole(), part = rest(), step = shape.time * lanes<T>;
    for (int64_t t = 0; t < length; ++t) {
      const T *from = row + t * shape.features + block * lanes<T>;
      T *to = stage + t * lanes<T>;
      for (int64_t i = 0; i < full; ++i) store(to + i * step, load(from + i * lanes<T>));
      if (part) store(to + full * step, load_first(from + full * lanes<T>, part));
    }
    for (int64_t t = length; t < shape.time; ++t) {
      for (int64_t i = 0; i < blocks; ++i) store(stage + i * step + t * lanes<T>, Vector<T>{});
    }
  }

  template <bool Streamed>
  void write_row(const T *stage, int64_t length, T *row) const {
    const int64_t full = whole(), part = rest(), step = shape.time * lanes<T>;
    for (int64_t t = 0; t < shape.time; ++t) {
      const T *from = stage + t * lanes<T>;
      T *to = row + t * shape.features + block * lanes<T>;
      for (int64_t i = 0; i < full; ++i) {
        const auto x = t < length ? load(from + i * step) : Vector<T>{};
        if constexpr (Streamed) {
          stream(to + i * lanes<T>, x);
        } else {
          store(to + i * lanes<T>, x);
        }
      }
      if (part) store_first(to + full * lanes<T>, t < length ? load(from + full * step) : Vector<T>{}, part);
    }
  }

  // Fewer features than lanes: a vector holds them for several rows, and there is one block.
  void read_folded(const T *data, T *stage) const {
    for (int64_t t = 0; t < shape.time; ++t) store(stage + t * lanes<T>, Vector<T>{});
    for (int64_t r = 0; r < layout.fold && group * layout.fold + r < shape.batch; ++r) {
      const int64_t row = group * layout.fold + r, length = shape.length(row);
      const T *from = data + row * shape.time * shape.features;
      T *to = stage + r * layout.width;
      for (int64_t t = 0; t < length; ++t) {
        for (int64_t i = 0; i < layout.width; ++i) to[t * lanes<T> + i] = from[t * shape.features + i];
      }
    }
  }

  void write_folded(const T *stage, T *data) const {
    for (int64_t r = 0; r < layout.fold && group * layout.fold + r < shape.batch; ++r) {
      const int64_t row = group * layout.fold + r, length = shape.length(row);
      const T *from = stage + r * layout.width;
      T *to = data + row * shape.time * shape.features;
      for (int64_t t = 0; t < shape.time; ++t) {
        for (int64_t i = 0; i < layout.width; ++i)
          to[t * shape.features + i] = t < length ? from[t * lanes<T> + i] : T(0);
      }
    }
  }
};

}  // namespace holdfast::s4d
