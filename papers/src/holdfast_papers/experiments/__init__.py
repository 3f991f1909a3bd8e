"""Figures and tables of the four papers and beyond, one file each: `list`, `get`, `run`, and what an experiment is made of.

`base.py` says what an experiment is, `registry.py` finds it by its id (`neighbours.py`: files beside one of the
user's own), `running.py` runs it in this process, `reasons.py` looks for the reasons of claims that are not met.
Shared by experiments: `_sums.py` (sums of exponentials and their perturbation), `_networks.py` (random networks),
`_training.py` (training inside a unit), `_runs.py` (what is kept of a training run) `_paired.py` (differences over seeds,
which decide claims of order and equality) and `_shares.py` (intervals of shares and exponents); by reasons: `_measures.py`.
"""

from holdfast_papers.experiments.base import Conclusion, Config, Experiment, Unit, Work, drop, presets, split
from holdfast_papers.experiments.registry import Entry, get
from holdfast_papers.experiments.registry import entries as list
from holdfast_papers.experiments.running import run

__all__ = [
    "Conclusion",
    "Config",
    "Entry",
    "Experiment",
    "Unit",
    "Work",
    "drop",
    "get",
    "list",
    "presets",
    "run",
    "split",
]
