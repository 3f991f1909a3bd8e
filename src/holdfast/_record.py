"""Record: what every measured thing that a person looks at and keeps has in common.

A result class is a frozen dataclass (`repr=False`) of `Record` that says three things of itself:

- `summary()`: one line in plain words;
- `figure()`: a `holdfast.figures.Figure`, data that say what is drawn;
- `_parts`: the dataclasses that its fields hold, which are then all that a file may build.

From these come `plot(ax)`, `to_dict()`, a short `repr`, `_repr_html_` for notebooks, and `save(path)` / `load(path)`: one
file of JSON whose first member is the checksum of the rest, with the arrays as an .npz inside. It is put in place by
one rename, nothing in it is unpickled, and sizes are checked before anything is unpacked.
"""

from __future__ import annotations

import base64
import html
import os
from pathlib import Path
from typing import Any, ClassVar, Self

from holdfast._codec import MAX_BYTES, Arrays, check_arrays, decode, encode, pack_arrays, plain, unpack_arrays
from holdfast._drawing import panels
from holdfast._files import damage, open_seal, seal, write_atomically
from holdfast._readers import describe
from holdfast.errors import ArgumentError, BackendError, DamagedResultError
from holdfast.figures import Figure

FORMAT = "holdfast record 1"
ADVICE = "Save it again, or name the file that save() wrote."


class Record:
    """Base of results that can be drawn, shown in a notebook, saved and loaded."""

    _parts: ClassVar[tuple[type, ...]] = ()

    def summary(self) -> str:
        """One line that says what was found."""
        raise NotImplementedError

    def figure(self) -> Figure:
        """What `plot` draws, as data."""
        raise NotImplementedError

    def to_dict(self) -> dict[str, Any]:
        """Every field as JSON's own types: arrays as lists, complex numbers as pairs, infinity and NaN as None."""
        fields: dict[str, Any] = plain(self, exact=False)
        return fields

    def plot(self, ax: Any = None) -> Any:
        """Draws it by matplotlib and returns the axes.

        Args:
            ax: axes to draw into, as many as `figure()` has panels; None makes new ones with pyplot.
        """
        return panels.plot(self.figure(), ax)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.summary()})"

    def _repr_html_(self) -> str:
        figure = self.figure()
        text = f"<p><b>{type(self).__name__}</b>: {html.escape(self.summary())}</p>"
        try:
            data = base64.b64encode(panels.picture(figure)).decode()
        except BackendError:
            return text
        return f'{text}<img alt="{html.escape(figure.caption)}" src="data:image/png;base64,{data}">'

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Writes everything into one file, which replaces an existing one; missing folders are created.

        Args:
            path: of the file; `.json` says what it is. Of a symbolic link, the file that it leads to is written.
        """
        file = writable_file(path)
        arrays: Arrays = {}
        record = encode(self, arrays, type(self).__name__)
        check_arrays(arrays)
        body = {"format": FORMAT, "record": record, "arrays": base64.b64encode(pack_arrays(arrays)).decode()}
        write_atomically(file.resolve(), seal(body))
        return file

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Reads back what `save` wrote; DamagedResultError, naming the file, unless every byte is as it was written.

        Args:
            path: of the file.
        """
        file = _readable_file(path, cls.__name__)
        # a link of the user's own is followed, unlike one inside a store of results
        body = open_seal(file.resolve(), FORMAT, ADVICE, most=MAX_BYTES)
        try:
            (kind,) = body["record"]
            if kind == cls.__name__:
                arrays = unpack_arrays(base64.b64decode(body["arrays"], validate=True), file, ADVICE)
                made: Self = decode(body["record"], arrays, {kind.__name__: kind for kind in (cls, *cls._parts)})
                return made
        except DamagedResultError:
            raise
        # whoever can write a file can seal it: what is inside may be anything, and raise anything
        except Exception as error:
            what = f"it does not hold a {cls.__name__} that this version reads ({type(error).__name__}: {str(error)[:200]})"
            raise DamagedResultError(damage(file, what, ADVICE)) from error
        raise ArgumentError(f"path must be the file of a saved {cls.__name__}, got a {kind} in {file}; use {kind}.load")


def writable_file(path: str | os.PathLike[str]) -> Path:
    """The path of a file to write, its folder made; ArgumentError where no file can be there."""
    file = as_path(path)
    if os.path.isdir(file):
        raise ArgumentError(f"path must be a file, got the folder {file}; write for example {file / 'result.json'}")
    try:
        file.resolve().parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        why = f"{file.parent}, which is not a folder and cannot be created ({error.strerror})"
        raise ArgumentError(f"path must be in a folder, got {why}; choose another folder") from None
    return file


def _readable_file(path: str | os.PathLike[str], kind: str) -> Path:
    file = as_path(path)
    if not os.path.exists(file):
        raise DamagedResultError(f"cannot load a {kind}: {file} does not exist; give a file that save() wrote")
    if os.path.isdir(file):
        raise ArgumentError(f"path must be the file of a saved {kind}, got the folder {file}; give a file in it")
    return file


def as_path(path: object) -> Path:
    """A path that got as text or a path; ArgumentError for anything else."""
    if not isinstance(path, (str, os.PathLike)):
        raise ArgumentError(f"path must be text or a pathlib.Path, got {describe(path)}")
    return Path(path)
