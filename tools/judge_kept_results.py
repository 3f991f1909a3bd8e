"""Judges kept results of earlier settings again, by intervals over seeds: python tools/judge_kept_results.py [FOLDER].

Results in docs/results whose new settings have not been run hold claims that were decided by counts of seeds, or by 2 standard
errors. Their tables hold one row for each run, or means with standard errors: enough for the rule of
`holdfast_papers.experiments._paired`. Claims keep their names; statuses, numbers and explanations are new, and a note says so.
A second run changes nothing. A result of the standard preset as it is now is left alone.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import t

from holdfast_papers.experiments._paired import Decision, Difference, numbers, smaller, together
from holdfast_papers.experiments.registry import get
from holdfast_papers.experiments.stable._language_runs import BESTS, MOVED, STABLE
from holdfast_papers.results import Claim, Result

NOTE = "Runs of an earlier, smaller setting; claims were judged again by the 95% intervals over their seeds."
COUNTED = re.compile(
    r"[:,]? ?(in )?at least 2 of 3 seeds|, by two standard errors of the paired difference|, in every seed"
)
AT_3_SEEDS = float(t.ppf(0.975, 2))
RATES = {"stable-fig4": 0.005, "stable-fig5": 0.005, "stable-fig6": 0.01}
Rows = Mapping[str, Sequence[Mapping[str, Any]]]
Judge = Callable[[Result, Claim], "Decision | None"]


def rows_of(result: Result, name: str) -> list[dict[str, Any]]:
    """The rows of one table, by column; empty where there is none of that name."""
    found = [table for table in (result.page.tables if result.page else ()) if table.name == name]
    return [dict(zip(found[0].columns, row, strict=True)) for row in found[0].rows] if found else []


def _runs(result: Result, text: str) -> Rows:
    """Language-model runs at the rate that the claims are about, by parameterization, in the order of the seeds."""
    by_name: dict[str, list[dict[str, Any]]] = {}
    for row in sorted(rows_of(result, "runs"), key=lambda row: row["seed"]):
        if row["data"] == text and row["learning rate"] == RATES[result.experiment]:
            by_name.setdefault(row["parameterization"], []).append(row)
    return by_name


def _column(runs: Rows, name: str) -> dict[str, list[float]]:
    return {key: [float(row[name]) for row in found] for key, found in runs.items()}


def _frozen(runs: Rows) -> str:
    still = {key: float(np.median(values)) for key, values in _column(runs, "modes moved").items()}
    listed = ", ".join(f"{key} {share:.0%}" for key, share in still.items() if share < MOVED)
    return f"Fewer than {MOVED:.0%} of the modes moved by a tenth: {listed}." if listed else ""


def language(result: Result, claim: Claim) -> Decision | None:
    """Claims of stable-fig4, stable-fig5 and stable-fig6, from their table of runs."""
    text = "wikitext-2" if claim.name.endswith("wikitext-2") else "shakespeare"
    runs = _runs(result, text)
    best = next((name for name in BESTS if name in claim.name), "")
    others = [name for name in runs if name not in BESTS]
    if claim.name.startswith("start"):
        return smaller(_column(runs, "largest gradient over weight, start"), best, others, factor=True)
    if claim.name.startswith("stable ones narrower"):
        arms = _column(runs, "largest gradient over weight, start")
        each = [smaller(arms, name, ["direct", "relu"], factor=True) for name in STABLE]
        found = {key: value for one in each for key, value in one.numbers.items()}
        return Decision(together([one.holds for one in each]), found, "".join(one.why for one in each))
    if claim.name.startswith("steadier"):
        return smaller(_column(runs, "upward moves of the loss"), best, ["relu", "exp"]).unless(_frozen(runs))
    if claim.name.startswith("training"):
        rivals = ["exp"] if "against exp" in claim.name else others
        return smaller(_column(runs, "in training"), best, rivals, factor=True).unless(_frozen(runs))
    column = "upward moves of the loss" if claim.name.startswith("steadiest") else "train loss"
    return smaller(_column(runs, column), best, others).unless(_frozen(runs))


def losses(result: Result, claim: Claim) -> Decision | None:
    """Claims of stable-table2, from the paired differences and standard errors that they name."""
    found = {
        f"direct less {name}": _gap(claim.numbers[f"direct less {name}"], claim.numbers[f"standard error, {name}"])
        for name in STABLE
        if f"direct less {name}" in claim.numbers
    }
    holds = together([None if d.below() is None else not d.below() for d in found.values()])
    modes = rows_of(result, "modes-0")
    still = [
        f"{r['parameterization']} {r['share of modes that moved']:.0%}"
        for r in modes
        if r["share of modes that moved"] < MOVED
    ]
    moved = f"Fewer than {MOVED:.0%} of the modes moved by a tenth: {', '.join(still)}." if still else ""
    return Decision(holds, numbers(found), "" if holds else "At least one 95% interval contains 0. ").unless(moved)


def _gap(mean: float, error: float) -> Difference:
    return Difference(mean, mean - AT_3_SEEDS * error, mean + AT_3_SEEDS * error, 3)


def largest_rates(result: Result, claim: Claim) -> Decision | None:
    """Claims of stable-table3: equal rates decide nothing."""
    rates = {k.split("trains, ")[1]: v for k, v in claim.numbers.items() if "trains, " in k}
    mine = next((value for name, value in rates.items() if name in claim.name), None)
    ties = [name for name, value in rates.items() if value == mine and name not in claim.name]
    if mine is None or not ties:
        return None
    return Decision(None, dict(claim.numbers), f"Ties at the largest rate that was tried: {', '.join(ties)}. ")


def recall(result: Result, claim: Claim) -> Decision | None:
    """Claims of stable-table4, from means and standard errors that nothing pairs."""
    rows = rows_of(result, "length-2048" if "2048" in claim.name else "length-20")
    if "best rate" in claim.name and "2048" in claim.name:
        return None
    chosen: dict[str, tuple[float, float]] = {}
    for row in rows:
        wanted = float(claim.numbers.get(f"test accuracy, {row['parameterization']}", math.nan))
        if math.isclose(row["test accuracy"], wanted, rel_tol=1e-9):
            chosen[row["parameterization"]] = row["test accuracy"], row["standard error"]
    if not {"best", "exp", "clip", "direct"} <= set(chosen):
        return None
    return _above(chosen, ("best", "exp"), ("clip", "direct"), 0.05)


def _above(means: Mapping[str, tuple[float, float]], ours: Iterable[str], others: Sequence[str], by: float) -> Decision:
    gaps = {
        f"{a} less {b}": _gap(means[a][0] - means[b][0], math.hypot(means[a][1], means[b][1]))
        for a in ours
        for b in others
    }
    answers = [True if d.low > by else False if d.high < by else None for d in gaps.values()]
    holds = together(answers)
    return Decision(holds, numbers(gaps), "" if holds else f"At least one 95% interval contains {by:g}. ")


def accuracies(result: Result, claim: Claim) -> Decision | None:
    """Claims "order" of stable-table5 and stable-table6, as what they can say: equal within 1 or 3 points."""
    if not claim.name.startswith("order"):
        return None
    pairs = [key for key in claim.numbers if " less " in key and not key.endswith(("error", "end"))]
    margin = 0.01 if result.experiment == "stable-table5" else 0.03
    gaps = {pair: _gap(claim.numbers[pair], claim.numbers[f"{pair}, standard error"]) for pair in pairs}
    holds = together([d.within(margin) for d in gaps.values()])
    return Decision(holds, numbers(gaps), "" if holds else f"At least one 95% interval reaches outside {margin:g}. ")


def words(result: Result, claim: Claim) -> Decision | None:
    """Claims of iat-fig5 and iat-fig6, from the shares M(20)/M(2) of every model and seed."""
    model = claim.name.removeprefix("ha, ")
    shares = {
        (row["model"], word): [
            float(r[f"M(20)/M(2), {word}"]) for r in rows_of(result, "ratios") if r["model"] == row["model"]
        ]
        for row in rows_of(result, "ratios")
        for word in ("good", "bad", "ha")
    }
    plain = [(model, "good"), (model, "bad")]
    if claim.name.startswith("ha, "):
        # ha larger than both: both smaller than ha
        arms = {word: shares[model, word] for word in ("good", "bad", "ha")}
        return _every([smaller(arms, word, ["ha"], factor=True) for word in ("good", "bad")])
    if result.experiment == "iat-fig5":
        arms = {"0.1": [0.1] * 3} | {f"M(20)/M(2), {word}": shares[key] for key in plain for word in [key[1]]}
        return _every([smaller(arms, f"M(20)/M(2), {word}", ["0.1"], factor=True) for word in ("good", "bad")])
    each = []
    for _, word in plain:
        arms = {f"{model}, {word}": shares[model, word], f"encoder, {word}": shares["transformer encoder", word]}
        each.append(smaller(arms, f"{model}, {word}", [f"encoder, {word}"], factor=True))
    return _every(each)


def _every(found: Sequence[Decision]) -> Decision:
    told = {key: value for one in found for key, value in one.numbers.items()}
    return Decision(together([one.holds for one in found]), told, "".join(one.why for one in found))


JUDGES: dict[str, Judge] = {
    "iat-fig5": words, "iat-fig6": words,
    "stable-fig4": language, "stable-fig5": language, "stable-fig6": language, "stable-table2": losses,
    "stable-table3": largest_rates, "stable-table4": recall, "stable-table5": accuracies, "stable-table6": accuracies,
}  # fmt: skip


def judged(result: Result) -> Result:
    """The result with its claims judged again."""
    claims = []
    for claim in result.claims:
        found = JUDGES[result.experiment](result, claim)
        claims.append(claim if found is None else _again(result, claim, found))
    page = result.page
    assert page is not None
    notes = page.notes if NOTE in page.notes else [NOTE, *page.notes]
    return replace(result, claims=claims, page=replace(page, notes=notes))


def _again(result: Result, claim: Claim, found: Decision) -> Claim:
    statement = COUNTED.sub("", claim.statement)
    if claim.name.startswith("order"):
        statement = (
            "Best, exp and softplus have the same test accuracy" + claim.statement[claim.statement.rindex(",") :]
        )
    new = Claim.decide(
        claim.name, statement, found.holds, {**claim.numbers, **found.numbers}, paper=claim.paper,
        otherwise=found.why.strip() or claim.explanation, essential=claim.essential,
    )  # fmt: skip
    sys.stdout.write(f"{result.experiment}: {claim.name}: {claim.status} -> {new.status}\n")
    return new


def main(folder: str = "docs/results") -> None:
    """Judges every result that is of an earlier setting than that of its experiment's standard preset."""
    for id in JUDGES:
        place = Path(folder) / id / "conclusion-standard"
        result = Result.load(place)
        if dict(result.config) != get(id).config("standard"):
            judged(result).save(place)


if __name__ == "__main__":
    main(*sys.argv[1:])
