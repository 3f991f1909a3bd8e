"""Checks a built site: links and images lead somewhere, public names have entries; with --browser also what a reader sees.

`python tools/check_site.py build/site --browser --shots FOLDER` opens every page in Chromium (by playwright), from disk,
light and dark, on a desktop and a phone: no message of an error, no image that did not load, nothing wider than the screen
unless it scrolls, and a search that finds something. Ends with 1 and a line for each fault.
"""

from __future__ import annotations

import argparse
import html
import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

SIZES = {"desktop": (1280, 900), "phone": (390, 844)}


# what stands in the text of a page and reaches beyond the screen, without a box around it that scrolls
CUT = """width => [...document.querySelectorAll('article :is(p, li, h1, h2, h3, td, th, img, math, svg, dt, code, pre)')]
  .filter(e => {
    const box = e.getBoundingClientRect();
    if (box.width === 0 || box.right <= width + 1) return false;
    for (let a = e; a && a.tagName !== 'ARTICLE'; a = a.parentElement)
      if (['auto', 'scroll'].includes(getComputedStyle(a).overflowX)) return false;
    return true;
  }).map(e => e.tagName.toLowerCase() + ' ' + (e.textContent || e.src || '').trim().slice(0, 60))"""


class Page(HTMLParser):
    """The anchors of a page, and what it refers to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.targets: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Notes ids, links and sources; what only names a relation (canonical, search) is not followed."""
        given = dict(attrs)
        self.anchors.update(value for key in ("id", "name") if (value := given.get(key)))
        key = "href" if tag in ("a", "link") else "src"
        if value := given.get(key):
            self.targets.add(value)


def broken_links(site: Path) -> list[str]:
    """Each link to a file or a missing anchor, with its page."""
    pages = {
        path.resolve(): Page(path.read_text(errors="replace"))
        for path in site.rglob("*.html")
        if path.parent.name != "_static"
    }
    faults = []
    for path, page in pages.items():
        for target in sorted(page.targets):
            parts = urlsplit(target)
            if parts.scheme or parts.netloc:
                continue
            file = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if not file.is_file():
                faults.append(f"{path.relative_to(site.resolve())}: {target} is missing")
            elif parts.fragment and file in pages and unquote(parts.fragment) not in pages[file].anchors:
                faults.append(f"{path.relative_to(site.resolve())}: {target} has no such anchor")
    return faults


def missing_names(site: Path) -> list[str]:
    """Each public name of the package, and of every public package in it, that the pages of the API do not have."""
    sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
    from public_names import modules_with_public_names

    faults = []
    for package in modules_with_public_names():
        file = site / "api" / f"{package.__name__}.html"
        page = file.read_text(errors="replace") if file.is_file() else ""
        text = html.unescape(re.sub(r"<[^>]+>", "", page))
        # an entry has its full name as anchor; what another page has is reported with its full name
        faults += [
            f"api/{file.name}: {name} is missing"
            for name in (f"{package.__name__}.{short}" for short in package.__all__)
            if f'id="{name}"' not in page and not re.search(rf"{re.escape(name)}\b", text)
        ]
    return faults


def page_names(site: Path) -> list[str]:
    """Every page, without its ending."""
    files = (file.relative_to(site) for file in site.rglob("*.html") if file.parent.name != "_static")
    return sorted(str(file.with_suffix("")) for file in files)


def seen_by_a_reader(site: Path, shots: Path | None, chromium: str) -> list[str]:
    """What is wrong with the pages in a browser, in both colours and on both screens, and with the search."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        views = [(colour, size) for colour in ("light", "dark") for size in SIZES]
        faults = [fault for colour, size in views for fault in _visit(browser, site, shots, colour, size)]
        browser.close()
    return faults


def _visit(browser: Any, site: Path, shots: Path | None, colour: str, size: str) -> list[str]:
    width, height = SIZES[size]
    tab = browser.new_page(viewport={"width": width, "height": height}, color_scheme=colour)
    faults: list[str] = []
    tab.set_default_timeout(300_000)  # milliseconds, for a busy machine
    tab.on("console", lambda message: faults.append(message.text) if message.type == "error" else None)
    tab.on("pageerror", lambda error: faults.append(str(error)))
    for name in page_names(site):
        tab.goto((site / f"{name}.html").resolve().as_uri())
        tab.wait_for_timeout(400)
        faults += [f"{name}: {fault}" for fault in _look(tab, width)]
        _shoot(tab, shots, f"{name.replace('/', '-')}-{colour}-{size}")
    tab.goto((site / "search.html").resolve().as_uri() + "?q=stabilize")
    try:
        tab.wait_for_selector("#search-results li a")
    except Exception:
        faults.append("the search finds nothing")
    _shoot(tab, shots, f"search-{colour}-{size}")
    tab.close()
    return [f"{colour}, {size}: {fault}" for fault in faults]


def _shoot(tab: Any, shots: Path | None, name: str) -> None:
    if shots is not None:
        tab.screenshot(path=shots / f"{name}.png")


def _look(tab: Any, width: int) -> list[str]:
    broken = tab.evaluate("[...document.images].filter(i => i.complete && !i.naturalWidth).map(i => i.src)")
    wide = tab.evaluate("document.documentElement.scrollWidth")
    faults = [f"{source} did not load" for source in broken]
    faults += [f"{text!r} is wider than the screen" for text in tab.evaluate(CUT, width)]
    headings = "[...document.querySelectorAll('h1, h2, h3')].filter(h => h.scrollWidth > h.clientWidth + 1)"
    faults += [f"heading {text!r} is cut" for text in tab.evaluate(f"{headings}.map(h => h.textContent)")]
    return [*faults, f"{wide} pixels wide"] if wide > width else faults


def main() -> None:
    """Prints each fault."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("site", type=Path)
    parser.add_argument("--browser", action="store_true")
    parser.add_argument("--shots", type=Path, help="write what is seen into this folder")
    parser.add_argument("--chromium", default="/usr/bin/chromium")
    choices = parser.parse_args()
    faults = [*broken_links(choices.site), *missing_names(choices.site)]
    if choices.browser:
        if choices.shots is not None:
            choices.shots.mkdir(parents=True, exist_ok=True)
        faults += seen_by_a_reader(choices.site, choices.shots, choices.chromium)
    sys.stdout.write("".join(f"{fault}\n" for fault in faults))
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
