"""An experiment of a user's own, with an id and a body to choose: `write(path, body)`."""

TEXT = """
import numpy as np
from holdfast_papers.experiments import Conclusion, Experiment, presets, split
from holdfast_papers.results import Claim

def run(config, work):
    {body}

def conclude(config, units):
    total = float(sum(unit.arrays["a"].sum() for unit in units))
    return Conclusion([Claim.decide("total", "The total", None, {{"total": total}}, otherwise="")])

EXPERIMENT = Experiment(
    id="{id}", where="nowhere", title="Own", summary="Own.", presets=presets({{"units": {units}}}),
    units=lambda config: split({{}}, k=range(config["units"])), run=run, conclude=conclude,
)
"""


def write(path, body='return {"a": np.full(2, float(config["k"]))}', id="own-mine", units=2):
    path.write_text(TEXT.format(body=body, id=id, units=units), encoding="utf-8")
    return str(path)
