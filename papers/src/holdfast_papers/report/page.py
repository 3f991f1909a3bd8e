"""Writes the page: one folder with everything in it, that opens from disk without a network.

index.html          all text: claims, tables, configs, provenance
assets/             style, script, plotly
data/<id>.js        the numbers of an experiment's figures, loaded when they come into view
raw/<id>/           the saved conclusion itself: result.json, arrays, log
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast import _drawing
from holdfast._drawing.colours import DARK, DARK_SCALE, LIGHT, LIGHT_SCALE
from holdfast._files import read_regular
from holdfast._words import duration
from holdfast.errors import BackendError, DamagedResultError
from holdfast_papers.experiments.registry import get, ids
from holdfast_papers.pages import Note
from holdfast_papers.papers import SECTIONS, SHORT_TITLES
from holdfast_papers.report.collect import Saved, find_conclusions, load_conclusions
from holdfast_papers.report.folder import INDEX, MAX_BYTES, description, locked, replace_files
from holdfast_papers.report.mathematics import typeset
from holdfast_papers.report.printed import PRINTED
from holdfast_papers.report.story import DECISIVE, GLOSSARY, STORIES
from holdfast_papers.report.traces import figure_data
from holdfast_papers.report.words import number, sentences, shown
from holdfast_papers.results import MANIFEST, Claim, Result

if TYPE_CHECKING:
    from jinja2 import Environment

TITLES = {**SECTIONS, "own": "Experiments of your own"}
MARKS = {"met": "✓", "not met": "✗", "undecided": "?"}
MAX_ROWS_SHOWN, MAX_TABLES_SHOWN = (
    24,
    3,
)  # rows of a table, and tables of a section, that are shown without being asked for
MAX_IN_ONE_LINE = 24  # characters of a cell, or of a column's head, that no line break goes into


def write_page(
    store: Path, out: Path, *, preset: str | None = None, notice: Callable[[str], None] = lambda text: None
) -> Path:
    """Writes the page of all conclusions in a store into a folder; returns the path of index.html.

    Args:
        store: folder that results are kept in.
        out: empty, new, or an earlier page, of which no file is touched that was not written by it.
        preset: conclusions of this preset; None takes the strongest that each experiment has.
        notice: called with a line for each conclusion that cannot be shown; the page names it too, and shows the rest.
    """
    store, out = Path(store), Path(out)
    with locked(out):  # and collect within it: who waited here must not write what it knew before
        fingerprint = _fingerprint(find_conclusions(store, preset))
        if not _is_current(out, fingerprint):
            damage = _write(store, out, preset, fingerprint)
            for line in damage:
                notice(line)
    return out / INDEX


def write_figures(
    store: Path, out: Path, *, preset: str | None = None, notice: Callable[[str], None] = lambda text: None
) -> list[Path]:
    """PNG and SVG of every figure, as `<experiment>-<figure>.png`; returns their paths.

    Args:
        store: folder that results are kept in.
        out: folder that is written into.
        preset: conclusions of this preset; None takes the strongest that each experiment has.
        notice: called with a line for each figure that cannot be drawn.
    """
    from holdfast._drawing.panels import draw

    saved, _ = load_conclusions(Path(store), preset)
    out.mkdir(parents=True, exist_ok=True)
    paths: list[Path] = []
    for one in saved:
        for figure in one.result.page.figures if one.result.page else ():
            try:
                paths += draw(figure, out / f"{one.result.experiment}-{figure.name}")
            except OSError:
                raise
            except Exception as error:  # numbers from a file, which may be any
                notice(f"figure {figure.name!r} of {one.folder} cannot be drawn ({type(error).__name__}: {error})")
    return paths


def _is_current(out: Path, fingerprint: str) -> bool:
    """Whether the existing page shows exactly this, and nothing of it was damaged when it was written."""
    described = description(out)
    if described is None or described["damage"]:
        return False
    try:
        return f'content="{fingerprint}"'.encode() in read_regular(out / INDEX, MAX_BYTES)[:2000]
    except DamagedResultError:
        return False


def _write(store: Path, out: Path, preset: str | None, fingerprint: str) -> list[str]:
    saved, damage = load_conclusions(store, preset)
    files, sections = _assets(), []
    for one in saved:
        try:
            data, section = _prepared(one)
        # a conclusion may hold any values that JSON can: one that cannot be shown must not take the others with it
        except Exception as error:
            damage.append(f"{one.folder} cannot be shown ({type(error).__name__}: {str(error)[:200]})")
            continue
        sections.append(section)
        files[f"data/{one.result.experiment}.js"] = data
        files |= {f"raw/{one.result.experiment}/{name}": content for name, content in one.files.items()}
    files[INDEX] = _render(sections, damage, fingerprint, _missing({section["id"] for section in sections}))
    replace_files(out, files, damage)
    return damage


def _prepared(one: Saved) -> tuple[bytes, dict[str, Any]]:
    """The script with a conclusion's numbers, and its section, once that was seen to render."""
    assert one.result.page is not None
    if one.result.page.paper not in TITLES:
        raise DamagedResultError(
            f"expected a result of one of the papers {', '.join(TITLES)}, got {one.result.page.paper!r}"
        )
    figures = [figure_data(figure) for figure in one.result.page.figures]
    data = _script(one.result.experiment, figures)
    section = _section(one.result, figures, sorted(one.files))
    _render([section], [], "")
    return data, section


def _section(result: Result, figures: list[dict[str, Any]], files: list[str]) -> dict[str, Any]:
    assert result.page is not None
    p = result.provenance
    seconds = float(p.extra.get("unit_seconds", 0.0)) + p.seconds
    return {
        "id": result.experiment,
        "page": result.page,
        "claims": result.claims,
        "count": _tally(result.claims),
        "on_data": [(note.about.capitalize(), note.text) for note in result.page.notes if isinstance(note, Note)],
        "notes": [note for note in result.page.notes if not isinstance(note, Note)],
        "figures": figures,
        "printed": PRINTED.get(result.experiment),
        "config": {key: shown(value) for key, value in result.config.items()},
        "provenance": {
            "holdfast": f"{p.version}, commit {p.commit or 'unknown'}",
            "run": f"{p.started}, preset {result.page.preset}, {len(p.extra.get('units', []))} units",
            "time taken": f"{seconds:.1f} s of one core, {p.seconds:.1f} s of them for the conclusion",
            **{name: version for name, version in p.packages.items()},
            **{name: value for name, value in p.machine.items()},
        },
        "seconds": seconds,
        "shared": {str(unit): float(taken) for unit, taken in p.extra.get("shared_seconds", {}).items()},
        "files": files,
    }


def _total_seconds(sections: list[dict[str, Any]]) -> float:
    """Time of all experiments, with units that a family shares counted once."""
    shared = {unit: taken for section in sections for unit, taken in section["shared"].items()}
    return sum(s["seconds"] - sum(s["shared"].values()) for s in sections) + sum(shared.values())


@functools.cache
def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("holdfast_papers.report", "assets"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"number": number, "duration": duration, "typeset": typeset, "sentences": sentences}
    return environment


def _render(
    sections: list[dict[str, Any]], damage: list[str], fingerprint: str, missing: Sequence[dict[str, Any]] = ()
) -> bytes:
    papers = [
        {
            "key": key,
            "title": title,
            "short": SHORT_TITLES.get(key, title),
            "sections": chosen,
            "count": _count(chosen),
            "decisive": _decisive(key, chosen),
            "story": _story(key, chosen),
        }
        for key, title in TITLES.items()
        if (chosen := [s for s in sections if s["page"].paper == key])
    ]
    text = (
        _environment()
        .get_template("index.html")
        .render(
            papers=papers,
            missing=missing,
            words=GLOSSARY,
            longest=MAX_ROWS_SHOWN,
            most=MAX_TABLES_SHOWN,
            most_in_one_line=MAX_IN_ONE_LINE,
            others=sum(any(heading != "Data" for heading, _ in s["on_data"]) for s in sections),
            count=_count(sections),
            experiments=len(sections),
            seconds=_total_seconds(sections),
            damage=damage,
            marks=MARKS,
            fingerprint=fingerprint,
        )
    )
    # half a character has no bytes, and a name or a path may hold one
    return text.encode("utf-8", "backslashreplace")


def _missing(there: set[str]) -> list[dict[str, Any]]:
    """The experiments that have no section, paper by paper."""
    absent = [get(id) for id in ids() if id not in there]
    return [
        {"title": title, "experiments": chosen}
        for key, title in SECTIONS.items()
        if (chosen := [experiment for experiment in absent if experiment.paper == key])
    ]


def _story(paper: str, sections: list[dict[str, Any]]) -> dict[str, Any] | None:
    """The text on a paper with its figure, where that was computed."""
    story = STORIES.get(paper)
    if story is None:
        return None
    matches = [
        (s, f) for s in sections if s["id"] == story.experiment for f in s["figures"] if f["name"] == story.figure
    ]
    section, figure = matches[0] if matches else (None, None)
    panels = [k for k in story.panels if figure is not None and k < len(figure["panels"])]
    open_claims = {status: _with(sections, status) for status in ("not met", "undecided")}
    text = [text for text in story.paragraphs if figure is not None or not text.startswith("In the figure")]
    if figure is None:
        text.append(f"The figure of this paper needs `holdfast reproduce {story.experiment}`.")
    return {"text": text, "section": section, "figure": figure, "panels": panels, "open": open_claims}


def _decisive(paper: str, sections: list[dict[str, Any]]) -> list[dict[str, str]]:
    """The claims that a paper stands on, where they were computed: what is claimed, its status and its experiment."""
    status = {(s["id"], claim.name): claim.status for s in sections for claim in s["claims"]}
    return [
        {"id": one.experiment, "text": one.text, "status": status[one.experiment, one.claim]}
        for one in DECISIVE.get(paper, ())
        if (one.experiment, one.claim) in status
    ]


def _with(sections: list[dict[str, Any]], status: str) -> list[str]:
    """The experiments that have a claim of that status."""
    return [s["id"] for s in sections if any(claim.status == status for claim in s["claims"])]


def _count(sections: list[dict[str, Any]]) -> dict[str, int]:
    return _tally([claim for s in sections for claim in s["claims"]])


def _tally(claims: Sequence[Claim]) -> dict[str, int]:
    count = Counter[str](claim.status for claim in claims)
    return {status: count[status] for status in MARKS}


def _fingerprint(conclusions: Mapping[str, Path]) -> str:
    """Names what a page is made of: the saved conclusions and the code that draws them.

    An equal page is not written again (8 s for 32 experiments), and a browser does not show old figures under new text.
    """
    digest = hashlib.sha256()
    for folder in conclusions.values():
        try:
            digest.update(read_regular(folder / MANIFEST, MAX_BYTES))
        except DamagedResultError as error:
            digest.update(str(error).encode("utf-8", "backslashreplace"))
    digest.update(" ".join(ids()).encode())  # those without results yet are listed
    here = Path(__file__).parent
    drawing = Path(str(_drawing.__file__)).parent
    for path in sorted([*here.glob("*.py"), *drawing.glob("*.py"), *(here / "assets").iterdir()]):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _script(experiment: str, figures: list[dict[str, Any]]) -> bytes:
    """The figures' numbers as a script: a page opened from disk may not fetch files, but may load scripts."""
    # ASCII alone, and no "<": nothing in it can end a script
    text = json.dumps(figures, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    return f"holdfast.receive({json.dumps(experiment)},{text});\n".encode()


def _assets() -> dict[str, bytes]:
    here = resources.files("holdfast_papers.report") / "assets"
    script = (here / "page.js").read_text(encoding="utf-8")
    sets = {"LIGHT COLOURS": LIGHT, "DARK COLOURS": DARK, "LIGHT SCALE": LIGHT_SCALE, "DARK SCALE": DARK_SCALE}
    for name, colours in sets.items():
        script = script.replace(f'"{name}"', json.dumps(colours))
    return {
        "assets/page.js": script.encode(),
        "assets/page.css": (here / "page.css").read_bytes(),
        "assets/plotly.min.js": _plotly().read_bytes(),
    }


def _plotly() -> Path:
    """plotly.js out of the Python package, without importing it (0.3 s)."""
    spec = importlib.util.find_spec("plotly")
    if spec is None or spec.origin is None:
        raise BackendError("the page needs plotly: pip install plotly")
    return Path(spec.origin).parent / "package_data" / "plotly.min.js"
