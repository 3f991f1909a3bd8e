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
    """One unit: the rate at which a GRU of this width forgets, for each bias."""
    rates = []
    for i, bias in enumerate(config["biases"]):
        torch.manual_seed(config["seed"])
        gru = torch.nn.GRU(1, config["width"], batch_first=True)
        with torch.no_grad():
            gru.bias_ih_l0[config["width"] : 2 * config["width"]] += bias  # the update gate: near 1 it keeps the state
        fit = holdfast.fit_decay(holdfast.memory_function(gru, horizon=config["horizon"], double=True))
        rates.append(fit.rate or np.nan)
        work.progress((i + 1) / len(config["biases"]), f"bias {bias}")
    return {"biases": np.array(config["biases"], dtype=float), "rates": np.array(rates)}


def conclude(config, units):
    """Claims over all units, and what is drawn."""
    lines, shares = [], []
    for slot, width in enumerate(config["widths"]):
        own = [unit for unit in units if unit.config["width"] == width]
        rates = np.median([unit.arrays["rates"] for unit in own], axis=0)
        shares.append(rates[-1] / rates[0])
        lines.append(Line(f"width {width}", own[0].arrays["biases"], rates, colour=slot))
    claim = Claim.decide(
        "bias",
        f"A bias of {config['biases'][-1]} makes a fresh GRU forget at least five times more slowly, at every width",
        None if np.isnan(shares).any() else max(shares) < 0.2,
        {"largest rate with bias / without": float(np.max(shares))},
        otherwise="the rates do not fall that far, or the horizon is too short to tell",
    )
    panel = Panel("Rate of decay", Axis("bias of the update gate"), Axis("rate", log=True), lines)
    return Conclusion([claim], [Figure("rates", "Median rate over the seeds.", [panel])])


EXPERIMENT = Experiment(
    id="own-gru",
    where="examples/own_experiment.py",
    title="What the bias of its update gate does to a GRU's memory",
    summary="Memory of untrained GRUs, measured by a Heaviside input, and the rate of its decay.",
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
