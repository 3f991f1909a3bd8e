"""The page in a real headless Chromium: no errors, every figure drawn, toggles and keyboard work."""

import itertools
import re
from dataclasses import replace

import numpy as np
import pytest

from holdfast.figures import Axis, Bars, Figure, Heatmap, Line, Panel, Rule
from holdfast_papers.pages import Table
from holdfast_papers.report import write_page
from holdfast_papers.results import Result

PHONE = {"width": 390, "height": 844}
DESK = {"width": 1280, "height": 900}


@pytest.fixture(scope="session")
def uneven(results, tmp_path_factory):
    """A page of one figure: a panel with a tall legend, one with another and a title of two lines, an empty one."""
    x = np.linspace(0.3, 4.0, 9)
    axes = Axis("x", log=True), Axis("y", log=True)
    tall = [Line(f"a line with a long name, {k}", x, x + k, colour=k) for k in range(6)]
    panels = [
        Panel("Tall", *axes, tall),
        Panel("A title that does not fit into one line of such a narrow panel", *axes, [Line("b", x, x, colour=0)]),
        Panel("Empty", *axes, []),
    ]
    whole = Result.load(results / "own-toy" / "conclusion-quick")
    store = tmp_path_factory.mktemp("uneven")
    page = replace(whole.page, figures=[Figure("f", "Lines.", panels, columns=3)])
    replace(whole, page=page).save(store / "own-toy" / "conclusion-quick")
    return write_page(store, store / "page")


@pytest.mark.parametrize("viewport", [PHONE, DESK], ids=["phone", "desk"])
def test_panels_of_a_row_are_level_their_ticks_can_be_read_and_an_empty_one_says_so(browser, uneven, viewport):
    context = browser.new_context(viewport=viewport)
    tab = context.new_page()
    tab.set_default_timeout(300_000)
    tab.goto(uneven.as_uri())
    draw_all(tab)
    tops = tab.evaluate("[...document.querySelectorAll('.plot')].map((p) => Math.round(p.getBoundingClientRect().top))")
    assert len(set(tops)) == (1 if viewport is DESK else 3)
    sizes = tab.evaluate(
        "[...document.querySelectorAll('.plot svg text')].map((t) => parseFloat(getComputedStyle(t).fontSize))"
    )
    assert min(sizes) >= 10
    assert "0.5" in tab.locator(".plot").first.inner_text().split()
    assert "nothing to draw here" in tab.locator(".plot").nth(2).inner_text()
    context.close()


def test_tags_in_the_labels_of_a_figure_are_shown_as_text(browser, results, tmp_path):
    tag = '<a href="https://example.org">link</a> & <b>bold</b>'
    axes = Axis(tag), Axis(tag)
    x = np.arange(1.0, 4.0)
    panels = [
        Panel(tag, *axes, [Line(tag, x, x), Rule(tag, y=2.0)]),
        Panel(tag, *axes, [Bars(tag, [tag, "b", "c"], x)]),
        Panel(tag, *axes, [Heatmap(tag, x, x, np.outer(x, x))]),
    ]
    whole = Result.load(results / "own-toy" / "conclusion-quick")
    page = replace(whole.page, figures=[Figure("f", tag, panels)])
    replace(whole, page=page).save(tmp_path / "own-toy" / "conclusion-quick")
    context = browser.new_context(viewport=DESK)
    tab = context.new_page()
    tab.goto(write_page(tmp_path, tmp_path / "page").as_uri())
    draw_all(tab)
    assert tab.locator(".plot a, .plot [href]").count() == 0
    assert tag in tab.locator(".plot").first.text_content()
    context.close()


@pytest.fixture
def visit(browser, page):
    """Opens the page from disk, offline, and fails the test on any error or request to a network."""
    contexts, troubles = [], []

    def open_page(*, scheme="light", viewport=DESK):
        context = browser.new_context(viewport=viewport, color_scheme=scheme, offline=True)
        contexts.append(context)
        tab = context.new_page()
        tab.set_default_timeout(300_000)  # milliseconds, for a busy machine
        tab.on("console", lambda message: troubles.append(message.text) if message.type != "log" else None)
        tab.on("pageerror", lambda error: troubles.append(str(error)))
        tab.on("request", lambda request: troubles.append(request.url) if request.url.startswith("http") else None)
        tab.goto(page.as_uri())
        return tab

    yield open_page
    for context in contexts:
        context.close()
    assert troubles == []


@pytest.mark.parametrize("viewport", [PHONE, DESK], ids=["phone", "desk"])
def test_the_first_screen_says_how_many_claims_are_met_and_where_the_first_results_are(visit, viewport):
    tab = visit(viewport=viewport)
    bottom = "name => document.querySelector(name).getBoundingClientRect().bottom"
    for name in (".counts", "#overview .quiet", ".outcomes tbody td"):
        assert tab.evaluate(bottom, name) < viewport["height"], name
    tab.locator(".counts a").nth(1).click()
    assert tab.locator("#shown").inner_text() == "2 of 6 claims shown", "a count leads to its claims"


def test_a_phone_has_the_list_of_experiments_folded(visit):
    tab = visit(viewport=PHONE)
    link = tab.locator('.contents a[href="#stable-fig2"]')
    assert not link.is_visible()
    tab.locator(".contents summary").click()
    link.click()
    assert not link.is_visible() and "#stable-fig2" in tab.url
    assert visit().locator('.contents a[href="#stable-fig2"]').is_visible()


def test_a_wide_table_scrolls_on_a_phone_with_its_first_column_in_view(browser, results, tmp_path):
    whole = Result.load(results / "own-toy" / "conclusion-quick")
    heads = [f"a head of many letters, {k}" for k in range(9)]
    page = replace(whole.page, tables=[Table("t", "Wide.", heads, [["[-0.55, 0.17]"] * 9])])
    replace(whole, page=page).save(tmp_path / "store" / "own-toy" / "conclusion-quick")
    context = browser.new_context(viewport=PHONE)
    tab = context.new_page()
    tab.goto(write_page(tmp_path / "store", tmp_path / "page").as_uri())
    cells = tab.locator(".scroll").first.locator("tbody td")
    assert cells.first.bounding_box()["height"] == cells.nth(3).bounding_box()["height"] < 45, "one line"
    left = cells.first.bounding_box()["x"]
    tab.evaluate("document.querySelector('.scroll').scrollLeft = 300")
    assert cells.first.bounding_box()["x"] == left and cells.nth(1).bounding_box()["x"] < left
    context.close()


def test_axes_are_labelled_in_full_and_labels_typeset(browser, results, tmp_path):
    x = np.arange(0.0, 40_000.0, 1000.0)
    one = np.full_like(x, 1e-6)
    panels = [
        Panel("(t+1)^-1.5 >= 0", Axis("step"), Axis("G_f(w)"), [Line("e^{-t/2}", x, x)]),
        Panel("One value", Axis("step"), Axis("y", log=True), [Line("e^{-t/2}", x, one)]),
        Panel("Infinite", Axis("step"), Axis("y", log=True), [Line("e^{-t/2}", x, one * np.inf)]),
    ]
    whole = Result.load(results / "own-toy" / "conclusion-quick")
    page = replace(whole.page, figures=[Figure("f", "Lines.", panels, columns=3)])
    replace(whole, page=page).save(tmp_path / "store" / "own-toy" / "conclusion-quick")
    context = browser.new_context(viewport=DESK)
    tab = context.new_page()
    tab.set_default_timeout(300_000)
    tab.goto(write_page(tmp_path / "store", tmp_path / "page").as_uri())
    draw_all(tab)
    assert "20,000" in tab.locator(".plot").first.text_content()
    boxes = [tick.bounding_box() for tick in tab.locator(".plot").nth(1).locator(".ytick text").all()]
    boxes = sorted((box for box in boxes if box), key=lambda box: box["y"])
    assert len(boxes) >= 2
    assert all(a["y"] + a["height"] <= b["y"] + 2 for a, b in itertools.pairwise(boxes)), "no label lies on another"
    assert "every value is infinite" in tab.locator(".plot").nth(2).text_content()
    assert tab.locator(".legend sup").first.inner_text() == "−t/2"
    tab.locator("figure summary").first.click()
    caption = tab.locator("figure caption").first
    caption.wait_for()
    assert caption.inner_text().startswith("(t+1)⁻¹·⁵ ≥ 0, e") and caption.locator("sup").count() == 1
    assert "∞" in tab.locator("figure table").nth(2).inner_text(), "an infinite value is not a gap"
    assert "{" not in tab.locator("figure").first.text_content()
    context.close()


def wait_until(tab, condition, arg=None):
    # instead of wait_for_function, whose second look evaluates a string: the page's policy refuses that
    waited = tab.evaluate(
        f"async arg => {{ for (let k = 0; k < 18000; k++) {{ if (({condition})(arg)) return true;"
        " await new Promise(requestAnimationFrame) } return false }",
        arg,
    )
    assert waited, f"never true: {condition}"


def draw_all(tab):
    figures = tab.locator("figure")
    for k in range(figures.count()):
        figures.nth(k).scroll_into_view_if_needed()
        wait_until(tab, "k => document.querySelectorAll('figure')[k].dataset.drawn === 'true'", k)
    return figures.count()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_figure_is_drawn_in_both_themes_without_errors(visit, scheme):
    tab = visit(scheme=scheme)
    assert draw_all(tab) == 3
    assert tab.locator(".plot .main-svg").count() >= 6
    assert tab.locator("canvas").count() >= 3
    assert tab.evaluate("document.documentElement.dataset.theme") == scheme
    assert tab.title() == "holdfast: results"


def test_figures_out_of_view_are_not_drawn_until_they_come_into_view(visit):
    tab = visit(viewport={"width": 1280, "height": 300})
    assert tab.locator("figure[data-drawn]").count() < 3
    assert draw_all(tab) == 3


def test_before_its_first_paint_the_page_loads_only_its_own_script_and_style(visit, page):
    # plotly's five megabytes and the figures' data come when a figure comes into view
    assert re.findall(r'(?:src|href)="(assets/[^"?]+|data/[^"?]+)', page.read_text()) == [
        "assets/page.css",
        "assets/page.js",
    ]
    wait_until(visit(), "() => performance.getEntriesByName('first-contentful-paint').length === 1")


def test_the_theme_toggle_recolours_drawn_figures_and_is_remembered(visit):
    tab = visit(scheme="light")
    draw_all(tab)
    stroke = "getComputedStyle(document.querySelector('.js-line')).stroke"
    before = tab.evaluate(stroke)
    tab.get_by_role("button", name="Switch to dark colours").click()
    assert tab.evaluate("document.documentElement.dataset.theme") == "dark"
    wait_until(tab, f"before => {stroke} !== before", before)
    tab.reload()
    assert tab.evaluate("document.documentElement.dataset.theme") == "dark"


def test_filters_show_only_claims_that_fit_and_say_how_many(visit):
    tab = visit()
    rows = tab.locator(".claims tbody tr:visible")
    assert rows.count() == 6
    tab.get_by_role("button", name="not met").click()
    assert rows.count() == 2
    assert tab.locator("#shown").inner_text() == "2 of 6 claims shown"
    tab.get_by_role("button", name="All").click()
    tab.locator("#paper").select_option("stable")
    assert rows.count() == 3
    tab.get_by_label("Search").fill("b = 0.5")
    assert rows.count() == 1


def test_legend_entries_switch_lines_off(visit):
    tab = visit()
    draw_all(tab)
    figure = tab.locator("[data-figure=gradient-over-weight] .plot").first
    shown = figure.locator(".js-line").count()
    tab.locator("[data-figure=gradient-over-weight] .legend button").first.click()
    wait_until(
        tab,
        "n => document.querySelectorAll('[data-figure=gradient-over-weight] .plot')[0].querySelectorAll('.js-line').length < n",
        shown,
    )


def test_a_figure_has_one_legend_for_all_its_panels_outside_of_them(visit):
    tab = visit(viewport=PHONE)
    draw_all(tab)
    figure = tab.locator("[data-figure=gradient-over-weight]")
    assert figure.locator(".plot").count() == 2 and figure.locator(".legend").count() == 1
    assert "softplus" in figure.locator(".legend").inner_text()
    assert tab.locator(".plot .legend").count() == 0


def test_a_figure_has_its_numbers_as_a_table(visit):
    tab = visit()
    draw_all(tab)
    details = tab.locator("[data-figure=gradient-over-weight] details")
    details.locator("summary").click()
    details.locator("table").first.wait_for()
    assert "weight w" in details.locator("table").first.inner_text()


def test_html_in_configs_does_nothing(visit):
    tab = visit()
    draw_all(tab)
    assert tab.title() == "holdfast: results"
    assert tab.locator("article b, article i").count() == 0


def test_the_page_is_readable_on_a_phone(visit):
    tab = visit(viewport=PHONE)
    draw_all(tab)
    assert tab.evaluate("document.documentElement.scrollWidth") == 390, "nothing is wider than the screen"
    assert tab.evaluate("parseFloat(getComputedStyle(document.body).fontSize)") >= 16


def test_everything_can_be_reached_by_keyboard_and_the_focus_is_seen(visit):
    tab = visit()
    tab.keyboard.press("Tab")
    assert tab.evaluate("document.activeElement.textContent") == "Skip to the text"
    tab.keyboard.press("Enter")
    reached = []
    for _ in range(12):
        tab.keyboard.press("Tab")
        reached.append(tab.evaluate("document.activeElement.id || document.activeElement.tagName"))
        assert tab.evaluate("document.activeElement.matches(':focus-visible')")
        assert tab.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none", reached[-1]
    assert {"BUTTON", "paper", "search", "A"} <= set(reached)


def test_the_policy_stops_scripts_that_are_not_the_pages_own_and_every_request(browser, page):
    context = browser.new_context()
    tab = context.new_page()
    tab.goto(page.as_uri())
    stopped = tab.evaluate(
        """() => new Promise((resolve) => {
          const directives = [];
          document.addEventListener("securitypolicyviolation", (event) => {
            directives.push(event.effectiveDirective);
            if (directives.length === 4) resolve(directives.sort());
          });
          const script = document.createElement("script");
          script.textContent = "document.title = 'broken'";
          const button = document.createElement("button");
          button.setAttribute("onclick", "document.title = 'broken'");
          const image = document.createElement("img");
          image.src = "http://127.0.0.1:9/x.png";
          document.body.append(script, button, image);
          fetch("http://127.0.0.1:9/").catch(() => {});
        })"""
    )
    assert stopped == ["connect-src", "img-src", "script-src-attr", "script-src-elem"]
    assert tab.title() == "holdfast: results"
    context.close()


def test_a_figure_can_be_saved_as_a_picture_under_the_policy(visit):
    tab = visit()
    draw_all(tab)
    plot = tab.locator("[data-figure=gradient-over-weight] .plot").first
    address = plot.evaluate("element => Plotly.toImage(element, { format: 'png', width: 300, height: 200 })")
    assert address.startswith("data:image/png")
