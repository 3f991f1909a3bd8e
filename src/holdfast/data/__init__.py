"""Data sets: where they lie on this machine, how they are read, and batches of them for training.

`_base.py` says what a task is, `_tasks.py` lists all of them by name. Generated: `_functional.py`, `_teacher.py`,
`_recall.py`, `_lotka_volterra.py`, from the random numbers of `_draws.py`. Images: `_mnist.py`, `_cifar10.py`, as sequences
by `_images.py`. Text: `_text.py`, `_wikitext.py`, as windows of tokens. Reviews: `_polarity.py`, `_imdb.py`, as padded
sequences by `_reviews.py`. The user's own: `_series.py`, from tables with time stamps and gaps by `_table.py` and
`_stamps.py`, `_arrays.py`; `_files.py` reads whole files and unpacks archives,
`_download.py` says where files lie and fetches what is missing.
"""

from holdfast.data._arrays import ArrayTask
from holdfast.data._base import AbstractTask, Batch, Space
from holdfast.data._download import SETS, MissingDataError, data_root, find_sets
from holdfast.data._mnist import LabelledImages, mnist
from holdfast.data._table import Series, read_series
from holdfast.data._tasks import TASKS, load_task

__all__ = [
    "SETS",
    "TASKS",
    "AbstractTask",
    "ArrayTask",
    "Batch",
    "LabelledImages",
    "MissingDataError",
    "Series",
    "Space",
    "data_root",
    "find_sets",
    "load_task",
    "mnist",
    "read_series",
]
