import numpy as np
import pytest
import torch
import typer
from typer.testing import CliRunner

from holdfast.cli import diagnose
from holdfast.cli._files import SeriesColumns, read_data, read_inputs
from holdfast.errors import ArgumentError

app = typer.Typer()
app.command("diagnose")(diagnose.command)

MODELS = """
from torch import nn

def gru():
    return nn.GRU(1, 4, batch_first=True)
"""


def test_one_command_prints_a_screen_and_writes_a_page(tmp_path):
    (tmp_path / "my_models.py").write_text(MODELS)
    x = np.random.default_rng(0).standard_normal((30, 60, 1))
    np.savez(tmp_path / "task.npz", inputs=x, targets=np.roll(x, 20, 1))
    page = tmp_path / "report.html"
    arguments = [f"{tmp_path}/my_models.py:gru", "--data", str(tmp_path / "task.npz"), "--horizon", "128"]
    done = CliRunner().invoke(app, [*arguments, "--html", str(page), "--details"])
    assert done.exit_code == 0, done.output
    assert max(map(len, done.stdout.splitlines())) <= 80
    for head in ("MEMORY", "TASK", "EDGE", "WEIGHTS", "TRAINING", "ADVICE", "DETAILS"):
        assert f"\n{head}" in done.stdout
    text = " ".join(done.stdout.split())
    assert "needs the last 20 steps" in text
    assert "Adam at" in text and "on your data" in text
    assert "<svg" in page.read_text()


def test_tasks_are_read_from_npz_and_csv_and_mistakes_are_named(tmp_path):
    (tmp_path / "series.csv").write_text("a,b,target\n1,2,3\n4,5,6\n")
    x, y = read_data(tmp_path / "series.csv")
    assert x.shape == (1, 2, 2)
    assert y.flatten().tolist() == [3, 6]
    np.savez(tmp_path / "two.npz", x=np.ones((3, 5)), y=np.ones(3))
    x, y = read_data(tmp_path / "two.npz")
    assert (tuple(x.shape), tuple(y.shape)) == ((3, 5, 1), (3, 1))
    np.savez(tmp_path / "tokens.npz", inputs=np.ones((3, 5), int), targets=np.ones(3, int))
    x, y = read_data(tmp_path / "tokens.npz")
    assert (tuple(x.shape), tuple(y.shape), x.dtype, y.dtype) == ((3, 5), (3,), torch.int64, torch.int64)
    np.savez(tmp_path / "other.npz", a=np.ones(3))
    (tmp_path / "text.npz").write_text("no zip")
    for name, said in (
        ("other.npz", "must hold arrays 'inputs'"),
        ("text.npz", "not a readable"),
        ("none.npz", "existing file"),
    ):
        with pytest.raises(ArgumentError, match=said):
            read_data(tmp_path / name)


def test_inputs_alone_are_read_and_mistakes_are_named(tmp_path):
    np.save(tmp_path / "tokens.npy", np.ones((3, 5), int))
    assert read_inputs(tmp_path / "tokens.npy").dtype == torch.int64
    np.savez(tmp_path / "x.npz", x=np.ones((3, 5)))
    assert tuple(read_inputs(tmp_path / "x.npz").shape) == (3, 5, 1)
    np.save(tmp_path / "bad.npy", np.full((3, 5), np.nan))
    np.save(tmp_path / "objects.npy", np.array([{}]), allow_pickle=True)
    for name, said in (
        ("bad.npy", "finite real numbers"),
        ("objects.npy", "not a readable"),
        ("no.npy", "existing file"),
    ):
        with pytest.raises(ArgumentError, match=said):
            read_inputs(tmp_path / name)


@pytest.mark.slow
def test_inputs_put_memory_at_rest_and_on_data_side_by_side(tmp_path):
    (tmp_path / "my_models.py").write_text(MODELS)
    np.save(tmp_path / "x.npy", np.random.default_rng(0).standard_normal((6, 80, 1)))
    arguments = [f"{tmp_path}/my_models.py:gru", "--inputs", str(tmp_path / "x.npy"), "--horizon", "64"]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    text = " ".join(done.stdout.split())
    assert "at rest: " in text and "on your data: " in text and "along your data: " in text


def test_a_series_with_stamps_and_a_gap_is_cut_into_windows_of_forecasts(tmp_path):
    lines = [f"{t},{site},{100 * site + t},{t % 7}" for site in range(2) for t in range(64) if (site, t) != (0, 20)]
    (tmp_path / "load.csv").write_text("when,site,load,day\n" + "\n".join(lines))
    columns = SeriesColumns("when", "site", ("load",), ("day",), ahead=3)
    x, y = read_data(tmp_path / "load.csv", columns)
    length = x.shape[1]
    assert length == (17 + 40 + 61) // 8  # eight windows or more
    assert torch.equal(y[..., 0], x[..., 0] + 3)
    assert torch.equal(x[..., 1], y[..., 0].remainder(100).remainder(7))
    assert len(x) == sum(steps // length for steps in (17, 40, 61))
    (tmp_path / "dates.csv").write_text("when,load\n2026-01-01,3\n")
    with pytest.raises(ArgumentError, match="--time or --series"):
        read_data(tmp_path / "dates.csv")
    done = CliRunner().invoke(app, ["m:f", "--time", "when"])
    assert "give --data too" in str(done.exception)
