// memory.h for the Python side, for outputs that torch allocates and fills itself.
#include "memory.h"

#include "export.h"

HOLDFAST_EXPORT void holdfast_advise_large(void *data, int64_t bytes) { holdfast::advise_large(data, bytes); }
