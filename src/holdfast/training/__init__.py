"""Training: one loop on Lightning Fabric for any module and any task, with checkpoints, exact resume and a status.

`_fit.py` is the call. `_config.py` holds the settings, `_loop.py` the loop, `_descent.py` one step of it: examples and
rates, with losses and metrics from `_objective.py`, on `_fabric.py` and with the threads that `_threads.py` chooses and
the recurrent rates of `_rates.py`. `_folder.py`, `_checkpoint.py` and `_log.py` are what lies on disk and what may
continue it, `_run.py` reads it back, `_view.py` shows it while it grows. `_recipe.py` reads a config file, `_build.py`
makes its model, `_estimate.py` says what it will take, `_sweep.py` trains several of them side by side. `_range_test.py`
tries learning rates.
"""

from holdfast.training._config import TrainingConfig
from holdfast.training._fit import fit
from holdfast.training._folder import RunFolderError
from holdfast.training._log import History
from holdfast.training._range_test import RangeCurve, RangeTest, range_test
from holdfast.training._run import TrainingRun

__all__ = ["History", "RangeCurve", "RangeTest", "RunFolderError", "TrainingConfig", "TrainingRun", "fit", "range_test"]
