"""How Sphinx builds the site: `make docs`."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE / "_sphinx"), str(HERE.parent / "tests")]

project = "holdfast"
author = "The holdfast developers"
release = tomllib.loads((HERE.parent / "pyproject.toml").read_text())["project"]["version"]

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_design",
    "sphinx_copybutton",
    "sphinx_gallery.gen_gallery",
    "api_pages",
    "plain_docstrings",
    "linked_names",
    "mathml",
    "theory_figures",
]
exclude_patterns = ["results", "_sphinx", "_templates", "gallery/GALLERY_HEADER.rst"]
default_role = "py:obj"
suppress_warnings = [
    "config.cache",  # the gallery's settings hold an object
    "ref.python",  # a short name in a docstring that several classes have is not linked to the right one
]

myst_enable_extensions = ["dollarmath", "colon_fence"]
myst_heading_anchors = 3

napoleon_google_docstring = True
napoleon_numpy_docstring = False
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
maximum_signature_line_length = 88

# which examples take seconds, and run while the site is built; the others are shown
sphinx_gallery_conf = {
    "examples_dirs": ["../examples"],
    "gallery_dirs": ["gallery"],
    "filename_pattern": "/(diagnose_lstm|fix_diverging_ssm|learn_memory|memory_of_|stream|own_)",
    "copyfile_regex": r".*GALLERY_HEADER\.rst",
    "within_subsection_order": "FileNameSortKey",
    "show_memory": False,
    "show_signature": False,
    "write_computation_times": False,  # that page would load scripts from the network
    "download_all_examples": False,
    "remove_config_comments": True,
}

html_theme = "pydata_sphinx_theme"
html_title = "holdfast"
html_static_path = ["_static"]
templates_path = ["_templates"]
html_sidebars = {"**": ["all-pages"]}
html_css_files = ["site.css"]
html_math_renderer = "mathml"
html_show_sourcelink = False
html_show_search_summary = False  # read by fetching pages, which a browser forbids for files on disk
html_context = {"default_mode": "auto"}
html_theme_options = {
    "show_prev_next": False,
    "navigation_with_keys": False,
    "header_links_before_dropdown": 2,
    "footer_start": ["copyright"],
    "footer_end": [],
}
