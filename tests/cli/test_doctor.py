import json
import re

import typer
from rich.text import Text
from typer.testing import CliRunner

import children
import holdfast
from holdfast.cli import doctor
from holdfast.cli.app import app
from holdfast.kernels._common import library


def test_doctor_reports_versions_kernels_data_and_a_passing_self_test():
    done = CliRunner().invoke(app, ["doctor", "--json"])
    assert done.exit_code == 0, done.output
    report = {check["name"]: check for check in json.loads(done.output)}
    assert {"python", "holdfast", "torch", "cores", "native kernels", "data"} <= set(report)
    assert report["self-test: formulas"]["good"] is True


def test_doctor_tells_load_quota_and_spinning_and_what_to_set(monkeypatch):
    for name in doctor.SPIN_SETTINGS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(doctor.os, "cpu_count", lambda: 4)
    monkeypatch.setattr(doctor.torch, "get_num_threads", lambda: 4)
    monkeypatch.setattr(doctor.os, "getloadavg", lambda: (3.5, 0.0, 0.0))
    monkeypatch.setattr(doctor.library, "cpu_quota", lambda: 2.0)
    report = {check.name: check.value for check in doctor._cores()}
    assert "set OMP_NUM_THREADS=2" in report["CPU quota"]
    assert "3.5 on 4 cores" in report["load"] and "OMP_NUM_THREADS=1" in report["load"]
    assert "OMP_WAIT_POLICY=passive" in report["spinning"]
    monkeypatch.setenv("OMP_WAIT_POLICY", "passive")
    monkeypatch.setattr(doctor.os, "getloadavg", lambda: (0.5, 0.0, 0.0))
    monkeypatch.setattr(doctor.library, "cpu_quota", lambda: 4.0)
    report = {check.name: check.value for check in doctor._cores()}
    assert report["spinning"] == "OMP_WAIT_POLICY=passive"
    assert report["load"] == "0.5 on 4 cores"
    assert report["CPU quota"] == "none below that"


def test_doctor_prints_a_table_for_people_with_the_variant_in_use():
    done = CliRunner().invoke(app, ["doctor"])
    assert done.exit_code == 0, done.output
    assert "self-test: formulas" in done.output
    status = library.status()
    assert (f"variant {status.variant}" if status.available else "none") in done.output


def test_without_native_kernels_doctor_says_so_and_still_passes(tmp_path):
    done = children.command("doctor", HOLDFAST_NATIVE_FOLDER=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "install a C++17 compiler" in done.stdout
    assert "slower torch versions" in done.stdout


def test_a_wrong_setting_ends_in_one_line_and_exit_code_2():
    done = children.command("doctor", HOLDFAST_NATIVE="v5")
    assert done.returncode == 2
    assert done.stderr.startswith("holdfast: unknown value of HOLDFAST_NATIVE 'v5'.")
    assert "Traceback" not in done.stderr


def test_doctor_says_how_to_get_an_extra_that_is_not_there(monkeypatch):
    monkeypatch.setattr(doctor, "EXTRAS", {"train": "numpy", "cluster": "no-such-package"})
    done = CliRunner().invoke(app, ["doctor"])
    assert done.exit_code == 0, done.output
    assert re.search(r"extra train +numpy \d", done.output)
    whole = " ".join(done.output.split())
    assert re.search(r"extra cluster not installed; .* pip install 'holdfast\[cluster\]'", whole)


def test_no_help_text_loses_words_in_brackets_to_markup():
    said = [
        text
        for command in typer.main.get_command(app).commands.values()
        for text in (command.help, *(parameter.help for parameter in command.params))
        if text
    ]
    assert len(said) > 80
    assert [text for text in said if Text.from_markup(text).plain != text] == []


def test_help_of_every_command_has_an_example():
    for command in app.registered_commands:
        done = CliRunner().invoke(app, [command.name, "--help"])
        assert done.exit_code == 0
        assert f"Example: holdfast {command.name}" in done.output


def test_the_version_is_told_and_python_m_is_the_command():
    done = CliRunner().invoke(app, ["--version"])
    assert (done.exit_code, done.output) == (0, f"holdfast {holdfast.__version__}\n")
    run = children.run(
        "import runpy, sys; sys.argv = ['holdfast', '--version']; runpy.run_module('holdfast', run_name='__main__')"
    )
    assert (run.returncode, run.stdout) == (0, done.output)
