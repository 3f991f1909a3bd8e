"""The README.md of a saved model: what it is, and how long and how safely each of its recurrences remembers."""

from __future__ import annotations

import math

from torch import nn

from holdfast.nn._views import recurrences
from holdfast.nn._views.view import RecurrenceView

CARD = "README.md"
HEAD = "---\nlibrary_name: holdfast\ntags:\n- recurrent\n- holdfast\n---\n"


def model_card(model: nn.Module, name: str) -> str:
    """The card as Markdown, with the head that Hugging Face's hub reads.

    Margins and time constants are those of the weights as they are: of nonlinear recurrences where the state rests on
    zero input.

    Args:
        model: what is saved.
        name: of its class.
    """
    count = sum(p.numel() for p in model.parameters())
    rows = [_row(view) for view in recurrences(model)]
    text = f"{HEAD}\n# {name}\n\n{count:,} parameters. `holdfast.nn.{name}.from_pretrained(...)` reads it.\n"
    if rows:
        text += (
            "\n## Memory\n\nOf each recurrence, per step: the margin is 1 less the spectral radius (above 0 it is stable), "
            "time constants are steps to 1/e.\n\n| recurrence | kind | margin | time constants |\n| --- | --- | --- | --- |\n"
        ) + "".join(rows)
    return text


def _row(view: RecurrenceView) -> str:
    margin = view.margin()
    times = view.time_constants()
    told = "not known" if math.isnan(margin) else f"{margin:.4g}, {'stable' if margin > 0 else 'not stable'}"
    spread = f"{float(times.min()):.4g} to {float(times.max()):.4g}" if times.numel() else "not known"
    return f"| {view.path or type(view.module).__name__} | {view.kind} | {told} | {spread} |\n"
