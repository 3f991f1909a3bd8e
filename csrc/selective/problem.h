// What both directions of the selective scan work on. A vector's lanes are channels; the states of a vector of channels
// lie one after another, so that nothing is shuffled. Weights and states of the C ABI are (states, channels).
#pragma once

#include <cstdint>
#include <memory>
#include <new>

#include "common/parallel.h"
#include "common/vector.h"

namespace holdfast::selective {

// Steps between two kept states; a tile of 64 steps, 4 states and a vector of channels stays in the first cache.
constexpr int64_t kTile = 64;
// States that run side by side, which hides the latency of one step after another.
constexpr int kTogether = 4;

enum Flags : int { kSoftplus = 1, kReverse = 2 };

// Steps of one row in the order of the run: step s is at data + s * step.
template <typename T>
struct Steps {
  T *data;
  int64_t step;
  T *at(int64_t s) const { return data + s * step; }
  explicit operator bool() const { return data != nullptr; }
};

// A tensor (rows, steps, ...) whose last dimensions are dense; null where it was not given.
template <typename T>
struct Sequence {
  T *data;
  int64_t row, step;
};

// The channels of one vector: `count` of them from `channel`, all of one group.
struct Place {
  int64_t group, channel, count;
};

template <typename T>
struct Problem {
  int64_t rows, steps, channels, groups, states, parts;
  int flags, threads;
  const int64_t *lengths;
  Sequence<const unsigned char> resets;
  Sequence<const T> u, dt, b, c, z;
  const T *a, *d, *bias, *h0;

  int64_t in_group() const { return channels / groups; }
  int64_t vectors_in_group() const { return (in_group() + lanes<T> - 1) / lanes<T>; }
  int64_t vectors() const { return groups * vectors_in_group(); }
  int64_t tiles() const { return (steps + kTile - 1) / kTile; }
  int64_t length(int64_t row) const { return lengths ? lengths[row] : steps; }

  Place place(int64_t vector) const {
    const int64_t group = vector / vectors_in_group(), first = vector % vectors_in_group() * lanes<T>;
    const int64_t left = in_group() - first;
    return {group, group * in_group() + first, left < lanes<T> ? left : lanes<T>};
  }

  template <typename S>
  Steps<S> row(Sequence<S> of, int64_t row) const {
    if (!of.data) return {nullptr, 0};
    S *const begin = of.data + row * of.row;
    if (!(flags & kReverse)) return {begin, of.step};
    return {begin + (length(row) - 1) * of.step, -of.step};
  }

  // Dense (rows, steps, channels), such as results.
  template <typename S>
  Sequence<S> dense(S *data) const {
    return {data, steps * channels, channels};
  }

  // Calls body(rank, row, part, vectors) for every row, its vectors cut into `parts`.
  template <typename Body>
  void each(Body &&body) const {
    parallel(threads, [&](int rank, int size) {
      const Range mine = share(rows * parts, rank, size);
      for (int64_t task = mine.begin; task < mine.end; ++task) {
        const int64_t part = task % parts;
        body(rank, task / parts, part, share(vectors(), static_cast<int>(part), static_cast<int>(parts)));
      }
    });
  }
};

// Numbers of one thread's own; null where there is no memory.
template <typename T>
std::unique_ptr<T[]> room(int64_t count) {
  return std::unique_ptr<T[]>(new (std::nothrow) T[static_cast<size_t>(count)]);
}

template <typename T>
inline Vector<T> get(const T *p, int64_t count) {
  return count == lanes<T> ? load(p) : load_first(p, count);
}
template <typename T>
inline void put(T *p, Vector<T> v, int64_t count) {
  count == lanes<T> ? store(p, v) : store_first(p, v, count);
}


}  // namespace holdfast::selective
