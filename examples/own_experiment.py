"""
An experiment of your own
=========================

You learn: how to write an experiment with a claim in one file.
Run time: about 3 s of CPU time, one thread.

How does the bias of the update gate change the memory of an untrained GRU? One file defines what is computed and claimed:
`holdfast reproduce examples/own_experiment.py` runs it on all cores, continues after a kill, and writes a page.
"""

import numpy as np
import torch

import holdfast
import holdfast_papers
from holdfast.figures import Axis, Figure, Line, Panel
from holdfast_papers.experiments import Conclusion, Experiment, presets, split
from holdfast_papers.results import Claim


def run(config, work):
    """One unit: steps until a GRU of this width has 1% of an input left, by bias; NaN beyond the horizon."""
    steps, width = [], config["width"]
    for bias in config["biases"]:
        torch.manual_seed(config["seed"])
        gru = torch.nn.GRU(1, width, batch_first=True)
        with torch.no_grad():
            gru.bias_ih_l0[width : 2 * width] += bias  # the update gate: near 1 it keeps the state
        curve = holdfast.memory_function(gru, horizon=config["horizon"], double=True)
        below = np.flatnonzero(curve.values < 0.01 * curve.values.max())
        steps.append(curve.time[below[0]] if len(below) else np.nan)
    return {"biases": np.array(config["biases"], dtype=float), "steps": np.array(steps, dtype=float)}


def conclude(config, units):
    """Claims over all units, and what is drawn."""
    lines, gains = [], []
    for slot, width in enumerate(config["widths"]):
        own = [unit for unit in units if unit.config["width"] == width]
        steps = np.median([unit.arrays["steps"] for unit in own], axis=0)
        gains.append(steps[-1] / steps[0])
        lines.append(Line(f"width {width}", own[0].arrays["biases"], steps, colour=slot))
    statement = f"A bias of {config['biases'][-1]} makes an untrained GRU remember five times longer, at every width"
    least, why = float(np.min(gains)), "the memory does not grow that much, or the horizon is too short to tell"
    claim = Claim.decide(
        "bias", statement, None if np.isnan(least) else least >= 5, {"gain, least": least}, otherwise=why
    )
    panel = Panel("Memory", Axis("bias of the update gate"), Axis("steps until 1% is left", log=True), lines)
    return Conclusion([claim], [Figure("memory", "Median over the seeds.", [panel])])


EXPERIMENT = Experiment(
    id="own-gru",
    where="examples/own_experiment.py",
    title="What the bias of its update gate does to a GRU's memory",
    summary="Steps until untrained GRUs have 1% of an input left.",
    presets=presets(
        {"widths": [8, 32], "seeds": 3, "biases": [0, 1, 2, 3], "horizon": 400}, quick={"seeds": 1, "widths": [8]}
    ),
    units=lambda c: split({"biases": c["biases"], "horizon": c["horizon"]}, width=c["widths"], seed=range(c["seeds"])),
    run=run,
    conclude=conclude,
)

if __name__ == "__main__":
    for claim in holdfast_papers.experiments.run(EXPERIMENT, "quick").claims:
        print(f"{claim.status}: {claim.statement} ({claim.numbers})")
