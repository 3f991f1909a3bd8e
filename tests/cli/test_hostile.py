"""The commands among odd folders, names, locales and moments: nothing of the user's is touched, and what is wrong is said."""

import os
import shutil
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from holdfast.cli import app, main
from holdfast_papers import experiments
from holdfast_papers.execution import Store

TOY = Path(__file__).parent.parent / "execution" / "toy.py"
HOLDFAST = [sys.executable, "-P", "-c", "from holdfast_command import main; main()"]
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


@pytest.fixture
def command(monkeypatch, capsys):
    """The command in this process, with a current folder and environment variables of its own."""

    def run(*arguments, cwd, **environment):
        monkeypatch.chdir(cwd)
        monkeypatch.setattr(sys, "argv", ["holdfast", *map(str, arguments)])
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        code = 0
        try:
            main()
        except SystemExit as end:
            code = end.code or 0
        return subprocess.CompletedProcess(arguments, code, *capsys.readouterr())

    return run


def tree(folder):
    return {str(p.relative_to(folder)): p.stat().st_mtime_ns for p in folder.rglob("*")}


def test_report_into_the_users_project_is_refused_and_touches_nothing(command, project):
    before = tree(project)
    done = command("report", "--out", ".", cwd=project)
    assert done.returncode == 2
    assert "holds files that are no page of holdfast (data, raw, results); nothing was written" in done.stderr
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
    assert "expected a folder, came an empty text" in done.stderr
    assert tree(project) == before


@pytest.mark.parametrize(
    "arguments",
    [("memory", "m.py", "--plot"), ("certify", "m.py", "--plot"), ("stability", "m.py", "--plot"), ("fit-kernel",)]
    + [("bench", option) for option in ("--json", "--markdown", "--from")]
    + [("fit-kernel", "k.csv", option) for option in ("--plot", "--export")],
)
def test_an_empty_file_name_is_refused(arguments):
    done = CliRunner().invoke(app, [*arguments, ""])
    assert done.exit_code == 2
    assert "expected a file, came an empty text" in done.output.replace("\n", " ")


def test_reproduce_finds_a_page_folder_of_others_before_it_computes(command, project):
    (project / "results" / "page").mkdir()
    (project / "results" / "page" / "index.html").write_text("mine")
    done = command("reproduce", TOY, cwd=project)
    assert done.returncode == 2
    assert "no page of holdfast (index.html)" in done.stderr and "to run" not in done.stderr
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


def test_doctor_shows_markup_and_terminal_codes_in_a_path_as_text(command, tmp_path):
    odd = tmp_path / "d[/red]x\x1b[2J"
    odd.mkdir(parents=True)
    done = command("doctor", cwd=tmp_path, HOLDFAST_DATA=str(odd))
    assert done.returncode == 0, done.stderr
    assert "d[/red]x\\x1b[2J" in done.stdout.replace("\n", "")
    assert "\x1b" not in done.stdout + done.stderr


def test_errors_show_terminal_codes_as_text(command, tmp_path):
    done = command("doctor", cwd=tmp_path, HOLDFAST_DATA="nowhere\x1b[2J[/red]")
    assert done.returncode == 2
    assert done.stderr.startswith("holdfast: HOLDFAST_DATA=nowhere\\x1b[2J[/red] is not a folder")


def test_ctrl_c_while_loading_ends_quietly_with_130(tmp_path):
    (tmp_path / "torch.py").write_text(
        "import sys, time\nsys.stdout.write('loading\\n')\nsys.stdout.flush()\ntime.sleep(600)\n"
    )
    process = subprocess.Popen(
        [*HOLDFAST, "doctor"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        # a shell's background job ignores Ctrl-C, and its children inherit that
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert process.stdout.readline() == b"loading\n"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, b"")


def test_the_installed_command_begins_where_ctrl_c_is_quiet():
    project = tomllib.loads((TOY.parents[2] / "pyproject.toml").read_text())
    assert project["project"]["scripts"] == {"holdfast": "holdfast_command:main"}
