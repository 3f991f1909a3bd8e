"""Every Python block and every command of README and docs runs: as written, or in a smaller setting that says why."""

import importlib.util
import re
import runpy
import shlex
import shutil
import warnings

import matplotlib
import pytest
import typer

import reader
from holdfast.cli.app import app, main

matplotlib.use("agg")

# what a block would take too long for, or needs from a network: in its place, and why
SMALLER_BLOCKS = {
    'task = load_task("mnist", valid=0)\n': (
        "from holdfast.data import ArrayTask\nimport torch\n"
        "images, digits = torch.rand(80, 784, 1), torch.arange(80) % 10\n"
        "task = ArrayTask((images[:64], digits[:64]), test=(images[64:], digits[64:]))\n",
        "downloads MNIST",
    ),
    "TrainingConfig(epochs=2, batch=64,": ("TrainingConfig(steps=2, batch=8,", "trains for 7 minutes"),
}
SLOW_PAGES = {
    "diagnose.md": "a whole diagnosis",
    "frameworks.md": "imports transformers and trains",
    "deploy.md": "torch.export and ONNX",
    "stability.md": "searches for the worst rounding",
    "training.md": "trains",
}

# packages that only the blocks which import them need; .ci/run installs them
OTHERS = "darts|neuralforecast|sb3_contrib|torchrl|skorch"


def _others(block):
    return re.findall(rf"^from ({OTHERS})\b", block, re.MULTILINE)


PAGES = [
    pytest.param(page, id=page.name, marks=[pytest.mark.slow] if page.name in SLOW_PAGES else [])
    for page in reader.ALL
    if page.python
]


@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")  # these two are torch's own, from its exporter
@pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning")
@pytest.mark.usefixtures("user_mistakes")  # a reader's calls are not checked by annotations
@pytest.mark.parametrize("page", PAGES)
def test_the_python_blocks_of_the_page_run_one_after_the_other(page, tmp_path, monkeypatch, capsys):
    reader.make_files(tmp_path)
    monkeypatch.chdir(tmp_path)
    shared = {"__name__": "__main__"}
    for block in page.python:
        if any(importlib.util.find_spec(name) is None for name in _others(block)):
            continue
        for written, (smaller, _) in SMALLER_BLOCKS.items():
            block = block.replace(written, smaller)
        with warnings.catch_warnings():
            if _others(block):
                warnings.simplefilter("ignore")  # theirs, such as those about memory that is not pinned
            exec(compile(block, page.name, "exec"), shared)
    printed = capsys.readouterr().out
    if page.name == "README.md":
        shown = re.search(r"```text\n(MEMORY .*?)```", (reader.ROOT / "README.md").read_text(), re.DOTALL)
        missing = [line for line in shown[1].splitlines() if line.strip() != "..." and line not in printed]
        assert missing == []
        assert "DiagonalSSM(" in printed


def test_each_smaller_block_stands_on_a_page():
    written = "".join(block for page in reader.ALL for block in page.python)
    assert [old for old in SMALLER_BLOCKS if written.count(old) != 1] == []


# the same for commands: what runs in their place (None: nothing), and why
SMALLER = {
    'pip install ".[train,hf]"': (None, "changes the environment; tools/try_distributions.py does it in an empty one"),
    "pip install ./papers": (None, "changes the environment"),
    "pip install './papers[peers]'": (None, "changes the environment"),
    "pip install './papers[cluster]'": (None, "changes the environment"),
    "make install": (None, "installs"),
    "make test": (None, "runs this test"),
    "make coverage": (None, "runs this test"),
    "make lint types": (None, "a part of `make test`"),
    "holdfast bench": ("holdfast bench --quick --only scan --budget 0.2", "minutes"),
    "holdfast bench --peers": ("holdfast bench --quick --only scan --budget 0.2 --peers", "minutes"),
    "holdfast bench --only lru --only growth-s4d --budget 20": (
        "holdfast bench --only lru --quick --budget 0.2",
        "a minute",
    ),
    "holdfast bench --peers --json bench.json --markdown docs/benchmarks.md": (
        "holdfast bench --quick --only scan --budget 0.2 --json bench.json",
        "minutes, and writes over a page of the clone",
    ),
    "holdfast reproduce": ("holdfast reproduce iat-def38", "minutes"),
    "holdfast reproduce stable-fig2": ("holdfast reproduce iat-def38", "a minute"),
    "holdfast reproduce stable-fig2 iat-fig11": ("holdfast reproduce iat-def38", "a minute"),
    "holdfast reproduce --preset standard": ("holdfast reproduce iat-def38 --preset standard", "hours"),
    "holdfast reproduce stable-table2 --preset standard --store docs/results": (
        None,
        "hours, and writes over our results",
    ),
    "python tools/keep_results.py results stable-table2": (None, "writes over our results; test_folder.py runs it"),
    "holdfast reproduce --check": ("holdfast reproduce iat-def38 --check", "minutes"),
    "holdfast reproduce --preset paper --executor ray --address auto": (None, "needs a cluster"),
    "holdfast train examples/configs/smnist.toml": (None, "7 minutes; `test_train_command.py` runs each config"),
    "holdfast train examples/configs/smnist.toml --dry-run": (None, "downloads MNIST"),
    "holdfast train my.toml --set optimizer.lr=0.002 --folder runs/a --resume": (
        "holdfast train my.toml --set optimizer.lr=0.002 --folder runs/a --resume --set run.steps=4",
        "minutes",
    ),
    "holdfast watch runs/smnist --once": (None, "needs that run; `test_watch.py` has one"),
    "holdfast watch runs/mine --open": (None, "opens a browser"),
    "holdfast memory hf:state-spaces/mamba-130m-hf --json": (None, "downloads"),
    "holdfast memory hf:path/to/encoder --item good": (None, "needs a pretrained encoder; `test_memory.py` has one"),
    "python examples/mamba_on_cpu.py": (
        "python examples/mamba_on_cpu.py --text book.txt --length 32 --steps 2 --hidden 16",
        "a minute",
    ),
}


def _pages_with_commands():
    """Each command once, on the first page that has it."""
    seen = set()
    for page in reader.ALL:
        own = [command for command in page.commands if command and command not in seen]
        seen.update(own)
        if any(SMALLER.get(command, ("",))[0] is not None for command in own):
            yield pytest.param(own, id=page.name)


@pytest.mark.slow
@pytest.mark.usefixtures("user_mistakes")
@pytest.mark.parametrize("commands", list(_pages_with_commands()))
def test_the_commands_of_the_page_run_one_after_the_other(commands, tmp_path, monkeypatch):
    reader.make_files(tmp_path)
    reader.make_transformers_folder(tmp_path)
    monkeypatch.chdir(tmp_path)
    for written in commands:
        command = SMALLER.get(written, (written,))[0]
        if command is not None:
            assert _ended(command, monkeypatch) == 0, command


def _ended(command, monkeypatch):
    name, *arguments = shlex.split(command)
    if name == "cp":
        shutil.copy(*arguments)
        return 0
    if name == "python":
        monkeypatch.setattr("sys.argv", arguments)
        runpy.run_path(arguments[0], run_name="__main__")
        return 0
    assert name == "holdfast", command
    monkeypatch.setattr("sys.argv", [name, *arguments])
    with pytest.raises(SystemExit) as end:
        main()
    return end.value.code


def test_each_smaller_command_stands_on_a_page():
    assert SMALLER.keys() <= {command for page in reader.ALL for command in page.commands}


@pytest.mark.parametrize("page", reader.ALL, ids=lambda page: page.name)
def test_every_holdfast_command_on_the_page_has_arguments_that_exist(page):
    known = typer.main.get_command(app).commands
    for command in {*page.commands, *(text for text in page.inline if " -" in text)}:
        name, *arguments = shlex.split(command) or [""]
        if name == "holdfast" and "--help" not in arguments:
            known[arguments[0]].make_context(arguments[0], arguments[1:])


def test_every_make_target_on_a_page_exists():
    targets = set(re.findall(r"^([a-z-]+):", (reader.ROOT / "Makefile").read_text(), re.MULTILINE))
    asked = [shlex.split(command) for page in reader.ALL for command in page.commands]
    assert {target for words in asked if words[:1] == ["make"] for target in words[1:]} <= targets
