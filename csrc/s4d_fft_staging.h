// Rows of a tensor to and from the points of transforms. Two groups of batch rows travel as the real and the
// imaginary part: their kernel is the same real one, so that one product convolves both and nothing has to be taken
// apart. Whole stretches of a row go through a staging area, [block][step][re, im][lane], because reading one
// vector of each row, a block of features at a time, gets a third of the memory's bandwidth (9 of 28 GB/s).
#pragma once

#include "memory.h"
#include "s4d_lanes.h"

namespace holdfast::s4d {

template <typename T>
struct Staging {
  static constexpr int64_t kPoint = 2 * lanes<T>;
  const Shape &shape;
  const Layout<T> &layout;
  int64_t block, blocks, pair;  // which blocks of features, which pair of groups of rows

  int64_t size() const { return blocks * shape.time * kPoint; }

  // Zero after the end of a row, and in lanes that hold nothing.
  void read(const T *data, T *stage) const {
    for (int side = 0; side < 2; ++side) {
      const int64_t group = 2 * pair + side;
      if (group >= layout.groups) {
        for (int64_t i = 0; i < blocks * shape.time; ++i) store(stage + i * kPoint + side * lanes<T>, Vector<T>{});
      } else if (layout.fold == 1) {
        read_row(data + group * shape.time * shape.features, shape.length(group), stage + side * lanes<T>);
      } else {
        read_folded(data, group, stage + side * lanes<T>);
      }
    }
  }

  // Zero after the end of a row. `past_cache`: nobody will read the result soon.
  void write(const T *stage, T *data, bool past_cache) const {
    for (int side = 0; side < 2 && 2 * pair + side < layout.groups; ++side) {
      const int64_t group = 2 * pair + side;
      if (layout.fold == 1) {
        T *row = data + group * shape.time * shape.features;
        const bool aligned = reinterpret_cast<uintptr_t>(row) % HOLDFAST_VECTOR_BYTES == 0;
        const bool streamed = past_cache && aligned && shape.features % lanes<T> == 0;
        streamed ? write_row<true>(stage + side * lanes<T>, shape.length(group), row)
                 : write_row<false>(stage + side * lanes<T>, shape.length(group), row);
      } else {
        write_folded(stage + side * lanes<T>, group, data);
      }
    }
  }

 private:
  // Blocks that fill their vectors, and the features of the one after them, if any.
  int64_t whole() const {
    const int64_t left = shape.features / lanes<T> - block;
    return left < blocks ? left : blocks;
  }
  int64_t rest() const { return whole() < blocks ? shape.features % lanes<T> : 0; }

  void read_row(const T *row, int64_t length, T *stage) const {
    const int64_t full = whole(), part = rest(), step = shape.time * kPoint;
    for (int64_t t = 0; t < length; ++t) {
      const T *from = row + t * shape.features + block * lanes<T>;
      T *to = stage + t * kPoint;
      for (int64_t i = 0; i < full; ++i) store(to + i * step, load(from + i * lanes<T>));
      if (part) store(to + full * step, load_first(from + full * lanes<T>, part));
    }
    for (int64_t t = length; t < shape.time; ++t) {
      for (int64_t i = 0; i < blocks; ++i) store(stage + i * step + t * kPoint, Vector<T>{});
    }
  }

  template <bool Streamed>
  void write_row(const T *stage, int64_t length, T *row) const {
    const int64_t full = whole(), part = rest(), step = shape.time * kPoint;
    for (int64_t t = 0; t < shape.time; ++t) {
      const T *from = stage + t * kPoint;
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
  void read_folded(const T *data, int64_t group, T *stage) const {
    for (int64_t t = 0; t < shape.time; ++t) store(stage + t * kPoint, Vector<T>{});
    for (int64_t r = 0; r < layout.fold && group * layout.fold + r < shape.batch; ++r) {
      const int64_t row = group * layout.fold + r, length = shape.length(row);
      const T *from = data + row * shape.time * shape.features;
      T *to = stage + r * layout.width;
      for (int64_t t = 0; t < length; ++t) {
        for (int64_t i = 0; i < layout.width; ++i) to[t * kPoint + i] = from[t * shape.features + i];
      }
    }
  }

  void write_folded(const T *stage, int64_t group, T *data) const {
    for (int64_t r = 0; r < layout.fold && group * layout.fold + r < shape.batch; ++r) {
      const int64_t row = group * layout.fold + r, length = shape.length(row);
      const T *from = stage + r * layout.width;
      T *to = data + row * shape.time * shape.features;
      for (int64_t t = 0; t < shape.time; ++t) {
        for (int64_t i = 0; i < layout.width; ++i) to[t * shape.features + i] = t < length ? from[t * kPoint + i] : T(0);
      }
    }
  }
};

}  // namespace holdfast::s4d
