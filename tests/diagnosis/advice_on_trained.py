# ruff: noqa: T201
"""Advice on trained models, followed: `python tests/diagnosis/advice_on_trained.py` prints the loss before and after each.

`diagnose(model, data=...)` sees half of the sequences; each printed call is then run on a copy, as a user would paste it, and
the loss on the other half is printed before it, directly after it, and after as many steps of Adam as the trial made, beside
a copy that was trained on without it. Worse is a change of weights that raises the loss at once (a layer in the place of
another, which begins again, is judged after training alone), or one that ends above the copy without it. silero-vad,
Resemblyzer and g2p_en, which carry no targets, are given their own answers as targets, and their inputs with noise.
"""

import copy
import sys
from pathlib import Path

import torch

import holdfast
from holdfast.diagnosis._trial import execute

sys.path.insert(0, str(Path(__file__).parents[1] / "stability"))
sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "atlas"))
import speech_models
import text_models
import trained_models
from specimen import MissingError
from trained_models import loss

NOISE = 0.3  # times the spread of the features
PIECE = 100  # steps of the sequences that sound is cut into
SLACK = 1.02  # times the loss: two runs of training that differ by less are alike


def denoised(specimen):
    """The model, features with noise, and what it answers without."""
    _, steps, features = specimen.inputs.shape
    piece = min(PIECE, steps)
    x = specimen.inputs[:, : steps // piece * piece].reshape(-1, piece, features)
    generator = torch.Generator().manual_seed(0)
    noisy = torch.cat([x + NOISE * x.std() * torch.randn(x.shape, generator=generator) for _ in range(4)])
    with torch.no_grad():
        y = specimen.model(x).repeat(4, 1, 1)
    order = torch.randperm(len(noisy), generator=generator)
    return specimen.model, noisy[order], y[order]


def ours(name):
    one = (trained_models.MODELS | trained_models.EARLY)[name]()
    return one.model, one.inputs, one.targets


def trained_on(model, call, stage, trial, x, y):
    """The loss after the trial's steps of Adam at its rate, with the call made when it is to be."""
    torch.manual_seed(0)
    model = copy.deepcopy(model)
    rate = trial.rate
    if call is not None and stage == "change":
        model, rate = execute(call, model)["model"], trial.changed_rate
    optimizer = torch.optim.Adam(model.parameters(), rate)
    if call is not None and stage == "optimizer":
        optimizer = execute(call, model)["optimizer"]
    start = value(model, x, y)
    generator = torch.Generator().manual_seed(1)
    half = len(x) // 2
    for _ in range(trial.steps):
        rows = torch.randint(half, (min(32, half),), generator=generator)
        optimizer.zero_grad()
        loss(model, x[rows], y[rows]).backward()
        if call is not None and stage == "step":
            execute(call, model)
        optimizer.step()
    return start, value(model, x, y)


@torch.no_grad()
def value(model, x, y):
    """On the half that diagnose did not see."""
    return float(loss(copy.deepcopy(model).eval(), x[len(x) // 2 :], y[len(y) // 2 :]))


def stage_of(call):
    return "optimizer" if call.startswith("optimizer") else "step" if "clip_grad" in call else "change"


def follow(name, model, x, y):
    """Diagnoses, follows each advice, and prints the losses."""
    half = len(x) // 2
    report = holdfast.diagnose(model, data=(x[:half], y[:half]), horizon=1024, name=name)
    print(
        f"{name}: loss {value(model, x, y):.4g}; {'counts as trained' if report.trained else 'counts as untrained'}",
        flush=True,
    )
    worse = 0
    for one in report.advice:
        stage = stage_of(one.call)
        begun, ended = trained_on(model, one.call, stage, one.trial, x, y)
        _, without = trained_on(model, None, stage, one.trial, x, y)
        anew = "RecurrentStack" in one.call
        best = [min(value(model, x, y), without), min(begun, ended)]
        bad = best[1] > SLACK * best[0] or (not anew and begun > SLACK * value(model, x, y))
        worse += bad
        print(
            f"   {' '.join(one.call.split())}\n      at once {begun:.4g}, after {one.trial.steps} steps {ended:.4g}, "
            f"without it {without:.4g}{'  WORSE' if bad else ''}",
            flush=True,
        )
    if not report.advice:
        print(f"   no advice ({len(report.dropped)} tried without effect, {len(report.untried)} not tried)", flush=True)
    return worse


def main(names):
    makers = {"silero-vad": lambda: denoised(speech_models.silero_vad())}
    makers |= {"Resemblyzer": lambda: denoised(speech_models.resemblyzer())}
    makers |= {"g2p_en": lambda: denoised(text_models.g2p())}
    makers |= {name: lambda name=name: ours(name) for name in trained_models.MODELS | trained_models.EARLY}
    worse = 0
    for name, make in makers.items():
        if names and name not in names:
            continue
        try:
            worse += follow(name, *make())
        except (MissingError, FileNotFoundError) as error:
            print(f"{name}: left out, {error}")
    print(f"{worse} worse")


if __name__ == "__main__":
    main(sys.argv[1:])
