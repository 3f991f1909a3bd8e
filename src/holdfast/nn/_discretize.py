"""One step of dh/dt = W h + v, v held over the step: exact, by Euler's rule or by the trapezoidal one."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from holdfast.kernels.s4d._reference import discretize as discretize_modes

RateDiscretization = Literal["zoh", "euler"]
DiscretizationRule = Literal["zoh", "euler", "bilinear"]


def discretize(lam: Tensor, dt: Tensor | float, method: DiscretizationRule) -> tuple[Tensor, Tensor]:
    """Factor and input gain of one step, h+ = factor h + gain v, for real or complex lam.

    Zero-order hold: e^{lam dt} and (e^{lam dt} - 1)/lam, dt where lam = 0. Euler: 1 + lam dt and dt, stable only while
    |1 + lam dt| < 1: a negative lam is not enough at a large dt. Bilinear: (1 + lam dt/2)/(1 - lam dt/2) and
    dt/(1 - lam dt/2).
    """
    if method == "euler":
        return 1 + lam * dt, torch.ones_like(lam) * dt
    return discretize_modes(dt, lam, method)


def step_margins(lam: Tensor, dt: Tensor | float, method: DiscretizationRule) -> Tensor:
    """1 - |factor| of `discretize`, in float64 and without the cancellation: negative where a step grows.

    1 - |a| = (1 - |a|^2) / (1 + |a|), where 1 - |a|^2 is -2 Re z / |1 - z/2|^2 (bilinear) or -(2 Re z + |z|^2) (Euler)
    for z = lam dt; zero-order hold: -expm1(Re z). In float32 1 - |a| itself has no digit left below 6e-8: a mode with
    lam = -1e-5 + 30i and dt = 1e-3 loses 1e-8 in a bilinear step.
    """
    lam = lam.to(torch.complex128)
    z = lam * (dt.double() if isinstance(dt, Tensor) else dt)
    x, y = z.real, z.imag
    if method == "zoh":
        return -torch.expm1(x)
    if method == "euler":
        # x (2 + x) is exact to rounding near x = -2, where a real mode starts to grow
        return -(x * (2 + x) + y * y) / (1 + torch.hypot(1 + x, y))
    # both sides of the fraction by |1 - z/2|: 1 - |a| = -2x / (below (below + above)), which overflows nowhere
    below, above = torch.hypot(1 - x / 2, y / 2), torch.hypot(1 + x / 2, y / 2)
    return -2 * x / below / (below + above)


def discretize_pairs(re: Tensor, im: Tensor, dt: Tensor | float, method: DiscretizationRule) -> tuple[Tensor, Tensor]:
    """`discretize` of lam = re + i im without a complex number: factor and gain with a last dimension of 2.

    For ONNX, which has none. e^z - 1 = 2 sinh(a/2) e^(a/2) cos b - 2 sin(b/2)^2 + i e^a sin b for z = a + i b, since
    ONNX has no expm1 either, and e^a - 1 loses three digits at a = -1e-3.
    """
    a, b = re * dt, im * dt
    if method == "bilinear":
        # numerator and denominator times the conjugate of 1 - z/2
        size = (1 - a / 2) ** 2 + b**2 / 4
        factor = ((1 - a**2 / 4 - b**2 / 4) / size, b / size)
        return torch.stack(factor, -1), torch.stack(((1 - a / 2) / size * dt, b / 2 / size * dt), -1)
    if method == "euler":
        return torch.stack((1 + a, b), -1), torch.stack((torch.ones_like(a) * dt, torch.zeros_like(b)), -1)
    growth, zero = torch.exp(a), (a == 0) & (b == 0)
    minus_re = 2 * torch.sinh(a / 2) * torch.exp(a / 2) * torch.cos(b) - 2 * torch.sin(b / 2) ** 2
    minus_im = growth * torch.sin(b)
    size = torch.where(zero, torch.ones_like(a), a**2 + b**2)
    gain_re = torch.where(zero, torch.ones_like(a), (minus_re * a + minus_im * b) / size) * dt
    gain_im = (minus_im * a - minus_re * b) / size * dt
    return torch.stack((growth * torch.cos(b), growth * torch.sin(b)), -1), torch.stack((gain_re, gain_im), -1)


def discretize_dense(W: Tensor, dt: Tensor | float, method: RateDiscretization) -> tuple[Tensor, Tensor]:
    """e^{W dt} and int_0^dt e^{W s} ds, as the two upper blocks of exp([[W, I], [0, 0]] dt); W may be singular."""
    n = len(W)
    eye = torch.eye(n, dtype=W.dtype, device=W.device)
    if method == "euler":
        step = dt[..., None, None] if isinstance(dt, Tensor) else dt
        return eye + W * step, eye * step
    upper = torch.cat([W, eye], dim=1)
    generator = torch.cat([upper, torch.zeros_like(upper)], dim=0)
    if not isinstance(dt, Tensor):
        whole = torch.linalg.matrix_exp(generator * dt)
        return whole[:n, :n].clone(), whole[:n, n:].clone()  # an exported loop takes no two views of one matrix
    # equal step sizes share one exponential; a gradient to dt needs each its own, and an export does not know which
    apart = dt.requires_grad or torch.compiler.is_exporting()
    values, index = (dt.flatten(), None) if apart else torch.unique(dt, return_inverse=True)
    whole = torch.linalg.matrix_exp(generator * values[:, None, None])
    whole = whole.reshape(*dt.shape, 2 * n, 2 * n) if index is None else whole[index]
    return whole[..., :n, :n].clone(), whole[..., :n, n:].clone()
