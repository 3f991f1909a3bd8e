"""The numerical tests behind check_properties; each returns (answer, explanation, numbers, counterexample)."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from holdfast.errors import ArgumentError
from holdfast.memory._checks import MIN_SETTLING_STEPS, settle
from holdfast.memory._subject import Subject

Finding = tuple[str, str, dict[str, float], dict[str, np.ndarray]]
RANDOM_INPUTS = 8  # random inputs per test


class Functional:
    """H_t(x) - H_t(0) on `horizon` steps that begin after the model settled on zeros."""

    def __init__(self, subject: Subject, horizon: int, generator: torch.Generator) -> None:
        self.subject, self.horizon, self.generator = subject, horizon, generator
        # H is about a model at rest: its own initial state may lie elsewhere
        settling = settle(subject, torch.zeros(1, subject.input_size), _longest_lead(subject, horizon))
        self.lead, self.settled = settling.steps, settling.settled
        self.eps = subject.eps
        y = self._run(subject.normal(RANDOM_INPUTS, horizon, generator))
        self.finite = bool(torch.isfinite(y).all())
        self.scale = float(y.abs().max()) if self.finite else math.inf

    def normal(self, rows: int = RANDOM_INPUTS) -> Tensor:
        return self.subject.normal(rows, self.horizon, self.generator)

    def ones(self) -> Tensor:
        return self.subject.zeros(1, self.horizon) + 1

    def _run(self, x: Tensor) -> Tensor:
        led = torch.cat([self.subject.zeros(len(x), self.lead), x], 1)
        return self.subject(led)[:, self.lead :].double()

    def __call__(self, x: Tensor) -> Tensor:
        """The adjusted output of inputs (rows, steps, inputs), any number of steps."""
        # zero input in the same batch, so that both round alike
        y = self._run(torch.cat([x, torch.zeros_like(x[:1])]))
        return y[:-1] - y[-1:]

    def tolerance(self, *outputs: Tensor) -> float:
        """What rounding may leave in a difference of outputs: 1e4 eps of their size (1e-3 in float32)."""
        size = max([self.scale, *(float(y.abs().max()) for y in outputs)])
        return max(1e4 * self.eps * size, torch.finfo(torch.float64).tiny)


def _longest_lead(subject: Subject, horizon: int) -> int:
    """Steps on zeros before each test, so that the longest tests fit a model that takes a limited number of steps.

    They are an input and as many zeros behind it (receding), and zeros on both sides of a shifted input.
    """
    if subject.longest is None:
        return 1024
    lead = min(1024, subject.longest - 2 * horizon, (subject.longest - horizon - horizon // 3 - 1) // 2)
    if lead < MIN_SETTLING_STEPS:
        raise ArgumentError(
            f"horizon must be at most {subject.longest // 3} for a model that takes {subject.longest} steps, got {horizon}"
        )
    return lead


def _numpy(**tensors: Tensor) -> dict[str, np.ndarray]:
    return {name: tensor.detach().cpu().numpy() for name, tensor in tensors.items()}


def linear(H: Functional) -> Finding:
    """H(a x + b x') = a H(x) + b H(x')."""
    x, other = H.normal(), H.normal()
    # no powers of two, whose products are exact, and signs that differ, which relu does not tolerate
    a, b = 1.7, -0.6
    together, first, second = H(a * x + b * other), H(x), H(other)
    error = (together - a * first - b * second).abs().amax((1, 2))
    allowed = H.tolerance(together, first, second)
    worst = int(error.argmax())
    numbers = {"error": float(error[worst]), "allowed": allowed}
    if numbers["error"] <= allowed:
        return "yes", f"superposition holds to {numbers['error']:.2g}", numbers, {}
    counterexample = _numpy(x=x[worst], other=other[worst], weights=torch.tensor([a, b]))
    return "no", f"H(1.7 x - 0.6 x') misses 1.7 H(x) - 0.6 H(x') by {numbers['error']:.3g}", numbers, counterexample


def continuous(H: Functional) -> Finding:
    """|H(x') - H(x)| -> 0 as x' -> x."""
    low, high = H.normal(4 * RANDOM_INPUTS), H.normal(4 * RANDOM_INPUTS)
    at_low, at_high = H(low), H(high)
    first = (at_high - at_low).abs().amax((1, 2))
    # until the ends differ by some hundreds of roundings: 13 halvings in float32, 42 in float64
    halvings = int(-math.log2(1000 * H.eps))
    for _ in range(halvings):
        middle = (low + high) / 2
        at_middle = H(middle)
        left, right = ((at - at_middle).abs().amax((1, 2)) for at in (at_low, at_high))
        # towards the half in which the output changes more: a jump stays inside the bracket
        go_left = (left > right).view(-1, 1, 1)
        high, at_high = torch.where(go_left, middle, high), torch.where(go_left, at_middle, at_high)
        low, at_low = torch.where(go_left, low, middle), torch.where(go_left, at_low, at_middle)
    left_over = (at_high - at_low).abs().amax((1, 2))
    worst = int(left_over.argmax())
    apart = float((high - low)[worst].abs().max())
    numbers = {"change": float(left_over[worst]), "distance": apart, "first_change": float(first[worst])}
    # a Lipschitz map shrinks as the distance does, like 2^-halvings; 2% of the first change after that is a jump
    if numbers["change"] > max(0.02 * numbers["first_change"], H.tolerance()):
        text = f"inputs {apart:.2g} apart give outputs {numbers['change']:.3g} apart"
        return "no", text, numbers, _numpy(x=low[worst], other=high[worst])
    return "yes", f"no jump found between {4 * RANDOM_INPUTS} pairs of inputs, {halvings} halvings each", numbers, {}


def bounded(H: Functional) -> Finding:
    """sup |H_t(x)| / |x|_inf < inf."""
    by_size, worst_size = _gain_by_amplitude(H)
    sizes = np.array(sorted(by_size))
    gains = np.array([by_size[a] for a in sizes])
    numbers = {"gain": float(gains.max()), "gain_smallest": float(gains[0]), "gain_largest": float(gains[-1])}
    middle = by_size[1.0]
    if not np.isfinite(gains).all() or gains[-1] > 30 * max(middle, 1e-300):
        text = f"|H|/|x| grows with the amplitude: {middle:.3g} at 1, {gains[-1]:.3g} at {sizes[-1]:g}"
        return "no", text, numbers, _numpy(x=worst_size)
    if gains[0] > 30 * max(middle, 1e-300) and gains[0] * sizes[0] > H.tolerance():
        text = f"|H|/|x| grows as x -> 0: {middle:.3g} at 1, {gains[0]:.3g} at {sizes[0]:g}"
        return "no", text, numbers, _numpy(x=worst_size)
    return _bounded_in_length(H, numbers)


def _gain_by_amplitude(H: Functional) -> tuple[dict[float, float], Tensor]:
    x = torch.cat([H.normal(), H.ones(), -H.ones()])
    # of size 1 exactly, so that the amplitude is |x|_inf
    x = x / x.abs().amax((1, 2), keepdim=True)
    gains = {}
    worst, largest = x[0], -1.0
    for amplitude in (1e-3, 1e-2, 1e-1, 1.0, 10.0, 100.0, 1000.0):
        size = torch.nan_to_num(H(amplitude * x).abs().amax((1, 2)) / amplitude, nan=math.inf, posinf=math.inf)
        gains[amplitude] = float(size.max())
        if gains[amplitude] > largest:
            worst, largest = amplitude * x[int(size.argmax())], gains[amplitude]
    return gains, worst


def _bounded_in_length(H: Functional, numbers: dict[str, float]) -> Finding:
    """How the largest output over inputs of size 1 grows with their length, from a quarter of the horizon to all of it.

    Unbounded: growth in proportion to the length, the second doubling adding twice what the first did, or growth by
    more than length^6, as of an unstable mode. Other growth is undecided: it may be a slow mode, or several in a row.
    """
    x, running = _long_inputs(H)
    # two doublings: proportional growth adds twice as much in the second, a saturating one less
    quarter, half, full = (float(running[length - 1]) for length in _lengths(H))
    exponent = math.log2(full / half) if half > 0 and math.isfinite(full) else math.inf if full > half else 0.0
    numbers |= {"gain_half_length": half, "gain_full_length": full, "growth_exponent": exponent}
    # e^{-r t} with r horizon = 0.005 adds 1.996 times as much: slower modes count as none
    proportional = exponent > 0.05 and abs((full - half) / max(half - quarter, 1e-300) - 2) < 0.004
    if proportional or exponent > 6:
        how = "in proportion to" if proportional else f"by a factor of {full / half:.2g} from half to all of"
        return "no", f"the output grows {how} the length of the input, up to {H.horizon} steps", numbers, _numpy(x=x)
    if exponent > 0.05:
        text = f"the output still grows with the length of the input, like length^{exponent:.2f}; try a longer horizon"
        return "undecided", text, numbers, {}
    return "yes", f"|H|/|x| stays below {max(numbers['gain'], full):.3g}", numbers, {}


def _lengths(H: Functional) -> tuple[int, int, int]:
    quarter = H.horizon // 4
    return quarter, 2 * quarter, 4 * quarter


def _long_inputs(H: Functional) -> tuple[Tensor, Tensor]:
    """Inputs of size 1 that drive a model far, the worst of them, and the largest output up to each step.

    Constant, alternating, random, and the signs of the reversed impulse response, which are the worst case of a linear
    model with one input; these once for each length at which the growth is read.
    """
    ones = H.ones()
    alternating = ones * torch.where(torch.arange(H.horizon, device=ones.device) % 2 == 0, 1.0, -1.0).view(1, -1, 1)
    impulse = torch.zeros_like(ones)
    impulse[:, 0] = 1
    # its reversed signs add up all of |rho|: the worst input of a linear model
    response = H(impulse)[0]
    strongest = response[:, int(response.abs().sum(0).argmax())]
    matched = torch.zeros(3, H.horizon, 1, dtype=ones.dtype, device=ones.device)
    for row, length in enumerate(_lengths(H)):
        matched[row, :length, 0] = torch.where(strongest[:length].flip(0) < 0, -1.0, 1.0).to(ones)
    x = torch.cat([ones, -ones, alternating, matched * ones, torch.sign(H.normal(4))])
    size = torch.nan_to_num(H(x).abs().amax(-1), nan=math.inf, posinf=math.inf)
    return x[int(size.amax(1).argmax())], size.amax(0).cummax(0).values


def time_homogeneous(H: Functional) -> Finding:
    """Shifting the input shifts the output."""
    shift = max(H.horizon // 3, 1)
    x = H.normal()
    x[:, H.horizon - shift :] = 0
    # zeros behind it too, so that a model that reads backwards is at rest at both ends
    x = torch.cat([x, H.subject.zeros(len(x), H.lead + shift)], 1)
    moved = x.roll(shift, 1)
    y, y_moved = H(x), H(moved)
    difference = (y_moved[:, shift : H.horizon] - y[:, : H.horizon - shift]).abs().amax((1, 2))
    worst = int(difference.argmax())
    # an output that has not settled moves on its own; 1e-6 is what the settling leaves
    allowed = max(H.tolerance(y, y_moved), 1e-6 * H.scale)
    numbers = {"error": float(difference[worst]), "allowed": allowed, "shift": float(shift)}
    if numbers["error"] <= allowed:
        return "yes", f"a shift by {shift} steps shifts the output to {numbers['error']:.2g}", numbers, {}
    if not H.settled and numbers["error"] <= 0.01 * H.scale:
        return "undecided", "the output on zero input had not settled, which is as large as the difference", numbers, {}
    text = f"shifting the input by {shift} steps changes the output by {numbers['error']:.3g}"
    return "no", text, numbers, _numpy(x=x[worst], shifted=moved[worst])


def causal(H: Functional) -> Finding:
    """Outputs up to t do not depend on inputs after t, nor on how long the input is; each row has its own t."""
    x, other = H.normal(), H.normal()
    # a place of its own for each row: a look-ahead inside blocks is missed only where all are block ends
    ends = torch.randint(1, H.horizon, (len(x),), generator=H.generator).to(x.device)
    before = torch.arange(H.horizon, device=x.device) < ends.unsqueeze(-1)
    changed = torch.where(before.unsqueeze(-1), x, other)
    y, y_changed, y_cut = H(x), H(changed), H(x[:, : H.horizon // 2])
    difference = ((y_changed - y).abs().amax(-1) * before).amax(1)
    shorter = (y_cut - y[:, : H.horizon // 2]).abs().amax((1, 2))
    # a model may see later values, or the total length alone: either is not causal
    error = torch.maximum(difference, shorter)
    worst = int(error.argmax())
    numbers = {"error": float(error[worst]), "allowed": H.tolerance(y, y_changed), "step": float(ends[worst])}
    if numbers["error"] <= numbers["allowed"]:
        text = f"outputs do not see inputs up to {H.horizon} steps later ({numbers['error']:.2g})"
        return "yes", text, numbers, {}
    what = f"inputs after step {ends[worst]}" if difference[worst] >= shorter[worst] else "a cut input"
    text = f"{what} change earlier outputs by {numbers['error']:.3g}".replace("input change", "input changes")
    return "no", text, numbers, _numpy(x=x[worst], other=changed[worst])


def regular(H: Functional) -> Finding:
    """Inputs of bounded size that tend to 0 at every time leave outputs that tend to 0."""
    x = torch.cat([H.ones(), torch.sign(H.normal(3))])
    fading = [float(H(a * x).abs().max()) for a in (1.0, 1e-3)]
    numbers = {"at_amplitude_1": fading[0], "at_amplitude_1e-3": fading[1]}
    if fading[1] > max(0.3 * fading[0], H.tolerance()):
        return "no", f"inputs of size 1e-3 still give {fading[1]:.3g}", numbers, _numpy(x=1e-3 * x[0])
    return _receding(H, numbers)


def _receding(H: Functional, numbers: dict[str, float]) -> Finding:
    """The same input moved ever further into the past: on a fixed window it tends to 0."""
    x = torch.cat([H.ones(), torch.sign(H.normal(3))])
    past = H.horizon
    y = H(torch.cat([x, torch.zeros_like(x)], 1)).abs().amax(-1)
    # relative to what the input did while it lasted
    peak = y[:, : past + 1].amax(1).clamp_min(torch.finfo(torch.float64).tiny)
    left = {share: (y[:, past + past // share - 1 :].amax(1) / peak) for share in (4, 2, 1)}
    worst = int(left[1].argmax())
    quarter, half, end = (float(left[share][worst]) for share in (4, 2, 1))
    numbers |= {"left_at_quarter": quarter, "left_at_half": half, "left_at_end": end}
    # where rounding is larger than 1% of the response, what is left cannot be distinguished from it
    rounding = min(H.tolerance() / float(peak[worst]), 0.01)
    if end <= max(1e-3, rounding):
        return "yes", f"of an input that ended {past} steps ago {end:.2g} is left", numbers, {}
    if end > 0.9 * half and half > 0.9 * quarter:
        text = f"of an input that ended {past} steps ago {end:.2g} is left, and it no longer falls"
        return "no", text, numbers, _numpy(x=x[worst])
    return "undecided", f"{end:.2g} of an input is left after {past} steps, and still falls", numbers, {}
