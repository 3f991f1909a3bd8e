"""Figures as data, drawn: what the page, static files and `plot()` of a result share.

`prepare.py` readies numbers for axes, `colours.py` has the colours and gives them to layers, `panels.py` draws with
matplotlib, which is imported when something is drawn. The page's own drawing, by plotly, is in `holdfast_papers.report`.
"""
