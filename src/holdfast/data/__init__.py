"""Data sets: where they lie on this machine, how they are read, and batches of them for training.

`base.py` says what a task is, `tasks.py` lists all of them by name. Generated: `functional.py`, `teacher.py`, `recall.py`,
`multi_recall.py`, `lotka_volterra.py`, from the random numbers of `draws.py`. Images: `mnist.py`, `cifar10.py`, as sequences
by `images.py`. Text: `text.py`, `wikitext.py`, as windows of tokens by `tokens.py`. Reviews: `polarity.py`, `imdb.py`, as
padded sequences by `reviews.py`. The user's own: `series.py`, `arrays.py`, and whole files by `files.py`. `root.py` says where
files lie; `download.py` and `archive.py` fetch what is missing, one address at a time by `fetch.py`.
"""

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
