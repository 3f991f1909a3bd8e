"""Tables with time stamps, gaps, several series and covariates, against numbers made by hand."""

import pytest
import torch

import holdfast
from holdfast.data import load_task, read_series
from holdfast.errors import ArgumentError, DamagedResultError, UnknownNameError

# two sites, hourly, lines in no order; site a misses 04:00 and has an empty cell at 07:00, b begins at 02:00
HOURS = {"a": [0, 1, 2, 3, 5, 6, 7, 8, 9], "b": [2, 3, 4, 5, 6, 7, 8, 9]}
EMPTY = ("a", 7)


def table(order=1):
    lines = [
        f"2026-03-01 {hour:02d}:00,{site},{'' if (site, hour) == EMPTY else (hour if site == 'a' else 100 + hour)},{hour % 3}"
        for site, hours in HOURS.items()
        for hour in hours
    ]
    return "when,site,load,holiday\n" + "\n".join(lines[::order]) + "\n"


@pytest.fixture
def write(tmp_path):
    def write(text, name="own.csv"):
        (tmp_path / name).write_text(text)
        return str(tmp_path / name)

    return write


HOURLY = {"time": "when", "series": "site", "targets": ["load"], "columns": ["load"]}


@pytest.mark.parametrize("order", [1, -1])
def test_a_gap_and_an_empty_cell_cut_a_series_and_no_target_reaches_over_them(write, order):
    found = read_series(write(table(order)), **HOURLY, horizon=1)
    pieces = {
        (name, *x[:length, 0].tolist()): y[:length, 0].tolist()
        for name, x, y, length in zip(found.names, found.x, found.y, found.lengths.tolist(), strict=True)
    }
    assert pieces == {
        ("a", 0, 1, 2): [1, 2, 3],
        ("a", 5): [6],
        ("a", 8): [9],
        ("b", *range(102, 109)): list(range(103, 110)),
    }
    assert torch.equal(found.mask.sum(1), found.lengths)


def test_known_columns_have_the_value_of_the_targets_step(write):
    found = read_series(write(table()), **HOURLY, future=["holiday"], horizon=2)
    assert found.columns == ("load", "holiday")
    last = found.names.index("b")
    assert found.x[last, :6].tolist() == [[102 + t, (4 + t) % 3] for t in range(6)]
    assert found.y[last, :6, 0].tolist() == [104 + t for t in range(6)]


def test_short_gaps_are_filled_by_a_line_and_their_targets_do_not_count(write):
    found = read_series(write(table()), **HOURLY, fill=1)
    assert found.names == ("a", "b")
    assert found.x[0, :, 0].tolist() == list(range(9))  # the line through hours is the hour
    assert found.mask[0].tolist() == [True, True, True, False, True, True, False, True, True]
    text = "t,v\n0,1\n1,4\n4,10\n"
    assert read_series(write(text), time="t", fill=2).x[0, :, 0].tolist() == [1, 4, 6, 8]
    assert read_series(write(text), time="t", fill=1).lengths.tolist() == [1]


def test_windows_share_no_step_and_stay_inside_pieces(write):
    x, y = read_series(write(table()), **HOURLY).windows(3)
    assert x[..., 0].tolist() == [[0, 1, 2], [102, 103, 104], [105, 106, 107]]
    assert torch.equal(y, x + 1)
    with pytest.raises(ArgumentError, match="at most 7, the steps of the longest piece"):
        read_series(write(table()), **HOURLY).windows(8)


def test_a_month_is_a_step_though_months_are_not_equally_long(write):
    months = [f"{2025 + m // 12}-{m % 12 + 1:02d}-01,{m}" for m in range(15) if m != 9]
    found = read_series(write("month,v\n" + "\n".join(months) + "\n"), time="month")
    assert found.lengths.tolist() == [8, 4]
    assert found.x[1, :4, 0].tolist() == [10, 11, 12, 13]


def test_the_task_cuts_all_series_at_the_same_time_and_scales_by_what_trains(write):
    task = load_task("series", file=write(table()), **HOURLY, window=2, valid=0.0, test=0.4)
    rows = {}
    for split in task.splits:
        batch = task.batch(split, torch.arange(task.size(split)))
        both = torch.cat((batch.inputs, batch.targets), 1) * task.deviation + task.mean
        rows[split] = set(both.round().int().flatten().tolist())
    # ten hours: six train; what is alone between gaps is in no window of three
    assert rows == {"train": {0, 1, 2, 3, 102, 103, 104, 105}, "test": {106, 107, 108, 109}}
    assert float(task.mean) == pytest.approx((0 + 1 + 2 + 3 + 5 + 102 + 103 + 104 + 105) / 9)
    assert "of 4 pieces without a gap" in task.describe()


def test_the_mask_of_a_task_leaves_filled_targets_out_and_known_columns_are_inputs(write):
    task = load_task("series", file=write(table()), **HOURLY, future=["holiday"], window=8, valid=0.0, test=0.0, fill=1)
    batch = task.batch("train", torch.tensor([0]))
    assert batch.mask.tolist() == [[True, True, True, False, True, True, False, True]]
    ahead = batch.inputs[0, :, 1] * task.deviation[1] + task.mean[1]
    assert ahead.round().int().tolist() == [1, 2, 0, 1, 2, 0, 1, 2]  # at 07:00 the line between 0 and 2
    assert task.identity()["fill"] == 1


def test_a_plain_file_keeps_its_identity_and_equals_the_same_file_with_stamps(write):
    values = [3.0, 1.0, 4.0, 1.5, 9.0, 2.0, 6.0, 5.0, 3.5, 5.5]
    plain = load_task("series", file=write("v\n" + "\n".join(map(str, values))), window=2, test=0.4, valid=0.0)
    stamped = "t,v\n" + "\n".join(f"{5 * t},{v}" for t, v in enumerate(values))
    other = load_task("series", file=write(stamped, "b.csv"), time="t", window=2, test=0.4, valid=0.0)
    assert set(plain.identity()) == {"task", "sha256", "columns", "targets", "window", "horizon", "sizes"}
    for split in plain.splits:
        a, b = (task.batch(split, torch.arange(task.size(split))) for task in (plain, other))
        assert torch.equal(a.inputs, b.inputs) and torch.equal(a.targets, b.targets)


def test_study_task_finds_the_delay_of_series_with_gaps(write):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(3, 400, generator=generator)
    lines = [
        f"{t},{site},{x[site, t]:.6f},{x[site, t - 5] if t >= 5 else 0:.6f}"
        for site in range(3)
        for t in range(400)
        if t % 97 != 96  # a step is missing now and then: its neighbours are no neighbours
    ]
    file = write("t,site,x,y\n" + "\n".join(lines))
    # y at the next step is x four steps back
    found = read_series(file, ["x"], ["y"], time="t", series="site")
    study = holdfast.study_task(found.x, found.y, lengths=found.lengths, mask=found.mask, lags=12)
    assert study.steps == 4 and study.explained > 0.99
    joined = read_series(
        write("\n".join(["x,y", *(",".join(line.split(",")[2:]) for line in lines)]), "c.csv"), ["x"], ["y"]
    )
    assert holdfast.study_task(joined.x, joined.y, lags=12).explained < study.explained  # gaps closed up


def test_the_mask_of_a_study_leaves_wrong_targets_out():
    x = torch.randn(8, 60, 1, generator=torch.Generator().manual_seed(0))
    y = x.roll(3, 1)
    mask = torch.rand(8, 60, generator=torch.Generator().manual_seed(1)) < 0.8
    spoilt = torch.where(mask[..., None], y, 50.0)
    study = holdfast.study_task(x, spoilt, mask=mask, lags=8)
    assert study.steps == 3 and study.explained > 0.99
    assert holdfast.study_task(x, spoilt, lags=8, products=False).explained < 0.5
    with pytest.raises(ArgumentError, match="mask: expected bool of shape"):
        holdfast.study_task(x, y, mask=mask[:, :5])


def test_a_frame_of_pandas_is_the_same_as_its_file(write):
    pandas = pytest.importorskip("pandas")
    file = write(table())
    frame = pandas.read_csv(file, parse_dates=["when"])
    expected, found = read_series(file, **HOURLY), read_series(frame, **HOURLY)
    indexed = read_series(frame.set_index("when"), **HOURLY)
    zoned = read_series(frame.assign(when=frame["when"].dt.tz_localize("UTC")), **HOURLY)
    for other in (found, indexed, zoned):
        assert torch.equal(other.x, expected.x) and torch.equal(other.y, expected.y)
    task = load_task("series", file=frame, **HOURLY, window=2, test=0.4, valid=0.0)
    assert task.size("train") == load_task("series", file=file, **HOURLY, window=2, test=0.4, valid=0.0).size("train")


@pytest.mark.parametrize(
    ("text", "options", "words"),
    [
        ("t,v\n0,1\n1,2\n1,3\n", {"time": "t"}, "stamps 1 and 2 at the same time"),
        ("t,v\n0,1\n1,2\n2,3\n2.5,3\n", {"time": "t"}, "got stamp 3 at 2.5 steps of 1"),
        ("t,v\nsoon,1\nlater,2\n", {"time": "t"}, "row 0: expected a date such as"),
        ("t,v\n0,1\n1,2\n", {"time": "t", "every": "1h"}, "every: expected a number, or for dates"),
        ("t,v\n0,1\n1,2\n", {"every": 1.0}, "needs a column of time stamps"),
        ("t,v\n0,1\n,2\n", {"time": "t"}, "expected a date|no time stamp"),
        ("t,v\n0,x\n1,2\n", {"time": "t"}, "row 0: expected a number or an empty cell, got 'x'"),
        ("t,v\n0,\n1,\n", {"time": "t"}, "rows with a value in each"),
        ("t,v\n0,1\n1\n", {"time": "t"}, "expected 2 cells in row 1, got 1"),
        ("t,v\n0,1\n1,2\n", {"time": "t", "horizon": 5}, "horizon must be below the length"),
        ("t,t\n0,1\n1,2\n", {"time": "t"}, "names each column once"),
    ],
)
def test_what_is_no_series_is_refused_with_the_place(write, text, options, words):
    with pytest.raises((ArgumentError, DamagedResultError), match=words):
        read_series(write(text), **options)


def test_a_misspelt_column_meets_the_nearest(write):
    with pytest.raises(UnknownNameError, match="Did you mean 'when'"):
        read_series(write(table()), time="whem")
