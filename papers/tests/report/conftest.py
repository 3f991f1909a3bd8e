import importlib.util
import shutil
import sys
from pathlib import Path

import pytest

from holdfast_papers import experiments
from holdfast_papers.execution import Store
from holdfast_papers.report import write_page

TOY = Path(__file__).parent.parent / "execution" / "toy.py"


@pytest.fixture(scope="session")
def results(tmp_path_factory):
    """A store with the toy experiment, full of HTML, and one of the papers' figures; computed in this process."""
    store = tmp_path_factory.mktemp("store")
    for experiment in (experiments.get(str(TOY)), experiments.get("stable-fig2")):
        result = experiments.run(experiment, "quick")
        result.save(Store(store).conclusion(experiment.id, "quick"))
    return store


@pytest.fixture(scope="session")
def page(results, tmp_path_factory):
    return write_page(results, tmp_path_factory.mktemp("page"))


@pytest.fixture(scope="session")
def browser():
    """Debian's Chromium, driven by playwright."""
    if importlib.util.find_spec("playwright") is None:
        pytest.skip("needs playwright (the extra `dev`)")
    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if path is None:
        pytest.skip("needs a browser: apt-get install chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        # without a sandbox: Chromium refuses to make one for root, which CI is
        browser = driver.chromium.launch(executable_path=path, args=["--no-sandbox"] if sys.platform == "linux" else [])
        yield browser
        browser.close()
