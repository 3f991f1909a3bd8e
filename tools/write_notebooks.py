"""Writes notebooks/ from the examples that are written in cells (`# %%`): `python tools/write_notebooks.py`.

A notebook holds no outputs, and nothing that its example does not: `tests/test_notebooks.py` compares them.
"""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
NOTEBOOKS = {"train_diagnose_fix": "diagnose_lstm", "measure_memory": "memory_of_a_model"}


def cells(source: str) -> list[tuple[str, str]]:
    """The title and text of an example, then for each `# %%` its comment as "markdown" and its code as "code"."""
    text = ast.get_docstring(ast.parse(source)) or ""
    title, _, rest = text.partition("\n")
    found = [("markdown", f"# {title}\n\n{rest.lstrip('=').strip()}")]
    for part in source.split("\n# %%\n")[1:]:
        comment = re.match(r"(#.*\n)*", part)
        assert comment is not None
        said = "\n".join(line.removeprefix("#").strip() for line in comment[0].splitlines())
        found += [("markdown", said), ("code", part[comment.end() :].strip())]
    return [(kind, content) for kind, content in found if content]


def notebook(example: str) -> str:
    """An example as a notebook of format 4, without outputs."""
    parts = []
    for number, (kind, content) in enumerate(cells((ROOT / "examples" / f"{example}.py").read_text())):
        own = {"execution_count": None, "outputs": []} if kind == "code" else {}
        lines = content.splitlines(keepends=True)
        parts.append({"cell_type": kind, "id": f"cell-{number}", "metadata": {}, "source": lines, **own})
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    whole = {"cells": parts, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(whole, indent=1, ensure_ascii=False) + "\n"


def main() -> None:
    """Writes every notebook."""
    for name, example in NOTEBOOKS.items():
        (ROOT / "notebooks" / f"{name}.ipynb").write_text(notebook(example))


if __name__ == "__main__":
    main()
