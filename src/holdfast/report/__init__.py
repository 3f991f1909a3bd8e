"""The page and the static figures, made from saved results alone."""

from holdfast.report.collect import find_conclusions
from holdfast.report.page import write_figures, write_page

__all__ = ["find_conclusions", "write_figures", "write_page"]
