"""Docstrings are plain text with `names`, indented formulas and a block `Args:`; here they become reStructuredText."""

from __future__ import annotations

import re

from sphinx.application import Sphinx

SECTION = re.compile(r"^(Args|Returns|Raises|Yields|Attributes|Example):$")
CODE = re.compile(r"(`[^`]*`)")
SPECIAL = re.compile(r"[\\*|]|(?<=\w)_(?=\W|$)")


def escaped(line: str) -> str:
    """The line with every mark that is not meant as one made harmless, names in backquotes left alone."""
    parts = CODE.split(line)
    parts[::2] = [SPECIAL.sub(r"\\\g<0>", part) for part in parts[::2]]
    return "".join(parts)


def rewrite(app: Sphinx, what: str, name: str, thing: object, options: object, lines: list[str]) -> None:
    """Turns indented blocks outside of sections into literal ones, and escapes the rest."""
    written: list[str] = []
    section = literal = example = False
    for before, line in zip(["", *lines], lines, strict=False):
        if line and not line[0].isspace():
            section, literal, example = bool(SECTION.match(line)), False, line == "Example:"
        elif line and not section and not literal and not before:
            written += [".. code-block:: text", ""]
            literal = True
        written.append(line if literal or example or SECTION.match(line) else escaped(line))
    lines[:] = written


def setup(app: Sphinx) -> dict[str, bool]:
    """Runs before napoleon reads the sections."""
    app.connect("autodoc-process-docstring", rewrite, priority=400)
    return {"parallel_read_safe": True}
