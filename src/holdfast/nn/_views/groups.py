"""parameter_groups: learning rates and weight decay by what a weight does for memory."""

from __future__ import annotations

import logging
import re
from typing import Any

from torch import nn

from holdfast._arguments import checked
from holdfast.errors import ArgumentError, listed
from holdfast.nn._views import recurrences


@checked
def parameter_groups(
    model: nn.Module,
    *,
    lr: float,
    recurrent_lr: float | None = None,
    weight_decay: float = 0.0,
    names: tuple[str, ...] = (),
) -> list[dict[str, Any]]:
    """Groups for an optimizer that leave memory alone: weight decay for matrices that carry none, and for nothing else.

    Three groups, called by their key "name": "decayed" weights; those "exempt" from decay, which are biases, norms and other
    vectors, the gates and step sizes beside a recurrence, and what is marked `_no_weight_decay`; and "recurrent" ones,
    exempt too and with a learning rate of their own. A weight with a dict `_optim`, as S4 marks its own, has a group more
    before the last, with the values of the dict. What is exempt is logged ("holdfast", level INFO).

    Weight decay pulls a free weight towards 0, and with it the eigenvalue or the gate to wherever 0 lies: it would change
    the memory and not the size of the model. 10,000 steps of AdamW at lr 1e-3 and weight decay 0.1 take the median time
    constant of a transformers Mamba from 109 to 6 steps where dt_proj.bias decays.

    Args:
        model: the model; its recurrent weights are those of `holdfast.recurrences`.
        lr: learning rate of the other weights.
        recurrent_lr: learning rate of the recurrent weights; None is `lr`.
        weight_decay: weight decay of the weights that are not exempt.
        names: paths (or prefixes of paths) of weights that are recurrent in your model and not known as such.
    """
    views = recurrences(model)
    every = dict(model.named_parameters())
    unknown = [n for n in names if not any(belongs(path, n) for path in every)]
    if unknown:
        raise ArgumentError(f"the model has no weight called {', '.join(unknown)}; its weights: {listed(every)}")
    moving = {id(p) for view in views for weight in view.weights for p in weight.free.values()}
    moving |= {id(p) for path, p in every.items() if any(belongs(path, name) for name in names)}
    carrying = {id(p) for view in views for p in view.undecayed.values()}
    named: dict[str, dict[str, nn.Parameter]] = {"decayed": {}, "exempt": {}, "recurrent": {}}
    for path, p in every.items():
        free = id(p) in carrying or p.ndim < 2 or path.endswith("bias") or getattr(p, "_no_weight_decay", False)
        named["recurrent" if id(p) in moving else "exempt" if free else "decayed"][path] = p
    own = lr if recurrent_lr is None else recurrent_lr
    groups, marked = [], []
    for name, weights in named.items():
        settings = {
            "lr": own if name == "recurrent" else lr,
            "weight_decay": weight_decay if name == "decayed" else 0.0,
        }
        plain = [p for p in weights.values() if not getattr(p, "_optim", None)]
        groups.append({"params": plain, **settings, "name": name})
        marked += _marked(weights, settings, name)
    if weight_decay:
        _log_exempt([*named["exempt"], *named["recurrent"]])
    return [*groups[:2], *marked, groups[2]]


def _marked(weights: dict[str, nn.Parameter], settings: dict[str, Any], name: str) -> list[dict[str, Any]]:
    """A group for each setting that weights ask for by `_optim`; a weight decay that it does not name stays the group's."""
    groups: dict[tuple[tuple[str, Any], ...], dict[str, Any]] = {}
    for p in weights.values():
        marks = getattr(p, "_optim", None)
        if marks:
            key = tuple(sorted(marks.items()))
            groups.setdefault(key, {"params": [], **settings, **marks, "name": name})["params"].append(p)
    return [*groups.values()]


def _log_exempt(paths: list[str]) -> None:
    if paths:
        logging.getLogger("holdfast").info("exempt from weight decay: %s", ", ".join(paths))


def belongs(path: str, prefix: str) -> bool:
    """Whether the weight at `path` is `prefix`, lies below it, or stands behind its parametrization."""
    plain = re.sub(r"(^|\.)parametrizations\.(\w+)\.original\d*$", r"\1\2", path)
    return plain == prefix or plain.startswith(prefix + ".") or path.startswith(prefix + ".")
