"""The decay law of a memory curve, and what is reported of a model or a kernel once it is known.

`_fit_decay.py` holds the public function and `_result.py` what it gives. It asks `_choice.py` for one law after another,
which looks at the curve through `_signal.py` (envelope, and what is rounding) and `_shape.py` (local fits, what repeats
itself, few exponentials that look like a power); `_spectrum.py` reads eigenvalues instead. `_memory_study.py` puts memory,
law and properties of a model, or the curves of a family, together, `_kernel_fit.py` law and exponential sums of a sampled
kernel.

`_task_study.py` asks data instead of a model: `_task_data.py` reads them and makes the rows of a regression,
`_task_kernel.py` solves it, and `_task_start.py` starts the modes of a model from what was found.
"""

from holdfast.decay._fit_decay import fit_decay
from holdfast.decay._kernel_fit import KernelFit, fit_kernel
from holdfast.decay._memory_study import MemoryStudy, study_memory, study_repeated, uniform_memory
from holdfast.decay._result import AsymptoticLaw, DecayFit, Return, UndecidedError
from holdfast.decay._signal import envelope
from holdfast.decay._spectrum import asymptotic_law, stack_rate
from holdfast.decay._task_start import TaskStart
from holdfast.decay._task_study import TaskStudy, study_task

__all__ = [
    "AsymptoticLaw",
    "DecayFit",
    "KernelFit",
    "MemoryStudy",
    "Return",
    "TaskStart",
    "TaskStudy",
    "UndecidedError",
    "asymptotic_law",
    "envelope",
    "fit_decay",
    "fit_kernel",
    "stack_rate",
    "study_memory",
    "study_repeated",
    "study_task",
    "uniform_memory",
]
