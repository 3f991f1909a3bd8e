"""ssm-thm313: how fast layers, activations and stacks settle (Prop. 3.11, Prop. 3.12, Theorem 3.13).

Prop. 3.11 gives a layer's output the rate c0 of its input, "for the same constant c0". What holds is the smaller of c0 and the
layer's own rate; a stack then has the smallest of all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from holdfast.decay import stack_rate
from holdfast.figures import Axis, Figure, Line, Panel, Points
from holdfast.nn._from_weights import diagonal_layer
from holdfast_papers.constructions import Chain
from holdfast_papers.experiments.base import Arrays, Conclusion, Config, Experiment, Unit, Work, presets, split
from holdfast_papers.pages import Table
from holdfast_papers.results import Claim

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "tanh": torch.tanh, "relu": torch.relu, "gelu": nn.functional.gelu, "hardtanh": nn.functional.hardtanh,
    "sigmoid": torch.sigmoid,
}  # fmt: skip
HIGH, LOW = 1e-6, 1e-12  # of the largest distance from rest, between which a rate is fitted
RATE_TOLERANCE = 0.05  # how far a measured rate may be from the predicted one


def units(config: Config) -> list[Config]:
    """One a layer, activation and depth, and the boundary."""
    layer = {"part": "layer", "modes": config["modes"], "ratios": config["ratios"]}
    stack = {"part": "stack", "modes": config["modes"]}
    return [
        *split(layer, seed=range(config["seeds"])),
        *split({"part": "activation"}, activation=ACTIVATIONS),
        *split(stack, activation=("tanh", "gelu", "identity"), depth=config["depths"], seed=range(config["seeds"])),
        {"part": "boundary"},
    ]


def run(config: Config, work: Work) -> Arrays:
    """One of the four."""
    return {"layer": _layer, "activation": _activation, "stack": _stack, "boundary": _boundary}[config["part"]](config)


def _rates(modes: int, rng: torch.Generator, slowest: float) -> np.ndarray:
    """Rates with `slowest` as the smallest, the others from 2 to 20 times it: one mode leads within a few decades."""
    others = 2 * 10 ** torch.rand(modes - 1, generator=rng, dtype=torch.float64)
    return slowest * np.concatenate([[1.0], others.numpy()])


def _made(
    rates: np.ndarray, rng: torch.Generator, inputs: int = 1, outputs: int = 1, activation: str = "identity"
) -> nn.Module:
    # states settle near 1, where no activation is flat
    U = (
        torch.randn(len(rates), inputs, generator=rng, dtype=torch.float64)
        * torch.from_numpy(-np.expm1(-rates))[:, None]
    )
    C = torch.randn(outputs, len(rates), generator=rng, dtype=torch.float64) / math.sqrt(len(rates))
    return diagonal_layer(np.exp(-rates), U.numpy(), C.numpy(), activation=activation)


def _measured(y: Tensor) -> float:
    """The rate of |y_t - y_end| per step, on its envelope, between HIGH and LOW of its largest value."""
    distance = (y - y[-1]).abs().numpy()
    envelope = np.maximum.accumulate(distance[::-1])[::-1] / distance.max()
    first, last = int(np.argmax(envelope < HIGH)), int(np.argmax(envelope < LOW))
    t = np.arange(first, last)
    return -float(np.polyfit(t, np.log(envelope[first:last]), 1)[0])


def _layer(config: Config) -> Arrays:
    """Inputs that settle at several multiples of the layer's own rate."""
    rng = torch.Generator().manual_seed(config["seed"])
    own = 0.02
    layer = _made(_rates(config["modes"], rng, own), rng)
    measured, predicted = [], []
    for ratio in config["ratios"]:
        c0 = ratio * own
        steps = math.ceil(60 / min(c0, own))
        x = 0.7 + torch.exp(-c0 * torch.arange(steps, dtype=torch.float64))
        with torch.no_grad():
            y = layer(x.reshape(1, -1, 1))[0][0, :, 0]
        measured.append(_measured(y))
        predicted.append(stack_rate(layer, input_rate=c0))
    return {"input": own * np.array(config["ratios"]), "measured": np.array(measured), "predicted": np.array(predicted)}


def _activation(config: Config) -> Arrays:
    """sigma(x_t) for inputs that settle at 0.02 per step, at places where sigma is smooth, bent and flat."""
    sigma = ACTIVATIONS[config["activation"]]
    x = torch.exp(-0.02 * torch.arange(690, dtype=torch.float64))  # down to 1e-6, where rounding is 1e-10 of it
    grid = torch.linspace(-4, 4, 80_001, dtype=torch.float64)
    lipschitz = float((sigma(grid[1:]) - sigma(grid[:-1])).abs().max() / (grid[1] - grid[0]))
    ratios = [
        float(((sigma(rest + x) - sigma(rest)).abs() / x).max()) for rest in torch.tensor([-2.0, 0.0, 0.7]).double()
    ]
    return {"lipschitz": np.array(lipschitz), "ratio": np.array(max(ratios))}


def _stack(config: Config) -> Arrays:
    """Layers with their own slowest rates, the slowest at a random place, under a constant input from step 0 on."""
    rng = torch.Generator().manual_seed(config["seed"])
    depth = config["depth"]
    slowest = 0.02 * 2.0 ** torch.randperm(depth, generator=rng).numpy()
    layers = [
        _made(_rates(config["modes"], rng, float(rate)), rng, 1 if k == 0 else 4, 1 if k == depth - 1 else 4,
              config["activation"])
        for k, rate in enumerate(slowest)
    ]  # fmt: skip
    stack = Chain(*layers)
    with torch.no_grad():
        y = stack(torch.ones(1, 3000, 1, dtype=torch.float64))[0][0, :, 0]
    return {"measured": np.array(_measured(y)), "predicted": np.array(stack_rate(stack)), "slowest": slowest}


def _boundary(config: Config) -> Arrays:
    """An eigenvalue of modulus 1, which "bounded by I" allows: the response to one input, after 1 and 1000 steps."""
    layer = diagonal_layer([1.0], [[1.0]], [[1.0]])
    x = torch.zeros(1, 1001, 1, dtype=torch.float64)
    x[0, 0] = 1
    with torch.no_grad():
        y = layer(x)[0][0, :, 0]
    return {"left": np.array(float(y[1000] / y[1])), "rate": np.array(stack_rate(layer))}


def conclude(config: Config, units: Sequence[Unit]) -> Conclusion:
    """The smaller rate wins, activations change none, a stack has the smallest."""
    part = {
        name: [u for u in units if u.config["part"] == name] for name in ("layer", "activation", "stack", "boundary")
    }
    layers = {key: np.concatenate([u.arrays[key] for u in part["layer"]]) for key in ("input", "measured", "predicted")}
    stacks = {key: np.array([u.arrays[key] for u in part["stack"]]) for key in ("measured", "predicted")}
    off, below = layers["measured"] / layers["predicted"] - 1, layers["measured"] / layers["input"]
    steep = {u.config["activation"]: float(u.arrays["ratio"] / u.arrays["lipschitz"]) for u in part["activation"]}
    apart = stacks["measured"] / stacks["predicted"] - 1
    boundary = part["boundary"][0].arrays
    claims = [
        Claim.decide(
            "layer",
            "A layer's output settles at the smaller of its input's rate c0 and its own (Prop. 3.11, corrected)",
            float(np.abs(off).max()) < RATE_TOLERANCE,
            {"largest |measured / predicted - 1|": float(np.abs(off).max()), "cases": float(len(off))},
            paper={"largest |measured / predicted - 1|": 0.0},
            otherwise="Some output settles at another rate than the smaller of the two.",
            essential=True,
        ),
        Claim.decide(
            "same constant",
            "A layer's output settles at its input's rate c0, for the same constant (Prop. 3.11 as printed)",
            float(below.min()) > 1 - RATE_TOLERANCE,
            {"smallest measured rate / c0": float(below.min())},
            paper={"smallest measured rate / c0": 1.0},
            otherwise="An input that settles faster than the layer forgets leaves the layer's own rate. The proof (eq. 60 to "
            "62) shows that the distance goes to 0, at no rate.",
        ),
        Claim.decide(
            "activation",
            "A Lipschitz activation changes no rate: |sigma(x) - sigma(x*)| <= L |x - x*| (Prop. 3.12)",
            max(steep.values()) <= 1 + 1e-6,  # L is the largest slope on a fine grid
            {f"largest quotient / L, {name}": value for name, value in steep.items()},
            otherwise="Some quotient exceeds the largest slope.",
            essential=True,
        ),
        Claim.decide(
            "stack",
            "The memory of a stack decays exponentially, at the smallest rate of its layers (Thm 3.13, with the rate)",
            float(np.abs(apart).max()) < RATE_TOLERANCE,
            {"largest |measured / predicted - 1|": float(np.abs(apart).max()), "stacks": float(len(apart))},
            otherwise="Some stack decays at another rate than its slowest layer.",
            essential=True,
        ),
        Claim.decide(
            "bounded by I",
            "Eigenvalues bounded by I are enough for decay (Thm 3.13 as printed)",
            float(boundary["left"]) < 1,
            {"response after 1000 steps / after 1": float(boundary["left"]), "rate": float(boundary["rate"])},
            otherwise="An eigenvalue of modulus 1 never forgets: the theorem needs |lambda| < 1 in discrete time, Re lambda "
            "< 0 in continuous time.",
        ),
    ]
    rows = [
        (c["activation"], c["depth"], float(u.arrays["predicted"]), float(u.arrays["measured"]))
        for u in part["stack"] for c in [u.config]
    ]  # fmt: skip
    table = Table("stacks", "Rates per step.", ("activation", "layers", "predicted", "measured"), rows)
    notes = [
        "Activations are tanh, gelu and the identity. A relu whose unit is off passes no rate on: a stack of such layers may "
        "decay faster than its slowest layer, never more slowly.",
    ]
    return Conclusion(claims, [_figure(layers, part["stack"])], [table], notes)


def _figure(layers: dict[str, np.ndarray], stacks: Sequence[Unit]) -> Figure:
    order = np.argsort(layers["input"])
    axes = Axis("input's rate c0", log=True), Axis("output's rate", log=True)
    first = Panel(
        "One layer of own rate 0.02",
        *axes,
        [
            Points("measured", layers["input"], layers["measured"], colour=0),
            Line("min(c0, own rate)", layers["input"][order], layers["predicted"][order], colour=1),
            Line("c0, as printed", layers["input"][order], layers["input"][order], colour=2, dash="dash"),
        ],
    )
    predicted = np.array([float(u.arrays["predicted"]) for u in stacks])
    measured = np.array([float(u.arrays["measured"]) for u in stacks])
    depth = np.array([u.config["depth"] for u in stacks], dtype=float)
    second = Panel(
        "Stacks",
        Axis("layers"),
        Axis("measured / predicted rate"),
        [Points("stacks", depth, measured / predicted, colour=0)],
    )
    caption = (
        "An output settles at the smaller of its input's rate and the layer's own; a stack at the smallest of its "
        "layers'."
    )
    return Figure("rates", caption, [first, second])


EXPERIMENT = Experiment(
    id="ssm-thm313",
    where="Propositions 3.11 and 3.12, Theorem 3.13",
    title="A stack forgets at the rate of its slowest layer",
    summary="Measured rates at which outputs of layers, activations and stacks settle, against the smallest of the rates of "
    "the input and the layers.",
    presets=presets(
        {"modes": 6, "ratios": [0.25, 0.5, 2.0, 4.0], "depths": [1, 2, 4], "seeds": 5},
        quick={"seeds": 2, "depths": [1, 3]},
    ),
    units=units,
    run=run,
    conclude=conclude,
    cost=lambda config: 0.1,
)
