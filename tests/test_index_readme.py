"""The README on a package index: every link and picture has an address that leads to a file of the repository."""

import re
import sys

from reader import ROOT

sys.path.append(str(ROOT / "tools"))
from index_readme import LINK, absolute

ADDRESS = "https://example.org/us/holdfast"


def test_every_link_of_the_readme_is_absolute_and_leads_to_a_file():
    text = (ROOT / "README.md").read_text()
    links = LINK.findall(absolute(text, ADDRESS, "v1"))
    assert len(links) == len(LINK.findall(text)) > 20
    for mark, _, target in links:
        assert target.startswith("https://")
        if target.startswith(ADDRESS):
            kind, path = re.fullmatch(rf"{ADDRESS}/(raw|blob)/v1/(.*)", target).groups()
            assert kind == ("raw" if mark else "blob")
            assert (ROOT / path).exists(), path


def test_addresses_and_anchors_stay():
    text = "[a](https://x.org/b) [c](#d) ![e](f.png) [g [h]](i.md)"
    assert absolute(text, ADDRESS) == (
        f"[a](https://x.org/b) [c](#d) ![e]({ADDRESS}/raw/main/f.png) [g [h]]({ADDRESS}/blob/main/i.md)"
    )


def test_nothing_is_installed_from_an_index_that_does_not_have_it():
    """Until the first release the README installs from a clone."""
    commands = re.findall(r"^pip install (.*)$", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert commands and all(re.match(r"[\"']?\./|[\"']?\.", command) for command in commands)


def test_the_readme_is_short_and_begins_with_a_sentence_a_picture_and_code():
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 90
    first = text[: text.index("## Install")]
    assert [first.count(mark) for mark in ("![", "```python", "\n- **")] == [1, 1, 3]
