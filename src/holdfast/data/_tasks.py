"""Every task by its name."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from holdfast._arguments import checked
from holdfast.data._arrays import ArrayTask
from holdfast.data._base import AbstractTask
from holdfast.data._cifar10 import cifar10_task
from holdfast.data._functional import FunctionalTask
from holdfast.data._imdb import imdb_task
from holdfast.data._lotka_volterra import LotkaVolterraTask
from holdfast.data._mnist import mnist_task
from holdfast.data._polarity import polarity_task
from holdfast.data._recall import MultiRecallTask, RecallTask
from holdfast.data._series import SeriesTask
from holdfast.data._teacher import TeacherTask
from holdfast.data._text import text_task
from holdfast.data._wikitext import wikitext_2_task, wikitext_103_task
from holdfast.errors import ArgumentError, unknown_name

TASKS: dict[str, Callable[..., AbstractTask]] = {
    "functional": FunctionalTask,
    "teacher": TeacherTask,
    "recall": RecallTask,
    "multi-recall": MultiRecallTask,
    "lotka-volterra": LotkaVolterraTask,
    "mnist": mnist_task,
    "cifar10": cifar10_task,
    "wikitext-2": wikitext_2_task,
    "wikitext-103": wikitext_103_task,
    "text": text_task,
    "polarity": polarity_task,
    "imdb": imdb_task,
    "series": SeriesTask,
    "arrays": ArrayTask,
}


@checked
def load_task(name: str, **options: Any) -> AbstractTask:
    """The task called `name`, made with its options: `load_task("mnist", order="permuted")`.

    Args:
        name: a key of TASKS, such as "mnist", "recall" or "text".
        options: the arguments of that task; an unknown one is refused with the nearest known one.

    Returns:
        the task, with its splits, kinds of inputs and outputs, and batches. Those made from files read them from the
        data root, and may download them there first.

    Raises:
        UnknownNameError: an unknown task or option.
        ArgumentError: an option that is missing, or has a wrong value.
        MissingDataError: files that are missing and could not be downloaded.
        DamagedResultError: files that are damaged or cannot be read.

    Example:
        >>> import torch
        >>> from holdfast import data
        >>> task = data.load_task("functional", law="exponential", constants=[0.1], length=50)
        >>> task.batch("train", torch.arange(4)).inputs.shape
        torch.Size([4, 50, 1])
    """
    if name not in TASKS:
        raise unknown_name("task", name, TASKS)
    # before the call, so that an option is refused by name and not by a TypeError
    known = inspect.signature(TASKS[name]).parameters
    for option in options:
        if option not in known:
            raise unknown_name(f"option of the task {name!r}", option, known)
    missing = [p.name for p in known.values() if p.default is inspect.Parameter.empty and p.name not in options]
    if missing:
        raise ArgumentError(f"the task {name!r} needs {', '.join(missing)}; call load_task({name!r}, {missing[0]}=...)")
    return TASKS[name](**options)
