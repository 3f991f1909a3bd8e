// The C ABI of the gated recurrences, LSTM and GRU, and their adjoints.
#include "gated/backward.h"
#include "gated/forward.h"

namespace holdfast::gated {

HOLDFAST_KERNEL(gated_forward, forward)
HOLDFAST_KERNEL(gated_backward, backward)

}  // namespace holdfast::gated
