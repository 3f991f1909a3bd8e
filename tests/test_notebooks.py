"""The notebooks are the examples that they are made from, and their cells run one after the other."""

import json
import re
import sys

import pytest

from reader import ROOT

sys.path.append(str(ROOT / "tools"))
from write_notebooks import NOTEBOOKS, cells, kept_outputs, notebook


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_is_its_example_with_what_it_printed_and_drew(name):
    outputs = kept_outputs(name)
    assert (ROOT / "notebooks" / f"{name}.ipynb").read_text() == notebook(NOTEBOOKS[name], outputs)
    kinds = [output["output_type"] for cell in outputs for output in cell]
    assert "stream" in kinds
    assert "display_data" in kinds
    assert (ROOT / "notebooks" / f"{name}.ipynb").stat().st_size < 200_000


def test_the_readme_links_every_notebook():
    text = (ROOT / "README.md").read_text()
    assert [name for name in NOTEBOOKS if f"notebooks/{name}.ipynb" not in text] == []


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_every_line_of_the_example_is_in_a_cell(name):
    source = (ROOT / "examples" / f"{NOTEBOOKS[name]}.py").read_text()
    code = "".join(content for kind, content in cells(source) if kind == "code")
    outside = source.split('"""\n', 2)[2].replace("# %%\n", "")
    squeezed = ["".join(text.split()) for text in (re.sub(r"^#.*\n", "", outside, flags=re.MULTILINE), code)]
    assert squeezed[0] == squeezed[1]


@pytest.fixture
def run(monkeypatch, capsys, tmp_path):
    """Runs the cells of a notebook in one namespace, as a kernel does, and gives what they printed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "agg")

    def run(name):
        shared = {"__name__": "__main__"}
        for cell in json.loads((ROOT / "notebooks" / f"{name}.ipynb").read_text())["cells"]:
            if cell["cell_type"] == "code":
                exec(compile("".join(cell["source"]), f"{name}, {cell['id']}", "exec"), shared)
        return capsys.readouterr().out

    return run


@pytest.mark.slow
@pytest.mark.usefixtures("user_mistakes")
def test_an_lstm_that_learns_nothing_learns_it_after_the_line_that_the_diagnosis_prints(run):
    text = run("train_diagnose_fix")
    before, after = (int(share) for share in re.findall(r"(\d+)% of the values", text))
    assert before < 60  # chance is 50, and 400 draws have a standard error of 2.5
    assert after == 100
    short, long = (
        int(steps) for steps in re.findall(r"^(?:untrained|after the line): (\d+) steps", text, re.MULTILINE)
    )
    assert short < 15 < 60 < long


@pytest.mark.slow
@pytest.mark.usefixtures("user_mistakes")
def test_five_models_show_their_laws(run):
    found = re.findall(
        r"^(\w+(?: law)?) +(exponential|undecided|polynomial|non-decaying),", run("measure_memory"), re.MULTILINE
    )
    assert dict(found) == {
        "LSTM": "exponential",
        "GRU": "exponential",
        "S4D": "undecided",
        "power law": "polynomial",
        "integrator": "non-decaying",
    }
