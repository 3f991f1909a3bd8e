// What this library is, which CPU it needs, and the pieces of parallel.h that hold state.
#include <atomic>

#include "export.h"
#include "parallel.h"

#if defined(__unix__) || defined(__APPLE__)
#include <pthread.h>
#endif
#if defined(__x86_64__)
#include <immintrin.h>
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
FlushDenormals::FlushDenormals() : saved_(_mm_getcsr()) { _mm_setcsr(saved_ | 0x8040u); }
FlushDenormals::~FlushDenormals() { _mm_setcsr(saved_); }
#else
FlushDenormals::FlushDenormals() : saved_(0) {}
FlushDenormals::~FlushDenormals() { (void)saved_; }
#endif

}  // namespace holdfast

// Raised by one whenever a function of the C ABI changes, so that Python refuses a stale library.
HOLDFAST_EXPORT int holdfast_abi() { return 2; }

HOLDFAST_EXPORT const char *holdfast_variant() { return HOLDFAST_VARIANT; }

// The best variant that this CPU can run: 4, 3, or 0 for the portable one. Called on the portable library.
HOLDFAST_EXPORT int holdfast_cpu_level() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool v3 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
  const bool v4 = v3 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                  __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
                  __builtin_cpu_supports("avx512vl");
  return v4 ? 4 : v3 ? 3 : 0;
#else
  return 0;
#endif
}

// The number of threads that a parallel region of `threads` really gets.
HOLDFAST_EXPORT int holdfast_team_size(int threads) {
  std::atomic<int> seen{0};
  holdfast::parallel(threads, [&](int, int) { seen.fetch_add(1); });
  return seen.load();
}
