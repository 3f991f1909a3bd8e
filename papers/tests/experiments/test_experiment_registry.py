"""Every experiment is well formed, listed, and found by its place."""

import json

import numpy as np
import pytest

from holdfast.errors import ArgumentError, UnknownNameError
from holdfast_papers import experiments
from holdfast_papers.experiments import registry
from holdfast_papers.experiments.base import PRESETS, SECTIONS, Experiment, Work, drop, presets, split
from holdfast_papers.results import config_hash

IDS = registry.ids()


@pytest.mark.parametrize("id", IDS)
def test_an_experiment_is_called_by_its_place_and_says_what_it_is(id):
    experiment = experiments.get(id)
    assert experiment.id == id
    assert experiment.paper in SECTIONS
    for text in (experiment.title, experiment.where, experiment.summary):
        assert text and text[0].isupper() and text == text.strip()
    assert not experiment.title.endswith(".") and experiment.summary.endswith(".")


@pytest.mark.parametrize("id", IDS)
def test_units_of_every_preset_are_plain_distinct_and_have_a_cost(id):
    experiment = experiments.get(id)
    for preset in PRESETS:
        units = experiment.units(experiment.config(preset))
        names = [experiment.identity(unit) for unit in units]
        assert units and len(set(names)) == len(names)
        for unit in units:
            json.dumps(unit)
            # a config that travels through JSON to a worker is the same unit there
            assert experiment.identity(json.loads(json.dumps(unit))) == experiment.identity(unit)
            assert experiment.cost(unit) > 0


def test_the_list_has_every_experiment_of_the_papers_once_in_their_order():
    entries = experiments.list()
    ids = [entry.id for entry in entries]
    assert len(set(ids)) == len(ids)
    assert set(ids) == set(IDS)
    papers = [id.split("-")[0] for id in ids]
    assert papers == sorted(papers, key=list(SECTIONS).index)
    assert ids.index("iat-fig2") < ids.index("iat-fig11") < ids.index("iat-table1")


def test_unknown_experiments_are_refused_by_name():
    with pytest.raises(UnknownNameError, match="Did you mean 'stable-fig2'"):
        experiments.get("stable-fig22")


def test_a_file_without_an_experiment_is_refused(tmp_path):
    path = tmp_path / "empty.py"
    path.write_text("x = 1\n")
    with pytest.raises(ArgumentError, match="must define EXPERIMENT"):
        experiments.get(str(path))


def test_presets_refuse_settings_that_the_paper_does_not_have():
    with pytest.raises(UnknownNameError, match=r"unknown setting in preset 'quick' 'drwas'. Did you mean 'draws'"):
        presets({"draws": 10}, quick={"drwas": 3})
    made = presets({"draws": 10, "m": (2, 4)}, quick={"draws": 3})
    assert made == {
        "paper": {"draws": 10, "m": [2, 4]},
        "standard": {"draws": 10, "m": [2, 4]},
        "quick": {"draws": 3, "m": [2, 4]},
    }


def test_split_gives_every_combination_and_drop_leaves_settings_out():
    assert split({"a": 1}, m=[2, 4], seed=range(2)) == [
        {"a": 1, "m": 2, "seed": 0}, {"a": 1, "m": 2, "seed": 1}, {"a": 1, "m": 4, "seed": 0}, {"a": 1, "m": 4, "seed": 1},
    ]  # fmt: skip
    assert drop({"a": 1, "b": 2}, "b", "c") == {"a": 1}


def test_changes_are_settings_of_the_experiment():
    with pytest.raises(UnknownNameError, match="unknown setting of stable-fig2 'pionts'"):
        experiments.run("stable-fig2", pionts=3)
    with pytest.raises(UnknownNameError, match="unknown preset"):
        experiments.run("stable-fig2", "fast")


def test_the_version_is_part_of_a_units_identity():
    first = experiments.get("stable-fig2")
    second = Experiment(**{**vars(first), "version": first.version + 1})
    assert first.identity({"a": 1}) != second.identity({"a": 1})
    assert first.identity({"a": 1}) != config_hash({"a": 1})


def test_an_id_must_name_a_paper():
    first = experiments.get("stable-fig2")
    with pytest.raises(ArgumentError, match="an experiment's id must be a paper and a name"):
        Experiment(**{**vars(first), "id": "mine"})


def test_running_leaves_the_callers_random_state_alone_and_reports_progress():
    import random

    import torch

    before = random.getstate(), np.random.get_state()[1].copy(), torch.random.get_rng_state()
    seen = []
    result = experiments.run("stable-fig2", progress=lambda done, text: seen.append(done), points=40)
    assert seen == sorted(seen) and seen[-1] == 1.0
    assert result.page.preset == "quick" and result.config["points"] == 40
    assert random.getstate() == before[0]
    assert np.array_equal(np.random.get_state()[1], before[1])
    assert torch.equal(torch.random.get_rng_state(), before[2])


def test_units_repeat_bit_for_bit():
    from holdfast_papers.experiments.running import run_unit

    experiment = experiments.get("iat-fig11")
    config = next(u for u in experiment.units(experiment.config("quick")) if u["part"] == "networks")
    first, second = (run_unit(experiment, config, Work()).arrays for _ in range(2))
    assert all(first[name].tobytes() == second[name].tobytes() for name in first)
