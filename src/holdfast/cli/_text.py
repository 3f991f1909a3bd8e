"""Text that others wrote (names, paths, messages of errors), made harmless before a terminal gets it."""

from __future__ import annotations

import unicodedata

from rich.markup import escape

KEPT = "\n\t"


def visible(text: object) -> str:
    """The text with control characters, terminal escapes, marks that turn its direction and lone surrogates spelled out.

    For what is printed as it is; `plain` is for what goes through rich.
    """
    return "".join(_spelled(character) for character in str(text))


def plain(text: object) -> str:
    """The text as rich must get it inside markup to show it letter for letter; a cell may be `Text(visible(text))`."""
    return escape(visible(text))


def _spelled(character: str) -> str:
    kind = unicodedata.category(character)
    if character in KEPT or kind not in ("Cc", "Cf", "Cs", "Zl", "Zp"):
        return character
    return character.encode("unicode_escape", "surrogatepass").decode("ascii")
