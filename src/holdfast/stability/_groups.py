"""parameter_groups: learning rates and weight decay by what a weight does for memory."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any, Literal

from torch import nn

from holdfast._arguments import checked
from holdfast.errors import ArgumentError, listed
from holdfast.nn import RecurrenceView, recurrences
from holdfast.nn._views.view import belongs
from holdfast.stability._movement import memory_parameters
from holdfast.stability._reach import RecurrentRate, recurrent_rate

Groups = list[dict[str, Any]]


@checked
def parameter_groups(
    model: nn.Module,
    *,
    lr: float,
    recurrent_lr: float | Literal["auto"] | RecurrentRate | None = None,
    weight_decay: float = 0.0,
    names: tuple[str, ...] = (),
    steps: int | None = None,
    memory: int | float | None = None,
) -> Groups:
    """Parameter groups for an optimizer: a rate for recurrent weights, and weight decay only where it leaves memory alone.

    Three groups, called by their key "name": "decayed" weights; those "exempt" from decay, which are biases, norms and other
    vectors, the gates and step sizes beside a recurrence, and what is marked `_no_weight_decay`; and "recurrent" ones,
    exempt too and with a learning rate of their own. A weight with a dict `_optim`, as S4 marks its own, has a group more
    before the recurrent ones, with the values of the dict. What is exempt is logged ("holdfast", level INFO).

    Weight decay pulls a free weight towards 0, and with it the eigenvalue or the gate to wherever 0 lies: it would change
    the memory and not the size of the model. 10,000 steps of AdamW at lr 1e-3 and weight decay 0.1 take the median time
    constant of a transformers Mamba from 109 to 6 steps where dt_proj.bias decays.

    With recurrent_lr="auto" the rate is that of `holdfast.recurrent_rate` for a cosine schedule, and each recurrence has a
    group "recurrent" of its own, in the order of the model. It holds what the rate is for: with recurrent weights the biases of
    step sizes, and instead of the matrices of an LSTM or GRU all biases that add into the gate which keeps their state.

    Args:
        model: the model; its recurrent weights are those of `holdfast.recurrences`.
        lr: learning rate of the other weights.
        recurrent_lr: learning rate of the recurrent weights; None is `lr`. "auto" follows from `steps` and `memory`; for
            another schedule or optimizer give what `holdfast.recurrent_rate` returns.
        weight_decay: weight decay of the weights that are not exempt.
        names: paths (or prefixes of paths) of weights that are recurrent in your model and not known as such.
        steps: with "auto", optimizer steps of the run.
        memory: with "auto", steps that the model is to remember.

    Returns:
        a list of dicts for an optimizer, with the keys "name", "params", "lr" and "weight_decay"; the recurrent ones
        last.

    Raises:
        ArgumentError: "auto" without `steps` and `memory`, or a name that is not a weight.

    Example:
        >>> import torch, holdfast
        >>> groups = holdfast.parameter_groups(torch.nn.GRU(1, 8), lr=1e-3, recurrent_lr=1e-4, weight_decay=0.1)
        >>> [(group["name"], group["lr"], group["weight_decay"]) for group in groups]
        [('decayed', 0.001, 0.1), ('exempt', 0.001, 0.0), ('recurrent', 0.0001, 0.0)]
    """
    if (recurrent_lr == "auto") != (steps is not None and memory is not None) or (steps is None) != (memory is None):
        raise ArgumentError(
            f"recurrent_lr='auto' needs steps= and memory=, and only it uses them; got {recurrent_lr=}, {steps=}, {memory=}"
        )
    if recurrent_lr == "auto":
        assert steps is not None and memory is not None
        recurrent_lr = recurrent_rate(model, steps=steps, memory=memory)
    views = recurrences(model)
    every = dict(model.named_parameters())
    unknown = [n for n in names if not any(belongs(path, n) for path in every)]
    if unknown:
        raise ArgumentError(f"expected names of weights ({listed(every)}), got {', '.join(unknown)}")
    rates = _rates(views, lr, recurrent_lr)
    # what only its name calls recurrent has no rate of its own: the most careful of the others
    slowest = min(rates.values(), default=lr) if isinstance(recurrent_lr, RecurrentRate) else recurrent_lr
    named = [p for path, p in every.items() if any(belongs(path, name) for name in names)]
    rates |= {id(p): lr if slowest is None else slowest for p in named}
    carrying = {id(p) for view in views for p in view.undecayed.values()}
    kinds: dict[str, dict[str, nn.Parameter]] = {"decayed": {}, "exempt": {}, "recurrent": {}}
    for path, p in every.items():
        # by identity, not by path: a tied weight has several paths and one memory
        free = id(p) in carrying or p.ndim < 2 or path.endswith("bias") or getattr(p, "_no_weight_decay", False)
        kinds["recurrent" if id(p) in rates else "exempt" if free else "decayed"][path] = p
    if weight_decay:
        _log_exempt([*kinds["exempt"], *kinds["recurrent"]])
    owners = _owners(views) if isinstance(recurrent_lr, RecurrentRate) else {}
    return _ordered(kinds, lr, rates, weight_decay, owners)


def _rates(views: Iterable[RecurrenceView], lr: float, recurrent_lr: float | RecurrentRate | None) -> dict[int, float]:
    """The learning rate of every recurrent parameter, by its id; of one that two recurrences share the smaller."""
    if not isinstance(recurrent_lr, RecurrentRate):
        own = lr if recurrent_lr is None else recurrent_lr
        return {id(p): own for view in views for weight in view.weights for p in weight.free.values()}
    parts = {part.path: part.rate for part in (recurrent_lr, *recurrent_lr.parts)}
    rates: dict[int, float] = {}
    for view in views:
        if view.path not in parts:
            raise ArgumentError(
                f"recurrent_lr: expected a rate for each recurrence, got none for {view.path or 'the model'}; call "
                "holdfast.recurrent_rate on this model"
            )
        for p in memory_parameters(view):
            # shared by two recurrences: the rate that is safe for both
            rates[id(p)] = min(parts[view.path], rates.get(id(p), parts[view.path]))
    return rates


def _owners(views: Iterable[RecurrenceView]) -> dict[int, tuple[str, ...]]:
    """The recurrences that a parameter belongs to, by its id."""
    owners: dict[int, tuple[str, ...]] = {}
    for view in views:
        for p in memory_parameters(view):
            owners[id(p)] = (*owners.get(id(p), ()), view.path)
    return owners


def _ordered(
    kinds: dict[str, dict[str, nn.Parameter]], lr: float, rates: dict[int, float], weight_decay: float,
    owners: dict[int, tuple[str, ...]],
) -> Groups:  # fmt: skip
    """Decayed, exempt, those with settings of their own, and the recurrent ones: a group for each owner, the last always."""
    groups: Groups = []
    marked: Groups = []
    for name, weights in kinds.items():
        # by whose they are and not by their rates, which follow from the weights: a resumed run makes its groups of trained
        # weights, and an optimizer's state is given back to them by their order
        for owner in dict.fromkeys(owners.get(id(p), ()) for p in weights.values()) or [()]:
            own = {path: p for path, p in weights.items() if owners.get(id(p), ()) == owner}
            rate = next((rates[id(p)] for p in own.values() if id(p) in rates), lr)
            settings = {"lr": rate, "weight_decay": weight_decay if name == "decayed" else 0.0}
            plain = [p for p in own.values() if not getattr(p, "_optim", None)]
            groups.append({"params": plain, **settings, "name": name})
            marked += _marked(own, settings, name)
    # the recurrent groups come last, where a caller can find and change them
    return [*groups[:2], *marked, *groups[2:]]


def _marked(weights: dict[str, nn.Parameter], settings: dict[str, Any], name: str) -> Groups:
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
