// The gated delta rule of float and double.
#include "delta_rule/backward.h"

namespace holdfast::delta_rule {

HOLDFAST_EXPORT int64_t holdfast_delta_rule_tile_steps() { return kTileSteps; }
HOLDFAST_KERNEL(delta_rule_forward, forward)
HOLDFAST_KERNEL(delta_rule_backward, backward)

}  // namespace holdfast::delta_rule
