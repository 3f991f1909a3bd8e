"""Own tensors: what the targets mean, and arrays that are not a task."""

import numpy as np
import pytest
import torch

from holdfast.data import ArrayTask
from holdfast.errors import HoldfastError

X = torch.arange(24.0).view(4, 3, 2)
ALL = torch.arange(4)


def test_targets_say_what_is_asked():
    classes = ArrayTask((X, [0, 2, 1, 0]))
    assert classes.kind == "classify" and classes.outputs.size == 3 and classes.inputs.size == 2
    steps = ArrayTask((X, X[..., :1]))
    assert steps.kind == "regress" and torch.equal(steps.batch("train", ALL).targets, X[..., :1])
    tokens = ArrayTask((np.array([[1, 2], [3, 0]]), np.array([[2, 4], [0, 1]])))
    assert tokens.kind == "predict" and tokens.inputs == tokens.outputs and tokens.inputs.size == 5
    words = ArrayTask((np.array([[1, 2], [9, 0]]), [1, 0]), classes=4)
    assert (
        words.kind == "classify"
        and words.inputs.kind == "tokens"
        and words.inputs.size == 10
        and words.outputs.size == 4
    )


@pytest.mark.parametrize("shape", [(4,), (4, 2), (4, 1, 2)])
def test_one_value_a_sequence_is_asked_for_at_its_end(shape):
    y = torch.arange(float(np.prod(shape))).view(shape)
    batch = ArrayTask((X, y, [3, 1, 2, 3])).batch("train", ALL)
    assert batch.mask.nonzero().tolist() == [[0, 2], [1, 0], [2, 1], [3, 2]]
    assert torch.equal(batch.targets[batch.mask].flatten(), y.flatten())
    assert batch.tokens == 9


def test_bytes_and_float64_come_as_float32_and_nothing_is_changed():
    x = np.arange(24, dtype=np.uint8).reshape(4, 3, 2)
    task = ArrayTask((x, np.zeros(4)), valid=(x.astype(float), np.zeros(4)))
    for split in task.splits:
        assert torch.equal(task.batch(split, ALL).inputs, X)


NAN = X.clone()
NAN[2, 1, 0] = float("nan")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"train": (X, [0, 1])}, "one target for each of 4 inputs"),
        ({"train": (X,)}, "must be .inputs, targets. or"),
        ({"train": (X, [0, -1, 1, 0])}, "targets must be 0 to"),
        ({"train": (X, [0, 1, 5, 0]), "classes": 3}, "targets must be 0 to 2, got 0 to 5; .*classes=6"),
        ({"train": (NAN, [0, 1, 1, 0])}, r"train: inputs must be finite in float32, got nan at \[2, 1, 0\]"),
        ({"train": (X, [0.0, float("inf"), 1, 2])}, r"targets must be finite in float32, got inf at \[1\]"),
        ({"train": (X.double() * 1e300 + 1e300, [0, 1, 1, 0])}, "finite in float32, got inf"),
        ({"train": (X[:0], [])}, "none empty"),
        (
            {"train": (X, [0, 1, 1, 0]), "test": (X[:, :, :1], [0, 1, 1, 0])},
            "in every split, got 2 features, 1 features",
        ),
        ({"train": (X, torch.zeros(4, 3))}, r"\(samples, 3, features\) for values at each step"),
        ({"train": (X, [0, 1, 1, 0]), "kind": "regress"}, "regress needs real targets"),
        ({"train": (X, [0.5, 1, 1, 0]), "kind": "classify"}, "classify needs whole-number targets"),
        ({"train": (X, [0, 1, 1, 0], [1, 2, 3, 4])}, "lengths must be 1 to 3, got 1 to 4"),
        ({"train": (X, [0, 1, 1, 0], [1, 2])}, "lengths must be 4 whole numbers"),
        ({"train": (X, ["a", "b", "c", "d"])}, "must be a tensor, an array or nested lists of numbers"),
        ({"train": (X.to(torch.complex64), [0, 1, 1, 0])}, "real or whole numbers, got torch.complex64"),
    ],
)
def test_arrays_that_are_no_task_are_refused_by_name(options, words):
    with pytest.raises(HoldfastError, match=words):
        ArrayTask(**options)


def test_the_checksum_follows_the_numbers():
    task = ArrayTask((X, [0, 1, 1, 0]))
    assert task.identity() == ArrayTask((X.clone(), [0, 1, 1, 0])).identity()
    assert task.identity() != ArrayTask((X, [0, 1, 1, 1])).identity()
