"""Which modules are recurrences: `recognise(path, module)` of each file gives the views of one module.

`holdfast_layers.py` knows ours, `torch_modules.py` torch's, `published.py` those of other libraries.

A family is known by what its module is and holds, never by a weight's name alone: the names, the shapes that fit each
other, and the class where another family has the same weights. Every file of this folder takes part.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Sequence

from torch import nn

from holdfast.nn._views.view import RecurrenceView

Recognise = Callable[[str, nn.Module], Sequence[RecurrenceView]]


def every_family() -> tuple[Recognise, ...]:
    """`recognise` of each file."""
    names = sorted(module.name for module in pkgutil.iter_modules(__path__))
    return tuple(importlib.import_module(f"{__name__}.{name}").recognise for name in names)
