"""The user's data: checked before anything is measured, read as the model is read, and the memory along them."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from holdfast.diagnosis._adapters import Fresh
from holdfast.diagnosis._forgetting import Forgetting
from holdfast.diagnosis._reading import runnable
from holdfast.errors import ArgumentError
from holdfast.memory import DataMemory, ModelError, Run, memory_on_data
from holdfast.memory._curve import NotRepeatableError
from holdfast.memory._data_runner import Runner

MAX_WIDENED_WEIGHTS = 2e7  # of which a float64 copy is run
MIN_DIFFERENCE = 3.0  # times that memory at rest and on data differ by where that needs a word
EDGE_ROWS, EDGE_STEPS = 4, 2000  # of the data along which recurrences are followed
CHANGE_ROWS, CHANGE_STEPS = 4, 256  # of the data on which weights are changed
Progress = Callable[[int, int], None]


def checked_inputs(model: Callable[..., Any], inputs: Any, lengths: Any = None) -> Tensor:
    """Inputs as a tensor with the batch first, in a dtype that the model takes; ArgumentError names what is wrong.

    Args:
        model: the user's.
        inputs: what was given.
        lengths: of the rows, where they are padded.
    """
    given = torch.as_tensor(inputs)
    runner = Runner.of(runnable(model) if isinstance(model, nn.Module) else model, Run(), False)
    x = runner.checked(given)
    if x.is_floating_point() and x.ndim == 2:
        x = x.unsqueeze(-1)
    if lengths is not None:
        runner.row_lengths(x, torch.as_tensor(lengths))
    if x.shape[1] > 1 and torch.equal(x, x[:1, :1].expand_as(x)):
        raise ArgumentError(
            "inputs must not all be equal, since the measurement exchanges one for another; give inputs that differ"
        )
    return x


def measure_on_data(
    model: Callable[..., Any], inputs: Tensor, lengths: Tensor | None, seed: int, progress: Progress
) -> DataMemory:
    """How long the user's model keeps an input of these data, in float64 where a copy runs in it.

    Args:
        model: the user's; a module is copied.
        inputs: as `checked_inputs` gave them.
        lengths: of the rows, where they are padded.
        seed: of places and exchanges.
        progress: called as `progress(done, total)`.
    """
    if not isinstance(model, nn.Module):
        return memory_on_data(model, inputs, lengths=lengths, seed=seed, progress=progress)
    own = runnable(copy.deepcopy(model)).eval()
    double = sum(p.numel() for p in own.parameters()) <= MAX_WIDENED_WEIGHTS

    def run(subject: nn.Module, wide: bool) -> DataMemory:
        return memory_on_data(subject, inputs, lengths=lengths, double=wide, seed=seed, progress=progress)

    def measured(subject: nn.Module) -> DataMemory:
        try:
            return run(subject, double)
        except NotRepeatableError:
            raise
        except ModelError:  # a model may not run in float64
            return run(subject, False)

    try:
        return measured(own)
    except NotRepeatableError:  # it keeps a state between calls
        return measured(Fresh(own))


def difference(memory: Sequence[Forgetting], found: DataMemory | None) -> str | None:
    """One sentence on what it means that memory at rest and on data differ; None where they are near each other.

    Args:
        memory: that at rest.
        found: the memory on data.
    """
    rest = next((one for one in memory if one.kind == "impulse" and one.way == "ahead"), None)
    if rest is None or found is None or not len(found.shares) or rest.curve.status == "not finite":
        return None
    # what is not gone at the end is known to last so long at least
    here, longer = (float(rest.curve.time[-1]), True) if rest.steps is None else (rest.steps, False)
    there, endless = float(min(found.steps, found.lags[-1])), math.isinf(found.steps)
    if not longer and there >= MIN_DIFFERENCE * max(here, 1.0):
        return (
            f"On your data it keeps an input {'more than ' if endless else ''}{there / max(here, 1.0):.2g} times as long as at "
            "rest: your inputs hold its gates or units where it forgets more slowly. For inputs like yours trust the number on "
            "data; the one at rest holds if only zeros follow."
        )
    if not endless and here >= MIN_DIFFERENCE * max(there, 1.0):
        times = f"{'more than ' if longer else ''}{here / max(there, 1.0):.2g} times as long at rest"
        return (
            f"It would keep an input {'forever at rest' if math.isinf(here) else times}: on your data the inputs that "
            "follow overwrite it. For inputs like yours trust the number on data; the one at rest holds if only zeros follow."
        )
    return None
