"""Questions that the papers leave open, answered with criteria that were fixed before the runs.

`activations.py`, `gated.py`, `lambda.py`, `precision.py`, `transformer.py` and `volterra.py` ask one each; `_verdicts.py` and
`_copies.py` are shared.
"""
