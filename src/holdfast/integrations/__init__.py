"""Adapters to the training loops of others: each file needs the package that it adapts, and nothing else does.

`holdfast.integrations.transformers` attaches to the Trainer of transformers, `holdfast.integrations.lightning` has a callback
of Lightning's, `holdfast.integrations.sb3` a policy of sb3-contrib's; `holdfast.integrations.kernels` offers our kernels to
transformers. `TrainingWatch` is for a loop of your own; the first two are made of it.
"""

from holdfast.integrations._watch import TrainingWatch, regroup

__all__ = ["TrainingWatch", "regroup"]
