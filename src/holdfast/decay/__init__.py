"""The decay law of a memory curve, and what is told of a model or a kernel once it is known.

`fit_decay.py` holds the public function and `result.py` what it gives. It asks `choice.py` for one law after another, which
looks at the curve through `envelope.py`, `noise.py` (what is rounding), `shape.py` (local fits), `recurrence.py` (what comes
back) and `imitation.py` (few exponentials that look like a power); `spectrum.py` reads eigenvalues instead, `stack.py` those
of several layers, `uniform.py` the curves of a family. `study.py` puts
memory, law and properties of a model together, `kernel_fit.py` law and exponential sums of a sampled kernel.
"""

from holdfast.decay.envelope import envelope
from holdfast.decay.fit_decay import fit_decay
from holdfast.decay.kernel_fit import KernelFit, fit_kernel
from holdfast.decay.result import AsymptoticLaw, DecayFit, UndecidedError
from holdfast.decay.spectrum import asymptotic_law
from holdfast.decay.stack import stack_rate
from holdfast.decay.study import MemoryStudy, study_memory, study_repeated
from holdfast.decay.uniform import uniform_memory

__all__ = [
    "AsymptoticLaw",
    "DecayFit",
    "KernelFit",
    "MemoryStudy",
    "UndecidedError",
    "asymptotic_law",
    "envelope",
    "fit_decay",
    "fit_kernel",
    "stack_rate",
    "study_memory",
    "study_repeated",
    "uniform_memory",
]
