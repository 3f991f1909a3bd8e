"""Adapters to the training loops of others: each file needs the package that it adapts, and nothing else does.

`holdfast.integrations.transformers` attaches to the Trainer of transformers, `holdfast.integrations.lightning` has a callback
of Lightning's, and both are made of `TrainingWatch`, which is for a loop of your own. `holdfast.integrations.sb3` has a policy
of sb3-contrib's.
"""

from holdfast.integrations._watch import TrainingWatch, regroup

__all__ = ["TrainingWatch", "regroup"]
