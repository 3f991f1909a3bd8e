"""Accelerated and stabilized models beside LoRA, gradient checkpointing, bfloat16, torch.compile and quantised weights."""

import copy
import signal
import warnings

import pytest
import torch
from torch import nn

import children
import holdfast

TOKENS = torch.randint(0, 30, (2, 24), generator=torch.Generator().manual_seed(0))
FORMS = ("accelerated", "stabilized", "both")


def mamba():
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"vocab_size": 30, "hidden_size": 16, "state_size": 4, "num_hidden_layers": 2}
    return transformers.MambaForCausalLM(transformers.MambaConfig(use_cache=False, **sizes)).train()


def ours(model, form):
    if form != "stabilized":
        assert len(holdfast.accelerate(model).replaced) == 2
    if form != "accelerated":
        holdfast.stabilize(model, "best")
    return model


def losses(model, steps=3):
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    told = []
    for _ in range(steps):
        loss = model(input_ids=TOKENS, labels=TOKENS).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        told.append(float(loss.detach()))
    return told


@torch.no_grad()
def logits(model):
    return model.eval()(input_ids=TOKENS).logits


def lora(model):
    peft = pytest.importorskip("peft")
    torch.manual_seed(1)
    # not from zero, so that adapters matter from the first step
    return peft.get_peft_model(
        model, peft.LoraConfig(r=4, target_modules=["in_proj", "x_proj"], init_lora_weights=False)
    )


@pytest.mark.parametrize("first", ["ours", "lora"])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.filterwarnings("ignore")
def test_lora_trains_merges_and_saves_as_on_the_plain_model(form, first, tmp_path):
    peft = pytest.importorskip("peft")
    base = mamba()
    plain = lora(copy.deepcopy(base))
    model = lora(ours(copy.deepcopy(base), form)) if first == "ours" else ours(lora(copy.deepcopy(base)), form)
    trained = [name for name, p in model.named_parameters() if p.requires_grad]
    assert trained and all("lora_" in name for name in trained)  # stabilize leaves frozen what was
    # three optimizer steps, each of whose losses is good to a few units of float32's last place
    assert losses(model) == pytest.approx(losses(plain), abs=5e-6)
    expected = logits(plain)
    assert torch.allclose(logits(model), expected, rtol=0, atol=1e-5)
    model.save_pretrained(tmp_path / "adapter")
    again = peft.PeftModel.from_pretrained(copy.deepcopy(base), tmp_path / "adapter")
    assert torch.allclose(logits(again), expected, rtol=0, atol=1e-5)
    merged = model.merge_and_unload()
    assert torch.allclose(logits(merged), expected, rtol=0, atol=1e-5)
    merged.save_pretrained(tmp_path / "merged")
    # a file that plain transformers reads, without a word about stabilize in it
    loaded = type(base).from_pretrained(tmp_path / "merged")
    assert torch.allclose(logits(loaded), expected, rtol=0, atol=1e-5)


def test_a_watch_sees_frozen_recurrences_under_lora():
    from holdfast.integrations import TrainingWatch, regroup

    model = lora(ours(mamba(), "both"))
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    regroup(optimizer, model, recurrent_lr="auto", steps=4, memory=50)
    assert {id(p) for g in optimizer.param_groups for p in g["params"]} == {
        id(p) for p in model.parameters() if p.requires_grad
    }
    told = {}
    with TrainingWatch(model, optimizer, every=1, inputs=TOKENS, log=lambda v, k: told.update({k: v})) as watch:
        loss = model(input_ids=TOKENS, labels=TOKENS).loss
        loss.backward()
        assert watch.check(loss)
    margins = [name for name in told[0] if name.endswith("A_log/margin")]
    assert len(margins) == 2 and "holdfast/memory" in told[0]


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.filterwarnings("ignore")
def test_gradient_checkpointing_gives_the_same_gradients(form, reentrant):
    model = ours(mamba(), form)
    model(input_ids=TOKENS, labels=TOKENS).loss.backward()
    expected = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": reentrant})
    model(input_ids=TOKENS, labels=TOKENS).loss.backward()
    assert model.is_gradient_checkpointing
    # the same operations in the same order, run twice
    assert all(torch.equal(p.grad, g) for p, g in zip(model.parameters(), expected, strict=True))


BFLOAT16 = """
import copy, torch, holdfast
from transformers import MambaConfig, MambaForCausalLM
torch.manual_seed(0)
base = MambaForCausalLM(MambaConfig(vocab_size=30, hidden_size=16, state_size=4, num_hidden_layers=2, use_cache=False))
x = torch.randint(0, 30, (2, 24))
exact = base(input_ids=x, labels=x).loss.item()
for cast in (False, True):
    for form in ("plain", "accelerated", "both"):
        model = copy.deepcopy(base) if cast else copy.deepcopy(base).to(torch.bfloat16)
        form == "plain" or holdfast.accelerate(model)
        form == "both" and holdfast.stabilize(model, "best")
        with torch.autocast("cpu", torch.bfloat16, enabled=cast):
            loss = model(input_ids=x, labels=x).loss
        loss.backward()
        norm = torch.cat([p.grad.flatten().float() for p in model.parameters() if p.grad is not None]).norm().item()
        print(cast, form, loss.item() / exact - 1, norm)
"""


@pytest.mark.slow
def test_bfloat16_weights_and_autocast_are_as_near_as_transformers_own():
    pytest.importorskip("transformers")
    done = children.run(BFLOAT16)
    if done.returncode == -signal.SIGILL:
        pytest.skip("torch has no bfloat16 product on this processor")
    assert done.returncode == 0, done.stderr
    rows = [line.split() for line in done.stdout.splitlines() if line.startswith(("True", "False"))]
    assert len(rows) == 6
    norms = {(cast, form): float(norm) for cast, form, _, norm in rows}
    # a unit of bfloat16's last place is 2^-8 of a number, and a loss is a mean of many
    assert all(abs(float(error)) < 2**-8 for _, _, error, _ in rows)
    for cast in ("True", "False"):
        assert all(
            norms[cast, form] == pytest.approx(norms[cast, "plain"], rel=2**-6) for form in ("accelerated", "both")
        )


COMPILED = """
import torch, holdfast
from transformers import MambaConfig, MambaForCausalLM
torch.manual_seed(0)
x = torch.randint(0, 30, (2, 24))
for form in ("accelerated", "both"):
    model = MambaForCausalLM(
        MambaConfig(vocab_size=30, hidden_size=16, state_size=4, num_hidden_layers=2, use_cache=False)
    ).train()
    holdfast.accelerate(model)
    form == "both" and holdfast.stabilize(model, "best")
    loss = model(input_ids=x, labels=x).loss
    loss.backward()
    expected = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    torch._dynamo.reset()
    again = torch.compile(model, backend="aot_eager", fullgraph=True)(input_ids=x, labels=x).loss
    again.backward()
    worst = max((p.grad - g).abs().max().item() for p, g in zip(model.parameters(), expected, strict=True))
    print(form, (again - loss).abs().item(), worst)
mixer = model.backbone.layers[0].mixer
u, index = torch.randn(2, 24, 16), (torch.arange(24) >= 9).int().expand(2, -1)
torch._dynamo.reset()
compiled = torch.compile(mixer, backend="aot_eager")
with torch.no_grad():
    whole, packed = mixer(u), mixer(u, seq_idx=index)
    pairs = [(compiled(u), whole), (compiled(u, seq_idx=index), packed), (compiled(u), whole)]
for layer in (holdfast.nn.S4D(4, 4), holdfast.nn.LRU(4, 4), holdfast.nn.SelectiveSSM(4, 4), holdfast.nn.Mamba(4)):
    torch._dynamo.reset()
    with torch.no_grad():
        y = torch.compile(layer, backend="aot_eager", fullgraph=True)(u[..., :4])[0]
        print(type(layer).__name__, (y - layer(u[..., :4])[0]).abs().max().item())
print("packed", max((a - b).abs().max().item() for a, b in pairs), (whole - packed).abs().max().item())
"""


@pytest.mark.slow
def test_torch_compile_takes_the_whole_graph_and_keeps_packed_sequences_apart():
    pytest.importorskip("transformers")
    done = children.run(COMPILED)  # without the checks of annotations, which torch.compile cannot trace
    assert done.returncode == 0, done.stderr[-2000:]
    rows = {line.split()[0]: [float(v) for v in line.split()[1:]] for line in done.stdout.splitlines()}
    error, effect = rows.pop("packed")
    assert rows.keys() == {"accelerated", "both", "S4D", "LRU", "SelectiveSSM", "Mamba"}
    # the operators are the same; only their order of summation is the compiler's
    assert all(max(differences) < 1e-6 for differences in rows.values())
    assert error < 1e-6 < 1e-4 < effect


class Network(nn.Module):
    def __init__(self, kind):
        super().__init__()
        torch.manual_seed(0)
        self.core, self.read = kind(8, 32, batch_first=True), nn.Linear(32, 4)

    def forward(self, x):
        return self.read(self.core(x)[0])


def quantised(model, kinds):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.ao announces its successor
        return torch.ao.quantization.quantize_dynamic(copy.deepcopy(model), kinds)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
@torch.no_grad()
def test_quantised_inference_beside_accelerate_is_right(kind, monkeypatch):
    if not torch.backends.quantized.supported_engines or torch.backends.quantized.engine == "none":
        pytest.skip("torch has no quantised engine here")
    model = Network(kind).eval()
    x = torch.randn(3, 20, 8, generator=torch.Generator().manual_seed(0))
    expected = model(x)
    # where nn.Linear is accelerated too, it stays float32 as well
    monkeypatch.setattr("holdfast.nn._acceleration.pays", lambda: True)
    done = holdfast.accelerate(model)
    assert torch.allclose(quantised(model, {kind, nn.Linear})(x), expected, rtol=0, atol=1e-5)
    done.restore()
    monkeypatch.setattr("holdfast.nn._acceleration.pays", lambda: False)
    tolerance = 5 * float((quantised(model, {kind, nn.Linear})(x) - expected).abs().max())
    done = holdfast.accelerate(model)
    # torch looks for the class itself: an accelerated module stays float32, and its neighbours are quantised
    half = quantised(model, {kind, nn.Linear})
    assert isinstance(half.core, kind) and not isinstance(half.read, nn.Linear)
    assert torch.allclose(half(x), expected, rtol=0, atol=tolerance)
    done.restore()
    whole = quantised(model, {kind, nn.Linear})
    assert not isinstance(whole.core, kind)
    assert torch.allclose(whole(x), expected, rtol=0, atol=tolerance)
    with pytest.raises(holdfast.errors.ArgumentError, match=r"expected a model that contains torch\.nn\.LSTM"):
        holdfast.accelerate(whole)


@torch.no_grad()
def test_the_projections_of_a_mamba_are_quantised_and_not_what_transformers_reads_itself(monkeypatch):
    monkeypatch.setattr("holdfast.nn._acceleration.pays", lambda: False)
    model = mamba().eval()
    expected = logits(model)
    names = [
        n
        for n, m in model.named_modules()
        if isinstance(m, nn.Linear) and n.endswith(("in_proj", "x_proj", "out_proj"))
    ]
    chosen = dict.fromkeys(names, torch.ao.quantization.default_dynamic_qconfig)
    error = float((logits(quantised(model, chosen)) - expected).abs().max())
    fast = quantised(ours(copy.deepcopy(model), "both"), chosen)
    assert float((logits(fast) - expected).abs().max()) < 2 * error + 1e-5
    for subject in (model, ours(copy.deepcopy(model), "both")):
        with pytest.raises((TypeError, AttributeError)):
            logits(quantised(subject, {nn.Linear}))  # transformers itself reads dt_proj.weight, which is a method then
