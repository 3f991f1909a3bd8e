"""Each rule of the advice, on findings that call for it; the calls run, and what they are for is gone."""

import dataclasses

import numpy as np
import pytest
import torch
from torch import nn

import holdfast
from holdfast.diagnosis._candidates import Evidence, candidates
from holdfast.diagnosis._learning import Learning
from holdfast.diagnosis._reading import read_model
from holdfast.diagnosis._weights import look_at_edge, look_at_survival
from holdfast.nn import LRU, ContinuousRNN, LinearRNN

SOUND = Learning("a task", {"recurrent": 0.1, "other": 0.1}, growth=1.0, norm=2.0, safe=0.1, safe_of={})


def advice(model, *, edge=None, survival=None, learning=None):
    return candidates(Evidence(model, [], edge, survival, learning, None))


def edge_of(model):
    return look_at_edge(read_model(model, None, 0), 16, 0)


def test_sound_findings_call_for_nothing():
    assert advice(nn.GRU(1, 4), learning=SOUND) == []


def test_a_step_too_long_for_eulers_rule_is_shortened():
    torch.manual_seed(0)
    model = ContinuousRNN(1, 4, W=-torch.diag(torch.tensor([1.0, 2.0, 5.0, 30.0])), parameterization="direct", dt=0.1)
    (one,) = advice(model, edge=edge_of(model))
    assert "the longest stable step is 0.0667" in one.number  # 2 / 30
    exec(one.call, {"model": model})
    assert holdfast.certify(model).status == "stable"


def test_a_gru_that_does_not_settle_is_not_said_to_explode():
    torch.manual_seed(0)
    model = nn.GRU(1, 8, batch_first=True)
    with torch.no_grad():
        model.weight_hh_l0[16:].mul_(40)
        model.bias_hh_l0.zero_()
        model.bias_ih_l0.zero_()
    edge = edge_of(model)
    assert edge.worst.status == "unstable"
    assert edge.run.steps == 10_000
    assert edge.run.late <= 1  # |h| of a GRU
    assert not edge.explodes
    assert advice(model, edge=edge) == []
    assert "nothing explodes" in str(holdfast.Diagnosis("m", "a model", edge=edge))


def test_a_recurrence_that_grows_is_stabilized():
    torch.manual_seed(0)
    W = 1.05 * torch.linalg.qr(torch.randn(6, 6))[0]
    model = LinearRNN(1, 6, W=W, parameterization="direct", time="discrete")
    first = advice(model, edge=edge_of(model))[0]
    exec(first.call, {"model": model, "holdfast": holdfast})
    assert holdfast.certify(model).status == "stable"


def test_clipping_is_not_advised_against_the_step_of_adam():
    assert advice(nn.GRU(1, 4), learning=dataclasses.replace(SOUND, safe=None, norm=50.0)) == []


@pytest.mark.parametrize("growth", [np.nan, np.inf])
def test_no_rule_divides_by_a_gradient_of_zero(growth):
    assert advice(nn.GRU(1, 4), learning=dataclasses.replace(SOUND, growth=growth, norm=0.0)) == []


def test_a_trained_model_without_data_is_left_alone():
    torch.manual_seed(0)
    W = 1.05 * torch.linalg.qr(torch.randn(6, 6))[0]
    model = LinearRNN(1, 6, W=W, parameterization="direct", time="discrete")
    evidence = Evidence(model, [], edge_of(model), None, None, 500, trained="its weights")
    assert candidates(evidence) == []
    told = [one.call for one in candidates(dataclasses.replace(evidence, data=True))]
    assert not any("allow_change" in call or "RecurrentStack" in call for call in told)


def test_two_rates_are_told_as_groups_that_an_optimizer_takes():
    model = nn.GRU(1, 4)
    (one,) = advice(model, learning=dataclasses.replace(SOUND, safe=0.003, pair=(0.03, 0.003)))
    names = {"model": model, "torch": torch, "holdfast": holdfast}
    exec(one.call, names)
    assert [group["lr"] for group in names["optimizer"].param_groups] == [0.03, 0.03, 0.003]


@pytest.mark.parametrize(("norm", "limit"), [(400.0, "100"), (2.0, "0.5")])
def test_a_gradient_that_explodes_with_the_length_is_clipped_to_that_of_half_of_it(norm, limit):
    (one,) = advice(nn.GRU(1, 4), learning=dataclasses.replace(SOUND, growth=4.0, norm=norm))
    assert one.call == f"torch.nn.utils.clip_grad_norm_(model.parameters(), {limit})"


def test_coarse_weights_that_small_changes_break_are_widened():
    survival = look_at_survival(read_model(LRU(1, 4).bfloat16(), None, 0), 16, 0)
    assert survival.half
    assert advice(nn.GRU(1, 4), survival=survival) == []  # it survives more than rounding does
    random = dataclasses.replace(survival.random, radius=0.001, share=0.001, censored="")
    fragile = dataclasses.replace(survival, random=random, rounded=0.5)
    (one,) = advice(nn.GRU(1, 4), survival=fragile)
    assert one.call.startswith("model.float()")
    assert advice(nn.GRU(1, 4), survival=dataclasses.replace(fragile, half=False)) == []


def test_training_that_can_leave_the_stable_region_is_warned_of():
    torch.manual_seed(0)
    W = torch.diag(torch.tensor(np.linspace(0.9, 0.99, 8), dtype=torch.float32))
    model = LinearRNN(1, 8, W=W, parameterization="direct", time="discrete")
    (one,) = advice(model, edge=edge_of(model))
    assert "1 steps of Adam" in one.number
    exec(one.call, {"model": model, "holdfast": holdfast})
    assert advice(model, edge=edge_of(model)) == []
