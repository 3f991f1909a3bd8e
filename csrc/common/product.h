// Small matrix products inside a kernel's tile, blocked in registers: weights of some hundred rows and columns by a
// tile of time steps. torch's products reach 55-85% of the arithmetic at these sizes, and send every intermediate
// through memory.
#pragma once

#include "common/vector.h"

namespace holdfast {

// Accumulators that fit the registers beside the operands: 24 of the 32 of AVX-512, 12 of 16 elsewhere.
#if defined(__AVX512F__)
constexpr int kMaxRows = 8, kMaxVectors = 4, kMaxAccumulators = 24;
#else
constexpr int kMaxRows = 6, kMaxVectors = 2, kMaxAccumulators = 12;
#endif

template <typename T>
constexpr int64_t vectors_in(int64_t count) {
  return (count + lanes<T> - 1) / lanes<T>;
}

// A block of rows: row r begins at data + r * stride.
template <typename T>
struct Rows {
  T *data;
  int64_t stride;
};

// One run of left and right rows whose outer products are to be summed.
template <typename T>
struct Run {
  const T *left;
  const T *right;
  int64_t count;
};

// The width in vectors of the panel that starts at vector `first` of `total`: panels of nearly equal width.
constexpr int64_t panel_width(int64_t first, int64_t total, int64_t widest = kMaxVectors) {
  const int64_t left = total - first;
  const int64_t panels = (left + widest - 1) / widest;
  return (left + panels - 1) / panels;
}

// Packs a matrix for `multiply`: panel after panel, in each the rows one after another. fill(row, vector, to) writes
// one vector of a row. With `widest` = all vectors, plain rows.
template <typename T, typename Fill>
inline void pack_vectors(int64_t rows, int64_t vectors, T *packed, int64_t widest, Fill &&fill) {
  for (int64_t first = 0, width; first < vectors; first += width) {
    width = panel_width(first, vectors, widest);
    for (int64_t row = 0; row < rows; ++row)
      for (int64_t v = first; v < first + width; ++v, packed += lanes<T>) fill(row, v, packed);
  }
}

// The same of the matrix with entries m[row * row_stride + column * column_stride], columns padded with zeros to whole
// vectors.
template <typename T>
void pack(const T *m, int64_t row_stride, int64_t column_stride, int64_t rows, int64_t columns, T *packed,
          int64_t widest = kMaxVectors);

// The rows from `begin` to `end` alone, so that threads can share them.
template <typename T>
void pack_rows(const T *m, int64_t row_stride, int64_t column_stride, int64_t rows, int64_t columns, T *packed,
               int64_t widest, int64_t begin, int64_t end);

// Numbers that `pack` writes.
template <typename T>
constexpr int64_t packed_size(int64_t rows, int64_t columns) {
  return rows * vectors_in<T>(columns) * lanes<T>;
}

// out = a b + added for `rows` rows of a, with b (depth, columns) from `pack`; added.data may be null for 0. `whole`
// says that rows of `out` have room for whole vectors; otherwise exactly `columns` entries of each are written.
template <typename T>
void multiply(Rows<const T> a, int64_t rows, int64_t depth, const T *packed, int64_t columns, Rows<const T> added,
              Rows<T> out, bool whole);

// out[i][j] += sum over all rows k of all runs of left[k][i] right[k][j], for i < rows and whole vectors of j.
template <typename T>
void add_outer(const Run<T> *runs, int64_t count, int64_t rows, int64_t columns, int64_t left_stride,
               int64_t right_stride, T *out, int64_t out_stride);

}  // namespace holdfast
