"""Config files with odd values end in an error of ours, never in a traceback."""

import inspect
import itertools
from pathlib import Path

import pytest

from holdfast.data._tasks import TASKS
from holdfast.errors import HoldfastError
from holdfast.nn._stack import LAYERS
from holdfast.training._recipe import RUN, read_recipes

OPTIMIZER = ("lr", "recurrent_lr", "betas", "warmup", "schedule", "final_lr", "clip", "weight_decay")
MODEL = ("width", "depth", "state_size", "dropout", "layer", "kind", "factory", "expansion", "block", "nonsense")
RECALL = ("name", "length", "vocabulary", "train", "valid", "test", "seed", "file")
ODD = (
    "1.5", "-1", "0", "true", '"x"', '""', "{}", "[]", "[[]]", "[{}]", "nan", "inf", "1e400", "99999999999999999999",
    "1979-05-27", "{a = 1.0}", '[1, "a"]', r'"\u0000"', f'"{"x" * 300}"',
)  # fmt: skip
BASE = {
    "task": {"name": '"recall"', "length": "4", "vocabulary": "6", "train": "32", "valid": "16", "test": "16"},
    "model": {"width": "8", "depth": "1", "state_size": "4"},
    "optimizer": {"lr": "0.01"},
    "run": {"batch": "16", "steps": "1"},
}


def changed(section, **values):
    tables = {name: dict(keys) for name, keys in BASE.items()}
    tables[section] |= values
    return "\n".join(f"[{name}]\n" + "\n".join(f"{k} = {v}" for k, v in keys.items()) for name, keys in tables.items())


def configs():
    sections = {"model": MODEL, "task": RECALL, "optimizer": OPTIMIZER, "run": RUN}
    for section, keys in sections.items():
        yield from (changed(section, **{key: odd}) for key, odd in itertools.product(keys, ODD))
    for layer, kind in LAYERS.items():
        keys = inspect.signature(kind).parameters
        yield from (
            changed("model", layer=f'"{layer}"', **{key: odd}) for key, odd in itertools.product(keys, ODD[::4])
        )
    for name in ("functional", "teacher", "lotka-volterra", "multi-recall", "series", "arrays", "text"):
        keys = inspect.signature(TASKS[name]).parameters
        yield from (f'[task]\nname = "{name}"\n{key} = {odd}\n' for key, odd in itertools.product(keys, ODD[::3]))
    yield from ("model = 1", "[[model]]\nwidth = 1", "task = []", "", "\ufeff[task]", "[task.a.b]\nc = 1")
    yield from ('[model]\nfactory = ["a:b", "x.py:y"]', "[task]\nname = [1, 2]", "[run]\nsteps = [1, [2]]")


def test_no_odd_config_ends_in_a_traceback(tmp_path):
    file, tracebacks, count = tmp_path / "odd.toml", [], 0
    for text in configs():
        file.write_text(text, encoding="utf-8")
        count += 1
        try:
            for _, recipe in read_recipes(file):
                recipe.build_model(recipe.load_task())
        except HoldfastError:
            continue
        except Exception as error:
            tracebacks.append(f"{type(error).__name__}: {error} of\n{text}")
    assert not tracebacks, f"{len(tracebacks)} of {count}:\n" + "\n\n".join(tracebacks[:5])
    assert count > 800


def build_first(file):
    recipe = read_recipes(file)[0][1]
    return recipe.build_model(recipe.load_task())


@pytest.mark.parametrize(
    ("section", "values", "said"),
    [
        ("model", {"dropout": "1.5"}, r"dropout must be a probability from 0 to 1, got 1\.5"),
        ("model", {"factory": "1"}, r"model\.factory must be a name or a list of names, got 1"),
        ("model", {"layer": "{}"}, r"model\.layer must be a name"),
        ("task", {"name": "{}"}, r"task\.name must be a name"),
    ],
)
def test_the_key_at_fault_is_named(tmp_path, section, values, said):
    file = Path(tmp_path, "odd.toml")
    file.write_text(changed(section, **values))
    with pytest.raises(HoldfastError, match=said):
        build_first(file)


def test_constants_that_do_not_fit_a_law_are_named(tmp_path):
    file = Path(tmp_path, "odd.toml")
    file.write_text('[task]\nname = "functional"\nconstants = []\n')
    with pytest.raises(HoldfastError, match=r"constants do not fit the law 'power', which takes exponent: "):
        read_recipes(file)[0][1].load_task()
