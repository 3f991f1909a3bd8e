// common/product.h for float and double.
#include "common/product.h"

#include <algorithm>
#include <utility>

#include "common/masked.h"

namespace holdfast {

namespace {

constexpr int64_t kPackedRows = 32;
// Terms that are added up one after another: sums of sums lose less than one sum.
constexpr int64_t kSummedDepth = 256;

template <typename T, int R, int C>
void multiply_tile(Rows<const T> a, int64_t depth, const T *panel, Rows<const T> added, Rows<T> out, int64_t last) {
  // few accumulators would wait for each other (4 cycles a multiply-add), so these sum every other term apart
  constexpr int S = R * C >= 4 ? 1 : (3 + R * C) / (R * C);
  Vector<T> sums[S][R][C];
  HOLDFAST_UNROLL
  for (int s = 0; s < S; ++s) HOLDFAST_UNROLL
  for (int r = 0; r < R; ++r) HOLDFAST_UNROLL
  for (int c = 0; c < C; ++c) sums[s][r][c] = Vector<T>{};
  int64_t k = 0;
  for (; k + S <= depth; k += S) {
    HOLDFAST_UNROLL
    for (int s = 0; s < S; ++s) {
      Vector<T> b[C];
      HOLDFAST_UNROLL
      for (int c = 0; c < C; ++c) b[c] = load(panel + ((k + s) * C + c) * lanes<T>);
      HOLDFAST_UNROLL
      for (int r = 0; r < R; ++r) {
        const T factor = a.data[r * a.stride + k + s];
        HOLDFAST_UNROLL
        for (int c = 0; c < C; ++c) sums[s][r][c] += factor * b[c];
      }
    }
  }
  for (; k < depth; ++k) HOLDFAST_UNROLL
  for (int r = 0; r < R; ++r) HOLDFAST_UNROLL
  for (int c = 0; c < C; ++c) sums[0][r][c] += a.data[r * a.stride + k] * load(panel + (k * C + c) * lanes<T>);
  HOLDFAST_UNROLL
  for (int r = 0; r < R; ++r) HOLDFAST_UNROLL
  for (int c = 0; c < C; ++c) {
    HOLDFAST_UNROLL
    for (int s = 1; s < S; ++s) sums[0][r][c] += sums[s][r][c];
    // last: an Euler step adds many small terms to a large state, and each sum with it in would be rounded to its size
    T *target = out.data + r * out.stride + c * lanes<T>;
    const T *addend = added.data ? added.data + r * added.stride + c * lanes<T> : nullptr;
    if (c + 1 < C || last == lanes<T>) {
      store(target, addend ? sums[0][r][c] + load(addend) : sums[0][r][c]);
    } else {
      store_part(target, addend ? sums[0][r][c] + get(addend, last) : sums[0][r][c], last);
    }
  }
}

template <typename T, int R, int C>
void outer_tile(const Run<T> *runs, int64_t count, int64_t left_at, int64_t right_at, int64_t left_stride,
                int64_t right_stride, T *out, int64_t out_stride) {
  HOLDFAST_UNROLL
  for (int r = 0; r < R; ++r) HOLDFAST_UNROLL
  for (int c = 0; c < C; ++c) __builtin_prefetch(out + r * out_stride + c * lanes<T>, 1);
  Vector<T> sums[R][C] = {};
  for (int64_t run = 0; run < count; ++run) {
    const T *left = runs[run].left + left_at, *right = runs[run].right + right_at;
    for (int64_t k = 0; k < runs[run].count; ++k, left += left_stride, right += right_stride) {
      Vector<T> b[C];
      HOLDFAST_UNROLL
      for (int c = 0; c < C; ++c) b[c] = load(right + c * lanes<T>);
      HOLDFAST_UNROLL
      for (int r = 0; r < R; ++r) HOLDFAST_UNROLL
      for (int c = 0; c < C; ++c) sums[r][c] += left[r] * b[c];
    }
  }
  // added at the end, not carried in the accumulators: sums of sums lose less than one sum of B T terms
  HOLDFAST_UNROLL
  for (int r = 0; r < R; ++r) HOLDFAST_UNROLL
  for (int c = 0; c < C; ++c) {
    T *target = out + r * out_stride + c * lanes<T>;
    store(target, load(target) + sums[r][c]);
  }
}

template <typename T>
using MultiplyTile = void (*)(Rows<const T>, int64_t, const T *, Rows<const T>, Rows<T>, int64_t);
template <typename T>
using OuterTile = void (*)(const Run<T> *, int64_t, int64_t, int64_t, int64_t, int64_t, T *, int64_t);

template <typename T, int R, int C>
constexpr MultiplyTile<T> multiply_entry() {
  if constexpr (R * C <= kMaxAccumulators) return &multiply_tile<T, R, C>;
  else return nullptr;
}
template <typename T, int R, int C>
constexpr OuterTile<T> outer_entry() {
  if constexpr (R * C <= kMaxAccumulators) return &outer_tile<T, R, C>;
  else return nullptr;
}

template <typename T, int... I>
MultiplyTile<T> multiply_for(int64_t rows, int64_t width, std::integer_sequence<int, I...>) {
  static constexpr MultiplyTile<T> table[] = {multiply_entry<T, I / kMaxVectors + 1, I % kMaxVectors + 1>()...};
  return table[(rows - 1) * kMaxVectors + width - 1];
}
template <typename T, int... I>
OuterTile<T> outer_for(int64_t rows, int64_t width, std::integer_sequence<int, I...>) {
  static constexpr OuterTile<T> table[] = {outer_entry<T, I / kMaxVectors + 1, I % kMaxVectors + 1>()...};
  return table[(rows - 1) * kMaxVectors + width - 1];
}
using TileIndices = std::make_integer_sequence<int, kMaxRows * kMaxVectors>;

// The height of the next tile when `rows` are left: tiles of equal height, none above what the registers hold.
inline int64_t tile_height(int64_t rows, int64_t width) {
  const int64_t limit = std::min<int64_t>(kMaxRows, kMaxAccumulators / width);
  const int64_t tiles = (rows + limit - 1) / limit;
  return (rows + tiles - 1) / tiles;
}

}  // namespace

template <typename T>
void pack(const T *m, int64_t row_stride, int64_t column_stride, int64_t rows, int64_t columns, T *packed,
          int64_t widest) {
  pack_rows(m, row_stride, column_stride, rows, columns, packed, widest, 0, rows);
}

template <typename T>
void pack_rows(const T *m, int64_t row_stride, int64_t column_stride, int64_t rows, int64_t columns, T *packed,
               int64_t widest, int64_t begin, int64_t end) {
  const int64_t total = vectors_in<T>(columns);
  for (int64_t first = 0, width; first < total; first += width) {
    width = panel_width(first, total, widest);
    const int64_t stride = width * lanes<T>, at = first * lanes<T>, count = std::min(stride, columns - at);
    // along what lies together in m, some rows at a time: whole columns would send each line of `packed` away 16 times
    for (int64_t some = begin; some < end; some += kPackedRows) {
      const int64_t until = std::min(some + kPackedRows, end);
      for (int64_t i = 0; i < count && row_stride < column_stride; ++i) {
        const T *const from = m + (at + i) * column_stride;
        for (int64_t row = some; row < until; ++row) packed[row * stride + i] = from[row * row_stride];
      }
      for (int64_t row = some; row < until; ++row) {
        const T *const from = m + row * row_stride + at * column_stride;
        if (row_stride >= column_stride)
          for (int64_t i = 0; i < count; ++i) packed[row * stride + i] = from[i * column_stride];
        std::fill(packed + row * stride + count, packed + (row + 1) * stride, T(0));
      }
    }
    packed += rows * stride;
  }
}

template <typename T>
void multiply(Rows<const T> a, int64_t rows, int64_t depth, const T *packed, int64_t columns, Rows<const T> added,
              Rows<T> out, bool whole) {
  const int64_t total = vectors_in<T>(columns);
  for (int64_t first = 0, width; first < total; packed += depth * width * lanes<T>, first += width) {
    width = panel_width(first, total);
    const int64_t at = first * lanes<T>;
    const int64_t last = whole ? lanes<T> : std::min(lanes<T>, columns - at - (width - 1) * lanes<T>);
    for (int64_t row = 0, height; row < rows; row += height) {
      height = tile_height(rows - row, width);
      Rows<const T> addend{added.data ? added.data + row * added.stride + at : nullptr, added.stride};
      const Rows<T> target{out.data + row * out.stride + at, out.stride};
      for (int64_t from = 0; from == 0 || from < depth; from += kSummedDepth) {
        const int64_t terms = std::min(depth - from, kSummedDepth);
        multiply_for<T>(height, width, TileIndices())({a.data + row * a.stride + from, a.stride}, terms,
                                                      packed + from * width * lanes<T>, addend, target, last);
        addend = {target.data, target.stride};
      }
    }
  }
}

template <typename T>
void add_outer(const Run<T> *runs, int64_t count, int64_t rows, int64_t columns, int64_t left_stride,
               int64_t right_stride, T *out, int64_t out_stride) {
  const int64_t total = vectors_in<T>(columns);
  for (int64_t first = 0, width; first < total; first += width) {
    width = panel_width(first, total);
    const int64_t at = first * lanes<T>;
    for (int64_t row = 0, height; row < rows; row += height) {
      height = tile_height(rows - row, width);
      outer_for<T>(height, width, TileIndices())(runs, count, row, at, left_stride, right_stride,
                                                 out + row * out_stride + at, out_stride);
    }
  }
}

#define HOLDFAST_PRODUCT(T)                                                                                  \
  template void pack(const T *, int64_t, int64_t, int64_t, int64_t, T *, int64_t);                           \
  template void pack_rows(const T *, int64_t, int64_t, int64_t, int64_t, T *, int64_t, int64_t, int64_t);    \
  template void multiply(Rows<const T>, int64_t, int64_t, const T *, int64_t, Rows<const T>, Rows<T>, bool); \
  template void add_outer(const Run<T> *, int64_t, int64_t, int64_t, int64_t, int64_t, T *, int64_t);
HOLDFAST_PRODUCT(float)
HOLDFAST_PRODUCT(double)

}  // namespace holdfast
