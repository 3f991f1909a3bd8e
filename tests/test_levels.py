"""The order of the code: a file imports only from lower levels, and from its own folder."""

import ast
from functools import cache
from pathlib import Path

import pytest

import holdfast
import holdfast_papers

LIBRARY, PAPERS = (Path(package.__file__).parent for package in (holdfast, holdfast_papers))
LEVELS = {
    "errors": 0,
    "_types": 0,
    "_words": 0,
    "_factories": 0.1,
    "_files": 0.2,
    "_readers": 0.1,
    "_arguments": 0.2,
    "_codec": 0.3,
    "figures": 0.3,  # in L0 with the errors that it raises
    "_drawing": 0.4,
    "_record": 0.5,
    "_provenance": 0.5,
    "_page": 0.5,
    "laws": 1,
    "parameterizations": 1,
    "kernels": 2,
    "data": 2,
    "nn": 3,
    "memory": 4,
    "approximate": 4,
    "decay": 5,
    "stability": 5,
    "training": 6,
    "diagnosis": 7,
    "integrations": 7,
    "cli": 8,
    "__main__": 9,
}
# the second distribution: its files may import all of the library, and its own lower levels
PAPERS_LEVELS = {
    "papers": 0,
    "_manifest": 0,
    "pages": 0,
    "results": 0.1,
    "constructions": 1,
    "reconstruct": 1,
    "experiments": 2,
    "execution": 3,
    "report": 3,
    "benchmarks": 3,
    "cli": 4,
}
ALL_LEVELS = {LIBRARY: LEVELS, PAPERS: PAPERS_LEVELS}


def files_of(source):
    return sorted(p for p in source.rglob("*.py") if p != source / "__init__.py")


FILES = [path for source in ALL_LEVELS for path in files_of(source)]


def source_of(path):
    return next(source for source in ALL_LEVELS if path.is_relative_to(source))


def shown(path):
    return str(path.relative_to(source_of(path).parent))


@cache
def parsed(path):
    return ast.parse(path.read_text())


def part(path):
    return path.relative_to(source_of(path)).parts[0].removesuffix(".py")


def imported_parts(tree, package):
    """First names below `package` that a file imports, at module level or inside functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            if node.module == package:
                yield from (alias.name for alias in node.names)
            elif node.module and node.module.startswith(f"{package}."):
                yield node.module.split(".")[1]
        elif isinstance(node, ast.Import):
            for alias in node.names:
                assert alias.name != package, "import the part that is needed, not the whole package"
                if alias.name.startswith(f"{package}."):
                    yield alias.name.split(".")[1]


@pytest.mark.parametrize("path", FILES, ids=shown)
def test_file_imports_only_from_lower_levels(path):
    source, own = source_of(path), part(path)
    levels = ALL_LEVELS[source]
    assert own in levels, f"{own} has no level: add it to the levels here and to the design"
    for other in imported_parts(parsed(path), source.name):
        assert other == own or levels[other] < levels[own], f"{own} (L{levels[own]}) imports {other} (L{levels[other]})"


@pytest.mark.parametrize("path", files_of(LIBRARY), ids=shown)
def test_the_library_imports_nothing_of_the_papers(path):
    assert list(imported_parts(parsed(path), "holdfast_papers")) == []


@pytest.mark.parametrize("source", ALL_LEVELS, ids=lambda source: source.name)
def test_every_level_is_that_of_a_part_that_exists(source):
    assert set(ALL_LEVELS[source]) == {part(path) for path in files_of(source)}


def module(path):
    return ".".join(path.relative_to(source_of(path).parent).with_suffix("").parts).removesuffix(".__init__")


def imported_modules(tree, known):
    """Modules among `known` that a file loads as it is imported: what stands in a function or `TYPE_CHECKING` is left out."""
    waiting = list(tree.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                below = f"{node.module}.{alias.name}"
                yield from {below if below in known else node.module} & known
        elif isinstance(node, ast.Import):
            yield from {alias.name for alias in node.names} & known
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            waiting += node.orelse
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            waiting += ast.iter_child_nodes(node)


def find_cycle(graph):
    """A path of modules that ends where it began, or nothing."""
    done = set()

    def walk(name, path):
        if name in path:
            return [*path[path.index(name) :], name]
        if name in done:
            return []
        done.add(name)
        found = (walk(other, [*path, name]) for other in sorted(graph.get(name, ())))
        return next(filter(None, found), [])

    return next(filter(None, (walk(name, []) for name in sorted(graph))), [])


def test_no_module_imports_itself_through_others():
    known = {module(path) for path in FILES}
    graph = {module(path): set(imported_modules(parsed(path), known)) for path in FILES}
    assert find_cycle(graph) == []


def test_the_search_finds_a_cycle_and_passes_what_only_looks_like_one():
    assert find_cycle({"a": {"b", "c"}, "b": {"d"}, "c": {"d"}, "d": set()}) == []
    assert find_cycle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]


def test_only_what_runs_on_import_counts_as_loaded():
    code = """
from typing import TYPE_CHECKING
from holdfast.kernels._common import library
from holdfast.kernels._common.library import status
if TYPE_CHECKING:
    from holdfast import nn
def late():
    from holdfast import cli
"""
    known = {"holdfast.kernels", "holdfast.kernels._common.library", "holdfast.nn", "holdfast.cli"}
    assert set(imported_modules(ast.parse(code), known)) == {"holdfast.kernels._common.library"}


def test_the_check_sees_an_import_that_turns_back():
    tree = ast.parse("def f():\n    from holdfast.cli import doctor\n")
    assert list(imported_parts(tree, "holdfast")) == ["cli"]


FREE = {"nn", "cli"}  # these build layers; all others ask a layer what it is


@pytest.mark.parametrize("path", [p for p in files_of(LIBRARY) if part(p) not in FREE], ids=shown)
def test_no_layer_class_is_named_outside_nn(path):
    assert names_in(path) & set(holdfast.nn.LAYERS) == set(), (
        "let the layer say what is needed of it (nn/_described.py)"
    )


def names_in(path):
    """The names that the code uses or imports; docstrings, comments and messages may name a layer."""
    nodes = [node for node in ast.walk(parsed(path)) if isinstance(node, ast.Name | ast.alias)]
    return {word for node in nodes for word in (node.id if isinstance(node, ast.Name) else node.name).split(".")}
