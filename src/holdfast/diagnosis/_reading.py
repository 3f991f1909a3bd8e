"""How a model is read: as a module from (batch, time, features) to (batch, time, outputs), whatever it takes itself."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from holdfast.diagnosis._adapters import Around, BatchFirst, BeforePooling, Fresh, Plain, ThroughEmbedding
from holdfast.errors import ArgumentError
from holdfast.memory import ModelError, huggingface
from holdfast.memory._checks import prepare
from holdfast.memory._curve import NotCausalError, NotRepeatableError
from holdfast.memory._options import widest
from holdfast.memory._subject import INPUT_ERRORS, Subject
from holdfast.memory.preserve import undisturbed
from holdfast.nn import RecurrentStack
from holdfast.nn._acceleration import ALREADY, accelerate_quietly, mixers_of
from holdfast.nn._call_arguments import first_known_size
from holdfast.nn._precision import HALF_DTYPES

SWAPS, FEW, FEWEST = 12, 4, 2  # tokens that the one at rest is exchanged for, those of a large and of a huge model
LARGE = 2e7  # weights from which on a model is large: a step of it takes a core several milliseconds
HUGE = 5e8  # from which on it is huge: a step takes 10 to 30 milliseconds, and Adam alone 16 bytes for each weight
SHORT = 12  # steps of the runs that show how a model is to be read


@dataclass(frozen=True)
class Reading:
    """A copy of a model as everything here measures it.

    Args:
        model: (batch, time, features) in, (batch, time, outputs) out.
        input_size: number of features.
        inputs: in words, what a single input is.
        candidates: the inputs to try, (rows, input_size); None: sign vectors at several sizes.
        causal: whether outputs depend on earlier inputs alone.
        notes: how the model is read where that is not as it was given.
        prefix: what the paths of its weights begin with inside the adapters.
        tokens: what each token is as an input, (tokens, input_size); None for a model of real inputs.
        streams: whether it continues from a state that it returns, so that it is brought to rest once.
        half: whether the model has 16-bit weights, of which a float32 copy is measured.
    """

    model: nn.Module
    input_size: int
    inputs: str
    candidates: Tensor | None = None
    causal: bool = True
    notes: tuple[str, ...] = ()
    prefix: str = ""
    tokens: Tensor | None = None
    streams: bool = False
    half: bool = False

    def zeros(self, steps: int) -> Tensor:
        """The input on which the model rests."""
        weight = next((p for p in self.model.parameters() if p.is_floating_point()), torch.zeros(()))
        return torch.zeros(1, steps, self.input_size, dtype=weight.dtype, device=weight.device)

    def encoded(self, inputs: Tensor) -> Tensor:
        """The user's inputs, tokens or numbers, as the model is read.

        Args:
            inputs: tokens (rows, time) or numbers (rows, time, features).
        """
        if self.tokens is None or inputs.is_floating_point():
            return inputs.to(self.zeros(1))
        return self.tokens.to(self.zeros(1))[inputs.to(self.tokens.device)]

    def along(self, inputs: Tensor | None, rows: int, steps: int) -> Tensor | None:
        """The first rows and steps of the user's data as the model is read; None without data.

        Args:
            inputs: as `checked_inputs` gave them.
            rows: most of them.
            steps: most of them.
        """
        if inputs is None:
            return None
        steps = steps if self.longest is None else min(steps, self.longest)
        return self.encoded(inputs[:rows, :steps])

    @property
    def large(self) -> bool:
        """Whether the model has so many weights that fewer and shorter runs have to do."""
        return count_weights(self.model) > LARGE

    @property
    def huge(self) -> bool:
        """Whether it has so many that copies of it are not trained."""
        return count_weights(self.model) > HUGE

    @property
    def longest(self) -> int | None:
        """Most steps that the model takes; None where there is no limit."""
        return getattr(self.model, "longest_input", None)

    def note(self, text: str) -> Reading:
        """The same with one more note."""
        return replace(self, notes=(*self.notes, text))


def read_model(model: Callable[..., Any], input_size: int | None, seed: int, *, in_place: bool = False) -> Reading:
    """Finds what the model takes, and wraps a copy of it until it can be measured; ModelError where that fails.

    Args:
        model: a module, or a function of tensors.
        input_size: number of input features; None: what the model tells, or 1.
        seed: of the tokens that are tried.
        in_place: whether the model is a copy already, which may be wrapped and accelerated itself.
    """
    if not callable(model):
        raise ArgumentError(f"model must be a module or a function of tensors, got {type(model).__name__}")
    own = model if in_place and isinstance(model, nn.Module) else _copy(model)
    half = count_weights(own) > LARGE and any(p.dtype in HALF_DTYPES for p in own.parameters())
    if half:
        # a large product in bfloat16 is slow on most processors and an illegal instruction on some
        own.float()
    reading = _taking(own, input_size, seed)
    reading = _giving(reading)
    if half:
        reading = replace(reading, half=True).note("its weights have 16 bits: a float32 copy of them is measured")
    return _checked(reading, seed)


def features_of(inputs: Any) -> int | None:
    """The number of input features of inputs (batch, time, features); None of tokens, and without inputs.

    Args:
        inputs: of the model's domain.
    """
    known = isinstance(inputs, Tensor) and inputs.is_floating_point() and inputs.ndim == 3
    return int(inputs.shape[-1]) if known else None


def count_weights(model: Any) -> int:
    """Numbers in the parameters of a model; 0 of a function.

    Args:
        model: any model.
    """
    return sum(p.numel() for p in model.parameters()) if isinstance(model, nn.Module) else 0


def _copy(model: Callable[..., Any]) -> nn.Module:
    if not isinstance(model, nn.Module):
        return Plain(model)
    try:
        return copy.deepcopy(model)
    except (RuntimeError, TypeError) as error:
        raise ModelError(
            f"the model must be one that copy.deepcopy can copy, since the diagnosis works on a copy: {error}"
        ) from error


def _taking(model: nn.Module, input_size: int | None, seed: int) -> Reading:
    """By tokens, or by real inputs with time in the second dimension."""
    if getattr(getattr(model, "config", None), "is_encoder_decoder", False):
        raise ModelError(
            "expected a model that reads one sequence, got one with an encoder and a decoder; give one part, such as "
            "model.get_encoder()"
        )
    if (tokens := huggingface.token_table(model)) is not None:
        left = accelerate_quietly(model).left if mixers_of(model) else ()
        reading = _by_tokens(huggingface.FromEmbeddings(model), tokens, seed, "model.")
        reason = next((text for _, text in left if text != ALREADY), None)
        return reading if reason is None else reading.note(f"not on our kernels, and slower so: {reason}")
    if isinstance(model, (nn.RNNBase, RecurrentStack)) and not model.batch_first:
        turned = BatchFirst(model)
        words = f"{model.input_size} real inputs"
        return Reading(turned, model.input_size, words, prefix="inner.").note("read with time in the first dimension")
    size = input_size or first_known_size(model)
    embedding = next(((path, m) for path, m in model.named_modules() if isinstance(m, nn.Embedding)), None)
    if embedding is not None and input_size is None:
        path, table = embedding
        through = ThroughEmbedding(model, path)
        if _runs(through, table.embedding_dim):
            return _by_tokens(through, table, seed, "inner.")
    inputs = "1 real input" if (size or 1) == 1 else f"{size} real inputs"
    return Reading(model, size or 1, inputs)


def runnable(model: nn.Module) -> nn.Module:
    """The model as it is called on the user's data, batch first."""
    return BatchFirst(model) if isinstance(model, nn.RNNBase) and not model.batch_first else model


def on_our_kernels(model: nn.Module) -> nn.Module:
    """The model, accelerated in place where it has mixers that are known.

    Args:
        model: a copy of the user's.
    """
    if mixers_of(model):
        accelerate_quietly(model)
    return model


def _by_tokens(inner: nn.Module, table: nn.Embedding, seed: int, prefix: str) -> Reading:
    weight = table.weight.detach()
    generator = torch.Generator().manual_seed(seed)
    count = count_weights(inner)
    swaps = SWAPS if count <= LARGE else FEW if count <= HUGE else FEWEST
    ids = torch.randperm(len(weight), generator=generator)[: swaps + 1]
    size = float((weight[ids] - weight[ids].mean(0)).square().mean().sqrt()) or 1.0
    reading = Reading(
        Around(inner, weight[ids[0]], size),
        weight.shape[1],
        "tokens",
        candidates=((weight[ids[1:]] - weight[ids[0]]) / size).double().cpu(),
        prefix=f"inner.{prefix}",
        tokens=(weight - weight[ids[0]]) / size,
    )
    said = f"read by tokens: token {int(ids[0])} is repeated at rest, and an input is one of {swaps} other tokens"
    return reading.note(said)


def _giving(reading: Reading) -> Reading:
    """One output per step: of a model that gives one answer per sequence, what comes before it is pooled."""
    shapes = [tuple(_output(reading, steps).shape) for steps in (SHORT, SHORT - 3)]
    if shapes[0] != shapes[1]:
        return reading
    inner, path = BeforePooling.find(reading.model, reading.input_size, SHORT)
    if inner is None:
        raise ModelError(
            f"expected a model, or a module inside it, with one output per step, got one answer of shape {shapes[0][1:]} per "
            "sequence; give the model without its pooling"
        )
    read = replace(reading, model=inner, prefix=f"inner.{reading.prefix}")
    return read.note(
        f"the model gives one answer per sequence, so the outputs before its pooling were measured ({path or 'its input'})"
    )


def _output(reading: Reading, steps: int) -> Tensor:
    subject = Subject(reading.model, reading.input_size)
    with torch.no_grad():
        return subject.raw(subject.zeros(2, steps))[0]


def _checked(reading: Reading, seed: int) -> Reading:
    generator = torch.Generator().manual_seed(seed)
    reading.model.eval()
    double, _ = widest(
        reading.model, reading.input_size
    )  # a chaotic model makes rounding of float32 look like a future
    subject = Subject(reading.model, reading.input_size, double=double)
    try:
        with torch.no_grad():
            prepare(subject, generator)
    except NotRepeatableError:
        if _is_noisy(reading):
            raise
        fresh = replace(reading, model=Fresh(reading.model), prefix=f"inner.{reading.prefix}")
        with torch.no_grad():
            prepare(Subject(fresh.model, fresh.input_size), generator, causal=False)
        return fresh.note("it keeps a state between calls: every run here begins with the state that it had when given")
    except NotCausalError:
        return replace(reading, causal=False).note("it reads both ways: memory is how far inputs reach, ahead and back")
    return replace(reading, streams=subject.row_axes is not None)


def _is_noisy(reading: Reading) -> bool:
    """Whether outputs follow the random state, which `Fresh` would hold still."""
    outputs = []
    for seed in (0, 1):
        with torch.random.fork_rng(), undisturbed(reading.model):
            torch.manual_seed(seed)
            outputs.append(_output(reading, SHORT))
    return not torch.equal(*outputs)


def _runs(model: nn.Module, size: int) -> bool:
    weight = next(model.parameters())
    try:
        with torch.no_grad():
            model(torch.zeros(1, SHORT, size, dtype=weight.dtype, device=weight.device))
    except INPUT_ERRORS:
        return False
    return True
