"""The README as a package index needs it: every link absolute. `python tools/index_readme.py https://host/owner/holdfast`.

An index shows the README without the repository around it, so links to files and pictures need the repository's address, which
is known from the first public release on. `--write` changes README.md itself, as the checklist of docs/releasing.md asks.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")


def absolute(text: str, repository: str, branch: str = "main") -> str:
    """Links of a Markdown text with files of the repository at their address.

    Args:
        text: the README.
        repository: its address, as in https://host/owner/name.
        branch: branch or tag to link to.
    """

    def replace(found: re.Match[str]) -> str:
        mark, label, target = found.groups()
        if re.match(r"[a-z]+:|#", target):
            return found[0]
        kind = "raw" if mark else "blob"
        return f"{mark}[{label}]({repository.rstrip('/')}/{kind}/{branch}/{target})"

    return LINK.sub(replace, text)


def main() -> None:
    """Prints the README with absolute links, or writes it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("repository", help="address, as in https://host/owner/name")
    parser.add_argument("--branch", default="main", help="branch or tag to link to")
    parser.add_argument("--write", action="store_true", help="write README.md instead of printing")
    options = parser.parse_args()
    text = absolute((ROOT / "README.md").read_text(encoding="utf-8"), options.repository, options.branch)
    if options.write:
        (ROOT / "README.md").write_text(text, encoding="utf-8")
    else:
        sys.stdout.write(text)


if __name__ == "__main__":
    main()
