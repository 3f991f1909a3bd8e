"""Writes a page for each package, from its `__all__`: every public name once, where it is met first."""

from __future__ import annotations

import inspect
import re
from functools import reduce
from importlib import import_module
from pathlib import Path
from types import ModuleType

from sphinx.application import Sphinx

from public_names import modules_with_public_names


def directive(name: str, thing: object, sentence: str) -> list[str]:
    """The lines that let autodoc write about one name; a constant or module without a page has its sentence."""
    if inspect.isclass(thing):
        return [f".. autoclass:: {name}", "   :members:", ""]
    if inspect.isroutine(thing):
        return [f".. autofunction:: {name}", ""]
    if inspect.ismodule(thing):  # that directive shows nothing by itself
        return [f".. py:module:: {name}", "", f"- ``{name}``: {sentence}", ""]
    return [f".. py:data:: {name}", "", f"   {sentence}", ""]


def locate(name: str) -> object:
    """What a dotted name is to someone who writes it: a function where one hides the package of the same name."""
    first, *rest = name.split(".")
    return reduce(getattr, rest, import_module(first))


def page(package: ModuleType, pages: set[str], seen: dict[int, str], sentences: dict[str, str]) -> str:
    """The page of a package; what another page already has is a link to it."""
    # a package that shares its name with a function (`kernels.scan`) leaves links by that name to the function
    kind = "currentmodule" if callable(locate(package.__name__)) else "module"
    lines = [package.__name__, "=" * len(package.__name__), "", f".. py:{kind}:: {package.__name__}", ""]
    lines += [(inspect.getdoc(package) or "").split("\n\n")[0], ""]
    for short in package.__all__:
        name, thing = f"{package.__name__}.{short}", getattr(package, short)
        if inspect.ismodule(thing) and thing.__name__ in pages:
            lines += [f"- :doc:`{thing.__name__}`: {sentences[name]}", ""]
        elif (inspect.isclass(thing) or inspect.isroutine(thing)) and id(thing) in seen:
            lines += [f"- ``{name}`` is `{seen[id(thing)]}`.", ""]
        else:
            seen[id(thing)] = name
            lines += directive(name, thing, sentences[name])
    return "\n".join(lines) + "\n"


def write(app: Sphinx) -> None:
    """Writes all pages into `api/`; rewrites those that changed."""
    folder = Path(app.srcdir) / "api"
    folder.mkdir(exist_ok=True)
    packages = sorted(modules_with_public_names(), key=lambda package: package.__name__)
    table = (folder.parent / "api.md").read_text()
    sentences = dict(re.findall(r"^\| `(holdfast[\w.]*)` \| (.*) \|$", table, re.MULTILINE))
    names, seen = {package.__name__ for package in packages}, dict[int, str]()
    texts = {folder / f"{p.__name__}.rst": page(p, names, seen, sentences) for p in packages}
    for old in set(folder.glob("*.rst")) - set(texts):
        old.unlink()
    for path, text in texts.items():
        if not path.exists() or path.read_text() != text:
            path.write_text(text)


def setup(app: Sphinx) -> dict[str, bool]:
    """Writes the pages before Sphinx looks for them."""
    app.connect("builder-inited", write)
    return {"parallel_read_safe": True}
