"""The page and the static figures, made from saved results alone.

`collect.py` finds and reads conclusions, `traces.py` draws them with plotly (`holdfast._drawing` with matplotlib, for
files), `words.py` writes numbers, `mathematics.py` formulas, `story.py` what a paper says, `printed.py` its tables,
`page.py` puts the page together, `folder.py` knows which files are ours.
"""

from holdfast_papers.report.collect import find_conclusions
from holdfast_papers.report.folder import check_folder
from holdfast_papers.report.page import write_figures, write_page

__all__ = ["check_folder", "find_conclusions", "write_figures", "write_page"]
