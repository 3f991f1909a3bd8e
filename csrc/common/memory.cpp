// common/memory.h for the Python side, for outputs that torch allocates and fills itself.
#include "common/memory.h"

#include <cstring>

#include "common/export.h"

HOLDFAST_EXPORT int64_t holdfast_fresh_bytes() { return holdfast::fresh_bytes; }
HOLDFAST_EXPORT void holdfast_advise_large(void *data, int64_t bytes) { holdfast::advise_large(data, bytes); }

// True where each of `count` pairs of pieces of memory holds the same bytes.
HOLDFAST_EXPORT int holdfast_same(const void *const *x, const void *const *y, const int64_t *bytes, int64_t count) {
  for (int64_t i = 0; i < count; ++i)
    if (std::memcmp(x[i], y[i], static_cast<size_t>(bytes[i])) != 0) return 0;
  return 1;
}
