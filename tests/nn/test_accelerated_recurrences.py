"""RecurrentGemma, RWKV, xLSTM and the gated delta rule of transformers on our kernels: the same answers, and back again."""

import copy
import math

import pytest
import torch

import holdfast
from holdfast.nn._delta_rule import delta_rule, delta_rule_reference
from holdfast.nn._mlstm import mlstm, mlstm_reference
from holdfast.nn._wkv import wkv

transformers = pytest.importorskip("transformers")
# float32 through a few layers, summed in another order; the delta rule solves a system a block
CLOSE = {"rtol": 2e-4, "atol": 1e-5}
SMALL = {"hidden_size": 16, "vocab_size": 20, "pad_token_id": 0, "eos_token_id": 19, "bos_token_id": 1}
DELTA = {
    "num_hidden_layers": 2, "intermediate_size": 16, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8,
    "linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 8, "linear_value_head_dim": 4,
    "layer_types": ["linear_attention", "full_attention"], "moe_intermediate_size": 8, "num_experts": 2,
    "num_experts_per_tok": 1, "shared_expert_intermediate_size": 8,
}  # fmt: skip
FAMILIES = {
    "RecurrentGemma": (
        {"num_hidden_layers": 3, "num_attention_heads": 2, "lru_width": 16, "intermediate_size": 24, "head_dim": 8}
        | {"block_types": ["recurrent", "recurrent", "attention"]},
        ("model.layers.0.temporal_block.rg_lru", "model.layers.1.temporal_block.rg_lru"),
    ),
    "Rwkv": (
        {"num_hidden_layers": 2, "context_length": 64},
        ("rwkv.blocks.0.attention", "rwkv.blocks.1.attention"),
    ),
    "Qwen3Next": (DELTA, ("model.layers.0.linear_attn",)),
    "Qwen3_5": (DELTA, ("model.layers.0.linear_attn",)),
    "OlmoHybrid": (DELTA, ("model.layers.0.linear_attn",)),
    "xLSTM": (
        {"hidden_size": 128, "num_hidden_layers": 2, "num_heads": 2},
        ("backbone.blocks.0.mlstm_layer.mlstm_backend", "backbone.blocks.1.mlstm_layer.mlstm_backend"),
    ),
}


def build(family):
    torch.manual_seed(0)
    options = FAMILIES[family][0]
    kind = "Qwen3_5Text" if family == "Qwen3_5" else family
    config = getattr(transformers, f"{kind}Config")(**{**SMALL, **options})
    model = getattr(transformers, f"{family}ForCausalLM")(config)
    with torch.no_grad():  # their own start leaves gates and decays where nothing depends on them
        for weight in model.parameters():
            weight.add_(0.1 * torch.randn_like(weight))
    return model


def tokens(batch=2, time=70):
    return torch.randint(2, 19, (batch, time), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("family", FAMILIES)
def test_losses_gradients_and_generations_stay_as_they_are(family):
    plain = build(family)
    fast = copy.deepcopy(plain)
    done = holdfast.accelerate(fast)
    assert done.replaced == FAMILIES[family][1]
    assert done.left == ()
    results = []
    for model in (plain, fast):
        model.train()
        out = model(tokens(), labels=tokens(), use_cache=False)
        grads = torch.autograd.grad(out.loss, list(model.parameters()), allow_unused=True, materialize_grads=True)
        results.append([out.logits, out.loss, *grads])
        model.eval()
    for x, y in zip(*results, strict=True):
        torch.testing.assert_close(x, y, **CLOSE)
    kept = {"max_new_tokens": 8, "do_sample": False}
    for prompt in (tokens(), tokens(1, 2)):
        assert torch.equal(fast.generate(prompt, **kept), plain.generate(prompt, **kept))
    done.restore()
    assert [type(m) for m in fast.modules()] == [type(m) for m in plain.modules()]


@pytest.mark.parametrize("family", ["RecurrentGemma", "Rwkv", "OlmoHybrid"])
def test_double_precision_is_near_their_float32_states(family):
    plain = build(family).double()
    fast = copy.deepcopy(plain)
    holdfast.accelerate(fast)
    x, y = (model(tokens(), use_cache=False).logits for model in (plain, fast))
    torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-5)  # theirs carries float32 states


@pytest.mark.parametrize("family", ["RecurrentGemma", "Rwkv"])
def test_a_sequence_in_two_calls_goes_on_where_the_first_ended(family):
    plain = build(family).eval()
    fast = copy.deepcopy(plain)
    holdfast.accelerate(fast)
    results = []
    for model in (plain, fast):
        with torch.no_grad():
            if family == "Rwkv":
                first = model(tokens(2, 40), use_cache=True)
                results.append(model(tokens(2, 30), state=first.state, use_cache=True).logits)
            else:
                results.append(model.generate(tokens(2, 40), max_new_tokens=20, do_sample=False))
    torch.testing.assert_close(*results, **CLOSE)


def wkv_loop(w, u, k, v, state):
    """The definition, with exponentials as they are."""
    n, d, outputs = *state, []
    for k_t, v_t in zip(k.unbind(1), v.unbind(1), strict=True):
        now = torch.exp(u + k_t)
        outputs.append((n + now * v_t) / (d + now))
        n, d = torch.exp(-w) * n + torch.exp(k_t) * v_t, torch.exp(-w) * d + torch.exp(k_t)
    return torch.stack(outputs, 1)


@pytest.mark.parametrize("steps", [1, 2, 63, 65])
def test_wkv_and_its_gradients_are_the_definition(steps):
    torch.manual_seed(0)
    k, v = (torch.randn(2, steps, 3, dtype=torch.float64) for _ in range(2))
    w, u = torch.rand(3, dtype=torch.float64), torch.randn(3, dtype=torch.float64)
    n, d = torch.randn(2, 3, dtype=torch.float64), torch.rand(2, 3, dtype=torch.float64)
    sources = [x.requires_grad_() for x in (w, u, k, v, n, d)]
    weights = torch.randn(2, steps, 3, dtype=torch.float64)
    ours, _ = wkv(w, u, k, v, (n, d, torch.zeros_like(n)))
    theirs = wkv_loop(w, u, k, v, (n, d))
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
    for one, other in zip(
        torch.autograd.grad((ours * weights).sum(), sources),
        torch.autograd.grad((theirs * weights).sum(), sources, materialize_grads=True),
        strict=True,
    ):  # fmt: skip
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)  # sums over all steps


def test_wkv_overflows_nowhere():
    """Keys of 1,000 apart: the output is the value of the largest key that has not decayed."""
    k = torch.tensor([-900.0, 0.0, 1000.0, 0.0, 1200.0])[None, :, None]
    v = torch.arange(1.0, 6.0)[None, :, None]
    y, (n, d, m) = wkv(torch.tensor([0.1]), torch.zeros(1), k, v, None)
    torch.testing.assert_close(y.flatten(), torch.tensor([1.0, 2, 3, 3, 5]))
    assert float(n / d) == 5 and float(m) == 1200
    k = torch.zeros(1, 40_000, 2)
    y, _ = wkv(torch.tensor([1e-6, 1e9]), torch.zeros(2), k, torch.ones_like(k), None)
    torch.testing.assert_close(y, torch.ones_like(y))  # a mean of ones


def delta_arguments(steps, dtype=torch.float64):
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, steps, 3, width, dtype=dtype) for width in (5, 5, 4))
    g, beta = -3 * torch.rand(2, steps, 3, dtype=dtype), torch.rand(2, steps, 3, dtype=dtype)
    return [x.requires_grad_() for x in (q, k, v, g, beta, torch.randn(2, 3, 5, 4, dtype=dtype))]


@pytest.mark.parametrize("steps", [0, 1, 2, 63, 65, 130])
def test_the_delta_rule_and_its_gradients_are_the_loop(steps):
    given = delta_arguments(steps)
    results = []
    for function in (delta_rule, delta_rule_reference):
        y, last = function(*given, scale=0.7, normalize=True)
        loss = (y * y).sum() + (last**3).sum()
        results.append([y, last, *torch.autograd.grad(loss, given, allow_unused=True, materialize_grads=True)])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-11)  # float64, blocks of 64 steps


@pytest.mark.parametrize("steps", [1, 65])
def test_no_state_is_a_state_of_zeros_and_an_unused_end_has_no_gradient(steps):
    *given, state = delta_arguments(steps)
    results = []
    for start, function in ((None, delta_rule), (torch.zeros_like(state), delta_rule_reference)):
        y, last = function(*given, start, scale=0.7)
        results.append([y, last])
        for loss in ((y * y).sum(), (last**3).sum()):
            results[-1] += torch.autograd.grad(
                loss, given, retain_graph=True, allow_unused=True, materialize_grads=True
            )
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-11)  # float64, blocks of 64 steps


def test_a_step_of_the_delta_rule_fills_no_zeros_of_a_states_size():
    """torch fills more than 32,768 numbers on all its threads, which wait for each other on a busy machine."""
    q, k, v = (torch.randn(4, 8, 4, 64, requires_grad=True) for _ in range(3))
    g, beta = (torch.rand(4, 8, 4, requires_grad=True) for _ in range(2))
    with torch.profiler.profile(record_shapes=True) as profile:
        y, _ = delta_rule(q, k, v, -g, beta, None)
        torch.autograd.grad(y, (q, k, v, g, beta), torch.ones(4, 8, 4, 64))
    filled = [math.prod(e.input_shapes[0]) for e in profile.events() if e.name in ("aten::fill_", "aten::zero_")]
    assert all(count <= 4 * 8 * 4 * 64 for count in filled), filled


def test_the_delta_rule_is_differentiated_twice():
    given = [x.detach()[:1, :, :1].clone().requires_grad_() for x in delta_arguments(3)[:5]]
    state = torch.randn(1, 1, 5, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda *x: delta_rule(*x, normalize=True), (*given, state))
    assert torch.autograd.gradgradcheck(lambda *x: delta_rule(*x, normalize=True), (*given, state))


def test_equal_keys_that_are_overwritten_do_not_lose_digits():
    """beta = 1 and one key for all: every step replaces the value, so that the output is the present one."""
    k = torch.zeros(1, 200, 1, 8)
    k[..., 0] = 1
    v = torch.randn(1, 200, 1, 4)
    y, _ = delta_rule(k, k, v, torch.zeros(1, 200, 1), torch.ones(1, 200, 1), torch.zeros(1, 1, 8, 4))
    torch.testing.assert_close(y, v, rtol=1e-5, atol=1e-5)  # powers of the system would reach 1e17


def test_packed_sequences_of_a_delta_rule_are_kept_apart():
    fast = build("Qwen3Next")
    holdfast.accelerate(fast)
    mixer = fast.model.layers[0].linear_attn
    from holdfast.nn._mixer_functions import torch_chunk_gated_delta_rule as run

    q, k, v, g, beta, _ = (x.detach() for x in delta_arguments(90))
    bounds = torch.tensor([0, 20, 21, 90])
    y, last = run(q[:1], k[:1], v[:1], g[:1], beta[:1], cu_seqlens=bounds, output_final_state=True)
    for i, (a, b) in enumerate([(0, 20), (20, 21), (21, 90)]):
        alone, end = run(*(x[:1, a:b] for x in (q, k, v, g, beta)), output_final_state=True)
        torch.testing.assert_close(y[:, a:b], alone, rtol=1e-10, atol=1e-11)
        torch.testing.assert_close(last[i : i + 1], end, rtol=1e-10, atol=1e-11)
    assert type(mixer).__name__ == "AcceleratedQwen3NextGatedDeltaNet"


def mlstm_arguments(steps, dtype=torch.float64):
    generator = torch.Generator().manual_seed(steps)
    shapes = [(2, 3, steps, 4)] * 2 + [(2, 3, steps, 5)] + [(2, 3, steps)] * 2 + [(2, 3, 4, 5), (2, 3, 4), (2, 3, 1)]
    made = [torch.randn(shape, generator=generator, dtype=dtype) for shape in shapes]
    made[3], made[4] = 3 * made[3], 3 * made[4]  # gates from closed to open, so that stabilisers move
    return [x.requires_grad_() for x in made]


def mlstm_loop(q, k, v, i, f, *state, epsilon):
    scaled, log_f = q * q.shape[-1] ** -0.5, torch.nn.functional.logsigmoid(f)
    return mlstm_reference(scaled, k, v, i, log_f, state, epsilon=epsilon)


# with a large epsilon the stabilisers do not cancel, and their own gradients show
@pytest.mark.parametrize("epsilon", [1e-6, 0.3])
@pytest.mark.parametrize("steps", [0, 1, 2, 63, 65, 130])
def test_the_mlstm_and_its_gradients_are_the_loop(steps, epsilon):
    arguments = mlstm_arguments(steps)
    results = []
    for run in (lambda *a: mlstm(*a[:5], a[5:], epsilon=epsilon), lambda *a: mlstm_loop(*a, epsilon=epsilon)):
        y, state = run(*arguments)
        outputs = [y, *state]
        weights = [torch.linspace(-1, 2, x.numel(), dtype=x.dtype).reshape(x.shape) for x in outputs]
        loss = sum((x * w).sum() for x, w in zip(outputs, weights, strict=True))
        grads = torch.autograd.grad(loss, arguments, allow_unused=True, materialize_grads=True)
        results.append([*outputs, *grads])
    for x, y in zip(*results, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-9, atol=1e-10)  # quotients by dots near 0 lose three digits


def test_the_mlstm_is_differentiated_twice():
    arguments = [x[:1, :1, :3, :2].detach() if x.ndim == 4 else x[:1, :1, :3].detach() for x in mlstm_arguments(3)]
    arguments[5], arguments[6] = arguments[5][:, :, :2], arguments[6][:, :, :2]
    arguments = [x.clone().requires_grad_() for x in arguments]
    assert torch.autograd.gradgradcheck(
        lambda *a: mlstm(*a[:5], a[5:], epsilon=1e-3)[0], arguments, atol=1e-5, rtol=1e-4
    )


def test_open_gates_of_an_mlstm_overflow_nowhere():
    q, k, v, i, f, *_ = (x.detach() for x in mlstm_arguments(130, torch.float32))
    y, state = mlstm(q, k, v, i + 200, f + 50)  # e^200 has no float32
    expected, _ = mlstm(q.double(), k.double(), v.double(), i.double() + 200, f.double() + 50)
    assert all(bool(torch.isfinite(x).all()) for x in (y, *state))
    torch.testing.assert_close(y.double(), expected, rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize("mode", ["train", "train_with_padding", "inference"])
def test_every_mode_of_xlstm_gives_what_its_own_backend_gives(mode):
    plain = build("xLSTM").backbone.blocks[0].mlstm_layer.mlstm_backend
    plain.config = copy.deepcopy(plain.config)
    plain.config.mode, plain.config.return_last_states = mode, False
    plain = type(plain)(plain.config)
    fast = copy.deepcopy(plain)
    holdfast.accelerate(fast)
    arguments = [x.detach().float() for x in mlstm_arguments(64)[:5]]
    expected, found = plain(*arguments), fast(*arguments)
    assert isinstance(expected, tuple) == isinstance(found, tuple) == (mode == "inference")
    pairs = (
        [(expected, found)]
        if mode != "inference"
        else [(expected[0], found[0]), *zip(expected[1], found[1], strict=True)]
    )
    for x, y in pairs:
        torch.testing.assert_close(y, x, **CLOSE)
    if mode == "train":  # what it refuses is refused still
        with pytest.raises(ValueError, match="not divisible"):
            fast(*(x[:, :, :63] for x in arguments))
