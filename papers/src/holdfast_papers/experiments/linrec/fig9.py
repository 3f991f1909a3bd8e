"""linrec-fig9: nonlinear systems by a random linear recurrence and a trained MLP on its state (App. E.3).

The controlled Lotka-Volterra system is the paper's; Lorenz's system of 1963 over one Lyapunov time and a driven pendulum are
two more, each decided on its own.

The recurrence is fixed, x_k = Lam x_{k-1} + B u_k with eigenvalues on the ring (0.99, 1): its states are computed once, and the
same MLP reads them at every step. Sec. 3 of the paper has one coordinate more, which counts the steps; both states are tried.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from holdfast.data import ArrayTask, load_task
from holdfast.data._base import AbstractTask, Split
from holdfast.figures import Axis, Figure, Line, Panel
from holdfast.kernels import scan
from holdfast_papers import reconstruct
from holdfast_papers.experiments import _runs
from holdfast_papers.experiments._training import trained
from holdfast_papers.experiments.base import Arrays, Conclusion, Config, Experiment, Unit, Work, drop, presets, split
from holdfast_papers.pages import Table
from holdfast_papers.results import Claim

RING, CLOCK = "ring", "ring and clock"
OUTPUTS = {
    "lotka-volterra": ("z1, prey", "z2, hunters"),
    "lorenz": ("x", "z"),
    "pendulum": ("angle", "speed"),
}
TITLES = {"lotka-volterra": "Lotka-Volterra", "lorenz": "Lorenz-63", "pendulum": "driven pendulum"}
SMALL, HALF = 0.01, 0.5  # of the output's variance; of the linear readout's error
AT_ONCE = 16  # trajectories whose states are in memory together
SHOWN = 3
RIDGE = 1e-6
FLOOR = 1e-4  # added to the variances before whitening: directions below it are rounding


def units(config: Config) -> list[Config]:
    """One recurrence, with or without the clock, and its MLP."""
    shared = drop(config, "seeds", "systems")
    return split(shared, system=config["systems"], state=[RING, CLOCK], seed=range(config["seeds"]))


def run(config: Config, work: Work) -> Arrays:
    """Linear readout and MLP from the same states."""
    task = system_task(config)
    states = recurrence(config)
    x, y = sampled(task, states, config)
    white = _whitening(x)
    middle, spread = y.mean(0), y.std(0)
    x = white(x)
    linear = _least_squares(x, (y - middle) / spread)
    mlp = _mlp(config, x.shape[1])
    done = trained(
        mlp,
        ArrayTask((x[:, None], ((y - middle) / spread)[:, None]), name="states"),
        {
            "lr": config["lr"], "batch": config["batch"], "steps": config["steps"], "weight_decay": 0.0,
            "warmup": config["steps"] // 20, "seed": config["seed"], "monitor_every": 0, "log_every": 20,
        },
        work,
        part=(0.1, 0.9),
    )  # fmt: skip

    def outputs(given: Tensor) -> tuple[Tensor, Tensor]:
        known = white(given)
        with torch.no_grad():
            return mlp(known) * spread + middle, (_padded(known) @ linear) * spread + middle

    return {**_runs.outcome(done, work), **_judged(task, states, outputs)}


def system_task(config: Config) -> AbstractTask:
    """Inputs and outputs of the unit's system: Euler steps under a + b in the plane of two Fourier functions."""
    length, sizes = config["length"], (config["train"], config["valid"])
    if config["system"] == "lotka-volterra":
        return load_task("lotka-volterra", length=length, train=sizes[0], valid=sizes[1])
    angles = 2 * np.pi * np.arange(length) / length
    rng = np.random.default_rng(0)
    parts = []
    for count in sizes:
        u = (AMPLITUDE[config["system"]] * rng.normal(size=(count, 2)) @ [np.cos(angles), np.sin(angles)]).T
        z = SYSTEMS[config["system"]](u)
        parts.append(
            (torch.from_numpy(u.T[..., None]).float(), torch.from_numpy(z).permute(2, 0, 1).float().contiguous())
        )
    return ArrayTask(parts[0], parts[1], name=config["system"])


def _lorenz(u: np.ndarray) -> np.ndarray:
    """x' = 10 (y - x) + u, y' = x (28 - z) - y, z' = x y - 8 z / 3 over one Lyapunov time, 1 / 0.906; x and z."""
    dt, count = 1 / 0.906 / len(u), u.shape[1]
    x, y, z = (np.full(count, start) for start in (1.0, 1.0, 20.0))
    found = np.empty((len(u), 2, count))
    for step, push in enumerate(u):
        x, y, z = x + dt * (10 * (y - x) + push), y + dt * (x * (28 - z) - y), z + dt * (x * y - 8 / 3 * z)
        found[step] = x, z
    return found


def _pendulum(u: np.ndarray) -> np.ndarray:
    """a'' = -sin a - a' / 10 + u over 15 units of time from a = 1 at rest; a and a'."""
    dt, count = 15 / len(u), u.shape[1]
    angle, speed = np.full(count, 1.0), np.zeros(count)
    found = np.empty((len(u), 2, count))
    for step, push in enumerate(u):
        angle, speed = angle + dt * speed, speed + dt * (push - np.sin(angle) - 0.1 * speed)
        found[step] = angle, speed
    return found


SYSTEMS = {"lorenz": _lorenz, "pendulum": _pendulum}
AMPLITUDE = {"lorenz": 20.0, "pendulum": 0.3}  # of the inputs: outputs then differ by about their size


def recurrence(config: Config) -> Callable[[Tensor], Tensor]:
    """From inputs (batch, time, 1) to the real and imaginary parts of the states (batch, time, 2 modes)."""
    clock = config["state"] == CLOCK
    modes = config["modes"] - clock
    lam = reconstruct.ring_eigenvalues(modes, config["r_min"], seed=config["seed"])
    generator = torch.Generator().manual_seed(config["seed"])
    B = torch.view_as_complex(torch.randn(modes, 2, generator=generator, dtype=torch.float64)) / 2**0.5

    def states(u: Tensor) -> Tensor:
        h, _ = scan(lam, u.to(torch.complex128) * B)
        found = torch.view_as_real(h).flatten(-2)
        if clock:
            # x_0 = l x_0 + 1 (Sec. 3) with the slowest l that still moves over the whole sequence
            k = torch.arange(1, u.shape[1] + 1, dtype=torch.float64)
            counted = 1 - (1 - 1 / u.shape[1]) ** k
            found = torch.cat([found, counted[None, :, None].expand(len(u), -1, 1)], -1)
        return found.float()

    return states


def sampled(task: AbstractTask, states: Callable[[Tensor], Tensor], config: Config) -> tuple[Tensor, Tensor]:
    """States and outputs at `points` random steps of each training trajectory, (trajectories points, features)."""
    generator = torch.Generator().manual_seed(config["seed"])
    found = []
    for inputs, targets in _batches(task, "train"):
        rows = torch.arange(len(inputs))[:, None]
        at = torch.randint(0, task.length, (len(inputs), config["points"]), generator=generator)
        found.append((states(inputs)[rows, at].flatten(0, 1), targets[rows, at].flatten(0, 1)))
    return torch.cat([x for x, _ in found]), torch.cat([y for _, y in found])


def _batches(task: AbstractTask, which: Split) -> Iterator[tuple[Tensor, Tensor]]:
    size = task.size(which) or 0
    for start in range(0, size, AT_ONCE):
        batch = task.batch(which, torch.arange(start, min(start + AT_ONCE, size)))
        yield batch.inputs, batch.targets


def _whitening(x: Tensor) -> Callable[[Tensor], Tensor]:
    """The linear map that gives the training states mean 0 and unit covariance; the MLP's first layer could hold it."""
    shift, scale = x.mean(0), x.std(0).clamp(min=1e-12)
    known = (x - shift) / scale
    values, vectors = torch.linalg.eigh((known.T @ known).double() / len(x))
    turn = (vectors / torch.sqrt(values + FLOOR)).float()
    return lambda given: ((given - shift) / scale) @ turn


def _mlp(config: Config, features: int) -> nn.Module:
    torch.manual_seed(config["seed"])
    width = config["width"]
    return nn.Sequential(nn.Linear(features, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 2))


def _padded(x: Tensor) -> Tensor:
    return torch.cat([x, torch.ones_like(x[..., :1])], -1)


def _least_squares(x: Tensor, y: Tensor) -> Tensor:
    """The readout with a constant that is best on the training points, in float64."""
    known = _padded(x).double()
    gram = known.T @ known + RIDGE * len(x) * torch.eye(known.shape[1], dtype=torch.float64)
    return torch.linalg.solve(gram, known.T @ y.double()).float()


def _judged(
    task: AbstractTask, states: Callable[[Tensor], Tensor], outputs: Callable[[Tensor], tuple[Tensor, Tensor]]
) -> dict[str, np.ndarray]:
    """Mean squared errors over all steps of the validation trajectories, by output and by step, over the variance."""
    squares, values = [], []
    shown: dict[str, Tensor] = {}
    for inputs, targets in _batches(task, "valid"):
        found = outputs(states(inputs))
        squares.append(torch.stack([(y - targets).square().sum(0) for y in found]).double())
        values.append(targets)
        if not shown:
            shown = {
                "shown.input": inputs[:SHOWN, ::8, 0], "shown.truth": targets[:SHOWN, ::8], "shown.mlp": found[0][:SHOWN, ::8]
            }  # fmt: skip
    variance = torch.cat(values).double().flatten(0, 1).var(0)
    error = torch.stack(squares).sum(0) / (task.size("valid") or 1)
    share = error.mean(1) / variance
    by_step = (error[0].unflatten(0, (-1, max(1, task.length // 64))).mean(1) / variance).float()
    arrays = {"error.mlp": share[0], "error.linear": share[1], "by_step": by_step, **shown}
    return {name: value.numpy() for name, value in arrays.items()}


def conclude(config: Config, units: Sequence[Unit]) -> Conclusion:
    """The error of both outputs is small, and far below that of a linear readout."""
    claims = [
        _claim(system, state, [u for u in units if (u.config["system"], u.config["state"]) == (system, state)])
        for system in config["systems"]
        for state in (RING, CLOCK)
    ]
    rows = [
        (
            TITLES[u.config["system"]], u.config["state"], u.config["seed"], name,
            "diverged" if _runs.failed(u.arrays) else float(u.arrays["error.mlp"][k]), float(u.arrays["error.linear"][k]),
        )
        for u in units for k, name in enumerate(OUTPUTS[u.config["system"]])
    ]  # fmt: skip
    caption = "Mean squared error on validation trajectories over the variance of the output."
    table = Table("errors", caption, ("system", "state", "seed", "output", "MLP", "linear readout"), rows)
    notes = [
        "The paper gives neither the inputs' size nor the optimizer. Ours: Adam with a cosine, inputs of 1/32 "
        "(Lorenz 20, pendulum 0.3), states "
        f"whitened, outputs scaled to mean 0 and deviation 1. The MLP is trained on {config['points']} random steps of each of "
        f"the {config['train']} training trajectories and judged on all {config['length']} steps of the {config['valid']} "
        "others.",
        "Where the input is nearly 0, the state of the ring is nearly 0 at all times: what tells the time is the state's "
        f"direction. The clock is the coordinate x_0 of Sec. 3, one of the {config['modes']}.",
    ]
    return Conclusion(claims, _figures(units), [table], notes)


def _claim(system: str, state: str, units: Sequence[Unit]) -> Claim:
    worst = {how: max(float(u.arrays[f"error.{how}"].max()) for u in units) for how in ("mlp", "linear")}
    to_linear = max(float((u.arrays["error.mlp"] / u.arrays["error.linear"]).max()) for u in units)
    finished = not any(_runs.failed(u.arrays) for u in units)
    return Claim.decide(
        state if system == "lotka-volterra" else f"{TITLES[system]}, {state}",
        f"From the state ({state}) of a random linear recurrence an MLP gives both outputs of {TITLES[system]}: "
        f"validation error at most "
        f"{SMALL:g} of the variance, and at most {HALF:g} of a linear readout's, in every run",
        finished and worst["mlp"] <= SMALL and to_linear <= HALF,
        {
            "largest error / variance, MLP": worst["mlp"], "largest error / variance, linear readout": worst["linear"],
            "largest error / that of the linear readout": to_linear, "runs": len(units),
        },
        otherwise=(
            "The MLP does not reach that error in the steps that it is trained for."
            if finished else "A run diverged."
        ),
        essential=state == RING and system == "lotka-volterra",
    )  # fmt: skip


def _figures(units: Sequence[Unit]) -> list[Figure]:
    first = {(u.config["system"], u.config["state"]): u for u in reversed(units)}
    panels = []
    for (system, state), unit in first.items():
        a = unit.arrays
        x = 8 * np.arange(a["shown.truth"].shape[1])
        for k, name in enumerate(OUTPUTS[system]):
            lines = [
                line
                for i in range(len(a["shown.truth"]))
                for line in (
                    Line("MLP", x, a["shown.mlp"][i, :, k], colour=i, legend=i == 0),
                    Line("truth", x, a["shown.truth"][i, :, k], colour=i, dash="dash", legend=i == 0),
                )
            ]
            panels.append(Panel(f"{TITLES[system]}, {name}, {state}", Axis("step"), Axis("output"), lines))
    curves = [Line(_name(u), u.arrays["steps"], u.arrays["loss"], colour=k) for k, u in enumerate(units)]
    late = [
        Line(_name(u), np.linspace(0, 1, len(u.arrays["by_step"])), u.arrays["by_step"].max(1), colour=k)
        for k, u in enumerate(units)
    ]  # fmt: skip
    return [
        Figure(
            "trajectories",
            "Validation trajectories, a colour for each: the MLP's outputs, and the truth dashed.",
            panels,
        ),
        Figure(
            "learning",
            "First panel: training loss over the steps. Second: validation error by place in the sequence, the worse of both "
            "outputs.",
            [
                Panel("Training", Axis("step"), Axis("mean squared error / variance", log=True), curves),
                Panel(
                    "Validation", Axis("place in the sequence"), Axis("mean squared error / variance", log=True), late
                ),
            ],
        ),
    ]


def _name(unit: Unit) -> str:
    return f"{TITLES[unit.config['system']]}, {unit.config['state']}, {unit.config['seed']}"


def cost(config: Config) -> float:
    """Seconds of a unit: 9 us per weight and 1,000 points, and the states."""
    weights = config["width"] * (config["width"] + 2 * config["modes"])
    return (
        1
        + 9e-11 * config["steps"] * config["batch"] * weights
        + 1e-5 * (config["train"] + config["valid"]) * config["length"]
    )


EXPERIMENT = Experiment(
    id="linrec-fig9",
    where="Figure 9",
    title="Nonlinear systems by a random linear RNN and an MLP",
    summary="Input sequences pass a fixed random linear recurrence; an MLP with two hidden layers, the same at every step, is "
    "trained to give two outputs of a controlled system, Lotka-Volterra, Lorenz-63 or a driven pendulum, against a linear "
    "readout of the same states.",
    presets=presets(
        {
            "modes": 128, "r_min": 0.99, "width": 512, "length": 2048, "train": 717, "valid": 307, "points": 2048,
            "steps": 50_000, "batch": 1024, "lr": 1e-3, "seeds": 3, "systems": ["lotka-volterra"],
        },
        standard={"points": 256, "steps": 20_000, "batch": 256, "systems": [*OUTPUTS]},
        quick={
            "systems": ["lotka-volterra", "pendulum"],
            "modes": 32, "width": 64, "length": 256, "train": 48, "valid": 16, "points": 64, "steps": 400, "batch": 256,
            "seeds": 1,
        },
    ),
    units=units,
    run=run,
    conclude=conclude,
    cost=cost,
    version=2,
)  # fmt: skip
