// What this library is, and the pieces of common/parallel.h that hold state.
#include <atomic>

#include <chrono>

#include "common/export.h"
#include "common/parallel.h"
#include "common/vector.h"

#if defined(__unix__) || defined(__APPLE__)
#include <pthread.h>
#include <time.h>
#endif

namespace holdfast {

namespace {

std::atomic<bool> forked{false};

// No team anywhere before this time: a thread of one was not scheduled, which the next region would meet as well.
std::atomic<int64_t> unscheduled_until{0};

#if defined(__unix__) || defined(__APPLE__)
const int fork_handler = pthread_atfork(nullptr, nullptr, [] { forked.store(true); });
#endif

}  // namespace

bool threads_available() {
  return GOMP_parallel && omp_get_thread_num && omp_get_num_threads && omp_in_parallel && !omp_in_parallel() &&
         !forked.load(std::memory_order_relaxed);
}

int64_t wall_time() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
}

#if defined(CLOCK_THREAD_CPUTIME_ID)
int64_t processor_time() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}
#else
int64_t processor_time() { return wall_time(); }  // a thread that is not scheduled is then not noticed
#endif

TeamCounts &team_counts() {
  static TeamCounts counts;
  return counts;
}

bool Teams::pay() const {
  const int64_t now = wall_time();
  const bool pays =
      now >= until_.load(std::memory_order_relaxed) && now >= unscheduled_until.load(std::memory_order_relaxed);
  (pays ? team_counts().teams : team_counts().alone).fetch_add(1, std::memory_order_relaxed);
  return pays;
}

void pause_teams(int64_t ns) { unscheduled_until.store(wall_time() + ns, std::memory_order_relaxed); }

void Teams::ran(int64_t wall, int64_t work) {
  const int64_t lost = wall - work;
  if (lost <= 0) return;
  if (lost >= kUnscheduled) return pause_teams(kPause * lost);
  until_.store(wall_time() + kPause * lost, std::memory_order_relaxed);
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

// Whether MKL, which looks at the maker, runs its AVX2 code here although the CPU has AVX-512.
HOLDFAST_EXPORT int64_t holdfast_mkl_lags() {
#if defined(__AVX512F__)
  __builtin_cpu_init();
  return !__builtin_cpu_is("intel");
#else
  return 0;
#endif
}

HOLDFAST_EXPORT const char *holdfast_variant() { return HOLDFAST_VARIANT; }

// Regions that a team ran so far in this process (0), and those that one thread ran in its place (1).
HOLDFAST_EXPORT int64_t holdfast_regions(int alone) {
  return alone ? holdfast::team_counts().alone.load() : holdfast::team_counts().teams.load();
}

// For tests: no team from now on for `ns`; 0 ends a pause.
HOLDFAST_EXPORT void holdfast_pause_teams(int64_t ns) { holdfast::pause_teams(ns); }

// The number of threads that a team of `threads` really gets.
HOLDFAST_EXPORT int holdfast_team_size(int threads) {
  std::atomic<int> seen{0};
  auto count = [&](int, int) { seen.fetch_add(1); };
  if (threads <= 1 || !holdfast::threads_available()) return 1;
  holdfast::run_team(threads, count);
  return seen.load();
}
