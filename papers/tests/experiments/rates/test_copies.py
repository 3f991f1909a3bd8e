"""Copies that are trained at once are what each would be on its own, and their numbers are those of torch's own modules."""

import math

import pytest
import torch

from holdfast.nn import DiagonalSSM
from holdfast_papers.experiments.rates import _gated, _largest, _linear, _stack
from holdfast_papers.experiments.rates._copies import CopyTrainer, Recipe, grid, share, train

NAMES = ("direct", "best", "exp", "softplus")


def problem(weights, k):
    """A loss of two weights that is not a square, whose gradient changes from step to step and needs clipping."""
    return (
        (weights["w"] ** 2 - k).abs().sum(1) + 5 * (weights["A"] @ weights["w"].unsqueeze(-1)).sin().sum((1, 2))
    ) / 2


@pytest.mark.parametrize(("optimizer", "made"), [("adamw", torch.optim.AdamW), ("sgd", torch.optim.SGD)])
def test_each_copy_takes_the_steps_of_torch_with_its_own_rate_and_clipping(optimizer, made):
    torch.manual_seed(0)
    start = {"w": torch.randn(3, 4, dtype=torch.float64), "A": torch.randn(3, 2, 4, dtype=torch.float64)}
    rates, recipe = torch.tensor([0.3, 0.01, 0.002], dtype=torch.float64), Recipe(optimizer, 12, 0.05, clip=0.7)
    together = {name: value.clone() for name, value in start.items()}
    assert bool(train(problem, together, ("w",), rates, recipe).all())
    for copy in range(3):
        own = {name: value[copy : copy + 1].clone().requires_grad_() for name, value in start.items()}
        groups = [{"params": [own["w"]], "lr": float(rates[copy])}, {"params": [own["A"]], "lr": recipe.lr}]
        steps = made(groups, **({"weight_decay": 0.0} if optimizer == "adamw" else {}))
        schedule = torch.optim.lr_scheduler.LambdaLR(steps, lambda k: share(k, 12, recipe.warmup) if k < 12 else 0.0)
        for k in range(12):
            steps.zero_grad()
            problem(own, k).sum().backward()
            torch.nn.utils.clip_grad_norm_(list(own.values()), 0.7)
            steps.step()
            schedule.step()
        for name, value in own.items():
            # twelve steps in double: rounding alone
            torch.testing.assert_close(together[name][copy : copy + 1], value.detach(), rtol=1e-10, atol=1e-12)


def test_the_shares_of_a_run_sum_to_half_its_steps():
    for steps in (20, 100, 1000):
        assert sum(share(k, steps, 0.1) for k in range(steps)) == pytest.approx(steps / 2)


def test_a_copy_that_diverges_leaves_the_others_alone_and_goes_back_to_its_start():
    weights = {"w": torch.tensor([[1.0], [1.0]])}
    trainer = CopyTrainer(
        {"w": weights["w"].requires_grad_()}, ("w",), torch.tensor([0.1, 0.1]), Recipe("adamw", 5, 0.1)
    )
    trainer.step(0, trainer.weights["w"].square().sum(1) * torch.tensor([1.0, math.inf]))
    assert trainer.alive.tolist() == [True, False]
    first, second = trainer.weights["w"].detach().flatten().tolist()
    assert second == 1.0 and 0 < first < 1.0


@pytest.mark.parametrize("name", NAMES)
def test_the_kernel_is_the_impulse_response_of_the_librarys_layer(name):
    torch.manual_seed(0)
    rates = _linear.starting_rates(0.02, 6)
    layer = DiagonalSSM(1, 6, parameterization=name, activation="identity", bias=False, eigenvalues=-rates)
    impulse = torch.zeros(1, 50, 1)
    impulse[0, 0] = 1.0
    weights = {"U": layer.U.detach().T, "C": layer.C.detach(), "w": layer.w.detach().unsqueeze(0)}
    found = _linear.kernel(_linear.eigenvalues((name,), weights["w"]), weights, 50)
    # float32: 50 powers of numbers below 1
    torch.testing.assert_close(found[0], layer(impulse)[0][0, :, 0].detach(), rtol=1e-4, atol=1e-6)


def test_the_kernel_of_complex_modes_is_their_sum():
    weights = _linear.complex_start(_linear.starting_rates(0.05, 5), 1)
    lam, t = -_linear.starting_rates(0.05, 5).float(), torch.arange(37)
    modes = torch.exp((lam + 1j * weights["omega"][0]).unsqueeze(1) * t)
    wanted = ((weights["C"] - 1j * weights["S"])[0] * weights["U"][0]).unsqueeze(1).mul(modes).sum(0).real
    torch.testing.assert_close(_linear.kernel(lam.unsqueeze(0), weights, 37)[0], wanted, rtol=1e-4, atol=1e-5)


def test_a_stack_of_copies_is_the_librarys_layer_in_each_block():
    torch.manual_seed(0)
    rates = _linear.starting_rates(0.1, 4)
    weights = _linear.copies_of(_stack.start((2, 3, 1), rates, 2, 2), 8)
    for name in _stack.recurrent_names(2):
        _linear.with_free_weights(weights, NAMES, -rates, 8, name)
    x = torch.randn(2, 5, 9, 2)
    found = _stack.answers(NAMES, weights, x, 2)
    for copy in range(8):
        y = torch.nn.functional.gelu(x[copy % 2] @ weights["E"][copy] + weights["e"][copy]) @ weights["F"][copy]
        for k in range(2):
            layer = DiagonalSSM(3, 4, parameterization=NAMES[copy // 2], activation="gelu", eigenvalues=-rates)
            with torch.no_grad():
                layer.U.copy_(weights[f"U{k}"][copy].T)
                layer.C.copy_(weights[f"C{k}"][copy].T)
                y = y + layer(torch.nn.functional.layer_norm(y, (3,)))[0]
        wanted = y[:, -1] @ weights["R"][copy]
        torch.testing.assert_close(found[copy], wanted, rtol=1e-4, atol=1e-5)  # float32


@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_gated_copies_are_torchs_layers(cell):
    weights, x = _gated.start(cell, 2, 5, 3), torch.randn(3, 4, 11, 2)
    found = _gated.answers(cell, weights, x)
    for seed in range(3):
        wanted = _gated.module(cell, 2, 5, seed)(x[seed])[0][:, -1] @ weights["R"][seed]
        torch.testing.assert_close(found[seed], wanted.detach(), rtol=1e-4, atol=1e-6)  # float32


def test_the_time_constant_of_an_lstm_without_input_is_that_of_its_forget_gate():
    weights = {name: torch.zeros_like(value) for name, value in _gated.start("lstm", 2, 5, 1).items()}
    weights["b"][:, 5:10] = 3.0
    found = _gated.time_constants("lstm", weights, torch.zeros(1, 2, 60, 2))
    assert float(found) == pytest.approx(-1 / math.log(1 / (1 + math.exp(-3.0))), rel=1e-3)


def test_the_largest_rate_ends_the_longest_row_that_trains():
    rates = torch.tensor([1.0, 2.0, 4.0, 8.0]).numpy()
    errors = torch.tensor([[0.01, 0.5, 1.0], [0.02, 0.01, 1.0], [0.5, 0.01, 1.0], [0.01, 0.01, 1.0]]).numpy()
    assert _largest.largest(rates, errors).tolist() == [2.0, 8.0, 0.5]


def test_a_loss_that_rises_a_thousandfold_ends_a_copy():
    recipe = Recipe("sgd", 3, 1.0, clip=math.inf, warmup=0.0, diverged_above=1e3)
    weights = {"w": torch.ones(2, 1, dtype=torch.float64)}
    alive = train(lambda w, k: w["w"].square().sum(1), weights, ("w",), torch.tensor([0.1, 50.0]).double(), recipe)
    assert alive.tolist() == [True, False]


def test_relative_slopes_are_those_of_the_derivation():
    r = 1e-3
    assert _largest.relative_slope("direct", r) == pytest.approx(1 / r)
    assert _largest.relative_slope("exp", r) == pytest.approx(1.0)
    assert _largest.relative_slope("softplus", r) == pytest.approx(1.0, rel=1e-3)  # 1 - r/2 + ...
    assert _largest.relative_slope("best", r) == pytest.approx(2 * math.sqrt(r), rel=1e-3)


def test_rates_come_in_blocks_by_parameterization_with_the_seed_fastest():
    count, rates = grid(("a", "b"), torch.tensor([[1.0, 2.0], [3.0, 4.0]]), 2)
    assert count == 8 and rates.tolist() == [1, 1, 2, 2, 3, 3, 4, 4]
