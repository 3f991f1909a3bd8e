"""Models whose matrices are numbers already, for runtimes that cannot compute them."""

from __future__ import annotations

import copy

from torch import nn
from torch.nn.utils import parametrize

from holdfast._arguments import checked
from holdfast.nn._base import AbstractRecurrent


@checked
def exportable(model: nn.Module) -> nn.Module:
    """A copy of `model` for inference that `torch.onnx.export` takes: it computes the same, and no longer trains.

    ONNX has no operator for the factorizations behind a stable dense matrix, nor for a matrix exponential. In the copy
    the matrices of LinearRNN and ContinuousRNN are numbers, a LinearRNN in continuous time is its exact step of the
    layer's own dt in discrete time (so that it takes no `dt`), and weights that `holdfast.stabilize` parametrized are
    plain.

    Args:
        model: any module; it may hold layers of ours anywhere.

    Returns:
        the copy, in evaluation mode and without gradients; `model` stays as it was.

    Raises:
        ArgumentError: what is not a module.

    Example:
        >>> import torch, holdfast
        >>> layer, x = holdfast.nn.LinearRNN(1, 4), torch.randn(2, 5, 1)
        >>> copied = holdfast.nn.exportable(layer)
        >>> torch.allclose(copied(x)[0], layer(x)[0], atol=1e-5), copied.training
        (True, False)
    """
    settled = copy.deepcopy(model).eval().requires_grad_(False)
    for module in list(settled.modules()):
        if isinstance(module, AbstractRecurrent):
            module._settle_()
        if parametrize.is_parametrized(module):
            for name in list(module.parametrizations):  # type: ignore[arg-type]
                parametrize.remove_parametrizations(module, name, leave_parametrized=True)
    return settled.requires_grad_(False)
