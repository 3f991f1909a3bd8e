"""One self-contained HTML page: text, tables and figures as SVG, without scripts and without a network."""

from __future__ import annotations

import html
import re
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from holdfast._drawing.panels import draw
from holdfast.figures import Figure

POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
STYLE = """
body{font:16px/1.5 system-ui,sans-serif;max-width:46rem;margin:2rem auto;padding:0 1rem;color:#1c2733;background:#fff}
h1{font-size:1.4rem;overflow-wrap:anywhere}h2{font-size:.85rem;letter-spacing:.06em;color:#5f6b76;margin:1.4rem 0 .2rem}
p{margin:.2rem 0;overflow-wrap:anywhere}
code{display:block;background:#f0f2f5;padding:.4rem .6rem;white-space:pre-wrap;overflow-wrap:anywhere}
.advice{border-left:3px solid #0072b2;padding-left:.8rem;margin:.8rem 0}figure{margin:1rem 0}
.table{overflow-x:auto}table{border-collapse:collapse;font-size:.9rem}td,th{padding:.2rem .8rem .2rem 0;text-align:left}
svg{width:100%;max-width:34rem;height:auto;background:#fff}figcaption{font-size:.9rem;color:#5f6b76}details{margin:1rem 0}
@media(prefers-color-scheme:dark){body{color:#dfe5ec;background:#14191f}h2,figcaption{color:#9aa6b2}code{background:#222a33}
svg{filter:invert(.91) hue-rotate(180deg)}} /* a figure drawn for a light ground, its hues kept */
"""


def document(title: str, body: Iterable[str], refresh_seconds: int | None = None) -> str:
    """The page with `body`, pieces of HTML; `title` is escaped. A browser loads it again after `refresh_seconds`."""
    name = html.escape(title)
    refresh = "" if refresh_seconds is None else f'<meta http-equiv="refresh" content="{refresh_seconds}">'
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{name}</title>'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        f'{refresh}<meta name="viewport" content="width=device-width,initial-scale=1"><style>{STYLE}</style></head>'
        f"<body><h1>{name}</h1>{''.join(body)}</body></html>\n"
    )


def paragraph(text: str) -> str:
    """`text`, escaped, as a paragraph."""
    return f"<p>{html.escape(text)}</p>"


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of escaped cells; it scrolls where the screen is narrow."""
    head = "".join(f"<th>{html.escape(column)}</th>" for column in columns)
    lines = ("".join(f"<td>{html.escape(cell)}</td>" for cell in row) for row in rows)
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f'<div class="table"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def picture(figure: Figure) -> str:
    """The figure as inline SVG with its caption."""
    with tempfile.TemporaryDirectory() as folder:
        paths = draw(figure, Path(folder) / "figure")
        text = next(path for path in paths if path.suffix == ".svg").read_text(encoding="utf-8")
    # without the XML head, which names a document type on another server
    svg = re.sub(r"^.*?(?=<svg)", "", text, flags=re.DOTALL)
    return f"<figure>{svg}<figcaption>{html.escape(figure.caption)}</figcaption></figure>"
