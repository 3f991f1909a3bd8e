"""What the blocks Mamba and Mamba2 share: the short convolution at one step, reading backwards, transformers' weights."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn
from torch.nn import functional

from holdfast._types import Time
from holdfast.errors import ArgumentError
from holdfast.nn._base import AbstractRecurrent
from holdfast.nn._call_arguments import backwards, taken
from holdfast.nn._initial_weights import as_eigenvalues, own_values
from holdfast.parameterizations import AbstractParameterization


class AbstractMamba(AbstractRecurrent):
    """A block around a selective scan with A = f(w). A final class gives `_ahead`, `_sizes_of` and the names below."""

    takes_half = True
    recurrent_names = ("w",)
    selective = True
    time: Time = "continuous"
    # transformers' class with the same weights; its submodules and its own weights that are ours under the same names
    mixer_class: ClassVar[str]
    shared_modules: ClassVar[tuple[str, ...]]
    shared_weights: ClassVar[tuple[str, ...]]

    parameterization: AbstractParameterization
    w: nn.Parameter
    conv_weight: nn.Parameter
    conv_bias: nn.Parameter | None
    taps: int

    @abstractmethod
    def _ahead(
        self, x: Tensor, state: Tensor | None, lengths: Tensor | None, dt: Tensor | float | None,
        resets: Tensor | None,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """`_run` from the first step to the last."""

    @classmethod
    @abstractmethod
    def _sizes_of(cls, mixer: Any) -> tuple[int, int, dict[str, Any]]:
        """Features, states and choices of a block with the sizes of transformers' mixer."""

    @classmethod
    def from_transformers(cls, mixer: nn.Module) -> Self:
        """A block with the weights of transformers' mixer, in its dtype and on its device.

        Args:
            mixer: the `mixer` of a layer of a transformers model of this kind; its activation has to be silu.
        """
        cls._check_mixer(mixer)
        features, state_size, choices = cls._sizes_of(mixer)
        own = cls(features, state_size, **choices).to(mixer.A_log)  # type: ignore[arg-type]
        own._copy_weights(mixer, back=False)
        return own

    def to_transformers(self, mixer: nn.Module) -> None:
        """Writes the weights into transformers' mixer of the same sizes; A must be negative, as Mamba's is.

        Args:
            mixer: the module that is written to.
        """
        self._check_mixer(mixer)
        self._copy_weights(mixer, back=True)

    @torch.no_grad()
    def _copy_weights(self, mixer: Any, *, back: bool) -> None:
        pairs = [(self.conv_weight, mixer.conv1d.weight.squeeze(1))]
        pairs += [(self.conv_bias, mixer.conv1d.bias)] if self.conv_bias is not None else []
        pairs += [(getattr(self, name), getattr(mixer, name)) for name in self.shared_weights]
        for name in self.shared_modules:
            theirs = dict(getattr(mixer, name).named_parameters())
            pairs += [(value, theirs[key]) for key, value in getattr(self, name).named_parameters()]
        for ours, theirs in pairs:
            (theirs if back else ours).copy_(ours if back else theirs)
        if back:
            # A through its eigenvalues: ours may have another parameterization than -exp(A_log)
            mixer.A_log.copy_(torch.log(-self.eigenvalues()))
        else:
            self.set_eigenvalues_(-torch.exp(mixer.A_log))

    @classmethod
    def _check_mixer(cls, mixer: nn.Module) -> None:
        names = ("in_proj", "conv1d", "A_log", *cls.shared_modules, *cls.shared_weights)
        absent = [name for name in dict.fromkeys(names) if not hasattr(mixer, name)]
        if absent:
            raise ArgumentError(
                f"{cls.__name__}: expected transformers' {cls.mixer_class} (model.backbone.layers[i].mixer), got "
                f"{type(mixer).__name__} without {', '.join(absent)}"
            )
        activation = getattr(mixer, "activation", "silu")
        if activation not in ("silu", "swish"):
            raise ArgumentError(
                f"{cls.__name__}: expected the activation 'silu', the only one with a kernel here, got {activation!r}; keep "
                "transformers' mixer for this model"
            )

    def eigenvalues(self) -> Tensor:
        return own_values(self.parameterization, self.w)

    @torch.no_grad()
    def set_eigenvalues_(self, lam: Tensor) -> None:
        """Moves the free weights so that A is `lam`, of the shape of `eigenvalues()`."""
        given = as_eigenvalues(lam, tuple(self.w.shape), real=True, layer=type(self).__name__)
        self.w.copy_(self.parameterization.inverse(given.to(self.w)))

    @property
    def remarks(self) -> tuple[str, ...]:
        return ("the step size depends on the input; A < 0 keeps every step stable, whatever it is",)

    def _masks_resets(self) -> bool:
        return True

    def _run(
        self, x: Tensor, state: Tensor | None, lengths: Tensor | None, dt: Tensor | float | None, reverse: bool,
        resets: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        if not reverse:
            return self._ahead(x, state, lengths, dt, resets)
        order = backwards(x, lengths)
        turned = dt.gather(1, order) if isinstance(dt, Tensor) else dt
        marks = None if resets is None else resets.gather(1, order)
        y, last = self._ahead(taken(x, order), state, lengths, turned, marks)
        return taken(y, order), last

    def _convolve(self, before: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
        """The short convolution with silu at one step, in operators that exporters know, and the last inputs after it."""
        window = torch.cat((before, u.unsqueeze(-1)), -1)
        u = (window * self.conv_weight).sum(-1)
        return functional.silu(u if self.conv_bias is None else u + self.conv_bias), window[..., 1:]


def whole_expansion(name: str, inner: int, features: int) -> int:
    """How many inner channels there are for each feature, a whole number."""
    if inner % features:
        raise ArgumentError(
            f"{name}: expected inner channels that are a multiple of the {features} features, got {inner}"
        )
    return inner // features
