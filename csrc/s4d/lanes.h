// How (batch, time, features) meets the vector lanes: features side by side, and where they are fewer than lanes,
// several batch rows of them. Tiles of time steps are copied to and from contiguous rows of lanes: rows of a tensor
// that lie a power of two apart fight for the same sets of the first-level cache, and reading one vector of each row
// gets a third of the memory's bandwidth, so that several blocks of features are copied together.
#pragma once

#include <cstdint>
#include <cstring>

#include "common/memory.h"

namespace holdfast::s4d {

struct Shape {
  int64_t batch, time, features, modes;
  const int64_t *lengths;  // of each row, or null: all of `time`
  bool reverse;

  int64_t length(int64_t row) const { return lengths ? lengths[row] : time; }
};

inline int64_t ceil_div(int64_t x, int64_t y) { return (x + y - 1) / y; }

// The division of batch and features among vectors.
template <typename T>
struct Layout {
  int64_t width, fold, blocks, groups;  // features in a vector, rows in a vector, vectors over features, over rows

  explicit Layout(const Shape &shape)
      : width(shape.features < lanes<T> ? shape.features : lanes<T>), fold(lanes<T> / width),
        blocks(ceil_div(shape.features, width)), groups(ceil_div(shape.batch, fold)) {}
};

// The rows of one vector. They run `steps` steps together and end together: a row that is shorter than the longest
// one starts later, on zeros.
template <typename T>
struct Group {
  int64_t row, rows, steps = 0;
  int64_t length[lanes<T>] = {};

  Group(const Shape &shape, const Layout<T> &layout, int64_t group)
      : row(group * layout.fold), rows(shape.batch - row < layout.fold ? shape.batch - row : layout.fold) {
    for (int64_t r = 0; r < rows; ++r) {
      length[r] = shape.length(row + r);
      if (length[r] > steps) steps = length[r];
    }
  }

  int64_t start(int64_t r) const { return steps - length[r]; }

  // Where the tile that begins at `step` ends: `tile` steps on, at the end, or (breaks) where another row starts.
  int64_t next(int64_t step, int64_t tile, bool breaks) const {
    int64_t end = step + tile < steps ? step + tile : steps;
    for (int64_t r = 0; r < rows && breaks; ++r) {
      if (start(r) > step && start(r) < end) end = start(r);
    }
    return end;
  }

  // Where the tile that ends at `end` begins.
  int64_t previous(int64_t end, int64_t tile, bool breaks) const {
    int64_t from = 0;
    for (int64_t r = 0; r < rows && breaks; ++r) {
      if (start(r) > from && start(r) < end) from = start(r);
    }
    return from + (end - 1 - from) / tile * tile;
  }
};

// Steps in a tile; the scan keeps a state at the beginning of each.
constexpr int64_t kTile = 128;
// Larger outputs than this do not stay in the caches, and are written past them.
constexpr int64_t kCached = int64_t{8} << 20;

// Copies of tiles for the blocks first .. first + blocks of a group: one vector per step, blocks kTile vectors apart.
template <typename T>
struct Tiles {
  static constexpr int64_t kSize = kTile * lanes<T>;
  const Shape &shape;
  const Layout<T> &layout;
  const Group<T> &group;
  int64_t first, blocks;

  // Steps step .. step + count; lanes without data are 0.
  void pack(const T *data, int64_t step, int64_t count, T *tile) const {
    if (layout.fold > 1) return pack_folded(data, step, count, tile);
    const int64_t full = whole(), part = rest(), stride = way();
    const T *from = data + place(0, step);
    for (int64_t s = 0; s < count; ++s, from += stride, tile += lanes<T>) {
      for (int64_t i = 0; i < full; ++i) store(tile + i * kSize, load(from + i * lanes<T>));
      if (part) store(tile + full * kSize, load_first(from + full * lanes<T>, part));
    }
  }

  // The reverse of pack.
  void unpack(const T *tile, int64_t step, int64_t count, T *data) const {
    if (layout.fold > 1) return unpack_folded(tile, step, count, data);
    const bool aligned =
        reinterpret_cast<uintptr_t>(data) % HOLDFAST_VECTOR_BYTES == 0 && shape.features % lanes<T> == 0;
    const int64_t bytes = shape.batch * shape.time * shape.features * static_cast<int64_t>(sizeof(T));
    if (aligned && bytes > kCached) return unpack_whole(tile, step, count, data);
    const int64_t full = whole(), part = rest(), stride = way();
    T *to = data + place(0, step);
    for (int64_t s = 0; s < count; ++s, to += stride, tile += lanes<T>) {
      for (int64_t i = 0; i < full; ++i) store(to + i * lanes<T>, load(tile + i * kSize));
      if (part) store_first(to + full * lanes<T>, load(tile + full * kSize), part);
    }
  }

  // Fetches the rows of share `part` of `parts` of a tile that will be packed next.
  void fetch(const T *data, int64_t step, int64_t part, int64_t parts) const {
    if (layout.fold > 1 || step >= group.steps) return;
    const int64_t left = group.steps - step, count = left < kTile ? left : kTile, stride = way();
    const T *from = data + place(0, step);
    for (int64_t s = count * part / parts; s < count * (part + 1) / parts; ++s) {
      for (int64_t i = 0; i < blocks; ++i) __builtin_prefetch(from + s * stride + i * lanes<T>, 0, 2);
    }
  }

  // Zeros after the end of each row.
  void clear_padding(T *data) const {
    const int64_t begin = first * layout.width, end = begin + blocks * layout.width;
    const int64_t width = (end < shape.features ? end : shape.features) - begin;
    for (int64_t r = 0; r < group.rows; ++r) {
      for (int64_t t = group.length[r]; t < shape.time; ++t) {
        T *p = data + ((group.row + r) * shape.time + t) * shape.features + begin;
        std::memset(p, 0, static_cast<size_t>(width) * sizeof(T));
      }
    }
  }

 private:
  // Blocks that fill their vectors, and the features of the one after them, if any.
  int64_t whole() const {
    const int64_t left = shape.features / lanes<T> - first;
    return left < blocks ? left : blocks;
  }
  int64_t rest() const { return whole() < blocks ? shape.features % lanes<T> : 0; }

  // Where step `step` of row r lies, and how far the next one is.
  int64_t place(int64_t r, int64_t step) const {
    const int64_t own = step - group.start(r), t = shape.reverse ? group.length[r] - 1 - own : own;
    return ((group.row + r) * shape.time + t) * shape.features + first * layout.width;
  }
  int64_t way() const { return shape.reverse ? -shape.features : shape.features; }

  void unpack_whole(const T *tile, int64_t step, int64_t count, T *data) const {
    T *to = data + place(0, step);
    for (int64_t s = 0; s < count; ++s, to += way(), tile += lanes<T>) {
      for (int64_t i = 0; i < blocks; ++i) stream(to + i * lanes<T>, load(tile + i * kSize));
    }
  }

  void pack_folded(const T *data, int64_t step, int64_t count, T *tile) const {
    std::memset(tile, 0, static_cast<size_t>(count * lanes<T>) * sizeof(T));
    for (int64_t r = 0; r < group.rows; ++r) {
      const int64_t late = group.start(r) - step, skipped = late > 0 ? late : 0;
      for (int64_t s = skipped; s < count; ++s) {
        const T *from = data + place(r, step + s);
        for (int64_t i = 0; i < layout.width; ++i) tile[s * lanes<T> + r * layout.width + i] = from[i];
      }
    }
  }

  void unpack_folded(const T *tile, int64_t step, int64_t count, T *data) const {
    for (int64_t r = 0; r < group.rows; ++r) {
      const int64_t late = group.start(r) - step, skipped = late > 0 ? late : 0;
      for (int64_t s = skipped; s < count; ++s) {
        T *to = data + place(r, step + s);
        for (int64_t i = 0; i < layout.width; ++i) to[i] = tile[s * lanes<T> + r * layout.width + i];
      }
    }
  }
};

}  // namespace holdfast::s4d
