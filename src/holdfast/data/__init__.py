"""Data sets: where they lie on this machine, and how to read them."""

from holdfast.data.download import MissingDataError
from holdfast.data.mnist import LabelledImages, mnist
from holdfast.data.root import SETS, data_root, find_sets

__all__ = ["SETS", "LabelledImages", "MissingDataError", "data_root", "find_sets", "mnist"]
