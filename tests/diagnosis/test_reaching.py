"""How far training can lengthen a memory, said by `diagnose`, and the optimizer that it tries."""

import json
import math
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import holdfast
from holdfast.diagnosis._learning import Learning
from holdfast.diagnosis._reaching import (
    LOG100,
    Reaching,
    TrainingPlan,
    confirmed,
    faster_recurrence,
    look_at_reach,
    said,
)
from holdfast.diagnosis._remedies import bias_in, longer_memory
from holdfast.diagnosis._words import training
from holdfast.errors import ArgumentError
from holdfast.nn import DiagonalSSM, SequenceModel


def diagonal(rates=(0.5, 0.9)):
    return DiagonalSSM(1, len(rates), parameterization="exp", eigenvalues=-torch.tensor(rates))


def test_the_sentence_says_from_where_to_where_and_what_the_task_needs():
    one = look_at_reach(diagonal(), TrainingPlan(1e-3, 2000, given=True), 200)
    # tau = 2 steps to 1/e, 2 ln(100) until 1% is left; exp reaches e^(eta S) times that
    assert (one.now, one.reached) == (pytest.approx(2 * LOG100), pytest.approx(2 * LOG100 * math.e, rel=1e-6))
    assert one.rate == holdfast.recurrent_rate(diagonal(), steps=2000, memory=200 / LOG100).rate
    assert said(one) == [
        "in 2,000 optimizer steps at learning rate 0.001 training can lengthen its slowest memory from 9.2 to 25 steps (to 1% "
        f"left); your task needs 200 steps: recurrent_lr={one.rate:.2g} (not tried)"
    ]


def test_values_that_nobody_gave_are_said_to_be_assumed():
    (line,) = said(look_at_reach(diagonal(), TrainingPlan(), None))
    assert "in 1,000 optimizer steps at learning rate 0.001 (assumed) training" in line
    assert "your task" not in line


def test_the_recurrence_that_gets_farthest_counts():
    model = nn.ModuleDict({"fast": diagonal((0.9,)), "slow": diagonal((0.01,))})
    one = look_at_reach(model, TrainingPlan(), 100)
    assert (one.path, one.short, one.rate) == ("slow", False, None)
    assert list(faster_recurrence(one, 0.01)) == []


def test_a_gate_has_the_bias_to_start_from():
    torch.manual_seed(0)
    one = look_at_reach(nn.LSTM(1, 8), TrainingPlan(), 200)
    # sigmoid(b)^200 = 1%
    assert (1 / (1 + math.exp(-one.bias))) ** 200 == pytest.approx(0.01)
    assert f"or start from bias {one.bias:.1f} (not tried)" in said(one)[0]


def test_a_way_is_told_by_what_became_of_it_on_a_copy():
    one = Reaching(TrainingPlan(), "lstm", 5.0, 10.0, needs=200, rate=0.1, bias=3.8)
    optimizer, start = faster_call(one), "model.lstm.bias_hh_l0.data[32:64].fill_(1.79)"
    ends = {
        (
            (optimizer, start),
            (),
        ): "needs 200 steps: recurrent_lr=0.1, or start from bias 1.8",  # the bias that was tried
        ((start,), (f"{optimizer}: held-out loss 1 -> 2",)): (
            "needs 200 steps: start from bias 1.8; no gain on a copy: recurrent_lr=0.1"
        ),
        ((), (f"{optimizer}: held-out loss 1 -> 2", f"{start}: memory 9 -> 9 steps")): (
            "needs 200 steps; no gain on a copy: recurrent_lr=0.1, start from bias 1.8"
        ),
        ((), (f"{optimizer}: not tried, 40 s of CPU time are over",)): (
            "needs 200 steps: recurrent_lr=0.1 (not tried), or start from bias 3.8 (not tried)"
        ),
    }
    for (helpful, in_vain), end in ends.items():
        (line,) = said(confirmed(one, helpful, in_vain))
        assert line.endswith(end)
    assert confirmed(None, [optimizer], []) is None


def faster_call(one):
    ((_, _, call, _),) = faster_recurrence(one, 0.01)
    return call


def test_the_bias_of_a_call_for_a_longer_memory_is_read_back():
    for kind in ("LSTM", "GRU"):
        torch.manual_seed(0)
        model = getattr(nn, kind)(1, 8)
        ((call, _),) = longer_memory(model, 8.0, 100)
        exec(call, {"model": model})
        assert bias_in(call) == pytest.approx(float(model.bias_hh_l0[8].detach()))
    assert bias_in("model.blocks[0].log_dt.data.add_(-1.2)") is None


def test_what_has_no_recurrence_says_nothing():
    assert look_at_reach(nn.Linear(1, 1), TrainingPlan(), 100) is None
    assert look_at_reach(lambda x: x, TrainingPlan(), 100) is None
    assert said(None) == []


def test_the_call_runs_as_it_is_printed():
    model = SequenceModel(1, 4, depth=2, state_size=4)
    one = Reaching(TrainingPlan(), "", 5.0, 10.0, needs=200, rate=0.1)
    ((_, _, call, _),) = faster_recurrence(one, 0.01)
    names = {"model": model, "torch": torch, "holdfast": holdfast}
    exec(call, names)
    assert all(len(line) <= 67 for line in call.splitlines())  # 80 columns less the indent of advice
    assert {group["name"] for group in names["optimizer"].param_groups} >= {"decayed", "recurrent"}


@pytest.mark.slow
def test_diagnose_says_it_and_tries_the_optimizer_before_it_tells():
    torch.manual_seed(0)
    report = holdfast.diagnose(nn.LSTM(1, 8, batch_first=True), needs=200, lr=2e-3, steps=500, horizon=256)
    assert report.reaching.short
    text = str(report)
    assert "REACH" in text
    assert "500 optimizer steps at learning rate 0.002 training" in " ".join(text.split())
    calls = [one.call for one in report.advice if 'recurrent_lr="auto"' in one.call]
    dropped = [line for line in report.dropped if 'recurrent_lr="auto"' in line]
    assert len(calls) + len(dropped) == 1  # tried, and reported only where it helped
    assert report.reaching.helped["rate"] == bool(calls)
    assert ("no gain on a copy" in " ".join(text.split())) == (False in report.reaching.helped.values())
    assert json.loads(json.dumps(report.to_dict()))["reach"]["needs"] == 200
    for one in report.advice:
        if one.call in calls:
            assert one.trial.changed.loss < one.trial.unchanged.loss


@pytest.mark.parametrize(
    "mistake", [{"lr": 0.0}, {"lr": -1.0}, {"lr": math.inf}, {"steps": 0}], ids=["0", "-1", "inf", "steps"]
)
def test_a_plan_that_is_none_is_refused(mistake):
    with pytest.raises(ArgumentError, match=next(iter(mistake))):
        holdfast.diagnose(diagonal(), **mistake)


def test_a_rate_above_the_largest_stable_one_is_named():
    learning = Learning("your data", {"recurrent": 0.1}, 1.0, 2.0, 0.01, {})
    for lr, told in ((3.0, ["Your learning rate of 3 is 300 times that: lower it, or clip gradients."]), (0.01, [])):
        reaching = look_at_reach(diagonal(), TrainingPlan(lr, 200, given=True), None)
        report = SimpleNamespace(learning=learning, reaching=reaching, trained=False)
        assert training(report)[2:] == told


def test_a_reach_beyond_what_sequences_can_show_has_no_number():
    (line,) = said(Reaching(TrainingPlan(), "", 50.0, 1e9))
    assert "from 50 to more than 100,000 steps" in line
