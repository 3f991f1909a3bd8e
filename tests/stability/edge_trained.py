# ruff: noqa: T201
"""EDGE against perturb and see for ten trained models or more: `python tests/stability/edge_trained.py` prints a row for each.

From packages, as examples/atlas reads them (which says what to install, and leaves out what is missing), and models trained
here in seconds on real data (trained_models.py, HOLDFAST_DATA). A row is right where each number is within 10% of the one
found by hand, or within two errors that holdfast tells beside it; where a recurrence does not rest, where no rest was
decided, or where sequences are too short to follow, the words say so, and the exponent on zeros that was reported is compared.
"""

import copy
import math
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch

import holdfast

sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "atlas"))
import music_models
import speech_models
import text_models
import trained_models
from confirm import reads
from specimen import LSTM_PARTS, MissingError, package

DEVIATION = 1e-7  # of the state by hand: 1e-14 of rounding is left below it
DEVIATIONS = 3  # random ones
SHARE_BEFORE = 0.25  # of the steps, in which deviations turn towards the slowest direction
RESTING_STEPS, FOLLOWED_STEPS = 6000, 2000  # on zeros, before and while deviations are followed
MAX_STEPS = 800  # along data
TOLERANCE = 0.1
STARTS = 4  # of the search for a state of rest, as `diagnose` makes


def g2p_decoder():
    """The GRU of g2p_en that says the phonemes of a word, on what it reads while it says those of Shakespeare's words."""
    folder = package("g2p_en", "pip install --no-deps g2p_en")
    arrays = np.load(folder / "checkpoint20.npz", allow_pickle=False)
    encoder, table = text_models.g2p(), torch.from_numpy(arrays["dec_emb"])
    model = text_models.Letters(table.shape[1])
    parts = {f"gru.{part}_l0": f"dec_{part.replace('weight', 'w').replace('bias', 'b')}" for part in LSTM_PARTS}
    model.load_state_dict({ours: torch.from_numpy(arrays[theirs]) for ours, theirs in parts.items()})
    head, bias = torch.from_numpy(arrays["fc_w"]), torch.from_numpy(arrays["fc_b"])
    with torch.no_grad():
        state, said = encoder.model(encoder.inputs)[:, -1:].transpose(0, 1).contiguous(), []
        last = torch.full((len(encoder.inputs),), 2)  # <s>
        for _ in range(40):  # as the package: the likeliest phoneme is read next
            said.append(table[last])
            out, state = model.gru(said[-1][:, None], state)
            last = (out[:, 0] @ head.T + bias).argmax(-1)
    return SimpleNamespace(name="g2p_en decoder", model=model, core=model.gru, inputs=torch.stack(said, 1)[:8])


def ours(name):
    one = trained_models.MODELS[name]()
    # tokens are read as they are; zeros are token 0
    return SimpleNamespace(name=name, model=one.model, core=one.model.rnn, inputs=one.inputs[:8])


PACKAGES = {
    "silero-vad": speech_models.silero_vad,
    "Resemblyzer": speech_models.resemblyzer,
    "BeatNet": music_models.beatnet,
    "madmom onsets": music_models.madmom_onsets,
    "g2p_en": text_models.g2p,
    "g2p_en decoder": g2p_decoder,
    "textgenrnn": text_models.textgenrnn,
}


def parts_of(state):
    return list(state) if isinstance(state, tuple) else [state]


@torch.no_grad()
def growth(core, u, before):
    """Mean growth of the log of a deviation per step, behind `before` steps, and its spread over stretches of time."""
    core = copy.deepcopy(core).double()
    rows = len(u)
    start = core(u[:, :before])[1] if before else core(u[:, :1])[1]
    own = [part.repeat_interleave(DEVIATIONS, 1) for part in parts_of(start)]
    generator = torch.Generator().manual_seed(1)
    apart = [torch.randn(part.shape, generator=generator, dtype=torch.float64) for part in own]
    logs = []
    for now in u[:, max(before, 1) :].split(1, 1):
        scale = DEVIATION / torch.stack([part.pow(2).sum((0, 2)) for part in apart]).sum(0).sqrt()
        near = [a + scale[None, :, None] * b for a, b in zip(own, apart, strict=True)]
        both = [torch.cat(pair, 1) for pair in zip(own, near, strict=True)]
        after = core(now.repeat_interleave(DEVIATIONS, 0).repeat(2, 1, 1), tuple(both) if len(both) > 1 else both[0])[1]
        halves = [part.chunk(2, 1) for part in parts_of(after)]
        own, apart = [a for a, _ in halves], [b - a for a, b in halves]
        size = torch.stack([part.pow(2).sum((0, 2)) for part in apart]).sum(0).sqrt()
        logs.append((size / DEVIATION).log().reshape(rows, DEVIATIONS))
    kept = torch.stack(logs)[int(SHARE_BEFORE * len(logs)) :]
    blocks = torch.stack([part.mean(0).amax(-1) for part in kept.tensor_split(min(8, len(kept)))]).flatten()
    return float(kept.mean((0, 1)).max()), float(blocks.std() / math.sqrt(len(blocks)))


def by_hand(specimen):
    """Exponents of the whole recurrence on zeros of the model, and along its data."""
    x = specimen.inputs[:4, :MAX_STEPS]
    rest = reads(specimen, torch.zeros_like(x[:1, :64]))[:, -1:].expand(1, RESTING_STEPS + FOLLOWED_STEPS, -1)
    return growth(specimen.core, rest.contiguous(), RESTING_STEPS), growth(specimen.core, reads(specimen, x), 0)


def told(specimen):
    """The slowest part at rest (exponent, words where it does not rest), and along data with its error."""
    found = holdfast.certify(specimen.model, inputs=specimen.inputs[:4, :MAX_STEPS], starts=STARTS)
    parts = found.parts or (found,)
    rests = [math.log1p(-part.margin) for part in parts if part.margin < 1]
    words, rest = [], max(rests, default=math.nan)
    for part in parts:
        if part.restless is not None:  # what zeros do is reported beside the equilibrium, or instead of it
            words.append(part.restless.words())
            followed = part.restless.exponent
            rest = rest if followed is None else max(followed.exponent, *(r for r in rests if r < 0), -math.inf)
        elif part.status == "undecided":
            words.append("undecided")
    along = [part.along for part in parts if part.along is not None]
    return rest, max(along, key=lambda one: one.exponent, default=None), words


def row(specimen):
    rest, along, words = told(specimen)
    (zero, zero_error), (data, data_error) = by_hand(specimen)
    right = near(rest, zero, zero_error)
    said = bool(words)
    cells = [f"{rest:9.5f} {zero:9.5f} +- {zero_error:.5f}"]
    if along is None:
        cells.append(f"{'too short':>9s} {data:9.5f} +- {data_error:.5f}")
        good = True
    else:
        cells.append(f"{along.exponent:9.5f} +- {along.error:.5f} {data:9.5f} +- {data_error:.5f}")
        good = near(along.exponent, data, 2 * (along.error + data_error))
    verdict = "within" if right and good else "said" if (right or said) and good else "OFF"
    print(f"{specimen.name:26s} {'  '.join(cells)}  {verdict}{': ' if words else ''}{'; '.join(words)}", flush=True)
    return verdict != "OFF"


def near(a, b, error):
    return abs(a - b) <= max(TOLERANCE * abs(b), error)


def main(names):
    print(f"{'exponents per step':26s} on zeros: reported, by hand; on data: reported, by hand")
    good = []
    for name, make in (PACKAGES | {name: partial(ours, name) for name in trained_models.MODELS}).items():
        if names and name not in names:
            continue
        try:
            good.append(row(make()))
        except (MissingError, FileNotFoundError) as error:
            print(f"left out: {error}")
    print(f"{sum(good)} of {len(good)} within 10%, within two errors, or said")


if __name__ == "__main__":
    main(sys.argv[1:])
