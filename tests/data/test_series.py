"""Own CSV files: what is given and asked for at each step, no leak between splits, and files that are not a series."""

import pytest
import torch

from holdfast.data import load_task
from holdfast.errors import ArgumentError, DamagedResultError, UnknownNameError


@pytest.fixture
def write(tmp_path):
    def write(text):
        (tmp_path / "own.csv").write_bytes(text if isinstance(text, bytes) else text.encode())
        return str(tmp_path / "own.csv")

    return write


def counting(rows):
    return "a,b,c\n" + "".join(f"{t},{10 * t},7\n" for t in range(rows))


def test_targets_are_the_columns_so_many_steps_ahead(write):
    task = load_task(
        "series", file=write(counting(40)), columns=["a", "c"], targets=["b"], window=4, horizon=3, valid=0.25, test=0.0
    )
    train = task.batch("train", torch.arange(task.size("train")))
    assert task.size("train") == 40 - 10 - 6 and train.inputs.shape[2] == 2 and train.targets.shape[2] == 1
    a = train.inputs[..., 0] * task.deviation[0] + task.mean[0]
    b = train.targets[..., 0] * task.deviation[2] + task.mean[2]
    assert torch.allclose(b, 10 * (a + 3), atol=1e-4)  # rounded to float32
    assert not bool(train.inputs[..., 1].any())  # a constant column


def test_splits_share_no_row_and_are_scaled_by_the_training_rows(write):
    task = load_task("series", file=write(counting(40)), columns=["a"], window=2, valid=0.25, test=0.25)
    rows = {}
    for split in task.splits:
        batch = task.batch(split, torch.arange(task.size(split)))
        both = torch.cat((batch.inputs, batch.targets), 1) * task.deviation + task.mean
        rows[split] = set(both.round().int().flatten().tolist())
    assert rows == {"train": set(range(20)), "valid": set(range(20, 30)), "test": set(range(30, 40))}
    assert float(task.mean) == 9.5


def test_lines_may_end_as_on_windows_and_begin_with_a_mark_of_utf8(write):
    task = load_task("series", file=write(b"\xef\xbb\xbf" + counting(40).replace("\n", "\r\n").encode()), window=3)
    assert task.columns == ("a", "b", "c") and float(task.mean[0]) == 13.5


def test_names_may_be_quoted_and_another_delimiter_is_taken(write):
    text = '"wind; north";"b"\n' + "".join(f"{t};{-t}\n" for t in range(30))
    task = load_task("series", file=write(text), targets=["wind; north"], window=3, delimiter=";")
    assert task.columns == ("wind; north", "b") and task.outputs.size == 1


@pytest.mark.parametrize(
    ("text", "options", "words"),
    [
        ("", {}, "is empty"),
        ("a,b", {}, "lines of numbers below the names, got none"),
        ("a,b\n\n", {}, "lines of numbers below the names, got none"),
        ("a,b\n1,2\n3,nan\n" + "1,2\n" * 30, {}, "got nan in line 3, column 'b'"),
        ("a,b\n1,2\n3,-inf\n" + "1,2\n" * 30, {}, "got -inf in line 3"),
        ("a,b\n1,2\n3,x\n", {}, "must have a number in each column .*row 1"),
        ("a,b\n1,2\n3\n", {}, "must have a number in each column"),
        ("a,a\n1,2\n", {}, "name each column once"),
        ("a,b\n" + "1,2\n" * 9, {"window": 8}, "at least window . horizon = 9"),
        ("a,b\n" + "1,2\n" * 30, {"delimiter": ", "}, "delimiter must be one character"),
        (b"a,b\n1,\xff\n", {}, "not UTF-8 text at byte 6"),
    ],
)
def test_a_file_that_is_no_series_is_refused_with_the_place(write, text, options, words):
    with pytest.raises((ArgumentError, DamagedResultError), match=words):
        load_task("series", file=write(text), **{"window": 4} | options)


def test_a_misspelt_column_meets_the_nearest(write):
    with pytest.raises(UnknownNameError, match=r"column of .*own\.csv 'lod'\. Did you mean 'load'"):
        load_task("series", file=write("time,load\n" + "1,2\n" * 30), columns=["lod"])
