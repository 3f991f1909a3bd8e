"""Many small recurrent networks at once: trained on a functional, then moved by the worst perturbation that ascent finds.

Copies lie along the first axis of every weight and share no number. Networks of several widths lie side by side, padded to the
widest; a mask keeps what is padded at 0, in the network and in its perturbations. Each weight moves in its own ball of the
spectral norm. The sup is searched by ascent along the steepest direction of that norm, the polar factor of the gradient, from
several starts, at the points of a bisection that all copies take together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from holdfast import laws
from holdfast.laws import AbstractLaw
from holdfast.stability._verdict import HARMLESS_SHARE
from holdfast_papers.experiments.base import Config, Unit, Work
from holdfast_papers.experiments.iat import _sup
from holdfast_papers.experiments.iat._teachers import kernel_response, scales
from holdfast_papers.experiments.rates._copies import Recipe, Weights, train

Outputs = Callable[[Weights, Tensor], Tensor]  # inputs (copies, sequences, time, 1) to outputs of the same shape
TARGETS: dict[str, tuple[AbstractLaw, str]] = {
    "(1+t)^-1.5": (laws.PowerLaw(1.5), "unstable"),
    "e^-t/2": (laws.Exponential(0.5), "stable"),
}
DT = 0.1
CLIP = 1.0
MEASURED, TRAINED = 10**6, 10**7  # seeds of the two kinds of sequences


def sequences(count: int, steps: int, seed: int) -> Tensor:
    """White noise, and in every other sequence random signs that are held; (count, steps, 1)."""
    noise = torch.randn(count, steps, 1, generator=torch.Generator().manual_seed(seed))
    return scales(noise, seed)


def answers(x: Tensor, names: Sequence[str]) -> Tensor:
    """What the target of each copy makes of inputs (sequences, time, 1): (copies, sequences, time, 1)."""
    made = {name: kernel_response(TARGETS[name][0], "linear", x, DT) for name in set(names)}
    return torch.stack([made[name] for name in names])


def fitted(outputs: Outputs, weights: Weights, names: Sequence[str], config: Config, work: Work) -> Tensor:
    """Trains the copies in place and tells which stayed finite.

    Args:
        outputs: of the network.
        weights: of the copies, at their start.
        names: the target of each copy.
        config: "steps", "batch", "lr" and "train_steps".
        work: the unit's.
    """
    copies = len(names)

    def loss(weights: Weights, step: int) -> Tensor:
        x = sequences(config["batch"], config["train_steps"], TRAINED + step)
        gap = outputs(weights, x.expand(copies, *x.shape)) - answers(x, names)
        return gap.square().mean((1, 2, 3))

    recipe = Recipe("adamw", config["steps"], config["lr"], CLIP)
    rates = torch.full((copies,), float(config["lr"]))
    return train(loss, weights, (), rates, recipe, lambda done: work.progress(0.5 * done, "training"))


def trained_and_measured(
    outputs: Outputs, weights: Weights, masks: Weights, names: Sequence[str], recurrent: Sequence[str], config: Config,
    work: Work,
) -> dict[str, np.ndarray]:  # fmt: skip
    """Trains the copies in place; `measured` of all weights and of the recurrent ones, and which copies stayed finite.

    Args:
        outputs: of the network.
        weights: of the copies, at their start.
        masks: 1 where a weight is, 0 where it is padded.
        names: the target of each copy.
        recurrent: names of the recurrent weights.
        config: that of `fitted` and of `measured`.
        work: the unit's.
    """
    alive = fitted(outputs, weights, names, config, work).numpy()
    arrays = {"alive": alive.astype(float)}
    for k, (measure, moving) in enumerate((("all", list(weights)), ("recurrent", recurrent))):
        work.progress(0.5 + 0.25 * k, measure)
        found = measured(outputs, weights, masks, names, moving, config)
        found["centre"] = np.where(alive, found["centre"], np.inf)
        arrays |= {f"{measure}.{name}": value for name, value in found.items()}
    return arrays


def measured(
    outputs: Outputs, weights: Weights, masks: Weights, names: Sequence[str], moving: Sequence[str], config: Config
) -> dict[str, np.ndarray]:
    """Radii and errors of a bisection, (copies, points), and E(0) and the target's norm, (copies,).

    Args:
        outputs: of the network.
        weights: of the trained copies.
        masks: 1 where a weight is, 0 where it is padded.
        names: the target of each copy.
        moving: names of the weights that are perturbed.
        config: "measured_steps", "sequences", "starts", "ascent", "least" and "most".
    """
    x = sequences(config["sequences"], config["measured_steps"], MEASURED)
    y = answers(x, names)
    norm = y.abs().amax((1, 2, 3)).double().numpy()
    search = Ascent(outputs, weights, masks, x, y, moving, config)
    centre = search.errors(np.zeros(len(names)))
    radii, errors = together(search.errors, HARMLESS_SHARE * norm, config["least"], config["most"])
    return {"radii": radii, "errors": np.maximum(errors, centre[:, None]), "centre": centre, "norm": norm}


class Ascent:
    """The largest error that projected gradient ascent finds in balls around every copy.

    Args:
        outputs: of the network.
        weights: of the trained copies.
        masks: as in `measured`.
        x: inputs (sequences, time, 1).
        y: targets (copies, sequences, time, 1).
        moving: names of the weights that are perturbed.
        config: "starts" and "ascent", the number of its steps.
    """

    def __init__(
        self, outputs: Outputs, weights: Weights, masks: Weights, x: Tensor, y: Tensor, moving: Sequence[str], config: Config
    ) -> None:  # fmt: skip
        starts = config["starts"]
        self.outputs, self.starts, self.steps = outputs, starts, config["ascent"]
        self.weights = {name: w.repeat_interleave(starts, 0) for name, w in weights.items()}
        self.masks = {name: masks[name].repeat_interleave(starts, 0) for name in moving}
        self.y = y.repeat_interleave(starts, 0)
        self.x = x.expand(len(self.y), *x.shape)

    def errors(self, betas: np.ndarray) -> np.ndarray:
        """The largest error met at radius beta, one for each copy; inf where an output is not finite.

        Args:
            betas: one for each copy; at 0 nothing moves.
        """
        radius = torch.from_numpy(betas).float().repeat_interleave(self.starts).reshape(-1, 1, 1)
        if not betas.any():
            return self._worst(self._error({}).detach())
        shift = self._begin(radius)
        worst = np.zeros(len(betas))
        for k in range(self.steps + 1):
            leaves = {name: s.requires_grad_(True) for name, s in shift.items()}
            error = self._error(leaves)
            worst = np.maximum(worst, self._worst(error.detach()))
            if k == self.steps or not math.isfinite(worst.min()):
                break
            # a copy that broke has no gradient, and needs none
            slopes = torch.autograd.grad(torch.nan_to_num(error, posinf=0.0, neginf=0.0).sum(), list(leaves.values()))
            pace = radius / (1 + k / 4)  # long steps first: starts lie anywhere in the ball
            shift = {
                name: self._inside(name, s.detach() + pace * polar(torch.nan_to_num(g)), radius)
                for (name, s), g in zip(leaves.items(), slopes, strict=True)
            }
        return worst

    def _begin(self, radius: Tensor) -> Weights:
        """Random directions on the sphere of every weight's ball."""
        rng = torch.Generator().manual_seed(0)
        return {
            name: self._inside(name, 1e6 * radius * torch.randn(mask.shape, generator=rng), radius)
            for name, mask in self.masks.items()
        }

    def _inside(self, name: str, shift: Tensor, radius: Tensor) -> Tensor:
        """The shift with its singular values cut at the radius; a vector is a matrix of one column."""
        U, size, V = svd(shift * self.masks[name])
        return (U * torch.minimum(size, radius.squeeze(-1)).unsqueeze(-2)) @ V * self.masks[name]

    def _error(self, shift: Weights) -> Tensor:
        moved = {name: w + shift[name] if name in shift else w for name, w in self.weights.items()}
        return (self.outputs(moved, self.x) - self.y).abs().amax((1, 2, 3))

    def _worst(self, error: Tensor) -> np.ndarray:
        found = torch.where(error.isfinite(), error, torch.inf).double()
        return np.asarray(found.reshape(-1, self.starts).amax(1))


def svd(matrices: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Thin factors U, S, V'; of float64 where the iteration does not converge in float32, as with many equal S."""
    try:
        U, size, V = torch.linalg.svd(matrices, full_matrices=False)
    except torch.linalg.LinAlgError:
        U, size, V = (part.to(matrices) for part in torch.linalg.svd(matrices.double(), full_matrices=False))
    return U, size, V


def polar(gradient: Tensor) -> Tensor:
    """U V' of G = U S V': the direction of spectral norm 1 in which a function of gradient G rises fastest."""
    U, size, V = svd(gradient)
    # directions without a gradient do not move
    known = (size > 1e-6 * size.amax(-1, keepdim=True).clamp(min=1e-30)).to(U)
    return (U * known.unsqueeze(-2)) @ V


def together(
    error: Callable[[np.ndarray], np.ndarray], levels: np.ndarray, least: float, most: float
) -> tuple[np.ndarray, np.ndarray]:
    """`_sup.bisected` for all copies in the same rounds: radii and errors (copies, points), radii in rising order.

    Args:
        error: a lower bound of E at one radius a copy.
        levels: that are crossed.
        least: smallest radius.
        most: largest radius.
    """
    low, high = np.full(len(levels), least), np.full(len(levels), most)
    radii = [high.copy(), low.copy()]
    errors = [error(high), error(low)]
    rounds = math.ceil(math.log2(math.log(most / least) / math.log(_sup.TOLERANCE)))
    for _ in range(rounds):
        middle = np.sqrt(low * high)
        found = error(middle)
        radii.append(middle)
        errors.append(found)
        low, high = np.where(found <= levels, middle, low), np.where(found <= levels, high, middle)
    order = np.argsort(radii, axis=0, kind="stable")
    sorted_errors = np.maximum.accumulate(np.take_along_axis(np.array(errors), order, 0), axis=0)
    return np.take_along_axis(np.array(radii), order, 0).T, sorted_errors.T


def copies_as_units(unit: Unit, measure: str, target: str) -> list[Unit]:
    """The copies of one target as units with a width and a seed, as `_sup.verdict` takes them.

    Args:
        unit: with arrays "m", "seed", "target" and those of `measured` under `measure`.
        measure: prefix of the arrays.
        target: name of the target.
    """
    a = unit.arrays
    chosen = np.flatnonzero(a["target"] == list(TARGETS).index(target))
    return [
        Unit(
            {"m": int(a["m"][k]), "seed": int(a["seed"][k])},
            {
                "sup_radii": a[f"{measure}.radii"][k], "sup_errors": a[f"{measure}.errors"][k],
                "sup_centre": a[f"{measure}.centre"][k], "sup_norm": a[f"{measure}.norm"][k],
            },
        )
        for k in chosen
    ]  # fmt: skip


def cost(config: Config, learning: float, ascending: float) -> float:
    """Seconds of a unit: training, and two searches of 12 radii.

    Args:
        config: the unit's.
        learning: seconds for a step of input in training, for all copies together.
        ascending: seconds for one in the ascent.
    """
    search = 24 * config["ascent"] * config["measured_steps"] * ascending
    return float(config["steps"] * config["train_steps"] * learning + search)
