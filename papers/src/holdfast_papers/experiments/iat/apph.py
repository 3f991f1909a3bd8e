"""iat-apph: why memory is measured by special inputs: the identity functional and the input 1/t (App. H)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import nn

from holdfast.decay import fit_decay
from holdfast.figures import Axis, Figure, Line, Panel
from holdfast.memory import MemoryCurve, memory_function
from holdfast_papers.experiments.base import Arrays, Conclusion, Config, Experiment, Unit, Work, presets
from holdfast_papers.results import Claim

PROBES = ("heaviside", "impulse", "reversed")


def run(config: Config, work: Work) -> Arrays:
    """Memory of H_t(x) = x_t by every probe, its output for x_t = 1/t, and what the first input changes of it."""
    model, horizon = nn.Identity(), config["horizon"]
    arrays: dict[str, np.ndarray] = {}
    for probe in work.steps(PROBES, "probes"):
        curve = memory_function(model, input_size=1, horizon=horizon, probe=probe)
        arrays[probe] = curve.values
    t = torch.arange(1, horizon + 2, dtype=torch.float64)
    x = (1 / t).reshape(1, -1, 1)
    other = x.clone()
    other[0, 0] = 100
    y, changed = model(x)[0, :, 0], model(other)[0, :, 0]
    fit = fit_decay(MemoryCurve(time=t.numpy() - 1, values=y.numpy()))
    work.log(law=fit.law, status=fit.status)
    return {
        **arrays,
        "time": t.numpy() - 1,
        "output": y.numpy(),
        "exponent": np.array(fit.exponent if fit.law == "polynomial" else np.nan),
        "changed": (changed - y)[1:].abs().numpy(),
    }


def conclude(config: Config, units: Sequence[Unit]) -> Conclusion:
    """The output for 1/t falls like a power of t; the memory is 0 after the first step."""
    a = units[0].arrays
    left = {probe: float(a[probe][1:].max()) for probe in PROBES}
    exponent, changed = float(a["exponent"]), float(a["changed"].max())
    claims = [
        Claim.decide(
            "output",
            "The identity takes x_t = 1/t to an output that decays polynomially",
            abs(exponent - 1) < 0.02,
            {"fitted exponent": exponent},
            paper={"fitted exponent": 1.0},
            otherwise="The output was not recognized as a power law of exponent 1.",
            essential=True,
        ),
        Claim.decide(
            "no memory",
            "The identity has no memory of past inputs: every probe gives 0 after t = 0",
            max(left.values()) == 0,
            {f"largest memory after t = 0, {probe}": value for probe, value in left.items()},
            paper={f"largest memory after t = 0, {probe}": 0.0 for probe in PROBES},
            otherwise="Some probe sees memory where there is none.",
            essential=True,
        ),
        Claim.decide(
            "first input",
            "Changing x_0 changes no later output of the identity",
            changed == 0,
            {"largest change after t = 0": changed},
            otherwise="A later output moved.",
            essential=True,
        ),
    ]
    lines = [Line("output for 1/t", a["time"] + 1, a["output"], colour=0)]
    lines += [
        Line(f"memory, {probe}", a["time"] + 1, np.maximum(a[probe], 1e-17), colour=k + 1)
        for k, probe in enumerate(PROBES)
    ]
    panel = Panel("", Axis("t + 1", log=True), Axis("size", log=True, limits=(1e-5, 2)), lines)
    caption = "The identity: its output for the input 1/t falls like a power of t, its memory ends with the first step."
    return Conclusion(claims, [Figure("identity", caption, [panel])])


EXPERIMENT = Experiment(
    id="iat-apph",
    where="Appendix H",
    title="Why memory is measured by special inputs",
    summary="The identity functional: its output for the input 1/t, its memory function by three probes, and what the first "
    "input changes later.",
    presets=presets({"horizon": 1000}, quick={"horizon": 300}),
    run=run,
    conclude=conclude,
)
