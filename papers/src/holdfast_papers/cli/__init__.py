"""Commands that holdfast-papers adds to `holdfast`: list, reproduce, report, bench. One file each.

Shared: `claims.py` (the table of claims) and `progress.py` (bars of running units).
"""
