"""What `holdfast memory` tells: the horizon whatever the law, float64 where it can be had."""

import math

import numpy as np
import pytest
import torch
from torch import nn

import holdfast
from holdfast.decay import fit_decay, study_memory
from holdfast.decay._result import reach_of
from holdfast.memory import MemoryCurve

T = np.arange(1001.0)


class OnlyFloat32(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.RNN(1, 4, batch_first=True)

    def forward(self, x):
        if x.dtype != torch.float32:
            raise TypeError("float32 only")
        return self.inner(x)[0]


def test_the_memory_is_measured_in_float64_where_the_model_runs_in_it():
    torch.manual_seed(0)
    model = nn.GRU(1, 8, batch_first=True)
    study = study_memory(model, horizon=100, properties=False)
    assert study.curves["heaviside"].floor.max() < 1e-13
    assert study.notes == ()
    assert model.weight_hh_l0.dtype == torch.float32
    narrow = study_memory(model, horizon=100, properties=False, double=False)
    assert narrow.curves["heaviside"].floor.max() > 1e-9


@pytest.mark.parametrize(
    ("model", "said"),
    [(OnlyFloat32(), "float32 only"), (lambda x: 0.5 * x, "no weights to widen")],
    ids=["module", "f"],
)
def test_where_float64_cannot_be_had_a_note_says_why(model, said):
    study = study_memory(model, horizon=30, properties=False)
    assert len(study.notes) == 1
    assert said in study.notes[0]


def test_a_horizon_that_was_measured_is_told_whatever_the_law():
    stretched = fit_decay(MemoryCurve(time=T, values=np.exp(-np.sqrt(T / 5))))
    assert stretched.law == "undecided"
    assert stretched.rate is None
    # e^-sqrt(t/5) = 0.01 at t = 5 log(100)^2
    assert reach_of(stretched).time == math.ceil(5 * math.log(100) ** 2)
    assert reach_of(stretched).measured
    level = fit_decay(MemoryCurve(time=T, values=np.exp(-T / 5) + 1e-3))
    assert level.law == "non-decaying"
    assert reach_of(level).time < 50  # level, but at a thousandth


def test_a_horizon_beyond_the_measured_part_is_marked_as_such_or_left_open():
    slow = fit_decay(MemoryCurve(time=T, values=np.exp(-T / 300)))
    assert reach_of(slow).time == pytest.approx(300 * math.log(100), rel=0.01)
    assert not reach_of(slow).measured
    open_end = reach_of(fit_decay(MemoryCurve(time=T, values=np.exp(-T / 2000))))
    assert open_end.time is None
    assert "longer horizon" in open_end.words
    assert reach_of(fit_decay(MemoryCurve(time=T, values=np.ones_like(T)))).time == math.inf


def damped(zero=256, r=0.995):
    """r^t cos(w t) with its first zero at that step, and the step from which on 1% is left for good."""
    w = math.pi / 2 / zero
    W = r * torch.tensor([[math.cos(w), -math.sin(w)], [math.sin(w), math.cos(w)]])
    model = holdfast.nn.LinearRNN(1, 2, out_features=1, W=W)
    with torch.no_grad():
        model.U.copy_(torch.tensor([[1.0], [0.0]]))
        model.C.copy_(torch.tensor([[1.0, 0.0]]))
    t = torch.arange(4000, dtype=torch.float64)
    return model, int((r**t * torch.cos(w * t)).abs().gt(0.01).nonzero().max())


def test_a_study_follows_an_oscillation_past_the_zero_at_its_horizon_as_diagnose_does():
    model, last = damped()
    study = study_memory(model, horizon=256, probes=("impulse",), properties=False)
    assert abs(study.fits["impulse"].horizon() - last) <= 2
    assert any("instead of 256" in note for note in study.curves["impulse"].notes)
    row = holdfast.compare({"damped": model}).models[0]
    assert abs(row.steps - study.fits["impulse"].horizon()) <= 1


def test_memory_on_data_says_where_the_sequences_end_before_a_zero_is_passed():
    model, last = damped()
    x = torch.randn(4, 4000, 1, generator=torch.Generator().manual_seed(0))
    short = holdfast.memory.memory_on_data(model, x, horizon=256, places=8, double=True)
    assert short.steps < 300
    assert any("may be too few" in note for note in short.notes)
    long = holdfast.memory.memory_on_data(model, x, horizon=2500, places=8, double=True)
    assert abs(long.steps - last) <= 2
    assert not any("may be too few" in note for note in long.notes)
