"""The trained experiments of "Inverse Approximation Theory": tiny runs of each, and their criteria on made-up numbers."""

import numpy as np
import pytest
import torch

from holdfast_papers.experiments.base import Unit, Work
from holdfast_papers.experiments.iat import (
    _curves,
    _reparameterized,
    _students,
    _sup,
    _teachers,
    fig2,
    fig3,
    fig7,
    fig8,
    fig12,
)

pytest.importorskip("lightning_fabric")

TINY = {"steps": 4, "batch": 8, "train_size": 16, "train_steps": 8, "test_size": 2, "test_steps": 12, "widths": [2, 3]}
SEARCH = {"per_unit": 4, "least_steps": 8, "sequences": 2, "ascent": 1, "draws": 1}
BETAS = 1e-4 * 2.0 ** np.arange(21)
RECORD = {
    "steps": np.arange(1.0, 5.0), "loss": np.ones(4), "diverged": np.array(False), "valid.loss": np.array(1e-4),
    "margin.start": np.array(0.1), "margin.end": np.array(0.1), "ratio.start": np.array(1.0), "ratio.max": np.array(2.0),
    "moved": np.array(0.5), "rate": np.array(0.005),
}  # fmt: skip
UNSTABLE, STABLE = -1.0, 0.0  # slopes of log radius in log m


def _curve(m, slope, centre=0.01, names=("all", "recurrent", "authors", "sup", "sup_all", "sup_recurrent")):
    """A model that reaches the level, a quarter of a target of norm 1, at beta = 0.5 (m / 8)^slope."""
    errors = np.maximum(0.25 * BETAS / (0.5 * (m / 8) ** slope), centre)
    searched = {f"{name}_radii": BETAS for name in names if name.startswith("sup")}
    return (
        {"radii": BETAS}
        | searched
        | {
            f"{name}_{kind}": np.array(value)
            for name in names
            for kind, value in (("errors", errors), ("centre", centre), ("norm", 1.0))
        }
    )


def _unit(config, slope, centre=0.01, **more):
    return Unit(config, {**RECORD, **_curve(config["m"], slope, centre), **more})


def test_fig2_runs_and_has_no_verdict_on_two_widths(claims):
    found = claims("iat-fig2", **TINY, **SEARCH)
    assert found["unstable"].status == "undecided" and "4 are needed" in found["unstable"].explanation


@pytest.mark.parametrize(("slope", "centre", "status"), [
    (UNSTABLE, 0.01, "met"), (STABLE, 0.01, "not met"), (UNSTABLE, 0.2, "undecided"),
])  # fmt: skip
def test_fig2_follows_the_rule_of_stability(slope, centre, status):
    config = {**fig2.EXPERIMENT.presets["paper"], "smallest": 1e-4, "doublings": 20}
    units = [_unit(u, slope, centre) for u in fig2.units(config)]
    found = {claim.name: claim for claim in fig2.conclude(config, units).claims}
    assert found["unstable"].status == found["authors' noise"].status == status
    assert found["approximated"].status == ("met" if centre == 0.01 else "not met")


def test_the_median_of_the_seeds_decides_and_a_diverged_run_is_an_infinite_error():
    config = {**fig2.EXPERIMENT.presets["paper"], "smallest": 1e-4, "doublings": 20}
    units = []
    for u in fig2.units(config):
        lost = _sup.failed(u, "sup_all") | _sup.failed(u, "sup_recurrent") | _curves.failed(BETAS, fig2.NAMES)
        broken = {"diverged": np.array(True), **lost} if u["seed"] == 2 else {}
        units.append(_unit(u, UNSTABLE, **broken))
    conclusion = fig2.conclude(config, units)
    assert next(c for c in conclusion.claims if c.name == "unstable").status == "met"
    assert [row[2] for row in conclusion.tables[2].rows] == [1, 1, 1, 1]
    seeds = {row[1]: row[2] for row in conclusion.tables[1].rows}
    assert seeds == {"seed 0": "unstable", "seed 1": "unstable", "seed 2": "no approximation"}


def test_lengths_are_those_of_the_text_and_long_enough_at_standard():
    for experiment in (fig2.EXPERIMENT, fig7.EXPERIMENT, fig8.EXPERIMENT):
        paper, standard = (experiment.presets[name] for name in ("paper", "standard"))
        assert (paper["train_steps"] * paper["dt"], paper["test_steps"] * paper["dt"]) == pytest.approx((3.2, 10.0))
        for m in standard["widths"]:
            assert _sup.horizon({**standard, "m": m}) >= max(25 * m, standard["train_steps"])
    relu = fig7.EXPERIMENT.presets["standard"]
    assert {_sup.horizon({**relu, "m": m}) for m in relu["widths"]} == {relu["train_steps"]}


def test_both_arms_run_in_the_same_class_of_matrices(claims):
    found = claims("iat-fig8", **{**TINY, **SEARCH, "widths": [2], "complete_widths": [2]})
    assert set(found) == {"hardtanh", "tanh", "tanh, complete"}
    assert all(claim.status == "undecided" for claim in found.values())


@pytest.mark.parametrize(("direct", "softplus", "centre", "status"), [
    (UNSTABLE, STABLE, 0.01, "met"), (STABLE, STABLE, 0.01, "not met"), (UNSTABLE, UNSTABLE, 0.01, "not met"),
    (STABLE, STABLE, 0.2, "undecided"),
])  # fmt: skip
def test_each_activation_is_decided_on_its_own(direct, softplus, centre, status):
    config = fig8.EXPERIMENT.presets["standard"]
    slopes = {"symmetric": direct, "softplus": softplus, "direct": UNSTABLE, "complete": STABLE}
    units = [
        # hardtanh is as the papers say; the case is tanh
        _unit(u, slopes[f], centre) if u["activation"] == "tanh" else _unit(u, {"symmetric": UNSTABLE}.get(f, STABLE))
        for u in _reparameterized.units(config, fig8.ACTIVATIONS)
        for f in [u["parameterization"]]
    ]
    found = {claim.name: claim for claim in _reparameterized.conclude(config, units, fig8.ACTIVATIONS).claims}
    assert found["hardtanh"].status == "met" and found["tanh"].status == status


def test_every_preset_finds_its_data():
    for experiment in (fig2.EXPERIMENT, fig7.EXPERIMENT, fig8.EXPERIMENT):
        for preset in ("standard", "paper"):
            found = _students.lesson({**experiment.presets[preset], "train_steps": 2, "test_steps": 2})
            assert len(found.valid[0]) == len(found.train[0]) // 8 and len(found.test[0]) == 64


def test_students_of_both_forms_start_from_the_same_weights():
    config = {"m": 6, "seed": 1, "dt": 0.1}
    direct, *others = (_students.student({**config, "parameterization": f}) for f in _reparameterized.FORMS)
    for other in others:
        # W through an orthogonal basis, or through Lyapunov's equation, and back, in float32
        torch.testing.assert_close(direct.recurrence(), other.recurrence(), rtol=0, atol=1e-5)
        assert torch.equal(direct.U, other.U) and torch.equal(direct.C, other.C)
    assert direct.margin() == pytest.approx(1 / 6, rel=1e-4)


def test_teachers_of_known_memory_are_taught(conclude):
    result = conclude("iat-fig3", **{**TINY, **SEARCH, "widths": [2]})
    assert [row[1] for row in result.page.tables[0].rows] == ["exponential", "exponential", "slower", "slower"]
    assert result.claims[0].status == "undecided"


@pytest.mark.parametrize(("exponential", "slower", "status"), [
    (STABLE, UNSTABLE, "met"), (STABLE, STABLE, "not met"), (UNSTABLE, UNSTABLE, "undecided"),
])  # fmt: skip
def test_kept_teachers_must_have_exponential_memory(exponential, slower, status):
    config = fig3.EXPERIMENT.presets["standard"]
    units = [
        # the family that starts with a short memory does not approximate a slower teacher
        _unit(u, exponential)
        if u["teacher"] in _teachers.EXPONENTIAL
        else _unit(u, slower, 0.01 if u["start"] == "m" else 0.2)
        for u in fig3.units(config)
    ]
    assert fig3.conclude(config, units).claims[0].status == status


def test_a_teacher_answers_with_its_kernel_and_long_inputs_excite_slow_memory():
    impulse = torch.zeros(1, 50, 1)
    impulse[0, 0] = 1.0
    rho, after = _teachers.BUILT["(1+t)^-1.5"]
    y = _teachers.kernel_response(rho, after, impulse, 0.1)[0, :, 0]
    torch.testing.assert_close(y, (0.1 * (1 + 0.1 * torch.arange(50.0)) ** -1.5), rtol=1e-6, atol=1e-7)
    x = _teachers.scales(torch.randn(6, 400, 1, generator=torch.Generator().manual_seed(0)), seed=0)
    assert (x[1::2].abs() == 1).all() and not (x[::2].abs() == 1).any()
    assert float(x[1::2].mean(1).abs().max()) > 0.5  # a sign held for most of a sequence


def test_transformers_and_their_controls_run(conclude):
    small = {**TINY, **SEARCH, "widths": [2], "horizon": 110, "teacher_width": 4, "transformer_width": 8, "heads": 2}
    found = {claim.name: claim for claim in conclude("iat-fig12", **small, depth=1).claims}
    assert found["no stable approximation"].status == "undecided"
    # an impulse shows the memory of attention without positions, of which a constant input shows none
    assert found["memory"].status == "met"


def test_a_causal_transformer_sees_nothing_ahead_and_repeats_itself():
    config = {"teacher_seed": 0, "transformer_width": 8, "depth": 2, "heads": 2}
    x = torch.randn(2, 9, 1, generator=torch.Generator().manual_seed(0))
    teacher = _teachers.transformer(config)
    whole, again, part = (_teachers.outputs(teacher, x_) for x_ in (x, x, x[:, :5]))
    assert torch.equal(whole, again) and not teacher.training
    # other sizes of the same products: a few roundings of float32
    torch.testing.assert_close(whole[:, :5], part, rtol=0, atol=1e-5)


def test_what_is_left_of_a_target_has_no_instantaneous_part():
    config = {**TINY, "dt": 0.1, "train_steps": 40, "kind": "slow"}
    answers = fig12.target(config)
    x = _teachers.scales(_students.lesson({**config, "train_size": fig12.FITTED}).train[0], seed=9)
    y = answers(x)
    # least squares leaves nothing that its own powers explain, on average over all steps; float32
    assert (fig12._powers(x) * y.double()).mean((0, 1)).abs().max() < 1e-6
    assert y.square().mean().sqrt() == pytest.approx(_teachers.SIZE, rel=1e-5)


@pytest.mark.parametrize(("transformer", "rnn", "slow", "status"), [
    (0.2, 0.01, UNSTABLE, "met"), (0.01, 0.01, UNSTABLE, "not met"), (0.2, 0.2, UNSTABLE, "undecided"),
    (0.2, 0.01, STABLE, "undecided"),
])  # fmt: skip
def test_no_transformer_may_be_kept_where_both_controls_are_as_their_memory_says(transformer, rnn, slow, status):
    config = fig12.EXPERIMENT.presets["standard"]
    centres = {"transformer": transformer, "rnn": rnn, "slow": 0.01}
    units = [
        Unit(u, {"memory": np.geomspace(1, 0.5 if u["kind"] == "transformer" else 1e-9, 110)})
        if u["part"] == "memory"
        else _unit(u, slow if u["kind"] == "slow" else STABLE, centres[u["kind"]])
        for u in fig12.units(config)
    ]
    found = {claim.name: claim for claim in fig12.conclude(config, units).claims}
    assert found["no stable approximation"].status == status and found["memory"].status == "met"


def test_a_student_that_diverges_is_recorded_as_such():
    config = {**TINY, "m": 3, "seed": 0, "lr": 1e30, "dt": 0.1, "steps": 8}
    model, record = _students.learn(config, _students.lesson(config), Work())
    assert record["diverged"] and "valid.loss" not in record and all(p.isfinite().all() for p in model.parameters())


def test_memory_that_is_rounding_decides_nothing():
    """A ratio of two roundings is no evidence: it was inf, and counted as met."""
    memory = np.zeros(201)
    memory[0], memory[2:] = 1.0, 1e-15
    left = {("transformer", 0): fig12._left(memory), ("rnn", 0): 0.5}
    assert fig12._memory(left).status == "undecided"
    slow = {("transformer", 0): fig12._left(1 / (1 + np.arange(201.0))), ("rnn", 0): 0.5}
    assert fig12._memory(slow).status == "met"


def test_the_fit_of_a_teacher_does_not_depend_on_where_its_numbers_lie():
    rng = torch.Generator().manual_seed(0)
    powers, y = (torch.randn(24_000, k, dtype=torch.float64, generator=rng) for k in (4, 1))

    def moved(x, offset):
        return torch.empty(x.numel() + offset, dtype=x.dtype)[offset:].view(x.shape).copy_(x)

    first, *others = (fig12._fitted(moved(powers, k), moved(y, k)) for k in range(8))
    assert all(torch.equal(first, other) for other in others)  # torch.linalg.lstsq: two of these differ in a bit
    assert (first - torch.linalg.lstsq(powers, y).solution).abs().max() < 1e-14  # 10 roundings of a sum of 24,000
