"""Linear time-invariant layers: errors of all perturbed copies from their impulse responses and one matrix product.

y = K * x + y0 for every draw, with shared inputs x. The kernels of many draws are sums of exponentials and span few
directions to rounding (about 15 at T = 256 in float32), so that the inputs are convolved with a basis Q of those, and
all outputs are one product of (sequences x time, rank) by (rank, draws).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping

import torch
from jaxtyping import Complex, Float, Float64
from torch import Tensor, nn
from torch.func import functional_call, vmap

from holdfast.nn import AbstractRecurrent
from holdfast.nn.system import LinearSystem
from holdfast.parameterizations import AbstractMatrixParameterization
from holdfast.stability.perturbation._evaluate import AbstractEvaluator, Data, MeanSquare, Partial, Stacked, Sup

Kernels = Float[Tensor, "groups draws time outputs inputs"]
MAX_FFT_OUTPUTS = 24  # up to so many outputs (draws times features) a convolution by FFT costs less than the basis
FIRST_RANK = 24
MAX_TOEPLITZ_STEPS = 512  # steps up to which a convolution is a product with a Toeplitz matrix, beyond it an FFT
# numbers of one block of outputs: 2 MB in float32 stays in the cache between the product and its reduction
BLOCK_NUMBERS = 1 << 19


class System(nn.Module):
    """factor, B, b, C, D of the layer's linear system, as a module whose weights can be replaced."""

    def __init__(self, layer: AbstractRecurrent) -> None:
        super().__init__()
        self.layer = layer

    def forward(self) -> tuple[Tensor, ...]:
        """The tensors of `nn.system.LinearSystem`."""
        system = self.layer.linear_system()
        assert system is not None
        return system.tensors()


def stack_systems(system: nn.Module, weights: Mapping[str, Tensor], dtype: torch.dtype) -> tuple[Tensor, ...]:
    """What `system()` gives for every draw, computed in `dtype`; weights of its `layer` that are not given stay."""
    wide = {f"layer.{name}": value.to(dtype) for name, value in weights.items()}
    fixed = {
        name: value.detach().to(dtype)
        for name, value in (*system.named_parameters(), *system.named_buffers())
        if name not in wide
    }
    if not any(isinstance(m, AbstractMatrixParameterization) for m in system.modules()):
        return vmap(lambda w: functional_call(system, {**fixed, **w}, ()))(wide)
    # Cholesky factors and matrix roots with their own gradients have no batching rule
    draws = [dict(zip(wide, row, strict=True)) for row in zip(*(v.unbind() for v in wide.values()), strict=True)]
    each = [functional_call(system, {**fixed, **draw}, ()) for draw in draws]
    return tuple(torch.stack(tensors) for tensors in zip(*each, strict=True))


def kernels(system: System, weights: Mapping[str, Tensor], steps: int) -> Kernels:
    """Impulse responses for `steps` steps, one system a group; the last input is the bias.

    `weights` are (draws, *shape) by the layer's own names.
    """
    # float64: powers of a factor near 1 lose a digit for every tenfold of steps
    factor, B, b, C, D = stack_systems(system, weights, torch.float64)
    # the bias as one more input that is 1 at all times
    B = torch.cat([B, b.unsqueeze(-1)], dim=-1)
    response = _dense(factor, B, C, steps) if factor.ndim == 4 else _diagonal(factor, B, C, steps)
    direct = torch.cat([D, torch.zeros_like(D[..., :1])], dim=-1).unsqueeze(2)
    rest = direct.new_zeros(*direct.shape[:2], steps - 1, *direct.shape[3:])
    return (response + torch.cat([direct, rest], dim=2)).transpose(0, 1)


def _diagonal(
    factor: Float[Tensor, "draws groups n"] | Complex[Tensor, "draws groups n"], B: Tensor, C: Tensor, steps: int
) -> Float[Tensor, "draws groups time outputs inputs"]:
    """sum_n C_on factor_n^k B_ni; with k = width j + i only 2 sqrt(steps) powers of each factor are needed."""
    width = math.isqrt(max(steps - 1, 0)) + 1
    high = -(-steps // width)
    fine = _powers(factor, width + 1)
    coarse = _powers(fine[:, :, width], high)
    # (coarse outputs, n) and (fine inputs, n)
    left = coarse.unsqueeze(3) * C.unsqueeze(2)
    right = fine[:, :, :width].unsqueeze(3) * B.mT.contiguous().unsqueeze(2)
    product = left.flatten(2, 3) @ right.flatten(2, 3).mT
    shaped = product.unflatten(2, (high, C.shape[2])).unflatten(4, (width, B.shape[3]))
    ordered = shaped.transpose(3, 4).flatten(2, 3)[:, :, :steps]
    return ordered.real if ordered.is_complex() else ordered


def _powers(base: Tensor, count: int) -> Tensor:
    """1, base, base^2, ... along a new dimension before the last; products of neighbours cost a tenth of pow."""
    powers = [torch.ones_like(base)]
    for _ in range(count - 1):
        powers.append(powers[-1] * base)
    return torch.stack(powers, dim=-2)


def _dense(
    W: Float[Tensor, "draws groups n n"], B: Tensor, C: Tensor, steps: int
) -> Float[Tensor, "draws groups time outputs inputs"]:
    """C W^k B, one product per step."""
    state, outputs = B, []
    for _ in range(steps):
        outputs.append(C @ state)
        state = W @ state
    return torch.stack(outputs, dim=2)


class Impulse(AbstractEvaluator):
    """Impulse responses and one matrix product; the product runs in the dtype of the inputs, the kernels in float64."""

    how = "impulse"

    def __init__(self, layer: AbstractRecurrent, system: LinearSystem, data: Data, limit: float) -> None:
        super().__init__(limit)
        self.system = System(layer)
        self.data = data
        self.groups = system.groups
        batch, self.steps, _ = data.inputs.shape
        # a relative metric scales each sequence: inputs, bias and targets alike, as the system is linear
        ones = data.inputs.new_ones(batch) if data.weight is None else data.weight.to(data.inputs)
        self.ones = ones.reshape(-1, 1, 1)
        self.inputs = data.inputs * self.ones
        self.targets = data.targets * self.ones

    @property
    def bytes_each(self) -> float:
        rows = self.steps * (self.inputs.shape[2] // self.groups + 1)
        return 32.0 * rows * self.targets.shape[2]

    @property
    def bytes_with_gradient(self) -> float:
        # spectra and outputs of the convolution by FFT, complex128, kept for the gradient
        return 4 * self.bytes_each + 96 * self.targets.numel()

    def _errors(self, stacked: Stacked) -> Float[Tensor, " draws"]:
        responses = kernels(self.system, stacked, self.steps)
        # the basis needs a QR of all kernels, which pays for many draws only
        few = responses.shape[1] * responses.shape[3] <= MAX_FFT_OUTPUTS
        if few or responses.requires_grad:
            return self._by_convolution(responses)
        # one diverged draw would spoil the common basis: it is taken out and its error is infinite
        finite = torch.isfinite(responses).flatten(2).all(-1).all(0)
        kept = torch.where(finite.reshape(1, -1, 1, 1, 1), responses, responses.new_zeros(()))
        errors = self._by_product(kept).double()
        return torch.where(finite, errors, torch.full_like(errors, torch.inf))

    def _by_convolution(self, responses: Tensor) -> Float[Tensor, " draws"]:
        # twice as long: a circular convolution would wrap the end around to the start
        size = 2 * self.steps
        spectrum = torch.fft.rfft(self._grouped_inputs().double(), size, dim=2)
        response = torch.fft.rfft(responses, size, dim=2)
        product = torch.einsum("gpfoi,gbfi->pbfgo", response.to(spectrum), spectrum)
        outputs = torch.fft.irfft(product, size, dim=2)[:, :, : self.steps].flatten(3)
        return self.data.metric.of(outputs - self.targets)

    def _grouped_inputs(self) -> Float[Tensor, "groups batch time inputs"]:
        """Inputs of each group with the constant input of the bias."""
        batch, steps, features = self.inputs.shape
        x = self.inputs.reshape(batch, steps, self.groups, features // self.groups).permute(2, 0, 1, 3)
        return torch.cat([x, self.ones.expand(self.groups, batch, steps, 1)], dim=-1)

    def _by_product(self, responses: Tensor) -> Float[Tensor, " draws"]:
        draws, outputs = responses.shape[1], responses.shape[3]
        each = self.inputs.shape[2] // self.groups
        joined: Partial | None = None
        for g in range(self.groups):
            # (draws outputs, time inputs)
            matrix = responses[g].permute(0, 2, 1, 3).reshape(draws * outputs, -1)
            # a group at a time: channels of an S4D layer do not mix, and their kernels span other directions
            coefficients, basis = _low_rank(matrix, torch.finfo(self.inputs.dtype).eps)
            features = self._convolve(self.inputs[..., g * each : (g + 1) * each], basis.unflatten(1, (self.steps, -1)))
            targets = self.targets[..., g * outputs : (g + 1) * outputs].permute(2, 1, 0)
            part = self._reduce(coefficients, features, targets, draws)
            joined = part if joined is None else self.data.metric.join(joined, part)
        assert joined is not None
        return self.data.metric.finish(joined, self.targets.numel())

    def _convolve(self, x: Tensor, basis: Float[Tensor, "rank time inputs"]) -> Float[Tensor, "rank time batch"]:
        """x * basis for every element of the basis; the bias, the last input, is constant from the first step on."""
        kernels, steps = basis[..., :-1], self.steps
        if steps > MAX_TOEPLITZ_STEPS:
            spectrum = torch.fft.rfft(kernels, 2 * steps, dim=1)
            product = torch.einsum("bfi,rfi->rfb", torch.fft.rfft(x.double(), 2 * steps, dim=1), spectrum)
            moved = torch.fft.irfft(product, 2 * steps, dim=1)[:, :steps].to(x)
        else:
            # row t of the Toeplitz matrix holds kernels[t - s] for every earlier time s
            held = torch.cat([kernels.flip(1), torch.zeros_like(kernels[:, 1:])], dim=1).to(x)
            toeplitz = held.unfold(1, steps, 1).flip(1).transpose(2, 3).reshape(-1, x.shape[1] * x.shape[2])
            moved = (toeplitz @ x.reshape(len(x), -1).mT).unflatten(0, (-1, steps))
        return torch.addcmul(moved, basis[..., -1:].cumsum(1).to(x), self.ones.reshape(1, 1, -1))

    def _reduce(
        self,
        coefficients: Float[Tensor, "columns rank"],
        features: Float[Tensor, "rank time batch"],
        targets: Float[Tensor, "outputs time batch"],
        draws: int,
    ) -> Partial:
        """The metric of coefficients @ features - targets, the targets entering as further features."""
        outputs = len(targets)
        # one product gives outputs minus targets, without a pass over the outputs for the subtraction
        left = torch.cat([coefficients, -torch.eye(outputs, dtype=torch.float64).repeat(draws, 1)], dim=1)
        right = torch.cat([features, targets])
        # squares add up to the Gram matrix of the features, whose size does not depend on the draws
        if isinstance(self.data.metric, MeanSquare):
            return _sum_of_squares(left, right.flatten(1).double(), draws)
        left = left.to(right)
        if isinstance(self.data.metric, Sup):
            return _largest(left, right.flatten(1), draws)
        joined: Partial | None = None
        for block in right.split(max(1, BLOCK_NUMBERS // (right.shape[1] * len(left))), dim=2):
            error = (left @ block.flatten(1)).reshape(draws, outputs, *block.shape[1:])
            part = self.data.metric.partial(error.permute(0, 3, 2, 1))
            joined = part if joined is None else self.data.metric.join(joined, part)
        assert joined is not None
        return joined


@functools.lru_cache(maxsize=8)
def _probe(rank: int, columns: int) -> Float64[Tensor, "rank columns"]:
    return torch.randn(rank, columns, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def _low_rank(matrix: Float[Tensor, "columns rows"], eps: float) -> tuple[Tensor, Tensor]:
    """R, Q with R Q = matrix up to 4 eps of each kernel's largest entry, Q of few rows where few are enough.

    A randomized range finder: Q spans normal combinations of the kernels; what it misses is measured entry by entry,
    and the rank doubled until that is rounding; then directions that carry less than 2 eps together are dropped.
    Kernels are scaled to 1 first: one that grows must not hide the others.
    """
    scale = matrix.abs().amax(1, keepdim=True).clamp(min=1e-300)
    unit = matrix / scale
    rank = FIRST_RANK
    while rank < min(matrix.shape):
        # no power iterations: singular values of sums of exponentials fall geometrically
        Q = torch.linalg.qr((_probe(rank, len(matrix)) @ unit).mT).Q
        R = unit @ Q
        if float(torch.addmm(unit, R, Q.mT, alpha=-1).abs().max()) <= 2 * eps:
            size, turn = torch.linalg.eigh(R.mT @ R)
            keep = size.clamp(min=0).cumsum(0) > (2 * eps) ** 2
            keep[-1] = True  # kernels that are 0 have no direction, and an empty basis no transform
            turn = turn[:, keep]
            return (R @ turn) * scale, (Q @ turn).mT
        rank *= 2
    return matrix, torch.eye(matrix.shape[1], dtype=matrix.dtype)


def _largest(left: Float[Tensor, "columns rank"], right: Float[Tensor, "rank rows"], draws: int) -> Partial:
    """max |left @ right| over rows and the columns of each draw."""
    size = max(1, BLOCK_NUMBERS // len(left))
    best = left.new_zeros(len(left))
    # one buffer for all blocks, which stays in the cache
    buffer = left.new_empty(len(left) * min(size, right.shape[1]))
    for block in right.split(size, dim=1):
        out = buffer[: len(left) * block.shape[1]].view(len(left), -1)
        torch.mm(left, block, out=out)
        # largest and smallest along contiguous rows: 20 times faster than aminmax
        best = torch.maximum(best, torch.maximum(out.amax(1), -out.amin(1)))
    return best.reshape(draws, -1).amax(-1, keepdim=True)


def _sum_of_squares(left: Float[Tensor, "columns rank"], right: Float[Tensor, "rank rows"], draws: int) -> Partial:
    """The squares of left @ right added up over rows, from the Gram matrix alone, in float64.

    Taken around the first draw: |e0 + Z d|^2 = |e0|^2 + 2 d'Z'e0 + d'Z'Zd loses digits only where a draw is nearer to
    the target than the first one by 1e7 or more; the squares of features and targets themselves cancel much earlier.
    """
    outputs = len(left) // draws
    gram = right @ right.mT
    total = left.new_zeros(draws)
    for o in range(outputs):
        rows = left[o::outputs]
        change = rows - rows[:1]
        first = rows[:1] @ right
        squares = ((change @ gram) * change).sum(1)
        total = total + first.square().sum() + 2 * (change @ (right @ first.mT)).squeeze(1) + squares
    return total.clamp(min=0).unsqueeze(-1)
