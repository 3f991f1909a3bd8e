// What this library is, and the pieces of common/parallel.h that hold state.
#include <atomic>

#include "common/export.h"
#include "common/parallel.h"
#include "common/vector.h"

#if defined(__unix__) || defined(__APPLE__)
#include <pthread.h>
#endif

namespace holdfast {

namespace {

std::atomic<bool> forked{false};

#if defined(__unix__) || defined(__APPLE__)
const int fork_handler = pthread_atfork(nullptr, nullptr, [] { forked.store(true); });
#endif

}  // namespace

bool threads_available() {
  return GOMP_parallel && omp_get_thread_num && omp_get_num_threads && omp_in_parallel && !omp_in_parallel() &&
         !forked.load(std::memory_order_relaxed);
}

#if defined(__x86_64__)
FlushDenormals::FlushDenormals() : saved_(__builtin_ia32_stmxcsr()) { __builtin_ia32_ldmxcsr(saved_ | 0x8040u); }
FlushDenormals::~FlushDenormals() { __builtin_ia32_ldmxcsr(saved_); }
#else
FlushDenormals::FlushDenormals() : saved_(0) {}
FlushDenormals::~FlushDenormals() { (void)saved_; }
#endif

}  // namespace holdfast

// Raised by one whenever the C ABI changes in what the fields of its calls do not tell, so that Python refuses a stale
// library.
HOLDFAST_EXPORT int holdfast_abi() { return 3; }

HOLDFAST_EXPORT int64_t holdfast_vector_bytes() { return HOLDFAST_VECTOR_BYTES; }

// Widths that the fused kernels take are multiples of this: the widest vector of float32 that any variant has.
HOLDFAST_EXPORT int64_t holdfast_width_grain() { return 16; }

HOLDFAST_EXPORT const char *holdfast_variant() { return HOLDFAST_VARIANT; }

// The number of threads that a parallel region of `threads` really gets.
HOLDFAST_EXPORT int holdfast_team_size(int threads) {
  std::atomic<int> seen{0};
  holdfast::parallel(threads, [&](int, int) { seen.fetch_add(1); });
  return seen.load();
}
