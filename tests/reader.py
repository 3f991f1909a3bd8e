"""A reader of the documentation: the blocks of each page, and the files that the pages take for granted."""

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("docs/*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"])
OWN_MODELS = "# my_models.py\n"


@dataclass(frozen=True)
class Page:
    """What a page asks its reader to run: blocks of Python, lines of a shell, and commands within sentences."""

    name: str
    python: tuple[str, ...]
    own_models: tuple[str, ...]
    commands: tuple[str, ...]
    inline: tuple[str, ...]


def read(path):
    """A page as its reader meets it."""
    text = re.sub(r"<!--.*?-->", "", path.read_text(), flags=re.DOTALL)
    blocks = re.findall(r"^```(python|sh)\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    python = [code for kind, code in blocks if kind == "python"]
    lines = [line for kind, code in blocks if kind == "sh" for line in code.splitlines()]
    return Page(
        path.name,
        tuple(code for code in python if not code.startswith(OWN_MODELS)),
        tuple(code for code in python if code.startswith(OWN_MODELS)),
        tuple(part.strip() for line in lines for part in line.split("#")[0].split("&&")),
        tuple(re.findall(r"`(holdfast [a-z][^`]*)`", text)),
    )


ALL = [read(path) for path in PAGES]


def make_files(folder):
    """The files that the pages name: models, a task, data of one's own; examples and results as in a clone."""
    (folder / "my_models.py").write_text("".join(dict.fromkeys(code for page in ALL for code in page.own_models)))
    x = np.random.default_rng(0).standard_normal((8, 60, 1))
    np.savez(folder / "task.npz", inputs=x, targets=np.roll(x, 5, 1))
    np.save(folder / "x.npy", x)
    (folder / "power.csv").write_text("load,heat\n" + "".join(f"{i % 24},{i % 7}\n" for i in range(2000)))
    (folder / "book.txt").write_text("To be, or not to be, that is the question. " * 500)
    for split in ("train", "test"):
        for mood in ("pos", "neg"):
            (folder / "mails" / split / mood).mkdir(parents=True)
            for i in range(20):
                (folder / "mails" / split / mood / f"{i}.txt").write_text(f"a {mood} mail, number {i}")
    (folder / "examples").symlink_to(ROOT / "examples")
    (folder / "docs").mkdir()
    (folder / "docs/results").symlink_to(ROOT / "docs/results")


def make_transformers_folder(folder):
    """A small Mamba with random weights, saved where the pages have path/to/a/transformers/folder."""
    import transformers

    config = transformers.MambaConfig(vocab_size=32, hidden_size=16, num_hidden_layers=1, state_size=4)
    transformers.MambaModel(config).save_pretrained(folder / "path/to/a/transformers/folder")
