"""One report of a model at hand: what it remembers, how near it is to trouble, and which call helps.

`_diagnose.py` is the call and `_result.py` what it gives. `_reading.py` finds how a model is to be read, with the modules
of `_adapters.py` around it, and `_on_data.py` the user's data. `_forgetting.py`, `_weights.py`, `_learning.py` and
`_reaching.py` each look at one side. `_candidates.py` draws conclusions with the calls of `_remedies.py`, `_trial.py` tries
them on the `_samples.py`, and `_advice.py` keeps what helped; `_words.py` tells it. `_compare.py` puts several models side
by side, with what they cost (`_cost.py`).
"""

from holdfast.diagnosis._advice import Advice
from holdfast.diagnosis._compare import ComparedModel, Comparison, compare
from holdfast.diagnosis._diagnose import diagnose
from holdfast.diagnosis._result import Diagnosis

__all__ = ["Advice", "ComparedModel", "Comparison", "Diagnosis", "compare", "diagnose"]
