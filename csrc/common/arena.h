// The memory of a call, handed out piece by piece.
#pragma once

#include <cstdint>

namespace holdfast {

constexpr int64_t kCacheLineBytes = 64;

// Hands out pieces of one allocation, each beginning on a cache line; without memory it only counts.
class Arena {
 public:
  explicit Arena(void *memory) : begin_(static_cast<char *>(memory)) {}
  template <typename T>
  T *take(int64_t count) {
    char *const piece = begin_ ? begin_ + used_ : nullptr;
    used_ += (count * static_cast<int64_t>(sizeof(T)) + kCacheLineBytes - 1) / kCacheLineBytes * kCacheLineBytes;
    return reinterpret_cast<T *>(piece);
  }
  int64_t used() const { return used_; }

 private:
  char *begin_;
  int64_t used_ = 0;
};

}  // namespace holdfast
