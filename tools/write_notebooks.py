"""Writes notebooks/ from the examples that are written in cells (`# %%`): `python tools/write_notebooks.py`.

Each cell runs once, and what it printed and drew is kept in the notebook. A notebook holds nothing else that its example does
not: `tests/test_notebooks.py` compares them. `--keep` leaves outputs as they are and writes the text alone.
"""

from __future__ import annotations

import ast
import base64
import contextlib
import io
import json
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
# the three tasks of the README
NOTEBOOKS = {
    "train_diagnose_fix": "diagnose_lstm",
    "fix_diverging": "fix_diverging_ssm",
    "measure_memory": "memory_of_a_model",
}
Outputs = list[list[dict[str, Any]]]


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


def notebook(example: str, outputs: Outputs | None = None) -> str:
    """An example as a notebook of format 4, with the outputs of each code cell where they are given."""
    parts: list[dict[str, Any]] = []
    given = iter(outputs or [])
    for number, (kind, content) in enumerate(cells((ROOT / "examples" / f"{example}.py").read_text())):
        own = {"execution_count": None, "outputs": next(given, [])} if kind == "code" else {}
        lines = content.splitlines(keepends=True)
        parts.append({"cell_type": kind, "id": f"cell-{number}", "metadata": {}, "source": lines, **own})
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    whole = {"cells": parts, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(whole, indent=1, ensure_ascii=False) + "\n"


def kept_outputs(name: str) -> Outputs:
    """The outputs that a notebook holds, cell by cell; none where it is missing."""
    path = ROOT / "notebooks" / f"{name}.ipynb"
    if not path.exists():
        return []
    return [cell["outputs"] for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]


def run(example: str) -> Outputs:
    """What each cell of an example prints and draws, the cells run one after the other in one namespace."""
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    shared: dict[str, Any] = {"__name__": "__main__"}
    found: Outputs = []
    plt.show = lambda *args, **kwargs: None  # figures are taken after the cell
    for kind, content in cells((ROOT / "examples" / f"{example}.py").read_text()):
        if kind != "code":
            continue
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(content, example, "exec"), shared)
        text = printed.getvalue().splitlines(keepends=True)
        outputs: list[dict[str, Any]] = [{"name": "stdout", "output_type": "stream", "text": text}] if text else []
        for number in plt.get_fignums():
            outputs.append(_picture(plt.figure(number)))
        plt.close("all")
        found.append(outputs)
    return found


def _picture(figure: Any) -> dict[str, Any]:
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=80)
    data = {"image/png": base64.b64encode(file.getvalue()).decode(), "text/plain": ["<Figure>"]}
    return {"data": data, "metadata": {}, "output_type": "display_data"}


def main() -> None:
    """Writes every notebook, or those named."""
    sys.argv, keep, chosen = sys.argv[:1], "--keep" in sys.argv, [a for a in sys.argv[1:] if not a.startswith("-")]
    for name in chosen or NOTEBOOKS:
        outputs = kept_outputs(name) if keep else run(NOTEBOOKS[name])
        (ROOT / "notebooks" / f"{name}.ipynb").write_text(notebook(NOTEBOOKS[name], outputs))


if __name__ == "__main__":
    main()
