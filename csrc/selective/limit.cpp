// What one exponential and one multiply-add for each state and step cost on this CPU, everything else left away: the
// roofline that the selective scan is measured against.
#include "common/export.h"
#include "common/math.h"
#include "common/parallel.h"

namespace {

using namespace holdfast;

constexpr int kVectors = 4;

float run(const float *rates, int64_t steps) {
  Vector<float> h[kVectors], rate[kVectors];
  for (int v = 0; v < kVectors; ++v) h[v] = Vector<float>{}, rate[v] = load(rates + v * lanes<float>);
  for (int64_t s = 0; s < steps; ++s) {
    const Vector<float> delta = broadcast<float>(1.0f / static_cast<float>(s + 1));
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      const auto [scale, rest] = power_of_two<float>(delta * rate[v]);
      h[v] = (scale + scale * rest) * h[v] + delta;
    }
  }
  return sum<float>(h[0] + h[1] + h[2] + h[3]);
}

}  // namespace

// Runs at least `states` states through `steps` steps; the number that it gives only keeps the loop alive.
HOLDFAST_EXPORT float holdfast_selective_limit(int64_t states, int64_t steps, int threads) {
  const int64_t groups = states / (kVectors * lanes<float>)+1;
  float total = 0;
  holdfast::parallel(threads, [&](int rank, int size) {
    float rates[kVectors * lanes<float>];
    const Range mine = share(groups, rank, size);
    float own = 0;
    for (int64_t i = mine.begin; i < mine.end; ++i) {
      for (int64_t k = 0; k < kVectors * lanes<float>; ++k) rates[k] = -1.0f - static_cast<float>((i + k) % 16);
      own += run(rates, steps);
    }
    if (rank == 0) total = own;
  });
  return total;
}
