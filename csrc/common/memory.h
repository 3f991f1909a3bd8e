// What the kernels ask of the memory system: large pages for new outputs, stores that pass the caches by.
#pragma once

#include <cstdint>

#include "common/vector.h"

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace holdfast {

// Outputs of this size are newly mapped at every call (malloc maps them again above 32 MB at the latest).
constexpr int64_t fresh_bytes = int64_t{32} << 20;

// Asks for 2 MB pages under a large new output: first touch of 4 KB pages gives 8 GB/s, of 2 MB pages 24 GB/s.
// Advice only: where the system does not know it, nothing changes.
inline void advise_large(void *data, int64_t bytes) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
  if (data == nullptr || bytes < fresh_bytes) return;
  constexpr uintptr_t page = 4096;
  const uintptr_t begin = (reinterpret_cast<uintptr_t>(data) + page - 1) / page * page;
  const uintptr_t end = (reinterpret_cast<uintptr_t>(data) + static_cast<uintptr_t>(bytes)) / page * page;
  madvise(reinterpret_cast<void *>(begin), end - begin, MADV_HUGEPAGE);
#else
  (void)data;
  (void)bytes;
#endif
}

// Orders the stores of stream() before everything that follows on this thread.
inline void finish_streams() {
#if defined(__x86_64__)
  __builtin_ia32_sfence();
#endif
}

template <int Bytes>
using Floats __attribute__((vector_size(Bytes))) = float;

// A store that does not read the line first (1.2-1.4x on arrays beyond the caches). `p` is a multiple of the
// bytes stored. Built-in functions and not <immintrin.h>, which costs each file that includes it a second of build.
template <typename V>
inline void stream(void *p, V v) {
#if defined(__clang__)
  __builtin_nontemporal_store(v, static_cast<V *>(p));
#else
  float *const to = static_cast<float *>(p);
#if defined(__AVX512F__)
  if constexpr (sizeof(V) == 64) return __builtin_ia32_movntps512(to, (Floats<64>)v);
#endif
#if defined(__AVX__)
  if constexpr (sizeof(V) == 32) return __builtin_ia32_movntps256(to, (Floats<32>)v);
#endif
#if defined(__x86_64__)
  if constexpr (sizeof(V) == 16) return __builtin_ia32_movntps(to, (Floats<16>)v);
#endif
  std::memcpy(p, &v, sizeof v);
#endif
}

}  // namespace holdfast
