"""A language model: tokens in, scores of the next token out."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from holdfast._arguments import checked, positive
from holdfast.errors import ArgumentError, DtypeError
from holdfast.kernels._common import checks
from holdfast.nn._base import zero_after
from holdfast.nn._blocks import HyenaBlock
from holdfast.nn._call_arguments import Lengths, as_lengths
from holdfast.nn._initial_weights import Device, placeable
from holdfast.nn._precision import project
from holdfast.nn._pretrained import Pretrained, arguments_of
from holdfast.nn._stack import AbstractStack, LayerChoice, build_layer, step_through, through


class LanguageModel(AbstractStack, Pretrained):
    """Hyena-type blocks with a real diagonal state-space model as the mixer (StableSSM, Sec. 4.2 and App. C).

    Tokens (batch, time) to scores (batch, time, vocabulary); the output shares the embedding's weight.

    Args:
        vocabulary: number of tokens.
        width: features inside the blocks.
        depth: number of blocks.
        state_size: state size of a layer that is given by name.
        layer: a name or a function, as in SequenceModel. "s4d" has real modes and the "best" parameterization here.
        expansion: how many times wider the MLPs are inside.
        dropout: probability that a number of an added part is set to 0 in training.
        device: of the weights; None is the default one.
        dtype: of the weights, a floating one; None is the default one.
        options: keyword arguments of a layer that is given by name.

    Returns:
        called with tokens (batch, time), scores (batch, time, vocabulary) and the states of the blocks.

    Raises:
        ArgumentError: sizes that are not whole numbers above 0, or an unknown choice.

    Example:
        >>> import torch, holdfast
        >>> model = holdfast.nn.LanguageModel(50, 16, depth=1, state_size=8)
        >>> scores, state = model(torch.randint(0, 50, (2, 20)))
        >>> scores.shape
        torch.Size([2, 20, 50])
    """

    @checked
    @placeable
    def __init__(
        self,
        vocabulary: int,
        width: int,
        *,
        depth: int = 12,
        state_size: int = 128,
        layer: LayerChoice = "s4d",
        expansion: int = 4,
        dropout: float = 0.0,
        device: Device | None = None,
        dtype: torch.dtype | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        self.arguments = arguments_of(locals())
        positive(vocabulary=vocabulary, width=width, depth=depth)
        if layer == "s4d":
            # the mixer of StableSSM, Sec. 4.2: real modes, by the parameterization that it calls best
            options = {"initialization": "real", "parameterization": "best", **options}
        self.embedding = nn.Embedding(vocabulary, width)
        # the same table gives the scores: with rows of norm 1 a normed h begins at scores of size 1
        nn.init.normal_(self.embedding.weight, std=width**-0.5)
        self.blocks = nn.ModuleList(
            HyenaBlock(build_layer(layer, width, state_size, options), expansion=expansion, dropout=dropout)
            for _ in range(depth)
        )
        self.norm = nn.LayerNorm(width)

    def forward(
        self,
        tokens: Int[Tensor, "batch time"],
        state: tuple[Any, ...] | None = None,
        *,
        lengths: Lengths | None = None,
        resets: Bool[Tensor, "batch time"] | None = None,
        cu_seqlens: Int[Tensor, " bounds"] | None = None,
        return_state: bool = True,
    ) -> tuple[Float[Tensor, "batch time vocabulary"], tuple[Any, ...] | None]:
        """Scores (batch, time, vocabulary) of the next token at every position, and the states at the end.

        Args:
            tokens: token ids (batch, time), int64 or int32.
            state: states before the first token, one entry for each block; None is zeros.
            lengths: number of tokens of each sequence (batch,); past it the scores are 0.
            resets: bool (batch, time): the states before a marked step are zero, as if a new sequence began there.
            cu_seqlens: int64 or int32 (sequences + 1,): bounds of several sequences in a batch of one row, instead of
                lengths; states then have one entry for each sequence.
            return_state: whether the states at the end are wanted; otherwise None comes in their place.
        """
        embedded = self._embed(tokens, ("batch", "time"))
        lengths = as_lengths(lengths, tokens)
        how = {"lengths": lengths, "dt": None, "resets": resets, "cu_seqlens": cu_seqlens}
        h, states = through(self.blocks, embedded, state, return_state, **how)
        return zero_after(self._scores(h), lengths), states

    def step(
        self,
        tokens: Int[Tensor, " batch"],
        state: tuple[Any, ...] | None = None,
        *,
        resets: Bool[Tensor, " batch"] | None = None,
    ) -> tuple[Float[Tensor, "batch vocabulary"], tuple[Any, ...]]:
        """Scores (batch, vocabulary) of the next token after one more, and the states after it.

        Args:
            tokens: token ids (batch,).
            state: states before this token, one entry for each block; None is zeros.
            resets: bool (batch,): the states of a marked row are zero before this token; None marks none.
        """
        h, states = step_through(self.blocks, self._embed(tokens, ("batch",)), state, dt=None, resets=resets)
        return self._scores(h), states

    def _first_input(self) -> Tensor:
        return torch.zeros(1, dtype=torch.int64, device=self.embedding.weight.device)

    def _embed(self, tokens: Tensor, dims: tuple[str, ...]) -> Tensor:
        kinds = (torch.int64, torch.int32)
        if not isinstance(tokens, Tensor) or tokens.dtype not in kinds or tokens.ndim != len(dims) or tokens.is_sparse:
            raise DtypeError(
                f"LanguageModel: expected tokens as an int64 tensor ({', '.join(dims)}), got {checks.describe(tokens)}"
            )
        if tokens.device != self.embedding.weight.device:
            raise ArgumentError(
                f"tokens are on {tokens.device} and the weights on {self.embedding.weight.device}; move the tokens or the model"
            )
        try:
            # torch looks at the values anyway; a check of our own would read every token twice
            return self.embedding(tokens)
        except IndexError:
            known = self.embedding.num_embeddings
            raise ArgumentError(
                f"tokens must be 0 to {known - 1}, got {int(tokens.min())} to {int(tokens.max())}"
            ) from None

    def _scores(self, h: Tensor) -> Tensor:
        return project(self.norm(h), self.embedding.weight)
