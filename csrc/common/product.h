// Small matrix products inside a kernel's tile: weights of some hundred rows and columns, a tile of time steps. torch's
// products reach 55-85% of the arithmetic at these sizes, and have to send every intermediate through memory.
#pragma once

#include "common/vector.h"

namespace holdfast {

// Vectors side by side in a block of the result, which stays in registers.
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

// c = a b, or where `add` c += a b: (rows, depth) by (depth, columns), columns a multiple of a vector.
template <typename T>
void product(bool add, Left<T> a, Right<T> b, T *c, int64_t c_row, int64_t rows, int64_t columns, int64_t depth);

// Numbers that pack() writes.
template <typename T>
constexpr int64_t packed_size(int64_t columns, int64_t depth) {
  return (columns + block_columns<T> - 1) / block_columns<T> * block_columns<T> * depth;
}

// The right factor with its panels one after another; element (k, j) is at w[k * depth_stride + j * column_stride].
template <typename T>
Right<T> pack(const T *w, int64_t depth_stride, int64_t column_stride, int64_t columns, int64_t depth, T *to);

}  // namespace holdfast
