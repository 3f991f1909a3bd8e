"""JAX: a scan by `lax.scan`, one by `lax.associative_scan`, and an LRU by the second; all jitted, on the CPU.

Both scans take time first, where the associative one was faster than along the second axis (0.9 ms against 1.7 ms at
128 x 32 x 64); inputs are laid out that way before the clock starts. `unroll=8` doubled lax.scan's time.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from holdfast_papers.benchmarks.case import Inputs, Results, Runner
from holdfast_papers.benchmarks.peers.optional import load

Layout = Callable[[Tensor], Tensor]


def lax_scan(inputs: Inputs) -> Runner:
    """h_t = a_t h_{t-1} + b_t, one step after the other."""
    jax = _jax()

    def forward(a: Any, b: Any) -> Any:
        def advance(h: Any, now: tuple[Any, Any]) -> tuple[Any, Any]:
            h = now[0] * h + now[1]
            return h, h

        return jax.lax.scan(advance, jax.numpy.zeros_like(a[0]), (a, b))[1]

    return _training_step(forward, inputs, _time_first)


def associative_scan(inputs: Inputs) -> Runner:
    """h_t = a_t h_{t-1} + b_t by a tree of log2(T) levels."""
    jax = _jax()

    def forward(a: Any, b: Any) -> Any:
        return jax.lax.associative_scan(_compose, (a, b), axis=0)[1]

    return _training_step(forward, inputs, _time_first)


def lru(inputs: Inputs) -> Runner:
    """The linear recurrent unit, h_t = lam h_{t-1} + B u_t, y = Re(C h) + d u, as JAX implementations of it do.

    Complex64, an associative scan over time, mapped over the batch; weights come as the real pairs of our kernel, so
    that its gradients can be compared one by one.
    """
    jax = _jax()
    jnp = jax.numpy

    def forward(u: Any, lam_re: Any, lam_im: Any, b: Any, c: Any, d: Any) -> Any:
        n = lam_re.shape[0]
        lam = lam_re + 1j * lam_im
        b_complex = b[:n] + 1j * b[n:]
        c_complex = c[:, :n] - 1j * c[:, n:]

        def one(row: Any) -> Any:
            driven = row @ b_complex.T
            decays = jnp.broadcast_to(lam, driven.shape)
            h = jax.lax.associative_scan(_compose, (decays, driven))[1]
            return (h @ c_complex.T).real + d * row

        return jax.vmap(one)(u)

    return _training_step(forward, inputs, lambda x: x)


def _compose(first: tuple[Any, Any], second: tuple[Any, Any]) -> tuple[Any, Any]:
    return first[0] * second[0], second[0] * first[1] + second[1]


def _training_step(forward: Callable[..., Any], inputs: Inputs, layout: Layout) -> Runner:
    """One jitted function: the output, and the gradients of <y, cotangent> in every input."""
    jax = _jax()
    arrays = {name: jax.numpy.asarray(layout(value).numpy()) for name, value in inputs.items()}
    cotangent = arrays.pop("cotangent")

    @jax.jit
    def both(cotangent: Any, *values: Any) -> Any:
        y, pullback = jax.vjp(forward, *values)
        return y, pullback(cotangent)

    def step() -> Any:
        return jax.block_until_ready(both(cotangent, *arrays.values()))

    def read(given: Any) -> Results:
        y, gradients = given
        named: Mapping[str, Any] = {"y": y, **dict(zip(arrays, gradients, strict=True))}
        return {name: layout(torch.from_numpy(np.array(value))) for name, value in named.items()}

    return Runner(step, read)


def _time_first(x: Tensor) -> Tensor:
    """(batch, time, channels) to (time, batch, channels), and back."""
    return x.transpose(0, 1).contiguous()


def _jax() -> Any:
    # without this, JAX looks for accelerators first; both sides of a comparison run on the CPU
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    return load("jax")
