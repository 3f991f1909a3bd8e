"""A layer of a transformers Mamba after `accelerate`: over its matrix products, and against itself as it was.

Its sizes are those of Mamba's 130M model. The truth is transformers' own layer in float64, over the first steps.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from holdfast.nn._acceleration import accelerate
from holdfast_papers.benchmarks.case import Case, Contender, Inputs, Kind, Match, OwnKernel, Results, Runner, Shape
from holdfast_papers.benchmarks.peers.optional import load
from holdfast_papers.benchmarks.steps import generator, training_step, truth_by

GROUP = "mamba"
HIDDEN, STATES, RANK = 768, 16, 48  # RANK: numbers that the step sizes are projected from
# batch, time, hidden size, states
SHAPES: tuple[Shape, ...] = ((1, 512, HIDDEN, STATES), (1, 2048, HIDDEN, STATES))
QUICK: tuple[Shape, ...] = ()
TOKEN: Shape = (1, 64, HIDDEN, STATES)  # one token after a text of 64
CHECKED = 64  # time steps of the check in float64: transformers' loop takes T^2
LOOP_STEPS = 512  # the length up to which that loop is timed
NEEDED = ("transformers",)
WEIGHTS = {"in": (4 * HIDDEN, HIDDEN), "scan": (RANK + 2 * STATES, 2 * HIDDEN), "dt": (2 * HIDDEN, RANK),
           "out": (HIDDEN, 2 * HIDDEN)}  # fmt: skip
MAX_STEP_BYTES = 6 << 30  # bytes that a training step of 24 layers over 1,024 steps may take
LAYERS = 24
VOCABULARY = 50280


def cases() -> list[Case]:
    """A training step and a forward pass at each length, and one token with a cache."""
    return [*(_case(shape, trained=trained) for trained in (True, False) for shape in SHAPES), _token_case()]


def make_inputs(shape: Shape) -> Inputs:
    """What a layer reads after a norm, and a cotangent."""
    x, cotangent = torch.randn(2, *shape[:3], generator=generator())
    return {"x": x, "cotangent": cotangent}


def _model(hidden: int = HIDDEN, layers: int = 1, *, fast: bool, mambapy: bool = False, vocabulary: int = 8) -> Any:
    transformers = load("transformers")
    torch.manual_seed(0)
    config = transformers.MambaConfig(
        hidden_size=hidden, state_size=STATES, num_hidden_layers=layers, vocab_size=vocabulary, use_mambapy=mambapy
    )
    model = transformers.MambaModel(config)
    if fast:
        accelerate(model)
    return model


def layer_step(*, fast: bool, trained: bool, mambapy: bool = False) -> Callable[[Inputs], Runner]:
    """A runner of one mixer: forward, and backward to its input and every weight where it is `trained`.

    Args:
        fast: after `accelerate`.
        trained: with gradients.
        mambapy: let transformers take mambapy's parallel scan.
    """

    def build(inputs: Inputs) -> Runner:
        mixer = _model(inputs["x"].shape[-1], fast=fast, mambapy=mambapy).layers[0].mixer.to(inputs["x"].dtype)
        x = inputs["x"].clone().requires_grad_(trained)
        names, weights = zip(*mixer.named_parameters(), strict=True)

        def step() -> tuple[Tensor, ...]:
            with torch.set_grad_enabled(trained):
                y = mixer(x)
            return (y, *torch.autograd.grad(y, (x, *weights), inputs["cotangent"])) if trained else (y,)

        return Runner(step, lambda outputs: dict(zip(("y", "x", *names), (f.detach() for f in outputs), strict=False)))

    return build


def _truth(trained: bool) -> Callable[[Inputs], Results]:
    def truth(inputs: Inputs) -> Results:
        runner = layer_step(fast=False, trained=trained)({name: x.double() for name, x in inputs.items()})
        return runner.read(runner.step())

    return truth


def _products(x: Tensor, to_inner: Tensor, to_scan: Tensor, to_dt: Tensor, to_out: Tensor) -> Tensor:
    """The four products of a layer, one after the other and nothing between them."""
    inner = (x @ to_inner.T)[..., : to_dt.shape[0]]
    return ((inner @ to_scan.T)[..., : to_dt.shape[1]] @ to_dt.T) @ to_out.T


def _product_inputs(inputs: Inputs) -> Inputs:
    drawn = {name: torch.randn(size, generator=generator()) / size[1] ** 0.5 for name, size in WEIGHTS.items()}
    return {"x": inputs["x"], **drawn, "cotangent": inputs["cotangent"]}


def _bare(trained: bool) -> Contender:
    def build(inputs: Inputs) -> Runner:
        given = _product_inputs(inputs)
        if trained:
            return training_step(_products, given)
        leaves = [value for name, value in given.items() if name != "cotangent"]
        return Runner(lambda: _products(*leaves), lambda y: {"y": y})

    def truth(inputs: Inputs) -> Results:
        truth = truth_by(_products)(_product_inputs(inputs))
        return truth if trained else {"y": truth["y"]}

    return Contender("its matrix products", "roofline", build, truth=truth)


def _case(shape: Shape, *, trained: bool) -> Case:
    truth = _truth(trained)

    def contender(name: str, *modules: str, **how: bool) -> Contender:
        kind: Kind = "ours" if how["fast"] else "peer"
        build = layer_step(trained=trained, **how)
        return Contender(name, kind, build, (*NEEDED, *modules), truth=truth, checked_steps=CHECKED)

    what = "training step" if trained else "forward pass"
    said = f"{what} of a transformers Mamba layer after accelerate"
    matches = [Match(_bare(trained), f"{said} over its matrix products", 1.5, "at most")]
    if shape[1] <= LOOP_STEPS:
        plain = contender("transformers", fast=False)
        whole = 4 * shape[0] * shape[1] * 2 * shape[2] * shape[3]
        plain = replace(plain, memory=20 * whole)
        matches.append(Match(plain, f"{said} against the layer as it was", 25.0 if trained else None))
    parallel = contender("transformers with mambapy", "mambapy", fast=False, mambapy=True)
    matches.append(Match(parallel, f"{said} against the layer with mambapy", 3.0))
    group = GROUP if trained else f"{GROUP}-forward"
    return Case(group, shape, lambda: make_inputs(shape), truth, contender("accelerated", fast=True), tuple(matches))


def _generate(*, fast: bool) -> Callable[[Inputs], Runner]:
    """A runner of one more token through two layers with their cache."""

    def build(inputs: Inputs) -> Runner:
        model = _model(layers=2, fast=fast).eval().to(inputs["x"].dtype)
        with torch.no_grad():
            cache = model(inputs_embeds=inputs["x"], use_cache=True).cache_params

        @torch.no_grad()
        def step() -> Tensor:
            return model(inputs_embeds=inputs["x"][:, -1:], cache_params=cache, use_cache=True).last_hidden_state

        return Runner(step, lambda y: {"y": y})

    return build


def _token_truth(inputs: Inputs) -> Results:
    runner = _generate(fast=False)({name: x.double() for name, x in inputs.items()})
    return runner.read(runner.step())


def _token_case() -> Case:
    return Case(
        f"{GROUP}-token",
        TOKEN,
        lambda: make_inputs(TOKEN),
        _token_truth,
        Contender("accelerated", "ours", _generate(fast=True), NEEDED),
        (
            Match(
                Contender("transformers", "peer", _generate(fast=False), NEEDED),
                "one token through two layers of a transformers Mamba after accelerate against the model as it was",
                1.5,
            ),
        ),
    )


def _layer_bytes(shape: Shape) -> int:
    """Memory of a layer's training step: what is kept and computed for each step, and the weights with their gradients."""
    batch, time, hidden, _ = shape
    weights = sum(rows * columns for rows, columns in WEIGHTS.values())
    return 4 * (batch * time * 24 * hidden + 2 * weights)


def _whole_model(inputs: Inputs) -> Runner:
    """One training step of 24 layers: forward, mean square of the outputs, backward."""
    model = _model(inputs["x"].shape[-1], LAYERS, fast=True, vocabulary=VOCABULARY)

    def step() -> Tensor:
        loss = model(inputs_embeds=inputs["x"], use_cache=False).last_hidden_state.square().mean()
        loss.backward()
        return loss.detach()

    return Runner(step, lambda loss: {"loss": loss})


def _kernel(
    name: str, ours: Callable[[Inputs], Runner], shape: Shape, stated: Callable[[Shape], int], words: str
) -> OwnKernel:
    return OwnKernel(name, "BTDN", make_inputs, ours, shape, {}, {}, shape, stated, words)


FORMULA = "24 numbers for each step and hidden feature, weights and their gradients"
KERNELS = (
    _kernel("mamba-layer", layer_step(fast=True, trained=True), SHAPES[0], _layer_bytes, FORMULA),
    _kernel(
        "mamba-layer-before", layer_step(fast=False, trained=True), SHAPES[0], lambda shape: 10 * _layer_bytes(shape),
        "the layer as it was, beside ten times what the accelerated one states",
    ),
    _kernel(
        "mamba-24-layers", _whole_model, (1, 1024, HIDDEN, STATES), lambda shape: MAX_STEP_BYTES,
        "the bound for a training step of 24 layers of hidden size 768: 6 GiB",
    ),
)  # fmt: skip
