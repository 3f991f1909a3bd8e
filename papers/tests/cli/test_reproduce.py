"""`holdfast list`, `reproduce` and `report` as a user meets them."""

import json
import shutil
import sys
from pathlib import Path

import pytest

from holdfast._words import duration
from holdfast.cli.app import main
from holdfast_papers import experiments
from holdfast_papers.cli.progress import Estimate
from holdfast_papers.execution import Store, Task
from holdfast_papers.execution.check import compare
from holdfast_papers.results import Claim, Result

TOY = Path(__file__).parent.parent / "execution" / "toy.py"


@pytest.fixture
def holdfast(monkeypatch, capsys):
    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["holdfast", *map(str, arguments)])
        code = 0
        try:
            main()
        except SystemExit as end:
            code = end.code or 0
        return code, *capsys.readouterr()

    return call


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """A store with every unit and the conclusion of the toy, written as `reproduce` would."""
    from holdfast_papers.execution.task import perform_in

    store = Store(tmp_path_factory.mktemp("kept"))
    store.prepare()
    from holdfast_papers.execution import plan

    (job,) = plan(store, [str(TOY)], "quick", print)
    for task in job.units:
        perform_in(store, task, lambda done, text: None)
    (job,) = plan(store, [str(TOY)], "quick", print)
    perform_in(store, job.conclusion(), lambda done, text: None)
    return store.root


@pytest.fixture
def store(kept, tmp_path):
    return Path(shutil.copytree(kept, tmp_path / "results"))


def test_list_names_every_experiment(holdfast):
    code, out, _ = holdfast("list")
    assert code == 0
    assert all(entry.id in out for entry in experiments.list())
    code, out, _ = holdfast("list", "--json")
    entries = json.loads(out)
    assert {entry["id"] for entry in entries} == set(experiments.registry.ids())


def test_reproduce_of_what_is_there_prints_claims_and_the_page(holdfast, store):
    code, out, err = holdfast("reproduce", TOY, "--store", store)
    assert code == 0, err
    assert "1 experiment: 6 units are there, 0 to run" in err
    assert "1 met, 1 not met, 1 undecided" in out
    assert f"Page: {store / 'page' / 'index.html'}" in out
    assert (store / "page" / "index.html").is_file()


def test_redraw_draws_the_conclusion_again_from_the_units_that_are_there(holdfast, store):
    (conclusion,) = store.glob("*/conclusion-quick/result.json")
    units = {file: file.stat().st_mtime_ns for file in store.glob("*/*/result.json") if file != conclusion}
    before = conclusion.stat().st_mtime_ns
    code, out, err = holdfast("reproduce", TOY, "--store", store, "--redraw")
    assert code == 0, err
    assert "6 units are there, 0 to run" in err and "1 met, 1 not met, 1 undecided" in out
    assert conclusion.stat().st_mtime_ns > before
    assert {file: file.stat().st_mtime_ns for file in units} == units


def test_json_is_json_also_where_numbers_are_infinite(holdfast, store):
    code, out, _ = holdfast("reproduce", TOY, "--store", store, "--json")
    found = json.loads(out)
    assert code == 0
    assert [claim["status"] for claim in found["claims"]] == ["met", "not met", "undecided"]
    assert found["claims"][2]["numbers"]["worst"] == {"float": "inf"}  # as in result.json


def test_check_is_silent_about_what_is_equal_and_tells_what_moved(holdfast, store, tmp_path):
    reference = tmp_path / "reference"
    folder = reference / "own-toy" / "conclusion-quick"
    shutil.copytree(store / "own-toy" / "conclusion-quick", folder)
    code, out, _ = holdfast("reproduce", TOY, "--store", store, "--check", "--reference", reference)
    assert code == 0 and "MOVED" not in out and "note" not in out
    before = Result.load(folder)
    claims = [before.claims[0], Claim("zero", "x", "met", {"mean": 1e3}), before.claims[2]]
    Result(before.experiment, before.config, before.arrays, claims, before.provenance, page=before.page).save(folder)
    code, out, _ = holdfast("reproduce", TOY, "--store", store, "--check", "--reference", reference)
    assert code == 1
    assert "MOVED  own-toy: claim 'zero' was met, is not met" in out
    assert "claim 'zero': mean was 1000, is" in out


def test_check_compares_only_verdicts_where_the_reference_has_another_config(store, tmp_path):
    result = Result.load(store / "own-toy" / "conclusion-quick")
    stronger = experiments.run(str(TOY), "standard")
    stronger.save(tmp_path / "own-toy" / "conclusion-standard")
    (move,) = compare(result, tmp_path)
    assert not move.serious and "run at standard: only verdicts compared" in move.text
    (move,) = compare(result, tmp_path / "nowhere")
    assert not move.serious and "has no reference" in move.text


def test_check_and_its_reference_need_each_other(holdfast, store, tmp_path):
    code, _, err = holdfast("reproduce", TOY, "--store", store, "--reference", tmp_path)
    assert code == 2 and "add --check, or leave it out" in err
    code, _, err = holdfast("reproduce", TOY, "--store", store, "--check", "--reference", tmp_path / "nowhere")
    assert code == 2 and "expected a folder of reference results" in err


def test_report_writes_the_page_and_the_figures(holdfast, store):
    pytest.importorskip("matplotlib")
    code, out, _ = holdfast("report", "--store", store, "--figures")
    assert code == 0
    assert "4 files in" in out and "index.html" in out
    assert len(list((store / "page" / "figures").glob("own-toy-*"))) == 4


def test_report_without_results_ends_with_2_and_says_what_to_do(holdfast, tmp_path):
    code, _, err = holdfast("report", "--store", tmp_path)
    assert code == 2 and "run `holdfast reproduce` first" in err
    code, _, err = holdfast("report", "--store", tmp_path, "--preset", "fast")
    assert code == 2 and "unknown preset" in err


def test_report_into_a_folder_that_cannot_be_written_ends_with_2(holdfast, store, tmp_path):
    (tmp_path / "file").write_text("not a folder")
    code, _, err = holdfast("report", "--store", store, "--out", tmp_path / "file" / "page")
    assert code == 2 and "Not a directory" in err and "Traceback" not in err


@pytest.mark.parametrize("command", ["reproduce", "list", "report"])
def test_help_has_an_example(holdfast, command):
    code, out, _ = holdfast(command, "--help")
    assert code == 0 and f"holdfast {command}" in out and "Example" in out


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.32, "0.3 s"), (12.4, "12 s"), (59.7, "1 min 0 s"), (200, "3 min 20 s"), (7500, "2 h 5 min")],
)
def test_durations_are_said_as_people_say_them(seconds, text):
    assert duration(seconds) == text


def test_the_estimate_counts_by_cost():
    class Job:
        missing = (_task("a", 3.0), _task("b", 1.0))

    estimate = Estimate()
    estimate.plan([Job()])
    assert estimate.done == 0.0 and estimate.units == 2
    estimate.move(Job.missing[0], 0.5)
    assert estimate.done == pytest.approx(0.375)
    estimate.end(Job.missing[0])
    assert estimate.done == pytest.approx(0.75)
    estimate.end(Job.missing[1])
    assert estimate.done == 1.0


def _task(name, cost):
    return Task("unit", "own-toy", "toy.py", name, {}, name, cost)
