"""A diagnosis as one HTML page, its figure inside, that needs no other file."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING

from holdfast._page import document, paragraph, picture
from holdfast.diagnosis._words import blocks

if TYPE_CHECKING:
    from holdfast.diagnosis._result import Diagnosis


def page(diagnosis: Diagnosis) -> str:
    """The page as text; names and messages in it are escaped.

    Args:
        diagnosis: what the page shows.
    """
    body = [paragraph(diagnosis.about)]
    for head, sentences in blocks(diagnosis, details=False):
        body.append(f"<h2>{head}</h2>")
        body += _advice(diagnosis) if head == "ADVICE" and diagnosis.advice else map(paragraph, sentences)
        if head == "MEMORY":
            body.append(picture(diagnosis.figure()))
    details = "".join(map(paragraph, dict(blocks(diagnosis, details=True)).get("DETAILS", [])))
    body.append(f"<details><summary>details, in the papers' words</summary>{details}</details>")
    return document(diagnosis.name, body)


def _advice(diagnosis: Diagnosis) -> list[str]:
    return [
        f'<div class="advice">{paragraph(f"{one.trouble}: {one.number}")}<code>{html.escape(one.call)}</code>'
        f"{paragraph(one.effect)}</div>"
        for one in diagnosis.advice
    ]
