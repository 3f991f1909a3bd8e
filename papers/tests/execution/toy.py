"""A small experiment for the tests of execution: it sleeps, fails, dies or writes HTML as its environment says."""

import os
import signal
import time
from pathlib import Path

import numpy as np

from holdfast.figures import Axis, Bars, Figure, Heatmap, Line, Panel, Points, Rule
from holdfast_papers.experiments import Conclusion, Experiment, presets, split
from holdfast_papers.pages import Table
from holdfast_papers.results import Claim

HTML = "<script>document.title='broken'</script><b>bold</b> & \"quotes\""


def run(config, work):
    seconds = float(os.environ.get("TOY_SECONDS", "0"))
    rng = np.random.default_rng(config["seed"])
    total = np.zeros(config["size"])
    for k in work.steps(range(10), "adding"):
        time.sleep(seconds / 10)
        total += rng.normal(size=config["size"])
        work.log(step=k, mean=float(total.mean()))
    flag = Path(os.environ.get("TOY_FLAGS", "/nonexistent"))
    if (flag / f"fail-{config['seed']}").exists():
        raise RuntimeError(f"unit {config['seed']} fails on purpose")
    if (flag / f"die-{config['seed']}").exists():
        if not (flag / "always").exists():
            (flag / f"die-{config['seed']}").unlink()
        os.kill(os.getpid(), signal.SIGKILL)
    return {"total": total}


def conclude(config, units):
    totals = np.stack([unit.arrays["total"] for unit in units])
    mean = totals.mean(0)
    x = np.arange(config["size"]) + 1.0
    band = totals.std(0)
    y = np.abs(mean)
    infinite = np.where(x == x[-1], np.inf, y)
    panels = [
        Panel("Lines", Axis("x"), Axis("y", log=True), [Line("mean", x, infinite, y / 2, y * 2), Rule("one", y=1.0)]),
        Panel("Points", Axis("x"), Axis("y"), [Points("sums", x, mean, mean - band, mean + band, colour=2)]),
        Panel(HTML, Axis(HTML), Axis("z"), [Bars(HTML, ["<i>a</i>", "b"], [1.0, 2.0])]),
        Panel("Map", Axis("x"), Axis("unit"), [Heatmap("value", x, np.arange(len(totals)), totals)]),
    ]
    pictures = [Panel(f"{k}", Axis(""), Axis(""), [Heatmap.picture("digit", totals[:, :4] ** 2)]) for k in range(3)]
    claims = [
        Claim.decide("finite", "Every sum is finite", bool(np.isfinite(totals).all()), {"sums": float(totals.size)},
                     paper={"sums": 3.0}, otherwise="some are not", essential=True),
        Claim.decide("zero", f"The mean is zero {HTML}", False, {"mean": float(mean.mean())}, otherwise=HTML),
        Claim.decide("open", "Unknown", None, {"worst": np.inf}, otherwise="more units would tell"),
    ]  # fmt: skip
    return Conclusion(
        claims,
        [Figure("sums", f"Sums of random numbers {HTML}", panels), Figure("pictures", "Pixels.", pictures, 3)],
        [Table("totals", f"Totals {HTML}", ("unit", "total"), [(HTML, 1.5), ("b", None)])],
        [f"A note {HTML}"],
    )


EXPERIMENT = Experiment(
    id="own-toy",
    where="nowhere",
    title=f"Toy {HTML}",
    summary="Adds random numbers.",
    presets=presets({"seeds": 150, "size": 6, "text": HTML}, standard={"seeds": 8}, quick={"seeds": 6}),
    units=lambda config: split({"size": config["size"]}, seed=range(config["seeds"])),
    run=run,
    conclude=conclude,
)
