import pytest
import torch
from torch import nn

import holdfast
from holdfast.errors import ArgumentError, RangeError
from holdfast.nn import LRU, S4D, ContinuousRNN, DiagonalSSM, LinearRNN, SelectiveSSM, SequenceModel
from holdfast.parameterizations import _passes, spectral_margin

draws = pytest.mark.parametrize("draws", [100, pytest.param(1000, marks=pytest.mark.slow)])


def perturbed(parameters, generator):
    """Moves every free weight to a random point at distance 1 (spectral norm for matrices, 2-norm else)."""
    for p in parameters:
        noise = torch.randn(p.shape, dtype=p.dtype, generator=generator)
        size = torch.linalg.matrix_norm(noise, 2) if noise.ndim == 2 else noise.norm()
        p.data.add_(noise / size)


def assert_stays_stable(parameters, margin, draws):
    before = [p.detach().clone() for p in parameters]
    generator = torch.Generator().manual_seed(0)
    worst = float("inf")
    for _ in range(draws):
        perturbed(parameters, generator)
        worst = min(worst, margin())
        for p, value in zip(parameters, before, strict=True):
            p.data.copy_(value)
    assert worst > 0


def margin_of(lam, time):
    lam = lam.detach()
    return float(-lam.real.max()) if time == "continuous" else float(1 - lam.abs().max())


LAYERS = {
    "DiagonalSSM": lambda: DiagonalSSM(2, 6, parameterization="direct"),
    "DiagonalSSM discrete": lambda: DiagonalSSM(2, 6, parameterization="direct", time="discrete"),
    "LRU": lambda: LRU(2, 6, parameterization="direct"),
    "S4D": lambda: S4D(2, 8, parameterization="direct"),
    "S4D real": lambda: S4D(2, 8, parameterization="relu", initialization="real"),
    "SelectiveSSM": lambda: SelectiveSSM(2, 16, parameterization="direct"),
    "LinearRNN": lambda: LinearRNN(2, 6, parameterization="direct"),
    "LinearRNN continuous": lambda: LinearRNN(2, 6, parameterization="direct", time="continuous"),
    "ContinuousRNN": lambda: ContinuousRNN(2, 6, parameterization="direct"),
    "ContinuousRNN diagonal": lambda: ContinuousRNN(2, 6, parameterization="direct", structure="diagonal"),
}


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("parameterization", ["best", "exp"])
@draws
def test_our_layers_keep_their_function_and_then_stay_stable(name, parameterization, draws):
    torch.manual_seed(0)
    layer = LAYERS[name]().double()
    x = torch.randn(2, 20, 2, dtype=torch.float64)
    before = layer(x)[0].detach()
    holdfast.stabilize(layer, parameterization)
    # the inverse of f is exact to a few roundings of the eigenvalue, which 20 steps carry on
    torch.testing.assert_close(layer(x)[0], before, rtol=1e-11, atol=1e-12)
    free = [p for path, p in layer.named_parameters() if path.startswith(layer.recurrent_names)]
    assert_stays_stable(free, lambda: margin_of(layer.eigenvalues(), layer.time), draws)


def test_undo_puts_the_former_parameterization_back_with_the_present_values():
    layer = LinearRNN(2, 4, parameterization="direct").double()
    x = torch.randn(1, 5, 2, dtype=torch.float64)
    done = holdfast.stabilize(layer)
    assert list(done.changed) == ["recurrence"]
    with torch.no_grad():
        layer.recurrence.free[0].mul_(0.5)
    trained = layer(x)[0]
    done.undo()
    assert layer.recurrence.parameterization.key == "direct"
    torch.testing.assert_close(layer(x)[0], trained, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize(("layers", "bidirectional"), [(1, False), (2, True)])
@draws
def test_torch_rnn_keeps_its_function_trains_and_stays_stable(layers, bidirectional, draws):
    torch.manual_seed(0)
    model = nn.RNN(3, 8, layers, batch_first=True, bidirectional=bidirectional, dtype=torch.float64)
    x = torch.randn(2, 12, 3, dtype=torch.float64)
    before = model(x)[0].detach()
    done = holdfast.stabilize(model)
    names = [
        n
        for n in dict(nn.RNN(3, 8, layers, bidirectional=bidirectional).named_parameters())
        if "hh" in n and "weight" in n
    ]
    assert sorted(done.changed) == sorted(names)
    torch.testing.assert_close(model(x)[0], before, rtol=1e-11, atol=1e-12)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for _ in range(3):
        optimizer.zero_grad()
        (-model(x)[0].square().mean()).backward()
        optimizer.step()
    assert float((model(x)[0] - before).detach().abs().max()) > 1e-4, "the forward pass does not see the new weights"
    free = [p for path, p in model.named_parameters() if path.startswith("parametrizations")]
    assert_stays_stable(free, lambda: min(spectral_margin(getattr(model, n), "discrete") for n in names), draws)
    trained = model(x)[0].detach()
    done.undo()
    torch.testing.assert_close(model(x)[0], trained)
    assert set(dict(model.named_parameters())) == set(
        dict(nn.RNN(3, 8, layers, bidirectional=bidirectional).named_parameters())
    )


@draws
def test_a_transformers_mamba_keeps_its_function_and_stays_stable(draws):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.MambaConfig(vocab_size=50, hidden_size=16, state_size=16, num_hidden_layers=2)
    model = transformers.MambaForCausalLM(config).eval()
    tokens = torch.randint(50, (2, 11))
    with torch.no_grad():
        before = model(tokens).logits
    done = holdfast.stabilize(model, "best")
    assert [path.split(".")[-1] for path in done.changed] == ["A_log", "A_log"]
    with torch.no_grad():
        # float32 weights through log, sqrt and back: a few roundings of A, up to 16 times the step size
        torch.testing.assert_close(model(tokens).logits, before, rtol=1e-4, atol=1e-5)
    blocks = [m for m in model.modules() if isinstance(getattr(m, "A_log", None), torch.Tensor)]
    assert all(float(torch.exp(b.A_log.detach()).max()) > 15.9 for b in blocks)
    free = [p for path, p in model.named_parameters() if "parametrizations" in path]
    assert len(free) == 2
    assert_stays_stable(free, lambda: min(float(torch.exp(b.A_log).min().detach()) for b in blocks), draws)
    with torch.no_grad():
        final = model(tokens).logits
        done.undo()
        torch.testing.assert_close(model(tokens).logits, final)


def test_named_weights_are_taken_as_matrices_or_eigenvalues():
    class Mine(nn.Module):
        def __init__(self):
            super().__init__()
            self.decay = nn.Parameter(-torch.tensor([0.5, 3.0, 40.0]))
            self.inner = nn.Linear(2, 2)
            self.inner.weight = nn.Parameter(torch.tensor([[0.0, 0.9], [-0.9, 0.0]]))  # modulus 0.9, real part 0

    model = Mine()
    done = holdfast.stabilize(model, "best", names=["decay", "inner.weight"], time=None)
    torch.testing.assert_close(model.decay, -torch.tensor([0.5, 3.0, 40.0]))
    assert done.changed["decay"].range.low <= -80
    assert done.changed["inner.weight"].key == "complete"
    assert max(done.changes.values()) < 1e-6  # roundings of float32


def everything(model):
    """Names, numbers, identities, what is trained, classes and hooks: what may not change where something is refused."""
    parameters = [(n, id(p), p.requires_grad, p.detach().clone()) for n, p in model.named_parameters()]
    modules = [(n, type(m), dict(m._load_state_dict_pre_hooks), set(vars(m))) for n, m in model.named_modules()]
    return parameters, modules, [(n, repr(getattr(m, "parameterization", None))) for n, m in model.named_modules()]


def assert_unchanged(before, after):
    for (*one, x), (*other, y) in zip(before[0], after[0], strict=True):
        assert one == other
        assert x.is_meta or torch.equal(x, y)
    assert before[1:] == after[1:]


def normed(model):
    nn.utils.parametrizations.weight_norm(model[-1], "weight_hh_l0")
    return model


def normed_by_hook(model):
    with pytest.warns(FutureWarning, match="weight_norm"):
        nn.utils.weight_norm(model[-1], "weight_hh_l0")
    return model


def growing(model):
    with torch.no_grad():
        model[-1].weight_hh_l0.copy_(2 * torch.eye(4))
    return model


def shared_with_a_read_out(model):
    model.append(nn.Linear(4, 4))
    model[-1].weight = model[1].weight_hh_l0
    return model


def read_differently(model):
    other = LRU(2, 4, parameterization="exp")
    other.w = model[0].w
    model.insert(1, other)
    return model


REFUSED = {
    "weight_norm": (normed, "2.weight_hh_l0 must be a parameter, got one that is computed from other weights"),
    "weight_norm by hooks": (
        normed_by_hook,
        "2.weight_hh_l0 must be a parameter, got one that is computed from other weights",
    ),
    "unstable": (growing, "2.weight_hh_l0: .*modulus < 1"),
    "meta": (lambda model: model.to("meta"), "0.w is on the meta device and holds no values"),
    "shared": (shared_with_a_read_out, "1.weight_hh_l0 is shared with 3.weight"),
    "read differently": (read_differently, "0.w, 1.w share a parameter and use it in different ways"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_where_anything_is_refused_nothing_is_changed(name):
    spoil, text = REFUSED[name]
    model = spoil(nn.ModuleList([LRU(2, 4, parameterization="best"), nn.RNN(2, 4), nn.RNN(2, 4)]))
    before = everything(model)
    with pytest.raises(ArgumentError, match=text):
        holdfast.stabilize(model)
    assert_unchanged(before, everything(model))


def test_a_second_call_says_what_is_stabilized_already():
    model = nn.ModuleList([LRU(2, 4), nn.RNN(2, 4)])
    done = holdfast.stabilize(model)
    before = everything(model)
    with pytest.raises(ArgumentError, match=r"not stabilized, got 1\.weight_hh_l0; call undo\(\)"):
        holdfast.stabilize(model, "exp")
    assert_unchanged(before, everything(model))
    done.undo()
    holdfast.stabilize(model, "exp")


def test_a_failure_in_the_middle_leaves_every_weight_as_it_was(monkeypatch):
    model = nn.ModuleList([LRU(2, 4), LinearRNN(2, 4, parameterization="direct"), nn.RNN(2, 4), nn.RNN(2, 4)])
    before = everything(model)
    register = nn.utils.parametrize.register_parametrization

    def failing(module, *rest):
        if module is model[3]:
            raise RuntimeError("no")
        return register(module, *rest)

    monkeypatch.setattr(nn.utils.parametrize, "register_parametrization", failing)
    with pytest.raises(RuntimeError, match="no"):
        holdfast.stabilize(model)
    assert_unchanged(before, everything(model))
    x = torch.randn(1, 3, 2)
    assert torch.isfinite(model[2](x)[0]).all()


def tied(kind):
    if kind == "rnn":
        model = nn.ModuleList([nn.RNN(2, 4), nn.RNN(2, 4), nn.RNNCell(2, 4)])
        model[1].weight_hh_l0 = model[0].weight_hh_l0
        model[2].weight_hh = model[0].weight_hh_l0
        return model
    if kind == "lru":
        model = nn.ModuleList([LRU(2, 4, parameterization="exp"), LRU(2, 4, parameterization="exp")])
        model[1].w = model[0].w
        return model
    model = nn.ModuleList([LinearRNN(2, 4, parameterization="direct"), LinearRNN(2, 4, parameterization="direct")])
    model[1].recurrence.free = model[0].recurrence.free
    return model


@pytest.mark.parametrize("kind", ["rnn", "lru", "linear"])
def test_shared_weights_stay_shared(kind):
    torch.manual_seed(0)
    model = tied(kind).double()
    x = torch.randn(1, 2, dtype=torch.float64) if kind == "rnn" else torch.randn(1, 6, 2, dtype=torch.float64)
    before, names = [m(x)[0].detach() for m in model], [n for n, _ in model.named_parameters()]
    done = holdfast.stabilize(model)
    assert len(done.changed) == 1
    for m, y in zip(model, before, strict=True):
        torch.testing.assert_close(m(x)[0], y, rtol=1e-10, atol=1e-11)
    (weights,) = {tuple(map(id, w.free.values())) for v in holdfast.recurrences(model) for w in v.weights if w.decides}
    assert set(weights) <= {id(p) for p in model.parameters()}
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.01 * torch.randn_like(p))
    values = [w.value for v in holdfast.recurrences(model) for w in v.weights if w.decides]
    assert all(torch.equal(values[0], value) for value in values)
    after = [m(x)[0].detach() for m in model]
    done.undo()
    assert sorted(names) == sorted(n for n, _ in model.named_parameters())
    for m, y in zip(model, after, strict=True):
        torch.testing.assert_close(m(x)[0], y, rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("make", [lambda: nn.RNN(2, 4), lambda: LRU(2, 4), lambda: LinearRNN(2, 4), lambda: Decay()])
def test_frozen_weights_stay_frozen(make):
    model = make().requires_grad_(False)
    names = {n for n, _ in model.named_parameters()}
    done = holdfast.stabilize(model, names=["decay"] if isinstance(model, Decay) else None)
    assert done.changed
    assert not any(p.requires_grad for p in model.parameters())
    done.undo()
    assert {n for n, _ in model.named_parameters()} == names
    assert not any(p.requires_grad for p in model.parameters())


class Decay(nn.Module):
    def __init__(self):
        super().__init__()
        self.decay = nn.Parameter(-torch.tensor([0.5, 3.0]))


def test_undo_gives_back_the_parameter_that_an_optimizer_holds():
    for model in (nn.RNN(2, 4), nn.RNNCell(2, 4)):
        before = {n: id(p) for n, p in model.named_parameters()}
        holdfast.stabilize(model).undo()
        assert {n: id(p) for n, p in model.named_parameters()} == before


@pytest.mark.parametrize("names", [None, ["weight_hh"]])
def test_a_relu_cell_gets_the_form_of_its_nonlinear_step(names):
    cell = nn.RNNCell(1, 2, nonlinearity="relu")
    with torch.no_grad():
        cell.weight_hh.copy_(torch.tensor([[1.2, 2.0], [-0.5, -0.5]]))  # radius 0.63; reaches 5e21 once a unit is off
        cell.weight_ih.copy_(torch.tensor([[1.0], [0.0]]))
        cell.bias_ih.copy_(torch.tensor([-1.0, 1.0]))
        cell.bias_hh.zero_()
    with pytest.raises(RangeError, match="numerical radius below 1"):
        holdfast.stabilize(cell, names=names)
    assert holdfast.stabilize(cell, names=names, allow_change=True).changed["weight_hh"].key == "contraction"
    h = torch.zeros(1, 2)
    with torch.no_grad():
        for t in range(300):
            h = cell(torch.full((1, 1), 4.0 if t == 20 else 0.0), h)
    assert float(h.abs().max()) < 1e3


class StateSpaces(nn.Module):
    """The kernel of state-spaces' S4D: its weights and what it computes of them."""

    def __init__(self):
        super().__init__()
        self.log_A_real = nn.Parameter(torch.log(0.5 * torch.ones(2, 4)))
        self.A_imag = nn.Parameter(torch.pi * torch.arange(4.0).repeat(2, 1))
        self.log_dt = nn.Parameter(torch.tensor([-4.0, -2.0]))
        self.C = nn.Parameter(torch.randn(2, 4, 2))

    def forward(self, steps):
        dtA = torch.complex(-self.log_A_real.exp(), self.A_imag) * self.log_dt.exp().unsqueeze(-1)
        C = torch.view_as_complex(self.C) * torch.expm1(dtA) / torch.complex(-self.log_A_real.exp(), self.A_imag)
        return 2 * torch.einsum("hn,hnl->hl", C, torch.exp(dtA.unsqueeze(-1) * torch.arange(steps))).real


@pytest.mark.parametrize("lr", [1e3, 1e30])
def test_step_sizes_and_frequencies_of_other_libraries_are_held(lr):
    torch.manual_seed(0)
    kernel = StateSpaces()
    before = kernel(20).detach()
    done = holdfast.stabilize(kernel)
    assert set(done.changed) == {"log_A_real", "A_imag", "log_dt"}
    torch.testing.assert_close(kernel(20), before, rtol=1e-5, atol=1e-6)
    for _ in range(5):
        with torch.no_grad():
            for name, p in kernel.named_parameters():
                if name != "C":
                    p.sub_(lr * torch.randn_like(p))
        assert bool(kernel(20).isfinite().all())


@pytest.mark.usefixtures("user_mistakes")
class TestMistakes:
    def test_unstable_weights_are_refused_with_their_eigenvalues_and_nothing_is_changed(self):
        good, bad = (
            DiagonalSSM(1, 2),
            DiagonalSSM(1, 2, parameterization="direct", eigenvalues=torch.tensor([-1.0, 0.25])),
        )
        model = nn.ModuleList([good, bad])
        before = good.parameterization
        with pytest.raises(RangeError, match=r"1 of 2 eigenvalues outside it: 0\.25"):
            holdfast.stabilize(model, "exp")
        assert good.parameterization is before
        rnn = nn.RNN(1, 3)
        with torch.no_grad():
            rnn.weight_hh_l0.copy_(1.5 * torch.eye(3))
        with pytest.raises(RangeError, match=r"modulus < 1., got 3 of 3 eigenvalues outside: 1\.5"):
            holdfast.stabilize(rnn)

    def test_what_cannot_be_stabilized_says_why(self):
        with pytest.raises(
            ArgumentError, match=r"recurrent weights that holdfast recognizes.*The model's weights: weight, bias"
        ):
            holdfast.stabilize(nn.Linear(2, 2))
        with pytest.raises(ArgumentError, match="belongs to a gated LSTM"):
            holdfast.stabilize(nn.LSTM(2, 2))
        with pytest.raises(
            ArgumentError, match=r"expected the name of a weight or layer \(weight, bias\), got 'wight'"
        ):
            holdfast.stabilize(nn.Linear(2, 2), names=["wight"])
        layer = nn.Linear(2, 2)
        with torch.no_grad():
            layer.weight.copy_(-0.5 * torch.eye(2))
        with pytest.raises(ArgumentError, match="stable in continuous and in discrete time; pass time="):
            holdfast.stabilize(layer, names=["weight"])


class TestParameterGroups:
    def test_recurrent_weights_get_their_own_rate_and_no_decay(self):
        model = SequenceModel(2, 4, depth=2, state_size=4, layer="lru")
        rest, exempt, recurrent = holdfast.parameter_groups(model, lr=1e-3, recurrent_lr=5e-4, weight_decay=0.1)
        found = {id(p) for p in recurrent["params"]}
        expected = [p for path, p in model.named_parameters() if path.endswith((".w", ".phase"))]
        assert found == {id(p) for p in expected}
        assert recurrent["lr"] == 5e-4
        assert recurrent["weight_decay"] == 0.0
        assert rest["weight_decay"] == 0.1
        assert (exempt["lr"], exempt["weight_decay"]) == (1e-3, 0.0)
        assert sum(len(group["params"]) for group in (rest, exempt, recurrent)) == len(list(model.parameters()))
        torch.optim.AdamW([rest, exempt, recurrent])

    def test_parametrized_and_foreign_weights_are_found(self):
        model = nn.ModuleList([nn.RNN(2, 3), nn.GRU(2, 3), LinearRNN(2, 3)])
        holdfast.stabilize(model, names=["0.weight_hh_l0"])
        *_, recurrent = holdfast.parameter_groups(model, lr=1.0)
        names = {path for path, p in model.named_parameters() if any(p is q for q in recurrent["params"])}
        assert names == {
            "0.parametrizations.weight_hh_l0.original0",
            "0.parametrizations.weight_hh_l0.original1",
            "0.parametrizations.weight_hh_l0.original2",
            "1.weight_hh_l0",
            "2.recurrence.free.0",
            "2.recurrence.free.1",
        }
        weights = [weight.path for view in holdfast.recurrences(model) for weight in view.weights]
        assert weights == ["0.weight_hh_l0", "1.weight_hh_l0", "2.recurrence"]

    @pytest.mark.usefixtures("user_mistakes")
    def test_names_that_are_not_there_are_refused(self):
        with pytest.raises(ArgumentError, match=r"expected names of weights \(weight, bias\), got decay"):
            holdfast.parameter_groups(nn.Linear(1, 1), lr=1.0, names=("decay",))
        with pytest.raises(ArgumentError, match=r"model must be an nn\.Module, got None"):
            holdfast.parameter_groups(None, lr=1.0)


@pytest.mark.parametrize("fast", [False, True])
def test_a_stabilised_rnn_computes_each_matrix_once_in_a_forward_pass(fast, monkeypatch):
    torch.manual_seed(0)
    model = nn.RNN(3, 6, num_layers=2, batch_first=True)
    if fast:
        holdfast.accelerate(model)
    holdfast.stabilize(model)
    plain, made = type(model.parametrizations["weight_hh_l0"][0])._rounded, []

    def counted(form, *free):
        made.append(form)
        return plain(form, *free)

    monkeypatch.setattr(type(model.parametrizations["weight_hh_l0"][0]), "_rounded", counted)
    x = torch.randn(2, 5, 3)
    y, _ = model(x)
    assert len(made) == len({id(form) for form in made}) == 2  # torch reads each weight four times
    y.sum().backward()
    first = [p.grad.clone() for p in model.parameters()]
    model(x)[0].sum().backward()  # gradients add up: a second pass has a graph of its own
    assert len(made) == 4
    for p, before in zip(model.parameters(), first, strict=True):
        torch.testing.assert_close(p.grad, 2 * before)
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(0.5)
        assert not torch.allclose(model(x)[0], y)
    assert model(x)[0].requires_grad


def test_a_pass_that_fails_leaves_nothing_behind():
    model = nn.RNN(3, 6)
    undo = holdfast.stabilize(model).undo
    with pytest.raises(RuntimeError):
        model(torch.zeros(5, 2, 4))
    assert _passes._PASSES.depth == 0
    assert not _passes._PASSES.matrices
    undo()
    assert not model._forward_pre_hooks
    assert not model._forward_hooks
