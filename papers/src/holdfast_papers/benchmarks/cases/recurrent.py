"""Gated recurrences that are linear in their state: MinGRU against torch's GRU, and transformers' models after `accelerate`.

RecurrentGemma and RWKV loop over time in Python; what their layers can gain ends at their matrix products, which are timed
beside them, as are those of a layer with the gated delta rule; the rule by itself is a row too. The truth is transformers'
own module in float64, whose states are float32.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from holdfast.nn import MinGRU, accelerate
from holdfast.nn._delta_rule import delta_rule_reference
from holdfast.nn._mixer_functions import torch_chunk_gated_delta_rule
from holdfast_papers.benchmarks.case import Case, Contender, Inputs, Match, Results, Runner, Shape
from holdfast_papers.benchmarks.peers import rooflines
from holdfast_papers.benchmarks.peers.optional import load
from holdfast_papers.benchmarks.steps import generator, training_step, truth_by

GROUP = "recurrent"
QUICK: tuple[Shape, ...] = ()
GRU_SHAPE: Shape = (16, 1024, 64)
LAYER_SHAPES: tuple[Shape, ...] = ((1, 512, 64), (1, 512, 256))
DELTA_SHAPE: Shape = (1, 1024, 256)
RULE_SHAPE: Shape = (1, 1024, 4, 64)  # batch, time, heads, keys and values of a head: that layer's
PRODUCTS_GOAL, RULE_GOAL = 1.5, 3.0
NEEDED = ("transformers",)
Build = Callable[[int], tuple[nn.Module, dict[str, Any]]]


def cases() -> list[Case]:
    """A training step of each."""
    layers = (("RecurrentGemma", _recurrent_gemma), ("RWKV", _rwkv))
    models = [_model_case(name, build, shape, 20.0) for name, build in layers for shape in LAYER_SHAPES]
    delta = [rule_case(RULE_SHAPE), _model_case("gated delta rule", _delta_rule, DELTA_SHAPE, RULE_GOAL)]
    return [_gru_case(), *models, *delta]


def make_inputs(shape: Shape) -> Inputs:
    """Inputs of a layer and a cotangent."""
    x, cotangent = torch.randn(2, *shape, generator=generator())
    return {"x": x, "cotangent": cotangent}


def module_step(make: Callable[[], tuple[nn.Module, dict[str, Any]]]) -> Callable[[Inputs], Runner]:
    """A runner of a training step of a module: forward, and backward to its input and every weight.

    Args:
        make: gives the module and the keyword arguments of its call.
    """

    def build(inputs: Inputs) -> Runner:
        module, named = make()
        module = module.to(inputs["x"].dtype)
        x = inputs["x"].clone().requires_grad_()
        names, weights = zip(*module.named_parameters(), strict=True)
        steps = x.shape[1]
        given = {name: value[:, :steps] if isinstance(value, Tensor) else value for name, value in named.items()}

        def step() -> tuple[Tensor, ...]:
            y = module(x, **given)
            y = y[0] if isinstance(y, tuple) else y
            return (y, *torch.autograd.grad(y, (x, *weights), inputs["cotangent"], materialize_grads=True))

        return Runner(step, lambda outputs: dict(zip(("y", "x", *names), (f.detach() for f in outputs), strict=False)))

    return build


def _truth(make: Callable[[], tuple[nn.Module, dict[str, Any]]]) -> Callable[[Inputs], Results]:
    def truth(inputs: Inputs) -> Results:
        runner = module_step(make)({name: x.double() for name, x in inputs.items()})
        return runner.read(runner.step())

    return truth


def _gru_case() -> Case:
    def ours() -> tuple[nn.Module, dict[str, Any]]:
        torch.manual_seed(0)
        return MinGRU(GRU_SHAPE[2], GRU_SHAPE[2]), {}

    def theirs() -> tuple[nn.Module, dict[str, Any]]:
        torch.manual_seed(0)
        return nn.GRU(GRU_SHAPE[2], GRU_SHAPE[2], batch_first=True), {}

    gru = Contender("torch.nn.GRU", "torch", module_step(theirs), truth=_truth(theirs))
    return Case(
        f"{GROUP}-mingru", GRU_SHAPE, lambda: make_inputs(GRU_SHAPE), _truth(ours),
        Contender("MinGRU", "ours", module_step(ours)),
        (Match(gru, "training step of MinGRU against torch.nn.GRU", 9.0),),
    )  # fmt: skip


def rule_case(shape: Shape) -> Case:
    """A training step of the gated delta rule by itself, against transformers' function."""

    def inputs() -> Inputs:
        numbers = generator()
        q, k, v, cotangent = torch.randn(4, *shape, generator=numbers)
        g, beta = torch.rand(2, *shape[:3], generator=numbers)
        return {"q": q, "k": k, "v": v, "g": -0.3 * g, "beta": beta, "cotangent": cotangent}

    def theirs(given: Inputs) -> Runner:
        run = load("transformers.models.qwen3_next.modeling_qwen3_next").torch_chunk_gated_delta_rule
        return training_step(lambda *leaves: run(*leaves, use_qk_l2norm_in_kernel=True)[0], given)

    def ours(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> Tensor:
        return torch_chunk_gated_delta_rule(q, k, v, g, beta, use_qk_l2norm_in_kernel=True)[0]

    def reference(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> Tensor:
        state = q.new_zeros(q.shape[0], q.shape[2], q.shape[3], v.shape[3])
        return delta_rule_reference(q, k, v, g, beta, state, scale=q.shape[3] ** -0.5, normalize=True)[0]

    plain = Contender("transformers", "peer", theirs, NEEDED)
    return Case(
        f"{GROUP}-delta_rule", shape, inputs, truth_by(reference),
        Contender("holdfast", "ours", lambda given: training_step(ours, given)),
        (Match(plain, "training step of the gated delta rule against transformers' torch fallback", RULE_GOAL),),
    )  # fmt: skip


def _model_case(name: str, build: Build, shape: Shape, goal: float) -> Case:
    def made(fast: bool) -> Callable[[], tuple[nn.Module, dict[str, Any]]]:
        def make() -> tuple[nn.Module, dict[str, Any]]:
            torch.manual_seed(0)
            module, named = build(shape[2])
            for weight in module.parameters():  # some start as 0 or empty
                nn.init.normal_(weight, std=0.05)
            if fast:
                accelerate(module)
            return module, named

        return make

    truth = _truth(made(False))
    ours = Contender("accelerated", "ours", module_step(made(True)), NEEDED, truth=truth)
    plain = Contender("transformers", "peer", module_step(made(False)), NEEDED, truth=truth)
    own = module_step(made(True))
    products = Contender(
        "its matrix products", "peer", functools.partial(rooflines.own_products, own), NEEDED,
        truth=functools.partial(rooflines.own_products_truth, own),
    )  # fmt: skip
    said = f"training step of transformers' {name} after accelerate"
    group = f"{GROUP}-{name.lower().replace(' ', '-')}"
    return Case(
        group,
        shape,
        lambda: make_inputs(shape),
        truth,
        ours,
        (
            Match(plain, f"{said} against the layer as it was", goal),
            Match(
                products,
                f"{said} over its own matrix products",
                PRODUCTS_GOAL if goal != RULE_GOAL else None,
                "at most",
            ),
        ),
    )


def _recurrent_gemma(hidden: int) -> tuple[nn.Module, dict[str, Any]]:
    models = load("transformers.models.recurrent_gemma.modeling_recurrent_gemma")
    config = load("transformers").RecurrentGemmaConfig(
        hidden_size=hidden, lru_width=hidden, num_attention_heads=4, intermediate_size=3 * hidden, num_hidden_layers=3
    )
    positions = torch.arange(max(shape[1] for shape in LAYER_SHAPES)).unsqueeze(0)
    return models.RecurrentGemmaDecoderLayer(config, 0), {
        "position_ids": positions, "attention_mask": None, "use_cache": False
    }  # fmt: skip


def _rwkv(hidden: int) -> tuple[nn.Module, dict[str, Any]]:
    models = load("transformers.models.rwkv.modeling_rwkv")
    config = load("transformers").RwkvConfig(hidden_size=hidden, num_hidden_layers=3, vocab_size=8)
    return models.RwkvBlock(config, 1), {}


def _delta_rule(hidden: int) -> tuple[nn.Module, dict[str, Any]]:
    models = load("transformers.models.qwen3_next.modeling_qwen3_next")
    config = load("transformers").Qwen3NextConfig(
        hidden_size=hidden, num_hidden_layers=4, linear_num_value_heads=hidden // 64, linear_num_key_heads=hidden // 64,
        linear_key_head_dim=64, linear_value_head_dim=64,
    )  # fmt: skip
    return models.Qwen3NextGatedDeltaNet(config, 0), {}
