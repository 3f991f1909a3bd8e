"""Differences over seeds: what decides every claim of order or equality.

Two arms that share a seed share data, order and start, so that their difference is taken seed by seed. A claim of order is
met only if the 95% interval of Student's t of that difference excludes 0, not met if it excludes 0 on the other side, and
undecided otherwise: equal arms decide nothing. An equality names its margin in advance and is met where the interval lies
inside it. Three seeds are the fewest that decide anything.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

CONFIDENCE = 0.95
SEEDS = 3  # fewer decide nothing
Arms = Mapping[str, Sequence[float]]  # one value per seed, in the same order of seeds


@dataclass(frozen=True)
class Difference:
    """A mean difference and its interval; infinite where one arm is, in every seed.

    Args:
        mean: of the pairs.
        low: lower end of the interval.
        high: upper end.
        pairs: number of seeds.
    """

    mean: float
    low: float
    high: float
    pairs: int

    def below(self, bound: float = 0.0) -> bool | None:
        """Whether the difference lies below `bound`: None where the interval holds it, or seeds are too few."""
        if self.pairs < SEEDS:
            return None
        return True if self.high < bound else False if self.low > bound else None

    def within(self, margin: float) -> bool | None:
        """Whether the difference is at most `margin` in size: None where the interval crosses it."""
        if self.pairs < SEEDS:
            return None
        if -margin <= self.low and self.high <= margin:
            return True
        return False if self.low > margin or self.high < -margin else None


def paired(a: Sequence[float], b: Sequence[float], *, factor: bool = False) -> Difference:
    """a - b over seeds with its interval; with `factor`, log a - log b.

    An infinite value is that of a run that diverged. Where both diverged they are equal; where one did, the seed counts as
    the largest finite difference of its sign, which is too small, or decides alone if every seed is so.

    Args:
        a: one value per seed.
        b: those of the other arm, in the same order.
        factor: compare by ratio: values are above 0.
    """
    x, y = np.asarray(a, float), np.asarray(b, float)
    if factor:
        with np.errstate(divide="ignore"):
            x, y = np.log(x), np.log(y)
    with np.errstate(invalid="ignore"):
        gap = np.where(x == y, 0.0, x - y)
    finite = gap[np.isfinite(gap)]
    if len(finite) == 0 and len(gap) and (gap == gap[0]).all():
        return Difference(float(gap[0]), float(gap[0]), float(gap[0]), len(gap))
    for sign in (-1, 1):
        gap[gap == sign * math.inf] = sign * max(float((sign * finite).max(initial=0.0)), 0.0)
    return _interval(gap)


def unpaired(a: Sequence[float] | np.ndarray, b: Sequence[float] | np.ndarray, *, factor: bool = False) -> Difference:
    """Mean of a less that of b where nothing pairs them, with Welch's interval; with `factor`, of their logs.

    Args:
        a: values of one arm.
        b: values of the other.
        factor: compare by ratio: values are above 0.
    """
    from scipy.stats import ttest_ind

    x, y = (np.log(v) if factor else np.asarray(v, float) for v in (a, b))
    fewest = min(len(x), len(y))
    if fewest < 2:
        return Difference(math.nan, -math.inf, math.inf, fewest)
    low, high = ttest_ind(x, y, equal_var=False).confidence_interval(CONFIDENCE)
    return Difference(float(x.mean() - y.mean()), float(low), float(high), fewest)


def _interval(gap: np.ndarray) -> Difference:
    from scipy.stats import t

    mean, count = float(gap.mean()) if len(gap) else math.nan, len(gap)
    if count < 2:
        return Difference(mean, -math.inf, math.inf, count)
    half = float(t.ppf(0.5 + CONFIDENCE / 2, count - 1) * gap.std(ddof=1) / math.sqrt(count))
    return Difference(mean, mean - half, mean + half, count)


def together(answers: Sequence[bool | None]) -> bool | None:
    """All of several: not met if one is not, undecided if one is, else met."""
    return False if False in answers else None if None in answers or not answers else True


def numbers(found: Mapping[str, Difference], *, factor: bool = False) -> dict[str, float]:
    """The effect and its interval by name, as a claim keeps them; factors as ratios."""
    kept: dict[str, float] = {}
    for name, d in found.items():
        low, mean, high = ((math.exp(min(v, 700.0)) if factor else v) for v in (d.low, d.mean, d.high))
        kept |= {name: mean, f"{name}, lower end": low, f"{name}, upper end": high}
    return kept


@dataclass(frozen=True)
class Decision:
    """What a comparison says: whether it holds, the effects with their intervals, and why not where it does not.

    Args:
        holds: True, False, or None where the intervals leave it open.
        numbers: effects and intervals by name.
        why: the comparisons that went the other way or are open, in words; empty where it holds.
    """

    holds: bool | None
    numbers: dict[str, float]
    why: str

    def unless(self, reason: str) -> Decision:
        """The same, open for that `reason` where it is not empty: the setting allows no decision."""
        return Decision(None, self.numbers, f"{reason} {self.why}".strip() + " ") if reason else self


def smaller(arms: Arms, first: str, rivals: Sequence[str], *, by: float = 0.0, factor: bool = False) -> Decision:
    """Whether `first` is smaller than each rival, by more than `by`.

    Args:
        arms: values by arm, one per seed.
        first: the arm that has to be smaller.
        rivals: the arms that it is compared with.
        by: how much smaller, a difference; with `factor` the log of a ratio.
        factor: whether ratios are compared.
    """
    link = " / " if factor else " less "
    found = {f"{first}{link}{rival}": paired(arms[first], arms[rival], factor=factor) for rival in rivals}
    return _decision(found, {pair: d.below(-by) for pair, d in found.items()}, factor)


def larger(arms: Arms, first: str, rivals: Sequence[str], *, by: float = 0.0) -> Decision:
    """Whether `first` is larger than each rival, by more than `by`.

    Args:
        arms: values by arm, one per seed.
        first: the arm that has to be larger.
        rivals: the arms that it is compared with.
        by: how much larger.
    """
    found = {f"{first} less {rival}": paired(arms[first], arms[rival]) for rival in rivals}
    turned = {pair: Difference(-d.mean, -d.high, -d.low, d.pairs) for pair, d in found.items()}
    return _decision(found, {pair: d.below(-by) for pair, d in turned.items()}, False)


def equal(arms: Arms, margin: float, *, factor: bool = False) -> Decision:
    """Whether all arms are equal within a margin: the interval of every pair lies inside it.

    Args:
        arms: values by arm, one per seed.
        margin: a difference; with `factor` the log of a ratio.
        factor: whether ratios are compared.
    """
    link, names = " / " if factor else " less ", [*arms]
    pairs = [(a, b) for k, a in enumerate(names) for b in names[k + 1 :]]
    found = {f"{a}{link}{b}": paired(arms[a], arms[b], factor=factor) for a, b in pairs}
    return _decision(found, {pair: d.within(margin) for pair, d in found.items()}, factor)


def steps(pairs: Sequence[tuple[Sequence[float], Sequence[float]]], *, factor: bool = False) -> Decision:
    """Whether values fall at every step: each pair holds the values before and after one, one per draw.

    One step that rises by its interval is enough against it, and one that the interval leaves open leaves it open. The
    numbers count steps of each kind and name the effect of the weakest, whose interval reaches highest.

    Args:
        pairs: values before and after each step.
        factor: whether ratios are compared.
    """
    found = [paired(after, before, factor=factor) for before, after in pairs]
    answers = [d.below() for d in found]
    falling, rising = answers.count(True), answers.count(False)
    open_ = len(answers) - falling - rising
    counts = {"steps": len(found), "steps that fall": falling, "steps that rise": rising, "steps left open": open_}
    weakest = max(found, key=lambda d: d.high, default=Difference(math.nan, math.nan, math.nan, 0))
    effect = numbers({"weakest step, after / before" if factor else "weakest step, change": weakest}, factor=factor)
    why = f"Judged by their 95% intervals, {rising} of {len(found)} steps rise and {open_} are undecided. "
    holds = together(answers)
    return Decision(holds, {k: float(v) for k, v in counts.items()} | effect, "" if holds else why)


def _decision(found: Mapping[str, Difference], answers: Mapping[str, bool | None], factor: bool) -> Decision:
    against = "; ".join(pair for pair, answer in answers.items() if answer is False).replace(" less ", " minus ")
    undecided = "; ".join(pair for pair, answer in answers.items() if answer is None).replace(" less ", " minus ")
    few = any(d.pairs < SEEDS for d in found.values())
    why = f"Fewer than {SEEDS} seeds decide nothing. " if few else ""
    why += f"The 95% interval contradicts it for {against}. " if against else ""
    why += f"The 95% interval decides nothing for {undecided}. " if undecided and not few else ""
    return Decision(together([*answers.values()]), numbers(found, factor=factor), why)
