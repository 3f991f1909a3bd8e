"""What is concluded from sweeps, slopes and gates: tiny runs, and made-up results on both sides of each criterion."""

import numpy as np
import pytest

from holdfast_papers import experiments
from holdfast_papers.experiments.base import Unit
from holdfast_papers.experiments.rates import _sweeps, _tasks, choice, gates, rule, slopes


@pytest.mark.parametrize("id", ["rates-slopes", "rates-rule", "rates-choice", "rates-gates"])
def test_a_quick_run_shows_every_cell_and_decides_nothing(conclude, id):
    result = conclude(id)
    assert {claim.status for claim in result.claims} == {"undecided"}
    assert all(table.rows for table in result.page.tables)


def _slope_units(config, slope):
    seeds = range(config["seeds"])
    made = []
    for unit in slopes.units(config):
        largest = [
            [unit["tau"] ** slope(unit["optimizer"], name) * 2 ** (0.05 * (k % 3)) for k in seeds]
            for name in slopes.NAMES
        ]
        made.append(Unit(unit, {"largest": np.array(largest), "rates": np.tile([1e-9, 1e9], (len(slopes.NAMES), 1))}))
    return made


def test_slopes_are_met_at_the_prediction_and_not_half_a_power_beside_it():
    config = slopes.EXPERIMENT.config("standard")
    at = slopes.conclude(config, _slope_units(config, lambda o, n: slopes.PREDICTED[o][n] + 0.1)).claims
    beside = slopes.conclude(config, _slope_units(config, lambda o, n: slopes.PREDICTED[o][n] + 0.5)).claims
    assert len(at) == 8 and {c.status for c in at} == {"met"} and {c.status for c in beside} == {"not met"}


def _sweep_unit(config, error_of):
    """error_of(parameterization, column): the last columns are lr/4 and the rule."""
    columns = len(config["exponents"]) + 2
    rates = 0.1 * _sweeps.FACTOR ** np.array([*config["exponents"], -3.5, 0])
    each = np.array([[error_of(name, k) for k in range(columns)] for name in _sweeps.NAMES])
    wiggle = 1 + 0.01 * np.arange(config["seeds"])
    arrays = {"rates": np.tile(rates, (len(_sweeps.NAMES), 1)), "error": each[..., None] * wiggle}
    return Unit(config, {**arrays, "start": np.full(config["seeds"], 2.4)})


@pytest.mark.parametrize(("factor", "status"), [(1.5, "met"), (4.0, "not met")])
def test_the_rule_is_judged_by_the_best_of_the_sweep(factor, status):
    config = rule.EXPERIMENT.config("standard")
    units, best, usual = [], 0.1, 2.0
    for unit in rule.units(config):
        at_rule = 2.4 - (2.4 - best) / factor if unit["task"] in rule.CLASSES else factor * best
        units.append(_sweep_unit(unit, lambda name, k, r=at_rule: {8: usual, 9: r, 5: best}.get(k, usual)))
    found = {claim.name: claim for claim in rule.conclude(config, units).claims}
    assert found["squared errors"].status == status
    assert found["cross-entropy"].status == ("met" if factor < 1.4 else "not met")
    assert found["better than lr/4"].status == "met"


def test_the_choice_names_the_winner_and_compares_with_direct_by_seed():
    config = choice.EXPERIMENT.config("standard")
    level = {"direct": 0.4, "best": 0.2, "exp": 0.1, "softplus": 0.2}
    units = []
    for unit in choice.units(config):
        learned = unit["start"] == "short"
        units.append(_sweep_unit(unit, lambda name, k, learned=learned: level[name] if learned else 0.1))
    found = {claim.name: claim for claim in choice.conclude(config, units).claims}
    assert {found[f"learned, {o}, numbers"].status for o in ("AdamW", "SGD")} == {"met"}
    assert found["given, AdamW, numbers"].status == "met"
    assert "exp ends below" in found["exp and best, AdamW, numbers, own best rate"].statement
    numbers = found["exp and best, AdamW, numbers, own best rate"].numbers
    assert numbers["error of exp / best"] == pytest.approx(0.5) and numbers["cells won by exp"] == 1.0


def test_gates_are_judged_by_their_reach():
    config = gates.EXPERIMENT.config("standard")
    units = []
    for unit in gates.units(config):
        shape = (len(unit["rates"]), unit["seeds"])
        reach = np.array([1.0, 2.0, 5.0])[:, None] * unit["delay"] * np.full(shape, 0.8)
        learned = reach > 3 * unit["delay"]
        arrays = {"reach": reach, "provable": reach, "start": reach * 0 + 2, "memory": reach * 1.4}
        units.append(Unit(unit, {**arrays, "error": np.where(learned, 0.01, 1.0)}))
    assert {claim.status for claim in gates.conclude(config, units).claims} == {"met"}
    longer = [
        Unit(u.config, {**u.arrays, "memory": u.arrays["reach"] * 2, "error": 0.5 - u.arrays["error"]}) for u in units
    ]
    assert {claim.status for claim in gates.conclude(config, longer).claims} == {"not met"}


def test_every_task_of_the_sequences_has_an_answer_that_its_inputs_decide():
    for name in ("adding-200", "recall-64", "delay-30", "digits"):
        task = _tasks.task(name)
        x, y = task.draw(5, 6)
        again, _ = task.draw(5, 6)
        other, _ = task.draw(6, 6)
        assert (
            x.shape[0] == 6
            and x.shape[2] == task.sizes[0]
            and bool((x == again).all())
            and not bool((x == other).all())
        )
        assert y.is_floating_point() != task.classes
    x, y = _tasks.task("adding-200").draw(0, 50)
    assert np.allclose((x[..., 0] * x[..., 1]).sum(1) - 1, y[:, 0], atol=1e-6) and bool((x[..., 1].sum(1) == 2).all())


def test_experiments_beyond_the_papers_have_a_section_of_their_own():
    listed = [entry.id for entry in experiments.list() if entry.id.startswith("rates-")]
    assert listed == ["rates-choice", "rates-gates", "rates-rule", "rates-slopes"]
