import json

import pytest
import typer
from typer.testing import CliRunner

from holdfast._provenance import Provenance
from holdfast.errors import ArgumentError, UnknownNameError
from holdfast_papers.benchmarks import Report, Row, markdown
from holdfast_papers.cli import bench

app = typer.Typer()
app.command("bench")(bench.command)


def holdfast(*arguments):
    return CliRunner().invoke(app, list(arguments))


def test_one_case_prints_ratio_goal_and_status_and_writes_json_and_markdown(tmp_path):
    file, page = tmp_path / "bench.json", tmp_path / "bench.md"
    done = holdfast("--only", "rnn-128x32x1x64", "--budget", "0.2", "--json", str(file), "--markdown", str(page))
    assert done.exit_code == 0, done.output
    assert "RNN against torch.nn.RNN, m <= 64" in done.stdout
    assert "goals: 1 " in done.stdout
    assert "rnn-128x32x1x64: torch.nn.RNN" in done.stderr  # progress, apart from the table
    (row,) = json.loads(file.read_text())["rows"]
    assert row["status"] in ("met", "missed")
    assert row["goal"] == 6
    assert row["ratio"]["low"] <= row["ratio"]["median"] <= row["ratio"]["high"]
    assert markdown.BEGIN in page.read_text()
    shown = holdfast("--from", str(file))
    assert shown.exit_code == 0
    assert f"{row['ratio']['median']:.2f}"[:3] in shown.stdout


def test_a_note_is_shown_as_it_is_brackets_included(tmp_path):
    row = Row(
        "c",
        "r",
        (1, 2, 3),
        "JAX",
        4.0,
        "at least",
        "not run",
        "jax not installed; pip install 'holdfast-papers[peers]'",
    )
    Report("holdfast bench", Provenance.collect(), (row,), (), ()).save(tmp_path / "bench.json")
    done = holdfast("--from", str(tmp_path / "bench.json"))
    assert done.exit_code == 0, done.output
    assert "not run: jax not installed; pip install 'holdfast-papers[peers]'" in " ".join(done.stdout.split())


def test_a_wrong_result_of_ours_ends_with_1(tmp_path):
    row = Row("c", "r", (1, 2, 3), "JAX", 4.0, "at least", "wrong", "ours: not timed")
    Report("holdfast bench", Provenance.collect(), (row,), (), ()).save(tmp_path / "bench.json")
    assert holdfast("--from", str(tmp_path / "bench.json")).exit_code == 1


def test_an_unknown_name_lists_the_known_ones_nearest_first():
    done = holdfast("--only", "s4")
    assert isinstance(done.exception, UnknownNameError)
    assert str(done.exception).startswith("unknown benchmark 's4'. Did you mean 's4d'?")


def test_a_budget_of_nothing_is_refused():
    done = holdfast("--budget", "0")
    assert isinstance(done.exception, ArgumentError)
    assert "expected seconds above 0, got 0.0" in str(done.exception)


def test_a_folder_that_is_not_there_is_noticed_before_measuring(tmp_path):
    done = holdfast("--json", str(tmp_path / "no" / "bench.json"))
    assert isinstance(done.exception, ArgumentError)
    assert "does not exist; create it first" in str(done.exception)


@pytest.mark.parametrize("options", [["--only", "scan"], ["--budget", "3"], ["--quick"], ["--peers"], ["--json", "x"]])
def test_options_that_an_earlier_run_would_ignore_are_refused(options, tmp_path):
    done = holdfast("--from", str(tmp_path / "x.json"), *options)
    assert isinstance(done.exception, ArgumentError)
    assert "--from shows an earlier run" in str(done.exception)
