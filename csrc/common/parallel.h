// Threads for the kernels: the OpenMP runtime that torch has already loaded, never one of our own.
// Two OpenMP runtimes in one process fight for the cores (a training step was 52x slower), so nothing is
// linked: GOMP_parallel is a weak symbol, found where torch put it, and absent means one thread.
#pragma once

#include <atomic>
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

// Whether teams pay, found out while they run. A team waits for its last thread: beside other processes that thread may
// not be scheduled for a time slice, and 0.6 ms of work then took 48 ms on two threads. So each team compares the time
// that it took with the processor time of its threads, which is what one thread would have needed. A team that lost L
// is not started again for kPause L, which bounds what trying costs to about 3% of the time; in the pause one thread
// does the work of all ranks in turn, so that results do not depend on it to the last bit.
class Teams {
 public:
  static constexpr int64_t kPause = 32;
  // ns lost: more than a region's start costs, so a thread was missing
  static constexpr int64_t kUnscheduled = 200'000;

  bool pay() const;
  // After a team that took `wall` ns for `work` ns of processor time.
  void ran(int64_t wall, int64_t work);

 private:
  std::atomic<int64_t> until_{0};  // no team before this time; of this region, whose work may be too small for one
};

// Starts no team for `ns` from now, as after a lost one.
void pause_teams(int64_t ns);

int64_t wall_time();       // ns
int64_t processor_time();  // ns of this thread

// Counts of this process: regions that a team ran, and those that one thread ran in its place.
struct TeamCounts {
  std::atomic<int64_t> teams{0}, alone{0};
};
TeamCounts &team_counts();

// Calls body(rank, size) on each of `threads` threads, with denormals flushed, and waits.
template <typename Body>
void run_team(int threads, Body &body) {
  auto task = [](void *data) {
    FlushDenormals scope;
    (*static_cast<Body *>(data))(omp_get_thread_num(), omp_get_num_threads());
  };
  GOMP_parallel(task, &body, static_cast<unsigned>(threads), 0);
}

// Calls body(rank, size) for each of `threads` ranks: a thread for each, or one for all where a team does not pay.
template <typename Body>
void parallel(int threads, Body &&body) {
  static Teams teams;  // of this region: every body has a type of its own
  const bool available = threads > 1 && threads_available();
  if (!available || !teams.pay()) {
    FlushDenormals scope;
    const int size = available ? threads : 1;
    for (int rank = 0; rank < size; ++rank) body(rank, size);
    return;
  }
  std::atomic<int64_t> work{0};
  auto timed = [&](int rank, int size) {
    const int64_t start = processor_time();
    body(rank, size);
    work.fetch_add(processor_time() - start, std::memory_order_relaxed);
  };
  const int64_t start = wall_time();
  run_team(threads, timed);
  teams.ran(wall_time() - start, work.load(std::memory_order_relaxed));
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
