"""Errors that holdfast raises for a mistake of the caller or of the world; all share one base class."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

SHOWN = 20  # names that an error lists; more fill a screen and hide what was asked


class HoldfastError(Exception):
    """Base of every error that holdfast raises on purpose."""


class ArgumentError(HoldfastError, ValueError):
    """An argument has a wrong value; the text says what was expected, what was given and what to do."""


class ShapeError(ArgumentError):
    """A tensor has a wrong shape."""


class DtypeError(ArgumentError, TypeError):
    """A tensor has a dtype that the function does not take."""


class RangeError(ArgumentError):
    """A value lies outside the set that a parameterization or a law can represent.

    Args:
        text: the message.
        names_allow_change: whether the text names stabilize's `allow_change` as a remedy already.
    """

    def __init__(self, text: str = "", names_allow_change: bool = False) -> None:
        super().__init__(text)
        self.names_allow_change = names_allow_change


class UnknownNameError(ArgumentError, KeyError):
    """A name is not in a registry; the text lists the known ones, nearest first, and counts those past 20."""

    def __str__(self) -> str:
        return str(self.args[0])  # KeyError would show the repr of the text


class BackendError(HoldfastError, RuntimeError):
    """A backend or package that was requested is not installed; the text says how to get it."""


class OutOfMemoryError(HoldfastError, MemoryError):
    """A kernel could not allocate its results or its workspace; the text says how many bytes it requested."""


class DamagedResultError(HoldfastError, OSError):
    """A saved result was truncated or altered; the text names the file."""


def listed(names: Iterable[str]) -> str:
    """The names in one line, those past 20 as a number."""
    every = list(names)
    more = f" and {len(every) - SHOWN} more" if len(every) > SHOWN else ""
    return ", ".join(every[:SHOWN]) + more


def unknown_name(kind: str, name: object, known: Iterable[str]) -> UnknownNameError:
    """Makes the error for `name`, which is none of the `known` names of `kind`."""
    names = list(known)
    near = difflib.get_close_matches(str(name).lower(), names, n=len(names), cutoff=0.5)
    ordered = near + sorted(set(names) - set(near))
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return UnknownNameError(f"unknown {kind} {name!r}.{hint} Known: {listed(ordered)}.")
