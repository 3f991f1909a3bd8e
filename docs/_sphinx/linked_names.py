"""Names in Markdown pages become links: `holdfast.fit_decay` to the API, `examples/stream.py` to the gallery."""

from __future__ import annotations

import re
from pathlib import Path

from sphinx.application import Sphinx

FENCE = re.compile(r"^(```.*?^```|:::.*?^:::)", re.DOTALL | re.MULTILINE)
REWRITTEN = (
    # a link that leaves docs/ works on a host of the repository; on the site it is the file's name
    (re.compile(r"\[[^\]]+\]\(\.\./([^)]+)\)"), r"`\1`"),
    (re.compile(r"(?<![}`])`examples/(\w+)\.py`"), r"{doc}`examples/\1.py <gallery/\1>`"),
    (re.compile(r"(?<![}`\[])`(holdfast(?:\.\w+)+)`(?!`)"), r"{py:obj}`\1`"),
)


def link(app: Sphinx, page: str, source: list[str]) -> None:
    """Writes each name outside of code blocks as a reference."""
    if Path(app.env.doc2path(page)).suffix != ".md":
        return
    parts = FENCE.split(source[0])
    for pattern, reference in REWRITTEN:
        parts[::2] = [pattern.sub(reference, part) for part in parts[::2]]
    source[0] = "".join(parts)


def setup(app: Sphinx) -> dict[str, bool]:
    """Reads every page through `link`."""
    app.connect("source-read", link)
    return {"parallel_read_safe": True}
