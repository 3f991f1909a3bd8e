"""Every task by its name."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from holdfast.data.arrays import ArrayTask
from holdfast.data.base import AbstractTask
from holdfast.errors import ArgumentError, unknown_name

TASKS: dict[str, Callable[..., AbstractTask]] = {
    "arrays": ArrayTask,
}


def load_task(name: str, **options: Any) -> AbstractTask:
    """The task called `name`, made with its options: `load_task("mnist", order="permuted")`.

    Args:
        name: a key of TASKS, such as "mnist", "recall" or "text".
        options: the arguments of that task; an unknown one is refused with the nearest known one.
    """
    if name not in TASKS:
        raise unknown_name("task", name, TASKS)
    known = inspect.signature(TASKS[name]).parameters
    for option in options:
        if option not in known:
            raise unknown_name(f"option of the task {name!r}", option, known)
    missing = [p.name for p in known.values() if p.default is inspect.Parameter.empty and p.name not in options]
    if missing:
        raise ArgumentError(f"the task {name!r} needs {', '.join(missing)}; load_task({name!r}, {missing[0]}=...)")
    return TASKS[name](**options)
