// The C ABI of the RNN kernel: h_t = sigma(W h_{t-1} + U x_t + b), or h_t = h_{t-1} + dt_t sigma(...), and its adjoint.
#include "rnn/backward.h"
#include "rnn/forward.h"

namespace holdfast::rnn {

HOLDFAST_KERNEL(rnn_forward, forward)
HOLDFAST_KERNEL(rnn_backward, backward)

}  // namespace holdfast::rnn
