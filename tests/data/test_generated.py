"""Generated sets against their definitions, written as plain loops."""

import math

import pytest
import torch

from holdfast import laws, nn
from holdfast.data import load_task
from holdfast.data._lotka_volterra import START
from holdfast.errors import ArgumentError, ShapeError


@pytest.mark.parametrize("length", [1, 2, 63, 65])
def test_a_functional_is_the_sum_of_its_definition(length):
    task = load_task("functional", law="power", constants={"exponent": 1.1}, length=length, features=2)
    batch = task.batch("train", torch.tensor([0, 7]))
    x = batch.inputs.double()
    k = laws.PowerLaw(1.1)(torch.arange(length, dtype=torch.float64))
    y = torch.stack([(k[: t + 1].flip(0)[:, None] * x[:, : t + 1]).sum(1) for t in range(length)], 1)
    # inputs and outputs are rounded to float32: some units of 6e-8 of the sum of |k| |x|
    bound = 4 * 2.0**-24 * float(k.sum() * x.abs().max())
    assert float((batch.targets - y).abs().max()) <= bound


def test_held_weights_give_the_exact_answer_to_inputs_held_for_each_step():
    rate, dt = 0.7, 0.25
    task = load_task("functional", law=laws.Exponential(rate), length=40, dt=dt, weights="held")
    batch = task.batch("test", torch.tensor([3]))
    state, outputs = 0.0, []
    for x in batch.inputs[0, :, 0].tolist():  # y' = -rate y + x over one step, solved exactly
        state = math.exp(-rate * dt) * state + x * (1 - math.exp(-rate * dt)) / rate
        outputs.append(state)
    assert torch.allclose(batch.targets[0, :, 0].double(), torch.tensor(outputs, dtype=torch.float64), atol=1e-6)


def test_sampled_weights_are_the_law_times_dt():
    task = load_task("functional", law="exponential", constants=[2.0], length=5, dt=0.5)
    assert torch.allclose(task.kernel, 0.5 * torch.exp(-torch.arange(5, dtype=torch.float64)), rtol=1e-15)


def test_recall_follows_its_definition():
    vocabulary, pairs = 9, 6  # keys 0-2, values 3-6, "." 7, "=>" 8
    task = load_task("recall", length=13, vocabulary=vocabulary)
    batch = task.batch("train", torch.arange(300))
    test = task.batch("test", torch.arange(300))
    assert task.length == 2 * pairs + 2 and batch.mask is None
    assert torch.equal(batch.targets[:, :-1], batch.inputs[:, 1:])
    assert torch.equal(test.mask.nonzero()[:, 1], torch.full((300,), task.length - 1))
    for row, answer in zip(batch.inputs.tolist(), batch.targets[:, -1].tolist(), strict=True):
        keys, values = row[: 2 * pairs : 2], row[1 : 2 * pairs : 2]
        value_of = dict(zip(keys, values, strict=True))
        assert all(value_of[k] == v for k, v in zip(keys, values, strict=True))  # a key keeps its value
        assert set(keys) <= {0, 1, 2} and set(values) <= {3, 4, 5, 6}
        assert row[-2] == 8 and row[-1] in keys and answer == value_of[row[-1]]


def test_recall_asks_for_each_key_that_occurred_with_the_same_chance():
    task = load_task("recall", length=4, vocabulary=8)
    batch = task.batch("train", torch.arange(6000))
    twice = batch.inputs[:, 0] != batch.inputs[:, 2]
    first = int((batch.inputs[twice, -1] == batch.inputs[twice, 0]).sum())
    count = int(twice.sum())
    assert abs(first - count / 2) < 5 * math.sqrt(count) / 2  # five standard deviations of a fair coin


def test_recall_reaches_the_longest_length_of_the_papers():
    batch = load_task("recall", length=131_072, vocabulary=30).batch("test", torch.tensor([5]))
    assert batch.inputs.shape == (1, 131_074)
    places = (batch.inputs[0, :-2:2] == batch.inputs[0, -1]).nonzero()[:, 0]
    assert set(batch.inputs[0, 2 * places + 1].tolist()) == {int(batch.targets[0, -1])}


@pytest.mark.parametrize("random_tokens", [True, False])
def test_multi_query_recall_follows_its_definition(random_tokens):
    task = load_task("multi-recall", length=21, vocabulary=17, pairs=5, random_tokens=random_tokens)
    batch = task.batch("valid", torch.arange(200))
    for row, targets, mask in zip(batch.inputs.tolist(), batch.targets, batch.mask, strict=True):
        keys, values = row[:10:2], row[1:10:2]
        assert (
            len(set(keys)) == len(set(values)) == 5
            and set(keys) <= set(range(1, 8))
            and set(values) <= set(range(8, 17))
        )
        asked = mask.nonzero()[:, 0].tolist()
        assert len(asked) == 5 and all(at >= 10 and at % 2 == 0 for at in asked)
        assert {(row[at], int(targets[at])) for at in asked} == set(zip(keys, values, strict=True))
        others = [row[at] for at in range(10, 21) if at not in asked]
        assert random_tokens or set(others) == {0}


def test_queries_of_small_power_come_soon_and_those_of_power_1_anywhere():
    def mean_slot(power):
        task = load_task("multi-recall", length=64, vocabulary=8, pairs=1, power=power)
        return float(task.batch("train", torch.arange(4000)).mask.nonzero()[:, 1].double().sub(2).div(2).mean())

    slots = torch.arange(31, dtype=torch.float64)
    for power in (0.01, 1.0):
        chance = (slots + 1) ** (power - 1)
        chance /= chance.sum()
        mean = float((slots * chance).sum())
        error = math.sqrt(float((slots**2 * chance).sum() - mean**2) / 4000)
        assert abs(mean_slot(power) - mean) < 5 * error


@pytest.mark.parametrize(
    ("name", "options", "text"),
    [
        ("recall", {"length": 1}, "length >= 2"),
        ("recall", {"vocabulary": 3}, "vocabulary of 4"),
        ("multi-recall", {"pairs": 9, "length": 35}, "length >= 36"),
        ("multi-recall", {"pairs": 9, "vocabulary": 19}, "vocabulary of 20"),
        ("multi-recall", {"power": 0.0}, "power must be"),
        ("functional", {"dt": 0.0}, "dt must be"),
        ("functional", {"law": "powr"}, "Did you mean 'power'"),
        ("functional", {"train": 0}, "train must be"),
        ("lotka-volterra", {"amplitude": 10.0}, "overflows with amplitude=10"),
        ("lotka-volterra", {"train": 10**9}, "kept in RAM"),
    ],
)
def test_options_that_make_no_task_are_refused(name, options, text):
    with pytest.raises(ArgumentError, match=text):
        load_task(name, **options)


def test_lotka_volterra_takes_the_euler_steps_of_the_paper():
    task = load_task("lotka-volterra", train=4, valid=2, length=300)
    batch = task.batch("train", torch.arange(4))
    u, dt = batch.inputs.double(), 0.0075
    z1, z2 = (torch.full((4,), start, dtype=torch.float64) for start in START)
    for step in range(300):
        push = u[:, step, 0]
        z1, z2 = z1 + dt * z1 * (1 - 0.6 * z2), z2 + dt * (-z2 * (1 - 0.3 * z1) + push)
        # inputs are rounded to float32, and the system forgets that slowly
        assert torch.allclose(batch.targets[:, step].double(), torch.stack((z1, z2), 1), rtol=1e-6)
    waves = torch.fft.rfft(u[..., 0])  # the inputs have one period in the window and nothing else
    assert float(waves[:, [0, *range(2, 151)]].abs().max()) < 1e-5 * float(waves.abs().max())


def test_a_teacher_is_copied_and_its_outputs_are_the_targets():
    model = nn.LRU(2, 4)
    task = load_task("teacher", teacher=model, features=2, length=6)
    batch = task.batch("train", torch.arange(3))
    with torch.no_grad():
        assert torch.equal(batch.targets, model(batch.inputs)[0])
        for weight in model.parameters():
            weight.zero_()
    assert torch.equal(task.batch("train", torch.arange(3)).targets, batch.targets)
    assert load_task("teacher", teacher=model, features=2, length=6).identity() != task.identity()


class Odd(torch.nn.Module):
    def __init__(self, give):
        super().__init__()
        self.give = give

    def forward(self, x):
        return self.give(x)


def test_a_teacher_that_is_no_fixed_finite_function_is_refused():
    for give, error, text in (
        (lambda x: x[:, -1], ShapeError, "must map"),
        (lambda x: x / 0, ArgumentError, "expected finite outputs of the teacher"),
        (lambda x: x + torch.rand(()), ArgumentError, "for the same inputs"),
    ):
        with pytest.raises(error, match=text):
            load_task("teacher", teacher=Odd(give))
