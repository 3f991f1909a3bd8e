"""One report of a model at hand: what it remembers, how near it is to trouble, and which call helps.

`_diagnose.py` is the call and `_result.py` what it gives. `_reading.py` finds how a model is to be read, with the
modules of `_adapters.py` around it. `_forgetting.py`, `_weights.py`, `_learning.py`, `_reaching.py` and `_task.py` each look
at one side. `_candidates.py` draws conclusions with the calls of `_remedies.py`, `_trial.py` tries them on the
`_samples.py`, and `_advice.py` keeps what helped; `_words.py` and `_page.py` tell it.
"""

from holdfast.diagnosis._advice import Advice
from holdfast.diagnosis._diagnose import diagnose
from holdfast.diagnosis._result import Diagnosis

__all__ = ["Advice", "Diagnosis", "diagnose"]
