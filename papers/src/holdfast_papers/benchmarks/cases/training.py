"""Whole training steps: the loop over the bare step, our layer against others in it, and recall over 131,072 steps."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from holdfast.data._base import AbstractTask
from holdfast.data._images import ImageSet, ImageTask
from holdfast.data._recall import RecallTask
from holdfast.nn import LanguageModel, SequenceClassifier
from holdfast.training._config import TrainingConfig
from holdfast.training._descent import Descent
from holdfast.training._fabric import make_fabric
from holdfast.training._loop import Loop
from holdfast.training._objective import Objective
from holdfast_papers.benchmarks.case import Case, Contender, Inputs, Kind, Match, OwnKernel, Results, Runner, Shape
from holdfast_papers.benchmarks.peers.stacks import FFTS4D, S5Layer, exchange
from holdfast_papers.benchmarks.steps import generator

GROUP = "training"
IMAGES: Shape = (64, 784, 64, 64)  # batch, pixels, width, state size: sequential MNIST
RECALL: Shape = (1, 131_072, 64, 32)
QUICK: tuple[Shape, ...] = ()
DEPTH = {IMAGES: 4, RECALL: 2}
CLASSES = 10
CHECKED = 128  # time steps of the check in float64
STILL = 1e-12  # a learning rate that leaves the weights where they are, so that every round computes the same
STEPS = 1 << 30
MAX_RECALL_BYTES = 2 << 30  # bytes that a step of recall may take


def cases() -> list[Case]:
    """The loop on images against the bare step and other layers, and on recall against a step without recurrence."""
    width, state = IMAGES[2:]
    bare = _bare("bare step", "roofline", None)
    s5 = _bare("s5-pytorch", "peer", lambda: S5Layer(width, state), ("s5",))
    fft = _bare("FFT S4D", "torch", lambda: FFTS4D(width, state))
    loop = Contender(
        "training loop", "ours", _image_loop, ("lightning_fabric",), truth=_truth(None), checked_steps=CHECKED
    )
    matches = (
        Match(bare, "sequential MNIST: the whole loop over the bare step", 1.05, "at most"),
        Match(s5, "sequential MNIST: the loop against the bare step with s5-pytorch's layer", 3.5),
        Match(fft, "sequential MNIST: the loop against the bare step with an FFT S4D layer", 2.8),
    )
    images = Case(f"{GROUP}-images", IMAGES, make_images, _truth(None), loop, matches)
    return [images, _recall()]


def make_images() -> Inputs:
    """One batch of random images as sequences of pixels, and their classes."""
    batch = _images().batch("train", torch.arange(IMAGES[0]))
    return {"x": batch.inputs, "labels": batch.targets}


def _images() -> ImageTask:
    """Random bytes instead of digits: a batch is made of them as of MNIST's, and nothing has to be downloaded."""
    count = 4 * IMAGES[0]
    pixels = torch.randint(0, 256, (count, 28, 28, 1), dtype=torch.uint8, generator=generator())
    labels = torch.randint(0, CLASSES, (count,), generator=generator())
    images = ImageSet(
        pixels, labels, pixels[:1], labels[:1], name="noise", title="noise", mean=(0.5,), deviation=(0.3,), sha256={}
    )
    return ImageTask(images, "pixel", "unit", 0, None)


def _classifier(layer: Callable[[], nn.Module] | None) -> SequenceClassifier:
    torch.manual_seed(0)
    model = SequenceClassifier(
        1, CLASSES, IMAGES[2], depth=DEPTH[IMAGES], state_size=IMAGES[3], parameterization="best"
    )
    if layer is not None:
        exchange(model.model, layer)
    return model


def _truth(layer: Callable[[], nn.Module] | None) -> Callable[[Inputs], Results]:
    def truth(inputs: Inputs) -> Results:
        model = _classifier(layer)
        for p in model.parameters():  # Module.double() leaves complex weights as they are
            p.data = p.data.to(torch.complex128 if p.is_complex() else torch.float64)
        with torch.no_grad():
            return {"y": model(inputs["x"].double())}

    return truth


def _bare(name: str, kind: Kind, layer: Callable[[], nn.Module] | None, modules: tuple[str, ...] = ()) -> Contender:
    """Forward, cross-entropy, backward and AdamW on one batch that lies ready."""

    def build(inputs: Inputs) -> Runner:
        model = _classifier(layer)
        optimizer = _optimizer(model)

        def step() -> Tensor:
            optimizer.zero_grad()
            y = model(inputs["x"])
            nn.functional.cross_entropy(y, inputs["labels"]).backward()
            optimizer.step()
            return y

        return Runner(step, lambda y: {"y": y.detach()})

    return Contender(name, kind, build, modules, truth=_truth(layer), checked_steps=CHECKED)


def _optimizer(model: nn.Module) -> torch.optim.AdamW:
    """The loop's own: one pass over all weights, where none is complex."""
    fused = all(p.is_floating_point() for p in model.parameters())
    return torch.optim.AdamW(model.parameters(), lr=STILL, weight_decay=0.0, fused=fused)


def _loop(model: nn.Module, task: AbstractTask, batch: int) -> Loop:
    """A run that never ends and saves nothing; logging and the monitor are as in any other."""
    config = TrainingConfig(
        batch=batch, steps=STEPS, lr=STILL, weight_decay=0.0, schedule="constant", accelerator="cpu",
        evaluate_every=STEPS, checkpoint_every=STEPS,
    )  # fmt: skip
    folder = Path(tempfile.mkdtemp(prefix="holdfast-bench-"))
    loop = Loop(Descent(make_fabric(config, folder), model, Objective(model, task), task, config), folder, None)
    loop.restore()
    weakref.finalize(loop, shutil.rmtree, folder, ignore_errors=True)
    return loop


def _image_loop(inputs: Inputs) -> Runner:
    model = _classifier(None)
    loop = _loop(model, _images(), IMAGES[0])

    def read(_: None) -> Results:
        with torch.no_grad():
            return {"y": model(inputs["x"])}

    return Runner(loop.advance, read)


def _recall() -> Case:
    ours = Contender("training loop", "ours", _recall_loop, ("lightning_fabric",))
    plain = Contender("bare step", "roofline", _recall_bare)
    row = "recall over 131,072 steps: the whole loop over the bare step"
    shape = RECALL
    return Case(
        f"{GROUP}-recall", shape, lambda: make_recall(shape), _recall_truth, ours, (Match(plain, row, 1.05, "at most"),)
    )


def make_recall(shape: Shape) -> Inputs:
    """One sequence of pairs with its question."""
    batch = _recall_task(shape).batch("train", torch.arange(shape[0]))
    return {"tokens": batch.inputs, "targets": batch.targets}


def _recall_task(shape: Shape) -> RecallTask:
    return RecallTask(shape[1] - 2, 30)


def _language(shape: Shape) -> LanguageModel:
    torch.manual_seed(0)
    return LanguageModel(30, shape[2], depth=2, state_size=shape[3])


def _recall_truth(inputs: Inputs) -> Results:
    with torch.no_grad():
        y, _ = _language(RECALL).double()(inputs["tokens"], return_state=False)
    return {"y": y}


def _recall_loop(inputs: Inputs) -> Runner:
    model = _language(RECALL)
    loop = _loop(model, _recall_task(RECALL), RECALL[0])

    def read(_: None) -> Results:
        with torch.no_grad():
            return {"y": model(inputs["tokens"], return_state=False)[0]}

    return Runner(loop.advance, read)


def _recall_bare(inputs: Inputs) -> Runner:
    tokens, targets = inputs["tokens"], inputs["targets"]
    batch, time = tokens.shape
    model = _language((batch, time, *RECALL[2:]))
    optimizer = _optimizer(model)

    def step() -> Tensor:
        optimizer.zero_grad()
        y, _ = model(tokens, return_state=False)
        nn.functional.cross_entropy(y.flatten(0, 1), targets.flatten()).backward()
        optimizer.step()
        return y

    return Runner(step, lambda y: {"y": y.detach()})


# growth of time belongs to kernels; of a training step only the memory is measured
KERNEL = OwnKernel(
    name="recall", dims="BTDN", make_inputs=make_recall, ours=_recall_bare, base=RECALL, sweeps={}, bounds={},
    memory_shape=RECALL, stated_bytes=lambda shape: MAX_RECALL_BYTES,
    formula="the bound for a training step of 2 layers on associative recall: 2 GiB",
)  # fmt: skip
