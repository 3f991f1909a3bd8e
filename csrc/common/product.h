// Small matrix products inside a kernel's tile: weights of some hundred rows and columns, a tile of time steps. torch's
// products reach 55-85% of the arithmetic at these sizes, and have to send every intermediate through memory.
#pragma once

#include "common/vector.h"

namespace holdfast {

// A block of the result stays in registers: rows by two vectors, 24 of AVX-512's 32 registers, 12 of 16 otherwise.
constexpr int kBlockRows = HOLDFAST_VECTOR_BYTES == 64 ? 12 : 6;
constexpr int kBlockVectors = 2;

template <typename T>
constexpr int64_t block_columns = kBlockVectors * lanes<T>;

// Element (i, k) of the left factor is at data[i * row + k * depth].
template <typename T>
struct Left {
  const T *data;
  int64_t row, depth;
};

// Columns in panels of block_columns: row k of panel p begins at data + p * panel + k * row.
template <typename T>
struct Right {
  const T *data;
  int64_t panel, row;

  // A matrix as it is, its rows side by side.
  static Right plain(const T *data, int64_t columns) { return {data, block_columns<T>, columns}; }
};

template <int M, int V, bool Add, typename T>
inline void product_block(Left<T> a, const T *b, int64_t b_row, T *c, int64_t c_row, int64_t depth) {
  Vector<T> sums[M][V];
#pragma GCC unroll 12
  for (int m = 0; m < M; ++m)
    for (int v = 0; v < V; ++v) sums[m][v] = Vector<T>{};
  for (int64_t k = 0; k < depth; ++k) {
    Vector<T> right[V];
    for (int v = 0; v < V; ++v) right[v] = load(b + k * b_row + v * lanes<T>);
#pragma GCC unroll 12
    for (int m = 0; m < M; ++m) {
      const Vector<T> left = broadcast(a.data[m * a.row + k * a.depth]);
      for (int v = 0; v < V; ++v) sums[m][v] += left * right[v];
    }
  }
#pragma GCC unroll 12
  for (int m = 0; m < M; ++m)
    for (int v = 0; v < V; ++v) {
      T *const to = c + m * c_row + v * lanes<T>;
      store(to, Add ? load(to) + sums[m][v] : sums[m][v]);
    }
}

template <int V, bool Add, typename T>
inline void product_panel(Left<T> a, const T *b, int64_t b_row, T *c, int64_t c_row, int64_t rows, int64_t depth) {
  int64_t i = 0;
  const auto left = [&] { return Left<T>{a.data + i * a.row, a.row, a.depth}; };
  for (; i + kBlockRows <= rows; i += kBlockRows)
    product_block<kBlockRows, V, Add>(left(), b, b_row, c + i * c_row, c_row, depth);
  constexpr int few = kBlockRows / 3;
  for (; i + few <= rows; i += few) product_block<few, V, Add>(left(), b, b_row, c + i * c_row, c_row, depth);
  for (; i < rows; ++i) product_block<1, V, Add>(left(), b, b_row, c + i * c_row, c_row, depth);
}

// c = a b, or c += a b: (rows, depth) by (depth, columns), columns a multiple of a vector.
template <bool Add, typename T>
HOLDFAST_APART inline void product(Left<T> a, Right<T> b, T *c, int64_t c_row, int64_t rows, int64_t columns, int64_t depth) {
  int64_t panel = 0, j = 0;
  for (; j + block_columns<T> <= columns; j += block_columns<T>, ++panel)
    product_panel<kBlockVectors, Add>(a, b.data + panel * b.panel, b.row, c + j, c_row, rows, depth);
  if (j < columns) product_panel<1, Add>(a, b.data + panel * b.panel, b.row, c + j, c_row, rows, depth);
}

// Numbers that pack() writes.
template <typename T>
constexpr int64_t packed_size(int64_t columns, int64_t depth) {
  return (columns + block_columns<T> - 1) / block_columns<T> * block_columns<T> * depth;
}

// The right factor with its panels one after another; element (k, j) is at w[k * depth_stride + j * column_stride].
template <typename T>
inline Right<T> pack(const T *w, int64_t depth_stride, int64_t column_stride, int64_t columns, int64_t depth, T *to) {
  constexpr int64_t wide = block_columns<T>;
  for (int64_t j = 0; j < columns; ++j)
    for (int64_t k = 0; k < depth; ++k)
      to[j / wide * wide * depth + k * wide + j % wide] = w[k * depth_stride + j * column_stride];
  return {to, wide * depth, wide};
}

}  // namespace holdfast
