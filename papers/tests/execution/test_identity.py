"""A saved unit is used for the task that it belongs to and for no other."""

import json
import re
import shutil
from pathlib import Path

import own
import pytest

from holdfast.errors import ArgumentError
from holdfast_papers import experiments
from holdfast_papers.execution import Store, plan
from holdfast_papers.execution.task import perform_in
from holdfast_papers.experiments.running import run_unit


def _claims(out):
    return {claim["name"]: claim["numbers"] for claim in json.loads(out)["claims"]}


def test_a_copied_unit_is_told_and_runs_again(reproduce, tmp_path):
    path = own.write(tmp_path / "mine.py")
    code, out, _ = reproduce("--json", experiment=path)
    assert code == 0 and _claims(out) == {"total": {"total": 2.0}}
    first, second = reproduce.units()
    shutil.rmtree(second)
    shutil.copytree(first, second)
    code, out, err = reproduce("--json", experiment=path)
    assert code == 0 and _claims(out) == {"total": {"total": 2.0}}
    assert f"{second} holds another unit (own-mine); it runs again" in err


def test_a_unit_of_another_experiment_version_or_seed_is_told_and_runs_again(tmp_path):
    store = Store(tmp_path / "results")
    store.prepare()
    path = own.write(tmp_path / "mine.py")
    (job,) = plan(store, [path], "quick", print)
    for task in job.units:
        perform_in(store, task, lambda done, text: None)
    from holdfast._files import seal
    from holdfast_papers._manifest import unseal

    for change in (
        lambda body: body.update(experiment="own-other"),
        lambda body: body["config"].update(k=7),
        lambda body: body["provenance"].update(seed=5),
        lambda body: body["provenance"]["extra"].update(version=2),
        lambda body: body["provenance"]["extra"].pop("source"),
        lambda body: body["provenance"].update(extra=None),
    ):
        manifest = Path(job.units[0].folder) / "result.json"
        whole = manifest.read_bytes()
        body = unseal(manifest)
        change(body)
        manifest.write_bytes(seal(body))
        notices = []
        (job,) = plan(store, [path], "quick", notices.append)
        assert len(job.missing) == 1 and "holds another unit" in notices[0]
        manifest.write_bytes(whole)
    assert plan(store, [path], "quick", print)[0].missing == []


def test_an_edited_file_runs_again_also_within_a_second_of_its_first_run(reproduce, tmp_path):
    path = own.write(tmp_path / "mine.py", 'return {"a": np.full(2, 1.0)}')
    _, out, _ = reproduce("--json", experiment=path)
    assert _claims(out) == {"total": {"total": 4.0}}
    own.write(tmp_path / "mine.py", 'return {"a": np.full(2, 3.0)}')  # as long as before
    _, out, err = reproduce("--json", experiment=path)
    assert _claims(out) == {"total": {"total": 12.0}}
    assert "2 to run" in err
    _, _, err = reproduce("--json", experiment=path)
    assert "2 units are there, 0 to run" in err


def _with_neighbours(folder, factor):
    """An experiment that imports a file, which imports a package, which holds the number."""
    (folder / "scales").mkdir(parents=True, exist_ok=True)
    (folder / "helper.py").write_text("from scales.one import FACTOR\n\n\ndef value(k):\n    return FACTOR * k\n")
    (folder / "scales" / "__init__.py").write_text("")
    (folder / "scales" / "one.py").write_text(f"FACTOR = {factor}\n")
    (folder / "random.py").write_text("raise RuntimeError('a neighbour took the place of a module of Python')\n")
    body = 'import random, helper; return {"a": np.full(2, helper.value(config["k"] + 1.0))}'
    return own.write(folder / "mine.py", body)


def test_a_changed_neighbour_is_noticed_and_kept_units_are_used_where_that_is_asked(reproduce, tmp_path):
    path = _with_neighbours(tmp_path, 1)
    assert _claims(reproduce("--json", experiment=path)[1]) == {"total": {"total": 6.0}}
    _with_neighbours(tmp_path, 5)
    _, out, err = reproduce("--json", "--keep", experiment=path)
    assert _claims(out) == {"total": {"total": 6.0}}
    assert "own-mine: the code changed: 2 units of the earlier code kept" in err and "0 to run" in err
    _, out, err = reproduce("--json", experiment=path)
    assert _claims(out) == {"total": {"total": 30.0}}
    assert "own-mine: the code changed: 2 units run again, or pass --keep" in err
    assert "the code changed" not in reproduce("--json", experiment=path)[2]


def test_what_lies_in_the_working_folder_is_not_installed(tmp_path, monkeypatch):
    """`python -m holdfast` has the working folder on its path, with the neighbours or with other files of their names."""
    path = _with_neighbours(tmp_path / "mine", 3)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "helper.py").write_text("raise RuntimeError('not the neighbour')\n")
    apart = experiments.get(path).source
    for place in (tmp_path / "mine", elsewhere):
        monkeypatch.chdir(place)
        monkeypatch.syspath_prepend(str(place))
        assert experiments.get(path).source == apart
        assert experiments.run(path, "quick").claims[0].numbers == {"total": 18.0}


def test_a_folder_of_files_is_a_neighbour_without_an_init_too(tmp_path):
    path = _with_neighbours(tmp_path, 2)
    (tmp_path / "scales" / "__init__.py").unlink()
    first = experiments.get(path).source
    assert experiments.run(path, "quick").claims[0].numbers == {"total": 12.0}
    (tmp_path / "scales" / "one.py").write_text("FACTOR = 4\n")
    assert experiments.get(path).source != first
    assert experiments.run(path, "quick").claims[0].numbers == {"total": 24.0}


def test_two_files_with_one_id_are_refused_and_one_named_twice_runs_once(tmp_path):
    store = Store(tmp_path / "results")
    store.prepare()
    one, other = own.write(tmp_path / "one.py"), own.write(tmp_path / "other.py")
    with pytest.raises(ArgumentError, match=r"got 'own-mine' in .*one\.py and in .*other\.py.*change one id"):
        plan(store, [one, other], "quick", print)
    assert len(plan(store, [one, one], "quick", print)) == 1


def test_neighbours_of_one_name_in_two_folders_are_each_their_own(tmp_path):
    one, other = _with_neighbours(tmp_path / "one", 1), _with_neighbours(tmp_path / "other", 7)
    values = [float(run_unit(experiments.get(path), {"k": 0}).arrays["a"][0]) for path in (one, other, one)]
    assert values == [1.0, 7.0, 1.0]
    assert not [*tmp_path.rglob("__pycache__")]


def test_two_files_with_one_id_share_no_units(reproduce, tmp_path):
    one = own.write(tmp_path / "one.py", 'return {"a": np.full(2, 1.0)}')
    other = own.write(tmp_path / "other.py", 'return {"a": np.full(2, 3.0)}')
    assert _claims(reproduce("--json", experiment=one)[1]) == {"total": {"total": 4.0}}
    assert _claims(reproduce("--json", experiment=other)[1]) == {"total": {"total": 12.0}}
    assert _claims(reproduce("--json", experiment=one)[1]) == {"total": {"total": 4.0}}
    assert len(reproduce.units()) == 4


def test_a_file_edited_while_it_runs_saves_nothing_under_the_old_name(tmp_path):
    store = Store(tmp_path / "results")
    store.prepare()
    path = own.write(tmp_path / "mine.py")
    (job,) = plan(store, [path], "quick", print)
    own.write(tmp_path / "mine.py", 'return {"a": np.zeros(2)}')
    with pytest.raises(ArgumentError, match="was edited during the run; run the same command again"):
        perform_in(store, job.units[0], lambda done, text: None)
    assert list(store.root.glob("own-mine/*/result.json")) == []


def test_loading_a_users_file_writes_nothing_beside_it(tmp_path):
    experiments.get(own.write(tmp_path / "mine.py"))
    assert [path.name for path in tmp_path.iterdir()] == ["mine.py"]


def test_a_users_file_with_a_papers_id_is_refused_with_how_to_rename_it(reproduce, tmp_path):
    path = own.write(tmp_path / "mine.py", id="stable-fig2")
    code, _, err = reproduce(experiment=path)
    assert code == 2
    assert "got 'stable-fig2', which is reserved for a paper" in err and 'write id="own-fig2"' in err
    assert not (reproduce.store / "stable-fig2").exists()


def test_an_array_name_that_cannot_be_saved_fails_at_once_and_names_the_unit(reproduce, tmp_path):
    # the last two are names of numpy's own arguments, which may be used
    names = r'["figure.a", "a\\b", "", "file", "allow_pickle"]'
    body = f'return {{"a": np.zeros(2), {names}[config["k"]]: np.zeros(2)}}'
    code, _, err = reproduce(experiment=own.write(tmp_path / "mine.py", body, units=5))
    assert code == 1
    for k in range(3):
        unit = f"the unit of {{'k': {k}}} returned something that cannot be saved"
        assert f"FAILED  own-mine k={k}: ArgumentError: own-mine: {unit}" in err
    assert [(unit / "result.json").exists() for unit in reproduce.units()].count(True) == 2


@pytest.mark.parametrize("returned", ["None", "[1, 2]", '{"a": [object()]}', "{3: [1.0]}"])
def test_what_is_no_dict_of_arrays_is_refused_with_the_unit(tmp_path, returned):
    experiment = experiments.get(own.write(tmp_path / "mine.py", f"return {returned}"))
    with pytest.raises(
        ArgumentError, match=re.escape("own-mine: the unit of {'k': 1} returned something that cannot be saved")
    ):
        run_unit(experiment, {"k": 1})


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("x = (", "SyntaxError"),
        ("\nimport nothing_of_that_name", "at line 2: ModuleNotFoundError"),
        ("a = 1", "must define EXPERIMENT"),
    ],
)
def test_a_file_that_cannot_be_loaded_ends_with_2_and_one_line(reproduce, tmp_path, text, told):
    (tmp_path / "mine.py").write_text(text)
    code, _, err = reproduce(experiment=str(tmp_path / "mine.py"))
    assert code == 2 and str(tmp_path / "mine.py") in err and told in err
    assert "Traceback" not in err
