"""The order of the code: a file imports only from lower levels, and from its own folder."""

import ast
from pathlib import Path

import pytest

import holdfast

SOURCE = Path(holdfast.__file__).parent
LEVELS = {
    "errors": 0,
    "_types": 0,
    "_files": 0.2,
    "_manifest": 0.3,
    "_arrays": 0.4,
    "_readers": 0.1,
    "_arguments": 0.2,
    "figures": 0.3,  # in L0 with the errors that it raises
    "results": 0.5,  # in L0 with the errors that it raises
    "laws": 1,
    "parameterizations": 1,
    "kernels": 2,
    "data": 2,
    "nn": 3,
    "memory": 4,
    "approximate": 4,
    "reconstruct": 4,
    "decay": 5,
    "stability": 5,
    "training": 6,
    "experiments": 7,
    "execution": 8,
    "benchmarks": 8,
    "report": 8,
    "cli": 9,
}
FILES = sorted(p for p in SOURCE.rglob("*.py") if p != SOURCE / "__init__.py")


def part(path):
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imported_parts(tree):
    """First names below `holdfast` that a file imports, at module level or inside functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            if node.module == "holdfast":
                yield from (alias.name for alias in node.names)
            elif node.module and node.module.startswith("holdfast."):
                yield node.module.split(".")[1]
        elif isinstance(node, ast.Import):
            for alias in node.names:
                assert alias.name != "holdfast", "import the part that is needed, not the whole package"
                if alias.name.startswith("holdfast."):
                    yield alias.name.split(".")[1]


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_file_imports_only_from_lower_levels(path):
    own = part(path)
    assert own in LEVELS, f"{own} has no level: add it to LEVELS and to the design"
    for other in imported_parts(ast.parse(path.read_text())):
        assert other == own or LEVELS[other] < LEVELS[own], f"{own} (L{LEVELS[own]}) imports {other} (L{LEVELS[other]})"


def test_the_check_sees_an_import_that_turns_back():
    tree = ast.parse("def f():\n    from holdfast.cli import doctor\n")
    assert list(imported_parts(tree)) == ["cli"]
