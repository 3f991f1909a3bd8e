"""Files beside an experiment of the user's own that it imports: found, counted as its code, and loaded as they are now.

Neighbours come after everything that is installed, so that a file called like a module of Python's stands in no one's
way. They are compiled from their text each time: Python's cache may be stale for an edit within a second.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib.util
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def source_of(path: Path, content: bytes) -> str:
    """A checksum of an experiment's file and of every neighbour that it imports, directly or through another.

    Args:
        path: of the experiment's file.
        content: its bytes.
    """
    found: dict[str, bytes] = {}
    waiting = [content]
    while waiting:
        for name in _imported(waiting.pop()):
            for file in _files(path.parent, name):
                key = file.relative_to(path.parent).as_posix()
                if key not in found and file != path:
                    found[key] = file.read_bytes()
                    waiting.append(found[key])
    whole = hashlib.sha256(content)
    for key in sorted(found):
        whole.update(f"\n{key}\n{hashlib.sha256(found[key]).hexdigest()}".encode())
    return whole.hexdigest()[:16]


def make_importable(folder: Path) -> None:
    """Lets files in `folder` be imported from now on; those loaded before, from there or from another, are read again."""
    kinds = (_Fresh, _Folder)
    ours = [name for name, module in sys.modules.items() if isinstance(getattr(module, "__loader__", None), kinds)]
    for name in ours:
        del sys.modules[name]  # whoever imported it keeps it
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, _Neighbours)]
    sys.meta_path.insert(0, _Neighbours(folder))


def beside(folder: Path, function: Callable[P, R]) -> Callable[P, R]:
    """`function`, whose own imports find the files in `folder`, whatever was loaded since it was defined."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if not any(isinstance(finder, _Neighbours) and finder.folder == folder for finder in sys.meta_path):
            make_importable(folder)
        return function(*args, **kwargs)

    return call


class _Fresh(SourceFileLoader):
    """Compiles the file as it is now, and leaves no cache beside it."""

    def get_code(self, fullname: str) -> CodeType | None:
        path = self.get_filename(fullname)
        return self.source_to_code(self.get_data(path), path)


class _Folder(Loader):
    """A package without an __init__.py: nothing to run."""

    def exec_module(self, module: ModuleType) -> None:
        pass


class _Neighbours(MetaPathFinder):
    """Finds what lies in a folder and, by its name, is nothing that is installed; and all that is inside of it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        name = fullname.rpartition(".")[2]
        places = [self.folder] if path is None else [Path(place) for place in path]
        for place in places:
            if self.folder in (place, *place.parents) and (path is not None or not _is_installed(name, self.folder)):
                spec = _spec(fullname, place, name)
                if spec is not None:
                    return spec
        return None


def _spec(fullname: str, place: Path, name: str) -> ModuleSpec | None:
    """The package, file or folder of files called `name` in `place`, in Python's own order."""
    for file in (place / name / "__init__.py", place / f"{name}.py"):
        if file.is_file():
            inside = [str(file.parent)] if file.name == "__init__.py" else None
            loader = _Fresh(fullname, str(file))
            return importlib.util.spec_from_file_location(
                fullname, file, loader=loader, submodule_search_locations=inside
            )
    if not _holds_code(place / name):
        return None
    spec = ModuleSpec(fullname, _Folder(), is_package=True)
    spec.submodule_search_locations = [str(place / name)]
    return spec


def _imported(content: bytes) -> Iterator[str]:
    """First names of the modules that a text imports, anywhere in it; none where it is not Python."""
    try:
        tree = ast.parse(content)
    except (SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]


def _files(folder: Path, name: str) -> list[Path]:
    """The neighbour of that name, unless something installed has the name: one file, or all files of a package."""
    package, alone = folder / name, folder / f"{name}.py"
    if not (package / "__init__.py").is_file() and alone.is_file():
        files = [alone]
    else:
        files = sorted(package.rglob("*.py")) if _holds_code(package) else []
    return [] if not files or _is_installed(name, folder) else files


def _holds_code(folder: Path) -> bool:
    return folder.is_dir() and any(folder.rglob("*.py"))


def _is_installed(name: str, folder: Path) -> bool:
    """Whether a module of that name is Python's or installed; what lies in the working folder (`python -m`) is neither."""
    passed_over = {folder.resolve(), Path.cwd()}
    places = [place for place in sys.path if Path(place).resolve() not in passed_over]
    return name in sys.stdlib_module_names or PathFinder.find_spec(name, places) is not None
