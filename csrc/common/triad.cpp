// The STREAM triad, the roofline that the memory-bound kernels are measured against.
#include "common/export.h"
#include "common/parallel.h"

// out = x + scale * y over `count` floats.
HOLDFAST_EXPORT void holdfast_triad(float *__restrict out, const float *__restrict x, const float *__restrict y,
                                    float scale, int64_t count, int threads) {
  holdfast::parallel(threads, [&](int rank, int size) {
    const auto [begin, end] = holdfast::share(count, rank, size, 1024);
    for (int64_t i = begin; i < end; ++i) out[i] = x[i] + scale * y[i];
  });
}
