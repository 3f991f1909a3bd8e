"""`holdfast fit-kernel`: files in, a table, a law, a figure and a layer out."""

import json

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from holdfast.approximate import load_layer
from holdfast.cli.app import app
from holdfast.errors import HoldfastError

T = np.arange(200.0)
RHO = 0.6 * np.exp(-0.05 * T) + 0.4 * np.exp(-0.7 * T)


def run(*arguments):
    return CliRunner().invoke(app, ["fit-kernel", *map(str, arguments)])


def answer(*arguments):
    done = run(*arguments, "--json")
    assert done.exit_code in (0, 1), done.output
    return json.loads(done.stdout)


@pytest.fixture
def csv(tmp_path):
    path = tmp_path / "rho.csv"
    path.write_text("t,rho\n" + "\n".join(f"{t},{r!r}" for t, r in zip(T.tolist(), RHO.tolist(), strict=True)))
    return path


def test_two_exponentials_are_found_with_their_law(csv):
    found = answer(csv, "--orders", "1,2", "--tolerance", "1e-6")
    assert found["chosen"] == 2 and found["reached"]
    two = next(fit for fit in found["sums"] if fit["order"] == 2)
    assert sorted(np.ravel(two["rates"])[np.ravel(two["rates"]) > 0]) == pytest.approx([0.05, 0.7], rel=1e-6)
    assert found["decay"]["law"] == "exponential"
    assert found["decay"]["rate"] == pytest.approx(0.05, rel=0.02)


def test_people_see_a_plot_a_law_a_table_and_a_verdict(csv):
    done = run(csv, "--orders", "1,2", "--tolerance", "1e-4")
    assert done.exit_code == 0, done.output
    for text in ("200 samples", "decay law: exponential", "error: area", "* chosen: 2 modes, within"):
        assert text in done.output


def test_a_tolerance_that_is_not_reached_ends_with_1(csv):
    done = run(csv, "--orders", "1", "--tolerance", "1e-4")
    assert done.exit_code == 1
    assert "NOT within" in done.output


@pytest.mark.parametrize("layout", ["column", "two columns", "two rows"])
def test_every_layout_of_an_array_is_read(tmp_path, layout):
    table = np.stack([T[:60], RHO[:60]])
    np.save(tmp_path / "rho.npy", {"column": table[1], "two columns": table.T, "two rows": table}[layout])
    found = answer(tmp_path / "rho.npy", "--orders", "2", "--method", "matrix_pencil")
    assert found["samples"] == 60 and found["sums"][0]["horizon"] == 59


@pytest.mark.parametrize(
    ("head", "gap"), [("time;value\n", ";"), ("", ","), ("# made by hand\n", "  "), ("t\trho\n", "\t")]
)
def test_every_layout_of_a_text_is_read(tmp_path, head, gap):
    lines = [f"{t}{gap}{r!r}" for t, r in zip(T[:60].tolist(), RHO[:60].tolist(), strict=True)]
    (tmp_path / "rho.csv").write_text(head + "\n".join(lines))
    found = answer(tmp_path / "rho.csv", "--orders", "2", "--method", "matrix_pencil")
    assert found["samples"] == 60 and found["sums"][0]["horizon"] == 59


def test_dt_is_the_spacing_where_the_file_has_no_times(tmp_path):
    np.save(tmp_path / "rho.npy", RHO)
    found = answer(tmp_path / "rho.npy", "--orders", "2", "--dt", "0.5")
    two = found["sums"][0]
    assert two["horizon"] == 99.5
    assert max(np.ravel(two["rates"])) == pytest.approx(1.4, rel=1e-5)


@pytest.mark.parametrize("time", ["discrete", "continuous"])
def test_the_exported_layer_has_the_kernel(csv, tmp_path, time):
    path = tmp_path / "layer.safetensors"
    done = run(csv, "--orders", "2", "--export", path, "--time", time, "--parameterization", "softplus")
    assert done.exit_code == 0, done.output
    layer = load_layer(path)
    assert layer.parameterization.key == "softplus"
    x = torch.zeros(1, 200, 1)
    x[0, 0] = 1
    y = layer(x)[0][0, :, 0].detach().numpy()
    if time == "discrete":
        np.testing.assert_allclose(y, RHO, atol=1e-5)  # float32 weights and states
    else:
        exact = [0.6 * -np.expm1(-0.05) / 0.05 + 0.4 * -np.expm1(-0.7) / 0.7]
        np.testing.assert_allclose(y[:1], exact, atol=1e-5)


def test_a_figure_is_written(csv, tmp_path):
    pytest.importorskip("matplotlib", reason="figures need matplotlib")
    path = tmp_path / "fit.png"
    done = run(csv, "--orders", "1,2", "--plot", path)
    assert done.exit_code == 0, done.output
    assert path.read_bytes().startswith(b"\x89PNG")


def test_a_noisy_kernel_stops_at_the_modes_that_it_carries(tmp_path):
    noise = 1e-3 * np.random.default_rng(0).standard_normal(200)
    np.save(tmp_path / "noisy.npy", RHO + noise)
    found = answer(tmp_path / "noisy.npy", "--orders", "1,2,4", "--tolerance", "1e-4")
    assert not found["reached"]
    assert 2 <= found["useful"] <= 4 and found["chosen"] <= found["useful"]


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("", "must hold lines of numbers"),
        ("t,rho\n", "must hold lines of numbers"),
        ("1,2\n3\n", "same number of columns"),
        ("1,2\nx,3\n", "line 2"),
        ("1,2,3\n4,5,6\n", "one column"),
        ("0,1\n1,nan\n2,0.1\n", "NaN"),
        ("0,1\n0,0.5\n", "increase"),
    ],
)
def test_bad_files_end_in_one_line(tmp_path, content, text):
    path = tmp_path / "bad.csv"
    path.write_text(content)
    done = run(path)
    assert isinstance(done.exception, HoldfastError)  # main() makes a line and exit code 2 of it
    assert text in str(done.exception)


def test_bad_options_end_in_one_line(csv, tmp_path):
    (tmp_path / "text.npy").write_text("no array")
    with open(tmp_path / "promise.npy", "wb") as file:
        header = {"descr": "<f8", "fortran_order": False, "shape": (2**40,)}
        np.lib.format.write_array_header_1_0(file, header)
    for arguments, text in (
        (("missing.csv",), "existing file"),
        ((tmp_path / "text.npy",), "NPY"),
        ((tmp_path / "promise.npy",), "NPY"),
        ((csv, "--orders", "1,x"), "--orders"),
        ((csv, "--orders", "0"), "orders must"),
        ((csv, "--method", "magic"), "unknown method"),
        ((csv, "--tolerance", "0"), "tolerance must"),
        ((csv, "--dt", "0.1"), "leave --dt out"),
        ((csv, "--orders", "1", "--export", tmp_path / "no" / "layer"), "create it first"),
        ((csv, "--orders", "1", "--plot", tmp_path / "fit.xyz"), "--plot must end in"),
        ((csv, "--orders", "1", "--time", "never", "--export", tmp_path / "layer"), "time"),
    ):
        done = run(*arguments)
        assert isinstance(done.exception, HoldfastError), (arguments, done.output)
        assert text in str(done.exception), str(done.exception)
