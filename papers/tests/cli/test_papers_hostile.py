"""The commands among odd folders, names, locales and moments: nothing of the user's is touched, and what is wrong is said."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from holdfast.cli.app import app
from holdfast_papers import experiments
from holdfast_papers.execution import Store

TOY = Path(__file__).parent.parent / "execution" / "toy.py"
ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": "ascii"}


@pytest.fixture(scope="module")
def concluded(tmp_path_factory):
    """A store with two conclusions, computed in this process."""
    store = tmp_path_factory.mktemp("concluded")
    for id in (str(TOY), "stable-fig2"):
        result = experiments.run(id, "quick")
        result.save(Store(store).conclusion(result.experiment, "quick"))
    return store


@pytest.fixture
def project(concluded, tmp_path):
    """A user's project with data of its own beside the results."""
    for name in ("data/m.csv", "data/sub/n.csv", "raw/exp1/x.bin"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("mine")
    shutil.copytree(concluded, tmp_path / "results")
    return tmp_path


def tree(folder):
    return {str(p.relative_to(folder)): p.stat().st_mtime_ns for p in folder.rglob("*")}


def test_report_into_the_users_project_is_refused_and_touches_nothing(command, project):
    before = tree(project)
    done = command("report", "--out", ".", cwd=project)
    assert done.returncode == 2
    assert "with other files (data, raw, results); nothing was written" in done.stderr
    assert tree(project) == before
    assert command("report", "--out", "new", cwd=project).returncode == 0
    assert command("report", "--out", "new", cwd=project).returncode == 0


@pytest.mark.parametrize(
    "arguments",
    [("reproduce", TOY, "--store", ""), ("report", "--store", ""), ("report", "--out", ""), ("report", "--store", " ")],
)
def test_an_empty_folder_name_is_refused_and_nothing_is_written(command, project, arguments):
    before = tree(project)
    done = command(*arguments, cwd=project)
    assert done.returncode == 2
    assert "expected a folder, got an empty text" in done.stderr
    assert tree(project) == before


@pytest.mark.parametrize("option", ["--json", "--markdown", "--from"])
def test_an_empty_file_name_of_bench_is_refused(option):
    done = CliRunner().invoke(app, ["bench", option, ""])
    assert done.exit_code == 2
    assert "expected a file, got an empty text" in done.output.replace("\n", " ")


def test_reproduce_finds_a_page_folder_of_others_before_it_computes(command, project):
    (project / "results" / "page").mkdir()
    (project / "results" / "page" / "index.html").write_text("mine")
    done = command("reproduce", TOY, cwd=project)
    assert done.returncode == 2
    assert "with other files (index.html)" in done.stderr and "to run" not in done.stderr
    assert (project / "results" / "page" / "index.html").read_text() == "mine"


def test_a_damaged_conclusion_is_told_by_report_which_ends_with_1_and_shows_the_others(command, project):
    manifest = project / "results" / "own-toy" / "conclusion-quick" / "result.json"
    manifest.unlink()
    manifest.mkdir()
    done = command("report", "--figures", cwd=project)
    assert done.returncode == 1
    assert f"DAMAGED  {manifest.relative_to(project)} is damaged" in done.stderr
    assert "Traceback" not in done.stderr and "Page: " in done.stdout
    assert 'id="stable-fig2"' in (project / "results" / "page" / "index.html").read_text()


# one Python for all commands: it reads its locale when it starts
ASCII_COMMANDS = """
import sys
from holdfast_command import main
for arguments in (["report", "--figures"], ["list"], ["doctor"], ["report", "--help"]):
    sys.argv = ["holdfast", *arguments]
    try:
        main()
    except SystemExit as end:
        assert not end.code, (arguments, end.code)
"""


@pytest.mark.slow
def test_the_page_and_the_list_are_written_in_an_ascii_locale(project):
    shutil.rmtree(project / "results" / "own-toy")  # its words are ASCII
    command = [sys.executable, "-P", "-c", ASCII_COMMANDS]
    done = subprocess.run(command, cwd=project, env=os.environ | ASCII, capture_output=True, timeout=300)
    assert done.returncode == 0, done.stderr.decode()
    assert b"Page: " in done.stdout and b"stable-fig2" in done.stdout and b"self-test" in done.stdout
    assert done.stdout.isascii()
