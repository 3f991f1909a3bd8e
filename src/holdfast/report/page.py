"""Writes the page: one folder with everything in it, that opens from disk without a network.

index.html          all text: claims, tables, configs, provenance
assets/             style, script, plotly
data/<id>.js        the numbers of an experiment's figures, loaded when they come into view
raw/<id>/           the saved conclusion itself: result.json, arrays, log
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import math
import shutil
from collections import Counter
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from holdfast.errors import BackendError
from holdfast.report.collect import find_conclusions, load_conclusions
from holdfast.report.palette import DARK, LIGHT
from holdfast.report.traces import figure_data
from holdfast.results import MANIFEST, Result, write_atomically

TITLES = {
    "iat": "Inverse Approximation Theory for Nonlinear Recurrent Neural Networks",
    "ssm": "State-space Models with Layer-wise Nonlinearity are Universal Approximators with Exponential Decaying Memory",
    "stable": "StableSSM: Alleviating the Curse of Memory in State-space Models through Stable Reparameterization",
    "linrec": "On the Universality of Linear Recurrences Followed by Nonlinear Projections",
    "own": "Experiments of your own",
}
SHORT = {
    "iat": "Inverse Approximation",
    "ssm": "State-space Models",
    "stable": "StableSSM",
    "linrec": "Linear Recurrences",
}
MARKS = {"met": "✓", "not met": "✗", "undecided": "?"}


def write_page(store: Path, out: Path, *, preset: str | None = None) -> Path:
    """Writes the page of all conclusions in `store` into the folder `out`; gives back the path of index.html."""
    out = Path(out)
    index = out / "index.html"
    fingerprint = _fingerprint(find_conclusions(Path(store), preset))
    if index.exists() and f'content="{fingerprint}"'.encode() in index.read_bytes()[:2000]:
        return index
    results, damage = load_conclusions(Path(store), preset)
    for name in ("assets", "data", "raw"):
        (out / name).mkdir(parents=True, exist_ok=True)
    _write_assets(out / "assets")
    sections = []
    for folder, result in results.items():
        figures = _write_data(out / "data" / f"{result.experiment}.js", result)
        files = _copy_raw(folder, out / "raw" / result.experiment)
        sections.append(_section(result, figures, files))
    _forget_others(out, {result.experiment for result in results.values()})
    _write_if_new(index, _render(sections, damage, fingerprint).encode())
    return index


def write_figures(store: Path, out: Path, *, preset: str | None = None) -> list[Path]:
    """PNG and SVG of every figure: `<experiment>-<figure>.png`."""
    from holdfast.report.static import draw

    results, _ = load_conclusions(Path(store), preset)
    out.mkdir(parents=True, exist_ok=True)
    return [
        path
        for result in results.values()
        if result.page is not None
        for figure in result.page.figures
        for path in draw(figure, out / f"{result.experiment}-{figure.name}")
    ]


def _section(result: Result, figures: list[dict[str, Any]], files: list[str]) -> dict[str, Any]:
    assert result.page is not None
    p = result.provenance
    seconds = float(p.extra.get("unit_seconds", 0.0)) + p.seconds
    return {
        "id": result.experiment,
        "page": result.page,
        "claims": result.claims,
        "figures": figures,
        "config": {key: _shown(value) for key, value in result.config.items()},
        "provenance": {
            "holdfast": f"{p.version}, commit {p.commit or 'unknown'}",
            "run": f"{p.started}, preset {result.page.preset}, {len(p.extra.get('units', []))} units",
            "time taken": f"{seconds:.1f} s of one core, {p.seconds:.1f} s of them for the conclusion",
            **{name: version for name, version in p.packages.items()},
            **{name: value for name, value in p.machine.items()},
        },
        "seconds": seconds,
        "files": files,
    }


def _render(sections: list[dict[str, Any]], damage: list[str], fingerprint: str) -> str:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("holdfast.report", "assets"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["number"] = _number
    environment.filters["duration"] = _duration
    papers = [
        {"key": key, "title": title, "short": SHORT.get(key, title), "sections": chosen, "count": _count(chosen)}
        for key, title in TITLES.items()
        if (chosen := [s for s in sections if s["page"].paper == key])
    ]
    return environment.get_template("index.html").render(
        papers=papers,
        count=_count(sections),
        experiments=len(sections),
        presets=sorted({s["page"].preset for s in sections}),
        seconds=sum(s["seconds"] for s in sections),
        damage=damage,
        marks=MARKS,
        fingerprint=fingerprint,
    )


def _count(sections: list[dict[str, Any]]) -> dict[str, int]:
    count = Counter(claim.status for s in sections for claim in s["claims"])
    return {status: count[status] for status in MARKS}


def _fingerprint(conclusions: Mapping[str, Path]) -> str:
    """Names what a page is made of: the saved conclusions and the code that draws them.

    An equal page is not written again (8 s for 32 experiments), and a browser does not show old figures under new text.
    """
    digest = hashlib.sha256()
    for folder in conclusions.values():
        digest.update((folder / MANIFEST).read_bytes())
    here = Path(__file__).parent
    for path in sorted([*here.glob("*.py"), *(here / "assets").iterdir()]):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _write_data(path: Path, result: Result) -> list[dict[str, Any]]:
    """The figures' numbers as a script: a page opened from disk may not fetch files, but may load scripts."""
    assert result.page is not None
    figures = [figure_data(figure) for figure in result.page.figures]
    # ASCII alone, and no "<": nothing in it can end a script
    text = json.dumps(figures, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    _write_if_new(path, f"holdfast.receive({json.dumps(result.experiment)},{text});\n".encode())
    return [
        {key: figure[key] for key in ("name", "caption", "columns")} | {"panels": figure["panels"]}
        for figure in figures
    ]


def _copy_raw(folder: Path, out: Path) -> list[str]:
    out.mkdir(parents=True, exist_ok=True)
    names = sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))
    for name in names:
        _write_if_new(out / name, (folder / name).read_bytes())
    for path in out.iterdir():
        if path.name not in names:
            path.unlink(missing_ok=True)
    return names


def _forget_others(out: Path, ids: set[str]) -> None:
    for path in (out / "data").iterdir():
        if path.stem not in ids:
            path.unlink(missing_ok=True)
    for path in (out / "raw").iterdir():
        if path.name not in ids:
            shutil.rmtree(path, ignore_errors=True)


def _write_assets(out: Path) -> None:
    here = resources.files("holdfast.report") / "assets"
    script = (here / "page.js").read_text()
    script = script.replace('"LIGHT COLOURS"', json.dumps(LIGHT)).replace('"DARK COLOURS"', json.dumps(DARK))
    _write_if_new(out / "page.js", script.encode())
    _write_if_new(out / "page.css", (here / "page.css").read_bytes())
    plotly = _plotly()
    there = out / "plotly.min.js"
    if not there.exists() or there.stat().st_size != plotly.stat().st_size:
        write_atomically(there, plotly.read_bytes())


def _plotly() -> Path:
    """plotly.js out of the Python package, without importing it (0.3 s)."""
    spec = importlib.util.find_spec("plotly")
    if spec is None or spec.origin is None:
        raise BackendError("the page needs plotly; install it with: pip install plotly")
    return Path(spec.origin).parent / "package_data" / "plotly.min.js"


def _write_if_new(path: Path, content: bytes) -> None:
    """Spares the disk where nothing changed: flushing thirty files takes longer than comparing them."""
    if not path.exists() or path.read_bytes() != content:
        write_atomically(path, content)


def _shown(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_shown, value))
    if isinstance(value, Mapping):
        return ", ".join(f"{k}: {_shown(v)}" for k, v in value.items())
    return _number(value) if isinstance(value, float) else str(value)


def _duration(seconds: float) -> str:
    if seconds < 59.5:
        return f"{seconds:.1f} s" if seconds < 9.95 else f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"


def _number(value: Any) -> str:
    """Four digits, as people write them."""
    if value is None:
        return "–"
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    if math.isnan(value):
        return "not a number"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    text = f"{value:,}" if isinstance(value, int) else f"{value:.4g}"
    if "e" in text:
        mantissa, exponent = text.split("e")
        power = str(int(exponent)).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
        text = f"{mantissa} × 10{power}"
    return text.replace("-", "−") if isinstance(value, (int, float)) else text
