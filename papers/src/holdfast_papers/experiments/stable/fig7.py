"""stable-fig7: an MLP is two state-space layers with zero recurrence; equal to rounding, position by position."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from holdfast.figures import Axis, Figure, Layer, Line, Panel, Points, Rule
from holdfast.nn import DiagonalSSM
from holdfast_papers.constructions import mlp_as_ssm
from holdfast_papers.experiments.base import Arrays, Conclusion, Config, Experiment, Unit, Work, presets, split
from holdfast_papers.pages import Table
from holdfast_papers.results import Claim

ACTIVATIONS: dict[str, type[nn.Module]] = {"tanh": nn.Tanh, "relu": nn.ReLU, "gelu": nn.GELU, "sigmoid": nn.Sigmoid}
DTYPES = {"float32": torch.float32, "float64": torch.float64}
SIZES = (3, 2)  # inputs and outputs


def run(config: Config, work: Work) -> Arrays:
    """The largest difference between MLP and state-space layers, in units of what rounding may do; one per width and seed."""
    units, recurrences, example = [], [], None
    for width in work.steps(config["widths"], "widths"):
        for seed in range(config["seeds"]):
            mlp, x = _draw(config, width, seed)
            network = mlp_as_ssm(mlp)
            with torch.no_grad():
                y, z = mlp(x), network(x)[0]
            units.append(float(((y - z).abs() / _rounding(mlp, x)).max()))
            layers = [layer for layer in network.layers if isinstance(layer, DiagonalSSM)]
            assert len(layers) == 2
            recurrences.append(max(float(layer.eigenvalues().detach().abs().max()) for layer in layers))
            example = example or (y[0, :, 0].double().numpy(), z[0, :, 0].double().numpy())
    assert example is not None
    return {
        "units": np.array(units).reshape(len(config["widths"]), -1),
        "recurrence": np.array(recurrences),
        "mlp": example[0],
        "ssm": example[1],
    }


def _draw(config: Config, width: int, seed: int) -> tuple[nn.Sequential, Tensor]:
    dtype = DTYPES[config["dtype"]]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        activation = ACTIVATIONS[config["activation"]]()
        mlp = nn.Sequential(nn.Linear(SIZES[0], width), activation, nn.Linear(width, SIZES[1])).to(dtype)
        return mlp, torch.randn(4, config["length"], SIZES[0], dtype=dtype)


@torch.no_grad()
def _rounding(mlp: nn.Sequential, x: Tensor) -> Tensor:
    """The bound on what two orders of summation may differ by: n eps (|W2| (|sigma(h)| + |W1| |x| + |b1|) + |b2|), n terms.

    All slopes are at most 1.13, so that an error of h reaches sigma(h) at most that much larger.
    """
    first, second = mlp[0], mlp[2]
    assert isinstance(first, nn.Linear) and isinstance(second, nn.Linear)
    h = x.abs() @ first.weight.abs().T + first.bias.abs()
    inside = mlp[1](first(x)).abs() + h
    terms = first.in_features + second.in_features + 2
    return terms * torch.finfo(x.dtype).eps * (inside @ second.weight.abs().T + second.bias.abs())


def conclude(config: Config, units: Sequence[Unit]) -> Conclusion:
    """Equal to rounding for every activation, width and precision, with recurrent weights exactly 0."""
    worst = {u.config["activation"] + ", " + u.config["dtype"]: float(u.arrays["units"].max()) for u in units}
    count = sum(u.arrays["units"].size for u in units)
    recurrence = max(float(u.arrays["recurrence"].max()) for u in units)
    claims = [
        Claim.decide(
            "equal",
            "A pointwise MLP is two state-space layers: outputs are equal to rounding",
            max(worst.values()) <= 1,
            {"largest difference / rounding bound": max(worst.values()), "networks": float(count)},
            otherwise="Some outputs differ by more than two orders of summation may.",
            essential=True,
        ),
        Claim.decide(
            "zero recurrence",
            "The recurrent weights of the state-space layers that equal an MLP are 0",
            recurrence == 0,
            {"largest eigenvalue": recurrence},
            paper={"largest eigenvalue": 0.0},
            otherwise="A recurrent weight is not exactly 0.",
            essential=True,
        ),
    ]  # fmt: skip
    table = Table(
        "differences",
        "Largest difference over what rounding may do.",
        ("activation, dtype", "difference / rounding bound"),
        list(worst.items()),
    )
    return Conclusion(claims, [_example(units), _differences(config, units)], [table])


def _example(units: Sequence[Unit]) -> Figure:
    a = units[0].arrays
    position = np.arange(len(a["mlp"]))
    layers: list[Layer] = [
        Line("MLP", position, a["mlp"], colour=0),
        Points("state-space layers", position, a["ssm"], colour=1),
    ]
    panel = Panel("", Axis("position"), Axis("first output"), layers)
    return Figure(
        "outputs", "Outputs of an MLP (line) and of its state-space layers (points) over a random sequence.", [panel]
    )


def _differences(config: Config, units: Sequence[Unit]) -> Figure:
    layers: list[Layer] = []
    for k, u in enumerate(units):
        most = u.arrays["units"].max(1)
        dash = "solid" if u.config["dtype"] == "float64" else "dash"
        name = f"{u.config['activation']}, {u.config['dtype']}"
        layers.append(Line(name, np.array(config["widths"]), most, colour=k // len(DTYPES), markers=True, dash=dash))  # type: ignore[arg-type]
    layers.append(Rule("rounding", y=1.0))
    panel = Panel("", Axis("hidden width", log=True), Axis("difference / rounding bound", limits=(-0.1, 1.2)), layers)
    return Figure(
        "differences",
        "Largest difference over what rounding may do, by width: all lie below 1. 0 is equal to the last bit.",
        [panel],
    )


EXPERIMENT = Experiment(
    id="stable-fig7",
    where="Figure 7, App. E",
    title="An MLP is two state-space layers without recurrence",
    summary="Random MLPs rewritten as state-space layers with recurrent weights 0, and the largest difference between the two.",
    presets=presets(
        {"widths": [4, 16, 64, 256], "seeds": 10, "length": 100},
        quick={"widths": [4, 32], "seeds": 3},
    ),
    units=lambda config: split(dict(config), activation=ACTIVATIONS, dtype=DTYPES),
    run=run,
    conclude=conclude,
    cost=lambda config: 0.02 * len(config["widths"]) * config["seeds"],
)
