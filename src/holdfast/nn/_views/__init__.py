"""`recurrences(model)`: the one walk over a model's modules that looks for recurrences, and their views.

`view.py` is what a view says, `rest.py` how a state moves: the one solver of where it rests, and its steps on data; `reads.py`
what recurrences read there, `families/` which modules are recurrences. `step_function.py` views unknown recurrences by
its Jacobian, `stated.py` a weight that its user calls recurrent.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from holdfast.errors import ArgumentError
from holdfast.nn._views.families import every_family
from holdfast.nn._views.step_function import StepFunction, stateful_view
from holdfast.nn._views.view import RecurrenceView

_FAMILIES = every_family()


def recurrences(model: nn.Module) -> tuple[RecurrenceView, ...]:
    """The recurrences of a model, one view each, in the order of its modules.

    Known: holdfast's layers; torch's RNN, GRU, LSTM, a view for each layer and direction, and their cells; Mamba, Mamba-2,
    RWKV and RecurrentGemma of transformers; S4D and S5 of other libraries, by all of their weights. A model of none of
    these that obeys `model(x, state) -> (y, state)` on (batch, time, features) has a view by the Jacobian of its step;
    any other recurrence its user describes by `holdfast.nn.StepFunction`.

    Args:
        model: any module; it is left as it was. Views read its weights as they are when they are asked.

    Returns:
        one RecurrenceView per recurrence: path, kind, weights, `time_constants()`, `set_time_constants(...)`.

    Example:
        >>> import torch, holdfast
        >>> [view.path for view in holdfast.recurrences(torch.nn.LSTM(1, 8, num_layers=2))]
        ['weight_hh_l0', 'weight_hh_l1']
    """
    if not isinstance(model, nn.Module):
        raise ArgumentError(f"model must be an nn.Module, got {model!r}; build one first, as nn.RNN(1, 8)")
    views: list[RecurrenceView] = []
    inside: set[nn.Module] = set()  # of what was described by its step as a whole
    for path, module in model.named_modules():
        if module not in inside:
            views += _views_of(path, module)
        if isinstance(module, StepFunction):
            inside.update(module.modules())
    if not views and (view := stateful_view(model)) is not None:
        views.append(view)
    return tuple(views)


def _views_of(path: str, module: nn.Module) -> Sequence[RecurrenceView]:
    if isinstance(module, StepFunction):
        return [module.view(path)]
    return next((views for recognise in _FAMILIES if (views := recognise(path, module))), [])
