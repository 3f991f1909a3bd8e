"""Our kernels for perturbed copies of nonlinear models.

Perturbations are channels of one scan (a real diagonal recurrence), a batch of products (a small nonlinear network), or
run one by one (torch.nn.RNN).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from holdfast.kernels import rnn, scan
from holdfast.kernels.rnn import Activation
from holdfast.nn import AbstractRecurrent
from holdfast.nn._activations import ACTIVATIONS
from holdfast.nn.system import LinearSystem, RateNetwork
from holdfast.stability.perturbation._evaluate import AbstractEvaluator, Data, Stacked
from holdfast.stability.perturbation._impulse import System, stack_systems

# bytes of one part: what stays in the cache between the product, the scan, the activation and the readout
PART_BYTES = 4e6
MAX_SUMMED_OUTPUTS = (
    4  # outputs up to which the readout is a sum over products: a sixth of the time of a matrix with one row
)


class Folded(AbstractEvaluator):
    """h+ = factor h + B x + b of all draws as one scan over draws x state channels, then C sigma(h) draw by draw.

    tanh(h) is taken as 2 sigmoid(2h) - 1, within 1e-7 and in a sixth of the time; the scan gives 2h when it is fed 2x.
    """

    how = "folded"

    def __init__(self, layer: AbstractRecurrent, system: LinearSystem, data: Data, limit: float) -> None:
        super().__init__(limit)
        self.system = System(layer)
        self.squashed = system.activation == "tanh"
        self.activation = torch.sigmoid if self.squashed else ACTIVATIONS[system.activation]
        # the scan returns a new tensor, so that an elementwise function may overwrite it
        self.in_place = system.activation in ("tanh", "sigmoid")
        self.data = data
        batch, steps, _ = data.inputs.shape
        self.states = float(batch * steps * layer.state_size * data.inputs.element_size())

    @property
    def bytes_each(self) -> float:
        # factor, B and C with their copies; states are held for a few draws at a time
        return 8.0 * sum(p.nbytes for p in self.system.parameters())

    @property
    def bytes_with_gradient(self) -> float:
        return self.bytes_each + 6 * self.states

    def _errors(self, stacked: Stacked) -> Float[Tensor, " draws"]:
        factor, B, b, C, _ = (w.squeeze(1) for w in stack_systems(self.system, stacked, self.data.inputs.dtype))
        # small parts stay in the cache; with gradients everything is kept anyway
        size = len(factor) if factor.requires_grad else max(1, int(min(PART_BYTES, self.limit) // self.states))
        parts = zip(factor.split(size), B.split(size), b.split(size), C.split(size), strict=True)
        return torch.cat([self._of_systems(*part) for part in parts])

    def _of_systems(self, factor: Tensor, B: Tensor, b: Tensor, C: Tensor) -> Float[Tensor, " draws"]:
        draws, n = factor.shape
        x = self.data.inputs
        scale = 2 if self.squashed else 1
        U, b = scale * B.flatten(0, 1), scale * b.flatten()
        # one feature is an outer product, in half the time of a matrix product and a sum
        v = torch.addcmul(b, x, U[:, 0]) if U.shape[1] == 1 else functional.linear(x, U, b)
        # a diagonal recurrence does not mix channels: draws are further channels of one scan
        h, _ = scan(factor.flatten(), v, v.new_zeros(len(x), draws * n))
        activated = torch.sigmoid_(h) if self.in_place and not h.requires_grad else self.activation(h)
        outputs = _read_out(activated.unflatten(-1, (draws, n)), C)
        if self.squashed:
            # C tanh(h) = 2 C sigmoid(2h) - C 1
            outputs = 2 * outputs - C.sum(-1).reshape(draws, 1, 1, -1)
        return self.data.metric.of(self.data.error(outputs))


def _read_out(
    h: Float[Tensor, "batch time draws state"], C: Float[Tensor, "draws outputs state"]
) -> Float[Tensor, "draws batch time outputs"]:
    """C h of every draw; h is used up where there is one output."""
    if C.shape[1] > MAX_SUMMED_OUTPUTS:
        # (draws, batch x time, state) as a view: the product reads it with strides
        return (h.flatten(0, 1).transpose(0, 1) @ C.mT).unflatten(1, h.shape[:2])
    if C.shape[1] == 1 and not h.requires_grad:
        return h.mul_(C.squeeze(1)).sum(-1, keepdim=True).movedim(2, 0)
    return torch.stack([(h * row).sum(-1) for row in C.unbind(1)], dim=-1).movedim(2, 0)


class Network(nn.Module):
    """W, U, b and C of the layer's rate network, as a module whose weights can be replaced."""

    def __init__(self, layer: AbstractRecurrent) -> None:
        super().__init__()
        self.layer = layer

    def forward(self) -> tuple[Tensor, ...]:
        """The tensors of `nn.system.RateNetwork`."""
        network = self.layer.rate_network()
        assert network is not None
        return network.tensors()


class FoldedRNN(AbstractEvaluator):
    """h+ = h + dt sigma(W h + U x + b) of all draws together: one batched product per step."""

    how = "folded"

    def __init__(self, layer: AbstractRecurrent, network: RateNetwork, data: Data, limit: float) -> None:
        super().__init__(limit)
        self.network = Network(layer)
        self.sigma, self.dt, self.state_size = ACTIVATIONS[network.activation], network.dt, layer.state_size
        self.data = data

    @property
    def bytes_each(self) -> float:
        batch, steps, _ = self.data.inputs.shape
        return 3.0 * batch * steps * self.state_size * self.data.inputs.element_size()

    def _errors(self, stacked: Stacked) -> Float[Tensor, " draws"]:
        x = self.data.inputs
        W, U, b, C = stack_systems(self.network, stacked, x.dtype)
        # the inputs of all steps at once: what is left for the loop is one product per step
        drive = torch.einsum("bti,pni->ptbn", x, U) + b[:, None, None]
        h = torch.zeros_like(drive[:, 0])
        states = []
        for t in range(x.shape[1]):
            z = drive[:, t] + W.unsqueeze(1) * h if W.ndim == 2 else torch.baddbmm(drive[:, t], h, W.mT)
            h = h + self.dt * self.sigma(z)
            states.append(h)
        outputs = torch.stack(states, dim=2) @ C.mT.unsqueeze(1)
        return self.data.metric.of(self.data.error(outputs))


class OneByOne(AbstractEvaluator):
    """torch.nn.RNN by our RNN kernel, one run for each perturbation: it takes a third of the time of torch's own."""

    how = "kernel"

    def __init__(self, module: nn.RNN, data: Data, limit: float) -> None:
        super().__init__(limit)
        self.module, self.data = module, data

    @property
    def bytes_each(self) -> float:
        return float(self.limit)  # one draw at a time

    def _errors(self, stacked: Stacked) -> Float[Tensor, " draws"]:
        fixed = dict(self.module.named_parameters())
        errors = []
        for i in range(len(next(iter(stacked.values())))):
            weights = fixed | {name: value[i] for name, value in stacked.items()}
            errors.append(self.data.metric.of(self.data.error(self._run(weights).unsqueeze(0))))
        return torch.cat(errors)

    def _run(self, weights: Mapping[str, Tensor]) -> Tensor:
        module = self.module
        x = self.data.inputs if module.batch_first else self.data.inputs.transpose(0, 1)
        activation: Activation = "relu" if module.nonlinearity == "relu" else "tanh"
        for layer in range(module.num_layers):
            ways = []
            for end in (f"_l{layer}", f"_l{layer}_reverse")[: 1 + module.bidirectional]:
                # torch keeps two biases that only ever act as their sum
                b = weights["bias_ih" + end] + weights["bias_hh" + end] if module.bias else None
                w, u = weights["weight_hh" + end], weights["weight_ih" + end]
                ways.append(rnn(x, w, u, b, activation=activation, reverse=end.endswith("reverse"))[0])
            x = torch.cat(ways, dim=-1) if len(ways) > 1 else ways[0]
        return x if module.batch_first else x.transpose(0, 1)
