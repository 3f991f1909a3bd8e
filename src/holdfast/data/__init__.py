"""Data sets: where they lie on this machine, and how to read them."""

from holdfast.data.root import SETS, data_root, find_sets

__all__ = ["SETS", "data_root", "find_sets"]
