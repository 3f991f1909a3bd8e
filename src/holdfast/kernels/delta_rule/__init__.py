"""The gated delta rule in C++; `holdfast.nn` has the function that models call, and its version in torch."""

from holdfast.kernels.delta_rule import _native  # noqa: F401  (defines torch.ops.holdfast.delta_rule_*)
