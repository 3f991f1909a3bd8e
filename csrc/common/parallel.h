// Threads for the kernels: the OpenMP runtime that torch has already loaded, never one of our own.
// Two OpenMP runtimes in one process fight for the cores (a training step was 52x slower), so nothing is
// linked: GOMP_parallel is a weak symbol, found where torch put it, and absent means one thread.
#pragma once

#include <cstdint>

extern "C" {
void GOMP_parallel(void (*task)(void *), void *data, unsigned threads, unsigned flags) __attribute__((weak));
int omp_get_thread_num(void) __attribute__((weak));
int omp_get_num_threads(void) __attribute__((weak));
int omp_in_parallel(void) __attribute__((weak));
}

namespace holdfast {

// True where a team can be started: a runtime is there, and this process is not a fork of one that had used it
// (libgomp's pool does not survive a fork; a child that waits for it hangs).
bool threads_available();

// Sets flush-to-zero for one scope on this thread: denormals cost 4.3x on decaying impulses.
class FlushDenormals {
 public:
  FlushDenormals();
  ~FlushDenormals();
  FlushDenormals(const FlushDenormals &) = delete;
  FlushDenormals &operator=(const FlushDenormals &) = delete;

 private:
  unsigned saved_;
};

// Calls body(rank, size) on each of `threads` threads, with denormals flushed, and waits.
template <typename Body>
void parallel(int threads, Body &&body) {
  if (threads <= 1 || !threads_available()) {
    FlushDenormals scope;
    body(0, 1);
    return;
  }
  auto task = [](void *data) {
    FlushDenormals scope;
    (*static_cast<Body *>(data))(omp_get_thread_num(), omp_get_num_threads());
  };
  GOMP_parallel(task, const_cast<void *>(static_cast<const void *>(&body)), static_cast<unsigned>(threads), 0);
}

struct Range {
  int64_t begin, end;
};

// The share of `count` items that falls to `rank`, in whole multiples of `grain`.
inline Range share(int64_t count, int rank, int size, int64_t grain = 1) {
  const int64_t grains = (count + grain - 1) / grain;
  const int64_t first = grains * rank / size * grain;
  const int64_t last = grains * (rank + 1) / size * grain;
  return {first < count ? first : count, last < count ? last : count};
}

}  // namespace holdfast
