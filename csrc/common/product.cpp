// common/product.h for float and double.
#include "common/product.h"

namespace holdfast {

namespace {

// Rows of a block of the result: with two vectors each, 24 of AVX-512's 32 registers, 12 of 16 otherwise.
constexpr int kBlockRows = HOLDFAST_VECTOR_BYTES == 64 ? 12 : 6;

template <int M, int V, typename T>
void product_block(bool add, Left<T> a, const T *b, int64_t b_row, T *c, int64_t c_row, int64_t depth) {
  Vector<T> sums[M][V];
  HOLDFAST_UNROLL for (int m = 0; m < M; ++m) HOLDFAST_UNROLL for (int v = 0; v < V; ++v) sums[m][v] = Vector<T>{};
  for (int64_t k = 0; k < depth; ++k) {
    Vector<T> right[V];
    HOLDFAST_UNROLL for (int v = 0; v < V; ++v) right[v] = load(b + k * b_row + v * lanes<T>);
    HOLDFAST_UNROLL for (int m = 0; m < M; ++m) {
      const Vector<T> left = broadcast(a.data[m * a.row + k * a.depth]);
      HOLDFAST_UNROLL for (int v = 0; v < V; ++v) sums[m][v] += left * right[v];
    }
  }
  HOLDFAST_UNROLL for (int m = 0; m < M; ++m) HOLDFAST_UNROLL for (int v = 0; v < V; ++v) {
    T *const to = c + m * c_row + v * lanes<T>;
    store(to, add ? load(to) + sums[m][v] : sums[m][v]);
  }
}

template <int V, typename T>
void product_panel(bool add, Left<T> a, const T *b, int64_t b_row, T *c, int64_t c_row, int64_t rows, int64_t depth) {
  int64_t i = 0;
  const auto left = [&] { return Left<T>{a.data + i * a.row, a.row, a.depth}; };
  for (; i + kBlockRows <= rows; i += kBlockRows)
    product_block<kBlockRows, V>(add, left(), b, b_row, c + i * c_row, c_row, depth);
  constexpr int few = kBlockRows / 3;
  for (; i + few <= rows; i += few) product_block<few, V>(add, left(), b, b_row, c + i * c_row, c_row, depth);
  for (; i < rows; ++i) product_block<1, V>(add, left(), b, b_row, c + i * c_row, c_row, depth);
}

}  // namespace

template <typename T>
void product(bool add, Left<T> a, Right<T> b, T *c, int64_t c_row, int64_t rows, int64_t columns, int64_t depth) {
  int64_t panel = 0, j = 0;
  for (; j + block_columns<T> <= columns; j += block_columns<T>, ++panel)
    product_panel<kBlockVectors>(add, a, b.data + panel * b.panel, b.row, c + j, c_row, rows, depth);
  if (j < columns) product_panel<1>(add, a, b.data + panel * b.panel, b.row, c + j, c_row, rows, depth);
}

template <typename T>
Right<T> pack(const T *w, int64_t depth_stride, int64_t column_stride, int64_t columns, int64_t depth, T *to) {
  constexpr int64_t wide = block_columns<T>;
  for (int64_t j = 0; j < columns; ++j)
    for (int64_t k = 0; k < depth; ++k)
      to[j / wide * wide * depth + k * wide + j % wide] = w[k * depth_stride + j * column_stride];
  return {to, wide * depth, wide};
}

template void product(bool, Left<float>, Right<float>, float *, int64_t, int64_t, int64_t, int64_t);
template void product(bool, Left<double>, Right<double>, double *, int64_t, int64_t, int64_t, int64_t);
template Right<float> pack(const float *, int64_t, int64_t, int64_t, int64_t, float *);
template Right<double> pack(const double *, int64_t, int64_t, int64_t, int64_t, double *);

}  // namespace holdfast
