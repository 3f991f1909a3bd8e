"""A report as text: columns that the terminal and the Markdown page share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from holdfast_papers.benchmarks.growth import Growth
from holdfast_papers.benchmarks.memory import Peak
from holdfast_papers.benchmarks.report import Report, Row


@dataclass(frozen=True)
class Text:
    """A table of text: its title, the heads of its columns (">" in front: to the right), and its lines."""

    title: str
    heads: tuple[str, ...]
    lines: tuple[tuple[str, ...], ...]


def tables(report: Report) -> list[Text]:
    """The tables of a report that have anything in them: speed, growth, memory."""
    made = [speed(report.rows), growth(report.growth), memory(report.memory)]
    return [table for table in made if table.lines]


def speed(rows: Sequence[Row]) -> Text:
    """Every row of the speed table with its shapes below each other."""
    order = list(dict.fromkeys(row.row for row in rows))
    lines = []
    for row in sorted(rows, key=lambda row: order.index(row.row)):
        numbers = ("", "", "") if row.ratio is None else (_ms(row.ours_ms), _ms(row.against_ms), _ratio(row))
        verdict = row.status if not row.note else f"{row.status}: {row.note}"
        lines.append((row.row, _sizes(row.shape), row.against, *numbers, _goal(row), verdict))
    heads = ("row", "shape", "against", ">ours ms", ">its ms", ">ratio (quartiles)", ">goal", "status")
    return Text("Speed of a training step", heads, tuple(lines))


def growth(growths: Sequence[Growth]) -> Text:
    """Exponents of time, a line for each kernel and size."""
    lines = [
        (
            g.kernel,
            g.size,
            f"{g.values[0]} to {g.values[-1]}",
            _sizes(g.base),
            f"{g.exponent:.2f} ± {g.error:.2f}",
            f"{g.bound:g}",
        )
        for g in growths
    ]
    heads = ("kernel", "size", "over", "others as in", ">exponent of time", ">of the arithmetic")
    return Text("Growth of a training step", heads, tuple(lines))


def memory(peaks: Sequence[Peak]) -> Text:
    """Peak memory next to the stated formula."""
    lines = []
    for peak in peaks:
        over = "" if peak.measured is None else f"{peak.measured / peak.stated:.2f}"
        size = peak.note if peak.measured is None else f"{peak.measured / 2**20:.0f}"
        lines.append((peak.kernel, _sizes(peak.shape), size, f"{peak.stated / 2**20:.0f}", over, peak.formula))
    heads = ("kernel", "shape", ">peak MiB", ">stated MiB", ">peak / stated", "what is stated (float32 numbers)")
    return Text("Peak memory of a training step", heads, tuple(lines))


def summary(report: Report) -> str:
    """How many goals were met, in one line."""
    decided = [row.status for row in report.rows if row.goal is not None]
    counts = {status: decided.count(status) for status in ("met", "missed", "not run", "wrong")}
    told = [f"{count} {status}" for status, count in counts.items() if count]
    return f"goals: {', '.join(told)}" if told else "goals: none in this run"


def machine(report: Report) -> str:
    """Where the numbers come from, in one paragraph."""
    p = report.provenance
    packages = {**p.packages, **p.extra.get("peers", {})}
    return (
        f"{p.machine['cpu']}, {p.machine['cores']} cores, {p.machine['threads']} threads, {p.machine['system']}; "
        f"Python {p.machine['python']}, {', '.join(f'{name} {version}' for name, version in packages.items())}; "
        f"holdfast {p.version}, commit {p.commit or 'unknown'}, native kernels {p.extra.get('native', 'unknown')}; "
        f"{p.started}, {p.seconds:.0f} s, load before the start {p.extra.get('load', 'unknown')}."
    )


def _sizes(shape: Sequence[int]) -> str:
    return " x ".join(str(n) for n in shape)


def _ms(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}" if value < 100 else f"{value:.0f}"


def _ratio(row: Row) -> str:
    if row.ratio is None:
        return ""
    digits = 1 if row.ratio.median >= 10 else 2 if row.ratio.median >= 0.1 else 3
    low, median, high = (f"{x:.{digits}f}" for x in (row.ratio.low, row.ratio.median, row.ratio.high))
    return f"{median} ({low}-{high}, n={row.rounds})"


def _goal(row: Row) -> str:
    if row.goal is None:
        return ""
    return f"{'>=' if row.sense == 'at least' else '<='} {row.goal:g}"
