"""What is kept of a training run: distances, shares and ratios, on models whose answers are known."""

import dataclasses
import math

import numpy as np
import pytest
import torch

from holdfast.data import load_task
from holdfast.nn import ContinuousRNN, DiagonalSSM, LanguageModel
from holdfast_papers.experiments._runs import POINTS, Spectrum, largest_ratio, record
from holdfast_papers.experiments._training import trained
from holdfast_papers.experiments.base import Work

pytest.importorskip("lightning_fabric")


@pytest.fixture(scope="module")
def run_and_spectra():
    torch.manual_seed(0)
    model = DiagonalSSM(1, 4, parameterization="exp")
    start = Spectrum.of(model)
    config = {"steps": 6, "batch": 4, "lr": 0.1, "log_every": 1, "monitor_every": 1}
    run = trained(model, load_task("functional", length=16, valid=0, test=8), config, Work())
    return run, start, Spectrum.of(model)


def test_the_spectrum_has_every_layer_and_the_slowest_is_nearest_to_the_boundary():
    model = LanguageModel(5, 4, depth=2, state_size=3, layer="diagonal", parameterization="direct", time="discrete")
    model.blocks[1].mixer.set_eigenvalues_(torch.tensor([0.5, -0.95, 1.25]))
    found = Spectrum.of(model)
    assert found.weights == ("blocks.0.mixer.w", "blocks.1.mixer.w")
    assert found.margin.shape == (6,)
    assert found.slowest == -0.25


def test_a_mode_has_moved_when_it_did_by_a_tenth_of_its_distance():
    layer = DiagonalSSM(1, 4, parameterization="direct", eigenvalues=torch.tensor([-1.0, -0.1, -0.01, -0.001]))
    start = Spectrum.of(layer)
    layer.set_eigenvalues_(torch.tensor([-1.05, -0.1, -0.02, 0.001]))
    assert start.moved(Spectrum.of(layer)) == 0.5


def test_a_run_leaves_its_curve_its_metrics_and_the_ratios_of_the_recurrent_weights(run_and_spectra):
    run, start, end = run_and_spectra
    work = Work()
    kept = record(run, start, end, work)
    assert kept["steps"].tolist() == [1, 2, 3, 4, 5, 6] and kept["ratio.steps"].tolist() == [0, 1, 2, 3, 4, 5]
    assert kept["ratio.max"] == max(run.history.gradients["w/maximum"][1]) and kept["diverged"] == 0
    assert kept["test.loss"] == run.metrics["test"]["loss"]
    assert 0 < kept["moved"] <= 1 and kept["margin.start"] == pytest.approx(0.001, rel=1e-5)
    assert work.entries[-1]["tokens_per_second"] > 0


def test_a_ratio_that_the_log_left_out_is_infinite_and_a_broken_run_has_no_finite_maximum(run_and_spectra):
    run, start, end = run_and_spectra
    steps, values = run.history.gradients["w/maximum"]
    short = {**run.history.gradients, "w/maximum": (steps[:-1], values[:-1])}
    cut = dataclasses.replace(run, history=dataclasses.replace(run.history, gradients=short))
    assert largest_ratio(cut, ("w",), "maximum")[1][-1] == math.inf
    broken = dataclasses.replace(run, status="diverged", finite=False, metrics={})
    kept = record(broken, start, end, Work())
    assert kept["diverged"] == 1 and kept["ratio.max"] == math.inf and "test.loss" not in kept


def test_each_point_is_the_mean_of_its_records_and_a_run_that_ended_early_has_the_same_points(run_and_spectra):
    run, start, end = run_and_spectra
    many = np.arange(1, 1001)
    columns = {f.name: many * 1.0 for f in dataclasses.fields(run.history) if f.name not in ("metrics", "gradients")}
    columns["steps"] = many
    long = dataclasses.replace(run.history, **columns)
    long_run = dataclasses.replace(run, history=long, steps=1000, config={**run.config, "steps": 1000})
    kept = record(long_run, start, end, Work())
    assert len(kept["loss"]) == POINTS and kept["steps"][0] == 5 and kept["steps"][-1] == 1000
    assert kept["loss"][0] == 3
    early = dataclasses.replace(long, **{name: values[:12] for name, values in columns.items()})
    cut = record(dataclasses.replace(long_run, history=early, step=12, status="diverged"), start, end, Work())
    assert cut["steps"].tolist() == [5, 10, 12]


def test_modes_of_a_matrix_are_sorted_and_eulers_own_boundary_counts():
    W = torch.tensor([[-0.5, 1.0], [0.0, -19.9]])
    layer = ContinuousRNN(1, 2, parameterization="direct", W=W, dt=0.1)
    found = Spectrum.of(layer)
    assert found.margin.tolist() == pytest.approx([0.5, 19.9])
    assert found.slowest == pytest.approx(0.1, rel=1e-4)  # 1 - |1 - 1.99|, as a rate: 0.01 / 0.1; float32
