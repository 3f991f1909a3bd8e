"""Text by characters, bytes and words: windows, vocabularies, part sets and files that are not text."""

import os

import pytest
import torch

from holdfast.data import MissingDataError, load_task
from holdfast.errors import ArgumentError, DamagedResultError


@pytest.fixture
def write(tmp_path):
    def write(content, name="own.txt"):
        (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
        return str(tmp_path / name)

    return write


def test_windows_follow_each_other_and_the_target_is_the_next_token(write):
    file = write("abcdefghij" * 10)
    task = load_task("text", file=file, length=7, valid=0.0, test=0.2)
    batch = task.batch("train", torch.arange(task.size("train")))
    assert task.splits == ("train", "test") and task.size("train") == 79 // 7
    assert batch.inputs.flatten().tolist() == [t % 10 for t in range(77)]
    assert torch.equal(batch.targets, (batch.inputs + 1) % 10)
    assert task.batch("test", torch.tensor([0])).inputs[0, 0] == 0  # the 81st character


def test_characters_are_numbered_by_code_point_and_bytes_are_256(write):
    file = write("bañ😀a\n" * 6)
    characters = load_task("text", file=file, length=5, valid=0.0, test=0.0)
    assert characters.inputs.size == 5
    assert characters.batch("train", torch.tensor([0])).inputs[0].tolist() == [2, 1, 3, 4, 1]
    content = "bañ😀a\n".encode()
    by_byte = load_task("text", file=file, length=len(content), unit="byte", valid=0.0, test=0.0)
    assert by_byte.inputs.size == 256
    assert by_byte.batch("train", torch.tensor([0])).inputs[0].tolist() == list(content)


def test_a_text_that_cannot_be_used_is_refused_with_what_to_do(write, tmp_path):
    for content, options, error, words in (
        (b"", {}, DamagedResultError, "is empty"),
        (b"caf\xe9 " * 100, {}, DamagedResultError, "not UTF-8 at byte 3; .*unit='byte'"),
        (b"short", {}, ArgumentError, "a window of length 256"),
        (b"abc" * 100, {"length": 50, "valid": 0.1}, ArgumentError, "'valid' .*, got 30"),
        (b"abc" * 100, {"valid": 0.6, "test": 0.4}, ArgumentError, "together below 1"),
        (b"abc" * 100, {"length": 0}, ArgumentError, "length must be"),
    ):
        with pytest.raises(error, match=words):
            load_task("text", file=write(content), **options)
    with pytest.raises(DamagedResultError, match="No such file"):
        load_task("text", file=str(tmp_path / "nowhere.txt"))
    os.mkfifo(tmp_path / "pipe")
    for odd in (str(tmp_path / "pipe"), str(tmp_path)):  # a pipe without a writer is not waited for
        with pytest.raises((ArgumentError, DamagedResultError), match=r"regular file|cannot be read"):
            load_task("text", file=odd)


def words(root, text, split, name="wikitext-2"):
    (root / name / f"wiki.{split}.tokens").write_text(text)


def test_words_are_numbered_as_they_come_and_unknown_ones_are_unk(root):
    words(root, " a b a <unk> c \n \n d ", "train")
    words(root, "c z b\n", "test")
    words(root, "a\n", "valid")
    task = load_task("wikitext-2", length=1)
    tokens = task.batch("train", torch.arange(task.size("train"))).inputs[:, 0].tolist()
    # <unk> 0, a 1, b 2, c 3, <eos> 4, d 5; the last token is only a target
    assert tokens == [1, 2, 1, 0, 3, 4, 4] and task.inputs.size == 6
    test = task.batch("test", torch.arange(3))
    assert [*test.inputs[:, 0].tolist(), int(test.targets[-1, 0])] == [3, 0, 2, 4]


def test_a_small_vocabulary_keeps_the_most_frequent_words(root):
    words(root, "a b b c c c\n" * 3, "train")
    task = load_task("wikitext-2", length=7, vocabulary=3)
    # <unk>, c (9 times), b (6 times)
    assert task.inputs.size == 3
    assert task.batch("train", torch.tensor([0])).inputs[0].tolist() == [0, 2, 2, 1, 1, 1, 0]


def test_without_the_training_file_the_validation_file_trains_and_it_is_said(root):
    (root / "wikitext-2" / "wiki.train.tokens").unlink()
    words(root, "a b c d e f g h i\n" * 10, "valid")
    task = load_task("wikitext-2", length=4)
    assert task.splits == ("train", "valid", "test") and task.size("train") == 89 // 4 and task.size("valid") == 2
    assert "part: no wiki.train.tokens" in task.describe() and task.identity()["part"].startswith("no wiki.train")
    with pytest.raises(MissingDataError, match=r"lacks wiki\.train\.tokens, and download=False"):
        load_task("wikitext-2", part=False, download=False)
    (root / "wikitext-2" / "wiki.valid.tokens").unlink()
    with pytest.raises(MissingDataError, match="neither of the files to train on"):
        load_task("wikitext-2")


def test_a_set_that_is_not_there_names_its_files_folder_and_source(root):
    for path in (root / "wikitext-103").iterdir():
        path.unlink()
    with pytest.raises(MissingDataError) as caught:
        load_task("wikitext-103", download=False)
    for part in (str(root / "wikitext-103"), "wiki.train.tokens", "https://wikitext.smerity.com/wikitext-103-v1.zip"):
        assert part in str(caught.value)


def test_an_empty_word_file_is_refused(root):
    words(root, "", "train")
    with pytest.raises(DamagedResultError, match=r"wiki\.train\.tokens is empty"):
        load_task("wikitext-2")
