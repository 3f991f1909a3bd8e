"""The page's folder: nothing in it is touched but what an earlier page wrote."""

import importlib.util
import os
import shutil
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from holdfast._files import seal
from holdfast.errors import ArgumentError, HoldfastError
from holdfast.figures import Axis, Figure, Panel, Rule
from holdfast_papers import experiments
from holdfast_papers._manifest import unseal
from holdfast_papers.execution import Store
from holdfast_papers.experiments.running import run_unit
from holdfast_papers.report import page as page_module
from holdfast_papers.report import write_figures, write_page
from holdfast_papers.results import Result


@pytest.fixture
def store(results, tmp_path):
    return shutil.copytree(results, tmp_path / "store")


@pytest.fixture
def toy(store):
    return store / "own-toy" / "conclusion-quick"


def tree(folder):
    return {p.relative_to(folder): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def reseal(folder, change):
    body = unseal(folder / "result.json")
    change(body)
    (folder / "result.json").write_bytes(seal(body))


def test_a_folder_with_files_of_others_is_refused_and_left_as_it_was(store, tmp_path):
    project = tmp_path / "project"
    for name in ("data/m.csv", "data/sub/n.csv", "raw/exp1/x.bin", "assets/logo.svg", "index.html"):
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text("mine")
    before = tree(project)
    with pytest.raises(
        ArgumentError, match=r"assets, data, index.html, ...\); nothing was written: name another folder"
    ):
        write_page(store, project)
    assert tree(project) == before


def test_of_a_page_only_its_own_files_are_removed(store, tmp_path):
    out = write_page(store, tmp_path / "page").parent
    theirs = ["data/notes.csv", "raw/own-toy/notes.txt", "raw/mine/x.bin", "figures/a.png", "README"]
    for name in theirs:
        (out / name).parent.mkdir(exist_ok=True)
        (out / name).write_text("mine")
    shutil.rmtree(store / "own-toy")
    write_page(store, out)
    assert all((out / name).read_text() == "mine" for name in theirs)
    assert not (out / "data" / "own-toy.js").exists()
    assert [p.name for p in (out / "raw" / "own-toy").iterdir()] == ["notes.txt"]
    assert (out / "data" / "stable-fig2.js").exists()


def test_a_file_of_the_users_in_a_pages_folder_is_not_written_over(store, tmp_path):
    toy = shutil.move(store / "own-toy", tmp_path / "aside")
    out = write_page(store, tmp_path / "page").parent
    (out / "data" / "own-toy.js").write_text("mine")
    shutil.move(toy, store / "own-toy")
    with pytest.raises(ArgumentError, match=r"own-toy.js is not a file of the page"):
        write_page(store, out)
    assert (out / "data" / "own-toy.js").read_text() == "mine"


def test_a_link_in_the_pages_folder_leads_no_file_out_of_it(store, tmp_path):
    out = write_page(store, tmp_path / "page").parent
    shutil.move(out / "data", tmp_path / "elsewhere")
    (out / "data").symlink_to(tmp_path / "elsewhere")
    before = tree(tmp_path / "elsewhere")
    shutil.rmtree(store / "own-toy")
    with pytest.raises(ArgumentError, match="is a link to another folder"):
        write_page(store, out)
    assert tree(tmp_path / "elsewhere") == before


def test_a_page_of_an_earlier_version_is_taken_over_with_the_files_that_it_names(store, tmp_path):
    out = write_page(store, tmp_path / "page").parent
    (out / "holdfast-page.json").unlink()
    (out / "data" / "notes.csv").write_text("mine")
    shutil.rmtree(store / "own-toy")
    write_page(store, out)
    assert not (out / "data" / "own-toy.js").exists() and not (out / "raw" / "own-toy").exists()
    assert (out / "data" / "notes.csv").read_text() == "mine"


def test_a_writer_that_was_killed_leaves_a_folder_that_the_next_one_takes(store, tmp_path, monkeypatch):
    def killed(source, target):
        raise KeyboardInterrupt

    for allowed in (0, 1, 3):
        out = tmp_path / f"page{allowed}"
        replace_file, left = os.replace, [allowed]

        def some(source, target, left=left, replace_file=replace_file):
            left[0] -= 1
            (replace_file if left[0] >= 0 else killed)(source, target)

        monkeypatch.setattr(os, "replace", some)
        monkeypatch.setattr("holdfast._files.Path.unlink", lambda self, missing_ok=False: None)
        with pytest.raises(KeyboardInterrupt):
            write_page(store, out)
        monkeypatch.undo()
        assert write_page(store, out).is_file()


def test_an_experiment_field_that_is_a_path_writes_and_removes_nothing_elsewhere(store, toy, tmp_path):
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "mine.txt").write_text("mine")
    reseal(toy, lambda body: body.update(experiment=str(docs)))
    text = write_page(store, tmp_path / "page").read_text()
    assert "the id of an experiment must be" in text and "stable-fig2" in text
    assert tree(tmp_path / "docs") == {docs.joinpath("mine.txt").relative_to(docs): b"mine"}
    assert not (tmp_path / "docs.js").exists()


def test_a_conclusion_in_the_folder_of_another_experiment_or_preset_is_not_shown_there(store, toy, tmp_path):
    shutil.copytree(store / "stable-fig2" / "conclusion-quick", store / "own-other" / "conclusion-quick")
    shutil.copytree(toy, store / "stable-fig2" / "conclusion-paper")
    damage = []
    write_page(store, tmp_path / "page", notice=damage.append)
    assert len(damage) == 2
    assert all("holds the conclusion of another experiment or preset" in line for line in damage)


def test_a_link_in_a_conclusion_is_neither_followed_nor_published(store, toy, tmp_path):
    secret = tmp_path / "secret.txt"
    secret.write_text("password")
    (toy / "notes.txt").symlink_to(secret)
    (toy / "more.txt").write_text("beside it")
    out = write_page(store, tmp_path / "page").parent
    assert sorted(p.name.split("-")[0] for p in (out / "raw" / "own-toy").iterdir()) == ["arrays", "result.json"]
    assert not any(b"password" in content for content in tree(out).values())
    arrays = next(toy.glob("arrays-*"))
    arrays.rename(tmp_path / "moved")
    arrays.symlink_to(tmp_path / "moved")
    damage = []
    write_page(store, tmp_path / "other", notice=damage.append)
    assert "symbolic link" in damage[0]


def _resealed(change):
    return lambda folder: reseal(folder, change)


def _directory(folder):
    (folder / "result.json").unlink()
    (folder / "result.json").mkdir()


SPOILED = {
    "limits that are not finite": _resealed(
        lambda body: body["page"]["figures"][0]["panels"][0]["x"].update(limits=[0.0, {"float": "inf"}])
    ),
    "unknown claim field": _resealed(lambda body: body["claims"][0].update(colour="red")),
    "unknown page field": _resealed(lambda body: body["page"].update(colour="red")),
    "missing array": _resealed(
        lambda body: body["page"]["figures"][0]["panels"][0]["layers"][0].update(x={"array": "figure.gone"})
    ),
    "a table that is not a table": _resealed(lambda body: body["page"]["tables"][0].update(rows=[3])),
    "a title that is a list": _resealed(lambda body: body["page"].update(title=[1], summary={"a": 1}, notes=7)),
    "columns that are text": _resealed(lambda body: body["page"]["figures"][0].update(columns="two")),
    "an unknown paper": _resealed(lambda body: body["page"].update(paper="nature")),
    "a folder instead of result.json": _directory,
}


@pytest.mark.parametrize("kind", SPOILED)
def test_a_conclusion_that_cannot_be_shown_is_named_and_the_others_are_shown(store, toy, tmp_path, kind):
    SPOILED[kind](toy)
    damage = []
    index = write_page(store, tmp_path / "page", notice=damage.append)
    assert len(damage) == 1 and str(toy) in damage[0]
    assert 'role="alert"' in index.read_text() and str(toy) in index.read_text()
    assert (tmp_path / "page" / "data" / "stable-fig2.js").exists()
    again = []
    write_page(store, tmp_path / "page", notice=again.append)
    assert again == damage, "reported every time"


def test_damage_that_was_mended_leaves_the_page(store, toy, tmp_path):
    arrays = next(toy.glob("arrays-*"))
    whole = arrays.read_bytes()
    arrays.write_bytes(whole[:-1])
    index = write_page(store, tmp_path / "page")
    assert 'role="alert"' in index.read_text()
    arrays.write_bytes(whole)
    assert 'role="alert"' not in write_page(store, tmp_path / "page").read_text()


def test_a_rule_at_infinity_is_not_drawn_and_everything_else_is(store, toy, tmp_path):
    pytest.importorskip("matplotlib")
    result = Result.load(toy)
    rules = [Rule("r", x=value) for value in (float("inf"), float("-inf"), float("nan"))]
    panel = Panel("p", Axis("x"), Axis("y"), rules)
    replace(result, page=replace(result.page, figures=[Figure("f", "c", [panel])])).save(toy)
    damage = []
    write_page(store, tmp_path / "page", notice=damage.append)
    files = write_figures(store, tmp_path / "figures", notice=damage.append)
    assert damage == [] and len(files) == 4


def test_a_folder_that_cannot_be_read_is_named_and_the_others_are_shown(store, toy, tmp_path, monkeypatch):
    opened = os.open

    def refuse(path, *arguments, **named):
        if str(path).startswith(str(toy)):
            raise PermissionError(13, "Permission denied", str(path))
        return opened(path, *arguments, **named)

    monkeypatch.setattr(os, "open", refuse)
    damage = []
    index = write_page(store, tmp_path / "page", notice=damage.append)
    assert len(damage) == 1 and f"{toy / 'result.json'} is damaged or half-written: Permission denied" in damage[0]
    assert "stable-fig2" in index.read_text()


def test_who_waits_for_the_page_writes_what_is_there_when_its_turn_comes(store, tmp_path, monkeypatch):
    """One command stops in the middle of the page; results arrive; another command writes; nothing newer is lost."""
    aside = shutil.move(store / "own-toy", tmp_path / "aside")
    stopped, go_on, waiting = threading.Event(), threading.Event(), threading.Event()
    load, locked = page_module.load_conclusions, page_module.locked

    def slowly(*arguments):
        loaded = load(*arguments)
        if threading.current_thread().name == "first":
            stopped.set()
            assert go_on.wait(60)
        return loaded

    def watched(folder):
        if threading.current_thread().name == "second":
            waiting.set()
        return locked(folder)

    monkeypatch.setattr(page_module, "load_conclusions", slowly)
    monkeypatch.setattr(page_module, "locked", watched)
    out = tmp_path / "page"
    first = threading.Thread(target=write_page, args=(store, out), name="first")
    first.start()
    assert stopped.wait(60)
    shutil.move(aside, store / "own-toy")
    second = threading.Thread(target=write_page, args=(store, out), name="second")
    second.start()
    while second.is_alive() and not waiting.is_set():
        second.join(0.02)
    go_on.set()
    first.join()
    second.join()
    assert 'id="own-toy"' in (out / "index.html").read_text()
    assert (out / "data" / "own-toy.js").exists()


def test_text_that_has_no_bytes_does_not_end_the_page(store, toy, tmp_path):
    reseal(toy, lambda body: body["page"].update(title="half \udcff of a letter"))
    assert "half \\udcff of a letter" in write_page(store, tmp_path / "page").read_text()


def test_results_of_the_repository_are_shown_without_damage(tmp_path):
    docs = Path(__file__).parents[3] / "docs" / "results"
    damage = []
    write_page(docs, tmp_path / "page", notice=damage.append)
    assert damage == []


def test_kept_results_are_conclusions_of_the_standard_preset_and_long_units(tmp_path, monkeypatch, capsys):
    path = Path(__file__).parents[3] / "tools" / "keep_results.py"
    spec = importlib.util.spec_from_file_location("keep_results", path)
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    monkeypatch.setattr(tool, "KEPT", tmp_path / "kept")
    short, long = experiments.get("stable-fig2"), experiments.get("stable-table2")
    store = Store(tmp_path / "store")
    for preset in ("quick", "standard"):
        experiments.run(short, "quick").save(store.conclusion(short.id, preset))
    whole = run_unit(short, short.units(short.config("quick"))[0])
    for experiment in (short, long):
        config = experiment.units(experiment.config("standard"))[0]
        replace(whole, experiment=experiment.owner, config=config).save(store.unit(experiment.owner, "unit"))
    tool.main(str(store.root), short.id, long.id)
    kept = sorted(str(path.parent.relative_to(tool.KEPT)) for path in tool.KEPT.glob("*/*/result.json"))
    assert kept == ["stable-fig2/conclusion-standard", "stable-language/unit"]
    assert "kept 1 conclusions, 1 units" in capsys.readouterr().out
    with pytest.raises(HoldfastError, match="no-such"):
        tool.main(str(store.root), "no-such")
