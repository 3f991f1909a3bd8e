"""Names and messages that carry markup or terminal codes are shown as text."""

import io

import pytest
from rich.console import Console

from holdfast.cli._screen import plain, visible


@pytest.mark.parametrize(
    "text",
    ["d[/red]x", "[bold]b[/bold]", "[link=file:///etc]a[/link]", "a\\", "\\[b]", "[0, 1)", "[/]"],
)
def test_rich_shows_markup_letter_for_letter(text):
    out = io.StringIO()
    Console(file=out, width=80).print(f"[red]{plain(text)}[/red]|", highlight=False)
    assert out.getvalue() == f"{text}|\n"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[2Jgone", "\\x1b[2Jgone"),
        ("a\rb\x07\x9b", "a\\rb\\x07\\x9b"),
        ("\u202egnp", "\\u202egnp"),
        ("bad \udcff", "bad \\udcff"),
        ("two\n\tlines of Grüße, 日本, 🙂", "two\n\tlines of Grüße, 日本, 🙂"),
    ],
)
def test_terminal_codes_are_spelled_out_and_letters_stay(text, shown):
    assert visible(text) == shown
    assert visible(text).encode()
