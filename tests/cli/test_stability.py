import json
import re

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from holdfast.cli import stability
from holdfast.errors import ArgumentError, UnknownNameError
from holdfast.stability import PerturbationCurve, StabilityStudy, assess_stability

app = typer.Typer()
app.command("stability")(stability.command)

MODELS = '''
import numpy as np
import torch
from scipy.optimize import nnls
from torch import nn

from holdfast import laws
from holdfast.nn import DiagonalSSM


def layer():
    return DiagonalSSM(1, 4)


def rnn():
    return nn.RNN(2, 4, batch_first=True)


def time_first():
    return nn.RNN(2, 4)


def fitted(m, parameterization):
    """Non-negative fit of (1 + t)^-1.5, what a held input adds over each step."""
    rates = np.geomspace(1 / m**2, 4.0, m)
    k = np.arange(2000.0)
    rho = laws.PowerLaw(1.5).integral(torch.from_numpy(k), torch.from_numpy(k + 1)).numpy()
    modes = np.exp(-np.outer(k, rates)) * -np.expm1(-rates) / rates
    c, _ = nnls(modes, rho)
    model = DiagonalSSM(1, m, activation="identity", bias=False, parameterization=parameterization,
                        eigenvalues=torch.from_numpy(-rates))
    with torch.no_grad():
        model.U.fill_(1.0)
        model.C.copy_(torch.from_numpy(c))
    return model


def direct(m):
    return fitted(m, "direct")


def best(m):
    return fitted(m, "best")


def untrained(m):
    return DiagonalSSM(1, m)


def failing(m):
    raise TypeError('no width will do')


NUMBER = 3
'''


@pytest.fixture
def models(tmp_path):
    file = tmp_path / "my_models.py"
    file.write_text(MODELS)
    return str(file)


def holdfast(*arguments):
    return CliRunner().invoke(app, list(arguments))


def test_many_widths_stand_below_each_other_where_the_screen_is_narrow(monkeypatch, capsys):
    widths = [4, 8, 16, 32, 64, 128, 256, 512]
    curves = {m: PerturbationCurve(radii=[1e-3, 0.1], errors=[1.234e-05, 5.678e-04]) for m in widths}
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    stability.report("many", StabilityStudy("a target", curves, assess_stability(curves, target_norm=1.0)))
    lines = re.sub(r"\x1b\[\d+m", "", capsys.readouterr().out).splitlines()
    assert max(map(len, lines)) <= 80
    assert not any("…" in line for line in lines)
    assert sum(line.count("0.0005678") for line in lines) == len(widths)


def test_one_model_gets_a_table_and_a_radius(models):
    done = holdfast(f"{models}:layer", "--draws", "4", "--length", "20")
    assert done.exit_code == 0, done.output
    assert "against the model's own outputs" in " ".join(done.stdout.split())
    assert "folded: perturbations are channels of DiagonalSSM's scan" in " ".join(done.stdout.split())
    assert re.search(r"radius >?= \S+: weights may change by so much before outputs are off by \d", done.stdout)


def test_json_holds_the_curve_and_how_it_was_computed(models):
    done = holdfast(f"{models}:rnn", "--radii", "1e-3:1:5", "--draws", "3", "--scope", "recurrent", "--json")
    assert done.exit_code == 0, done.output
    answer = json.loads(done.stdout)
    curve = answer["curves"]["0"]
    assert curve["scope"] == ["weight_hh_l0"]
    assert curve["method"] == "vmap"
    np.testing.assert_allclose(curve["radii"], np.geomspace(1e-3, 1, 5))
    assert answer["verdict"] is None


LONG = ("--target", "power:1.5", "--radii", "1e-4:1:25", "--length", "3000", "--batch", "2", "--scope", "recurrent")


@pytest.mark.slow
def test_a_family_of_direct_weights_is_unstable_and_ends_with_1(models):
    done = holdfast(f"{models}:direct", "--widths", "8,12,16,24", *LONG, "--search", "modes")
    assert done.exit_code == 1, done.output
    assert "UNSTABLE: the radii shrink as models widen" in done.stdout
    assert "E, m = 24" in done.stdout


@pytest.mark.slow
def test_the_same_family_of_stable_weights_is_stable(models):
    done = holdfast(f"{models}:best", "--widths", "8,12,16,24", *LONG, "--search", "modes", "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["verdict"]["verdict"] == "stable"


def test_untrained_models_approximate_nothing_and_end_with_1(models):
    done = holdfast(f"{models}:untrained", "--widths", "4,8,16,32", "--target", "power:1.5", "--length", "50")
    assert done.exit_code == 1, done.output
    assert "NO APPROXIMATION: 0 of 4 widths" in done.stdout
    alone = holdfast(f"{models}:layer", "--target", "power:1.5", "--length", "50")
    assert "no approximation: without perturbation the error is" in alone.stdout


def test_models_with_time_first_are_taken_as_such(models):
    first = holdfast(f"{models}:time_first", "--layout", "time_first", "--draws", "3", "--json")
    batch = holdfast(f"{models}:rnn", "--draws", "3", "--json")
    np.testing.assert_allclose(*(json.loads(d.stdout)["curves"]["0"]["errors"] for d in (first, batch)), rtol=1e-5)


def test_plot_is_written(models, tmp_path):
    pytest.importorskip("matplotlib")
    file = tmp_path / "figures" / "curve.png"
    done = holdfast(f"{models}:layer", "--draws", "2", "--plot", str(file))
    assert done.exit_code == 0, done.output
    assert file.read_bytes().startswith(b"\x89PNG")
    wrong = holdfast(f"{models}:layer", "--draws", "2", "--plot", str(tmp_path / "curve.txt"))
    assert isinstance(wrong.exception, ArgumentError)


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        (["{}:layer", "--radii", "1:2"], ArgumentError, "LOW:HIGH:COUNT"),
        (["{}:layer", "--radii", "1:0.1:5"], ArgumentError, "LOW < HIGH"),
        (["{}:layer", "--search", "best"], UnknownNameError, "adversarial"),
        (["{}:layer", "--target", "power:x"], ArgumentError, "power:1.5"),
        (["{}:layer", "--target", "powr:1"], UnknownNameError, "Did you mean 'power'"),
        (["{}:layer", "--batch", "0"], ArgumentError, "batch"),
        (["{}:best", "--widths", "4,8,16"], ArgumentError, "at least 4"),
        (["{}:best", "--widths", "4,x"], ArgumentError, "whole numbers"),
        (["{}:layer", "--widths", "4,8,16,32"], ArgumentError, "width as its one argument"),
        (["{}:failing", "--widths", "4,8,16,32"], ArgumentError, "failing(4) failed with TypeError: no width will do"),
        (["hf:some", "--widths", "4,8,16,32"], ArgumentError, "takes a width"),
        (["{}:NUMBER"], ArgumentError, "int"),
        (["{}:nothing"], UnknownNameError, "layer"),
    ],
    ids=lambda x: " ".join(x) if isinstance(x, list) else "",
)
def test_mistakes_are_named(user_mistakes, models, arguments, error, text):
    done = holdfast(*(a.format(models) for a in arguments))
    assert isinstance(done.exception, error), done.exception
    assert text in str(done.exception)
