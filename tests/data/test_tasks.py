"""What every task promises: batches are a function of split and indices, shapes are as described, identity is JSON."""

import json
import pickle

import pytest
import torch

from holdfast import nn
from holdfast.data import TASKS, Batch, load_task
from holdfast.errors import ArgumentError, DtypeError, UnknownNameError

TEACHER = nn.LRU(2, 4)
OPTIONS = {
    "functional": lambda root: {"length": 9, "features": 2},
    "teacher": lambda root: {"teacher": TEACHER, "features": 2, "length": 9},
    "recall": lambda root: {"length": 8, "vocabulary": 9},
    "multi-recall": lambda root: {"length": 12, "vocabulary": 20, "pairs": 3},
    "lotka-volterra": lambda root: {"length": 20, "train": 6, "valid": 3},
    "mnist": lambda root: {"valid": 3},
    "cifar10": lambda root: {"valid": 2, "order": "row"},
    "wikitext-2": lambda root: {"length": 4},
    "wikitext-103": lambda root: {"length": 4, "vocabulary": 3},
    "text": lambda root: {"length": 16},
    "polarity": lambda root: {"vocabulary": 8},
    "imdb": lambda root: {"unit": "byte", "valid": 1},
    "series": lambda root: {"file": str(root / "series.csv"), "columns": ["load", "heat"], "window": 5, "horizon": 2},
    "arrays": lambda root: {
        "train": (torch.arange(24.0).view(4, 3, 2), [0, 1, 1, 0]),
        "test": (torch.ones(2, 3, 2), [0, 1]),
    },
}


@pytest.fixture
def make(root):
    return lambda name: load_task(name, **OPTIONS[name](root))


def same(one: Batch, other: Batch):
    fields = ("inputs", "targets", "lengths", "mask")
    pairs = [(getattr(one, field), getattr(other, field)) for field in fields]
    return all(a is b or torch.equal(a, b) for a, b in pairs)


def check_batch(task, batch, rows):
    time = batch.inputs.shape[1]
    assert len(batch) == rows and time <= task.length
    if task.inputs.kind == "tokens":
        assert batch.inputs.dtype == torch.int64 and batch.inputs.shape == (rows, time)
        assert int(batch.inputs.min()) >= 0 and int(batch.inputs.max()) < task.inputs.size
    else:
        assert batch.inputs.dtype == torch.float32 and batch.inputs.shape == (rows, time, task.inputs.size)
    shape = {"classify": (rows,), "predict": (rows, time), "regress": (rows, time, task.outputs.size)}[task.kind]
    assert batch.targets.shape == shape
    if task.kind == "regress":
        assert batch.targets.dtype == torch.float32 and bool(batch.targets.isfinite().all())
    else:
        assert batch.targets.dtype == torch.int64 and int(batch.targets.max()) < task.outputs.size
    assert batch.mask is None or (batch.mask.shape == (rows, time) and bool(batch.mask.any(1).all()))
    assert batch.tokens == (rows * time if batch.lengths is None else int(batch.lengths.sum()))


def test_every_task_is_tried():
    assert list(OPTIONS) == list(TASKS)


@pytest.mark.parametrize("name", TASKS)
def test_a_batch_is_a_function_of_split_and_indices_alone(make, name):
    task, again = make(name), make(name)
    assert task.splits[0] == "train" and task.name == name
    for split in task.splits:
        size = task.size(split)
        indices = torch.tensor([1, 0, 1]) if size != 1 else torch.tensor([0, 0, 0])
        batch = task.batch(split, indices)
        check_batch(task, batch, 3)
        task.batch("train", torch.tensor([0]))  # what was asked for in between does not matter
        assert same(batch, task.batch(split, indices)) and same(batch, again.batch(split, indices))
        assert torch.equal(batch.inputs[0], batch.inputs[2])
    assert task.identity() == again.identity() == json.loads(json.dumps(task.identity()))
    assert task.describe() and "\n" not in task.describe()


@pytest.mark.parametrize("name", TASKS)
def test_indices_outside_of_a_split_are_refused(make, name, user_mistakes):
    task = make(name)
    for split in task.splits:
        size = task.size(split)
        for bad in ([-1], [] if size is None else [size]):
            if bad:
                with pytest.raises(ArgumentError, match=f"indices of {split} must be >= 0"):
                    task.batch(split, torch.tensor(bad))
    with pytest.raises(DtypeError, match="must be int64"):
        task.batch("train", torch.tensor([], dtype=torch.int64))
    with pytest.raises(DtypeError, match="must be int64"):
        task.batch("train", torch.tensor([0], dtype=torch.int32))


@pytest.mark.parametrize("name", TASKS)
def test_a_task_can_be_sent_to_another_process(make, name):
    task = make(name)
    other = pickle.loads(pickle.dumps(task))
    assert same(task.batch("train", torch.tensor([1])), other.batch("train", torch.tensor([1])))
    assert task.identity() == other.identity()


def test_a_generated_set_goes_on_for_ever_and_no_sample_returns():
    task = load_task("functional", length=4, valid=0)
    assert task.size("train") is None and task.splits == ("train", "test")
    far = task.batch("train", torch.tensor([0, 1, 2**40, 2**62]))
    assert len({tuple(row) for row in far.inputs.flatten(1).tolist()}) == 4
    assert not torch.equal(task.batch("test", torch.tensor([0])).inputs[0], far.inputs[0])


def test_what_identifies_a_task_changes_with_its_options(root):
    for name, option in (
        ("mnist", {"order": "permuted"}),
        ("mnist", {"scale": "standard"}),
        ("cifar10", {"grey": True}),
        ("wikitext-2", {"vocabulary": 2}),
        ("text", {"unit": "byte"}),
        ("text", {"valid": 0.051}),
        ("imdb", {"length": 5}),
        ("series", {"targets": ["heat"]}),
        ("recall", {"seed": 3}),
        ("functional", {"dt": 0.5}),
        ("teacher", {"scale": 2.0}),
    ):
        base = OPTIONS[name](root)
        assert load_task(name, **base).identity() != load_task(name, **base | option).identity()


def test_a_batch_goes_to_a_device_as_a_whole():
    batch = Batch(torch.zeros(2, 3, 1), torch.zeros(2), torch.tensor([1, 3]), torch.ones(2, 3, dtype=torch.bool))
    moved = batch.to("meta")
    assert all(part.is_meta for part in (moved.inputs, moved.targets, moved.lengths, moved.mask))
    assert batch.tokens == 4


def test_unknown_names_and_options_meet_the_nearest_known_one(user_mistakes):
    with pytest.raises(UnknownNameError, match="Did you mean 'mnist'"):
        load_task("minst")
    with pytest.raises(UnknownNameError, match=r"option of the task 'recall' 'lenght'\. Did you mean 'length'"):
        load_task("recall", lenght=3)
    with pytest.raises(ArgumentError, match="the task 'series' needs file"):
        load_task("series")
    with pytest.raises(UnknownNameError, match=r"order 'pixels'\. Did you mean 'pixel'"):
        load_task("mnist", order="pixels")


def test_an_empty_split_is_refused(root):
    with pytest.raises(ArgumentError, match="recall: the split 'valid' has no sample"):
        load_task("recall", valid=-1)
    (root / "wikitext-2" / "wiki.valid.tokens").write_text("a\n")
    with pytest.raises(ArgumentError, match=r"'valid' .a window of length 4 .*, got 2"):
        load_task("wikitext-2", length=4)
