"""The gated delta rule in C++ as torch operators: a state is kept every 16 steps, backward computes the rest again."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor

from holdfast.errors import ShapeError
from holdfast.kernels._common import library
from holdfast.kernels._common.backends import define
from holdfast.kernels._common.calls import call, dense, empty, present, sizes, verify

_KEY_GRAIN, _COLUMN_GRAIN = 8, 16  # what C pads a state to, csrc/delta_rule/problem.h


class DeltaCall(NamedTuple):
    """Queries, keys (batch, time, heads, keys), values, log decays, betas and the state before the first step; None is 0."""

    q: Tensor
    k: Tensor
    v: Tensor
    g: Tensor
    beta: Tensor
    state: Tensor | None


def _verify(rule: DeltaCall) -> tuple[int, int, int, int, int]:
    """Batch, time, heads, keys and values, after a check of all that C relies on."""
    present("delta_rule", *rule[1:-1])
    batch, time, heads, keys = sizes("delta_rule", "q", rule.q, "batch time heads keys")
    values = sizes("delta_rule", "v", rule.v, "batch time heads values")[3]
    if 0 in (heads, keys, values):
        raise ShapeError(f"delta_rule: expected at least one head, key and value, got {heads}, {keys} and {values}")
    each = (batch, time, heads)
    verify(
        "delta_rule", rule.q, (rule.k, rule.q.shape), (rule.v, (*each, values)), (rule.g, each), (rule.beta, each),
        (rule.state, (batch, heads, keys, values)),
    )  # fmt: skip
    return batch, time, heads, keys, values


def _state_shape(rule: DeltaCall) -> tuple[int, ...]:
    (batch, _, heads, keys), values = rule.q.shape, rule.v.shape[3]
    return batch, heads, keys, values


def _saved_shape(rule: DeltaCall) -> tuple[int, ...]:
    """Of the states before each tile, as C pads them."""
    (batch, time, heads, keys), values = rule.q.shape, rule.v.shape[3]
    padded = -(-keys // _KEY_GRAIN) * _KEY_GRAIN * (-(-values // _COLUMN_GRAIN) * _COLUMN_GRAIN)
    return batch, heads, -(-time // library.number("delta_rule_tile_steps")), padded


def _run(name: str, rule: DeltaCall, scale: float, normalize: bool, **rest: Tensor | None) -> None:
    batch, time, heads, keys = rule.q.shape
    given = {field: None if x is None else dense(x) for field, x in rule._asdict().items()}
    call(
        "delta_rule", f"delta_rule_{name}", rule.q.dtype, rows=batch, steps=time, heads=heads, keys=keys,
        values=rule.v.shape[3], scale=scale, normalize=normalize, **given, **rest,
    )  # fmt: skip


def delta_rule_forward(rule: DeltaCall, scale: float, normalize: bool, save: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Outputs, the final state, and (if `save`) the states before each tile."""
    batch = _verify(rule)[0]
    y, last = empty(rule.v.shape, rule.v.dtype), empty(_state_shape(rule), rule.v.dtype)
    saved = empty(_saved_shape(rule) if save else (0,), rule.v.dtype)
    if batch:
        _run("forward", rule, scale, normalize, y=y, last=last, checkpoints=saved if save else None)
    return y, last, saved


def _backward(
    rule: DeltaCall, scale: float, normalize: bool, saved: Tensor, grad_y: Tensor, grad_last: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of what a call has, in its order; without a gradient of the final state that is 0."""
    batch = _verify(rule)[0]
    present("delta_rule", saved, grad_y)
    verify("delta_rule", rule.q, (saved, _saved_shape(rule)), (grad_y, rule.v.shape), (grad_last, _state_shape(rule)))
    q, k, v, g, beta = (empty(x.shape, x.dtype) for x in rule[:-1])
    state = empty(_state_shape(rule), rule.v.dtype)
    if batch:
        _run(
            "backward", rule, scale, normalize, checkpoints=dense(saved), grad_y=dense(grad_y),
            grad_last=None if grad_last is None else dense(grad_last),
            grad_q=q, grad_k=k, grad_v=v, grad_g=g, grad_beta=beta, grad_state=state,
        )  # fmt: skip
    return q, k, v, g, beta, state


def _forward_meta(rule: DeltaCall, scale: float, normalize: bool, save: bool) -> tuple[Tensor, Tensor, Tensor]:
    saved = _saved_shape(rule) if save else (0,)
    return rule.v.new_empty(rule.v.shape), rule.v.new_empty(_state_shape(rule)), rule.v.new_empty(saved)


def _backward_meta(rule: DeltaCall, *_: Any) -> tuple[Tensor, ...]:
    return *(x.new_empty(x.shape) for x in rule[:-1]), rule.v.new_empty(_state_shape(rule))


define("delta_rule_forward", delta_rule_forward, _forward_meta)
define("delta_rule_backward", _backward, _backward_meta)
