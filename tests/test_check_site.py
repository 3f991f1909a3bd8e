"""The checker of the site finds what leads nowhere."""

import sys

from reader import ROOT

sys.path.append(str(ROOT / "tools"))
from check_site import broken_links


def test_links_images_and_anchors_that_are_not_there_are_named_and_others_not(tmp_path):
    (tmp_path / "part").mkdir()
    (tmp_path / "a.html").write_text(
        '<p id="top"><a href="part/b.html#here">b</a><a href="#top">up</a><img src="no.png">'
    )
    (tmp_path / "part/b.html").write_text(
        '<h1 id="here"><a href="../a.html#away">a</a><a href="https://example.org/x">x</a>'
    )
    assert broken_links(tmp_path) == [
        "a.html: no.png is not there",
        "part/b.html: ../a.html#away has no such anchor",
    ]
