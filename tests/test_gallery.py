"""Every example of the gallery runs, small, and prints what its text says."""

import re
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"


def test_direct_weights_diverge_or_end_within_a_step_of_it_and_stabilized_ones_train_at_the_same_rates(printed):
    text = printed("fix_diverging_ssm", "--steps", "130")
    direct, best = (re.findall(rf"rate ([\d.]+) +{name} +(.*); margin (.*)", text) for name in ("direct", "best"))
    assert [outcome.startswith("diverged") for _, outcome, _ in direct] == [True, True, False]
    assert float(direct[2][2]) < float(direct[2][0])
    for _, outcome, margin in best:
        first, last = re.fullmatch(r"loss ([\d.]+) -> ([\d.]+)", outcome).groups()
        assert float(last) < float(first) / 2
        assert float(margin) > 1e-3


def test_a_stream_equals_one_pass(printed):
    differences = re.findall(r"pieces of +\d+: ([\d.e+-]+),", printed("stream", "--samples", "600"))
    assert len(differences) == 9
    assert all(float(d) < 1e-5 for d in differences)  # float32 outputs of order 1, summed in another order


def test_an_accelerated_model_trains_with_the_losses_of_torch(printed):
    text = printed("faster_lstm", "--windows", "8", "--epochs", "2")
    differences = re.findall(r"largest difference of a loss ([\d.e+-]+)", text)
    assert len(differences) == 2
    assert all(float(d) < 1e-5 for d in differences)  # of losses of 4 nats: rounding, after 4 steps


def test_slow_modes_recall_what_fast_ones_cannot(printed):
    shares = [int(s) for s in re.findall(r"(\d+)% of the values", printed("long_recall", "--distances", "10", "300"))]
    assert shares[0] == 100
    assert shares[1] < 80  # chance, and three standard errors of 32 draws
    assert shares[2:] == [100, 100]


def test_recurrent_networks_forget_long_before_state_space_models_do(printed, tmp_path):
    text = printed("memory_of_architectures", "--horizon", "120", "--save", str(tmp_path / "curves.png"))
    left = {
        name: float(share) for name, share in re.findall(r"^(\w+) .*? ([\d.e+-]+) of the largest", text, re.MULTILINE)
    }
    assert len(left) == 9
    assert max(left["RNN"], left["GRU"], left["LSTM"]) < 1e-5 < left["S4D"]
    assert (tmp_path / "curves.png").stat().st_size < 80_000


def test_an_own_parameterization_stands_beside_the_known_ones(printed):
    rows = dict(re.findall(r"^(direct|exp|best|own) +(.*)$", printed("own_parameterization"), re.MULTILINE))
    assert rows.keys() == {"direct", "exp", "best", "own"}
    assert "inf" in rows["direct"]
    assert "inf" not in rows["own"]


def test_an_own_experiment_decides_its_claim(printed):
    assert re.match(r"(not )?met: A bias of 3", printed("own_experiment"))


@pytest.mark.slow
def test_the_monitor_warns_of_direct_weights_and_stabilized_ones_bear_a_change_that_destroys_them(printed):
    text = printed("is_my_model_stable")
    errors = {name: float(last) for name, last in re.findall(r"^(direct|exp|best) .* (\S+)$", text, re.MULTILINE)}
    assert errors["direct"] > 1e3 > 10 > max(errors["exp"], errors["best"])
    assert "training may diverge" in text
    assert "monitor: 0 warnings" in text


@pytest.mark.slow
def test_roots_of_unity_give_an_image_back_and_a_wide_ring_does_not(printed, monkeypatch, tmp_path):
    monkeypatch.setenv("HOLDFAST_DATA", str(tmp_path))
    text = printed("rebuild_digits", "--images", "5")
    errors = dict(re.findall(r"^(\S.*?) +complex +(\S+)", text, re.MULTILINE))
    assert float(errors["ring 0..1"]) > 0.1
    assert float(errors["roots of unity"]) < 1e-10  # float64, condition 1, 784 steps


def test_direct_modes_diverge_at_one_over_m_squared_and_others_nowhere(printed):
    rows = re.findall(r"(direct|exp|best) (.*)", printed("power_law_memory"))
    assert {name for name, row in rows if "diverges" in row} == {"direct"}


def test_the_advice_for_a_forecaster_was_tried_and_its_error_is_told(printed):
    text = printed("forecaster", "--series", "6", "--steps", "20")
    assert re.search(r"test error of the LSTM: \d\.\d+", text)
    assert "held-out sequences" in text
    assert text.count('layer="s4d"') == 1
    before, after = map(float, re.search(r"held-out loss ([\d.]+) -> ([\d.]+)", text).groups())
    assert after < before
    assert "another layer learns the task better: test error" in text


def test_a_small_recurrent_rate_cannot_reach_the_memory_and_a_larger_one_learns_it(printed, tmp_path):
    text = printed("learn_memory", "--steps", "100", "--rates", "0.005", "0.1", "--save", str(tmp_path / "reach.png"))
    rows = [tuple(map(float, row)) for row in re.findall(r"^  (\d\S*) +(\S+) +(\S+)$", text, re.MULTILINE)]
    assert [rate for rate, _, _ in rows] == [0.005, 0.1] * 2
    assert all(tau < 1.5 * limit for _, limit, tau in rows)  # the reach is an estimate
    assert rows[0][2] < 15 < 50 < rows[1][2]  # exp: from 10 steps towards 100
    assert (tmp_path / "reach.png").stat().st_size < 80_000


def test_an_lstm_that_adds_has_arms_to_choose_from(printed):
    text = printed(
        "adding_problem", "--arms", "torch", "auto", "start", "--steps", "2", "--length", "10", "--seeds", "0"
    )
    assert re.findall(r"^(\w+) +seed 0: (not solved|\d+) steps, loss", text, re.MULTILINE) == [
        ("torch", "not solved"),
        ("auto", "not solved"),
        ("start", "not solved"),
    ]


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda p: p.stem)
def test_an_example_fits_a_page_and_has_a_title(path):
    text = path.read_text()
    assert len(text.splitlines()) < 80
    assert re.match(r'"""\n(.*)\n=+\n\n', text)
    assert re.search(r"^You learn: \w", text, re.MULTILINE)
    assert re.search(r"Run time: (about )?\d+", text)
