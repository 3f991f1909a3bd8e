// The calling convention of every kernel: one struct of sizes, strides and pointers, passed by pointer.
//
// A kernel lists its arguments once, as X(type, name) in a macro; HOLDFAST_CALL makes of it the struct and a function
// that tells its fields as text. Python builds its structure from that text, so the two agree by construction and
// arguments go by name. Every struct has `wide` (elements are double, not float), `threads` and `workspace`.
//
// A kernel's function gives the bytes of workspace that it needs: called without one it does nothing but count, unless
// it needs none. So the caller allocates once, and no kernel allocates.
#pragma once

#include <cstdint>

#include "common/arena.h"
#include "common/export.h"

#define HOLDFAST_FIELD(TYPE, NAME) TYPE NAME;
#define HOLDFAST_FIELD_TEXT(TYPE, NAME) #TYPE " " #NAME ";"

#define HOLDFAST_CALL(NAME, FIELDS) \
  struct Call {                     \
    FIELDS(HOLDFAST_FIELD)          \
  };                                \
  HOLDFAST_EXPORT const char *holdfast_##NAME##_fields() { return FIELDS(HOLDFAST_FIELD_TEXT); }

// Exports FUNCTION<T>(call), for the element type that the call has, as holdfast_NAME.
#define HOLDFAST_KERNEL(NAME, FUNCTION)                                   \
  HOLDFAST_EXPORT int64_t holdfast_##NAME(const Call *call) {             \
    return call->wide ? FUNCTION<double>(*call) : FUNCTION<float>(*call); \
  }

namespace holdfast {

// Counts what `take(arena)` takes; with a workspace, or where none is needed, takes it there and calls run(taken).
template <typename Call, typename Take, typename Run>
inline int64_t with_workspace(const Call &call, Take &&take, Run &&run) {
  if (!call.workspace) {
    Arena counter(nullptr);
    take(counter);
    if (counter.used() > 0) return counter.used();
  }
  Arena arena(call.workspace);
  auto taken = take(arena);
  run(taken);
  return 0;
}

}  // namespace holdfast
