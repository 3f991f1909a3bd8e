"""How long do real networks remember? Trained recurrent models, measured at rest and on data of their domain.

    pip install --no-deps silero-vad g2p_en Resemblyzer BeatNet
    pip install onnx onnxruntime h5py keras        # to read silero-vad and textgenrnn, and to check them
    apt-get install espeak-ng                      # says the sentences
    export HOLDFAST_DATA=...                       # a folder with shakespeare/input.txt
    export ATLAS_PACKAGES=...                      # a folder with madmom and textgenrnn, unpacked from their archives
    export ATLAS_TENSORFLOW=...                    # optional: the python of an environment with tensorflow-cpu 2.15.1
    python examples/atlas/atlas.py --save atlas.png

A model whose package is missing is skipped, and the output says how to install it. Each number of the table is compared with an
experiment made by hand (confirm.py).
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import confirm
import music_models
import numpy as np
import speech_models
import text_models
import torch
from specimen import MissingError, Specimen

import holdfast
from holdfast.decay import UndecidedError
from holdfast.memory import InputSearch, memory_on_data

READERS: dict[str, Callable[[], Specimen]] = {
    "silero-vad": speech_models.silero_vad,
    "Resemblyzer": speech_models.resemblyzer,
    "BeatNet": music_models.beatnet,
    "madmom onsets": music_models.madmom_onsets,
    "madmom beats": music_models.madmom_beats,
    "g2p_en": text_models.g2p,
    "textgenrnn": text_models.textgenrnn,
}
HORIZON = 1024  # most steps that a memory at rest is followed for
PLACES = 24  # inputs that are exchanged
FOLLOWED_STEPS = 400  # of one row of the data, along which deviations are followed
MAX_ROWS = 48  # impulses that are simulated by hand
DIRECTIONS = 8  # of input that are tried


@dataclass(frozen=True)
class Row:
    """What holdfast tells of a model, each number beside the one found by hand.

    Args:
        specimen: the model.
        difference: to the package's own inference.
        against: what that was.
        rest: steps until 1% of one input is left at rest, and by hand.
        constant: time constant at rest in steps, and by hand.
        data: median steps until 1% of an exchanged input is left, and by hand.
        band: the same for 10% and 90% of the places.
        followed: steps for which a change on data was followed.
        exponent: along the data, per step, and by hand.
        law: of the memory at rest.
    """

    specimen: Specimen
    difference: float
    against: str
    rest: tuple[float, float]
    constant: tuple[float, float]
    data: tuple[float, float]
    band: tuple[float, float]
    followed: int
    exponent: tuple[float, float]
    law: str


def measure(specimen: Specimen) -> Row:
    """Everything of one model."""
    difference, against = specimen.check()
    rest, by_hand, law = at_rest(specimen)
    on_data = memory_on_data(specimen.model, specimen.inputs, places=PLACES, double=True)
    constant, exponent = edges(specimen)
    core = specimen.core is not None
    return Row(
        specimen,
        difference,
        against,
        (rest, by_hand),
        (constant, confirm.time_constant_at_rest(specimen) if core else math.nan),
        (on_data.steps, confirm.median(confirm.exchanged(specimen))),
        (on_data.quantile(0.1), on_data.quantile(0.9)),
        int(on_data.lags[-1]),
        (exponent, confirm.exponent_along(specimen) if core else math.nan),
        law,
    )


def at_rest(specimen: Specimen) -> tuple[float, float, str]:
    """Steps until 1% of one input is left, as holdfast finds and as a simulation does, and the law."""
    size, horizon = specimen.inputs.shape[2], 256
    while True:
        curve = holdfast.memory_function(
            specimen.model,
            input_size=size,
            horizon=horizon,
            probe="impulse",
            search=InputSearch(budget=DIRECTIONS),
            double=True,
        )
        fit = holdfast.fit_decay(curve)
        try:
            steps = fit.horizon()
        except UndecidedError:
            steps = math.inf
        if steps <= horizon or horizon >= HORIZON:
            break
        horizon *= 4
    assert curve.maximiser is not None
    # the inputs that reach most at some time up to then
    inputs = np.unique(curve.maximiser[: int(min(steps, horizon)) + 2], axis=0)[:MAX_ROWS]
    return steps, confirm.impulses(specimen, inputs, horizon), fit.summary()


def edges(specimen: Specimen) -> tuple[float, float]:
    """Time constant where the model rests, and exponent along its data: of the slowest recurrence inside."""
    try:
        found = holdfast.certify(specimen.model, inputs=specimen.inputs[:1, :FOLLOWED_STEPS])
    except holdfast.HoldfastError as error:
        print(f"   certify: {error}")
        return math.nan, math.nan
    parts = found.parts or (found,)
    for part in parts:
        print(f"   {part.path}: {part.status}, time constant {part.time_constant:.4g}; {'; '.join(part.notes)}")
    along = [part.along.exponent for part in parts if part.along is not None]
    return max(part.time_constant for part in parts), max(along, default=math.nan)


def number(value: float) -> str:
    """Three digits, or a dash where nothing was measured."""
    return (
        "-"
        if math.isnan(value)
        else "none"
        if math.isinf(value)
        else f"{value:,.0f}"
        if abs(value) >= 100
        else f"{value:.3g}"
    )


def pair(values: tuple[float, float]) -> str:
    """What holdfast found, and in brackets what was found by hand."""
    return f"{number(values[0])} ({number(values[1])})"


def table(rows: list[Row]) -> str:
    """All rows as a table of Markdown."""
    heads = (
        "model",
        "recurrence",
        "a step",
        "at rest: steps until 1%",
        "at rest: time constant",
        "on data: steps until 1%",
    )
    heads += ("80% of places", "on data: exponent per step", "check")
    lines = [f"| {' | '.join(heads)} |", "|" + " --- |" * len(heads)]
    for row in rows:
        s = row.specimen
        limit = f"more than {row.followed}"
        data = tuple(limit if math.isinf(v) else number(v) for v in row.data)
        band = " to ".join(limit if math.isinf(v) else number(v) for v in row.band)
        exponent = tuple("-" if math.isnan(v) else f"{v:.4f}" for v in row.exponent)
        cells = (
            f"{s.name}: {s.task}",
            s.kind,
            s.step,
            pair(row.rest),
            pair(row.constant),
            f"{data[0]} ({data[1]})",
            band,
        )
        lines.append(f"| {' | '.join((*cells, f'{exponent[0]} ({exponent[1]})', f'{row.difference:.1e}'))} |")
    return "\n".join(lines)


def figure(rows: list[Row], path: Path) -> None:
    """Steps until 1% is left, at rest and on data, one line per model."""
    from matplotlib.figure import Figure

    canvas = Figure(figsize=(7.2, 0.5 * len(rows) + 1.4), layout="constrained")
    ax = canvas.subplots()
    for k, row in enumerate(rows):
        low, high = (min(v, row.followed) for v in row.band)
        ax.plot([low, high], [k, k], color="#d55e00", alpha=0.3, linewidth=8, solid_capstyle="butt")
        on_data = min(row.data[0], row.followed)
        ax.plot(
            on_data,
            k,
            ">" if math.isinf(row.data[0]) else "o",
            color="#d55e00",
            label="on data (median, 80% of places)" if k == 0 else None,
        )
        if math.isfinite(row.rest[0]):
            ax.plot(row.rest[0], k, "s", color="#0072b2", label="at rest, on zeros" if k == 0 else None)
    ax.set_xscale("log")
    ax.set_yticks(
        range(len(rows)), [f"{r.specimen.name}\n{r.specimen.kind}, {r.specimen.step}" for r in rows], fontsize=8
    )
    ax.invert_yaxis()
    ax.set(xlabel="steps until 1% of one input is left", title="How long do real networks remember?")
    ax.grid(axis="x", color="#e3e6ea")
    ax.legend(fontsize=8)
    canvas.savefig(path, dpi=130)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="*", default=list(READERS), choices=list(READERS), help="which of them")
    parser.add_argument("--save", type=Path, help="file of the figure")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    rows = []
    for name in arguments.models:
        try:
            row = measure(READERS[name]())
        except (MissingError, FileNotFoundError) as error:
            print(f"{name}: left out, {error}", flush=True)
            continue
        rows.append(row)
        print(f"{name}: largest difference {row.difference:.1e} to {row.against}; law at rest: {row.law}", flush=True)
    print("\nIn brackets: the same found by hand.\n")
    print(table(rows))
    if arguments.save is not None and rows:
        figure(rows, arguments.save)


if __name__ == "__main__":
    main()
