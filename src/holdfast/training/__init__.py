"""Training: one loop on Lightning Fabric for any module and any task, with checkpoints, exact resume and a status.

`fit.py` is the call. `config.py` holds the settings, `loop.py` the loop, `descent.py` one step of it: examples from
`order.py`, rates from `schedule.py`, losses from `objective.py` and metrics from `evaluate.py`, and runs on
`fabric.py`. `folder.py`, `checkpoint.py` and `log.py` are what lies on disk, `run.py` reads it back. `recipe.py`
reads a config file, `build.py` makes its model, `estimate.py` says what it will take, `sweep.py` trains several of
them side by side. `range_test.py` tries learning rates, with `shadow.py` beside it.
"""

from holdfast.training.config import TrainingConfig
from holdfast.training.fit import fit
from holdfast.training.folder import RunFolderError
from holdfast.training.log import History
from holdfast.training.range_test import RangeCurve, RangeTest, range_test
from holdfast.training.run import TrainingRun

__all__ = ["History", "RangeCurve", "RangeTest", "RunFolderError", "TrainingConfig", "TrainingRun", "fit", "range_test"]
