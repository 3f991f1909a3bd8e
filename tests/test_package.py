import re
import tomllib
from pathlib import Path

import pytest

import children
import holdfast

ROOT = Path(__file__).parent.parent


HEAVY = ("scipy", "sklearn", "matplotlib", "plotly", "jinja2", "ray", "transformers", "onnx", "jax", "typer", "rich")
HEAVY += ("sympy",)  # it comes with all of torch._dynamo, which takes as long to import as torch itself


def test_import_loads_nothing_heavy_beyond_torch_and_changes_no_setting():
    code = f"""
import random, sys, torch, numpy
before = torch.get_num_threads(), torch.get_default_dtype(), random.getstate(), torch.random.get_rng_state()
loaded = set(sys.modules)
import holdfast
after = torch.get_num_threads(), torch.get_default_dtype(), random.getstate(), torch.random.get_rng_state()
assert before[:3] == after[:3] and torch.equal(before[3], after[3])
found = sorted({{name.split(".")[0] for name in set(sys.modules) - loaded}} & set({HEAVY}))
assert not found, f"importing holdfast loaded {{found}}"
from holdfast.kernels._common import library
assert library._load.cache_info().misses == 0, "importing loaded the native library"
"""
    done = children.run(code)
    assert done.returncode == 0, done.stderr


def test_public_names_exist_and_are_sorted():
    assert list(holdfast.__all__) == sorted(holdfast.__all__)
    assert all(hasattr(holdfast, name) for name in holdfast.__all__)


def test_constraints_pin_every_direct_dependency_and_torch_exactly():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = dict(line.split("==") for line in lines if line and not line.startswith("#"))
    names = {name.lower().replace("_", "-") for name in pins}
    wanted = [*project["dependencies"], *project["optional-dependencies"]["dev"]]
    for requirement in wanted:
        name = re.split(r"[>=<\[]", requirement)[0].lower()
        if name == "holdfast":
            continue  # one extra that takes in another
        assert name in names, f"{name} is not pinned in constraints.txt"
    assert pins["torch"] == "2.13.0"


def test_the_version_is_the_same_wherever_it_is_written():
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    changelog = (ROOT / "CHANGELOG.md").read_text()
    papers = tomllib.loads((ROOT / "papers/pyproject.toml").read_text())["project"]
    assert papers["version"] == version
    assert re.search(r"^version: (.*)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE).group(1) == version
    headings = re.findall(r"^## (.*)$", changelog, re.MULTILINE)
    assert headings[0] == "[Unreleased]"
    assert re.fullmatch(rf"\[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d", headings[1])


WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_run_make_targets_that_exist(workflow):
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    commands = re.findall(r"run: (.*)", workflow.read_text())
    made = {c.removeprefix("make ") for c in commands if c.startswith("make ")}
    assert made and made <= targets
    assert all("GITHUB_ENV" in c for c in commands if not c.startswith("make "))


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_are_valid_pinned_and_may_only_read(workflow):
    yaml = pytest.importorskip("yaml")
    text = workflow.read_text()
    assert yaml.safe_load(text)["permissions"] == {"contents": "read"}
    used = [name for name in re.findall(r"uses: (.*)", text) if not name.startswith("./")]
    assert used and all(re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}  # v\d+\.\d+\.\d+", name) for name in used)


def test_hooks_run_the_pinned_ruff_and_refuse_long_subjects():
    yaml = pytest.importorskip("yaml")
    hooks = {h["id"]: h for h in yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]}
    pinned = re.search(r"^ruff==.*$", (ROOT / "constraints.txt").read_text(), re.MULTILINE).group()
    assert hooks["ruff-format"]["additional_dependencies"] == hooks["ruff-check"]["additional_dependencies"] == [pinned]
    refused = re.compile(hooks["subject"]["entry"], re.MULTILINE | re.DOTALL)
    assert refused.search("x" * 73 + "\n\nbody") and not refused.search("x" * 72 + "\n\n" + "y" * 100)
