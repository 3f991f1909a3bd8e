// Rows of a batch that advance together through time, longest first: what the nonlinear recurrences share.
#pragma once

#include <algorithm>
#include <cstdint>

namespace holdfast {

// Steps from a row that is being worked on to the one fetched into the second-level cache: rows of one group lie far
// apart, and in the backward pass in descending order, where the processor's own prefetching did not follow
// (64 x 784 x 64 states: 23 ms without, 17.5 ms with).
constexpr int64_t kAhead = 4;

template <typename T>
inline void fetch_to_read(const T *p, int64_t count) {
  for (int64_t i = 0; i < count; i += 64 / static_cast<int64_t>(sizeof(T))) __builtin_prefetch(p + i, 0, 2);
}
template <typename T>
inline void fetch_to_write(T *p, int64_t count) {
  for (int64_t i = 0; i < count; i += 64 / static_cast<int64_t>(sizeof(T))) __builtin_prefetch(p + i, 1, 2);
}

// One row of the batch as the kernel walks it.
struct Row {
  int64_t index, length;
  int64_t first;  // the time of its first step: 0, or in reverse the last one before its end
};

template <typename Call>
inline void fill_by_length(const Call &call, Row *rows) {
  for (int64_t i = 0; i < call.batch; ++i) {
    const int64_t length = call.lengths ? call.lengths[i] : call.time;
    rows[i] = {i, length, call.reverse && length > 0 ? length - 1 : 0};
  }
  if (!call.lengths) return;
  // longest first: the rows still running are then always the first ones of a group
  std::sort(rows, rows + call.batch,
            [](const Row &a, const Row &b) { return a.length != b.length ? a.length > b.length : a.index < b.index; });
}

// The rows that advance together, longest first, and where their data lie.
struct Group {
  const Row *rows;
  int64_t
      stride;  // between the rows of one thread in the list: threads take turns, so that all get long and short ones
  int64_t count;

  const Row &operator[](int64_t r) const { return rows[r * stride]; }
  int64_t longest() const { return rows[0].length; }
  // rows that have a step `step`
  int64_t active(int64_t step) const {
    int64_t n = count;
    while (n > 0 && (*this)[n - 1].length <= step) --n;
    return n;
  }
};

// Calls body(group) for each group of the rows that fall to this thread.
template <typename Body>
void for_each_group(const Row *rows, int64_t total, int rank, int size, int64_t largest, Body &&body) {
  const int64_t mine = (total - rank + size - 1) / size;
  for (int64_t begin = 0, count; begin < mine; begin += count) {
    const int64_t groups = (mine - begin + largest - 1) / largest;
    count = (mine - begin + groups - 1) / groups;
    body(Group{rows + rank + begin * size, size, count});
  }
}

}  // namespace holdfast
