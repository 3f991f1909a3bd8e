"""Networks that the constructions are made of: the project's layers one after another, or one for each channel."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from holdfast._arguments import checked
from holdfast.errors import ShapeError
from holdfast.nn import AbstractRecurrent

States = tuple[Any, ...]


class _Several(nn.Module):
    """Layers with the contract of one layer; the state is a tuple with one entry for each layer."""

    def __init__(self, layers: Iterable[nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(
        self, x: Float[Tensor, "batch time features"], state: States | None = None, **how: Any
    ) -> tuple[Float[Tensor, "batch time out"], States]:
        """Outputs over a whole sequence, and the states at the end.

        Args:
            x: inputs (batch, time, features).
            state: states before the first step; None is zeros.
            how: keyword arguments for every layer.
        """
        return self._through([*self.layers], x, _states(self.layers, state), how)

    def step(
        self, x: Float[Tensor, "batch features"], state: States | None = None, **how: Any
    ) -> tuple[Float[Tensor, "batch out"], States]:
        """Outputs of one step, and the states after it.

        Args:
            x: inputs of this step (batch, features).
            state: states before the step; None is zeros.
            how: keyword arguments for every layer.
        """
        calls: list[Any] = [layer.step for layer in self.layers]
        return self._through(calls, x, _states(self.layers, state), how)

    def _through(
        self, calls: Sequence[Callable[..., Any]], x: Tensor, states: States, how: dict[str, Any]
    ) -> tuple[Tensor, States]:
        raise NotImplementedError


class Chain(_Several):
    """Layers one after another.

    Args:
        layers: modules called as `y, state = layer(x, state)`.
    """

    @checked
    def __init__(self, *layers: nn.Module) -> None:
        super().__init__(layers)

    def _through(
        self, calls: Sequence[Callable[..., Any]], x: Tensor, states: States, how: dict[str, Any]
    ) -> tuple[Tensor, States]:
        after = []
        for call, before in zip(calls, states, strict=True):
            x, state = call(x, before, **how)
            after.append(state)
        return x, tuple(after)


class ByChannel(_Several):
    """One layer for each input channel, outputs side by side: a block-diagonal layer without the blocks of zeros.

    Args:
        layers: one module with one input for each channel.
    """

    @checked
    def __init__(self, layers: Iterable[nn.Module]) -> None:
        super().__init__(layers)

    def _through(
        self, calls: Sequence[Callable[..., Any]], x: Tensor, states: States, how: dict[str, Any]
    ) -> tuple[Tensor, States]:
        done = [call(part, s, **how) for call, part, s in zip(calls, self._split(x), states, strict=True)]
        return torch.cat([y for y, _ in done], dim=-1), tuple(s for _, s in done)

    def _split(self, x: Tensor) -> tuple[Tensor, ...]:
        if x.shape[-1] != len(self.layers):
            raise ShapeError(f"expected {len(self.layers)} channels (last dimension of x), got {tuple(x.shape)}")
        return x.split(1, dim=-1)


class Pointwise(nn.Module):
    """A layer without memory: a fixed function of each position's channels.

    Args:
        function: the module that is applied to (..., channels).
    """

    @checked
    def __init__(self, function: nn.Module) -> None:
        super().__init__()
        self.function = function

    def forward(
        self, x: Float[Tensor, "batch time channels"], state: States | None = None, **how: Any
    ) -> tuple[Float[Tensor, "batch time out"], States]:
        """The function at every position.

        Args:
            x: inputs (batch, time, channels).
            state: not used; the state that comes back is empty.
            how: not used.
        """
        return self.function(x), ()

    def step(
        self, x: Float[Tensor, "batch channels"], state: States | None = None, **how: Any
    ) -> tuple[Float[Tensor, "batch out"], States]:
        """The function at one position.

        Args:
            x: inputs of this step (batch, channels).
            state: not used; the state that comes back is empty.
            how: not used.
        """
        return self.function(x), ()


@dataclass(frozen=True, eq=False)
class Construction:
    """A network built for a target, and how near it comes.

    Args:
        network: the network.
        error: measured on the network itself: the largest |target - output| over `probes` inputs.
        tolerance: the error that was asked for.
        width: hidden units of all layers.
        parameters: numbers stored.
        probes: number of inputs that `error` was measured on.
        bound: holds for every admissible input, where the construction gives one (None: the paper gives none).
        status: "ok" or "tolerance not reached".
        notes: what to do where it is not "ok".
        details: what belongs to one construction only.
    """

    network: nn.Module
    error: float
    tolerance: float
    width: int
    parameters: int
    probes: int
    bound: float | None = None
    status: str = "ok"
    notes: tuple[str, ...] = ()
    details: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def judged(
        cls, network: nn.Module, error: float, tolerance: float, *, ok: bool, advice: str, width: int | None = None,
        **more: Any,
    ) -> Construction:  # fmt: skip
        """The construction with its status, its size, and the advice where it is not "ok".

        Args:
            network: the network.
            error: measured on it.
            tolerance: the error that was asked for.
            ok: whether the tolerance is reached.
            advice: what to do otherwise.
            width: hidden units; None counts the states of its recurrent layers.
            more: the other fields.
        """
        return cls(
            network,
            error,
            tolerance,
            width_of(network) if width is None else width,
            parameters_of(network),
            status="ok" if ok else "tolerance not reached",
            notes=() if ok else (advice,),
            **more,
        )

    @property
    def reached(self) -> bool:
        """Whether the measured error is within the tolerance that was asked for."""
        return self.error <= self.tolerance

    def __repr__(self) -> str:
        """A line."""
        bound = "none" if self.bound is None else f"{self.bound:.3g}"
        return (
            f"Construction({type(self.network).__name__}, error {self.error:.3g} (asked {self.tolerance:g}, bound "
            f"{bound}), width {self.width}, {self.parameters} parameters, status {self.status!r})"
        )


def width_of(network: nn.Module) -> int:
    """Hidden units: the state sizes of all recurrent layers."""
    return sum(m.state_size for m in network.modules() if isinstance(m, AbstractRecurrent))


def parameters_of(network: nn.Module) -> int:
    """Numbers stored."""
    return sum(p.numel() for p in network.parameters())


def _states(layers: nn.ModuleList, state: States | None) -> States:
    if state is None:
        return (None,) * len(layers)
    if len(state) != len(layers):
        raise ShapeError(f"expected a state with one entry for each of the {len(layers)} layers, got {len(state)}")
    return state
