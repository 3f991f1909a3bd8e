"""The five figures and tables of language models: one family of runs, and claims on runs that are made up."""

import math

import numpy as np
import pytest
import torch

from holdfast_papers import experiments
from holdfast_papers.experiments.base import Unit
from holdfast_papers.experiments.running import conclude, run_unit
from holdfast_papers.experiments.stable import _language as language
from holdfast_papers.experiments.stable import _language_runs as read
from holdfast_papers.experiments.stable import table2, table3

pytest.importorskip("lightning_fabric")

TINY = {"steps": 8, "length": 16, "width": 8, "state": 4, "evaluated": 1, "seeds": 1}
IDS = {
    "stable-fig4": {}, "stable-fig5": {}, "stable-fig6": {"rates": [0.005]}, "stable-table2": {"shares": [0.8]},
    "stable-table3": {"rates": [0.004]},
}  # fmt: skip
B1, B2 = read.BESTS


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """Conclusions of the five at a tiny size, and the units that were run for them."""
    kept, results = {}, {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOLDFAST_DATA", str(tmp_path_factory.mktemp("no-data")))
        for id, changes in IDS.items():
            experiment = experiments.get(id)
            config = experiment.config("quick", {**TINY, **changes})
            for unit in experiment.units(config):
                identity = experiment.identity(unit)
                kept[identity] = kept.get(identity) or run_unit(experiment, unit)
            units = [kept[experiment.identity(unit)] for unit in experiment.units(config)]
            results[id] = conclude(experiment, "quick", config, units)
    return results, kept


def test_one_run_of_each_parameterization_serves_all_five(tiny):
    results, kept = tiny
    assert len(kept) == len(language.COMPARED)
    assert {unit.experiment for unit in kept.values()} == {"stable-language"}
    for result in results.values():
        assert result.claims and all(claim.status == "undecided" and claim.explanation for claim in result.claims)
        assert result.page.figures and all(figure.caption for figure in result.page.figures)
        assert any("Python's manual stands in" in str(note) for note in result.page.notes)
        assert [len(table.rows) for table in result.page.tables if table.name in ("runs", "speed")] == [5, 5]


def test_a_run_keeps_short_curves_and_what_its_modes_did(tiny):
    for unit in tiny[1].values():
        arrays = unit.arrays
        assert len(arrays["loss"]) == len(arrays["ratio"]) == 8 and np.isfinite(arrays["loss"]).all()
        assert arrays["margin.start"] == pytest.approx(1 - np.exp(-0.05), rel=1e-3)  # float32
        assert arrays["rate"] == pytest.approx(0.004) and arrays["unit.rate"] > 0
        assert 0 <= arrays["moved"] <= 1 and arrays["eigenvalues"].shape == (1, 4)
        assert unit.log[0]["tokens_per_second"] > 0 and unit.log[0]["status"] == "finished"


def test_models_of_a_seed_differ_in_nothing_but_the_free_weights():
    config = experiments.get("stable-fig4").units(experiments.get("stable-fig4").config("standard"))[0]
    models = []
    for name in language.PARAMETERIZATIONS:
        torch.manual_seed(0)
        models.append(language.build({**config, "parameterization": name}, 10))
    first = models[0]
    for model in models[1:]:
        for (name, weight), (_, other) in zip(first.named_parameters(), model.named_parameters(), strict=True):
            if not name.endswith("mixer.w"):
                assert torch.equal(weight, other)
        lam, reference = model.blocks[0].mixer.eigenvalues(), first.blocks[0].mixer.eigenvalues()
        # float32 near 1: the inverse and f round a few times, at most 4 units of the last place
        assert torch.allclose(lam, reference, rtol=0, atol=4 * torch.finfo(torch.float32).eps)


def test_the_papers_model_is_built_on_the_meta_device():
    experiment = experiments.get("stable-table2")
    config = experiment.units(experiment.config("paper"))[0]
    with torch.device("meta"):
        model = language.build(config, config["vocabulary"])
    assert all(weight.is_meta for weight in model.parameters())
    width, state = 768, 128
    block = 12 * width**2 + 9 * width + (3 + 1) * 3 * width + 4 * width + 2 * width * state + state
    assert sum(weight.numel() for weight in model.parameters()) == 12 * block + 2 * width + 50257 * width
    assert (config["steps"], config["batch"], config["length"], config["warmup"]) == (115_200, 16, 1024, 1000)
    assert config["lr"] * config["share"] == pytest.approx(0.004)


def _unit(name, seed, lr=0.005, share=0.8, data="shakespeare", **values):
    arrays = {
        "steps": np.arange(1, 41), "loss": np.linspace(4, 3, 40), "train.first": 4.0, "diverged": 0, "train.loss": 3.0,
        "valid.loss": 3.0, "test.loss": 3.0, "start": np.ones((2, 5)), "ratio.steps": np.arange(40), "ratio": np.ones(40),
        "ratio.start": 1.0, "ratio.max": 1.0, "margin.start": 1e-3, "margin.end": 2e-3, "done": 40, "moved": 0.5,
        "crossed": 0.0, "rate": 0.004, "unit.rate": 1.0, **values,
    }  # fmt: skip
    config = {**language.STANDARD, "data": data, "parameterization": name, "lr": lr, "share": share, "seed": seed}
    arrays = {key: np.asarray(value, dtype=np.float64) for key, value in arrays.items()}
    return Unit(config | {"weight_decay": 0.25}, arrays)


def _claims(id, made, **changes):
    """Claims from units of every parameterization and seed; made(name, seed, lr, share) gives what differs."""
    experiment = experiments.get(id)
    config = experiment.config("standard", {"data": ["shakespeare"], **changes})
    keys = dict.fromkeys((u["parameterization"], u["seed"], u["lr"], u["share"]) for u in experiment.units(config))
    units = [_unit(*key, **made(*key)) for key in keys]
    return {claim.name: claim for claim in experiment.conclude(config, units).claims}


def _ratio(name, worse=()):
    return 0.1 if name == B1 else 2.0 if name in worse else 1.0


def test_fig4_asks_for_an_interval_that_excludes_equality():
    found = _claims("stable-fig4", lambda name, seed, *_: {"ratio.start": _ratio(name) * (1 + 0.01 * seed)})
    assert found[f"start, {B1}, shakespeare"].status == "met"
    assert found[f"start, {B1}, shakespeare"].numbers[f"{B1} / exp"] == pytest.approx(0.1)
    # equal to all others: nothing is smallest
    assert found[f"start, {B2}, shakespeare"].status == "undecided"
    assert f"decides nothing for {B2} / exp" in found[f"start, {B2}, shakespeare"].explanation
    assert found["stable ones narrower, shakespeare"].status == "undecided"
    found = _claims("stable-fig4", lambda name, *_: {"ratio.start": _ratio(name, ("direct",))})
    assert found["stable ones narrower, shakespeare"].status == "met"
    found = _claims("stable-fig4", lambda name, seed, *_: {"ratio.start": _ratio(name) if seed == 0 else 1.0})
    assert found[f"start, {B1}, shakespeare"].status == "undecided"
    found = _claims("stable-fig4", lambda name, *_: {"ratio.start": 5.0 if name == B1 else 1.0})
    assert found[f"start, {B1}, shakespeare"].status == "not met"


def test_fig5_leaves_exp_to_its_own_claim_where_its_weights_pass_through_zero():
    def made(crossed, moved=0.5):
        return lambda name, *_: {
            "ratio.max": 0.05 if name == "exp" else _ratio(name),
            "crossed": crossed if name == "exp" else 0.0,
            "moved": moved,
        }

    found = _claims("stable-fig5", made(0.0))
    assert found[f"training, {B1}, shakespeare"].status == "not met"
    found = _claims("stable-fig5", made(0.1))
    assert found[f"training, {B1}, shakespeare"].status == "met"
    assert found[f"training, {B1} against exp, shakespeare"].status == "not met"
    assert _claims("stable-fig5", made(0.1), seeds=2)[f"training, {B1}, shakespeare"].status == "undecided"
    frozen = _claims("stable-fig5", made(0.1, moved=0.05))[f"training, {B1}, shakespeare"]
    assert frozen.status == "undecided" and "Fewer than 20% of the modes moved" in frozen.explanation


def test_a_run_that_diverged_has_lost():
    found = _claims("stable-fig5", lambda name, *_: {"ratio.max": _ratio(name), "diverged": name == B1})
    assert found[f"training, {B1}, shakespeare"].status == "not met"
    assert read.Run(_unit(B1, 0, diverged=1)).upward == math.inf


def test_fig6_asks_for_the_steadiest_loss_at_the_largest_rate():
    waves = np.linspace(4, 3, 40) + 0.5 * np.sin(np.arange(40.0))

    def made(name, seed, lr, share):
        return {"loss": waves} if lr == 0.01 and name != B1 else {}

    found = _claims("stable-fig6", made)
    assert found[f"steadiest, {B1}"].status == "met" and found[f"steadiest, {B2}"].status == "undecided"
    assert _claims("stable-fig6", lambda *_: {})[f"steadiest, {B1}"].status == "undecided"
    assert read.Run(_unit(B1, 0)).upward == 0


def test_table2_has_a_column_of_the_papers_rates_and_one_of_the_rules():
    def made(name, seed, lr, share):
        better = name in read.STABLE and share == language.RULE
        return {"test.loss": 2.5 + 0.01 * seed if better else 3.0 + 0.01 * seed}

    found = _claims("stable-table2", made)
    assert found["the paper's rates, shakespeare"].status == "undecided"  # all equal
    assert found["the rule's rates, shakespeare"].status == "met"
    assert found["the rule's rates, shakespeare"].numbers["exp less direct"] == pytest.approx(-0.5)
    assert _claims("stable-table2", made, seeds=2)["the rule's rates, shakespeare"].status == "undecided"
    worse = _claims("stable-table2", lambda name, *_: {"test.loss": 2.0 if name == "direct" else 3.0})
    assert worse["the paper's rates, shakespeare"].status == "not met"


def test_the_rate_of_the_rule_is_that_of_the_library():
    experiment = experiments.get("stable-table2")
    units = experiment.units(experiment.config("quick", TINY))
    (unit,) = [u for u in units if u["parameterization"] == "exp" and u["share"] == language.RULE]
    arrays = run_unit(experiment, unit).arrays
    assert 0 < arrays["rate"] <= arrays["unit.rate"] * 10 and arrays["rate"] != 0.004


def test_table3_compares_the_largest_rates_that_train():
    def made(reach):
        def one(name, seed, lr, share):
            most = reach.get(name, 0.1)
            unit = {"unit.rate": most}
            return unit if lr * share <= 1.01 * most else unit | {"diverged": 1}

        return one

    rates = {B1: 10.0, B2: 3.16, "exp": 1.0, "softplus": 0.316, "direct": 0.1}
    found = _claims("stable-table3", made(rates))
    assert found[f"largest rate, {B1}"].status == "met" and found["order of the rule"].status == "met"
    assert found[f"largest rate, {B1}"].numbers[f"largest rate that trains, {B1}"] == 10.0
    assert found["3 billion weights"].status == "undecided"
    tied = _claims("stable-table3", made({**rates, "exp": 10.0}))
    assert tied[f"largest rate, {B1}"].status == "undecided" and tied[f"largest rate, {B2}"].status == "not met"
    alike = _claims("stable-table3", made({}))
    assert alike[f"largest rate, {B1}"].status == alike["order of the rule"].status == "undecided"


def test_a_run_trains_if_it_ends_near_the_best_of_its_seed():
    runs = {
        rate: {name: [read.Run(_unit(name, 0, **{"train.loss": loss}))] for name, loss in losses.items()}
        for rate, losses in ((0.1, {B1: 2.0, "exp": 2.05}), (1.0, {B1: 2.05, "exp": 2.2}))
    }
    assert table3.largest_rates(runs) == {B1: [1.0], "exp": [0.1]}


def test_what_a_mode_past_the_boundary_does_is_said():
    runs = {name: [read.Run(_unit(name, 0, **{"margin.end": -0.01}))] for name in language.PARAMETERIZATIONS}
    text = read.account(runs, ["direct"])
    assert (
        "0.001 from the boundary at the start and -0.01 at the end" in text and "grows 13-fold over 256 steps" in text
    )
    assert "1e+300-fold" in read._growth(-1e9, 256) and read._growth(0.1, 256) == ""


def test_a_bar_says_how_many_runs_diverged():
    runs = {
        name: [read.Run(_unit(name, s, **{"test.loss": math.inf if s < 2 else 3.0})) for s in range(3)]
        for name in ("exp",)
    }
    (bars,) = table2._panel("", runs).layers
    assert list(bars.names) == ["exp (2 of 3 diverged)"] and bars.y.tolist() == [3.0]
