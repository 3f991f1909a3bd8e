"""One report of a model at hand: what it remembers, how near it is to trouble, and which call helps.

`diagnose.py` is the call and `result.py` what it gives. `reading.py` finds how a model is to be read, with the modules of
`adapters.py` around it. `forgetting.py`, `weights.py`, `learning.py` and `task.py` each look at one side. `candidates.py` draws
conclusions with the calls of `remedies.py`, `trial.py` tries them on the `samples.py`, and `advice.py` keeps what helped;
`words.py` and `page.py` tell it.
"""

from holdfast.diagnosis.advice import Advice
from holdfast.diagnosis.diagnose import diagnose
from holdfast.diagnosis.result import Diagnosis

__all__ = ["Advice", "Diagnosis", "diagnose"]
