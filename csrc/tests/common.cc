// What the kernels share, against plain loops and the C library: math, arena, product, the split over threads.
// Named .cc, so that the kernels' library, which is made of all *.cpp, leaves it out.
#include <cmath>
#include <cstdio>
#include <limits>
#include <vector>

#include "common/arena.h"
#include "common/math.h"
#include "common/parallel.h"
#include "common/product.h"

namespace {

using namespace holdfast;

int failures = 0;

void check(bool holds, const char *claim, double got = 0, double limit = 0) {
  if (holds) return;
  ++failures;
  std::printf("FAILED: %s (got %g, limit %g)\n", claim, got, limit);
}

// The largest error of f over [-range, range] in units of the result's rounding, against `exact` in long double.
template <typename T, typename F, typename Exact>
double worst_error(F f, Exact exact, double range) {
  double worst = 0;
  for (int i = -4000; i <= 4000; ++i) {
    const T x = static_cast<T>(range * i / 4000);
    const long double truth = exact(static_cast<long double>(x));
    const long double error = std::fabs(static_cast<long double>(f(broadcast<T>(x))[0]) - truth);
    const long double unit = std::numeric_limits<T>::epsilon() * std::fmax(std::fabs(truth), 1e-30L);
    worst = std::fmax(worst, static_cast<double>(error / unit));
  }
  return worst;
}

template <typename T>
void test_math() {
  const auto claim = [](const char *name, double worst, double limit) { check(worst <= limit, name, worst, limit); };
  claim("tanh",
        worst_error<T>([](Vector<T> x) { return tanh_of<T>(x); }, [](long double x) { return std::tanh(x); }, 12), 4);
  claim("sigmoid",
        worst_error<T>([](Vector<T> x) { return sigmoid<T>(x); }, [](long double x) { return 1 / (1 + std::exp(-x)); },
                       60),
        4);
  claim("softplus",
        worst_error<T>([](Vector<T> x) { return softplus<T>(x); },
                       [](long double x) { return std::log1p(std::exp(x)); }, 20),
        6);
  const auto power = [](Vector<T> x) {
    const auto [scale, rest] = power_of_two<T>(x);
    return scale + scale * rest;
  };
  claim("power of two", worst_error<T>(power, [](long double x) { return std::exp2(x); }, 100), 4);
  const T nan = std::numeric_limits<T>::quiet_NaN();
  check(std::isnan(tanh_of<T>(broadcast<T>(nan))[0]), "tanh passes a NaN on");
  check(std::isnan(power(broadcast<T>(nan))[0]), "a power passes a NaN on");
}

void test_complex() {
  const Complex x{3, -4}, y{1e-200, 2e-200}, q = x / y, back = q * y;
  check(std::fabs(back.re - 3) < 1e-14 && std::fabs(back.im + 4) < 1e-14, "a quotient by a tiny number comes back");
  const Complex p = power({0.6, 0.8}, 5);
  check(std::fabs(p.re * p.re + p.im * p.im - 1) < 1e-15, "a power of a unit has modulus 1");
}

void test_arena() {
  Arena counter(nullptr);
  check(counter.take<double>(3) == nullptr, "an arena without memory hands out nothing");
  counter.take<char>(65);
  check(counter.used() == 192, "pieces begin on cache lines", static_cast<double>(counter.used()), 192);
  alignas(64) char memory[192];
  Arena arena(memory);
  arena.take<double>(3);
  check(arena.take<char>(65) == memory + 64, "the second piece begins at the second line");
  check(arena.used() == counter.used(), "counting and taking agree");
}

template <typename T>
void test_product(int64_t rows, int64_t depth, int64_t columns) {
  const int64_t wide = vectors_in<T>(columns) * lanes<T>;
  std::vector<T> a(rows * depth), b(depth * columns), packed(packed_size<T>(depth, columns));
  std::vector<T> out(rows * columns + 64, T(-7)), sums(depth * wide, T(1)), left(rows * depth),
      right(rows * wide, T(0));
  for (size_t i = 0; i < a.size(); ++i) a[i] = left[i] = static_cast<T>(static_cast<int>(i * 37 % 17) - 8);
  for (size_t i = 0; i < b.size(); ++i) b[i] = static_cast<T>(static_cast<int>(i * 53 % 13) - 6);
  pack(b.data(), columns, int64_t{1}, depth, columns, packed.data(), int64_t{kMaxVectors});
  multiply<T>({a.data(), depth}, rows, depth, packed.data(), columns, {nullptr, 0}, {out.data(), columns}, false);
  bool right_values = true;  // small integers: every sum is exact
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < columns; ++j) {
      T total = 0;
      for (int64_t k = 0; k < depth; ++k) total += a[i * depth + k] * b[k * columns + j];
      right_values = right_values && total == out[i * columns + j];
    }
  check(right_values, "a product equals the plain loop");
  check(out[rows * columns] == T(-7), "a product writes nothing past its columns");
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < columns; ++j) right[i * wide + j] = static_cast<T>((i + 2 * j) % 5);
  const Run<T> run{left.data(), right.data(), rows};
  add_outer<T>(&run, 1, depth, columns, depth, wide, sums.data(), wide);
  bool outer_values = true;
  for (int64_t i = 0; i < depth; ++i)
    for (int64_t j = 0; j < columns; ++j) {
      T total = 1;
      for (int64_t k = 0; k < rows; ++k) total += left[k * depth + i] * right[k * wide + j];
      outer_values = outer_values && total == sums[i * wide + j];
    }
  check(outer_values, "a sum of outer products equals the plain loop");
}

void test_share() {
  for (int64_t count : {0, 1, 7, 64, 1000})
    for (int size : {1, 2, 3, 7})
      for (int64_t grain : {1, 16}) {
        int64_t at = 0;
        for (int rank = 0; rank < size; ++rank) {
          const Range part = share(count, rank, size, grain);
          check(part.begin == at && part.end >= part.begin, "shares follow one another");
          check(part.begin % grain == 0 || part.begin == count, "shares begin on the grain");
          at = part.end;
        }
        check(at == count, "shares cover everything");
      }
}

void test_teams() {
  Teams teams;
  pause_teams(0);
  check(teams.pay(), "a region begins with a team");
  teams.ran(600, 1000);
  check(teams.pay(), "a team that won is started again");
  teams.ran(3'000'000, 3'000'000 - Teams::kUnscheduled / 2);
  check(!teams.pay(), "a region that lost has no team for a while");
  check(Teams().pay(), "and others have");
  Teams other;
  other.ran(50'000'000, 1'000'000);
  check(!Teams().pay(), "where a thread was not scheduled, no region has a team");
  pause_teams(0);
  check(Teams().pay(), "a pause ends");
}

}  // namespace

int main() {
  test_math<float>();
  test_math<double>();
  test_complex();
  test_arena();
  for (int64_t rows : {1, 5, 12, 96})
    for (int64_t columns : {1, 16, 33, 128}) {
      test_product<float>(rows, 7, columns);
      test_product<double>(rows, 7, columns);
    }
  test_share();
  test_teams();
  std::printf("%s\n", failures ? "failed" : "passed");
  return failures != 0;
}
