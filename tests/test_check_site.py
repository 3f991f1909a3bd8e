"""The checker of the site finds what leads nowhere."""

import sys

import holdfast
from reader import ROOT

sys.path.append(str(ROOT / "tools"))
from check_site import broken_links, missing_names, page_names


def test_links_images_and_anchors_that_are_not_there_are_named_and_others_not(tmp_path):
    (tmp_path / "part").mkdir()
    (tmp_path / "a.html").write_text(
        '<p id="top"><a href="part/b.html#here">b</a><a href="#top">up</a><img src="no.png">'
    )
    (tmp_path / "part/b.html").write_text(
        '<h1 id="here"><a href="../a.html#away">a</a><a href="https://example.org/x">x</a>'
    )
    assert broken_links(tmp_path) == [
        "a.html: no.png is missing",
        "part/b.html: ../a.html#away has no such anchor",
    ]


def test_a_public_name_without_an_entry_is_named(tmp_path):
    (tmp_path / "api").mkdir()
    names = [name for name in holdfast.__all__ if name != "fit_decay"]
    (tmp_path / "api/holdfast.html").write_text("".join(f'<dt id="holdfast.{name}"></dt>' for name in names))
    missing = [fault for fault in missing_names(tmp_path) if fault.startswith("api/holdfast.html")]
    assert missing == ["api/holdfast.html: holdfast.fit_decay is missing"]
    assert "api/holdfast.laws.html: holdfast.laws.PowerLaw is missing" in missing_names(tmp_path)


def test_every_page_is_looked_at(tmp_path):
    for name in ("index", "api/holdfast", "_static/part"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / f"{name}.html").write_text("")
    assert page_names(tmp_path) == ["api/holdfast", "index"]
