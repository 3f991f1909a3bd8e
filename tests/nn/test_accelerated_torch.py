"""`accelerate` of torch's LSTM, GRU and RNN: the same results, gradients, draws and files, and back."""

import copy
import pickle

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_sequence

import holdfast
from holdfast.errors import ArgumentError
from holdfast.kernels._common import library
from holdfast.nn._torch_recurrent import ACCELERATED

pytestmark = pytest.mark.skipif(not library.status().available, reason="the native library is not built")
KINDS = {"LSTM": nn.LSTM, "GRU": nn.GRU, "RNN": nn.RNN}
FORMS = {
    "plain": {},
    "no bias, batch first": {"bias": False, "batch_first": True},
    "two layers both ways": {"num_layers": 2, "bidirectional": True, "batch_first": True},
    "dropout between layers": {"num_layers": 3, "dropout": 0.4},
}
INPUTS = ("sequences", "with states", "one sequence", "packed", "packed with states")


def made(kind, form, dtype=torch.float64):
    torch.manual_seed(0)
    return KINDS[kind](5, 7, **FORMS[form]).to(dtype)


def call_of(model, given):
    generator = torch.Generator().manual_seed(1)

    def normal(*size):
        return torch.randn(*size, generator=generator, dtype=next(model.parameters()).dtype)

    states = normal(model.num_layers * (1 + model.bidirectional), 4, 7)
    hx = (states, states / 2) if isinstance(model, nn.LSTM) else states
    if given == "one sequence":
        return normal(9, 5), None
    if given.startswith("packed"):
        rows = pack_sequence([normal(steps, 5) for steps in (3, 9, 1, 5)], enforce_sorted=False)
        return rows, hx if given == "packed with states" else None
    return normal(4, 9, 5) if model.batch_first else normal(9, 4, 5), hx if given == "with states" else None


def results(model, x, hx):
    torch.manual_seed(2)  # the same draws of dropout
    y, last = model(x, hx)
    outputs = [y.data if isinstance(y, PackedSequence) else y, *(last if isinstance(last, tuple) else (last,))]
    return [*outputs, *torch.autograd.grad(sum(o.sin().sum() for o in outputs), list(model.parameters()))]


@pytest.mark.parametrize("given", INPUTS)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", KINDS)
def test_results_gradients_and_draws_are_torchs_own(kind, form, given):
    model = made(kind, form)
    x, hx = call_of(model, given)
    theirs = results(model, x, hx)
    done = holdfast.accelerate(model)
    assert done.replaced == ("",)
    ours = results(model, x, hx)
    for mine, their in zip(ours, theirs, strict=True):
        assert mine.shape == their.shape
        # three layers of 9 steps in float64
        assert torch.allclose(mine, their, rtol=1e-11, atol=1e-13)
    done.restore()
    assert type(model) is KINDS[kind]
    assert all(torch.equal(a, b) for a, b in zip(results(model, x, hx), theirs, strict=True))


class Tagger(nn.Module):
    """A user's model with an LSTM or a GRU inside."""

    def __init__(self, kind):
        super().__init__()
        self.embed, self.lstm, self.head = nn.Embedding(11, 6), kind(6, 12, 2, batch_first=True), nn.Linear(12, 3)

    def forward(self, tokens):
        return self.head(self.lstm(self.embed(tokens))[0])


@pytest.mark.parametrize("kind", KINDS)
def test_a_users_model_trains_to_the_same_losses(kind):
    torch.manual_seed(0)
    model = Tagger(KINDS[kind])
    tokens = torch.randint(11, (8, 30))
    targets = tokens.roll(3, 1) % 3
    losses = {}
    for fast in (False, True):
        trained = copy.deepcopy(model)
        if fast:
            assert holdfast.accelerate(trained).replaced == ("lstm",)
        optimizer = torch.optim.Adam(trained.parameters(), lr=1e-2)
        losses[fast] = []
        for _ in range(30):
            loss = nn.functional.cross_entropy(trained(tokens).flatten(0, 1), targets.flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses[fast].append(float(loss.detach()))
        assert trained.state_dict().keys() == model.state_dict().keys()
    # rounding in float32 is 1e-7 of a loss, and Adam, which divides by the size of gradients, lets it grow over 30 steps
    assert losses[True] == pytest.approx(losses[False], rel=1e-5)
    assert losses[True][-1] < losses[True][0]


@pytest.mark.parametrize("kind", KINDS)
def test_one_step_without_gradients_is_torchs_own(kind, monkeypatch):
    model = made(kind, "plain")
    x, _ = call_of(model, "sequences")
    with torch.no_grad():
        theirs = model(x[:1])[0]
        holdfast.accelerate(model)
        monkeypatch.setattr(type(model), "_layer", None)
        assert torch.equal(model(x[:1])[0], theirs)


@pytest.mark.parametrize("kind", KINDS)
def test_what_the_kernels_do_not_take_torch_runs(kind):
    model = made(kind, "plain", torch.float32)
    holdfast.accelerate(model)
    x = torch.ones(3, 2, 5)
    with torch.autocast("cpu", dtype=torch.bfloat16), pytest.raises(RuntimeError, match="input_size"):
        model(x[..., :4])
    with pytest.raises(RuntimeError, match="input_size"):
        model(x[..., :4])
    with pytest.raises(ValueError, match="dtype"):
        model(x.double())
    half = copy.deepcopy(model).to(torch.float16)
    with torch.device("meta"):
        assert copy.deepcopy(half).to("meta")(x.to("meta", torch.float16))[0].shape == (3, 2, 7)


def test_what_is_left_has_its_reason():
    class Own(nn.LSTM):
        pass

    model = nn.ModuleDict(
        {"own": Own(2, 3), "wide": nn.LSTM(2, 400), "projected": nn.LSTM(2, 6, proj_size=3), "plain": nn.GRU(2, 3)}
    )
    done = holdfast.accelerate(model)
    assert done.replaced == ("plain",)
    assert {name: reason.split(";")[0] for name, reason in done.left} == {
        "own": "its class Own is not torch's own and may compute something else",
        "wide": "it has 400 units",
        "projected": "it has a proj_size, which the kernels do not support",
    }
    with pytest.warns(UserWarning, match="replaced nothing"):
        again = holdfast.accelerate(model)
    assert ("plain", "it is accelerated already") in again.left


def test_a_model_without_recurrence_is_refused():
    with pytest.raises(holdfast.HoldfastError, match=r"expected a model that contains torch\.nn\.LSTM"):
        holdfast.accelerate(nn.Linear(2, 2))


@pytest.mark.parametrize("kind", KINDS)
def test_its_recurrences_are_seen_as_before(kind):
    model = made(kind, "two layers both ways", torch.float32)
    before = [(view.path, view.kind, view.margin()) for view in holdfast.recurrences(model)]
    holdfast.accelerate(model)
    assert [(view.path, view.kind, view.margin()) for view in holdfast.recurrences(model)] == before


def test_a_stabilised_rnn_stays_accelerated():
    torch.manual_seed(0)
    model = nn.RNN(3, 8, batch_first=True)
    x = torch.randn(2, 12, 3)
    before = model(x)[0]
    holdfast.accelerate(model)
    holdfast.stabilize(model)
    assert isinstance(model, ACCELERATED[nn.RNN])
    assert torch.allclose(model(x)[0], before, atol=1e-5)  # the form of W is rounded in float32


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # dynamo looks at the inputs of a broken graph
@pytest.mark.parametrize("kind", KINDS)
def test_it_runs_in_a_compiled_model(kind):
    model = made(kind, "two layers both ways")
    holdfast.accelerate(model)
    x = torch.randn(3, 6, 5, dtype=torch.float64)
    # dynamo breaks the graph at every nn.LSTM, GRU and RNN, torch's own as well
    compiled = torch.compile(lambda x: model(2 * x)[0] + 1, backend="aot_eager")
    assert torch.allclose(compiled(x), model(2 * x)[0] + 1, rtol=0, atol=1e-14)


def test_linear_modules_run_by_our_product_where_torchs_is_slow(monkeypatch):
    for slow in (True, False):
        monkeypatch.setattr("holdfast.nn._acceleration.pays", lambda slow=slow: slow)
        model = nn.ModuleDict({"rnn": nn.GRU(32, 48, batch_first=True), "out": nn.Linear(48, 32)})
        x, kept = torch.randn(4, 200, 32), {name: t.clone() for name, t in model.state_dict().items()}

        def outputs(model=model, x=x):
            return model["out"](model["rnn"](x)[0])

        before = outputs()
        done = holdfast.accelerate(model)
        assert (done.replaced, len(done.products)) == (("rnn",), int(slow))
        assert isinstance(model["out"], nn.Linear) and (type(model["out"]) is not nn.Linear) == slow
        torch.testing.assert_close(outputs(), before)
        copy = pickle.loads(pickle.dumps(model))
        assert type(copy["out"]) is type(model["out"])
        done.restore()
        assert type(model["out"]) is nn.Linear and torch.equal(outputs(), before)
        assert all(torch.equal(t, kept[name]) for name, t in model.state_dict().items())


def test_restore_names_a_linear_module_that_was_parametrized_since(monkeypatch):
    monkeypatch.setattr("holdfast.nn._acceleration.pays", lambda: True)
    model = nn.ModuleDict({"rnn": nn.GRU(4, 4), "out": nn.Linear(4, 4)})
    done = holdfast.accelerate(model)
    nn.utils.parametrizations.weight_norm(model["out"])
    with pytest.raises(ArgumentError, match=r"an nn\.Linear as accelerate left it"):
        done.restore()
    assert type(model["rnn"]) is not nn.GRU  # nothing was restored


def test_linear_modules_beside_recurrences_that_were_accelerated_before_follow(monkeypatch):
    monkeypatch.setattr("holdfast.nn._acceleration.pays", lambda: True)
    model = nn.ModuleDict({"rnn": nn.GRU(4, 4), "out": nn.Linear(4, 4)})
    holdfast.accelerate(model["rnn"])
    done = holdfast.accelerate(model)
    assert done.products == (model["out"],)
    done.restore()
    assert type(model["out"]) is nn.Linear
