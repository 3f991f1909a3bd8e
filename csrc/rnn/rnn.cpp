// The C ABI of the RNN kernel: h_t = sigma(W h_{t-1} + U x_t + b), or h_t = h_{t-1} + dt_t sigma(...), and its adjoint.
#include "common/export.h"
#include "rnn/backward.h"
#include "rnn/forward.h"

using holdfast::rnn::Call;

// Bytes of workspace that a call needs; its pointers may be null.
HOLDFAST_EXPORT int64_t holdfast_rnn_forward_workspace(const Call *call) {
  using namespace holdfast::rnn;
  const auto bytes = [&](auto zero) {
    using T = decltype(zero);
    const Plan<T> plan(*call);
    return ForwardMemory<T>(*call, plan, plan.threads - 1, Pieces(nullptr)).bytes;
  };
  return call->wide ? bytes(0.0) : bytes(0.0f);
}
HOLDFAST_EXPORT int64_t holdfast_rnn_backward_workspace(const Call *call) {
  using namespace holdfast::rnn;
  const auto bytes = [&](auto zero) {
    using T = decltype(zero);
    const Plan<T> plan(*call);
    return BackwardMemory<T>(*call, plan, plan.threads - 1, Pieces(nullptr)).bytes;
  };
  return call->wide ? bytes(0.0) : bytes(0.0f);
}

HOLDFAST_EXPORT void holdfast_rnn_forward(const Call *call) {
  call->wide ? holdfast::rnn::forward<double>(*call) : holdfast::rnn::forward<float>(*call);
}
HOLDFAST_EXPORT void holdfast_rnn_backward(const Call *call) {
  call->wide ? holdfast::rnn::backward<double>(*call) : holdfast::rnn::backward<float>(*call);
}
