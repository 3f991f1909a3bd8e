"""Data sets: where they lie on this machine, how they are read, and batches of them for training."""

from holdfast.data.arrays import ArrayTask
from holdfast.data.base import AbstractTask, Batch, Space
from holdfast.data.download import MissingDataError
from holdfast.data.mnist import LabelledImages, mnist
from holdfast.data.root import SETS, data_root, find_sets
from holdfast.data.tasks import TASKS, load_task

__all__ = [
    "SETS",
    "TASKS",
    "AbstractTask",
    "ArrayTask",
    "Batch",
    "LabelledImages",
    "MissingDataError",
    "Space",
    "data_root",
    "find_sets",
    "load_task",
    "mnist",
]
