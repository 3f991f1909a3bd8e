"""The commands among odd folders, names, locales and moments: nothing of the user's is touched, and what is wrong is said."""

import os
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from holdfast.cli.app import app

ROOT = Path(__file__).parent.parent.parent
HOLDFAST = [sys.executable, "-P", "-c", "from holdfast_command import main; main()"]


@pytest.mark.parametrize(
    "arguments",
    [("memory", "m.py", "--plot"), ("certify", "m.py", "--plot"), ("stability", "m.py", "--plot"), ("fit-kernel",)]
    + [("fit-kernel", "k.csv", option) for option in ("--plot", "--export")],
)
def test_an_empty_file_name_is_refused(arguments):
    done = CliRunner().invoke(app, [*arguments, ""])
    assert done.exit_code == 2
    assert "expected a file, got an empty text" in done.output.replace("\n", " ")


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
    assert done.stderr.startswith("holdfast: HOLDFAST_DATA must name a folder, got 'nowhere\\x1b[2J[/red]'")


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
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["project"]["scripts"] == {"holdfast": "holdfast_command:main"}
