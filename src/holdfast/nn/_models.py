"""Whole models of real inputs: a stack of blocks with projections, for regression and classification."""

from __future__ import annotations

from typing import Any, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from holdfast._arguments import checked, positive
from holdfast.errors import ArgumentError, DtypeError, ShapeError
from holdfast.nn._base import zero_after
from holdfast.nn._blocks import GatedBlock, NaiveBlock
from holdfast.nn._call_arguments import Lengths, as_lengths, check_input
from holdfast.nn._initial_weights import Device, placeable
from holdfast.nn._precision import applied
from holdfast.nn._pretrained import Pretrained, arguments_of
from holdfast.nn._stack import AbstractStack, LayerChoice, build_layer, step_through, through


class SequenceModel(AbstractStack, Pretrained):
    """Encode, `depth` blocks around a recurrent layer, decode: (batch, time, features) to (batch, time, out_features).

    States are a tuple with one entry for each block.

    Args:
        features: number of input features.
        width: features inside the blocks.
        out_features: number of outputs; None is `features`.
        depth: number of blocks.
        layer: "diagonal", "lru", "s4d", "selective", "mamba", "mamba2", "mingru", "minlstm", "rglru", "linear", "rnn"
            or "gru", or a function from the
            width to a layer.
        state_size: state size of a layer that is given by name.
        block: "gated": x + dropout(gated MLP(layer(norm(x)))); "naive": tanh(layer(x)), the stack of the ssm paper.
        expansion: of the gated MLP; above 1 it is that many times as wide inside.
        dropout: probability that a number of the added part is set to 0 in training.
        device: of the weights; None is the default one.
        dtype: of the weights, a floating one; None is the default one.
        options: keyword arguments of a layer that is given by name.

    Returns:
        `y, state = layer(x)`: outputs (batch, time, out_features), and the state after the last step.

    Raises:
        ArgumentError: sizes that are not whole numbers above 0, or an unknown choice.

    Example:
        >>> import torch, holdfast
        >>> layer = holdfast.nn.SequenceModel(4, 16, depth=1, layer="lru")
        >>> y, state = layer(torch.randn(2, 10, 4))
        >>> y.shape
        torch.Size([2, 10, 4])
        >>> y_t, state = layer.step(torch.randn(2, 4), state)  # one more time step
    """

    @checked
    @placeable
    def __init__(
        self,
        features: int,
        width: int,
        *,
        out_features: int | None = None,
        depth: int = 4,
        layer: LayerChoice = "s4d",
        state_size: int = 64,
        block: Literal["gated", "naive"] = "gated",
        expansion: int = 1,
        dropout: float = 0.0,
        device: Device | None = None,
        dtype: torch.dtype | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        self.arguments = arguments_of(locals())
        positive(features=features, width=width, depth=depth, out_features=out_features)
        if block == "naive" and (expansion != 1 or dropout):
            raise ArgumentError(
                f"block='naive' has neither expansion nor dropout, got {expansion=}, {dropout=}; leave both out"
            )
        self.features = features
        self.encoder = nn.Linear(features, width)
        self.blocks = nn.ModuleList()
        for _ in range(depth):
            mixer = build_layer(layer, width, state_size, options)
            made = GatedBlock(mixer, expansion=expansion, dropout=dropout) if block == "gated" else NaiveBlock(mixer)
            self.blocks.append(made)
        self.norm = nn.LayerNorm(width) if block == "gated" else nn.Identity()
        self.decoder = nn.Linear(width, out_features or features)

    def forward(
        self,
        x: Float[Tensor, "batch time features"],
        state: tuple[Any, ...] | None = None,
        *,
        lengths: Lengths | None = None,
        dt: Any = None,
        resets: Bool[Tensor, "batch time"] | None = None,
        cu_seqlens: Int[Tensor, " bounds"] | None = None,
        return_state: bool = True,
    ) -> tuple[Float[Tensor, "batch time out"], tuple[Any, ...] | None]:
        """Outputs at every position and the states at the end; past a sequence's length the outputs are 0.

        Args:
            x: inputs (batch, time, features).
            state: states before the first step, one entry for each block; None is zeros.
            lengths: number of steps of each sequence (batch,).
            dt: step size of continuous-time layers: a number, (time,) or (batch, time); None is their own.
            resets: bool (batch, time): the states before a marked step are zero, as if a new sequence began there.
            cu_seqlens: int64 or int32 (sequences + 1,): bounds of several sequences in a batch of one row, instead of
                lengths; states then have one entry for each sequence.
            return_state: whether the states at the end are wanted; otherwise None comes in their place.
        """
        lengths = as_lengths(lengths, x)
        h, states = self.hidden(
            x, state, lengths=lengths, dt=dt, resets=resets, cu_seqlens=cu_seqlens, return_state=return_state
        )
        return zero_after(applied(self.decoder, h), lengths), states

    def hidden(
        self, x: Tensor, state: tuple[Any, ...] | None = None, *, lengths: Lengths | None = None, dt: Any = None,
        resets: Tensor | None = None, cu_seqlens: Tensor | None = None, return_state: bool = True,
    ) -> tuple[Tensor, tuple[Any, ...] | None]:  # fmt: skip
        """The normalized hidden sequence (batch, time, width) before the decoder, and the states at the end.

        Args:
            x: inputs (batch, time, features).
            state: states before the first step, one entry for each block; None is zeros.
            lengths: number of steps of each sequence (batch,).
            dt: step size of continuous-time layers: a number, (time,) or (batch, time); None is their own.
            resets: bool (batch, time): the states before a marked step are zero, as if a new sequence began there.
            cu_seqlens: int64 or int32 (sequences + 1,): bounds of several sequences in a batch of one row, instead of
                lengths; states then have one entry for each sequence.
            return_state: whether the states at the end are wanted; otherwise None comes in their place.
        """
        _check_input(self, x, ("batch", "time", "features"))
        lengths = as_lengths(lengths, x)
        how = {"lengths": lengths, "dt": dt, "resets": resets, "cu_seqlens": cu_seqlens}
        h, states = through(self.blocks, applied(self.encoder, x), state, return_state, **how)
        return self.norm(h), states

    def step(
        self,
        x: Float[Tensor, "batch features"],
        state: tuple[Any, ...] | None = None,
        *,
        dt: Any = None,
        resets: Bool[Tensor, " batch"] | None = None,
    ) -> tuple[Float[Tensor, "batch out"], tuple[Any, ...]]:
        """One step: equal to `forward` on a sequence of length 1.

        Args:
            x: inputs of this step (batch, features).
            state: states before the step, one entry for each block; None is zeros.
            dt: step size of continuous-time layers: a number or (batch,); None is their own.
            resets: bool (batch,): the states of a marked row are zero before the step; None marks none.
        """
        _check_input(self, x, ("batch", "features"))
        h, states = step_through(self.blocks, self.encoder(x), state, dt=dt, resets=resets)
        return self.decoder(self.norm(h)), states

    def _first_input(self) -> Tensor:
        return self.encoder.weight.new_zeros(1, self.features)


class SequenceClassifier(Pretrained):
    """A SequenceModel pooled over time before its decoder: (batch, time, features) to (batch, classes).

    Args:
        features: number of input features.
        classes: number of classes.
        width: features inside the blocks.
        pool: "mean" over the positions of a sequence, or its "last" one.
        device: of the weights; None is the default one.
        dtype: of the weights, a floating one; None is the default one.
        options: the other keyword arguments of SequenceModel.

    Returns:
        called with x (batch, time, features), scores (batch, classes).

    Raises:
        ArgumentError: sizes that are not whole numbers above 0, or an unknown choice.

    Example:
        >>> import torch, holdfast
        >>> model = holdfast.nn.SequenceClassifier(4, 10, 16, depth=1, layer="lru")
        >>> scores = model(torch.randn(2, 20, 4), lengths=[20, 7])
        >>> scores.shape
        torch.Size([2, 10])
    """

    @checked
    @placeable
    def __init__(
        self,
        features: int,
        classes: int,
        width: int,
        *,
        pool: Literal["mean", "last"] = "mean",
        device: Device | None = None,
        dtype: torch.dtype | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        self.arguments = arguments_of(locals())
        positive(classes=classes)
        self.pool = pool
        self.model = SequenceModel(features, width, out_features=classes, **options)

    def forward(
        self,
        x: Float[Tensor, "batch time features"],
        *,
        lengths: Lengths | None = None,
        dt: Any = None,
        resets: Bool[Tensor, "batch time"] | None = None,
        cu_seqlens: Int[Tensor, " bounds"] | None = None,
    ) -> Float[Tensor, "sequences classes"]:
        """Class scores (batch, classes) of each sequence; of packed ones (sequences, classes).

        Args:
            x: inputs (batch, time, features), at least one step.
            lengths: number of steps of each sequence (batch,); steps past it are not pooled.
            dt: step size of continuous-time layers: a number, (time,) or (batch, time); None is their own.
            resets: bool (batch, time): the states before a marked step are zero; all steps of the row are pooled.
            cu_seqlens: int64 or int32 (sequences + 1,): bounds of several sequences in a batch of one row, each of at
                least one step, instead of lengths; each is pooled by itself.
        """
        _check_input(self.model, x, ("batch", "time", "features"))
        # there is no mean and no last of nothing
        if x.shape[1] == 0:
            raise ShapeError(f"a classifier needs at least one time step, got x of shape {tuple(x.shape)}")
        lengths = as_lengths(lengths, x)
        how = {"lengths": lengths, "dt": dt, "resets": resets, "cu_seqlens": cu_seqlens}
        h, _ = self.model.hidden(x, **how, return_state=False)
        pooled = _pool(h, lengths, self.pool) if cu_seqlens is None else _pool_packed(h, cu_seqlens, self.pool)
        return self.model.decoder(pooled)


def _check_input(model: SequenceModel, x: Tensor, dims: tuple[str, ...]) -> None:
    weight = model.encoder.weight
    check_input("SequenceModel", x, dims, model.features, weight)
    # the encoder is a plain Linear: it does not widen half precision as a layer does
    if x.dtype != weight.dtype and not torch.is_autocast_enabled(x.device.type):
        raise DtypeError(
            f"SequenceModel: x is {x.dtype} and the weights are {weight.dtype}; convert one: x.to(...) or model.to(...)"
        )


def _pool(h: Tensor, lengths: Tensor | None, how: str) -> Tensor:
    if lengths is None:
        return h.mean(1) if how == "mean" else h[:, -1]
    if how == "last":
        # an empty row has no last step: its first one stands in, instead of the last of the padding
        index = (lengths - 1).clamp(min=0)
        return h[torch.arange(h.shape[0], device=h.device), index]
    # the mean of no step is 0, not NaN: one empty row must not spoil the gradient of a batch
    return zero_after(h, lengths).sum(1) / lengths.clamp(min=1).unsqueeze(-1)


def _pool_packed(h: Tensor, cu_seqlens: Tensor, how: str) -> Tensor:
    """Pools each sequence of h, (1, time, width)."""
    bounds = cu_seqlens.long()
    counts = bounds.diff()
    if bool((counts == 0).any()):
        raise ArgumentError(
            f"a classifier needs at least one time step per sequence, got cu_seqlens with {int((counts == 0).sum())} empty "
            "sequences; leave them out"
        )
    if how == "last":
        return h[0].index_select(0, bounds[1:] - 1)
    owner = torch.repeat_interleave(torch.arange(len(counts), device=h.device), counts)
    return h.new_zeros(len(counts), h.shape[-1]).index_add(0, owner, h[0]) / counts.unsqueeze(-1)
