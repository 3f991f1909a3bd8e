"""The page and the static figures, made from saved results alone."""

from holdfast.report.collect import find_conclusions
from holdfast.report.folder import check_folder
from holdfast.report.page import write_figures, write_page

__all__ = ["check_folder", "find_conclusions", "write_figures", "write_page"]
