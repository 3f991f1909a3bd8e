"""The page without a browser: it is whole, small, and shows every text as text."""

import itertools
import json
import os
import re
import shutil
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from holdfast._drawing.panels import draw
from holdfast._drawing.prepare import ceiling, curve
from holdfast._files import read_regular
from holdfast.errors import ArgumentError, DamagedResultError, ShapeError, UnknownNameError
from holdfast.figures import Axis, Bars, Figure, Heatmap, Line, Panel, Points, Rule
from holdfast_papers.experiments.registry import ids
from holdfast_papers.pages import Note, Page, Table, pack, unpack
from holdfast_papers.report import find_conclusions, write_figures, write_page
from holdfast_papers.report.printed import PRINTED
from holdfast_papers.report.story import DECISIVE, STORIES
from holdfast_papers.report.traces import figure_data, panel_data
from holdfast_papers.report.words import number, sentences
from holdfast_papers.results import Result

VOID = {"meta", "link", "input", "br", "hr", "img"}


class Reader(HTMLParser):
    """Checks that tags close, and gathers what the tests ask for."""

    def __init__(self):
        super().__init__()
        self.stack, self.tags, self.ids, self.links, self.texts = [], [], [], [], []

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        self.tags.append((tag, attrs))
        if "id" in attrs:
            self.ids.append(attrs["id"])
        self.links += [attrs[name] for name in ("href", "src") if name in attrs]
        if tag not in VOID:
            self.stack.append(tag)

    def handle_endtag(self, tag):
        assert self.stack.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)


@pytest.fixture
def read(page):
    reader = Reader()
    reader.feed(page.read_text())
    assert reader.stack == []
    return reader


def test_everything_that_the_page_names_is_in_its_folder(page, read):
    for link in read.links:
        if link.startswith(("#", "data:")):
            assert link == "data:," or link[1:] in read.ids
        else:
            assert (page.parent / link.split("?")[0]).is_file(), link
    assert re.search("https?:", page.read_text()) is None


def test_the_page_is_under_15_megabytes(page):
    assert sum(p.stat().st_size for p in page.parent.rglob("*") if p.is_file()) < 15e6


def test_html_in_names_and_configs_is_shown_as_text(page, read):
    assert {tag for tag, _ in read.tags}.isdisjoint({"b-old", "i", "script "})
    scripts = [attrs for tag, attrs in read.tags if tag == "script"]
    assert all("src" in attrs for attrs in scripts), "a script from a config would have no source"
    text = "".join(read.texts)
    assert text.count("<script>document.title='broken'</script><b>bold</b> & \"quotes\"") >= 6
    data = (page.parent / "data" / "own-toy.js").read_text()
    assert "<" not in data
    assert data.isascii()


def test_ids_are_unique_and_headings_descend_one_level_at_a_time(read):
    assert len(set(read.ids)) == len(read.ids)
    levels = [int(tag[1]) for tag, _ in read.tags if re.fullmatch(r"h\d", tag)]
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(b <= a + 1 for a, b in itertools.pairwise(levels))


def test_landmarks_captions_and_labels_are_there_for_screen_readers(read):
    tags = [tag for tag, _ in read.tags]
    assert {"header", "nav", "main", "figcaption"} <= set(tags)
    assert tags.count("figure") == tags.count("figcaption") == 3
    assert all(attrs.get("aria-label") for tag, attrs in read.tags if attrs.get("role") in ("img", "region", "group"))
    assert all(attrs.get("scope") in ("col", "row") for tag, attrs in read.tags if tag == "th")


def test_claims_show_the_papers_numbers_and_why_one_is_not_met(page):
    text = page.read_text()
    assert '<th scope="row">sums</th><td class="n">36</td><td class="n">3</td>' in text
    assert "more units would tell" in text
    assert "worst</dt><dd>∞" in text


def test_the_page_begins_with_what_was_reproduced_and_how_many_claims_are_met(page):
    text = page.read_text()
    counts = re.sub(r"<[^>]+>|\s+", " ", text[text.index('class="counts"') : text.index('class="frame"')])
    assert "6 claims:" in counts and "not met" in counts and "undecided" in counts
    overview = text[text.index('id="overview"') : text.index('id="story"')]
    assert 'href="#paper-stable">StableSSM</a>' in overview and "1 experiment. StableSSM: Alleviating" in overview
    assert 'href="#summary" data-status="not met"' in text[: text.index('id="overview"')]


def test_the_decisive_claims_are_claims_of_our_results_and_carry_their_status(tmp_path):
    here = Path(__file__).parents[3] / "docs" / "results"
    status = {}
    for paper, decisive in DECISIVE.items():
        for one in decisive:
            claims = Result.load(here / one.experiment / "conclusion-standard").claims
            (status[one],) = [claim.status for claim in claims if claim.name == one.claim]
            assert one.experiment.startswith(f"{paper}-") and not one.text.endswith(".")
    text = write_page(here, tmp_path / "page").read_text()
    overview = text[text.index('id="overview"') : text.index('id="story"')]
    shown = re.findall(r"<strong>(.*?)\.</strong>.*?<a href=\"#(.*?)\">", overview)
    assert shown == [(status[one].capitalize(), one.experiment) for many in DECISIVE.values() for one in many]


def test_short_cells_and_heads_are_not_broken(results, tmp_path):
    whole = Result.load(results / "own-toy" / "conclusion-quick")
    table = Table("t", "Table.", ("slope", "slope of log radius in log m"), [("[-0.55, 0.17]", 20 * "long ")])
    replace(whole, page=replace(whole.page, tables=[table])).save(tmp_path / "store" / "own-toy" / "conclusion-quick")
    text = write_page(tmp_path / "store", tmp_path / "page").read_text()
    assert '<td class="n">[−0.55, 0.17]</td><td class="words">long' in text
    assert '<th scope="col">slope</th><th scope="col" class="long">slope of log' in text


def test_the_page_opens_with_the_story_and_a_section_with_its_figures_before_its_claims(page):
    text = page.read_text()
    assert text.index('id="story"') < text.index('id="summary"') < text.index('<article id="stable-fig2"')
    assert "curse of memory" in text and "Not computed in this store" in text
    section = text[text.index('<article id="stable-fig2"') :]
    assert section.index("<figure") < section.index('class="verdicts"') < section.index("<dl>")
    assert re.search(r'class="where">.*2 met', re.sub(r"&nbsp;|\s+", " ", section)), "how many claims are met"
    assert section.index("<details>") < section.index("<dl>"), "the numbers of a claim are folded away"
    assert "<msub><mi>G</mi><mi>f</mi></msub>" in section


def test_data_that_stand_in_for_others_are_named_above_everything_else_of_their_section(results, tmp_path):
    whole = Result.load(results / "own-toy" / "conclusion-quick")
    note = Note("other data", "MNIST is not on this machine: scikit-learn's digits stand in for it.")
    page = replace(whole.page, notes=[*whole.page.notes, note])
    replace(whole, page=page).save(tmp_path / "store" / "own-toy" / "conclusion-quick")
    text = write_page(tmp_path / "store", tmp_path / "page").read_text()
    assert text.index("digits stand in for it") < text.index("<figure")
    assert text.count("digits stand in for it") == 1


def test_the_notes_of_experiments_on_their_data_say_so():
    from holdfast_papers.experiments.iat import _repeated_words
    from holdfast_papers.experiments.stable import _language_runs

    assert {note.about for note in (_repeated_words.NOT_AT_HAND, _language_runs.OTHER_TEXTS)} == {"other data"}


def test_experiments_that_are_not_there_are_listed_for_papers_without_any_too(page):
    text = page.read_text()
    listed = text[text.index('<section id="missing"') :]
    assert [id for id in ids() if f"<code>{id}</code>" in listed] == [id for id in ids() if id != "stable-fig2"]
    assert "Stability of trained tanh RNNs on a polynomial target" in listed, "each with what it shows"
    assert f"{len(ids()) - 1} more are not computed yet" in text


def test_long_tables_and_those_after_the_third_wait_behind_their_captions(results, tmp_path):
    whole = Result.load(results / "own-toy" / "conclusion-quick")
    tables = [Table(f"t{k}", f"Table {k}.", ("x^2 <= 1",), [("k^-2",)] * n) for k, n in enumerate((24, 25, 1, 1))]
    replace(whole, page=replace(whole.page, tables=tables)).save(tmp_path / "store" / "own-toy" / "conclusion-quick")
    text = write_page(tmp_path / "store", tmp_path / "page").read_text()
    folded = re.findall(r'<details class="table"><summary>(.*?)</summary>', text)
    assert folded == ["Table 1. (25 rows)", "Table 3. (1 row)"]
    assert text.count('<td class="n"><math><msup><mi>k</mi>') == 24 + 25 + 1 + 1, "cells are typeset"


def test_a_papers_table_is_shown_as_printed_and_a_long_explanation_by_its_first_sentence():
    known = find_conclusions(Path(__file__).parents[3] / "docs" / "results")
    assert set(PRINTED) <= known.keys()
    assert all(isinstance(cell, str) for table in PRINTED.values() for row in table.rows for cell in row), "unrounded"
    assert sentences("Short. All of it.") == ("Short. All of it.", "")
    assert sentences("First. Then" + 400 * "x") == ("First.", "Then" + 400 * "x")
    assert sentences(400 * "x" + ". Then.") == ("", 400 * "x" + ". Then."), "only numbers"


def test_the_captions_of_our_results_are_whole_sentences():
    here = Path(__file__).parents[3] / "docs" / "results"
    for id, folder in find_conclusions(here).items():
        page = Result.load(folder).page
        texts = [part.caption for part in (*page.figures, *page.tables)]
        assert all(text.endswith(".") for text in texts), id


def test_every_story_names_panels_of_a_figure_that_our_results_have():
    here = Path(__file__).parents[3] / "docs" / "results"
    for story in STORIES.values():
        page = Result.load(here / story.experiment / "conclusion-standard").page
        (figure,) = [figure for figure in page.figures if figure.name == story.figure]
        assert max(story.panels) < len(figure.panels)
        assert 100 < len(" ".join(story.paragraphs).split()) < 180  # about ten lines


def test_equal_labels_have_equal_colours_in_all_panels_and_values_of_one_quantity_a_scale():
    x = np.arange(3.0)
    panels = [Panel("", Axis("x"), Axis("y"), [Line(f"m = {m}", x, x) for m in ms]) for ms in ((16, 4), (4, 8, 32))]
    traces = [trace for panel in figure_data(Figure("f", "c", panels))["panels"] for trace in panel["traces"]]
    assert [trace["scale"] for trace in traces] == [0.6667, 0, 0, 0.3333, 1]
    panels = [Panel("", Axis("x"), Axis("y"), [Line(name, x, x) for name in names]) for names in ("ab", "ca")]
    traces = [trace for panel in figure_data(Figure("f", "c", panels))["panels"] for trace in panel["traces"]]
    assert [trace["slot"] for trace in traces] == [0, 1, 2, 0]


def test_more_lines_than_the_palette_has_colours_have_a_colour_each():
    x = np.arange(3.0)
    for names in ([f"m = {m}" for m in range(9)], [f"net {k}" for k in range(9)]):
        panel = Panel("", Axis("x"), Axis("y"), [Line(name, x, x, colour=k) for k, name in enumerate(names)])
        traces = figure_data(Figure("f", "c", [panel]))["panels"][0]["traces"]
        assert len({trace["scale"] for trace in traces}) == 9


def test_writing_the_page_again_changes_no_file(results, page):
    before = {p: p.stat().st_mtime_ns for p in page.parent.rglob("*") if p.is_file()}
    write_page(results, page.parent)
    assert {p: p.stat().st_mtime_ns for p in page.parent.rglob("*") if p.is_file()} == before


def test_a_damaged_conclusion_is_named_on_the_page_and_the_others_are_shown(results, tmp_path):
    import shutil

    store = tmp_path / "store"
    shutil.copytree(results, store)
    manifest = store / "own-toy" / "conclusion-quick" / "result.json"
    manifest.write_bytes(manifest.read_bytes()[:-9])
    text = write_page(store, tmp_path / "page").read_text()
    assert 'role="alert"' in text and "damaged or half-written" in text
    assert "stable-fig2" in text and not (tmp_path / "page" / "data" / "own-toy.js").exists()


def test_the_strongest_preset_of_each_experiment_is_shown(results, tmp_path):
    for preset in ("quick", "standard"):
        folder = tmp_path / "own-toy" / f"conclusion-{preset}"
        folder.mkdir(parents=True)
        (folder / "result.json").touch()
    assert find_conclusions(tmp_path)["own-toy"].name == "conclusion-standard"
    assert find_conclusions(tmp_path, "quick")["own-toy"].name == "conclusion-quick"
    with pytest.raises(UnknownNameError):
        find_conclusions(tmp_path, "fast")


def test_static_figures_are_drawn_from_the_same_spec(results, tmp_path):
    pytest.importorskip("matplotlib")
    files = write_figures(results, tmp_path)
    assert sorted(p.suffix for p in files) == [".png"] * 3 + [".svg"] * 3
    assert all(p.stat().st_size > 2000 for p in files)
    svg = (tmp_path / "stable-fig2-gradient-over-weight.svg").read_text()
    assert "softplus" in svg and "Continuous time" in svg
    shutil.copytree(results / "stable-fig2", tmp_path / "store" / "stable-fig2")
    again = write_figures(tmp_path / "store", tmp_path / "again")
    assert [p.read_bytes() for p in again] == [(tmp_path / p.name).read_bytes() for p in again]
    assert len(again) == 2


def test_dollar_signs_in_labels_are_drawn_as_they_are(tmp_path):
    odd = r"$\frac$ of $5 & $"
    axes = Axis(odd), Axis(odd)
    grid = np.arange(1.0, 4.0)
    panels = [
        Panel(odd, *axes, [Line(odd, grid, grid), Points(odd, grid, grid), Rule(odd, y=2.0)]),
        Panel(odd, *axes, [Bars(odd, [odd, "b", "c"], grid)]),
        Panel(odd, *axes, [Heatmap(odd, grid, grid, np.outer(grid, grid))]),
        Panel(odd, *axes, [Line(odd, grid, grid * np.nan)]),
    ]
    files = draw(Figure("odd", odd, panels), tmp_path / "odd")
    drawn = files[1].read_text()
    assert drawn.count("$\\frac$ of $5") >= 4 * 3


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every folder")
def test_a_folder_that_may_not_be_read_is_named_and_the_others_are_shown(results, tmp_path):
    store = tmp_path / "store"
    shutil.copytree(results, store)
    locked = store / "own-toy" / "conclusion-quick"
    locked.chmod(0)
    try:
        notices = []
        page = write_page(store, tmp_path / "page", notice=notices.append)
        assert len(notices) == 1 and str(locked) in notices[0]
        assert "stable-fig2" in page.read_text()
    finally:
        locked.chmod(0o700)


def test_a_path_that_cannot_be_looked_at_is_damage_and_no_crash(tmp_path):
    with pytest.raises(DamagedResultError, match="too long"):
        read_regular(tmp_path / ("a" * 300) / "result.json", 10)


def test_a_page_survives_packing_with_every_array_once():
    x = np.arange(5.0)
    panel = Panel("p", Axis("x", limits=(0.0, 1.0)), Axis("y", log=True), [
        Line("a", x, x, x, x, markers=True, dash="dot"), Points("b", x, x + 1), Bars("c", ["u", "v"], [1, 2]),
        Heatmap("d", x, x[:2], np.ones((2, 5)), log=True), Rule("e", x=1.0),
    ], True)  # fmt: skip
    whole = Page(
        "iat", "w", "t", "s", "quick", [Figure("f", "c", [panel], 3)], [Table("n", "c", ("a",), [(1,)])], ("x",)
    )
    plain, arrays = pack(whole)
    assert sum(np.array_equal(a, x) for a in arrays.values()) == 1
    again, repeated = pack(unpack(json.loads(json.dumps(plain)), arrays))
    assert json.dumps(again) == json.dumps(plain)
    assert all(np.array_equal(repeated[name], arrays[name]) for name in arrays)


def test_infinite_values_are_marked_at_the_upper_edge_and_gaps_stay_gaps():
    line = Line("a", [1, 2, 3, 4], [1.0, np.inf, np.nan, 10.0])
    panel = Panel("", Axis("x"), Axis("y", log=True), [line])
    main, beyond = panel_data(panel)["traces"]
    assert main["y"] == [1, None, None, 10]
    assert beyond["role"] == "beyond" and beyond["x"] == [2] and beyond["y"] == [ceiling(panel)] == [16.0]


def test_a_long_line_is_thinned_but_keeps_its_extremes_ends_and_gaps():
    x = np.arange(50_000.0)
    y = np.sin(x / 700)
    y[12_345], y[23_456] = 9.0, -9.0
    y[30_000:30_100] = np.nan
    drawn = curve(Line("a", x, y), Panel("", Axis("x"), Axis("y"), [Line("a", x, y)]))
    assert len(drawn.x) < 1000
    assert drawn.x[0] == 0 and drawn.x[-1] == 49_999
    assert np.nanmax(drawn.y) == 9.0 and np.nanmin(drawn.y) == -9.0
    assert np.isnan(drawn.y).any()


def test_a_thinned_trajectory_keeps_its_fast_part_rather_than_its_rest():
    angle = np.concatenate([np.linspace(0, 6, 2000), np.full(60_000, 6.0)])
    line = Line("a", np.cos(angle), np.sin(angle))
    drawn = curve(line, Panel("", Axis("x"), Axis("y"), [line]))
    assert len(drawn.x) == 2001, "the turn in full, and the end"


def test_static_figures_name_every_width_that_a_panel_has_and_give_it_one_colour(tmp_path):
    pytest.importorskip("matplotlib")
    from matplotlib.colors import to_hex

    from holdfast._drawing.panels import drawn

    x = np.arange(1.0, 4.0)
    panels = [
        Panel("", Axis("x"), Axis("y"), [Line(f"m = {m}", x, m * x, colour=k, legend=p == 0) for k, m in enumerate(ms)])
        for p, ms in enumerate(((12, 16), (4, 8, 12), (4, 8)))
    ]
    with drawn(Figure("f", "c", panels)) as canvas:
        colours = [{line.get_label(): to_hex(line.get_color()) for line in ax.lines} for ax in canvas.axes[:3]]
        legends = [ax.get_legend() for ax in canvas.axes[:3]]
    assert [text.get_text() for text in legends[1].get_texts()] == ["m = 4", "m = 8", "m = 12"]
    assert legends[2] is None, "both are in the legend before"
    assert colours[0]["m = 12"] == colours[1]["m = 12"] and len({*colours[0].values(), *colours[1].values()}) == 4


def test_every_width_of_a_figure_is_in_its_legend():
    x = np.arange(3.0)
    panels = [
        Panel("", Axis("x"), Axis("y"), [Line(f"m = {m}", x, x, colour=k, legend=p == 0) for k, m in enumerate(ms)])
        for p, ms in enumerate(((12, 16), (4, 8, 12)))
    ]
    traces = [trace for panel in figure_data(Figure("f", "c", panels))["panels"] for trace in panel["traces"]]
    assert all(trace["showlegend"] for trace in traces)
    assert [trace["scale"] for trace in traces] == [0.6667, 1, 0, 0.3333, 0.6667]


def test_a_thinned_trajectory_keeps_its_pieces_apart():
    angle = np.linspace(0, 6, 2001)
    angle[-1] = np.nan
    pieces = np.concatenate([r * np.exp(1j * angle) for r in np.linspace(0.1, 1, 30)])
    line = Line("a", pieces.real, pieces.imag)
    drawn = curve(line, Panel("", Axis("x"), Axis("y"), [line]))
    assert len(drawn.x) < 6200
    assert np.isnan(drawn.x).sum() == 30
    # the end of a piece stays: the point before each gap is the last one at angle 6 - 6/2000
    before = drawn.x[np.flatnonzero(np.isnan(drawn.x)) - 1]
    assert np.allclose(before, np.linspace(0.1, 1, 30) * np.cos(6 - 6 / 2000))


def test_wrong_figures_are_refused_with_what_came():
    with pytest.raises(ShapeError, match=r"'a': x, y, low and high must be lists of one length"):
        Line("a", [1, 2], [1])
    with pytest.raises(ArgumentError, match="a band needs both"):
        Line("a", [1], [1], low=[1])
    with pytest.raises(ArgumentError, match="a figure needs real numbers, got complex128"):
        Points("a", [1], [1j])
    with pytest.raises(ArgumentError, match="needs x or y, one of them"):
        Rule("a")
    with pytest.raises(ShapeError, match="expected 2 cells in each row, got 1"):
        Table("t", "c", ("a", "b"), [(1,)])
    with pytest.raises(ArgumentError, match="lower-case letters"):
        Figure("A b", "c", [])
    with pytest.raises(ShapeError, match=r"z must be \(y, x\)"):
        Heatmap("a", [1, 2], [1], [[1.0]])


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.000123456, "0.0001235"), (1.5e-12, "1.5 × 10⁻¹²"), (-3, "−3"), (12345, "12,345"), (None, "–"),
     (np.inf, "∞"), ("a-b", "a-b"), (True, "yes"), (False, "no"),
     (10_000.0, "10,000"), (2.5e9, "2.5 × 10⁹"), (0.0, "0")],
)  # fmt: skip
def test_numbers_are_written_as_people_write_them(value, text):
    assert number(value) == text
