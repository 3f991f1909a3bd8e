"""The documentation names only what exists."""

import importlib
import re
from pathlib import Path

import pytest

import holdfast

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("docs/*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"])


def resolve(name):
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:length]))
        except ImportError:
            continue
        for part in parts[length:]:
            found = getattr(found, part)
        return found
    raise ImportError(name)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_every_name_on_the_page_exists(page):
    for name in re.findall(r"`(holdfast(?:\.\w+)+)(?:\([^`]*\))?`", page.read_text()):
        resolve(name)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_every_link_and_test_on_the_page_exists(page):
    text = page.read_text()
    for target in re.findall(r"\]\(([^)#:]+)\)", text):
        assert (page.parent / target).exists(), target
    for file, test in re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", text):
        assert f"def {test}(" in (ROOT / file).read_text(), f"{file}::{test}"


def test_api_page_lists_exactly_the_public_names():
    listed = re.findall(r"^\| `holdfast\.(\w+)` \|", (ROOT / "docs/api.md").read_text(), re.MULTILINE)
    assert listed == list(holdfast.__all__)


def test_readme_example_runs(capsys):
    code = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL).group(1)
    exec(compile(code, "README.md", "exec"), {})
    printed = capsys.readouterr().out
    assert printed.startswith("exponential ")
    assert "DiagonalSSM(" in printed
