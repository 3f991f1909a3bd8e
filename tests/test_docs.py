"""The documentation names only what exists."""

import ast
import importlib
import re

import pytest

from public_names import SOURCES, modules_with_public_names
from reader import PAGES, ROOT


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
    for name in re.findall(r"`(holdfast(?:_papers)?(?:\.\w+)+)(?:\([^`]*\))?`", page.read_text()):
        resolve(name)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_every_link_and_test_on_the_page_exists(page):
    text = page.read_text()
    for target in re.findall(r"\]\(([^)#:]+)\)", text):
        assert (page.parent / target).exists(), target
    for file, test in re.findall(r"`((?:papers/)?tests/[\w/]+\.py)::(\w+)`", text):
        assert f"def {test}(" in (ROOT / file).read_text(), f"{file}::{test}"


@pytest.mark.parametrize("package", modules_with_public_names(), ids=lambda m: m.__name__)
def test_api_page_lists_exactly_the_public_names_of_the_package(package):
    row = rf"^\| `{re.escape(package.__name__)}\.(\w+)` \| \S.* \|$"
    assert re.findall(row, (ROOT / "docs/api.md").read_text(), re.MULTILINE) == list(package.__all__)


def test_api_page_has_no_row_beyond_the_public_names():
    rows = re.findall(r"^\| `", (ROOT / "docs/api.md").read_text(), re.MULTILINE)
    assert len(rows) == sum(len(package.__all__) for package in modules_with_public_names())


PACKAGES = sorted(p.parent for source in SOURCES for p in source.rglob("__init__.py"))


@pytest.mark.parametrize("folder", PACKAGES, ids=lambda p: p.name)
def test_a_package_maps_files_that_it_has_and_a_large_one_all_of_them(folder):
    text = ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) or ""
    named = set(re.findall(r"`(\w+\.py)`", text))
    there = {p.name for p in folder.glob("*.py")} - {"__init__.py"}
    assert named <= {p.name for p in folder.rglob("*.py")}, named
    # a family (one file per layer, law, command, experiment, benchmark) is a list already
    if len(there) > 6 and folder.name not in FAMILIES:
        assert there <= named, there - named


FAMILIES = {
    "holdfast",
    "holdfast_papers",
    "nn",
    "families",
    "laws",
    "parameterizations",
    "cli",
    "cases",
    "peers",
    "iat",
    "ssm",
    "stable",
    "linrec",
}


def test_each_way_to_extend_is_shown_in_under_60_lines():
    text = (ROOT / "docs/extend.md").read_text()
    parts = re.findall(r"^## An? (\w+)\n(.*?)(?=^## |\Z)", text, re.DOTALL | re.MULTILINE)
    assert sorted(name for name, _ in parts) == ["experiment", "kernel", "layer", "parameterization", "task"]
    for name, part in parts:
        (code,) = re.findall(r"^```python\n(.*?)^```", part, re.DOTALL | re.MULTILINE)
        assert 0 < len(code.splitlines()) < 60, name


KIND = re.compile(r"(?:Def\.|Thm|Prop\.|Lemma|Remark) [A-Z]?\.?\d+(?:\.\d+)?")


def statements(text):
    """Definitions, theorems, propositions, lemmas and remarks that a text names, as "stable Thm 3.4"."""
    parts = re.split(r"\b(iat|ssm|stable|linrec), ", re.sub(r"\s+", " ", text))[1:]
    return {
        f"{paper} {found}" for paper, part in zip(parts[::2], parts[1::2], strict=True) for found in KIND.findall(part)
    }


def test_every_statement_of_the_map_is_on_the_theory_page():
    rows = (ROOT / "docs/paper_map.md").read_text().splitlines()
    asked = set().union(*(statements(row.split("|")[1]) for row in rows if row.startswith("| ")))
    assert len(asked) > 20
    assert asked <= statements((ROOT / "docs/theory.md").read_text())


# one page for each task, then the guides that lead through one
HOW_TO = (
    "diverges forgets cpu gpu deploy frameworks choose learn_memory reproduce extend "
    "diagnose task memory stability build training data constructions"
)


@pytest.mark.parametrize("name", HOW_TO.split())
def test_a_how_to_page_has_problem_code_what_is_seen_and_limits(name):
    text = (ROOT / f"docs/{name}.md").read_text()
    parts = [
        text.find(part)
        for part in ("\n**Problem.** ", "```python\n", "What you see", "When it does not help", "\n```\n")
    ]
    assert min(parts) > 0, parts
    assert parts[0] < min(parts[1:])


def test_the_tasks_of_the_site_are_the_how_to_pages():
    tasks = re.search(r":caption: Tasks\n\n(.*?)```", (ROOT / "docs/index.md").read_text(), re.DOTALL)[1].split()
    assert tasks[0] == "start"
    assert sorted(tasks[1:]) == sorted(HOW_TO.split()[:10])
