"""
An experiment of your own
=========================

How does the memory of a fresh GRU depend on its width and on the bias of its update gate? One file says what is
computed and what is claimed. `holdfast reproduce examples/own_experiment.py` runs it on all cores, goes on after a
kill, and writes a page with figure and verdicts; run as a program it prints them.
"""

import numpy as np
import torch

import holdfast
from holdfast.experiments import Conclusion, Experiment, presets, split
from holdfast.figures import Axis, Figure, Line, Panel
from holdfast.results import Claim


def run(config, work):
    """One unit: steps until a GRU of this width has 1% of an input left, for each bias; NaN beyond the horizon."""
    steps = []
    for i, bias in enumerate(config["biases"]):
        torch.manual_seed(config["seed"])
        gru = torch.nn.GRU(1, config["width"], batch_first=True)
        with torch.no_grad():
            gru.bias_ih_l0[config["width"] : 2 * config["width"]] += bias  # the update gate: near 1 it keeps the state
        curve = holdfast.memory_function(gru, horizon=config["horizon"], double=True)
        below = np.flatnonzero(curve.values < 0.01 * curve.values.max())
        steps.append(curve.time[below[0]] if len(below) else np.nan)
        work.progress((i + 1) / len(config["biases"]), f"bias {bias}")
    return {"biases": np.array(config["biases"], dtype=float), "steps": np.array(steps, dtype=float)}


def conclude(config, units):
    """Claims over all units, and what is drawn."""
    lines, gains = [], []
    for slot, width in enumerate(config["widths"]):
        own = [unit for unit in units if unit.config["width"] == width]
        steps = np.median([unit.arrays["steps"] for unit in own], axis=0)
        gains.append(steps[-1] / steps[0])
        lines.append(Line(f"width {width}", own[0].arrays["biases"], steps, colour=slot))
    claim = Claim.decide(
        "bias",
        f"A bias of {config['biases'][-1]} makes a fresh GRU remember at least five times longer, at every width",
        None if np.isnan(gains).any() else min(gains) >= 5,
        {"steps with bias / without, least": float(np.min(gains))},
        otherwise="the memory does not grow that much, or the horizon is too short to tell",
    )
    panel = Panel("Memory", Axis("bias of the update gate"), Axis("steps until 1% is left", log=True), lines)
    return Conclusion([claim], [Figure("memory", "Median over the seeds.", [panel])])


EXPERIMENT = Experiment(
    id="own-gru",
    where="examples/own_experiment.py",
    title="What the bias of its update gate does to a GRU's memory",
    summary="Memory of untrained GRUs, measured by a Heaviside input: steps until 1% is left.",
    presets=presets(
        {"widths": [8, 32], "seeds": 3, "biases": [0, 1, 2, 3], "horizon": 400},
        standard={},
        quick={"seeds": 1, "widths": [8], "biases": [0, 3], "horizon": 200},
    ),
    units=lambda c: split({"biases": c["biases"], "horizon": c["horizon"]}, width=c["widths"], seed=range(c["seeds"])),
    run=run,
    conclude=conclude,
    cost=lambda config: 0.02 * config["width"],
)

if __name__ == "__main__":
    for claim in holdfast.experiments.run(EXPERIMENT, "quick").claims:
        print(f"{claim.status}: {claim.statement} ({claim.numbers})")
