"""The papers behind holdfast: every figure and table by one command, their constructions and reconstructions.

`experiments` has a file for each figure and table, `execution` runs them and keeps results, `report` shows them,
`constructions` are universal approximators, `reconstruct` rebuilds inputs from hidden states, `benchmarks` is what
`holdfast bench` compares.
"""

from importlib import metadata

from holdfast_papers import constructions, experiments, reconstruct
from holdfast_papers.results import Claim, Result

__version__ = metadata.version("holdfast-papers")

__all__ = ["Claim", "Result", "constructions", "experiments", "reconstruct"]
