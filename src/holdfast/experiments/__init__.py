"""Figures and tables of the four papers, one file each: `list`, `get`, `run`, and what an experiment is made of."""

from holdfast.experiments.base import Conclusion, Config, Experiment, Unit, Work, drop, presets, split
from holdfast.experiments.registry import Entry, get
from holdfast.experiments.registry import entries as list
from holdfast.experiments.running import run

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
