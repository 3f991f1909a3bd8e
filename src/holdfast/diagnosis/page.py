"""A diagnosis as one HTML page, its figure inside, that needs no other file."""

from __future__ import annotations

import html
import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.diagnosis.words import blocks

if TYPE_CHECKING:
    from holdfast.diagnosis.result import Diagnosis

POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
STYLE = """
body{font:16px/1.5 system-ui,sans-serif;max-width:46rem;margin:2rem auto;padding:0 1rem;color:#1c2733;background:#fff}
h1{font-size:1.4rem;overflow-wrap:anywhere}h2{font-size:.85rem;letter-spacing:.06em;color:#5f6b76;margin:1.4rem 0 .2rem}
p{margin:.2rem 0;overflow-wrap:anywhere}
code{display:block;background:#f0f2f5;padding:.4rem .6rem;white-space:pre-wrap;overflow-wrap:anywhere}
.advice{border-left:3px solid #0072b2;padding-left:.8rem;margin:.8rem 0}figure{margin:1rem 0}
svg{width:100%;max-width:34rem;height:auto;background:#fff}figcaption{font-size:.9rem;color:#5f6b76}details{margin:1rem 0}
@media(prefers-color-scheme:dark){body{color:#dfe5ec;background:#14191f}h2,figcaption{color:#9aa6b2}code{background:#222a33}
svg{filter:invert(.91) hue-rotate(180deg)}} /* a figure drawn for a light ground, its hues kept */
"""


def page(found: Diagnosis) -> str:
    """The page as text; names and messages in it are escaped.

    Args:
        found: the diagnosis.
    """
    title = html.escape(found.name)
    body = [f"<h1>{title}</h1>", _p(found.about)]
    for head, sentences in blocks(found, details=False):
        body.append(f"<h2>{head}</h2>")
        body += _advice(found) if head == "ADVICE" and found.advice else map(_p, sentences)
        if head == "MEMORY":
            body.append(_figure(found))
    details = dict(blocks(found, details=True)).get("DETAILS", [])
    body.append(f"<details><summary>details, in the papers' words</summary>{''.join(map(_p, details))}</details>")
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        f'<meta name="viewport" content="width=device-width,initial-scale=1"><style>{STYLE}</style></head>'
        f"<body>{''.join(body)}</body></html>\n"
    )


def _p(text: str) -> str:
    return f"<p>{html.escape(text)}</p>"


def _advice(found: Diagnosis) -> list[str]:
    return [
        f'<div class="advice">{_p(f"{one.trouble}: {one.number}")}<code>{html.escape(one.call)}</code>{_p(one.effect)}</div>'
        for one in found.advice
    ]


def _figure(found: Diagnosis) -> str:
    from holdfast.report.static import draw

    figure = found.figure()
    with tempfile.TemporaryDirectory() as folder:
        paths = draw(figure, Path(folder) / "figure")
        text = next(path for path in paths if path.suffix == ".svg").read_text(encoding="utf-8")
    # without the XML head, which names a document type on another server
    svg = re.sub(r"^.*?(?=<svg)", "", text, flags=re.DOTALL)
    return f"<figure>{svg}<figcaption>{html.escape(figure.caption)}</figcaption></figure>"
