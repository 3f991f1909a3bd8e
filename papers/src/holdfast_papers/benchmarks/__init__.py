"""Benchmarks of the kernels: nothing is timed before its outputs and gradients were checked in float64.

`run(select(), budget, announce)` measures; `holdfast bench` is the same from the command line. A new row is a `Match`
in one of `cases/`, a new kernel is a file there and its name in `MODULES` of `registry.py`.

`case.py` says what a row is, `peers/` whom we compare with, `steps.py` how a function becomes a training step.
`check.py` compares with the truth, `timing.py` times, `growth.py` and `memory.py` measure how time and memory grow,
`run.py` does it all for a plan, `gpu.py` the same in short for the kernels of a GPU, which
`_gpu_cases.py` lists. `report.py`, `table.py` and
`markdown.py` write it down.
"""

from holdfast_papers.benchmarks.case import Case, Contender, Match, OwnKernel, Runner
from holdfast_papers.benchmarks.markdown import render, write_page
from holdfast_papers.benchmarks.registry import Plan, names, select
from holdfast_papers.benchmarks.report import Report, Row
from holdfast_papers.benchmarks.run import run

__all__ = [
    "Case",
    "Contender",
    "OwnKernel",
    "Match",
    "Plan",
    "Report",
    "Row",
    "Runner",
    "names",
    "render",
    "run",
    "select",
    "write_page",
]
