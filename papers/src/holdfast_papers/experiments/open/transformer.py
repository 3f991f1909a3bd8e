"""open-transformer: a transformer and recurrent models that learned the same task equally well: whose memory is longer?

Each model is trained on recall (64 steps) or on text (256 steps) until its validation loss reaches a level that is fixed in
advance, and is measured there. M(t) is the mean size of the gradient of the last step's log-likelihood with respect to the
embedding t steps before, on validation sequences: what an input of that age counts where the task is done.

The criterion, for each task: M(T)/M(T/4) of the transformer is above that of every recurrent model by the 95% interval of the
paired ratio over seeds; undecided where the final losses of two models differ by more than 0.05 nats. M(T) and M(T/4) are means
over lags from 7/8 T to T and from 1/8 T to 3/8 T.
"""

from __future__ import annotations

import math
import pydoc_data.topics
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from holdfast.data import load_task
from holdfast.data._base import AbstractTask
from holdfast.figures import Axis, Figure, Line, Panel
from holdfast.nn import S4D, accelerate
from holdfast_papers.experiments._paired import smaller
from holdfast_papers.experiments.base import Arrays, Conclusion, Config, Experiment, Unit, Work, drop, presets, split
from holdfast_papers.pages import Table
from holdfast_papers.results import Claim

TASKS = {"recall": "recall", "text": "text by character"}
TRANSFORMER = "transformer"
RECURRENT = {"lstm": "LSTM", "gru": "GRU", "s4d": "S4D"}
NAMES = {TRANSFORMER: "transformer", **RECURRENT}
EQUAL = 0.05  # nats within which final losses are equal
HEADS = 4
CLIP = 1.0
EVERY = 25  # optimizer steps between two looks at the validation loss


class Attention(nn.Module):
    """Causal attention with positions that are learned."""

    def __init__(self, width: int, longest: int) -> None:
        super().__init__()
        self.places = nn.Parameter(0.02 * torch.randn(longest, width))
        self.attend = nn.MultiheadAttention(width, HEADS, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, time, width) to the same."""
        x = x + self.places[: x.shape[1]]
        future = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        return self.attend(x, x, x, attn_mask=future, need_weights=False)[0]


class First(nn.Module):
    """The outputs of a recurrent layer, without its state."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        """(batch, time, width) to the same."""
        return self.layer(x)[0]


class Reader(nn.Module):
    """Embeddings, blocks of a mixer over time and an MLP, each added to its input, and scores of the next token.

    Args:
        kind: a key of NAMES.
        tokens: size of the vocabulary.
        width: of all layers.
        depth: number of blocks.
        longest: sequence.
    """

    def __init__(self, kind: str, tokens: int, width: int, depth: int, longest: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(tokens, width)
        self.mixers = nn.ModuleList(_mixer(kind, width, longest) for _ in range(depth))
        self.mlps = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
            for _ in range(depth)
        )
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(depth))
        self.head = nn.Linear(width, tokens)

    def forward(self, embedded: Tensor) -> Tensor:
        """Scores (batch, time, tokens) from embeddings (batch, time, width)."""
        h = embedded
        for norm, mixer, mlp in zip(self.norms, self.mixers, self.mlps, strict=True):
            h = h + mixer(norm(h))
            h = h + mlp(h)
        return self.head(h)


def _mixer(kind: str, width: int, longest: int) -> nn.Module:
    if kind == TRANSFORMER:
        return Attention(width, longest)
    if kind == "s4d":
        return First(S4D(width, 16))
    layer = {"lstm": nn.LSTM, "gru": nn.GRU}[kind](width, width, batch_first=True)
    accelerate(layer)
    return First(layer)


def task_of(config: Config) -> AbstractTask:
    """The unit's data."""
    if config["task"] == "recall":
        return load_task("recall", length=config["recall_length"] - 2, vocabulary=config["vocabulary"])
    if config["text"] == "manual":
        return load_task("text", file=pydoc_data.topics.__file__, length=config["text_length"])
    return load_task("text", length=config["text_length"])


def run(config: Config, work: Work) -> Arrays:
    """One model: trained to the level, then measured."""
    task, level = task_of(config), config["levels"][list(TASKS).index(config["task"])]
    torch.manual_seed(config["seed"])
    model = Reader(config["model"], task.inputs.size, config["width"], config["depth"], task.length)
    optimizer = torch.optim.AdamW(model.parameters(), lr=config["lr"], weight_decay=0.0)
    generator = torch.Generator().manual_seed(config["seed"])
    losses: list[float] = [_loss(model, task, "valid", torch.arange(config["valid"])).item()]
    for step in range(1, config["steps"] + 1):
        indices = torch.randint(0, _size(task), (config["batch"],), generator=generator)
        optimizer.zero_grad()
        _loss(model, task, "train", indices).backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        if step % EVERY == 0:
            with torch.no_grad():
                losses.append(_loss(model, task, "valid", torch.arange(config["valid"])).item())
            work.progress(step / config["steps"], f"loss {losses[-1]:.3f}")
            if not losses[-1] > level:
                break
    return {"losses": np.array(losses), "memory": memory(model, task, config["valid"])}


def _size(task: AbstractTask) -> int:
    """Training sequences to draw from; an endless task has as many as anybody needs."""
    return task.size("train") or 1_000_000


def _loss(model: Reader, task: AbstractTask, which: str, indices: Tensor) -> Tensor:
    """Mean cross-entropy of what the split asks for."""
    batch = task.batch(which, indices)  # type: ignore[arg-type]
    scores = model(model.embedding(batch.inputs))
    if batch.mask is not None:
        return functional.cross_entropy(scores[batch.mask], batch.targets[batch.mask])
    return functional.cross_entropy(scores.flatten(0, 1), batch.targets.flatten())


def memory(model: Reader, task: AbstractTask, count: int) -> np.ndarray:
    """M(t) for t = 0, ..., T - 1: mean norm of the gradient of the last step's log-likelihood by the embedding of that age.

    Args:
        model: a trained one.
        task: its data.
        count: number of validation sequences.
    """
    batch = task.batch("valid", torch.arange(count))
    embedded = model.embedding(batch.inputs).detach().requires_grad_(True)
    told = functional.cross_entropy(model(embedded)[:, -1], batch.targets[:, -1], reduction="sum")
    (gradient,) = torch.autograd.grad(told, embedded)
    return np.asarray(gradient.norm(dim=-1).mean(0).flip(0).double())


def left(curve: np.ndarray) -> float:
    """M(T)/M(T/4), each a mean over a quarter or an eighth of the lags around it."""
    steps = len(curve)
    late, early = curve[7 * steps // 8 :].mean(), curve[steps // 8 : 3 * steps // 8].mean()
    return float(max(late, np.finfo(float).tiny) / max(early, np.finfo(float).tiny))


def conclude(config: Config, units: Sequence[Unit]) -> Conclusion:
    """On each task the transformer keeps the larger share of its memory."""
    found = {
        (task, model): [u for u in units if (u.config["task"], u.config["model"]) == (task, model)]
        for task in TASKS
        for model in NAMES
    }
    rows = [
        (TASKS[task], NAMES[model], u.config["seed"], float(u.arrays["losses"][-1]),
         EVERY * (len(u.arrays["losses"]) - 1), left(u.arrays["memory"]))
        for (task, model), own in found.items() for u in own
    ]  # fmt: skip
    heads = ("task", "model", "seed", "validation loss", "steps", "M(T)/M(T/4)")
    notes = [
        f"{config['depth']} blocks of width {config['width']}, AdamW at {config['lr']:g}, batch {config['batch']}; training "
        f"ends at a validation loss of {' and '.join(f'{v:g}' for v in config['levels'])} nats or after {config['steps']:,} "
        "steps.",
        "M(t) is a gradient at the task's own inputs, not the sup over constant inputs of the papers' definition.",
    ]
    if any(u.config["text"] == "manual" for u in units):
        notes.append("Shakespeare is not on this machine: Python's manual stands in for it.")
    claims = [_claim(task, {NAMES[model]: found[task, model] for model in NAMES}) for task in TASKS]
    table = Table("runs", "Every run.", heads, rows)
    return Conclusion(claims, [_figure(found)], [table], notes)


def _claim(task: str, runs: Mapping[str, Sequence[Unit]]) -> Claim:
    shares = {name: [left(u.arrays["memory"]) for u in own] for name, own in runs.items()}
    ends = [float(u.arrays["losses"][-1]) for own in runs.values() for u in own]
    apart = max(ends) - min(ends)
    unequal = f"The final losses differ by {apart:.2g} nats." if not apart <= EQUAL else ""
    # the transformer's is larger where each recurrent one is smaller
    each = [smaller(shares, name, [NAMES[TRANSFORMER]], factor=True).unless(unequal) for name in RECURRENT.values()]
    answers = [one.holds for one in each]
    return Claim.decide(
        task,
        f"After training on {TASKS[task]} to equal loss, M(T)/M(T/4) of the transformer is above that of every recurrent model",
        False if False in answers else None if None in answers else True,
        {key: value for one in each for key, value in one.numbers.items()} | {"spread of final losses, nats": apart},
        otherwise=" ".join(dict.fromkeys(one.why.strip() for one in each if one.why)),
        essential=True,
    )


def _figure(found: Mapping[tuple[str, str], Sequence[Unit]]) -> Figure:
    panels = []
    for task, words in TASKS.items():
        lines = []
        for k, (model, name) in enumerate(NAMES.items()):
            curves = np.array([u.arrays["memory"] / u.arrays["memory"].max() for u in found[task, model]])
            low, middle, high = curves.min(0), np.median(curves, 0), curves.max(0)
            lines.append(Line(name, np.arange(len(middle)), middle, low, high, colour=k, legend=task == "recall"))
        panels.append(Panel(words, Axis("age of the input"), Axis("memory / largest", log=True), lines))
    caption = "What an input counts by its age in models of equal loss: median and range of the seeds."
    return Figure("memory", caption, panels)


def units(config: Config) -> list[Config]:
    """One for each task, model and seed; Python's manual stands in for Shakespeare where that is not to be downloaded."""
    shared = drop(config, "download", "seeds") | {"text": "shakespeare" if config["download"] else "manual"}
    return split(shared, task=list(TASKS), model=list(NAMES), seed=range(config["seeds"]))


def cost(config: Config) -> float:
    """Seconds of a unit that takes half of the steps."""
    length = config["recall_length"] if config["task"] == "recall" else config["text_length"]
    return float(0.5 * config["steps"] * (0.01 + 2.5e-5 * length * config["batch"] * math.sqrt(config["width"] / 64)))


EXPERIMENT = Experiment(
    id="open-transformer",
    where="Open question (Inverse Approximation Theory, App. I.2)",
    title="Transformer and recurrent models of equal loss",
    summary="A transformer, an LSTM, a GRU and S4D are trained on recall and on text until their validation loss is the same; "
    "then what an old input counts in each is compared.",
    presets=presets(
        {
            "download": True, "seeds": 3, "width": 64, "depth": 2, "steps": 4000, "batch": 16, "lr": 2e-3, "valid": 64,
            "recall_length": 64, "vocabulary": 10, "text_length": 256, "levels": [0.5, 2.2],
        },
        quick={
            "download": False, "seeds": 1, "width": 16, "depth": 1, "steps": 25, "batch": 4, "valid": 8, "text_length": 64,
        },
    ),
    units=units,
    run=run,
    conclude=conclude,
    cost=cost,
)  # fmt: skip
