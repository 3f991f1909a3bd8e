"""Positive and negative texts: tokens, padding, splits, and folders that are not as they should be."""

import pytest
import torch

from holdfast.data import MissingDataError, load_task
from holdfast.errors import ArgumentError, DamagedResultError


def every(task, split):
    return task.batch(split, torch.arange(task.size(split)))


def test_words_are_numbered_by_frequency_and_padded_with_0(root):
    task = load_task("imdb", valid=0, vocabulary=30)
    batch = every(task, "train")
    # "dull , and too long<br />train", "bad bad bad<br />train", "a fine film .<br />train", "it's good<br />train"
    assert batch.targets.tolist().count(1) == 2 and sorted(batch.lengths.tolist()) == [3, 4, 5, 6]
    train = int(batch.inputs[0, batch.lengths[0] - 1])
    assert train == 2  # the most frequent word
    bad = batch.inputs[(batch.lengths == 4).nonzero()[0, 0], :4].tolist()
    assert bad == [3, 3, 3, 2] and bool((batch.inputs[batch.lengths == 3][:, 3:] == 0).all())
    assert bool((batch.inputs != 0).sum(1).eq(batch.lengths).all())
    test = every(task, "test")  # its last word, "test", is not among those of training
    assert set(test.inputs[torch.arange(4), test.lengths - 1].tolist()) == {1}


def test_any_text_can_be_read_as_the_task_reads_it(root):
    task = load_task("imdb", valid=0, vocabulary=30)
    assert task.ids("Bad bad train unheard") == [3, 3, 2, 1]
    assert load_task("imdb", valid=0, unit="byte", length=2).ids("bad") == [b + 1 for b in b"bad"]


def test_bytes_leave_0_to_the_padding_and_long_texts_are_cut(root):
    task = load_task("imdb", valid=1, unit="byte", length=9)
    assert task.inputs.size == 257 and task.length == 9 and task.size("train") == 3 and task.size("valid") == 1
    row = every(task, "test").inputs[0]
    assert bytes((row[row > 0] - 1).tolist()) in (b"dull , an", b"bad bad b")


def test_polarity_is_cut_into_the_same_tenths_every_time(root):
    task = load_task("polarity", vocabulary=40)
    assert [task.size(split) for split in task.splits] == [16, 2, 2]
    assert torch.equal(every(task, "test").inputs, every(load_task("polarity", vocabulary=40), "test").inputs)
    kinds = torch.cat([every(task, split).targets for split in task.splits])
    assert int(kinds.sum()) == 10


def test_polarity_reads_the_original_encoding_too(root):
    path = root / "movie-reviews" / "rt-polarity.pos"
    before = every(load_task("polarity"), "train")
    path.write_bytes(path.read_bytes().replace(b"a fine", b"caf\xe9 \x97 fine"))  # latin letters and dash of Windows
    after = load_task("polarity")
    assert after.size("train") == len(before.targets) and every(after, "train").lengths.max() > 5


def test_reviews_that_are_not_there_are_named(root, tmp_path):
    (root / "movie-reviews" / "rt-polarity.neg").unlink()
    with pytest.raises(MissingDataError, match=r"lacks rt-polarity\.neg, .*cornell\.edu"):
        load_task("polarity", download=False)
    (root / "movie-reviews" / "rt-polarity.neg").touch()
    with pytest.raises(DamagedResultError, match="is empty"):
        load_task("polarity")
    with pytest.raises(MissingDataError, match="lacks train/neg, train/pos, test/neg, test/pos"):
        load_task("imdb", folder=str(tmp_path / "nowhere"))
    for path in (root / "imdb" / "train" / "pos").iterdir():
        path.unlink()
    with pytest.raises(DamagedResultError, match="has no text file"):
        load_task("imdb", valid=0)


def test_options_that_leave_nothing_are_refused(root):
    with pytest.raises(ArgumentError, match="valid must be from 0 to 3"):
        load_task("imdb", valid=4)
    with pytest.raises(ArgumentError, match="vocabulary must be at least 3"):
        load_task("polarity", vocabulary=2)
