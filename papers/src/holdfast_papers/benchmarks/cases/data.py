"""What batches cost: making one, against the training step of a model that takes it."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from holdfast.data import AbstractTask, Batch, load_task
from holdfast.data._images import ImageSet, ImageTask
from holdfast.data._text import TokenTask
from holdfast.nn import LanguageModel, SequenceClassifier, SequenceModel
from holdfast_papers.benchmarks.case import Case, Contender, Inputs, Match, Results, Runner, Shape
from holdfast_papers.benchmarks.steps import generator

GROUP = "data"
GOAL = 20.0
QUICK: tuple[Shape, ...] = ()


def cases() -> list[Case]:
    """Batches of generated sets, of images and of text, each against a model of the size that the set is trained with."""
    return [_case(name, shape, depth, make) for name, (shape, depth, make) in SETS.items()]


def _images() -> AbstractTask:
    """As many bytes as MNIST has."""
    pixels = torch.randint(256, (10_000, 28, 28, 1), dtype=torch.uint8, generator=generator())
    labels = torch.arange(10_000) % 10
    images = ImageSet(pixels, labels, pixels, labels, "images", "noise", (0.5,), (0.3,), {})
    return ImageTask(images, "permuted", "standard", 1000, 0)


def _text() -> AbstractTask:
    """As many characters as Shakespeare's text has."""
    tokens = torch.randint(65, (1 << 20,), dtype=torch.int32, generator=generator())
    return TokenTask("text", {"train": tokens}, 65, 256, "random characters", {})


# shape (B, T, D, N) of the model, its depth, and the set
SETS: dict[str, tuple[Shape, int, Callable[[], AbstractTask]]] = {
    "functional": ((64, 784, 64, 64), 4, lambda: load_task("functional", length=784)),
    "recall": ((64, 22, 64, 32), 2, lambda: load_task("recall")),
    "recall-long": ((1, 131_074, 64, 32), 2, lambda: load_task("recall", length=131_072, vocabulary=30)),
    "multi-recall": (
        (64, 1024, 64, 64),
        4,
        lambda: load_task("multi-recall", length=1024, vocabulary=512, pairs=64),
    ),
    "lotka-volterra": ((16, 2048, 64, 64), 4, lambda: load_task("lotka-volterra")),
    "images": ((64, 784, 64, 64), 4, _images),
    "text": ((64, 256, 64, 64), 4, _text),
}


def _case(name: str, shape: Shape, depth: int, make: Callable[[], AbstractTask]) -> Case:
    def inputs() -> Inputs:
        return {"indices": torch.randint(700, shape[:1], generator=generator())}

    def ours(given: Inputs) -> Runner:
        task = make()
        return Runner(lambda: task.batch("train", given["indices"]), _numbers)

    def alone(given: Inputs) -> Results:
        """Each sample made by itself: a batch may depend on nothing but its indices."""
        task = make()
        each = [_numbers(task.batch("train", index[None])) for index in given["indices"]]
        return {field: torch.cat([batch[field] for batch in each]).double() for field in each[0]}

    def model(given: Inputs) -> Runner:
        task = make()
        return _training(_model(task, shape, depth), task.batch("train", given["indices"]), task)

    def truth(given: Inputs) -> Results:
        task = make()
        with torch.no_grad():
            y = _outputs(_model(task, shape, depth).double(), task.batch("train", given["indices"]), torch.float64)
        return {"y": y}

    against = Contender("training step", "roofline", model, truth=truth)
    row = f"batches of {name} against the training step that takes them"
    return Case(
        f"{GROUP}-{name}", shape, inputs, alone, Contender(f"{name} batch", "ours", ours), (Match(against, row, GOAL),)
    )


def _numbers(batch: Batch) -> Results:
    return {"inputs": batch.inputs.double(), "targets": batch.targets.double()}


def _model(task: AbstractTask, shape: Shape, depth: int) -> nn.Module:
    torch.manual_seed(0)
    _, _, width, state = shape
    if task.kind == "predict":
        return LanguageModel(task.inputs.size, width, depth=depth, state_size=state)
    if task.kind == "classify":
        return SequenceClassifier(task.inputs.size, task.outputs.size, width, depth=depth, state_size=state)
    return SequenceModel(task.inputs.size, width, out_features=task.outputs.size, depth=depth, state_size=state)


def _outputs(model: nn.Module, batch: Batch, dtype: torch.dtype) -> Tensor:
    given = batch.inputs.to(dtype) if batch.inputs.is_floating_point() else batch.inputs
    output = model(given)
    return output if isinstance(output, Tensor) else output[0]


def _training(model: nn.Module, batch: Batch, task: AbstractTask) -> Runner:
    # the step size leaves the weights where they are, so that every round computes the same
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-12, weight_decay=0.0)

    def step() -> Tensor:
        optimizer.zero_grad()
        y = _outputs(model, batch, torch.float32)
        if task.kind == "regress":
            nn.functional.mse_loss(y, batch.targets).backward()
        else:
            nn.functional.cross_entropy(y.flatten(0, -2), batch.targets.flatten()).backward()
        optimizer.step()
        return y

    return Runner(step, lambda y: {"y": y.detach()})
