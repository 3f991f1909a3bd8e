"""What an experiment is: independent units of work, and what is concluded from them.

    config   = experiment.presets["quick"]            flat mapping of plain values
    configs  = experiment.units(config)               one config per unit; each is run on its own, anywhere, in any order
    arrays   = experiment.run(config_of_unit, work)   pure: equal configs give equal arrays, on one thread
    answer   = experiment.conclude(config, units)     claims, figures, tables, notes from the units' arrays

An experiment neither plots nor parses arguments nor touches files: figures are specs (holdfast.figures), saving and
scheduling belong to holdfast_papers.execution, drawing to holdfast_papers.report.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from holdfast.errors import ArgumentError, unknown_name
from holdfast.figures import Figure
from holdfast_papers.pages import Note, Table
from holdfast_papers.papers import PRESETS, SECTIONS, Preset
from holdfast_papers.results import Claim, config_hash

Config = Mapping[str, Any]
Arrays = Mapping[str, np.ndarray]


@dataclass
class Work:
    """What a running unit may tell the outside: how far it is, what it logs, and where it may keep checkpoints.

    `Work()` does nothing with progress, so that `run(config, Work())` works anywhere.

    Args:
        report: called with the share that is done, 0 to 1, and a word about it.
        scratch: a folder that survives a killed run of the same unit and is deleted when the unit is finished; None
            where nothing is kept.
        entries: the lines of the log so far.
    """

    report: Callable[[float, str], None] = lambda done, text: None
    scratch: Path | None = None
    entries: list[dict[str, Any]] = field(default_factory=list)

    def progress(self, done: float, text: str = "") -> None:
        """Says which share of the unit, from 0 to 1, is done.

        Args:
            done: the share.
            text: a word about it.
        """
        self.report(min(max(float(done), 0.0), 1.0), text)

    def steps(self, items: Iterable[Any], text: str = "") -> Iterable[Any]:
        """The items one after the other, with progress before each.

        Args:
            items: what the unit goes through.
            text: a word about them.
        """
        listed = list(items)
        for k, item in enumerate(listed):
            self.progress(k / len(listed), text)
            yield item

    def log(self, **entry: Any) -> None:
        """Adds a line to the unit's saved log; plain values only."""
        self.entries.append(entry)


@dataclass(frozen=True)
class Unit:
    """A finished unit, as `conclude` gets it.

    Args:
        config: its settings.
        arrays: what it computed, by name.
        log: the lines that it logged.
        seconds: how long it took.
    """

    config: Config
    arrays: Arrays
    log: Sequence[Mapping[str, Any]] = ()
    seconds: float = 0.0


@dataclass(frozen=True)
class Conclusion:
    """What an experiment says: claims with their numbers, figures and tables as data, notes in words.

    Args:
        claims: statements of the paper with their status.
        figures: figures as data (holdfast.figures).
        tables: tables as data.
        notes: what a reader must know: a fallback that was used, a difference from the paper; a `Note` is on the data.
        arrays: numbers worth keeping that no figure shows.
    """

    claims: Sequence[Claim]
    figures: Sequence[Figure] = ()
    tables: Sequence[Table] = ()
    notes: Sequence[str | Note] = ()
    arrays: Arrays = field(default_factory=dict)


def one_unit(config: Config) -> list[Config]:
    """The whole experiment as one unit."""
    return [config]


def one_second(config: Config) -> float:
    """The cost of a unit that nothing is known about."""
    return 1.0


@dataclass(frozen=True)
class Experiment:
    """A figure or table of a paper; see the module's text for the life of one.

    Args:
        id: paper and name, like "iat-fig1"; "own-..." for an experiment of no paper.
        where: the place in the paper, like "Figure 1".
        title: a line.
        summary: a sentence or two on what is computed.
        presets: the config of "paper", "standard" and "quick"; made with `presets`.
        run: computes one unit, `run(config, work) -> arrays`.
        conclude: draws the conclusion, `conclude(config, units) -> Conclusion`.
        units: splits a preset's config into those of its units; by default there is one.
        cost: estimates a unit's seconds on one core. It decides the order (long ones first, so that no core idles at
            the end) and the time left.
        version: part of every unit's identity: raise it when the code changes what is computed, and saved units run
            again.
        family: the name under which its units run and are kept; empty is its id. Experiments of one family, equal in
            `run` and `version`, share units with equal configs: those are computed once and each draws its conclusion.
        source: checksum of the user's own file that it was loaded from and of the files beside it that it imports, set
            by the registry, and part of every unit's identity too: edited code runs again, and two files with one id
            share nothing.
    """

    id: str
    where: str
    title: str
    summary: str
    presets: Mapping[Preset, Config]
    run: Callable[[Config, Work], Arrays]
    conclude: Callable[[Config, Sequence[Unit]], Conclusion]
    units: Callable[[Config], Sequence[Config]] = one_unit
    cost: Callable[[Config], float] = one_second
    version: int = 1
    family: str = ""
    source: str = ""

    def __post_init__(self) -> None:
        for what, name in (("id", self.id), ("family", self.owner)):
            if not re.fullmatch(rf"({'|'.join(SECTIONS)}|own)-[a-z0-9]+", name):
                raise ArgumentError(
                    f"an experiment's {what} must be a paper and a name, like 'iat-fig1' (papers: "
                    f"{', '.join(SECTIONS)}; 'own' for an experiment of your own), got {name!r}"
                )
        missing = [p for p in PRESETS if p not in self.presets]
        if missing:
            raise ArgumentError(f"{self.id}: the preset {missing[0]!r} is missing; build the presets with presets(...)")

    @property
    def paper(self) -> str:
        """The key of its section: iat, ssm, stable, linrec, or one beyond the papers."""
        return self.id.split("-")[0]

    @property
    def owner(self) -> str:
        """The name that its units are kept under: that of its family, or its own."""
        return self.family or self.id

    def config(self, preset: str, changes: Config | None = None) -> dict[str, Any]:
        """The config of a preset, with some of its values changed.

        Args:
            preset: "paper", "standard" or "quick".
            changes: settings to replace, by name.
        """
        if preset not in PRESETS:
            raise unknown_name("preset", preset, PRESETS)
        config = dict(self.presets[preset])
        for key, value in (changes or {}).items():
            if key not in config:
                raise unknown_name(f"setting of {self.id}", key, config)
            config[key] = value
        return config

    def identity(self, config: Config) -> str:
        """The short name of a unit: equal for equal owner, version, source and config.

        Args:
            config: the unit's settings.
        """
        return unit_identity(self.owner, self.version, self.source, config)


def unit_identity(experiment: str, version: int, source: str, config: Config) -> str:
    """The short name of a unit, from what its saved result says about itself."""
    origin = {"source": source} if source else {}
    return config_hash({"experiment": experiment, "version": version, "config": config, **origin})


def presets(paper: Config, *, standard: Config | None = None, quick: Config | None = None) -> dict[Preset, Config]:
    """The three presets "paper", "standard" and "quick" of an experiment.

    Args:
        paper: the paper's own values.
        standard: what the standard preset changes of them.
        quick: what the quick preset changes of them.
    """
    made: dict[Preset, Config] = {"paper": dict(paper)}
    for name, changes in (("standard", standard or {}), ("quick", quick or {})):
        for key in changes:
            if key not in paper:
                raise unknown_name(f"setting in preset {name!r}", key, paper)
        made[name] = {**paper, **changes}  # type: ignore[index]
    for config in made.values():
        config_hash(config)  # refuses what is not plain
    # a config that travelled through JSON has lists where there were tuples: have them from the start
    return {name: {k: [*v] if isinstance(v, tuple) else v for k, v in config.items()} for name, config in made.items()}


def split(config: Config, **axes: Iterable[Any]) -> list[Config]:
    """One config for each combination of the axes' values: split(config, m=[2, 4], seed=range(3)) gives six.

    An axis takes the place of the setting with its name: `widths=[2, 4]` of a preset becomes `m` of a unit when it is
    left out with `drop` first.

    Args:
        config: settings that all units share.
        axes: values of each setting that units differ in.
    """
    names = list(axes)
    return [{**config, **dict(zip(names, values, strict=True))} for values in itertools.product(*axes.values())]


def drop(config: Config, *names: str) -> dict[str, Any]:
    """The config without some settings, so that units which do not depend on them stay the same when they change.

    Args:
        config: the settings.
        names: those to leave out.
    """
    return {key: value for key, value in config.items() if key not in names}
