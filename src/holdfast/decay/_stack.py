"""How fast a stack of recurrences forgets for t -> inf, from its weights."""

from __future__ import annotations

import math

from torch import nn

from holdfast._arguments import checked
from holdfast.errors import ArgumentError
from holdfast.memory.closed_form import step_eigenvalues
from holdfast.nn import AbstractRecurrent, recurrences


@checked
def stack_rate(model: nn.Module, *, input_rate: float = math.inf) -> float:
    """The rate at which outputs settle, per step: the smallest of the layers' own rates and of the input's.

    A layer's own rate is -log of the largest modulus of its eigenvalues (ssm, Prop. 3.11; the paper promises the input's
    rate whatever the layer is). Lipschitz functions between layers change no rate (Prop. 3.12), so that a stack has the
    smallest of all (Thm 3.13). 0 or below where a layer does not decay. Reached for t -> inf: layers with equal rates make
    powers of t before.

    Args:
        model: a layer whose state moves linearly, or a stack of such layers with memoryless functions between them.
        input_rate: c0 of an input that settles like e^(-c0 t); inf for one that is constant from some time on.
    """
    layers = [view.module for view in recurrences(model) if isinstance(view.module, AbstractRecurrent)]
    found = [step_eigenvalues(layer) for layer in layers]
    if not layers or any(lam is None for lam in found):
        which = next((type(la).__name__ for la, lam in zip(layers, found, strict=True) if lam is None), "none")
        raise ArgumentError(
            f"model: needs holdfast layers whose states move linearly, came {type(model).__name__} with {which} of them; "
            "fit_decay measures the rate of any model"
        )
    if not input_rate >= 0:
        raise ArgumentError(f"input_rate is a rate of decay from 0 on, came {input_rate!r}")
    radius = max(float(lam.abs().max()) for lam in found if lam is not None)
    return min(input_rate, 0.0 - math.log(radius) if radius > 0 else math.inf)
