"""Adapters to the training loops of others: each file needs the package that it adapts, and nothing else does.

`holdfast.integrations.transformers` has a callback for the Trainer of transformers, `holdfast.integrations.lightning` one
for Lightning's. A loop of your own asks `holdfast.stability.DivergenceGuard` before each step.
"""
